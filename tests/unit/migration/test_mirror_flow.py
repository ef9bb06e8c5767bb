"""The way of a source's answers into the store: written together, several on their way, and what may happen to them."""

from __future__ import annotations

import threading
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

from kclient.gateway import Gateway
from kclient.htp import open_store
from kclient.htp.embedded.files import SyncPoint
from kclient.htp.port import CAP_NOWAIT
from kclient.migration import Mirror, Target
from kclient.migration import mirror as mirror_module
from kclient.migration import target as target_module
from kclient.migration.verifying import verify
from tests.gateway_wire import batch_of, names, running
from tests.slow_store import Gates
from tests.sweeps import slow
from tests.uncertain_store import UNKNOWN, Fate, UncertainStore
from tests.unit.htp.disks import FailingFiles, broken
from tests.unit.migration.conftest import Pair, caught_up, clients, pair, until

pytestmark = pytest.mark.anyio


async def _filled(source: Pair, batches: int, partitions: int = 1) -> None:
    """A topic with batches of two records, with a hole behind each third one."""
    await source.wire.create("flights", partitions)
    for partition in range(partitions):
        end = 0
        for number in range(batches):
            values = b"%d-%d" % (partition, number), b"x" * 100
            base = await source.append("flights", batch_of(*values), at=end, partition=partition)
            end = base + 2 + (number % 3 == 2) * 5


async def _equal(source: Pair, htp: str) -> int:
    """See to it that both sides have the same; how many records."""
    async with source.source() as theirs, clients(htp) as ours:
        found = await verify(theirs, ours, (await theirs.topics()).values())
    assert found.failures == []
    return sum(each.records for each in found.partitions)


@pytest.mark.slow
async def test_a_sync_that_fails_in_the_middle_of_an_answer_leaves_no_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came behind it must not take its offsets for a hole of the source."""
    monkeypatch.setattr(target_module, "_AT_ONCE", 1)
    files, writes, failed = FailingFiles(), 0, threading.Event()
    far_enough = threading.Event()

    def write(size: int, position: int) -> None:
        nonlocal writes
        del size, position
        writes += 1
        if writes == 5:
            far_enough.set()
        if writes == 6:
            failed.wait(10)

    def sync(point: SyncPoint) -> None:
        if point is SyncPoint.MESSAGES and not failed.is_set():
            far_enough.wait(10)
            failed.set()
            raise broken()

    monkeypatch.setattr("kclient.htp.embedded.Files", lambda: files)
    url = f"embedded:{tmp_path}/data"
    async with pair() as source, running(url) as (target, _):
        await _filled(source, 100)
        files.on_write, files.on_sync = write, sync
        async with source.mirroring(target) as mirror:
            await caught_up(mirror)
            assert [note for note in source.notes if "the store does not take its records, it is tried again" in note]
        assert failed.is_set()
        assert await _equal(source, url) == 200


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("without", [(), (CAP_NOWAIT,)], ids=["nowait", "waits"])
async def test_whatever_becomes_of_what_is_sent(
    seed: int, without: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_module, "_AT_ONCE", 300)
    monkeypatch.setattr(mirror_module, "_RETRY_S", 0.01)
    dice = Random(seed)
    store = UncertainStore(open_store(f"memory:{next(names)}"), without)
    async with pair() as source, store, Gateway(store, "127.0.0.1:0") as target:
        await _filled(source, 40, 2)
        left = 8

        def fate() -> Fate:
            nonlocal left
            if left == 0 or dice.random() < 0.7:
                return Fate.KNOWN
            left -= 1
            return dice.choice([each for each in UNKNOWN if each is not Fate.LATE])

        store.broker.fate = fate
        async with source.mirroring(target) as mirror:
            await caught_up(mirror)
        assert await _equal(source, target.bootstrap) == 160


@pytest.mark.slow
@pytest.mark.parametrize("turns", [0, 5, 34, *slow(1, 2, 3, 8, 13, 21, 55, 89)])
async def test_broken_off_at_any_moment_it_goes_on(turns: int, htp: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_module, "_AT_ONCE", 1)
    async with pair() as source, running(htp) as (target, _):
        await _filled(source, 12, 3)
        async with source.source() as theirs:
            mirror = Mirror(theirs, Target(target), lambda _: True)
            await mirror.prepare()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(mirror.run)
                await until(lambda: any(state.partition.log.next_offset for state in mirror.states()))
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
        async with source.mirroring(target) as again:
            await caught_up(again)
        assert await _equal(source, htp) == 72


@pytest.mark.slow
async def test_no_more_is_in_memory_than_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the store takes nothing for a while."""
    memory, partitions = 2000, 12
    monkeypatch.setattr(mirror_module, "LEAST_MEMORY", 1000)
    monkeypatch.setattr(mirror_module, "_RETRY_S", 0.01)
    monkeypatch.setattr(mirror_module, "_PATIENCE_S", 0.01)
    gates = Gates(UncertainStore(open_store(f"memory:{next(names)}"), [CAP_NOWAIT]))
    asked: list[int] = []
    async with pair() as source, gates.store, Gateway(gates.store, "127.0.0.1:0") as target:
        await _filled(source, 20, partitions)
        async with source.source() as theirs:
            fetch = theirs.fetch

            async def fetches(*args: Any, **options: Any) -> Any:
                asked.append(options.get("response_bytes", 0))
                return await fetch(*args, **options)

            monkeypatch.setattr(theirs, "fetch", fetches)
            mirror = Mirror(theirs, Target(target), lambda _: True, memory=memory)
            await mirror.prepare()
            for count in range(1, 200):
                gates.hold("send", count)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(mirror.run)
                await until(lambda: mirror.queued >= memory)
                most = 0
                for _ in range(200):
                    await anyio.lowlevel.checkpoint()
                    most = max(most, mirror.queued)
                assert most <= memory + memory // 2
                gates.open()
                await caught_up(mirror)
                await until(lambda: mirror.queued == 0)  # what is acknowledged last is settled a turn later
                mirror.stop()
        assert 0 < max(asked) <= memory // 4
        assert await _equal(source, target.bootstrap) == 40 * partitions


async def test_too_little_memory_is_refused() -> None:
    async with pair() as source, running() as (target, _), source.source() as theirs:
        with pytest.raises(ValueError, match="memory is 4194304 bytes at least, not 1000"):
            Mirror(theirs, Target(target), lambda _: True, memory=1000)
