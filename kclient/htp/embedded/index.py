"""The sparse index of a segment: where to begin looking for an ordinal or a time.

The bytes of a segment are divided into blocks; an entry tells a block's first ordinal, its place in the file and
the greatest timestamp of its messages. There are some thousand blocks at most: a larger segment has larger ones. In a
file they stand behind a header:

    8 bytes   magic and version, `HTPIDX` 0 1
    int64     the segment's first ordinal, its name
    int64     bytes of the segment that are covered
    int64     the ordinal after the last covered message
    int64     number of entries
    uint32    CRC-32C of the entries
    uint32    CRC-32C of the header up to here
    entries   all ordinals, all places, all timestamps, each an int64 (little-endian)

The file is never synced. If it is missing, or wrong in any way, it is made again from the segment.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from struct import Struct
from typing import Final, TypeAlias

from crc32c import crc32c

from kclient.types import Buffer

_MAGIC: Final = b"HTPIDX\x00\x01"
_HEADER: Final = Struct("<8sqqqqI")
_CRC: Final = Struct("<I")
MOST: Final = 4096
"""Entries of a segment; when there are as many, every other one is left out."""
ENTRY_BYTES: Final = 24

_Columns: TypeAlias = "tuple[array[int], array[int], array[int]]"


class SegmentIndex:
    """The entries of one segment. One thread adds; others may look at the same time."""

    __slots__ = ("_columns", "_interval", "covered", "next")

    def __init__(self, base: int, interval: int) -> None:
        self._interval = interval
        self._columns: _Columns = array("q"), array("q"), array("q")
        """Ordinals, places and greatest timestamps. Entries are added to them; to leave some out they are replaced, all
        at once, since others may look at them."""
        self.covered: int = 0
        """Bytes of the segment that are covered."""
        self.next: int = base
        """The ordinal after the last covered message."""

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(self, first: int, last: int, length: int, timestamp: int) -> None:
        """Cover the next message."""
        place = self.covered
        ordinals, places, stamps = self._columns
        if not places or place - places[-1] >= self._interval:
            if len(places) >= MOST:
                self.thin(MOST // 2)
                ordinals, places, stamps = self._columns
            # the ordinals last: whoever finds an entry by its ordinal, in another thread, finds all of it
            places.append(place)
            stamps.append(timestamp)
            ordinals.append(first)
        elif timestamp > stamps[-1]:
            stamps[-1] = timestamp
        self.covered = place + length
        self.next = last + 1

    def entries(self) -> Iterator[tuple[int, int]]:
        """First ordinal and place of each block."""
        return zip(self._columns[0], self._columns[1], strict=True)

    def thin(self, most: int) -> None:
        """Keep no more than so many entries: blocks become larger."""
        ordinals, places, stamps = self._columns
        while len(places) > most:
            odd = stamps[len(stamps) & ~1 :]
            ordinals, places, stamps = ordinals[::2], places[::2], array("q", map(max, stamps[::2], stamps[1::2])) + odd
            self._interval *= 2
        self._columns = ordinals, places, stamps

    def place_of(self, ordinal: int) -> int:
        """Where to begin looking for an ordinal: the message with it, or the next one, is not before."""
        return self.entry_of(ordinal)[0]

    def entry_of(self, ordinal: int) -> tuple[int, int]:
        """As `place_of`, with the ordinal of the message at that place."""
        ordinals, places, _ = self._columns
        entry = max(0, bisect_right(ordinals, ordinal) - 1)
        return (places[entry], ordinals[entry]) if ordinals else (0, ordinal)

    def place_before(self, position: int) -> int:
        """The last known place of a message that is below `position`; 0 if there is none."""
        places = self._columns[1]
        entry = bisect_right(places, position - 1) - 1
        return places[entry] if entry >= 0 else 0

    def blocks_since(self, timestamp: int, place: int) -> list[tuple[int, int, int]]:
        """Begin, end and first ordinal of each block with a timestamp not below the given, from `place` on."""
        ordinals, places, stamps = self._columns
        begin = max(0, bisect_right(places, place) - 1)
        ends = [*places[1:], self.covered]
        return [
            (places[entry], ends[entry], ordinals[entry])
            for entry in range(begin, len(ordinals))
            if stamps[entry] >= timestamp
        ]

    @property
    def max_timestamp(self) -> int:
        """The greatest timestamp covered (or of messages that were cut since), -1 if there is none."""
        return max(self._columns[2], default=-1)

    def cut(self, covered: int, following: int) -> None:
        """Forget what is covered from byte `covered` on; `following` is the ordinal after what remains."""
        ordinals, places, stamps = self._columns
        keep = bisect_right(places, covered - 1)
        del ordinals[keep:], places[keep:], stamps[keep:]
        self.covered = covered
        self.next = following

    def dump(self, base: int, covered: int | None = None, following: int | None = None) -> bytes:
        """The content of an index file: of all, or of the first `covered` bytes, up to the ordinal `following`."""
        if covered is None or following is None:
            covered, following = self.covered, self.next
        columns = self._columns
        count = bisect_right(columns[1], covered - 1)
        entries = b"".join(_little(column[:count]).tobytes() for column in columns)
        header = _HEADER.pack(_MAGIC, base, covered, following, count, crc32c(entries))
        return header + _CRC.pack(crc32c(header)) + entries

    @classmethod
    def load(cls, content: Buffer | None, base: int, interval: int, size: int) -> SegmentIndex | None:
        """The index of a segment of `size` bytes from the content of its file; None if that cannot be used."""
        if content is None or len(content) < _HEADER.size + _CRC.size:
            return None
        view = memoryview(content)
        magic, named, covered, following, count, crc = _HEADER.unpack_from(view)
        (header_crc,) = _CRC.unpack_from(view, _HEADER.size)
        if header_crc != crc32c(view[: _HEADER.size]) or magic != _MAGIC or named != base or covered > size:
            return None
        entries = view[_HEADER.size + _CRC.size :]
        if len(entries) != count * ENTRY_BYTES or crc32c(entries) != crc:
            return None
        index = cls(base, interval)
        for number, column in enumerate(index._columns):
            column.frombytes(entries[number * count * 8 : (number + 1) * count * 8])
            if sys.byteorder != "little":
                column.byteswap()
        index.thin(MOST)
        index.covered = covered
        index.next = following
        return index


def _little(column: array[int]) -> array[int]:
    if sys.byteorder == "little":
        return column
    swapped = array("q", column)
    swapped.byteswap()
    return swapped
