"""Message formats v0 and v1, which clients older than Kafka 0.11 know alone: converted at the edge, never stored.

What such a producer sends becomes one batch v2; what such a consumer fetches is made of the batches of the log, without
headers and control batches, which those formats do not know. All of this runs in the gateway's threads, with the memory
that was asked for before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kclient.errors import KafkaError, RecordTooLargeError
from kclient.records import CURRENT_MAGIC, CompressionType, Magic, batch_of_sent, down_convert, read_header
from kclient.records.batch_header import BatchHeader
from kclient.records.message_header import MESSAGE_HEADER_SIZE
from kclient.records.message_set import iter_sent
from kclient.types import Buffer

__all__ = [
    "BATCHES_FETCHED_SINCE",
    "BATCHES_SENT_SINCE",
    "ConvertedRecords",
    "fetched_format",
    "fetched_in",
    "is_message_set",
    "room_to_fetch",
    "room_to_send",
    "sent_batch",
]

BATCHES_SENT_SINCE: Final = 3
"""The version of Produce."""
BATCHES_FETCHED_SINCE: Final = 4
"""The version of Fetch."""
_TIMESTAMPS_FETCHED_SINCE: Final = 2
_MAGIC_AT: Final = 16
_COPIES: Final = 3
"""How often the bytes of records are there while they are converted: decompressed, as they become, and compressed."""
_PER_RECORD: Final = 300
"""Bytes of memory for each record of a batch that is made older."""
_GREATEST_RATIO: Final = 1032
"""Of gzip, which compresses the most of the codecs that these formats know."""


def fetched_format(version: int) -> Magic:
    """The newest message format that the client of a version of Fetch knows."""
    if version < BATCHES_FETCHED_SINCE:
        return 1 if version >= _TIMESTAMPS_FETCHED_SINCE else 0
    return CURRENT_MAGIC


# Sent


def is_message_set(records: Buffer | None) -> bool:
    """Whether what a Produce request carries is in an old format, or nothing at all."""
    return records is None or len(records) < MESSAGE_HEADER_SIZE or records[_MAGIC_AT] < CURRENT_MAGIC


def room_to_send(records: Buffer, max_decompressed: int) -> int:
    """Bytes of memory that are enough to convert a message set.

    Args:
        records: The message set.
        max_decompressed: Greatest size of what is in its compressed messages.

    Raises:
        CorruptRecordError: A message makes no sense.
    """
    plain = compressed = 0
    for _, header in iter_sent(memoryview(records)):
        if header.compression is CompressionType.NONE:
            plain += header.length
        else:
            compressed += header.length
    return _COPIES * (plain + min(compressed * _GREATEST_RATIO, max_decompressed))


def sent_batch(records: Buffer, max_decompressed: int, room: int) -> bytearray | None:
    """The one batch that a message set becomes; None if there is no whole message in it.

    Args:
        records: The message set.
        max_decompressed: Greatest size of what is in its compressed messages.
        room: Bytes of memory that this may take.

    Raises:
        CorruptRecordError: A message is damaged or makes no sense.
        RecordTooLargeError: It takes more memory than that.
        InvalidTimestampError: A record's timestamp is impossible.
    """
    try:
        return batch_of_sent(records, max_decompressed=max(1, min(max_decompressed, room // _COPIES)))
    except KafkaError as error:
        failed = _bare(error)
    raise failed


# ConvertedRecords


@dataclass(slots=True, frozen=True)
class ConvertedRecords:
    """What a partition's batches became."""

    records: bytes
    next_offset: int
    """Behind the last batch that was converted: those that are left out are behind the client too."""


def room_to_fetch(records: Buffer, max_decompressed: int) -> int:
    """Bytes of memory that are enough to convert batches, one after the other.

    Args:
        records: Whole batches v2.
        max_decompressed: Greatest size of a batch's records after decompression.
    """
    largest = position = 0
    while position < len(records):
        header = read_header(records, position)
        largest = max(largest, _room_for(header, max_decompressed))
        position += header.length
    return len(records) + largest


def _room_for(header: BatchHeader, max_decompressed: int) -> int:
    size = header.length
    if header.compression is not CompressionType.NONE:
        size = min(size * _GREATEST_RATIO, max_decompressed)
    return _COPIES * size + header.count * _PER_RECORD


def fetched_in(records: Buffer, magic: Magic, first_offset: int, max_decompressed: int, room: int) -> ConvertedRecords:
    """The records of batches in an old format, up to the first batch that cannot be converted.

    Args:
        records: Whole batches v2.
        magic: The format.
        first_offset: The offset that the client asked for.
        max_decompressed: Greatest size of a batch's records after decompression.
        room: Bytes of memory that this may take.

    Raises:
        UnsupportedCompressionTypeError: The first batch is compressed with zstd.
        RecordTooLargeError: To convert the first one takes more memory than that.
        CorruptRecordError: The first one is damaged.
    """
    converted = bytearray()
    position, next_offset = 0, first_offset
    while position < len(records):
        header = read_header(records, position)
        try:
            some = _older(memoryview(records)[position : position + header.length], header, magic, first_offset,
                          max_decompressed, room - len(records))  # fmt: skip
        except KafkaError:
            if next_offset == first_offset:
                raise
            break  # the client comes back for it
        converted += some
        position += header.length
        next_offset = header.base_offset + header.last_offset_delta + 1
    return ConvertedRecords(bytes(converted), next_offset)


def _bare(error: KafkaError) -> KafkaError:
    """An error without the frames that it went through: they hold what was decompressed."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def _older(
    batch: memoryview, header: BatchHeader, magic: Magic, first_offset: int, max_decompressed: int, room: int
) -> bytes:
    if header.is_control:
        return b""
    left = (room - header.count * _PER_RECORD) // _COPIES
    if left < header.length:
        raise RecordTooLargeError(
            f"the batch at offset {header.base_offset} has {header.count} records: to convert them for a client of old "
            "takes more memory than a connection may have, a quarter of connections.max.memory.bytes"
        )
    try:
        return down_convert(
            batch, magic, first_offset=first_offset, check_crcs=False, max_decompressed=min(max_decompressed, left)
        )
    except KafkaError as error:
        failed = _bare(error)
    raise failed
