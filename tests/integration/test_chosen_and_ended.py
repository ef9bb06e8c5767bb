"""Polls of chosen partitions, and the ends of partitions, on Kafka and on a gateway."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from kclient import Consumer, Producer
from kclient.admin import Admin
from kclient.types import TopicPartition

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(120),
    pytest.mark.parametrize("server", [pytest.param("kafka", marks=pytest.mark.kafka), "gateway"], indirect=True),
]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_both_in_a_group(server: tuple[str, str], topic: str, protocol: str) -> None:
    broker = server[1]
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with Admin(bootstrap_servers=broker) as admin:
        await admin.create_topic(topic, 2)
    settings: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_partition_eof": True}
    async with (
        Producer(bootstrap_servers=broker) as producer,
        Consumer(topic, bootstrap_servers=broker, group_id=topic, group_protocol=protocol, **settings) as consumer,
    ):
        for partition in (0, 1):
            await (await producer.send_batch(topic, [b"1", b"2"], partition=partition))
        with anyio.fail_after(60):
            records = await consumer.poll(30, partitions=[second])
            while not records.partition_ends:
                assert records.partitions() <= {second}
                records = await consumer.poll(10, partitions=[second])
            assert records.partition_ends == {second: 2}
            assert await consumer.position(first) == 0
            records = await consumer.poll(10)
            while not records.partition_ends:
                records = await consumer.poll(10)
            assert records.partition_ends == {first: 2}
            await (await producer.send(topic, b"3", partition=1))
            records = await consumer.poll(10)
            assert records.partition_ends == {second: 3}
            assert not await consumer.poll(0.7)


async def test_the_end_is_that_of_decided_transactions(server: tuple[str, str], topic: str) -> None:
    broker = server[1]
    only = TopicPartition(topic, 0)
    async with Admin(bootstrap_servers=broker) as admin:
        await admin.create_topic(topic, 1)
    async with (
        Producer(bootstrap_servers=broker, transactional_id=topic) as producer,
        Consumer(
            bootstrap_servers=broker,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            enable_partition_eof=True,
        ) as consumer,
    ):
        await producer.init_transactions()
        async with producer.transaction():
            await producer.send(topic, b"1")
        consumer.assign([only])
        found = 0
        ends: dict[TopicPartition, int] = {}
        with anyio.fail_after(60):
            while not ends.get(only, 0):
                records = await consumer.poll(10)
                found += len(records)
                ends |= records.partition_ends
        assert (found, ends) == (1, {only: 2})
