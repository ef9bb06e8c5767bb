"""`close` that meets another `close`, or the start: it waits for that, and whoever returns finds the gateway closed."""

from __future__ import annotations

import asyncio
import gc
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from kclient.concurrency.backend import current_backend
from kclient.errors import ClosedError, IllegalStateError
from kclient.gateway import Gateway
from kclient.gateway.dynamic_config import DynamicConfig
from kclient.gateway.groups import GroupCoordinator
from kclient.gateway.partitions import PartitionTable
from kclient.gateway.topics.catalogue import TopicCatalogue
from kclient.htp import LeaseHeldError, open_store
from kclient.htp.embedded import EmbeddedStore
from kclient.htp.errors import StorageFullError
from kclient.net.server import Server
from kclient.sync import Producer
from tests.gateway_wire import batch_of, connect, names, running
from tests.sweeps import slow

pytestmark = pytest.mark.anyio


class Held:
    """A coroutine function that is held up at its beginning, once."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.reached = anyio.Event()
        self.open = anyio.Event()

    async def run(self, *args: Any) -> Any:
        if not self.reached.is_set():
            self.reached.set()
            await self.open.wait()
        return await self.function(*args)


@contextmanager
def held(owner: type, name: str) -> Iterator[Held]:
    """Hold up a method."""
    with pytest.MonkeyPatch.context() as patch:
        made = Held(getattr(owner, name))
        patch.setattr(owner, name, lambda *args: made.run(*args))
        yield made


async def turns() -> None:
    """Let everybody else go as far as they can."""
    for _ in range(20):
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("timeout", [0.0, 10.0])
async def test_the_second_close_waits_for_the_first(timeout: float, tmp_path: Path) -> None:
    store = f"embedded:{tmp_path / 'data'}"
    gateway = Gateway(store, listen=None)
    done: list[str] = []

    async def close_again() -> None:
        await closing.reached.wait()
        tasks.start_soon(open_soon)
        await gateway.close(timeout)
        done.append("second")
        async with running(store) as (_, wire):
            assert await wire.values("t") == [b"a"]

    async def open_soon() -> None:
        await turns()
        done.append("store")
        closing.open.set()

    with anyio.fail_after(60), held(EmbeddedStore, "aclose") as closing:
        async with anyio.create_task_group() as tasks:
            await gateway.start()
            wire = connect(gateway)
            await wire.create("t")
            assert (await wire.produce("t", batch_of(b"a"))).error_code == 0
            tasks.start_soon(close_again)
            await gateway.close(10)
            await wire.aclose()
    assert done == ["store", "second"]
    await gateway.wait()
    await gateway.close(0)


async def test_the_shorter_time_holds_for_both() -> None:
    store = f"memory:{next(names)}"
    gateway = Gateway(store, listen=None)
    asked = anyio.Event()

    async def hang(*_: object, **__: object) -> None:
        asked.set()
        await anyio.sleep_forever()

    async def close_again() -> None:
        await asked.wait()
        await gateway.close(0.2)

    with pytest.MonkeyPatch.context() as patch, anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            await gateway.start()
            wire = connect(gateway)
            await wire.create("t")
            assert (await wire.produce("t", batch_of(b"a"))).error_code == 0
            patch.setattr(type(gateway.parts.manager), "commit", hang)
            tasks.start_soon(close_again)
            began = time.monotonic()
            await gateway.close(3600)
            assert time.monotonic() - began < 20
            await wire.aclose()
    async with running(store, config={"node.id": 7}) as (_, again):
        assert await again.values("t") == [b"a"]


async def test_a_second_close_that_is_cancelled_cancels_only_its_wait(tmp_path: Path) -> None:
    store = f"embedded:{tmp_path / 'data'}"
    gateway = Gateway(store, listen=None)

    async def close_again() -> None:
        await closing.reached.wait()
        with anyio.move_on_after(0.01) as scope:
            await gateway.close(10)
        assert scope.cancelled_caught
        closing.open.set()

    with anyio.fail_after(60), held(EmbeddedStore, "aclose") as closing:
        async with anyio.create_task_group() as tasks:
            await gateway.start()
            tasks.start_soon(close_again)
            await gateway.close(10)
    async with running(store):
        pass


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("timeout", [0.0, 10.0])
async def test_a_first_close_that_asyncio_cancels_keeps_nobody_waiting(timeout: float, tmp_path: Path) -> None:
    store = f"embedded:{tmp_path / 'data'}"
    gateway = Gateway(store, listen=None)
    await gateway.start()
    wire = connect(gateway)
    await wire.create("t", 20)
    first = asyncio.get_running_loop().create_task(gateway.close(10))
    await asyncio.sleep(0)
    second = asyncio.get_running_loop().create_task(gateway.close(timeout))
    await asyncio.sleep(0)
    first.cancel()
    with anyio.fail_after(30):
        await second
        async with running(store, config={"node.id": 7}):
            pass
        await asyncio.wait([first])
    assert first.cancelled()
    await wire.aclose()


@pytest.mark.parametrize("step", [(EmbeddedStore, "__aenter__"), (TopicCatalogue, "load")])
async def test_closing_ends_a_start_that_is_under_way(step: tuple[type, str], tmp_path: Path) -> None:
    store = f"embedded:{tmp_path / 'data'}"
    gateway = Gateway(store, listen=None)

    async def close() -> None:
        await starting.reached.wait()
        await gateway.close(10)
        async with running(store):
            pass

    with anyio.fail_after(60), held(*step) as starting:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(close)
            with pytest.raises(ClosedError, match="closed while it started"):
                await gateway.start()
    await gateway.close()
    await gateway.wait()


async def test_what_was_closed_before_does_not_start(tmp_path: Path) -> None:
    store = f"embedded:{tmp_path / 'data'}"
    gateway = Gateway(store, listen=None)
    await gateway.close()
    with pytest.raises(ClosedError):
        await gateway.start()
    async with running(store):
        pass


async def test_a_start_that_failed_is_closed(tmp_path: Path) -> None:
    store = f"embedded:{tmp_path / 'data'}"
    async with running(store):
        gateway = Gateway(store, listen=None)
        with pytest.raises(Exception, match="in this process serves"):
            await gateway.start()
        with anyio.fail_after(10):
            await gateway.wait()
            await gateway.close()


async def test_a_task_of_its_own_cannot_close_it_and_nothing_is_done(tmp_path: Path) -> None:
    raised: list[BaseException] = []

    async def close() -> None:
        try:
            await gateway.close()
        except IllegalStateError as error:
            raised.append(error)

    async with running(f"embedded:{tmp_path / 'data'}") as (gateway, wire):
        await gateway._supervisor.spawn(close, name="closes").wait()
        assert len(raised) == 1
        await wire.create("t")
        assert (await wire.produce("t", batch_of(b"a"))).error_code == 0
        assert await wire.values("t") == [b"a"]


async def test_a_task_of_its_own_waits_for_no_close_of_another() -> None:
    """That one waits for the task."""
    with held(GroupCoordinator, "aclose") as closing:
        refused = anyio.Event()
        gateway = Gateway(f"memory:{next(names)}", listen=None)
        await gateway.start()

        async def close() -> None:
            await closing.reached.wait()
            try:
                await gateway.close(0.0)
            except IllegalStateError:
                refused.set()

        gateway._supervisor.spawn(close, name="closes")

        async def go_on() -> None:
            await refused.wait()
            closing.open.set()

        async with anyio.create_task_group() as group:
            group.start_soon(go_on)
            await gateway.close()
        assert refused.is_set()


async def test_it_starts_and_closes_within_timeouts_and_in_any_task() -> None:
    gateway = Gateway(f"memory:{next(names)}", listen=None)
    with anyio.fail_after(20):
        await gateway.start()
    with anyio.move_on_after(20):
        wire = connect(gateway)
        await wire.create("t")
        await wire.aclose()
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(gateway.close)
    await gateway.wait()


async def test_a_store_in_memory_is_free_when_its_gateway_is_closed_and_not_before() -> None:
    url = f"memory:{next(names)}"
    with held(GroupCoordinator, "aclose") as closing:
        async with anyio.create_task_group() as group:

            async def start_another() -> None:
                await closing.reached.wait()
                with pytest.raises(LeaseHeldError):
                    await Gateway(url, listen=None).start()
                closing.open.set()

            group.start_soon(start_another)
            async with Gateway(url, listen=None):
                pass
    async with Gateway(url, listen=None):
        pass


@pytest.mark.parametrize("step", [(DynamicConfig, "load"), (TopicCatalogue, "load")])
async def test_a_start_that_is_broken_off_leaves_no_lease(step: tuple[type, str]) -> None:
    async with open_store(f"memory:{next(names)}") as store:
        with held(*step) as loading:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:

                    async def interrupt() -> None:
                        await loading.reached.wait()
                        scope.cancel()

                    group.start_soon(interrupt)
                    await Gateway(store, listen=None).start()
        async with Gateway(store, listen=None, config={"node.id": 7}):
            pass


@pytest.mark.parametrize("scheme", ["memory", *slow("embedded")])
@pytest.mark.parametrize("call", ["acquire", "commit"])
@pytest.mark.parametrize("how", ["scope", "task", "close"])
async def test_a_start_that_is_broken_off_while_it_takes_the_lease(
    how: str, call: str, scheme: str, tmp_path: Path
) -> None:
    """The store has been asked for it, or has given it, and its epoch is not recorded yet."""
    if how == "task" and current_backend() == "trio":
        pytest.skip("asyncio cancels tasks, trio scopes")
    async with open_store(f"memory:{next(names)}" if scheme == "memory" else f"embedded:{tmp_path / 'data'}") as store:
        async with Gateway(store, listen=None):
            pass  # from now on nothing else is committed before
        for turns_later in range(6):
            with anyio.fail_after(60):
                await break_off(Gateway(store, listen=None), how, getattr(type(store.manager), call), turns_later)
            async with Gateway(store, listen=None, config={"node.id": 7}):
                pass


async def break_off(gateway: Gateway, how: str, function: Any, turns_later: int) -> None:
    """Start a gateway, and break that off so many turns after it has called a method of its manager."""
    called = anyio.Event()
    scope = anyio.CancelScope()
    task: asyncio.Task[Any] | None = None

    async def call(*args: Any, **options: Any) -> Any:
        called.set()
        return await function(*args, **options)

    async def start() -> None:
        nonlocal task
        task = asyncio.current_task() if current_backend() == "asyncio" else None
        with suppress(ClosedError, asyncio.CancelledError), scope:
            await gateway.start()
            task = None
            await gateway.close(0.0)  # which no scope disturbs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(gateway._store.manager), function.__name__, call)
        async with anyio.create_task_group() as group:
            group.start_soon(start)
            await called.wait()
            for _ in range(turns_later):
                await anyio.lowlevel.checkpoint()
            if how == "scope":
                scope.cancel()
            elif how == "task":
                if task is not None:
                    task.cancel()
            else:
                await gateway.close()


async def test_a_start_that_cannot_record_its_epoch_leaves_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_args: Any, **_options: Any) -> None:
        raise StorageFullError("database or disk is full")

    async with open_store(f"memory:{next(names)}") as store:
        async with Gateway(store, listen=None):
            pass
        with monkeypatch.context() as patch, pytest.raises(StorageFullError):
            patch.setattr(type(store.manager), "commit", full)
            await Gateway(store, listen=None).start()
        async with Gateway(store, listen=None, config={"node.id": 7}):
            pass


@pytest.mark.parametrize("how", ["cancelled", "in less time"])
@pytest.mark.parametrize("step", [(GroupCoordinator, "aclose"), (Server, "aclose"), (PartitionTable, "checkpoint")])
async def test_a_close_that_is_cut_short_leaves_no_lease(how: str, step: tuple[type, str]) -> None:
    async with open_store(f"memory:{next(names)}") as store:
        with anyio.fail_after(60), held(*step) as closing:
            async with anyio.create_task_group() as group:
                gateway = Gateway(store, listen=None)

                async def cut_short() -> None:
                    await closing.reached.wait()
                    if how == "cancelled":
                        scope.cancel()
                    else:
                        await gateway.close(0.0)

                with anyio.CancelScope() as scope:
                    await gateway.start()
                    group.start_soon(cut_short)
                    await gateway.close(30.0)
        async with Gateway(store, listen=None, config={"node.id": 7}):
            pass


def test_a_store_in_memory_outlives_the_loop_of_a_gateway_that_nobody_closed() -> None:
    url = f"memory:{next(names)}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        loop = asyncio.new_event_loop()
        gateway = Gateway(url, listen=None)
        loop.run_until_complete(gateway.start())
        loop.close()

        async def serve() -> None:
            async with running(url) as (_, wire):
                await wire.create("t")
                assert (await wire.produce("t", batch_of(b"a"))).error_code == 0

        asyncio.run(serve())
        with Producer(bootstrap_servers=url) as producer:
            assert producer.send("t", b"b", partition=0).result(10).offset == 1
        del gateway
        gc.collect()


async def test_a_block_whose_body_has_closed() -> None:
    async with Gateway(f"memory:{next(names)}", listen=None) as gateway:
        await gateway.close()
