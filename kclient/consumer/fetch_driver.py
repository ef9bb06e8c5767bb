"""Sends fetches, finds positions, and hands in what the brokers answer."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from kclient.cluster import version_for
from kclient.consumer.list_offsets import OffsetSearch
from kclient.consumer.lookups import unanswered
from kclient.consumer.reset import LATEST, ResetKind
from kclient.consumer.subscription import PositionState, SubscriptionKind
from kclient.errors import BrokerConnectionError, KafkaError, NoOffsetForPartitionError
from kclient.protocol.messages import FetchRequest
from kclient.types import Node

if TYPE_CHECKING:
    from kclient.consumer.core import ConsumerCore
    from kclient.consumer.fetcher import FetchNews, FetchPlan
    from kclient.consumer.subscription import PartitionState
    from kclient.net.connection import Connection, Pending

logger: logging.Logger = logging.getLogger("kclient.consumer.fetcher")

_CHANNELS = ("fetch", "fetch-2")
"""A connection for each lane: a fetch that waits at the broker for new data delays all behind it."""
_GRACE = 5.0
"""Seconds that a fetch may take beyond `fetch.max.wait.ms` and the time for any request."""


class FetchDriver:
    """The task that keeps records coming."""

    def __init__(self, core: ConsumerCore) -> None:
        self._core = core
        self._fetcher = core.fetcher
        self._positions_under_way = False
        self._tracked: set[str] = set()

    async def run(self) -> None:
        """Fetch until cancelled."""
        core = self._core
        while True:
            # What falls due between here and the wait has not been looked at: it must not be slept over.
            now = core.clock()
            self._track()
            self._start_finding_positions()
            self.send_fetches()
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
        if topics - self._tracked:
            cluster.track(topics)
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
        for plan in plans:
            link = core.cluster.link(plan.node_id, _CHANNELS[plan.lane])
            connection = None if link is None else link.usable
            if connection is not None:
                self._send(plan, connection)
            else:
                core.spawn(self._connect_and_send, plan, name=f"fetch from node {plan.node_id}")

    async def _connect_and_send(self, plan: FetchPlan) -> None:
        try:
            connection = await self._core.cluster.connection(plan.node_id, _CHANNELS[plan.lane])
        except KafkaError as error:
            self._failed(plan, error)
        else:
            self._send(plan, connection)

    def _send(self, plan: FetchPlan, connection: Connection) -> None:
        """Send a fetch; its answer is handled in a callback, without any task."""
        timeout = self._core.config.request_timeout_ms / 1000 + plan.request.max_wait_ms / 1000 + _GRACE
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
                core.errors.append(error)
        if isinstance(error, BrokerConnectionError) and core.running:
            core.cluster.request_update()
        core.fetch_wakeup.set()
        core.look()

    # ------------------------------------------------------------------ positions

    def _start_finding_positions(self) -> None:
        core = self._core
        now = core.clock()
        with core.lock:
            due = core.subscriptions.without_position(now) or core.subscriptions.resetting(now)
        if due and not self._positions_under_way:
            self._positions_under_way = True
            core.spawn(self._find_positions, name="positions")

    async def _find_positions(self) -> None:
        core = self._core
        try:
            await self._use_committed()
            await self._do_resets()
        finally:
            self._positions_under_way = False
            core.fetch_wakeup.set()
            core.changed()
            core.look()

    async def _use_committed(self) -> None:
        """Begin at the committed offsets, or where `auto.offset.reset` says."""
        core = self._core
        with core.lock:
            states = core.subscriptions.without_position(core.clock())
            versions = {state.tp: state.version for state in states}
        if not states:
            return
        if core.coordinator is None:
            found = dict.fromkeys(versions)
        else:
            try:
                found = await core.lookups.committed_once(versions, core.plan.default_timeout)
            except KafkaError as error:
                self._later(states, error)
                return
        with core.lock:
            for state in states:
                if core.subscriptions.find(state.tp) is not state or state.version != versions[state.tp]:
                    continue
                committed = found.get(state.tp)
                if committed is not None:
                    core.subscriptions.found(state.tp, state.version, committed.offset, committed.leader_epoch)
                else:
                    self._reset(state)

    def _reset(self, state: PartitionState) -> None:
        core = self._core
        try:
            core.subscriptions.reset(state.tp)
        except NoOffsetForPartitionError as error:
            state.retry_at = core.clock() + core.config.retry_backoff_ms / 1000
            if not core.errors:
                core.errors.append(error)

    async def _do_resets(self) -> None:
        """Ask the leaders where the resets under way lead."""
        core = self._core
        with core.lock:
            states = core.subscriptions.resetting(core.clock())
            versions = {state.tp: state.version for state in states}
            now_ms = time.time_ns() // 1_000_000
            wanted = {
                state.tp: (state.policy or core.subscriptions.default_policy).timestamp(now_ms) for state in states
            }
        if not states:
            return
        search = OffsetSearch(wanted)
        try:
            await core.lookups.search_once(search)
        except KafkaError as error:
            self._later(states, error)
            return
        core.lookups.problem = unanswered(search) if search.missing else None
        with core.lock:
            for state in states:
                self._end_reset(state, versions[state.tp], search)

    def _end_reset(self, state: PartitionState, version: int, search: OffsetSearch) -> None:
        core = self._core
        if state.version != version or core.subscriptions.find(state.tp) is not state:
            return
        if state.tp not in search.found:
            state.retry_at = core.clock() + core.config.retry_backoff_ms / 1000
            return
        found = search.found[state.tp]
        if found is not None:
            core.subscriptions.found(state.tp, version, found.offset, found.leader_epoch)
            logger.info("%s: begins at offset %d", state.tp, found.offset)
        elif state.policy is not None and state.policy.kind is ResetKind.BY_DURATION:
            core.subscriptions.reset(state.tp, LATEST)  # no record is that new
        else:
            state.retry_at = core.clock() + core.config.retry_backoff_ms / 1000

    def _later(self, states: list[PartitionState], error: KafkaError) -> None:
        """Try again in a while; tell the user what trying again does not help against."""
        core = self._core
        logger.debug("finding positions: %s", error)
        core.lookups.problem = error
        if error.refresh_metadata:
            core.cluster.request_update()
        with core.lock:
            for state in states:
                if state.state is not PositionState.VALID:
                    state.retry_at = core.clock() + core.config.retry_backoff_ms / 1000
            if not error.retriable and not core.errors:
                core.errors.append(error)
