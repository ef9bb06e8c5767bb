"""Puts a consumer together, starts and shuts it: what the async and the blocking face have in common.

The parts get what they use in their constructors; nobody but the faces holds this object. Calls from any thread take
the lock for a moment and never wait; coroutines belong to the event loop.
"""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, NamedTuple

import anyio

from kclient.arguments import in_seconds
from kclient.cluster import Cluster, cluster_addresses
from kclient.cluster.reporting import MetricsReporting
from kclient.concurrency import LoopHandle, MomentLock, Supervisor, Wakeup, to_the_end
from kclient.consumer.attempts import Attempts
from kclient.consumer.departure import Departure
from kclient.consumer.fetch.control import FetchControl
from kclient.consumer.fetch.driver import FETCH_CHANNELS, FetchDriver
from kclient.consumer.fetch.ends import ReachedEnds
from kclient.consumer.fetch.fetcher import Fetcher
from kclient.consumer.fetch.offset_queries import OffsetQueries
from kclient.consumer.fetch.positions import PositionFinder
from kclient.consumer.group.auto_commit import AutoCommit
from kclient.consumer.group.committed import CommittedLookup
from kclient.consumer.group.consumer_group import LAST_WORDS, ConsumerGroup
from kclient.consumer.group.coordinator import CoordinatorAccess
from kclient.consumer.group.driver import JOIN_CHANNEL, GroupDriver
from kclient.consumer.group.member import GroupMember
from kclient.consumer.group.metrics import GroupMetrics
from kclient.consumer.group.rebalance import Rebalance
from kclient.consumer.group.remote_member import RemoteMember
from kclient.consumer.life import ConsumerLife
from kclient.consumer.metrics import FetchMetrics, PollMetrics, resource_of
from kclient.consumer.notices import Notices, PendingErrors, UnreadableTopics
from kclient.consumer.readiness import PollReadiness
from kclient.consumer.settings import ConsumerSettings
from kclient.consumer.subscription import SubscriptionState
from kclient.consumer.tasks import BackgroundTasks
from kclient.consumer.topics import TopicWatch
from kclient.consumer.traced import PollSpans, collector_of, committer_of, polling_of
from kclient.consumer.waits import Waits
from kclient.errors import ClosedError, InvalidGroupIdError, KafkaTimeoutError
from kclient.metrics.registry import registry_for
from kclient.metrics.traffic import Traffic
from kclient.types import PartitionWatermarks
from kclient.unclosed import warn_unclosed

if TYPE_CHECKING:
    from collections.abc import Callable

    from kclient.config import ConsumerConfig
    from kclient.consumer.fetch.collector import FetchCollector
    from kclient.consumer.group.membership import Membership
    from kclient.consumer.partition_state import PartitionState
    from kclient.consumer.polling import Polling
    from kclient.tracing.spans import ClientTracing
    from kclient.types import TopicPartition

logger: logging.Logger = logging.getLogger("kclient.consumer")


class _Counted(NamedTuple):
    """What the parts count."""

    traffic: Traffic
    fetches: FetchMetrics
    polls: PollMetrics
    group: GroupMetrics


class ConsumerCore:
    """One consumer without a face.

    Args:
        config: The settings.
        clock: Monotonic time in seconds.
    """

    def __init__(self, config: ConsumerConfig, clock: Callable[[], float] = time.monotonic) -> None:
        # what cannot be right is refused now, not by the first call
        cluster_addresses(config)
        settings = ConsumerSettings.of(config)
        self.config: ConsumerConfig = config
        self.clock: Callable[[], float] = clock
        self.default_timeout: float = settings.default_timeout
        registry = registry_for(config, clock)
        traffic = Traffic(registry.windows)
        self._name = f"{','.join(config.bootstrap_servers)} group={config.group_id}"
        self._lock = MomentLock()
        """Guards the state machines; held for moments only, never while waiting or decoding."""
        self.life: ConsumerLife = ConsumerLife(self._lock)
        self._group_wakeup = Wakeup()
        self._fetch_wakeup = Wakeup()
        self.supervisor: Supervisor = Supervisor("consumer", on_failure=self._on_failure)
        self._tasks = BackgroundTasks(self.supervisor)
        self.cluster: Cluster = Cluster(
            config,
            self.supervisor,
            allow_auto_topic_creation=config.allow_auto_create_topics,
            patience={
                **dict.fromkeys(FETCH_CHANNELS, config.fetch_max_wait_ms / 1000),
                JOIN_CHANNEL: math.inf,  # the broker waits for the other members
            },
            clock=clock,
            traffic=traffic,
        )
        self.cluster.listeners.append(self._on_metadata)
        self.reporting: MetricsReporting = MetricsReporting(
            registry,
            self.supervisor,
            self.cluster,
            push=config.enable_metrics_push,
            resource=self._resource,
        )
        self._counted = _Counted(
            traffic,
            FetchMetrics(registry.windows, read_committed=settings.fetch.read_committed),
            PollMetrics(registry.windows),
            GroupMetrics(registry.windows),
        )
        self.subscriptions: SubscriptionState = SubscriptionState(settings.policy, store_by_hand=settings.store_by_hand)
        self.fetcher: Fetcher = Fetcher(settings.fetch, self.subscriptions, self._counted.fetches)
        buffer = self.fetcher.buffer
        self.readiness: PollReadiness = PollReadiness(clock, self._lock, self._has_work, self._has_records)
        self.errors: PendingErrors = PendingErrors(self._on_error)
        self.notices: Notices = Notices(lambda: self.life.state, settings.interceptors, settings.deserializers)
        attempts = Attempts(self.cluster, clock)
        self.waits: Waits = Waits(self.life.check, attempts.late, self.supervisor.check_loop)
        self.control: FetchControl = FetchControl(
            lock=self._lock,
            subscriptions=self.subscriptions,
            buffer=buffer,
            errors=self.errors,
            cluster=self.cluster,
            wakeup=self._fetch_wakeup,
        )
        member = _membership(settings)
        self._topics = TopicWatch(
            clock=clock,
            lock=self._lock,
            subscriptions=self.subscriptions,
            member=member,
            control=self.control,
            unreadable=UnreadableTopics(self.errors),
            cluster=self.cluster,
            exclude_internal=config.exclude_internal_topics,
        )
        self._group: ConsumerGroup | None = None
        if member is not None:
            self._group = self._make_group(member, settings, attempts)
            self._group_driver = self._make_group_driver(member, self._group, config.request_timeout_ms / 1000)
        self.queries: OffsetQueries = OffsetQueries(
            clock=clock,
            check=self.life.check,
            cluster=self.cluster,
            waits=self.waits,
            attempts=attempts,
            read_committed=settings.fetch.read_committed,
            request_timeout_ms=config.request_timeout_ms,
        )
        self.positions: PositionFinder = self._make_positions(settings, attempts, config.request_timeout_ms)
        self._fetch_driver = self._make_fetch_driver(config.request_timeout_ms / 1000)
        spans = None if settings.tracing is None else PollSpans(settings.tracing)
        self.collector: FetchCollector = collector_of(spans, intercepted=bool(settings.interceptors))(
            lock=self._lock,
            subscriptions=self.subscriptions,
            buffer=self.fetcher.buffer,
            metrics=self._counted.fetches,
            wakeup=self._fetch_wakeup,
            max_poll_records=settings.max_poll_records,
            decode_options=settings.decode_options,
            interceptors=settings.interceptors,
        )
        self.polling: Polling = polling_of(spans)(
            lock=self._lock,
            check=self.life.check_polling,
            subscriptions=self.subscriptions,
            buffer=self.fetcher.buffer,
            group=self._group,
            waits=self.waits,
            readiness=self.readiness,
            errors=self.errors,
            notices=self.notices,
            metrics=self._counted.polls,
            fetch_wakeup=self._fetch_wakeup,
            ends=ReachedEnds.of(self._lock, self.subscriptions, settings.fetch),
        )
        self.departure: Departure = Departure(
            clock=clock,
            group=self._group,
            control=self.control,
            notices=self.notices,
            running=lambda: self.supervisor.running,
            shut=self.shut,
        )
        self._define_metrics(classic=not settings.remote)

    # ------------------------------------------------------------------ putting together

    def _make_group(self, member: Membership, settings: ConsumerSettings, attempts: Attempts) -> ConsumerGroup:
        wake_group = self._group_wakeup.set
        coordinator = CoordinatorAccess(
            clock=self.clock,
            lock=self._lock,
            member=member,
            subscriptions=self.subscriptions,
            cluster=self.cluster,
            waits=self.waits,
            wake_group=wake_group,
        )
        auto_commit = AutoCommit(settings.auto_commit_interval, settings.retry_backoff)
        committer = committer_of(settings.tracing)(
            clock=self.clock,
            lock=self._lock,
            member=member,
            coordinator=coordinator,
            subscriptions=self.subscriptions,
            cluster=self.cluster,
            attempts=attempts,
            auto_commit=auto_commit,
            notices=self.notices,
            metrics=self._counted.group,
            update_readiness=self.readiness.update,
            default_timeout=settings.default_timeout,
        )
        rebalance = Rebalance(
            clock=self.clock,
            lock=self._lock,
            member=member,
            subscriptions=self.subscriptions,
            partitions=self.control,
            committer=committer,
            auto_commit=auto_commit,
            waits=self.waits,
            wake_group=wake_group,
            metrics=self._counted.group,
            default_timeout=settings.default_timeout,
        )
        return ConsumerGroup(
            clock=self.clock,
            lock=self._lock,
            member=member,
            subscriptions=self.subscriptions,
            committer=committer,
            auto_commit=auto_commit,
            committed=CommittedLookup(self._lock, member, coordinator, self.cluster, attempts, self._counted.group),
            rebalance=rebalance,
            notices=self.notices,
            waits=self.waits,
            match_pattern=self._topics.match_pattern,
            wake_group=wake_group,
            wake_fetch=self._fetch_wakeup.set,
        )

    def _make_group_driver(self, member: Membership, group: ConsumerGroup, request_timeout: float) -> GroupDriver:
        return GroupDriver(
            clock=self.clock,
            lock=self._lock,
            member=member,
            cluster=self.cluster,
            tasks=self._tasks,
            wakeup=self._group_wakeup,
            drained=group.committer.drained,
            on_progress=self._on_progress,
            on_topics=self._fetch_wakeup.set,
            metrics=self._counted.group,
            request_timeout=request_timeout,
        )

    def _make_positions(
        self, settings: ConsumerSettings, attempts: Attempts, request_timeout_ms: int
    ) -> PositionFinder:
        return PositionFinder(
            clock=self.clock,
            lock=self._lock,
            check=self.life.check_polling,
            subscriptions=self.subscriptions,
            errors=self.errors,
            cluster=self.cluster,
            committed=None if self._group is None else self._group.committed,
            tasks=self._tasks,
            waits=self.waits,
            attempts=attempts,
            on_progress=self._on_positions,
            default_timeout=settings.default_timeout,
            read_committed=settings.fetch.read_committed,
            rebalancing=self._rebalancing,
            request_timeout_ms=request_timeout_ms,
        )

    def _make_fetch_driver(self, request_timeout: float) -> FetchDriver:
        return FetchDriver(
            clock=self.clock,
            lock=self._lock,
            subscriptions=self.subscriptions,
            fetcher=self.fetcher,
            positions=self.positions,
            errors=self.errors,
            cluster=self.cluster,
            tasks=self._tasks,
            wakeup=self._fetch_wakeup,
            topics_of_interest=self._topics.of_interest,
            update_readiness=self.readiness.update,
            request_timeout=request_timeout,
        )

    def __repr__(self) -> str:
        return f"{self._name} {self.life.state.value}"

    # ------------------------------------------------------------------ any thread

    @property
    def tracing(self) -> ClientTracing | None:
        """Makes spans; None where nobody wants them."""
        return self.polling.tracing

    @property
    def has_group(self) -> bool:
        """Whether there is a `group.id`."""
        return self._group is not None

    def group(self) -> ConsumerGroup:
        """What there is with a group only.

        Raises:
            InvalidGroupIdError: There is no `group.id`.
        """
        if self._group is None:
            raise InvalidGroupIdError("This needs a group: set group.id (group_id=...)")
        return self._group

    def wakeup(self) -> None:
        """End the present or next wait with `WakeupError`."""
        self.waits.wakeup()
        self.readiness.need_poll()

    def look_again(self) -> None:
        """Have all tasks look for something to do: a signal handler's exception may have come before they were told."""
        self._fetch_wakeup.set()
        self._group_wakeup.set()
        if self._group is not None:
            self._group.committer.wakeup.set()

    def _define_metrics(self, *, classic: bool) -> None:
        registry, fetches = self.reporting.registry, "consumer-fetch-manager-metrics"
        self._counted.traffic.define(registry, "consumer", self.cluster.addresses)
        self._counted.polls.define(registry, "consumer-metrics")
        self._counted.fetches.define(registry, fetches, lambda: self.fetcher.buffer.size)
        self._counted.fetches.define_topics(registry, fetches)
        self._counted.fetches.define_partitions(registry, fetches, self._states)
        if self._group is not None:
            self._counted.group.define(registry, classic=classic, partitions=lambda: len(self._states()))

    def _resource(self) -> dict[str, str]:
        return resource_of(self.config.client_rack, None if self._group is None else self._group.member.metadata)

    def _states(self) -> list[PartitionState]:
        with self._lock:
            return list(self.subscriptions)

    def has_joined(self) -> bool:
        """Whether this is a member of its group now, and reads what that has assigned."""
        with self._lock:
            return self._group is not None and self._group.member.stable

    def not_joined(self, seconds: float) -> KafkaTimeoutError:
        """This has not become a member of its group within a time: the error says why, as far as that is known."""
        reason = self.cluster.trouble or self.cluster.silence(seconds)
        if not reason and self._group is not None:
            node = self._group.member.coordinator
            reason = (
                "no coordinator of the group was found"
                if node is None
                else f"its coordinator, node {node}, waits for the group's other members, which have to poll"
            )
        text = f"The consumer did not become a member of its group within {in_seconds(seconds)}"
        error = KafkaTimeoutError(f"{text}: {reason}" if reason else text)
        error.__cause__ = self.cluster.error
        return error

    def current_lag(self, tp: TopicPartition) -> int | None:
        """See `Consumer.current_lag`."""
        with self._lock:
            return self.subscriptions.state(tp).lag(read_committed=self.fetcher.settings.read_committed)

    def watermarks(self, tp: TopicPartition) -> PartitionWatermarks:
        """See `Consumer.watermarks`."""
        with self._lock:
            state = self.subscriptions.state(tp)
            age = None if state.told_at is None else max(self.clock() - state.told_at, 0.0)
            return PartitionWatermarks(state.log_start_offset, state.last_stable_offset, state.high_watermark, age)

    # ------------------------------------------------------------------ signals

    def _has_work(self) -> bool:
        """Under the lock: whether poll has something to do beside handing out records."""
        return bool(
            self.waits.woken
            or self.life.failed
            or self.errors
            or self.notices
            or self.fetcher.buffer.crowded
            or not self.life.running
            or (self._group is not None and self._group.needs_poll)
        )

    def _rebalancing(self) -> bool:
        """Under the lock: whether it is not settled yet which partitions are read."""
        group = self._group
        return group is not None and self.subscriptions.uses_group and not (group.member.stable or group.member.outside)

    def _has_records(self) -> bool:
        """Under the lock: whether poll has something to hand out."""
        ends = self.polling.ends
        return self.fetcher.buffer.has_ready or (ends is not None and ends.due)

    def _on_error(self) -> None:
        """Poll has something to raise, and so have calls that wait for a position."""
        self.waits.signal_progress()
        self.readiness.need_poll()

    def _on_progress(self) -> None:
        """Background tasks got on: calls may have what they wait for, and poll something to do."""
        self.waits.signal_progress()
        self.readiness.update()

    def _on_positions(self) -> None:
        """Positions were found, or were not."""
        self._fetch_wakeup.set()
        self._on_progress()

    def _on_metadata(self) -> None:
        """There are new metadata."""
        self._topics.update()
        self._on_progress()
        self._group_wakeup.set()
        self._fetch_wakeup.set()

    def _on_failure(self, error: BaseException) -> None:
        """A background task died: everything that waits fails, and the next call raises it."""
        # a loop that ends takes the tasks with it: no fault, and the next call says so
        logger.log(logging.DEBUG if isinstance(error, ClosedError) else logging.ERROR, "the consumer failed: %r", error)
        told = self.life.fail(error)
        if self._group is not None:
            self._group.committer.fail(told)
        self.waits.interrupt()
        self.readiness.need_poll()

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Start the background tasks; connects when there is something to ask."""
        self.life.check_new()
        self.waits.belong_to(LoopHandle())
        await self.supervisor.start()
        try:
            if self._group is not None:
                self._tasks.spawn(self._group_driver.run, name="group")
                self._tasks.spawn(self._group.committer.run, name="commits")
            self._tasks.spawn(self._fetch_driver.run, name="fetcher")
            await self.cluster.start()
            self.reporting.start()
            self.life.started()
        except BaseException:  # whatever it is, no task may stay behind a consumer that was not made
            try:
                await self.cluster.aclose()
            finally:
                await self.supervisor.aclose()
            raise

    def forgotten(self, face: object, remedy: str) -> None:
        """The face was dropped: warn if it was not closed, leave the group and end the tasks.

        It runs in the garbage collector, so in any thread, whatever lock that holds.
        """
        if not (self.life.running and self.life.is_ours):
            return
        self.supervisor.retire(self._retire)
        lost = "what it read since the last commit will be read again"
        if self.subscriptions.uses_group:
            lost += ", and its group may have waited for it"
        warn_unclosed(face, remedy, lost if self._group is not None else "")

    async def _retire(self) -> None:
        if self._group is not None and self.supervisor.running:
            if self._group.in_use:
                self._group.leave("the consumer was forgotten without close")
            await self._group.left(LAST_WORDS)
        await self.shut()

    def closing(self, caller: int) -> bool:
        """The user closes; False if another call does it already, or there is nothing to bring to an end.

        Args:
            caller: The number of the task or thread that calls.
        """
        begun = self.life.begin_closing(caller)
        if begun:
            self.waits.woken = False  # for a call that will never come; not for the commit of a listener in `close`
            self.readiness.need_poll()
        return begun

    async def closed_by_another(self, timeout: float) -> None:
        """Another call closes the consumer: wait for it. When the time is over, it has to give up."""
        try:
            with anyio.move_on_after(timeout):
                await self.life.closure.ended()
        finally:
            await self.shut()

    async def _disconnect(self, left: float | None) -> None:
        try:
            await self.reporting.finish(left)
        finally:
            await self.cluster.aclose()

    async def shut(self, left: float | None = None) -> None:
        """End the tasks and close the connections.

        Args:
            left: Seconds that there are to push metrics once more; None for enough.
        """
        self.life.end()
        self._tasks.end()
        if self.supervisor.running:
            self._fetch_driver.end_sessions(everywhere=True)
        if self._group is not None:
            self._group.committer.fail(ClosedError("The consumer was closed"))
        try:
            await to_the_end(self._disconnect, left)
        finally:
            self.waits.signal_progress()
            self.readiness.signal()


def _membership(settings: ConsumerSettings) -> Membership | None:
    """The membership by the protocol that was chosen; None without a `group.id`."""
    if settings.member is None:
        return None
    return RemoteMember(settings.member) if settings.remote else GroupMember(settings.member, settings.assignors)
