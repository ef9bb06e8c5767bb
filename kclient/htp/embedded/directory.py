"""The data directory: its format version, its layout, and the lock that gives it one owner.

format.json      {"format": 4, "brokers": 1, ...}: the version of everything below, and how many shards are in use
mgr/mgr.db       domains, topics, values, leases (SQLite)
brk-0/lock       locked by the owner, whose process id it holds; shared by all where several have it open together
brk-0/process-N  locked by one of several that have it open together (`processes.py`)
brk-0/bell-N.sock  what it hears of changes by (`bell.py`)
brk-0/store.json whose shard it is
brk-0/topics/    a directory per topic: NAME.INCARNATION, for people and for the program
brk-1/           the next shard, if there are several (`shard.py`)
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from kclient.errors import ConfigError
from kclient.htp.brokers import FIRST_BROKER, MOST_BROKERS, broker_names
from kclient.htp.embedded.copying import UNFINISHED
from kclient.htp.embedded.files import Files, SyncPoint
from kclient.htp.embedded.processes import Processes
from kclient.htp.embedded.shard import LOCK_FILE, Shard, shard_number
from kclient.htp.embedded.space import opening_error
from kclient.htp.errors import FormatVersionError, LockedError, StorageError, StoreClosedError
from kclient.htp.rows import parse_object, whole

FORMAT: Final = 4
"""The version of the format that this code writes: it rises with that of any row, since what wrote the older one would
take the rows of the newer one for damaged."""


def _read_as_it_is(_files: Files, _path: str) -> None:
    """Rows of format 1 have no checksum, nor checkpoints a number; they are read, and written anew when they change."""


def _by_the_manager(_files: Files, _path: str) -> None:
    """The database gets its new tables when it is opened (`migration.py`), once it is known to be sound.

    The version rises because what wrote format 2 would delete values without a trace in the log of changes.
    """


def _with_bindings(_files: Files, _path: str) -> None:
    """The database gets the table of further bindings when it is opened, empty.

    The version rises because what wrote format 3 would set aside the messages of a topic at its further brokers.
    """


MIGRATIONS: Final[dict[int, Callable[[Files, str], None]]] = {1: _read_as_it_is, 2: _by_the_manager, 3: _with_bindings}
"""From each older version, the function that makes of it the next one."""

_FORMAT_FILE: Final = "format.json"
_OPENING_S: Final = 30.0
"""Seconds that another process has to open the directory, before it can be joined."""
_LEAVING_S: Final = 1.0
"""Seconds that another process has to go on, once it does not have the directory open any more."""
_NOTED_S: Final = 0.25
"""Seconds until whoever has locked it has noted that it will share it, if it will."""
_AGAIN_S: Final = 0.02
"""Seconds until a lock is asked for again."""
_NOTHING: Final = frozenset({LOCK_FILE, "lost+found"})
"""What is in a shard that nobody has used."""


def is_data_directory(path: str) -> bool:
    """Whether a directory holds data, of this version or another; nothing is made."""
    return Path(path, _FORMAT_FILE).is_file()


class DataDirectory:
    """One opening of a data directory by its owner; `open` and `close` block, and may be called in different threads.

    Args:
        path: The directory; made if it does not exist, like its parents.
        files: The file system.
        brokers: So many shards are opened, and made where they are missing; if None, as many as the last time.
        together: Whether other processes may have it open too that say the same. The first one opens it alone, until
            `share`.
        options: Which all of them have to give alike.
    """

    def __init__(
        self,
        path: str,
        files: Files,
        brokers: int | None = None,
        *,
        together: bool = False,
        options: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        self.path: str = str(Path(path).absolute())
        self.manager_path: str = f"{self.path}/mgr"
        self.shards: list[Shard] = []
        """Those that are open, in order."""
        self.processes: Processes = Processes(f"{self.path}/{FIRST_BROKER}")
        """That have it open together."""
        self.joined: bool = False
        """Whether another process had it open before, and has made ready what one does alone."""
        self._together = together
        self._options = options
        self._files = files
        self._brokers = brokers
        self._recorded: int | None = None
        """How many shards were in use the last time; None where an earlier version wrote the directory."""
        self._taking = threading.Lock()
        """Held while locks are taken or given up."""
        self._closed = False
        self.found_format: int = FORMAT
        """The format in which `open` found the directory; it has made that of this version of it."""
        self.on_fork: Callable[[], object] | None = None
        """Called in a forked child, which does not own the directory."""

    def open(self) -> None:
        """Create or check the directory, and lock its shards: the first one keeps every other owner out.

        Raises:
            FormatVersionError: If a newer version wrote it, or it holds something else.
            LockedError: If another process, or this one, has it open.
            StorageError: If an older version wrote it, and its database is damaged.
            ConfigError: If another process has it open with other options.
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
        self._take_first()
        try:
            self._check_format()
            number = self._brokers or self._recorded or self._present()
            if self.joined and number != (there := self._recorded or self._present()):
                raise ConfigError(
                    f"{self.path} is open in another process with {there} brokers: give the same number, or close it "
                    "there first"
                )
            for name in broker_names(number)[1:]:
                self._take(name, shared=self._together)
            if self._together:
                self._enter()
            files.make_directory(self.manager_path)
            for shard in self.shards:
                shard.make()
            files.sync_directory(self.path, SyncPoint.LAYOUT)
        except BaseException:  # interrupted too: it is not kept locked
            self.close()
            raise

    def _take_first(self) -> None:
        """Lock the first shard: alone, or with those who have it open together."""
        began = time.monotonic()
        while True:
            try:
                self._take(FIRST_BROKER)
            except LockedError as error:
                if not self._together:
                    raise self._in_use() or error from None
                found, patience = error, _OPENING_S if error.opening else _NOTED_S
                with contextlib.suppress(LockedError):
                    self._take(FIRST_BROKER, shared=True)
                    self.joined = self._in_use() is not None
                    if self.joined:
                        return
                    found = LockedError(f"{self.path} is being looked at by another process: wait for its end")
                    patience = _LEAVING_S  # or the last one that had it open is just leaving
            else:
                others = self._in_use()
                if others is None:
                    if self._together:
                        self.shards[0].note_opening()
                    return
                found, patience = others, _OPENING_S if self._together else 0.0  # it is about to share the lock
            self._let_go()
            if time.monotonic() - began >= patience:
                raise found
            time.sleep(_AGAIN_S)

    def _enter(self) -> None:
        """Be one of those who have it open together: with the same options, of which others are told."""
        if not self.joined:
            self.processes.remove_dead()
        began = time.monotonic()
        while True:
            # one after the other: of two with different options who come at once, one stays
            with self.processes.one_enters() as entering:
                said = f"another process is just opening {self.path}, and does not go on: stop it there"
                if entering:
                    said = self._check_options()
                    if not said:
                        self.processes.enter(self._options)
                        return
            if time.monotonic() - began >= _OPENING_S:
                raise LockedError(said)
            time.sleep(_AGAIN_S)

    def _check_options(self) -> str:
        """Refuse options that others do not have; what is said of one that does not tell which it has."""
        for number, (pid, options) in self.processes.openings().items():
            if not pid:
                return (
                    f"{self.path} is in use by a process whose file {FIRST_BROKER}/process-{number} cannot be read, or "
                    "was removed; it makes it anew within ten seconds, unless it is stopped"
                )
            for name, value in self._options.items():
                there = value if options is None else options.get(name, value)
                if there != value:
                    who = f"this process ({pid})" if pid == os.getpid() else f"process {pid}"
                    raise ConfigError(
                        f"{self.path} is open in {who} with {name}={there!r}: give the same, not {value!r}, or close "
                        "it there first"
                    )
        return ""

    def _let_go(self) -> None:
        with self._taking:
            while self.shards:
                self.shards.pop().unlock()

    def _in_use(self) -> LockedError | None:
        """What is said where other processes have it open together."""
        for owner in self.processes.others().values():
            who = f"process {owner}" if owner else "another process"
            if owner == os.getpid():
                who = f"this process ({owner})"
            return LockedError(
                f"{self.path}/{FIRST_BROKER} is in use by {who}; close it there, or name another directory", owner=owner
            )
        return None

    def share(self) -> None:
        """Let others have it open too: all is made that one makes alone. Blocks.

        Raises:
            LockedError: Another process keeps the lock.
        """
        until = time.monotonic() + _OPENING_S
        while not self.shards[0].share_lock():
            if time.monotonic() > until:
                raise LockedError(f"{self.path}/{FIRST_BROKER} is in use by another process; close it there")
            time.sleep(_AGAIN_S)
        self.shards[0].note_owner()

    def _take(self, name: str, *, shared: bool = False) -> None:
        with self._taking:
            if self._closed:
                raise StoreClosedError(f"{self.path} was closed while it was opened")
            shard = Shard(self.path, name, self._files)
            shard.take_lock(shared=shared)
            self.shards.append(shard)
            _held.add(self)

    def record_brokers(self) -> None:
        """Have the next opening that is not told a number take as many shards as this; raises `OSError`."""
        if self._recorded != len(self.shards):
            self._recorded = len(self.shards)
            self._write_format(f"{self.path}/{_FORMAT_FILE}", FORMAT)

    def _present(self) -> int:
        """How many shards there are; one that lies between others was lost, and counts."""
        numbers = map(shard_number, self._files.list_directory(self.path))
        return max((number for number in numbers if number is not None), default=0) + 1

    def close(self) -> None:
        """Give up the locks, or do not let `open` take them any more."""
        with self._taking:
            self._closed = True
            _held.discard(self)
            self.processes.leave()
            for shard in reversed(self.shards):  # the first one last: it keeps the next owner waiting
                shard.unlock()

    def abandon(self) -> None:
        """In a forked child: the parent stays the owner."""
        _held.discard(self)
        self.processes.abandon()
        for shard in self.shards:
            shard.abandon()
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
            if name != "mgr" and not name.endswith(".tmp") and shard_number(name) is None:
                raise FormatVersionError(
                    f"{self.path} is not a data directory of kclient (it holds {name}): name one that is empty, or new"
                )
        self._refuse_unfinished(names)

    def _refuse_unfinished(self, names: list[str]) -> None:
        if UNFINISHED in names:
            raise FormatVersionError(
                f"{self.path} holds an unfinished copy: a backup is being restored there, or that was cut off. Wait "
                "for its end; if it was cut off, remove the directory and restore again"
            )

    def _check_format(self) -> None:
        """Only the owner does this: two that begin a new directory at once would stand in each other's way."""
        path = f"{self.path}/{_FORMAT_FILE}"
        content = self._files.load(path)
        if content is None:
            if self.joined:
                raise StorageError(
                    f"{path} has gone, though another process has the directory open: is it being removed?"
                )
            self._create_format(path)
            return
        version = self._version_of(content)
        if version > FORMAT:
            raise FormatVersionError(
                f"{self.path} is written in format {version}; this version of kclient knows formats up to {FORMAT}: "
                "use a newer one (pip install --upgrade htp-kclient)"
            )
        self.found_format = version
        if version < FORMAT and self.joined:
            raise FormatVersionError(
                f"{self.path} is open in a process of an older version of kclient: stop that first"
            )
        if version < FORMAT:
            self._check_database()
        while version < FORMAT:
            MIGRATIONS[version](self._files, self.path)
            version += 1
            self._write_format(path, version)

    def _check_database(self) -> None:
        """Before the format rises, from which on no older version opens the directory: else it would for nothing."""
        database = f"{self.manager_path}/mgr.db"
        if not self._files.exists(database):
            return  # what has begun, and held nothing yet
        try:
            with contextlib.closing(sqlite3.connect(database)) as connection:
                found = [row[0] for row in connection.execute("PRAGMA integrity_check(5)")]
        except sqlite3.DatabaseError as error:
            raise opening_error(database, error, str(error)) from error
        if found != ["ok"]:
            raise StorageError(
                f"{database} is damaged: {'; '.join(found)}. Nothing was changed; restore the data directory from a "
                "backup, or open it with the version that wrote it"
            )

    def _create_format(self, path: str) -> None:
        names = self._files.list_directory(self.path)
        self._refuse_unfinished(names)  # it may have begun since: now the shard is here, and keeps it from that
        # an opening that was broken off leaves a shard with its lock, and nothing else; a new disk may be mounted there
        shards = [name for name in names if shard_number(name) is not None]
        if "mgr" in names or not all(map(self._is_empty, shards)):
            raise FormatVersionError(
                f"{self.path} holds messages, but {_FORMAT_FILE}, which tells their format, is missing: "
                "restore it from a backup"
            )
        self._write_format(path, FORMAT)

    def _is_empty(self, shard: str) -> bool:
        return _NOTHING.issuperset(self._files.list_directory(f"{self.path}/{shard}"))

    def _write_format(self, path: str, version: int) -> None:
        fields: dict[str, object] = {"format": version, "what": "data directory of kclient's embedded HTP"}
        if self._recorded is not None:
            fields["brokers"] = self._recorded
        content = json.dumps(fields)
        self._files.store(path, content.encode() + b"\n", SyncPoint.FORMAT)
        self._files.sync_directory(self.path, SyncPoint.LAYOUT)

    def _version_of(self, content: bytes) -> int:
        try:
            fields = parse_object(content)
            version = whole(fields["format"], 1)
            if "brokers" in fields and version <= FORMAT:
                self._recorded = whole(fields["brokers"], 1, MOST_BROKERS)
            return version
        except (ValueError, KeyError) as error:
            raise FormatVersionError(
                f"{self.path}/{_FORMAT_FILE} is damaged: restore it from a backup ({error})"
            ) from error


_held: weakref.WeakSet[DataDirectory] = weakref.WeakSet()


def _abandon_all() -> None:
    for directory in list(_held):
        directory.abandon()


os.register_at_fork(after_in_child=_abandon_all)
