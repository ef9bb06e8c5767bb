"""Share consumers (KIP-932) on Kafka and on a gateway: what one gets, what it says of it, and who gets it then."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterable
from typing import Any

import anyio
import anyio.to_thread
import pytest

import kclient
import kclient.sync
from kclient import AcknowledgeType, ShareConsumer
from kclient.admin import Admin, ConfigResource, ConfigResourceType
from kclient.errors import (
    ClosedError,
    IllegalStateError,
    InvalidRecordStateError,
    KafkaError,
    RecordDeserializationError,
    UnsupportedVersionError,
    WakeupError,
)
from kclient.types import TopicPartition
from tests.kafka_server import KafkaServer

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

ON_ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
VALUES = [b"%d" % number for number in range(6)]


@pytest.fixture
async def admin(broker: str, topic: str) -> AsyncIterator[Admin]:
    async with Admin(bootstrap_servers=broker) as found:
        await found.create_topic(topic, 1)
        yield found


@pytest.fixture
async def group(admin: Admin) -> str:
    """A share group that begins with the oldest record."""
    name = f"share-{uuid.uuid4().hex[:8]}"
    await set_group(admin, name, **{"share.auto.offset.reset": "earliest"})
    return name


async def set_group(admin: Admin, group: str, **settings: str) -> None:
    await admin.alter_configs({ConfigResource(ConfigResourceType.GROUP, group): settings})


async def send(broker: str, topic: str, values: Iterable[bytes], partition: int | None = None) -> None:
    async with kclient.Producer(bootstrap_servers=broker) as producer:
        await producer.send_batch(topic, list(values), partition=partition)
        await producer.flush()


def consumer_of(broker: str, group: str, *topics: str, explicit: bool = True, **more: Any) -> ShareConsumer:
    mode = "explicit" if explicit else "implicit"
    return ShareConsumer(*topics, bootstrap_servers=broker, group_id=group, share_acknowledgement_mode=mode, **more)


async def some(consumer: ShareConsumer, count: int = 1) -> list[kclient.ConsumerRecord]:
    """At least so many records, each accepted where that has to be said."""
    found: list[kclient.ConsumerRecord] = []
    with anyio.fail_after(40):
        while len(found) < count:
            records = await consumer.poll(5.0)
            for record in records:
                if consumer.config.share_acknowledgement_mode == "explicit":
                    consumer.acknowledge(record)
            found += records
    return found


async def next_poll(consumer: ShareConsumer) -> list[kclient.ConsumerRecord]:
    """What the next poll returns that returns something; nothing is said of it."""
    with anyio.fail_after(40):
        while not (records := await consumer.poll(5.0)):
            pass
    return list(records)


def values_of(records: Iterable[kclient.ConsumerRecord]) -> list[Any]:
    return [record.value for record in records]


async def test_accepted_records_do_not_come_again(broker: str, topic: str, group: str) -> None:
    await send(broker, topic, VALUES)
    tp = TopicPartition(topic, 0)
    async with consumer_of(broker, group, topic) as consumer:
        assert consumer.acquisition_lock_timeout_ms() is None
        records = await next_poll(consumer)
        assert values_of(records) == VALUES
        assert {record.delivery_count for record in records} == {1}
        assert consumer.acquisition_lock_timeout_ms() == 30_000
        for record in records:
            consumer.acknowledge(record)
        assert await consumer.commit() == {tp: None}
        assert await consumer.commit() == {}
        with pytest.raises(IllegalStateError, match="cannot be acknowledged"):
            consumer.acknowledge(records[0])
        await send(broker, topic, [b"more"])
        assert values_of(await some(consumer)) == [b"more"]
        assert consumer.metrics().value("records-consumed-total") == 7
    async with consumer_of(broker, group, topic) as other:
        assert not await other.poll(3.0)


@ON_ASYNCIO
async def test_release_and_reject(broker: str, topic: str, group: str) -> None:
    await send(broker, topic, VALUES)
    async with consumer_of(broker, group, topic) as consumer:
        for record in await next_poll(consumer):
            kind = {0: AcknowledgeType.RELEASE, 1: AcknowledgeType.REJECT, 4: AcknowledgeType.RELEASE}
            consumer.acknowledge(record, kind.get(record.offset, AcknowledgeType.ACCEPT))
        again = await some(consumer, 2)
        assert [(record.offset, record.delivery_count) for record in again] == [(0, 2), (4, 2)]
        await consumer.commit()
        assert not await consumer.poll(2.0)


@ON_ASYNCIO
async def test_explicit_mode_wants_every_record_acknowledged(broker: str, topic: str, group: str) -> None:
    await send(broker, topic, VALUES)
    async with consumer_of(broker, group, topic) as consumer:
        records = await next_poll(consumer)
        consumer.acknowledge(records[0], AcknowledgeType.RELEASE)
        consumer.acknowledge(records[0])  # what is not sent yet may be corrected
        with pytest.raises(IllegalStateError, match=r"5 records of .*, the first of them at offset 1"):
            await consumer.poll(0.1)
        with pytest.raises(IllegalStateError, match="no poll returned it"):
            consumer.acknowledge_offset((topic, 0), 99)
        assert await consumer.commit() == {TopicPartition(topic, 0): None}
        for record in records[1:]:
            consumer.acknowledge(record)
        assert not await consumer.poll(0.5)


@ON_ASYNCIO
async def test_implicit_mode_accepts_with_the_next_poll(broker: str, topic: str, group: str) -> None:
    await send(broker, topic, VALUES)
    told: list[tuple[dict[TopicPartition, set[int]], KafkaError | None]] = []
    async with consumer_of(broker, group, topic, explicit=False, max_poll_records=4) as consumer:
        consumer.set_acknowledgement_commit_callback(lambda offsets, error: told.append((offsets, error)))
        first = await next_poll(consumer)
        assert values_of(first) == VALUES[:4]
        with pytest.raises(IllegalStateError, match="implicit"):
            consumer.acknowledge(first[0])
        assert values_of(await next_poll(consumer)) == VALUES[4:]
        assert await consumer.commit() == {TopicPartition(topic, 0): None}
    tp = TopicPartition(topic, 0)
    assert {offset for offsets, error in told if error is None for offset in offsets[tp]} == set(range(6))
    async with consumer_of(broker, group, topic) as other:
        assert not await other.poll(2.0)


@ON_ASYNCIO
async def test_closing_gives_back_what_was_returned_last_and_the_rest(broker: str, topic: str, group: str) -> None:
    await send(broker, topic, VALUES)
    async with consumer_of(broker, group, topic, explicit=False, max_poll_records=2) as consumer:
        assert values_of(await next_poll(consumer)) == VALUES[:2]
        assert values_of(await next_poll(consumer)) == VALUES[2:4]  # which accepts those before
    async with consumer_of(broker, group, topic) as other:
        records = await next_poll(other)
        assert values_of(records) == VALUES[2:]
        other.acknowledge(records[0])
        # the others are given back as this one closes: long before their lock is over
    with anyio.fail_after(15):
        async with consumer_of(broker, group, topic) as third:
            assert values_of(await next_poll(third)) == VALUES[3:]


@ON_ASYNCIO
async def test_two_consumers_share_a_partition(broker: str, topic: str, group: str) -> None:
    for value in VALUES:
        await send(broker, topic, [value])  # a batch each
    settings: dict[str, Any] = {"max_poll_records": 1, "share_acquire_mode": "record_limit"}
    async with (
        consumer_of(broker, group, topic, **settings) as one,
        consumer_of(broker, group, topic, **settings) as two,
    ):
        held = [await next_poll(one), await next_poll(two)]
        assert [len(records) for records in held] == [1, 1]
        assert values_of(held[0]) != values_of(held[1])
        for consumer, records in zip((one, two), held, strict=True):
            consumer.acknowledge(records[0])
        rest = await some(one, 2) + await some(two, 2)
        found = values_of([*held[0], *held[1], *rest])
        assert sorted(found) == VALUES


@ON_ASYNCIO
async def test_a_lock_that_is_over_and_one_that_is_renewed(broker: str, admin: Admin, topic: str, group: str) -> None:
    await set_group(admin, group, **{"share.record.lock.duration.ms": "15000"})
    await send(broker, topic, VALUES[:2])
    tp = TopicPartition(topic, 0)
    async with consumer_of(broker, group, topic) as slow, consumer_of(broker, group, topic) as other:
        records = await next_poll(slow)
        assert slow.acquisition_lock_timeout_ms() == 15_000
        begun = anyio.current_time()
        await anyio.sleep(8)  # what is measured here is time
        slow.acknowledge(records[0], AcknowledgeType.RENEW)
        assert await slow.commit() == {tp: None}
        renewed = anyio.current_time()
        again = await next_poll(other)
        assert [(record.offset, record.delivery_count) for record in again] == [(1, 2)]
        assert 13 < anyio.current_time() - begun < 21
        other.acknowledge(again[0])
        await other.commit()
        slow.acknowledge(records[1])
        [error] = (await slow.commit()).values()
        assert isinstance(error, InvalidRecordStateError)
        [back] = await next_poll(slow)
        assert (back.offset, back.value, back.delivery_count) == (0, VALUES[0], 1)
        assert anyio.current_time() - renewed < 15
        slow.acknowledge(back)
        assert await slow.commit() == {tp: None}


@ON_ASYNCIO
async def test_a_renewed_record_may_be_acknowledged_without_another_poll(broker: str, topic: str, group: str) -> None:
    await send(broker, topic, VALUES[:2])
    async with consumer_of(broker, group, topic) as consumer:
        first, second = await next_poll(consumer)
        consumer.acknowledge(first, AcknowledgeType.RENEW)
        consumer.acknowledge(second)
        await consumer.commit()
        consumer.acknowledge(first)
        assert await consumer.commit() == {TopicPartition(topic, 0): None}
        assert not await consumer.poll(1.0)


async def test_several_partitions(broker: str, admin: Admin, topic: str, group: str) -> None:
    await admin.create_partitions({topic: 3})
    for partition in range(3):
        await send(broker, topic, [b"%d" % partition], partition)
    async with consumer_of(broker, group, topic) as consumer:
        found: list[kclient.ConsumerRecord] = []
        results: dict[TopicPartition, KafkaError | None] = {}
        while len(found) < 3:
            found += await some(consumer)
            results |= await consumer.commit()
        assert sorted(values_of(found)) == [b"0", b"1", b"2"]
        assert results == {TopicPartition(topic, partition): None for partition in range(3)}


@ON_ASYNCIO
async def test_columns(broker: str, topic: str, group: str) -> None:
    await send(broker, topic, VALUES)
    async with consumer_of(broker, group, topic) as consumer:
        with anyio.fail_after(40):
            while not (batch := await consumer.poll_arrow(5.0)).num_rows:
                assert batch.schema.names[-1] == "deliveryCount"
        assert batch.column("value").to_pylist() == VALUES
        assert batch.column("deliveryCount").to_pylist() == [1] * 6
        consumer.acknowledge_arrow(batch.slice(0, 2))
        consumer.acknowledge_arrow(batch.slice(2), AcknowledgeType.RELEASE)
        consumer.acknowledge_offset((topic, 0), 3)
        with anyio.fail_after(40):
            while not (batch := await consumer.poll_arrow(5.0, columns=["offset", "deliveryCount"])).num_rows:
                pass
        assert batch.to_pylist() == [{"offset": offset, "deliveryCount": 2} for offset in (2, 4, 5)]
        # the columns that acknowledge_arrow needs are not there
        with pytest.raises(TypeError, match="needs the columns topic, partition and offset"):
            consumer.acknowledge_arrow(batch)
        for offset in (2, 4, 5):
            consumer.acknowledge_offset((topic, 0), offset)


@ON_ASYNCIO
async def test_a_record_that_cannot_be_deserialized(broker: str, topic: str, group: str) -> None:
    await send(broker, topic, [b"0", b"x", b"2"])
    async with consumer_of(broker, group, topic, value_deserializer=lambda data: int(data)) as consumer:
        assert values_of(await some(consumer)) == [0]
        with pytest.raises(RecordDeserializationError, match="The record is released") as caught:
            await consumer.poll(5.0)
        assert caught.value.offset == 1
        consumer.acknowledge_offset((topic, 0), 1, AcknowledgeType.REJECT)
        assert values_of(await some(consumer)) == [2]
        await consumer.commit()
        assert not await consumer.poll(1.0)


async def test_iterating_and_wakeup(broker: str, topic: str, group: str) -> None:
    await send(broker, topic, VALUES)
    async with consumer_of(broker, group, topic, explicit=False) as consumer:
        found: list[bytes] = []
        with anyio.fail_after(40):
            async for record in consumer:
                found.append(record.value)
                if len(found) == 4:
                    break
        assert found == VALUES[:4]
        consumer.wakeup()
        with pytest.raises(WakeupError):
            await consumer.poll(5.0)
    async with consumer_of(broker, group, topic, explicit=False) as other:
        assert values_of(await next_poll(other)) == VALUES[3:]  # the fourth one may not be processed
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wake_later, other)
            with pytest.raises(WakeupError):
                await other.poll(30.0)


async def wake_later(consumer: ShareConsumer) -> None:
    await anyio.sleep(0.3)
    await anyio.to_thread.run_sync(consumer.wakeup)


@ON_ASYNCIO
async def test_a_topic_that_comes_later(broker: str, admin: Admin, topic: str, group: str) -> None:
    async with consumer_of(broker, group, f"{topic}-later", allow_auto_create_topics=False) as consumer:
        assert not await consumer.poll(1.0)
        assert consumer.subscription() == {f"{topic}-later"}
        await admin.create_topic(f"{topic}-later", 1)
        await send(broker, f"{topic}-later", VALUES)
        assert len(await some(consumer, 6)) == 6
        await consumer.unsubscribe()
        with pytest.raises(IllegalStateError, match="subscribe"):
            await consumer.poll(0.1)
    with pytest.raises(ClosedError):
        await consumer.poll(0.1)


@ON_ASYNCIO
@pytest.mark.kafka
async def test_beside_the_console_of_kafka(broker: str, kafka: KafkaServer, topic: str, group: str) -> None:
    await send(broker, topic, VALUES)
    async with consumer_of(broker, group, topic) as consumer:
        for record in await next_poll(consumer):
            consumer.acknowledge(record, AcknowledgeType.ACCEPT if record.offset < 3 else AcknowledgeType.RELEASE)
        await consumer.commit()
        arguments = ["--bootstrap-server", broker, "--group", group, "--topic", topic, "--max-messages", "3"]
        read = await anyio.to_thread.run_sync(lambda: kafka.run_tool(CONSOLE, *arguments, timeout=60))
        assert read.split() == ["3", "4", "5"]


def test_in_blocking_code(broker: str, topic: str) -> None:
    group = f"share-{uuid.uuid4().hex[:8]}"
    with kclient.sync.Admin(bootstrap_servers=broker) as admin:
        admin.create_topic(topic, 1)
        admin.alter_configs({ConfigResource(ConfigResourceType.GROUP, group): {"share.auto.offset.reset": "earliest"}})
    with kclient.sync.Producer(bootstrap_servers=broker) as producer:
        producer.send_batch(topic, VALUES)
    settings = {"bootstrap_servers": broker, "group_id": group}
    with kclient.sync.ShareConsumer(topic, **settings, share_acknowledgement_mode="explicit") as consumer:
        while not (records := consumer.poll(5.0)):
            pass
        assert values_of(records) == VALUES
        for record in records:
            consumer.acknowledge(record, AcknowledgeType.RELEASE if record.offset else AcknowledgeType.ACCEPT)
        assert consumer.commit() == {TopicPartition(topic, 0): None}
    with kclient.sync.ShareConsumer(topic, **settings) as other:
        for record in other:
            if record.offset == 5:
                break
        assert other.poll_arrow(0.5).num_rows == 0
        other.commit_async()


@ON_ASYNCIO
@pytest.mark.kafka
async def test_an_older_broker(kafka3: KafkaServer, topic: str) -> None:
    async with consumer_of(kafka3.bootstrap, "g", topic) as consumer:
        with pytest.raises(UnsupportedVersionError, match="does not serve share groups"):
            await consumer.poll(20.0)
