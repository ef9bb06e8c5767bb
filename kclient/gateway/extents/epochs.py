"""Where the epochs of a partition start in its HTP topic: what older ones have left behind that counts no more."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import attrgetter
from typing import Final, NamedTuple

_POSITION: Final = attrgetter("position")


class EpochStart(NamedTuple):
    """A message that starts an epoch."""

    epoch: int
    position: int
    """Where it is."""


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
