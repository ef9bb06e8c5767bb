"""Giving a batch its place in a log, in the buffer itself."""

from __future__ import annotations

from struct import Struct
from typing import Final

from kclient.records.arguments import as_buffer, check_position, integer
from kclient.records.batch_header import CURRENT_MAGIC, HEADER_SIZE, measure, recompute_crc, truncated
from kclient.records.bounds import INT32_MAX, INT64_MAX
from kclient.types import Buffer

_OFFSET: Final = Struct(">q")
_EPOCH: Final = Struct(">i")
_ATTRIBUTES: Final = Struct(">h")
_EPOCH_AT: Final = 12
_MAGIC_AT: Final = 16
_ATTRIBUTES_AT: Final = 21
_MAX_TIMESTAMP_AT: Final = 35
_LOG_APPEND_TIME: Final = 0x08


def place_batch(buffer: bytearray | memoryview, base_offset: int, partition_leader_epoch: int) -> None:
    """As `restamp` of a batch that was checked, and of numbers that are right: nothing is looked at again."""
    _OFFSET.pack_into(buffer, 0, base_offset)
    _EPOCH.pack_into(buffer, _EPOCH_AT, partition_leader_epoch)


def restamp(
    buffer: bytearray | memoryview,
    position: int = 0,
    *,
    base_offset: int,
    partition_leader_epoch: int,
    log_append_time: int | None = None,
) -> None:
    """Give the batch v2 at `position` its place in a log, in the buffer itself.

    Base offset and leader epoch are outside the checksum, so this costs two writes. With `log_append_time`
    (milliseconds since the epoch; the topic's `message.timestamp.type=LogAppendTime`) the header says that
    all records have that timestamp, and the checksum is computed anew; the records stay as they are.

    Args:
        buffer: Bytes that can be written to, in which the batch is.
        position: Where it begins.
        base_offset: Offset of its first record.
        partition_leader_epoch: Epoch of the leader that appends it, or -1.
        log_append_time: The timestamp of all its records, or None for those that they have.

    Raises:
        CorruptRecordError: The batch is truncated, or its length is impossible; nothing is written then.
        TypeError: An argument is of a wrong type, or the buffer cannot be written to.
        ValueError: A number is out of its range; or there is a message of an old format, whose checksum covers its
            timestamp: convert it first. Nothing is written then.
    """
    place = as_buffer(buffer)
    if isinstance(place, bytes) or (isinstance(place, memoryview) and place.readonly):
        raise TypeError(f"buffer must be one that can be written to, as a bytearray, not {type(buffer).__name__}")
    buffer, position = place, check_position(position)
    base_offset = integer("base_offset", base_offset, 0, INT64_MAX)
    partition_leader_epoch = integer("partition_leader_epoch", partition_leader_epoch, -1, INT32_MAX)
    if log_append_time is not None:
        log_append_time = integer("log_append_time", log_append_time, 0, INT64_MAX)
    left = len(buffer) - position
    if left <= _MAGIC_AT:
        raise truncated(buffer, position, HEADER_SIZE)
    if buffer[position + _MAGIC_AT] != CURRENT_MAGIC:
        magic = buffer[position + _MAGIC_AT]
        raise ValueError(f"only record batches v2 can be re-stamped, not format v{magic}; convert it (up_convert)")
    length = measure(buffer, position)
    if length > left:
        raise truncated(buffer, position, length)
    _OFFSET.pack_into(buffer, position, base_offset)
    _EPOCH.pack_into(buffer, position + _EPOCH_AT, partition_leader_epoch)
    if log_append_time is None:
        return
    (attributes,) = _ATTRIBUTES.unpack_from(buffer, position + _ATTRIBUTES_AT)
    _ATTRIBUTES.pack_into(buffer, position + _ATTRIBUTES_AT, attributes | _LOG_APPEND_TIME)
    _OFFSET.pack_into(buffer, position + _MAX_TIMESTAMP_AT, log_append_time)
    recompute_crc(buffer, position, length)


def writable(batch: Buffer) -> bytearray | memoryview:
    """The batch itself where it may be changed in place, else a copy."""
    if isinstance(batch, bytearray):
        return batch
    if isinstance(batch, memoryview) and not batch.readonly:
        return batch
    return bytearray(batch)
