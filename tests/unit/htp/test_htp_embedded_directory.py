"""The data directory of embedded HTP: format version, lock, files that may be deleted, recovery."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import anyio
import pytest

from kclient.errors import ConfigError, MissingExtraError, NotYetSupportedError
from kclient.htp import (
    FormatVersionError,
    LockedError,
    StorageError,
    StoreClosedError,
    Topic,
    TopicSettings,
    open_store,
)
from kclient.htp.embedded import directory as directory_module
from kclient.htp.embedded import log as log_module
from kclient.htp.embedded import recovery
from kclient.htp.embedded import writer as writer_module
from kclient.htp.embedded.directory import FORMAT, DataDirectory
from kclient.htp.embedded.files import Files
from kclient.htp.errors import StorageFullError
from kclient.htp.rows import unsealed
from kclient.types import Buffer
from tests.all_rows import scan_all
from tests.copied_stores import copy_as_killed
from tests.sweeps import mostly_slow
from tests.unit.htp.by_name import NamedStore, named_store
from tests.unit.htp.conftest import prepare
from tests.unit.htp.plain_messages import FRAMING, OTHER, OVERHEAD, TOPIC, message, payloads

pytestmark = pytest.mark.anyio

SMALL = TopicSettings(segment_bytes=5 * (OVERHEAD + 10), index_interval_bytes=100)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "new" / "data"


# Python 3.12 warns of a fork in a process with threads, which is just what these tests are about
FORK = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


def opening(data: Path, **options: object) -> NamedStore:
    return named_store(f"embedded:{data}", **options)


def topic_folder(data: Path) -> Path:
    (folder,) = (data / "brk-0" / "topics").glob("domain~some_topic.*")
    return folder


def content(number: int) -> bytes:
    return b"%010d" % number


async def fill(data: Path, count: int = 23) -> None:
    async with opening(data, settings=SMALL) as store:
        await prepare(store)
        await send(store, 0, count)


async def send(store: NamedStore, first: int, count: int) -> None:
    for number in range(first, first + count):
        await (await store.broker.send(TOPIC, [message(number, content(number), timestamp=number)])).synced()


async def check(data: Path, count: int = 23) -> None:
    """Everything is there, found by position and by time, and the log goes on."""
    async with opening(data, settings=SMALL) as store:
        assert (await store.broker.open(TOPIC, FRAMING))[:3] == (0, count, count)
        for number in range(count):
            pulled = await store.broker.pull(TOPIC, number, max_messages=1)
            assert payloads(pulled.data) == [content(number)]
            found = await store.broker.find_by_timestamp(TOPIC, number)
            assert found is not None
            assert found.first == number
        segments = await store.broker.segments(TOPIC)
        assert [each.max_timestamp for each in segments if each.size] == [
            each.next - 1 for each in segments if each.size
        ]
        await send(store, count, 3)
        assert await store.broker.end(TOPIC) == count + 3


# --- format and lock ---


FULL = {"f_bavail": 7}
WITHOUT_INODES = {"f_favail": 0}


@pytest.mark.parametrize(
    ("code", "left", "full"),
    [
        (sqlite3.SQLITE_IOERR_SHMSIZE, FULL, True),
        (sqlite3.SQLITE_IOERR_WRITE, FULL, True),
        (sqlite3.SQLITE_CANTOPEN, WITHOUT_INODES, True),
        (sqlite3.SQLITE_FULL, {}, True),  # a quota, which only SQLite meets
        (sqlite3.SQLITE_IOERR_READ, {}, False),
        (sqlite3.SQLITE_NOTADB, FULL, False),
    ],
)
async def test_a_database_that_cannot_be_opened_for_want_of_space(
    code: int, left: dict[str, int], full: bool, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(data)
    asked: list[str] = []

    def refuse(*_args: object) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = code
        raise error

    def statvfs(path: str) -> SimpleNamespace:
        asked.append(path)
        space = {"f_bavail": 1 << 20, "f_frsize": 4096, "f_files": 1 << 20, "f_favail": 1 << 20}
        return SimpleNamespace(**{**space, **left})

    with monkeypatch.context() as patch:
        patch.setattr(writer_module, "_configure", refuse)
        patch.setattr(os, "statvfs", statvfs)
        with pytest.raises(StorageError, match=r"mgr\.db (cannot be opened: |is damaged \().*disk I/O error") as caught:
            await opening(data).__aenter__()
    assert set(asked) <= {str(data / "mgr")}
    assert isinstance(caught.value, StorageFullError) is full
    assert ("no space is left on its file system" in str(caught.value)) is full
    await check(data)


@pytest.mark.parametrize(("number", "full"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False)])
async def test_a_directory_that_cannot_be_made_for_want_of_space(
    number: int, full: bool, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(Files, "store", refuse)
        with pytest.raises(StorageError, match="cannot be opened: ") as caught:
            await opening(data).__aenter__()
    assert isinstance(caught.value, StorageFullError) is full
    assert ("no space is left on its file system" in str(caught.value)) is full
    await fill(data)
    await check(data)


async def test_a_full_disk_keeps_no_lock(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of the owner could not be written: the lock was taken by then, and this process tries again."""

    def refuse(*_args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse)
        with pytest.raises(StorageFullError, match="no space is left on its file system"):
            await opening(data).__aenter__()
    await fill(data)
    await check(data)


@pytest.mark.parametrize(("left", "opens"), [(60_000, False), (300_000, True)])
async def test_a_disk_that_is_about_to_be_full(
    data: Path, left: int, opens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would open, and then be unable to record who leads a topic, so that nobody could read."""
    await fill(data)
    monkeypatch.setattr(writer_module, "space_left", lambda _path: left)
    if opens:
        async with opening(data):
            return
    with pytest.raises(StorageFullError, match=r"no space is left .* 262144 are needed to begin.* make space"):
        await opening(data).__aenter__()
    monkeypatch.undo()
    await check(data)


async def test_a_newer_format_is_refused(data: Path) -> None:
    await fill(data)
    (data / "format.json").write_text(json.dumps({"format": FORMAT + 1}))
    with pytest.raises(FormatVersionError, match=f"is written in format {FORMAT + 1}; .* up to {FORMAT}"):
        await opening(data).__aenter__()


async def test_a_directory_of_format_1_is_of_the_present_one_then(data: Path) -> None:
    """What wrote it would take the rows of this version for damaged."""
    assert recovery._FORMAT <= FORMAT, "the directory's format rises with that of any row"
    await fill(data)
    (data / "format.json").write_text(json.dumps({"format": 1}))
    await check(data)
    assert json.loads((data / "format.json").read_text())["format"] == FORMAT


async def test_an_older_format_is_migrated(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(data)
    migrated: list[int] = []
    monkeypatch.setattr(directory_module, "FORMAT", FORMAT + 2)
    for version in (FORMAT, FORMAT + 1):
        monkeypatch.setitem(
            directory_module.MIGRATIONS, version, lambda _files, _path, version=version: migrated.append(version)
        )
    async with opening(data):
        pass
    assert migrated == [FORMAT, FORMAT + 1]
    assert json.loads((data / "format.json").read_text())["format"] == FORMAT + 2


@pytest.mark.parametrize("text", ["", "nonsense", "{}", '{"format": "1"}', '{"format": 0}'])
async def test_a_damaged_format_file(data: Path, text: str) -> None:
    await fill(data)
    (data / "format.json").write_text(text)
    with pytest.raises(FormatVersionError, match="is damaged"):
        await opening(data).__aenter__()


async def test_a_directory_that_is_something_else(data: Path) -> None:
    data.mkdir(parents=True)
    (data / "thesis.tex").touch()
    with pytest.raises(FormatVersionError, match="is not a data directory"):
        await opening(data).__aenter__()
    assert [each.name for each in data.iterdir()] == ["thesis.tex"]


async def test_two_that_begin_a_new_directory_at_once(data: Path) -> None:
    """Whoever comes second is told that it is in use, however little is there yet."""
    second: list[BaseException] = []
    seen: list[list[str]] = []

    class Watching(Files):
        """Has the other one begin whenever this one looks at the directory or changes it."""

        def _other(self) -> None:
            if (data / "brk-0" / "lock").exists():
                seen.append(sorted(each.name for each in data.iterdir()))
                try:
                    DataDirectory(str(data), Files()).open()
                except BaseException as error:
                    second.append(error)

        def load(self, path: str) -> bytes | None:
            self._other()
            return super().load(path)

        def list_directory(self, path: str) -> list[str]:
            self._other()
            return super().list_directory(path)

        def make_directory(self, path: str) -> bool:
            self._other()
            return super().make_directory(path)

    first = DataDirectory(str(data), Watching())
    first.open()
    first.close()
    assert seen[0] == ["brk-0"], "before there is a format"
    assert [type(error) for error in second] == [LockedError] * len(seen)


async def test_a_first_opening_that_was_broken_off(data: Path) -> None:
    (data / "brk-0").mkdir(parents=True)
    (data / "brk-0" / "lock").touch()
    (data / "format.json.77.tmp").touch()
    await fill(data)
    await check(data)


async def test_messages_without_a_format_file(data: Path) -> None:
    await fill(data)
    (data / "format.json").unlink()
    with pytest.raises(FormatVersionError, match="is missing"):
        await opening(data).__aenter__()


async def test_the_messages_without_their_manager(data: Path) -> None:
    """They must not be taken for what deleted topics left behind."""
    await fill(data)
    for file in (data / "mgr").iterdir():
        file.unlink()
    with pytest.raises(
        StorageError, match=r"belongs to another store than .*mgr: was a wrong disk mounted there, or mgr lost"
    ):
        await opening(data).__aenter__()
    assert list(topic_folder(data).glob("*.log"))


# --- what belongs to no topic, and topics of which nothing is there ---


def database(data: Path) -> Path:
    return data / "mgr" / "mgr.db"


def sql(data: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(database(data))) as connection, connection:
        connection.execute(statement)


@pytest.mark.slow
async def test_a_damaged_database_is_refused(data: Path) -> None:
    """What it says of the topics is not to be trusted: nothing is swept away, nor served as empty."""
    await fill(data)
    async with opening(data) as store:
        for number in range(5):
            await store.manager.create_topic(Topic("domain", f"more {number}"))
    before = {file.name: file.read_bytes() for file in topic_folder(data).iterdir()}
    content = bytearray(database(data).read_bytes())
    place = content.index(b"\x03\x01\x01\x03\x03")  # in the index of incarnations: the third, of the third row
    content[place + 3] ^= 0x40
    database(data).write_bytes(content)
    for _ in range(2):
        with pytest.raises(StorageError, match=r"mgr\.db is damaged: .*index.*REINDEX"):
            await opening(data).__aenter__()
    assert {file.name: file.read_bytes() for file in topic_folder(data).iterdir()} == before
    sql(data, "REINDEX")
    await check(data)


async def test_messages_of_no_topic_are_set_aside(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    await fill(data)
    folder = topic_folder(data)
    logs = {file.name: file.read_bytes() for file in folder.iterdir()}
    (folder.parent / "domain~never_used.2").mkdir()  # made for a topic that was gone before it could be opened
    sql(data, "DELETE FROM topics")
    async with opening(data) as store:
        await anyio.to_thread.run_sync(chores_done(store).wait)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert f"{folder} holds messages of no topic" in caplog.text
    (kept,) = folder.parent.iterdir()
    assert kept.name == folder.name + ".orphan"
    assert {file.name: file.read_bytes() for file in kept.iterdir()} == logs
    caplog.clear()
    async with opening(data):
        pass
    assert not caplog.records
    assert kept.exists()


@pytest.mark.parametrize("count", [0, 3])
async def test_a_deletion_that_was_cut_off_leaves_no_checkpoint(data: Path, count: int) -> None:
    """The manager's part was done, and the process killed."""
    async with opening(data) as store:
        await prepare(store)
        if count:
            await send(store, 0, count)
        assert await scan_all(store.manager, "brk/")
        await store.manager.delete_topics([TOPIC])
        await store.manager.delete_topics([OTHER])
    async with opening(data) as store:
        assert not await scan_all(store.manager, "brk/")


@pytest.mark.parametrize("killed", [True, False])
@pytest.mark.parametrize("segments", [1, 2])
async def test_a_missing_file_is_no_empty_topic(data: Path, killed: bool, segments: int) -> None:
    """Nobody knows how many ordinals were given in it, so none may be given again."""
    async with opening(data) as store:
        await prepare(store)
        await send(store, 0, 3)
        if segments == 2:
            await store.broker.roll(TOPIC)
            await send(store, 3, 3)
        await store.manager.commit({})  # what came before it is written by now
        copy_as_killed(data, data.parent / "killed")
    if killed:
        data = data.parent / "killed"
    file = max(topic_folder(data).glob("*.log"))
    assert file.stat().st_size
    file.unlink()
    for _ in range(2):
        async with opening(data) as store:
            with pytest.raises(StorageError, match=f"{file.name}, which holds messages, is missing: restore it"):
                await store.broker.open(TOPIC, FRAMING)
    async with opening(data) as store:
        await store.broker.delete(TOPIC)
        await store.manager.delete_topics([TOPIC])
        await store.manager.create_topic(TOPIC)
        assert (await store.broker.open(TOPIC, FRAMING))[:3] == (0, 0, 0)


@pytest.mark.parametrize("killed", [True, False])
async def test_a_directory_without_files_is_no_empty_topic(data: Path, killed: bool) -> None:
    """The newest segment has no file before something is written to it: the checkpoint tells what was before it."""
    async with opening(data) as store:
        await prepare(store)
        await send(store, 0, 3)
        await store.broker.roll(TOPIC)
        await store.manager.commit({})
        copy_as_killed(data, data.parent / "killed")
    if killed:
        data = data.parent / "killed"
    (file,) = topic_folder(data).glob("*.log")
    file.unlink()
    for _ in range(2):
        async with opening(data) as store:
            with pytest.raises(StorageError, match="holds no messages any more, and had those from 0 to 2: restore it"):
                await store.broker.open(TOPIC, FRAMING)


async def test_a_missing_directory_is_no_empty_topic(data: Path) -> None:
    """After a kill no checkpoint tells how many messages there were."""
    async with opening(data) as store:
        await prepare(store)
        await send(store, 0, 3)
        await (await store.broker.send(OTHER, [message(0, b"other")])).synced()
        copy_as_killed(data, data.parent / "killed")
    data = data.parent / "killed"
    folder = topic_folder(data)
    shutil.rmtree(folder)
    for _ in range(2):
        async with opening(data) as store:
            with pytest.raises(StorageError, match=f"{folder.name}, which holds its messages, is missing"):
                await store.broker.open(TOPIC, FRAMING)
            await store.broker.open(OTHER, FRAMING)
            assert payloads((await store.broker.pull(OTHER, 0)).data) == [b"other"]
    assert not folder.exists()
    async with opening(data) as store:
        await store.broker.delete(TOPIC)
        await store.manager.delete_topics([TOPIC])
        await store.manager.create_topic(TOPIC)
        assert (await store.broker.open(TOPIC, FRAMING))[:3] == (0, 0, 0)


async def test_a_deletion_that_was_cut_off_is_finished(data: Path) -> None:
    """The directory is marked as deleted, and its checkpoint is still there: that is no missing directory."""
    await fill(data)
    folder = topic_folder(data)
    folder.rename(f"{folder}.deleted")
    async with opening(data) as store:
        assert (await store.broker.open(TOPIC, FRAMING))[:3] == (0, 0, 0)
        await send(store, 0, 1)
        await anyio.to_thread.run_sync(chores_done(store).wait)
    assert not folder.with_name(f"{folder.name}.deleted").exists()


async def test_a_second_owner_in_the_same_process(data: Path) -> None:
    async with opening(data):
        with pytest.raises(LockedError, match=rf"brk-0 is in use by this process \({os.getpid()}\)") as info:
            await opening(data).__aenter__()
        assert info.value.owner == os.getpid()
    async with opening(data):
        pass


HOLD = """
import sys, anyio
from kclient.htp import open_store
async def main():
    async with open_store("embedded:" + sys.argv[1]):
        print("open", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)
anyio.run(main)
"""


@pytest.mark.slow
async def test_a_second_owner_in_another_process(data: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(data)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(LockedError, match=f"in use by process {process.pid};") as info:
            await opening(data).__aenter__()
        assert info.value.owner == process.pid
        process.kill()
        process.wait()
    async with opening(data):
        pass


@FORK
async def test_a_forked_child_does_not_keep_the_lock(data: Path) -> None:
    read, write = os.pipe()
    store = opening(data)
    await store.__aenter__()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)  # until the parent is done
        os._exit(0)
    os.close(read)
    try:
        await store.aclose()
        async with opening(data):
            pass
    finally:
        os.close(write)
        os.waitpid(child, 0)


@FORK
async def test_a_forked_child_cannot_send(data: Path) -> None:
    async with opening(data) as store:
        await prepare(store)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                store.broker.send_nowait(TOPIC, [message(0)])  # type: ignore[attr-defined]
            except StoreClosedError as error:
                status = 0 if "in the parent process" in str(error) else 2
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        await send(store, 0, 1)


def test_a_child_gives_up_a_directory_amid_its_opening(data: Path) -> None:
    """Nobody has asked to be told by then; the locks are the parent's all the same."""
    directory = DataDirectory(str(data), Files())
    directory.open()
    directory.abandon()
    again = DataDirectory(str(data), Files())
    again.open()  # no descriptor of the lock was left
    again.close()


# --- recovery ---


Damage = Callable[[Path], object]


def remove(pattern: str) -> Damage:
    def doing(folder: Path) -> None:
        files = list(folder.glob(pattern))
        assert files
        for file in files:
            file.unlink()

    return doing


def overwrite(pattern: str, position: int, garbage: bytes) -> Damage:
    def doing(folder: Path) -> None:
        files = list(folder.glob(pattern))
        assert files
        for file in files:
            with file.open("r+b") as opened:
                opened.seek(position)
                opened.write(garbage)

    return doing


def append(garbage: bytes) -> Damage:
    def doing(folder: Path) -> None:
        with max(folder.glob("*.log")).open("ab") as file:
            file.write(garbage)

    return doing


HARMLESS: dict[str, Damage] = {
    "no index": remove("*.index"),
    "no index of the first": remove(f"{0:020}.index"),
    "no index of the last": remove(f"{20:020}.index"),
    "an index with a wrong header": overwrite("*.index", 10, b"\xff"),
    "an index with wrong entries": overwrite("*.index", 60, b"\xff\xff"),
    "an empty index": lambda folder: [file.write_bytes(b"") for file in folder.glob("*.index")],
    "a strange index": lambda folder: (folder / f"{7:020}.index").write_bytes(b"x"),
    "a forgotten temporary file": lambda folder: (folder / f"{0:020}.index.123.tmp").write_bytes(b"x"),
    "zeros at the end": append(bytes(500)),
    "noise at the end": append(bytes(range(256))),
    "half a message": append(message(23, b"half of it")[:-3]),
    "half a head": append(message(23)[:10]),
    "a wrong CRC": append(message(23)[:-1] + b"\x01"),
    "an old message": append(message(3, b"old")),
    "a length beyond the end": append((2**31).to_bytes(4, "big") + bytes(40)),
}


@pytest.mark.parametrize(
    "damage", mostly_slow(HARMLESS, ["no index", "an empty index", "half a message", "a wrong CRC"])
)
async def test_what_does_no_harm(data: Path, damage: Damage) -> None:
    await fill(data)
    damage(topic_folder(data))
    await check(data)
    await check(data, 26)


async def test_nothing_but_the_messages_is_needed(data: Path) -> None:
    """Without checkpoint and indexes everything is scanned."""
    await fill(data)
    remove("*.index")(topic_folder(data))
    async with opening(data) as store:
        keys = await scan_all(store.manager, "brk/")
        assert keys
        await store.manager.commit(dict.fromkeys(keys))
    await check(data)


async def test_a_process_that_was_killed_leaves_what_it_wrote(data: Path) -> None:
    await fill(data)
    append(message(23, content(23), timestamp=23) + message(24, content(24), timestamp=24) + b"torn")(
        topic_folder(data)
    )
    await check(data, 25)


async def test_a_process_that_was_killed_after_its_first_sync(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Which has its checkpoint that does not tell of bytes: all of them are verified."""
    async with opening(data) as store:
        await prepare(store)
        await send(store, 0, 1)
        await store.manager.commit({})  # the checkpoint of before is written by now
        killed = data.with_name("killed")
        copy_as_killed(data, killed)
    overwrite("*.log", OVERHEAD, b"x")(topic_folder(killed))
    async with opening(killed) as store:
        assert (await store.broker.open(TOPIC, FRAMING))[:3] == (0, 0, 1)
    assert "the messages between are lost" in caplog.text


async def test_recovery_begins_at_the_last_checkpoint(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the middle of a segment: what lies before is neither verified nor indexed again."""
    monkeypatch.setattr(log_module, "CHECKPOINT_BYTES", 10 * (OVERHEAD + 10))
    async with opening(data) as store:
        await prepare(store)
        await send(store, 0, 25)
        await anyio.to_thread.run_sync(chores_done(store).wait)
        await scan_all(store.manager, "")  # whatever was to be written before it, was
        copy_as_killed(data, data.parent / "killed")
    data = data.parent / "killed"
    async with opening(data) as store:
        checkpoints = [json.loads(unsealed(each.value)) for each in (await scan_all(store.manager, "brk/")).values()]
        assert max(checkpoint["next"] for checkpoint in checkpoints) in range(20, 25)
    overwrite(f"{0:020}.log", OVERHEAD, b"damage")(topic_folder(data))
    async with opening(data) as store:
        assert (await store.broker.open(TOPIC, FRAMING))[:3] == (0, 25, 25)
        assert payloads((await store.broker.pull(TOPIC, 24)).data) == [content(24)]


def chores_done(store: NamedStore) -> threading.Event:
    done = threading.Event()
    store.broker._syncer.chore(done.set)  # type: ignore[attr-defined]
    return done


async def test_damage_before_the_checkpoint_is_not_cut(data: Path) -> None:
    """It is reported when it is read; cutting there would lose all the good messages behind it."""
    await fill(data)
    overwrite(f"{5:020}.log", OVERHEAD + 12, bytes(4))(topic_folder(data))
    async with opening(data, settings=SMALL) as store:
        assert (await store.broker.open(TOPIC, FRAMING)).next == 23
        assert payloads((await store.broker.pull(TOPIC, 20, max_messages=1)).data) == [content(20)]


async def test_lost_messages_do_not_have_their_ordinals_given_again(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(data)
    with (topic_folder(data) / f"{20:020}.log").open("r+b") as file:
        file.truncate(OVERHEAD + 10 + 3)
    async with opening(data, settings=SMALL) as store:
        assert (await store.broker.open(TOPIC, FRAMING))[1:3] == (21, 23), "nobody waits for what is lost"
        assert "the messages between are lost" in caplog.text
        assert (await store.broker.pull(TOPIC, 20)).last == 20
        assert (await store.broker.pull(TOPIC, 21)).data == b""
        assert (await store.broker.pull(TOPIC, 22)).data == b""
        await send(store, 23, 2)
        assert await store.broker.end(TOPIC) == 25
        assert payloads((await store.broker.pull(TOPIC, 21)).data) == [content(23), content(24)]
    caplog.clear()
    async with opening(data, settings=SMALL) as store:
        assert (await store.broker.open(TOPIC, FRAMING))[1:3] == (25, 25)
        assert payloads((await store.broker.pull(TOPIC, 21)).data) == [content(23), content(24)]
        assert not caplog.text, "it is said once"


async def test_the_files_of_deleted_topics_are_swept_away(data: Path) -> None:
    await fill(data)
    folder = topic_folder(data)
    async with opening(data) as store:
        await store.manager.delete_topics([TOPIC])
    marked = folder.rename(f"{folder}.deleted")  # and then the process was killed
    async with opening(data) as store:
        await anyio.to_thread.run_sync(chores_done(store).wait)
    assert not folder.exists()
    assert not marked.exists()


# --- other things ---


async def test_few_open_files_are_enough(data: Path) -> None:
    async with opening(data, settings=SMALL, max_open_files=3) as store:
        await prepare(store)
        await send(store, 0, 100)
        found: list[bytes] = []
        for number in range(0, 100, 3):
            found += payloads((await store.broker.pull(TOPIC, number, max_messages=1)).data)
        assert found == [content(number) for number in range(0, 100, 3)]
        links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_open(fd)]
        assert 1 <= sum(link.startswith(str(data)) and link.endswith(".log") for link in links) <= 3


def _is_open(fd: str) -> bool:
    return os.path.islink(f"/proc/self/fd/{fd}")


async def test_closing_leaves_no_thread_and_no_file(data: Path) -> None:
    before = {thread.name for thread in threading.enumerate()}
    await fill(data)
    assert not {t.name for t in threading.enumerate() if t.name.startswith("kclient-htp")} - before
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_open(fd)]
    assert not [link for link in links if link.startswith(str(data))]


@pytest.mark.skipif(sys.platform == "darwin", reason="it is another call there")
async def test_messages_are_synced_by_the_system(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(os.fstat(fd).st_ino))
    async with opening(data, group_sync="each") as store:
        await prepare(store)
        await send(store, 0, 1)
        assert (topic_folder(data) / f"{0:020}.log").stat().st_ino in synced


async def test_waiting_sends_share_a_round(data: Path) -> None:
    async with opening(data) as store:
        await prepare(store)
        broker = store.broker
        before = broker.sync_rounds  # type: ignore[attr-defined]
        sent = [broker.send_nowait(TOPIC, [message(number)]) for number in range(200)]  # type: ignore[attr-defined]
        for each in sent:
            await each.synced()
        assert broker.sync_rounds - before == 1  # type: ignore[attr-defined]


async def test_waiting_commits_share_a_transaction(data: Path) -> None:
    async with opening(data) as store:
        before = store.manager.transactions  # type: ignore[attr-defined]
        async with anyio.create_task_group() as group:
            for number in range(100):
                group.start_soon(store.manager.commit, {f"key/{number}": b""})
        assert store.manager.transactions - before < 50  # type: ignore[attr-defined]


def test_urls() -> None:
    with pytest.raises(ConfigError, match="say memory:NAME or embedded:DIRECTORY"):
        open_store("data")
    with pytest.raises(ConfigError, match="there are embedded, memory"):
        open_store("ftp://x")
    with pytest.raises(NotYetSupportedError, match="are not there yet"):
        open_store("cloud:x")
    with pytest.raises(ConfigError, match="needs a directory"):
        open_store("embedded:")
    with pytest.raises(ConfigError, match="durability is"):
        open_store("embedded:x", durability="maybe")
    with pytest.raises(ConfigError, match="group_sync is one of"):
        open_store("embedded:x", group_sync="maybe")
    with pytest.raises(ConfigError, match="unexpected keyword argument 'colour'"):
        open_store("memory:x", colour="blue")


def test_a_missing_extra_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'htp-kclient\[gateway\]'"):
        open_store("embedded:x")


@pytest.mark.slow
def test_memory_needs_no_extra() -> None:
    code = (
        "import sys, anyio, kclient.htp as h\n"
        "async def main():\n"
        "    async with h.open_store('memory:x') as s: await s.manager.get([])\n"
        "anyio.run(main)\n"
        "print('sqlalchemy' in sys.modules, 'kclient.htp.embedded' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


class MetFiles(Files):
    """Two threads meet while they write."""

    def __init__(self) -> None:
        super().__init__()
        self._barrier = threading.Barrier(2)

    def write(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        self._barrier.wait(10)
        super().write(fd, buffers, position)
        self._barrier.wait(10)


def test_two_threads_store_the_same_file(tmp_path: Path) -> None:
    """The index of a segment: when it is closed, and when its topic is."""
    path, files = tmp_path / "index", MetFiles()
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(partial(files.store, str(path)), [b"a" * 10, b"b" * 10]))
    assert path.read_bytes() in (b"a" * 10, b"b" * 10)
    assert list(tmp_path.iterdir()) == [path]
