"""The state of a data directory at one moment, held while it is copied: rows, and the files with their lengths.

Of a store that is in use::

    lock the database ──> ask the owner where the logs end ──> link every file ──> let the database go on ──> copy

While the database is locked (some milliseconds, five seconds at most) no row changes, so the ends that the owner tells
belong to exactly these rows: what a crash at that moment would leave. The rows are read later by a transaction that
began then. Files that the owner removes meanwhile stay readable by their links; what it appends lies beyond the ends,
in the same segment or in later ones. Nobody else's lock is waited for while this one is held.

Of a store that nobody uses, the lock of each shard is shared with others that look at it, as `Inspection` does.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from kclient.htp.brokers import FIRST_BROKER
from kclient.htp.embedded.checkpoints import checkpoint_key
from kclient.htp.embedded.ends import Ends, LogEnd, ask_ends
from kclient.htp.embedded.links import HardLinks
from kclient.htp.embedded.manifest import GREATEST_MS
from kclient.htp.embedded.processes import Processes
from kclient.htp.embedded.recovery import SyncCheckpoint
from kclient.htp.embedded.segment import INDEX_SUFFIX, base_of, file_name
from kclient.htp.embedded.shard import Shard, called, topic_directory
from kclient.htp.embedded.sharing import shards_of
from kclient.htp.errors import StorageError
from kclient.htp.port import Place, Topic

if TYPE_CHECKING:
    from types import TracebackType

_DELETED: Final = ".deleted"
_LONGEST_HOLD_S: Final = 5.0
"""Half of what the owner waits for its database."""
_ATTEMPTS: Final = 3
_PATIENCE_S: Final = 30.0
"""How long the owner's commits are waited for, one after another as they may come."""
_PAUSE_S: Final = 0.001


class FoundFile(NamedTuple):
    """A file that belongs to the state."""

    name: str
    source: str
    """Where it can be read now."""
    length: int
    modified_ms: int


class FoundTopic(NamedTuple):
    """The directory of a topic."""

    path: str
    """Below the data directory."""
    files: list[FoundFile] | None
    """None where it is missing."""
    lost: list[str]
    """What is missing of it already, in sentences."""


class _HoldTooLongError(Exception):
    """There are too many files to look at while the owner waits."""


class Moment:
    """The state of a data directory, from `with` to its end.

    Args:
        path: The data directory.
        in_use: Whether somebody has it open.

    Raises:
        StorageError: It cannot be read.
    """

    def __init__(self, path: str, *, in_use: bool) -> None:
        self.path: str = path
        self.in_use: bool = in_use
        self.taken_ms: int = 0
        """When it was the state, milliseconds since the epoch."""
        self.exact: bool = True
        """Whether all logs were looked at in the same moment, rather than one after another."""
        self._database = f"{path}/mgr/mgr.db"
        self._stack = ExitStack()
        self._rows: sqlite3.Connection | None = None
        self._found: dict[str, dict[str, list[FoundFile]]] = {}
        """Files by directory by shard."""
        self._ends: Ends = {}

    def __enter__(self) -> Self:
        try:
            if not Path(self._database).exists():
                raise StorageError(f"{self._database} is missing: restore the data directory from a backup")
            if self.in_use:
                self._take_from_owner()
            else:
                self.taken_ms = _now_ms()
                for shard in shards_of(self.path):
                    self._found[shard] = self._look(shard, None, lambda: None)
        except OSError as error:
            self._stack.close()
            raise StorageError(f"{self.path} cannot be read: {error}") from error
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    # --- a store that is in use ---

    def _take_from_owner(self) -> None:
        links = {shard: self._stack.enter_context(HardLinks(f"{self.path}/{shard}")) for shard in shards_of(self.path)}
        for shard, of_shard in links.items():
            self._look(shard, of_shard, lambda: None)  # most files, so that there is little to do in the moment
        for _ in range(_ATTEMPTS):
            with suppress(_HoldTooLongError):
                self._hold(links)
                return
        raise StorageError(
            f"{self.path} has too many files to be looked at within {_LONGEST_HOLD_S:g} seconds, for which the gateway "
            "can wait: stop it first"
        )

    def _hold(self, links: dict[str, HardLinks]) -> None:
        reader = _connect(self._database)
        try:
            with _locked(self._database):
                until = time.monotonic() + _LONGEST_HOLD_S

                def check() -> None:
                    if time.monotonic() > until:
                        raise _HoldTooLongError

                self.taken_ms = _now_ms()
                ends = ask_ends(f"{self.path}/{FIRST_BROKER}")
                # several processes are asked one after another
                self.exact = ends is not None and len(Processes(f"{self.path}/{FIRST_BROKER}").others()) <= 1
                self._ends = ends or {}
                reader.execute("BEGIN")
                reader.execute("SELECT count(*) FROM sqlite_master").fetchone()  # from here on it sees these rows
                for shard, of_shard in links.items():
                    self._found[shard] = self._look(shard, of_shard, check)
        except sqlite3.Error as error:
            reader.close()
            raise StorageError(f"{self._database} cannot be read: {error}") from error
        except BaseException:
            reader.close()
            raise
        self._rows = reader
        self._stack.callback(reader.close)

    # --- files ---

    def _look(self, shard: str, links: HardLinks | None, check: Callable[[], object]) -> dict[str, list[FoundFile]]:
        """What lies in the directories of topics; each file with a link, if it needs one."""
        found: dict[str, list[FoundFile]] = {}
        folder = f"{self.path}/{shard}/topics"
        for name in _names(folder):
            check()
            incarnation = Shard.incarnation_of(name)
            if incarnation < 0:
                continue
            directory = _open_directory(f"{folder}/{name}") or _open_directory(f"{folder}/{name}{_DELETED}")
            if directory is None:
                continue
            try:
                found[name] = list(_files(f"{folder}/{name}", directory, links, self._ends.get(incarnation)))
            finally:
                os.close(directory)
        return found

    # --- what belongs together ---

    def copy_rows(self, target: str) -> None:
        """Copy the database, and see that it is sound.

        Raises:
            StorageError: It is damaged.
            sqlite3.Error, OSError: The copy cannot be written.
        """
        if self._rows is not None:
            with closing(_connect(target, mode="rwc")) as copy:
                self._rows.backup(copy)
            self._rows.close()  # the owner may begin its log anew
        else:
            _copy_closed(self._database, target)
        with closing(_connect(target)) as copy:
            _settle(copy, self._database)

    def topics(self, database: str) -> Iterator[FoundTopic]:
        """The directories of the topics that the copied rows know."""
        with closing(_connect(database)) as rows:
            places = [
                Place(Topic(domain, name), broker or "", incarnation)
                for domain, name, broker, incarnation in rows.execute(
                    "SELECT domain, name, broker, incarnation FROM topics ORDER BY domain, name"
                )
            ]
            # a topic lies at further brokers, too, since format 4
            if rows.execute("SELECT 1 FROM sqlite_master WHERE name = 'bindings'").fetchone() is not None:
                places += [
                    Place(Topic(domain, name), broker, incarnation)
                    for domain, name, broker, incarnation in rows.execute(
                        "SELECT domain, name, broker, incarnation FROM bindings ORDER BY incarnation"
                    )
                ]
            checkpoints = dict(rows.execute("SELECT key, value FROM entries WHERE key LIKE 'brk/%'"))
        for place in places:
            for shard in [place.broker] if place.broker else self._found:
                name, of_shard = topic_directory(place), self._found.get(shard, {})
                files, checkpoint = of_shard.get(name), checkpoints.get(checkpoint_key(shard, place.incarnation))
                if files is None and checkpoint is not None:
                    files = of_shard.get(name + _DELETED)  # its deletion has begun, and the rows do not know it yet
                if files is not None or checkpoint is not None:
                    path = f"{shard}/topics/{name}"
                    yield FoundTopic(path, files, list(_lost(f"{self.path}/{path}", place, files, checkpoint)))

    @property
    def shards(self) -> list[str]:
        """The names of the shards."""
        return list(self._found)


def _lost(path: str, place: Place, files: list[FoundFile] | None, checkpoint: bytes | None) -> Iterator[str]:
    """What is missing of a topic, in sentences."""
    if files is None:  # a checkpoint is written only where there is a directory
        yield f"{path} is missing, which holds the messages of {called(place)}"
        return
    with suppress(ValueError):  # a checkpoint that cannot be read tells nothing
        known = SyncCheckpoint() if checkpoint is None else SyncCheckpoint.decode(checkpoint)
        for segment, what in known.lost(sorted(base for file in files if (base := base_of(file.name)) is not None)):
            file = "" if segment is None else f"/{file_name(segment)}"
            yield f"{path}{file}, of {called(place)}: {what}"


def _files(path: str, directory: int, links: HardLinks | None, end: LogEnd | None) -> Iterator[FoundFile]:
    """The files in the directory of a topic that belong to its log up to an end."""
    names = os.listdir(directory)
    bases = {base for name in names if (base := base_of(name)) is not None}
    last = end.segment if end is not None else max(bases, default=-1)
    for name in sorted(names):
        base, index_of = base_of(name), base_of(name.removesuffix(INDEX_SUFFIX) + ".log")
        if name.endswith(".tmp") or (base is not None and base > last):
            continue
        if name.endswith(INDEX_SUFFIX) and (index_of is None or index_of >= last or index_of not in bases):
            continue  # of the last segment: it would know more than there is
        found = _held(path, directory, name, links)
        if found is None:
            continue
        source, status = found
        length = status.st_size
        if end is not None and base == last:
            length = min(length, end.size)
        yield FoundFile(name, source, length, _within(status.st_mtime_ns // 1_000_000))


def _held(path: str, directory: int, name: str, links: HardLinks | None) -> tuple[str, os.stat_result] | None:
    """Where a file can be read from now on, and what is known of it; None if it has gone, or is none."""
    while True:
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        source = f"{path}/{name}" if links is None else links.link(directory, name, status)
        if source is not None:
            return source, status
        # it has gone, or compaction has put another one in its place: that one is looked at


def _copy_closed(database: str, target: str) -> None:
    """The files of a database that nobody has open: opening it could write to it."""
    shutil.copyfile(database, target)
    with suppress(FileNotFoundError):
        shutil.copyfile(f"{database}-wal", f"{target}-wal")


def _settle(copy: sqlite3.Connection, database: str) -> None:
    """Have all rows in the one file, and tokens of changes refused that the original gives from now on."""
    try:
        found = [row[0] for row in copy.execute("PRAGMA integrity_check(5)")]
        if found == ["ok"]:
            copy.execute("PRAGMA journal_mode=DELETE")
            copy.execute("DELETE FROM counters WHERE name = 'history'")
    except sqlite3.DatabaseError as error:
        if not isinstance(error, sqlite3.OperationalError):
            raise StorageError(f"{database} is damaged ({error}): restore the data directory from a backup") from error
        raise
    if found != ["ok"]:
        raise StorageError(f"{database} is damaged: {'; '.join(found)}. Restore the data directory from a backup")


@contextmanager
def _locked(database: str) -> Iterator[None]:
    """Let nobody commit meanwhile."""
    with closing(_connect(database)) as connection:
        connection.execute("PRAGMA busy_timeout=0")
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                break
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
                if time.monotonic() > until:
                    raise StorageError(
                        f"{database} was locked for {_PATIENCE_S:g} seconds: does the gateway's disk hang?"
                    ) from error
            time.sleep(_PAUSE_S)  # SQLite's own waiting grows, and there is always somebody who commits
        try:
            yield
        finally:
            connection.execute("ROLLBACK")


def _connect(database: str, mode: str = "rw") -> sqlite3.Connection:
    return sqlite3.connect(f"{Path(database).as_uri()}?mode={mode}", uri=True, isolation_level=None)


def _open_directory(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _names(directory: str) -> list[str]:
    try:
        return sorted(each.name for each in Path(directory).iterdir())
    except FileNotFoundError:
        return []


def _now_ms() -> int:
    return _within(time.time_ns() // 1_000_000)


def _within(ms: int) -> int:
    """A time as a manifest takes it."""
    return min(max(ms, 0), GREATEST_MS)
