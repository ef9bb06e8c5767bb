"""Columns in Arrow's layout, to be read row by row."""

from __future__ import annotations

from typing import Literal

from kclient.records.arguments import check_topic, milliseconds
from kclient.records.column_arguments import check_columns, check_destinations
from kclient.records.contract import BinaryColumn, Destinations, HeaderColumn, RecordColumns
from kclient.records.refusals import bad_column
from kclient.records.varint import encode_varint
from kclient.types import Buffer


class Positions:
    """Where the items of each row begin and end, and which rows are not null.

    Args:
        column: The column.
        rows: How many rows are to be read.

    Raises:
        ValueError: The buffers are too short.
    """

    __slots__ = ("_ends", "_first", "_validity")

    def __init__(self, column: BinaryColumn | HeaderColumn, rows: int) -> None:
        self._first = column.first
        self._ends = _numbers(column.ends, "q" if column.wide else "i")
        self._validity = None if column.validity is None else memoryview(column.validity).cast("B")
        last = self._first + rows
        if (
            self._first < 0
            or rows < 0
            or last >= len(self._ends)
            or (self._validity is not None and (last + 7) // 8 > len(self._validity))
        ):
            raise bad_column(0)

    def look(self, row: int) -> tuple[int, int] | None:
        """Begin and end; None where the row is null."""
        at = self._first + row
        if self._validity is not None and not self._validity[at >> 3] >> (at & 7) & 1:
            return None
        return self._ends[at], self._ends[at + 1]


class ColumnSource:
    """Keys or values.

    Args:
        column: The column, or None where every row is null.
        rows: How many rows are to be read.

    Raises:
        ValueError: The buffers are too short.
    """

    __slots__ = ("_data", "_positions")

    def __init__(self, column: BinaryColumn | None, rows: int) -> None:
        self._positions: Positions | None = None
        if column is not None:
            self._positions = Positions(column, rows)
            self._data = memoryview(column.data).cast("B")

    def look(self, row: int) -> bytes | None:
        """The bytes in the row, or None.

        Raises:
            ValueError: Its positions make no sense.
        """
        found = None if self._positions is None else self._positions.look(row)
        if found is None:
            return None
        begin, end = found
        if not 0 <= begin <= end <= len(self._data):
            raise bad_column(row)
        return bytes(self._data[begin:end])


class HeaderSource:
    """The headers of each row.

    Args:
        column: The column, or None where no row has headers.
        rows: How many rows are to be read.

    Raises:
        ValueError: The buffers are too short.
    """

    __slots__ = ("_base", "_count", "_keys", "_positions", "_values")

    def __init__(self, column: HeaderColumn | None, rows: int) -> None:
        self._positions: Positions | None = None
        if column is not None:
            self._positions = Positions(column, rows)
            self._base, self._count = column.base, column.total
            self._keys = ColumnSource(column.keys, self._count)
            self._values = ColumnSource(column.values, self._count)

    def look(self, row: int) -> bytes:
        """The headers of a row as a record has them.

        Raises:
            ValueError: Its positions make no sense, or the key of a header is null.
        """
        found = None if self._positions is None else self._positions.look(row)
        if found is None:
            return b"\x00"
        begin, end = found[0] - self._base, found[1] - self._base
        if not 0 <= begin <= end <= self._count:
            raise bad_column(row)
        parts = [encode_varint(end - begin)]
        for position in range(begin, end):
            try:
                key, value = self._keys.look(position), self._values.look(position)
            except ValueError:
                raise bad_column(row) from None
            if key is None:
                raise bad_column(row)
            parts += (encode_varint(len(key)), key)
            parts += (b"\x01",) if value is None else (encode_varint(len(value)), value)
        return b"".join(parts)


class NumberSource:
    """Numbers of 32 or 64 bits: one for all rows, or a column.

    Args:
        column: The column, or None.
        constant: The number where there is no column.
        rows: How many rows are to be read.
        kind: Type code of the numbers.

    Raises:
        ValueError: The column is too short.
    """

    __slots__ = ("_column", "_constant")

    def __init__(self, column: Buffer | None, constant: int, rows: int, kind: Literal["i", "q"] = "i") -> None:
        self._constant = constant
        self._column = None if column is None else _numbers(column, kind)
        if self._column is not None and rows > len(self._column):
            raise bad_column(0)

    def look(self, row: int) -> int:
        """The number of the row."""
        return self._constant if self._column is None else self._column[row]


class RecordSource:
    """Records to be appended, read from columns row by row. Holds the columns' buffers as long as it lives.

    Args:
        columns: The columns, in Arrow's layout.
        destinations: Where each row goes, for `Appender.append_rows`; None where that is known.

    Raises:
        TypeError: They are not as `record_columns` makes them.
        ValueError: They contradict each other.
    """

    __slots__ = (
        "_headers",
        "_keys",
        "_numbers",
        "_partitions",
        "_stamps",
        "_topics",
        "_values",
        "has_destinations",
        "rows",
    )

    def __init__(self, columns: RecordColumns, destinations: Destinations | None = None) -> None:
        check_columns(columns)
        rows = columns.rows
        self.rows: int = rows
        """How many rows there are."""
        self.has_destinations: bool = destinations is not None
        """Whether it says where each row goes."""
        self._keys = ColumnSource(columns.keys, rows)
        self._values = ColumnSource(columns.values, rows)
        constant = milliseconds(columns.timestamp) if columns.timestamps is None else -1
        self._stamps = NumberSource(columns.timestamps, constant, rows, "q")
        self._headers = HeaderSource(columns.headers, rows)
        self._topics: list[str] = []
        if destinations is not None:
            check_destinations(destinations, rows)
            self._topics = [check_topic(topic) for topic in destinations.topics]
            self._numbers = NumberSource(destinations.numbers, 0, rows)
            self._partitions = NumberSource(destinations.partitions, -1, rows)

    def look(self, row: int) -> tuple[bytes | None, bytes | None, bytes]:
        """Key, value and encoded headers of a row.

        Raises:
            ValueError: The row makes no sense.
        """
        return self._keys.look(row), self._values.look(row), self._headers.look(row)


def _numbers(buffer: Buffer, kind: Literal["i", "q"]) -> memoryview:
    """The numbers of a type in a buffer; bytes at its end that make no whole one are left out."""
    view = memoryview(buffer).cast("B")
    size = 8 if kind == "q" else 4
    return view[: len(view) // size * size].cast(kind)
