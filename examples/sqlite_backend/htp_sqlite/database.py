"""The one SQLite file: its tables, and transactions."""

import secrets
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from kclient.htp import errors
from kclient.htp.port import Topic, TopicInfo
from kclient.htp.rows import prefix_end

BROKER = "brk-0"
"""The only broker: everything is in one file."""
PATIENCE_S = 10.0
"""How long another process may have the file."""
TABLES = """
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER);
CREATE TABLE IF NOT EXISTS domains (name TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS topics
    (incarnation INTEGER PRIMARY KEY AUTOINCREMENT, domain TEXT, name TEXT, broker TEXT, UNIQUE (domain, name));
CREATE TABLE IF NOT EXISTS logs
    (incarnation INTEGER PRIMARY KEY, domain TEXT, name TEXT, framing TEXT, epoch INTEGER, start INTEGER, next INTEGER);
CREATE TABLE IF NOT EXISTS messages
    (incarnation INTEGER, position INTEGER, body BLOB, PRIMARY KEY (incarnation, position)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rows (key TEXT PRIMARY KEY, value BLOB, version INTEGER);
CREATE TABLE IF NOT EXISTS changes (key TEXT, deleted INTEGER, version INTEGER, PRIMARY KEY (key, deleted));
CREATE INDEX IF NOT EXISTS changes_by_version ON changes (version, key);
CREATE TABLE IF NOT EXISTS followed (prefix TEXT PRIMARY KEY, since INTEGER);
CREATE TABLE IF NOT EXISTS leases
    (name TEXT PRIMARY KEY, holder TEXT, epoch INTEGER, ttl REAL, held INTEGER, version INTEGER);
"""


class Database:
    """An open file.

    Args:
        path: Of the file; made if it does not exist.
        synchronous: SQLite's word for when a commit is on disk.
    """

    def __init__(self, path: str, synchronous: str) -> None:
        self.path = path
        self.news = anyio.Event()
        """Set, and replaced, with each commit of rows."""
        try:
            self._db: sqlite3.Connection | None = sqlite3.connect(path, timeout=PATIENCE_S, isolation_level=None)
            _write_ahead(self._db)
            self._db.executescript(f"PRAGMA synchronous = {synchronous}; {TABLES}")
            self._db.execute(
                "INSERT OR IGNORE INTO counters VALUES ('revision', 0), ('history', ?)", [secrets.randbits(48)]
            )
        except sqlite3.Error as error:
            raise errors.StorageError(f"{path} cannot be opened: {error}") from error

    def close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()
        self.news.set()

    def tell(self) -> None:
        """Have those look again who wait for changes."""
        self.news.set()
        self.news = anyio.Event()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, and durable when the block was left; nothing in it awaits."""
        if self._db is None:
            raise errors.StoreClosedError(f"{self.path} was closed")
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            full = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL
            raise (errors.StorageFullError if full else errors.StorageError)(f"{self.path}: {error}") from error


def bounds(prefix: str) -> tuple[str, str]:
    """Where the texts that begin with a prefix begin and end; no text comes after the second."""
    return prefix, prefix_end(prefix) or "\U0010ffff" * 8


def describe(db: sqlite3.Connection, topic: Topic) -> TopicInfo:
    row = db.execute("SELECT broker, incarnation FROM topics WHERE domain = ? AND name = ?", topic).fetchone()
    if row is None:
        raise errors.UnknownTopicError(f"there is no topic {topic}")
    return TopicInfo(topic, *row)


def _write_ahead(db: sqlite3.Connection) -> None:
    """Keep a write-ahead log; SQLite itself does not wait for the file where two processes ask that at once."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.001)
        else:
            return
