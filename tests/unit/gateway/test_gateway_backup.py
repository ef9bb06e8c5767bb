"""Backups of stores that a gateway uses, restored: nothing acknowledged is missing, and all is of one moment."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest

from kclient.cli.app import run
from kclient.gateway import Gateway
from kclient.htp import StorageError
from kclient.htp.embedded import moment
from kclient.htp.embedded.backup import BackupReport, back_up
from kclient.htp.embedded.ends import ask_ends
from kclient.htp.embedded.links import HardLinks
from kclient.htp.embedded.restoring import restore
from tests.copied_stores import copy_as_killed
from tests.gateway_wire import batch_of, connect, running

EARLIEST = -2
ROUNDS = 2
PAUSE_S = 0.003
"""Between two requests of those that have much to do, so that the others come to their turn."""

pytestmark = [pytest.mark.anyio, pytest.mark.domains]

KILLED = """
import os, signal, sys
from kclient.htp.embedded.backup import back_up
back_up(sys.argv[1], sys.argv[2], total=lambda _: os.kill(os.getpid(), signal.SIGKILL))
"""


async def _back_up(data: Path, target: Path) -> BackupReport:
    return await anyio.to_thread.run_sync(partial(back_up, str(data), str(target)))


class Load:
    """Clients that never pause: records by the hundred, offsets, topics that come and go, retention."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.acknowledged = [0, 0]
        """Records of each partition of `orders`."""
        self.chain = 0
        """The last number that went all the way through `chain`."""
        self.churned = 0

    async def orders(self, partition: int) -> None:
        wire = connect(self._gateway)
        producer_id, filler = await wire.producer_id(), b"x" * 20_000
        for number in itertools.count(0, 5):
            values = [b"%d:%b" % (each, filler) for each in range(number, number + 5)]
            batch = batch_of(*values, producer_id=producer_id, producer_epoch=0, sequence=number)
            assert (await wire.produce("orders", batch, partition)).error_code == 0
            self.acknowledged[partition] = number + 5
            await anyio.sleep(PAUSE_S)

    async def links_of_the_chain(self) -> None:
        """Each number is written to one log, then committed, then written to another log."""
        wire = connect(self._gateway)
        for number in itertools.count(1):
            assert (await wire.produce("first", batch_of(b"%d" % number))).error_code == 0
            assert await wire.commit("chain", "first", number) == 0
            assert (await wire.produce("second", batch_of(b"%d" % number))).error_code == 0
            self.chain = number

    async def churn(self) -> None:
        wire = connect(self._gateway)
        for number in itertools.count():
            assert (await wire.create(f"short-{number}", 2)).error_code == 0
            assert (await wire.produce(f"short-{number}", batch_of(b"x"), number % 2)).error_code == 0
            if number > 2:
                assert await wire.delete(f"short-{number - 3}") == 0
            self.churned = number

    async def retain(self) -> None:
        while True:
            await self._gateway.apply_retention()
            await anyio.sleep(PAUSE_S)


async def _check(data: Path, acknowledged: list[int], chain: int) -> None:
    async with running(f"embedded:{data}") as (_, wire):
        for partition, least in enumerate(acknowledged):
            start = -1
            with anyio.fail_after(60):
                while start < 0:  # a busy disk has not opened it yet
                    start = (await wire.offset("orders", EARLIEST, partition)).offset
            found = [int(value.partition(b":")[0]) for value in await wire.values("orders", start, partition)]
            assert found == list(range(start, start + len(found))), "no hole, nothing twice"
            assert start + len(found) >= least
        first = len(await wire.values("first"))
        second = len(await wire.values("second"))
        committed = await wire.committed("chain", "first")
        assert chain <= second <= committed <= first <= second + 1
        for name in [topic.name for topic in (await wire.metadata()).topics]:
            if name.startswith("short-"):
                assert len(await wire.values(name)) + len(await wire.values(name, partition=1)) <= 1
        assert (await wire.produce("orders", batch_of(b"later"))).error_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["synced", "written"])
async def test_while_everything_changes(tmp_path: Path, durability: str, capsys: pytest.CaptureFixture[str]) -> None:
    data, known = tmp_path / "data", []
    async with running(f"embedded:{data}", durability=durability) as (gateway, wire):
        await wire.create("orders", 2, segment_bytes="1048576", retention_bytes="3000000")
        await wire.create("first")
        await wire.create("second")
        load = Load(gateway)
        async with anyio.create_task_group() as tasks:
            for part in (partial(load.orders, 0), partial(load.orders, 1), load.links_of_the_chain, load.churn):
                tasks.start_soon(part)
            tasks.start_soon(load.retain)
            with anyio.fail_after(60):
                for number in range(ROUNDS):
                    before, churned = load.chain, load.churned
                    while load.chain < before + 20 or load.churned < churned + 3 or load.acknowledged[1] < 200:
                        await anyio.sleep(0.01)
                    state = (list(load.acknowledged), load.chain)
                    report = await _back_up(data, tmp_path / f"backup-{number}")
                    assert report.in_use
                    assert report.exact
                    known.append(state)
            tasks.cancel_scope.cancel()
        assert not list(data.glob("brk-0/backup-*"))
    for number, state in enumerate(known):
        restored = tmp_path / f"restored-{number}"
        restore(str(tmp_path / f"backup-{number}"), str(restored))
        code = await anyio.to_thread.run_sync(run, ["store", "verify", str(restored)])
        assert code == 0, capsys.readouterr().out
        await _check(restored, *state)


@pytest.mark.slow
async def test_what_the_owner_appends_and_removes_after_the_moment(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with running(f"embedded:{data}") as (gateway, wire):
        await wire.create("kept", segment_bytes="1048576", retention_bytes="1")
        await wire.create("gone")
        for number in range(4):
            await wire.produce("kept", batch_of(b"%d" % number * 600_000))
        await wire.produce("gone", batch_of(b"x"))
        began, go_on = anyio.Event(), anyio.Event()

        def copying(_: int) -> None:  # the moment is over, and nothing is copied yet
            anyio.from_thread.run_sync(began.set)
            anyio.from_thread.run(go_on.wait)

        async def change() -> None:
            await began.wait()
            assert await gateway.apply_retention() == 1
            assert await wire.delete("gone") == 0
            await wire.produce("kept", batch_of(b"later"))
            assert (await wire.offset("kept", EARLIEST)).offset == 3
            go_on.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(change)
            await anyio.to_thread.run_sync(partial(back_up, str(data), str(tmp_path / "backup"), total=copying))
    restore(str(tmp_path / "backup"), str(tmp_path / "restored"))
    async with running(f"embedded:{tmp_path / 'restored'}") as (_, wire):
        assert [value[:1] for value in await wire.values("kept")] == [b"0", b"1", b"2", b"3"]
        assert await wire.values("gone") == [b"x"]


async def test_a_segment_that_is_replaced_while_it_is_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As compaction does: another file gets the name of a segment between two looks at it, again and again."""
    data = tmp_path / "data"
    replaced: list[str] = []

    def replace(path: Path) -> None:
        """Its messages stay, and are the file's again."""
        copy = path.with_suffix(".tmp")
        copy.write_bytes(path.read_bytes())
        copy.replace(path)
        replaced.append(path.name)

    async with running(f"embedded:{data}") as (_, wire):
        await wire.create("t", segment_bytes="1048576")
        for number in range(3):
            await wire.produce("t", batch_of(b"%d" % number * 1_000_000))
        segment = sorted(data.rglob("*.log"))[1]
        locked, link = moment._locked, HardLinks.link

        @contextmanager
        def replaced_before(database: str) -> Iterator[None]:
            replace(segment)
            with locked(database):
                yield

        def replaced_meanwhile(links: HardLinks, directory: int, name: str, found: os.stat_result) -> str | None:
            if name == segment.name and len(replaced) in (1, 2):
                replace(segment)
            return link(links, directory, name, found)

        monkeypatch.setattr(moment, "_locked", replaced_before)
        monkeypatch.setattr(HardLinks, "link", replaced_meanwhile)
        await _back_up(data, tmp_path / "backup")
        assert len(replaced) >= 2
    restore(str(tmp_path / "backup"), str(tmp_path / "restored"))
    async with running(f"embedded:{tmp_path / 'restored'}") as (_, wire):
        assert [value[:1] for value in await wire.values("t")] == [b"0", b"1", b"2"]


@pytest.mark.slow
async def test_several_brokers_are_looked_at_in_one_moment(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with running(f"embedded:{data}", brokers=3, mapping="broker") as (_, wire):
        await wire.create("t", 3)
        for number in range(30):
            assert (await wire.produce("t", batch_of(b"%d" % number), number % 3)).error_code == 0
        report = await _back_up(data, tmp_path / "backup")
        assert (report.topics, report.exact) == (3, True)
        for number in range(3):
            await wire.produce("t", batch_of(b"later"), number)
    await _back_up(data, tmp_path / "closed")
    for name, each in (("backup", 10), ("closed", 11)):
        restore(str(tmp_path / name), str(tmp_path / f"restored-{name}"))
        assert await anyio.to_thread.run_sync(run, ["store", "verify", str(tmp_path / f"restored-{name}")]) == 0
        async with running(f"embedded:{tmp_path / f'restored-{name}'}") as (_, wire):
            for number in range(3):
                assert len(await wire.values("t", partition=number)) == each


async def test_without_the_owners_word(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with running(f"embedded:{data}") as (_, wire):
        await wire.create("t")
        await wire.produce("t", batch_of(b"x"))
        next((data / "brk-0").glob("ends*.sock")).unlink()
        report = await _back_up(data, tmp_path / "backup")
        assert (report.in_use, report.exact) == (True, False)
    restore(str(tmp_path / "backup"), str(tmp_path / "restored"))
    async with running(f"embedded:{tmp_path / 'restored'}") as (_, wire):
        assert await wire.values("t") == [b"x"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have no paths of open directories")
async def test_a_path_that_is_too_long_for_sockets(tmp_path: Path) -> None:
    data = tmp_path / ("long" * 30) / "data"
    async with running(f"embedded:{data}") as (_, wire):
        await wire.create("t")
        assert (await _back_up(data, tmp_path / "backup")).exact
    assert ask_ends(str(data / "brk-0")) is None


async def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    data = tmp_path / "data"
    async with running(f"embedded:{data}") as (_, wire):
        await wire.create("t")
        await wire.produce("t", batch_of(b"x"))
        monkeypatch.setattr(os, "link", no_links)
        with pytest.raises(StorageError, match=r"makes no hard links .*: stop the gateway, then back"):
            await _back_up(data, tmp_path / "backup")
        assert not (tmp_path / "backup").exists()
        assert not list(data.glob("brk-0/backup-*"))
    assert not (await _back_up(data, tmp_path / "backup")).in_use


async def test_more_files_than_the_owner_can_wait_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    async with running(f"embedded:{data}") as (_, wire):
        await wire.create("t")
        await wire.produce("t", batch_of(b"x"))
        monkeypatch.setattr(moment, "_LONGEST_HOLD_S", 0.0)
        with pytest.raises(StorageError, match=r"has too many files .*: stop it first"):
            await _back_up(data, tmp_path / "backup")
        assert not (tmp_path / "backup").exists()
        assert await wire.commit("g", "t", 1) == 0, "the rows are free again"


@pytest.mark.slow
async def test_links_of_a_backup_that_was_killed_go_at_the_next_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with running(f"embedded:{data}") as (_, wire):
        await wire.create("t")
        await wire.produce("t", batch_of(b"x"))
        command = [sys.executable, "-c", KILLED, str(data), str(tmp_path / "backup")]
        killed = await anyio.run_process(command, check=False, stderr=subprocess.STDOUT)
        assert killed.returncode == -signal.SIGKILL, killed.stdout
        assert len(list(data.glob("brk-0/backup-*"))) == 1
    assert run(["store", "restore", str(tmp_path / "backup"), str(tmp_path / "restored")]) == 2
    assert not (tmp_path / "restored").exists()
    async with running(f"embedded:{data}"):
        pass
    assert not list(data.glob("brk-0/backup-*"))


@pytest.mark.slow
async def test_the_cut_end_of_a_store_that_was_killed(tmp_path: Path) -> None:
    """Nobody uses it, and nobody has looked at it since: what is there is what the next start would find."""
    data = tmp_path / "data"
    async with running(f"embedded:{data}") as (_, wire):
        await wire.create("t")
        await wire.produce("t", batch_of(b"x"))
        copy_as_killed(data, tmp_path / "killed")
    with next((tmp_path / "killed").glob("brk-0/topics/*/*.log")).open("ab") as file:
        file.write(os.urandom(50))
    report = await _back_up(tmp_path / "killed", tmp_path / "backup")
    assert (report.in_use, report.exact) == (False, True)
    assert not (tmp_path / "backup" / "data" / "mgr" / "mgr.db-wal").exists()
    restore(str(tmp_path / "backup"), str(tmp_path / "restored"))
    async with running(f"embedded:{tmp_path / 'restored'}") as (_, wire):
        assert await wire.values("t") == [b"x"]
