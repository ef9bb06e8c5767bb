"""Transactions on three real brokers, of which one after the other is killed: what was committed is there, once and in
order, and nothing else is."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import kclient
from kclient.admin import Admin, NewTopic
from kclient.errors import KafkaError, KafkaTimeoutError, TransactionAbortableError
from kclient.types import ConsumerGroupMetadata, TopicPartition
from tests.kafka_cluster import NODES, ONE_CLUSTER, KafkaCluster

pytestmark = [pytest.mark.anyio, pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600), ONE_CLUSTER]

PARTITIONS = 6


@pytest.fixture(params=["cluster", pytest.param("cluster3", marks=pytest.mark.long)])
def brokers(request: pytest.FixtureRequest) -> KafkaCluster:
    made: KafkaCluster = request.getfixturevalue(request.param)
    return made


async def seen(bootstrap: str, topic: str) -> list[list[bytes]]:
    """What a read_committed consumer sees, by partition."""
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    found: list[list[bytes]] = [[] for _ in partitions]
    settings: dict[str, Any] = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}
    async with kclient.Consumer(bootstrap_servers=bootstrap, **settings) as consumer:
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        with anyio.fail_after(60):
            while any([await consumer.position(tp) < ends[tp] for tp in partitions]):
                for record in await consumer.poll(timeout=0.2):
                    found[record.partition].append(record.value)
    return found


async def test_brokers_are_killed_one_after_the_other(brokers: KafkaCluster, topic: str) -> None:
    """Leaders, coordinators of transactions and of groups among them; every third transaction is aborted."""
    committed: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    offset, count, stop = 0, 0, anyio.Event()
    group, read = ConsumerGroupMetadata(f"group-{topic}"), TopicPartition(topic, 0)

    async def transact(producer: kclient.Producer) -> None:
        nonlocal offset, count
        while not stop.is_set():
            count += 1
            new = [b"%d-%d" % (count, partition) for partition in range(PARTITIONS)]
            await producer.begin_transaction()
            try:
                for partition, value in enumerate(new):
                    await producer.send(topic, value, partition=partition)
                await producer.send_offsets_to_transaction({read: count}, group)
                if count % 3 == 0:
                    await producer.abort_transaction()
                    continue
                while True:
                    try:
                        await producer.commit_transaction()
                        break
                    except KafkaTimeoutError:
                        pass  # it goes on
            except TransactionAbortableError:
                await producer.abort_transaction()
                continue
            offset = count
            for values, value in zip(committed, new, strict=True):
                values.append(value)

    async with Admin(bootstrap_servers=brokers.bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, PARTITIONS, 3)])
    await anyio.to_thread.run_sync(brokers.wait_for_leaders, topic, PARTITIONS)
    settings: dict[str, Any] = {"transactional_id": topic, "request_timeout_ms": 10_000}
    try:
        async with kclient.Producer(bootstrap_servers=brokers.bootstrap, **settings) as producer:
            await producer.init_transactions()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(transact, producer)
                for node in NODES:
                    for kill in (True, False):  # some transactions before and after each
                        before = len(committed[0])
                        with anyio.fail_after(90):
                            while len(committed[0]) < before + 5:
                                await anyio.sleep(0.05)
                        if kill:
                            await anyio.to_thread.run_sync(brokers.servers[node].stop, True)
                        else:
                            await anyio.to_thread.run_sync(brokers.heal)
                stop.set()
    finally:
        await anyio.to_thread.run_sync(brokers.heal)
    assert await seen(brokers.bootstrap, topic) == committed
    async with kclient.Consumer(bootstrap_servers=brokers.bootstrap, group_id=group.group_id) as consumer:
        with anyio.fail_after(60):
            while True:
                try:
                    found = (await consumer.committed([read]))[read]
                    break
                except KafkaError:
                    await anyio.sleep(0.1)
    assert found is not None
    assert found.offset == offset
