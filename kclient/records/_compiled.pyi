# The compiled implementation has the face of the interpreted one; the tests compare both, signature by signature.
from kclient.records._interpreted import Appender as Appender
from kclient.records._interpreted import BatchBuilder as BatchBuilder
from kclient.records._interpreted import ColumnBuilder as ColumnBuilder
from kclient.records._interpreted import ConsumerRecord as ConsumerRecord
from kclient.records._interpreted import EnvelopedBatches as EnvelopedBatches
from kclient.records._interpreted import LazyDelivery as LazyDelivery
from kclient.records._interpreted import RecordScan as RecordScan
from kclient.records._interpreted import RecordSource as RecordSource
from kclient.records._interpreted import TopicSlots as TopicSlots
from kclient.records._interpreted import count_deliveries as count_deliveries
from kclient.records._interpreted import fnv1a as fnv1a
from kclient.records._interpreted import gather_batches as gather_batches
from kclient.records._interpreted import made_record as made_record
from kclient.records._interpreted import murmur2 as murmur2
from kclient.records._interpreted import parse_records as parse_records
from kclient.records._interpreted import partition_for_key as partition_for_key
