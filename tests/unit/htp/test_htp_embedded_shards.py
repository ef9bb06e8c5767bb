"""Embedded HTP with several brokers: a directory, a lock and a thread for each."""

from __future__ import annotations

import fcntl
import json
import shutil
import sqlite3
import threading
from pathlib import Path

import anyio
import pytest

from kclient.htp import (
    FormatVersionError,
    LockedError,
    Place,
    StorageError,
    Store,
    StoreClosedError,
    TooFewBrokersError,
    Topic,
    UnknownTopicError,
    open_store,
)
from kclient.htp.embedded.backup import back_up
from kclient.htp.embedded.directory import FORMAT, DataDirectory
from kclient.htp.embedded.files import Files
from kclient.htp.embedded.inspection import Inspection
from kclient.htp.embedded.restoring import restore
from kclient.htp.findings import Finding
from tests.unit.htp.plain_messages import FRAMING, message, payloads

pytestmark = pytest.mark.anyio

TOPIC = Topic("d", "t")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


async def fill(data: Path, brokers: int = 3) -> list[Place]:
    """A topic with a message at each broker, which names the broker."""
    async with open_store(f"embedded:{data}?brokers={brokers}") as store:
        await store.manager.create_domain("d")
        await store.manager.create_topic(TOPIC, broker="brk-0")
        for name in await store.manager.brokers():
            topic = await store.broker.open(await store.manager.bind(TOPIC, name), FRAMING, epoch=1)
            await (await topic.send([message(0, name.encode())])).synced()
        return list((await store.manager.describe_topic(TOPIC)).places)


async def content(store: Store, place: Place) -> list[bytes]:
    return payloads((await (await store.broker.open(place, FRAMING, epoch=1)).pull(0)).data)


async def test_each_has_a_directory(data: Path) -> None:
    places = await fill(data)
    assert sorted(each.name for each in data.iterdir()) == ["brk-0", "brk-1", "brk-2", "format.json", "mgr"]
    for place in places:
        (folder,) = (data / place.broker / "topics").iterdir()
        assert folder.name == f"d~t.{place.incarnation}"
        assert (data / place.broker / "lock").is_file()


async def test_each_is_locked(data: Path) -> None:
    await fill(data)
    async with open_store(f"embedded:{data}"):
        with pytest.raises(LockedError, match="brk-0 is in use"):
            await open_store(f"embedded:{data}?brokers=5").__aenter__()
        assert not (data / "brk-3").exists(), "who is refused makes nothing"
        for number in range(3):
            with (data / f"brk-{number}" / "lock").open() as lock, pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    for number in range(3):
        with (data / f"brk-{number}" / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


async def test_nothing_stays_open_where_one_is_in_use(data: Path) -> None:
    """Which happens if somebody looks through that one alone."""
    await fill(data)
    with (data / "brk-1" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LockedError, match="brk-1 is in use"):
            await open_store(f"embedded:{data}").__aenter__()
        with (data / "brk-0" / "lock").open() as first:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert not [each.name for each in threading.enumerate() if each.name.startswith("kclient-htp")]
    async with open_store(f"embedded:{data}"):
        pass


async def test_what_was_begun_is_finished(data: Path) -> None:
    """A directory that was made, and whose parts were not."""
    await fill(data, 1)
    (data / "brk-1").mkdir()
    (data / "brk-3").mkdir()
    async with open_store(f"embedded:{data}?brokers=4") as store:
        assert await store.manager.brokers() == [f"brk-{number}" for number in range(4)]
        place = await store.manager.bind(TOPIC, "brk-2")
        await store.broker.open(place, FRAMING, epoch=1)


@pytest.mark.slow
async def test_the_number_is_kept(data: Path) -> None:
    async def brokers(option: str = "") -> int:
        async with open_store(f"embedded:{data}{option}") as store:
            return len(await store.manager.brokers())

    assert [await brokers(option) for option in ("?brokers=3", "", "?brokers=1", "", "?brokers=2", "")] == [
        3, 3, 1, 1, 2, 2,
    ]  # fmt: skip
    await fill(data, 3)
    with pytest.raises(TooFewBrokersError, match="brokers=3"):
        await brokers("?brokers=2")
    assert await brokers() == 3


async def test_a_directory_that_does_not_say_how_many_has_all(data: Path) -> None:
    """As earlier versions left it."""
    await fill(data, 3)
    (data / "format.json").write_text(json.dumps({"format": FORMAT}))
    async with open_store(f"embedded:{data}") as store:
        assert len(await store.manager.brokers()) == 3
    assert json.loads((data / "format.json").read_text())["brokers"] == 3
    for wrong in (0, 257, "3", None):
        (data / "format.json").write_text(json.dumps({"format": FORMAT, "brokers": wrong}))
        with pytest.raises(FormatVersionError, match=r"format\.json is damaged"):
            await open_store(f"embedded:{data}").__aenter__()


async def test_a_shard_that_is_missing(data: Path) -> None:
    places = await fill(data)
    shutil.move(data / "brk-2", data.parent / "kept")
    for option in ("", "?brokers=3", "?brokers=4"):
        with pytest.raises(StorageError, match=r"brk-2 is missing.*mount its disk.*mkdir -p \S*/brk-2/topics"):
            await open_store(f"embedded:{data}{option}").__aenter__()
        assert not (data / "brk-2").exists()
    (data / "brk-2" / "topics").mkdir(parents=True)
    async with open_store(f"embedded:{data}") as store:
        assert await content(store, places[1]) == [b"brk-1"]
        with pytest.raises(StorageError, match=r"brk-2/topics/d~t\.\d+, which holds its messages, is missing"):
            await store.broker.open(places[2], FRAMING, epoch=1)
    shutil.rmtree(data / "brk-2")
    shutil.move(data.parent / "kept", data / "brk-2")
    async with open_store(f"embedded:{data}") as store:
        assert await content(store, places[2]) == [b"brk-2"]


async def test_each_finishes_its_deletions_and_sets_aside_what_belongs_to_none(data: Path) -> None:
    places = await fill(data)
    async with open_store(f"embedded:{data}") as store:
        await store.manager.delete_topics([TOPIC])
        await store.broker.delete(places[:1], epoch=1)
    async with open_store(f"embedded:{data}") as store:
        with pytest.raises(UnknownTopicError):
            await store.broker.open(places[1], FRAMING, epoch=1)
    for place, ends in zip(places, ([], [".orphan"], [".orphan"]), strict=True):
        assert [each.suffix for each in (data / place.broker / "topics").iterdir()] == ends


async def test_a_directory_of_format_3_has_one_broker_and_may_have_more(data: Path) -> None:
    (place,) = await fill(data, 1)
    with sqlite3.connect(data / "mgr" / "mgr.db") as database:
        database.execute("DROP TABLE bindings")
    database.close()
    (data / "format.json").write_text(json.dumps({"format": 3}))
    async with open_store(f"embedded:{data}") as store:
        assert await store.manager.brokers() == ["brk-0"]
        assert await content(store, place) == [b"brk-0"]
    assert json.loads((data / "format.json").read_text())["format"] == FORMAT
    async with open_store(f"embedded:{data}?brokers=2") as store:
        await store.manager.bind(TOPIC, "brk-1")
        assert len((await store.manager.describe_topic(TOPIC)).places) == 2


def test_a_directory_that_is_closed_meanwhile_takes_no_further_lock(data: Path) -> None:
    class Closing(Files):
        def store(self, *args: object) -> None:
            super().store(*args)  # type: ignore[arg-type]
            directory.close()

    directory = DataDirectory(str(data), Closing(), 2)
    with pytest.raises(StoreClosedError, match="was closed while it was opened"):
        directory.open()
    with (data / "brk-0" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


class _Hanging(Files):
    """The disk of one broker hangs, where a log is opened, until it is told to go on."""

    def __init__(self, shard: str) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self._shard = f"/{shard}/topics/"

    def list_directory(self, path: str) -> list[str]:
        if self._shard in path:
            self.go_on.wait()
        return super().list_directory(path)


@pytest.mark.slow
async def test_a_broker_whose_disk_hangs_takes_no_thread_from_the_others(data: Path) -> None:
    names = [Topic("d", f"t{number}") for number in range(60)]
    async with open_store(f"embedded:{data}?brokers=2") as store:
        await store.manager.create_domain("d")
        for name in names:
            await store.manager.create_topic(name, broker="brk-0")
            for broker in ("brk-0", "brk-1"):
                topic = await store.broker.open(await store.manager.bind(name, broker), FRAMING, epoch=1)
                await (await topic.send([message(0, broker.encode())])).synced()
    files = _Hanging("brk-1")
    async with open_store(f"embedded:{data}", files=files) as store, anyio.create_task_group() as tasks:
        try:
            for name in names:
                healthy, hanging = (await store.manager.describe_topic(name)).places
                tasks.start_soon(content, store, hanging)
                with anyio.fail_after(20):
                    assert await content(store, healthy) == [b"brk-0"]
        finally:
            files.go_on.set()


@pytest.mark.parametrize("how", ["missing", "not mounted"])
@pytest.mark.parametrize("number", [0, 1])
async def test_a_shard_amid_the_others_that_is_missing(data: Path, number: int, how: str) -> None:
    """As where a disk was not mounted: an empty one that is used in its place would hide what is in it."""
    places = await fill(data)
    shutil.move(data / f"brk-{number}", data.parent / "kept")
    if how == "not mounted":
        (data / f"brk-{number}").mkdir()
    for option in ("", "", "?brokers=3"):
        with pytest.raises(StorageError, match=rf"brk-{number} is missing or empty.*mount its disk"):
            await open_store(f"embedded:{data}{option}").__aenter__()
        assert (data / f"brk-{number}").exists() is (how == "not mounted")
    (data / f"brk-{number}" / "topics").mkdir(parents=True)
    async with open_store(f"embedded:{data}") as store:
        assert await content(store, places[2]) == [b"brk-2"]
        with pytest.raises(StorageError, match=r"which holds its messages, is missing"):
            await store.broker.open(places[number], FRAMING, epoch=1)
    shutil.rmtree(data / f"brk-{number}")
    shutil.move(data.parent / "kept", data / f"brk-{number}")
    async with open_store(f"embedded:{data}") as store:
        assert await content(store, places[number]) == [b"brk-%d" % number]


def findings(data: Path) -> list[Finding]:
    with Inspection(str(data), FRAMING.name) as inspection:
        return list(inspection.directories())


async def test_a_shard_of_another_store(data: Path, tmp_path: Path) -> None:
    """Its topics have the same names and numbers: nothing else would tell."""
    await fill(data, 2)
    other = tmp_path / "other"
    await fill(other, 2)
    shutil.rmtree(data / "brk-1")
    shutil.copytree(other / "brk-1", data / "brk-1", ignore=shutil.ignore_patterns("*.sock"))
    with pytest.raises(StorageError, match=r"brk-1 belongs to another store than .*mgr: was a wrong disk mounted"):
        await open_store(f"embedded:{data}").__aenter__()
    assert [each.where for each in findings(data)] == ["brk-1"]
    (data / "brk-1" / "store.json").write_bytes(b"")  # as a power cut may leave it
    async with open_store(f"embedded:{data}"):
        pass


async def test_shards_in_each_others_place(data: Path) -> None:
    places = await fill(data)
    for source, target in (("brk-1", "kept"), ("brk-2", "brk-1"), ("kept", "brk-2")):
        (data / source).rename(data / target)
    assert [each.where for each in findings(data)] == ["brk-1", "brk-2"]
    with pytest.raises(StorageError, match="brk-1 holds what brk-2 keeps: are two disks mounted in each other's place"):
        await open_store(f"embedded:{data}").__aenter__()
    for source, target in (("brk-1", "kept"), ("brk-2", "brk-1"), ("kept", "brk-2")):
        (data / source).rename(data / target)
    async with open_store(f"embedded:{data}") as store:
        assert await content(store, places[1]) == [b"brk-1"]


async def test_disks_may_be_mounted_before_the_first_start(data: Path) -> None:
    for name in ("brk-0", "brk-1"):
        (data / name / "lost+found").mkdir(parents=True)
    places = await fill(data, 3)
    async with open_store(f"embedded:{data}") as store:
        assert await content(store, places[1]) == [b"brk-1"]
    (data / "format.json").unlink()
    with pytest.raises(FormatVersionError, match=r"holds messages, but format\.json.*is missing"):
        await open_store(f"embedded:{data}").__aenter__()


@pytest.mark.parametrize("name", ["brk-20251126", "brk-256", "brk-01", "brk-1.old"])
async def test_what_is_only_called_like_a_shard(data: Path, name: str) -> None:
    await fill(data, 2)
    shutil.copytree(data / "brk-0", data / name)
    async with open_store(f"embedded:{data}") as store:
        assert await store.manager.brokers() == ["brk-0", "brk-1"]


async def test_a_backup_that_lacks_a_shard(data: Path, tmp_path: Path) -> None:
    places = await fill(data)
    shutil.move(data / "brk-1", tmp_path / "kept")
    lost = back_up(str(data), str(tmp_path / "backup")).lost
    assert len(lost) == 1
    assert "brk-1" in lost[0]
    assert restore(str(tmp_path / "backup"), str(tmp_path / "restored")).lost == ["brk-1"]
    async with open_store(f"embedded:{tmp_path / 'restored'}") as store:
        assert len(await store.manager.brokers()) == 3
        assert await content(store, places[2]) == [b"brk-2"]
        with pytest.raises(StorageError, match=r"brk-1/topics/d~t\.\d+, which holds its messages, is missing"):
            await store.broker.open(places[1], FRAMING, epoch=1)
        await store.broker.delete(places, epoch=1)
        await store.manager.delete_topics([TOPIC])
    shutil.move(tmp_path / "kept", data / "brk-1")
    back_up(str(data), str(tmp_path / "whole"))
    assert restore(str(tmp_path / "whole"), str(tmp_path / "again")).lost == []
