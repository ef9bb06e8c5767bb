"""Sticky assignment when members subscribe to different topics: as even as the subscriptions allow.

What members own is kept, free partitions go to whoever has least, and then single partitions move from fuller to
emptier members until nothing can be improved. A move that undoes another of the same topic is replaced by moving
that other partition back, so two members never swap partitions of one topic.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from kclient.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kclient.consumer.group.assignors._base import Subscription


def assign_general(
    partitions: Mapping[str, int],
    members: Mapping[str, Subscription],
    generations: Mapping[str, int],
    owned: Mapping[str, list[TopicPartition]],
) -> dict[str, list[TopicPartition]]:
    """Balance `partitions` over `members`; see the module's text.

    Args:
        partitions: The number of partitions per topic.
        members: The subscriptions, by member id.
        generations: The generation in which each member got what it claims.
        owned: What each member rightfully owns.
    """
    return _Balancer(partitions, members, owned).run(_earlier_owners(members, generations))


def _earlier_owners(members: Mapping[str, Subscription], generations: Mapping[str, int]) -> dict[TopicPartition, str]:
    """Who claims a partition from an older generation: a second choice for the partition if it has to move."""
    newest = max(generations.values(), default=-1)
    owners: dict[TopicPartition, str] = {}
    for member in sorted(members):
        generation = generations[member]
        if generation < newest:
            for partition in members[member].owned_partitions:
                if partition not in owners or generation > generations[owners[partition]]:
                    owners[partition] = member
    return owners


class _Balancer:
    """One run of the algorithm: the assignment as it changes, and the members ordered by what they have."""

    def __init__(
        self,
        partitions: Mapping[str, int],
        members: Mapping[str, Subscription],
        owned: Mapping[str, list[TopicPartition]],
    ) -> None:
        self._partitions = partitions
        self._topics = {
            member: [topic for topic in members[member].topics if topic in partitions] for member in sorted(members)
        }
        self._subscribers: dict[str, list[str]] = {topic: [] for topic in partitions}
        for member, topics in self._topics.items():
            for topic in topics:
                self._subscribers[topic].append(member)
        self._must_revoke = False
        self._assigned: dict[str, list[TopicPartition]] = {
            member: self._still_wanted(member, owned[member]) for member in self._topics
        }
        self._owner = {partition: member for member, assigned in self._assigned.items() for partition in assigned}
        self._by_size: list[tuple[int, str]] = []
        self._moves = _Moves()

    def run(self, earlier: Mapping[TopicPartition, str]) -> dict[str, list[TopicPartition]]:
        """Assign everything and balance."""
        everything = self._in_order(self._partitions)
        free = [partition for partition in everything if partition not in self._owner]
        self._by_size = sorted((len(assigned), member) for member, assigned in self._assigned.items())
        if not self._by_size:
            return {}
        nothing_owned = self._by_size[-1][0] == 0
        for partition in free:
            self._give_to_emptiest(partition)
        movable = {topic for topic, subscribers in self._subscribers.items() if len(subscribers) >= 2}
        fixed = self._set_aside(movable)
        before = {member: list(assigned) for member, assigned in self._assigned.items()}
        if not self._must_revoke:
            self._improve([partition for partition in free if partition.topic in movable], earlier)
        moved = self._improve([partition for partition in everything if partition.topic in movable], earlier)
        if moved and not nothing_owned and _unevenness(self._assigned) >= _unevenness(before):
            self._assigned = before
        self._assigned.update(fixed)
        return self._assigned

    def _still_wanted(self, member: str, owned: Iterable[TopicPartition]) -> list[TopicPartition]:
        """What a member may keep: the topics it is still subscribed to."""
        topics = set(self._topics[member])
        owned = list(owned)
        kept = [partition for partition in owned if partition.topic in topics]
        self._must_revoke = self._must_revoke or len(kept) < len(owned)
        return kept

    def _in_order(self, topics: Iterable[str]) -> list[TopicPartition]:
        """The partitions of topics, those with the fewest subscribers first."""
        ordered = sorted(topics, key=lambda topic: (len(self._subscribers[topic]), topic))
        return [TopicPartition(topic, number) for topic in ordered for number in range(self._partitions[topic])]

    def _give_to_emptiest(self, partition: TopicPartition) -> None:
        """Give a free partition to the subscriber that has least, if there is one."""
        member = self._emptiest(partition.topic)
        if member is not None:
            self._drop_from_order(member)
            self._assigned[member].append(partition)
            self._owner[partition] = member
            self._put_in_order(member)

    def _emptiest(self, topic: str) -> str | None:
        return next((member for _, member in self._by_size if topic in self._topics[member]), None)

    def _set_aside(self, movable: set[str]) -> dict[str, list[TopicPartition]]:
        """Take out the members that can neither give nor get, with their partitions."""
        fixed = {}
        for member in self._topics:
            assigned = self._assigned[member]
            full = len(assigned) >= self._most(member)
            if full and not any(partition.topic in movable for partition in assigned):
                self._drop_from_order(member)
                fixed[member] = self._assigned.pop(member)
        return fixed

    def _most(self, member: str) -> int:
        """How many partitions a member could have."""
        return sum(self._partitions[topic] for topic in self._topics[member])

    def _improve(self, candidates: Sequence[TopicPartition], earlier: Mapping[TopicPartition, str]) -> bool:
        """Move single partitions to emptier members until a whole round changes nothing."""
        moved = False
        again = True
        while again:
            again = False
            for partition in candidates:
                if self._balanced():
                    break
                target = self._better_owner(partition, earlier)
                if target is not None:
                    self._move(self._swap_avoided(partition, target), target)
                    moved = again = True
        return moved

    def _better_owner(self, partition: TopicPartition, earlier: Mapping[TopicPartition, str]) -> str | None:
        """Who should have a partition rather than its owner, because it has at least two fewer."""
        most_allowed = len(self._assigned[self._owner[partition]]) - 2
        before = earlier.get(partition)
        if before in self._assigned and len(self._assigned[before]) <= most_allowed:
            return before
        target = self._emptiest(partition.topic)
        return target if target is not None and len(self._assigned[target]) <= most_allowed else None

    def _swap_avoided(self, partition: TopicPartition, target: str) -> TopicPartition:
        """The partition to move to `target`: rather one that came from there, if moving it back helps as much."""
        other = self._moves.instead_of(partition, self._owner[partition], target)
        helps = len(self._assigned[self._owner[other]]) >= len(self._assigned[target]) + 2
        return other if helps else partition  # or two moves could undo each other for ever

    def _balanced(self) -> bool:
        """Whether no member could take a partition from one that has at least two more."""
        if not self._by_size or self._by_size[0][0] >= self._by_size[-1][0] - 1:
            return True
        for size, member in self._by_size:
            if size == self._most(member):
                continue
            for topic in self._topics[member]:
                for number in range(self._partitions[topic]):
                    owner = self._owner[TopicPartition(topic, number)]
                    if owner in self._assigned and size + 1 < len(self._assigned[owner]):
                        return False
        return True

    def _move(self, partition: TopicPartition, target: str) -> None:
        source = self._owner[partition]
        self._drop_from_order(source)
        self._drop_from_order(target)
        self._moves.record(partition, source, target)
        self._assigned[source].remove(partition)
        self._assigned[target].append(partition)
        self._owner[partition] = target
        self._put_in_order(source)
        self._put_in_order(target)

    def _drop_from_order(self, member: str) -> None:
        del self._by_size[bisect_left(self._by_size, (len(self._assigned[member]), member))]

    def _put_in_order(self, member: str) -> None:
        insort(self._by_size, (len(self._assigned[member]), member))


class _Moves:
    """The moves made so far, to notice one that would undo another of the same topic."""

    def __init__(self) -> None:
        self._route: dict[TopicPartition, tuple[str, str]] = {}
        self._along: dict[tuple[str, str, str], dict[TopicPartition, None]] = {}

    def record(self, partition: TopicPartition, source: str, target: str) -> None:
        """Note a move; a chain of moves counts as one, and a move back home as none."""
        earlier = self._route.pop(partition, None)
        if earlier is not None:
            self._along[(partition.topic, *earlier)].pop(partition)
            source = earlier[0]
            if source == target:
                return
        self._route[partition] = (source, target)
        self._along.setdefault((partition.topic, source, target), {})[partition] = None

    def instead_of(self, partition: TopicPartition, source: str, target: str) -> TopicPartition:
        """The partition to move for the same effect: one that came the opposite way, if there is one."""
        source = self._route.get(partition, (source, target))[0]
        opposite = self._along.get((partition.topic, target, source))
        return next(iter(opposite)) if opposite else partition


def _unevenness(assignment: Mapping[str, Sequence[TopicPartition]]) -> int:
    """The sum of the differences between the sizes of every two members."""
    sizes = sorted(len(assigned) for assigned in assignment.values())
    return sum(size * (2 * index + 1 - len(sizes)) for index, size in enumerate(sizes))
