"""Retention: the decision apart, and applied through a whole gateway."""

from __future__ import annotations

import errno
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kclient.errors import ErrorCode
from kclient.gateway import Gateway, retention
from kclient.gateway.config import TopicConfig
from kclient.gateway.partition import Partition
from kclient.gateway.retention import Cut, cut
from kclient.htp import open_store
from kclient.htp.embedded.files import Files
from kclient.htp.port import SegmentInfo
from kclient.records import RecordBatchFraming
from tests.gateway_wire import Wire, batch_of, connect, names, running
from tests.slow_store import Gates


def segments(*timestamps: int, size: int = 100) -> list[SegmentInfo]:
    """One segment of ten records per timestamp; the last is active."""
    last = len(timestamps) - 1
    return [
        SegmentInfo(
            first=10 * index,
            next=10 * index + 10,
            size=size,
            max_timestamp=stamp,
            modified_ms=stamp,
            active=index == last,
        )
        for index, stamp in enumerate(timestamps)
    ]


def by_time(retention_ms: int) -> TopicConfig:
    return TopicConfig(retention_ms=retention_ms)


def by_size(retention_bytes: int) -> TopicConfig:
    return TopicConfig(retention_ms=-1, retention_bytes=retention_bytes)


@pytest.mark.parametrize(
    ("config", "before", "roll"),
    [
        (by_time(1000), None, False),
        (by_time(650), 10, False),
        (by_time(450), 20, False),
        (by_time(0), 40, True),  # the active segment goes too when all of it is old
        (by_time(-1), None, False),
        (by_size(1000), None, False),
        (by_size(400), None, False),
        (by_size(399), None, False),  # never below the limit
        (by_size(300), 10, False),
        (by_size(0), 30, False),  # the active segment stays
        (TopicConfig(retention_ms=0, deletes=False, compacts=True), None, False),
    ],
)
def test_what_goes(config: TopicConfig, before: int | None, roll: bool) -> None:
    found = cut(segments(100, 400, 600, 800), config, 1000)
    assert (found and (found.before, found.roll)) == (None if before is None else (before, roll))


def test_a_young_segment_keeps_what_follows_it() -> None:
    found = cut(segments(100, 900, 100, 100), by_time(500), 1000)
    assert found is not None
    assert found.before == 10


def test_an_empty_log_has_nothing_to_lose() -> None:
    assert cut(segments(5, size=0), by_time(0), 1000) is None
    assert cut(segments(5, size=0), by_size(0), 1000) is None


def test_segments_without_timestamps_go_by_their_age() -> None:
    old = segments(100, 900)
    unstamped = [segment._replace(max_timestamp=-1) for segment in old]
    assert cut(unstamped, by_time(500), 1000) == Cut(10, False, "older than retention.ms=500")


@pytest.mark.anyio
async def test_old_records_go_and_offsets_go_on() -> None:
    store = f"memory:{next(names)}"
    async with running(store) as (gateway, wire):
        await wire.create("t", retention_ms="60000")
        await wire.create("kept", retention_ms="-1")
        await wire.produce("t", batch_of(b"a", b"b", timestamp=1000))
        await wire.produce("kept", batch_of(b"a", timestamp=1000))
        assert await gateway.apply_retention() == 1
        assert (await wire.fetch("t", 0)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await wire.offset("t", -2)).offset == 2
        assert await wire.values("kept") == [b"a"]
        assert await gateway.apply_retention() == 0
    async with running(store) as (_, wire):
        assert (await wire.offset("t", -2)).offset == 2
        assert (await wire.produce("t", batch_of(b"c"))).base_offset == 2


@pytest.mark.anyio
async def test_too_many_records_go() -> None:
    async with running() as (gateway, wire):
        await wire.create("t", retention_bytes="2000000", segment_bytes="1048576", max_message_bytes="2000000")
        for _ in range(6):
            await wire.produce("t", batch_of(b"x" * 1_000_000))
        assert await gateway.apply_retention() == 1
        start = (await wire.offset("t", -2)).offset
        assert 0 < start <= 4
        assert len(await wire.values("t", start)) == 6 - start


async def waited_for(partition: Partition) -> None:
    """Until somebody waits for its last append beside who has sent it."""
    while len(partition.log.pending[-1]._waiting or ()) < 2:
        await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def slowly_sending(path: Path, *topics: str) -> AsyncIterator[tuple[Gates, Gateway, Wire, Partition]]:
    """A gateway with an old record in each topic; what is sent to the first one goes through a gate."""
    async with open_store(f"embedded:{path}") as store:
        gates = Gates(store)
        slow: Any = gates.store
        async with Gateway(slow, listen=None) as gateway:
            wire = connect(gateway)
            for topic in topics:
                await wire.create(topic, retention_ms="60000")
                await wire.produce(topic, batch_of(b"a", timestamp=1000))
            partition = gateway.parts.partitions.get(topics[0], 0)
            assert partition is not None
            partition.direct = None  # as of a store that takes nothing at once
            try:
                yield gates, gateway, wire, partition
            finally:
                gates.open()
            await wire.aclose()


@pytest.mark.anyio
async def test_a_partition_that_is_written_without_a_pause_is_not_waited_for(tmp_path: Path) -> None:
    """But for what was on its way: else a busy one would keep all records of all topics that come behind it."""
    async with slowly_sending(tmp_path / "data", "t", "u") as (gates, gateway, wire, partition):
        async with anyio.create_task_group() as group:
            before, behind = connect(gateway), connect(gateway)
            first, second = gates.hold("send"), gates.hold("send", 2)
            group.start_soon(before.produce, "t", batch_of(b"b", timestamp=1000))
            with anyio.fail_after(20):
                await first.reached.wait()
                async with anyio.create_task_group() as passing:
                    passing.start_soon(gateway.apply_retention)
                    await waited_for(partition)
                    group.start_soon(behind.produce, "t", batch_of(b"c", timestamp=1000))
                    while len(partition.log.pending) < 2:
                        await anyio.lowlevel.checkpoint()
                    first.open()
                    await second.reached.wait()
            assert partition.log.pending
            assert (await wire.offset("t", -2)).offset == 1
            assert (await wire.offset("u", -2)).offset == 1
            second.open()
        await before.aclose()
        await behind.aclose()


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_partition_that_takes_long_does_not_hold_up_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_LONG_S", 0.01)
    async with slowly_sending(tmp_path / "data", "t", "u") as (gates, gateway, wire, partition):
        waiting = connect(gateway)
        sending = gates.hold("send")
        moved: list[int] = []

        async def apply() -> None:
            moved.append(await gateway.apply_retention())

        async with anyio.create_task_group() as group:
            group.start_soon(waiting.produce, "t", batch_of(b"b", timestamp=1000))
            with anyio.fail_after(20):
                await sending.reached.wait()
                group.start_soon(apply)
                while (await wire.offset("u", -2)).offset == 0:
                    await anyio.lowlevel.checkpoint()
            assert partition.log.pending
            assert not moved
            sending.open()
        assert moved == [2]
        await waiting.aclose()


@pytest.mark.anyio
async def test_a_partition_whose_store_hangs_does_not_hold_up_the_next_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_PATIENCE_S", 0.01)
    monkeypatch.setattr("kclient.gateway.partition_life._SOON_S", 0.01)
    async with slowly_sending(tmp_path / "data", "t", "u") as (gates, gateway, wire, partition):
        await wire.create("closed")
        opening, sending = gates.hold("open"), gates.hold("send")
        async with anyio.create_task_group() as group:
            waiting = connect(gateway)
            group.start_soon(waiting.produce, "t", batch_of(b"b", timestamp=1000))
            with anyio.fail_after(5):
                await sending.reached.wait()
                assert await gateway.apply_retention() == 1
                await opening.reached.wait()
                assert (await wire.offset("u", -2)).offset == 1
                await wire.produce("u", batch_of(b"b", timestamp=1000))
                assert await gateway.apply_retention() == 1
            assert partition.log.pending
            gates.open()
        assert await gateway.apply_retention() == 1, "it was left to this pass"
        await waiting.aclose()


@pytest.mark.own_places  # else each has an HTP topic that was opened before
@pytest.mark.anyio
async def test_partitions_that_are_still_being_opened_are_told_of_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A topic may have thousands."""
    monkeypatch.setattr("kclient.gateway.partition_life._SOON_S", 0.01)
    gates = Gates(open_store(f"embedded:{tmp_path / 'data'}"))
    store: Any = gates.store
    async with store, Gateway(store, listen=None) as gateway:
        wire = connect(gateway)
        held = [gates.hold("open", number) for number in (1, 2, 3)]
        await wire.create("t", partitions=3)
        try:
            with anyio.fail_after(20), caplog.at_level("WARNING", "kclient.gateway.retention"):
                assert await gateway.apply_retention() == 0
                for gate in held:
                    await gate.reached.wait()
        finally:
            gates.open()
        await wire.aclose()
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("3 partitions are still being opened (t-")


@pytest.mark.domains
@pytest.mark.anyio
async def test_a_partition_that_another_gateway_has_taken_over_is_left_to_it(caplog: pytest.LogCaptureFixture) -> None:
    """It is no failure, and no pass of this gateway tries it again: a topic that moves may have thousands."""
    store = open_store(f"memory:{next(names)}")
    async with store, Gateway(store, listen=None) as gateway:
        wire = connect(gateway)
        await wire.create("t", retention_ms="60000")
        await wire.produce("t", batch_of(b"a", b"b", timestamp=1000))
        (topic,) = await store.manager.list_topics("t")
        await store.broker.open(topic.place, RecordBatchFraming(), epoch=1000)
        with anyio.fail_after(20), caplog.at_level("WARNING", "kclient.gateway.retention"):
            assert await gateway.apply_retention() == 0
        await wire.aclose()
    assert not [record.getMessage() for record in caplog.records if record.name == "kclient.gateway.retention"]


@pytest.mark.slow
@pytest.mark.own_places
@pytest.mark.anyio
@pytest.mark.parametrize("call", ["segments", "roll", "trim"])
async def test_a_call_that_hangs_holds_up_no_other_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Whichever it is: later passes end, leave the partition out, and come back to it when the store has answered.

    The first partition has a second to reach the gate: within less a slow machine may let the other one in.
    """
    monkeypatch.setattr(retention, "_PATIENCE_S", 0.01)
    gates = Gates(open_store(f"embedded:{tmp_path / 'data'}"))
    store: Any = gates.store
    async with store, Gateway(store, listen=None) as gateway:
        wire = connect(gateway)
        for name in ("t", "u"):
            await wire.create(name, retention_ms="1000")
            await wire.produce(name, batch_of(b"a", timestamp=1000))
        gate = gates.hold(call)
        try:
            with anyio.fail_after(20):
                for name in ("u", "t"):
                    for start in range(1, 4):
                        while (await wire.offset(name, -2)).offset < start:
                            await gateway.apply_retention()
                        await wire.produce(name, batch_of(b"b", timestamp=1000))
                    assert gate.reached.is_set()
                    gates.open()
        finally:
            gates.open()
        await wire.aclose()


@pytest.mark.slow
@pytest.mark.own_places  # else the topic in HTP is not asked for that
@pytest.mark.anyio
async def test_closing_does_not_wait_for_a_pass_that_has_left_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_LONG_S", 0.01)
    monkeypatch.setattr(retention, "_PATIENCE_S", 0.01)
    gates = Gates(open_store(f"embedded:{tmp_path / 'data'}"))
    store: Any = gates.store
    async with store, Gateway(store, listen=None) as gateway:
        wire = connect(gateway)
        await wire.create("t", retention_ms="1000")
        await wire.produce("t", batch_of(b"a", timestamp=1000))
        gates.hold("segments")
        assert await gateway.apply_retention() == 0
        await wire.aclose()
        with anyio.fail_after(10):
            await gateway.close()
    async with running(f"embedded:{tmp_path / 'data'}") as (_, wire):
        while (answer := await wire.offset("t", -2)).error_code == ErrorCode.KAFKA_STORAGE_ERROR:
            await anyio.lowlevel.checkpoint()  # a slow machine takes long to open it
        assert answer.offset == 0


@pytest.mark.own_places  # else the topic in HTP is not asked for that
@pytest.mark.anyio
async def test_what_was_not_durable_when_it_was_looked_at_does_not_take_younger_records_with_it(tmp_path: Path) -> None:
    """Its sync fails, and others get its offsets."""
    async with slowly_sending(tmp_path / "data", "t") as (gates, gateway, wire, partition):
        partition.direct = partition.stored_in  # type: ignore[assignment]
        waiting = connect(gateway)
        goes_on = threading.Event()

        def failing(*_args: Any) -> None:
            goes_on.wait(20)
            raise OSError(errno.EIO, "in this test")

        rolling = gates.hold("roll")
        async with anyio.create_task_group() as group:
            with pytest.MonkeyPatch.context() as patch, anyio.fail_after(20):
                patch.setattr(Files, "sync", failing)
                group.start_soon(waiting.produce, "t", batch_of(b"lost", timestamp=1000))
                while not partition.log.pending:
                    await anyio.lowlevel.checkpoint()
                group.start_soon(gateway.apply_retention)
                await waited_for(partition)
                goes_on.set()
                await rolling.reached.wait()
            assert (await wire.produce("t", batch_of(b"young"))).base_offset == 1
            rolling.open()
        assert (await wire.offset("t", -2)).offset == 1
        assert await wire.values("t", 1) == [b"young"]
        await waiting.aclose()


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_pass_goes_on_when_the_topic_is_deleted_for_whose_appends_it_waits(tmp_path: Path) -> None:
    """Else nothing would be removed any more, of any topic, until the gateway is started again."""
    async with open_store(f"embedded:{tmp_path / 'data'}") as store:
        gates = Gates(store)
        slow: Any = gates.store
        async with Gateway(slow, listen=None) as gateway, anyio.create_task_group() as group:
            wire, waiting = connect(gateway), connect(gateway)
            await wire.create("t", retention_ms="60000")
            await wire.create("u", retention_ms="60000")
            for topic in ("t", "u"):
                await wire.produce(topic, batch_of(b"a", timestamp=1000))
            partition = gateway.parts.partitions.get("t", 0)
            assert partition is not None
            partition.direct = None  # as of a store that takes nothing at once
            sending = gates.hold("send")
            group.start_soon(waiting.produce, "t", batch_of(b"b", timestamp=1000))
            with anyio.fail_after(10):
                await sending.reached.wait()
                group.start_soon(gateway.apply_retention)
                await waited_for(partition)
                assert await wire.delete("t") == 0
                assert await gateway.apply_retention() <= 1
            assert (await wire.offset("u", -2)).offset == 1
            gates.open()
            await waiting.aclose()
            await wire.aclose()
