"""Giving a batch its place in a log, in the buffer itself."""

from __future__ import annotations

from struct import Struct
from typing import Final

from kclient.records.batch_header import CURRENT_MAGIC, HEADER_SIZE, measure, recompute_crc, truncated

_OFFSET: Final = Struct(">q")
_EPOCH: Final = Struct(">i")
_ATTRIBUTES: Final = Struct(">h")
_EPOCH_AT: Final = 12
_MAGIC_AT: Final = 16
_ATTRIBUTES_AT: Final = 21
_MAX_TIMESTAMP_AT: Final = 35
_LOG_APPEND_TIME: Final = 0x08


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

    Raises:
        CorruptRecordError: The batch is truncated, or its length is impossible; nothing is written then.
        ValueError: A number is out of its range; or there is a message of an old format, whose checksum covers its
            timestamp: convert it first. Nothing is written then.
    """
    _check("base_offset", base_offset, 0, 63)
    _check("partition_leader_epoch", partition_leader_epoch, -1, 31)
    if log_append_time is not None:
        _check("log_append_time", log_append_time, 0, 63)
    left = len(buffer) - position
    if left <= _MAGIC_AT:
        raise truncated(buffer, position, HEADER_SIZE)
    if buffer[position + _MAGIC_AT] != CURRENT_MAGIC:
        raise ValueError(f"only record batches v2 can be re-stamped, not format v{buffer[position + _MAGIC_AT]}")
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


def _check(name: str, value: int, least: int, bits: int) -> None:
    if not least <= value < 1 << bits:
        raise ValueError(f"{name} must be from {least} to {(1 << bits) - 1}, not {value}")
