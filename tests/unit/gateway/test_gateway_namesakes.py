"""A topic is deleted and created again while something else runs: the two share nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from kclient.errors import ErrorCode, UnknownTopicOrPartitionError
from kclient.gateway import Gateway
from kclient.htp import open_store
from kclient.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicState
from tests.all_rows import scan_all
from tests.gateway_wire import Wire, batch_of, connect, fetch_request
from tests.slow_store import Gates

pytestmark = pytest.mark.anyio

EARLIEST, LATEST = -2, -1


async def fill(url: str, partitions: int, **configs: str) -> None:
    """A topic with a few old records in each partition."""
    async with Gateway(url, listen=None) as gateway:
        wire = connect(gateway)
        assert (await wire.create("t", partitions, **configs)).error_code == 0
        for partition in range(partitions):
            for number in range(5):
                row = await wire.produce("t", batch_of(b"old %d" % number, timestamp=1000 + number), partition)
                assert (row.error_code, row.base_offset) == (0, number)
        await wire.aclose()


async def create_again(wire: Wire, partitions: int, **configs: str) -> None:
    assert await wire.delete("t") == 0
    assert (await wire.create("t", partitions, **configs)).error_code == 0


async def check_new(wire: Wire, partition: int, *values: bytes) -> None:
    """The partition begins at 0 and holds these values, no others."""
    assert (await wire.offset("t", EARLIEST, partition)).offset == 0
    assert (await wire.offset("t", LATEST, partition)).offset == len(values)
    assert await wire.values("t", 0, partition) == list(values)


@asynccontextmanager
async def gated(url: str, **options: Any) -> AsyncIterator[tuple[Gateway, Wire, Gates]]:
    gates = Gates(open_store(url))
    store: Any = gates.store
    async with store, Gateway(store, listen=None, **options) as gateway:
        wire = connect(gateway)
        try:
            yield gateway, wire, gates
        finally:
            gates.open()
            await wire.aclose()


async def close(url: str) -> None:
    """What the next start finds."""
    async with Gateway(url, listen=None) as gateway:
        wire = connect(gateway)
        for partition in range(3):
            await check_new(wire, partition, b"new")
        await wire.aclose()


@pytest.mark.domains
async def test_what_comes_back_to_a_deleted_topic_opens_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the places of the old topic are being removed, a pass of retention goes on with its stale record."""
    monkeypatch.setattr("kclient.gateway.topics.remains._LEAVING_S", 20.0)
    await fill(url, 3, retention_ms="-1")
    async with gated(url) as (gateway, wire, gates), anyio.create_task_group() as group:
        opening = gates.hold("open", 2)
        group.start_soon(gateway.apply_retention)
        with anyio.fail_after(10):
            await opening.reached.wait()
        removing = gates.hold("delete_domain")
        other = connect(gateway)
        group.start_soon(other.delete, "t")
        with anyio.move_on_after(0.3):  # it waits for whoever still opens one of them
            await removing.reached.wait()
        opening.open()
        with anyio.fail_after(10):
            await opening.passed.wait()
            await removing.reached.wait()
        removing.open()
        assert (await wire.create("t", 3)).error_code == 0
        for partition in range(3):
            assert (await wire.produce("t", batch_of(b"new"), partition)).error_code == 0
            await check_new(wire, partition, b"new")
        await other.aclose()
    await close(url)


@pytest.mark.own_places
async def test_a_pass_of_retention_that_comes_back_to_a_namesake(url: str) -> None:
    await fill(url, 3, retention_ms="1000")
    async with gated(url) as (gateway, wire, gates), anyio.create_task_group() as group:
        opening = gates.hold("open", 2)
        group.start_soon(gateway.apply_retention)
        with anyio.fail_after(10):
            await opening.reached.wait()
        other = connect(gateway)

        async def make_anew() -> None:
            await create_again(other, 3, retention_ms="-1")
            for partition in range(3):
                row = await other.produce("t", batch_of(b"new", timestamp=5), partition)
                assert (row.error_code, row.base_offset) == (0, 0)

        async with anyio.create_task_group() as making:
            making.start_soon(make_anew)
            await anyio.wait_all_tasks_blocked()
            opening.open()
        await gateway.apply_retention()
        for partition in range(3):
            await check_new(wire, partition, b"new")
        await other.aclose()
    await close(url)


async def test_an_opening_that_comes_back_to_a_namesake(url: str) -> None:
    """It brings neither the old one's next offset, nor an error that is none."""
    await fill(url, 3)
    async with gated(url) as (gateway, wire, gates), anyio.create_task_group() as group:
        opening = gates.hold("open", 1)
        other = connect(gateway)
        group.start_soon(other.offset, "t", EARLIEST, 1)
        with anyio.fail_after(10):
            await opening.reached.wait()

        async def make_anew() -> None:
            await create_again(wire, 3)
            for partition in range(3):
                row = await wire.produce("t", batch_of(b"new"), partition)
                assert (row.error_code, row.base_offset) == (0, 0)

        async with anyio.create_task_group() as making:
            making.start_soon(make_anew)
            await anyio.wait_all_tasks_blocked()
            opening.open()
        for partition in range(3):
            await check_new(wire, partition, b"new")
        await other.aclose()
    await close(url)


@pytest.mark.slow
async def test_a_deletion_while_partitions_are_opened_is_finished(url: str) -> None:
    await fill(url, 30)
    async with Gateway(url, listen=None) as gateway:
        wire = connect(gateway)
        for group_id in ("a", "b"):
            assert await wire.commit(group_id, "t", 3) == 0
        record = gateway.parts.topics.get("t")
        assert record is not None

        async def touch() -> None:
            for index in range(30):
                partition = gateway.parts.partitions.of(record, index)
                if partition is not None:
                    partition.open_soon()
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as group:
            group.start_soon(touch)
            await create_again(wire, 30)
        assert await wire.committed("a", "t") == await wire.committed("b", "t") == -1
        assert not await scan_all(gateway.parts.manager, "kafka/intent/")
        assert not await scan_all(gateway.parts.manager, f"kafka/log/{record.topic_id.hex()}")
        for partition in range(30):
            await check_new(wire, partition)
        await wire.aclose()


async def test_a_commit_for_the_old_one_is_none_for_the_new_one(url: str) -> None:
    """It was accepted, and is stored when its topic has gone; another one is made when it has gone too."""
    await fill(url, 1)
    async with gated(url) as (gateway, wire, gates), anyio.create_task_group() as group:
        assert await wire.commit("g", "t", 2) == 0
        storing = gates.hold("commit")
        other = connect(gateway)
        group.start_soon(other.commit, "g", "t", 4)
        with anyio.fail_after(10):
            await storing.reached.wait()
        third = connect(gateway)
        group.start_soon(create_again, third, 1)
        with anyio.fail_after(10):
            while await wire.committed("g", "t") != -1:
                await anyio.lowlevel.checkpoint()
        removing = gates.hold("commit")
        storing.open()
        with anyio.fail_after(10):
            await removing.reached.wait()
        assert await wire.committed("g", "t") == -1, "it is stored, and not removed yet"
        removing.open()
        with anyio.fail_after(10):
            while gateway.parts.topics.get("t") is None:
                await anyio.lowlevel.checkpoint()
        assert await wire.committed("g", "t") == -1
        assert await wire.commit("g", "t", 1) == 0
        assert await wire.committed("g", "t") == 1
        await other.aclose()
        await third.aclose()
    async with Gateway(url, listen=None) as gateway:
        wire = connect(gateway)
        assert await wire.committed("g", "t") == 1
        await wire.aclose()


@pytest.mark.domains
async def test_deleting_by_id_does_not_delete_the_namesake(url: str) -> None:
    await fill(url, 1)
    async with gated(url) as (gateway, wire, gates), anyio.create_task_group() as group:
        old = gateway.parts.topics.get("t")
        assert old is not None
        codes: list[int] = []

        async def delete_by_id() -> None:
            other = connect(gateway)
            request = DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=old.topic_id)], timeout_ms=10_000)
            codes.append((await other(request, 6)).responses[0].error_code)
            await other.aclose()

        removing = gates.hold("delete_domain")
        group.start_soon(wire.delete, "t")
        with anyio.fail_after(10):
            await removing.reached.wait()
        group.start_soon(delete_by_id)
        await anyio.wait_all_tasks_blocked()
        removing.open()
        third = connect(gateway)
        await third.create("t", 1)
        await third.aclose()
        await anyio.wait_all_tasks_blocked()
        assert codes == [ErrorCode.UNKNOWN_TOPIC_ID]
        new = gateway.parts.topics.get("t")
        assert new is not None
        with pytest.raises(UnknownTopicOrPartitionError, match="created again"):
            await gateway.parts.catalogue.delete("t", old.topic_id)
        assert gateway.parts.topics.get("t") is new


async def test_a_waiting_fetch_of_the_old_one_reads_nothing_of_the_new_one(url: str) -> None:
    await fill(url, 1)
    async with Gateway(url, listen=None) as gateway:
        wire, other = connect(gateway), connect(gateway)
        request = fetch_request("t", 5, max_wait_ms=60_000)
        await wire.send(request, 11)
        await anyio.wait_all_tasks_blocked()
        await create_again(other, 1)
        await other.produce("t", batch_of(*[b"new"] * 20))
        with anyio.fail_after(10):
            row = (await wire.read(request, 11)).responses[0].partitions[0]
        assert (row.error_code, bytes(row.records or b"")) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, b"")
        await wire.aclose()
        await other.aclose()


async def test_a_record_that_left_the_catalogue_has_no_partitions_any_more(url: str) -> None:
    await fill(url, 2)
    async with Gateway(url, listen=None) as gateway:
        record = gateway.parts.topics.get("t")
        assert record is not None
        held = gateway.parts.partitions.of(record, 0)
        assert held is not None
        await held.ready()
        wire = connect(gateway)
        await create_again(wire, 2)
        assert gateway.parts.partitions.of(record, 1) is None
        assert str(held) == "t-0"
        for call in (held.ready(), held.trim(3), held.pull(0), held.segments(), held.find_by_timestamp(0, start=0)):
            with pytest.raises(Exception, match="t-0 is gone"):
                await call
        await check_new(wire, 0)
        await wire.aclose()


async def test_a_topic_follows_what_was_changed_while_it_was_made(url: str) -> None:
    async with gated(url) as (gateway, wire, gates), anyio.create_task_group() as group:
        making = gates.hold("create_topic")
        other = connect(gateway)

        async def create() -> None:
            assert (await other.create("t")).error_code == 0
            await other.aclose()

        group.start_soon(create)
        with anyio.fail_after(10):
            await making.reached.wait()
        assert await wire.alter(4, "", ("message.max.bytes", 0, "2000")) == 0
        making.open()
        with anyio.fail_after(10):
            while gateway.parts.topics.get("t") is None:
                await anyio.lowlevel.checkpoint()
        assert (await wire.produce("t", batch_of(b"x" * 10_000))).error_code == ErrorCode.MESSAGE_TOO_LARGE


async def test_a_topic_that_was_not_deleted_follows_what_was_changed_meanwhile(url: str) -> None:
    await fill(url, 1)
    async with gated(url) as (gateway, wire, gates), anyio.create_task_group() as group:
        codes: list[int] = []
        assert not (await wire.fetch("t", 0)).error_code, "it is open"

        async def delete() -> None:
            other = connect(gateway)
            codes.append(await other.delete("t"))
            await other.aclose()

        deleting = gates.hold("commit")
        group.start_soon(delete)
        with anyio.fail_after(10):
            await deleting.reached.wait()
        assert await wire.alter(4, "", ("message.max.bytes", 0, "2000")) == 0
        gates.failing = "commit"
        deleting.open()
        with anyio.fail_after(10):
            while not codes:
                await anyio.lowlevel.checkpoint()
        assert codes == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert (await wire.produce("t", batch_of(b"x" * 10_000))).error_code == ErrorCode.MESSAGE_TOO_LARGE


async def test_what_a_deleted_topic_left_holds_up_no_other(url: str) -> None:
    """The broker of one hangs, when what could not be removed at first is removed later."""
    async with gated(url) as (gateway, wire, gates):
        manager, names = gateway.parts.manager, ("a", "b", "c")
        for name in names:
            await wire.create(name)
        gates.failing = "delete"
        for name in names:
            gates.hold("delete").open()
            assert await wire.delete(name) == 0
        gates.failing = None
        assert len(await scan_all(manager, "kafka/intent/")) == 3
        hanging = gates.hold("delete")
        with anyio.fail_after(20):
            await gateway.parts.catalogue.sweep()
            (left,) = await scan_all(manager, "kafka/intent/")
            for name in names:
                if not left.endswith(name):
                    assert (await wire.create(name)).error_code == 0
            await gateway.parts.catalogue.sweep()  # it is left to whoever is at it
            assert not hanging.passed.is_set()
            hanging.open()
            while await scan_all(manager, "kafka/intent/"):
                await anyio.sleep(0.01)
        assert (await wire.create(left[-1])).error_code == 0
