"""Where the epochs of a partition start in its HTP topic: what older ones have left behind that counts no more."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise
from operator import attrgetter
from typing import Final, NamedTuple

MOST: Final = 64
"""Starts that are kept without asking whether they are needed."""
_POSITION: Final = attrgetter("position")


class EpochStart(NamedTuple):
    """A message that starts an epoch."""

    epoch: int
    position: int
    """Where it is."""


class Behind:
    """What was found behind the start of epochs, while a part of a topic was read."""

    __slots__ = ("overtaken", "reached", "size", "whole")

    def __init__(self) -> None:
        self.overtaken: set[int] = set()
        """The epochs behind whose start something older lies."""
        self.size: int = 0
        """Bytes that were read."""
        self.reached: int = 0
        """The position behind the last message that was read."""
        self.whole: bool = True
        """Whether all up to there could be read."""


class EpochStarts:
    """The starts that are known in a topic, in order: both their positions and their epochs grow.

    Args:
        starts: As they were recorded. What does not grow is left out.
    """

    def __init__(self, starts: Iterable[tuple[int, int]] = ()) -> None:
        self.all: list[EpochStart] = []
        for epoch, position in starts:
            self.add(epoch, position)

    @property
    def newest(self) -> int:
        """The epoch that started last; -1 if none is known."""
        return self.all[-1].epoch if self.all else -1

    def at(self, position: int) -> int:
        """The epoch in which a message at a position lies; 0 before the first start."""
        at = bisect_right(self.all, position, key=_POSITION)
        return self.all[at - 1].epoch if at else 0

    def add(self, epoch: int, position: int) -> None:
        """An epoch starts here, unless a newer one has before: a start that comes late, or twice, says nothing."""
        at = bisect_left(self.all, position, key=_POSITION)
        if at and self.all[at - 1].epoch >= epoch:
            return
        behind = [each for each in self.all[at:] if each.epoch > epoch]
        self.all[at:] = [EpochStart(epoch, position), *behind]

    def trim(self, before: int) -> None:
        """What lies before a position is gone; in which epoch that one lies stays known."""
        del self.all[: max(bisect_right(self.all, before, key=_POSITION) - 1, 0)]

    def forget_from(self, position: int) -> bool:
        """The topic ends here, and gives its positions again from here on; whether one was known behind."""
        at, before = bisect_left(self.all, position, key=_POSITION), len(self.all)
        del self.all[at:]
        return at < before

    def settle(self, begin: int, until: int, behind: Behind) -> None:
        """Forget the starts between two positions behind which nothing older lies: nothing is passed over there.

        Nothing comes there any more either, as long as another start follows.

        Args:
            begin: What lies from here on was read,
            until: up to here, which is no further than the last start.
            behind: What was found.
        """
        if behind.whole and behind.reached >= until:
            low, high = (bisect_left(self.all, position, key=_POSITION) for position in (begin, until))
            self.all[low:high] = [start for start in self.all[low:high] if start.epoch in behind.overtaken]

    def narrowest(self) -> list[tuple[EpochStart, int]]:
        """If there are many: those that another follows, each with the position of that, the nearest ones first."""
        if len(self.all) <= MOST:
            return []
        found = [(one, following.position) for one, following in pairwise(self.all)]
        return sorted(found, key=lambda each: each[1] - each[0].position)
