"""What users may implement: rebalance listeners, interceptors, callbacks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from kclient.arguments import shown
from kclient.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from kclient.consumer.records import ConsumerRecords
    from kclient.errors import KafkaError

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
    """Sees what is handed out and what was committed (`interceptor.classes`, KIP-42).

    Exceptions are logged and ignored, as in the Java client. Both methods run in the caller's thread or task.
    """

    def on_consume(self, records: ConsumerRecords) -> ConsumerRecords:
        """Return what is to be handed out: these records, or others.

        Called before positions move: if it is interrupted (Ctrl-C), the same records come again.

        - `poll` shows what it is about to return.
        - Iterating over the consumer shows one record at a time.
        - `poll_arrow` shows its rows as records whose keys and values are bytes; they are made only if somebody looks
          at them. If other records are returned, the columns are made of these.
        """
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """These offsets were committed; told by the next `poll`, `commit` or `close`."""

    def close(self) -> None:
        """The consumer is closed."""


_LISTENER_METHODS = ("on_partitions_revoked", "on_partitions_assigned", "on_partitions_lost")


def check_listener(listener: Any) -> None:
    """Raise if this cannot be told of partitions that come and go; None is fine.

    Raises:
        TypeError: It is a class, or has not all the methods.
    """
    if listener is None:
        return
    if isinstance(listener, type):
        raise TypeError(f"a rebalance listener is an object, not the class: give {listener.__name__}(...)")
    missing = [name for name in _LISTENER_METHODS if not callable(getattr(listener, name, None))]
    if missing:
        raise TypeError(f"a rebalance listener derives from RebalanceListener; {shown(listener)} has no {missing[0]}")
