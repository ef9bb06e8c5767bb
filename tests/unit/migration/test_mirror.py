"""The mirror: every record at its own offset, whatever the source's log looks like."""

from __future__ import annotations

import pytest

from kclient.gateway import Gateway
from kclient.records import CompressionType, iter_headers
from tests.gateway_wire import batch_of, running
from tests.unit.migration.conftest import caught_up, pair, until

pytestmark = pytest.mark.anyio


async def test_records_keep_offsets_timestamps_producers_and_codecs(htp: str) -> None:
    async with pair() as source, running(htp) as (target, wire):
        await source.wire.create("flights", 2, **{"retention.ms": "-1"})
        await source.append("flights", batch_of(b"a", b"b", timestamp=17, producer_id=7, producer_epoch=1, sequence=0))
        await source.append("flights", batch_of(b"c" * 500, timestamp=18, compression=CompressionType.ZSTD))
        await source.append("flights", batch_of(b"d", timestamp=19), partition=1)
        async with source.mirroring(target) as mirror:
            await caught_up(mirror)
        for partition in (0, 1):
            theirs = (await source.wire.fetch("flights", 0, partition)).records or b""
            ours = (await wire.fetch("flights", 0, partition)).records or b""
            assert [each for _, each in iter_headers(theirs)] == [
                each._replace(partition_leader_epoch=theirs_each.partition_leader_epoch)
                for (_, each), (_, theirs_each) in zip(iter_headers(ours), iter_headers(theirs), strict=True)
            ]
        assert (await wire.configs(2, "flights"))["retention.ms"] == ("-1", 1)
        assert await wire.values("flights") == [b"a", b"b", b"c" * 500]


async def test_a_hole_stays_a_hole(htp: str) -> None:
    async with pair() as source, running(htp) as (target, wire):
        await source.wire.create("compacted")
        await source.append("compacted", batch_of(b"0"))
        await source.append("compacted", batch_of(b"100"), at=100)
        await source.append("compacted", batch_of(b"5000000000"), at=5_000_000_000)
        async with source.mirroring(target) as mirror:
            await caught_up(mirror)
            assert await wire.values("compacted") == [b"0", b"100", b"5000000000"]
            assert (await wire.offset("compacted", -1)).offset == 5_000_000_001
            assert await wire.values("compacted", 57) == [b"100", b"5000000000"]


async def test_records_come_while_it_runs(htp: str) -> None:
    async with pair() as source, running(htp) as (target, wire):
        await source.wire.create("flights")
        async with source.mirroring(target) as mirror:
            for number in range(10):
                await source.wire.produce("flights", batch_of(b"%d" % number))
            await until(lambda: mirror.topics["flights"].partitions[0].records == 10)
            assert await wire.values("flights") == [b"%d" % number for number in range(10)]


async def test_it_goes_on_where_the_store_ends() -> None:
    async with pair() as source, running() as (target, wire):
        await source.wire.create("flights")
        await source.wire.produce("flights", batch_of(b"a"))
        async with source.mirroring(target) as mirror:
            await caught_up(mirror)
        await source.wire.produce("flights", batch_of(b"b"))
        async with source.mirroring(target) as mirror:
            await until(lambda: mirror.topics["flights"].partitions[0].records == 1)
        assert await wire.values("flights") == [b"a", b"b"]


async def test_clients_cannot_write_to_a_mirror_and_can_read_it() -> None:
    async with pair() as source, running() as (target, wire):
        await source.wire.create("flights")
        await source.wire.produce("flights", batch_of(b"a"))
        async with source.mirroring(target) as mirror:
            await caught_up(mirror)
        refused = await wire.produce("flights", batch_of(b"mine"))
        assert (refused.error_code, "mirrors a topic of another cluster" in (refused.error_message or "")) == (44, True)
        assert await wire.grow("flights", 3) == 44
        assert (await wire.delete_records("flights", 1)).error_code == 44
        assert await wire.values("flights") == [b"a"]


async def test_the_log_start_follows(htp: str) -> None:
    async with pair() as source, running(htp) as (target, wire):
        await source.wire.create("flights")
        for number in range(10):
            await source.wire.produce("flights", batch_of(b"%d" % number, b"+"))
        await source.wire.delete_records("flights", 5)  # within a batch
        async with source.mirroring(target) as mirror:
            await caught_up(mirror)
            await until(lambda: target.parts.partitions.get("flights", 0).log.start_offset == 5)  # type: ignore[union-attr]
            assert await wire.values("flights", 5) == [b"+", *(v for n in range(3, 10) for v in (b"%d" % n, b"+"))]
            await source.wire.delete_records("flights", 20)
            await until(lambda: target.parts.partitions.get("flights", 0).log.start_offset == 20)  # type: ignore[union-attr]
            assert (await wire.offset("flights", -2)).offset == (await wire.offset("flights", -1)).offset == 20


async def test_a_partition_that_has_lost_everything_goes_on_where_it_was(htp: str) -> None:
    async with pair() as source, running(htp) as (target, wire):
        await source.wire.create("flights")
        for _ in range(4):
            await source.wire.produce("flights", batch_of(b"old", b"old"))
        await source.wire.delete_records("flights", 8)
        async with source.mirroring(target) as mirror:
            await caught_up(mirror)
            assert (await wire.offset("flights", -2)).offset == (await wire.offset("flights", -1)).offset == 8
            await source.wire.produce("flights", batch_of(b"new"))
            await until(lambda: mirror.topics["flights"].partitions[0].records == 1)
            assert await wire.values("flights", 8) == [b"new"]


async def test_retention_that_passes_the_mirror_by_is_told() -> None:
    async with pair() as source, running() as (target, wire):
        await source.wire.create("flights")
        await source.wire.produce("flights", batch_of(b"a"))
        async with source.mirroring(target) as mirror:
            await caught_up(mirror)
        for _ in range(3):
            await source.wire.produce("flights", batch_of(b"b"))
        await source.wire.delete_records("flights", 3)
        async with source.mirroring(target) as mirror:
            await caught_up(mirror)
            assert await wire.values("flights", 3) == [b"b"]
        assert [note for note in source.notes if "has deleted the offsets 1 to 2" in note]


@pytest.mark.slow
async def test_a_mirror_survives_a_restart_of_its_gateway(tmp_path: object) -> None:
    htp = f"embedded:{tmp_path}/data"
    async with pair() as source:
        await source.wire.create("flights")
        await source.append("flights", batch_of(b"a"))
        await source.append("flights", batch_of(b"b"), at=1000)
        async with Gateway(htp, listen=None) as target, source.mirroring(target) as mirror:
            await caught_up(mirror)
        async with running(htp) as (target, wire):
            assert (await wire.produce("flights", batch_of(b"mine"))).error_code == 44
            assert await wire.values("flights") == [b"a", b"b"]
            await source.append("flights", batch_of(b"c"))
            async with source.mirroring(target) as mirror:
                await until(lambda: mirror.topics["flights"].partitions[0].records == 1)
            assert await wire.values("flights") == [b"a", b"b", b"c"]
