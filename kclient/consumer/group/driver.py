"""Sends what the member's state machine asks for, and wakes it when its time has come."""

from __future__ import annotations

import logging
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from kclient.cluster import version_for
from kclient.consumer.group.coordinator import CHANNEL
from kclient.consumer.group.model import RequestKind
from kclient.consumer.group.topic_names import ask_names
from kclient.errors import KafkaError
from kclient.protocol.errors import EncodeError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from kclient.cluster import Cluster
    from kclient.concurrency import MomentLock, Wakeup
    from kclient.consumer.group.metrics import GroupMetrics
    from kclient.consumer.group.model import GroupRequest, MemberSettings, Todo
    from kclient.consumer.tasks import BackgroundTasks
    from kclient.net.connection import Connection

logger: logging.Logger = logging.getLogger("kclient.consumer.coordinator")

JOIN_CHANNEL = "join"
"""Where brokers keep a request until the other members have come."""

_COMMITS_FIRST = 1.0
"""Seconds that joining and leaving wait for commits on their way: a broker refuses what comes behind."""


class DrivenMember(Protocol):
    """A member of a group of any kind, as the task that drives it sees it; `Membership` says what each does."""

    @property
    def settings(self) -> MemberSettings: ...
    @property
    def group_topics(self) -> set[str]: ...
    def next(self, now: float) -> Todo: ...
    def stalled(self, seconds: float) -> None: ...
    def refreshed(self, refresh: object) -> None: ...
    def resolved(self, names: Mapping[bytes, str], now: float) -> None: ...
    def awaits(self, request: GroupRequest) -> bool: ...
    def received(self, request: GroupRequest, response: Any, now: float) -> None: ...
    def failed(self, request: GroupRequest, error: KafkaError, now: float) -> None: ...


class GroupDriver:
    """The task behind a consumer's membership in its group.

    Args:
        clock: Monotonic time in seconds.
        lock: Guards the state machines.
        member: Says what to send, and when.
        cluster: Connects to brokers.
        tasks: Run the requests.
        wakeup: Ends the wait for the time that the member named.
        drained: Waits so many seconds for what is to go out before a join, and before the member leaves: commits.
        on_progress: Called when the membership may have changed.
        on_topics: Called when, as leader, the member needs the metadata of other topics.
        metrics: Are told of requests and answers.
        request_timeout: Seconds for fresh metadata.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        lock: MomentLock,
        member: DrivenMember,
        cluster: Cluster,
        tasks: BackgroundTasks,
        wakeup: Wakeup,
        drained: Callable[[float], Awaitable[None]],
        on_progress: Callable[[], None],
        on_topics: Callable[[], None],
        metrics: GroupMetrics,
        request_timeout: float,
    ) -> None:
        self._clock = clock
        self._lock = lock
        self._member = member
        self._cluster = cluster
        self._tasks = tasks
        self._wakeup = wakeup
        self._drained = drained
        self._on_progress = on_progress
        self._on_topics = on_topics
        self._metrics = metrics
        self._topics: set[str] = set()
        self._request_timeout = request_timeout

    async def run(self) -> None:
        """Drive the state machine until cancelled."""
        while True:
            now = self._clock()
            with self._lock:
                todo = self._member.next(now)
                topics = self._member.group_topics
            for request in todo.requests:
                self._tasks.spawn(self._exchange, request, name=request.kind.value)
            if todo.refresh is not None:
                self._tasks.spawn(self._refresh, todo.refresh, name="metadata before joining")
            if todo.resolve:
                self._tasks.spawn(self._resolve, todo.resolve, name="names of assigned topics")
            if topics != self._topics:
                self._topics = topics
                self._on_topics()
            self._on_progress()
            await self._wakeup.wait(None if todo.wake_at == inf else max(todo.wake_at - now, 0))
            late = self._clock() - todo.wake_at
            if late > 0:
                with self._lock:
                    self._member.stalled(late)

    async def _refresh(self, refresh: object) -> None:
        """Have fresh metadata; without them the member joins with what it knows."""
        try:
            await self._cluster.refresh(timeout=self._request_timeout)
        except KafkaError as error:
            logger.info("group %s: joining without fresh metadata: %s", self._member.settings.group_id, error)
        with self._lock:
            self._member.refreshed(refresh)
        self._wakeup.set()

    async def _resolve(self, topic_ids: frozenset[bytes]) -> None:
        """Find the names of topics that were assigned by their ids."""
        known = self._cluster.snapshot.names
        names = {topic_id: known[topic_id] for topic_id in topic_ids & known.keys()}
        try:
            if len(names) < len(topic_ids):
                names |= await self._cluster.ask_any(lambda connection: ask_names(connection, topic_ids - names.keys()))
        except KafkaError as error:
            logger.info("group %s: the names of assigned topics: %s", self._member.settings.group_id, error)
        with self._lock:
            self._member.resolved(names, self._clock())
        self._wakeup.set()

    async def _exchange(self, request: GroupRequest) -> None:
        """Send one request and hand its answer in."""
        try:
            response = await self._send(request)
            if response is None:
                return
        except (KafkaError, EncodeError) as error:
            reason = error if isinstance(error, KafkaError) else KafkaError(str(error))
            with self._lock:
                self._member.failed(request, reason, self._clock())
        else:
            with self._lock:
                self._member.received(request, response, self._clock())
        self._wakeup.set()

    async def _send(self, request: GroupRequest) -> object:
        """The answer to a request; None if it was not sent, because it came to nothing while a connection was made."""

        async def ask(connection: Connection) -> object:
            version = version_for(connection, request.request_class)
            began = self._clock()
            self._metrics.sent(request.kind, began)
            answer = await connection.request(request.build(version), version, timeout=request.timeout)
            self._metrics.answered(request.kind, self._clock() - began)
            return answer

        if request.node_id is None:
            return await self._cluster.ask_any(ask)
        if request.kind in {RequestKind.JOIN, RequestKind.LEAVE}:
            await self._drained(_COMMITS_FIRST)
        connection = await self._cluster.connection(request.node_id, JOIN_CHANNEL if request.parks else CHANNEL)
        with self._lock:
            current = self._member.awaits(request)
        return await ask(connection) if current else None
