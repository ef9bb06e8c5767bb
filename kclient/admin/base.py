"""What the admin client's parts share: requests to the right broker, with retries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

from kclient.arguments import check_timeout
from kclient.cluster import Cluster, ClusterSnapshot, topic_error
from kclient.config import AdminConfig
from kclient.errors import KafkaError, LeaderNotAvailableError, UnknownTopicOrPartitionError, error_for
from kclient.net.connection import Connection
from kclient.protocol.message import ApiMessage
from kclient.types import Node, TopicPartition

T = TypeVar("T")
M = TypeVar("M", bound=ApiMessage)

# Brokers learn of a topic that was just created a moment later than its creator does; a name that is wrong
# should not cost a whole `default.api.timeout.ms`.
_UNKNOWN_TOPIC_PATIENCE = 2.0
_LONGEST = 2**31 - 1
"""Milliseconds that a request can name."""


class AdminBase:
    """Holds the cluster; the parts add their calls."""

    _cluster: Cluster
    _config: AdminConfig

    def _check(self) -> None:
        """Raises the stored failure of a background task, or that the client was closed."""
        raise NotImplementedError

    def _milliseconds(self, timeout: float | None) -> int:
        """How long the broker may take, from a timeout in seconds."""
        check_timeout(timeout)
        return self._config.request_timeout_ms if timeout is None else max(1, int(min(timeout * 1000, _LONGEST)))

    async def _ask_any(self, message: ApiMessage, response: type[M], *, timeout: float | None, what: str) -> M:
        async def ask() -> M:
            connection = await self._cluster.connection()
            return await self._cluster.request_on(connection, message, response=response)

        return await self._retrying(ask, timeout, what)

    async def _ask_controller(self, message: ApiMessage, response: type[M], *, timeout: float | None, what: str) -> M:
        """Asks the controller, or with KRaft the broker that passes requests on to it."""

        async def ask() -> M:
            controller = self._cluster.snapshot.controller
            connection = await self._cluster.connection(None if controller is None else controller.id)
            return await self._cluster.request_on(connection, message, response=response)

        return await self._retrying(ask, timeout, what)

    async def _ask_node(
        self, node_id: int | None, message: ApiMessage, response: type[M], timeout: float | None, what: str
    ) -> M:
        """Asks one broker, or the controller for None."""
        if node_id is None:
            return await self._ask_controller(message, response, timeout=timeout, what=what)

        async def ask() -> M:
            if node_id not in self._cluster.snapshot.nodes:
                await self._cluster.refresh(timeout=timeout)
            connection = await self._cluster.connection(node_id)
            return await self._cluster.request_on(connection, message, response=response)

        return await self._retrying(ask, timeout, what)

    async def _at_coordinator(
        self,
        group_id: str,
        operation: Callable[[Connection, Node], Awaitable[T]],
        *,
        timeout: float | None,
        what: str,
    ) -> T:
        """Runs the operation at the group's coordinator, looked up anew for each attempt."""

        async def ask() -> T:
            node = await self._cluster.find_coordinator(group_id, timeout=timeout)
            if node.id not in self._cluster.snapshot.nodes:
                await self._cluster.refresh(timeout=timeout)
            return await operation(await self._cluster.connection(node.id), node)

        return await self._retrying(ask, timeout, what)

    async def _retrying(self, ask: Callable[[], Awaitable[T]], timeout: float | None, what: str) -> T:
        check_timeout(timeout)
        self._check()
        return await self._cluster.retrying(ask, timeout=timeout, what=what)

    async def _at_leaders(
        self,
        partitions: Collection[TopicPartition],
        operation: Callable[[Connection, Collection[TopicPartition]], Awaitable[dict[TopicPartition, T]]],
        *,
        timeout: float | None,
        what: str,
    ) -> dict[TopicPartition, T]:
        """Runs the operation at each leader, with the partitions it leads; answers that came are not asked again."""
        results: dict[TopicPartition, T] = {}
        patience_ends = self._cluster.clock() + _UNKNOWN_TOPIC_PATIENCE

        async def ask() -> dict[TopicPartition, T]:
            missing = [tp for tp in partitions if tp not in results]
            if not missing:
                return results
            snapshot = await self._cluster.refresh({tp.topic for tp in missing}, timeout=timeout)
            patient = self._cluster.clock() < patience_ends
            for node_id, led in _by_leader(snapshot, missing, patient).items():
                connection = await self._cluster.connection(node_id)
                results.update(await operation(connection, led))
            return results

        return await self._retrying(ask, timeout, what)


def _by_leader(
    snapshot: ClusterSnapshot, partitions: Collection[TopicPartition], patient: bool
) -> dict[int, list[TopicPartition]]:
    led: dict[int, list[TopicPartition]] = defaultdict(list)
    for tp in partitions:
        error = topic_error(snapshot, tp.topic)
        if error is not None and not isinstance(error, UnknownTopicOrPartitionError):
            raise error
        if snapshot.partition(tp) is None:
            raise UnknownTopicOrPartitionError(f"{tp} does not exist", retriable=patient)
        leader = snapshot.leader_id(tp)
        if leader is None:
            raise LeaderNotAvailableError(f"{tp} has no leader at the moment")
        led[leader].append(tp)
    return led


def failure(code: int, subject: str, message: str | None = None) -> KafkaError | None:
    """The error of a code, its text beginning with what it is about; None for no error."""
    if not code:
        return None
    text = message or error_for(code).message
    name = subject.partition(" ")[2].strip("'")
    # brokers often begin with it themselves: "Topic 'flights' already exists."
    told = name and text.lower().startswith((f"{subject} ".lower(), f"{subject.partition(' ')[0]} {name} ".lower()))
    return error_for(code, text if told else f"{subject}: {text}")


def check_retriable(code: int, subject: str) -> None:
    """Raises a code that another attempt may cure, so that `_retrying` makes one."""
    error = failure(code, subject)
    if error is not None and error.retriable:
        raise error
