"""Opening that asyncio cancels while a thread does it: nothing that the thread takes is left without an owner."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from kclient.htp import open_store
from kclient.htp.embedded import broker as broker_module
from kclient.htp.embedded.directory import DataDirectory
from kclient.htp.embedded.files import Files
from kclient.htp.embedded.shard import Shard
from kclient.htp.embedded.writer import DatabaseWriter
from kclient.htp.errors import StoreClosedError
from kclient.htp.port import Topic
from tests.unit.htp.plain_messages import FRAMING, message

S = 30.0


class Gate:
    """Holds up a function that runs in a thread, until it is opened."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.reached = threading.Event()
        self.open = threading.Event()
        self.through = threading.Event()

    def __call__(self, *args: Any) -> Any:
        self.reached.set()
        assert self.open.wait(S)
        try:
            return self.function(*args)
        finally:
            self.through.set()

    async def passes(self, task: asyncio.Task[Any], cancellations: int) -> None:
        """Cancel the task while it is held up, then let the function go on, and see both end."""
        assert await anyio.to_thread.run_sync(self.reached.wait, S)
        for _ in range(cancellations):
            task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        self.open.set()
        assert await anyio.to_thread.run_sync(self.through.wait, S)
        with pytest.raises(asyncio.CancelledError):
            await task


def gate(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> Gate:
    """Put a gate before a function."""
    made = Gate(getattr(owner, name))
    # a function, so that it becomes a method
    monkeypatch.setattr(owner, name, lambda *args: made(*args))
    return made


def held(data: Path) -> list[str]:
    """What this process has open of a directory, and the threads that serve one."""
    links = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    threads = [each.name for each in threading.enumerate() if each.name.startswith("kclient-htp")]
    return [link for link in links if link.startswith(str(data))] + threads


async def opened(store: str) -> None:
    async with open_store(store):
        pass


STEPS = [
    (DataDirectory, "open"),
    (DatabaseWriter, "start"),
    (Shard, "incarnations"),
    (Shard, "set_aside"),
]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("cancellations", [1, 3])
@pytest.mark.parametrize(("owner", "name"), STEPS)
async def test_the_directory_is_free_afterwards(
    owner: type, name: str, cancellations: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    await opened(f"embedded:{data}")
    orphan = data / "brk-0" / "topics" / "d~t.1"
    if name == "set_aside":  # only what an earlier incarnation may have left, and is not empty
        async with open_store(f"embedded:{data}") as store:
            await store.manager.create_domain("d")
            info = await store.manager.create_topic(Topic("d", "t"))
            await store.manager.delete_topics([info.topic])
        orphan.mkdir()
        (orphan / "x").touch()
    with monkeypatch.context() as patch:
        held_up = gate(patch, owner, name)
        await held_up.passes(asyncio.get_running_loop().create_task(opened(f"embedded:{data}")), cancellations)
    assert not held(data)
    await opened(f"embedded:{data}")


def test_a_loop_that_ends_while_it_opens_leaves_the_directory_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    tasks = []

    async def leave() -> None:
        tasks.append(asyncio.get_running_loop().create_task(opened(f"embedded:{data}")))
        assert await anyio.to_thread.run_sync(held_up.reached.wait, S)

    with monkeypatch.context() as patch:
        held_up = gate(patch, DataDirectory, "open")
        asyncio.run(leave())
        held_up.open.set()
        assert held_up.through.wait(S)
    asyncio.run(opened(f"embedded:{data}"))


def test_closing_lets_nothing_be_taken_any_more(tmp_path: Path) -> None:
    directory = DataDirectory(str(tmp_path / "data"), Files())
    directory.close()
    with pytest.raises(StoreClosedError):
        directory.open()
    writer = DatabaseWriter(str(tmp_path / "mgr.db"), lambda _: None, lambda _: None)
    writer.stop()
    with pytest.raises(StoreClosedError):
        writer.start()


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_topic_is_not_recovered_twice_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recovery cuts files: one that went on alone would cut what was appended after the next one."""
    running, most = 0, 0
    recover = broker_module.recover

    def counted(*args: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return held_up(*args)
        finally:
            running -= 1

    async with open_store(f"embedded:{tmp_path / 'data'}") as store:
        await store.manager.create_domain("d")
        info = await store.manager.create_topic(Topic("d", "t"))

        async def open_topic() -> None:
            await store.broker.open(info.place, FRAMING, epoch=1)

        held_up = Gate(recover)
        monkeypatch.setattr(broker_module, "recover", counted)
        first = asyncio.get_running_loop().create_task(open_topic())
        assert await anyio.to_thread.run_sync(held_up.reached.wait, S)
        first.cancel()
        second = asyncio.get_running_loop().create_task(open_topic())
        for _ in range(3):
            await store.manager.get([])
        held_up.open.set()
        await second
        with pytest.raises(asyncio.CancelledError):
            await first
    assert most == 1


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_topic_whose_closing_is_cancelled_leaves_no_file_open(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with open_store(f"embedded:{data}") as store:
        await store.manager.create_domain("d")
        info = await store.manager.create_topic(Topic("d", "t"))
        for turns in range(12):
            topic = await store.broker.open(info.place, FRAMING, epoch=1)
            await topic.send([message(turns, b"x")])
            task = asyncio.get_running_loop().create_task(topic.close())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            await topic.close()
            assert not [each for each in held(data) if each.endswith(".log")]
    assert not held(data)
