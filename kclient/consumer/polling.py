"""What `poll` does, as a script: the work of the group, callbacks, records, and waiting for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kclient.consumer.actions import Wait
from kclient.consumer.subscription import SubscriptionKind
from kclient.errors import IllegalStateError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from kclient.concurrency import MomentLock, Wakeup
    from kclient.consumer.actions import Script
    from kclient.consumer.fetch.buffer import FetchBuffer
    from kclient.consumer.fetch.ends import ReachedEnds
    from kclient.consumer.group.consumer_group import ConsumerGroup
    from kclient.consumer.metrics import PollMetrics
    from kclient.consumer.notices import Notices, PendingErrors
    from kclient.consumer.readiness import PollReadiness
    from kclient.consumer.subscription import SubscriptionState
    from kclient.consumer.waits import Waits
    from kclient.tracing.spans import ClientTracing
    from kclient.types import TopicPartition

_POLL_INTERVAL = 1.0
"""Seconds for which records are iterated over without looking at anything else."""


class Polling:
    """The polls of one consumer.

    Args:
        lock: Guards the state machines.
        check: Raises if the consumer failed, or does not answer polls.
        subscriptions: What is read.
        buffer: Makes room between polls.
        group: What the group asks for; None without one.
        waits: Have the user's wakeup.
        readiness: Ends the wait for records.
        errors: What to raise.
        notices: Tell callbacks.
        metrics: Count polls.
        fetch_wakeup: Of the task that fetches.
        ends: Tell of the ends of partitions; None where the user does not want that.
    """

    def __init__(
        self,
        *,
        lock: MomentLock,
        check: Callable[[], None],
        subscriptions: SubscriptionState,
        buffer: FetchBuffer,
        group: ConsumerGroup | None,
        waits: Waits,
        readiness: PollReadiness,
        errors: PendingErrors,
        notices: Notices,
        metrics: PollMetrics,
        fetch_wakeup: Wakeup,
        ends: ReachedEnds | None = None,
    ) -> None:
        self.ends: ReachedEnds | None = ends
        """What it was given."""
        self.tracing: ClientTracing | None = None
        """Makes spans; None where nobody wants them."""
        self._lock = lock
        self._check = check
        self._subscriptions = subscriptions
        self._buffer = buffer
        self._group = group
        self._waits = waits
        self._readiness = readiness
        self._errors = errors
        self._notices = notices
        self._metrics = metrics
        self._fetch_wakeup = fetch_wakeup

    def poll(self, deadline: float, take: Callable[[], Any]) -> Script:
        """Do what the group needs, then return what `take` gives; None if there is nothing until `deadline`."""
        readiness = self._readiness
        self._metrics.begins(readiness.clock())
        try:
            return (yield from self._poll(deadline, take))
        finally:
            if self.ends is not None:
                self.ends.over()
            self._metrics.ends(readiness.clock())

    def poll_only(self, partitions: Collection[TopicPartition], deadline: float, take: Callable[[], Any]) -> Script:
        """As `poll`, but partitions that are not among these rest meanwhile, also those that the poll is assigned."""

        def take_of_these() -> Any:
            with self._lock:
                self._subscriptions.rest_but(partitions)
            return take()

        try:
            with self._lock:
                self._subscriptions.rest_but(partitions)
            return (yield from self.poll(deadline, take_of_these))
        finally:
            with self._lock:
                self._subscriptions.rest_no_more()
                self._fetch_wakeup.set()  # it has to wait for the lock

    def _poll(self, deadline: float, take: Callable[[], Any]) -> Script:
        readiness, group = self._readiness, self._group
        while True:
            self._check()
            self._waits.take_wakeup()
            self._polled()
            if group is not None and not (yield from group.rebalance.steps(deadline)):
                return None
            yield from self._notices.run_callbacks()
            taken = take()
            if readiness.poll_needed or not taken:
                readiness.update()
            if taken:
                return taken
            if readiness.clock() >= deadline:
                return None
            if group is None:
                yield Wait(deadline)
                continue
            group.wait_in_poll(True)
            try:
                yield Wait(deadline)
            finally:
                group.wait_in_poll(False)

    def _polled(self) -> None:
        """The user polls: what earlier polls returned is processed.

        Raises:
            KafkaError: The group refused this member, or something else has to be said.
        """
        now = self._readiness.clock()
        due = now + _POLL_INTERVAL
        with self._lock:
            if self._subscriptions.kind is SubscriptionKind.NONE:
                raise IllegalStateError("Nothing to poll: subscribe to topics or assign partitions first")
            if self._group is not None:
                self._group.polled(now)
            if self._buffer.crowded:
                self._fetch_wakeup.set()  # it has to wait for the lock
                self._buffer.drop_paused()
            if self._group is not None:
                self._group.commit_if_due(now)
                due = min(due, self._group.auto_commit.due)
            self._readiness.poll_due = due
            self._errors.raise_first()
