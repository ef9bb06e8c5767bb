"""Second names of files, by which a backup reads what the owner removes meanwhile."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kclient.htp.embedded.links import HardLinks, remove_left_behind
from kclient.htp.errors import StorageError


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    """The open directory `tmp_path/topic`."""
    (tmp_path / "topic").mkdir()
    fd = os.open(tmp_path / "topic", os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def link(links: HardLinks, directory: int, name: str) -> Path:
    path = links.link(directory, name, os.stat(name, dir_fd=directory))
    assert path is not None
    return Path(path)


def test_what_is_linked_stays_readable(tmp_path: Path, directory: int) -> None:
    file = tmp_path / "topic" / "a"
    file.write_bytes(b"one")
    with HardLinks(str(tmp_path)) as links:
        first = link(links, directory, "a")
        assert link(links, directory, "a") == first, "one link a file"
        (tmp_path / "topic").rename(tmp_path / "renamed")
        assert link(links, directory, "a") == first
        (tmp_path / "renamed" / "a").unlink()
        assert first.read_bytes() == b"one"
        (tmp_path / "renamed" / "a").write_bytes(b"two")
        assert link(links, directory, "a").read_bytes() == b"two", "another file of the same name"
        assert first.read_bytes() == b"one"
    assert not list(tmp_path.glob("backup-*"))


def test_a_file_that_has_gone(tmp_path: Path, directory: int) -> None:
    for name in ("a", "b"):
        (tmp_path / "topic" / name).write_bytes(b"x")
    status = os.stat("a", dir_fd=directory)
    with HardLinks(str(tmp_path)) as links:
        (tmp_path / "topic" / "b").rename(tmp_path / "topic" / "a")  # whose name another one has now
        assert links.link(directory, "a", status) is None
        (tmp_path / "topic" / "a").unlink()
        assert links.link(directory, "a", status) is None


def test_links_that_somebody_removes(tmp_path: Path, directory: int) -> None:
    """A file that is there is not taken for gone."""
    (tmp_path / "topic" / "a").write_bytes(b"x")
    with HardLinks(str(tmp_path)) as links:
        shutil.rmtree(links.path)
        with pytest.raises(StorageError, match="was removed meanwhile: take the backup again"):
            links.link(directory, "a", os.stat("a", dir_fd=directory))


def test_links_that_are_removed_before_they_are_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another backup that begins, or an owner that starts."""
    flock = fcntl.flock

    def late(fd: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX:
            remove_left_behind(str(tmp_path))
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(StorageError, match="it was removed at once"), HardLinks(str(tmp_path)):
        pass
    assert not list(tmp_path.iterdir())


def test_what_was_left_behind_goes_and_what_is_in_use_stays(tmp_path: Path) -> None:
    left = tmp_path / "backup-1-00"
    left.mkdir()
    (left / "lock").touch()
    (left / "0").touch()
    unlocked = tmp_path / "backup-2-00"  # cut off before it had a lock
    unlocked.mkdir()
    os.utime(unlocked, (0, 0))
    with HardLinks(str(tmp_path)) as links:
        assert [str(path) for path in tmp_path.glob("backup-*")] == [links.path]
        with HardLinks(str(tmp_path)) as others:
            remove_left_behind(str(tmp_path))
            assert {str(path) for path in tmp_path.glob("backup-*")} == {links.path, others.path}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("body", [KeyboardInterrupt, ValueError])
def test_they_go_whatever_happens(tmp_path: Path, body: type[BaseException]) -> None:
    with pytest.raises(body), HardLinks(str(tmp_path)):
        raise body
    assert not list(tmp_path.iterdir())


def test_a_shard_that_cannot_be_written_to(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be made"), HardLinks(str(tmp_path / "missing")):
        pass
