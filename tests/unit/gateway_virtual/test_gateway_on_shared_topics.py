"""The gateway with `mapping="virtual"`: some of its own tests, and what is different there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from kclient.errors import ErrorCode
from kclient.gateway import Gateway
from kclient.gateway.virtual import topic as topic_module
from kclient.gateway.virtual.index_rows import IndexRows
from kclient.htp import Topic, open_store
from kclient.htp.memory import open_memory
from tests.all_rows import scan_all
from tests.copied_stores import copy_as_killed
from tests.gateway_wire import Wire, batch_of, connect, fetch_request, names, produce_request, running
from tests.plain_store import open_plain
from tests.uncertain_store import Fate, UncertainStore
from tests.unit.gateway.conftest import url as url
from tests.unit.gateway.test_gateway_produce_fetch import *  # noqa: F403

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual")]

DOMAIN = "kafka~virtual"


async def topics_of(gateway: Gateway) -> list[str]:
    return [info.topic.name for info in await gateway.parts.manager.list_topics(DOMAIN)]


async def fill(wire: Wire, topic: str, partitions: int, *values: bytes) -> None:
    for value in values:
        for partition in range(partitions):
            row = await wire.produce(topic, batch_of(b"%d %s" % (partition, value)), partition)
            assert row.error_code == 0


async def check(wire: Wire, topic: str, partitions: int, *values: bytes) -> None:
    for partition in range(partitions):
        assert await wire.values(topic, partition=partition) == [b"%d %s" % (partition, value) for value in values]


async def test_all_partitions_of_a_topic_lie_in_one(url: str) -> None:
    async with running(url) as (gateway, wire):
        await wire.create("t", 3)
        await fill(wire, "t", 3, b"a", b"b")
        assert await topics_of(gateway) == ["t"]
        await check(wire, "t", 3, b"a", b"b")
    async with running(url) as (gateway, wire):
        await check(wire, "t", 3, b"a", b"b")
        await fill(wire, "t", 3, b"c")
        await check(wire, "t", 3, b"a", b"b", b"c")


async def test_growing_makes_no_topic_of_htp(url: str) -> None:
    async with running(url) as (gateway, wire):
        await wire.create("t", 2)
        await fill(wire, "t", 2, b"a")
        assert await wire.grow("t", 5) == 0
        assert await topics_of(gateway) == ["t"]
        await fill(wire, "t", 5, b"b")
        assert await wire.values("t", partition=4) == [b"4 b"]
        assert await wire.values("t", partition=1) == [b"1 a", b"1 b"]
    async with running(url) as (_, wire):
        assert await wire.values("t", partition=4) == [b"4 b"]
        assert await wire.grow("t", 6) == 0
        assert (await wire.produce("t", batch_of(b"x"), 5)).base_offset == 0


async def test_deleted_and_made_again_it_shares_nothing(url: str) -> None:
    async with running(url) as (gateway, wire):
        for value in (b"old", b"new"):
            await wire.create("t", 3)
            await fill(wire, "t", 3, value)
            await check(wire, "t", 3, value)
            store: Any = gateway.parts.partitions._around.store
            assert len(store._shared._topics) == 1
            assert await wire.delete("t") == 0
            assert await topics_of(gateway) == []
            assert not store._shared._topics
            for kind in ("indexed", "blocks", "entries", "log", "unit"):
                assert await scan_all(gateway.parts.manager, f"kafka/{kind}/") == {}


async def test_a_topic_of_others_is_left_alone(url: str) -> None:
    async with running(url) as (gateway, wire):
        await wire.create("t")
        theirs = (await gateway.parts.manager.create_topic(Topic(DOMAIN, "theirs"))).topic
        row = await wire.create("theirs")
        assert row.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert f"{DOMAIN}:theirs" in str(row.error_message)
        assert (await gateway.parts.manager.describe_topic(theirs)).topic == theirs


async def test_a_creation_that_was_cut_off_leaves_nothing(url: str) -> None:
    async with running(url) as (gateway, wire):
        await wire.create("whole")
        await gateway.parts.manager.commit({"kafka/intent/half": b"virtual"})
        await gateway.parts.manager.create_topic(Topic(DOMAIN, "half"), broker="brk-0")
    async with running(url) as (gateway, wire):
        assert await topics_of(gateway) == ["whole"]
        assert (await wire.create("half")).error_code == 0


async def test_after_a_kill_everything_is_there_that_was_acknowledged(tmp_path: Path) -> None:
    data, killed = tmp_path / "data", tmp_path / "killed"
    async with running(f"embedded:{data}") as (_, wire):
        await wire.create("t", 3)
        await fill(wire, "t", 3, *(b"%d" % number for number in range(20)))
        await wire.delete_records("t", 5, 1)
        await fill(wire, "t", 3, b"more")
        copy_as_killed(data, killed)
    values = [*(b"%d" % number for number in range(20)), b"more"]
    async with running(f"embedded:{killed}") as (_, wire):
        for partition in (0, 2):
            assert await wire.values("t", partition=partition) == [b"%d %s" % (partition, each) for each in values]
        assert await wire.values("t", 5, 1) == [b"1 %s" % each for each in values[5:]]
        assert (await wire.offset("t", -2, 1)).offset == 5
        assert (await wire.produce("t", batch_of(b"x"), 1)).base_offset == 21


@pytest.mark.slow
async def test_space_is_freed_below_the_oldest_record_of_all_partitions(tmp_path: Path) -> None:
    async with running(f"embedded:{tmp_path / 'data'}") as (_, wire):
        await wire.create("t", 2, segment_bytes="1048576")
        for number in range(40):
            await wire.produce("t", batch_of(bytes(100_000)), number % 2)
        segments = sorted((tmp_path / "data").glob("brk-0/topics/*/*.log"))
        assert len(segments) > 2
        await wire.delete_records("t", 20, 0)
        assert sorted((tmp_path / "data").glob("brk-0/topics/*/*.log")) == segments
        await wire.delete_records("t", 20, 1)
        with anyio.fail_after(10):
            while len(list((tmp_path / "data").glob("brk-0/topics/*/*.log"))) > 1:
                await anyio.sleep(0.01)
        for partition in (0, 1):
            assert (await wire.offset("t", -2, partition)).offset == 20
            assert (await wire.produce("t", batch_of(b"x"), partition)).base_offset == 20


@asynccontextmanager
async def uncertain(kind: str) -> AsyncIterator[tuple[Gateway, Wire, Any]]:
    open_it: Any = open_plain if kind == "plain" else open_memory
    store: Any = UncertainStore(open_it(next(names)))
    async with store, Gateway(store, listen=None) as gateway:
        wire = connect(gateway)
        yield gateway, wire, store.broker
        await wire.aclose()


@pytest.mark.parametrize("fate", [Fate.STORED, Fate.LOST, Fate.SYNCED], ids=lambda fate: fate.name)
@pytest.mark.parametrize("kind", ["memory", "plain"])
async def test_an_outcome_that_is_not_known_raises_the_epoch_once(kind: str, fate: Fate) -> None:
    async with uncertain(kind) as (gateway, wire, broker):
        await wire.create("t", 4)
        await fill(wire, "t", 4, b"a")
        epoch = (await wire.metadata("t")).topics[0].partitions[0].leader_epoch
        broker.fates.append(fate)
        other = connect(gateway)
        await wire.send(produce_request("t", batch_of(b"unknown"), 2), 9)
        row = (await wire.read(produce_request("t", b""), 9)).responses[0].partition_responses[0]
        stored = fate in (Fate.STORED, Fate.SYNCED)
        assert row.error_code == (0 if stored else ErrorCode.KAFKA_STORAGE_ERROR)
        with anyio.fail_after(10):
            for partition in range(4):
                while (await other.produce("t", batch_of(b"next"), partition)).error_code:
                    await anyio.sleep(0.01)
        told = (await wire.metadata("t")).topics[0].partitions
        assert {each.leader_epoch for each in told} == {epoch + 1}
        assert broker.epochs == [epoch, epoch + 1]
        for partition in range(4):
            values = [b"%d a" % partition, *([b"unknown"] if stored and partition == 2 else []), b"next"]
            assert await wire.values("t", partition=partition) == values
        await other.aclose()


async def test_groups_commit_offsets_of_its_partitions(url: str) -> None:
    async with running(url) as (_, wire):
        await wire.create("t", 2)
        await fill(wire, "t", 2, b"a")
        assert await wire.commit("g", "t", 1, 1) == 0
    async with running(url) as (_, wire):
        assert [await wire.committed("g", "t", partition) for partition in (0, 1)] == [-1, 1]


async def test_the_store_can_be_verified(tmp_path: Path) -> None:
    from kclient.cli.store import verify

    url = f"embedded:{tmp_path / 'data'}"
    async with running(url) as (_, wire):
        await wire.create("t", 2)
        await fill(wire, "t", 2, b"a", b"b")
    assert verify(str(tmp_path / "data")) == 0
    async with open_store(url) as store:
        (key,) = await scan_all(store.manager, "kafka/indexed/")
        await store.manager.commit({key: b"garbage"})
    assert verify(str(tmp_path / "data")) == 1


async def test_deleted_while_its_index_is_being_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row of a topic comes after those that its deletion has removed."""
    monkeypatch.setattr(topic_module, "_SAVED_MESSAGES", 3)
    reached, goes_on, write = anyio.Event(), anyio.Event(), IndexRows.write

    async def slow(rows: Any, *arguments: Any) -> Any:
        reached.set()
        await goes_on.wait()
        return await write(rows, *arguments)

    async with running() as (gateway, wire):
        await wire.create("t", 2)
        monkeypatch.setattr(IndexRows, "write", slow)
        await fill(wire, "t", 2, b"a", b"b")
        await reached.wait()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wire.delete, "t")
            await anyio.wait_all_tasks_blocked()
            goes_on.set()
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(20):
            while await topics_of(gateway):
                await anyio.sleep(0.05)
        for kind in ("indexed", "blocks", "entries", "log"):
            assert await scan_all(gateway.parts.manager, f"kafka/{kind}/") == {}


async def test_a_fetch_does_not_wait_where_an_answer_holds_no_more() -> None:
    """What one answer may look through holds less than is asked for: nothing that comes would add to it."""
    async with running() as (_, wire):
        await wire.create("t", 16)
        for _ in range(16):
            for partition in range(16):
                await wire.produce("t", batch_of(bytes(60_000)), partition)
        request = fetch_request("t", 0, max_wait_ms=120_000, min_bytes=900_000, partition_max_bytes=1 << 20)
        with anyio.fail_after(30):
            answer = (await wire(request, 11)).responses[0].partitions[0]
        assert 60_000 < len(answer.records) < 900_000
