"""The one module that touches files: everything embedded HTP asks of the disk goes through a `Files` object.

It is the seam of the tests: a stand-in can fail any call, run out of space, or remember what each `sync` has made
durable and play a power cut. Every call that makes something durable says which one it is (`SyncPoint`), so that
a test can leave out any single one and show that something gets lost.

SQLite opens its own files; it makes durable what is inside the directory `mgr`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import shutil
import sys
import threading
from collections.abc import Sequence
from enum import Enum
from functools import cache
from pathlib import Path

from kclient.htp.embedded.space import space_in
from kclient.large_buffers import LargeBuffers
from kclient.syncing import sync_all, sync_data
from kclient.types import Buffer

_MAX_BUFFERS = 1024
"""The most buffers that one `pwritev` takes (IOV_MAX on Linux)."""


class SyncPoint(Enum):
    """What a sync makes durable, and what would be lost without it."""

    DATA_DIRECTORY = "data directory"
    """The entry of the data directory in its parent: without it everything."""
    FORMAT = "format"
    """The content of the file that tells the format version."""
    LAYOUT = "layout"
    """The entries of format file, `mgr` and `brk-N` in the data directory."""
    SHARD = "shard"
    """The entry of the directory of topics in `brk-N`."""
    TOPIC = "topic"
    """The entry of a topic's directory."""
    DELETED = "deleted"
    """That a topic's directory is gone: without it deleted messages come back."""
    SEGMENT = "segment"
    """The entry of a new segment in its topic's directory."""
    MESSAGES = "messages"
    """The messages in the active segment."""
    SEALED = "sealed"
    """The end of a segment that another one has followed since."""
    RECOVERED = "recovered"
    """Messages that a process wrote and did not live to sync: they are visible after recovery, so they must stay."""
    RECOVERED_ENTRIES = "recovered entries"
    """The entries of the segments that such a process created."""
    REWRITTEN = "rewritten"
    """The messages that are to take the place of a segment's: without it neither those nor these are there."""
    REWRITTEN_ENTRY = "rewritten entry"
    """That they have taken it: without it what was left out of them comes back. And, before that, that the index of the
    old segment is gone, which must not be taken for that of the new one."""
    EVERYTHING = "everything"
    """The whole file system at once (`syncfs`), in place of MESSAGES, SEALED and SEGMENT of many topics."""


class Files:
    """The operating system's files. Paths are text; open files are descriptors. Raises `OSError`."""

    def __init__(self) -> None:
        self._cached_reads = hasattr(os, "RWF_NOWAIT") and hasattr(os, "preadv")
        self.read_buffers: LargeBuffers = LargeBuffers()
        """Of `read_cached`, which only the event loop calls."""

    # directories

    def make_directory(self, path: str) -> bool:
        """Create a directory whose parent exists; False if it exists already."""
        try:
            Path(path).mkdir()
        except FileExistsError:
            return False
        return True

    def list_directory(self, path: str) -> list[str]:
        """The names in a directory, sorted."""
        return sorted(entry.name for entry in Path(path).iterdir())

    def exists(self, path: str) -> bool:
        """Whether there is such a file or directory."""
        return Path(path).exists()

    def rename(self, path: str, target: str) -> None:
        """Give a file or directory another name, in place of what had that name."""
        Path(path).replace(target)

    def remove(self, path: str) -> None:
        """Remove a file; that it does not exist is no error."""
        Path(path).unlink(missing_ok=True)

    def changed_ms(self, path: str) -> int:
        """When a file was last written or renamed, milliseconds since the epoch."""
        return Path(path).stat().st_ctime_ns // 1_000_000

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all in it; that it does not exist is no error."""
        try:
            for entry in Path(path).iterdir():
                entry.unlink()
            Path(path).rmdir()
        except FileNotFoundError:
            return
        except OSError:  # not as flat as a topic's directory is
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(path)

    def free_bytes(self, directory: str) -> int:
        """Bytes that may still be written in a directory, as far as its file system says so; very many if not."""
        return space_in(directory)

    def file_system(self, directory: str) -> int:
        """The number of the file system that holds a directory: two of the same number share their space."""
        return os.stat(directory).st_dev  # noqa: PTH116

    def open_directory(self, path: str) -> int:
        """Open a directory, to sync it or its file system."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def sync_directory(self, path: str, point: SyncPoint) -> None:
        """Make the entries of a directory durable. The `point` is for those who watch."""
        del point
        fd = Files.open_directory(self, path)
        try:
            sync_all(fd)
        finally:
            os.close(fd)

    # files

    def open(self, path: str, *, create: bool = False) -> int:
        """Open a file for reading and writing; with `create` it must not exist yet."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        return os.open(path, flags, 0o644)

    def close(self, fd: int) -> None:
        """Close a file."""
        os.close(fd)

    def size(self, fd: int) -> int:
        """Length of a file in bytes."""
        return os.fstat(fd).st_size

    def modified_ms(self, fd: int) -> int:
        """When a file was last written, milliseconds since the epoch."""
        return os.fstat(fd).st_mtime_ns // 1_000_000

    def set_modified_ms(self, fd: int, modified_ms: int) -> None:
        """Say that a file was last written at a time, milliseconds since the epoch."""
        os.utime(fd, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def write(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        """Write all the buffers, one after the other, from `position` on. On an error some may be written."""
        if len(buffers) == 1:
            written = os.pwrite(fd, buffers[0], position)
            if written != len(buffers[0]):
                self._write_rest(fd, buffers, position, written)
            return
        for begin in range(0, len(buffers), _MAX_BUFFERS):
            some = buffers[begin : begin + _MAX_BUFFERS]
            wanted = sum(map(len, some))
            written = os.pwritev(fd, some, position)
            if written != wanted:
                self._write_rest(fd, some, position, written)
            position += wanted

    def _write_rest(self, fd: int, buffers: Sequence[Buffer], position: int, written: int) -> None:
        # rare: a disk that has just run full, or a signal
        rest = memoryview(b"".join(buffers))[written:]
        position += written
        while rest:
            written = os.pwrite(fd, rest, position)
            if written == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            rest = rest[written:]
            position += written

    def read(self, fd: int, length: int, position: int) -> Buffer:
        """Up to `length` bytes from `position` on: less only at the file's end. May wait for the disk."""
        data = os.pread(fd, length, position)
        if len(data) == length or not data:
            return data
        parts = [data]
        got = len(data)
        while got < length:
            more = os.pread(fd, length - got, position + got)
            if not more:
                break
            parts.append(more)
            got += len(more)
        return b"".join(parts)

    def read_cached(self, fd: int, length: int, position: int) -> Buffer:
        """Up to `length` bytes from `position` on, as many as the page cache holds: none means ask the disk."""
        if not self._cached_reads:
            return self.read(fd, length, position)
        buffer = self.read_buffers.take(length)
        try:
            got = os.preadv(fd, (buffer,), position, os.RWF_NOWAIT)
        except BlockingIOError:
            return b""
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            self._cached_reads = False  # a file system that cannot tell (it is in memory, mostly)
            return self.read(fd, length, position)
        return buffer if got == length else memoryview(buffer)[:got]

    def truncate(self, fd: int, size: int) -> None:
        """Cut a file back."""
        os.ftruncate(fd, size)

    def sync(self, fd: int, point: SyncPoint) -> None:
        """Make the content of a file durable. The `point` is for those who watch."""
        del point
        sync_data(fd)

    @property
    def syncs_everything(self) -> bool:
        """Whether `sync_everything` can be had, and tells of errors."""
        return _syncfs() is not None

    def sync_everything(self, fd: int, point: SyncPoint) -> None:
        """Make the whole file system durable that an open file or directory belongs to."""
        del point
        syncfs = _syncfs()
        if syncfs is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        if syncfs(fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def prove(self, path: str, content: bytes) -> None:
        """Write to a small file that exists, and have it on the disk: so that the disk has answered."""
        fd = self.open(path)
        try:
            os.pwrite(fd, content, 0)
            sync_data(fd)
        finally:
            self.close(fd)

    def load(self, path: str) -> bytes | None:
        """The whole content of a small file; None if it does not exist."""
        try:
            return Path(path).read_bytes()
        except FileNotFoundError:
            return None

    def store(self, path: str, content: bytes, point: SyncPoint | None = None) -> None:
        """Write a small file so that its name always stands for a whole one.

        Its content is made durable first, if a `point` is given; its entry is the caller's affair.
        """
        # two threads may store the same file: the index of a segment, when it is closed and when the topic is
        temporary = f"{path}.{os.getpid()}.{threading.get_ident()}.tmp"
        self.remove(temporary)
        fd = self.open(temporary, create=True)
        try:
            if content:
                self.write(fd, [content], 0)
            if point is not None:
                self.sync(fd, point)
        finally:
            self.close(fd)
        self.rename(temporary, path)


@cache
def _syncfs() -> ctypes._FuncPointer | None:
    # Before Linux 5.8 syncfs did not report that writing back had failed, so it proves nothing there.
    if not sys.platform.startswith("linux") or _linux_version() < (5, 8):
        return None
    try:
        function = ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int]
    function.restype = ctypes.c_int
    return function


def _linux_version() -> tuple[int, int]:
    numbers = platform.release().split("-")[0].split(".")
    try:
        return int(numbers[0]), int(numbers[1])
    except (ValueError, IndexError):
        return (0, 0)
