"""An admin client and a cluster in memory that answers administrative requests as a test tells it to."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import kclient
from kclient.protocol.messages import (
    CreatableTopicResult,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsResponse,
)
from kclient.protocol.registry import ApiKey
from tests.fake_kafka import FakeBroker, FakeKafka

FAST = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5, "reconnect_backoff_ms": 1, "reconnect_backoff_max_ms": 5}
KRAFT = {ApiKey.DESCRIBE_QUORUM: (0, 2)}
VERSIONS = {
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.DELETE_TOPICS: (1, 6),
    ApiKey.CREATE_PARTITIONS: (0, 3),
    ApiKey.LIST_OFFSETS: (1, 10),
    ApiKey.DESCRIBE_CLUSTER: (0, 2),
    ApiKey.LIST_GROUPS: (0, 5),
}


@asynccontextmanager
async def administering(kafka: FakeKafka, **settings: Any) -> AsyncIterator[kclient.Admin]:
    async with kclient.Admin(bootstrap_servers=kafka.bootstrap, **{**FAST, **settings}) as admin:
        yield admin


class Controller:
    """Answers what changes topics: with an error code by topic for each request, then always with success.

    A code may also be a list, of which each answer to that topic uses up one.
    """

    def __init__(self, kafka: FakeKafka, codes: dict[str, list[int]] | None = None) -> None:
        self.asked: list[tuple[int, list[str]]] = []
        """The broker and the topics of each request."""
        self.codes = {name: deque(found) for name, found in (codes or {}).items()}
        self.throttle_ms = 0
        self.before: Callable[[FakeBroker], Any] | None = None
        """Called before each answer; what it returns takes the answer's place."""
        kafka.scripts[ApiKey.CREATE_TOPICS] = self._create
        kafka.scripts[ApiKey.DELETE_TOPICS] = self._delete
        kafka.scripts[ApiKey.CREATE_PARTITIONS] = self._grow

    def _code(self, name: str) -> int:
        found = self.codes.get(name)
        return found.popleft() if found else 0

    def _answered(self, broker: FakeBroker, names: list[str]) -> Any:
        self.asked.append((broker.node_id, names))
        return None if self.before is None else self.before(broker)

    def _create(self, broker: FakeBroker, request: Any) -> Any:
        names = [topic.name for topic in request.topics]
        results = [CreatableTopicResult(name=name, error_code=self._code(name)) for name in names]
        answer = CreateTopicsResponse(topics=results, throttle_time_ms=self.throttle_ms)
        return self._answered(broker, names) or answer

    def _delete(self, broker: FakeBroker, request: Any) -> Any:
        names = [topic.name for topic in request.topics]
        results = [DeletableTopicResult(name=name, error_code=self._code(name)) for name in names]
        answer = DeleteTopicsResponse(responses=results, throttle_time_ms=self.throttle_ms)
        return self._answered(broker, names) or answer

    def _grow(self, broker: FakeBroker, request: Any) -> Any:
        names = [topic.name for topic in request.topics]
        results = [CreatePartitionsTopicResult(name=name, error_code=self._code(name)) for name in names]
        answer = CreatePartitionsResponse(results=results, throttle_time_ms=self.throttle_ms)
        return self._answered(broker, names) or answer
