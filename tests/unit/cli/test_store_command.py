"""`kclient store verify`: what is sound passes, and whatever is damaged is named."""

from __future__ import annotations

import errno
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from kclient.cli.app import run
from kclient.gateway.rows.topics import TopicRow
from kclient.htp import open_store
from kclient.htp.embedded.index import SegmentIndex
from kclient.htp.embedded.recovery import SyncCheckpoint
from tests.copied_stores import copy_filled
from tests.gateway_wire import batch_of, running

TOPIC_ID = "0" * 32


async def _fill(url: str) -> None:
    async with running(url) as (_, wire):
        await wire.create("t", 2, segment_bytes="1048576")
        for number in range(40):
            await wire.produce("t", batch_of(b"%d" % number * 20_000, sequence=-1))
        await wire.produce("t", batch_of(b"other"), 1)
        await wire.commit("g", "t", 5)
    async with running(url, mapping="multilevel") as (_, wire):
        await wire.create("u")
        await wire.produce("u", batch_of(b"x"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    anyio.run(copy_filled, f"embedded:{path}", _fill)
    return path


def segments(data: Path, topic: str = "t~0") -> list[Path]:
    return sorted(data.glob(f"brk-0/topics/{topic}.*/*.log"))


def state_of(data: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in data.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_sound_directory_is_as_it_was(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = state_of(data)
    assert run(["store", "verify", str(data)]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split("\t") for line in lines[1:]]
    assert [(row[0], row[1], row[4]) for row in rows] == [
        ("kafka~multilevel:u/0", "brk-0", "1"),
        ("t:0", "brk-0", "40"),
        ("t:1", "brk-0", "1"),
    ]
    assert int(rows[1][3]) == len(segments(data)) > 1
    assert int(rows[1][5]) == sum(path.stat().st_size for path in segments(data))
    assert state_of(data) == before


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a byte of a message": (lambda data: flip(segments(data)[0], 30_000), "error\tt:0: {}\tis damaged at byte"),
    "a file": (lambda data: segments(data)[1].unlink(), "error\tt:0"),
    "the first file": (lambda data: segments(data)[0].unlink(), "error\tt:0\tthe messages from 0 to"),
    "all files": (lambda data: [path.unlink() for path in segments(data)], "error\tt:0\tits files are missing"),
    "half a file": (lambda data: os.truncate(segments(data)[-1], 1000), "error\tt:0"),
    "the end of a file, amid others": (
        lambda data: cut_between_messages(segments(data)[0]),
        "error\tt:0: {}\tends at 2, and the next one begins at",
    ),
    "the end of the last file": (
        lambda data: cut_between_messages(segments(data)[-1]),
        "the messages between are lost",
    ),
    "an index": (lambda data: index_elsewhere(data), "error\tt:0: {}\tits index tells of a message at byte"),
}


def cut_between_messages(path: Path) -> None:
    """Cut a file off where its second message ends."""
    content, place = path.read_bytes(), 0
    for _ in range(2):
        place += 12 + int.from_bytes(content[place + 8 : place + 12], "big")
    os.truncate(path, place)
    path.with_suffix(".index").unlink(missing_ok=True)


def index_elsewhere(data: Path) -> None:
    """Give the first segment an index whose second entry is no message's place."""
    first = segments(data)[0]
    index = SegmentIndex(0, 1)
    index.add(0, 0, 100, 1)
    index.add(1, 1, 100, 1)
    first.with_suffix(".index").write_bytes(index.dump(0))


@pytest.mark.parametrize("what", DAMAGES)
def test_damage_to_messages_is_named(data: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    make, told = DAMAGES[what]
    first = segments(data)[0].name
    make(data)
    assert run(["store", "verify", str(data)]) == 1
    out = capsys.readouterr().out
    assert told.format(first) in out, out
    assert "error\tt:1" not in out


@pytest.fixture
def brokers(tmp_path: Path) -> Path:
    """A directory with three brokers, and a topic that has a partition at each."""

    anyio.run(copy_filled, f"embedded:{tmp_path / 'brokers'}", _fill_brokers)
    return tmp_path / "brokers"


async def _fill_brokers(url: str) -> None:
    async with running(url, mapping="broker", brokers=3) as (_, wire):
        await wire.create("b", 3)
        for number in range(3):
            await wire.produce("b", batch_of(b"%d" % number), number)


def test_each_broker_is_looked_at(brokers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = state_of(brokers)
    assert run(["store", "verify", str(brokers)]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()[1:]]
    assert [(row[0], row[1], row[4]) for row in rows] == [
        ("kafka~broker:b", f"brk-{number}", "1") for number in range(3)
    ]
    assert state_of(brokers) == before
    (file,) = brokers.glob("brk-1/topics/*/*.log")
    content = file.read_bytes()
    flip(file, len(content) - 1)
    assert run(["store", "verify", str(brokers)]) == 1
    assert f"error\tkafka~broker:b at brk-1: {file.name}\tis damaged" in capsys.readouterr().out
    file.write_bytes(content)
    (brokers / "brk-2").rename(brokers.parent / "elsewhere")
    assert run(["store", "verify", str(brokers)]) == 1
    assert "error\tkafka~broker:b at brk-2\tits files are missing" in capsys.readouterr().out


def test_a_partition_at_another_broker_than_its_row_says(brokers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def put() -> None:
        async with open_store(f"embedded:{brokers}") as store:
            found = (await store.manager.get(["kafka/topic/b"]))["kafka/topic/b"].value
            row = TopicRow.decode(found)
            elsewhere = row._replace(brokers=[*row.brokers[1:], row.brokers[0]])
            await store.manager.commit({"kafka/topic/b": elsewhere.encode()})

    anyio.run(put)
    assert run(["store", "verify", str(brokers)]) == 1
    out = capsys.readouterr().out
    assert out.count("and the manager says that it lies at brk-") == 3, out


def test_a_file_that_the_disk_does_not_give(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a disk that is failing, which is when somebody asks: all that can be read is."""
    first, pread = segments(data)[0], os.pread
    number = first.stat().st_ino

    def failing(fd: int, length: int, place: int) -> bytes:
        if os.fstat(fd).st_ino == number:
            raise OSError(errno.EIO, "Input/output error")
        return pread(fd, length, place)

    monkeypatch.setattr(os, "pread", failing)
    assert run(["store", "verify", str(data)]) == 1
    out = capsys.readouterr().out
    assert f"error\tt:0: {first.name}\tcannot be read: [Errno {errno.EIO}]" in out
    assert out.count("error\t") == 1
    assert "t:1\tbrk-0\t2\t1\t1\t" in out


def test_a_gap_that_was_asked_for_hides_no_loss(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One limit of a segment is no answer for the others."""
    first, last = segments(data)[0], segments(data)[-1]

    async def limit() -> None:
        async with open_store(f"embedded:{data}") as store:
            key = "brk/brk-0/1"
            checkpoint = SyncCheckpoint.decode((await store.manager.get([key]))[key].value)
            checkpoint.limits[0] = first.stat().st_size
            await store.manager.commit({key: checkpoint.encode()})

    anyio.run(limit)
    assert run(["store", "verify", str(data)]) == 0
    capsys.readouterr()
    cut_between_messages(last)
    assert run(["store", "verify", str(data)]) == 1
    assert "the messages between are lost" in capsys.readouterr().out


def test_what_a_crash_leaves_is_no_error(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with segments(data)[-1].open("ab") as file:
        file.write(b"\0" * 100)
    deleted = data / "brk-0" / "topics" / "old~0.1.deleted"
    deleted.mkdir()
    (data / "brk-0" / "topics" / "lost+found").mkdir()
    assert run(["store", "verify", str(data)]) == 0
    out = capsys.readouterr().out
    assert "100 bytes at its end are not whole messages and were never synced" in out
    assert "was deleted: the next start removes it" in out
    assert "belongs to no topic" in out


@pytest.mark.parametrize(
    ("key", "row", "told"),
    [
        ("kafka/topic/t", b"{}", "error\tkafka/topic/t\tcannot be read"),
        ("kafka/topic/new", "elsewhere", "which does not exist"),
        (f"kafka/log/{TOPIC_ID}/0", "checkpoint", f"note\tkafka/log/{TOPIC_ID}/0\tbelongs to no topic"),
        ("group/g", b"garbage", "error\tgroup/g\tcannot be read"),
        ("group/g", b'{"type":"classic"}', "error\tgroup/g\tcannot be read"),
        ("group-offset/g/gone/0", "offset", "note\tgroup-offset/g/gone/0\twas committed for a topic"),
        ("kafka/intent/half", b"domain", "note\tkafka/intent/half\ttells of a creation or deletion"),
        ("kafka/future/x", b"{}", "note\tkafka/future/x\tis a row that this version does not know"),
        ("brk/brk-0/2", b"garbage", "its checkpoint is damaged"),
    ],
)
def test_rows_are_looked_at(
    data: Path, key: str, row: bytes | str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def put() -> None:
        async with open_store(f"embedded:{data}") as store:
            rows = {**await store.manager.scan("kafka/", limit=1000), **await store.manager.scan("group-", limit=9)}
            value = row
            if isinstance(value, str):
                like = {"elsewhere": "kafka/topic/t", "checkpoint": "kafka/log/", "offset": "group-offset/"}[value]
                value = next(found.value for name, found in rows.items() if name.startswith(like))
            await store.manager.commit({key: value})

    anyio.run(put)
    code = run(["store", "verify", str(data)])
    out = capsys.readouterr().out
    assert told in out, out
    assert code == (0 if told.startswith("note") else 1)


def test_a_directory_that_is_in_use(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def look() -> int:
        async with running(f"embedded:{data}"):
            return run(["store", "verify", str(data)])

    assert anyio.run(look) == 1
    assert "is in use by process" in capsys.readouterr().err


def test_a_gateway_waits_for_nobody_who_has_looked(data: Path) -> None:
    assert run(["store", "verify", str(data)]) == 0
    anyio.run(_again, f"embedded:{data}")


async def _again(url: str) -> None:
    async with running(url) as (_, wire):
        assert len(await wire.values("t")) == 40


def test_what_is_no_data_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["store", "verify", str(tmp_path)]) == 2
    assert "is not a data directory" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_directory_whose_format_cannot_be_read(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "format.json").write_bytes(b"{}")
    assert run(["store", "verify", str(data)]) == 2
    assert "format.json is damaged: restore it from a backup" in capsys.readouterr().err


def test_messages_that_were_set_aside_and_a_topic_without_a_directory(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = segments(data)[0]
    first.with_name(f"{first.name}.orphan").write_bytes(b"")
    shutil.rmtree(segments(data, "t~1")[0].parent)
    assert run(["store", "verify", str(data)]) == 1
    out = capsys.readouterr().out
    assert f"note\tt:0: {first.name}.orphan\twas set aside; it stays for a week" in out
    assert "error\tt:1\tits files are missing" in out


def test_a_damaged_database(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "mgr" / "mgr.db").write_bytes(b"nothing" * 1000)
    assert run(["store", "verify", str(data)]) == 1
    assert "mgr.db is damaged: restore it from a backup" in capsys.readouterr().err


def test_directories_of_the_first_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = Path(__file__).parents[1] / "gateway" / "first_format.tar.gz"
    with tarfile.open(archive) as file:
        file.extractall(tmp_path, filter="data")
    for path in tmp_path.rglob("format.json"):
        assert run(["store", "verify", str(path.parent)]) == 0, capsys.readouterr().out
