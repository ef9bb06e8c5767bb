"""A fingerprint of the rows of a task: whether a task that is done again has the same rows, in whatever order.

After a shuffle Spark gives a task its rows in another order each time, so the order counts for nothing. What counts are
the rows as they are written (the columns that become records, and the topic), and how often each is there.
"""

from __future__ import annotations

import zlib
from itertools import repeat
from operator import add, mul
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow

_MASK = 2**64 - 1
_FACTOR = 0x9E3779B97F4A7C15
"""Odd, and its bits look random: columns whose values are swapped between them must not look alike."""
_NULL = 2**33 + 1
"""No checksum is that large, so null is unlike any value."""


class RowsSeen:
    """What a task has been given so far.

    Args:
        topic: Of all rows; counts as a column of it would. None where a column tells it, or nothing does.
    """

    def __init__(self, topic: str | None = None) -> None:
        self.rows: int = 0
        self._sum = 0
        self._topic = 0 if topic is None else zlib.crc32(topic.encode()) * _factor("topic")

    def add(self, batch: pyarrow.RecordBatch) -> None:
        """Take a batch into account. The columns' names count, their order does not."""
        if not batch.num_rows:
            return
        self.rows += batch.num_rows
        rows: Iterable[int] | None = None
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            weighted = map(mul, _codes(column), repeat(_factor(name)))
            rows = weighted if rows is None else map(add, rows, weighted)
        listed = list(rows or ())
        if self._topic:
            listed = [row + self._topic for row in listed]
        # Squares: of plain sums it would not show which value of one column stood beside which of another.
        self._sum = (self._sum + sum(map(mul, listed, listed))) & _MASK

    @property
    def fingerprint(self) -> str:
        """Of all rows, as 16 hexadecimal digits; the same for the same rows in any order."""
        return f"{self._sum:016x}"


def _factor(name: str) -> int:
    """What a column's numbers are multiplied by."""
    return (_FACTOR * (2 * zlib.crc32(name.encode()) + 1)) & _MASK


def _codes(column: pyarrow.Array) -> list[int]:
    """A number for each value: a checksum of bytes and text, else the number itself."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_timestamp(kind):
        return [_NULL if value is None else value for value in column.cast(pa.int64()).to_pylist()]
    if pa.types.is_nested(kind):  # headers
        values: list[bytes | None] = [None if value is None else repr(value).encode() for value in column.to_pylist()]
        nulls = column.null_count
    else:
        values, nulls = column.cast(pa.large_binary()).to_pylist(), column.null_count
    if nulls:
        return [_NULL if value is None else zlib.crc32(value) for value in values]
    return list(map(zlib.crc32, values))  # type: ignore[arg-type]
