"""What the admin client's calls about transactions take and give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kclient.types import Node, TopicPartition


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id in a list.

    Attributes:
        transactional_id: the id.
        producer_id: the id of the producer that uses it.
        state: as the broker calls it: "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit",
            "CompleteAbort", "PrepareEpochFence" or "Dead".
    """

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """What the coordinator knows of a transactional id.

    Attributes:
        transactional_id: the id.
        coordinator: the broker that coordinates it.
        state: as in `TransactionListing`.
        producer_id: the id of the producer that uses it.
        producer_epoch: its epoch.
        transaction_timeout_ms: after how many milliseconds the coordinator aborts its transactions.
        transaction_start_time_ms: when the present transaction began, in milliseconds since 1970; None for no
            transaction.
        topic_partitions: the partitions that have joined the present transaction.
    """

    transactional_id: str
    coordinator: Node
    state: str
    producer_id: int
    producer_epoch: int
    transaction_timeout_ms: int
    transaction_start_time_ms: int | None
    topic_partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """What a partition's leader knows of a producer (Java's `ProducerState`).

    Attributes:
        producer_id: its id.
        producer_epoch: its epoch.
        last_sequence: the sequence number of its last record; -1 where there is none.
        last_timestamp: the timestamp of its last batch, in milliseconds since 1970.
        coordinator_epoch: the epoch of the coordinator that ended its last transaction here; None for none yet.
        transaction_start_offset: where its open transaction begins; None where it has none.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int | None
    transaction_start_offset: int | None


@dataclass(frozen=True, slots=True)
class AbortTransactionSpec:
    """Which transaction of a partition to abort; `of` takes it from what the leader told.

    Attributes:
        topic_partition: the partition.
        producer_id: the id of its producer.
        producer_epoch: the producer's epoch, from 0 on.
        coordinator_epoch: the epoch of the coordinator, from 0 on; a marker with an older one than before is refused.
    """

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int

    @classmethod
    def of(cls, topic_partition: TopicPartition, producer: ActiveProducer) -> AbortTransactionSpec:
        """The open transaction of a producer."""
        return cls(topic_partition, producer.producer_id, producer.producer_epoch, producer.coordinator_epoch or 0)


class HangingTransaction(NamedTuple):
    """An open transaction that no coordinator is ever going to end: consumers that read what is committed wait for it.

    Attributes:
        topic_partition: the partition.
        producer: the producer whose transaction it is.
        transactional_id: the id that uses the producer's id today; None where no coordinator knows it any more.
    """

    topic_partition: TopicPartition
    producer: ActiveProducer
    transactional_id: str | None


class FencedProducer(NamedTuple):
    """The id and the epoch that fence all producers that used a transactional id before."""

    producer_id: int
    producer_epoch: int
