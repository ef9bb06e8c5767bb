"""`poll(partitions=...)`: records of chosen partitions, while the others keep their places."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from kclient import sync
from kclient.consumer import Consumer
from kclient.errors import WakeupError
from kclient.testing import memory_broker
from kclient.types import TopicPartition

pytestmark = pytest.mark.anyio

ALL = [TopicPartition("t", number) for number in range(3)]
READS: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False}


@pytest.fixture
def address() -> Iterator[str]:
    with memory_broker() as found:
        with sync.Admin(bootstrap_servers=found) as admin:
            admin.create_topic("t", 3)
        with sync.Producer(bootstrap_servers=found) as producer:
            for tp in ALL:
                producer.send_batch("t", [b"%d" % number for number in range(10)], partition=tp.partition).result()
        yield found


async def test_only_those_are_returned(address: str) -> None:
    async with Consumer(bootstrap_servers=address, **READS) as consumer:
        consumer.assign(ALL)
        consumer.pause([ALL[2]])
        for tp, count in ((ALL[1], 4), (ALL[0], 3), (ALL[1], 6)):
            records = await consumer.poll(10, partitions=[tp], max_records=count)
            assert records.partitions() == {tp}
            assert len(records) == count
            assert consumer.paused() == {ALL[2]}
        assert [await consumer.position(tp) for tp in ALL] == [3, 10, 0]
        assert not await consumer.poll(0.05, partitions=[ALL[1]]), "it has no more"
        assert not await consumer.poll(0.05, partitions=[]), "none at all"
        assert not await consumer.poll(0.05, partitions=[("other", 0)]), "it is not assigned"
        assert not await consumer.poll(0.05, partitions=[ALL[2]]), "it is paused"
        consumer.resume([ALL[2]])
        found = 0
        while found < 17:
            found += len(await consumer.poll(10))
        assert [await consumer.position(tp) for tp in ALL] == [10, 10, 10]


def test_of_the_blocking_consumer_too(address: str) -> None:
    with sync.Consumer("t", bootstrap_servers=address, group_id="g", **READS) as consumer:
        found = 0
        while found < 10:
            records = consumer.poll(10, partitions=[ALL[1]])
            assert records.partitions() <= {ALL[1]}, "also what the poll is assigned rests"
            found += len(records)
        assert [consumer.position(tp) for tp in ALL] == [0, 10, 0]


async def test_what_is_changed_meanwhile_stays(address: str) -> None:
    async with Consumer(bootstrap_servers=address, **READS) as consumer:
        consumer.assign(ALL)
        await consumer.poll(10, partitions=[ALL[0]])
        async with anyio.create_task_group() as tasks:

            async def poll() -> None:
                assert not await consumer.poll(0.3, partitions=[])

            tasks.start_soon(poll)
            await anyio.wait_all_tasks_blocked()
            assert consumer.paused() == set()
            consumer.pause([ALL[1]])
            consumer.resume([ALL[2]])
            assert consumer.paused() == {ALL[1]}
        assert consumer.paused() == {ALL[1]}


async def test_one_that_does_not_end_well_leaves_nothing_behind(address: str) -> None:
    async with Consumer(bootstrap_servers=address, **READS) as consumer:
        consumer.assign(ALL)
        consumer.wakeup()
        with pytest.raises(WakeupError):
            await consumer.poll(10, partitions=[ALL[0]])
        with anyio.move_on_after(0.05):
            await consumer.poll(10, partitions=[])
        with pytest.raises(TypeError):
            await consumer.poll(10, partitions=[5])  # type: ignore[list-item]
        found = 0
        while found < 30:
            found += len(await consumer.poll(10))


async def test_others_do_not_take_the_room_of_those(address: str) -> None:
    """What was fetched ahead of others fills the buffer: it gives way."""
    value = bytes(50_000)
    async with Consumer(
        bootstrap_servers=address, fetch_max_bytes=200_000, max_partition_fetch_bytes=200_000, **READS
    ) as consumer:
        with sync.Producer(bootstrap_servers=address) as producer:
            for tp in ALL:
                producer.send_batch("t", [value] * 10, partition=tp.partition).result()
        consumer.assign(ALL)
        assert await consumer.poll(10, max_records=1)
        for tp in ALL:
            found = 0
            position = await consumer.position(tp)
            with anyio.fail_after(20):
                while found < 20 - position:
                    found += len(await consumer.poll(1, partitions=[tp]))
