"""Sends what the coordinator's state machine asks for, and wakes it when its time has come."""

from __future__ import annotations

import logging
from math import inf
from typing import TYPE_CHECKING

from kclient.cluster import version_for
from kclient.consumer.group import RequestKind
from kclient.errors import KafkaError
from kclient.protocol.errors import EncodeError

if TYPE_CHECKING:
    from kclient.consumer.coordinator import GroupCoordinator
    from kclient.consumer.core import ConsumerCore
    from kclient.consumer.group import GroupRequest
    from kclient.net.connection import Connection

logger: logging.Logger = logging.getLogger("kclient.consumer.coordinator")

CHANNEL = "coordinator"
"""Heartbeats and commits have a connection of their own: brokers answer a connection in order."""

JOIN_CHANNEL = "join"
"""Where brokers keep a request until the other members have come."""

_COMMITS_FIRST = 1.0
"""Seconds that joining waits for commits on their way: a broker refuses what comes behind the new generation."""


class GroupDriver:
    """The task behind a consumer's membership in its group."""

    def __init__(self, core: ConsumerCore) -> None:
        self._core = core
        self._coordinator: GroupCoordinator = core.group()

    async def run(self) -> None:
        """Drive the state machine until cancelled."""
        core = self._core
        while True:
            now = core.clock()
            with core.lock:
                todo = self._coordinator.next(now)
            for request in todo.requests:
                core.spawn(self._exchange, request, name=request.kind.value)
            if todo.refresh is not None:
                core.spawn(self._refresh, todo.refresh, name="metadata before joining")
            core.waits.changed()
            core.look()
            await core.group_wakeup.wait(None if todo.wake_at == inf else max(todo.wake_at - now, 0))
            late = core.clock() - todo.wake_at
            if late > 0:
                with core.lock:
                    self._coordinator.stalled(late)

    async def _refresh(self, number: int) -> None:
        """Have fresh metadata; without them the member joins with what it knows."""
        core = self._core
        try:
            await core.cluster.refresh(timeout=core.config.request_timeout_ms / 1000)
        except KafkaError as error:
            logger.info("group %s: joining without fresh metadata: %s", self._coordinator.settings.group_id, error)
        with core.lock:
            self._coordinator.refreshed(number)
        core.group_wakeup.set()

    async def _exchange(self, request: GroupRequest) -> None:
        """Send one request and hand its answer in."""
        core = self._core
        try:
            response = await self._send(request)
            if response is None:
                return
        except (KafkaError, EncodeError) as error:
            reason = error if isinstance(error, KafkaError) else KafkaError(str(error))
            with core.lock:
                self._coordinator.failed(request, reason, core.clock())
        else:
            with core.lock:
                self._coordinator.received(request, response, core.clock())
        core.group_wakeup.set()

    async def _send(self, request: GroupRequest) -> object:
        """The answer to a request; None if it was not sent, because it came to nothing while a connection was made."""

        async def ask(connection: Connection) -> object:
            version = version_for(connection, request.request_class)
            return await connection.request(request.build(version), version, timeout=request.timeout)

        if request.node_id is None:
            return await self._core.cluster.ask_any(ask)
        if request.kind is RequestKind.JOIN:
            await self._core.drained(_COMMITS_FIRST)
        connection = await self._core.cluster.connection(request.node_id, JOIN_CHANNEL if request.parks else CHANNEL)
        with self._core.lock:
            current = self._coordinator.awaits(request)
        return await ask(connection) if current else None
