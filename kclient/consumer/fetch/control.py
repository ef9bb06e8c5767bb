"""Changes what is read and from where, as the user, the group and the metadata say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kclient.cluster import ZERO_ID
from kclient.consumer.partition_state import PositionState
from kclient.errors import NoOffsetForPartitionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kclient.cluster import Cluster
    from kclient.concurrency import MomentLock, Wakeup
    from kclient.consumer.fetch.buffer import FetchBuffer
    from kclient.consumer.notices import PendingErrors
    from kclient.consumer.reset import ResetPolicy
    from kclient.consumer.subscription import SubscriptionState
    from kclient.errors import KafkaError
    from kclient.types import TopicPartition


class FetchControl:
    """Moves positions, and has what was fetched follow. Any thread may call it.

    The task that fetches is woken first, and has to wait for the lock: so it will see what a signal handler's exception
    breaks off as well.

    Args:
        lock: Guards the state machines.
        subscriptions: The partitions and positions.
        buffer: What was fetched of them.
        errors: What poll is to raise of them.
        cluster: Knows the topics' ids.
        wakeup: Of the task that fetches.
    """

    def __init__(
        self,
        *,
        lock: MomentLock,
        subscriptions: SubscriptionState,
        buffer: FetchBuffer,
        errors: PendingErrors,
        cluster: Cluster,
        wakeup: Wakeup,
    ) -> None:
        self._lock = lock
        self._subscriptions = subscriptions
        self._buffer = buffer
        self._errors = errors
        self._cluster = cluster
        self._wakeup = wakeup

    # ------------------------------------------------------------------ which partitions

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions."""
        wanted = list(partitions)
        with self._lock:
            self._wakeup.set()
            self._subscriptions.assign(wanted)
            self._assigned()

    def take_over(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, as the group decided."""
        with self._lock:
            self._wakeup.set()
            self._subscriptions.assign_from_group(partitions)
            self._assigned()

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading some partitions."""
        with self._lock:
            self._wakeup.set()
            self._subscriptions.drop(partitions)
            self._moved()

    def unsubscribe(self) -> None:
        """Read nothing any more."""
        with self._lock:
            self._wakeup.set()
            self._subscriptions.unsubscribe()
            self._moved()
            self._errors.forget()

    def _assigned(self) -> None:
        """Under the lock: other partitions are read from now on."""
        self._moved()
        self.recognise_topics()

    def recognise_topics(self) -> None:
        """Under the lock: see by their ids which topics were deleted and created again."""
        snapshot = self._cluster.snapshot
        for state in self._subscriptions:
            topic_id = snapshot.topic_id(state.tp.topic)
            if topic_id == ZERO_ID or state.recognise(topic_id):
                continue
            if not state.to_find:
                self._buffer.made_anew(state)
            elif state.state is PositionState.RESETTING:
                self._subscriptions.reset(state.tp, state.policy)
            else:
                state.attempt = None  # what was committed is of the deleted one

    # ------------------------------------------------------------------ from where

    def seek(self, tp: TopicPartition, offset: int, epoch: int | None) -> None:
        """Go on at an offset."""
        with self._lock:
            self._wakeup.set()
            self._subscriptions.seek(tp, offset, epoch)
            self._moved()

    def reset(self, partitions: Iterable[TopicPartition], policy: ResetPolicy) -> None:
        """Go on where a policy says, in these partitions or all."""
        with self._lock:
            self._wakeup.set()
            for tp in list(partitions) or self._subscriptions.assignment:
                self._subscriptions.reset(tp, policy, by_user=True)
            self._moved()

    def _moved(self) -> None:
        """Under the lock: positions were chosen or given up; what was fetched or complained of is out of date."""
        self._buffer.drop_stale()
        self._errors.forget(self._settled)

    def _settled(self, error: KafkaError) -> bool:
        """Whether the user has sought a position meanwhile, where there was none."""
        if not isinstance(error, NoOffsetForPartitionError):
            return False
        states = map(self._subscriptions.find, error.partitions)
        return not any(state is not None and state.state is PositionState.UNKNOWN for state in states)

    # ------------------------------------------------------------------ pausing

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these partitions."""
        with self._lock:
            self._wakeup.set()  # others may want the room that these take
            self._subscriptions.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo `pause`."""
        with self._lock:
            self._wakeup.set()
            self._subscriptions.resume(partitions)
