"""`kclient store backup` and `restore`: whole or not at all, and damage is named. While a gateway works: see
`tests/unit/gateway/test_gateway_backup.py`.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from kclient.cli.app import run
from kclient.htp.embedded.backup import back_up
from kclient.htp.embedded.directory import FORMAT
from kclient.htp.embedded.files import Files, SyncPoint
from kclient.htp.embedded.manifest import BackedUpFile, BackupManifest
from kclient.htp.embedded.restoring import restore
from kclient.htp.errors import DamagedError, FormatVersionError, StorageError, StorageFullError
from kclient.types import Buffer
from tests.gateway_wire import batch_of, running
from tests.store_formats import VALUES, unpack


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return unpack(FORMAT, tmp_path)


@pytest.fixture
def backup(data: Path, tmp_path: Path) -> Path:
    assert run(["store", "backup", str(data), str(tmp_path / "backup")]) == 0
    return tmp_path / "backup"


def state_of(path: Path) -> dict[str, tuple[int, int]]:
    return {str(each): (each.stat().st_mtime_ns, each.stat().st_size) for each in path.rglob("*") if each.is_file()}


async def _values(data: Path) -> list[list[bytes]]:
    async with running(f"embedded:{data}") as (_, wire):
        return [await wire.values("orders", partition=number) for number in range(2)]


@pytest.mark.slow
def test_there_and_back(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = state_of(data)
    assert run(["store", "backup", str(data), str(tmp_path / "new" / "backup")]) == 0
    assert "2 HTP topics" in (told := capsys.readouterr().out), told
    assert state_of(data) == before
    assert run(["store", "verify", str(tmp_path / "new" / "backup" / "data")]) == 0
    saved = state_of(tmp_path / "new")
    (tmp_path / "restored").mkdir()  # one that is empty will do
    assert run(["store", "restore", str(tmp_path / "new" / "backup"), str(tmp_path / "restored")]) == 0
    assert state_of(tmp_path / "new") == saved
    assert run(["store", "verify", str(tmp_path / "restored")]) == 0
    assert anyio.run(_values, tmp_path / "restored") == [VALUES[0::2], VALUES[1::2]]
    for name in ("backup", "restored"):
        assert not list(tmp_path.rglob(f"{name}/*.tmp"))


def test_times_of_segments_are_kept(data: Path, tmp_path: Path) -> None:
    """Retention goes by them where messages have no timestamps."""
    for segment in data.rglob("*.log"):
        os.utime(segment, (1_000_000, 1_000_000))
    back_up(str(data), str(tmp_path / "backup"))
    for copy in (tmp_path / "backup").rglob("*.log"):
        os.utime(copy)  # as copying a backup does
    restore(str(tmp_path / "backup"), str(tmp_path / "restored"))
    found = {segment.stat().st_mtime for segment in (tmp_path / "restored").rglob("*.log")}
    assert found == {1_000_000.0}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, FORMAT))
def test_a_directory_of_an_earlier_version(number: int, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    data = unpack(number, tmp_path / "old")
    assert run(["store", "backup", str(data), str(tmp_path / "backup")]) == 0
    assert run(["store", "restore", str(tmp_path / "backup"), str(tmp_path / "restored")]) == 0
    assert (tmp_path / "restored" / "format.json").read_bytes() == (data / "format.json").read_bytes()
    assert anyio.run(_values, tmp_path / "restored") == [VALUES[0::2], VALUES[1::2]]


def test_a_gateway_waits_for_nobody_afterwards(data: Path, backup: Path) -> None:
    assert anyio.run(_values, data) == [VALUES[0::2], VALUES[1::2]]


# --- what is refused before anything is written ---


@pytest.mark.parametrize("modified", [-5, 10**13])
def test_a_clock_that_was_wrong(data: Path, tmp_path: Path, modified: int) -> None:
    """What is backed up can be restored."""
    os.utime(max(data.rglob("*.log")), (modified, modified))
    back_up(str(data), str(tmp_path / "backup"))
    restore(str(tmp_path / "backup"), str(tmp_path / "restored"))


def test_what_is_no_data_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["store", "backup", str(tmp_path), str(tmp_path / "backup")]) == 2
    assert "is not a data directory" in capsys.readouterr().err
    assert not (tmp_path / "backup").exists()


@pytest.mark.parametrize("command", ["verify", "upgrade", "dump"])
def test_a_backup_that_is_taken_for_a_data_directory(
    backup: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["store", command, str(backup)]) == 2
    told = capsys.readouterr().err
    assert f"it is a backup. Name {backup}/data to look into it" in told
    assert "kclient store restore" in told


@pytest.mark.parametrize("command", ["backup", "restore"])
@pytest.mark.parametrize("kind", ["full", "a file", "inside", "around"])
def test_targets(
    data: Path, backup: Path, tmp_path: Path, command: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = data if command == "backup" else backup
    target = {"full": tmp_path / "full", "a file": tmp_path / "file", "inside": source / "in", "around": tmp_path}[kind]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    (tmp_path / "file").touch()
    before = state_of(tmp_path)
    assert run(["store", command, str(source), str(target)]) == 1
    told = {"full": "it holds something", "a file": "is not a directory", "inside": "lie in one another"}
    assert told.get(kind, "lie in one another") in capsys.readouterr().err
    assert state_of(tmp_path) == before


def test_what_is_no_backup(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for source in (data, tmp_path / "nothing"):
        assert run(["store", "restore", str(source), str(tmp_path / "restored")]) == 2
        assert "is not a backup: it has no manifest.json" in capsys.readouterr().err
        assert not (tmp_path / "restored").exists()


def test_a_gateway_does_not_take_a_backup_for_its_data(backup: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["gateway", "--data", str(backup), "--listen", "127.0.0.1:0"]) == 2
    assert "is not a data directory of kclient" in capsys.readouterr().err


def test_a_damaged_database_is_not_backed_up(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "mgr" / "mgr.db").write_bytes(b"nothing" * 1000)
    assert run(["store", "backup", str(data), str(tmp_path / "backup")]) == 1
    assert "mgr.db is damaged" in capsys.readouterr().err
    assert not (tmp_path / "backup").exists()


# --- what breaks it off ---


class _Full(Files):
    """A disk that has so many bytes, whatever it says."""

    def __init__(self, space: int) -> None:
        super().__init__()
        self.space = space

    def write(self, fd: int, buffers: list[Buffer], position: int) -> None:  # type: ignore[override]
        self.space -= sum(map(len, buffers))
        if self.space < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(fd, buffers, position)


class _Small(Files):
    """A disk that says that it is almost full."""

    def free_bytes(self, directory: str) -> int:
        return 10_000


class _Broken(Files):
    """A disk that cannot make names durable."""

    def sync_directory(self, path: str, point: SyncPoint) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize(
    ("files", "kind", "told"),
    [
        (_Full(0), StorageFullError, "no space is left"),
        (_Full(1_000_000), StorageFullError, "no space is left"),
        (_Small(), StorageFullError, "has 10,000 bytes left"),
        (_Broken(), StorageError, "cannot be synced"),
    ],
)
@pytest.mark.parametrize("work", [back_up, restore])
def test_a_disk_in_the_way_leaves_nothing(
    data: Path, backup: Path, tmp_path: Path, work: Callable[..., object], files: Files, kind: type, told: str
) -> None:
    if isinstance(files, _Full):
        files = _Full(files.space)
    source = data if work is back_up else backup
    before = state_of(tmp_path)
    with pytest.raises(kind, match=told):
        work(str(source), str(tmp_path / "some" / "target"), files=files)
    assert state_of(tmp_path) == before
    assert not (tmp_path / "some").exists()
    work(str(source), str(tmp_path / "some" / "target"))


class _Crowded(Files):
    """Whoever begins a copy finds that somebody else has begun one there at the same moment, and has come further."""

    def open(self, path: str, *, create: bool = False) -> int:
        if path.endswith("unfinished.tmp"):
            Path(path).write_bytes(b"")
            Path(path).parent.joinpath("mgr").mkdir()
        return super().open(path, create=create)


class _Begun(Files):
    """The same of a gateway."""

    def open(self, path: str, *, create: bool = False) -> int:
        if path.endswith("unfinished.tmp"):
            Path(path).parent.joinpath("brk-0").mkdir()
        return super().open(path, create=create)


@pytest.mark.parametrize(
    ("files", "left", "told"),
    [(_Crowded(), ["mgr", "unfinished.tmp"], "File exists"), (_Begun(), ["brk-0"], "is not empty")],
)
def test_what_others_have_begun_at_the_same_moment_stays(
    backup: Path, tmp_path: Path, files: Files, left: list[str], told: str
) -> None:
    with pytest.raises(StorageError, match=told):
        restore(str(backup), str(tmp_path / "restored"), files=files)
    assert sorted(each.name for each in (tmp_path / "restored").iterdir()) == left


def test_a_disk_that_cannot_be_read(data: Path, backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", fail)
    for work, source in ((back_up, data), (restore, backup)):
        with pytest.raises(StorageError, match="cannot be read: Input/output error"):
            work(str(source), str(tmp_path / "target"))  # type: ignore[operator]
        assert not (tmp_path / "target").exists()


def test_a_file_that_becomes_shorter(data: Path, tmp_path: Path) -> None:
    """As that of a gateway whose sync has failed."""

    def shorten(_: int) -> None:
        os.truncate(max(data.rglob("*.log")), 10)

    with pytest.raises(StorageError, match=r"has become shorter than the \d+ bytes that it had"):
        back_up(str(data), str(tmp_path / "backup"), total=shorten)
    assert not (tmp_path / "backup").exists()


@pytest.mark.parametrize("work", [back_up, restore])
def test_an_interrupt_leaves_nothing(data: Path, backup: Path, tmp_path: Path, work: Callable[..., object]) -> None:
    copied = 0

    def interrupt(count: int) -> None:
        nonlocal copied
        copied += count
        if copied > 1_000_000:
            raise KeyboardInterrupt

    (tmp_path / "target").mkdir()
    with pytest.raises(KeyboardInterrupt):
        work(str(data if work is back_up else backup), str(tmp_path / "target"), progress=interrupt)
    assert list((tmp_path / "target").iterdir()) == []


# --- damage to a backup ---


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("what", ["flipped", "shorter", "longer", "missing"])
def test_every_damaged_file_is_named(
    backup: Path, tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [file.path for file in BackupManifest.decode((backup / "manifest.json").read_bytes()).files]
    assert len(names) > 6
    for name in names:
        damaged = tmp_path / "damaged"
        shutil.copytree(backup, damaged)
        path = damaged / "data" / name
        match what:
            case "flipped":
                flip(path, path.stat().st_size // 2)
            case "shorter":
                os.truncate(path, path.stat().st_size - 1)
            case "longer":
                with path.open("ab") as file:
                    file.write(b"x")
            case "missing":
                path.unlink()
        assert run(["store", "restore", str(damaged), str(tmp_path / "restored")]) == 1
        assert f"{path} is damaged: " in capsys.readouterr().err
        assert not (tmp_path / "restored").exists()
        shutil.rmtree(damaged)


@pytest.mark.slow
def test_a_damaged_manifest(backup: Path, tmp_path: Path) -> None:
    manifest = backup / "manifest.json"
    content = manifest.read_bytes()
    for place in range(len(content) - 1):
        flip(manifest, place)
        with pytest.raises((StorageError, FormatVersionError), match=str(manifest)):
            restore(str(backup), str(tmp_path / "restored"))
        manifest.write_bytes(content)
    assert not (tmp_path / "restored").exists()


def _later(manifest: BackupManifest) -> None:
    manifest.files[0] = manifest.files[0]._replace(modified_ms=1 << 61)


def _taken_later(manifest: BackupManifest) -> None:
    manifest.taken_ms = 1 << 61


def _nameless(manifest: BackupManifest) -> None:
    manifest.files[0] = manifest.files[0]._replace(path="a\0b")


@pytest.mark.parametrize("change", [_later, _taken_later, _nameless])
def test_a_manifest_that_nobody_has_written(
    backup: Path, tmp_path: Path, change: Callable[[BackupManifest], object]
) -> None:
    manifest = BackupManifest.decode((backup / "manifest.json").read_bytes())
    change(manifest)
    (backup / "manifest.json").write_bytes(manifest.encode())
    with pytest.raises(StorageError, match=r"manifest\.json is damaged"):
        restore(str(backup), str(tmp_path / "restored"))
    assert not (tmp_path / "restored").exists()


def test_a_pipe_in_a_backup(backup: Path, tmp_path: Path) -> None:
    manifest = BackupManifest.decode((backup / "manifest.json").read_bytes())
    manifest.files.insert(0, BackedUpFile("pipe", 0, 0, 0))
    (backup / "manifest.json").write_bytes(manifest.encode())
    os.mkfifo(backup / "data" / "pipe")
    with pytest.raises(DamagedError, match="pipe is damaged: it is not a file"):
        restore(str(backup), str(tmp_path / "restored"))


def test_a_backup_of_a_newer_version(backup: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = BackupManifest.decode((backup / "manifest.json").read_bytes())
    manifest.data_format = FORMAT + 1
    (backup / "manifest.json").write_bytes(manifest.encode())
    assert run(["store", "restore", str(backup), str(tmp_path / "restored")]) == 2
    assert f"holds data of format {FORMAT + 1}; this version of kclient knows formats up to" in capsys.readouterr().err
    assert not (tmp_path / "restored").exists()


def test_a_restore_that_was_killed_is_no_data_directory(backup: Path, tmp_path: Path) -> None:
    """`format.json` comes last."""
    restored = tmp_path / "restored"
    restore(str(backup), str(restored))
    (restored / "format.json").unlink()
    assert run(["store", "verify", str(restored)]) == 2
    assert run(["gateway", "--data", str(restored), "--listen", "127.0.0.1:0"]) == 2


def test_a_gateway_does_not_begin_where_a_backup_is_restored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that was killed when it had hardly begun."""
    (tmp_path / "unfinished.tmp").touch()
    assert run(["gateway", "--data", str(tmp_path), "--listen", "127.0.0.1:0"]) == 2
    assert "holds an unfinished copy" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["unfinished.tmp"]


async def _serve(data: Path) -> None:
    async with running(f"embedded:{data}") as (_, wire):
        assert (await wire.produce("orders", batch_of(b"later"))).base_offset == 30


def test_a_restored_store_goes_on(backup: Path, tmp_path: Path) -> None:
    restore(str(backup), str(tmp_path / "restored"))
    anyio.run(_serve, tmp_path / "restored")


# --- what the store has lost before ---


@pytest.mark.parametrize("in_use", [False, True])
@pytest.mark.parametrize("what", ["directory", "segments"])
def test_what_is_missing_is_told(
    data: Path, tmp_path: Path, what: str, in_use: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the backup is kept: what it has may be all that is left."""
    lost, kept = sorted((data / "brk-0" / "topics").iterdir())
    if what == "directory":
        shutil.rmtree(lost)
    else:
        for segment in lost.iterdir():
            segment.unlink()

    async def take() -> int:
        async with running(f"embedded:{data}"):
            return await anyio.to_thread.run_sync(run, ["store", "backup", str(data), str(tmp_path / "backup")])

    code = anyio.run(take) if in_use else run(["store", "backup", str(data), str(tmp_path / "backup")])
    assert code == 1
    told = capsys.readouterr().err
    assert f"{data}/brk-0/topics/{lost.name}" in told.replace("\n", "")
    assert "missing" in told
    assert "Keep the older backups" in told
    assert kept.name not in told
    restore(str(tmp_path / "backup"), str(tmp_path / "restored"))
    assert {each.name for each in (tmp_path / "restored" / "brk-0" / "topics").iterdir()} >= {kept.name}
    assert (tmp_path / "restored" / "brk-0" / "topics" / lost.name).exists() is (what == "segments")
