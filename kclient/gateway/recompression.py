"""Batches kept in another codec than the producer's: the topic's `compression.type` decides."""

from __future__ import annotations

from typing import Final

from kclient.gateway.config import TopicConfig
from kclient.gateway.validation import check_size
from kclient.records import HEADER_SIZE, BatchHeader, CompressionType, read_header
from kclient.records.batch_header import write_header
from kclient.records.compression import compress
from kclient.records.reader import read_payload
from kclient.types import Buffer

_CODECS: Final = {
    "uncompressed": CompressionType.NONE,
    "gzip": CompressionType.GZIP,
    "snappy": CompressionType.SNAPPY,
    "lz4": CompressionType.LZ4,
    "zstd": CompressionType.ZSTD,
}
_CODEC_BITS: Final = 0x07


def recompress(batch: Buffer, header: BatchHeader, config: TopicConfig) -> tuple[Buffer, BatchHeader]:
    """The checked batch in the codec that its topic asks for, and its header; itself where it is that already.

    Raises:
        CorruptRecordError: The records cannot be decompressed.
        RecordTooLargeError: They are larger than `message.max.decompressed.bytes` when decompressed, or the batch
            is larger than `max.message.bytes` in its new codec.
    """
    codec = _CODECS[config.compression_type]
    if header.compression is codec:
        return batch, header
    with memoryview(batch) as view:
        payload = read_payload(view, 0, header, config.max_decompressed_bytes)
        made = bytearray(HEADER_SIZE)
        made += payload if codec is CompressionType.NONE else compress(codec, payload, config.compression_level)
        payload = b""
    check_size(len(made), config)
    write_header(
        made,
        base_offset=header.base_offset,
        partition_leader_epoch=header.partition_leader_epoch,
        attributes=header.attributes & ~_CODEC_BITS | codec,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        count=header.count,
    )
    return made, read_header(made)
