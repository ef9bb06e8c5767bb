"""The range assignor: of each topic, neighbouring partitions to each member."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kclient.consumer.group.assignors._base import Assignor, Subscription, in_stable_order, subscribed_topics
from kclient.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


class RangeAssignor(Assignor):
    """Cuts each topic into as many ranges of neighbouring partitions as it has subscribers.

    Topics with equal numbers of partitions are cut alike, so a member gets the same partitions of each
    (co-partitioning). The first members get one partition more where the division leaves a rest.

    Where members have a `client.rack`, and not all racks have replicas of all partitions (KIP-881), a member gets
    partitions with a replica in its rack first, as many as it is to have, and of topics that are cut alike only those
    numbers that have one there in all of them; the rest is cut as without racks. As Java's `RangeAssignor`.
    """

    name = "range"

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, Subscription]
    ) -> Mapping[str, Sequence[TopicPartition]]:
        """See `Assignor.assign`."""
        return _ranges(partitions, members, {})

    def assign_by_racks(
        self,
        partitions: Mapping[str, int],
        members: Mapping[str, Subscription],
        racks: Mapping[str, Sequence[Collection[str]]],
    ) -> Mapping[str, Sequence[TopicPartition]]:
        """See `Assignor.assign_by_racks`. A subclass that decides by `assign` goes on doing so."""
        if type(self).assign is not RangeAssignor.assign:
            return self.assign(partitions, members)
        return _ranges(partitions, members, racks)


def _ranges(
    partitions: Mapping[str, int],
    members: Mapping[str, Subscription],
    racks: Mapping[str, Sequence[Collection[str]]],
) -> dict[str, list[TopicPartition]]:
    topics = [
        _RangedTopic(topic, partitions[topic], in_stable_order(members, topic), members, racks.get(topic, ()))
        for topic in sorted(subscribed_topics(members) & partitions.keys())
        if partitions[topic]
    ]
    if any(topic.matters for topic in topics):
        _match_racks(topics)
    for topic in topics:
        topic.cut()
    return {member: [tp for topic in topics for tp in sorted(topic.given.get(member, ()))] for member in members}


class _RangedTopic:
    """A topic whose partitions are being given away.

    Args:
        name: Its name.
        count: How many partitions it has.
        subscribers: The members that read it, in their order.
        members: All members.
        racks: The racks of each partition's replicas; empty if they are not known.
    """

    def __init__(
        self,
        name: str,
        count: int,
        subscribers: list[str],
        members: Mapping[str, Subscription],
        racks: Sequence[Collection[str]],
    ) -> None:
        self.count = count
        self.subscribers = subscribers
        self.given: dict[str, list[TopicPartition]] = {member: [] for member in subscribers}
        self._name = name
        self._left = dict.fromkeys(range(count))
        self._share, self._rest = divmod(count, len(subscribers))
        self._rack_of = {member: members[member].rack_id for member in subscribers if members[member].rack_id}
        self._racks = [frozenset(racks[number]) if number < len(racks) else frozenset() for number in range(count)]
        everywhere = frozenset[str]().union(*self._racks)
        self.matters = not everywhere.isdisjoint(self._rack_of.values()) and any(
            of_one != everywhere for of_one in self._racks
        )
        """Whether it makes a difference which rack a member is in."""

    @property
    def kind(self) -> tuple[tuple[str, ...], int]:
        """What topics have in common that are cut alike."""
        return tuple(self.subscribers), self.count

    @property
    def has_racks(self) -> bool:
        """Whether any subscriber tells where it is."""
        return bool(self._rack_of)

    def is_near(self, member: str, number: int) -> bool:
        """Whether a partition has a replica in the member's rack, or the member does not tell where it is."""
        rack = self._rack_of.get(member)
        return rack is None or rack in self._racks[number]

    def room(self, member: str) -> int:
        """How many partitions a member may still get."""
        return max(self._share + (self._rest > 0) - len(self.given[member]), 0)

    def give(self, member: str, numbers: Iterable[int]) -> None:
        """The member gets these partitions."""
        mine = self.given[member]
        for number in numbers:
            mine.append(TopicPartition(self._name, number))
            del self._left[number]
        if len(mine) > self._share:
            self._rest -= 1

    def cut(self, *, near: bool = False) -> None:
        """Give away what is left, in order; `near`: only what has a replica in the member's rack."""
        for member in self.subscribers:
            if not self._left:
                break
            fitting = [number for number in self._left if not near or self.is_near(member, number)]
            if chosen := fitting[: self.room(member)]:
                self.give(member, chosen)


def _match_racks(topics: Iterable[_RangedTopic]) -> None:
    """Give away partitions to members that are near to them."""
    alike: dict[tuple[tuple[str, ...], int], list[_RangedTopic]] = {}
    for topic in topics:
        if topic.has_racks:
            alike.setdefault(topic.kind, []).append(topic)
    for several in alike.values():
        if len(several) > 1:
            _match_alike(several)
        elif several[0].matters:
            several[0].cut(near=True)


def _match_alike(topics: list[_RangedTopic]) -> None:
    """Give away the same partitions of topics that are cut alike."""
    waiting = dict.fromkeys(topics[0].subscribers)
    for number in range(topics[0].count):
        for member in waiting:
            if all(topic.is_near(member, number) and topic.room(member) for topic in topics):
                break
        else:
            continue
        for topic in topics:
            topic.give(member, [number])
        if not any(topic.room(member) for topic in topics):
            del waiting[member]
            if not waiting:
                break
