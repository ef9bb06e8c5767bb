"""What the header of a produced batch has to be before it gets a place in a log; `contents` looks at its records."""

from __future__ import annotations

from kclient.errors import (
    CorruptRecordError,
    InvalidRecordError,
    RecordTooLargeError,
    UnsupportedCompressionTypeError,
)
from kclient.gateway.config import TopicConfig
from kclient.records import CURRENT_MAGIC, BatchHeader, CompressionType, check_batch
from kclient.records.batch_header import checksum_holds, measure
from kclient.types import Buffer

_ZSTD_SINCE = 7
"""The first version of Produce in which zstd may be used (KIP-110)."""


def check_produced(records: Buffer | None, version: int, config: TopicConfig) -> BatchHeader:
    """The header of the one batch that a partition of a Produce request carries.

    Args:
        records: The partition's records as they came.
        version: The version of the Produce request, 3 or newer.
        config: The topic's settings.

    Raises:
        CorruptRecordError: The batch is truncated, or its checksum is wrong: it may come better the next time.
        InvalidRecordError: It is none, more than one, of an old format, does not begin at offset 0, or contradicts
            itself.
        RecordTooLargeError: It is larger than `max.message.bytes`.
        UnsupportedCompressionTypeError: Its codec is newer than the request's version.
    """
    if not records:
        raise InvalidRecordError(
            f"Produce requests with version {version} must have at least one record batch per partition"
        )
    if len(records) > config.max_message_bytes:  # before its checksum, which takes time
        check_size(min(measure(records), len(records)), config)
    try:
        header = check_batch(records)
    except CorruptRecordError as error:
        if checksum_holds(records):
            raise InvalidRecordError(error.message) from error
        raise
    if header.magic != CURRENT_MAGIC:
        raise InvalidRecordError(
            f"Produce requests with version {version} are only allowed to contain record batches with magic version 2"
        )
    if header.length != len(records):
        raise InvalidRecordError(
            f"Produce requests with version {version} are only allowed to contain exactly one record batch per "
            "partition"
        )
    _check_records(header)
    if header.compression is CompressionType.ZSTD and version < _ZSTD_SINCE:
        raise UnsupportedCompressionTypeError(
            f"Produce requests with version {version} are not allowed to use ZStandard compression"
        )
    return header


def check_size(size: int, config: TopicConfig) -> None:
    """Refuse a batch of `size` bytes that is larger than the topic's `max.message.bytes` (RecordTooLargeError)."""
    if size > config.max_message_bytes:
        raise RecordTooLargeError(
            f"The record batch size in the append is {size} bytes, which exceeds the maximum configured "
            f"value of {config.max_message_bytes} (max.message.bytes)."
        )


def _check_records(header: BatchHeader) -> None:
    if header.base_offset != 0:
        raise InvalidRecordError(f"The base offset of the record batch should be 0, but it is {header.base_offset}")
    if header.count <= 0 or header.count != header.last_offset_delta + 1:
        raise InvalidRecordError(
            f"Inconsistent batch: {header.count} records, last offset delta {header.last_offset_delta}"
        )
    if header.is_control:
        raise InvalidRecordError("Clients are not allowed to write control records")
    if header.is_transactional and header.producer_id < 0:
        raise InvalidRecordError("A batch of a transaction has to name its producer id")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise InvalidRecordError(
            f"Invalid sequence number {header.base_sequence} in record batch with producerId {header.producer_id}"
        )
