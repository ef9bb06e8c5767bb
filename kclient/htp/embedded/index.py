"""The sparse index of a segment: where to begin looking for an ordinal or a time.

The bytes of a segment are divided into blocks; an entry tells a block's first ordinal, its place in the file and
the greatest timestamp of its messages. In a file it stands behind a header:

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
from struct import Struct
from typing import Final

from crc32c import crc32c

from kclient.types import Buffer

_MAGIC: Final = b"HTPIDX\x00\x01"
_HEADER: Final = Struct("<8sqqqqI")
_CRC: Final = Struct("<I")


class SegmentIndex:
    """The entries of one segment. One thread adds; others may look at the same time."""

    __slots__ = ("_interval", "_ordinals", "_places", "_stamps", "covered", "next")

    def __init__(self, base: int, interval: int) -> None:
        self._interval = interval
        self._ordinals = array("q")
        self._places = array("q")
        self._stamps = array("q")
        self.covered: int = 0
        """Bytes of the segment that are covered."""
        self.next: int = base
        """The ordinal after the last covered message."""

    def __len__(self) -> int:
        return len(self._ordinals)

    def add(self, first: int, last: int, length: int, timestamp: int) -> None:
        """Cover the next message."""
        place = self.covered
        if not self._places or place - self._places[-1] >= self._interval:
            # the ordinals last: whoever finds an entry by its ordinal, in another thread, finds all of it
            self._places.append(place)
            self._stamps.append(timestamp)
            self._ordinals.append(first)
        elif timestamp > self._stamps[-1]:
            self._stamps[-1] = timestamp
        self.covered = place + length
        self.next = last + 1

    def place_of(self, ordinal: int) -> int:
        """Where to begin looking for an ordinal: the message with it, or the next one, is not before."""
        entry = bisect_right(self._ordinals, ordinal) - 1
        return self._places[entry] if entry >= 0 else 0

    def entry_of(self, ordinal: int) -> tuple[int, int]:
        """As `place_of`, with the ordinal of the message at that place."""
        entry = max(0, bisect_right(self._ordinals, ordinal) - 1)
        return (self._places[entry], self._ordinals[entry]) if self._ordinals else (0, ordinal)

    def place_before(self, position: int) -> int:
        """The last known place of a message that is below `position`; 0 if there is none."""
        entry = bisect_right(self._places, position - 1) - 1
        return self._places[entry] if entry >= 0 else 0

    def blocks_since(self, timestamp: int, place: int) -> list[tuple[int, int, int]]:
        """Begin, end and first ordinal of each block with a timestamp not below the given, from `place` on."""
        begin = max(0, bisect_right(self._places, place) - 1)
        stamps, places = self._stamps, [*self._places, self.covered]
        return [
            (places[entry], places[entry + 1], self._ordinals[entry])
            for entry in range(begin, len(self._ordinals))
            if stamps[entry] >= timestamp
        ]

    @property
    def max_timestamp(self) -> int:
        """The greatest timestamp covered (or of messages that were cut since), -1 if there is none."""
        return max(self._stamps, default=-1)

    def cut(self, covered: int, following: int) -> None:
        """Forget what is covered from byte `covered` on; `following` is the ordinal after what remains."""
        keep = bisect_right(self._places, covered - 1)
        del self._ordinals[keep:], self._places[keep:], self._stamps[keep:]
        self.covered = covered
        self.next = following

    def dump(self, base: int, covered: int | None = None, following: int | None = None) -> bytes:
        """The content of an index file: of all, or of the first `covered` bytes, up to the ordinal `following`."""
        if covered is None or following is None:
            covered, following = self.covered, self.next
        count = bisect_right(self._places, covered - 1)
        columns = (self._ordinals, self._places, self._stamps)
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
        if len(entries) != count * 24 or crc32c(entries) != crc:
            return None
        index = cls(base, interval)
        for number, column in enumerate((index._ordinals, index._places, index._stamps)):
            column.frombytes(entries[number * count * 8 : (number + 1) * count * 8])
            if sys.byteorder != "little":
                column.byteswap()
        index.covered = covered
        index.next = following
        return index


def _little(column: array[int]) -> array[int]:
    if sys.byteorder == "little":
        return column
    swapped = array("q", column)
    swapped.byteswap()
    return swapped
