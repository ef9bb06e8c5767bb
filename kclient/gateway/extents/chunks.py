"""A bounded index of an extent: where some offsets lie, and what is between them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from operator import attrgetter
from typing import Final, NamedTuple

MOST: Final = 1024
"""Chunks of one extent: when there are more, pairs of them become one."""
_FIRST_UNIT: Final = 1 << 20
_FIRST: Final = attrgetter("first")


class Chunk(NamedTuple):
    """What lies between two offsets that are known with their positions."""

    first: int
    """No batch in it begins before this offset."""
    position: int
    """Where its first message is, or comes next."""
    size: int
    """Bytes of its batches."""
    max_timestamp: int
    """The greatest of its batches, milliseconds since the epoch; -1 if there is none."""
    modified_ms: int
    """When it was last appended to, milliseconds since the epoch."""


class Chunks:
    """The chunks of an extent, in order; there is one at least, and appends go into the last.

    Args:
        chunks: The chunks.
        unit: Bytes after which another one begins. It doubles whenever there are too many.
        known: Whether they tell all that is there.
    """

    def __init__(self, chunks: Iterable[Chunk], unit: int = _FIRST_UNIT, *, known: bool = True) -> None:
        self.all: list[Chunk] = list(chunks)
        self.unit: int = unit
        self.known: bool = known

    @classmethod
    def starting_at(cls, first: int, position: int, unit: int = _FIRST_UNIT) -> Chunks:
        """Of an extent that begins here, and of which nothing else is known."""
        return cls([Chunk(first, position, 0, -1, 0)], unit, known=False)

    @property
    def last(self) -> Chunk:
        """The one that is appended to."""
        return self.all[-1]

    @property
    def size(self) -> int:
        """Bytes of all batches."""
        return sum(chunk.size for chunk in self.all)

    @property
    def full(self) -> bool:
        """Whether another one is due."""
        return self.all[-1].size >= self.unit

    def begin(self, first: int, position: int) -> None:
        """What is appended from now on is a chunk of its own."""
        self.all.append(Chunk(first, position, 0, -1, 0))
        if len(self.all) > MOST:
            self._thin()

    def _thin(self) -> None:
        settled = self.all[:-1]
        pairs = zip(settled[::2], settled[1::2], strict=False)
        odd = settled[len(settled) & ~1 :]
        self.all = [*(_joined(*pair) for pair in pairs), *odd, self.all[-1]]
        self.unit *= 2

    def grow(self, size: int, max_timestamp: int, now_ms: int) -> None:
        """A batch was appended."""
        first, position, before, greatest, _ = self.all[-1]
        self.all[-1] = Chunk(first, position, before + size, max(greatest, max_timestamp), now_ms)

    def end_with(self, measured: Chunks) -> None:
        """What the last one holds, measured again."""
        self.all = [*self.all[:-1], *measured.all]
        self.unit, self.known = max(self.unit, measured.unit), True
        while len(self.all) > MOST:
            self._thin()

    def forget_from(self, position: int) -> bool:
        """The store ends here: chunks that begin behind it are gone, but for the first; whether there were any."""
        before = len(self.all)
        while len(self.all) > 1 and self.all[-1].position > position:
            del self.all[-1]
        return len(self.all) < before

    def start_at(self, position: int) -> None:
        """The store begins here: chunks that end before it are gone, but for the last."""
        while len(self.all) > 1 and self.all[1].position <= position:
            del self.all[0]
        self.all[0] = self.all[0]._replace(position=max(self.all[0].position, position))

    def index(self, offset: int) -> int:
        """The number of the chunk that an offset lies in, or of the first."""
        return max(bisect_right(self.all, offset, key=_FIRST) - 1, 0)

    def trim(self, before: int, position: int) -> None:
        """Forget the chunks wholly below an offset, and what lies before this position."""
        del self.all[: self.index(before)]
        self.start_at(position)

    def split(self, offset: int, position: int, divided: Chunk) -> tuple[Chunks, Chunks]:
        """What lies below an offset, and the rest, which begins at this position; `divided` ends at the offset."""
        at = self.index(offset)
        chunk = self.all[at]
        below, rest = self.all[:at], self.all[at:]
        if chunk.first < offset:
            below = [*below, divided]
            left = max(chunk.size - divided.size, 0)
            rest = [chunk._replace(first=offset, position=position, size=left), *self.all[at + 1 :]]
        below = below or [Chunk(chunk.first, chunk.position, 0, -1, 0)]
        return Chunks(below, self.unit, known=self.known), Chunks(rest, self.unit, known=self.known)


def _joined(one: Chunk, next_one: Chunk) -> Chunk:
    return Chunk(
        one.first,
        one.position,
        one.size + next_one.size,
        max(one.max_timestamp, next_one.max_timestamp),
        max(one.modified_ms, next_one.modified_ms),
    )
