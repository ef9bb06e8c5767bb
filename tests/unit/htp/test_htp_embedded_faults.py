"""The disk fails: what was not synced is gone and whoever waits hears of it; what was synced stays."""

from __future__ import annotations

import errno
import os
import platform
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import anyio
import pytest

from kclient.concurrency import LoopHandle
from kclient.htp import OrderError, StorageError, StorageFullError, TopicSettings
from kclient.htp.embedded.files import Files, SyncPoint
from tests.copied_stores import copy_as_killed
from tests.unit.htp.by_name import NamedStore, named_store
from tests.unit.htp.conftest import prepare
from tests.unit.htp.disks import FailingFiles, broken, no_space
from tests.unit.htp.plain_messages import FRAMING, OTHER, OVERHEAD, TOPIC, message, payloads

pytestmark = pytest.mark.anyio


@pytest.fixture
def files() -> FailingFiles:
    return FailingFiles()


Opening = Callable[..., NamedStore]


@pytest.fixture
def opening(files: FailingFiles, tmp_path: Path) -> Opening:
    def make(**options: object) -> NamedStore:
        return named_store(f"embedded:{tmp_path / 'data'}", **({"files": files, "group_sync": "each"} | options))

    return make


@pytest.fixture
async def store(opening: Opening) -> AsyncIterator[NamedStore]:
    async with opening() as store:
        await prepare(store)
        yield store


async def send(store: NamedStore, first: int, *contents: bytes) -> None:
    await (await store.broker.send(TOPIC, [message(first + n, c) for n, c in enumerate(contents)])).synced()


async def visible(store: NamedStore) -> list[bytes]:
    status = await store.broker.status(TOPIC)
    found: list[bytes] = []
    position = status.start
    while position < status.end:
        pulled = await store.broker.pull(TOPIC, position)
        found += payloads(pulled.data)
        position = pulled.last + 1
    return found


def fail_once(files: FailingFiles, wanted: SyncPoint) -> None:
    def on_sync(point: SyncPoint) -> None:
        if point is wanted:
            files.on_sync = None
            raise broken()

    files.on_sync = on_sync


# --- a sync fails ---


async def test_a_failed_sync_goes_back_to_what_was_synced(store: NamedStore, files: FailingFiles) -> None:
    await send(store, 0, b"a", b"b")
    fail_once(files, SyncPoint.MESSAGES)
    errors: list[BaseException | None] = []
    lost = [store.broker.send_nowait(TOPIC, [message(number, b"lost")]) for number in (2, 3)]
    lost[0].on_synced(errors.append)
    assert store.broker.status_nowait(TOPIC) == (0, 2, 4, 4 * OVERHEAD + 10)
    for sent in lost:
        with pytest.raises(StorageError, match="could not be synced"):
            await sent.synced()
    assert [type(error) for error in errors] == [StorageError]
    assert store.broker.status_nowait(TOPIC) == (0, 2, 2, 2 * OVERHEAD + 2)
    assert await visible(store) == [b"a", b"b"]
    await send(store, 2, b"c")
    assert await visible(store) == [b"a", b"b", b"c"]


async def test_what_a_failed_sync_loses_is_cut_off(
    store: NamedStore, files: FailingFiles, caplog: pytest.LogCaptureFixture
) -> None:
    """At once: a process that is killed before the checkpoint is written would find it whole. What stays is read."""
    await send(store, 0, b"a", b"b")
    (file,) = Path(store.path, "brk-0", "topics").glob(f"domain~some_topic.*/{0:020}.log")
    synced = file.read_bytes()
    fail_once(files, SyncPoint.MESSAGES)
    with pytest.raises(StorageError):
        await send(store, 2, b"lost")
    assert file.read_bytes() == synced
    assert "is damaged" not in caplog.text
    await send(store, 2, b"c")
    file = file.with_name(f"{2:020}.log")
    with file.open("r+b") as opened:
        opened.write(bytes(4))  # as by a disk that fails in more than one way
    fail_once(files, SyncPoint.MESSAGES)
    with pytest.raises(StorageError):
        await send(store, 3, b"lost")
    assert f"{file} is damaged at byte 0: synced messages are lost" in caplog.text


async def test_the_callbacks_find_the_end_rolled_back(store: NamedStore, files: FailingFiles) -> None:
    fail_once(files, SyncPoint.MESSAGES)
    nexts: list[int] = []
    sent = store.broker.send_nowait(TOPIC, [message(0)])
    sent.on_synced(lambda _error: nexts.append(store.broker.status_nowait(TOPIC).next))
    with pytest.raises(StorageError):
        await sent.synced()
    assert nexts == [0]


class SlowFailure:
    """A sync that takes until it is told to fail."""

    def __init__(self, files: FailingFiles) -> None:
        self.entered = anyio.Event()
        self.inode = 0
        self._leave = threading.Event()
        self._files = files
        self._post = LoopHandle().post
        files.on_sync = self._on_sync

    def _on_sync(self, point: SyncPoint) -> None:
        if point is SyncPoint.MESSAGES:
            self._files.on_sync = None
            self.inode = self._files.synced[-1][0]
            self._post(self.entered.set)
            self._leave.wait(30)
            raise broken()

    def fail(self) -> None:
        self._leave.set()


async def test_a_segment_whose_sync_failed_is_never_synced_again(store: NamedStore, files: FailingFiles) -> None:
    """Not even by the plan that came while it failed, and names the same segment."""
    await send(store, 0, b"a")
    failure = SlowFailure(files)
    sent = [store.broker.send_nowait(TOPIC, [message(1, b"lost")])]
    await failure.entered.wait()
    sent.append(store.broker.send_nowait(TOPIC, [message(2, b"lost")]))
    await anyio.wait_all_tasks_blocked()
    count = len(files.synced)
    failure.fail()
    for each in sent:
        with pytest.raises(StorageError):
            await each.synced()
    for number in range(1, 5):
        await send(store, number, b"x")
    await store.broker.roll(TOPIC)
    await store.broker.close(TOPIC)
    later = [inode for inode, point in files.synced[count:] if point in (SyncPoint.MESSAGES, SyncPoint.SEALED)]
    assert later
    assert failure.inode not in later
    await store.broker.open(TOPIC, FRAMING)
    assert await visible(store) == [b"a", b"x", b"x", b"x", b"x"]


async def test_what_comes_while_a_sync_fails_is_lost_too(store: NamedStore, files: FailingFiles) -> None:
    """It was written behind what is lost, so it cannot stay."""
    failure = SlowFailure(files)
    sent = [store.broker.send_nowait(TOPIC, [message(0, b"lost")])]
    await failure.entered.wait()
    sent.append(store.broker.send_nowait(TOPIC, [message(1, b"lost")]))
    await anyio.wait_all_tasks_blocked()
    failure.fail()
    for each in sent:
        with pytest.raises(StorageError):
            await each.synced()
    await send(store, 0, b"a")
    assert await visible(store) == [b"a"]


@pytest.mark.parametrize("point", [SyncPoint.MESSAGES, SyncPoint.SEALED, SyncPoint.SEGMENT])
async def test_a_failure_in_a_round_over_two_segments(opening: Opening, files: FailingFiles, point: SyncPoint) -> None:
    layout = TopicSettings(segment_bytes=2 * (OVERHEAD + 1))
    async with opening(settings=layout) as store:
        await prepare(store)
        await send(store, 0, b"a")
        fail_once(files, point)
        sent = [store.broker.send_nowait(TOPIC, [message(number, b"x")]) for number in (1, 2)]
        for each in sent:
            with pytest.raises(StorageError):
                await each.synced()
        assert store.broker.status_nowait(TOPIC)[:3] == (0, 1, 1)
        await send(store, 1, b"b", b"c", b"d")
        assert await visible(store) == [b"a", b"b", b"c", b"d"]
    async with opening(settings=layout) as store:
        await store.broker.open(TOPIC, FRAMING)
        assert await visible(store) == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("killed", [False, True])
async def test_the_log_does_not_grow_past_a_segment_that_could_not_be_removed(
    opening: Opening, files: FailingFiles, tmp_path: Path, killed: bool
) -> None:
    """Its name would bound what is acknowledged after it, and what was told to be lost would come back."""
    layout = TopicSettings(segment_bytes=2 * (OVERHEAD + 4), dense=True)
    async with opening(settings=layout) as store:
        await prepare(store)
        await send(store, 0, b"good")
        fail_once(files, SyncPoint.SEALED)
        sent = [store.broker.send_nowait(TOPIC, [message(number, b"lost")]) for number in (1, 2, 3)]
        remove = files.remove

        def refuse(path: str) -> None:
            if path.endswith(f"{2:020}.log") and Path(path).exists():
                raise broken()
            remove(path)

        files.remove = refuse  # type: ignore[method-assign]
        for each in sent:
            with pytest.raises(StorageError):
                await each.synced()
        await send(store, 1, b"good")  # up to its name there is room
        for _ in range(2):
            with pytest.raises(StorageError, match="could not be written"):
                await send(store, 2, b"good")
        with pytest.raises(StorageError, match="could not begin further on"):
            await store.broker.open(TOPIC, FRAMING, next_position=10)
        assert await visible(store) == [b"good"] * 2
        if killed:
            copy_as_killed(tmp_path / "data", tmp_path / "copy")
        files.remove = remove  # type: ignore[method-assign]
        for number in range(2, 6):
            await send(store, number, b"good")
        if not killed:
            copy_as_killed(tmp_path / "data", tmp_path / "copy")
    for name, count in (("data", 6), ("copy", 2 if killed else 6)):
        async with named_store(f"embedded:{tmp_path / name}", settings=layout) as store:
            await store.broker.open(TOPIC, FRAMING)
            assert await visible(store) == [b"good"] * count


async def test_a_segment_that_could_not_be_removed_is_emptied(
    opening: Opening, files: FailingFiles, tmp_path: Path
) -> None:
    """What was told to be lost does not come back, should the process end before the file can be removed."""
    async with opening() as store:
        await prepare(store)
        remove = files.remove

        def refuse(path: str) -> None:
            if path.endswith(".log") and Path(path).exists():
                raise broken()
            remove(path)

        fail_once(files, SyncPoint.MESSAGES)
        files.remove = refuse  # type: ignore[method-assign]
        with pytest.raises(StorageError):
            await send(store, 0, b"lost")
        copy_as_killed(tmp_path / "data", tmp_path / "killed")
        files.remove = remove  # type: ignore[method-assign]
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if is_open(fd)]
    assert not [link for link in links if link.startswith(str(tmp_path))]
    async with named_store(f"embedded:{tmp_path / 'killed'}") as store:
        await store.broker.open(TOPIC, FRAMING)
        assert await visible(store) == []


def is_open(fd: str) -> bool:
    return os.path.islink(f"/proc/self/fd/{fd}")


async def test_the_cut_end_of_a_segment_does_not_come_back(
    opening: Opening, files: FailingFiles, tmp_path: Path
) -> None:
    """The cut was not synced, so the old end may be on the disk after a crash: the checkpoint knows better."""
    async with opening() as store:
        await prepare(store)
        await send(store, 0, b"a")
        fail_once(files, SyncPoint.MESSAGES)
        with pytest.raises(StorageError):
            await send(store, 1, b"ghost")
        await send(store, 1, b"b")
        await store.broker.roll(TOPIC)
        await send(store, 2, b"c")
    (folder,) = (tmp_path / "data" / "brk-0" / "topics").glob("domain~some_topic.*")
    with (folder / f"{0:020}.log").open("ab") as file:
        file.write(message(1, b"ghost"))
    async with opening() as store:
        await store.broker.open(TOPIC, FRAMING)
        assert await visible(store) == [b"a", b"b", b"c"]
        assert (folder / f"{0:020}.log").stat().st_size == OVERHEAD + 1, "what does not count takes no space"


@pytest.mark.parametrize("group_sync", ["filesystem", "auto"])
async def test_a_failed_syncfs_falls_back_to_each_file(opening: Opening, files: FailingFiles, group_sync: str) -> None:
    if not files.syncs_everything:
        pytest.skip("no syncfs that reports errors here")
    fail_once(files, SyncPoint.EVERYTHING)
    async with opening(group_sync=group_sync) as store:
        await prepare(store)
        sent = [store.broker.send_nowait(topic, [message(0, b"a")]) for topic in (TOPIC, OTHER)]
        for each in sent:
            await each.synced()
        points = [point for _, point in files.synced]
        assert SyncPoint.EVERYTHING in points
        assert points.count(SyncPoint.MESSAGES) == 2
        assert await visible(store) == [b"a"]


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or [int(each) for each in re.findall(r"\d+", platform.release())[:2]] < [5, 8],
    reason="no syncfs that reports errors",
)
def test_a_failed_syncfs_tells_why() -> None:
    """It is called past Python, which would have kept the reason."""
    files = Files()
    assert files.syncs_everything
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        files.sync_everything(-1, SyncPoint.EVERYTHING)
    assert caught.value.errno == errno.EBADF


async def test_a_failure_of_one_topic_is_not_the_others(store: NamedStore, files: FailingFiles) -> None:
    await send(store, 0, b"a")
    await (await store.broker.send(OTHER, [message(0, b"a")])).synced()
    (folder,) = Path(store.path, "brk-0", "topics").glob("domain~other.*")
    inode = (folder / f"{0:020}.log").stat().st_ino

    def on_sync(point: SyncPoint) -> None:
        if point is SyncPoint.MESSAGES and files.synced[-1][0] == inode:
            raise broken()

    files.on_sync = on_sync
    good = store.broker.send_nowait(TOPIC, [message(1, b"b")])
    bad = store.broker.send_nowait(OTHER, [message(1, b"b")])
    await good.synced()
    with pytest.raises(StorageError):
        await bad.synced()


async def test_with_durability_written_a_failed_sync_loses_nothing_visible(
    opening: Opening, files: FailingFiles
) -> None:
    async with opening(durability="written") as store:
        await prepare(store)
        await send(store, 0, b"a")
        fail_once(files, SyncPoint.SEALED)
        await store.broker.roll(TOPIC)
        await send(store, 1, b"b")
        await store.broker.roll(TOPIC)
        await send(store, 2, b"c")
        assert await visible(store) == [b"a", b"b", b"c"]
    async with opening(durability="written") as store:
        await store.broker.open(TOPIC, FRAMING)
        assert await visible(store) == [b"a", b"b", b"c"]


async def test_a_failed_sync_of_a_closed_segment_leaves_its_successor_as_it_is(
    opening: Opening, files: FailingFiles
) -> None:
    """When that is empty still, there would be two of its name, and a trim of one would remove the other's file."""
    async with opening(durability="written") as store:
        await prepare(store)
        await send(store, 0, b"a")
        fail_once(files, SyncPoint.SEALED)
        await store.broker.roll(TOPIC)
        await store.broker.open(TOPIC, FRAMING, epoch=2)  # waits for what is to be synced
        assert [each.first for each in await store.broker.segments(TOPIC)] == [0, 1]
        await send(store, 1, b"b")
        await store.broker.roll(TOPIC)
        await store.broker.open(TOPIC, FRAMING, epoch=3)
        assert await store.broker.trim(TOPIC, 1) == 1
        assert await visible(store) == [b"b"]
    async with opening(durability="written") as store:
        await store.broker.open(TOPIC, FRAMING, epoch=3)
        assert await visible(store) == [b"b"]


# --- trimming ---


@pytest.mark.parametrize("again", [False, True])
async def test_a_trim_that_could_not_be_recorded_is_none(
    opening: Opening, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Neither a smaller one carries it out, nor a checkpoint that was written meanwhile."""
    async with opening(settings=TopicSettings(segment_bytes=OVERHEAD)) as store:
        await prepare(store)
        for number in range(6):
            await send(store, number, b"a")

        async def fail(*_: object) -> int:
            await store.broker.roll(TOPIC)
            raise StorageFullError("no space left")

        with monkeypatch.context() as patch:
            patch.setattr(store.manager, "commit", fail)
            with pytest.raises(StorageFullError):
                await store.broker.trim(TOPIC, 5)
        await store.manager.get([])  # what was submitted is done
        copy_as_killed(tmp_path / "data", tmp_path / "killed")
        if again:
            assert await store.broker.trim(TOPIC, 2) == 2
    for name, start in (("killed", 0), ("data", 2 if again else 0)):
        async with named_store(f"embedded:{tmp_path / name}") as store:
            assert (await store.broker.open(TOPIC, FRAMING))[:3] == (start, 6, 6)


# --- going on further on ---


@pytest.mark.parametrize("epoch", [1, 2])
async def test_a_gap_that_could_not_be_recorded_is_none(
    opening: Opening, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epoch: int
) -> None:
    """Recovery would take what follows it for messages behind a loss."""
    async with opening() as store:
        await prepare(store)
        await send(store, 0, b"a", b"b")
        await store.broker.roll(TOPIC)

        async def fail(*_: object) -> int:
            raise StorageFullError("no space left")

        with monkeypatch.context() as patch:
            patch.setattr(store.manager, "commit", fail)
            with pytest.raises(StorageFullError):
                await store.broker.open(TOPIC, FRAMING, epoch=epoch, next_position=100)
        if epoch == 1:
            await send(store, 2, b"c")
            assert await visible(store) == [b"a", b"b", b"c"]
        assert (await store.broker.open(TOPIC, FRAMING, epoch=epoch, next_position=100)).next == 100
        with monkeypatch.context() as patch:  # as if the process died before any other checkpoint
            patch.setattr(store.manager, "commit_soon", lambda _writes, _done: None)
            await send(store, 100, b"z")
        copy_as_killed(tmp_path / "data", tmp_path / "copy")
    async with named_store(f"embedded:{tmp_path / 'copy'}") as store:
        await store.broker.open(TOPIC, FRAMING, epoch=3)
        assert await visible(store) == [b"a", b"b", *([b"c"] if epoch == 1 else []), b"z"]


@pytest.mark.parametrize("durability", ["synced", "written"])
async def test_nothing_is_appended_while_a_topic_goes_on_further_on(
    opening: Opening, files: FailingFiles, durability: str
) -> None:
    """By those who hold it under the same epoch: its next ordinal would go back, and be given twice."""
    async with opening(durability=durability) as store:
        await prepare(store)
        await store.broker.send(TOPIC, [message(0, b"a")])
        begun, free = threading.Event(), threading.Event()

        def on_sync(point: SyncPoint) -> None:
            if point is SyncPoint.MESSAGES:
                begun.set()
                free.wait(10)

        files.on_sync = on_sync
        topic = store.broker.direct(TOPIC)

        async def write() -> None:
            with pytest.raises(OrderError, match="do not follow on 9"):
                await topic.send([message(3, b"late")])
            await (await topic.send([message(9, b"c")])).synced()

        async with anyio.create_task_group() as group:
            topic.send_nowait([message(1, b"b"), message(2, b"b")])
            group.start_soon(partial(store.broker.open, TOPIC, FRAMING, next_position=9))
            await anyio.to_thread.run_sync(begun.wait, 10)
            with anyio.fail_after(10):
                while not topic._log.paused:
                    await anyio.sleep(0.001)
            assert topic.send_nowait([message(3, b"late")]) is None
            group.start_soon(write)
            await anyio.wait_all_tasks_blocked()
            files.on_sync = None
            free.set()
        assert await visible(store) == [b"a", b"b", b"b", b"c"]
    async with opening() as store:
        await store.broker.open(TOPIC, FRAMING)
        assert await visible(store) == [b"a", b"b", b"b", b"c"]


# --- no space ---


@pytest.mark.parametrize("space", [0, 1, OVERHEAD, OVERHEAD + 5])
async def test_a_full_disk_cuts_back_to_the_last_message(
    opening: Opening, files: FailingFiles, space: int, tmp_path: Path
) -> None:
    async with opening() as store:
        await prepare(store)
        await send(store, 0, b"a")
        files.space = space
        for _ in range(2):
            with pytest.raises(StorageFullError, match="no space left"):
                await store.broker.send(TOPIC, [message(1, b"0123456789"), message(2, b"0123456789")])
            files.space = 0
        (folder,) = (tmp_path / "data" / "brk-0" / "topics").glob("domain~some_topic.*")
        assert (folder / f"{0:020}.log").stat().st_size == OVERHEAD + 1
        assert await store.broker.status(TOPIC) == (0, 1, 1, OVERHEAD + 1)
        files.space = None
        await send(store, 1, b"b")
        assert await visible(store) == [b"a", b"b"]


async def test_no_space_for_a_new_segment(store: NamedStore, files: FailingFiles) -> None:
    def on_create(_path: str) -> None:
        raise no_space()

    files.on_create = on_create
    with pytest.raises(StorageFullError):
        await store.broker.send(TOPIC, [message(0)])
    files.on_create = None
    await send(store, 0, b"a")
    assert await visible(store) == [b"a"]


async def test_a_write_error(store: NamedStore, files: FailingFiles) -> None:
    await send(store, 0, b"a")

    def on_write(_length: int, _position: int) -> None:
        raise broken()

    files.on_write = on_write
    with pytest.raises(StorageError, match="could not be written") as info:
        await store.broker.send(TOPIC, [message(1)])
    assert not isinstance(info.value, StorageFullError)
    files.on_write = None
    await send(store, 1, b"b")
    assert await visible(store) == [b"a", b"b"]


# --- reading ---


async def test_no_segment_shows_what_is_not_synced(opening: Opening, files: FailingFiles) -> None:
    """Neither from a position behind the visible end, nor from one within a gap, where the next segments are asked."""
    free = threading.Event()
    async with opening() as store:
        await prepare(store)
        await send(store, 0, b"a")
        await store.broker.open(TOPIC, FRAMING, next_position=10)
        files.on_sync = lambda _point: free.wait(30)
        try:
            sent = []
            for number in (10, 11, 12):
                sent.append(store.broker.send_nowait(TOPIC, [message(number, b"b")]))
                await store.broker.roll(TOPIC)
            assert len(await store.broker.segments(TOPIC)) == 5
            for position in (1, 5, 10, 11, 12, 13):
                pulled = store.broker.pull_nowait(TOPIC, position)
                assert (bytes(pulled.data), pulled.last) == (b"", position - 1)
        finally:
            free.set()
        for each in sent:
            await each.synced()
        assert await visible(store) == [b"a", b"b", b"b", b"b"]


async def test_cold_messages_come_from_the_disk(store: NamedStore, files: FailingFiles) -> None:
    await send(store, 0, b"a", b"b")
    files.cold = True
    assert store.broker.pull_nowait(TOPIC, 0) is None
    assert payloads((await store.broker.pull(TOPIC, 0)).data) == [b"a", b"b"]
    assert payloads((await store.broker.pull(TOPIC, 0, max_messages=1)).data) == [b"a"]


async def test_a_read_error(store: NamedStore, files: FailingFiles) -> None:
    await send(store, 0, b"a")

    def on_read() -> None:
        raise broken()

    files.cold, files.on_read = True, on_read
    with pytest.raises(StorageError, match="could not be read"):
        await store.broker.pull(TOPIC, 0)
    files.on_read = None
    assert payloads((await store.broker.pull(TOPIC, 0)).data) == [b"a"]


async def test_damage_is_named(store: NamedStore) -> None:
    await send(store, 0, b"a", b"b")
    (folder,) = Path(store.path, "brk-0", "topics").glob("domain~some_topic.*")
    with (folder / f"{0:020}.log").open("r+b") as file:
        file.write(bytes(4))
    with pytest.raises(StorageError, match=r"00000\.log: damaged at byte 0"):
        await store.broker.pull(TOPIC, 0)
