"""Comparing both sides: every record, whatever batches they are in, and what groups have committed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import crc32c
import pytest

from kclient.migration.offsets import Moved, OffsetsMoved, move_offsets
from kclient.migration.source import Bounds, Fetched, SourceCluster
from kclient.migration.verifying import ComparedSides, verify
from kclient.records import CompressionType
from kclient.types import OffsetAndMetadata, TopicPartition
from tests.gateway_wire import batch_of, running
from tests.unit.migration.conftest import Pair, caught_up, clients, pair

pytestmark = pytest.mark.anyio


async def compared(source: Pair, htp: str, *, records: bool = True) -> ComparedSides:
    async with source.source() as theirs, clients(htp) as ours:
        return await verify(theirs, ours, (await theirs.topics()).values(), records=records)


@pytest.mark.slow
async def test_a_mirror_is_equal(htp: str) -> None:
    async with pair() as source, running(htp) as (target, _):
        await source.wire.create("flights", 2)
        for number in range(20):
            await source.wire.produce("flights", batch_of(b"%d" % number, b"+"), number % 2)
        await source.append("flights", batch_of(b"far"), at=1000)
        async with source.mirroring(target) as mirror:
            await caught_up(mirror)
        found = await compared(source, htp)
        assert found.failures == []
        assert [each.records for each in found.partitions] == [21, 20]
        assert found.partitions[0].checksum != found.partitions[1].checksum
        assert found.partitions[0].checksum == (await compared(source, htp)).partitions[0].checksum


async def test_what_is_missing_is_told(htp: str) -> None:
    async with pair() as source, running(htp) as (target, _):
        await source.wire.create("flights")
        await source.wire.produce("flights", batch_of(b"a"))
        async with source.mirroring(target) as mirror:
            await caught_up(mirror)
        await source.wire.produce("flights", batch_of(b"b"))
        await source.wire.create("trains")
        assert (await compared(source, htp)).failures == [
            "topic trains is not in the store",
            "flights-0: the store ends at offset 1, the source at 2",
        ]


@pytest.mark.parametrize(
    ("theirs", "ours", "difference"),
    [
        (
            [b"a", b"b"],
            [b"a", b"B"],
            "the records at offset 1 differ: (-1, -1, False, 17, None, b'b', (), <TimestampType.CREATE_TIME: ",
        ),
        ([b"a", b"b"], [b"a"], "the source has a record at offset 1, and the store has none"),
        ([b"a"], [b"a", b"b"], "the store has a record at offset 1, and the source has none"),
    ],
)
async def test_the_first_difference_is_told(theirs: list[bytes], ours: list[bytes], difference: str) -> None:
    async with pair() as source, pair() as other:
        for side, values in ((source, theirs), (other, ours)):
            await side.wire.create("flights")
            await side.append("flights", batch_of(*values, timestamp=17))
            await side.append("flights", batch_of(b"end", timestamp=17), at=5)
        (found,) = (await compared(source, other.address)).failures
        assert difference in found


async def test_the_type_of_timestamps_is_compared() -> None:
    async with pair() as source, pair() as other:
        stamped = batch_of(b"a", timestamp=17)
        stamped[22] |= 0x08  # LogAppendTime
        stamped[17:21] = crc32c.crc32c(stamped[21:]).to_bytes(4, "big")
        for side, batch in ((source, stamped), (other, batch_of(b"a", timestamp=17))):
            await side.wire.create("flights")
            await side.append("flights", batch)
        (found,) = (await compared(source, other.address)).failures
        assert "the records at offset 0 differ" in found


@pytest.mark.slow
async def test_batches_may_be_packed_in_another_way() -> None:
    async with pair() as source, pair() as other:
        for side in (source, other):
            await side.wire.create("flights")
        await source.append("flights", batch_of(b"a", b"b", timestamp=17))
        await source.append("flights", batch_of(b"c", timestamp=17))
        await other.append("flights", batch_of(b"a", timestamp=17))
        await other.append("flights", batch_of(b"b", b"c", timestamp=17, compression=CompressionType.GZIP))
        found = await compared(source, other.address)
        assert (found.failures, found.partitions[0].records) == ([], 3)


async def test_what_was_compacted_away_since_is_a_note_only() -> None:
    async with pair() as source, pair() as other:
        for side, begin in ((source, 3), (other, 0)):
            await side.wire.create("flights", cleanup_policy="compact")
            for number in range(begin, 5):
                await side.append("flights", batch_of(b"%d" % number, timestamp=17), at=number)
        found = await compared(source, other.address)
        assert found.failures == []
        assert found.partitions[0].note == "3 records that the source has compacted away are still in the store"
        (failure,) = (await compared(other, source.address)).failures
        assert failure == "flights-0: the source has a record at offset 0, and the store has none"


async def test_committed_offsets_are_compared() -> None:
    async with pair() as source, pair() as other:
        for side in (source, other):
            await side.wire.create("flights", 3)
            for partition in range(3):
                await side.append("flights", batch_of(b"a", b"b", timestamp=17), partition=partition)
            await side.wire.commit("same", "flights", 1)
        await source.wire.commit("other", "flights", 1, 1)
        await other.wire.commit("other", "flights", 2, 1)
        await source.wire.commit("missing", "flights", 2, 2)
        found = await compared(source, other.address)
        assert found.offsets == 1
        assert found.failures == [
            "group missing has committed 2 of flights-2 at the source, nothing in the store",
            "group other has committed 1 of flights-1 at the source and 2 in the store",
        ]


async def test_without_records_only_the_ranges_are_compared() -> None:
    async with pair() as source, pair() as other:
        for side, value in ((source, b"a"), (other, b"b")):
            await side.wire.create("flights")
            await side.append("flights", batch_of(value))
        assert (await compared(source, other.address, records=False)).failures == []
        assert len((await compared(source, other.address)).failures) == 1


@pytest.mark.parametrize("told", [0, 2])
@pytest.mark.parametrize("side", ["source", "store"])
async def test_who_answers_nothing_for_a_while_has_not_lost_anything(
    htp: str, side: str, told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that finds out what it has answers fetches without news, and does not tell where it ends."""
    async with pair() as source, running(htp) as (target, _):
        await source.wire.create("flights")
        await source.wire.produce("flights", batch_of(b"a", b"b"))
        async with source.mirroring(target) as mirror:
            await caught_up(mirror)
        async with source.source() as theirs, clients(htp) as ours:
            quiet = theirs if side == "source" else ours
            fetch, bounds, answers = quiet.fetch, quiet.bounds, [b""] * 7

            async def fetches(node_id: int, offsets: Any, *args: Any, **options: Any) -> dict[TopicPartition, Fetched]:
                if answers:
                    answers.pop()
                    return {tp: Fetched(None, b"", 0, told, told, offsets[tp]) for tp in offsets}
                return await fetch(node_id, offsets, *args, **options)

            async def asked(partitions: Any, **options: Any) -> dict[TopicPartition, Bounds]:
                found = await bounds(partitions, **options)
                return found if len(answers) in (0, 7) else {tp: Bounds(0, 0, 0) for tp in found}

            monkeypatch.setattr(quiet, "fetch", fetches)
            monkeypatch.setattr(quiet, "bounds", asked)
            found = await verify(theirs, ours, (await theirs.topics()).values())
            assert (found.failures, [each.records for each in found.partitions]) == ([], [2])
            assert answers == []

            answers += [b""] * 100
            monkeypatch.setattr(quiet, "bounds", bounds)
            if told == 2:
                return  # it says itself that there is nothing
            (failure,) = (await verify(theirs, ours, (await theirs.topics()).values())).failures
            where = "at the source" if side == "source" else "in the store"
            assert failure.startswith(
                f"flights-0: it cannot be read {where}: flights-0: nothing is answered from offset 0 up to 2, though it"
            )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("record", r"flights-0: a batch is damaged in the store: The batch at offset 0 is corrupt: .* \[CORRUPT_.*\]"),
        ("frame", r"flights-0: it cannot be read in the store: .* \[KAFKA_STORAGE_ERROR\]"),
        ("file", r"flights-0: it cannot be read in the store: .* \[KAFKA_STORAGE_ERROR\]"),
    ],
)  # fmt: skip
async def test_a_damaged_store_is_told_and_the_rest_compared(damage: str, told: str, tmp_path: Path) -> None:
    async with pair() as source:
        for topic in ("flights", "trains"):
            await source.wire.create(topic)
            await source.wire.produce(topic, batch_of(topic.encode(), b"..."))
        async with running(f"embedded:{tmp_path}") as (target, _), source.mirroring(target) as mirror:
            await caught_up(mirror)
        (log,) = (each for each in tmp_path.rglob("*.log") if b"flights" in each.read_bytes())
        data = bytearray(log.read_bytes())
        data[8 if damage == "frame" else data.index(b"flights")] ^= 1
        log.write_bytes(data)
        if damage == "file":
            log.unlink()
        async with running(f"embedded:{tmp_path}"), source.source() as theirs, SourceCluster(
            bootstrap_servers=f"embedded:{tmp_path}", retry_backoff_ms=10, default_api_timeout_ms=3000,
            request_timeout_ms=2000,
        ) as ours:  # fmt: skip
            found = await verify(theirs, ours, (await theirs.topics()).values())
        (failure,) = found.failures
        assert re.fullmatch(told, failure)
        assert [(each.tp.topic, each.records, each.difference is None) for each in found.partitions] == [
            ("flights", 0, False), ("trains", 2, True)
        ]  # fmt: skip


@pytest.mark.slow
async def test_what_was_deleted_at_the_source_goes_in_the_store_too(htp: str) -> None:
    """Unless others have committed it there: that is told only."""
    async with pair() as source, running(htp) as (target, _):
        await source.wire.create("flights", 2)
        for partition in range(2):
            await source.wire.produce("flights", batch_of(b"a", b"b"), partition)
        async with source.mirroring(target) as mirror:
            await caught_up(mirror)
        async with source.source() as theirs, clients(htp) as ours:
            both = {TopicPartition("flights", number): OffsetAndMetadata(1) for number in range(2)}
            for group in ("whole", "part", "went on"):
                await theirs.alter_group_offsets(group, both)
            await ours.alter_group_offsets("of the store", both)
            moved: Moved = {}

            async def move() -> OffsetsMoved:
                return await move_offsets(theirs, ours, {"flights": 2}, lambda _: 100, moved)

            assert (await move()).moved == 6
            assert ((await move()).same, len(moved)) == (6, 6)
            await theirs.delete_groups(["whole"])
            await theirs.delete_group_offsets("part", [TopicPartition("flights", 1)])
            await theirs.delete_groups(["went on"])
            await ours.alter_group_offsets("went on", {TopicPartition("flights", 0): OffsetAndMetadata(2)})
            assert (await move()).deleted == 4
            assert (await move()).deleted == 0
            left = {group: await ours.list_group_offsets(group) for group in ("part", "went on", "of the store")}
            assert {group: sorted(tp.partition for tp in offsets) for group, offsets in left.items()} == {
                "part": [0],
                "went on": [0],
                "of the store": [0, 1],
            }
            assert await ours.list_group_offsets("whole") == {}
            found = await verify(theirs, ours, (await theirs.topics()).values())
            assert found.failures == []
            assert [note.partition(":")[0] for note in found.notes] == [
                "group of the store has committed 1 of flights-0 in the store, nothing at the source",
                "group of the store has committed 1 of flights-1 in the store, nothing at the source",
                "group went on has committed 2 of flights-0 in the store, nothing at the source",
            ]
