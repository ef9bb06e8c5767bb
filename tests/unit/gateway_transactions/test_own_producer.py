"""Our own producer's transactions at a gateway, end to end."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import anyio
import pytest

import kclient
from kclient.admin import Admin, NewTopic
from kclient.errors import (
    ProducerFencedError,
    TransactionAbortableError,
)
from kclient.types import OffsetAndMetadata, TopicPartition

pytestmark = pytest.mark.anyio

PARTITIONS = 3
numbers = itertools.count()


@pytest.fixture(params=["memory", "embedded"])
async def bootstrap(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return f"memory:transactions-{next(numbers)}"
    return f"embedded:{tmp_path / 'store'}"


@pytest.fixture
async def anchor(bootstrap: str) -> Any:
    """Keeps the gateway in the process; a topic `t` with three partitions."""
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics([NewTopic("t", PARTITIONS, 1)])
        yield admin


async def values(bootstrap: str, isolation_level: str = "read_committed") -> list[bytes]:
    partitions = [TopicPartition("t", number) for number in range(PARTITIONS)]
    found: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    settings: dict[str, Any] = {"isolation_level": isolation_level, "auto_offset_reset": "earliest"}
    async with kclient.Consumer(bootstrap_servers=bootstrap, **settings) as consumer:
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        with anyio.fail_after(20):
            while any([await consumer.position(tp) < ends[tp] for tp in partitions]):
                for record in await consumer.poll(timeout=0.2):
                    found[record.partition].append(record.value)
    return [value for number in range(PARTITIONS) for value in found[number]]


@pytest.mark.slow
async def test_what_is_committed_is_seen_and_what_is_aborted_is_not(bootstrap: str, anchor: Admin) -> None:
    async with kclient.Producer(bootstrap_servers=bootstrap, transactional_id="x") as producer:
        await producer.init_transactions()
        for number in range(3):
            async with producer.transaction():
                for partition in range(PARTITIONS):
                    await producer.send("t", b"%d-%d" % (partition, number), partition=partition)
        await producer.begin_transaction()
        await (await producer.send("t", b"aborted", partition=0))
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send("t", b"0-3", partition=0)
    expected = [b"0-0", b"0-1", b"0-2", b"0-3", b"1-0", b"1-1", b"1-2", b"2-0", b"2-1", b"2-2"]
    assert await values(bootstrap) == expected
    assert b"aborted" in await values(bootstrap, "read_uncommitted")


async def test_a_second_producer_fences_the_first(bootstrap: str, anchor: Admin) -> None:
    async with (
        kclient.Producer(bootstrap_servers=bootstrap, transactional_id="x") as first,
        kclient.Producer(bootstrap_servers=bootstrap, transactional_id="x") as second,
    ):
        await first.init_transactions()
        await first.begin_transaction()
        await (await first.send("t", b"zombie", partition=0))
        await second.init_transactions()
        with pytest.raises(ProducerFencedError):
            await first.commit_transaction()
        async with second.transaction():
            await second.send("t", b"second", partition=0)
    assert await values(bootstrap) == [b"second"]


async def test_what_takes_longer_than_its_time_is_aborted(bootstrap: str, anchor: Admin) -> None:
    settings: dict[str, Any] = {"transactional_id": "x", "transaction_timeout_ms": 300}
    async with kclient.Producer(bootstrap_servers=bootstrap, **settings) as producer:
        await producer.init_transactions()
        await producer.begin_transaction()
        await (await producer.send("t", b"late", partition=0))
        async with kclient.Consumer(bootstrap_servers=bootstrap, isolation_level="read_committed") as consumer:
            tp = TopicPartition("t", 0)
            with anyio.fail_after(10):
                while (await consumer.end_offsets([tp]))[tp] < 2:
                    await anyio.sleep(0.02)
        with pytest.raises(TransactionAbortableError):
            await producer.commit_transaction()
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send("t", b"in time", partition=0)
    assert await values(bootstrap) == [b"in time"]


@pytest.mark.slow
async def test_what_is_read_and_written_is_committed_as_one(bootstrap: str, anchor: Admin) -> None:
    """Of three transactions over what a group reads, the second is aborted, and done again by the next member."""
    source, count = TopicPartition("source", 0), 6
    await anchor.create_topics([NewTopic("source", 1, 1)])
    async with kclient.Producer(bootstrap_servers=bootstrap) as plain:
        for number in range(count):
            await plain.send("source", b"%d" % number)
    group: dict[str, Any] = {
        "group_id": "g", "bootstrap_servers": bootstrap, "auto_offset_reset": "earliest", "max_poll_records": 2,
        "enable_auto_commit": False, "isolation_level": "read_committed",
    }  # fmt: skip
    async with kclient.Producer(bootstrap_servers=bootstrap, transactional_id="x") as producer:
        await producer.init_transactions()
        done = 0
        with anyio.fail_after(30):
            for attempt in range(4):
                async with kclient.Consumer("source", **group) as consumer:
                    found: list[Any] = []
                    while not found:
                        found = list(await consumer.poll(timeout=0.2))
                    assert found[0].offset == done, "behind what was committed, with the records"
                    await producer.begin_transaction()
                    for record in found:
                        await producer.send("t", b"copy of " + record.value, partition=0)
                    offsets = {source: OffsetAndMetadata(found[-1].offset + 1)}
                    await producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
                    if attempt == 1:
                        await producer.abort_transaction()
                    else:
                        await producer.commit_transaction()
                        done = found[-1].offset + 1
    assert done == count
    assert await values(bootstrap) == [b"copy of %d" % number for number in range(count)]
