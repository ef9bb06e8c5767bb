"""Leader epochs of units: they never go backwards, whatever happens to the rows that tell them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from sqlalchemy import delete

from kclient.errors import ErrorCode
from kclient.gateway import Gateway
from kclient.gateway.cluster_generations import begin_alone
from kclient.gateway.ownership import HeldLease, take_store
from kclient.gateway.rows.keys import LEADER_EPOCH, LEASE, UNITS, of_topic, parse_unit_key, unit_key
from kclient.gateway.rows.numbers import LEADER_EPOCH as EPOCH_ROW
from kclient.gateway.rows.units import UnitRow
from kclient.gateway.unit import Unit
from kclient.gateway.unit_epochs import UnitEpochs
from kclient.htp import FencedError, HtpError, StorageError, Store, open_store
from kclient.htp.embedded.tables import leases
from kclient.htp.port import Manager
from kclient.htp.rows import GREATEST_EPOCH
from kclient.records import iter_headers
from tests.all_rows import scan_all
from tests.gateway_wire import Wire, batch_of, connect, names, produce_request
from tests.uncertain_store import Fate, UncertainStore

pytestmark = pytest.mark.anyio

ID = bytes(range(16))
MINE, OTHER = Unit(ID, 0), Unit(ID, 7)


@pytest.fixture(params=["memory", "embedded"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "embedded":
        return f"embedded:{tmp_path / 'data'}"
    return f"memory:{next(names)}"


async def begun(manager: Manager, used: Manager, node_id: int, ttl: float) -> UnitEpochs:
    """The epochs of a gateway that has taken the store, and asks `used` for what is to do with them."""
    lease = HeldLease(await take_store(manager, node_id, ttl))
    generations = await begin_alone(manager, node_id, lease.current.epoch, lease.current)
    return UnitEpochs(used, lease, generations)


async def take(store: Store, node_id: int = 1) -> UnitEpochs:
    """As a gateway does at its start."""
    epochs = await begun(store.manager, store.manager, node_id, 0.0)
    await epochs.load()
    return epochs


async def row_of(store: Store, unit: Unit) -> UnitRow | None:
    found = await store.manager.get([unit_key(*unit)])
    return UnitRow.decode(found[unit_key(*unit)].value) if found else None


def test_keys_and_rows() -> None:
    assert parse_unit_key(unit_key(*OTHER)) == OTHER
    assert any(unit_key(*OTHER).startswith(prefix) for prefix in of_topic(ID))
    for wrong in (UNITS, f"{UNITS}00/x", f"{UNITS}zz/1", f"{UNITS}00/1/2", f"{UNITS}00/-1"):
        with pytest.raises(ValueError):
            parse_unit_key(wrong)
    assert UnitRow.decode(UnitRow(4, 9).encode()) == UnitRow(4, 9)
    for row in (
        b"",
        b"{}",
        b'{"format":1,"gateway":1}',
        b'{"format":2,"gateway":1,"epoch":2}',
        b'{"format":1,"epoch":2}',
    ):
        with pytest.raises(ValueError):
            UnitRow.decode(row)


async def test_a_unit_has_the_gateways_epoch_until_it_is_raised(url: str) -> None:
    async with open_store(url) as store:
        epochs = await take(store)
        first = epochs.of(MINE)
        assert (epochs.of(OTHER), epochs.greatest(ID), epochs.own) == (first, first, {})
        assert not await scan_all(store.manager, UNITS)
        assert await epochs.raise_epoch(MINE, first) == first + 1
        assert await epochs.raise_epoch(MINE, 0) == first + 2, "above its own in any case"
        assert await epochs.raise_epoch(MINE, first + 40) == first + 41
        assert await row_of(store, MINE) == UnitRow(first, first + 41)
        assert (epochs.of(MINE), epochs.of(OTHER), epochs.greatest(ID)) == (first + 41, first, first + 41)
        assert list(await scan_all(store.manager, UNITS)) == [unit_key(*MINE)], "a row for whom it is needed"
        epochs.forget(ID)
        assert (epochs.of(MINE), epochs.greatest(ID)) == (first, first)


async def test_the_next_gateway_begins_above_whatever_its_number_is(url: str) -> None:
    async with open_store(url) as store:
        greatest = 0
        for node_id in (1, 1, 5, 2, 5):
            epochs = await take(store, node_id)
            assert epochs.of(MINE) == epochs.of(OTHER) > greatest
            assert not await scan_all(store.manager, UNITS), "what was before means nothing now"
            for unit in (MINE, OTHER, OTHER, OTHER):
                greatest = max(greatest, await epochs.raise_epoch(unit, epochs.of(unit)))


DAMAGE: dict[str, tuple[str, ...]] = {
    "the unit's row": (unit_key(*MINE),),
    "the row of the greatest": (LEADER_EPOCH,),
    "the unit's row and the lease": (unit_key(*MINE), LEASE),
    "the row of the greatest and the lease": (LEADER_EPOCH, LEASE),
}


@pytest.mark.parametrize("lost", [False, True], ids=["damaged", "lost"])
@pytest.mark.parametrize("damaged", DAMAGE)
async def test_no_row_that_is_damaged_lets_it_go_backwards(
    url: str, damaged: str, lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_store(url) as store:
        greatest = 0
        for _ in range(3):
            epochs = await take(store)
            assert epochs.of(MINE) > greatest
            for _ in range(18):  # more than are told at once
                greatest = await epochs.raise_epoch(MINE, epochs.of(MINE))
            keys = DAMAGE[damaged]
            rows: Mapping[str, bytes | None] = {key: None if lost else b"{}#12345678" for key in keys if key != LEASE}
            await store.manager.commit(rows)
            if LEASE in keys:
                await _lose_lease(store)
        caplog.clear()
        last = await take(store)
        assert last.of(MINE) > greatest
        if not lost and unit_key(*MINE) in DAMAGE[damaged]:
            assert re.search(
                f"{unit_key(*MINE)}, which held the leader epoch of a partition, cannot be read", caplog.text
            )
        assert await last.raise_epoch(MINE, 0) > greatest + 1, "over the damaged row, too"


async def _lose_lease(store: Any) -> None:
    """The lease's row is lost: the next one begins at 1, as far as the store knows."""
    manager = store.manager
    if hasattr(manager, "_state"):
        manager._state.leases.clear()
        return
    await manager._do(lambda connection: connection.execute(delete(leases)))


async def test_one_that_is_raised_in_the_moment_of_the_take_over(url: str) -> None:
    """The predecessor told its epoch after the successor had looked, and before it had the lease."""
    async with open_store(url) as store:
        old = await take(store)
        raised = await old.raise_epoch(MINE, 500)
        await store.manager.commit({LEADER_EPOCH: EPOCH_ROW.encode(3)})
        new = await take(store)
        assert new.of(OTHER) < raised < new.of(MINE)
        row = await row_of(store, MINE)
        assert row is not None
        assert row.epoch == new.of(MINE)
        with pytest.raises(FencedError):
            await old.raise_epoch(MINE, 0)
        assert old.of(MINE) == raised, "what could not be written is not used"
        latest = await take(store)
        assert latest.of(OTHER) > new.of(MINE)


class Failing:
    """A manager one of whose commits fails, done or not."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self.fails: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    async def commit(self, writes: Mapping[str, bytes | None], *args: Any, **options: Any) -> int:
        fails, self.fails = self.fails, None
        if fails != "before":
            version: int = await self._manager.commit(writes, *args, **options)
        if fails is not None:
            raise StorageError("no answer came")
        return version


@pytest.mark.parametrize("fails", ["before", "after"])
async def test_a_commit_that_fails_done_or_not(url: str, fails: str) -> None:
    async with open_store(url) as store:
        manager: Any = Failing(store.manager)
        epochs = await begun(store.manager, manager, 1, 30.0)
        await epochs.load()
        first = await epochs.raise_epoch(MINE, 0)
        for unit in (MINE, OTHER):
            before = epochs.of(unit)
            manager.fails = fails
            with pytest.raises(StorageError):
                await epochs.raise_epoch(unit, 0)
            assert epochs.of(unit) == before
            expected = before + (2 if fails == "after" else 1)
            assert await epochs.raise_epoch(unit, 0) == expected, "not the one that may have been written"
            row = await row_of(store, unit)
            assert row is not None
            assert row.epoch == expected
        assert epochs.greatest(ID) > first


async def test_many_at_once(url: str) -> None:
    async with open_store(url) as store:
        epochs = await take(store)
        given: dict[Unit, list[int]] = {Unit(ID, number): [] for number in range(10)}

        async def raised(unit: Unit) -> None:
            given[unit].append(await epochs.raise_epoch(unit, 0))

        async with anyio.create_task_group() as group:
            for _ in range(4):
                for unit in given:
                    group.start_soon(raised, unit)
        for unit, found in given.items():
            first = epochs.of(Unit(bytes(16), 0))
            assert sorted(found) == list(range(first + 1, first + 5))
            assert epochs.of(unit) == first + 4


async def test_epochs_come_to_an_end(url: str) -> None:
    async with open_store(url) as store:
        epochs = await take(store)
        assert await epochs.raise_epoch(MINE, GREATEST_EPOCH - 1) == GREATEST_EPOCH
        with pytest.raises(HtpError, match="no leader epoch is left"):
            await epochs.raise_epoch(MINE, 0)
        assert epochs.of(MINE) == GREATEST_EPOCH


@asynccontextmanager
async def serving(inner: Store) -> AsyncIterator[tuple[Gateway, Wire, UncertainStore]]:
    store = UncertainStore(inner)
    async with Gateway(store, listen=None) as gateway:
        wire = connect(gateway)
        try:
            yield gateway, wire, store
        finally:
            await wire.aclose()


async def epochs_of(wire: Wire) -> list[int]:
    records = (await wire.fetch("t", 0)).records or b""
    return [header.partition_leader_epoch for _, header in iter_headers(records)]


async def test_where_all_rows_are_lost_the_store_remembers(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses the epoch that was used before: the partition gets one above, since the lease is the gateway's."""
    monkeypatch.setattr("kclient.gateway.partition_life._REFUSAL_S", 0.0)
    async with open_store(url) as inner:
        async with serving(inner) as (gateway, wire, store):
            await wire.create("t")
            for number in range(20):
                store.broker.fates.append(Fate.STORED)
                await wire.produce("t", batch_of(b"%d" % number))
            last = (await wire.metadata("t")).topics[0].partitions[0].leader_epoch
        await inner.manager.commit({LEADER_EPOCH: None, **dict.fromkeys(await scan_all(inner.manager, UNITS))})
        await _lose_lease(inner)
        async with serving(inner) as (gateway, wire, _):
            assert gateway.parts.identity.leader_epoch < last
            assert (await wire.produce("t", batch_of(b"more"))).base_offset == 20
            told = (await wire.metadata("t")).topics[0].partitions[0].leader_epoch
            assert told == last + 1
            found = await epochs_of(wire)
            assert found == sorted(found)
            assert found[-1] == told
            assert await wire.delete("t") == 0


async def test_one_that_was_followed_raises_nothing(url: str) -> None:
    """The epoch that seals its topic is its successor's: it stops, and does not seal that in turn."""
    async with open_store(url) as inner, serving(inner) as (first, wire, store):
        await wire.create("t", 2)
        await wire.produce("t", batch_of(b"a"))
        async with serving(inner) as (_, other, _):
            assert (await other.produce("t", batch_of(b"b"))).base_offset == 1
            assert (await other.produce("t", batch_of(b"c"), 1)).base_offset == 0
            store.broker.fates.append(Fate.LOST)
            await wire.send(produce_request("t", batch_of(b"unknown")), 9)
            late = connect(first)
            row = await late.produce("t", batch_of(b"never opened here"), 1)
            # the latter once it has seen the generation of its successor
            assert row.error_code in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            await anyio.wait_all_tasks_blocked()
            for index, expected in enumerate([[b"a", b"b", b"d"], [b"c", b"d"]]):
                assert (await other.produce("t", batch_of(b"d"), index)).base_offset == len(expected) - 1
                assert await other.values("t", 0, index) == expected
            await first.close(0.0)
            await late.aclose()
