"""`store_offsets`: with `enable.auto.offset.store=false` the user says up to where he is through."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import anyio
import pytest

from kclient import sync
from kclient.consumer import Consumer, RebalanceListener
from kclient.errors import ClosedError, IllegalStateError, InvalidGroupIdError
from kclient.testing import memory_broker
from kclient.types import OffsetAndMetadata, TopicPartition

pytestmark = pytest.mark.anyio

T = [TopicPartition("t", number) for number in range(2)]


@pytest.fixture
def address() -> Iterator[str]:
    with memory_broker() as found:
        with sync.Admin(bootstrap_servers=found) as admin:
            admin.create_topic("t", 2)
        with sync.Producer(bootstrap_servers=found) as producer:
            for tp in T:
                producer.send_batch("t", [b"%d" % number for number in range(10)], partition=tp.partition).result()
        yield found


def storing(address: str, *topics: str, **settings: Any) -> Consumer:
    defaults = {"group_id": "g", "auto_offset_reset": "earliest", "enable_auto_offset_store": False}
    return Consumer(*topics, bootstrap_servers=address, heartbeat_interval_ms=100, **{**defaults, **settings})


async def read(consumer: Consumer, count: int) -> list[Any]:
    found: list[Any] = []
    with anyio.fail_after(30):
        while len(found) < count:
            found += await consumer.poll(1.0)
    return found


def committed(address: str) -> dict[TopicPartition, int]:
    with sync.Admin(bootstrap_servers=address) as admin:
        return {tp: found.offset for tp, found in admin.list_group_offsets("g").items()}


async def test_close_commits_what_was_stored(address: str) -> None:
    async with storing(address, "t") as consumer:
        await read(consumer, 20)
        consumer.store_offsets({("t", 0): 4})
        consumer.store_offsets({T[0]: OffsetAndMetadata(6, "note")})
    assert committed(address) == {T[0]: 6}
    async with storing(address, "t") as consumer:
        assert sorted((r.partition, r.offset) for r in await read(consumer, 14))[:4] == [(0, 6), (0, 7), (0, 8), (0, 9)]
        assert (await consumer.committed([T[0]]))[T[0]] == OffsetAndMetadata(6, "note")
    assert committed(address) == {T[0]: 6}


async def test_commits_by_interval(address: str) -> None:
    async with storing(address, "t", auto_commit_interval_ms=1) as consumer:
        await read(consumer, 20)
        for _ in range(5):
            await consumer.poll(0.01)
        assert await consumer.committed(T) == {T[0]: None, T[1]: None}
        consumer.store_offsets({T[1]: 3})
        with anyio.fail_after(30):
            while (await consumer.committed(T))[T[1]] != OffsetAndMetadata(3):
                await consumer.poll(0.01)
        assert (await consumer.committed(T))[T[0]] is None


async def test_commit_without_offsets(address: str) -> None:
    async with storing(address, "t", enable_auto_commit=False) as consumer:
        records = await read(consumer, 20)
        await consumer.commit()
        assert committed(address) == {}
        consumer.store_offsets(next(record for record in records if (record.partition, record.offset) == (0, 4)))
        consumer.commit_async()
        await consumer.commit()
        assert (await consumer.committed(T)) == {T[0]: OffsetAndMetadata(5, "", records[0].leader_epoch), T[1]: None}
        await consumer.commit({T[1]: 7})
        assert committed(address) == {T[0]: 5, T[1]: 7}
        consumer.seek(T[0], 0)  # says nothing of what is through
        await consumer.commit()
    assert committed(address) == {T[0]: 5, T[1]: 7}


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
async def test_before_a_partition_goes_to_another_member(address: str, assignor: str) -> None:
    """It goes on behind what was stored; what was stored is forgotten here."""
    async with storing(address, "t", partition_assignment_strategy=[assignor]) as first:
        await read(first, 20)
        first.store_offsets(dict.fromkeys(T, 5))
        async with storing(address, "t", partition_assignment_strategy=[assignor]) as second:
            with anyio.fail_after(60):
                found: list[Any] = []
                while len(found) < 5:
                    found += await second.poll(0.05)
                    await first.poll(0.05)
            gone = found[0].partition
            assert [(record.partition, record.offset) for record in found] == [(gone, n) for n in range(5, 10)]
            with pytest.raises(IllegalStateError, match=f"t-{gone} is not assigned"):
                first.store_offsets({T[gone]: 9, T[1 - gone]: 8})
            assert committed(address) == dict.fromkeys(T, 5)
            second.store_offsets(found[-1])
    assert committed(address) == {T[gone]: 10, T[1 - gone]: 5}


async def test_of_a_topic_that_was_created_again(address: str) -> None:
    """What was stored of the deleted one is not committed for its namesake."""
    async with storing(address, enable_auto_commit=False, metadata_max_age_ms=100) as consumer:
        consumer.assign(T)
        await read(consumer, 20)
        consumer.store_offsets({T[0]: 8})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, again, address)
        with anyio.fail_after(30):
            found: list[Any] = []
            while not found:
                found += await consumer.poll(0.1)
        assert [(record.partition, record.value) for record in found] == [(0, b"new")]
        await consumer.commit()
    assert committed(address) == {}


async def test_of_a_topic_that_was_created_again_and_is_iterated_over(address: str) -> None:
    async with storing(address, enable_auto_commit=False, metadata_max_age_ms=100) as consumer:
        consumer.assign(T[:1])
        with anyio.fail_after(30):
            for _ in range(10):
                consumer.store_offsets(await anext(consumer))
            await anyio.to_thread.run_sync(again, address)
            found = await anext(consumer)
        assert found.value == b"new"
        consumer.store_offsets(found)
        await consumer.commit()
    assert committed(address) == {T[0]: 1}


def again(address: str) -> None:
    with sync.Admin(bootstrap_servers=address) as admin:
        admin.delete_topic("t")
        admin.create_topic("t", 2)
    with sync.Producer(bootstrap_servers=address) as producer:
        producer.send("t", b"new", partition=0).result()


async def test_where_positions_are_committed_nothing_is_stored(address: str) -> None:
    async with storing(address, "t", enable_auto_offset_store=True) as consumer:
        await read(consumer, 20)
        with pytest.raises(IllegalStateError, match=r"set enable\.auto\.offset\.store=false"):
            consumer.store_offsets({T[0]: 1})


async def test_what_cannot_be_stored(address: str) -> None:
    async with storing(address, group_id=None, enable_auto_commit=False) as consumer:
        consumer.assign(T)
        with pytest.raises(InvalidGroupIdError):
            consumer.store_offsets({T[0]: 1})
    async with storing(address) as consumer:
        consumer.assign(T[:1])
        for wrong, error in (
            ({T[0]: -1}, ValueError),
            ({T[0]: "1"}, TypeError),
            ([T[0]], TypeError),
            (None, TypeError),
            ({("t", -1): 1}, ValueError),
        ):
            with pytest.raises(error):
                consumer.store_offsets(wrong)  # type: ignore[arg-type]
        with pytest.raises(IllegalStateError, match="t-1 is not assigned"):
            consumer.store_offsets({T[0]: 1, T[1]: 1})
        await consumer.commit()
    assert committed(address) == {}
    with pytest.raises(ClosedError):
        consumer.store_offsets({T[0]: 1})


def test_a_listener_stores_the_rest_and_commits(address: str) -> None:
    class Listener(RebalanceListener):
        def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
            consumer.store_offsets(dict.fromkeys(partitions, 7))
            consumer.commit()

    settings = {"group_id": "g", "auto_offset_reset": "earliest", "enable_auto_offset_store": False}
    with sync.Consumer(bootstrap_servers=address, **settings) as consumer:
        consumer.subscribe(["t"], Listener())
        consumer.joined()
        consumer.store_offsets({T[0]: 1})
    assert committed(address) == dict.fromkeys(T, 7)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("arrow", [False, True])
def test_another_thread_stores_while_one_polls(address: str, arrow: bool) -> None:
    """It comes when records were taken and are not the user's yet: none of them comes twice."""
    settings = {"group_id": "g", "auto_offset_reset": "earliest", "enable_auto_offset_store": False}
    with (
        ThreadPoolExecutor(1) as thread,
        sync.Consumer(bootstrap_servers=address, max_poll_records=3, **settings) as consumer,
    ):

        def profile(frame: FrameType, event: str, argument: object) -> None:
            if event == "return" and frame.f_code.co_name in {"take", "take_arrow"}:
                thread.submit(consumer.store_offsets, {T[0]: 1}).result()

        consumer.assign(T[:1])
        found: list[int] = []
        sys.setprofile(profile)
        try:
            while len(found) < 10:
                if arrow:
                    found += consumer.poll_arrow(1.0).column("offset").to_pylist()
                else:
                    found += [record.offset for record in consumer.poll(1.0)]
        finally:
            sys.setprofile(None)
        assert found == list(range(10))
    assert committed(address) == {T[0]: 1}


def test_in_blocking_code(address: str) -> None:
    settings = {"group_id": "g", "auto_offset_reset": "earliest", "enable_auto_offset_store": False}
    with sync.Consumer("t", bootstrap_servers=address, **settings) as consumer:
        for count, record in enumerate(consumer, 1):
            if (record.partition, record.offset) == (1, 2):
                consumer.store_offsets(record)
            if count == 20:
                break
    assert committed(address) == {T[1]: 3}
