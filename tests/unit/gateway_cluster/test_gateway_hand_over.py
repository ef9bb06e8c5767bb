"""Partitions move between gateways of one store: nothing acknowledged is lost, and epochs only grow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kclient.errors import ErrorCode
from kclient.gateway import Gateway, handing_over, releases
from kclient.gateway.assignment import Generation, Generations
from kclient.gateway.assignment.generations import KEPT
from kclient.gateway.cluster_generations import ClusterGenerations, begin_together
from kclient.gateway.eviction import Eviction
from kclient.gateway.fenced_writer import FencedWriter
from kclient.gateway.membership import LeaseLooks, lease_looks
from kclient.gateway.ownership import HeldLease
from kclient.gateway.releases import Releases
from kclient.gateway.rows.assignment import ReleasedRow, encode_generations
from kclient.gateway.rows.keys import ASSIGNMENT, RELEASED, gateway_key, released_key
from kclient.gateway.unit import Unit
from kclient.htp import FencedError, StorageError, open_store
from kclient.htp.port import Manager
from tests.all_rows import scan_all
from tests.gateway_wire import Wire, batch_of, connect
from tests.unit.gateway_cluster.together import joined
from tests.unit.gateway_cluster.two_gateways import until

pytestmark = pytest.mark.anyio

COUNT = 20


async def leaders_of(wire: Wire) -> dict[int, tuple[int, int]]:
    partitions = (await wire.metadata("t")).topics[0].partitions
    return {row.partition_index: (row.leader_id, row.leader_epoch) for row in partitions}


class Wires(dict[int, Wire]):
    """A connection to each of some gateways, which may become more.

    Args:
        gateways: They, by their numbers.
    """

    def __init__(self, gateways: Mapping[int, Gateway]) -> None:
        super().__init__()
        self._gateways = gateways

    def known(self) -> Wires:
        """This, with those too that have come."""
        for node_id, gateway in self._gateways.items():
            if node_id not in self:
                self[node_id] = connect(gateway)
        return self

    async def aclose(self) -> None:
        for wire in self.values():
            await wire.aclose()


async def append(wires: Mapping[int, Wire], index: int, batch: bytearray) -> int:
    """Produce as a client does: where another gateway leads, that is asked."""
    node_id = min(wires)
    with anyio.fail_after(20):
        while True:
            row = await wires[node_id].produce("t", batch_of(bytes(batch)), index, version=12)
            if row.error_code == 0:
                return int(row.base_offset)
            assert row.error_code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR)
            if row.current_leader.leader_id in (wires.known() if isinstance(wires, Wires) else wires):
                node_id = row.current_leader.leader_id
            await anyio.sleep(0.005)


async def read(wires: Mapping[int, Wire], index: int) -> list[bytes]:
    """All that there is, of whoever leads."""
    with anyio.fail_after(20):
        while True:
            for wire in wires.values():
                row = await wire.fetch("t", 0, index)
                if row.error_code == 0:
                    return await wire.values("t", 0, index)
            await anyio.sleep(0.005)


@pytest.mark.slow
async def test_partitions_move_to_one_that_joins_and_back_when_it_leaves(url: str) -> None:
    async with open_store(url) as store, joined(store, 1) as (first, wire):
        await wire.create("t", COUNT)
        for index in range(COUNT):
            assert (await wire.produce("t", batch_of(b"a"), index)).base_offset == 0
        before = await leaders_of(wire)
        assert {node_id for node_id, _ in before.values()} == {1}
        async with joined(store, 2) as (second, other):
            await until(lambda: len(first.parts.generations.current.newest.members) == 2)
            after = await leaders_of(wire)
            assert after == await leaders_of(other)
            moved = {index for index, (node_id, _) in after.items() if node_id == 2}
            assert 0 < len(moved) < COUNT
            for index, (_, epoch) in after.items():
                assert (epoch > before[index][1]) == (index in moved)
            for index in range(COUNT):
                assert await append({1: wire, 2: other}, index, bytearray(b"b")) == 1
                assert await read({1: wire, 2: other}, index) == [b"a", b"b"]
                wrong = wire if index in moved else other
                assert (await wrong.fetch("t", 0, index)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert {partition.index for partition in first.parts.partitions.opened()} == set(range(COUNT)) - moved
            assert {partition.index for partition in second.parts.partitions.opened()} == moved
        await until(lambda: len(first.parts.generations.current.newest.members) == 1)
        back = await leaders_of(wire)
        assert {node_id for node_id, _ in back.values()} == {1}
        for index in range(COUNT):
            assert (back[index][1] > after[index][1]) == (index in moved)
            assert await append({1: wire}, index, bytearray(b"c")) == 2
            assert await read({1: wire}, index) == [b"a", b"b", b"c"]
        assert list(await scan_all(store.manager, RELEASED)) == [released_key(1)]


@pytest.mark.slow
async def test_what_is_on_its_way_while_partitions_move(url: str) -> None:
    """Each record is acknowledged once, and is there once, in the order of its producer."""
    async with open_store(url) as store, joined(store, 1) as (first, wire):
        await wire.create("t", COUNT)
        gateways = {1: first}
        written: dict[int, list[bytes]] = {index: [] for index in range(COUNT)}
        ended: list[int] = []
        going_on = True

        async def produce(index: int) -> None:
            own = Wires(gateways).known()
            while going_on:
                value = b"%d" % len(written[index])
                offset = await append(own, index, bytearray(value))
                assert offset == len(written[index])
                written[index].append(value)
                await anyio.sleep(0)
            await own.aclose()
            ended.append(index)

        async with anyio.create_task_group() as group:
            for index in range(COUNT):
                group.start_soon(produce, index)
            await anyio.sleep(0.05)
            async with joined(store, 2) as (second, other), joined(store, 3) as (third, last):
                gateways |= {2: second, 3: third}
                await until(lambda: len(second.parts.generations.current.newest.members) == 3)
                await anyio.sleep(0.3)
                going_on = False
                await until(lambda: len(ended) == COUNT)
                for index in range(COUNT):
                    assert await read({1: wire, 2: other, 3: last}, index) == written[index]
        for index in range(COUNT):
            assert await read({1: wire}, index) == written[index]


async def test_a_producer_is_known_where_its_partition_has_moved(url: str) -> None:
    async with open_store(url) as store, joined(store, 1) as (_, wire):
        await wire.create("t", COUNT)
        producer_id = await wire.producer_id()
        for index in range(COUNT):
            batch = batch_of(b"a", producer_id=producer_id, sequence=0)
            assert (await wire.produce("t", batch, index)).base_offset == 0
        async with joined(store, 2) as (_, other):
            for index, (node_id, _) in (await leaders_of(other)).items():
                of = {1: wire, 2: other}[node_id]
                await append({1: wire, 2: other}, index, bytearray(b"of another"))
                batch = batch_of(b"a", producer_id=producer_id, sequence=0)
                assert (await of.produce("t", batch, index)).base_offset == 0, "it is a repeat"
                batch = batch_of(b"b", producer_id=producer_id, sequence=1)
                assert (await of.produce("t", batch, index)).base_offset == 2


async def test_fetches_that_wait_are_told_who_leads(url: str) -> None:
    async with open_store(url) as store, joined(store, 1) as (first, wire):
        await wire.create("t", COUNT)
        for index in range(COUNT):
            await wire.produce("t", batch_of(b"a"), index)
        found: dict[int, int] = {}

        async def wait(index: int) -> None:
            own = connect(first)
            row = await own.fetch("t", 1, index, max_wait_ms=20_000, version=11)
            found[index] = row.error_code
            await own.aclose()

        async with anyio.create_task_group() as group:
            for index in range(COUNT):
                group.start_soon(wait, index)
            await anyio.sleep(0.05)
            async with joined(store, 2) as (_, other):
                moved = {index for index, (node_id, _) in (await leaders_of(other)).items() if node_id == 2}
                await until(lambda: len(found) == len(moved))
                assert found == dict.fromkeys(moved, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            group.cancel_scope.cancel()


async def test_one_that_has_failed_is_evicted(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_looks, "LOOK_S", 0.02)
    async with open_store(url) as store, joined(store, 1) as (first, wire):
        await wire.create("t", COUNT)
        second = Gateway(store, listen=None, config={"node.id": 2})
        await second.start()
        other = connect(second)
        for index in range(COUNT):
            assert await append({1: wire, 2: other}, index, bytearray(b"a")) == 0
        second._supervisor.fail(RuntimeError("it has died"))
        await second.close(0.0)
        generations = first.parts.generations
        await until(lambda: generations.current.newest.number > second.parts.generations.joined)
        assert list(generations.current.newest.members) == [1]
        for index in range(COUNT):
            assert await append({1: wire}, index, bytearray(b"b")) == 1
            assert await read({1: wire}, index) == [b"a", b"b"]
        assert list(await scan_all(store.manager, RELEASED)) == [released_key(1)]
        await other.aclose()


async def test_what_another_gateway_has_led_meanwhile_is_opened_anew(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It joined and left before this one had heard of either."""
    monkeypatch.setattr(releases, "CLAIM_S", 0.05)
    async with open_store(url) as store, joined(store, 1) as (first, wire):
        await wire.create("t", COUNT)
        for index in range(COUNT):
            assert (await wire.produce("t", batch_of(b"a"), index)).base_offset == 0
        before = await leaders_of(wire)
        generations = first.parts.generations
        with monkeypatch.context() as deaf:
            deaf.setattr(generations, "apply", lambda _changes: anyio.lowlevel.checkpoint())
            async with joined(store, 2) as (_, other):
                moved = {index for index, (node_id, _) in (await leaders_of(other)).items() if node_id == 2}
                assert 0 < len(moved) < COUNT
                for index in moved:
                    assert await append({2: other}, index, bytearray(b"b")) == 1
        assert list(generations.current.newest.members) == [1]
        await generations.read_all()
        told = await leaders_of(wire)
        for index in range(COUNT):
            values = [b"a", b"b"] if index in moved else [b"a"]
            assert await read({1: wire}, index) == values
            assert await append({1: wire}, index, bytearray(b"c")) == len(values)
            assert (told[index][1] > before[index][1]) == (index in moved)
            asked = await wire.offset("t", -1, index, current_leader_epoch=told[index][1])
            assert (asked.error_code, asked.offset) == (0, len(values) + 1)


async def test_an_epoch_that_rises_because_generations_are_forgotten(url: str) -> None:
    async with open_store(url) as store, joined(store, 1) as (first, wire):
        await wire.create("t", COUNT)
        for index in range(COUNT):
            assert (await wire.produce("t", batch_of(b"a"), index)).base_offset == 0
        before, generations = await leaders_of(wire), first.parts.generations
        for _ in range(KEPT):
            second, lease = await generations_of(store.manager, 2)
            await generations.read_all()
            await second.leave(lease)
            await store.manager.commit({released_key(2): None}, lease=lease.current)
            await generations.read_all()
            await first.parts.hand_over.done()
        told = await leaders_of(wire)
        for index in range(COUNT):
            assert told[index][1] > before[index][1]
            assert await append({1: wire}, index, bytearray(b"b")) == 1
            assert await read({1: wire}, index) == [b"a", b"b"]
            asked = await wire.offset("t", -1, index, current_leader_epoch=told[index][1])
            assert (asked.error_code, asked.offset) == (0, 2)


# What is decided, part by part


async def nothing_left() -> None:
    """Whoever was evicted had nothing under way."""


async def lease_of(manager: Manager, node_id: int, ttl: float = 30.0) -> HeldLease:
    return HeldLease(await manager.acquire(gateway_key(node_id), f"node-{node_id}/run", ttl))


async def generations_of(manager: Manager, node_id: int) -> tuple[ClusterGenerations, HeldLease]:
    lease = await lease_of(manager, node_id)
    generations = await begin_together(manager, node_id, lease.current.epoch, lease)
    await generations.join(lease)
    return generations, lease


def units_of(node_id: int, generations: Generations, count: int = 1) -> list[Unit]:
    found = (Unit(bytes(16), number) for number in range(10_000))
    return [unit for unit in found if generations.owner(unit.fingerprint) == node_id][:count]


async def test_a_unit_is_ready_when_its_former_leader_says_so(url: str) -> None:
    async with open_store(url) as store:
        manager = store.manager
        first, lease = await generations_of(manager, 1)
        second, other = await generations_of(manager, 2)
        await first.read_all()
        (mine,), (stays,) = units_of(2, second.current), units_of(1, second.current)
        ours, theirs = Releases(manager, other, second), Releases(manager, lease, first)
        with anyio.fail_after(5):
            await theirs.ready(stays)
        with anyio.move_on_after(0.05) as scope:
            await ours.ready(mine)
        assert scope.cancelled_caught
        told, version = await theirs.own()
        assert told == first.joined < first.current.newest.number
        async with anyio.create_task_group() as group:
            group.start_soon(ours.ready, mine)
            assert await theirs.release(first.current.newest.number, version, {"checkpoint": b"row"}) is not None
            await ours.read_all()
        assert (await manager.get(["checkpoint"]))["checkpoint"].value == b"row"


async def test_a_unit_that_is_not_handed_over_is_claimed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From then on nothing is written any more of it by who led it."""
    monkeypatch.setattr(releases, "CLAIM_S", 0.05)
    async with open_store(url) as store:
        manager = store.manager
        first, lease = await generations_of(manager, 1)
        theirs = Releases(manager, lease, first)
        _, version = await theirs.own()
        second, other = await generations_of(manager, 2)
        (mine,), (stays,) = units_of(2, second.current), units_of(1, second.current)
        with anyio.fail_after(5):
            await Releases(manager, other, second).ready(mine)
        row = (await manager.get([released_key(1)]))[released_key(1)]
        assert ReleasedRow.decode(row.value) == (first.run, second.current.newest.number)
        assert await theirs.release(second.current.newest.number, version, {"checkpoint": b"old"}) is None
        writer = FencedWriter(manager, lease, first)
        with pytest.raises(FencedError):
            await writer.commit({"checkpoint": b"old"}, [mine])
        with pytest.raises(FencedError):
            await writer.commit({"checkpoint": b"old"}, [stays, mine])
        await writer.commit({"another": b"row"}, [stays])
        assert not await manager.get(["checkpoint"])


async def test_who_has_gone_is_not_waited_for(url: str) -> None:
    async with open_store(url) as store:
        manager = store.manager
        first, lease = await generations_of(manager, 1)
        second, other = await generations_of(manager, 2)
        (mine,) = units_of(2, second.current)
        await first.leave(lease)
        await second.read_all()
        assert list(second.current.newest.members) == [2]
        assert not first.serving
        with anyio.move_on_after(0.05) as scope:
            await Releases(manager, other, second).ready(mine)
        assert scope.cancelled_caught, "it has not handed over"
        await manager.commit({released_key(1): None}, lease=lease.current)
        with anyio.fail_after(5):
            await Releases(manager, other, second).ready(mine)


async def test_a_lost_gateway_is_fenced_before_others_lead(url: str) -> None:
    now = 0.0
    async with open_store(url) as store:
        manager = store.manager
        first, lease = await generations_of(manager, 1)
        second, other = await generations_of(manager, 2)
        watcher = Eviction(manager, other, second, nothing_left, LeaseLooks(manager, lambda: now))
        await watcher.look()
        now += 20
        lease.current = await manager.renew(lease.current)
        await watcher.look()
        for _ in range(31):
            now += 1
            await watcher.look()
        assert sorted(second.current.newest.members) == [1, 2], "it has renewed its lease"
        now += 1
        await watcher.look()
        assert list(second.current.newest.members) == [2]
        assert [str(cause) for cause in second.current.causes.values()] == ["joined 2", "crashed 1"]
        with pytest.raises(FencedError):
            await FencedWriter(manager, lease, first).commit({"checkpoint": b"old"}, units_of(1, first.current))
        with pytest.raises(FencedError):
            await manager.renew(lease.current)
        assert list(await scan_all(manager, RELEASED)) == [released_key(2)]
        assert (await lease_of(manager, 1)).current.epoch > lease.current.epoch, "its number is free again"


async def test_nobody_is_evicted_because_the_store_did_not_answer(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As while a process is stopped that has its database: nobody could renew a lease."""
    now = 0.0
    async with open_store(url) as store:
        manager = store.manager
        _, lease = await generations_of(manager, 1)
        second, other = await generations_of(manager, 2)
        watcher = Eviction(manager, other, second, nothing_left, LeaseLooks(manager, lambda: now))
        await watcher.look()

        async def fails(*_args: Any) -> None:
            raise StorageError("database is locked")

        with monkeypatch.context() as failing:
            failing.setattr(manager, "leases", fails)
            for _ in range(4):
                now += 10
                with pytest.raises(StorageError):
                    await watcher.look()
        await watcher.look()
        assert sorted(second.current.newest.members) == [1, 2]
        await manager.renew(lease.current)


async def test_two_that_evict_at_once(url: str) -> None:
    async with open_store(url) as store:
        manager = store.manager
        _, lost = await generations_of(manager, 1)
        second, lease = await generations_of(manager, 2)
        third, other = await generations_of(manager, 3)
        await second.read_all()
        await manager.release(lost.current)
        async with anyio.create_task_group() as group:
            for generations, held in ((second, lease), (third, other)):
                group.start_soon(Eviction(manager, held, generations, nothing_left).look)
        for generations in (second, third):
            await generations.read_all()
            assert sorted(generations.current.newest.members) == [2, 3]


@pytest.mark.parametrize("call", ["commit", "release"])
async def test_what_is_left_is_finished_though_the_store_fails_meanwhile(
    url: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has done what it was asked, and nobody is told."""
    async with open_store(url) as store:
        manager = store.manager
        _, lost = await generations_of(manager, 1)
        second, lease = await generations_of(manager, 2)
        finished = 0

        async def finish() -> None:
            nonlocal finished
            finished += 1

        now = 0.0
        watcher = Eviction(manager, lease, second, finish, LeaseLooks(manager, lambda: now))
        for _ in range(5):
            await watcher.look()
            now += 7
        done = getattr(manager, call)

        async def fails(*args: Any, **options: Any) -> None:
            await done(*args, **options)
            raise StorageError("the answer was lost")

        with monkeypatch.context() as failing:
            failing.setattr(manager, call, fails)
            with pytest.raises(StorageError):
                await watcher.look()
        assert finished == 0
        await second.read_all()
        assert list(second.current.newest.members) == [2]
        for _ in range(2):
            await watcher.look()
        assert finished == 1
        with pytest.raises(FencedError):
            await manager.renew(lost.current)


async def test_a_new_run_of_a_lost_gateway_keeps_its_rows(url: str) -> None:
    async with open_store(url) as store:
        manager = store.manager
        first, _ = await generations_of(manager, 1)
        second, other = await generations_of(manager, 2)
        lease = HeldLease(await manager.acquire(gateway_key(1), "node-1/run", 30.0))
        again = ClusterGenerations(manager, 1, lease.current.epoch, second.current, second.version)
        await again.join(lease)
        await Eviction(manager, other, second, nothing_left).look()
        await second.read_all()
        assert second.current.newest.members == {1: lease.current.epoch, 2: second.run}
        assert sorted(await scan_all(manager, RELEASED)) == [released_key(1), released_key(2)]
        assert not first.serving or first.version < second.version


async def test_several_that_join_at_once(url: str) -> None:
    async with open_store(url) as store:
        manager = store.manager
        found: list[Any] = []

        async def join(node_id: int) -> None:
            found.append(await generations_of(manager, node_id))

        async with anyio.create_task_group() as group:
            for node_id in range(1, 6):
                group.start_soon(join, node_id)
        for generations, _ in found:
            await generations.read_all()
            assert sorted(generations.current.newest.members) == [1, 2, 3, 4, 5]
        assert len({generations.joined for generations, _ in found}) == 5


async def test_those_that_have_ended_are_forgotten(url: str) -> None:
    async with open_store(url) as store:
        manager = store.manager
        kept = Generations([Generation(5, {7: 1}), Generation(8, {7: 1, 8: 4})])
        await manager.commit({ASSIGNMENT: encode_generations(kept), released_key(7): ReleasedRow(1, 8).encode()})
        generations, _ = await generations_of(manager, 1)
        assert generations.current.kept == (Generation(9, {1: generations.run}),)
        assert list(await scan_all(manager, RELEASED)) == [released_key(1)]


def test_the_waits_fit_together() -> None:
    assert handing_over._SETTLE_S < releases.CLAIM_S
