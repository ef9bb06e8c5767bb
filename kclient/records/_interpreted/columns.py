"""Reading into Arrow's layout."""

from __future__ import annotations

from array import array

from kclient.records._interpreted.reading import CorruptRecord, RecordCursor
from kclient.records.batch_header import BatchHeader, check_count
from kclient.records.bounds import INT32_MAX, INT64_MAX, INT64_MIN
from kclient.records.contract import Columns
from kclient.records.corruption import record_error
from kclient.records.refusals import columns_too_large
from kclient.types import Buffer, Header, TimestampType


class _BinaryColumnBuilder:
    """Keys or values in Arrow's layout."""

    __slots__ = ("bits", "data", "ends", "nulls")

    def __init__(self) -> None:
        self.data = bytearray()
        self.ends = array("i", [0])
        self.bits = bytearray()
        self.nulls = 0

    def append(self, row: int, value: bytes | None) -> None:
        if row % 8 == 0:
            self.bits.append(0)
        if value is None:
            self.nulls += 1
        else:
            self.bits[-1] |= 1 << row % 8
            self.data += value
        self.ends.append(len(self.data))


class ColumnBuilder:
    """Collects the records of batches as columns in Arrow's layout.

    Args:
        include_headers: Whether the headers are wanted too.
        keys: Whether the keys are.
        values: Whether the values are.
    """

    __slots__ = (
        "_count", "_headers", "_keys", "_keys_wanted", "_offsets", "_size", "_timestamps", "_values", "_values_wanted",
    )  # fmt: skip

    def __init__(self, include_headers: bool = False, keys: bool = True, values: bool = True) -> None:
        self._keys_wanted = keys
        self._values_wanted = values
        self._keys = _BinaryColumnBuilder()
        self._values = _BinaryColumnBuilder()
        self._offsets = array("q")
        self._timestamps = array("q")
        self._headers: list[tuple[Header, ...] | None] | None = [] if include_headers else None
        self._count = 0
        self._size = 0

    def append(self, payload: Buffer, header: BatchHeader, position: int, start: int, end: int) -> int:
        """Append the records of one batch with `start <= offset < end`; returns how many there were.

        After an error the builder is to be dropped.

        Raises:
            CorruptRecordError: A record makes no sense.
            RecordTooLargeError: The batches are together larger than Arrow's positions of 32 bits can tell.
            IllegalStateError: Another thread is appending (where the GIL is released meanwhile).
        """
        self._size += len(payload)
        if self._size > INT32_MAX:
            raise columns_too_large()
        check_count(header, position, len(payload))
        appended = header.max_timestamp if header.timestamp_type is TimestampType.LOG_APPEND_TIME else None
        record = RecordCursor(bytes(payload), header)
        before = self._count
        index = 0
        try:
            while index < header.count:
                record.advance()
                index += 1
                offset = header.base_offset + record.delta
                if start <= offset < end:
                    self._append(record, offset, record.timestamp if appended is None else appended)
            record.finish()
        except CorruptRecord as corrupt:
            raise record_error(corrupt.corruption, header, position, index, corrupt.byte) from None
        return self._count - before

    def append_dense(self, header: BatchHeader, start: int, end: int) -> int:
        """Append rows for one batch by its header alone, where each offset from its first to its last has a record.

        Of such rows only the offset is told, and the timestamp that a broker gave all of them; keys, values and headers
        must not be wanted.
        """
        offsets = range(max(header.base_offset, start), min(header.base_offset + header.count, end))
        self._offsets.extend(offsets)
        self._timestamps.extend([_microseconds(header.max_timestamp)] * len(offsets))
        self._count += len(offsets)
        return len(offsets)

    def _append(self, record: RecordCursor, offset: int, timestamp: int) -> None:
        if self._keys_wanted:
            self._keys.append(self._count, record.key)
        if self._values_wanted:
            self._values.append(self._count, record.value)
        self._offsets.append(offset)
        self._timestamps.append(_microseconds(timestamp))
        if self._headers is not None:
            self._headers.append(record.headers() or None)
        self._count += 1

    def finish(self) -> Columns:
        """The columns; the builder is empty then."""
        keys, values = self._keys, self._values
        columns = Columns(
            self._count,
            keys.bits if keys.nulls else None, memoryview(keys.ends), keys.data,
            values.bits if values.nulls else None, memoryview(values.ends), values.data,
            memoryview(self._offsets), memoryview(self._timestamps), self._headers,
        )  # fmt: skip
        self.__init__(self._headers is not None, self._keys_wanted, self._values_wanted)  # type: ignore[misc]
        return columns


def _microseconds(milliseconds: int) -> int:
    return min(max(milliseconds * 1000, INT64_MIN), INT64_MAX)
