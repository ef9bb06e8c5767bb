"""Stand-ins for the disk: one that remembers what was synced and plays a power cut, others fail or hang."""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
import threading
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kclient.htp.embedded.files import Files, SyncPoint
from kclient.types import Buffer


def _names(path: str) -> list[str]:
    """What is in a directory, but for sockets: nothing of these is on a disk."""
    return [name for name in os.listdir(path) if not name.endswith(".sock")]


class PowerCutFiles(Files):
    """Real files, of which it is known what a power cut would leave.

    A file's content is durable as of its last sync, a directory's entries as of the directory's last sync. SQLite
    syncs its own files, so `mgr` survives as it is, if its entry does. Nothing is really synced, which is faster.

    Args:
        base: A directory that is durable, and in which everything happens.
        skip: Syncs that are left out.
    """

    def __init__(self, base: Path, skip: Container[SyncPoint] = ()) -> None:
        super().__init__()
        self.base = str(base)
        self.skip = skip
        self.reached: set[SyncPoint] = set()
        self.on_sync: Callable[[SyncPoint, bool], object] | None = None
        """Is told of syncs of files: before (False) and when their content is durable."""
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._inodes: dict[int, int] = {}
        """Inode numbers are used again; a number of our own is not."""
        self._content: dict[int, bytes] = {}
        self._entries: dict[int, dict[str, int]] = {}

    @classmethod
    def found(cls, base: Path, skip: Container[SyncPoint] = ()) -> PowerCutFiles:
        """The disk of a machine that is switched on: all that is there is durable.

        Args:
            base: What is there, as `cut` has left it; a directory that is made if it does not exist.
            skip: Syncs that are left out from now on.
        """
        base.mkdir(exist_ok=True)
        disk = cls(base, skip)
        for folder in [base, *(each for each in base.rglob("*") if each.is_dir())]:
            disk._sync_entries(str(folder))
        for file in base.rglob("*"):
            if file.is_file():
                disk._content[disk._number(str(file))] = file.read_bytes()
        return disk

    # creating: a new inode, of which nothing is durable

    def make_directory(self, path: str) -> bool:
        with self._lock:
            made = super().make_directory(path)
            if made:
                number = self._inodes[os.stat(path).st_ino] = next(self._numbers)
                self._entries[number] = {}
            return made

    def open(self, path: str, *, create: bool = False) -> int:
        with self._lock:
            fd = super().open(path, create=create)
            if create:
                self._inodes[os.fstat(fd).st_ino] = next(self._numbers)
            return fd

    # changing: not while the power is cut

    def rename(self, path: str, target: str) -> None:
        with self._lock:
            super().rename(path, target)

    def remove(self, path: str) -> None:
        with self._lock:
            super().remove(path)

    def remove_tree(self, path: str) -> None:
        with self._lock:
            super().remove_tree(path)

    def _number(self, path: str) -> int:
        return self._inodes.setdefault(os.stat(path).st_ino, next(self._numbers))

    # syncing

    @property
    def syncs_everything(self) -> bool:
        return True

    def sync(self, fd: int, point: SyncPoint) -> None:
        with self._lock, self._told(point):
            if self._counts(point):
                number = self._inodes.setdefault(os.fstat(fd).st_ino, next(self._numbers))
                self._content[number] = os.pread(fd, os.fstat(fd).st_size, 0)

    def sync_directory(self, path: str, point: SyncPoint) -> None:
        with self._lock:
            if self._counts(point):
                self._sync_entries(path)

    def sync_everything(self, fd: int, point: SyncPoint) -> None:
        with self._lock, self._told(point):
            if self._counts(point):
                for folder, _, names in os.walk(self.base):
                    self._sync_entries(folder)
                    for name in set(names) & set(_names(folder)):
                        self._content[self._number(f"{folder}/{name}")] = Path(folder, name).read_bytes()

    @contextmanager
    def _told(self, point: SyncPoint) -> Iterator[None]:
        if self.on_sync is not None:
            self.on_sync(point, False)
        yield
        if self.on_sync is not None:
            self.on_sync(point, True)

    def _counts(self, point: SyncPoint) -> bool:
        self.reached.add(point)
        return point not in self.skip

    def _sync_entries(self, path: str) -> None:
        self._entries[self._number(path)] = {name: self._number(f"{path}/{name}") for name in _names(path)}

    def removals_reach_the_disk(self, path: str) -> None:
        """What was removed from a directory, and only that, becomes durable: nobody asks for it, it may happen."""
        with self._lock:
            number = self._number(path)
            here = _names(path)
            entries = self._entries.get(number, {})
            self._entries[number] = {name: each for name, each in entries.items() if name in here}

    # the power cut

    def cut(self, target: Path, tear: random.Random | None = None) -> None:
        """Write down in `target` what a power cut leaves of the base directory.

        Args:
            target: A directory to be made.
            tear: Has some of what was not synced survive too: any part of it may have reached the disk.
        """
        with self._lock:
            target.mkdir()
            names = {name: self._number(f"{self.base}/{name}") for name in _names(self.base)}
            durable = self._entries.get(self._number(self.base), {})
            self._build(self.base, self._mixed(durable, names, tear), str(target), tear)

    def _mixed(self, durable: dict[str, int], now: dict[str, int], tear: random.Random | None) -> dict[str, int]:
        if tear is None:
            return durable
        mixed = dict(durable)
        for name in sorted({*durable, *now}):
            if durable.get(name) != now.get(name) and tear.random() < 0.5:
                mixed.pop(name, None)
                if name in now:
                    mixed[name] = now[name]
        return mixed

    def _build(self, source: str, entries: dict[str, int], target: str, tear: random.Random | None) -> None:
        present = self._present(source)
        for name, number in entries.items():
            path = present.get(number)
            if path is not None and os.path.isdir(path):
                if name == "mgr":
                    shutil.copytree(path, f"{target}/{name}", ignore=shutil.ignore_patterns("*-shm", "*.sock"))
                    continue
                os.mkdir(f"{target}/{name}")
                now = {each: self._number(f"{path}/{each}") for each in _names(path)}
                mixed = self._mixed(self._entries.get(number, {}), now, tear)
                self._build(path, mixed, f"{target}/{name}", tear)
            elif path is None and number in self._entries:  # a directory that was removed, and comes back
                os.mkdir(f"{target}/{name}")
                self._build(source, self._entries[number], f"{target}/{name}", tear)
            else:
                Path(target, name).write_bytes(self._torn(number, path, tear))

    def _present(self, folder: str) -> dict[int, str]:
        """Where each inode of a folder is now (it may have been renamed); empty for a folder that is gone."""
        if not os.path.isdir(folder):
            return {}
        return {self._number(f"{folder}/{name}"): f"{folder}/{name}" for name in _names(folder)}

    def _torn(self, number: int, path: str | None, tear: random.Random | None) -> bytes:
        durable = self._content.get(number, b"")
        if tear is None or path is None:
            return durable
        now = Path(path).read_bytes()
        if now[: len(durable)] != durable:  # cut back since: the old content or the new one
            return tear.choice([durable, now])
        rest = bytearray(now[len(durable) :])
        del rest[tear.randint(0, len(rest)) :]
        if rest and tear.random() < 0.5:  # the length reached the disk before the data did
            begin = tear.randrange(len(rest))
            rest[begin:] = bytes(len(rest) - begin)
        return durable + bytes(rest)


class FailingFiles(Files):
    """Real files, until told otherwise.

    Set `on_write`, `on_sync`, `on_read` or `on_create` to a function that raises the `OSError` wanted, or not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.on_write: Callable[[int, int], object] | None = None
        self.on_sync: Callable[[SyncPoint], object] | None = None
        self.on_read: Callable[[], object] | None = None
        self.on_create: Callable[[str], object] | None = None
        self.space: int | None = None
        """Bytes that may still be written, if there is a limit."""
        self.free: int | None = None
        """What the disk says is free, if that is another number than the truth."""
        self.synced: list[tuple[int, SyncPoint]] = []
        """Inode and point of each sync, also of those that failed."""
        self.cold = False
        """Whether nothing is in the page cache."""

    def open(self, path: str, *, create: bool = False) -> int:
        if create and self.on_create is not None:
            self.on_create(path)
        return super().open(path, create=create)

    def free_bytes(self, directory: str) -> int:
        return super().free_bytes(directory) if self.free is None else self.free

    def write(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        data = b"".join(buffers)
        if self.on_write is not None:
            self.on_write(len(data), position)
        if self.space is not None:
            fits = min(self.space, len(data))
            self.space -= fits
            super().write(fd, [data[:fits]], position)
            if fits < len(data):
                raise no_space()
            return
        super().write(fd, buffers, position)

    def read(self, fd: int, length: int, position: int) -> Buffer:
        if self.on_read is not None:
            self.on_read()
        return super().read(fd, length, position)

    def read_cached(self, fd: int, length: int, position: int) -> Buffer:
        return b"" if self.cold else super().read_cached(fd, length, position)

    def sync(self, fd: int, point: SyncPoint) -> None:
        self.synced.append((os.fstat(fd).st_ino, point))
        if self.on_sync is not None:
            self.on_sync(point)
        super().sync(fd, point)

    def sync_directory(self, path: str, point: SyncPoint) -> None:
        self.synced.append((os.stat(path).st_ino, point))
        if self.on_sync is not None:
            self.on_sync(point)
        super().sync_directory(path, point)

    def sync_everything(self, fd: int, point: SyncPoint) -> None:
        self.synced.append((os.fstat(fd).st_ino, point))
        if self.on_sync is not None:
            self.on_sync(point)
        super().sync_everything(fd, point)


def no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def broken() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))


class HangingFiles(Files):
    """The disk of one broker answers nothing from `hang` on, until `go_on`."""

    def __init__(self, shard: str) -> None:
        super().__init__()
        self._shard = f"/{shard}/"
        self._paths: dict[int, str] = {}
        self._may = threading.Event()
        self._may.set()
        self._syncs_only = False
        self.reached = threading.Event()
        """Set when something hangs."""

    def hang(self, *, syncs_only: bool = False) -> None:
        self._syncs_only = syncs_only
        self._may.clear()

    def go_on(self) -> None:
        self._may.set()

    def _ask(self, path: str) -> None:
        if self._shard in path and not self._may.is_set():
            self.reached.set()
            assert threading.current_thread() is not threading.main_thread(), "the event loop waits for the disk"
            assert self._may.wait(60)

    def open(self, path: str, *, create: bool = False) -> int:
        if not self._syncs_only:
            self._ask(path)
        fd = super().open(path, create=create)
        self._paths[fd] = path
        return fd

    def write(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        if not self._syncs_only:
            self._ask(self._paths.get(fd, ""))
        super().write(fd, buffers, position)

    def sync(self, fd: int, point: SyncPoint) -> None:
        self._ask(self._paths.get(fd, ""))
        super().sync(fd, point)

    def read(self, fd: int, length: int, position: int) -> Buffer:
        if not self._syncs_only:
            self._ask(self._paths.get(fd, ""))
        return super().read(fd, length, position)

    def read_cached(self, fd: int, length: int, position: int) -> Buffer:
        hangs = self._shard in self._paths.get(fd, "") and not (self._may.is_set() or self._syncs_only)
        return b"" if hangs else super().read_cached(fd, length, position)

    def remove_tree(self, path: str) -> None:
        self._ask(path)
        super().remove_tree(path)

    def rename(self, path: str, target: str) -> None:
        self._ask(path)
        super().rename(path, target)
