"""The header of a record batch v2: reading, checking and writing it.

Layout (big-endian; KIP-98):

    byte  0  base offset              int64    assigned by the broker, outside the checksum
    byte  8  batch length             int32    bytes that follow this field
    byte 12  partition leader epoch   int32    assigned by the broker, outside the checksum
    byte 16  magic                    int8     2
    byte 17  CRC-32C                  uint32   of byte 21 to the batch's end
    byte 21  attributes               int16    bits 0-2 compression, 3 timestamp type, 4 transactional, 5 control,
                                               6 the base timestamp is the delete horizon (KIP-534)
    byte 23  last offset delta        int32
    byte 27  base timestamp           int64    milliseconds; records carry differences to it
    byte 35  max timestamp            int64
    byte 43  producer id              int64
    byte 51  producer epoch           int16
    byte 53  base sequence            int32
    byte 57  number of records        int32
    byte 61  records, compressed together
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from kclient.errors import CorruptRecordError
from kclient.records.bounds import INT64_MAX
from kclient.types import Buffer, TimestampType

HEADER_SIZE: Final = 61
"""Bytes before the records of a batch."""
MEASURE_SIZE: Final = 12
"""Bytes that tell how long a batch is."""
_MIN_RECORD_SIZE: Final = 7
"""Bytes of the smallest record: six fields of one byte each behind its length."""
CURRENT_MAGIC: Final = 2
"""The format of record batches; the formats of message sets are 0 and 1."""

_FIELDS: Final = Struct(">qiibIhiqqqhii")
_MEASURE: Final = Struct(">qi")
_OFFSET: Final = Struct(">q")
_EPOCH: Final = Struct(">i")
_CRC: Final = Struct(">I")
_STAMP: Final = Struct(">hiqqqhii")

_MAGIC_AT: Final = 16
_CRC_AT: Final = 17
_CHECKED_AT: Final = 21
_COMPRESSION_MASK: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_DELETE_HORIZON: Final = 0x40


class CompressionType(IntEnum):
    """How the records of a batch are compressed; the numbers are those of the batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_COMPRESSIONS: Final = tuple(CompressionType)
_GREATEST_COMPRESSION: Final = int(CompressionType.ZSTD)
# Skips the named arguments of a NamedTuple's constructor, as a header is made for every batch.
_new_header: Final = tuple.__new__


class BatchHeader(NamedTuple):
    """The fields in front of a batch's records.

    A message of the formats v0 and v1 is told of by the same fields: one that is not compressed is a batch of one
    record; of a compressed one the header knows the offset of the last record inside, and that alone.
    """

    base_offset: int
    """Offset of the first record that was written into the batch; compaction may have removed it since. In front of
    a compressed message of an old format: the offset of the last record."""
    length: int
    """Bytes of the whole batch, header included."""
    partition_leader_epoch: int
    """Epoch of the leader that appended the batch, or -1."""
    magic: int
    """The format: 2, or 1 or 0 for the message sets of old."""
    crc: int
    """CRC-32C of a batch, CRC-32 of a message of an old format."""
    attributes: int
    """The bits that the properties below tell of."""
    last_offset_delta: int
    """Offset of the last record less `base_offset`; compaction keeps it."""
    base_timestamp: int
    """What the records' timestamps are counted from, in milliseconds since the epoch: the first record's timestamp,
    or the delete horizon."""
    max_timestamp: int
    """The greatest timestamp of the records; with log-append time, that of all of them."""
    producer_id: int
    """Id of the idempotent producer, or -1."""
    producer_epoch: int
    """Epoch of the idempotent producer, or -1."""
    base_sequence: int
    """The producer's number of the first record, or -1."""
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody misses here
    """Number of records; -1 in front of a compressed message of an old format."""

    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset to read on from behind this batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> CompressionType:
        """How the records are compressed."""
        return _COMPRESSIONS[self.attributes & _COMPRESSION_MASK]

    @property
    def timestamp_type(self) -> TimestampType:
        """Who stamped the records; nobody in format v0."""
        if self.attributes & _LOG_APPEND_TIME:
            return TimestampType.LOG_APPEND_TIME
        return TimestampType.CREATE_TIME if self.magic else TimestampType.NO_TIMESTAMP

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether the batch holds a control record (a transaction's end) instead of data."""
        return bool(self.attributes & _CONTROL)

    @property
    def delete_horizon(self) -> int | None:
        """From when compaction may remove tombstones and markers of the batch, in milliseconds since the epoch; None
        before compaction has seen the batch (KIP-534)."""
        return self.base_timestamp if self.attributes & _DELETE_HORIZON else None


def measure(buffer: Buffer, position: int = 0) -> int:
    """Whole length in bytes of the batch at `position`, of which 12 bytes must be there.

    Raises:
        CorruptRecordError: Fewer bytes are there, or the length is impossible.
    """
    if len(buffer) - position < MEASURE_SIZE:
        raise truncated(buffer, position, MEASURE_SIZE)
    base_offset, length = _MEASURE.unpack_from(buffer, position)
    if length < HEADER_SIZE - MEASURE_SIZE:
        raise absurd_length(base_offset, length, position)
    return int(length) + MEASURE_SIZE


def read_batch_header(buffer: Buffer, position: int) -> BatchHeader:
    """The header of the batch v2 at `position`, of which these 61 bytes are known to be there.

    Raises:
        CorruptRecordError: The header makes no sense.
    """
    fields = _FIELDS.unpack_from(buffer, position)
    base_offset, length, _, _, _, attributes, last_delta, _, _, _, _, _, count = fields
    header = _new_header(BatchHeader, (base_offset, length + MEASURE_SIZE, *fields[2:]))
    if (
        length < HEADER_SIZE - MEASURE_SIZE
        or not 0 <= count <= last_delta + 1
        or not 0 <= base_offset < INT64_MAX - last_delta
        or attributes & _COMPRESSION_MASK > _GREATEST_COMPRESSION
    ):
        raise _absurd_header(header, position)
    return header


def check_crc(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Compare the checksum of the whole batch at `position` with that in its header.

    Raises:
        CorruptRecordError: They differ.
    """
    computed = _crc_of(buffer, position, header.length)
    if computed != header.crc:
        raise CorruptRecordError(
            f"The batch at offset {header.base_offset} is corrupt: its checksum is {computed:#010x} and should be "
            f"{header.crc:#010x} (position {position}, {header.length} bytes).",
            offset=header.base_offset,
            position=position,
        )


def checksum_holds(batch: Buffer) -> bool:
    """Whether this is one whole batch v2 with the right checksum, whatever else its header says."""
    if len(batch) < HEADER_SIZE or batch[_MAGIC_AT] != CURRENT_MAGIC:
        return False
    _, length = _MEASURE.unpack_from(batch)
    (crc,) = _CRC.unpack_from(batch, _CRC_AT)
    return bool(length + MEASURE_SIZE == len(batch) and _crc_of(batch, 0, len(batch)) == crc)


def check_count(header: BatchHeader, position: int, size: int) -> None:
    """Refuse a number of records that cannot be in `size` bytes, before anything is allocated for it.

    Raises:
        CorruptRecordError: So many records are not there.
    """
    if header.count * _MIN_RECORD_SIZE > size:
        raise CorruptRecordError(
            f"The batch at offset {header.base_offset} is corrupt: {header.count} records cannot be in {size} bytes "
            f"(position {position}).",
            offset=header.base_offset,
            position=position,
        )


def write_header(
    batch: bytearray | memoryview,
    *,
    base_offset: int,
    partition_leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    count: int,
) -> None:
    """Write the header of the batch that fills `batch`, whose records are in place, with length and checksum."""
    _STAMP.pack_into(
        batch, _CHECKED_AT, attributes, last_offset_delta, base_timestamp, max_timestamp,
        producer_id, producer_epoch, base_sequence, count,
    )  # fmt: skip
    _MEASURE.pack_into(batch, 0, base_offset, len(batch) - MEASURE_SIZE)
    _EPOCH.pack_into(batch, MEASURE_SIZE, partition_leader_epoch)
    batch[_MAGIC_AT] = CURRENT_MAGIC
    recompute_crc(batch, 0, len(batch))


def attributes_of(
    compression: CompressionType, *, is_transactional: bool, is_control: bool, has_delete_horizon: bool = False
) -> int:
    """The attribute bits of a batch that its producer stamped."""
    return (
        int(compression)
        | (_TRANSACTIONAL if is_transactional else 0)
        | (_CONTROL if is_control else 0)
        | (_DELETE_HORIZON if has_delete_horizon else 0)
    )


def recompute_crc(buffer: bytearray | memoryview, position: int, length: int) -> None:
    """Write the checksum of the batch of `length` bytes at `position` anew."""
    _CRC.pack_into(buffer, position + _CRC_AT, _crc_of(buffer, position, length))


def _crc_of(buffer: Buffer, position: int, length: int) -> int:
    # The crc32c package releases the GIL by itself for 32 KiB and more.
    return crc32c(memoryview(buffer)[position + _CHECKED_AT : position + length])


def truncated(buffer: Buffer, position: int, needed: int) -> CorruptRecordError:
    """The exception for a batch of which `needed` bytes are needed and fewer are there."""
    offset = _OFFSET.unpack_from(buffer, position)[0] if len(buffer) - position >= _OFFSET.size else None
    return CorruptRecordError(
        f"A batch is truncated: {needed} bytes are needed and {max(len(buffer) - position, 0)} are there "
        f"(position {position}).",
        offset=offset,
        position=position,
    )


def absurd_length(offset: int, length: int, position: int) -> CorruptRecordError:
    """The exception for a batch whose length field cannot be."""
    return CorruptRecordError(
        f"The batch at offset {offset} is corrupt: its length field is {length} (position {position}).",
        offset=offset,
        position=position,
    )


def _absurd_header(header: BatchHeader, position: int) -> CorruptRecordError:
    if header.length < HEADER_SIZE:
        return absurd_length(header.base_offset, header.length - MEASURE_SIZE, position)
    return CorruptRecordError(
        f"The batch at offset {header.base_offset} is corrupt: its header is inconsistent ({header.count} records, "
        f"last offset delta {header.last_offset_delta}, attributes {header.attributes:#06x}; position {position}).",
        offset=header.base_offset,
        position=position,
    )
