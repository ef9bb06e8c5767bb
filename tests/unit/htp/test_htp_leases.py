"""A lease goes from who has died to another one, and no clock is compared with another's."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest
import trio
from trio.testing import MockClock

from kclient.htp import FencedError, Lease, LeaseHeldError, LeaseInfo, Manager, open_store
from kclient.htp.embedded.manager import SqliteManager
from kclient.htp.leases import DRIFT, LeaseWatch, acquire_when_over
from kclient.htp.memory.manager import MemoryManager
from kclient.htp.memory.state import MemoryState

TTL = 30.0
OVER = TTL * (1 + DRIFT)


def info(version: int = 1, *, held: bool = True, ttl: float = TTL) -> LeaseInfo:
    return LeaseInfo("gateway", "one", 1, ttl, held, version)


# --- watching, without any clock ---


def watched(watch: LeaseWatch, lease: LeaseInfo, begin: float, end: float) -> float:
    """Look again and again from `begin` to `end`."""
    now = begin
    while now < end:
        now = min(now + TTL / 30, end)
        left = watch.see(lease, now)
    return left


def test_a_lease_that_stays_as_it_is_is_over_after_its_length_and_the_drift() -> None:
    watch = LeaseWatch()
    assert watch.see(info(), 1000.0) == OVER
    assert watched(watch, info(), 1000.0, 1000.0 + TTL) == pytest.approx(TTL * DRIFT)
    assert watched(watch, info(), 1000.0 + TTL, 1000.0 + OVER) == 0
    assert watch.see(info(), 1001.0 + OVER) == 0
    assert not watch.alive


def test_time_in_which_nobody_looks_does_not_count() -> None:
    """Whoever was stopped, or did not reach the store, does not know whether its holder could have renewed it."""
    watch = LeaseWatch()
    watch.see(info(), 0.0)
    assert watched(watch, info(), 0.0, 20.0) == pytest.approx(OVER - 20.0)
    assert watch.see(info(), 100.0) == pytest.approx(OVER - 20.0)
    assert watch.see(info(), 109.0) == pytest.approx(OVER - 29.0)
    assert watched(watch, info(), 109.0, 109.0 + OVER - 29.0) == 0


def test_it_is_watched_anew_once_it_has_changed() -> None:
    watch = LeaseWatch()
    watch.see(info(1), 0.0)
    assert watch.see(info(2), OVER) == OVER
    assert watch.alive
    assert watch.see(info(2), OVER + 1.0) == pytest.approx(OVER - 1.0)
    assert watch.see(info(3, ttl=2.0), OVER + 2.0) == pytest.approx(2.0 * (1 + DRIFT)), "its holder's length counts"


def test_one_that_was_given_up_is_free_at_once() -> None:
    watch = LeaseWatch()
    assert watch.see(info(held=False), 0.0) == 0
    watch = LeaseWatch()
    assert watch.see(info(1), 0.0) == OVER
    assert watch.see(info(2, held=False), 1.0) == 0
    assert not watch.alive


# --- two machines: each has its clock, which runs a little faster or slower than time does ---


class Machine:
    """A manager as another machine has it: what it asks takes its time, and it goes by its own clock."""

    def __init__(self, state: MemoryState, dice: Random, *, rate: float) -> None:
        self.manager = MemoryManager(state)
        self.dice = dice
        self.rate = rate
        self.started = dice.random() * 1e6
        self.lease: Lease | None = None
        """What it takes itself for the holder of."""
        self.taken: Callable[[Lease], None] = lambda _: None
        """Called in the moment when it acquires the lease."""

    def clock(self) -> float:
        return self.started + self.rate * trio.current_time()

    async def _delay(self) -> None:
        await anyio.sleep(self.dice.choice([0.0, 0.1, 2.0]) * self.dice.random())

    async def acquire(self, name: str, holder: str, ttl: float, **options: Any) -> Lease:
        asked = self.clock()
        await self._delay()
        lease = replace(await self.manager.acquire(name, holder, ttl, **options), expires=asked + ttl)
        self.taken(lease)
        await self._delay()
        return lease

    async def renew(self, lease: Lease) -> Lease:
        asked = self.clock()
        await self._delay()
        renewed = replace(await self.manager.renew(lease), expires=asked + lease.ttl)
        await self._delay()
        return renewed

    async def leases(self, prefix: str) -> list[LeaseInfo]:
        await self._delay()
        found = await self.manager.leases(prefix)
        await self._delay()
        return found

    async def live(self) -> None:
        """Take the lease and renew it, with pauses that are too long at times."""
        self.lease = await self.acquire("gateway", "one", TTL)
        with suppress(FencedError):
            while True:
                await anyio.sleep(TTL / 3 if self.dice.random() < 0.8 else TTL * self.dice.random() * 1.2)
                self.lease = await self.renew(self.lease)


Outcome = tuple[float, float]
"""When the second machine had the lease, and for how long the first took itself for the holder then, in seconds."""


def two_machines(seed: int, *, crash: bool, rates: tuple[float, float]) -> list[Outcome]:
    dice = Random(seed)
    outcomes: list[Outcome] = []

    async def main() -> None:
        state = MemoryState("two")
        holder, challenger = (Machine(state, dice, rate=rate) for rate in rates)

        def taken(_lease: Lease) -> None:
            assert holder.lease is not None
            outcomes.append((trio.current_time(), holder.lease.expires - holder.clock()))

        challenger.taken = taken
        async with trio.open_nursery() as nursery:
            life = trio.CancelScope()

            async def living() -> None:
                with life:
                    await holder.live()

            nursery.start_soon(living)
            await anyio.sleep(10 + dice.random() * 200)
            if crash:
                life.cancel()
            crashed = trio.current_time()
            with suppress(LeaseHeldError):
                await acquire_when_over(challenger, "gateway", "two", TTL, clock=challenger.clock)  # type: ignore[arg-type]
                if crash:
                    assert outcomes[0][0] < crashed + OVER / rates[1] + TTL / 30 + 10, (
                        "it took no longer than it has to"
                    )
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))
    return outcomes


SLOW, FAST = 1.0, 1 + DRIFT


@pytest.mark.slow
@pytest.mark.parametrize("rates", [(1.0, 1.0), (SLOW, FAST), (FAST, SLOW)])
def test_nobody_takes_a_lease_whose_holder_takes_itself_for_the_holder(rates: tuple[float, float]) -> None:
    outcomes = []
    for seed in range(150):
        outcomes += (found := two_machines(seed, crash=seed % 3 > 0, rates=rates))
        assert found or seed % 3 == 0, "nobody renews it any more, so it is had"
        assert all(left <= 0 for _, left in found), seed
    assert len(outcomes) >= 100


@pytest.mark.slow
def test_a_holder_that_renews_its_lease_keeps_it() -> None:
    kept = [seed for seed in range(100) if not two_machines(seed, crash=False, rates=(1.0, 1.0))]
    assert len(kept) > 80, "but for pauses that were longer than the lease"


@pytest.mark.slow
def test_where_a_clock_runs_much_too_fast_only_the_epochs_are_left() -> None:
    """The first takes itself for the holder then, and is fenced when it renews or writes."""
    found = [each for seed in range(150) for each in two_machines(seed, crash=seed % 3 > 0, rates=(1.0, 2.0))]
    assert any(left > 0 for _, left in found)


# --- two managers of one database, or of one store in memory ---


@pytest.fixture(params=["database", "memory"])
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[Manager]]:
    """As two machines with their own clocks, one of them far ahead."""
    clocks = [lambda: 1e6, lambda: 5.0]
    if request.param == "memory":
        state = MemoryState("pair")
        yield [MemoryManager(state, clock) for clock in clocks]
        return
    async with AsyncExitStack() as stack:
        managers = [SqliteManager(str(tmp_path / "mgr.db"), print, exclusive=False, clock=clock) for clock in clocks]
        for manager in managers:
            stack.push_async_callback(manager.aclose)
            await manager.start()
        yield list(managers)


@pytest.mark.anyio
async def test_two_managers_see_each_others_leases(pair: list[Manager]) -> None:
    first, second = pair
    lease = await first.acquire("gateway", "one", TTL)
    assert lease.expires == 1e6 + TTL
    with pytest.raises(LeaseHeldError):
        await second.acquire("gateway", "two", TTL)
    watch = LeaseWatch()
    [seen] = await second.leases("gateway")
    assert watch.see(seen, 7.0) == OVER
    await first.renew(lease)
    [renewed] = await second.leases("gateway")
    assert watch.see(renewed, 7.0 + OVER) == OVER
    with pytest.raises(LeaseHeldError):
        await second.acquire("gateway", "two", TTL, over=seen)
    assert watched(watch, renewed, 7.0 + OVER, 7.0 + 2 * OVER) == 0
    taken = await second.acquire("gateway", "two", TTL, over=renewed)
    assert (taken.epoch, taken.expires) == (lease.epoch + 1, 5.0 + TTL)
    for refused in (first.renew(lease), first.commit({"a": b"1"}, lease=lease)):
        with pytest.raises(FencedError):
            await refused
    await first.release(lease)
    [left] = await first.leases("gateway")
    assert left[:5] == ("gateway", "two", taken.epoch, TTL, True), "it is not its any more"
    assert (await first.acquire("gateway", "two", TTL)).epoch == taken.epoch + 1, "its own holder has it at once"


@pytest.mark.anyio
async def test_one_that_waits_sees_that_the_other_lives_or_gives_it_up(pair: list[Manager]) -> None:
    first, second = pair
    now = 100.0
    ttl = 0.3  # looked at every 10 ms
    lease = await first.acquire("gateway", "one", ttl)
    waited: list[LeaseInfo] = []

    async def live(info: LeaseInfo, _seconds: float) -> None:
        waited.append(info)
        await anyio.sleep(0.05)
        await first.renew(lease)

    async with anyio.create_task_group() as group:
        with anyio.fail_after(30), pytest.raises(LeaseHeldError, match="'one' holds 'gateway', and has renewed it"):
            await acquire_when_over(
                second, "gateway", "two", ttl, clock=lambda: now, waiting=lambda *seen: group.start_soon(live, *seen)
            )

    async def give_up(info: LeaseInfo, _seconds: float) -> None:
        waited.append(info)
        await anyio.sleep(0.05)
        await first.release(lease)

    async with anyio.create_task_group() as group:
        with anyio.fail_after(30):
            taken = await acquire_when_over(
                second, "gateway", "two", ttl, clock=lambda: now, waiting=lambda *seen: group.start_soon(give_up, *seen)
            )
    assert taken.epoch == lease.epoch + 1
    assert [(each.holder, each.held) for each in waited] == [("one", True)] * 2


@pytest.mark.anyio
async def test_of_two_that_wait_one_has_it(pair: list[Manager]) -> None:
    first, second = pair
    await first.acquire("gateway", "gone", 0.2)
    had: list[str] = []
    refused: list[str] = []

    async def wait(manager: Manager, holder: str) -> None:
        try:
            await acquire_when_over(manager, "gateway", holder, 60)
            had.append(holder)
        except LeaseHeldError as error:
            refused.append(error.holder)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for number in range(6):
                group.start_soon(wait, (first, second)[number % 2], f"holder {number}")
    assert len(had) == 1
    assert refused == had * 5


@pytest.mark.anyio
async def test_a_lease_whose_row_is_damaged_keeps_the_epoch_that_can_be_read(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path / 'data'}"
    async with open_store(url) as store:
        await store.manager.acquire("gateway", "one", TTL, above=7)
    with sqlite3.connect(tmp_path / "data" / "mgr" / "mgr.db") as database:
        database.execute("UPDATE leases SET ttl = -1.0")
    database.close()
    async with open_store(url) as store:
        assert await store.manager.leases("") == []
        assert (await store.manager.acquire("gateway", "two", TTL)).epoch == 9


# --- what earlier versions wrote ---


@pytest.mark.anyio
async def test_leases_of_earlier_formats_are_free_and_keep_their_epochs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They had an end, by the clock of the machine."""
    url = f"embedded:{tmp_path / 'data'}"
    async with open_store(url) as store:
        await store.manager.acquire("other", "one", 60)
    with sqlite3.connect(tmp_path / "data" / "mgr" / "mgr.db") as database:
        database.execute("DROP TABLE leases")
        database.execute(
            "CREATE TABLE leases (name VARCHAR NOT NULL, holder VARCHAR NOT NULL, epoch BIGINT, "
            "expires FLOAT NOT NULL, boot VARCHAR NOT NULL, PRIMARY KEY (name))"
        )
        rows = [("gateway", "one", 7, 1e9, "boot"), ("free", "two", 3, 0.0, "boot"), ("bad", "two", "x", 0.0, "boot")]
        database.executemany("INSERT INTO leases VALUES (?, ?, ?, ?, ?)", rows)
    database.close()
    (tmp_path / "data" / "format.json").write_text('{"format": 2}')
    for _ in range(2):
        async with open_store(url) as store:
            found = await store.manager.leases("")
            assert [each[:3] for each in found] == [("free", "two", 3), ("gateway", "one", 7)]
            assert not any(each.held for each in found)
    assert caplog.text.count("the row of the lease 'bad' is damaged") == 1
    async with open_store(url) as store:
        assert (await store.manager.acquire("gateway", "two", 60)).epoch == 8
