"""Sends fetches, and hands in what the brokers answer."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kclient.cluster import version_for
from kclient.consumer.subscription import SubscriptionKind
from kclient.errors import KafkaError
from kclient.protocol.messages import FetchRequest
from kclient.types import Node

if TYPE_CHECKING:
    from collections.abc import Callable

    from kclient.cluster import Cluster
    from kclient.concurrency import MomentLock, Wakeup
    from kclient.consumer.fetch.fetcher import Fetcher, FetchNews, PlannedFetch
    from kclient.consumer.fetch.positions import PositionFinder
    from kclient.consumer.notices import PendingErrors
    from kclient.consumer.subscription import SubscriptionState
    from kclient.consumer.tasks import BackgroundTasks
    from kclient.net.connection import Connection, Pending

logger: logging.Logger = logging.getLogger("kclient.consumer.fetcher")

FETCH_CHANNELS = ("fetch", "fetch-2")
"""A connection for each lane: a fetch that waits at the broker for new data delays all behind it."""
_GRACE = 1.0
"""Seconds that a fetch may take beyond `fetch.max.wait.ms`, where that is not less than `request.timeout.ms`."""


class FetchDriver:
    """The task that keeps records coming.

    Args:
        clock: Monotonic time in seconds.
        lock: Guards the state machines.
        subscriptions: What is read.
        fetcher: Says what to fetch.
        positions: Finds where to begin.
        errors: What poll is to raise.
        cluster: Connects to brokers.
        tasks: Run what has to wait for a connection.
        wakeup: Ends the wait for what is due next.
        topics_of_interest: The topics whose metadata are needed.
        update_readiness: Called when there may be something for poll.
        request_timeout: `request.timeout.ms`, in seconds.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        lock: MomentLock,
        subscriptions: SubscriptionState,
        fetcher: Fetcher,
        positions: PositionFinder,
        errors: PendingErrors,
        cluster: Cluster,
        tasks: BackgroundTasks,
        wakeup: Wakeup,
        topics_of_interest: Callable[[], set[str]],
        update_readiness: Callable[[], None],
        request_timeout: float,
    ) -> None:
        self._clock = clock
        self._lock = lock
        self._subscriptions = subscriptions
        self._fetcher = fetcher
        self._positions = positions
        self._errors = errors
        self._cluster = cluster
        self._tasks = tasks
        self._wakeup = wakeup
        self._topics_of_interest = topics_of_interest
        self._update_readiness = update_readiness
        self._request_timeout = request_timeout
        self._tracked: set[str] = set()

    async def run(self) -> None:
        """Fetch until cancelled."""
        while True:
            # What falls due between here and the wait has not been looked at: it must not be slept over.
            now = self._clock()
            self._track()
            self._positions.start()
            self.send_fetches()
            self.end_sessions()
            with self._lock:
                times = [self._fetcher.next_retry(now), self._subscriptions.next_retry(now)]
            due = min((at for at in times if at is not None), default=None)
            await self._wakeup.wait(None if due is None else max(due - self._clock(), 0))

    def _track(self) -> None:
        """Tell the cluster which topics are of interest."""
        cluster = self._cluster
        all_topics = self._subscriptions.kind is SubscriptionKind.PATTERN
        if all_topics and not cluster.metadata.all_topics:
            cluster.metadata.all_topics = True
            cluster.request_update(urgent=True)
        cluster.metadata.all_topics = all_topics
        topics = self._topics_of_interest()
        if topics != self._tracked:
            cluster.track_only(topics)
        self._tracked = topics

    # ------------------------------------------------------------------ fetching

    def send_fetches(self) -> None:
        """Send every fetch that is due."""
        if not self._tasks.running:
            return
        with self._lock:
            plans, leaderless = self._fetcher.plan(self._cluster.snapshot, self._clock())
        if leaderless:
            self._cluster.request_update()
        if self._fetcher.buffer.crowded:
            self._update_readiness()  # the next poll makes room
        for plan in plans:
            link = self._cluster.link(plan.node_id, FETCH_CHANNELS[plan.lane])
            connection = None if link is None else link.usable
            if connection is not None:
                self._send(plan, connection)
            else:
                self._tasks.spawn(self._connect_and_send, plan, name=f"fetch from node {plan.node_id}")

    def end_sessions(self, *, everywhere: bool = False) -> None:
        """Have brokers forget what is not read any more, where that costs no waiting."""
        with self._lock:
            requests = self._fetcher.end_sessions(self._clock(), everywhere=everywhere)
        for node_id, lane, request in requests:
            link = self._cluster.link(node_id, FETCH_CHANNELS[lane])
            connection = None if link is None else link.usable
            if connection is not None:
                with suppress(KafkaError):  # they forget it in time by themselves
                    connection.send_nowait(request, version_for(connection, FetchRequest))

    async def _connect_and_send(self, plan: PlannedFetch) -> None:
        try:
            connection = await self._cluster.connection(plan.node_id, FETCH_CHANNELS[plan.lane])
        except KafkaError as error:
            self._failed(plan, error)
        else:
            self._send(plan, connection)

    def _send(self, plan: PlannedFetch, connection: Connection) -> None:
        """Send a fetch; its answer is handled in a callback, without any task."""
        timeout = max(self._request_timeout, plan.request.max_wait_ms / 1000 + _GRACE)
        try:
            version = version_for(connection, FetchRequest, plan.max_version)
            plan.sent = self._clock()
            pending = connection.send_nowait(plan.request, version, timeout=timeout)
        except KafkaError as error:
            self._failed(plan, error)
        else:
            pending.on_done(lambda done: self._answered(plan, done))

    def _answered(self, plan: PlannedFetch, done: Pending) -> None:
        if done.error is not None:
            if isinstance(done.error, KafkaError):
                self._failed(plan, done.error)
            else:
                self._tasks.fail(done.error)
            return
        try:
            self._take_in(plan, done.result())
        except Exception as error:  # noqa: BLE001 - a callback of the connection must not raise
            self._tasks.fail(error)

    def _take_in(self, plan: PlannedFetch, response: Any) -> None:
        with self._lock:
            news = self._fetcher.received(plan, response, self._clock())
        self._heed(plan, news, response)
        if news.ready:
            self._update_readiness()
        if self._tasks.running:
            self.send_fetches()
            self._wakeup.set()

    def _heed(self, plan: PlannedFetch, news: FetchNews, response: Any) -> None:
        cluster = self._cluster
        if news.leaders:
            nodes = [Node(node.node_id, node.host, node.port, node.rack) for node in response.node_endpoints]
            cluster.metadata.update_leaders(news.leaders, nodes, asked=plan.names)
        if news.refresh_metadata:
            cluster.request_update()

    def _failed(self, plan: PlannedFetch, error: KafkaError) -> None:
        logger.debug("fetch from node %d failed: %s", plan.node_id, error)
        with self._lock:
            self._fetcher.failed(plan, self._clock())
            if not error.retriable and self._tasks.running:
                self._errors.add(error)
        if self._tasks.running:
            self._cluster.request_update()  # whatever it was, another broker may lead by now
        self._wakeup.set()
        self._update_readiness()
