"""`enable.partition.eof`: polls tell that the end of a partition is reached, once each time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from kclient import sync
from kclient.consumer import Consumer, ConsumerRecords
from kclient.testing import memory_broker
from kclient.types import TopicPartition

pytestmark = pytest.mark.anyio

ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)
READS: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "enable_partition_eof": True}


@pytest.fixture
def address() -> Iterator[str]:
    with memory_broker() as found:
        with sync.Admin(bootstrap_servers=found) as admin:
            admin.create_topic("t", 2)
        send(found, 3)
        yield found


def send(address: str, count: int, partition: int = 0) -> None:
    with sync.Producer(bootstrap_servers=address) as producer:
        producer.send_batch("t", [b"%d" % number for number in range(count)], partition=partition).result()


async def ends(consumer: Consumer, partitions: set[TopicPartition]) -> tuple[int, dict[TopicPartition, int]]:
    """How many records come, and which ends, until those of all partitions are told."""
    found: dict[TopicPartition, int] = {}
    count = 0
    with anyio.fail_after(20):
        while found.keys() != partitions:
            polled = await consumer.poll(10)
            assert polled
            assert not found.keys() & polled.partition_ends.keys()
            found |= polled.partition_ends
            count += len(polled)
    return count, found


async def test_each_end_is_told_once(address: str) -> None:
    async with Consumer(bootstrap_servers=address, **READS) as consumer:
        consumer.assign([ONE, TWO])
        assert await ends(consumer, {ONE, TWO}) == (3, {ONE: 3, TWO: 0}), "also of one that has no records"
        assert not await consumer.poll(0.7)
        send(address, 2, partition=1)
        assert await ends(consumer, {TWO}) == (2, {TWO: 2})
        assert not await consumer.poll(0.7)
        consumer.seek(ONE, 1)
        assert await ends(consumer, {ONE}) == (2, {ONE: 3})
        consumer.seek_to_end([ONE])
        assert await ends(consumer, {ONE}) == (0, {ONE: 3}), "again after a seek"


async def test_an_end_that_is_not_that_of_now_is_not_told(address: str) -> None:
    async with Consumer(bootstrap_servers=address, **READS) as consumer:
        consumer.assign([ONE])
        assert await ends(consumer, {ONE}) == (3, {ONE: 3})
        consumer.pause([ONE])
        await consumer.poll(0.05)
        send(address, 7)
        consumer.seek(ONE, 5)
        consumer.resume([ONE])
        assert await ends(consumer, {ONE}) == (5, {ONE: 10})


async def test_records_behind_an_end_are_not_there_before_it(address: str) -> None:
    async with Consumer(bootstrap_servers=address, max_poll_records=1, **READS) as consumer:
        consumer.assign([ONE])
        polled = [await consumer.poll(10) for _ in range(3)]
        assert [(len(each), each.partition_ends) for each in polled] == [(1, {}), (1, {}), (1, {ONE: 3})]
        assert polled[-1].next_offsets[ONE].offset == 3
        assert [record.offset for record in polled[-1].records(ONE)] == [2]


async def test_without_records_it_counts_as_true_and_is_empty(address: str) -> None:
    async with Consumer(bootstrap_servers=address, **READS) as consumer:
        consumer.assign([TWO])
        told = await consumer.poll(10)
        assert told
        assert told.is_empty
        assert (len(told), list(told), told.partition_ends) == (0, [], {TWO: 0})


async def test_it_is_off_by_default(address: str) -> None:
    async with Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        consumer.assign([ONE])
        polled = await consumer.poll(10)
        assert len(polled) == 3
        assert polled.partition_ends == ConsumerRecords().partition_ends == {}
        assert not await consumer.poll(0.7)


def test_of_the_blocking_consumer_too(address: str) -> None:
    with sync.Consumer("t", bootstrap_servers=address, group_id="g", **READS) as consumer:
        found: dict[TopicPartition, int] = {}
        while len(found) < 2:
            found |= consumer.poll(10).partition_ends
        assert found == {ONE: 3, TWO: 0}


async def test_decided_transactions_end_a_partition(address: str) -> None:
    with sync.Producer(bootstrap_servers=address, transactional_id="x") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", b"1", partition=1)
        async with Consumer(bootstrap_servers=address, isolation_level="read_committed", **READS) as consumer:
            consumer.assign([TWO])
            assert await ends(consumer, {TWO}) == (1, {TWO: 2}), "behind the marker"
            producer.begin_transaction()
            producer.send("t", b"2", partition=1).result()
            assert not await consumer.poll(0.7), "the end is that of decided transactions"
            producer.commit_transaction()
            assert await ends(consumer, {TWO}) == (1, {TWO: 4})


async def test_iteration_waits_at_the_end_of_a_partition(address: str) -> None:
    async with Consumer(bootstrap_servers=address, **READS) as consumer:
        consumer.assign([ONE])
        found = []
        with anyio.move_on_after(1):
            async for record in consumer:
                found.append(record.offset)
        assert found == [0, 1, 2], "others had their turn: the time was over"
        with anyio.move_on_after(1) as waiting:
            await consumer.poll_arrow(30)
        assert waiting.cancelled_caught
        assert await ends(consumer, {ONE}) == (0, {ONE: 3}), "a poll still tells of it"


def test_blocking_waits_at_the_end_take_no_time_of_the_processor(address: str) -> None:
    with sync.Consumer(bootstrap_servers=address, **READS) as consumer:
        consumer.assign([ONE])
        while not consumer.poll_arrow(10).num_rows:
            pass
        began = time.thread_time()
        assert not consumer.poll_arrow(1.0).num_rows
        assert time.thread_time() - began < 0.3
