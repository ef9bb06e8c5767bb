"""What the clients of a run of transactions did and saw: recorded meanwhile, judged by `tests.transaction_checker`.

Every value is sent once in the whole history, retries of the client apart. All times are of one clock, which only
grows.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kclient.types import TopicPartition


class Outcome(enum.Enum):
    """How a transaction ended, as far as its client knows."""

    COMMITTED = "committed"
    """The client was told so."""
    ABORTED = "aborted"
    """It was told so, or has never asked to commit it."""
    UNKNOWN = "unknown"
    """It has asked to commit it, and does not know what became of that."""


class GroupPartition(NamedTuple):
    """What a group has read of a partition."""

    group_id: str
    partition: TopicPartition


@dataclass(slots=True)
class Send:
    """One record that was given to a producer.

    Args:
        partition: Where to.
        value: Its value.
        offset: The offset that was acknowledged; None if it was not, or without one.
    """

    partition: TopicPartition
    value: bytes
    offset: int | None = None


@dataclass(slots=True)
class Attempt:
    """One transaction of a producer.

    Args:
        producer: The producer: one run of a client, not a transactional id, which several may have.
        sends: Its records, in the order in which they were given to the producer.
        consumed: What it has read of partitions, and commits the end of, by group and partition.
        ending: When the client asked to commit it; None if it never did.
        outcome: How it ended.
        at_risk: Whether an EndTxn of an earlier transaction of the same epoch may still decide this one: Kafka's own
            weakness of clients without KIP-890 (KAFKA-17754).
    """

    producer: str
    sends: list[Send] = field(default_factory=list)
    consumed: dict[GroupPartition, range] = field(default_factory=dict)
    ending: float | None = None
    outcome: Outcome = Outcome.ABORTED
    at_risk: bool = False


@dataclass(frozen=True, slots=True)
class Poll:
    """What a reader of committed records was given of a partition.

    Args:
        session: The reader: from where it began to read on, without a seek.
        at: When it had it.
        partition: The partition.
        records: Offset and value of each.
    """

    session: str
    at: float
    partition: TopicPartition
    records: Sequence[tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class OffsetSeen:
    """The stable offset that a group was told for a partition.

    Args:
        at: When.
        of: Group and partition.
        offset: The offset; -1 for none.
    """

    at: float
    of: GroupPartition
    offset: int


@dataclass(slots=True)
class History:
    """All of it.

    Args:
        attempts: The transactions.
        polls: What was read, of each session in its order.
        offsets: Which committed offsets were seen.
        log: What is in each partition at the end, aborted records among it, with their offsets.
        committed: The offsets of groups at the end; those that are not there are not looked at.
        uncommitted: What readers of all records were given, of each session in its order.
    """

    attempts: list[Attempt] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    offsets: list[OffsetSeen] = field(default_factory=list)
    log: dict[TopicPartition, list[tuple[int, bytes]]] = field(default_factory=dict)
    committed: dict[GroupPartition, int] = field(default_factory=dict)
    uncommitted: list[Poll] = field(default_factory=list)

    def begin(self, producer: str) -> Attempt:
        """A transaction begins."""
        attempt = Attempt(producer)
        self.attempts.append(attempt)
        return attempt
