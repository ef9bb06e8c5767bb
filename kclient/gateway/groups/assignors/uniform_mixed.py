"""The assignor `uniform` where members read different topics: level by level, from who has most to who has least.

The members who read a topic are put in order of how many partitions they have: a landscape that rises from left to
right. Partitions that nobody has are poured into it from the left, where it is lowest, and the level rises. Then each
topic is evened out: its partitions go from the highest members that have some of it to the lowest ones, until the two
levels are next to each other. That one topic is even makes others uneven, so it goes round, a bounded number of times.
"""

from __future__ import annotations

import struct
from typing import Final

from kclient.gateway.groups.assignors.model import GroupView, Partitions

_ROUNDS: Final = 16
"""So often all topics are evened out at most, as by Kafka."""


class MixedAssignment:
    """One assignment.

    Args:
        group: Of this group.
    """

    def __init__(self, group: GroupView) -> None:
        self._group = group
        self._ids = list(group.members)
        self._readers: dict[bytes, list[int]] = {}
        """The members that read each topic, by their places in the group."""
        for place, member in enumerate(group.members.values()):
            for topic in member.topics:
                self._readers.setdefault(topic, []).append(place)
        self._owners = {topic: [-1] * group.counts[topic] for topic in self._readers}
        """Who has each partition, by its place; -1 for nobody."""
        self._sizes = [0] * len(self._ids)
        """How many partitions each member has."""

    def made(self) -> dict[str, Partitions]:
        """What each member is to have."""
        if not self._readers:
            return {}
        self._keep()
        free = {topic: [n for n, owner in enumerate(owners) if owner < 0] for topic, owners in self._owners.items()}
        for topic in self._ordered([topic for topic, numbers in free.items() if numbers]):
            levels = _Levels(self._sizes, self._readers[topic])
            for number in free[topic]:
                self._give(topic, number, levels.lowest())
        self._even_out()
        return self._result()

    def _keep(self) -> None:
        """Everybody has what it was to have, of topics that it still reads."""
        for place, member in enumerate(self._group.members.values()):
            reads = set(member.topics)
            for topic, numbers in member.target.items():
                if topic in reads:
                    self._sizes[place] += len(numbers)
                    for number in numbers:
                        self._owners[topic][number] = place

    def _ordered(self, topics: list[bytes]) -> list[bytes]:
        """Those come first of which each reader has to take most, then those with few readers."""

        def key(topic: bytes) -> tuple[float, int, tuple[int, int]]:
            readers = len(self._readers[topic])
            return -(self._group.counts[topic] / readers), readers, struct.unpack(">qq", topic)

        return sorted(topics, key=key)

    def _give(self, topic: bytes, number: int, place: int) -> None:
        owner = self._owners[topic][number]
        if owner >= 0:
            self._sizes[owner] -= 1
        self._owners[topic][number] = place
        self._sizes[place] += 1

    def _even_out(self) -> None:
        topics = self._ordered([topic for topic, readers in self._readers.items() if len(readers) > 1])
        last = -1
        """The last topic of which something was moved: when its turn comes again, all are as even as they get."""
        for _ in range(_ROUNDS):
            for turn, topic in enumerate(topics):
                if turn == last:
                    return
                if self._even_topic(topic) or last < 0:
                    last = turn

    def _even_topic(self, topic: bytes) -> bool:
        """Even one topic out; whether something was moved."""
        levels = _Levels(self._sizes, self._readers[topic])
        if levels.difference <= 1:
            return False
        left: dict[int, list[int]] = {}
        """What each member may give away, the last first."""
        for number, owner in enumerate(self._owners[topic]):
            left.setdefault(owner, []).append(number)
        moved = False
        while True:
            giver = levels.highest()
            while giver >= 0 and not left.get(giver):
                levels.pass_over()
                giver = levels.highest()
            if giver < 0:
                break
            number = left[giver].pop()
            taker = levels.lowest()
            if levels.even:
                break
            self._give(topic, number, taker)
            moved = True
        return moved

    def _result(self) -> dict[str, Partitions]:
        sets: list[dict[bytes, set[int]]] = [{} for _ in self._ids]
        for topic, owners in self._owners.items():
            for number, owner in enumerate(owners):
                sets[owner].setdefault(topic, set()).add(number)
        return {
            member_id: {topic: frozenset(numbers) for topic, numbers in mine.items()}
            for member_id, mine in zip(self._ids, sets, strict=True)
        }


class _Levels:
    """The readers of a topic by how many partitions they have, and the two levels that approach each other.

    Args:
        sizes: How many each member has, which changes as they are given and taken.
        readers: The members, by their places.
    """

    def __init__(self, sizes: list[int], readers: list[int]) -> None:
        self._sizes = sizes
        self._members = sorted(readers, key=lambda place: (sizes[place], place))
        end = len(self._members)
        self._low_end, self._low_next, self._low = 0, 0, sizes[self._members[0]] - 1
        self._high_start, self._high_end, self._high_next, self._high = (
            end,
            end,
            end - 1,
            sizes[self._members[-1]] + 1,
        )

    @property
    def difference(self) -> int:
        """Between who has most and who has least: before anything is moved."""
        return self._high - self._low - 2

    @property
    def even(self) -> bool:
        """Whether the levels are next to each other."""
        return self._high - self._low <= 1

    def lowest(self) -> int:
        """Who gets the next partition: each member of the low level gets one, then that rises."""
        if self._low_next >= self._low_end:
            self._low += 1
            while self._low_end < len(self._members) and self._sizes[self._members[self._low_end]] == self._low:
                self._low_end += 1
            self._low_next = 0
        self._low_next += 1
        return self._members[self._low_next - 1]

    def highest(self) -> int:
        """Who gives the next one away: each member of the high level, then that sinks; -1 if nobody can."""
        if self._high_next < self._high_start:
            if self._high_end <= self._high_start and self._high_start > 0:
                # all of it was passed over: the level is that of the next one
                self._high = self._sizes[self._members[self._high_start - 1]]
            else:
                self._high -= 1
            while self._high_start > 0 and self._sizes[self._members[self._high_start - 1]] == self._high:
                self._high_start -= 1
            self._high_next = self._high_end - 1
        if self._high_next < 0:
            return -1
        self._high_next -= 1
        return self._members[self._high_next + 1]

    def pass_over(self) -> None:
        """The last one of `highest` has nothing to give away: it does not count."""
        members, place, last = self._members, self._high_next + 1, self._high_end - 1
        members[place], members[last] = members[last], members[place]
        self._high_end -= 1
