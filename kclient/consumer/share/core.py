"""Puts a share consumer together, starts and shuts it: what the async and the blocking face have in common.

The parts get what they use in their constructors; nobody but the faces holds this object. Calls from any thread take
the lock for a moment and never wait; coroutines belong to the event loop.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING

import anyio

from kclient.cluster import Cluster, cluster_addresses, topic_error
from kclient.cluster.reporting import MetricsReporting
from kclient.concurrency import LoopHandle, MomentLock, Supervisor, Wakeup, to_the_end
from kclient.consumer.attempts import Attempts
from kclient.consumer.group.driver import GroupDriver
from kclient.consumer.group.metrics import GroupMetrics
from kclient.consumer.life import ConsumerLife
from kclient.consumer.metrics import PollMetrics, resource_of
from kclient.consumer.notices import Notices, PendingErrors, UnreadableTopics
from kclient.consumer.readiness import PollReadiness
from kclient.consumer.share.collector import ShareCollector
from kclient.consumer.share.driver import SHARE_CHANNEL, ShareDriver
from kclient.consumer.share.hand import Hand
from kclient.consumer.share.member import ShareMember
from kclient.consumer.share.metrics import ShareMetrics
from kclient.consumer.share.polling import SharePolling
from kclient.consumer.share.sessions import ShareSessions
from kclient.consumer.share.settings import ShareConsumerSettings
from kclient.consumer.share.traced import TracedShareCollector, TracedSharePolling
from kclient.consumer.tasks import BackgroundTasks
from kclient.consumer.traced import PollSpans
from kclient.consumer.waits import Waits
from kclient.errors import ClosedError
from kclient.metrics.registry import registry_for
from kclient.metrics.traffic import Traffic
from kclient.types import ConsumerGroupMetadata
from kclient.unclosed import warn_unclosed

if TYPE_CHECKING:
    from collections.abc import Callable

    from kclient.config import ShareConsumerConfig
    from kclient.consumer.share.model import AcknowledgementCommitCallback
    from kclient.consumer.share.sessions import ShareNews
    from kclient.tracing.spans import ClientTracing

logger: logging.Logger = logging.getLogger("kclient.consumer.share")

_LAST_WORDS = 1.0
"""Seconds that a forgotten consumer takes to leave its group."""


class ShareConsumerCore:
    """One share consumer without a face.

    Args:
        config: The settings.
        clock: Monotonic time in seconds.
    """

    def __init__(self, config: ShareConsumerConfig, clock: Callable[[], float] = time.monotonic) -> None:
        cluster_addresses(config)  # what cannot be right is refused now, not by the first call
        settings = ShareConsumerSettings.of(config)
        self.config: ShareConsumerConfig = config
        self.clock: Callable[[], float] = clock
        self.default_timeout: float = settings.default_timeout
        self.callback: AcknowledgementCommitCallback | None = None
        """Is told what became of acknowledgements."""
        registry = registry_for(config, clock)
        traffic = Traffic(registry.windows)
        self._group_metrics = GroupMetrics(registry.windows)
        metrics = ShareMetrics(registry.windows)
        poll_metrics = PollMetrics(registry.windows)
        self._name = f"{','.join(config.bootstrap_servers)} group={config.group_id}"
        self._lock = MomentLock()
        """Guards the state machines; held for moments only, never while waiting or decoding."""
        self.life: ConsumerLife = ConsumerLife(self._lock)
        self._group_wakeup = Wakeup()
        self._share_wakeup = Wakeup()
        self.supervisor: Supervisor = Supervisor("share consumer", on_failure=self._on_failure)
        self._tasks = BackgroundTasks(self.supervisor)
        self.cluster: Cluster = Cluster(
            config,
            self.supervisor,
            allow_auto_topic_creation=config.allow_auto_create_topics,
            patience={SHARE_CHANNEL: config.fetch_max_wait_ms / 1000},
            clock=clock,
            traffic=traffic,
        )
        self.cluster.listeners.append(self._on_metadata)
        self.reporting: MetricsReporting = MetricsReporting(
            registry,
            self.supervisor,
            self.cluster,
            push=config.enable_metrics_push,
            resource=lambda: resource_of(
                config.client_rack, ConsumerGroupMetadata(config.group_id or "", member_id=self.member.member_id)
            ),
        )
        self.member: ShareMember = ShareMember(settings.member)
        self.hand: Hand = Hand(explicit=settings.explicit)
        self.sessions: ShareSessions = ShareSessions(settings.fetch, metrics)
        self.errors: PendingErrors = PendingErrors(self._on_error)
        self._unreadable = UnreadableTopics(self.errors)
        self.notices: Notices = Notices(lambda: self.life.state, (), settings.deserializers)
        self.waits: Waits = Waits(self.life.check, Attempts(self.cluster, clock).late, self.supervisor.check_loop)
        self.tracing: ClientTracing | None = settings.tracing
        spans = None if settings.tracing is None else PollSpans(settings.tracing)
        self.collector: ShareCollector = (ShareCollector if spans is None else partial(TracedShareCollector, spans))(
            clock=clock,
            lock=self._lock,
            sessions=self.sessions,
            hand=self.hand,
            subscribed=lambda: self.member.topics,
            records=metrics.records,
            max_poll_records=config.max_poll_records,
            decode_options=settings.decode_options,
        )
        self.readiness: PollReadiness = PollReadiness(clock, self._lock, self._has_work, self.collector.has_ready)
        self.polling: SharePolling = (SharePolling if spans is None else partial(TracedSharePolling, spans))(
            lock=self._lock,
            check=self.life.check_polling,
            member=self.member,
            sessions=self.sessions,
            hand=self.hand,
            collector=self.collector,
            waits=self.waits,
            readiness=self.readiness,
            errors=self.errors,
            notices=self.notices,
            heed=self._take_in,
            wake=self.look_again,
            running=lambda: self.supervisor.running,
            metrics=poll_metrics,
            default_timeout=settings.default_timeout,
        )
        self._group_driver = GroupDriver(
            clock=clock,
            lock=self._lock,
            member=self.member,
            cluster=self.cluster,
            tasks=self._tasks,
            wakeup=self._group_wakeup,
            drained=_nothing_to_drain,
            on_progress=self._on_progress,
            on_topics=self._share_wakeup.set,
            metrics=self._group_metrics,
            request_timeout=config.request_timeout_ms / 1000,
        )
        self._driver = ShareDriver(
            clock=clock,
            lock=self._lock,
            member=self.member,
            sessions=self.sessions,
            cluster=self.cluster,
            tasks=self._tasks,
            wakeup=self._share_wakeup,
            heed=self._heed,
            request_timeout=config.request_timeout_ms / 1000,
        )
        traffic.define(registry, "consumer", self.cluster.addresses)
        poll_metrics.define(registry, "consumer-share-metrics")
        metrics.define(registry)
        self._group_metrics.define_share(registry, lambda: len(self.member.assigned))

    def __repr__(self) -> str:
        return f"{self._name} {self.life.state.value}"

    # ------------------------------------------------------------------ any thread

    def subscribe(self, topics: list[str]) -> None:
        """These topics are read from now on."""
        with self._lock:
            self.member.subscribe(topics)
            self.sessions.begin_again()
        self.look_again()

    def acknowledge(self, call: Callable[[Hand], None]) -> None:
        """The user says what became of records."""
        with self._lock:
            call(self.hand)

    def wakeup(self) -> None:
        """End the present or next wait with `WakeupError`."""
        self.waits.wakeup()
        self.readiness.need_poll()

    def look_again(self) -> None:
        """Have all tasks look for something to do."""
        self._share_wakeup.set()
        self._group_wakeup.set()

    # ------------------------------------------------------------------ signals

    def _has_work(self) -> bool:
        """Under the lock: whether poll has something to do beside handing out records."""
        return bool(
            self.waits.woken
            or self.life.failed
            or self.errors
            or self.notices
            or not self.life.running
            or self.member.error is not None
            or (self.member.topics and self.member.outside)
        )

    def _heed(self, news: ShareNews) -> None:
        """Take in what the answers to requests have changed; in the loop."""
        self._take_in(news)
        self.waits.signal_progress()
        self.readiness.update()

    def _take_in(self, news: ShareNews) -> None:
        with self._lock:
            for node_id, partition, error in news.lost:
                self.hand.lose(node_id, partition, error)
            if news.error is not None:
                self.errors.add(news.error)
            if self.callback is not None:
                for one, refused in news.outcomes:
                    if one.offsets:
                        self.notices.add(self.callback, {one.acquired.partition.tp: one.offsets}, refused)
            self.hand.forget_settled()

    def _on_error(self) -> None:
        """Poll has something to raise."""
        self.readiness.need_poll()

    def _on_progress(self) -> None:
        """The membership or the metadata changed: calls may have what they wait for, and poll something to do."""
        self._group_metrics.assigned_anew(self.member.rebalances)
        self.waits.signal_progress()
        self._share_wakeup.set()
        self.readiness.update()

    def _on_metadata(self) -> None:
        """There are new metadata."""
        snapshot = self.cluster.snapshot
        with self._lock:
            for topic in self.member.topics:
                self._unreadable.heed(topic, topic_error(snapshot, topic))
        self._on_progress()
        self._group_wakeup.set()

    def _on_failure(self, error: BaseException) -> None:
        """A background task died: everything that waits fails, and the next call raises it."""
        # a loop that ends takes the tasks with it: no fault, and the next call says so
        logger.log(
            logging.DEBUG if isinstance(error, ClosedError) else logging.ERROR, "the share consumer failed: %r", error
        )
        self.life.fail(error)
        self.waits.interrupt()
        self.readiness.need_poll()

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Start the background tasks; connects when there is something to ask."""
        self.life.check_new()
        self.waits.belong_to(LoopHandle())
        await self.supervisor.start()
        try:
            self._tasks.spawn(self._group_driver.run, name="share group")
            self._tasks.spawn(self._driver.run, name="share sessions")
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
        warn_unclosed(face, remedy, "what it returned since the last poll or commit is delivered again")

    async def _retire(self) -> None:
        if self.supervisor.running:
            with self._lock:
                self.member.leave("the consumer was forgotten without close")
            self._group_wakeup.set()
            with anyio.move_on_after(_LAST_WORDS):
                while self.member.leaving:
                    await self.waits.progress()
        await self.shut()

    def closing(self, caller: int) -> bool:
        """The user closes; False if another call does it already, or there is nothing to bring to an end.

        Args:
            caller: The number of the task or thread that calls.
        """
        begun = self.life.begin_closing(caller)
        if begun:
            self.waits.woken = False  # for a call that will never come
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
        try:
            await to_the_end(self._disconnect, left)
        finally:
            self.waits.signal_progress()
            self.readiness.signal()


async def _nothing_to_drain(seconds: float) -> None:
    """What a share consumer has to say, it says to others than the group's coordinator."""
