"""Columns in Arrow's layout, to be read row by row."""

from __future__ import annotations

from kclient.records.arguments import bad_column
from kclient.records.contract import BinaryColumn
from kclient.types import Buffer


class ColumnSource:
    """Keys or values.

    Args:
        column: The column, or None where every row is null.
        rows: How many rows are to be read.

    Raises:
        ValueError: The buffers are too short.
    """

    __slots__ = ("_data", "_ends", "_first", "_validity")

    def __init__(self, column: BinaryColumn | None, rows: int) -> None:
        self._ends: memoryview | None = None
        if column is None:
            return
        self._first = column.first
        ends = memoryview(column.ends).cast("B")
        self._ends = ends[: len(ends) // 4 * 4].cast("i")
        self._data = memoryview(column.data).cast("B")
        self._validity = None if column.validity is None else memoryview(column.validity).cast("B")
        last = self._first + rows
        if (
            self._first < 0
            or rows < 0
            or last >= len(self._ends)
            or (self._validity is not None and (last + 7) // 8 > len(self._validity))
        ):
            raise bad_column(0)

    def look(self, row: int) -> bytes | None:
        """The bytes in the row, or None.

        Raises:
            ValueError: Its positions make no sense.
        """
        if self._ends is None:
            return None
        at = self._first + row
        if self._validity is not None and not self._validity[at >> 3] >> (at & 7) & 1:
            return None
        begin, end = self._ends[at], self._ends[at + 1]
        if not 0 <= begin <= end <= len(self._data):
            raise bad_column(row)
        return bytes(self._data[begin:end])


def stamps_of(column: Buffer | None, rows: int) -> memoryview | None:
    """The timestamps of the rows, if they are in a column.

    Raises:
        ValueError: It is too short.
    """
    if column is None:
        return None
    stamps = memoryview(column).cast("B")
    if rows > len(stamps) // 8:
        raise bad_column(0)
    return stamps[: len(stamps) // 8 * 8].cast("q")
