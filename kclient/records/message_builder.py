"""Building message sets of the formats v0 and v1, for brokers and clients of old."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as operator_index
from struct import Struct
from typing import Final, Literal

from kclient.errors import ConfigError
from kclient.records.arguments import (
    MAX_BATCH_SIZE,
    as_bytes,
    bad_offset_delta,
    bad_start,
    bad_timestamp,
    builder_closed,
    builder_empty,
    check_limit,
    keys_mismatch,
    record_too_large,
)
from kclient.records.batch_header import MEASURE_SIZE, CompressionType
from kclient.records.compression import check_level, compress
from kclient.records.message_header import LOG_APPEND_TIME, MESSAGE_OVERHEAD, encode_message
from kclient.records.old_lz4 import break_checksum
from kclient.types import Buffer, Headers

_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_MEASURE: Final = Struct(">qi")
_OFFSET: Final = Struct(">q")


def size_of_message(magic: Literal[0, 1], key: Buffer | None, value: Buffer | None) -> int:
    """Bytes that a record takes in a message set of format `magic`, before compression."""
    return MESSAGE_OVERHEAD[magic] + sum(
        data.nbytes if isinstance(data, memoryview) else len(data) for data in (key, value) if data is not None
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
            or the level is impossible.
    """

    __slots__ = (
        "_buffer", "_built", "_level", "_next_delta", "_stamp_attribute", "compression", "count", "limit",
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
        if magic not in (0, 1):
            raise ConfigError(f"message sets are of format v0 or v1, not v{magic}; BatchBuilder builds v2")
        if compression is CompressionType.ZSTD:
            raise ConfigError(f"message format v{magic} does not know zstd; it came with record batches v2")
        if log_append_time is not None and not magic:
            raise ConfigError("message format v0 has no timestamps, so it has no log-append time")
        self.magic: Literal[0, 1] = magic
        """The format."""
        self.limit: int = check_limit(limit)
        """Greatest size in bytes before compression; may be changed."""
        self.compression: CompressionType = CompressionType(compression)
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
            TypeError: Key or value is of a wrong type.
            ValueError: The timestamp is before the epoch, or there are headers.
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
        if not self._next_delta <= offset_delta <= _INT32_MAX:
            raise bad_offset_delta(offset_delta, self._next_delta)
        stamp = self._stamp_of(timestamp)
        if headers:
            raise ValueError(f"message format v{self.magic} has no record headers")
        if key is not None and type(key) is not bytes:
            key = as_bytes(key, "key")
        if value is not None and type(value) is not bytes:
            value = as_bytes(value, "value")
        added = MESSAGE_OVERHEAD[self.magic] + (len(key) if key else 0) + (len(value) if value else 0)
        size = self.size + added
        if size > self.limit or size > MAX_BATCH_SIZE:
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
            ValueError: The numbers of keys and values differ, or `start` is negative; else as `append`.
        """
        if start < 0:
            raise bad_start(start)
        if keys is not None and len(keys) != len(values):
            raise keys_mismatch(len(keys), len(values))
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
        """
        if self._built:
            raise builder_closed()
        if self.count == 0:
            raise builder_empty()
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
        if type(timestamp) is not int:
            timestamp = operator_index(timestamp)
        if timestamp < -1:
            raise bad_timestamp(timestamp)
        if timestamp > _INT64_MAX:
            raise OverflowError("a record's timestamp must fit into 64 bits")
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
