"""Value types that producer, consumer, admin client and gateway share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeAlias

__all__ = [
    "Buffer",
    "ConsumerGroupMetadata",
    "Header",
    "Headers",
    "Node",
    "Offset",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "Offsets",
    "Partition",
    "PartitionInfo",
    "PartitionWatermarks",
    "RecordMetadata",
    "TimestampType",
    "Timestamps",
    "TopicPartition",
    "WholeNumbers",
]

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes of any kind; functions that take one never change it and never copy it without need."""

Header: TypeAlias = tuple[str, bytes | None]
"""A record header: its key and its value."""

Headers: TypeAlias = Sequence[Header]
"""The headers of a record, in order; a key may occur more than once."""


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed position: the offset of the next record to read, and text that the committer chose."""

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None
    """Leader epoch of the last record that was read, if known (KIP-320)."""


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadata:
    """Who a consumer is in its group; a transactional producer passes it on with the offsets it commits."""

    group_id: str
    generation_id: int = -1
    """Generation of the group, or -1 while the consumer is not a member."""
    member_id: str = ""
    group_instance_id: str | None = None


Partition: TypeAlias = TopicPartition | tuple[str, int]
"""A partition, also as a plain pair of topic and number."""

Offset: TypeAlias = int | OffsetAndMetadata
"""An offset to commit, with metadata or without."""

Offsets: TypeAlias = Mapping[TopicPartition, Offset] | Mapping[tuple[str, int], Offset]
"""Offsets to commit. Both kinds of key are named, as checkers take a mapping's keys exactly."""

WholeNumbers: TypeAlias = Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]
"""Plain offsets by partition."""

Timestamps: TypeAlias = WholeNumbers
"""Times in milliseconds since the epoch, by partition."""


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """The answer to a search by time: the first record at or after it."""

    offset: int
    timestamp: int
    """Timestamp of that record, in milliseconds since the epoch."""
    leader_epoch: int | None = None


class TimestampType(IntEnum):
    """Who stamped a record."""

    NO_TIMESTAMP = -1
    """Nobody: the record was written in message format v0."""
    CREATE_TIME = 0
    """The producer, when it made the record."""
    LOG_APPEND_TIME = 1
    """The broker, when it appended the record (`message.timestamp.type=LogAppendTime`)."""


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Where a produced record was stored."""

    topic: str
    partition: int
    offset: int
    """Offset of the record, or -1 with `acks=0`, where the broker does not answer."""
    timestamp: int
    """Milliseconds since the epoch: the producer's timestamp, or the broker's if it stamps the records."""
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    """Whose `timestamp` it is."""
    log_start_offset: int = -1
    """The partition's first offset when the broker answered; -1 where it did not tell it, as with `acks=0`."""

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition together."""
        return TopicPartition(self.topic, self.partition)


class PartitionWatermarks(NamedTuple):
    """Where a partition begins and ends, as the last fetch has told; each None while none has.

    Attributes:
        log_start_offset: The first offset that there is.
        last_stable_offset: Up to here, exclusively, transactions are decided (KIP-98).
        high_watermark: Up to here, exclusively, records are replicated.
        age: Seconds since a broker has told it.
    """

    log_start_offset: int | None
    last_stable_offset: int | None
    high_watermark: int | None
    age: float | None


@dataclass(frozen=True, slots=True)
class Node:
    """A broker of the cluster."""

    id: int
    host: str
    port: int
    rack: str | None = None
    is_fenced: bool = False
    """Whether it is registered, but shut out for now: it does not heartbeat, or has just started (KIP-1073)."""

    def __str__(self) -> str:
        return f"{self.host}:{self.port} (id {self.id})"


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """What the metadata say about a partition."""

    topic: str
    partition: int
    leader: Node | None
    """The broker that serves reads and writes; None while there is none."""
    replicas: tuple[Node, ...] = ()
    in_sync_replicas: tuple[Node, ...] = ()
    offline_replicas: tuple[Node, ...] = ()
    leader_epoch: int | None = None
    eligible_leader_replicas: tuple[Node, ...] | None = None
    """Replicas that left the in-sync ones, and may still be elected without a loss (KIP-966); None where the brokers
    do not tell them, or another call than `Admin.describe_topics` was asked."""
    last_known_elr: tuple[Node, ...] | None = None
    """Those that were in sync or eligible before the last of them was lost in an unclean way (KIP-966); or None."""

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition together."""
        return TopicPartition(self.topic, self.partition)
