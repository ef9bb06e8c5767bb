"""Where each leader epoch of a log begins (KIP-101)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

NONE = -1
"""No epoch."""


class LeaderEpochs:
    """The leader epochs of one log, each with the offset of its first record; both grow.

    Args:
        begun: The epochs with their offsets.
    """

    __slots__ = ("_begun", "_latest", "newest")

    def __init__(self, begun: Iterable[tuple[int, int]] = ()) -> None:
        self._begun: list[tuple[int, int]] = list(begun)
        self._latest = NONE
        """Where the newest one began, wherever the log begins; the others, and those that were there, are durable."""
        self.newest: int = NONE
        """The last one under which something was appended."""
        self._changed()

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._begun)

    def begin(self, epoch: int, offset: int) -> None:
        """A record of a newer epoch than all before lies at an offset."""
        self._begun.append((epoch, offset))
        self._latest, self.newest = offset, epoch

    def cut(self, end: int) -> None:
        """The log ends at an offset now, behind all that is durable: nothing is left of an epoch that began there.

        One whose records were deleted, so that the log is empty, stays: it ends where the log begins.
        """
        if self._latest >= end:
            self._begun.pop()
            self._latest = NONE
            self._changed()

    def trim(self, start: int) -> None:
        """The log begins at an offset now: the epoch that it lies in begins there, those before are gone.

        If that is the newest one, which may still be cut off, the one before it stays as well.
        """
        kept = self._index(start - 1 if self._latest == start else start)
        if kept >= 0:
            self._begun = [(self._begun[kept][0], start), *self._begun[kept + 1 :]]

    def between(self, start: int, end: int) -> tuple[tuple[int, int], ...]:
        """Those of the records from an offset to another, as `trim` and `cut` would leave them."""
        found = LeaderEpochs(self._begun)
        found._latest = self._latest
        found.cut(end)
        found.trim(start)
        return tuple(found)

    def of(self, offset: int) -> int:
        """The epoch of the record at an offset; -1 if it is not known."""
        index = self._index(offset)
        return self._begun[index][0] if index >= 0 else NONE

    def end_of(self, epoch: int, end: int) -> tuple[int, int]:
        """The greatest epoch not above one, and where it ends; the log ends at `end`, where its leader's own begins.

        One that is older than all that are known ends where the first of these begins (KIP-279); where none is known,
        that is the leader's own.
        """
        begun = self._begun
        if not begun:
            return epoch, end
        index = bisect_right([known for known, _ in begun], epoch)
        if index == 0:
            return epoch, begun[0][1]
        return begun[index - 1][0], begun[index][1] if index < len(begun) else end

    def _index(self, offset: int) -> int:
        return bisect_right([start for _, start in self._begun], offset) - 1

    def _changed(self) -> None:
        self.newest = self._begun[-1][0] if self._begun else NONE
