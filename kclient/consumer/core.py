"""What the async and the blocking consumer have in common: everything except the waiting.

The methods of the first half may be called from any thread; they take a lock for a moment and never wait. The
coroutines of the second half belong to the event loop. Background tasks (`group_driver`, `fetch_driver`,
`committer`) move the state machines; what they find for the user to do sets `attention` and calls `notify`.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from kclient.arguments import as_timestamp, by_partition, shown
from kclient.cluster import ZERO_ID, ClientState, Closing, Cluster, cluster_addresses, topic_error
from kclient.concurrency import LoopHandle, Supervisor, Wakeup, to_the_end
from kclient.consumer.committer import Commit, Committer
from kclient.consumer.coordinator import GroupCoordinator
from kclient.consumer.fetch_driver import FETCH_CHANNELS, FetchDriver
from kclient.consumer.fetcher import Fetcher, deleted_position
from kclient.consumer.group import Complete, ConsumerGroupMetadata, Prepare
from kclient.consumer.group_driver import JOIN_CHANNEL, GroupDriver
from kclient.consumer.lookups import Lookups
from kclient.consumer.metrics import ConsumerMetrics
from kclient.consumer.notices import Notices
from kclient.consumer.offsets import AutoCommit
from kclient.consumer.settings import ConsumerPlan
from kclient.consumer.subscription import PositionState, SubscriptionKind, SubscriptionState
from kclient.consumer.waits import Waits
from kclient.errors import (
    ClosedError,
    IllegalStateError,
    InvalidGroupIdError,
    KafkaError,
    NoOffsetForPartitionError,
    UnknownTopicOrPartitionError,
)
from kclient.unclosed import warn_unclosed

if TYPE_CHECKING:
    import re
    from collections.abc import Awaitable, Callable, Mapping

    from kclient.concurrency import TaskHandle
    from kclient.config import ConsumerConfig
    from kclient.consumer.interfaces import RebalanceListener
    from kclient.consumer.reset import ResetPolicy
    from kclient.consumer.subscription import Places
    from kclient.types import OffsetAndMetadata, OffsetAndTimestamp, Timestamps, TopicPartition

logger: logging.Logger = logging.getLogger("kclient.consumer")

_POLL_INTERVAL = 1.0
"""Seconds for which records are iterated over without looking at anything else."""
_LAST_WORDS = 0.1
"""Seconds for which even a hasty `close` waits until LeaveGroup has been sent."""


class ConsumerCore:
    """One consumer without a face.

    Args:
        config: The settings.
        clock: Monotonic time in seconds.
    """

    # CPython 3.11 finds attributes of an object with 30 or more of them a good deal more slowly, and iterating looks at
    # some of these for each record
    __slots__ = (
        "_cluster",
        "_failure",
        "_fetch_driver",
        "_missing",
        "_pid",
        "_tasks",
        "attention",
        "auto_commit",
        "clock",
        "closure",
        "committer",
        "config",
        "coordinator",
        "errors",
        "fetch_wakeup",
        "fetcher",
        "group_wakeup",
        "listener",
        "lock",
        "lookups",
        "metrics",
        "notices",
        "notify",
        "plan",
        "poll_due",
        "state",
        "subscriptions",
        "supervisor",
        "taking",
        "waits",
    )

    def __init__(self, config: ConsumerConfig, clock: Callable[[], float] = time.monotonic) -> None:
        # what cannot be right is refused now, not by the first call
        cluster_addresses(config)
        self.config: ConsumerConfig = config
        self.clock: Callable[[], float] = clock
        plan = ConsumerPlan.of(config)
        self.plan: ConsumerPlan = plan
        self.state: ClientState = ClientState.NEW
        self.lock: threading.RLock = threading.RLock()
        """Guards the state machines; held for moments only, never while waiting or decoding."""
        self.subscriptions: SubscriptionState = SubscriptionState(plan.policy)
        self.fetcher: Fetcher = Fetcher(plan.fetch, self.subscriptions)
        self.coordinator: GroupCoordinator | None = (
            None if plan.group is None else GroupCoordinator(plan.group, plan.assignors)
        )
        self.auto_commit: AutoCommit = AutoCommit(plan.auto_commit_interval, plan.retry_backoff)
        self.metrics: ConsumerMetrics = ConsumerMetrics()
        self.listener: RebalanceListener | None = None
        self.attention: bool = False
        """Whether poll has something to do beside handing out records."""
        self.notify: Callable[[], None] = lambda: None
        """Wakes the user who waits in poll; set by the face, called in the loop's thread."""
        self.errors: deque[KafkaError] = deque()
        """What the next poll has to raise."""
        self.notices: Notices = Notices(plan)
        self.closure: Closing = Closing()
        self.poll_due: float = 0.0
        """When iterating has to go through poll again although there are records at hand."""
        self.taking: tuple[Complete, set[TopicPartition]] | None = None
        """The assignment that is being taken over, and what the consumer read before it."""
        self.supervisor: Supervisor = Supervisor("consumer", on_failure=self._on_failure)
        self.group_wakeup: Wakeup = Wakeup()
        self.fetch_wakeup: Wakeup = Wakeup()
        self._failure: BaseException | None = None
        self._pid = os.getpid()
        self._missing: set[str] = set()
        """Topics of which the log has said that they do not exist."""
        self._cluster: Cluster | None = None
        self._fetch_driver: FetchDriver | None = None
        self._tasks: set[TaskHandle] = set()
        self.committer: Committer = Committer(self)
        self.lookups: Lookups = Lookups(self)
        self.waits: Waits = Waits(self.check, self.lookups.late, self.supervisor.check_loop)

    def __repr__(self) -> str:
        return f"{','.join(self.config.bootstrap_servers)} group={self.config.group_id} {self.state.value}"

    # ------------------------------------------------------------------ any thread: checks

    def check(self, *, polling: bool = False) -> None:
        """Raise what went wrong in the background, or that the consumer is not open.

        Args:
            polling: Whether the call is one that a consumer which is being closed does not answer any more.

        Raises:
            KafkaError: The stored failure.
            ClosedError: The consumer was closed.
            IllegalStateError: The consumer was not started.
        """
        if self._failure is not None:
            raise _told(self._failure)
        if self.state is ClientState.NEW:
            raise IllegalStateError("The consumer was not started: use `async with` (or `with`), or call `start`")
        if self.state is ClientState.CLOSED or (polling and self.state is ClientState.CLOSING):
            raise ClosedError("The consumer was closed")

    def check_open(self) -> None:
        """Raise if the consumer was closed; it need not have been started.

        Raises:
            ClosedError: The consumer was closed.
        """
        if self.state is ClientState.CLOSED:
            raise ClosedError("The consumer was closed")

    def group(self) -> GroupCoordinator:
        """The membership in the group.

        Raises:
            InvalidGroupIdError: There is no `group.id`.
        """
        if self.coordinator is None:
            raise InvalidGroupIdError("This needs a group: set group.id (group_id=...)")
        return self.coordinator

    def disable(self, error: KafkaError) -> None:
        """Make every further call raise, in a forked child that has none of the tasks."""
        self._failure = error

    def wakeup(self) -> None:
        """End the present or next wait with `WakeupError`."""
        self.attention = True
        self.waits.wakeup()
        self.notify()

    # ------------------------------------------------------------------ any thread: subscription

    def subscribe(self, topics: Iterable[str], listener: RebalanceListener | None) -> None:
        """Subscribe to topics."""
        wanted = list(topics)
        coordinator = self.group()
        with self.lock:
            self.subscriptions.subscribe(wanted)
            self.listener = listener
            coordinator.subscribe(wanted)
        self.wake()

    def subscribe_pattern(self, pattern: re.Pattern[str], listener: RebalanceListener | None) -> None:
        """Subscribe to all topics whose name matches."""
        if not isinstance(pattern.pattern, str):
            raise TypeError(f"topics are matched by a pattern of text, not of bytes: {shown(pattern)}")
        coordinator = self.group()
        with self.lock:
            self.subscriptions.subscribe_pattern(pattern)
            self.listener = listener
            if self._cluster is not None:
                self.match_pattern()
            coordinator.subscribe(self.subscriptions.topics, by_pattern=True)
        self.wake()

    def owned(self) -> tuple[list[TopicPartition], bool]:
        """The partitions that the group gave, and whether they are others' by now."""
        coordinator = self.group()
        with self.lock:
            step = coordinator.step()
            lost = coordinator.metadata.generation_id < 0 or (isinstance(step, Prepare) and step.lost)
            return sorted(self.subscriptions.assignment), lost

    def leave(self, reason: str) -> None:
        """Be no member any more; the coordinator is told in the background."""
        with self.lock:
            self.group().leave(reason)
        self.group_wakeup.set()

    def unsubscribe(self) -> None:
        """Read nothing any more."""
        with self.lock:
            self.subscriptions.unsubscribe()
            self.moved()
            self.listener = None
            self.errors.clear()
        self.wake()

    def match_pattern(self) -> None:
        """Choose the topics by the pattern, from what is known of the cluster."""
        snapshot = self.cluster.snapshot
        hidden = self.config.exclude_internal_topics
        names = [name for name, topic in snapshot.topics.items() if not (hidden and topic.is_internal)]
        if self.subscriptions.match(names):
            self.group().subscribe(self.subscriptions.topics, by_pattern=True)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions."""
        wanted = list(partitions)
        with self.lock:
            if wanted or self.subscriptions.kind is SubscriptionKind.ASSIGNED:
                self.subscriptions.assign(wanted)
            self.assigned()
        self.wake()

    def seek(self, tp: TopicPartition, offset: int, epoch: int | None) -> None:
        """Go on at an offset."""
        with self.lock:
            self.subscriptions.seek(tp, offset, epoch)
            self.moved()
        self.fetch_wakeup.set()

    def reset(self, partitions: Iterable[TopicPartition], policy: ResetPolicy) -> None:
        """Go on where a policy says, in these partitions or all."""
        self.check()
        with self.lock:
            for tp in list(partitions) or self.subscriptions.assignment:
                self.subscriptions.reset(tp, policy, by_user=True)
            self.moved()
        self.fetch_wakeup.set()

    def moved(self) -> None:
        """Under the lock: positions were chosen or given up; what was fetched or complained of is out of date."""
        self.fetcher.drop_stale()
        self.errors = deque(error for error in self.errors if not self._answered(error))

    def assigned(self) -> None:
        """Under the lock: other partitions are read from now on."""
        self.moved()
        if self._cluster is not None:
            self._recognise_topics()

    def _recognise_topics(self) -> None:
        """Under the lock: see by their ids which topics were deleted and created again."""
        snapshot = self.cluster.snapshot
        for state in self.subscriptions:
            topic_id = snapshot.topic_id(state.tp.topic)
            if topic_id == ZERO_ID or state.recognise(topic_id):
                continue
            if state.state is PositionState.VALID:
                self.fetcher.made_anew(state)
            elif state.state is PositionState.RESETTING:
                self.subscriptions.reset(state.tp, state.policy)
            else:
                state.attempt = None  # what was committed is of the deleted one

    def _answered(self, error: KafkaError) -> bool:
        """Whether the user has sought a position meanwhile, where there was none."""
        if not isinstance(error, NoOffsetForPartitionError):
            return False
        states = map(self.subscriptions.find, error.partitions)
        return not any(state is not None and state.state is PositionState.UNKNOWN for state in states)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these partitions."""
        with self.lock:
            self.subscriptions.pause(partitions)
        self.fetch_wakeup.set()  # others may want the room that these take

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo `pause`."""
        with self.lock:
            self.subscriptions.resume(partitions)
        self.fetch_wakeup.set()

    def enforce_rebalance(self, reason: str) -> None:
        """Have the group rebalance with the next poll."""
        coordinator = self.group()
        with self.lock:
            coordinator.request_rejoin(reason)
        self.group_wakeup.set()

    def wake(self) -> None:
        """Have the background tasks look at what changed."""
        self.group_wakeup.set()
        self.fetch_wakeup.set()

    # ------------------------------------------------------------------ any thread: polling

    def polled(self) -> None:
        """The user polls: what earlier polls returned is processed.

        Raises:
            KafkaError: The group refused this member, or something else has to be said.
        """
        now = self.clock()
        with self.lock:
            if self.subscriptions.kind is SubscriptionKind.NONE:
                raise IllegalStateError("Nothing to poll: subscribe to topics or assign partitions first")
            if self.coordinator is not None and self.subscriptions.uses_group:
                before = self.coordinator.state
                self.coordinator.polled(now)
                if self.coordinator.state is not before:
                    self.group_wakeup.set()
            if self.fetcher.crowded:
                self.fetcher.drop_paused()
                self.fetch_wakeup.set()
            if self.auto_commit.polled(now) and self.coordinator is not None:
                self._auto_commit(now)
            self.poll_due = min(now + _POLL_INTERVAL, self.auto_commit.due)
            if self.errors:
                raise self.errors.popleft()

    def waiting(self, begins: bool) -> None:
        """The user begins to wait inside poll, or ends it: `max.poll.interval.ms` does not count that time."""
        if self.coordinator is not None:
            with self.lock:
                self.coordinator.wait_in_poll(begins, self.clock())

    def _auto_commit(self, now: float) -> None:
        """Commit the positions in the background."""
        if self.committer.busy or (self.subscriptions.uses_group and self.group().metadata.generation_id < 0):
            return
        places = self.subscriptions.consumed()
        if places.offsets:
            self.committer.put(Commit(places, deadline=now, automatic=True))

    def look(self) -> None:
        """Find out whether poll has something to do, and wake it."""
        coordinator = self.coordinator
        with self.lock:
            self.attention = bool(
                self.waits.woken
                or self._failure
                or self.errors
                or self.notices.due
                or self.fetcher.crowded
                or self.state is not ClientState.RUNNING
                or (
                    coordinator is not None
                    and self.subscriptions.uses_group
                    and (coordinator.step() is not None or coordinator.error is not None)
                )
            )
            ready = self.attention or self.fetcher.has_ready
        if ready:
            self.notify()

    def identity(self) -> ConsumerGroupMetadata:
        """Who the consumer is in its group."""
        return self.group().metadata

    # ------------------------------------------------------------------ the loop: life

    @property
    def cluster(self) -> Cluster:
        """Metadata and connections.

        Raises:
            IllegalStateError: The consumer was not started.
        """
        if self._cluster is None:
            raise IllegalStateError("The consumer was not started: use `async with` (or `with`), or call `start`")
        return self._cluster

    async def start(self) -> None:
        """Start the background tasks; connects when there is something to ask."""
        if self.state in {ClientState.CLOSING, ClientState.CLOSED}:
            raise ClosedError("The consumer was closed; make a new one")
        if self.state is not ClientState.NEW:
            raise IllegalStateError("The consumer was started before; make a new one")
        self.waits.belong_to(LoopHandle())
        await self.supervisor.start()
        try:
            cluster = self._cluster = Cluster(
                self.config,
                self.supervisor,
                allow_auto_topic_creation=self.config.allow_auto_create_topics,
                patience={
                    **dict.fromkeys(FETCH_CHANNELS, self.config.fetch_max_wait_ms / 1000),
                    JOIN_CHANNEL: math.inf,  # the broker waits for the other members
                },
                clock=self.clock,
            )
            cluster.listeners.append(self._on_metadata)
            if self.coordinator is not None:
                self.spawn(GroupDriver(self).run, name="group")
                self.spawn(self.committer.run, name="commits")
            self._fetch_driver = FetchDriver(self)
            self.spawn(self._fetch_driver.run, name="fetcher")
            await cluster.start()
            with self.lock:  # other threads may close it
                if self.state is not ClientState.NEW:
                    raise ClosedError("The consumer was closed while it was started; make a new one")
                self.state = self.state.to(ClientState.RUNNING, "consumer")
        except BaseException:  # whatever it is, no task may stay behind a consumer that was not made
            try:
                if self._cluster is not None:
                    await self._cluster.aclose()
            finally:
                await self.supervisor.aclose()
            raise

    @property
    def running(self) -> bool:
        """Whether background tasks may go on and start others."""
        return self.state is not ClientState.CLOSED and self.supervisor.running

    def spawn(self, function: Callable[..., Awaitable[None]], *arguments: Any, name: str) -> None:
        """Run a background task until the consumer is shut."""
        self._tasks.add(self.supervisor.spawn(function, *arguments, name=name))
        self._tasks = {task for task in self._tasks if not task.done}

    def forgotten(self, face: object, remedy: str) -> None:
        """The face was dropped: warn if it was not closed, leave the group and end the tasks.

        It runs in the garbage collector, so in any thread, whatever lock that holds.
        """
        if self.state is not ClientState.RUNNING or self._pid != os.getpid():
            return
        self.supervisor.retire(self._end)
        lost = "what it read since the last commit will be read again"
        if self.subscriptions.uses_group:
            lost += ", and its group may have waited for it"
        warn_unclosed(face, remedy, lost if self.coordinator is not None else "")

    async def _end(self) -> None:
        if self.subscriptions.uses_group and self.supervisor.running:
            self.leave("the consumer was forgotten without close")
            await self.left(_LAST_WORDS)
        await self.shut()

    async def shut(self) -> None:
        """End the tasks and close the connections."""
        if self.state in {ClientState.NEW, ClientState.RUNNING}:
            self.state = self.state.to(
                ClientState.CLOSED if self.state is ClientState.NEW else ClientState.CLOSING, "consumer"
            )
        if self.state is ClientState.CLOSING:
            self.state = self.state.to(ClientState.CLOSED, "consumer")
        if self._fetch_driver is not None and self.supervisor.running:
            self._fetch_driver.end_sessions(everywhere=True)
        for task in self._tasks:
            task.cancel()
        self.committer.fail(ClosedError("The consumer was closed"))
        try:
            if self._cluster is not None:
                await to_the_end(self._cluster.aclose)
        finally:
            self.waits.changed()
            self.notify()

    def closing(self, caller: int) -> bool:
        """The user closes; False if another call does it already, or there is nothing to bring to an end.

        Args:
            caller: The number of the task or thread that calls.
        """
        with self.lock:
            if self.state is ClientState.NEW:
                self.state = self.state.to(ClientState.CLOSED, "consumer")
                self.closure.end()
            if self.state is not ClientState.RUNNING:
                return False
            self.state = self.state.to(ClientState.CLOSING, "consumer")
            self.closure.begin(caller)
        self.attention = True
        self.notify()
        return True

    async def closed_by_another(self, timeout: float) -> None:
        """Another call closes the consumer: wait for it. When the time is over, it has to give up."""
        try:
            with anyio.move_on_after(timeout):
                await self.closure.ended()
        finally:
            await self.shut()

    def _on_failure(self, error: BaseException) -> None:
        """A background task died: everything that waits fails, and the next call raises it."""
        # a loop that ends takes the tasks with it: no fault, and the next call says so
        logger.log(logging.DEBUG if isinstance(error, ClosedError) else logging.ERROR, "the consumer failed: %r", error)
        self._failure = error
        self.attention = True
        self.committer.fail(_told(error))
        self.waits.interrupt()
        self.notify()

    # ------------------------------------------------------------------ the loop: news

    def complain(self, error: KafkaError) -> None:
        """Under the lock: have the poll that waits raise an error, or the next, unless it has one to raise already."""
        if self.errors:
            return
        self.errors.append(error)
        self.attention = True
        self.waits.changed()
        self.notify()

    async def settled(self, commit: Commit, until: float) -> bool:
        """Wait until a commit is through, whatever its outcome; False if it was not by a time."""
        with anyio.move_on_after(max(until - self.clock(), 0)), contextlib.suppress(Exception):
            await commit.done.wait()  # what went wrong is logged, and raised by the committer's failure
        return commit.done.done

    async def drained(self, timeout: float) -> None:
        """Wait until every commit asked for so far is through, or the time is over."""
        with anyio.move_on_after(timeout):
            await self.committer.drained()

    async def left(self, timeout: float) -> None:
        """Wait until the coordinator knows that this member left, or the time is over."""
        coordinator = self.group()
        try:
            await self.waits.until(
                lambda: not coordinator.leaving or self.waits.woken, max(timeout, _LAST_WORDS), "Leaving the group"
            )
        except KafkaError as error:
            logger.info("%s", error)

    async def position(self, tp: TopicPartition, timeout: float) -> int:
        """The position in a partition, once it is known."""

        def known() -> bool:
            with self.lock:
                if self.subscriptions.find(tp) is None:
                    self.check(polling=True)  # who closes has given it up
                state = self.subscriptions.state(tp)
                valid = state.state is PositionState.VALID
                if state.outdated:
                    raise deleted_position(state)
                if not valid and self.errors:
                    raise self.errors.popleft()
                return valid

        late = partial(self.lookups.late_position, tp)
        await self.waits.until(known, timeout, f"Finding the position in {tp}", late)
        return self.subscriptions.state(tp).position

    async def offsets_for_times(
        self, timestamps: Timestamps, timeout: float
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first records at or after some times."""
        self.check()
        wanted = by_partition(timestamps, as_timestamp, "timestamps")
        return await self.lookups.search(wanted, timeout)

    async def offsets_at(
        self, partitions: Iterable[TopicPartition], timestamp: int, timeout: float
    ) -> dict[TopicPartition, int]:
        """Where partitions begin or end."""
        self.check()
        found = await self.lookups.search(dict.fromkeys(partitions, timestamp), timeout)
        return {tp: 0 if offset is None else offset.offset for tp, offset in found.items()}

    def topics_of_interest(self) -> set[str]:
        """The topics whose metadata are needed."""
        with self.lock:
            topics = {state.tp.topic for state in self.subscriptions}
            topics |= self.subscriptions.topics
            if self.coordinator is not None:
                topics |= self.coordinator.group_topics
        return topics

    def _on_metadata(self) -> None:
        """There are new metadata."""
        snapshot = self.cluster.snapshot
        now = self.clock()
        with self.lock:
            self._recognise_topics()
            if self.subscriptions.kind is SubscriptionKind.PATTERN:
                self.match_pattern()
            if self.coordinator is not None:
                counts = {name: len(topic.partitions) for name, topic in snapshot.topics.items()}
                self.coordinator.update_metadata(counts, snapshot.errors, now)
            for topic in self.subscriptions.topics | {state.tp.topic for state in self.subscriptions}:
                self._heed_topic(topic, topic_error(snapshot, topic))
        self.waits.changed()
        self.look()
        self.wake()

    def _heed_topic(self, topic: str, error: KafkaError | None) -> None:
        """What the cluster says of a topic that is to be read: raised if it stays so, else logged once."""
        if error is None:
            self._missing.discard(topic)
        elif not error.retriable:
            self.complain(error)
        elif isinstance(error, UnknownTopicOrPartitionError) and topic not in self._missing:
            self._missing.add(topic)
            logger.warning("topic %r does not exist, so nothing of it is read until it does: is this its name?", topic)

    def consumed(self, partitions: Iterable[TopicPartition] | None = None) -> Places:
        """The positions to commit, of some partitions or all."""
        with self.lock:
            return self.subscriptions.consumed(partitions)

    def to_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None) -> Places:
        """What the user asks to commit: the positions, or the offsets that he gives."""
        with self.lock:
            return self.subscriptions.consumed() if offsets is None else self.subscriptions.given(offsets)

    def figures(self) -> dict[str, float]:
        """Figures since the start under the names of Java's metrics."""
        with self.lock:
            states = [state for state in self.subscriptions if state.high_watermark is not None and state.position >= 0]
            lags = [max((state.high_watermark or 0) - state.position, 0) for state in states]
            return {
                "records-consumed-total": float(self.metrics.records),
                "bytes-consumed-total": float(self.fetcher.bytes_fetched),
                "fetch-total": float(self.fetcher.fetches),
                "records-lag-max": float(max(lags, default=0)),
                "assigned-partitions": float(len(self.subscriptions.assignment)),
                "poll-total": float(self.metrics.polls),
                "commit-total": float(self.metrics.commits),
                "failed-commit-total": float(self.metrics.failed_commits),
                "rebalance-total": float(self.coordinator.rebalances if self.coordinator is not None else 0),
                "buffered-bytes": float(self.fetcher.buffered),
            }


def _told(failure: BaseException) -> KafkaError:
    """The failure of a background task, as the user is told of it."""
    if isinstance(failure, KafkaError):
        return failure
    text = f"A background task of the consumer failed: {failure!r}; close it and make a new one"
    error = KafkaError(text, fatal=True)
    error.__cause__ = failure
    return error
