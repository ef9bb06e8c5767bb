"""Damage in the middle of a topic's messages, where the CRC of a message does not cover its ordinals."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kclient.htp import FencedError, OrderError, StorageError, TopicSettings
from kclient.htp.embedded.inspection import Inspection
from kclient.htp.embedded.recovery import SyncCheckpoint
from kclient.htp.embedded.salvage import look_behind
from kclient.htp.findings import Severity
from kclient.records import BatchBuilder, RecordBatchFraming, decode_records
from tests.all_rows import scan_all
from tests.copied_stores import copy_as_killed
from tests.domains import domains_among
from tests.sweeps import slow
from tests.unit.htp.by_name import NamedStore, named_store
from tests.unit.htp.plain_messages import TOPIC

pytestmark = pytest.mark.anyio

FRAMING = RecordBatchFraming()
DENSE = TopicSettings(dense=True, index_interval_bytes=300)
COUNT = 20
KEPT = "*.damaged"

Damage = Callable[[bytearray, int], None]


def batch(offset: int, value: bytes | None = None) -> bytearray:
    builder = BatchBuilder(limit=1 << 20)
    builder.append(1000 + offset, b"key", b"value %02d" % offset if value is None else value)
    return builder.build(base_offset=offset)


ONE = len(batch(0))


@asynccontextmanager
async def opened(data: Path, settings: TopicSettings = DENSE) -> AsyncIterator[NamedStore]:
    async with named_store(f"embedded:{data}", settings=settings) as store:
        if not await domains_among(store.manager, [TOPIC.domain]):
            await store.manager.create_domain(TOPIC.domain)
            await store.manager.create_topic(TOPIC)
        await store.broker.open(TOPIC, FRAMING)
        yield store


async def send(store: NamedStore, first: int) -> None:
    await (await store.broker.send(TOPIC, [batch(first)])).synced()


async def filled(data: Path, *, killed: bool) -> Path:
    """A data directory with twenty batches of equal length; the file with them."""
    async with opened(data / "data") as store:
        for number in range(COUNT):
            await send(store, number)
        if killed:
            copy_as_killed(data / "data", data / "killed")
    (file,) = (data / ("killed" if killed else "data") / "brk-0" / "topics").glob("*/*.log")
    assert file.stat().st_size == COUNT * ONE
    return file


def store_of(file: Path) -> Path:
    return file.parents[3]


def change(file: Path, number: int, damage: Damage) -> bytes:
    content = bytearray(file.read_bytes())
    damage(content, number * ONE)
    file.write_bytes(content)
    return bytes(content)


async def offsets(store: NamedStore, start: int, stop: int) -> list[int]:
    found: list[int] = []
    position = start
    while position < stop and (pulled := await store.broker.pull(TOPIC, position)).data:
        found += [record.offset for record in decode_records(pulled.data, TOPIC.name, 0, start_offset=position)]
        assert pulled.last == found[-1]
        position = pulled.last + 1
    return found


def payload(content: bytearray, place: int) -> None:
    content[place + 66] ^= 1


def length(content: bytearray, place: int) -> None:
    content[place + 9] ^= 1


def short_length(content: bytearray, place: int) -> None:
    content[place + 11] = 60


def offset_up(content: bytearray, place: int) -> None:
    content[place + 3] ^= 1


def offset_down(content: bytearray, place: int) -> None:
    content[place + 7] &= 1


def offset_to_the_last(content: bytearray, place: int) -> None:
    content[place + 7] = 19


DAMAGES = [payload, length, short_length, offset_up, offset_down, offset_to_the_last]


@pytest.mark.parametrize("number", [6, *slow(0, 18)])
@pytest.mark.parametrize("damage", DAMAGES)
async def test_whole_messages_behind_damage_are_kept(
    tmp_path: Path, damage: Damage, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    """After a kill nothing says that they were acknowledged: neither they nor their ordinals may go."""
    file = await filled(tmp_path, killed=True)
    content = change(file, number, damage)
    if content == (tmp_path / "data" / file.relative_to(tmp_path / "killed")).read_bytes():
        pytest.skip("that is no damage")
    rest = content[number * ONE :]
    for _ in range(2):  # the second time, the process had been killed before it had written down what it had found
        lost = tmp_path / "again"
        shutil.rmtree(lost, ignore_errors=True)
        shutil.copytree(store_of(file), lost, ignore=shutil.ignore_patterns("*.sock"))
        caplog.clear()
        async with opened(lost) as store:
            assert (await store.broker.status(TOPIC))[:3] == (0, number, COUNT)
            assert [record.levelname for record in caplog.records] == ["ERROR"]
            assert (
                f"is damaged at byte {len(content) - len(rest)}: the messages from {number} on are lost" in caplog.text
            )
            assert await offsets(store, 0, number) == list(range(number))
            await send(store, COUNT)
            assert await offsets(store, number, COUNT + 1) == [COUNT]
    for _ in range(2):
        caplog.clear()
        async with opened(lost) as store:
            assert (await store.broker.status(TOPIC))[:3] == (0, COUNT + 1, COUNT + 1)
            assert not caplog.records
        (kept,) = lost.glob(f"brk-0/topics/*/{KEPT}")
        assert kept.read_bytes() == rest


async def test_a_wrong_offset_of_the_last_message(tmp_path: Path) -> None:
    """It is whole, so it was written: one ordinal more was given, whatever it says."""
    for number, damage in enumerate((offset_up, offset_down)):
        file = await filled(tmp_path / str(number), killed=True)
        change(file, COUNT - 1, damage)
        async with opened(store_of(file)) as store:
            assert (await store.broker.status(TOPIC))[:3] == (0, COUNT - 1, COUNT)


async def test_an_absurd_offset_behind_damage(tmp_path: Path) -> None:
    """No checkpoint could tell what comes next, so the epoch would be forgotten, too."""

    def absurd(content: bytearray, place: int) -> None:
        content[place] ^= 0x40

    file = await filled(tmp_path, killed=True)
    change(file, 6, payload)
    change(file, 7, absurd)
    async with opened(store_of(file)) as store:
        assert (await store.broker.status(TOPIC))[:3] == (0, 6, COUNT)
        await store.broker.open(TOPIC, FRAMING, epoch=7)
        await store.broker.close(TOPIC)
        with pytest.raises(FencedError):
            await store.broker.open(TOPIC, FRAMING, epoch=6)


@pytest.mark.parametrize("damage", [offset_up, offset_down, offset_to_the_last])
@pytest.mark.parametrize("number", [6, *slow(0, 1, 19)])
async def test_a_wrong_offset_is_not_served(tmp_path: Path, damage: Damage, number: int) -> None:
    """After a clean end messages are not verified again, nor does their CRC cover it."""
    file = await filled(tmp_path, killed=False)
    before = file.read_bytes()
    if change(file, number, damage) == before:
        pytest.skip("that is no damage")
    async with opened(store_of(file)) as store:
        assert (await store.broker.status(TOPIC))[:3] == (0, COUNT, COUNT)
        for _ in range(2):
            assert await offsets(store, 0, number) == list(range(number))
            with pytest.raises(StorageError, match="damaged at byte"):
                await store.broker.pull(TOPIC, number)
        for position in range(number):
            pulled = await store.broker.pull(TOPIC, position, max_bytes=2 * ONE)
            assert position == pulled.first <= pulled.last < number
            found = await store.broker.find_by_timestamp(TOPIC, 1000 + position)
            assert (found.first, found.last) == (position, position)
        with pytest.raises(StorageError, match="damaged at byte"):
            await store.broker.find_by_timestamp(TOPIC, 1000 + number)
        await send(store, COUNT)
        assert await offsets(store, COUNT, COUNT + 1) == [COUNT]


def test_what_is_behind_damage_is_read_once() -> None:
    """Each byte of it may be where a message begins."""
    content = b"\1" * 5000
    reads: list[int] = []

    def read(count: int, place: int) -> bytes:
        reads.append(place)
        return content[place : place + count]

    rest = look_behind(read, FRAMING, 0, len(content), expected=0, bound=None, dense=True)
    assert not rest.kept
    assert len(reads) <= 2


@pytest.mark.slow
async def test_a_torn_end_is_cut(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number, tail in enumerate((bytes(3_000_000), batch(COUNT)[:-1], b"\1" * 500, batch(COUNT)[:30])):
        file = await filled(tmp_path / str(number), killed=True)
        whole = file.read_bytes()
        file.write_bytes(whole + tail)
        caplog.clear()
        async with opened(store_of(file)) as store:
            assert (await store.broker.status(TOPIC))[:3] == (0, COUNT, COUNT)
        assert file.read_bytes() == whole
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert not list(file.parent.glob(KEPT))


@pytest.mark.parametrize("count", [0, 3])
async def test_a_long_torn_beginning_of_a_segment_bounds_nothing_of_its_successor(
    tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is a torn end is not found out; the segment that is begun instead has the same name."""
    monkeypatch.setattr("kclient.htp.embedded.salvage._SEARCH_BYTES", 20)
    torn = bytes(batch(count, b"x" * 500)[:-1])
    data = tmp_path / "data"
    async with opened(data) as store:
        for number in range(count):
            await send(store, number)
        await store.broker.roll(TOPIC)
    (folder,) = data.glob("brk-0/topics/*")
    (folder / f"{count:020}.log").write_bytes(torn)
    for number in range(count, count + 3):
        async with opened(data) as store:
            assert (await store.broker.status(TOPIC))[:3] == (0, number, number)
            await send(store, number)
            assert await offsets(store, 0, number + 1) == list(range(number + 1))
    (kept,) = folder.glob(KEPT)
    assert kept.read_bytes() == torn


async def test_a_limit_that_an_earlier_version_left_for_the_segment_in_use(tmp_path: Path) -> None:
    """It was that of a segment of the same name, of which nothing was sound."""
    async with opened(tmp_path / "data") as store:
        for number in range(3):
            await send(store, number)
    async with opened(tmp_path / "data") as store:
        ((key, row),) = (await scan_all(store.manager, "brk/")).items()
        checkpoint = SyncCheckpoint.decode(row.value)
        checkpoint.limits[0] = 0
        await store.broker.close(TOPIC)
        await store.manager.commit({key: checkpoint.encode()})
        assert await store.broker.open(TOPIC, FRAMING) == (0, 3, 3, 3 * ONE)


async def test_no_gap_is_appended(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as store:
        await send(store, 0)
        with pytest.raises(OrderError, match="ordinals 2 to 2 do not follow on 1"):
            await store.broker.send(TOPIC, [batch(2)])
        await send(store, 1)


SMALL = TopicSettings(dense=True, index_interval_bytes=300, segment_bytes=5 * ONE)


@pytest.mark.parametrize("killed", [True, *slow(False)])
@pytest.mark.parametrize(
    ("number", "rest", "missing"),
    [(0, None, (0, 4)), (0, 0, (0, 4)), (1, None, (5, 9)), (1, 0, (5, 9)), (2, 2, (12, 14))],
)
async def test_a_segment_that_lacks_messages_is_told(
    tmp_path: Path,
    killed: bool,
    number: int,
    rest: int | None,
    missing: tuple[int, int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A file that is gone, or shorter, with all its messages whole: who reads passes over a hole."""
    async with opened(tmp_path / "data", SMALL) as store:
        for each in range(COUNT):
            await send(store, each)
        await store.manager.commit({})  # the checkpoints of before are written by now
        copy_as_killed(tmp_path / "data", tmp_path / "killed")
    data = tmp_path / ("killed" if killed else "data")
    file = sorted(data.glob("brk-0/topics/*/*.log"))[number]
    if rest is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[: rest * ONE])
    first, last = missing
    start = last + 1 if (number, rest) == (0, None) else 0
    for attempt in range(2):
        caplog.clear()
        async with opened(data, SMALL) as store:
            told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
            if start and attempt:
                assert not told, "the log begins there now"
            else:
                assert [f"the messages from {first} to {last} are missing" in each for each in told] == [True]
            assert await offsets(store, start, COUNT) == [n for n in range(COUNT) if not first <= n <= last]


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("dense", [False, True])
async def test_a_gap_that_was_asked_for_is_no_loss(
    tmp_path: Path, dense: bool, refused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    data, settings = tmp_path / "data", TopicSettings(dense=dense)
    async with opened(data, settings) as store:
        for number in range(3):
            await send(store, number)
        await store.broker.open(TOPIC, FRAMING, next_position=100)
    assert ("ends at 3, and whoever opens it knows that all below 100 was given" in caplog.text) is dense
    (file,) = data.glob("brk-0/topics/*/*.log")
    if refused:
        file.with_name(f"{100:020}.log").touch()  # as an append that failed leaves it
    caplog.clear()
    for number in (100, 101):
        async with opened(data, settings) as store:
            end = number if number > 100 else 3
            assert (await store.broker.status(TOPIC))[:3] == (0, end, number)
            await send(store, number)
            assert await offsets(store, 0, number + 1) == [0, 1, 2, *range(100, number + 1)]
    assert not caplog.records
    file.write_bytes(file.read_bytes()[: 2 * ONE])
    async with opened(data, settings):
        assert ("the messages from 2 to 99 are missing" in caplog.text) is dense


async def test_what_was_never_synced_is_not_looked_for_in_backups(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A power cut may leave a later file of a topic and none before it."""
    async with opened(tmp_path / "full", SMALL) as store:
        for each in range(COUNT):
            await send(store, each)
    async with opened(tmp_path / "data", SMALL):
        pass
    left = sorted((tmp_path / "full").glob("brk-0/topics/*/*.log"))[1]
    (folder,) = (tmp_path / "data").glob("brk-0/topics/*")
    shutil.copy(left, folder)
    async with opened(tmp_path / "data", SMALL) as store:
        assert "the messages from 0 to 4 were never synced and are lost; it begins at 5" in caplog.text
        assert not [record for record in caplog.records if record.levelname == "ERROR"]
        assert await offsets(store, 5, 10) == list(range(5, 10))


async def test_a_trimmed_file_that_comes_back_is_no_loss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As by a power cut, which leaves it, and not the file of the segment that was begun in its place."""
    data = tmp_path / "data"
    async with opened(data, TopicSettings(dense=True, segment_bytes=2 * ONE)) as store:
        for number in range(3):
            await send(store, number)
        first, _ = sorted(data.glob("brk-0/topics/*/*.log"))
        content = first.read_bytes()
        assert await store.broker.trim(TOPIC, 3) == 3
    for file in data.glob("brk-0/topics/*/*.log"):
        file.unlink()
    first.write_bytes(content)
    with Inspection(str(data), FRAMING.name, dense=True) as inspection:
        (place,) = inspection.places.values()
        findings = inspection.topic(place, lambda _: None).findings
        assert not [each for each in findings if each.severity is Severity.ERROR]
    caplog.clear()
    async with opened(data) as store:
        await send(store, 3)
        assert await offsets(store, 3, 4) == [3]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_trimming_leaves_no_hole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = tmp_path / "data"
    async with opened(data, SMALL) as store:
        for each in range(COUNT):
            await send(store, each)
        assert await store.broker.trim(TOPIC, 12) == 10
    async with opened(data, SMALL) as store:
        assert await offsets(store, 10, COUNT) == list(range(10, COUNT))
        assert await store.broker.trim(TOPIC, COUNT) == COUNT
    async with opened(data, SMALL) as store:
        assert (await store.broker.status(TOPIC))[:3] == (COUNT, COUNT, COUNT)
    assert not caplog.records
