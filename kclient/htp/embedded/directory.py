"""The data directory: its format version, its layout, and the lock that gives it one owner.

format.json      {"format": 3, ...}: the version of everything below
mgr/mgr.db       domains, topics, values, leases (SQLite)
brk-0/lock       locked by the owner, whose process id it holds
brk-0/topics/    a directory per topic: NAME.INCARNATION, for people and for the program
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from kclient.htp.embedded.files import Files, SyncPoint
from kclient.htp.errors import FormatVersionError, LockedError, StoreClosedError
from kclient.htp.port import Place
from kclient.htp.rows import parse_object, whole

FORMAT: Final = 3
"""The version of the format that this code writes: it rises with that of any row, since what wrote the older one would
take the rows of the newer one for damaged."""


def _read_as_it_is(_files: Files, _path: str) -> None:
    """Rows of format 1 have no checksum, nor checkpoints a number; they are read, and written anew when they change."""


def _by_the_manager(_files: Files, _path: str) -> None:
    """The database gets its new tables when it is opened (`migration.py`), once it is known to be sound.

    The version rises because what wrote format 2 would delete values without a trace in the log of changes.
    """


MIGRATIONS: Final[dict[int, Callable[[Files, str], None]]] = {1: _read_as_it_is, 2: _by_the_manager}
"""From each older version, the function that makes of it the next one."""

_LOCK_FILE: Final = "lock"
SHARD: Final = re.compile(r"brk-\d+")
"""What the directories of shards are called."""
_FORMAT_FILE: Final = "format.json"
_DELETED: Final = ".deleted"
_SET_ASIDE: Final = ".orphan"
"""The end of the name of a directory that belongs to no topic, though nobody has deleted it."""
_READABLE: Final = 180
"""Characters of a topic's name in its directory's; what is cut off is only missed by people."""


def topic_directory(place: Place) -> str:
    """The name of the directory of a topic's segments."""
    readable = re.sub(r"[^A-Za-z0-9._~-]", "_", f"{place.topic.domain}~{place.topic.name}")[:_READABLE]
    return f"{readable}.{place.incarnation}"


def is_data_directory(path: str) -> bool:
    """Whether a directory holds data, of this version or another; nothing is made."""
    return Path(path, _FORMAT_FILE).is_file()


class DataDirectory:
    """One opening of a data directory by its owner; `open` and `close` block, and may be called in different threads.

    Args:
        path: The directory; made if it does not exist, like its parents.
        files: The file system.
        shard: The number of the brk shard.
    """

    def __init__(self, path: str, files: Files, shard: int = 0) -> None:
        self.path: str = str(Path(path).absolute())
        self.manager_path: str = f"{self.path}/mgr"
        self.shard: str = f"brk-{shard}"
        self.topics_path: str = f"{self.path}/{self.shard}/topics"
        self._files = files
        self._lock: int | None = None
        self._taking = threading.Lock()
        """Held while the lock is taken or given up."""
        self._closed = False
        self.found_format: int = FORMAT
        """The format in which `open` found the directory; it has made that of this version of it."""
        self.on_fork: Callable[[], object] | None = None
        """Called in a forked child, which does not own the directory."""

    def open(self) -> None:
        """Create or check the directory, and lock the shard.

        Raises:
            FormatVersionError: If a newer version wrote it, or it holds something else.
            LockedError: If another process, or this one, has it open.
            StoreClosedError: If it was closed meanwhile: an event loop that ends leaves its threads behind.
            OSError: If the file system refuses.
        """
        files = self._files
        # Everything is synced even if it exists: who made it may have been killed before it could.
        for directory in self._missing():
            files.make_directory(directory)
            files.sync_directory(str(Path(directory).parent), SyncPoint.DATA_DIRECTORY)
        with contextlib.suppress(PermissionError):  # somebody else's directory, and not made by us
            files.sync_directory(str(Path(self.path).parent), SyncPoint.DATA_DIRECTORY)
        self._refuse_foreign()
        files.make_directory(f"{self.path}/{self.shard}")
        with self._taking:
            if self._closed:
                raise StoreClosedError(f"{self.path} was closed while it was opened")
            self._lock = self._take_lock()
        try:
            self._check_format()
            files.make_directory(self.manager_path)
            files.make_directory(self.topics_path)
            files.sync_directory(self.path, SyncPoint.LAYOUT)
            files.sync_directory(f"{self.path}/{self.shard}", SyncPoint.SHARD)
            files.sync_directory(self.topics_path, SyncPoint.TOPIC)
        except BaseException:  # interrupted too: it is not kept locked
            self.close()
            raise

    def close(self) -> None:
        """Give up the lock, or do not let `open` take it any more."""
        with self._taking:
            self._closed = True
            if self._lock is not None:
                # closing alone would not do while a child that was just forked has not closed its copy
                fcntl.flock(self._lock, fcntl.LOCK_UN)
                self._give_up()

    def _give_up(self) -> None:
        if self._lock is not None:
            lock, self._lock = self._lock, None
            _held.discard(self)
            os.close(lock)

    def abandon(self) -> None:
        """In a forked child: the parent stays the owner."""
        self._give_up()
        if self.on_fork is not None:
            self.on_fork()

    def _missing(self) -> list[str]:
        path = Path(self.path)
        return [str(each) for each in (*reversed(path.parents), path) if not self._files.exists(str(each))]

    # --- the format ---

    def _refuse_foreign(self) -> None:
        """Before anything is written: what is somebody else's stays as it is."""
        names = self._files.list_directory(self.path)
        if _FORMAT_FILE in names:
            return
        for name in names:
            if name != "mgr" and not name.endswith(".tmp") and not SHARD.fullmatch(name):
                raise FormatVersionError(
                    f"{self.path} is no data directory of kclient (it holds {name}): name one that is empty, or new"
                )

    def _check_format(self) -> None:
        """Only the owner does this: two that begin a new directory at once would stand in each other's way."""
        path = f"{self.path}/{_FORMAT_FILE}"
        content = self._files.load(path)
        if content is None:
            self._create_format(path)
            return
        version = self._version_of(content)
        if version > FORMAT:
            raise FormatVersionError(
                f"{self.path} is written in format {version}; this version of kclient knows formats up to {FORMAT}: "
                "use a newer one (pip install --upgrade htp-kclient)"
            )
        self.found_format = version
        while version < FORMAT:
            MIGRATIONS[version](self._files, self.path)
            version += 1
            self._write_format(path, version)

    def _create_format(self, path: str) -> None:
        # an opening that was broken off leaves a shard with its lock, and nothing else
        others = [name for name in self._files.list_directory(self.path) if name == "mgr" or SHARD.fullmatch(name)]
        if others != [self.shard] or self._files.list_directory(f"{self.path}/{self.shard}") != [_LOCK_FILE]:
            raise FormatVersionError(
                f"{self.path} holds messages, but {_FORMAT_FILE}, which tells their format, is missing: "
                "restore it from a backup"
            )
        self._write_format(path, FORMAT)

    def _write_format(self, path: str, version: int) -> None:
        content = json.dumps({"format": version, "what": "data directory of kclient's embedded HTP"})
        self._files.store(path, content.encode() + b"\n", SyncPoint.FORMAT)
        self._files.sync_directory(self.path, SyncPoint.LAYOUT)

    def _version_of(self, content: bytes) -> int:
        try:
            return whole(parse_object(content)["format"], 1)
        except (ValueError, KeyError) as error:
            raise FormatVersionError(
                f"{self.path}/{_FORMAT_FILE} is damaged: restore it from a backup ({error})"
            ) from error

    # --- the lock ---

    def _take_lock(self) -> int:
        path = f"{self.path}/{self.shard}/{_LOCK_FILE}"
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            text = os.read(lock, 100).decode(errors="replace").strip()
            os.close(lock)
            owner = int(text) if text.isdigit() else None
            who = f"process {owner}" if owner is not None else "another process"
            if owner == os.getpid():
                who = f"this process ({owner})"
            raise LockedError(
                f"{self.path}/{self.shard} is in use by {who}; close it there, or name another directory", owner=owner
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        _held.add(self)
        return lock

    # --- topics ---

    def topic_path(self, place: Place) -> str:
        """The directory of a topic's segments."""
        return f"{self.topics_path}/{topic_directory(place)}"

    def make_topic(self, path: str) -> None:
        """Make a topic's directory, durably, if there is none."""
        if self._files.make_directory(path):
            try:
                self._files.sync_directory(self.topics_path, SyncPoint.TOPIC)
            except OSError:
                self._files.remove_tree(path)  # if it stayed, the next attempt would take it for durable
                raise

    def set_deleted(self, paths: Iterable[str]) -> list[str]:
        """Give topics' directories names that say they are gone, durably; the new paths of those there were."""
        targets = []
        for path in paths:
            target = path + _DELETED
            with contextlib.suppress(FileNotFoundError):
                try:
                    self._files.rename(path, target)
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise
                    self._files.remove_tree(target)  # deleted, opened again, and now deleted a second time
                    self._files.rename(path, target)
                targets.append(target)
        if targets:
            self._files.sync_directory(self.topics_path, SyncPoint.DELETED)
        return targets

    def set_aside(self, paths: Iterable[str]) -> None:
        """Give directories names that say that they belong to no topic; nothing ever removes them."""
        for path in paths:
            self._files.rename(path, path + _SET_ASIDE)

    def incarnations(self) -> dict[str, int | None]:
        """The paths of all topics' directories, with their incarnation; None for one that was deleted."""
        found: dict[str, int | None] = {}
        for name in self._files.list_directory(self.topics_path):
            number = self.incarnation_of(name)
            if number >= 0:
                found[f"{self.topics_path}/{name}"] = None if name.endswith(_DELETED) else number
        return found

    @staticmethod
    def incarnation_of(name: str) -> int:
        """The incarnation that the name of a topic's directory tells; -1 if it is another's."""
        number = name.removesuffix(_DELETED).rpartition(".")[2]
        return int(number) if number.isascii() and number.isdigit() else -1


_held: weakref.WeakSet[DataDirectory] = weakref.WeakSet()


def _abandon_all() -> None:
    for directory in list(_held):
        directory.abandon()


os.register_at_fork(after_in_child=_abandon_all)
