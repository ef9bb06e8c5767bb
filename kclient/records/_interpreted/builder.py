"""The builder of batches."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from kclient.records._interpreted.sources import RecordSource
from kclient.records.arguments import (
    MAX_BATCH_SIZE,
    as_bytes,
    bad_timestamp,
    check_delete_horizon,
    check_last_delta,
    check_limit,
    check_offset_delta,
    check_stamps,
    check_start,
    header_key,
    header_list,
    header_pair,
    milliseconds,
)
from kclient.records.batch_header import HEADER_SIZE, CompressionType, attributes_of, write_header
from kclient.records.bounds import INT32_MAX, INT64_MAX
from kclient.records.column_arguments import check_many
from kclient.records.compression import check_compression, check_level, compress
from kclient.records.contract import RecordColumns
from kclient.records.refusals import builder_closed, builder_empty, record_too_large
from kclient.records.varint import encode_varint
from kclient.types import Buffer, Headers

_NO_HEADERS: Headers = ()


class BatchBuilder:
    """Builds one record batch, record by record.

    Not thread-safe; its owner guards it.

    Args:
        limit: Greatest size in bytes before compression, header included (the producer's `batch.size`). A record
            that would exceed it is refused, except that an empty batch takes a record of any size.
        compression: How `build` compresses the records.
        level: Compression level, or None for Kafka's default.
        is_transactional: Whether the batch belongs to a transaction.
        is_control: Whether the batch holds a control record.
        delete_horizon: Milliseconds since the epoch from when compaction may remove the batch's tombstones and
            markers (KIP-534), which takes the place of the base timestamp; None for a batch without.

    Raises:
        ConfigError: A setting is of a wrong type, or out of its range.
    """

    __slots__ = (
        "_attributes", "_base_timestamp", "_batch", "_buffer", "_has_horizon", "_last_timestamp", "_level", "_limit",
        "_next_delta", "_runs", "compression", "count", "first_timestamp", "max_timestamp", "size",
    )  # fmt: skip

    def __init__(
        self,
        *,
        limit: int,
        compression: CompressionType = CompressionType.NONE,
        level: int | None = None,
        is_transactional: bool = False,
        is_control: bool = False,
        delete_horizon: int | None = None,
    ) -> None:
        self._limit = check_limit(limit)
        self.compression: CompressionType = check_compression(compression)
        """How `build` compresses the records."""
        self.count: int = 0
        """Number of records."""
        self.size: int = HEADER_SIZE
        """Bytes before compression, header included."""
        self.first_timestamp: int = -1
        """Timestamp of the first record."""
        self.max_timestamp: int = -1
        """Greatest timestamp of the records."""
        self._level = check_level(self.compression, level)
        self._has_horizon = delete_horizon is not None
        self._base_timestamp = check_delete_horizon(delete_horizon)
        self._next_delta = 0
        self._attributes = attributes_of(
            self.compression,
            is_transactional=is_transactional,
            is_control=is_control,
            has_delete_horizon=self._has_horizon,
        )
        # timestamps as runs: the first index of a run and the timestamp that holds from there on
        self._runs = array("q")
        self._last_timestamp = -2
        self._buffer = bytearray(HEADER_SIZE)
        self._batch: bytearray | None = None

    @property
    def limit(self) -> int:
        """Greatest size in bytes before compression, header included; may be changed."""
        return self._limit

    @limit.setter
    def limit(self, value: int) -> None:
        self._limit = check_limit(value)

    @property
    def timestamp_runs(self) -> array[int]:
        """The records' timestamps as runs: first index, timestamp, first index, timestamp, and so on."""
        return self._runs[:]

    def append(self, timestamp: int, key: Buffer | None, value: Buffer | None, headers: Headers = ()) -> int:
        """Append a record.

        Args:
            timestamp: Milliseconds since the epoch, or -1 for none.
            key: The key, or None.
            value: The value, or None (a tombstone).
            headers: Pairs of str and bytes or None.

        Returns:
            The record's index in the batch, or -1 if it would exceed the limit; then nothing has changed.

        Raises:
            TypeError: The timestamp, key, value or a header is of a wrong type.
            ValueError: The timestamp is before the epoch, or beyond 64 bits.
            RecordTooLargeError: The record fits into no batch.
            IllegalStateError: The batch was built.
        """
        if type(timestamp) is not int or not -1 <= timestamp <= INT64_MAX:
            timestamp = milliseconds(timestamp)
        if self._batch is not None:
            raise builder_closed()
        if key is not None and type(key) is not bytes:
            key = as_bytes(key, "key")
        if value is not None and type(value) is not bytes:
            value = as_bytes(value, "value")
        return self._put(timestamp, key, value, b"\x00" if headers is _NO_HEADERS else encode_headers(headers))

    def _put(self, timestamp: int, key: Buffer | None, value: Buffer | None, headers: bytes) -> int:
        if self._batch is not None:  # code of the user's may have run in between
            raise builder_closed()
        index = self.count
        base = self._base_timestamp if index or self._has_horizon else timestamp
        record = _encode_record(timestamp - base, self._next_delta, key, value, headers)
        size = self.size + len(record)
        if size > self._limit or size > MAX_BATCH_SIZE or self._next_delta > INT32_MAX:
            if index:
                return -1
            if size > MAX_BATCH_SIZE:
                raise record_too_large(len(record))
        if timestamp != self._last_timestamp:
            self._runs.extend((index, timestamp))
            self._last_timestamp = timestamp
        self._buffer += record
        self.size = size
        self.count = index + 1
        self._next_delta += 1
        if index == 0:
            self.first_timestamp = timestamp
            self._base_timestamp = base
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        return index

    def append_at(
        self, offset_delta: int, timestamp: int, key: Buffer | None, value: Buffer | None, headers: Headers = ()
    ) -> int:
        """Append a record at an offset of its own, as compaction leaves gaps.

        Args:
            offset_delta: The record's offset less the batch's base offset; greater than that of the record before.
            timestamp: Milliseconds since the epoch, or -1 for none.
            key: The key, or None.
            value: The value, or None (a tombstone).
            headers: Pairs of str and bytes or None.

        Returns:
            The record's index in the batch, or -1 if it would exceed the limit; then nothing has changed.

        Raises:
            ValueError: The offset is not behind that of the record before, or beyond 31 bits; else as `append`.
        """
        before = self._next_delta
        self._next_delta = check_offset_delta(offset_delta, before)
        index = -1
        try:
            index = self.append(timestamp, key, value, headers)
        finally:
            if index < 0:
                self._next_delta = before
        return index

    def append_many(
        self,
        timestamp: int,
        values: Sequence[Buffer | None],
        keys: Sequence[Buffer | None] | None = None,
        start: int = 0,
    ) -> int:
        """Append records without headers from `values[start]` on, until the batch is full.

        Args:
            timestamp: The timestamp of all of them.
            values: Their values.
            keys: Their keys, as many as values; None for records without keys.
            start: Index of the first record to take.

        Returns:
            How many records were taken. On an error those before the faulty one have been taken.

        Raises:
            TypeError: Values or keys are not a sequence.
            ValueError: The numbers of keys and values differ, or `start` is negative; else as `append`.
        """
        timestamp = milliseconds(timestamp)
        start = check_start(start)
        check_many(values, keys)
        for index in range(start, len(values)):
            if self.append(timestamp, None if keys is None else keys[index], values[index]) < 0:
                return index - start
        return max(len(values) - start, 0)

    def append_columns(self, columns: RecordColumns, start: int = 0) -> int:
        """Append the rows of columns (as `record_columns` makes them) from row `start` on, until the batch is full.

        Args:
            columns: The columns, in Arrow's layout.
            start: The first row to take.

        Returns:
            How many rows were taken. On an error those before the faulty one have been taken.

        Raises:
            TypeError: The columns are not as `record_columns` makes them.
            ValueError: `start` is negative, or positions in a column make no sense; else as `append`.
        """
        start = check_start(start)
        source = RecordSource(columns)
        if self._batch is not None:
            raise builder_closed()
        for row in range(start, source.rows):
            key, value, headers = source.look(row)
            timestamp = source._stamps.look(row)
            if timestamp < -1:
                raise bad_timestamp(timestamp)
            if self._put(timestamp, key, value, headers) < 0:
                return row - start
        return max(source.rows - start, 0)

    def build(
        self,
        base_offset: int = 0,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        partition_leader_epoch: int = -1,
        last_offset_delta: int | None = None,
    ) -> bytearray:
        """Compress the records and write the header; the builder is closed then.

        Called again, it writes the header of the same bytearray anew, without compressing again.

        Args:
            base_offset: Offset of the first record.
            producer_id: Id of the idempotent producer, or -1.
            producer_epoch: Its epoch, or -1.
            base_sequence: Sequence number of the first record, or -1.
            partition_leader_epoch: Epoch of the leader that appends the batch, or -1.
            last_offset_delta: Where the batch ends, if compaction removed its last records; None for the last one.

        Returns:
            The batch. It belongs to the builder until the builder is dropped.

        Raises:
            IllegalStateError: There are no records.
            TypeError: A number is not an integer.
            ValueError: A number is out of its range; `last_offset_delta` lies before the last record.
        """
        if self.count == 0:
            raise builder_empty()
        last_delta = check_last_delta(last_offset_delta, self._next_delta - 1)
        base_offset, producer_id, producer_epoch, base_sequence, partition_leader_epoch = check_stamps(
            base_offset, producer_id, producer_epoch, base_sequence, partition_leader_epoch, last_delta
        )
        if self._batch is None:
            self._batch = self._compressed()
        write_header(
            self._batch,
            base_offset=base_offset,
            partition_leader_epoch=partition_leader_epoch,
            attributes=self._attributes,
            last_offset_delta=last_delta,
            base_timestamp=self._base_timestamp,
            max_timestamp=self.max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            count=self.count,
        )
        return self._batch

    def _compressed(self) -> bytearray:
        batch = self._buffer
        self._buffer = bytearray()
        if self.compression is not CompressionType.NONE:
            with memoryview(batch) as view:
                payload = compress(self.compression, view[HEADER_SIZE:], self._level)
            del batch[HEADER_SIZE:]
            batch += payload
        return batch


def _encode_record(timestamp_delta: int, index: int, key: Buffer | None, value: Buffer | None, headers: bytes) -> bytes:
    body = b"".join(
        (
            b"\x00",
            encode_varint(timestamp_delta),
            encode_varint(index),
            b"\x01" if key is None else encode_varint(len(key)),
            key or b"",
            b"\x01" if value is None else encode_varint(len(value)),
            value or b"",
            headers,
        )
    )
    return encode_varint(len(body)) + body


def encode_headers(headers: Headers) -> bytes:
    """The header part of a record: the number, then key and value of each.

    Raises:
        TypeError: They are not a list of pairs of str and bytes or None.
        ValueError: The key of one is a str that no UTF-8 can hold.
    """
    if type(headers) is tuple and not headers:
        return b"\x00"
    parts: list[Buffer] = []
    for header in headers if type(headers) is list or type(headers) is tuple else header_list(headers):
        key, value = header if type(header) is tuple and len(header) == 2 else header_pair(header)
        name = header_key(key)
        parts += (encode_varint(len(name)), name)
        if value is None:
            parts += (b"\x01", b"")
        else:
            data = as_bytes(value, "header value")
            parts += (encode_varint(len(data)), data)
    return encode_varint(len(parts) // 4) + b"".join(parts)
