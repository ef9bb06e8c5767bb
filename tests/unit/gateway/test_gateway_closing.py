"""Closing a gateway whose store does not answer: it takes as long as it was told to, and a moment."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from kclient.gateway import Gateway, draining, ownership
from kclient.gateway import gateway as gateway_module
from kclient.htp import open_store
from kclient.htp.errors import StorageFullError
from kclient.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tests.gateway_wire import Wire, batch_of, connect, names, running
from tests.sweeps import slow

pytestmark = pytest.mark.anyio


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a store has at least, and to take the lease back, is a tenth of a second."""
    for module in (draining, gateway_module):
        monkeypatch.setattr(module, "LEAST_S", 0.1)
    monkeypatch.setattr(ownership, "_GIVE_BACK_S", 0.1)


async def commit_offset(gateway: Gateway, wire: Wire) -> None:
    await wire.commit("g", "t", 1)


async def create(gateway: Gateway, wire: Wire) -> None:
    await wire(CreateTopicsRequest(topics=[CreatableTopic(name="new", num_partitions=1, replication_factor=1)]), 7)


async def trim(gateway: Gateway, wire: Wire) -> None:
    await wire.delete_records("t", 1)


async def alter(gateway: Gateway, wire: Wire) -> None:
    await wire.alter(2, "t", ("retention.ms", 0, "1000"))


async def alter_broker(gateway: Gateway, wire: Wire) -> None:
    await wire.alter(4, "", ("log.retention.ms", 0, "1000"))


async def nothing(gateway: Gateway, wire: Wire) -> None:
    """What was produced waits for its checkpoint."""


@pytest.mark.parametrize("change", [commit_offset, nothing, *slow(create, trim, alter, alter_broker)])
@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("timeout", [0.0, 0.3])
async def test_a_store_that_does_not_answer_delays_closing_no_longer_than_the_timeout(
    change: Callable[[Gateway, Wire], Awaitable[None]], timeout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = f"memory:{next(names)}"
    gateway = Gateway(store, listen=None)
    asked = anyio.Event()

    async def hang(*_: object, **__: object) -> None:
        asked.set()
        await anyio.sleep_forever()

    async def ask(wire: Wire) -> None:
        try:
            await change(gateway, wire)
        except AssertionError:  # the connection is closed without an answer
            return

    with monkeypatch.context() as patch, anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            await gateway.start()
            wire = connect(gateway)
            await wire.create("t")
            assert (await wire.produce("t", batch_of(b"a"))).error_code == 0
            patch.setattr(type(gateway.parts.manager), "commit", hang)
            tasks.start_soon(ask, wire)
            if change is not nothing:
                await asked.wait()
            began = time.monotonic()
            await gateway.close(timeout)
            assert time.monotonic() - began < timeout + 10
            await wire.aclose()
            tasks.cancel_scope.cancel()
    async with running(store, config={"node.id": 7}) as (_, again):
        assert await again.values("t") == [b"a"]


async def full(*_args: object, **_options: object) -> None:
    raise StorageFullError("database or disk is full")


@pytest.mark.slow
@pytest.mark.parametrize("given_back", [True, False])
async def test_a_store_that_takes_no_checkpoint_is_free_all_the_same(
    given_back: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At once, or when its lease would have been renewed."""
    monkeypatch.setattr(ownership, "LEASE_S", 3.0)
    async with open_store(f"memory:{next(names)}") as store:
        with monkeypatch.context() as patch:
            async with Gateway(store, listen=None) as gateway:
                wire = connect(gateway)
                await wire.create("t")
                assert (await wire.produce("t", batch_of(b"a"))).error_code == 0
                await wire.aclose()
                patch.setattr(type(store.manager), "commit", full)
                if not given_back:
                    patch.setattr(type(store.manager), "release", full)
        assert "closing without checkpoints" in caplog.text
        assert ("has to wait for up to 3 s" in caplog.text) is not given_back
        began = time.monotonic()
        async with Gateway(store, listen=None, config={"node.id": 7}) as again:
            wire = connect(again)
            with anyio.fail_after(20):
                while (await wire.fetch("t", 0)).error_code:
                    await anyio.sleep(0.01)
            assert (time.monotonic() - began > 3.0) is not given_back
            await wire.aclose()


async def test_a_store_that_was_closed_before_its_gateway(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with open_store(f"embedded:{tmp_path / 'data'}") as store, Gateway(store, listen=None):
        await store.__aexit__(None, None, None)
    assert "has to wait for up to 30 s" in caplog.text


async def test_what_is_changed_while_the_gateway_closes_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is only slow gets the time that there is."""
    store = f"memory:{next(names)}"
    gateway = Gateway(store, listen=None)
    asked = anyio.Event()
    with monkeypatch.context() as patch:
        async with anyio.create_task_group() as tasks:
            await gateway.start()
            wire = connect(gateway)
            await wire.create("t")
            commit = type(gateway.parts.manager).commit

            async def slow(*args: Any, **options: Any) -> Any:
                asked.set()
                await anyio.sleep(0.3)
                return await commit(*args, **options)

            patch.setattr(type(gateway.parts.manager), "commit", slow)
            tasks.start_soon(wire.commit, "g", "t", 7)
            await asked.wait()
            await gateway.close(30)
            await wire.aclose()
    async with running(store) as (_, again):
        assert await again.committed("g", "t") == 7
