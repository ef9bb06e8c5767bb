"""What a quota of a broker does to a connection: the pauses that it asks for, and who keeps them."""

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
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    MetadataRequest,
    OpData,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kclient.records import BatchBuilder
from tests.wire_session import until

pytestmark = pytest.mark.anyio

BYTE_RATE = 10_000
"""Bytes a second for one client id; a broker looks at the last ten to eleven seconds."""
TOO_MUCH = 116_000
"""So much at once asks for a pause of half a second to a second and a half."""


async def ask(connection: Connection, message: ApiMessage) -> Any:
    return await connection.request(message, negotiate(ApiKey(message.API_KEY or 0), connection.api_versions))


@asynccontextmanager
async def quota(
    admin: Connection, client_id: str, name: str = "producer_byte_rate", rate: float = BYTE_RATE
) -> AsyncIterator[None]:
    """A quota for a client id, while it lasts: for the bytes that it produces, or another."""
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

    await alter(OpData(key=name, value=rate))
    try:
        await until(known, bool)
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await alter(OpData(key=name, remove=True))
    await until(known, lambda found: not found)


def one_partition(topic: str) -> CreatableTopic:
    return CreatableTopic(name=topic, num_partitions=1, replication_factor=1)


def produce_request(topic: str, size: int) -> ProduceRequest:
    builder = BatchBuilder(limit=1 << 20)
    builder.append(0, None, bytes(size))
    data = [PartitionProduceData(index=0, records=bytes(builder.build()))]
    return ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[TopicProduceData(name=topic, partition_data=data)])


async def test_the_pause_is_what_brings_the_rate_back(broker: str, topic: str) -> None:
    """As Kafka computes it: over ten seconds that were idle before, and the time since the first request."""
    client_id = f"measured-{uuid.uuid4().hex[:8]}"
    async with Supervisor("test") as supervisor:
        admin = await Connection.open(broker, supervisor=supervisor)
        await ask(admin, CreateTopicsRequest(topics=[one_partition(topic)]))
        with anyio.fail_after(30):
            async with quota(admin, client_id):
                # what was produced before the broker heeded the quota does not count: sent in parts, none is too much
                found: list[float] = []
                sent = 0
                while not found:
                    limited = await Connection.open(
                        broker, ConnectionSettings(client_id=client_id), supervisor=supervisor
                    )
                    answer = await limited.request(produce_request(topic, TOO_MUCH // 8), 12)
                    assert answer.responses[0].partition_responses[0].error_code in (0, 3, 6)
                    sent += TOO_MUCH // 8
                    if answer.throttle_time_ms:
                        found.append(answer.throttle_time_ms / 1000)
                    await limited.aclose()
                assert sent >= BYTE_RATE * 10, "a burst of ten seconds is allowed"
                again = await Connection.open(broker, ConnectionSettings(client_id=client_id), supervisor=supervisor)
                answer = await again.request(produce_request(topic, 20 * BYTE_RATE), 12)
                assert answer.throttle_time_ms / 1000 - found[0] == pytest.approx(20, abs=1), "20 seconds' worth more"
                await again.aclose()
        await admin.aclose()


async def test_a_consumer_gets_nothing_for_so_long(broker: str, topic: str) -> None:
    client_id = f"reading-{uuid.uuid4().hex[:8]}"
    async with Supervisor("test") as supervisor:
        admin = await Connection.open(broker, supervisor=supervisor)
        await ask(admin, CreateTopicsRequest(topics=[one_partition(topic)]))
        await until(
            lambda: admin.request(produce_request(topic, TOO_MUCH), 12),
            lambda answer: answer.responses[0].partition_responses[0].error_code == 0,
        )
        wanted = FetchRequestPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        fetch = FetchRequest(
            replica_id=-1, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, session_epoch=-1,
            topics=[FetchRequestTopic(topic=topic, partitions=[wanted])],
        )  # fmt: skip
        with anyio.fail_after(30):
            async with quota(admin, client_id, "consumer_byte_rate", 2 * BYTE_RATE):
                answers = []
                while not answers or not answers[-1].throttle_time_ms:  # it may heed the quota a moment later
                    limited = await Connection.open(
                        broker, ConnectionSettings(client_id=client_id), supervisor=supervisor
                    )
                    answers.append(await limited.request(fetch, 11))
                    await limited.aclose()
                assert answers[0].responses[0].partitions[0].records
                assert answers[-1].responses == []
                assert answers[-1].session_id == 0
                # 2 * 116,000 bytes are 11.6 seconds' worth; a moment has passed since the first
                assert answers[-1].throttle_time_ms / 1000 <= 12
        await admin.aclose()


async def test_topics_are_refused_beyond_the_quota(broker: str, topic: str) -> None:
    """Tokens for eleven seconds, as of KIP-599: owing comes before refusing, by clients that know the error."""
    client_id = f"making-{uuid.uuid4().hex[:8]}"

    def creation(name: str, partitions: int) -> CreateTopicsRequest:
        wanted = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
        return CreateTopicsRequest(topics=[wanted], validate_only=True)

    async with Supervisor("test") as supervisor:
        admin = await Connection.open(broker, supervisor=supervisor)
        async with quota(admin, client_id, "controller_mutation_rate", 1.0):
            strict = await Connection.open(broker, ConnectionSettings(client_id=client_id), supervisor=supervisor)
            with anyio.fail_after(30):
                answer, made = None, 0
                while answer is None or not answer.throttle_time_ms:
                    answer = await strict.request(creation(f"{topic}-{made}", 5), 7)
                    made += 1
                assert answer.topics[0].error_code == 89
                # Kafka leaves out the text that goes with the code in any case
                assert answer.topics[0].error_message in (None, "The throttling quota has been exceeded.")
                assert 0 < answer.throttle_time_ms <= 5_000
                old = await Connection.open(broker, ConnectionSettings(client_id=client_id), supervisor=supervisor)
                answer = await old.request(creation(f"{topic}-old", 10), 5)
                assert answer.topics[0].error_code == 0
                assert 8_000 < answer.throttle_time_ms <= 15_000
            await strict.aclose()
            await old.aclose()
        await admin.aclose()


async def test_a_quota_makes_the_connection_pause(broker: str, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "kclient.net.connection")
    client_id = f"limited-{uuid.uuid4().hex[:8]}"
    async with Supervisor("test") as supervisor:
        admin = await Connection.open(broker, supervisor=supervisor)
        limited = await Connection.open(broker, ConnectionSettings(client_id=client_id), supervisor=supervisor)
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
