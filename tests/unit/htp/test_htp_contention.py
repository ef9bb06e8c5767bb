"""Several processes that commit to one database: they take turns, and whoever does not go on is named."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import pytest

from kclient.htp.embedded import EmbeddedStore, contention, open_embedded
from kclient.htp.errors import StorageError

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("begun", flush=True)
sys.stdin.read()
"""


@contextmanager
def amid_a_transaction(data: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process has the database."""
    command = [sys.executable, "-c", HOLD, str(data / "mgr" / "mgr.db")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        yield process


@asynccontextmanager
async def opened(data: Path) -> AsyncIterator[EmbeddedStore]:
    async with open_embedded(str(data), together=True) as store:
        yield store


async def test_another_process_may_hold_the_database_for_a_while(tmp_path: Path) -> None:
    async with opened(tmp_path) as store, anyio.create_task_group() as tasks:
        with amid_a_transaction(tmp_path):
            tasks.start_soon(store.manager.commit, {"a": b"1"})
            await anyio.sleep(0.2)
            assert contention.writer_of(str(tmp_path / "mgr" / "mgr.db")) is not None or sys.platform != "linux"
    async with opened(tmp_path) as store:
        assert (await store.manager.get(["a"]))["a"].value == b"1"


async def test_one_that_does_not_go_on_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "PATIENCE_S", 0.2)
    async with opened(tmp_path) as store:
        with amid_a_transaction(tmp_path) as process:
            number = process.pid if sys.platform == "linux" else "PID"
            with pytest.raises(StorageError, match=rf"amid a transaction.*kill -CONT {number}.*kill -9 {number}"):
                await store.manager.commit({"a": b"1"})
            process.kill()
            process.wait()
        await store.manager.commit({"a": b"2"})
        assert (await store.manager.get(["a"]))["a"].value == b"2"


async def test_one_that_commits_without_a_pause_leaves_turns_to_others(tmp_path: Path) -> None:
    async with opened(tmp_path) as one, opened(tmp_path) as two, anyio.create_task_group() as tasks:

        async def go_on() -> None:
            while True:
                await one.manager.commit({"a": b"1"})

        for _ in range(4):
            tasks.start_soon(go_on)
        await one.manager.commit({"a": b"1"})
        before = one.manager.transactions
        for _ in range(50):
            await two.manager.commit({"b": b"2"})
        made = one.manager.transactions - before
        assert made < 2 * 50, "the other one made 50"
        tasks.cancel_scope.cancel()
