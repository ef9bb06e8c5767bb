"""The consumer: reads records, alone or as a member of a group."""

from __future__ import annotations

from kclient.consumer.consumer import Consumer as Consumer
from kclient.consumer.group.assignors import Assignor as Assignor
from kclient.consumer.group.assignors import CooperativeStickyAssignor as CooperativeStickyAssignor
from kclient.consumer.group.assignors import RangeAssignor as RangeAssignor
from kclient.consumer.group.assignors import RebalanceProtocol as RebalanceProtocol
from kclient.consumer.group.assignors import RoundRobinAssignor as RoundRobinAssignor
from kclient.consumer.group.assignors import StickyAssignor as StickyAssignor
from kclient.consumer.group.assignors import Subscription as Subscription
from kclient.consumer.group.model import ConsumerGroupMetadata as ConsumerGroupMetadata
from kclient.consumer.interfaces import CommitCallback as CommitCallback
from kclient.consumer.interfaces import ConsumerInterceptor as ConsumerInterceptor
from kclient.consumer.interfaces import RebalanceListener as RebalanceListener
from kclient.consumer.patterns import SubscriptionPattern as SubscriptionPattern
from kclient.consumer.records import ConsumerRecords as ConsumerRecords
from kclient.consumer.share.consumer import ShareConsumer as ShareConsumer
from kclient.consumer.share.model import AcknowledgementCommitCallback as AcknowledgementCommitCallback
from kclient.consumer.share.model import AcknowledgeType as AcknowledgeType
from kclient.records import ConsumerRecord as ConsumerRecord
from kclient.types import OffsetAndMetadata as OffsetAndMetadata
from kclient.types import OffsetAndTimestamp as OffsetAndTimestamp
from kclient.types import PartitionWatermarks as PartitionWatermarks
from kclient.types import TopicPartition as TopicPartition

__all__ = [
    "AcknowledgeType",
    "AcknowledgementCommitCallback",
    "Assignor",
    "CommitCallback",
    "Consumer",
    "ConsumerGroupMetadata",
    "ConsumerInterceptor",
    "ConsumerRecord",
    "ConsumerRecords",
    "CooperativeStickyAssignor",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "PartitionWatermarks",
    "RangeAssignor",
    "RebalanceListener",
    "RebalanceProtocol",
    "RoundRobinAssignor",
    "ShareConsumer",
    "StickyAssignor",
    "Subscription",
    "SubscriptionPattern",
    "TopicPartition",
]
