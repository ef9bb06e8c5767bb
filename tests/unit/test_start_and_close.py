"""A client whose start is met by `close`, interrupted or cancelled: the call is told, and nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest

import kclient
import kclient.sync
from kclient.errors import ClosedError, IllegalStateError
from kclient.sync.portal import Portal, get_portal
from kclient.testing.cancellation import Cancelled, at_every_checkpoint
from tests.fake_kafka import FakeKafka

ASYNC: dict[str, Callable[..., Any]] = {
    "admin": kclient.Admin,
    "consumer": kclient.Consumer,
    "producer": kclient.Producer,
}
BLOCKING: dict[str, Callable[..., Any]] = {
    "admin": kclient.sync.Admin,
    "consumer": kclient.sync.Consumer,
    "producer": kclient.sync.Producer,
}
NOWHERE = "127.0.0.1:1"
ON_ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])


# ------------------------------------------------------------------ asyncio


def nothing_left(before: set[asyncio.Task[Any]]) -> bool:
    return asyncio.all_tasks() <= before


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.anyio
@ON_ASYNCIO
@pytest.mark.parametrize("kind", ASYNC)
@pytest.mark.parametrize("turns", range(5))
async def test_close_in_another_task(kind: str, turns: int) -> None:
    before = asyncio.all_tasks()
    client = ASYNC[kind](bootstrap_servers=NOWHERE)
    start = asyncio.get_running_loop().create_task(client.start())
    for _ in range(turns):
        await asyncio.sleep(0)
    with anyio.fail_after(10):
        await client.close()
        with contextlib.suppress(ClosedError):
            await start
    await settled()
    assert nothing_left(before)
    with pytest.raises(ClosedError):
        await client.start()


@pytest.mark.anyio
@ON_ASYNCIO
@pytest.mark.parametrize("kind", ASYNC)
async def test_two_tasks_that_start(kind: str) -> None:
    before = asyncio.all_tasks()
    client = ASYNC[kind](bootstrap_servers=NOWHERE)
    outcomes = await asyncio.gather(client.start(), client.start(), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), IllegalStateError]
    await client.close()
    await settled()
    assert nothing_left(before)


@pytest.mark.anyio
@ON_ASYNCIO
@pytest.mark.parametrize("kind", ASYNC)
@pytest.mark.parametrize("turns", range(5))
async def test_a_start_that_asyncio_cancels_may_be_tried_again(kind: str, turns: int) -> None:
    before = asyncio.all_tasks()
    client = ASYNC[kind](bootstrap_servers=NOWHERE)
    start = asyncio.get_running_loop().create_task(client.start())
    for _ in range(turns):
        await asyncio.sleep(0)
    start.cancel()
    await asyncio.wait([start])
    if start.cancelled():
        await settled()
        assert nothing_left(before)
        await client.start()
    await client.close()
    await settled()
    assert nothing_left(before)


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ASYNC)
async def test_a_block_that_is_cancelled_anywhere(kind: str, anyio_backend_name: str) -> None:
    async def life(client: Any) -> None:
        async with client:
            pass

    async def scenario(cancelled: Cancelled) -> None:
        await cancelled(life(ASYNC[kind](bootstrap_servers=NOWHERE)))

    before = asyncio.all_tasks() if anyio_backend_name == "asyncio" else set()
    assert await at_every_checkpoint(scenario) > 0
    if anyio_backend_name == "asyncio":
        await settled()
        assert nothing_left(before)


# ------------------------------------------------------------------ blocking code


def first_call(client: Any) -> None:
    if isinstance(client, kclient.sync.Consumer):
        client.assign([("t", 0)])
        client.poll(10)
    elif isinstance(client, kclient.sync.Producer):
        client.flush(10)
    else:
        client.list_topics(timeout=10)


async def tasks_there() -> set[asyncio.Task[Any]]:
    await settled()
    return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]


class Crossings:
    """Counts the calls that have crossed to the portal, and holds its loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        wait = Portal._wait

        def waiting(portal: Portal, outcome: Any) -> Any:
            self.count += 1
            return wait(portal, outcome)

        monkeypatch.setattr(Portal, "_wait", waiting)

    @contextlib.contextmanager
    def held_after(self, turns: int) -> Iterator[None]:
        """The loop stands still in the block, from some turns on."""
        goes_on = threading.Event()

        def hold(left: int) -> None:
            if left:
                get_portal().loop.call_soon(hold, left - 1)
            else:
                goes_on.wait(20)

        get_portal().call_soon(hold, turns)
        try:
            yield
        finally:
            goes_on.set()

    def reach(self, count: int, thread: threading.Thread) -> None:
        while self.count < count and thread.is_alive():
            pass


@pytest.mark.parametrize("kind", BLOCKING)
@pytest.mark.parametrize("timeout", [0, 5])
@pytest.mark.parametrize("turns", range(5))
def test_close_in_another_thread(kind: str, timeout: float, turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before = get_portal().call(tasks_there)
    client = BLOCKING[kind](bootstrap_servers=NOWHERE)
    crossings = Crossings(monkeypatch)
    told: list[BaseException] = []

    def first() -> None:
        try:
            first_call(client)
        except BaseException as error:
            told.append(error)

    caller = threading.Thread(target=first, daemon=True)
    closer = threading.Thread(target=client.close, args=(timeout,), daemon=True)
    with contextlib.ExitStack() as second:
        with crossings.held_after(0):
            caller.start()
            crossings.reach(1, caller)
            second.enter_context(crossings.held_after(turns))
        closer.start()
        crossings.reach(2, closer)
    for thread in (caller, closer):
        thread.join(10)
        assert not thread.is_alive()
    # a flush that has begun has nothing to wait for
    assert {type(error) for error in told} | {ClosedError} == {ClosedError}
    assert told or kind == "producer"
    assert get_portal().call(tasks_there) <= before
    client.close()
    with pytest.raises(ClosedError):
        first_call(client)


@pytest.mark.parametrize("kind", BLOCKING)
def test_close_before_the_first_call(kind: str) -> None:
    before = get_portal().call(tasks_there)
    client = BLOCKING[kind](bootstrap_servers=NOWHERE)
    client.close()
    client.close()
    with pytest.raises(ClosedError):
        first_call(client)
    assert get_portal().call(tasks_there) <= before


class Interrupted:
    """Ctrl-C in the first call that waits for the portal."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, through: bool) -> None:
        wait = Portal._wait

        def interrupted(portal: Portal, outcome: Any) -> Any:
            monkeypatch.setattr(Portal, "_wait", wait)
            if through:  # the call has done what it was to do, and nobody has been told yet
                wait(portal, outcome)
            raise KeyboardInterrupt

        monkeypatch.setattr(Portal, "_wait", interrupted)


@pytest.mark.parametrize("kind", BLOCKING)
@pytest.mark.parametrize("through", [False, True])
@pytest.mark.parametrize("goes_on", [False, True])
def test_ctrl_c_in_the_first_call(kind: str, through: bool, goes_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    before = get_portal().call(tasks_there)
    client = BLOCKING[kind](bootstrap_servers=NOWHERE)
    Interrupted(monkeypatch, through=through)
    with pytest.raises(KeyboardInterrupt):
        client.start()
    if goes_on:
        client.start()
    client.close()
    assert get_portal().call(tasks_there) <= before


@pytest.mark.parametrize("kind", BLOCKING)
@pytest.mark.parametrize("through", [False, True])
def test_ctrl_c_on_the_way_into_a_block(kind: str, through: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    before = get_portal().call(tasks_there)
    client = BLOCKING[kind](bootstrap_servers=NOWHERE)
    Interrupted(monkeypatch, through=through)
    with pytest.raises(KeyboardInterrupt), client:
        pytest.fail("it is not entered")
    assert get_portal().call(tasks_there) <= before


def test_an_admin_client_that_closes_at_once_leaves_no_connection() -> None:
    async def connected() -> None:
        async with FakeKafka(brokers=3) as kafka:
            admin = kclient.Admin(bootstrap_servers=kafka.bootstrap)
            await admin.start()
            for node in (1, 2, 3):
                await admin._cluster.refresh()
                links.append(await admin._cluster.connection(node))
            await admin.close(0)
            assert all(connection.closed for connection in links)

    links: list[Any] = []
    asyncio.run(connected())
