"""The threads of embedded HTP: what they share out, and what becomes of those who wait when one of them dies."""

from __future__ import annotations

import gc
import os
import sqlite3
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from sqlalchemy import text

from kclient.concurrency import LoopHandle
from kclient.errors import KafkaError
from kclient.htp import (
    ConflictError,
    LeaseHeldError,
    LockedError,
    Sent,
    StorageError,
    StorageFullError,
    StoreClosedError,
    Topic,
    open_store,
)
from kclient.htp.embedded import broker as broker_module
from kclient.htp.embedded import engines
from kclient.htp.embedded import writer as writer_module
from kclient.htp.embedded.broker import EmbeddedBroker
from kclient.htp.embedded.checkpoints import SyncCheckpoints
from kclient.htp.embedded.files import Files, SyncPoint
from kclient.htp.embedded.log import TopicLog
from kclient.htp.embedded.manager import SqliteManager
from kclient.htp.embedded.recovery import SET_ASIDE, SET_ASIDE_MS
from kclient.htp.embedded.shard import Shard
from kclient.htp.embedded.syncer import Syncer
from kclient.htp.embedded.tables import set_counter
from kclient.htp.embedded.topic import EmbeddedTopic
from kclient.htp.embedded.writer import Job
from kclient.types import Buffer
from tests.all_rows import scan_all
from tests.copied_stores import copy_as_killed
from tests.unit.htp.by_name import NamedStore, named_store
from tests.unit.htp.conftest import prepare
from tests.unit.htp.disks import FailingFiles, broken
from tests.unit.htp.plain_messages import FRAMING, OTHER, TOPIC, message

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[NamedStore]:
    async with named_store(f"embedded:{tmp_path / 'data'}") as store:
        yield store


def manager_of(store: NamedStore) -> SqliteManager:
    assert isinstance(store.manager, SqliteManager)
    return store.manager


# --- the turns of the loop ---


async def test_many_topics_are_synced_in_as_many_turns_as_it_takes(
    store: NamedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kclient.htp.embedded.group_commit._TURN_S", -1.0)  # each turn is over after one of them
    await prepare(store)
    topics = [Topic(TOPIC.domain, f"{number}") for number in range(9)]
    for topic in topics:
        await store.manager.create_topic(topic)
        await store.broker.open(topic, FRAMING)
    sent = [await store.broker.send(topic, (message(0),)) for topic in topics]
    with anyio.fail_after(20):
        for each in sent:
            await each.synced()


# --- the database ---


@pytest.mark.slow
async def test_keys_do_not_outlive_their_commit(store: NamedStore) -> None:
    """They may be large, and garbage that only a full collection finds stays while a gateway holds these off."""
    await store.manager.commit({"before": b""})
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for number in range(20):
            await store.manager.commit({f"{number}{'k' * 32_000}{at}": b"" for at in range(20)})
        left, _ = tracemalloc.get_traced_memory()
        assert left < 2 << 20, "all keys of all commits are 12 MiB"
    finally:
        tracemalloc.stop()
        gc.enable()


def bad_sql(connection: Any) -> None:
    connection.execute(text("INSERT INTO entries VALUES ('half', x'00', 1)"))
    connection.execute(text("INSERT INTO no_such_table VALUES (1)"))


def bad_code(connection: Any) -> None:
    connection.execute(text("INSERT INTO entries VALUES ('half', x'00', 1)"))
    raise ZeroDivisionError("a bug")


BAD: dict[str, Callable[[SqliteManager], Any]] = {
    "SQL": lambda manager: manager._do(bad_sql),
    "code": lambda manager: manager._do(bad_code),
    "a lone surrogate": lambda manager: manager.commit({"\ud800": b"x"}),
    "another type": lambda manager: manager.commit({"half": b"x", "bad": 5.5}),  # type: ignore[dict-item]
    "a number too large": lambda manager: manager._do(lambda connection: set_counter(connection, "half", 1 << 70)),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
async def test_one_bad_job_fails_alone(store: NamedStore, bad: Callable[[SqliteManager], Any]) -> None:
    """It shares a transaction with the others; those are done, in one transaction as ever."""
    manager = manager_of(store)
    writer = manager._writer
    outcomes: dict[int, object] = {}

    async def one(number: int) -> None:
        try:
            if number == 20:
                outcomes[number] = await bad(manager)
            elif number == 21:
                outcomes[number] = await manager.commit({"half": b"x"}, {"key 0": 999})
            else:
                outcomes[number] = await manager.commit({f"key {number}": b"x"})
        except Exception as error:
            outcomes[number] = error

    begun, free = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        begun.set()
        free.wait(30)

    writer.submit(Job(hold, lambda *_: lambda: None))
    await anyio.to_thread.run_sync(begun.wait)
    before = writer.transactions
    async with anyio.create_task_group() as group:
        for number in range(40):
            group.start_soon(one, number)
        await anyio.wait_all_tasks_blocked()
        free.set()
    assert isinstance(outcomes.pop(20), StorageError)
    assert isinstance(outcomes.pop(21), ConflictError)
    assert all(isinstance(outcome, int) for outcome in outcomes.values()), outcomes
    assert writer.transactions == before + 1
    assert set(await scan_all(manager, "")) == {f"key {number}" for number in range(40)} - {"key 20", "key 21"}


async def test_an_error_that_undoes_the_whole_transaction(store: NamedStore) -> None:
    """SQLite itself does that for some errors: then nothing of it may be reported as done."""
    manager = manager_of(store)

    def undo(connection: Any) -> None:
        connection.exec_driver_sql("ROLLBACK")
        raise sqlite3.OperationalError("disk I/O error")

    outcomes: list[object] = []

    async def one(call: Any) -> None:
        try:
            outcomes.append(await call)
        except StorageError as error:
            outcomes.append(error)

    begun, free = threading.Event(), threading.Event()
    manager._writer.submit(Job(lambda _: (begun.set(), free.wait(30)), lambda *_: lambda: None))
    await anyio.to_thread.run_sync(begun.wait)
    async with anyio.create_task_group() as group:
        for call in (manager.commit({"a": b"1"}), manager._do(undo), manager.commit({"b": b"1"})):
            group.start_soon(one, call)
        await anyio.wait_all_tasks_blocked()
        free.set()
    assert all(isinstance(outcome, StorageError) for outcome in outcomes)
    assert not await scan_all(manager, "")
    assert await manager.commit({"c": b"1"})


async def test_the_database_is_synced_to_the_disk_itself(tmp_path: Path) -> None:
    """On macOS fsync leaves the data in the drive's cache; the settings are there everywhere."""
    connection = sqlite3.connect(tmp_path / "x.db")
    writer_module._configure(connection, None)
    found = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in
             ("journal_mode", "synchronous", "fullfsync", "checkpoint_fullfsync")}  # fmt: skip
    connection.close()
    assert found == {"journal_mode": "wal", "synchronous": 2, "fullfsync": 1, "checkpoint_fullfsync": 1}


class FirstDescriptor(Files):
    """Of a process that was started with its standard input closed: the first file that is opened is number 0."""

    def __init__(self) -> None:
        super().__init__()
        self.closed: list[int] = []

    @property
    def syncs_everything(self) -> bool:
        return True

    def open_directory(self, path: str) -> int:
        return 0

    def close(self, fd: int) -> None:
        self.closed.append(fd)
        if fd:
            super().close(fd)


async def test_the_first_descriptor_is_closed_too(tmp_path: Path) -> None:
    files = FirstDescriptor()
    async with named_store(f"embedded:{tmp_path / 'data'}", files=files, group_sync="each") as store:
        await prepare(store)
        assert 0 not in files.closed
    assert files.closed.count(0) == 1


class FailingConnection(sqlite3.Connection):
    """Fails to commit, once, with an error of SQLite's; what it was to commit is found done by who opens it later."""

    code: int | None = None

    def commit(self) -> None:
        code, FailingConnection.code = FailingConnection.code, None
        if code is not None and self.in_transaction:
            if code == sqlite3.SQLITE_IOERR_FSYNC:
                super().commit()  # the frames are in the log, and valid
            error = sqlite3.OperationalError(
                "database or disk is full" if code == sqlite3.SQLITE_FULL else "disk I/O error"
            )
            error.sqlite_errorcode = code
            raise error
        super().commit()


@pytest.fixture
def failing_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(path: str) -> sqlite3.Connection:
        return sqlite3.connect(path, check_same_thread=False, factory=FailingConnection)

    monkeypatch.setattr(engines, "open_database", opened)


@pytest.mark.usefixtures("failing_commits")
@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT])
async def test_a_commit_that_may_be_found_done_later_ends_the_store(tmp_path: Path, code: int) -> None:
    """Nothing may be built upon either outcome: not by whoever was told of the failure, nor by anybody else."""
    async with open_store(f"embedded:{tmp_path / 'data'}") as store:
        told: list[StorageError] = []
        store.on_failure(told.append)
        await store.manager.commit({"before": b"x"})
        FailingConnection.code = code
        with pytest.raises(StorageError, match="may be found done after a restart: disk I/O error"):
            await store.manager.commit({"key": b"x"})
        assert [type(error) for error in told] == [StorageError]
        with pytest.raises(StorageError, match="open the store again"):
            await store.manager.get(["key"])
    async with open_store(f"embedded:{tmp_path / 'data'}") as store:
        found = set(await scan_all(store.manager, ""))
        assert found == {"before", "key"} if code == sqlite3.SQLITE_IOERR_FSYNC else found >= {"before"}
        await store.manager.commit({"after": b"x"})


@pytest.mark.usefixtures("failing_commits")
@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE])
async def test_a_commit_that_was_not_written_is_undone(tmp_path: Path, code: int) -> None:
    async with open_store(f"embedded:{tmp_path / 'data'}") as store:
        FailingConnection.code = code
        with pytest.raises(StorageError) as info:
            await store.manager.commit({"key": b"x"})
        assert isinstance(info.value, StorageFullError) is (code == sqlite3.SQLITE_FULL)
        assert not await scan_all(store.manager, "")
        assert await store.manager.commit({"key": b"y"})


@pytest.mark.usefixtures("failing_commits")
async def test_a_lease_whose_commit_failed_is_not_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wanted it was cancelled meanwhile; by then somebody else has its epoch."""
    async with open_store(f"embedded:{tmp_path / 'data'}") as store:
        manager = store.manager
        assert isinstance(manager, SqliteManager)
        begun, free = threading.Event(), threading.Event()
        acquire = manager._leases.acquire

        def held_up(connection: Any, name: str, holder: str, *rest: Any) -> int:
            epoch = acquire(connection, name, holder, *rest)
            if holder == "one":
                begun.set()
                free.wait(30)
            return epoch

        monkeypatch.setattr(manager._leases, "acquire", held_up)
        scope = anyio.CancelScope()

        async def one() -> None:
            with scope:
                await manager.acquire("gateway", "one", 30.0)

        async def two() -> None:
            assert (await manager.acquire("gateway", "two", 30.0)).epoch == 1

        async with anyio.create_task_group() as group:
            group.start_soon(one)
            await anyio.to_thread.run_sync(begun.wait, 30)
            FailingConnection.code = sqlite3.SQLITE_FULL
            group.start_soon(two)
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
            await anyio.wait_all_tasks_blocked()
            free.set()
        assert [each[:5] for each in await manager.leases("")] == [("gateway", "two", 1, 30.0, True)]
        with pytest.raises(LeaseHeldError):
            await manager.acquire("gateway", "three", 30.0)


@pytest.mark.usefixtures("failing_commits")
async def test_the_lease_of_one_that_died_stays_free_when_acquiring_it_fails(tmp_path: Path) -> None:
    async with open_store(f"embedded:{tmp_path / 'data'}") as store:
        await store.manager.acquire("gateway", "dead", 30.0)
    async with open_store(f"embedded:{tmp_path / 'data'}") as store:
        FailingConnection.code = sqlite3.SQLITE_FULL
        with pytest.raises(StorageFullError):
            await store.manager.acquire("gateway", "one", 30.0)
        assert [each.held for each in await store.manager.leases("")] == [False]
        lease = await store.manager.acquire("gateway", "one", 30.0)
        FailingConnection.code = sqlite3.SQLITE_FULL
        with pytest.raises(StorageFullError):
            await store.manager.acquire("gateway", "one", 30.0)
        await store.manager.renew(lease)
        assert [each.held for each in await store.manager.leases("")] == [True]


async def test_what_waits_for_the_database_when_its_thread_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(f"embedded:{tmp_path / 'data'}") as store:
        assert isinstance(store.manager, SqliteManager)
        told: list[StorageError] = []
        store.on_failure(told.append)
        not_told: list[StorageError] = []
        store.on_failure(not_told.append)()
        errors: list[StorageError] = []

        async def one(number: int) -> None:
            with pytest.raises(StorageError, match="has ended: KeyboardInterrupt") as info:
                await store.manager.commit({str(number): b"x"})
            errors.append(info.value)

        async def follow() -> None:
            with pytest.raises(StorageError, match="has ended: KeyboardInterrupt"):
                await store.manager.changes(["a"], token, wait=300)

        def die(*_: object) -> None:
            raise KeyboardInterrupt

        token = (await store.manager.changes(["a"])).token
        waiting = store.manager.transactions + 1
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(follow)
                while store.manager.transactions < waiting:
                    await anyio.sleep(0.001)
                monkeypatch.setattr(store.manager._writer, "_transact", die)
                for number in range(10):
                    group.start_soon(one, number)
            while not told:
                await anyio.sleep(0.001)
        assert (len(errors), len(told), len(not_told)) == (10, 1, 0)
        late: list[StorageError] = []
        store.on_failure(late.append)
        assert late == told


# --- closing ---


CLOSED_AMID: dict[str, tuple[Any, str]] = {
    "open": (broker_module, "recover"),
    "delete": (Shard, "set_deleted"),
    "close": (SyncCheckpoints, "_store_indexes"),
}


@pytest.mark.parametrize("what", CLOSED_AMID)
async def test_a_store_is_closed_when_the_threads_have_done_what_they_were_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """They would go on in the files of whoever opens the directory next."""
    url = f"embedded:{tmp_path / 'data'}"
    owner, name = CLOSED_AMID[what]
    function = getattr(owner, name)
    begun, free = threading.Event(), threading.Event()

    def held_up(*args: Any) -> Any:
        begun.set()
        free.wait(30)
        return function(*args)

    async def work() -> None:
        with suppress(StoreClosedError):
            if what == "open":
                await store.broker.open(TOPIC, FRAMING)
            else:
                await getattr(store.broker, what)(TOPIC)

    closed = anyio.Event()

    async def close() -> None:
        await store.aclose()
        closed.set()

    store = named_store(url)
    await store.__aenter__()
    await prepare(store)
    await (await store.broker.send(TOPIC, [message(0)])).synced()
    if what == "open":
        await store.broker.close(TOPIC)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, held_up)
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            await anyio.to_thread.run_sync(begun.wait, 30)
            group.start_soon(close)
            await anyio.wait_all_tasks_blocked()
            assert not closed.is_set()
            with pytest.raises(LockedError):
                await open_store(url).__aenter__()
            free.set()
    async with named_store(url) as store:
        assert (await store.broker.open(TOPIC, FRAMING)).end == (0 if what == "delete" else 1)


async def test_a_store_that_has_failed_is_closed_when_its_sync_is_over(tmp_path: Path) -> None:
    """Nobody waits for what comes of that, but it goes on in the files of whoever opens the directory next."""
    url, files = f"embedded:{tmp_path / 'data'}", FailingFiles()
    begun, free = threading.Event(), threading.Event()
    closed = anyio.Event()

    def hold_up(point: SyncPoint) -> None:
        if point is SyncPoint.MESSAGES:
            begun.set()
            free.wait(30)

    async def close() -> None:
        await store.aclose()
        closed.set()

    store = named_store(url, files=files, group_sync="each")
    await store.__aenter__()
    await prepare(store)
    files.on_sync = hold_up
    sent = await store.broker.send(TOPIC, [message(0)])
    await anyio.to_thread.run_sync(begun.wait, 30)
    broker = store.store.broker
    assert isinstance(broker, EmbeddedBroker)
    broker.fail(StorageError("as for a disk that is gone"))
    with pytest.raises(StorageError, match="disk that is gone"):
        await sent.synced()
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(close)
            for _ in range(20):  # while which it would be closed
                with pytest.raises(LockedError):
                    await open_store(url).__aenter__()
            assert not closed.is_set()
            free.set()
    finally:
        free.set()
    async with named_store(url) as store:
        assert (await store.broker.open(TOPIC, FRAMING)).next in (0, 1)


# --- syncing ---


async def test_what_waits_for_a_sync_when_that_thread_dies(store: NamedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await prepare(store)
    told: list[StorageError] = []
    store.on_failure(told.append)

    def die(*_: object) -> None:
        raise SystemExit

    monkeypatch.setattr(Syncer, "_finish", die)
    sent: list[Sent] = [await store.broker.send(topic, [message(0)]) for topic in (TOPIC, OTHER)]
    callbacks: list[BaseException | None] = []
    for each in sent:
        each.on_synced(callbacks.append)
    with anyio.fail_after(10):
        for each in sent:
            with pytest.raises(StorageError, match="the thread that syncs has ended: SystemExit"):
                await each.synced()
    assert [type(error) for error in callbacks] == [StorageError] * 2
    assert len(told) == 1
    for call in (store.broker.send(TOPIC, [message(1)]), store.broker.pull(TOPIC, 0), store.broker.status(OTHER)):
        with pytest.raises(StorageError, match="the thread that syncs has ended"):
            await call


@pytest.mark.parametrize("what", ["delete", "close", "close the store"])
async def test_a_topic_that_is_given_up_when_that_thread_dies(tmp_path: Path, what: str) -> None:
    """Nobody holds it any more, and whoever gives it up waits for a sync that never ends."""
    files = FailingFiles()
    async with named_store(f"embedded:{tmp_path / 'data'}", files=files, group_sync="each") as store:
        await prepare(store)
        begun, end = threading.Event(), threading.Event()

        def die(point: SyncPoint) -> None:
            if point is SyncPoint.MESSAGES:
                begun.set()
                end.wait(30)
                raise SystemExit

        files.on_sync = die
        sent = await store.broker.send(TOPIC, [message(0)])
        await anyio.to_thread.run_sync(begun.wait, 30)
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                if what == "close the store":
                    group.start_soon(store.aclose)
                else:
                    group.start_soon(getattr(store.broker, what), TOPIC)
                await anyio.wait_all_tasks_blocked()
                end.set()
            with pytest.raises(StorageError, match="the thread that syncs has ended: SystemExit"):
                await sent.synced()


async def test_a_sync_cannot_be_settled_while_the_store_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = FailingFiles()
    async with named_store(f"embedded:{tmp_path / 'data'}", files=files, group_sync="each") as store:
        await prepare(store)
        begun, end = threading.Event(), threading.Event()

        def hold_up(point: SyncPoint) -> None:
            if point is SyncPoint.MESSAGES:
                begun.set()
                end.wait(30)

        def fail(*_: object) -> None:
            raise ZeroDivisionError("a bug")

        files.on_sync = hold_up
        monkeypatch.setattr(TopicLog, "_advance", fail)
        sent = await store.broker.send(TOPIC, [message(0)])
        await anyio.to_thread.run_sync(begun.wait, 30)
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(store.aclose)
                await anyio.wait_all_tasks_blocked()
                end.set()
            with pytest.raises(StorageError, match="settling a sync failed: ZeroDivisionError"):
                await sent.synced()


async def test_a_topic_is_closed_in_the_turn_after_that_thread_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was appended just before wants a sync, and asks for it when its log has been told that there is none."""
    files = FailingFiles()
    async with named_store(f"embedded:{tmp_path / 'data'}", files=files, group_sync="each") as store:
        await prepare(store)
        broker = store.store.broker
        assert isinstance(broker, EmbeddedBroker)
        thread = broker._syncer._thread
        begun, end = threading.Event(), threading.Event()
        give_up = EmbeddedTopic.give_up

        def die(point: SyncPoint) -> None:
            if point is SyncPoint.MESSAGES:
                begun.set()
                end.wait(30)
                raise SystemExit

        def give_up_late(topic: EmbeddedTopic, refusal: Callable[[], KafkaError]) -> TopicLog | None:
            if not end.is_set():
                end.set()
                thread.join()
                assert topic.send_nowait([message(0)])
            return give_up(topic, refusal)

        files.on_sync = die
        await store.broker.send(OTHER, [message(0)])
        await anyio.to_thread.run_sync(begun.wait, 30)
        monkeypatch.setattr(EmbeddedTopic, "give_up", give_up_late)
        with anyio.fail_after(10):
            await store.broker.close(TOPIC)


class Interruption:
    """The exception of a signal handler that comes, once it is due, when the next thing is posted in this thread."""

    class Error(Exception):
        pass

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.due = False
        thread, post = threading.get_ident(), LoopHandle.post

        def interrupted(handle: LoopHandle, function: Callable[[], object]) -> bool:
            if self.due and threading.get_ident() == thread:
                self.due = False
                raise self.Error
            return post(handle, function)

        monkeypatch.setattr(LoopHandle, "post", interrupted)


@pytest.mark.parametrize("topic", [TOPIC, OTHER], ids=["the same topic", "another"])
async def test_a_signal_amid_an_append_holds_up_no_later_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: Topic
) -> None:
    interruption = Interruption(monkeypatch)
    async with named_store(f"embedded:{tmp_path / 'data'}") as store:
        await prepare(store)
        interruption.due = True
        with pytest.raises(Interruption.Error):
            store.broker.send_nowait(TOPIC, [message(0)])
        with anyio.fail_after(10):
            ordinal = (await store.broker.status(topic)).next
            await (await store.broker.send(topic, [message(ordinal)])).synced()


@pytest.mark.parametrize("durability", ["synced", "written"])
async def test_a_signal_amid_the_making_of_room_keeps_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    """The file was made by then: it must be the one that is written to, and be let go when it is synced."""
    interruption = Interruption(monkeypatch)
    options: dict[str, Any] = {"durability": durability, "max_open_files": 1}
    async with named_store(f"embedded:{tmp_path / 'data'}", **options) as store:
        await prepare(store)
        interruption.due = True
        with pytest.raises(Interruption.Error):
            store.broker.send_nowait(TOPIC, [message(0)])
        with anyio.fail_after(10):
            await (await store.broker.send(TOPIC, [message(0)])).synced()
            await (await store.broker.send(OTHER, [message(0)])).synced()
    async with named_store(f"embedded:{tmp_path / 'data'}", **options) as store:
        assert (await store.broker.open(TOPIC, FRAMING)).end == 1


async def test_closing_a_store_that_has_failed_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def descriptors() -> set[str]:
        folder = Path("/proc/self/fd")
        if not folder.exists():
            pytest.skip("needs /proc")
        found = set()
        for entry in folder.iterdir():
            try:
                found.add(os.readlink(entry))
            except OSError:
                continue
        return {path for path in found if str(tmp_path) in path}

    async with named_store(f"embedded:{tmp_path / 'data'}") as store:
        await prepare(store)

        def die(*_: object) -> None:
            raise SystemExit

        with monkeypatch.context() as patch:
            patch.setattr(Syncer, "_round", die)
            sent = await store.broker.send(TOPIC, [message(0)])
            with anyio.fail_after(10), pytest.raises(StorageError):
                await sent.synced()
        assert descriptors()
    assert not descriptors()
    async with named_store(f"embedded:{tmp_path / 'data'}") as store:
        assert (await store.broker.open(TOPIC, FRAMING)).next in (0, 1), "never told that it was synced"


async def test_cleaning_up_fails_in_a_new_way(store: NamedStore, caplog: pytest.LogCaptureFixture) -> None:
    broker = store.store.broker
    assert isinstance(broker, EmbeddedBroker)
    done = threading.Event()

    def fail() -> None:
        raise ZeroDivisionError("a bug")

    broker._syncer.chore(fail)
    broker._syncer.chore(done.set)
    await anyio.to_thread.run_sync(done.wait, 10)
    assert "cleaning up failed" in caplog.text
    assert "a bug" in caplog.text


async def test_cleaning_up_in_a_topic_that_is_deleted_meanwhile(
    store: NamedStore, caplog: pytest.LogCaptureFixture
) -> None:
    """The index of a segment, and segments that a trim drops, when the directory has gone: that is no failure."""
    await prepare(store)
    broker = store.store.broker
    assert isinstance(broker, EmbeddedBroker)
    go_on, done = threading.Event(), threading.Event()
    broker._syncer.chore(go_on.wait)
    for number in range(3):
        await (await store.broker.send(TOPIC, [message(number)])).synced()
        await store.broker.roll(TOPIC)
    await store.broker.trim(TOPIC, 2)
    await store.broker.delete(TOPIC)
    go_on.set()
    broker._syncer.chore(done.set)
    await anyio.to_thread.run_sync(done.wait, 10)
    assert "cleaning up failed" not in caplog.text


class ForgetfulSystem(FailingFiles):
    """As Linux reports errors of writing back: once per descriptor, to those that were open when it failed.

    Somebody else has been told already, so that a descriptor opened later hears of nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.opened: dict[int, int] = {}
        self.failures = 0

    def open_directory(self, path: str) -> int:
        fd = super().open_directory(path)
        self.opened[fd] = self.failures
        return fd

    def open(self, path: str, *, create: bool = False) -> int:
        fd = super().open(path, create=create)
        self.opened[fd] = self.failures
        return fd

    @property
    def syncs_everything(self) -> bool:
        return True

    def sync(self, fd: int, point: SyncPoint) -> None:
        self.synced.append((fd, point))

    def sync_everything(self, fd: int, point: SyncPoint) -> None:
        self.synced.append((fd, point))
        if self.opened[fd] != self.failures:
            self.opened[fd] = self.failures
            raise broken()


async def test_syncfs_misses_no_error_of_before_a_file_was_opened(tmp_path: Path) -> None:
    """Writing back fails before the only file of the round is opened: its descriptor would not be told."""
    files = ForgetfulSystem()
    async with named_store(f"embedded:{tmp_path / 'data'}", files=files, group_sync="filesystem") as store:
        await prepare(store)
        files.failures += 1
        await (await store.broker.send(TOPIC, [message(0)])).synced()
        points = [point for _, point in files.synced[-3:]]
        assert points == [SyncPoint.EVERYTHING, SyncPoint.MESSAGES, SyncPoint.SEGMENT], "each one by itself then"
        await (await store.broker.send(TOPIC, [message(1)])).synced()
        assert files.synced[-1][1] is SyncPoint.MESSAGES, "no other syncfs would tell of what that one failed on"
    assert len([fd for fd, point in files.synced if point is SyncPoint.EVERYTHING]) == 1
    async with named_store(f"embedded:{tmp_path / 'data'}", files=files, group_sync="filesystem") as store:
        await store.broker.open(TOPIC, FRAMING)
        await (await store.broker.send(TOPIC, [message(2)])).synced()
        assert files.synced[-1][1] is SyncPoint.EVERYTHING, "opened again"


class WritingBack(FailingFiles):
    """As Linux counts errors of writing back: for the file system and for each file, told to each descriptor once.

    Writing a file back that is in `bad` fails once, and leaves its pages clean.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.dirty: list[int] = []
        self.bad: set[int] = set()
        self.errors = 0
        self.errors_of: dict[int, int] = {}
        self.told: dict[int, tuple[int, int]] = {}
        self.called: list[str] = []
        self.syncing = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    @property
    def syncs_everything(self) -> bool:
        return True

    def open_directory(self, path: str) -> int:
        return self._opened(super().open_directory(path))

    def open(self, path: str, *, create: bool = False) -> int:
        return self._opened(super().open(path, create=create))

    def _opened(self, fd: int) -> int:
        with self.lock:
            self.told[fd] = (self.errors, self.errors_of.get(os.fstat(fd).st_ino, 0))
        return fd

    def write(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        super().write(fd, buffers, position)
        with self.lock:
            self.dirty.append(os.fstat(fd).st_ino)

    def _write_back(self, inode: int) -> None:
        if inode in self.dirty:
            self.dirty = [each for each in self.dirty if each != inode]
            if inode in self.bad:
                self.bad.remove(inode)
                self.errors += 1
                self.errors_of[inode] = self.errors_of.get(inode, 0) + 1

    def sync(self, fd: int, point: SyncPoint) -> None:
        self._wait()
        inode = os.fstat(fd).st_ino
        with self.lock:
            self.called.append("fdatasync")
            self._write_back(inode)
            told, told_of_file = self.told[fd]
            self.told[fd] = (told, self.errors_of.get(inode, 0))
            if self.told[fd][1] != told_of_file:
                raise broken()

    def sync_everything(self, fd: int, point: SyncPoint) -> None:
        self._wait()
        with self.lock:
            self.called.append("syncfs")
            for inode in set(self.dirty):
                self._write_back(inode)
            told, told_of_file = self.told[fd]
            self.told[fd] = (self.errors, told_of_file)
            if told != self.errors:
                raise broken()

    def _wait(self) -> None:
        if not self.go_on.is_set():
            self.syncing.set()
            assert self.go_on.wait(30)


@pytest.mark.parametrize(("mode", "topics"), [("filesystem", 1), ("auto", 4), ("each", 4)])
async def test_a_failed_syncfs_proves_nothing_of_the_next_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: str, topics: int
) -> None:
    """The pages it failed on belong to a topic that was written meanwhile, whose plan comes in the round after."""
    files = WritingBack()
    async with named_store(f"embedded:{tmp_path / 'data'}", files=files, group_sync=mode) as store:
        await prepare(store)
        first, second = ([Topic("domain", f"{part}{each}") for each in range(topics)] for part in "ab")
        for topic in first + second:
            await store.manager.create_topic(topic)
            await store.broker.open(topic, FRAMING)
        for sent in [await store.broker.send(topic, [message(0, b"kept")]) for topic in first + second]:
            await sent.synced()
        files.called.clear()
        files.go_on.clear()
        # the turn's appends are one plan each, and all plans that there are then one round
        round_of_first = [store.broker.send_nowait(topic, [message(1, b"a")]) for topic in first]
        assert await anyio.to_thread.run_sync(files.syncing.wait, 30)
        round_of_second = [store.broker.send_nowait(topic, [message(1, b"lost")]) for topic in second]
        await anyio.wait_all_tasks_blocked()
        lost = files.dirty[-1]
        files.bad = {lost}
        files.go_on.set()
        for sent in round_of_first:
            await sent.synced()
        for sent in round_of_second[:-1]:
            await sent.synced()
        with pytest.raises(StorageError, match="could not be synced"):
            await round_of_second[-1].synced()
        assert (await store.broker.pull(second[-1], 0)).last == 0
        for topic in (first[0], second[-1]):
            ordinal = (await store.broker.status(topic)).next
            await (await store.broker.send(topic, [message(ordinal, b"after")])).synced()
    assert files.called.count("syncfs") == (0 if mode == "each" else 1)
    assert caplog.text.count("syncfs failed") == (0 if mode == "each" else 1)


# --- what is set aside ---


def orphan(folder: Path, name: str, age_ms: int) -> Path:
    path = folder / (name + SET_ASIDE)
    path.write_bytes(b"messages after a gap")
    path.touch()
    ForgetfulAge.ages[str(path)] = age_ms
    return path


class ForgetfulAge(FailingFiles):
    """Files that are as old as a test says."""

    ages: dict[str, int] = {}

    def changed_ms(self, path: str) -> int:
        now = time.time_ns() // 1_000_000
        return now - self.ages[path] if path in self.ages else super().changed_ms(path)


async def test_what_was_set_aside_goes_after_a_week(tmp_path: Path) -> None:
    """When the topic is opened, and when retention drops something, which an old one is due for as well."""
    url, options = f"embedded:{tmp_path / 'data'}", {"files": ForgetfulAge()}
    async with named_store(url, **options) as store:
        await prepare(store)
    (folder,) = (tmp_path / "data" / "brk-0" / "topics").glob("domain~some_topic.*")
    old = orphan(folder, f"{5:020}.log", SET_ASIDE_MS + 60_000)
    young = orphan(folder, f"{9:020}.log", SET_ASIDE_MS - 60_000)
    async with named_store(url, **options) as store:
        await store.broker.open(TOPIC, FRAMING)
        assert (old.exists(), young.exists()) == (False, True)
        ForgetfulAge.ages[str(young)] = SET_ASIDE_MS + 60_000
        await (await store.broker.send(TOPIC, [message(0)])).synced()
        await store.broker.trim(TOPIC, 1)
        await store.broker.delete(Topic("domain", "other"))
    assert not young.exists()


async def test_a_segment_that_was_given_up_is_not_set_aside(tmp_path: Path) -> None:
    """Whoever sent what is in it was told that it is lost."""
    files = FailingFiles()
    async with named_store(f"embedded:{tmp_path / 'data'}", files=files, group_sync="each") as store:
        await prepare(store)
        remove = files.remove

        def fail_once(point: SyncPoint) -> None:
            files.on_sync = None
            raise broken()

        def refuse(path: str) -> None:
            if path.endswith(".log") and Path(path).exists():
                raise broken()
            remove(path)

        files.on_sync = fail_once
        files.remove = refuse  # type: ignore[method-assign]
        with pytest.raises(StorageError):
            await (await store.broker.send(TOPIC, [message(0, b"lost")])).synced()
        files.remove = remove  # type: ignore[method-assign]
        await (await store.broker.send(TOPIC, [message(0, b"kept")])).synced()
    names = [path.name for path in (tmp_path / "data" / "brk-0" / "topics").rglob("*") if path.is_file()]
    assert not [name for name in names if name.endswith(SET_ASIDE)]


async def test_the_database_has_its_space_from_the_start(tmp_path: Path) -> None:
    """Where messages fill the disk, deletions and retention have to be recorded for space to be made."""
    async with named_store(f"embedded:{tmp_path / 'data'}") as store:
        await store.manager.commit({})
        log = tmp_path / "data" / "mgr" / "mgr.db-wal"
        taken = log.stat()
        assert taken.st_size == 8 << 20
        assert taken.st_blocks * 512 >= 8 << 20
        for number in range(40):  # 16 MB in all: it begins anew before it has grown
            await store.manager.commit({"key": bytes([number]) * 400_000})
        assert log.stat().st_size == taken.st_size
        copy_as_killed(tmp_path / "data", tmp_path / "killed")
    async with named_store(f"embedded:{tmp_path / 'killed'}") as store:
        assert (await store.manager.get(["key"]))["key"].value == bytes([39]) * 400_000


# --- syncing without a pause ---


async def test_a_trim_does_not_wait_for_what_is_written_after_it_was_asked_for(
    store: NamedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic may be written without a pause: there is always a sync under way, or wanted."""
    await prepare(store)
    opened = store.broker.opened[TOPIC]
    assert isinstance(opened, EmbeddedTopic)
    log = opened.use()
    for number in range(3):
        await (await store.broker.send(TOPIC, [message(number)])).synced()
        await store.broker.roll(TOPIC)
    begun, free = [threading.Event(), threading.Event()], [threading.Event(), threading.Event()]
    rounds = iter(range(2))
    sync = Files.sync

    def held(files: Files, fd: int, point: SyncPoint) -> None:
        number = next(rounds)
        begun[number].set()
        free[number].wait(20)
        sync(files, fd, point)

    with monkeypatch.context() as patch, anyio.fail_after(20):
        patch.setattr(Files, "sync", held)
        first = await store.broker.send(TOPIC, [message(3)])
        await anyio.to_thread.run_sync(begun[0].wait, 20)
        async with anyio.create_task_group() as group:
            group.start_soon(store.broker.trim, TOPIC, 2)
            while not log.unsynced._when_over:
                await anyio.lowlevel.checkpoint()
            second = await store.broker.send(TOPIC, [message(4)])
            free[0].set()
            await anyio.to_thread.run_sync(begun[1].wait, 20)
        assert await store.broker.start(TOPIC) == 2
        free[1].set()
        await first.synced()
        await second.synced()
