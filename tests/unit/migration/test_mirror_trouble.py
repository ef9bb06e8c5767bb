"""What can happen to a source while it is mirrored: topics come, grow, go and come back, brokers die, batches rot."""

from __future__ import annotations

import os
import struct
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from kclient.errors import KafkaStorageError
from kclient.gateway import Gateway
from kclient.gateway.append import Append
from kclient.gateway.partition import Partition
from kclient.htp import open_store
from kclient.htp.errors import StorageError
from kclient.migration import MigrationError, Target, Throttle
from kclient.migration import mirror as mirror_module
from kclient.migration.states import MirroredPartition
from kclient.migration.target import find_batches
from kclient.migration.verifying import verify
from kclient.records import MessageSetBuilder, read_header
from kclient.records.batch_header import HEADER_SIZE
from tests.gateway_wire import batch_of, connect, names, running
from tests.small_transactions import Transactor, coordinated, local_peers
from tests.uncertain_store import Fate, UncertainStore
from tests.unit.htp.disks import HangingFiles
from tests.unit.migration.conftest import Pair, caught_up, clients, pair, until

pytestmark = pytest.mark.anyio


async def test_topics_and_partitions_that_come_later_are_mirrored() -> None:
    async with pair() as source, running() as (target, wire):
        await source.wire.create("flights")
        async with source.mirroring(target, selects=lambda name: name != "secret") as mirror:
            await source.wire.create("trains")
            await source.wire.create("secret")
            await source.wire.produce("trains", batch_of(b"a"))
            assert await source.wire.grow("flights", 3) == 0
            await source.wire.produce("flights", batch_of(b"b"), 2)
            await until(lambda: "trains" in mirror.topics and len(mirror.topics["flights"].partitions) == 3)
            await until(lambda: sum(state.records for state in mirror.states()) == 2)
            assert await wire.values("trains") == [b"a"]
            assert await wire.values("flights", 0, 2) == [b"b"]
        assert target.parts.topics.get("secret") is None


async def test_a_topic_that_is_made_anew_does_not_get_into_the_old_one() -> None:
    async with pair() as source, running() as (target, wire):
        for name in ("flights", "trains"):
            await source.wire.create(name)
            await source.wire.produce(name, batch_of(b"old"))
        async with source.mirroring(target) as mirror:
            await caught_up(mirror)
            await source.wire.delete("flights")
            await source.wire.create("flights")
            for _ in range(3):
                await source.wire.produce("flights", batch_of(b"new"))
            await until(lambda: [each for each in mirror.problems if "deleted at the source and created again" in each])
            await source.wire.produce("trains", batch_of(b"more"))  # the others go on
            await until(lambda: mirror.topics["trains"].partitions[0].records == 2)
        assert await wire.values("flights") == [b"old"]
        with pytest.raises(MigrationError, match="was deleted at the source and created again"):
            async with source.mirroring(target):
                pass


async def test_a_topic_that_is_deleted_keeps_what_was_moved() -> None:
    async with pair() as source, running() as (target, wire):
        await source.wire.create("flights")
        await source.wire.produce("flights", batch_of(b"a"))
        async with source.mirroring(target) as mirror:
            await caught_up(mirror)
            await source.wire.delete("flights")
            await until(lambda: mirror.problems)
            assert mirror.problems == ["topic flights was deleted at the source: the store keeps what was moved"]
        assert await wire.values("flights") == [b"a"]


async def test_a_mirror_that_is_deleted_is_told() -> None:
    async with pair() as source, running() as (target, wire):
        await source.wire.create("flights")
        async with source.mirroring(target) as mirror:
            await caught_up(mirror)
            await wire.delete("flights")
            await until(lambda: mirror.problems)
            assert "was deleted in the store" in mirror.problems[0]


async def test_what_the_store_has_of_its_own_is_left_alone() -> None:
    async with pair() as source, running() as (target, wire):
        for each in (source.wire, wire):
            await each.create("flights")
            await each.produce("flights", batch_of(b"mine"))
        await source.wire.create("trains")
        with pytest.raises(MigrationError, match="in the store already and was made there"):
            async with source.mirroring(target):
                pass
        assert target.parts.topics.get("trains") is None  # all or none


async def test_a_topic_that_the_store_cannot_have_is_told_before_others_are_made() -> None:
    async with pair() as source, running(mapping="broker") as (target, _):
        await source.wire.create("flights", 1)
        await source.wire.create("trains", 2)
        with pytest.raises(MigrationError, match="topic trains cannot be made in the store"):
            async with source.mirroring(target):
                pass
        assert target.parts.topics.get("flights") is None


async def test_another_cluster_is_not_mixed_in() -> None:
    async with pair() as source, pair() as other, running() as (target, _):
        for each in (source, other):
            await each.wire.create("flights")
        async with source.mirroring(target) as mirror:
            await caught_up(mirror)
        with pytest.raises(MigrationError, match="mirrors the cluster"):
            async with other.mirroring(target):
                pass


async def test_a_source_that_went_back_is_told() -> None:
    """As after an unclean leader election."""
    async with pair() as source, running() as (target, wire):
        await source.wire.create("flights")
        for _ in range(3):
            await source.wire.produce("flights", batch_of(b"a"))
        async with source.mirroring(target) as mirror:
            await caught_up(mirror)
        log = source.gateway.parts.partitions.get("flights", 0).log  # type: ignore[union-attr]
        log.next_offset = log.high_watermark = 1
        async with source.mirroring(target) as mirror:
            await until(lambda: mirror.problems)
            assert "ends at offset 1 at the source, and the store has it up to 3" in mirror.problems[0]
        assert len(await wire.values("flights")) == 3


@pytest.mark.slow
async def test_damage_at_the_source_stops_that_partition() -> None:
    async with pair() as source, running() as (target, wire):
        await source.wire.create("flights", 2)
        await source.append("flights", batch_of(b"good"))
        partition = source.gateway.parts.partitions.get("flights", 0)
        assert partition is not None
        rotten = batch_of(b"a record that rots")
        struct.pack_into(">q", rotten, 0, 1)
        rotten[HEADER_SIZE + 10] ^= 1
        await partition.stored_in.send([rotten])
        partition.log.skip_to(2)
        await source.append("flights", batch_of(b"other"), partition=1)
        async with source.mirroring(target) as mirror:
            await until(lambda: mirror.problems)
            assert "flights-0 is mirrored up to offset 0 only" in mirror.problems[0]
            assert "what the source has there is damaged" in mirror.problems[0]
            await until(lambda: mirror.lag == 0)  # of what is left
        assert await wire.values("flights") == [b"good"]
        assert await wire.values("flights", 0, 1) == [b"other"]


async def test_old_message_formats_become_batches_with_their_offsets() -> None:
    async with pair() as source, running() as (target, wire):
        await source.wire.create("flights")
        builder = MessageSetBuilder(magic=1, limit=1 << 20)
        for offset in (0, 1, 5):
            builder.append_at(offset, 1000 + offset, b"k", b"%d" % offset)
        old = bytes(builder.build(0))

        made = await _mirror_of(source, target)
        appended = await Target(target).append(made, await find_batches(old))
        assert (appended.records, made.log.next_offset) == (3, 6)
        await until(lambda: made.log.high_watermark == 6)
        assert await wire.values("flights") == [b"0", b"1", b"5"]


async def _mirror_of(source: Pair, target: Gateway) -> Partition:
    """The empty mirror of the topic flights."""
    async with source.mirroring(target) as mirror:
        await caught_up(mirror)
    found = target.parts.partitions.get("flights", 0)
    assert found is not None
    return found


async def test_a_full_disk_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair() as source, running() as (target, wire):
        await source.wire.create("flights")
        await source.wire.produce("flights", batch_of(b"a"))
        full = True
        send = Partition._send_together

        def refuse(self: Partition, appends: list[Append], *args: Any) -> None:
            if full:
                self._fail(appends[0], KafkaStorageError("no space left"))
            else:
                send(self, appends, *args)

        monkeypatch.setattr(Partition, "_send_together", refuse)
        async with source.mirroring(target) as mirror:
            await until(lambda: any("no space left" in note for note in source.notes))
            full = False
            await caught_up(mirror)
        assert await wire.values("flights") == [b"a"]


def reaches(state: MirroredPartition, offset: int) -> bool:
    return state.partition.log.high_watermark == offset


@pytest.mark.slow
async def test_a_disk_that_hangs_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it is to have comes from the same broker."""
    monkeypatch.setattr(mirror_module, "_PATIENCE_S", 0.05)
    files = HangingFiles("brk-1")
    monkeypatch.setattr("kclient.htp.embedded.Files", lambda: files)
    url = f"embedded:{tmp_path}/data"
    async with pair() as source, running(url, mapping="broker", brokers=2) as (target, _):
        await source.wire.create("flights", 2)
        async with source.mirroring(target) as mirror:
            record = mirror.topics["flights"].record
            hanging = next(index for index, place in enumerate(record.places) if place.broker == "brk-1")
            states = mirror.topics["flights"].partitions
            for index in range(2):
                await source.wire.produce("flights", batch_of(b"a"), index)
            await until(lambda: [state.partition.log.high_watermark for state in states] == [1, 1])
            files.hang(syncs_only=True)
            try:
                await source.wire.produce("flights", batch_of(b"b"), hanging)
                await until(files.reached.is_set)
                for number in range(5):
                    await source.wire.produce("flights", batch_of(b"b"), 1 - hanging)
                    await until(partial(reaches, states[1 - hanging], number + 2))
                assert reaches(states[hanging], 1)
            finally:
                files.go_on()
            await caught_up(mirror)
            assert [state.records for state in mirror.topics["flights"].partitions] == [
                2 + 4 * hanging,
                6 - 4 * hanging,
            ]


@pytest.mark.slow
async def test_a_source_that_restarts_is_waited_for(tmp_path: object) -> None:
    address = f"embedded:{tmp_path}/source"
    async with running() as (target, wire):
        first = Gateway(address, listen="127.0.0.1:0")
        await first.start()
        port = first.address
        source = Pair(first, connect(first), port)
        await source.wire.create("flights")
        await source.wire.produce("flights", batch_of(b"a"))
        async with source.mirroring(target) as mirror:
            await caught_up(mirror)
            await first.close(0.0)
            await until(lambda: source.notes)
            async with Gateway(address, listen=port) as second:
                again = connect(second)
                await again.produce("flights", batch_of(b"b"))
                await until(lambda: mirror.topics["flights"].partitions[0].records == 2)
        assert await wire.values("flights") == [b"a", b"b"]


async def test_it_is_throttled() -> None:
    async with pair() as source, running() as (target, wire):
        await source.wire.create("flights")
        for _ in range(3):
            await source.wire.produce("flights", batch_of(b"x" * 100_000))
        begun = anyio.current_time()
        async with source.mirroring(target, throttle=Throttle(100_000, begun)) as mirror:
            # a second's worth at once, one more when that is used up, and a second later the third
            await until(lambda: mirror.topics["flights"].partitions[0].records == 3)
            assert anyio.current_time() - begun > 0.9
        assert len(await wire.values("flights")) == 3


async def test_transactions_keep_their_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = coordinated(monkeypatch)
    htp = f"memory:{next(names)}"
    async with pair() as source, running(htp) as (target, wire):
        await source.wire.create("flights")
        peers = local_peers(source.gateway, coordinator)
        one = Transactor(source.wire, coordinator, peers, "one")
        other = Transactor(source.wire, coordinator, peers, "other")
        one.begin()
        assert await one.send("flights", b"committed") == 0
        await one.end(committed=True)
        one.begin()
        assert await one.send("flights", b"aborted") == 0
        await one.end(committed=False)
        other.begin()
        assert await other.send("flights", b"open") == 0
        async with source.mirroring(target) as mirror:
            await caught_up(mirror)
            assert (await wire.offset("flights", -1, isolation_level=1)).offset == 4
            assert (await wire.offset("flights", -1)).offset == 5
            await other.end(committed=True)
            await caught_up(mirror)
            await until(lambda: target.parts.partitions.get("flights", 0).log.last_stable_offset == 6)  # type: ignore[union-attr]
            aborted = (await wire.fetch("flights", 0, isolation_level=1)).aborted_transactions or []
            assert [(each.producer_id, each.first_offset) for each in aborted] == [(one.producer_id, 2)]
        async with source.source() as theirs, clients(htp) as ours:
            found = await verify(theirs, ours, (await theirs.topics()).values())
            assert (found.failures, found.partitions[0].records) == ([], 3)


@pytest.mark.slow
@pytest.mark.parametrize("moved", [0, 4])
async def test_a_source_that_cannot_read_at_the_moment_has_no_hole(moved: int) -> None:
    store = UncertainStore(open_store(f"memory:{next(names)}"))
    async with store, Gateway(store, "127.0.0.1:0") as gateway, running() as (target, wire):
        source = Pair(gateway, connect(gateway), gateway.bootstrap)
        await source.wire.create("flights")
        values = [b"%d" % number for number in range(10)]
        for number in range(10):
            await source.wire.produce("flights", batch_of(values[number]))
            if number + 1 == moved:
                async with source.mirroring(target) as mirror:
                    await caught_up(mirror)
        theirs = gateway.parts.partitions.get("flights", 0)
        assert theirs is not None
        store.broker.fates.append(Fate.LOST)
        store.broker.failing = StorageError("the store does not answer")
        batch = batch_of(b"nobody knows")
        theirs.append(batch, read_header(batch))
        await until(lambda: theirs.undecided)
        async with source.mirroring(target) as mirror:
            await until(lambda: any("the source sends nothing from offset" in note for note in source.notes))
            assert await wire.values("flights") == values[:moved]
            store.broker.failing = None
            await caught_up(mirror)
        assert await wire.values("flights") == values
        await source.wire.aclose()


@pytest.mark.parametrize("first", [0, 1])
async def test_a_hole_at_the_end_is_filled(first: int) -> None:
    async with pair() as source, running() as (target, wire):
        await source.wire.create("compacted")
        for number in range(first):
            await source.append("compacted", batch_of(b"%d" % number))
        theirs = source.gateway.parts.partitions.get("compacted", 0)
        assert theirs is not None
        await theirs.ready()
        theirs.log.skip_to(50)
        async with source.mirroring(target) as mirror:
            await caught_up(mirror)
        ours = target.parts.partitions.get("compacted", 0)
        assert ours is not None
        assert ours.log.high_watermark == 50
        assert await wire.values("compacted") == [b"%d" % number for number in range(first)]


@pytest.mark.slow
async def test_what_the_store_has_lost_is_told(tmp_path: Path) -> None:
    async with pair() as source:
        await source.wire.create("flights")
        for number in range(10):
            await source.wire.produce("flights", batch_of(b"%d" % number))
        async with running(f"embedded:{tmp_path}") as (target, _), source.mirroring(target) as mirror:
            await caught_up(mirror)
        (log,) = tmp_path.rglob("*.log")
        os.truncate(log, log.stat().st_size - 1)
        async with running(f"embedded:{tmp_path}") as (target, wire):
            async with source.mirroring(target) as mirror:
                await until(lambda: mirror.problems)
                assert "flights-0 is mirrored up to offset 8 only: the store has lost" in mirror.problems[0]
                await source.wire.produce("flights", batch_of(b"later"))
            assert await wire.values("flights") == [b"%d" % number for number in range(9)]
