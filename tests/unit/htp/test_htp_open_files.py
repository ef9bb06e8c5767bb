"""Open files of segments: no more than may be, whatever waits for its sync."""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from kclient.htp import StorageError, StorageFullError, Topic, UnknownTopicError
from kclient.htp.embedded.files import Files, SyncPoint
from kclient.htp.embedded.handles import Handle, OpenFiles
from kclient.htp.embedded.segment import Segment
from kclient.htp.embedded.syncer import SyncPlan
from kclient.htp.embedded.topic import EmbeddedTopic
from kclient.htp.embedded.unsynced import Unsynced
from tests.unit.htp.by_name import NamedStore, named_store
from tests.unit.htp.disks import FailingFiles
from tests.unit.htp.plain_messages import FRAMING, TOPIC, message, payloads

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="counts descriptors in /proc"),
]

DURABILITIES = ["synced", "written"]


class CountedFiles(Files):
    """Counts what is open, and may refuse to open more, as the system does for a process that has enough."""

    def __init__(self) -> None:
        super().__init__()
        self.segments: set[int] = set()
        self.most = 0
        self.refused_from: int | None = None

    def open(self, path: str, *, create: bool = False) -> int:
        if not path.endswith(".log"):
            return super().open(path, create=create)
        if self.refused_from is not None and len(self.segments) >= self.refused_from:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        fd = super().open(path, create=create)
        self.segments.add(fd)
        self.most = max(self.most, len(self.segments))
        return fd

    def close(self, fd: int) -> None:
        self.segments.discard(fd)
        super().close(fd)


class HeldSyncs(CountedFiles):
    """The first two syncs of messages wait; remembers which file each one reached."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = [threading.Event(), threading.Event()]
        self.free = [threading.Event(), threading.Event()]
        self.synced: list[str] = []
        self._numbers = itertools.count()

    def sync(self, fd: int, point: SyncPoint) -> None:
        if point in (SyncPoint.MESSAGES, SyncPoint.SEALED):
            number = next(self._numbers)
            if number < 2:
                self.begun[number].set()
                self.free[number].wait(10)
            path = Path(os.readlink(f"/proc/self/fd/{fd}"))
            self.synced.append(f"{path.parent.name.partition('.')[0]}/{int(path.stem)}")
        super().sync(fd, point)


def named(number: int) -> Topic:
    return Topic(TOPIC.domain, f"topic-{number}")


@asynccontextmanager
async def many(data: Path, count: int, files: Files, **options: Any) -> AsyncIterator[NamedStore]:
    async with named_store(f"embedded:{data}", files=files, **options) as store:
        await store.manager.create_domain(TOPIC.domain)
        for number in range(count):
            await store.manager.create_topic(named(number))
            await store.broker.open(named(number), FRAMING)
        yield store


@pytest.mark.slow
@pytest.mark.parametrize("durability", DURABILITIES)
async def test_no_more_are_open_than_may_be(tmp_path: Path, durability: str) -> None:
    """Written to one after the other, without waiting: as many as are allowed are open, and all is there."""
    files = CountedFiles()
    async with many(tmp_path / "data", 60, files, durability=durability, max_open_files=16) as store:
        for round_ in range(3):
            for number in range(60):
                await store.broker.send(named(number), [message(round_, b"%d" % number)])
        sent = [await store.broker.send(named(number), [message(3, b"last")]) for number in range(60)]
        for each in sent:
            await each.synced()
        for number in range(60):
            pulled = await store.broker.pull(named(number), 0)
            assert payloads(pulled.data) == [b"%d" % number] * 3 + [b"last"]
    assert 8 <= files.most <= 16 + 1  # a read does not wait for a sync


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_a_send_without_waiting_says_when_it_has_to(tmp_path: Path, durability: str) -> None:
    files = CountedFiles()
    async with many(tmp_path / "data", 6, files, durability=durability, max_open_files=4) as store:
        sent = [store.broker.send_nowait(named(number), [message(0, b"x")]) for number in range(6)]
        assert [each is not None for each in sent] == [True] * 4 + [False] * 2
        assert [(await store.broker.status(named(number))).next for number in range(6)] == [1, 1, 1, 1, 0, 0]
        for number in (4, 5):
            await (await store.broker.send(named(number), [message(0, b"y")])).synced()
        assert files.most == 4


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_the_process_has_none_left(tmp_path: Path, durability: str) -> None:
    """The application has opened what the store could not know of: it gets along with what there is."""
    files = CountedFiles()
    async with many(tmp_path / "data", 20, files, durability=durability) as store:
        files.refused_from = 5
        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(store.broker.send, named(number), [message(0, b"%d" % number)])
        for number in range(20):
            await (await store.broker.send(named(number), [message(1, b"again")])).synced()
            assert payloads((await store.broker.pull(named(number), 0)).data) == [b"%d" % number, b"again"]
        assert files.most == 5


@pytest.mark.parametrize("limit", [1, 2, 3, 8])
@pytest.mark.parametrize("durability", DURABILITIES)
async def test_a_write_that_fails_keeps_no_room(tmp_path: Path, durability: str, limit: int) -> None:
    files = FailingFiles()
    async with many(tmp_path / "data", limit + 1, files, durability=durability, max_open_files=limit) as store:
        files.space = 0
        for number in range(limit):
            with pytest.raises(StorageFullError):
                await store.broker.send(named(number), [message(0, b"x")])
        files.space = None
        with anyio.fail_after(10):
            await (await store.broker.send(named(limit), [message(0, b"x")])).synced()


async def test_what_is_written_during_a_sync_that_makes_room_keeps_none(tmp_path: Path) -> None:
    """With durability=written nobody else has it synced."""
    files = FailingFiles()
    options = {"durability": "written", "max_open_files": 1, "group_sync": "each"}
    async with many(tmp_path / "data", 2, files, **options) as store:
        begun, free = threading.Event(), threading.Event()

        def on_sync(point: SyncPoint) -> None:
            if point is SyncPoint.MESSAGES:
                begun.set()
                free.wait(10)

        files.on_sync = on_sync
        await store.broker.send(named(0), [message(0, b"x")])
        await anyio.to_thread.run_sync(begun.wait, 10)
        await store.broker.send(named(0), [message(1, b"x")])
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(store.broker.send, named(1), [message(0, b"x")])
                await anyio.wait_all_tasks_blocked()
                files.on_sync = None
                free.set()


async def test_a_file_that_a_newer_plan_names_is_not_closed(tmp_path: Path) -> None:
    """Though it was synced meanwhile: its number would be another topic's file when the plan's turn comes."""
    files = HeldSyncs()
    async with many(tmp_path / "data", 2, files, group_sync="each", max_open_files=2) as store:
        first = await store.broker.send(named(0), [message(0, b"x")])
        await anyio.to_thread.run_sync(files.begun[0].wait, 10)
        await store.broker.roll(named(0))
        await anyio.wait_all_tasks_blocked()
        files.free[0].set()
        await first.synced()
        await anyio.to_thread.run_sync(files.begun[1].wait, 10)
        second = await store.broker.send(named(0), [message(1, b"x")])
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(store.broker.send, named(1), [message(0, b"x")])
                await anyio.wait_all_tasks_blocked()
                files.free[1].set()
            await second.synced()
            await (await store.broker.send(named(1), [message(1, b"x")])).synced()
        assert files.synced[:2] == ["domain~topic-0/0"] * 2
        assert set(files.synced[2:]) == {"domain~topic-0/1", "domain~topic-1/0"}
        assert files.most == 2


async def test_a_file_that_is_kept_for_a_newer_plan_is_written_to_again(tmp_path: Path) -> None:
    """It is held once and not twice, and synced when others need room, also where nobody else has it synced."""
    files = HeldSyncs()
    options: dict[str, Any] = {"durability": "written", "group_sync": "each", "max_open_files": 1}
    async with many(tmp_path / "data", 2, files, **options) as store:
        opened = store.broker.opened[named(0)]
        assert isinstance(opened, EmbeddedTopic)
        await store.broker.send(named(0), [message(0, b"x")])
        await anyio.to_thread.run_sync(files.begun[0].wait, 10)
        opened.use().unsynced.request()
        await anyio.wait_all_tasks_blocked()
        files.free[0].set()
        await anyio.to_thread.run_sync(files.begun[1].wait, 10)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(store.broker.send, named(1), [message(0, b"x")])
                await anyio.wait_all_tasks_blocked()
                assert store.broker.send_nowait(named(0), [message(1, b"y")])
                files.free[1].set()
        assert files.synced[:3] == ["domain~topic-0/0"] * 3
        assert files.most == 1


class Owner:
    """Whom the plans of a test belong to."""

    name = "owner"

    def settled(self, plan: SyncPlan, error: Exception | None) -> None:
        raise AssertionError("a test settles them itself")


def test_a_plan_of_before_a_failure_covers_nothing(tmp_path: Path) -> None:
    """It may be on its way still, and what it was to sync is cut off, or never synced any more."""
    open_files = OpenFiles(Files(), 4)
    unsynced = Unsynced(open_files, list)
    segment = Segment.empty(str(tmp_path), 0, 100)
    assert unsynced.hold(segment)
    older = unsynced.plan(Owner(), str(tmp_path), segment, 1)
    unsynced.give_up()
    newer = unsynced.plan(Owner(), str(tmp_path), segment, 1)
    assert older is not None
    assert newer is not None
    assert unsynced.carried_out(older) is None
    assert not unsynced.idle, "the newer one is on its way"
    assert unsynced.carried_out(newer) is newer.detail
    assert unsynced.idle
    unsynced.let_go()
    open_files.close()


def test_the_first_descriptor_there_is(tmp_path: Path) -> None:
    """Number 0, where standard input was closed: it is not opened a second time."""

    class Numbered(Files):
        numbers = itertools.count()

        def open(self, path: str, *, create: bool = False) -> int:
            return next(self.numbers)

        def close(self, fd: int) -> None:
            closed.append(fd)

    closed: list[int] = []
    open_files = OpenFiles(Numbered(), 4)
    handle = Handle(str(tmp_path / "log"))
    assert [open_files.pin(handle), open_files.pin(handle)] == [0, 0]
    assert open_files.hold(handle, list, create=False)
    assert handle.fd == 0
    open_files.let_go(handle)
    for _ in range(2):
        open_files.unpin(handle)
    assert open_files.pin(handle) == 0
    open_files.unpin(handle)
    open_files.close()
    assert closed == [0]


async def test_none_at_all_is_an_error(tmp_path: Path) -> None:
    files = CountedFiles()
    async with many(tmp_path / "data", 1, files) as store:
        files.refused_from = 0
        with pytest.raises(StorageError, match="Too many open files"):
            await store.broker.send(named(0), [message(0, b"x")])
        files.refused_from = None
        await (await store.broker.send(named(0), [message(0, b"x")])).synced()


async def test_a_topic_that_is_deleted_while_a_send_waits(tmp_path: Path) -> None:
    files = HeldSyncs()
    async with many(tmp_path / "data", 3, files, group_sync="each", max_open_files=2) as store:
        for number in range(2):
            assert store.broker.send_nowait(named(number), [message(0, b"x")])

        async def refused() -> None:
            with pytest.raises(UnknownTopicError, match="was deleted"):
                await store.broker.send(named(2), [message(0, b"y")])

        with anyio.fail_after(5):  # the disk has not answered by then
            async with anyio.create_task_group() as group:
                group.start_soon(refused)
                await anyio.wait_all_tasks_blocked()
                await store.broker.delete(named(2))
        for free in files.free:
            free.set()


async def test_trimming_waits_for_room(tmp_path: Path) -> None:
    """All of a log is dropped: its next segment is made, which needs a file."""
    files = CountedFiles()
    async with many(tmp_path / "data", 3, files, max_open_files=2) as store:
        await (await store.broker.send(named(2), [message(0, b"gone")])).synced()
        for number in range(2):
            assert store.broker.send_nowait(named(number), [message(0, b"x")])
        assert await store.broker.trim(named(2), 1) == 1
        assert (await store.broker.status(named(2)))[:3] == (1, 1, 1)
        assert files.most == 2


async def test_readers_use_what_is_open(tmp_path: Path) -> None:
    files = CountedFiles()
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.write_bytes(b"x")
    open_files = OpenFiles(files, 2)
    first, second, third = (Handle(str(path)) for path in paths)
    assert open_files.pin(first) == open_files.pin(first)
    open_files.unpin(first)
    open_files.pin(second)
    open_files.pin(third)  # for a moment, more than there should be
    for handle in (first, second, third):
        open_files.unpin(handle)
    assert [handle.fd >= 0 for handle in (first, second, third)] == [False, True, True]
    open_files.close()
    assert not any(handle.fd >= 0 for handle in (first, second, third))
