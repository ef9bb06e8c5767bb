"""Record batches v2 and message sets v0 and v1: building, reading, converting, checking; bytes to values and back.

The work per record is done by one of two implementations with the same behaviour, compiled or interpreted;
`IMPLEMENTATION` names the one that is loaded. The environment variable `KCLIENT_RECORDS`, `compiled` or `interpreted`,
forces one and makes the import fail if it is not there; any other value makes it fail too. Unset or empty, the compiled
one is taken where it was built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kclient.records._implementation import choose
from kclient.records.arguments import MAX_BATCH_SIZE
from kclient.records.arrow import ArrowChunk, ArrowDecoder, arrow_schema
from kclient.records.arrow_source import ArrowEncoder, record_columns
from kclient.records.batch_compaction import BatchCompactor
from kclient.records.batch_compaction import emptied_batch as emptied_batch  # for the gateway, as what is kept is
from kclient.records.batch_header import CURRENT_MAGIC, HEADER_SIZE, BatchHeader, CompressionType
from kclient.records.checksum import crc32c
from kclient.records.compression import DEFAULT_MAX_DECOMPRESSED, check_level
from kclient.records.contract import Appended, BinaryColumn, Deserialize, Destinations, HeaderColumn, RecordColumns
from kclient.records.control import ABORT, COMMIT, EndMarker, decode_control_type, decode_end_marker, encode_end_marker
from kclient.records.conversion import Magic, RecordConverter
from kclient.records.envelope_layout import EnvelopeLayout as EnvelopeLayout
from kclient.records.framing import BatchInfo, RecordBatchFraming
from kclient.records.headers import check_batch, iter_headers, read_header
from kclient.records.message_builder import MessageSetBuilder, size_of_message
from kclient.records.reader import RecordReader
from kclient.records.restamping import restamp
from kclient.records.restoring import restore_with as _restore_with
from kclient.records.sizes import size_of_record

IMPLEMENTATION, _chosen = choose()
_restore_with(_chosen.made_record)

if TYPE_CHECKING:
    # The checkers read the twin in Python; that the compiled one has the same face is tested.
    from kclient.records._interpreted import (
        Appender,
        BatchBuilder,
        ConsumerRecord,
        LazyDelivery,
        RecordSource,
        TopicSlots,
        fnv1a,
        murmur2,
        partition_for_key,
    )
    from kclient.records._interpreted import EnvelopedBatches as EnvelopedBatches  # for the gateway, as those below
    from kclient.records._interpreted import KeyOffsets as KeyOffsets
    from kclient.records._interpreted import RecordScan as RecordScan
    from kclient.records._interpreted import count_deliveries as count_deliveries  # for share consumers
    from kclient.records._interpreted import gather_batches as gather_batches
    from kclient.records._interpreted import surviving_records as surviving_records
else:
    Appender = _chosen.Appender
    BatchBuilder = _chosen.BatchBuilder
    ConsumerRecord = _chosen.ConsumerRecord
    EnvelopedBatches = _chosen.EnvelopedBatches
    KeyOffsets = _chosen.KeyOffsets
    LazyDelivery = _chosen.LazyDelivery
    RecordScan = _chosen.RecordScan
    RecordSource = _chosen.RecordSource
    TopicSlots = _chosen.TopicSlots
    count_deliveries = _chosen.count_deliveries
    fnv1a = _chosen.fnv1a
    gather_batches = _chosen.gather_batches
    murmur2 = _chosen.murmur2
    partition_for_key = _chosen.partition_for_key
    surviving_records = _chosen.surviving_records

_reader = RecordReader(_chosen)
decode_records: Final = _reader.decode_records
decode_some: Final = _reader.decode_some
iter_batches: Final = _reader.iter_batches
read_end_marker: Final = _reader.read_end_marker
_columns = ArrowDecoder(_chosen)
decode_arrow: Final = _columns.decode_arrow
decode_arrow_some: Final = _columns.decode_arrow_some
encode_arrow: Final = ArrowEncoder(BatchBuilder).encode_arrow
_compactor = BatchCompactor(_chosen)
compact_batch: Final = _compactor.compact_batch
marker_until: Final = _compactor.marker_until
note_keys: Final = _compactor.note_keys
_converter = RecordConverter(_chosen)
batch_of_sent: Final = _converter.batch_of_sent
down_convert: Final = _converter.down_convert
up_convert: Final = _converter.up_convert

__all__ = [
    "ABORT",
    "COMMIT",
    "CURRENT_MAGIC",
    "DEFAULT_MAX_DECOMPRESSED",
    "HEADER_SIZE",
    "IMPLEMENTATION",
    "MAX_BATCH_SIZE",
    "Appended",
    "Appender",
    "ArrowChunk",
    "BatchBuilder",
    "BatchHeader",
    "BatchInfo",
    "BinaryColumn",
    "CompressionType",
    "ConsumerRecord",
    "Deserialize",
    "Destinations",
    "EndMarker",
    "HeaderColumn",
    "LazyDelivery",
    "Magic",
    "MessageSetBuilder",
    "RecordBatchFraming",
    "RecordColumns",
    "RecordSource",
    "TopicSlots",
    "arrow_schema",
    "batch_of_sent",
    "check_batch",
    "check_level",
    "crc32c",
    "decode_arrow",
    "decode_arrow_some",
    "decode_control_type",
    "decode_end_marker",
    "decode_records",
    "decode_some",
    "down_convert",
    "encode_arrow",
    "encode_end_marker",
    "fnv1a",
    "iter_batches",
    "iter_headers",
    "murmur2",
    "partition_for_key",
    "read_end_marker",
    "read_header",
    "record_columns",
    "restamp",
    "size_of_message",
    "size_of_record",
    "up_convert",
]
