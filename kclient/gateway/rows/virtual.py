"""The index of partitions that share a topic, as the manager's key-value part keeps it."""

from __future__ import annotations

import sys
from array import array
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable
from itertools import pairwise
from operator import lt
from typing import Any, Final, NamedTuple

from kclient.htp.rows import dump, object_of_format, seal, string, unsealed, whole

_FORMAT: Final = 1
_COLUMNS: Final = 3
_NUMBER: Final = 8
_SWAPS: Final = sys.byteorder != "little"


class IndexedRow(NamedTuple):
    """Up to where the index of a shared topic tells everything."""

    end: int
    """The ordinal up to which it does."""
    next: int
    """No ordinal below this is given again."""

    def encode(self) -> bytes:
        """The row."""
        return seal(dump({"format": _FORMAT, "end": self.end, "next": self.next}))

    @classmethod
    def decode(cls, row: bytes) -> IndexedRow:
        """What a row says. Raises `ValueError` if it says nothing sensible."""
        fields = object_of_format(unsealed(row), _FORMAT)
        try:
            return cls(whole(fields["end"]), whole(fields["next"]))
        except LookupError as error:
            raise ValueError(f"{row[:200]!r} has no {error}") from error


class BlockRow(NamedTuple):
    """What a block of a partition's index says of its entries together."""

    number: int
    first: int
    next: int
    ordinal: int
    last: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    size: int
    max_timestamp: int
    modified_ms: int
    begins: int
    """1 if a segment begins with it, else 0."""


def encode_blocks(blocks: Iterable[BlockRow]) -> bytes:
    """The row of some blocks."""
    return seal(dump({"format": _FORMAT, "blocks": list(blocks)}))


def decode_blocks(row: bytes) -> list[BlockRow]:
    """The blocks of a row, in order, one at least. Raises `ValueError` if it has none."""
    try:
        found = [_block(*fields) for fields in object_of_format(unsealed(row), _FORMAT)["blocks"]]
    except (LookupError, TypeError) as error:
        raise ValueError(f"{row[:200]!r}: {error!r}") from error
    if not found:
        raise ValueError(f"{row[:200]!r} has no block")
    for one, following in pairwise(found):
        if one.number >= following.number or one.next > following.first or one.last >= following.ordinal:
            raise ValueError(f"a block from offset {following.first} comes after {one}")
    return found


def _block(
    number: Any, first: Any, after: Any, ordinal: Any, last: Any, count: Any, size: Any, stamp: Any, modified: Any,
    begins: Any,
) -> BlockRow:  # fmt: skip
    found = BlockRow(
        whole(number), whole(first), whole(after), whole(ordinal), whole(last), whole(count, 1), whole(size),
        whole(stamp, -1), whole(modified), whole(begins, 0, 1),
    )  # fmt: skip
    if found.first >= found.next or found.last - found.ordinal < found.count - 1:
        raise ValueError(f"there is no such block: {found}")
    return found


def encode_entries(offsets: array[int], ordinals: array[int], timestamps: array[int]) -> bytes:
    """The row of a block's entries."""
    columns = b"".join(_little(column).tobytes() for column in (offsets, ordinals, timestamps))
    return seal(dump({"format": _FORMAT, "entries": b64encode(columns).decode()}))


def decode_entries(row: bytes) -> tuple[array[int], array[int], array[int]]:
    """Offsets, ordinals and timestamps of a block's entries. Raises `ValueError` if there are none."""
    try:
        columns = b64decode(string(object_of_format(unsealed(row), _FORMAT)["entries"]), validate=True)
    except (LookupError, Base64Error) as error:
        raise ValueError(f"{row[:200]!r}: {error!r}") from error
    count, rest = divmod(len(columns), _COLUMNS * _NUMBER)
    if rest or not count:
        raise ValueError(f"{row[:200]!r} ends amid an entry")
    offsets, ordinals, timestamps = (
        _little(array("q", columns[begin : begin + count * _NUMBER]))
        for begin in range(0, len(columns), count * _NUMBER)
    )
    for column in (offsets, ordinals):
        if column[0] < 0 or not all(map(lt, column, column[1:])):
            raise ValueError(f"{row[:200]!r} is out of order")
    return offsets, ordinals, timestamps


def _little(column: array[int]) -> array[int]:
    """A column with the bytes of its numbers in the order of the rows, or back."""
    if _SWAPS:
        column = column[:]
        column.byteswap()
    return column
