"""Tells that the end of a partition was reached (`enable.partition.eof`), once each time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kclient.consumer.partition_state import PositionState
from kclient.consumer.records import ConsumerRecords

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kclient.concurrency import MomentLock
    from kclient.consumer.fetch.fetcher import FetchSettings
    from kclient.consumer.partition_state import PartitionState
    from kclient.consumer.subscription import SubscriptionState
    from kclient.records import ConsumerRecord
    from kclient.types import OffsetAndMetadata, TopicPartition

__all__ = ["EndedRecords", "ReachedEnds"]


class EndedRecords(ConsumerRecords):
    """Records with which the ends of partitions were reached; perhaps none.

    Args:
        by_partition: The records.
        next_offsets: The position behind them.
        ends: The ends, by partition.
    """

    __slots__ = ("_ends",)

    def __init__(
        self,
        by_partition: Mapping[TopicPartition, Sequence[ConsumerRecord]],
        next_offsets: Mapping[TopicPartition, OffsetAndMetadata],
        ends: Mapping[TopicPartition, int],
    ) -> None:
        super().__init__(by_partition, next_offsets)
        self._ends = ends

    @property
    def partition_ends(self) -> dict[TopicPartition, int]:
        """The partitions whose ends were reached, and where those are."""
        return dict(self._ends)

    def __bool__(self) -> bool:
        return True


class ReachedEnds:
    """Which ends of partitions the user has been told of.

    Args:
        lock: Guards the positions.
        subscriptions: The positions.
        read_committed: Whether the last stable offset is the end, or the high watermark.
    """

    def __init__(self, lock: MomentLock, subscriptions: SubscriptionState, *, read_committed: bool) -> None:
        self._lock = lock
        self._subscriptions = subscriptions
        self._read_committed = read_committed
        self._awaited = False

    @classmethod
    def of(cls, lock: MomentLock, subscriptions: SubscriptionState, settings: FetchSettings) -> ReachedEnds | None:
        """What the settings ask for; None for nothing."""
        return cls(lock, subscriptions, read_committed=settings.read_committed) if settings.tell_ends else None

    @property
    def due(self) -> bool:
        """Under the lock: whether there is one that the poll which waits tells of.

        Iteration and `poll_arrow` tell of none: if their waits ended for one, they would never wait again.
        """
        return self._awaited and any(self._reached(state) is not None for state in self._subscriptions)

    def take(self, take: Callable[[], Any]) -> ConsumerRecords | None:
        """What `take` gives, and the ends that are reached with it; None if there is neither."""
        records: ConsumerRecords | None = take()
        ends: dict[TopicPartition, int] = {}
        with self._lock:
            for state in self._subscriptions:
                end = self._reached(state)
                if end is not None:
                    state.end_told = (state.version, end)
                    ends[state.tp] = end
            self._awaited = not ends and not records
        if not ends:
            return records
        if records is None:
            return EndedRecords({}, {}, ends)
        found = {tp: records.records(tp) for tp in records.partitions()}
        return EndedRecords(found, records.next_offsets, ends)

    def over(self) -> None:
        """The poll that called `take` is over."""
        with self._lock:
            self._awaited = False

    def _reached(self, state: PartitionState) -> int | None:
        """The end of a partition, if the position is there and the user has not been told."""
        end = state.end(read_committed=self._read_committed)
        # the end that was known before a jump is not that of now
        if end is None or state.answered != state.version or state.paused or state.state is not PositionState.VALID:
            return None
        if state.position < end:
            return None
        return None if state.end_told == (state.version, state.position) else state.position
