"""Batches of a compacted log: their keys are noted, and what is kept of them is put into batches anew.

What survives, and in what form, is Kafka's: a batch keeps its offsets, its producer and sequences, its leader epoch and
its codec; the first compaction that leaves a record without a value in it stamps it with the time from which that may
go, in place of the base timestamp (KIP-534).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kclient.records.batch_header import (
    HEADER_SIZE,
    BatchHeader,
    CompressionType,
    check_crc,
    write_header,
)
from kclient.records.compression import DEFAULT_MAX_DECOMPRESSED, compress
from kclient.records.reader import read_control_records, read_payload
from kclient.types import Buffer, TimestampType

if TYPE_CHECKING:
    from kclient.records._interpreted import KeyOffsets
    from kclient.records.contract import Implementation

_COMPRESSION: Final = 0x07
_DELETE_HORIZON: Final = 0x40
_NONE: Final = -1
_MARKER_LIMIT: Final = 1 << 16


class BatchCompactor:
    """Compacts batches v2, one at a time.

    Args:
        implementation: Does the part that runs once per record; the table of keys has to be its own.
    """

    def __init__(self, implementation: Implementation) -> None:
        self._implementation = implementation

    def note_keys(
        self,
        batch: memoryview,
        header: BatchHeader,
        offsets: KeyOffsets,
        start: int,
        max_decompressed: int = DEFAULT_MAX_DECOMPRESSED,
    ) -> bool:
        """Note the offsets of a batch's keys, from the offset `start` on.

        Args:
            batch: One whole batch, with data.
            header: Its header.
            offsets: Where they are noted.
            start: Records below are passed over.
            max_decompressed: Greatest size in bytes of its records after decompression.

        Returns:
            False if there was no room for all: `offsets.end` is the offset of the first that was not noted then.

        Raises:
            CorruptRecordError: The batch is damaged.
            RecordTooLargeError: Its records are larger than `max_decompressed`.
        """
        check_crc(batch, 0, header)
        return offsets.note(read_payload(batch, 0, header, max_decompressed), header, start)

    def compact_batch(
        self,
        batch: memoryview,
        header: BatchHeader,
        offsets: KeyOffsets,
        *,
        now_ms: int,
        horizon_ms: int,
        max_decompressed: int = DEFAULT_MAX_DECOMPRESSED,
    ) -> Buffer | None:
        """What is kept of a batch with data: itself, another one, or None for no record.

        Args:
            batch: One whole batch.
            header: Its header.
            offsets: The last offset of each key.
            now_ms: The time in milliseconds since the epoch: records without a value go when the batch's delete horizon
                is reached.
            horizon_ms: The delete horizon of a batch that has none yet and keeps such records.
            max_decompressed: Greatest size in bytes of its records after decompression.

        Raises:
            CorruptRecordError: The batch is damaged.
            RecordTooLargeError: Its records are larger than `max_decompressed`.
        """
        check_crc(batch, 0, header)
        payload = read_payload(batch, 0, header, max_decompressed)
        horizon = header.delete_horizon
        found = self._implementation.surviving_records(
            payload,
            header,
            offsets,
            horizon is None or now_ms < horizon,
            horizon_ms if horizon is None else None,
        )
        if found.kept == 0:
            return None
        if found.records is None:
            return batch
        records = found.records
        if header.compression is not CompressionType.NONE:
            records = compress(header.compression, records)
        stamped = header.timestamp_type is TimestampType.LOG_APPEND_TIME
        return _batch_like(
            header,
            records,
            attributes=header.attributes | (_DELETE_HORIZON if found.restamped else 0),
            base_timestamp=horizon_ms if found.restamped else header.base_timestamp,
            max_timestamp=header.max_timestamp if stamped else found.max_timestamp,
            count=found.kept,
        )

    def marker_until(self, batch: memoryview, header: BatchHeader, horizon_ms: int) -> Buffer:
        """A control batch with a delete horizon: the transaction that it ends has no records any more.

        Args:
            batch: One whole control batch without a horizon.
            header: Its header.
            horizon_ms: From when on the marker may go, in milliseconds since the epoch.

        Raises:
            CorruptRecordError: The batch is damaged.
        """
        check_crc(batch, 0, header)
        payload = read_payload(batch, 0, header)
        builder = self._implementation.BatchBuilder(
            limit=_MARKER_LIMIT + header.length,
            compression=header.compression,
            is_transactional=header.is_transactional,
            is_control=True,
            delete_horizon=horizon_ms,
        )
        for record in read_control_records(payload, header, 0, self._implementation):
            builder.append_at(record.offset - header.base_offset, record.timestamp, record.key, record.value)
        return builder.build(
            base_offset=header.base_offset,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            partition_leader_epoch=header.partition_leader_epoch,
            last_offset_delta=header.last_offset_delta,
        )


def emptied_batch(header: BatchHeader) -> bytearray:
    """A batch without records that keeps the offsets, the producer and the sequences of another.

    Args:
        header: Of the other one.
    """
    return _batch_like(
        header,
        b"",
        attributes=header.attributes & ~(_COMPRESSION | _DELETE_HORIZON),
        base_timestamp=_NONE,
        max_timestamp=header.max_timestamp,
        count=0,
    )


def _batch_like(
    header: BatchHeader, records: bytes, *, attributes: int, base_timestamp: int, max_timestamp: int, count: int
) -> bytearray:
    batch = bytearray(HEADER_SIZE + len(records))
    batch[HEADER_SIZE:] = records
    write_header(
        batch,
        base_offset=header.base_offset,
        partition_leader_epoch=header.partition_leader_epoch,
        attributes=attributes,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        count=count,
    )
    return batch
