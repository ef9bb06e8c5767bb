"""The one thread that talks to the database: what waits goes into one transaction."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from kclient.htp.embedded import contention
from kclient.htp.embedded.bell import ACTIVE_S, Bell
from kclient.htp.embedded.engines import sqlite_engine
from kclient.htp.embedded.migration import make_tables
from kclient.htp.embedded.space import opening_error, space_left
from kclient.htp.errors import HtpError, StorageError, StorageFullError, StoreClosedError

logger: logging.Logger = logging.getLogger(__name__)

_MOST: Final = 256
"""Jobs in one transaction, at most."""
_LOOK_S: Final = 0.03
"""Seconds between two looks for what other processes have changed."""
_LOOK_QUIET_S: Final = 0.25
"""The same, once they have changed nothing for a while, where they ring a bell."""
_FINDINGS: Final = 5
"""What is told of a damaged database, at most."""
_RESERVE_BYTES: Final = 8 << 20
"""Bytes that the write-ahead log has from the start: twice what SQLite lets it grow to before it begins anew."""
_LEAST_BYTES: Final = 256 << 10
"""Without so many a store would open and be able to record nothing, not even who leads a topic: nobody could read."""
_UNDONE: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_BUSY})
"""Why a commit fails before its last frame, the one that makes the others count, is whole in the write-ahead log."""


class Job(NamedTuple):
    """A piece of work inside a transaction, and who is told of the outcome (in the writer's thread).

    The work raises `HtpError` before it writes anything, or not at all. It may be done a second time, in another
    transaction, when the first was rolled back.
    """

    work: Callable[[Connection], Any]
    done: Callable[[Any, Exception | None], Callable[[], object]]
    """Makes of result and error what is to be run in the event loop."""


class _JobError(Exception):
    """A job raised what no job should raise; its transaction is rolled back."""


class _UnknownOutcomeError(Exception):
    """A commit failed in a way that leaves open whether its transaction is there after a crash.

    Once a sync of the write-ahead log has failed, its pages count as clean, so that no later sync proves anything;
    and the frames of the transaction are in the file, where a process that opens it after this one was killed takes
    them for committed. Whatever is told of it, or built upon it, may turn out wrong.
    """


class DatabaseWriter:
    """The thread.

    Args:
        path: Of the database file, whose directory exists.
        post: Runs a function in the event loop.
        failed: Called in the event loop if the thread ends by itself: nothing is written any more.
        changed: Called in the thread once another process has changed the database; None if no other has it open.
        bell: Tells other processes of changes, and is told of theirs; without it, it is looked at often.
        joined: Whether another process has made it ready, and has it open.
    """

    def __init__(
        self,
        path: str,
        post: Callable[[Callable[[], object]], object],
        failed: Callable[[StorageError], object],
        *,
        changed: Callable[[], object] | None = None,
        bell: Bell | None = None,
        joined: bool = False,
    ) -> None:
        self._changed = changed
        self._bell = bell
        self._hears = False
        """Whether others ring."""
        self._heard = False
        """Whether they have, since it was looked last."""
        self._crowded = False
        """Whether another process has committed before this one's last transaction."""
        self._pause = None if changed is None else _LOOK_S
        """Seconds until it is looked again."""
        self._active_until = 0.0
        """So long it is looked often, as others may not ring for each change."""
        self._joined = joined
        self._data_version: int | None = None
        """What SQLite counts changes of others by, as it was looked at last."""
        self._path = path
        self._post = post
        self._failed = failed
        self._wake = threading.Condition(threading.Lock())
        self._jobs: deque[Job] = deque()
        self._current: list[Job] = []
        self._stopping = False
        self._failure: str | None = None
        self._engine: Engine | None = None
        self.transactions: int = 0
        """Transactions done since the start."""
        # a daemon for the same reason as the syncer's thread
        self._thread = threading.Thread(target=self._run, name="kclient-htp-manager", daemon=True)

    def start(self) -> None:
        """Open the database, creating it if need be, and begin; blocks.

        Raises:
            StorageError: If the database cannot be opened, or is damaged.
            StorageFullError: If it cannot be opened for want of space.
            StoreClosedError: If it was stopped meanwhile.
        """
        self._engine = sqlite_engine(self._path)
        event.listen(self._engine, "connect", _configure)
        event.listen(self._engine, "begin", self._begin)
        try:
            with self._engine.begin() as connection:
                damage = ["ok"] if self._joined else _damage(connection)
                if damage == ["ok"] and not self._joined:
                    make_tables(connection)
        except SQLAlchemyError as error:
            raise opening_error(self._path, _cause(error), _reason(error)) from error
        if damage != ["ok"]:
            raise StorageError(
                f"{self._path} is damaged: {'; '.join(damage)}. Nothing was changed; restore the whole data directory "
                f"from a backup. Without one, copy it first; if only indexes are named above, "
                f"`sqlite3 {self._path} REINDEX` makes them anew from the tables"
            )
        self._check_space()
        with self._wake:
            if self._stopping:
                raise StoreClosedError(f"{self._path} was closed while it was opened")
            self._hears = self._bell is not None and self._bell.start(self._hear)
            self._thread.start()

    def _hear(self) -> None:
        """In the bell's thread: others have changed something."""
        with self._wake:
            self._heard = True
            self._wake.notify()

    def _begin(self, connection: Connection) -> None:
        contention.begin(_driver(connection), self._path)

    def _check_space(self) -> None:
        """Refuse a file system that is about to be full, but for the space that a log has which is there still."""
        left = space_left(self._path)
        with contextlib.suppress(OSError):
            left += Path(f"{self._path}-wal").stat().st_size
        if left < _LEAST_BYTES:
            full = OSError(errno.ENOSPC, "")
            raise opening_error(self._path, full, f"{left} bytes are left, {_LEAST_BYTES} are needed to begin")

    def submit(self, job: Job) -> None:
        """Have a job done; from any thread.

        Raises:
            StoreClosedError: If the writer was stopped.
            StorageError: If the thread has ended by itself.
        """
        with self._wake:
            if self._failure is not None:
                raise StorageError(self._failure)
            if self._stopping:
                raise StoreClosedError(f"{self._path} was closed")
            self._jobs.append(job)
            self._wake.notify()

    def stop(self) -> None:
        """Finish what waits, and end; blocks."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()
        if self._bell is not None:
            self._bell.stop()
        if self._engine is not None:
            self._engine.dispose()

    # --- in the thread ---

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001  (whatever it is: nobody may wait for this thread in silence)
            self._die(error)

    def _work(self) -> None:
        assert self._engine is not None
        with contextlib.closing(self._engine.connect()) as connection:
            self._reserve(connection)
            driver = _driver(connection)
            while True:
                self._wait(connection)
                if not self._current:
                    return
                self._crowded = False
                before = driver.total_changes
                calls = self._transact(connection, self._current)
                self._current = []
                if self._bell is not None and driver.total_changes != before:
                    self._bell.ring()
                self._post(partial(self._tell, calls))
                if self._crowded:
                    time.sleep(contention.GIVE_WAY_S)

    def _wait(self, connection: Connection) -> None:
        """Until there are jobs to be done, or none will come; meanwhile look for what others change."""
        while True:
            with self._wake:
                if not (self._jobs or self._stopping or self._heard):
                    self._wake.wait(self._pause)
                self._heard = False
                if self._jobs or self._stopping:
                    self._current = [self._jobs.popleft() for _ in range(min(_MOST, len(self._jobs)))]
                    return
            # not under the lock: the event loop would wait with this thread for the disk, or for another process
            if self._changed is not None:
                try:
                    self._look(connection)
                    if self._hears and time.monotonic() > self._active_until:
                        self._pause = _LOOK_QUIET_S
                except (OSError, sqlite3.Error) as error:  # whoever has something to do will hear of it
                    logger.debug("%s: what others have changed is not seen now: %s", self._path, error)

    def _look(self, connection: Connection) -> None:
        """See whether another process has changed something; takes some microseconds."""
        (version,) = _driver(connection).execute("PRAGMA data_version").fetchone()
        if version != self._data_version:
            self._active_until = time.monotonic() + ACTIVE_S
            self._pause = _LOOK_S
            self._data_version = version
            self._crowded = True
            assert self._changed is not None
            self._changed()

    def _reserve(self, connection: Connection) -> None:
        """Take the space for the write-ahead log at once, so that commits go on where messages have filled the disk.

        Otherwise neither a deletion nor retention could be recorded, and nothing would ever make space again. It lasts
        until some hundred new rows have found no room in the database itself. SQLite does not mind: what follows the
        last frame of its log is no frame.
        """
        with _transaction(connection):
            pass  # the log is there from the first transaction on
        try:
            log = os.open(f"{self._path}-wal", os.O_RDWR | os.O_CLOEXEC)
            try:
                _take_space(log, _RESERVE_BYTES)
            finally:
                os.close(log)  # SQLite's locks are on other files: this takes none of them away
        except OSError as error:
            logger.warning("%s: no space could be reserved for its write-ahead log: %s", self._path, error)

    def _die(self, error: BaseException) -> None:
        logger.critical("the thread that writes %s has ended: %r", self._path, error, exc_info=error)
        with self._wake:
            self._failure = f"{self._path}: the thread that writes it has ended: {error!r}; open the store again"
            jobs = [*self._current, *self._jobs]
            self._current = []
            self._jobs.clear()
        calls = [job.done(None, StorageError(self._failure)) for job in jobs]
        self._post(partial(self._failed, StorageError(self._failure)))
        self._post(partial(self._tell, calls))

    def _transact(self, connection: Connection, jobs: list[Job]) -> list[Callable[[], object]]:
        """Do some jobs in one transaction; what is to be run in the event loop."""
        self.transactions += 1
        outcomes: list[tuple[Any, Exception | None]] = []
        try:
            try:
                outcomes = self._together(connection, jobs)
            except _JobError:
                outcomes = self._apart(connection, jobs)
        except _UnknownOutcomeError:
            raise  # nothing may go on, so the thread ends
        except Exception as error:  # noqa: BLE001  (the thread goes on; all who wait hear of it)
            outcomes = [(None, self._storage_error(error)) for _ in jobs]
        return [job.done(result, error) for job, (result, error) in zip(jobs, outcomes, strict=True)]

    def _together(self, connection: Connection, jobs: list[Job]) -> list[tuple[Any, Exception | None]]:
        outcomes: list[tuple[Any, Exception | None]] = []
        with _transaction(connection):
            if self._changed is not None:
                self._look(connection)  # before anything is done on the strength of what was known
            for job in jobs:
                try:
                    outcomes.append((job.work(connection), None))
                except HtpError as error:
                    outcomes.append((None, error))
                except Exception as error:
                    raise _JobError from error
        return outcomes

    def _apart(self, connection: Connection, jobs: list[Job]) -> list[tuple[Any, Exception | None]]:
        """Again in one transaction, each job behind a savepoint: one that fails undoes itself and no other."""
        outcomes: list[tuple[Any, Exception | None]] = []
        with _transaction(connection):
            for job in jobs:
                try:
                    with connection.begin_nested():
                        outcomes.append((job.work(connection), None))
                except HtpError as error:
                    outcomes.append((None, error))
                except Exception as error:
                    if not _in_transaction(connection):  # SQLite gives up the whole of it for some errors
                        raise
                    outcomes.append((None, self._storage_error(error)))
        return outcomes

    def _storage_error(self, error: Exception) -> StorageError:
        if isinstance(error, StorageError):
            return error
        reason = _reason(error)
        kind = StorageFullError if "disk is full" in reason else StorageError
        return kind(f"{self._path}: {reason}")

    # --- in the event loop ---

    def _tell(self, calls: list[Callable[[], object]]) -> None:
        for call in calls:
            try:
                call()
            except Exception as error:
                logger.critical("what waited for %s failed: %r", self._path, error, exc_info=error)
                self._failed(StorageError(f"{self._path}: what waited for it failed: {error!r}"))


@contextlib.contextmanager
def _transaction(connection: Connection) -> Iterator[None]:
    """Commit what is done inside, or roll it back.

    Raises:
        _UnknownOutcomeError: If the commit neither succeeded nor failed.
    """
    transaction = connection.begin()
    try:
        yield
    except BaseException:  # whatever it is, the next transaction begins with nothing of this one
        transaction.rollback()
        raise
    try:
        transaction.commit()
    except Exception as error:
        transaction.rollback()
        if _in_transaction(connection):  # SQLite ends it for most errors; SQLAlchemy takes it for ended in any case
            _driver(connection).rollback()
        if _code_of(error) not in _UNDONE:
            raise _UnknownOutcomeError(
                f"a commit failed, and may be found done after a restart: {_reason(error)}"
            ) from error
        raise


if sys.platform == "darwin":

    def _take_space(fd: int, size: int) -> None:
        end = os.lseek(fd, 0, os.SEEK_END)
        os.pwrite(fd, bytes(max(0, size - end)), end)
else:

    def _take_space(fd: int, size: int) -> None:
        os.posix_fallocate(fd, 0, size)


def _damage(connection: Connection) -> list[str]:
    return list(connection.exec_driver_sql(f"PRAGMA integrity_check({_FINDINGS})").scalars())


def _configure(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # no hidden BEGIN: see `contention.begin`
    cursor = connection.cursor()
    try:
        cursor.execute(f"PRAGMA busy_timeout={round(contention.PATIENCE_S * 1000)}")
        cursor.execute("PRAGMA journal_mode=WAL")
        mode = cursor.fetchone()[0]
        if mode != "wal":
            raise sqlite3.OperationalError(f"the file system allows no write-ahead log (journal mode {mode})")
        cursor.execute("PRAGMA synchronous=FULL")
        # macOS: fsync alone leaves the data in the drive's cache; elsewhere without effect
        cursor.execute("PRAGMA fullfsync=ON")
        cursor.execute("PRAGMA checkpoint_fullfsync=ON")
        cursor.execute(f"PRAGMA busy_timeout={contention.BUSY_MS}")
    finally:
        cursor.close()


def _reason(error: Exception) -> str:
    return str(_cause(error))


def _cause(error: Exception) -> BaseException:
    return error.__cause__ if isinstance(error, SQLAlchemyError) and error.__cause__ is not None else error


def _code_of(error: Exception) -> int | None:
    """SQLite's extended code of an error; None if it is not SQLite's."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return getattr(cause, "sqlite_errorcode", None)


def _in_transaction(connection: Connection) -> bool:
    return _driver(connection).in_transaction


def _driver(connection: Connection) -> sqlite3.Connection:
    driver: Any = connection.connection.dbapi_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver
