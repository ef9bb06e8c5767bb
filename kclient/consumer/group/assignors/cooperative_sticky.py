"""The cooperative-sticky assignor: balanced, and with as few moves as possible."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, ClassVar

from kclient.consumer.group.assignors._base import Assignor, RebalanceProtocol, Subscription, subscribed_topics
from kclient.consumer.group.assignors._sticky_equal import assign_equal
from kclient.consumer.group.assignors._sticky_general import assign_general
from kclient.consumer.group.assignors._sticky_owned import owned_partitions

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from kclient.types import TopicPartition

_GENERATION = struct.Struct(">i")


class CooperativeStickyAssignor(Assignor):
    """Balances the partitions while members keep what they have, and moves in two steps (KIP-429).

    A partition that is to change hands is left out of the assignment first: its owner gives it up and rejoins, and
    the second rebalance gives it to the new owner. Everybody goes on reading what they keep. As Java's
    `CooperativeStickyAssignor` without racks.
    """

    name = "cooperative-sticky"
    protocols: ClassVar[tuple[RebalanceProtocol, ...]] = (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)

    def __init__(self) -> None:
        self._generation = -1

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, Subscription]
    ) -> Mapping[str, Sequence[TopicPartition]]:
        """See `Assignor.assign`."""
        balanced, owned = assign_sticky(partitions, members)
        return _without_moving(balanced, owned, members)

    def subscription_user_data(self, topics: Collection[str]) -> bytes | None:
        """The generation of the last assignment, for leaders that read it from here only."""
        return _GENERATION.pack(self._generation)

    def on_assignment(self, partitions: Sequence[TopicPartition], user_data: bytes | None, generation_id: int) -> None:
        """Remember the generation."""
        self._generation = generation_id


def assign_sticky(
    partitions: Mapping[str, int], members: Mapping[str, Subscription]
) -> tuple[dict[str, list[TopicPartition]], dict[str, list[TopicPartition]]]:
    """Balance with the fewest moves, as if every partition could move at once.

    Returns:
        The balanced assignment, and what each member rightfully owns before it.
    """
    wanted = subscribed_topics(members)
    partitions = {topic: count for topic, count in partitions.items() if topic in wanted}
    generations = {member: _generation_of(subscription) for member, subscription in members.items()}
    owned, contested = owned_partitions(partitions.keys(), members, generations)
    if len({frozenset(subscription.topics) for subscription in members.values()}) <= 1:
        return assign_equal(partitions, owned, contested), owned
    return assign_general(partitions, members, generations, owned), owned


def _generation_of(subscription: Subscription) -> int:
    """The generation in which a member got its partitions, from either place where it may stand."""
    if subscription.generation_id >= 0 or subscription.user_data is None:
        return subscription.generation_id
    try:
        generation: int = _GENERATION.unpack_from(subscription.user_data)[0]
    except struct.error:
        return -1
    return generation


def _without_moving(
    balanced: Mapping[str, Sequence[TopicPartition]],
    owned: Mapping[str, Sequence[TopicPartition]],
    members: Mapping[str, Subscription],
) -> dict[str, list[TopicPartition]]:
    """Leave out every partition that another member still reads and has to give up first."""
    readers: dict[TopicPartition, set[str]] = {}
    for member, subscription in members.items():
        for partition in subscription.owned_partitions:
            readers.setdefault(partition, set()).add(member)
    result = {}
    for member, assigned in balanced.items():
        mine = set(owned[member])
        result[member] = [
            partition for partition in assigned if partition in mine or not readers.get(partition, set()) - {member}
        ]
    return result
