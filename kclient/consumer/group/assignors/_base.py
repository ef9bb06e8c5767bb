"""The public interface of assignors: who in a group reads which partition.

The leader of a group runs the assignor that every member supports; the broker only passes the result on. Write a
subclass of `Assignor` and name it (the class or an instance) in `partition.assignment.strategy`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from kclient.types import TopicPartition


class RebalanceProtocol(Enum):
    """What members do with their partitions while the group rebalances (KIP-429)."""

    EAGER = "eager"
    """Give up everything first; nobody reads until the rebalance is over."""
    COOPERATIVE = "cooperative"
    """Keep reading; give up only what another member is to get, in a second rebalance."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What one member tells the group's leader about itself."""

    topics: tuple[str, ...]
    """The topics it wants to read."""
    user_data: bytes | None = None
    """Bytes of its assignor (`Assignor.subscription_user_data`)."""
    owned_partitions: tuple[TopicPartition, ...] = ()
    """The partitions it reads now and would like to keep."""
    generation_id: int = -1
    """The generation in which it got them, or -1 if it does not say (KIP-792)."""
    group_instance_id: str | None = None
    """Its `group.instance.id`, if it is a static member (KIP-345)."""
    rack_id: str | None = None
    """Its `client.rack`."""


class Assignor(ABC):
    """Spreads the partitions of the subscribed topics over the members of a group."""

    name: ClassVar[str]
    """The name all members must share, such as `range`."""
    protocols: ClassVar[tuple[RebalanceProtocol, ...]] = (RebalanceProtocol.EAGER,)
    """The rebalance protocols whose rules `assign` keeps."""

    @abstractmethod
    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, Subscription]
    ) -> Mapping[str, Sequence[TopicPartition]]:
        """Decide who reads what. Runs on the leader of the group only.

        Args:
            partitions: The number of partitions of each subscribed topic that exists.
            members: The subscription of each member, by member id.

        Returns:
            The partitions of each member, by member id; who is left out gets nothing.
        """

    def assign_by_racks(
        self,
        partitions: Mapping[str, int],
        members: Mapping[str, Subscription],
        racks: Mapping[str, Sequence[Collection[str]]],
    ) -> Mapping[str, Sequence[TopicPartition]]:
        """Decide who reads what, where it is known where replicas are (KIP-881). By default `assign` decides.

        It is called in the place of `assign` if some member has a `client.rack`.

        Args:
            partitions: As for `assign`.
            members: As for `assign`; `Subscription.rack_id` is where a member is.
            racks: For each partition of each topic, in their order, the racks of its replicas, as far as brokers tell
                them.

        Returns:
            As `assign` does.
        """
        return self.assign(partitions, members)

    def subscription_user_data(self, topics: Collection[str]) -> bytes | None:
        """Bytes to send to the leader beside the subscription to `topics`; none by default."""
        return None

    def assignment_user_data(self, member_id: str) -> bytes | None:
        """Bytes that the leader sends to a member beside what `assign` decided; none by default."""
        return None

    def on_assignment(  # noqa: B027 - a hook that few need
        self, partitions: Sequence[TopicPartition], user_data: bytes | None, generation_id: int
    ) -> None:
        """Learn the result of a rebalance, on every member; does nothing by default."""


def in_stable_order(members: Mapping[str, Subscription], topic: str | None = None) -> list[str]:
    """The members (of a topic) in the order in which Kafka's assignors serve them.

    Static members come first, by their instance id, so that a restart under a new member id changes nothing.
    """
    chosen = [
        (subscription.group_instance_id is None, subscription.group_instance_id or member_id, member_id)
        for member_id, subscription in members.items()
        if topic is None or topic in subscription.topics
    ]
    return [member_id for _, _, member_id in sorted(chosen)]


def subscribed_topics(members: Mapping[str, Subscription]) -> set[str]:
    """Every topic that some member wants."""
    return {topic for subscription in members.values() for topic in subscription.topics}


def common_protocol(assignors: Iterable[Assignor]) -> RebalanceProtocol:
    """The rebalance protocol that a member with these assignors follows: the best that all of them support.

    Raises:
        ValueError: If there is none, so the assignors cannot be used together.
    """
    supported: set[RebalanceProtocol] | None = None
    for assignor in assignors:
        protocols = set(assignor.protocols)
        supported = protocols if supported is None else supported & protocols
    if not supported:
        raise ValueError("the assignors in partition.assignment.strategy share no rebalance protocol")
    return RebalanceProtocol.COOPERATIVE if RebalanceProtocol.COOPERATIVE in supported else RebalanceProtocol.EAGER
