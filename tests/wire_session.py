"""Speaks Kafka's protocol to any broker through `Connection`, each request in a version that the test chooses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
import pytest

from kclient.concurrency import Supervisor
from kclient.errors import ErrorCode
from kclient.net.connection import Connection
from kclient.net.sasl.login import Login
from kclient.protocol import ApiKey, ApiMessage, negotiate
from kclient.protocol.messages import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponseTopic,
)

ON_EACH_SERVER = pytest.mark.parametrize(
    ("server", "anyio_backend"),
    [
        pytest.param("kafka3", "asyncio", marks=pytest.mark.kafka),
        pytest.param("kafka", "asyncio", marks=pytest.mark.kafka),
        pytest.param("kafka", "trio", marks=pytest.mark.kafka),
        pytest.param("gateway", "asyncio"),
    ],
    indirect=True,
)
"""Every kind of server, and one of them on trio as well: what differs there is not the protocol."""

T = TypeVar("T")


class WireSession:
    """A connection; `await session(request)` takes the newest common version of an API, or the one in `pinned`."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.pinned: dict[int, int] = {}

    def versions(self, api: ApiKey) -> range:
        """What the broker advertises."""
        low, high = self.connection.api_versions[api]
        return range(low, high + 1)

    def version(self, api: int) -> int:
        return self.pinned[api] if api in self.pinned else negotiate(api, self.connection.api_versions)

    async def __call__(self, request: ApiMessage, version: int | None = None) -> Any:
        assert request.API_KEY is not None
        return await self.connection.request(request, self.version(request.API_KEY) if version is None else version)

    async def send_only(self, request: ApiMessage) -> None:
        """Send a request that has no response."""
        assert request.API_KEY is not None
        await self.connection.send_nowait(request, self.version(request.API_KEY), expect_response=False)

    async def create(self, topic: str, partitions: int = 1, **configs: str) -> MetadataResponseTopic:
        """Create a topic and wait until it is served; gives what Metadata says of it."""
        settings = [CreatableTopicConfig(name=name.replace("_", "."), value=value) for name, value in configs.items()]
        wanted = CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1, configs=settings)
        # a broker that has just started answers before its controller counts it among those that are there
        answer = await until(
            lambda: self(CreateTopicsRequest(topics=[wanted])),
            lambda answer: answer.topics[0].error_code != ErrorCode.INVALID_REPLICATION_FACTOR,
        )
        assert answer.topics[0].error_code == 0, answer
        return await self.ready(topic)

    async def ready(self, topic: str) -> MetadataResponseTopic:
        """What Metadata says of a topic, once every partition has a leader that serves it."""

        async def ask() -> MetadataResponseTopic:
            request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
            found: MetadataResponseTopic = (await self(request, 12)).topics[0]
            return found

        async def served() -> bool:
            partitions = [ListOffsetsPartition(partition_index=n, timestamp=-1) for n in range(len(found.partitions))]
            request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=partitions)])
            answer = await self(request, 5)
            return all(item.error_code == 0 for item in answer.topics[0].partitions)

        found = await until(
            ask, lambda found: not found.error_code and all(item.error_code == 0 for item in found.partitions)
        )
        await until(served, bool)  # Kafka tells of a leader a moment before the leader knows
        return found


@asynccontextmanager
async def wire_session(bootstrap: str, login: Login | None = None) -> AsyncIterator[WireSession]:
    """A session with a broker for the length of the block."""
    async with Supervisor("versions") as supervisor:
        connection = await Connection.open(bootstrap, supervisor=supervisor, login=login)
        try:
            yield WireSession(connection)
        finally:
            await connection.aclose()


async def until(ask: Callable[[], Awaitable[T]], fits: Callable[[T], bool], seconds: float = 30) -> T:
    """The first answer that fits: what brokers do in the background is asked for again and again."""
    answer: T | None = None
    with anyio.move_on_after(seconds):
        while True:
            answer = await ask()
            if fits(answer):
                return answer
            await anyio.sleep(0.01)
    raise AssertionError(f"after {seconds} s still {answer!r}")
