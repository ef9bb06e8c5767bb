"""Clients that process a topic of three partitions, and what readers see of the outcome."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import anyio

import kclient
from kclient import ConsumerRecord, ProducerRecord, TopicPartition
from kclient.admin import NewTopic
from kclient.processing import Processor
from kclient.testing import memory_broker

PARTITIONS = 3
IN = [TopicPartition("in", number) for number in range(PARTITIONS)]
OUT = [TopicPartition("out", number) for number in range(PARTITIONS)]

READING: dict[str, Any] = {
    "group_id": "g",
    "enable_auto_commit": False,
    "isolation_level": "read_committed",
    "auto_offset_reset": "earliest",
    "heartbeat_interval_ms": 50,
    "retry_backoff_ms": 1,
    "retry_backoff_max_ms": 5,
    "fetch_max_wait_ms": 20,
}
WRITING: dict[str, Any] = {"transactional_id": "p", "linger_ms": 0, "retry_backoff_ms": 1, "retry_backoff_max_ms": 5}


def copied(record: ConsumerRecord) -> ProducerRecord:
    """What most tests do to a record."""
    return ProducerRecord("out", record.value, partition=record.partition)


@asynccontextmanager
async def broker(count: int) -> AsyncIterator[str]:
    """The address of a broker with so many records in the topic `in`, and an empty topic `out`."""
    with memory_broker() as address:
        async with kclient.Admin(bootstrap_servers=address) as admin:
            await admin.create_topics([NewTopic(name, PARTITIONS) for name in ("in", "out", "dead")])
        await fill(address, range(count))
        yield address


async def fill(address: str, numbers: Iterable[int]) -> None:
    """Write records to the topic `in`, round and round its partitions."""
    async with kclient.Producer(bootstrap_servers=address) as producer:
        for number in numbers:
            await producer.send("in", b"%d" % number, partition=number % PARTITIONS)


@asynccontextmanager
async def clients(
    address: str, *, reading: dict[str, Any] | None = None, **writing: Any
) -> AsyncIterator[tuple[kclient.Consumer, kclient.Producer]]:
    """A consumer and a producer that can process."""
    async with (
        kclient.Producer(bootstrap_servers=address, **{**WRITING, **writing}) as producer,
        kclient.Consumer("in", bootstrap_servers=address, **{**READING, **(reading or {})}) as consumer,
    ):
        yield consumer, producer


async def seen(address: str, topic: str = "out", isolation_level: str = "read_committed") -> list[ConsumerRecord]:
    """What a reader sees of a topic, in the order of offsets, partition by partition."""
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    found: dict[int, list[ConsumerRecord]] = {number: [] for number in range(PARTITIONS)}
    async with kclient.Consumer(
        bootstrap_servers=address, isolation_level=isolation_level, auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        with anyio.fail_after(20):
            while any([await consumer.position(tp) < ends[tp] for tp in partitions]):
                for record in await consumer.poll(timeout=0.1):
                    found[record.partition].append(record)
    return [record for number in range(PARTITIONS) for record in found[number]]


async def numbers(address: str, topic: str = "out", isolation_level: str = "read_committed") -> list[list[int]]:
    """The values of a topic, by partition, in order."""
    found = await seen(address, topic, isolation_level)
    return [[int(record.value) for record in found if record.partition == number] for number in range(PARTITIONS)]


def expected(count: int) -> list[list[int]]:
    """The values that `copied` makes of so many records."""
    return [list(range(number, count, PARTITIONS)) for number in range(PARTITIONS)]


async def committed(address: str) -> dict[TopicPartition, int]:
    """What the group has committed; 0 where that is nothing."""
    async with kclient.Consumer(bootstrap_servers=address, **READING) as consumer:
        found = await consumer.committed(IN)
        return {tp: 0 if place is None else place.offset for tp, place in found.items()}


@asynccontextmanager
async def running(processor: Processor) -> AsyncIterator[None]:
    """A processor at work for the length of a block, and stopped in good order."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(processor.run)
        yield
        processor.stop()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that a background task brings about."""
    with anyio.fail_after(60):
        while not condition():
            await anyio.sleep(0.005)
