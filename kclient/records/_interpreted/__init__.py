"""The implementation in plain Python: serves where the extension is not built, and as its specification.

A record within a batch (lengths and differences are zigzag varints; KIP-98):

    length, attributes int8, timestamp delta, offset delta, key length (-1: null), key,
    value length (-1: null), value, number of headers, then key length, key, value length, value of each
"""

from kclient.records._interpreted.appender import Appender as Appender
from kclient.records._interpreted.appender import TopicSlots as TopicSlots
from kclient.records._interpreted.builder import BatchBuilder as BatchBuilder
from kclient.records._interpreted.columns import ColumnBuilder as ColumnBuilder
from kclient.records._interpreted.compaction import KeyOffsets as KeyOffsets
from kclient.records._interpreted.compaction import surviving_records as surviving_records
from kclient.records._interpreted.envelopes import EnvelopedBatches as EnvelopedBatches
from kclient.records._interpreted.envelopes import gather_batches as gather_batches
from kclient.records._interpreted.hashing import fnv1a as fnv1a
from kclient.records._interpreted.hashing import murmur2 as murmur2
from kclient.records._interpreted.hashing import partition_for_key as partition_for_key
from kclient.records._interpreted.reading import parse_records as parse_records
from kclient.records._interpreted.record import ConsumerRecord as ConsumerRecord
from kclient.records._interpreted.record import LazyDelivery as LazyDelivery
from kclient.records._interpreted.record import count_deliveries as count_deliveries
from kclient.records._interpreted.record import made_record as made_record
from kclient.records._interpreted.scanning import RecordScan as RecordScan
from kclient.records._interpreted.sources import RecordSource as RecordSource
