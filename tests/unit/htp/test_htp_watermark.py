"""The low watermark of disk space: messages are refused, everything else goes on, and the log tells once."""

from __future__ import annotations

import logging
from pathlib import Path

import anyio
import pytest

from kclient.errors import ConfigError
from kclient.htp import (
    StorageFullError,
    StoreClosedError,
    StoreOnDisk,
    Topic,
    TopicSettings,
    open_store,
)
from kclient.htp.embedded.watermark import Level, Watermark, level_of
from kclient.htp.urls import split_options
from tests.unit.htp.by_name import NamedStore, named_store
from tests.unit.htp.conftest import prepare
from tests.unit.htp.disks import FailingFiles
from tests.unit.htp.plain_messages import FRAMING, TOPIC, message, payloads

LEAST = 1_000_000


@pytest.fixture
def files() -> FailingFiles:
    files = FailingFiles()
    files.free = 10 * LEAST
    return files


def opening(path: Path, files: FailingFiles, **options: object) -> NamedStore:
    return named_store(f"embedded:{path / 'data'}", files=files, min_free_bytes=LEAST, **options)


async def send(store: NamedStore, first: int) -> None:
    await (await store.broker.send(TOPIC, [message(first, b"%d" % first)])).synced()


async def until_refused(store: NamedStore, first: int) -> StorageFullError:
    """Append, from an ordinal on, until that is refused; the refusal."""
    with anyio.fail_after(20):
        while True:
            try:
                await send(store, first)
            except StorageFullError as error:
                return error
            first += 1
            await anyio.sleep(0.01)


async def until_taken(store: NamedStore, first: int) -> None:
    with anyio.fail_after(20):
        while True:
            try:
                return await send(store, first)
            except StorageFullError:
                await anyio.sleep(0.01)


async def next_of(store: NamedStore) -> int:
    return (await store.broker.status(TOPIC)).next


@pytest.mark.anyio
@pytest.mark.parametrize("durability", ["synced", "written"])
async def test_below_it_messages_alone_are_refused(
    tmp_path: Path, files: FailingFiles, durability: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = TopicSettings(segment_bytes=200)
    async with opening(tmp_path, files, durability=durability, settings=settings) as store:
        await prepare(store)
        for number in range(20):
            await send(store, number)
        files.free = LEAST - 1
        error = await until_refused(store, 20)
        assert f"has 999,999 bytes left, and below {LEAST:,} messages are refused (min_free_bytes" in str(error)
        assert error.retriable
        end = await next_of(store)

        # whatever makes space, and rows, go on
        with anyio.fail_after(20):
            while not await store.broker.trim(TOPIC, end):  # which drops what is synced, with `written` a little later
                await anyio.sleep(0.01)
        await store.manager.commit({"key": b"value"})
        await store.manager.create_topic(Topic(TOPIC.domain, "another"))
        assert (await store.manager.get(["key"]))["key"].value == b"value"
        with pytest.raises(StorageFullError):
            await send(store, end)

        files.free = 3 * LEAST
        await until_taken(store, end)
        assert payloads((await store.broker.pull(TOPIC, end)).data) == [b"%d" % end]
        await store.broker.delete(TOPIC)
    told = [record.getMessage() for record in caplog.records if "bytes left" in record.getMessage()]
    assert [text.partition(": ")[2][:22] for text in told] == ["messages are refused u", "messages are taken aga"]


@pytest.mark.anyio
async def test_the_log_warns_once_before(tmp_path: Path, files: FailingFiles, caplog: pytest.LogCaptureFixture) -> None:
    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if "bytes left" in record.getMessage()]

    async with opening(tmp_path, files) as store:
        await prepare(store)
        for number, free in enumerate([2 * LEAST - 1, 2 * LEAST + 1, LEAST + 1, 3 * LEAST]):
            files.free = free
            with anyio.fail_after(20):
                while len(told()) < (1 if number < 3 else 2):
                    await anyio.sleep(0.01)
            await send(store, number)
    assert "less than twice min_free_bytes=1000000" in told()[0]
    assert told()[1].endswith("3000000 bytes left: that is enough again")
    assert {record.levelno for record in caplog.records if "bytes left" in record.getMessage()} == {logging.WARNING}


class _TwoDisks(FailingFiles):
    """The directory of a second broker lies on a disk of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.free_of = {0: 10 * LEAST, 1: 10 * LEAST}

    def file_system(self, directory: str) -> int:
        return int("/brk-1" in directory)

    def free_bytes(self, directory: str) -> int:
        return self.free_of[self.file_system(directory)]


@pytest.mark.anyio
@pytest.mark.parametrize("full", [0, 1])
async def test_each_broker_goes_by_the_disk_that_it_lies_on(tmp_path: Path, full: int) -> None:
    files = _TwoDisks()
    files.free_of[full] = LEAST - 1
    url = f"embedded:{tmp_path / 'data'}?brokers=2&min_free_bytes={LEAST}"
    async with open_store(url, files=files) as store:
        await store.manager.create_domain(TOPIC.domain)
        await store.manager.create_topic(TOPIC, broker="brk-0")
        topics = [
            await store.broker.open(await store.manager.bind(TOPIC, broker), FRAMING, epoch=1)
            for broker in ("brk-0", "brk-1")
        ]
        await (await topics[1 - full].send([message(0, b"a")])).synced()
        named = f"data/brk-1 has {LEAST - 1:,}" if full else f"data has {LEAST - 1:,}"
        with pytest.raises(StorageFullError, match=named):
            await topics[full].send([message(0, b"a")])
        files.free_of[full] = 3 * LEAST
        with anyio.fail_after(20):
            while True:
                try:
                    await (await topics[full].send([message(0, b"a")])).synced()
                    break
                except StorageFullError:
                    await anyio.sleep(0.01)


@pytest.mark.anyio
async def test_a_store_that_begins_below_it(tmp_path: Path, files: FailingFiles) -> None:
    files.free = 0
    async with opening(tmp_path, files) as store:
        await prepare(store)
        with pytest.raises(StorageFullError):
            await send(store, 0)


@pytest.mark.anyio
async def test_nobody_looks_without_one(tmp_path: Path, files: FailingFiles) -> None:
    files.free = 0
    async with named_store(f"embedded:{tmp_path / 'data'}", files=files) as store:
        await prepare(store)
        await send(store, 0)


@pytest.mark.parametrize(
    ("free", "before", "level"),
    [
        (200, Level.PLENTY, Level.PLENTY),
        (199, Level.PLENTY, Level.SCARCE),
        (100, Level.PLENTY, Level.SCARCE),
        (99, Level.PLENTY, Level.LOW),
        (99, Level.SCARCE, Level.LOW),
        (109, Level.LOW, Level.LOW),
        (110, Level.LOW, Level.SCARCE),
        (219, Level.SCARCE, Level.SCARCE),
        (220, Level.SCARCE, Level.PLENTY),
        (220, Level.LOW, Level.PLENTY),
    ],
)
def test_levels(free: int, before: Level, level: Level) -> None:
    assert level_of(free, 100, before) is level


MIB = 1 << 20


@pytest.mark.parametrize(
    ("free", "least", "fits"),
    [
        (11 * MIB, 0, True),
        (9 * MIB - 1, 0, False),
        (111 * MIB, 100 * MIB, True),
        (111 * MIB - 1, 100 * MIB, False),  # with a tenth more than the watermark, messages would be taken again
        (99 * MIB, 100 * MIB, True),  # they are refused anyway
        (9 * MIB - 1, 100 * MIB, False),
    ],
)
def test_what_takes_the_place_of_other_messages_leaves_some_for_new_ones(
    tmp_path: Path, files: FailingFiles, free: int, least: int, fits: bool
) -> None:
    files.free = free
    watermark = Watermark(files, str(tmp_path), least)
    watermark.look()
    if fits:
        watermark.check_spare("t:0", MIB)
        return
    with pytest.raises(StorageFullError, match=r"t:0 could not be rewritten: .* are kept for new messages"):
        watermark.check_spare("t:0", MIB)


# --- in the address ---


@pytest.mark.anyio
async def test_in_the_address(tmp_path: Path, files: FailingFiles) -> None:
    files.free = 4
    async with named_store(f"embedded:{tmp_path / 'data'}?brokers=2&min_free_bytes=5", files=files) as store:
        assert (tmp_path / "data" / "brk-1").is_dir()
        await prepare(store)
        with pytest.raises(StorageFullError):
            await send(store, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize(
    ("address", "options", "told"),
    [
        ("embedded:d?min_free_bytes=1x", {}, "a number of bytes"),
        ("embedded:d?min_free_bytes=", {}, "a number of bytes"),
        ("embedded:d?min_free_bytes=-1", {}, "a number of bytes"),
        ("embedded:d", {"min_free_bytes": -1}, "a number of bytes"),
        ("embedded:d", {"min_free_bytes": True}, "a number of bytes"),
        ("embedded:d", {"min_free_bytes": "7"}, "a number of bytes"),
        ("embedded:d?min_free_bytes=1", {"min_free_bytes": 1}, "given twice"),
        ("embedded:d?min_free_bytes=1&min_free_bytes=2", {}, "twice"),
        ("embedded:d?min_free=1", {}, "'min_free' is not an option of a store"),
        ("embedded:?min_free_bytes=1", {}, "needs a directory"),
        ("memory:d", {"min_free_bytes": 1}, "no such options"),
    ],
)
def test_what_is_refused(address: str, options: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        open_store(address, **options)


@pytest.mark.parametrize("address", ["./data", "what?", "a?b/c=d", "a?B=c", "a?b", "C:/x"])
def test_directories_that_are_none_of_it(address: str) -> None:
    assert split_options(address) == (address, {})


@pytest.mark.anyio
@pytest.mark.parametrize("least", [0, LEAST])
async def test_a_store_tells_what_is_left(tmp_path: Path, files: FailingFiles, least: int) -> None:
    store = open_store(f"embedded:{tmp_path / 'data'}", files=files, min_free_bytes=least)
    assert isinstance(store, StoreOnDisk)
    with pytest.raises(StoreClosedError):
        store.space()
    async with store:
        assert store.space() == (10 * LEAST, least, False)
        files.free = LEAST // 2
        with anyio.fail_after(20):
            while store.space() != (LEAST // 2, least, bool(least)):
                await anyio.sleep(0.01)
    with pytest.raises(StoreClosedError):
        store.space()
