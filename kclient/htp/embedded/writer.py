"""The one thread that talks to the database: what waits goes into one transaction."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from kclient.htp.embedded.tables import metadata
from kclient.htp.errors import HtpError, StorageError, StorageFullError, StoreClosedError

_MOST: Final = 256
"""Jobs in one transaction, at most."""
_BUSY_MS: Final = 10_000
"""How long another process may hold the database."""


class Job(NamedTuple):
    """A piece of work inside a transaction, and who is told of the outcome (in the writer's thread).

    The work raises `HtpError` before it writes anything, or not at all.
    """

    work: Callable[[Connection], Any]
    done: Callable[[Any, Exception | None], Callable[[], object]]
    """Makes of result and error what is to be run in the event loop."""


class Writer:
    """The thread.

    Args:
        path: Of the database file, whose directory exists.
        post: Runs a function in the event loop.
    """

    def __init__(self, path: str, post: Callable[[Callable[[], object]], None]) -> None:
        self._path = path
        self._post = post
        self._wake = threading.Condition(threading.Lock())
        self._jobs: deque[Job] = deque()
        self._stopping = False
        self._engine: Engine | None = None
        self.transactions: int = 0
        """Transactions done since the start."""
        # a daemon for the same reason as the syncer's thread
        self._thread = threading.Thread(target=self._run, name="kclient-htp-manager", daemon=True)

    def start(self) -> None:
        """Open the database, creating it if need be, and begin; blocks.

        Raises:
            StorageError: If the database cannot be opened.
        """
        self._engine = create_engine(
            f"sqlite:///{self._path}", poolclass=NullPool, connect_args={"check_same_thread": False}
        )
        event.listen(self._engine, "connect", _configure)
        event.listen(self._engine, "begin", _begin)
        try:
            with self._engine.begin() as connection:
                metadata.create_all(connection)
        except SQLAlchemyError as error:
            raise StorageError(f"{self._path} cannot be opened: {_reason(error)}") from error
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Have a job done; from any thread.

        Raises:
            StoreClosedError: If the writer was stopped.
        """
        with self._wake:
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
        if self._engine is not None:
            self._engine.dispose()

    def _run(self) -> None:
        assert self._engine is not None
        with contextlib.closing(self._engine.connect()) as connection:
            while True:
                with self._wake:
                    while not (self._jobs or self._stopping):
                        self._wake.wait()
                    jobs = [self._jobs.popleft() for _ in range(min(_MOST, len(self._jobs)))]
                if not jobs:
                    return
                calls = self._transact(connection, jobs)
                self._post(lambda calls=calls: _run_all(calls))  # type: ignore[misc]

    def _transact(self, connection: Connection, jobs: list[Job]) -> list[Callable[[], object]]:
        outcomes: list[tuple[Any, Exception | None]] = []
        try:
            with connection.begin():
                for job in jobs:
                    try:
                        outcomes.append((job.work(connection), None))
                    except HtpError as error:
                        outcomes.append((None, error))
        except Exception as error:  # noqa: BLE001  (the thread goes on; all who wait hear of it)
            outcomes = [(None, self._storage_error(error)) for _ in jobs]
        self.transactions += 1
        return [job.done(result, error) for job, (result, error) in zip(jobs, outcomes, strict=True)]

    def _storage_error(self, error: Exception) -> StorageError:
        reason = _reason(error)
        kind = StorageFullError if "disk is full" in reason else StorageError
        return kind(f"{self._path}: {reason}")


def _run_all(calls: list[Callable[[], object]]) -> None:
    for call in calls:
        call()


def _configure(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # no hidden BEGIN: see `_begin`
    cursor = connection.cursor()
    try:
        cursor.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
        cursor.execute("PRAGMA journal_mode=WAL")
        mode = cursor.fetchone()[0]
        if mode != "wal":
            raise sqlite3.OperationalError(f"the file system allows no write-ahead log (journal mode {mode})")
        cursor.execute("PRAGMA synchronous=FULL")
    finally:
        cursor.close()


def _begin(connection: Connection) -> None:
    # the lock first: a transaction that reads and then writes would otherwise fail when another one wrote between
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _reason(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error, SQLAlchemyError) and error.__cause__ is not None else error
    return str(cause)
