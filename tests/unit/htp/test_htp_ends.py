"""Where the logs of an open store end, as another process is told."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import anyio.to_thread
import pytest

from kclient.htp import TopicSettings
from kclient.htp.embedded.ends import Ends, LogEnd, ask_ends
from tests.unit.htp.by_name import named_store
from tests.unit.htp.conftest import prepare
from tests.unit.htp.plain_messages import OTHER, TOPIC, message

pytestmark = pytest.mark.anyio

LENGTH = len(message(0, b"x"))


async def ask(data: Path) -> Ends | None:
    return await anyio.to_thread.run_sync(ask_ends, str(data / "brk-0"))


async def test_what_is_open_and_written(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with named_store(f"embedded:{data}", settings=TopicSettings(segment_bytes=2 * LENGTH)) as store:
        assert await ask(data) == {}
        await prepare(store)
        assert await ask(data) == {1: LogEnd(0, 0), 2: LogEnd(0, 0)}
        for number in range(5):
            await store.broker.send(TOPIC, [message(number, b"x")])  # not waited for: what is written counts
        assert await ask(data) == {1: LogEnd(4, LENGTH), 2: LogEnd(0, 0)}
        await store.broker.close(OTHER)
        assert await ask(data) == {1: LogEnd(4, LENGTH)}
    assert await ask(data) is None
    assert not (data / "brk-0" / "ends.sock").exists()


async def test_what_an_owner_that_was_killed_has_left(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with named_store(f"embedded:{data}"):
        pass
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(data / "brk-0" / "ends.sock"))
    assert await ask(data) is None
    async with named_store(f"embedded:{data}"):
        assert await ask(data) == {}


async def test_who_asks_for_something_else_hears_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with named_store(f"embedded:{data}"):

        def talk(text: bytes) -> bytes:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(data / "brk-0" / "ends.sock"))
                connection.sendall(text)
                connection.shutdown(socket.SHUT_WR)
                return connection.recv(100)

        for text in (b"", b"end", b"other\n"):
            assert await anyio.to_thread.run_sync(talk, text) == b""
        assert await ask(data) == {}
        assert (data / "brk-0" / "ends.sock").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(sys.platform == "darwin", reason="a fork of a process with threads")
async def test_a_forked_child_holds_nothing_open(tmp_path: Path) -> None:
    data = tmp_path / "data"
    read, write = os.pipe()
    async with named_store(f"embedded:{data}"):
        pid = os.fork()
        if pid == 0:
            os.close(write)
            os.read(read, 1)  # until the parent has closed the store
            os._exit(0 if ask_ends(str(data / "brk-0")) is None else 1)
        os.close(read)
        assert await ask(data) == {}
    os.close(write)
    assert os.waitpid(pid, 0)[1] == 0
