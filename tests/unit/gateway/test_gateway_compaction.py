"""Compaction through a whole gateway; what survives of batches is `test_log_cleaning`'s."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import anyio
import pytest

from kclient.errors import ErrorCode
from kclient.gateway import Gateway
from kclient.gateway.compaction.dirty import Cleanable, cleanable
from kclient.gateway.config import TopicConfig
from kclient.gateway.partition import Partition
from kclient.htp.embedded.files import Files
from kclient.htp.memory.topic import MemoryRewriting
from kclient.htp.port import SegmentInfo, TopicSettings
from kclient.protocol.messages.produce import InitProducerIdRequest
from kclient.protocol.messages.transactions import EndTxnRequest
from kclient.records import BatchBuilder, KeyOffsets, decode_records, iter_headers
from kclient.types import Buffer
from tests.copied_stores import copy_as_killed
from tests.gateway_wire import Wire, produce_request, running

QUIET = {"log.cleaner.backoff.ms": "3600000"}
"""Nothing is cleaned but when a test says so."""


def keyed(
    rows: Iterable[tuple[bytes, bytes | None]],
    *,
    producer_id: int = -1,
    sequence: int = -1,
    transactional: bool = False,
    timestamp: int = 1_000,
) -> bytearray:
    """A batch of keys and values."""
    builder = BatchBuilder(limit=1 << 20, is_transactional=transactional)
    for key, value in rows:
        builder.append(timestamp, key, value)
    return builder.build(producer_id=producer_id, producer_epoch=-1 if producer_id < 0 else 0, base_sequence=sequence)


async def compacted(wire: Wire, name: str = "t", **configs: str) -> None:
    """A topic that is compacted."""
    given = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0", **configs}
    await wire.create(name, **given)


def partition_of(gateway: Gateway, name: str = "t") -> Partition:
    """Its partition."""
    [record] = [record for record in gateway.parts.topics if record.name == name]
    partition = gateway.parts.partitions.of(record, 0)
    assert partition is not None
    return partition


async def roll(gateway: Gateway, name: str = "t") -> None:
    """Close the segment that is written to."""
    partition = partition_of(gateway, name)
    await partition.ready()
    await partition.stored_in.roll()


async def stored(wire: Wire, name: str = "t", start: int = 0) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value of all that can be fetched."""
    found: list[tuple[int, bytes | None, bytes | None]] = []
    end = (await wire.offset(name, -1)).offset
    place = start
    while place < end:
        answer = await wire.fetch(name, place)
        assert answer.error_code == ErrorCode.NONE
        data = bytes(answer.records or b"")
        found += [
            (record.offset, record.key, record.value) for record in decode_records(data, name, 0, start_offset=place)
        ]
        for _, header in iter_headers(data):
            place = max(place, header.next_offset)
    return found


@pytest.mark.anyio
async def test_of_each_key_the_last_record_stays(url: str, caplog: pytest.LogCaptureFixture) -> None:
    expected = [(4, b"a", b"5"), (5, b"c", b"6"), (6, b"b", b"7"), (7, b"a", b"8")]
    async with running(url, config=QUIET) as (gateway, wire):
        await compacted(wire)
        await wire.produce("t", keyed([(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]))
        await roll(gateway)
        await wire.produce("t", keyed([(b"b", b"4"), (b"a", b"5"), (b"c", b"6")]))
        await roll(gateway)
        await wire.produce("t", keyed([(b"b", b"7"), (b"a", b"8")]))
        before = await stored(wire)
        assert len(before) == 8
        assert await gateway.parts.cleaner.clean_dirtiest()
        # what is written to is not compacted, and supersedes nothing yet
        assert await stored(wire) == [(3, b"b", b"4"), *expected]
        assert not await gateway.parts.cleaner.clean_dirtiest(), "nothing is dirty"
        await roll(gateway)
        assert await gateway.parts.cleaner.clean_dirtiest()
        assert await stored(wire) == expected[1:]
        assert [await stored(wire, start=start) for start in (6, 7, 8)] == [expected[2:], expected[3:], []]
        assert (await wire.offset("t", -2)).offset == 0
        assert (await wire.produce("t", keyed([(b"d", b"9")]))).base_offset == 8
        assert gateway.parts.cleaner.runs == 2
    if url.startswith("embedded"):
        async with running(url, config=QUIET) as (gateway, wire):
            assert await stored(wire) == [*expected[1:], (8, b"d", b"9")]
            await roll(gateway)
            assert await gateway.parts.cleaner.clean_dirtiest(), "after a restart all counts as dirty"
            assert await stored(wire) == [*expected[1:], (8, b"d", b"9")]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.anyio
async def test_tombstones_go_with_what_they_deleted(url: str) -> None:
    async with running(url, config=QUIET) as (gateway, wire):
        await compacted(wire, delete_retention_ms="0")
        await wire.produce("t", keyed([(b"a", b"1"), (b"b", b"2")]))
        await wire.produce("t", keyed([(b"a", None)]))
        await roll(gateway)
        assert await gateway.parts.cleaner.clean_dirtiest()
        assert await stored(wire) == [(1, b"b", b"2"), (2, b"a", None)], "it stays for one compaction at least"
        await wire.produce("t", keyed([(b"c", b"3")]))
        await roll(gateway)
        assert await gateway.parts.cleaner.clean_dirtiest()
        assert await stored(wire) == [(1, b"b", b"2"), (3, b"c", b"3")]


@pytest.mark.anyio
async def test_tombstones_stay_for_their_time(url: str) -> None:
    async with running(url, config=QUIET) as (gateway, wire):
        await compacted(wire, delete_retention_ms="3600000")
        await wire.produce("t", keyed([(b"a", b"1"), (b"a", None)]))
        for number in range(3):
            await roll(gateway)
            assert await gateway.parts.cleaner.clean_dirtiest()
            assert (await stored(wire))[0] == (1, b"a", None)
            await wire.produce("t", keyed([(b"b", b"%d" % number)]))


@pytest.mark.anyio
async def test_what_a_producer_repeats_is_recognised_afterwards(url: str) -> None:
    async with running(url, config=QUIET) as (gateway, wire):
        await compacted(wire)
        producer_id = await wire.producer_id()
        batch = keyed([(b"a", b"1"), (b"b", b"2")], producer_id=producer_id, sequence=0)
        await wire.produce("t", bytearray(batch))
        await wire.produce("t", keyed([(b"a", b"3"), (b"b", b"4")]))
        await roll(gateway)
        assert await gateway.parts.cleaner.clean_dirtiest()
        assert await stored(wire) == [(2, b"a", b"3"), (3, b"b", b"4")]
        assert (await wire.produce("t", bytearray(batch))).base_offset == 0
    if url.startswith("embedded"):
        async with running(url, config=QUIET) as (gateway, wire):
            assert (await wire.produce("t", bytearray(batch))).base_offset == 0
            again = keyed([(b"c", b"5")], producer_id=producer_id, sequence=2)
            assert (await wire.produce("t", again)).base_offset == 4


@pytest.mark.anyio
async def test_a_transaction_that_a_checkpoint_saw_open_stays_ended_after_a_crash(tmp_path: Path) -> None:
    async with running(f"embedded:{tmp_path / 'data'}", config=QUIET) as (gateway, wire):
        await compacted(wire, delete_retention_ms="0")
        await wire.produce("t", keyed([(b"z", b"0")]))
        begun = await wire(InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000), 4)
        batch = keyed([(b"a", b"1")], producer_id=begun.producer_id, sequence=0, transactional=True)
        await wire(produce_request("t", batch, transactional_id="x"), 12)
        assert not (await wire.delete_records("t", 1)).error_code, "which writes a checkpoint"
        end = EndTxnRequest(transactional_id="x", producer_id=begun.producer_id, producer_epoch=0, committed=True)
        assert not (await wire(end, 5)).error_code
        assert (await wire.fetch("t", 2, max_wait_ms=30_000)).high_watermark == 3, "the marker is there"
        for value in (b"2", b"3", b"4"):
            await wire.produce("t", keyed([(b"a", value)]))
            await roll(gateway)
            assert await gateway.parts.cleaner.clean_dirtiest()
        first = next(iter_headers(bytes((await wire.fetch("t", 1)).records or b"")))[1]
        assert first.base_offset == 5, "the marker is gone"
        copy_as_killed(tmp_path / "data", tmp_path / "killed")
    async with running(f"embedded:{tmp_path / 'killed'}", config=QUIET) as (_, wire):
        assert (await wire.offset("t", -1, isolation_level=1)).offset == 6


@pytest.mark.anyio
async def test_a_table_without_room_takes_several_passes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(url, config=QUIET) as (gateway, wire):
        await compacted(wire)
        monkeypatch.setattr(gateway.parts.cleaner, "_table_bytes", lambda: 24 * 5)
        for value in (b"old", b"new"):
            for number in range(10):
                await wire.produce("t", keyed([(b"%d" % number, value)]))
                if number % 4 == 3:
                    await roll(gateway)
        await roll(gateway)
        passes = 0
        while await gateway.parts.cleaner.clean_dirtiest():
            passes += 1
        assert passes == 5
        assert await stored(wire) == [(10 + number, b"%d" % number, b"new") for number in range(10)]


@pytest.mark.anyio
async def test_retention_goes_on_beside_it(url: str) -> None:
    async with running(url, config=QUIET) as (gateway, wire):
        await compacted(wire, cleanup_policy="compact,delete", retention_ms="60000")
        now = time.time_ns() // 1_000_000
        await wire.produce("t", keyed([(b"a", b"1"), (b"b", b"2")]))
        await roll(gateway)
        await wire.produce("t", keyed([(b"a", b"3")], timestamp=now))
        await roll(gateway)
        assert await gateway.parts.cleaner.clean_dirtiest()
        assert await stored(wire) == [(1, b"b", b"2"), (2, b"a", b"3")]
        assert await gateway.apply_retention() == 1
        assert (await wire.offset("t", -2)).offset == 2
        await wire.produce("t", keyed([(b"a", b"4")], timestamp=now))
        await roll(gateway)
        assert await gateway.parts.cleaner.clean_dirtiest()
        assert await stored(wire, start=2) == [(3, b"a", b"4")]


@pytest.mark.anyio
async def test_topics_that_are_not_compacted_stay_as_they_are(url: str) -> None:
    async with running(url, config=QUIET) as (gateway, wire):
        await wire.create("t", retention_ms="-1")
        await wire.produce("t", keyed([(b"a", b"1"), (b"a", b"2")]))
        await roll(gateway)
        assert not await gateway.parts.cleaner.clean_dirtiest()
        assert len(await stored(wire)) == 2


@pytest.mark.anyio
async def test_a_store_is_given_few_batches_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """memory: looks at each of them in the event loop."""
    monkeypatch.setattr("kclient.gateway.compaction.partition._BATCHES_AT_ONCE", 3)
    given: list[int] = []
    append = MemoryRewriting.append

    async def noticed(self: MemoryRewriting, messages: Sequence[Buffer]) -> None:
        given.append(len(messages))
        await append(self, messages)

    monkeypatch.setattr(MemoryRewriting, "append", noticed)
    async with running(config=QUIET) as (gateway, wire):
        await compacted(wire)
        for number in range(8):
            await wire.produce("t", keyed([(b"%d" % number, b"1"), (b"a", b"2")]))
        await roll(gateway)
        assert await gateway.parts.cleaner.clean_dirtiest()
        assert len(await stored(wire)) == 9
    assert given == [3, 3, 2, 0]


@pytest.mark.anyio
async def test_many_that_are_dirty_are_found_at_one_look(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(url, config=QUIET) as (gateway, wire):
        await wire.create("t", 20, cleanup_policy="compact", min_cleanable_dirty_ratio="0")
        [record] = [record for record in gateway.parts.topics if record.name == "t"]
        for index in range(20):
            await wire.produce("t", keyed([(b"a", b"1"), (b"a", b"2")]), index)
            partition = gateway.parts.partitions.of(record, index)
            assert partition is not None
            await partition.stored_in.roll()
        cleaner, looks = gateway.parts.cleaner, 0
        look = cleaner._look

        async def counted(partition: Partition) -> Cleanable | None:
            nonlocal looks
            looks += 1
            return await look(partition)

        monkeypatch.setattr(cleaner, "_look", counted)
        while await cleaner.clean_dirtiest():
            pass
        assert cleaner.runs == 20
        assert looks == 3 * 20, "before, each in its turn, and after"


@pytest.mark.anyio
@pytest.mark.parametrize("isolation_level", [0, 1])
async def test_a_fetch_passes_over_segments_of_which_nothing_is_left(url: str, isolation_level: int) -> None:
    """Some clients take answers without a record for records that are too large for them."""
    async with running(url, config=QUIET) as (gateway, wire):
        await compacted(wire)
        for number in range(20):
            await wire.produce("t", keyed([(b"a", b"%d" % number)]))
            await roll(gateway)
        assert await gateway.parts.cleaner.clean_dirtiest()
        for version in (11, 3):
            answer = await wire.fetch("t", 5, version=version, isolation_level=isolation_level)
            records = decode_records(bytes(answer.records or b""), "t", 0)
            assert [(record.offset, record.value) for record in records] == [(19, b"19")]


@pytest.mark.anyio
async def test_it_is_done_by_itself(url: str) -> None:
    async with running(url, config={"log.cleaner.backoff.ms": "20"}) as (gateway, wire):
        await compacted(wire)
        await wire.produce("t", keyed([(b"a", b"1"), (b"a", b"2")]))
        await roll(gateway)
        with anyio.fail_after(20):
            while await stored(wire) != [(1, b"a", b"2")]:
                await anyio.sleep(0.02)


@pytest.mark.anyio
async def test_searches_by_time_pass_over_what_has_gone(url: str) -> None:
    async with running(url, config=QUIET) as (gateway, wire):
        await compacted(wire)
        for number, key in enumerate((b"a", b"b", b"a", b"c")):
            await wire.produce("t", keyed([(key, b"%d" % number)], timestamp=1_000 + 10 * number))
        await roll(gateway)
        assert await gateway.parts.cleaner.clean_dirtiest()
        assert [(await wire.offset("t", stamp)).offset for stamp in (0, 1_000, 1_010, 1_011, 1_030)] == [1, 1, 1, 2, 3]
        assert (await wire.offset("t", -3)).offset == 3


async def filled(gateway: Gateway, wire: Wire) -> None:
    """A topic of three closed segments, in each of which something is to be cleaned."""
    await compacted(wire)
    for number in range(3):
        await wire.produce("t", keyed([(b"a", b"%d" % number), (b"b", b"%d" % number)]))
        await roll(gateway)


@pytest.mark.anyio
@pytest.mark.parametrize("pieces", range(1, 7))
async def test_a_topic_is_deleted_meanwhile(
    url: str, pieces: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(url, config=QUIET) as (gateway, wire):
        await filled(gateway, wire)
        calls = 0

        async def delete(_: int) -> None:
            nonlocal calls
            calls += 1
            if calls == pieces:
                assert await wire.delete("t") == ErrorCode.NONE

        monkeypatch.setattr(gateway.parts.cleaner, "_pace", delete)
        assert not await gateway.parts.cleaner.clean_dirtiest()
        monkeypatch.undo()
        await filled(gateway, wire)
        assert await gateway.parts.cleaner.clean_dirtiest()
        assert await stored(wire) == [(4, b"a", b"2"), (5, b"b", b"2")]
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.anyio
async def test_a_topic_is_not_compacted_any_more_meanwhile(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not put in its place by then stays, and is dirty when it is compacted again."""
    async with running(url, config=QUIET) as (gateway, wire):
        await filled(gateway, wire)
        calls = 0

        async def change(_: int) -> None:
            nonlocal calls
            calls += 1
            if calls == 5:  # three pieces are noted, the second of three segments is being rewritten
                assert await wire.alter(2, "t", ("cleanup.policy", 0, "delete")) == ErrorCode.NONE

        monkeypatch.setattr(gateway.parts.cleaner, "_pace", change)
        assert not await gateway.parts.cleaner.clean_dirtiest()
        assert [offset for offset, _, _ in await stored(wire)] == [2, 3, 4, 5]
        assert await wire.alter(2, "t", ("cleanup.policy", 0, "compact")) == ErrorCode.NONE
        assert await gateway.parts.cleaner.clean_dirtiest()
        assert await stored(wire) == [(4, b"a", b"2"), (5, b"b", b"2")]


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("pieces", range(1, 5))
async def test_the_gateway_closes_meanwhile(tmp_path: Path, pieces: int, caplog: pytest.LogCaptureFixture) -> None:
    url = f"embedded:{tmp_path / 'data'}"
    async with running(url, config=QUIET) as (gateway, wire):
        await filled(gateway, wire)
    async with running(url, config={"log.cleaner.backoff.ms": "0"}) as (gateway, wire):
        calls, reached = 0, anyio.Event()

        async def wait(_: int) -> None:
            nonlocal calls
            calls += 1
            if calls == pieces:
                reached.set()
                await anyio.sleep_forever()

        gateway.parts.cleaner._pace = wait  # type: ignore[assignment]
        with anyio.fail_after(20):
            await reached.wait()
    assert list(tmp_path.rglob("*.tmp")) == []
    async with running(url, config=QUIET) as (gateway, wire):
        await roll(gateway)  # what was closed and is the last one has been opened to be written to
        assert (await stored(wire))[-2:] == [(4, b"a", b"2"), (5, b"b", b"2")]
        assert await gateway.parts.cleaner.clean_dirtiest()
        assert await stored(wire) == [(4, b"a", b"2"), (5, b"b", b"2")]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.anyio
async def test_another_gateway_takes_the_store_over_meanwhile(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was led here is cleaned by whoever leads it now."""
    async with running(config=QUIET) as (gateway, wire):
        await filled(gateway, wire)
        partition = partition_of(gateway)

        async def raise_epoch(_: int) -> None:
            topic = partition.stored_in
            await partition._around.store.open(
                topic.place, partition._topic_id, 0,
                epoch=topic.epoch + 1, settings=TopicSettings(dense=True), next_offset=0, start_offset=0,
                stalled=lambda _: None,
            )  # fmt: skip

        monkeypatch.setattr(gateway.parts.cleaner, "_pace", raise_epoch)
        assert not await gateway.parts.cleaner.clean_dirtiest()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.anyio
async def test_what_little_space_is_left_is_for_producers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(f"embedded:{tmp_path / 'data'}", config=QUIET) as (gateway, wire):
        await filled(gateway, wire)
        with monkeypatch.context() as patch:
            patch.setattr(Files, "free_bytes", lambda *_: 1 << 20)
            assert not await gateway.parts.cleaner.clean_dirtiest()
            assert "has 1,048,576 bytes left, of which 8,388,608 are kept for new messages" in caplog.text
            assert list(tmp_path.rglob("*.tmp")) == []
            assert len(await stored(wire)) == 6
        assert await gateway.parts.cleaner.clean_dirtiest()
        assert await stored(wire) == [(4, b"a", b"2"), (5, b"b", b"2")]


@pytest.mark.anyio
async def test_without_memory_it_is_tried_again(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: int) -> KeyOffsets:
        raise MemoryError

    async with running(url, config=QUIET) as (gateway, wire):
        await filled(gateway, wire)
        with monkeypatch.context() as patch:
            patch.setattr("kclient.gateway.compaction.partition.KeyOffsets", refuse)
            assert not await gateway.parts.cleaner.clean_dirtiest()
        assert "(log.cleaner.dedupe.buffer.size=134217728)" in caplog.text
        assert await gateway.parts.cleaner.clean_dirtiest()
        assert await stored(wire) == [(4, b"a", b"2"), (5, b"b", b"2")]


@pytest.mark.anyio
async def test_where_nothing_can_be_rewritten_every_record_stays(caplog: pytest.LogCaptureFixture) -> None:
    async with running(config=QUIET, mapping="virtual") as (gateway, wire):
        await compacted(wire)
        await wire.produce("t", keyed([(b"a", b"1"), (b"a", b"2")]))
        for _ in range(2):
            assert not await gateway.parts.cleaner.clean_dirtiest()
        assert len(await stored(wire)) == 2
    told = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(told) == 1
    assert "keeps every record" in told[0]


@pytest.mark.anyio
async def test_a_damaged_log_is_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(f"embedded:{tmp_path / 'data'}", config=QUIET) as (gateway, wire):
        await filled(gateway, wire)
        [file] = tmp_path.rglob(f"{2:020}.log")
        content = bytearray(file.read_bytes())
        content[-3] ^= 1
        file.write_bytes(content)
        for _ in range(2):
            assert not await gateway.parts.cleaner.clean_dirtiest()
        assert gateway.parts.cleaner.uncleanable == 1
        assert file.read_bytes() == content
    told = [record.message for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(told) == 1
    assert "is not compacted any more" in told[0]


def segment(first: int, stamp: int, *, active: bool = False) -> SegmentInfo:
    return SegmentInfo(first, first + 10, 100, stamp, stamp, active)


@pytest.mark.parametrize(
    ("config", "cleaned", "stable", "expected"),
    [
        (TopicConfig(compacts=True), 0, 40, Cleanable(0, 30, 1.0)),
        (TopicConfig(compacts=True), 20, 40, Cleanable(20, 30, 1 / 3)),
        (TopicConfig(compacts=True), 30, 40, Cleanable(30, 30, 0.0)),
        (TopicConfig(compacts=True), 0, 25, Cleanable(0, 25, 1.0)),
        (TopicConfig(compacts=True), 50, 40, Cleanable(0, 30, 1.0)),  # the log has lost its end since
        (TopicConfig(compacts=True, min_compaction_lag_ms=650), 0, 40, Cleanable(0, 20, 1.0)),
        (TopicConfig(compacts=True, min_compaction_lag_ms=5_000), 0, 40, Cleanable(0, 0, 0.0)),
        (TopicConfig(compacts=True, max_compaction_lag_ms=899), 20, 40, Cleanable(20, 30, 1 / 3, overdue=True)),
        (TopicConfig(compacts=True, max_compaction_lag_ms=901), 20, 40, Cleanable(20, 30, 1 / 3)),
    ],
)
def test_what_is_dirty(config: TopicConfig, cleaned: int, stable: int, expected: Cleanable) -> None:
    segments = [segment(0, 100), segment(10, 300), segment(20, 500), segment(30, 900, active=True)]
    found = cleanable(segments, config, cleaned=cleaned, start=0, stable=stable, now_ms=1_000, waiting_since=100)
    assert found == expected
    assert found.is_due(config) == (found.overdue or found.ratio > 0.5)
