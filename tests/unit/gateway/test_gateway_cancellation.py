"""A gateway whose life is cancelled at any checkpoint leaves its store usable and no topic half there."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

from kclient.gateway import Gateway
from kclient.gateway.topics import sweeping
from kclient.htp.embedded.directory import DataDirectory
from kclient.htp.embedded.writer import DatabaseWriter
from kclient.testing.cancellation import Cancelled, Outcome, at_every_checkpoint
from tests.all_rows import scan_all
from tests.domains import domains_among
from tests.gateway_wire import batch_of, connect, names, running

pytestmark = pytest.mark.anyio

ANOTHER: dict[str, Any] = {"config": {"node.id": 7}}
"""A gateway of another number has to wait for a lease that was left behind."""


async def live(store: str, created: list[bytes]) -> None:
    """A whole life: start, make a topic and delete another, close."""
    async with Gateway(store, listen=None) as gateway:
        topics, catalogue = gateway.parts.topics, gateway.parts.catalogue
        if topics.get("old") is None and not created:
            await catalogue.create("old", 2)
        created.append((await catalogue.create("new", 2)).topic_id)
        await catalogue.grow("new", 3)
        await catalogue.delete("old")
        await catalogue.delete("new")


async def check(store: str) -> None:
    async with running(store, **ANOTHER) as (gateway, wire):
        parts = gateway.parts
        names_there = {record.name for record in parts.topics}
        assert set(await domains_among(parts.manager, ["old", "new"])) == names_there
        assert not await scan_all(parts.manager, "kafka/intent/")
        for name in ("old", "new"):
            if name not in names_there:
                assert (await wire.create(name, 2)).error_code == 0
            for partition in range(parts.topics.get(name).partitions):  # type: ignore[union-attr]
                assert (await wire.produce(name, batch_of(b"a"), partition)).base_offset == 0


@pytest.mark.slow
@pytest.mark.domains
async def test_a_life_cut_off_at_any_point() -> None:
    async def scenario(cancelled: Cancelled) -> None:
        store = f"memory:{next(names)}"
        outcome = await cancelled(live(store, []))
        assert outcome in Outcome
        await check(store)

    assert await at_every_checkpoint(scenario) > 10


@pytest.mark.slow
async def test_a_start_cut_off_at_any_point_lets_go_of_the_directory(tmp_path: Path) -> None:
    store = f"embedded:{tmp_path / 'data'}"

    async def scenario(cancelled: Cancelled) -> None:
        async def life() -> None:
            async with Gateway(store, "127.0.0.1:0"):
                pass

        before = set(threading.enumerate())
        await cancelled(life())
        # each has the database open, and would write to it behind the back of the next gateway
        left = {thread.name for thread in threading.enumerate() if thread not in before}
        assert not {name for name in left if name.startswith("kclient")}, cancelled.checkpoint

    assert await at_every_checkpoint(scenario) > 10
    await check(store)


async def test_cancelled_requests_leave_the_catalogue_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "_SWEEP_S", 0.01)

    async def scenario(cancelled: Cancelled) -> None:
        async with running() as (gateway, _):
            topics, catalogue = gateway.parts.topics, gateway.parts.catalogue
            await cancelled(catalogue.create("t", 2))
            if topics.get("t") is None:
                await catalogue.create("t", 2)
            await cancelled(catalogue.grow("t", 4))
            wire = connect(gateway)
            count = len((await wire.metadata("t")).topics[0].partitions)
            assert count in (2, 4)
            for partition in range(count):
                assert (await wire.produce("t", batch_of(b"a"), partition)).base_offset == 0
            await cancelled(catalogue.delete("t"))
            if topics.get("t") is not None:
                await catalogue.delete("t")
            with anyio.fail_after(10):
                while topics.left:  # what a deletion leaves goes without whoever asked for it
                    await anyio.lowlevel.checkpoint()
            assert not await domains_among(gateway.parts.manager, ["t"])
            await wire.aclose()

    await at_every_checkpoint(scenario)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("timeout", [0, 5])
async def test_closing_that_asyncio_cancels_lets_go_of_the_store(timeout: float, tmp_path: Path) -> None:
    store = f"embedded:{tmp_path / 'data'}"
    gateway = Gateway(store, listen=None)
    await gateway.start()
    closing = asyncio.get_running_loop().create_task(gateway.close(timeout))
    await asyncio.sleep(0)
    with anyio.fail_after(20):
        while not closing.done():
            closing.cancel()
            await asyncio.sleep(0)
        await gateway.wait()
    async with running(store, **ANOTHER) as (_, wire):
        await wire.create("t")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("step", [(DataDirectory, "open"), (DatabaseWriter, "start")])
async def test_a_start_that_asyncio_cancels_lets_go_of_the_directory(
    step: tuple[type, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the midst of what a thread does, which takes what the task would give back."""
    store = f"embedded:{tmp_path / 'data'}"
    reached, go_on, through = threading.Event(), threading.Event(), threading.Event()
    work = getattr(*step)

    def held_up(*args: object) -> None:
        reached.set()
        assert go_on.wait(30)
        try:
            work(*args)
        finally:
            through.set()

    with monkeypatch.context() as patch:
        patch.setattr(*step, held_up)
        gateway = Gateway(store, listen=None)
        task = asyncio.get_running_loop().create_task(gateway.start())
        assert await anyio.to_thread.run_sync(reached.wait, 30)
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await anyio.to_thread.run_sync(through.wait, 30)
    await gateway.close()
    async with running(store, **ANOTHER) as (_, wire):
        await wire.create("t")
