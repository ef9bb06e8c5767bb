"""Copies files of a store to or from a backup, each up to a length, durably and with a checksum."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from crc32c import crc32c

from kclient.htp.embedded.files import Files, SyncPoint
from kclient.htp.embedded.space import NO_SPACE
from kclient.htp.errors import StorageError, StorageFullError
from kclient.syncing import sync_data

_PIECE: Final = 1 << 20
_SPARE: Final = 1 << 20
"""Bytes beside the files: directories, and the manifest."""
UNFINISHED: Final = "unfinished.tmp"
"""An empty file that says that somebody copies into the directory, or was cut off while he did."""


class Copier:
    """Makes a copy of several files below one directory: `with Copier(...) as copier:`, all of it or nothing.

    Whatever ends the body before `finish` has returned, what was copied is removed again.

    Args:
        target: The directory, which is absent or empty.
        files: The file system.
        progress: Is told how many bytes were copied.

    Raises:
        StorageError: The target is not empty, or cannot be made.
    """

    def __init__(self, target: str, files: Files, progress: Callable[[int], object]) -> None:
        self.target = target
        self._files = files
        self._progress = progress
        self._made: list[str] = []
        """Directories above and at `target` that were not there before."""
        self._directories: list[str] = []
        self._at_once = files.syncs_everything
        """Whether everything is synced by one call at the end: much faster than file by file."""
        self._root = -1
        self._ours = False
        """Whether what lies in the target is ours: else somebody else has begun there at the same time."""
        self._finished = False

    def __enter__(self) -> Self:
        self._check_empty()
        try:
            self._begin()
        except BaseException:
            self._give_up()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._finished:
            self._give_up()
        self._close()

    def _check_empty(self, *, but_for: str | None = None) -> None:
        path = Path(self.target)
        try:
            if path.exists():
                if not path.is_dir():
                    raise StorageError(f"{path} is not a directory: name one that is empty, or new")
                found = next((each.name for each in path.iterdir() if each.name != but_for), None)
                if found is not None:
                    raise StorageError(f"{path} is not empty (it holds {found}): name another directory, or a new one")
        except OSError as error:
            raise self.trouble("cannot be made or written to", error) from error

    def _begin(self) -> None:
        path = Path(self.target)
        try:
            for each in [*reversed(path.parents), path]:
                if not each.exists():
                    each.mkdir()
                    self._made.append(str(each))
            self._mark(path / UNFINISHED)
            self._root = self._files.open_directory(self.target)  # before anything is written: it is told of errors
        except OSError as error:
            raise self.trouble("cannot be made or written to", error) from error

    def _mark(self, path: Path) -> None:
        """Have the target be ours: from here on no gateway begins there, and one that has is found."""
        self._files.close(self._files.open(str(path), create=True))
        try:
            self._check_empty(but_for=UNFINISHED)
        except BaseException:
            path.unlink()
            raise
        self._ours = True

    def check_space(self, needed: int) -> None:
        """Refuse what will not fit, before anything is copied. Raises `StorageFullError`."""
        left = self._files.free_bytes(self.target)
        if left < needed + _SPARE:
            raise StorageFullError(
                f"{self.target} has {left:,} bytes left, and {needed + _SPARE:,} are needed: make space, or name a "
                "directory of another file system"
            )

    def make_directory(self, name: str) -> None:
        """A directory below the target, with those above it."""
        path = self.target
        try:
            for part in name.split("/"):
                path = f"{path}/{part}"
                if self._files.make_directory(path):
                    self._directories.append(path)
        except OSError as error:
            raise self.trouble(f"cannot take {name}", error) from error

    def copy(self, source: str, name: str, length: int, modified_ms: int) -> tuple[int, int]:
        """Copy the beginning of a file; how many bytes it had of those, and their CRC-32C.

        Args:
            source: The path of the file.
            name: The path of the copy, below the target, whose directory was made.
            length: Bytes to be copied.
            modified_ms: What the copy has for the time when it was written.
        """
        crc, place = 0, 0
        reading = _reading(source)
        try:
            path = f"{self.target}/{name}"
            writing = self._create(path)
            try:
                while place < length and (piece := _read(reading, min(_PIECE, length - place), place, source)):
                    crc = crc32c(piece, crc)
                    self._write(writing, piece, place)
                    place += len(piece)
                    self._progress(len(piece))
                self._sync(writing)
                self._set_time(writing, modified_ms)
            finally:
                self._files.close(writing)
        finally:
            os.close(reading)
        return place, crc

    def read_back(self, path: str) -> tuple[int, int]:
        """Make a file durable that somebody else has written below the target; its length and CRC-32C."""
        crc, place = 0, 0
        fd = _reading(path, os.O_RDWR)
        try:
            self._sync(fd)
            while piece := _read(fd, _PIECE, place, path):
                crc = crc32c(piece, crc)
                place += len(piece)
        finally:
            os.close(fd)
        return place, crc

    def _store(self, name: str, content: bytes) -> None:
        """Write a small file so that its name always stands for a whole one, durably."""
        try:
            self._files.store(f"{self.target}/{name}", content, SyncPoint.FORMAT)
            self._files.sync_directory(self.target, SyncPoint.DATA_DIRECTORY)
        except OSError as error:
            raise self.trouble(f"cannot take {name}", error) from error

    def _sync_all(self) -> None:
        """Make everything durable that was copied, with the entries of what was made."""
        above = [str(Path(each).parent) for each in self._made]
        try:
            if self._at_once:
                self._files.sync_everything(self._root, SyncPoint.EVERYTHING)
            for path in above if self._at_once else [*self._directories, self.target, *above]:
                self._files.sync_directory(path, SyncPoint.DATA_DIRECTORY)
        except OSError as error:
            raise self.trouble("cannot be synced", error) from error

    def finish(self, name: str, content: bytes) -> None:
        """Store the file that makes the rest count, when that is durable."""
        self._sync_all()
        self._store(name, content)
        self._finished = True
        with suppress(OSError):
            Path(self.target, UNFINISHED).unlink()

    def _close(self) -> None:
        root, self._root = self._root, -1
        if root >= 0:
            self._files.close(root)

    def _give_up(self) -> None:
        """Remove everything that was copied, and the directories that were made for it."""
        self._close()
        with suppress(OSError):
            for path in Path(self.target).iterdir() if self._ours else ():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()
        for made in reversed(self._made):
            with suppress(OSError):  # somebody has put something there
                Path(made).rmdir()

    def trouble(self, what: str, error: OSError) -> StorageError:
        """What an error of the operating system means for whoever copies."""
        if error.errno in NO_SPACE:
            return StorageFullError(
                f"{self.target} {what}: no space is left on its file system. What was copied is removed again: make "
                "space, or name a directory of another one"
            )
        return StorageError(f"{self.target} {what}: {error.strerror or error}")

    def _create(self, path: str) -> int:
        try:
            return self._files.open(path, create=True)
        except OSError as error:
            raise self.trouble(f"cannot take {path}", error) from error

    def _write(self, fd: int, piece: bytes, place: int) -> None:
        try:
            self._files.write(fd, [piece], place)
        except OSError as error:
            raise self.trouble("cannot be written to", error) from error

    def _set_time(self, fd: int, modified_ms: int) -> None:
        try:
            os.utime(fd, ns=(modified_ms * 1_000_000,) * 2)
        except OSError as error:
            raise self.trouble("cannot be written to", error) from error

    def _sync(self, fd: int) -> None:
        if self._at_once:
            return
        try:
            sync_data(fd)
        except OSError as error:
            raise self.trouble("cannot be synced", error) from error


def _reading(source: str, mode: int = os.O_RDONLY) -> int:
    try:
        return os.open(source, mode | os.O_CLOEXEC)
    except OSError as error:
        raise StorageError(f"{source} cannot be read: {error.strerror or error}") from error


def _read(fd: int, length: int, place: int, source: str) -> bytes:
    try:
        return os.pread(fd, length, place)
    except OSError as error:
        raise StorageError(f"{source} cannot be read: {error.strerror or error}") from error
