"""Sends fetches, and hands in what the brokers answer."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kclient.cluster import version_for
from kclient.consumer.positions import PositionFinder
from kclient.consumer.subscription import SubscriptionKind
from kclient.errors import KafkaError
from kclient.protocol.messages import FetchRequest
from kclient.types import Node

if TYPE_CHECKING:
    from kclient.consumer.core import ConsumerCore
    from kclient.consumer.fetcher import FetchNews, FetchPlan
    from kclient.net.connection import Connection, Pending

logger: logging.Logger = logging.getLogger("kclient.consumer.fetcher")

FETCH_CHANNELS = ("fetch", "fetch-2")
"""A connection for each lane: a fetch that waits at the broker for new data delays all behind it."""
_GRACE = 1.0
"""Seconds that a fetch may take beyond `fetch.max.wait.ms`, where that is not less than `request.timeout.ms`."""


class FetchDriver:
    """The task that keeps records coming."""

    def __init__(self, core: ConsumerCore) -> None:
        self._core = core
        self._fetcher = core.fetcher
        self._positions = PositionFinder(core)
        self._tracked: set[str] = set()

    async def run(self) -> None:
        """Fetch until cancelled."""
        core = self._core
        while True:
            # What falls due between here and the wait has not been looked at: it must not be slept over.
            now = core.clock()
            self._track()
            self._positions.start()
            self.send_fetches()
            self.end_sessions()
            with core.lock:
                times = [self._fetcher.next_retry(now), core.subscriptions.next_retry(now)]
            due = min((at for at in times if at is not None), default=None)
            await core.fetch_wakeup.wait(None if due is None else max(due - core.clock(), 0))

    def _track(self) -> None:
        """Tell the cluster which topics are of interest."""
        cluster = self._core.cluster
        all_topics = self._core.subscriptions.kind is SubscriptionKind.PATTERN
        if all_topics and not cluster.metadata.all_topics:
            cluster.metadata.all_topics = True
            cluster.request_update(urgent=True)
        cluster.metadata.all_topics = all_topics
        topics = self._core.topics_of_interest()
        if topics != self._tracked:
            cluster.track_only(topics)
        self._tracked = topics

    # ------------------------------------------------------------------ fetching

    def send_fetches(self) -> None:
        """Send every fetch that is due."""
        core = self._core
        if not core.running:
            return
        with core.lock:
            plans, leaderless = self._fetcher.plan(core.cluster.snapshot, core.clock())
        if leaderless:
            core.cluster.request_update()
        if self._fetcher.crowded:
            core.look()  # the next poll makes room
        for plan in plans:
            link = core.cluster.link(plan.node_id, FETCH_CHANNELS[plan.lane])
            connection = None if link is None else link.usable
            if connection is not None:
                self._send(plan, connection)
            else:
                core.spawn(self._connect_and_send, plan, name=f"fetch from node {plan.node_id}")

    def end_sessions(self, *, everywhere: bool = False) -> None:
        """Have brokers forget what is not read any more, where that costs no waiting."""
        core = self._core
        with core.lock:
            requests = self._fetcher.end_sessions(core.clock(), everywhere=everywhere)
        for node_id, lane, request in requests:
            link = core.cluster.link(node_id, FETCH_CHANNELS[lane])
            connection = None if link is None else link.usable
            if connection is not None:
                with suppress(KafkaError):  # they forget it in time by themselves
                    connection.send_nowait(request, version_for(connection, FetchRequest))

    async def _connect_and_send(self, plan: FetchPlan) -> None:
        try:
            connection = await self._core.cluster.connection(plan.node_id, FETCH_CHANNELS[plan.lane])
        except KafkaError as error:
            self._failed(plan, error)
        else:
            self._send(plan, connection)

    def _send(self, plan: FetchPlan, connection: Connection) -> None:
        """Send a fetch; its answer is handled in a callback, without any task."""
        timeout = max(self._core.config.request_timeout_ms / 1000, plan.request.max_wait_ms / 1000 + _GRACE)
        try:
            version = version_for(connection, FetchRequest, plan.max_version)
            pending = connection.send_nowait(plan.request, version, timeout=timeout)
        except KafkaError as error:
            self._failed(plan, error)
        else:
            pending.on_done(lambda done: self._answered(plan, done))

    def _answered(self, plan: FetchPlan, done: Pending) -> None:
        if done.error is not None:
            if isinstance(done.error, KafkaError):
                self._failed(plan, done.error)
            else:
                self._core.supervisor.fail(done.error)
            return
        try:
            self._take_in(plan, done.result())
        except Exception as error:  # noqa: BLE001 - a callback of the connection must not raise
            self._core.supervisor.fail(error)

    def _take_in(self, plan: FetchPlan, response: Any) -> None:
        core = self._core
        with core.lock:
            news = self._fetcher.received(plan, response, core.clock())
        self._heed(news, response)
        if news.ready:
            core.look()
        if core.running:
            self.send_fetches()
            core.fetch_wakeup.set()

    def _heed(self, news: FetchNews, response: Any) -> None:
        cluster = self._core.cluster
        if news.leaders:
            nodes = [Node(node.node_id, node.host, node.port, node.rack) for node in response.node_endpoints]
            cluster.metadata.update_leaders(news.leaders, nodes)
        if news.refresh_metadata:
            cluster.request_update()

    def _failed(self, plan: FetchPlan, error: KafkaError) -> None:
        core = self._core
        logger.debug("fetch from node %d failed: %s", plan.node_id, error)
        with core.lock:
            self._fetcher.failed(plan, core.clock())
            if not error.retriable and core.running:
                core.complain(error)
        if core.running:
            core.cluster.request_update()  # whatever it was, another broker may lead by now
        core.fetch_wakeup.set()
        core.look()
