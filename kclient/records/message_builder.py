"""Building message sets of the formats v0 and v1, for brokers and clients of old."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final, Literal

from kclient.arguments import index_of
from kclient.errors import ConfigError
from kclient.records.arguments import (
    MAX_BATCH_SIZE,
    as_bytes,
    check_limit,
    check_offset_delta,
    check_start,
    header_list,
    integer,
    milliseconds,
    setting,
    shown,
)
from kclient.records.batch_header import MEASURE_SIZE, CompressionType
from kclient.records.bounds import INT32_MAX, INT64_MAX
from kclient.records.column_arguments import check_many
from kclient.records.compression import check_compression, check_level, compress
from kclient.records.message_header import LOG_APPEND_TIME, MESSAGE_OVERHEAD, encode_message
from kclient.records.old_lz4 import break_checksum
from kclient.records.refusals import builder_closed, builder_empty, record_too_large
from kclient.records.sizes import size_of_bytes
from kclient.types import Buffer, Headers

_MEASURE: Final = Struct(">qi")
_OFFSET: Final = Struct(">q")


def size_of_message(magic: Literal[0, 1], key: Buffer | None, value: Buffer | None) -> int:
    """Bytes that a record takes in a message set of format `magic`, before compression.

    Args:
        magic: The format: 0 or 1.
        key: The key, or None.
        value: The value, or None.

    Raises:
        TypeError: Key or value is of a wrong type.
        ConfigError: There is no such format of message sets.
    """
    fields = max(size_of_bytes(key, "key"), 0) + max(size_of_bytes(value, "value"), 0)
    return MESSAGE_OVERHEAD[_format_of_set(magic)] + fields


def _format_of_set(magic: Any) -> Literal[0, 1]:
    number = index_of(magic)
    if number == 0:
        return 0
    if number == 1:
        return 1
    raise ConfigError(
        f"message sets are of format v0 or v1: magic must be 0 or 1, not {shown(magic)}; BatchBuilder builds v2"
    )


class MessageSetBuilder:
    """Builds one message set of format v0 or v1, record by record; with compression, one message around them all.

    Not thread-safe; its owner guards it. Brokers take these formats up to Kafka 3.9, in Produce requests of the
    versions 0 and 1 (v0) and 2 (v1).

    Args:
        magic: The format: 0 or 1. Format v0 has no timestamps: those of its records are left out.
        limit: Greatest size in bytes before compression. A record that would exceed it is refused, except that an
            empty message set takes a record of any size.
        compression: How `build` compresses the records.
        level: Compression level, or None for Kafka's default.
        log_append_time: The timestamp that the broker gives all records, in milliseconds since the epoch, or None
            for those of their producer.

    Raises:
        ConfigError: There is no such format, or it does not have that compression or log-append time; or the limit
            or the level is of a wrong type or out of its range.
    """

    __slots__ = (
        "_buffer", "_built", "_level", "_limit", "_next_delta", "_stamp_attribute", "compression", "count",
        "log_append_time", "magic", "max_timestamp", "size",
    )  # fmt: skip

    def __init__(
        self,
        *,
        magic: Literal[0, 1],
        limit: int,
        compression: CompressionType = CompressionType.NONE,
        level: int | None = None,
        log_append_time: int | None = None,
    ) -> None:
        magic = _format_of_set(magic)
        compression = check_compression(compression)
        if log_append_time is not None:
            log_append_time = setting("log_append_time", log_append_time, 0, INT64_MAX)
        if compression is CompressionType.ZSTD:
            raise ConfigError(f"message format v{magic} does not know zstd; it came with record batches v2")
        if log_append_time is not None and not magic:
            raise ConfigError("message format v0 has no timestamps, so it has no log-append time")
        self.magic: Literal[0, 1] = magic
        """The format."""
        self._limit = check_limit(limit)
        self.compression: CompressionType = compression
        """How `build` compresses the records."""
        self.log_append_time: int | None = log_append_time
        """The timestamp that the broker gives all records, or None."""
        self.count: int = 0
        """Number of records."""
        self.size: int = MESSAGE_OVERHEAD[magic] if self.compression else 0
        """Bytes before compression, the message around the others included."""
        self.max_timestamp: int = -1
        """Greatest timestamp of the records, or -1."""
        self._stamp_attribute = 0 if log_append_time is None else LOG_APPEND_TIME
        self._level = check_level(self.compression, level)
        self._next_delta = 0
        self._buffer = bytearray()  # with offsets relative to the first one
        self._built = False

    @property
    def limit(self) -> int:
        """Greatest size in bytes before compression; may be changed."""
        return self._limit

    @limit.setter
    def limit(self, value: int) -> None:
        self._limit = check_limit(value)

    def append(self, timestamp: int, key: Buffer | None, value: Buffer | None, headers: Headers = ()) -> int:
        """Append a record.

        Args:
            timestamp: Milliseconds since the epoch, or -1 for none.
            key: The key, or None.
            value: The value, or None (a tombstone).
            headers: Must be empty, as these formats have none.

        Returns:
            The record's index in the set, or -1 if it would exceed the limit; then nothing has changed.

        Raises:
            TypeError: The timestamp, key, value or headers are of a wrong type.
            ValueError: The timestamp is before the epoch, or beyond 64 bits; or there are headers.
            RecordTooLargeError: The record fits into no message set.
            IllegalStateError: The set was built.
        """
        return self.append_at(self._next_delta, timestamp, key, value, headers)

    def append_at(
        self, offset_delta: int, timestamp: int, key: Buffer | None, value: Buffer | None, headers: Headers = ()
    ) -> int:
        """Append a record at an offset of its own, as compaction leaves gaps.

        Args:
            offset_delta: The record's offset less that of the set; greater than that of the record before.
            timestamp: As `append`, like the others.
            key: The key, or None.
            value: The value, or None (a tombstone).
            headers: Must be empty.

        Returns:
            As `append`.

        Raises:
            ValueError: The offset is not behind that of the record before, or beyond 31 bits; else as `append`.
        """
        if self._built:
            raise builder_closed()
        if type(offset_delta) is not int or not self._next_delta <= offset_delta <= INT32_MAX:
            offset_delta = check_offset_delta(offset_delta, self._next_delta)
        if type(timestamp) is not int or not -1 <= timestamp <= INT64_MAX:
            timestamp = milliseconds(timestamp)
        stamp = self._stamp_of(timestamp)
        if headers != () and header_list(headers):
            raise ValueError(f"message format v{self.magic} has no record headers")
        if key is not None and type(key) is not bytes:
            key = as_bytes(key, "key")
        if value is not None and type(value) is not bytes:
            value = as_bytes(value, "value")
        added = MESSAGE_OVERHEAD[self.magic] + (len(key) if key else 0) + (len(value) if value else 0)
        size = self.size + added
        if size > self._limit or size > MAX_BATCH_SIZE:
            if self.count:
                return -1
            if size > MAX_BATCH_SIZE:
                raise record_too_large(added)
        self._buffer += encode_message(self.magic, offset_delta, stamp, self._stamp_attribute, key, value)
        self.size = size
        self.count += 1
        self._next_delta = offset_delta + 1
        if stamp > self.max_timestamp:
            self.max_timestamp = stamp
        return self.count - 1

    def append_many(
        self,
        timestamp: int,
        values: Sequence[Buffer | None],
        keys: Sequence[Buffer | None] | None = None,
        start: int = 0,
    ) -> int:
        """Append records from `values[start]` on, until the set is full.

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

    def build(self, base_offset: int = 0) -> bytearray:
        """The message set; the builder is closed then.

        Uncompressed messages, and those inside a compressed one of format v0, carry their own offsets; those inside a
        compressed one of format v1 are counted from the first (KIP-31), and the one around them has that of the last.

        Args:
            base_offset: Offset that `offset_delta` is added to.

        Raises:
            IllegalStateError: There are no records, or the set was built before.
            TypeError: The offset is not an integer.
            ValueError: The offset is negative, or that of the last record would be beyond 63 bits.
        """
        if self._built:
            raise builder_closed()
        if self.count == 0:
            raise builder_empty()
        base_offset = integer("base_offset", base_offset, 0, INT64_MAX - self._next_delta)
        self._built = True
        messages, self._buffer = self._buffer, bytearray()
        if base_offset and not (self.magic and self.compression):
            _shift_offsets(messages, base_offset)
        return self._compressed(messages, base_offset) if self.compression else messages

    def _compressed(self, messages: bytearray, base_offset: int) -> bytearray:
        with memoryview(messages) as view:
            value = compress(self.compression, view, self._level)
        if self.compression is CompressionType.LZ4 and not self.magic:
            value = break_checksum(value)
        attributes = int(self.compression) | self._stamp_attribute
        last = base_offset + self._next_delta - 1
        return bytearray(encode_message(self.magic, last, self.max_timestamp, attributes, None, value))

    def _stamp_of(self, timestamp: int) -> int:
        if not self.magic:
            return -1
        return timestamp if self.log_append_time is None else self.log_append_time


def _shift_offsets(messages: bytearray, base_offset: int) -> None:
    """Add to the offset of each message, which lies outside its checksum."""
    position = 0
    while position < len(messages):
        offset, size = _MEASURE.unpack_from(messages, position)
        _OFFSET.pack_into(messages, position, offset + base_offset)
        position += size + MEASURE_SIZE
