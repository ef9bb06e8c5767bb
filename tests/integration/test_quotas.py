"""What a quota of a real broker does to a connection: the pauses that it asks for, and who keeps them."""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from kclient.concurrency import Supervisor
from kclient.net.connection import Connection
from kclient.net.settings import ConnectionSettings
from kclient.protocol import ApiKey, negotiate
from kclient.protocol.message import ApiMessage
from kclient.protocol.messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    ComponentData,
    CreatableTopic,
    CreateTopicsRequest,
    DescribeClientQuotasRequest,
    MetadataRequest,
    OpData,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kclient.records import BatchBuilder
from tests.kafka_server import KafkaServer
from tests.wire_session import until

pytestmark = [pytest.mark.anyio, pytest.mark.kafka]

BYTE_RATE = 10_000
"""Bytes a second for one client id; a broker looks at the last ten to eleven seconds."""
TOO_MUCH = 116_000
"""So much at once asks for a pause of half a second to a second and a half."""


async def ask(connection: Connection, message: ApiMessage) -> Any:
    return await connection.request(message, negotiate(ApiKey(message.API_KEY or 0), connection.api_versions))


@asynccontextmanager
async def quota(admin: Connection, client_id: str) -> AsyncIterator[None]:
    """A quota for the bytes that a client id produces, while it lasts."""
    entity = [AlterClientQuotasRequestEntityData(entity_type="client-id", entity_name=client_id)]

    async def alter(operation: OpData) -> None:
        request = AlterClientQuotasRequest(entries=[AlterClientQuotasRequestEntryData(entity=entity, ops=[operation])])
        (entry,) = (await ask(admin, request)).entries
        assert entry.error_code == 0, entry.error_message

    async def known() -> bool:
        component = ComponentData(entity_type="client-id", match_type=0, match=client_id)
        answer = await ask(admin, DescribeClientQuotasRequest(components=[component], strict=True))
        assert answer.error_code == 0, answer.error_message
        return bool(answer.entries)

    await alter(OpData(key="producer_byte_rate", value=float(BYTE_RATE)))
    try:
        await until(known, bool)
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await alter(OpData(key="producer_byte_rate", remove=True))
    await until(known, lambda found: not found)


def produce_request(topic: str, size: int) -> ProduceRequest:
    builder = BatchBuilder(limit=1 << 20)
    builder.append(0, None, bytes(size))
    data = [PartitionProduceData(index=0, records=bytes(builder.build()))]
    return ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[TopicProduceData(name=topic, partition_data=data)])


async def test_a_quota_makes_the_connection_pause(
    kafka: KafkaServer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "kclient.net.connection")
    client_id = f"limited-{uuid.uuid4().hex[:8]}"
    async with Supervisor("test") as supervisor:
        admin = await Connection.open(kafka.bootstrap, supervisor=supervisor)
        limited = await Connection.open(kafka.bootstrap, ConnectionSettings(client_id=client_id), supervisor=supervisor)
        created = await ask(
            admin, CreateTopicsRequest(topics=[CreatableTopic(name=topic, num_partitions=1, replication_factor=1)])
        )
        assert created.topics[0].error_code == 0
        with anyio.fail_after(20):
            async with quota(admin, client_id):
                # The broker may say that it knows the quota a moment before it heeds it.
                answer = ProduceResponse()
                while not answer.throttle_time_ms:
                    answer = await limited.request(produce_request(topic, TOO_MUCH), 12)
                    assert answer.responses[0].partition_responses[0].error_code == 0
                begun = anyio.current_time()
                end = limited.throttled_until
                assert end - begun == pytest.approx(answer.throttle_time_ms / 1000, abs=0.1)
                assert "asks for a pause" in caplog.text

                waiting = [limited.send_nowait(MetadataRequest(topics=[]), 12) for _ in range(3)]
                assert limited.in_flight == 3
                assert "0 in flight" in repr(limited), "they have not been sent"
                # nobody else waits: the pause is this connection's
                await ask(admin, MetadataRequest(topics=[]))
                assert anyio.current_time() < end
                assert not any(pending.done for pending in waiting)

                for pending in waiting:
                    assert (await pending).brokers
                # They left when the pause was over, and the broker, whose own ended with it, answered at once.
                assert end <= anyio.current_time() < end + 2
                assert limited.throttled_until == 0.0
        await limited.aclose()
        await admin.aclose()
