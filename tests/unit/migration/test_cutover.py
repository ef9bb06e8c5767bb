"""The cut-over: when it waits, what it refuses, and what holds afterwards."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import kclient
from kclient.admin import GroupListing, Listing, TopicDescription
from kclient.errors import KafkaError, KafkaStorageError, KafkaTimeoutError, UnknownTopicOrPartitionError
from kclient.gateway import Gateway
from kclient.gateway.topics.catalogue import TopicCatalogue
from kclient.migration import MigrationError, SourceCluster, Target, cutover
from kclient.migration.cutover import CutOver, CutOverRun
from kclient.types import Node, PartitionInfo
from tests.gateway_wire import batch_of, names, running
from tests.unit.migration.conftest import Pair, clients, pair, until

pytestmark = pytest.mark.anyio

NO_DELAY = {"group.initial.rebalance.delay.ms": 0}


async def cut_over(source: Pair, htp: str, target: Gateway, **options: Any) -> CutOver:
    """Cut over at once, if it can be."""
    options = {"quiet": 0.0, "timeout": 20.0, **options}
    async with source.mirroring(target) as mirror, source.source() as theirs, clients(htp) as ours:
        try:
            return await CutOverRun(theirs, Target(target), ours, mirror, note=source.notes.append, **options).run()
        except KafkaError as error:  # outside of the groups, which would wrap it
            refusal = error
    raise refusal


async def test_afterwards_clients_go_on_with_another_address(htp: str) -> None:
    async with pair() as source, running(htp) as (target, wire):
        await source.wire.create("flights", 2)
        for number in range(10):
            await source.wire.produce("flights", batch_of(b"%d" % number), number % 2)
        assert await source.wire.commit("delays", "flights", 3, 1) == 0
        done = await cut_over(source, htp, target)
        assert (done.topics, done.offsets.moved, done.late) == (["flights"], 1, [])
        assert await wire.committed("delays", "flights", 1) == 3
        written = await wire.produce("flights", batch_of(b"mine"), 1)
        assert (written.error_code, written.base_offset) == (0, 5)
        assert await wire.values("flights", 3, 1) == [b"7", b"9", b"mine"]
        assert (await wire.configs(2, "flights"))["htp.mirror"][0].startswith("taken over from ")  # type: ignore[union-attr]
        assert await wire.grow("flights", 3) == 0


@pytest.mark.slow
async def test_it_waits_until_producers_have_stopped() -> None:
    htp = f"memory:{next(names)}"
    async with pair() as source, running(htp, config=NO_DELAY) as (target, wire):
        await source.wire.create("flights")
        await source.wire.produce("flights", batch_of(b"first"))
        produced = 1
        async with anyio.create_task_group() as tasks:
            done: list[CutOver] = []

            async def work() -> None:
                done.append(await cut_over(source, htp, target, quiet=0.3))

            tasks.start_soon(work)
            while "waiting: producers still write to flights-0: stop them" not in source.notes:
                await source.wire.produce("flights", batch_of(b"more"))
                produced += 1
            assert not done
        assert len(await wire.values("flights")) == produced
        assert done[0].late == []


@pytest.mark.slow
async def test_members_at_the_source_hold_it_up() -> None:
    htp = f"memory:{next(names)}"
    async with pair() as source, running(htp, config=NO_DELAY) as (target, wire):
        await source.wire.create("flights")
        await source.wire.produce("flights", batch_of(b"a"))
        consumer = kclient.Consumer(
            "flights", group_id="delays", bootstrap_servers=source.address, auto_offset_reset="earliest"
        )
        async with consumer:
            assert [record.value async for record in first(consumer)] == [b"a"]
            await consumer.commit()
            with pytest.raises(MigrationError, match="the groups delays have members at the source"):
                await cut_over(source, htp, target, timeout=1.0)
            assert (await wire.produce("flights", batch_of(b"mine"))).error_code == 44
            done = await cut_over(source, htp, target, active_groups=True)
        assert done.offsets.moved == 1
        assert await wire.committed("delays", "flights") == 1


@pytest.mark.slow
async def test_groups_that_no_broker_lists_hold_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    htp = f"memory:{next(names)}"
    async with pair() as source, running(htp, config=NO_DELAY) as (target, wire):
        await source.wire.create("flights")
        await source.wire.produce("flights", batch_of(b"a"))
        await source.wire.commit("delays", "flights", 1)
        leaderless = [PartitionInfo("__consumer_offsets", number, None) for number in range(2)]
        here = PartitionInfo("__consumer_offsets", 2, Node(1, "localhost", 9092, None))
        described = TopicDescription("__consumer_offsets", "A", True, (here, *leaderless))
        async with source.source() as theirs:
            cluster_id = (await theirs.look()).cluster_id

        async def describe(self: SourceCluster, asked: list[str]) -> dict[str, TopicDescription]:
            if self.snapshot.cluster_id != cluster_id:
                raise UnknownTopicOrPartitionError("no such topic")
            return {"__consumer_offsets": described}

        with monkeypatch.context() as patch:
            patch.setattr(SourceCluster, "describe_topics", describe)
            with pytest.raises(MigrationError, match="2 of 3 partitions of __consumer_offsets have no leader"):
                await cut_over(source, htp, target, timeout=0.5)
            with pytest.raises(KafkaError, match="the groups in them cannot be listed"):
                await cut_over(source, htp, target, active_groups=True)
        assert (await wire.produce("flights", batch_of(b"mine"))).error_code == 44
        assert (await cut_over(source, htp, target)).offsets.moved == 1


@pytest.mark.slow
async def test_groups_of_kafka_streams_are_moved_too(monkeypatch: pytest.MonkeyPatch) -> None:
    htp = f"memory:{next(names)}"
    async with pair() as source, running(htp, config=NO_DELAY) as (target, wire):
        await source.wire.create("flights")
        await source.wire.produce("flights", batch_of(b"a"))
        await source.wire.commit("counting", "flights", 1)
        state = "NotReady"

        async def list_groups(self: SourceCluster) -> Listing[GroupListing]:
            return Listing("Listing groups", [GroupListing("counting", "streams", state, "streams")])

        monkeypatch.setattr(SourceCluster, "list_groups", list_groups)
        with pytest.raises(MigrationError, match="the groups counting have members at the source"):
            await cut_over(source, htp, target, timeout=0.5)
        state = "Empty"
        assert (await cut_over(source, htp, target)).offsets.moved == 1
        assert await wire.committed("counting", "flights") == 1


async def first(consumer: kclient.Consumer) -> Any:
    async for record in consumer:
        yield record
        return


async def test_groups_that_read_the_mirror_already_are_not_moved_below_their_feet() -> None:
    htp = f"memory:{next(names)}"
    async with pair() as source, running(htp, config=NO_DELAY) as (target, wire):
        await source.wire.create("flights")
        await source.wire.produce("flights", batch_of(b"a"))
        await source.wire.commit("delays", "flights", 1)
        async with source.mirroring(target) as mirror:
            await until(lambda: mirror.lag == 0)
        consumer = kclient.Consumer("flights", group_id="delays", bootstrap_servers=htp, auto_offset_reset="earliest")
        async with consumer:
            assert [record.value async for record in first(consumer)] == [b"a"]
            with pytest.raises(MigrationError, match="the groups delays have members in the store already"):
                await cut_over(source, htp, target)
        assert (await wire.produce("flights", batch_of(b"mine"))).error_code == 44


async def test_a_second_cut_over_finds_nothing_left(htp: str) -> None:
    async with pair() as source, running(htp) as (target, wire):
        await source.wire.create("flights")
        await source.wire.produce("flights", batch_of(b"a"))
        await cut_over(source, htp, target)
        await wire.produce("flights", batch_of(b"mine"))
        await source.wire.produce("flights", batch_of(b"late"))
        assert (await cut_over(source, htp, target)).topics == []
        assert await wire.values("flights") == [b"a", b"mine"]


async def test_what_differs_is_not_taken_over() -> None:
    htp = f"memory:{next(names)}"
    async with pair() as source, running(htp, config=NO_DELAY) as (target, wire):
        await source.wire.create("flights")
        await source.wire.produce("flights", batch_of(b"a"))
        async with source.mirroring(target) as mirror:
            await until(lambda: mirror.lag == 0)
        await target.parts.partitions.get("flights", 0).trim(1)  # type: ignore[union-attr]
        with pytest.raises(MigrationError, match="the store begins at offset 1, and the source at 0"):
            await cut_over(source, htp, target)
        assert (await wire.produce("flights", batch_of(b"mine"))).error_code == 44


@pytest.mark.parametrize("grown", [False, True])
async def test_what_comes_while_groups_are_looked_at_is_watched_as_well(
    grown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mirror has it by then, but nobody has looked whether it is written to."""
    htp = f"memory:{next(names)}"
    async with pair() as source, running(htp, config=NO_DELAY) as (target, wire):
        await source.wire.create("flights")
        await source.wire.produce("flights", batch_of(b"a"))
        come, partition = ("flights", 1) if grown else ("new", 0)
        looked, verified = CutOverRun._active, cutover.verify

        async def comes(self: CutOverRun) -> str:
            if target.parts.partitions.get(come, partition) is None:
                await (source.wire.grow("flights", 2) if grown else source.wire.create("new"))
                await until(lambda: (topic := self._mirror.topics.get(come)) and len(topic.partitions) > partition)
            return await looked(self)

        async def goes_on(*args: Any, **options: Any) -> Any:
            found = await verified(*args, **options)
            await source.wire.produce(come, batch_of(b"b"), partition)
            return found

        monkeypatch.setattr(CutOverRun, "_active", comes)
        monkeypatch.setattr(cutover, "verify", goes_on)
        with pytest.raises(MigrationError, match=f"{come}-{partition}: the source has gone on from offset 0 to 1"):
            await cut_over(source, htp, target)
        assert (await wire.produce(come, batch_of(b"mine"), partition)).error_code == 44


async def test_a_topic_that_is_made_at_the_end_holds_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mirror has been stopped by then."""
    htp = f"memory:{next(names)}"
    async with pair() as source, running(htp, config=NO_DELAY) as (target, wire):
        await source.wire.create("flights")
        verified = cutover.verify

        async def goes_on(*args: Any, **options: Any) -> Any:
            found = await verified(*args, **options)
            await source.wire.create("new")
            return found

        monkeypatch.setattr(cutover, "verify", goes_on)
        with pytest.raises(MigrationError, match="topic new was made at the source meanwhile"):
            await cut_over(source, htp, target)
        assert (await wire.produce("flights", batch_of(b"mine"))).error_code == 44
        monkeypatch.undo()
        assert (await cut_over(source, htp, target)).topics == ["flights", "new"]


async def test_no_producer_id_of_the_source_is_given_out_again() -> None:
    htp = f"memory:{next(names)}"
    async with pair() as source, running(htp, config=NO_DELAY) as (target, wire):
        await source.wire.create("flights")
        high = 1 << 50
        await source.append("flights", batch_of(b"a", producer_id=high, producer_epoch=0, sequence=0))
        await cut_over(source, htp, target)
        assert await wire.producer_id() > high


async def test_an_offset_beyond_the_end_is_moved_as_it_is(htp: str) -> None:
    async with pair() as source, running(htp) as (target, wire):
        await source.wire.create("flights")
        await source.wire.produce("flights", batch_of(b"a"))
        assert await source.wire.commit("delays", "flights", 100) == 0
        assert (await cut_over(source, htp, target)).offsets.moved == 1
        assert await wire.committed("delays", "flights") == 100


async def test_a_source_that_is_gone_right_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store has taken over all the same, and says so."""
    htp = f"memory:{next(names)}"
    async with pair() as source, running(htp, config=NO_DELAY) as (target, wire):
        await source.wire.create("flights")
        await source.wire.produce("flights", batch_of(b"a"))
        take_over = Target.take_over

        async def then_gone(self: Target, records: Any) -> None:
            await take_over(self, records)

            async def gone(*_: object, **__: object) -> None:
                raise KafkaTimeoutError("No broker could be reached")

            monkeypatch.setattr(SourceCluster, "bounds", gone)

        monkeypatch.setattr(Target, "take_over", then_gone)
        done = await cut_over(source, htp, target)
        assert (done.topics, done.late, done.unknown) == (["flights"], [], "No broker could be reached")
        assert (await wire.produce("flights", batch_of(b"mine"))).error_code == 0


@pytest.mark.slow
async def test_a_store_that_takes_only_some_topics_over_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    htp = f"memory:{next(names)}"
    async with pair() as source, running(htp, config=NO_DELAY) as (target, wire):
        for name in ("flights", "delays"):
            await source.wire.create(name)
            await source.wire.produce(name, batch_of(b"a"))
        take_over, taken = TopicCatalogue.take_over, list[str]()

        async def full(self: TopicCatalogue, name: str) -> None:
            if taken:
                raise KafkaStorageError("the disk is full")
            taken.append(name)
            await take_over(self, name)

        with monkeypatch.context() as patched:
            patched.setattr(TopicCatalogue, "take_over", full)
            with pytest.raises(
                MigrationError, match=r"only (flights|delays) were taken over: the disk is full"
            ) as told:
                await cut_over(source, htp, target)
        assert taken[0] in str(told.value)
        done = await cut_over(source, htp, target)
        assert {*done.topics, *taken} == {"flights", "delays"}
        for name in ("flights", "delays"):
            assert (await wire.produce(name, batch_of(b"mine"))).error_code == 0
