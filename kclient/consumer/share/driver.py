"""Sends what share sessions ask for, and hands in what the brokers answer."""

from __future__ import annotations

import logging
from math import inf
from typing import TYPE_CHECKING, Any

from kclient.cluster import version_for
from kclient.consumer.share.refusals import needs_newer_broker
from kclient.consumer.share.sessions import ShareNews
from kclient.errors import KafkaError
from kclient.protocol.messages import ShareFetchRequest
from kclient.types import Node

if TYPE_CHECKING:
    from collections.abc import Callable

    from kclient.cluster import Cluster
    from kclient.concurrency import MomentLock, Wakeup
    from kclient.consumer.share.member import ShareMember
    from kclient.consumer.share.session import ShareRequest
    from kclient.consumer.share.sessions import ShareSessions
    from kclient.consumer.tasks import BackgroundTasks

logger: logging.Logger = logging.getLogger("kclient.consumer.share")

SHARE_CHANNEL = "share"
"""A broker ends a share session when its connection breaks; and a fetch that waits there delays all behind it."""
_GRACE = 1.0
"""Seconds that a fetch may take beyond `fetch.max.wait.ms`, where that is not less than `request.timeout.ms`."""


class ShareDriver:
    """The task that fetches and acknowledges.

    Args:
        clock: Monotonic time in seconds.
        lock: Guards the state machines.
        member: Knows what to read.
        sessions: Say what to send.
        cluster: Connects to brokers.
        tasks: Run the requests.
        wakeup: Ends the wait for what is due next.
        heed: Called under no lock with what has changed.
        request_timeout: `request.timeout.ms`, in seconds.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        lock: MomentLock,
        member: ShareMember,
        sessions: ShareSessions,
        cluster: Cluster,
        tasks: BackgroundTasks,
        wakeup: Wakeup,
        heed: Callable[[ShareNews], None],
        request_timeout: float,
    ) -> None:
        self._clock = clock
        self._lock = lock
        self._member = member
        self._sessions = sessions
        self._cluster = cluster
        self._tasks = tasks
        self._wakeup = wakeup
        self._heed = heed
        self._request_timeout = request_timeout
        self._tracked: set[str] = set()

    async def run(self) -> None:
        """Fetch and acknowledge until cancelled."""
        while True:
            now = self._clock()
            news = ShareNews()
            with self._lock:
                topics = set(self._member.topics) | {tp.topic for tp in self._member.assigned}
            if topics != self._tracked:
                self._cluster.track_only(topics)
                self._tracked = topics
            with self._lock:
                requests, due = self._sessions.plan(
                    self._member.assigned, self._cluster.snapshot, self._member.member_id, now, news
                )
            for request in requests:
                self._tasks.spawn(self._exchange, request, name=f"share session with node {request.node_id}")
            if news.refresh_metadata:
                self._cluster.request_update()
            self._heed(news)
            await self._wakeup.wait(None if due == inf else max(due - self._clock(), 0))

    async def _exchange(self, request: ShareRequest) -> None:
        """Send one request and hand its answer in."""
        news = ShareNews()
        try:
            response = await self._send(request)
        except KafkaError as error:
            logger.debug("share session with node %d: %s", request.node_id, error)
            with self._lock:
                self._sessions.failed(request, error, self._clock(), news)
        else:
            with self._lock:
                self._sessions.received(request, response, self._clock(), news)
            if news.leaders:
                nodes = [Node(node.node_id, node.host, node.port, node.rack) for node in response.node_endpoints]
                names = {partition.topic_id: partition.topic for partition in request.partitions}
                self._cluster.metadata.update_leaders(news.leaders, nodes, asked=names)
        if news.refresh_metadata:
            self._cluster.request_update()
        self._heed(news)
        self._wakeup.set()

    async def _send(self, request: ShareRequest) -> Any:
        connection = await self._cluster.connection(request.node_id, SHARE_CHANNEL)
        version = version_for(connection, type(request.message))
        if version < request.first_version:
            what = "share.acquire.mode=record_limit" if request.fetches else "AcknowledgeType.RENEW"
            raise needs_newer_broker(what)
        timeout = self._request_timeout
        if isinstance(request.message, ShareFetchRequest):
            timeout = max(timeout, request.message.max_wait_ms / 1000 + _GRACE)
        return await connection.request(request.message, version, timeout=timeout)
