"""A checksum of the content of records in their order, whichever batches they come in."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import crc32c

if TYPE_CHECKING:
    import pyarrow


class ContentSum:
    """Sums up columns, each by itself: numbers, and of texts their lengths and their bytes.

    Args:
        columns: Which columns.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = tuple(columns)
        self._rows = 0
        self._sums: dict[tuple[str, str], int] = {}

    def add(self, batch: pyarrow.RecordBatch) -> None:
        """Take records into account."""
        self._rows += batch.num_rows
        for name in self._columns:
            self._add(name, "", batch.column(name))

    def told(self, without: Collection[str] = ()) -> str:
        """The checksum, as 16 hexadecimal digits, of all columns but some."""
        found = [(key, value) for key, value in sorted(self._sums.items()) if key[0] not in without]
        return hashlib.sha256(repr((self._rows, found)).encode()).hexdigest()[:16]

    def _add(self, name: str, part: str, column: Any) -> None:
        import pyarrow
        from pyarrow import compute

        kind = column.type
        if pyarrow.types.is_list(kind):
            self._numbers(name, f"{part}.length", compute.fill_null(column.value_lengths(), -1))
            pairs = column.flatten()
            for field in ("key", "value"):
                self._add(name, f"{part}.{field}", pairs.field(field))
        elif pyarrow.types.is_integer(kind):
            self._numbers(name, part, column.cast(pyarrow.int64()))
        else:
            column = column.cast(pyarrow.large_binary())
            self._numbers(name, f"{part}.length", compute.fill_null(compute.binary_length(column), -1))
            self._bytes(name, f"{part}.bytes", _content_of(column))

    def _numbers(self, name: str, part: str, column: Any) -> None:
        width = column.type.bit_width // 8
        data = column.buffers()[1]
        if data is not None:
            self._bytes(name, part, memoryview(data)[column.offset * width : (column.offset + len(column)) * width])

    def _bytes(self, name: str, part: str, data: memoryview) -> None:
        self._sums[name, part] = crc32c.crc32c(data, self._sums.get((name, part), 0))


def _content_of(column: Any) -> memoryview:
    """The bytes of a column of `large_binary`, one value after the other; null has none."""
    if column.null_count:
        column = column.drop_null()
    _, ends, data = column.buffers()
    if data is None or not len(column):
        return memoryview(b"")
    places = memoryview(ends).cast("q")
    return memoryview(data)[places[column.offset] : places[column.offset + len(column)]]
