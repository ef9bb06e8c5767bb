"""What users may implement: rebalance listeners, interceptors; and the forms in which they pass partitions."""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from kclient.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from kclient.consumer.records import ConsumerRecords
    from kclient.errors import KafkaError

Partition: TypeAlias = TopicPartition | tuple[str, int]
"""A partition, also as a plain pair of topic and number."""

Offset: TypeAlias = int | OffsetAndMetadata
"""An offset to commit, with metadata or without."""

Offsets: TypeAlias = Mapping[TopicPartition, Offset] | Mapping[tuple[str, int], Offset]
"""Offsets to commit. Both kinds of key are named, as checkers take a mapping's keys exactly."""

Timestamps: TypeAlias = Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]
"""Times in milliseconds since the epoch, by partition."""

CommitCallback: TypeAlias = Callable[[Mapping[TopicPartition, OffsetAndMetadata], "KafkaError | None"], object]
"""Called with the offsets of an asynchronous commit, and with why it failed or None. Runs in the thread or task
that calls `poll`, `commit` or `close`."""


class RebalanceListener:
    """Told when partitions come and go (`subscribe(..., listener=...)`).

    The methods run inside `poll`, `unsubscribe` or `close`, in the caller's task or thread, and may call the
    consumer's other methods: `commit` in `on_partitions_revoked` is what they are for. They may be plain functions
    or, for the async consumer, coroutine functions. An exception ends the call of `poll` with that exception, once
    the rebalance is over.
    """

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        """These partitions are about to go to other members; the consumer still has them now."""
        return None

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        """These partitions came (with the cooperative protocol: in addition); `seek` here to choose positions."""
        return None

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        """These partitions have gone already, and nothing can be committed for them any more.

        By default the same as `on_partitions_revoked`.
        """
        return self.on_partitions_revoked(partitions)


class ConsumerInterceptor:
    """Sees what polls return and what was committed (`interceptor.classes`, KIP-42).

    Exceptions are logged and ignored, as in the Java client. `on_consume` runs in the caller's thread or task.
    """

    def on_consume(self, records: ConsumerRecords) -> ConsumerRecords:
        """Return what `poll` is to return: these records, or others."""
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """These offsets were committed."""

    def close(self) -> None:
        """The consumer is closed."""


def as_partition(value: Partition) -> TopicPartition:
    """A partition from either form.

    Raises:
        TypeError: It is neither.
    """
    if isinstance(value, TopicPartition):
        return value
    match value:
        case (str(topic), int(number)):
            return TopicPartition(topic, number)
    raise TypeError(f"a partition is TopicPartition(topic, number) or such a pair, not {value!r}")


def as_offset(value: Offset, purpose: str = "commit") -> OffsetAndMetadata:
    """An offset to commit, or to `purpose`, from either form; NumPy's whole numbers are taken too.

    Raises:
        TypeError: It is neither.
        ValueError: It is negative.
    """
    found = value
    if not isinstance(found, OffsetAndMetadata):
        try:
            found = OffsetAndMetadata(operator.index(found))
        except TypeError:
            raise TypeError(f"an offset is a whole number or OffsetAndMetadata, not {value!r}") from None
    if found.offset < 0:
        raise ValueError(f"cannot {purpose} the negative offset {found.offset}")
    return found
