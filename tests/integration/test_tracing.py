"""Traces from producers to consumers, on Kafka and on a gateway; another client reads and writes the headers, too."""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import Any

import anyio
import anyio.to_thread
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from kclient import Consumer, Producer, ShareConsumer
from kclient.admin import Admin, ConfigResource, ConfigResourceType
from kclient.errors import CommitFailedError, DeliveryError
from kclient.types import TopicPartition
from tests.traced import Spans, attributes, header_of, id_of, linked

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

ON_BOTH = pytest.mark.parametrize("server", [pytest.param("kafka", marks=pytest.mark.kafka), "gateway"], indirect=True)
ON_ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)


@ON_BOTH
async def test_from_sending_to_committing(server: tuple[str, str], topic: str) -> None:
    spans = Spans()
    broker = server[1]
    common: dict[str, Any] = {"bootstrap_servers": broker, "tracing": spans.provider}
    async with Admin(bootstrap_servers=broker) as admin:
        await admin.create_topic(topic, 2)
    async with Producer(transactional_id=topic, **common) as producer:
        await producer.init_transactions()
        async with producer.transaction():
            await producer.send(topic, b"1", partition=0)
            await producer.send_batch(topic, [b"2", b"3"], partition=1)
    reading: dict[str, Any] = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    async with Consumer(topic, group_id=topic, enable_auto_commit=False, **reading, **common) as consumer:
        found = 0
        with anyio.fail_after(30):
            while found < 3:
                for record in await consumer.poll(1.0):
                    found += 1
                    with consumer.processing(record):
                        await consumer.commit({TopicPartition(topic, record.partition): record.offset + 1})
    single, batch = sorted(spans.named(f"send {topic}"), key=lambda span: "batch.message_count" in attributes(span))
    assert attributes(single)["kafka.offset"] == 0
    assert attributes(batch)["batch.message_count"] == 2
    assert set().union(*map(linked, spans.named(f"poll {topic}"))) == {id_of(single), id_of(batch)}
    processed = spans.named(f"process {topic}")
    assert sorted(span.parent.span_id for span in processed if span.parent) == sorted(
        [id_of(single), id_of(batch), id_of(batch)]
    )
    commits = spans.named(f"commit {topic}")
    assert [span.parent and span.parent.span_id for span in commits] == [id_of(span) for span in processed]
    assert not spans.open


@ON_BOTH
@ON_ASYNCIO
async def test_another_client_reads_and_writes_the_headers(server: tuple[str, str], topic: str) -> None:
    spans = Spans()
    broker = server[1]
    common: dict[str, Any] = {"bootstrap_servers": broker, "tracing": spans.provider}
    async with Admin(bootstrap_servers=broker) as admin:
        await admin.create_topic(topic, 1)
    async with Producer(**common) as producer:
        await (await producer.send(topic, b"1"))
    sent = spans.one(f"send {topic}")
    written = ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    other = AIOKafkaProducer(bootstrap_servers=broker)
    await other.start()
    try:
        await other.send_and_wait(topic, b"2", headers=[written])
    finally:
        await other.stop()
    reader = AIOKafkaConsumer(topic, bootstrap_servers=broker, auto_offset_reset="earliest")
    await reader.start()
    try:
        with anyio.fail_after(20):
            record = await reader.getone()
    finally:
        await reader.stop()
    assert record.headers == (header_of(sent),)
    async with Consumer(**common) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 1)
        with anyio.fail_after(20):
            (mine,) = await consumer.poll(10)
        with consumer.processing(mine) as span:
            assert span.get_span_context().trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    assert linked(spans.one(f"poll {topic}")) == {0xB7AD6B7169203331}


@ON_BOTH
async def test_spans_end_with_their_clients(server: tuple[str, str], topic: str) -> None:
    """Amid sends and commits clients are closed at once."""
    spans = Spans()
    broker = server[1]
    common: dict[str, Any] = {"bootstrap_servers": broker, "tracing": spans.provider}
    async with Admin(bootstrap_servers=broker) as admin:
        await admin.create_topic(topic, 1)
    for _ in range(5):
        producer = Producer(**common, linger_ms=0)
        await producer.start()
        for number in range(50):
            await producer.send(topic, b"%d" % number)
        with suppress(DeliveryError):
            await producer.close(0)
    consumer = Consumer(topic, group_id=topic, auto_offset_reset="earliest", enable_auto_commit=False, **common)
    await consumer.start()
    with anyio.fail_after(30):
        async with Producer(**common) as producer:
            await (await producer.send(topic, b"last"))
        assert await consumer.poll(20)
    outcomes: list[Exception | None] = []
    for _ in range(5):
        consumer.commit_async(callback=lambda _, error: outcomes.append(error))
    await consumer.close(0)
    assert len(outcomes) == 5
    assert len(spans.named(f"send {topic}")) == 251
    assert len(spans.named(f"commit {topic}")) == 5
    assert not spans.open


@ON_BOTH
async def test_a_commit_that_is_refused(server: tuple[str, str], topic: str) -> None:
    spans = Spans()
    broker = server[1]
    async with Admin(bootstrap_servers=broker) as admin:
        await admin.create_topic(topic, 1)
    async with Producer(bootstrap_servers=broker) as producer:
        await (await producer.send(topic, b"1"))
    reading: dict[str, Any] = {"bootstrap_servers": broker, "group_id": topic, "auto_offset_reset": "earliest"}
    async with Consumer(topic, tracing=spans.provider, **reading, enable_auto_commit=False) as consumer:
        with anyio.fail_after(30):
            assert await consumer.poll(20)
        async with Admin(bootstrap_servers=broker) as admin:
            await admin.remove_members_from_consumer_group(topic)
        with pytest.raises(CommitFailedError):
            await consumer.commit()
        (commit,) = spans.named(f"commit {topic}")
        assert attributes(commit)["error.type"]
    assert not spans.open


@ON_BOTH
async def test_a_share_consumer(server: tuple[str, str], topic: str) -> None:
    spans = Spans()
    broker = server[1]
    common: dict[str, Any] = {"bootstrap_servers": broker, "tracing": spans.provider}
    group = f"share-{uuid.uuid4().hex[:8]}"
    async with Admin(bootstrap_servers=broker) as admin:
        await admin.create_topic(topic, 1)
        await admin.alter_configs(
            {ConfigResource(ConfigResourceType.GROUP, group): {"share.auto.offset.reset": "earliest"}}
        )
    async with Producer(**common) as producer:
        await (await producer.send(topic, b"1"))
    async with ShareConsumer(topic, group_id=group, **common) as consumer:
        with anyio.fail_after(60):
            (record,) = await consumer.poll(50)
        with consumer.processing(record):
            await consumer.commit()
    sent, commit = spans.one(f"send {topic}"), spans.one(f"commit {topic}")
    processed = spans.one(f"process {topic}")
    assert linked(spans.one(f"poll {topic}")) == linked(processed) == {id_of(sent)}
    assert commit.parent is not None
    assert commit.parent.span_id == id_of(processed)
    assert not spans.open
