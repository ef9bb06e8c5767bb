"""A backend of HTP in one SQLite file: the smallest that keeps everything that the contract asks for.

Usage: python sqlite_backend.py [FILE]. As an installed backend it is `sqlite:FILE` (docs/guide/write-a-backend.md).
Each call is one short transaction in the event loop: good enough to read, and for tests; a server would use a thread.
"""

import secrets
import sqlite3
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

import anyio
import anyio.lowlevel

from kclient.errors import ConfigError
from kclient.htp import errors
from kclient.htp.change_tokens import CHANGES_KEPT, ChangePlace, check_limit, check_place, check_prefixes, parse_token
from kclient.htp.change_tokens import to_be_followed
from kclient.htp.framings import check_framing
from kclient.htp.leases import check_ttl, next_epoch
from kclient.htp.port import CAP_DURABLE, CAP_FENCED_SENDS, CAP_POSITIONS, Change, ChangePage, Framing, Lease, LeaseInfo
from kclient.htp.port import Place, Pulled, SyncedCallback, Topic, TopicInfo, TopicSettings, TopicStatus, Versioned
from kclient.htp.rows import check_opening, prefix_end
from kclient.types import Buffer

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


# --8<-- [start:store]
def open_sqlite(path: str, *, durability: str = "synced") -> "SqliteStore":
    """The entry point: what follows `sqlite:` in the URL, and the options of `open_store`."""
    if durability not in ("synced", "written"):
        raise ConfigError(f"durability is 'synced' or 'written', not {durability!r}")
    return SqliteStore(path, durability)


class SqliteStore:
    """Implements `kclient.htp.port.Store`."""

    def __init__(self, path: str, durability: str) -> None:
        self.path = path
        self._synchronous = "FULL" if durability == "synced" else "OFF"
        self._db: sqlite3.Connection | None = None
        self._manager, self._broker = SqliteManager(self), SqliteBroker(self)
        self.news = anyio.Event()
        """Set, and replaced, with each commit."""

    async def __aenter__(self) -> Self:
        try:
            self._db = sqlite3.connect(self.path, timeout=10, isolation_level=None)
            self._db.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = {self._synchronous}; {TABLES}")
        except sqlite3.Error as error:
            raise errors.StorageError(f"{self.path} cannot be opened: {error}") from error
        self._db.execute(
            "INSERT OR IGNORE INTO counters VALUES ('revision', 0), ('history', ?)", [secrets.randbits(48)]
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()
            self.news.set()

    def on_failure(self, callback: Any) -> Any:
        return lambda: None  # there is nothing in it that could die by itself

    @property
    def manager(self) -> "SqliteManager":
        self.check()
        return self._manager

    @property
    def broker(self) -> "SqliteBroker":
        self.check()
        return self._broker

    def check(self) -> None:
        if self._db is None:
            raise errors.StoreClosedError(f"{self.path} is not open")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, and durable when the block was left; nothing in it awaits."""
        self.check()
        assert self._db is not None
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


# --8<-- [end:store]


def bounds(prefix: str) -> tuple[str, str]:
    """Where the texts that begin with a prefix begin and end; no text comes after the second."""
    return prefix, prefix_end(prefix) or "\U0010ffff" * 8


# --8<-- [start:topics]
class SqliteManager:
    """Implements `kclient.htp.port.Manager`."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    def _domain(self, db: sqlite3.Connection, domain: str) -> None:
        if not db.execute("SELECT 1 FROM domains WHERE name = ?", [domain]).fetchone():
            raise errors.UnknownDomainError(f"there is no domain {domain!r}")

    async def create_domain(self, domain: str) -> None:
        with self._store.transaction() as db:
            if not db.execute("INSERT OR IGNORE INTO domains VALUES (?)", [domain]).rowcount:
                raise errors.DomainExistsError(f"domain {domain!r} exists already")

    async def delete_domain(self, domain: str, *, lease: Lease | None = None) -> None:
        with self._store.transaction() as db:
            self._holds(db, lease)
            self._domain(db, domain)
            db.execute("DELETE FROM topics WHERE domain = ?", [domain])
            db.execute("DELETE FROM domains WHERE name = ?", [domain])

    async def create_topic(self, topic: Topic, *, broker: str | None = None) -> TopicInfo:
        with self._store.transaction() as db:
            self._domain(db, topic.domain)
            made = db.execute("INSERT OR IGNORE INTO topics VALUES (NULL, ?, ?, ?)", [*topic, broker])
            if not made.rowcount:
                raise errors.TopicExistsError(f"topic {topic} exists already")
            return TopicInfo(topic, broker, made.lastrowid or 0)

    async def list_topics(self, domain: str, prefix: str = "") -> list[TopicInfo]:
        with self._store.transaction() as db:
            self._domain(db, domain)
            found = db.execute(
                "SELECT name, broker, incarnation FROM topics WHERE domain = ? AND name >= ? AND name < ? ORDER BY name",
                [domain, *bounds(prefix)],
            )
            return [TopicInfo(Topic(domain, name), broker, number) for name, broker, number in found]

    async def describe_topic(self, topic: Topic) -> TopicInfo:
        with self._store.transaction() as db:
            return describe(db, topic)

    async def delete_topics(self, names: Iterable[Topic], *, lease: Lease | None = None) -> None:
        with self._store.transaction() as db:
            self._holds(db, lease)
            db.executemany("DELETE FROM topics WHERE domain = ? AND name = ?", names)

    # --8<-- [end:topics]

    # --8<-- [start:values]
    async def get(self, keys: Iterable[str]) -> dict[str, Versioned]:
        with self._store.transaction() as db:
            found = (
                (key, db.execute("SELECT value, version FROM rows WHERE key = ?", [key]).fetchone()) for key in keys
            )
            return {key: Versioned(*row) for key, row in found if row}

    async def scan(self, prefix: str, *, after: str = "", limit: int) -> dict[str, Versioned]:
        with self._store.transaction() as db:
            found = db.execute(
                "SELECT * FROM rows WHERE key >= ? AND key < ? AND key > ? ORDER BY key LIMIT ?",
                [*bounds(prefix), after, limit],
            )
            return {key: Versioned(value, version) for key, value, version in found}

    async def commit(
        self,
        writes: Mapping[str, bytes | None],
        expect: Mapping[str, int] | None = None,
        *,
        lease: Lease | None = None,
    ) -> int:
        await anyio.lowlevel.checkpoint()
        with self._store.transaction() as db:
            self._holds(db, lease)
            for key, expected in (expect or {}).items():
                (found,) = db.execute("SELECT version FROM rows WHERE key = ?", [key]).fetchone() or (0,)
                if found != expected:
                    raise errors.ConflictError(key, expected, found)
            db.execute("UPDATE counters SET value = value + 1 WHERE name = 'revision'")
            revision, _ = counters(db)
            followed = tuple(prefix for (prefix,) in db.execute("SELECT prefix FROM followed"))
            for key, value in writes.items():
                if value is None:
                    there = db.execute("DELETE FROM rows WHERE key = ?", [key]).rowcount
                    if not there:
                        continue
                else:
                    db.execute("INSERT OR REPLACE INTO rows VALUES (?, ?, ?)", [key, bytes(value), revision])
                if followed and key.startswith(followed):
                    db.execute("DELETE FROM changes WHERE key = ? AND deleted IN (0, ?)", [key, int(value is None)])
                    db.execute("INSERT INTO changes VALUES (?, ?, ?)", [key, int(value is None), revision])
            db.execute("DELETE FROM changes WHERE version <= ?", [revision - CHANGES_KEPT])
        self._store.news.set()
        self._store.news = anyio.Event()
        return revision

    # --8<-- [end:values]

    # --8<-- [start:changes]
    async def changes(
        self, prefixes: Iterable[str], since: str | None = None, *, limit: int = 1000, wait: float = 0.0
    ) -> ChangePage:
        prefixes, limit = check_prefixes(prefixes), check_limit(limit)
        place = None if since is None else parse_token(since)
        until = anyio.current_time() + wait
        while True:
            news = self._store.news
            page = self._page(prefixes, place, limit)
            left = until - anyio.current_time()
            if place is None or page.changes or left <= 0:
                return page
            place = parse_token(page.token)
            with anyio.move_on_after(min(left, 0.2)):  # another process wakes nobody here
                await news.wait()

    def _page(self, prefixes: tuple[str, ...], place: ChangePlace | None, limit: int) -> ChangePage:
        with self._store.transaction() as db:
            revision, history = counters(db)
            now = ChangePlace(history, revision)
            followed = dict(db.execute("SELECT prefix, since FROM followed").fetchall())
            if place is None:
                new = [(prefix, revision) for prefix in to_be_followed(prefixes, followed)]
                db.executemany("INSERT INTO followed VALUES (?, ?)", new)
                return ChangePage([], now.token, more=False)
            check_place(place, prefixes, history, revision, max(0, revision - CHANGES_KEPT), followed)
            found: list[Change] = []
            for key, deleted, version, value in db.execute(
                "SELECT key, deleted, changes.version, value FROM changes LEFT JOIN rows USING (key) "
                "WHERE (changes.version, key) > (?, ?) ORDER BY changes.version, key",
                [place.revision, "\U0010ffff" * 8 if place.key is None else place.key],
            ):
                if key.startswith(prefixes):
                    if len(found) == limit:
                        last = found[-1]
                        return ChangePage(found, ChangePlace(history, last.version, last.key).token, more=True)
                    found.append(Change(key, None if deleted else value, version))
            return ChangePage(found, now.token, more=False)

    # --8<-- [end:changes]

    # --8<-- [start:leases]
    async def acquire(
        self, name: str, holder: str, ttl: float, *, above: int = 0, over: LeaseInfo | None = None
    ) -> Lease:
        expires = time.monotonic() + check_ttl(ttl)
        with self._store.transaction() as db:
            row = lease_row(db, name)
            if row is not None and row.held and row.holder != holder and row != over:
                raise errors.LeaseHeldError(f"{row.holder!r} holds {name!r}", holder=row.holder)
            epoch = next_epoch(name, row.epoch if row else 0, above)
            version = row.version + 1 if row else 1
            db.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, 1, ?)", [name, holder, epoch, ttl, version])
        return Lease(name, holder, epoch, ttl, expires)

    async def renew(self, lease: Lease) -> Lease:
        expires = time.monotonic() + lease.ttl
        with self._store.transaction() as db:
            self._holds(db, lease)
            db.execute("UPDATE leases SET held = 1, version = version + 1 WHERE name = ?", [lease.name])
        return replace(lease, expires=expires)

    async def release(self, lease: Lease) -> None:
        with self._store.transaction() as db:
            db.execute(
                "UPDATE leases SET held = 0, version = version + 1 WHERE name = ? AND epoch = ?",
                [lease.name, lease.epoch],
            )

    async def leases(self, prefix: str) -> list[LeaseInfo]:
        with self._store.transaction() as db:
            found = db.execute("SELECT * FROM leases WHERE name >= ? AND name < ? ORDER BY name", bounds(prefix))
            return [lease_info(row) for row in found]

    def _holds(self, db: sqlite3.Connection, lease: Lease | None) -> None:
        row = lease_row(db, lease.name) if lease else None
        if lease is not None and (row is None or row.epoch != lease.epoch):
            raise errors.FencedError(f"{lease.name!r} has a newer epoch", epoch=row.epoch if row else None)

    # --8<-- [end:leases]


def counters(db: sqlite3.Connection) -> tuple[int, int]:
    """The number of the last commit, and that of the store itself."""
    found = dict(db.execute("SELECT name, value FROM counters").fetchall())
    return found["revision"], found["history"]


def lease_info(row: tuple[Any, ...]) -> LeaseInfo:
    return LeaseInfo(*row[:4], bool(row[4]), row[5])


def lease_row(db: sqlite3.Connection, name: str) -> LeaseInfo | None:
    row = db.execute("SELECT * FROM leases WHERE name = ?", [name]).fetchone()
    return row and lease_info(row)


def describe(db: sqlite3.Connection, topic: Topic) -> TopicInfo:
    row = db.execute("SELECT broker, incarnation FROM topics WHERE domain = ? AND name = ?", topic).fetchone()
    if row is None:
        raise errors.UnknownTopicError(f"there is no topic {topic}")
    return TopicInfo(topic, *row)


# --8<-- [start:broker]
class SqliteBroker:
    """Implements `kclient.htp.port.Broker`; positions are its own, one for each message."""

    capabilities = frozenset({CAP_POSITIONS, CAP_FENCED_SENDS, CAP_DURABLE})

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    async def open(
        self,
        place: Place,
        framing: Framing,
        *,
        epoch: int,
        settings: TopicSettings | None = None,
        next_position: int = 0,
    ) -> "SqliteTopic":
        check_opening(epoch, next_position)
        with self._store.transaction() as db:
            if describe(db, place.topic).place != place:
                raise errors.UnknownTopicError(f"there is no topic {place}")
            row = db.execute("SELECT framing, epoch FROM logs WHERE incarnation = ?", [place.incarnation]).fetchone()
            if row is not None:
                check_framing(place, row[0], framing.name)
                fence(place, epoch, row[1])
                db.execute("UPDATE logs SET epoch = ? WHERE incarnation = ?", [epoch, place.incarnation])
            else:  # what the name stood for before has gone
                for (old,) in db.execute("SELECT incarnation FROM logs WHERE domain = ? AND name = ?", place.topic):
                    drop(db, old)
                db.execute(
                    "INSERT INTO logs VALUES (?, ?, ?, ?, ?, 0, 0)",
                    [place.incarnation, *place.topic, framing.name, epoch],
                )
        return SqliteTopic(self._store, place, epoch, framing)

    async def delete(self, places: Iterable[Place], *, epoch: int) -> None:
        with self._store.transaction() as db:
            for place in places:
                row = db.execute("SELECT epoch FROM logs WHERE incarnation = ?", [place.incarnation]).fetchone()
                if row is not None:
                    fence(place, epoch, row[0])
                    drop(db, place.incarnation)


def fence(place: Place, epoch: int, newest: int) -> None:
    if epoch < newest:
        raise errors.FencedError(f"{place}: epoch {epoch} is older than {newest}", epoch=newest)


def drop(db: sqlite3.Connection, incarnation: int) -> None:
    db.execute("DELETE FROM messages WHERE incarnation = ?", [incarnation])
    db.execute("DELETE FROM logs WHERE incarnation = ?", [incarnation])


# --8<-- [end:broker]


# --8<-- [start:topic]
class SqliteSent:
    """A transaction that was committed is durable."""

    done = True

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last

    async def synced(self) -> None:
        await anyio.lowlevel.checkpoint()

    def on_synced(self, callback: SyncedCallback, /) -> None:
        callback(None)


class SqliteTopic:
    """Implements `kclient.htp.port.OpenTopic`."""

    def __init__(self, store: SqliteStore, place: Place, epoch: int, framing: Framing) -> None:
        self.place, self.epoch = place, epoch
        self._store, self._framing = store, framing
        self._closed = False

    @contextmanager
    def _use(self) -> Iterator[tuple[sqlite3.Connection, int, int]]:
        """The database, the topic's start and its end, as long as nobody else has taken it."""
        with self._store.transaction() as db:
            row = db.execute("SELECT epoch, start, next FROM logs WHERE incarnation = ?", [self.place.incarnation])
            found = row.fetchone()
            if found is None or self._closed:
                raise errors.UnknownTopicError(f"{self.place} was {'closed' if self._closed else 'deleted'}")
            fence(self.place, self.epoch, found[0])
            yield db, found[1], found[2]

    async def close(self) -> None:
        self._closed = True

    async def send(self, messages: Sequence[Buffer]) -> SqliteSent:
        await anyio.lowlevel.checkpoint()
        for message in messages:
            if self._framing.measure(message) != len(message) or not self._framing.verify(message):
                raise ValueError(f"a buffer of {len(message)} bytes is not one message")
        with self._use() as (db, _, following):
            rows = [(self.place.incarnation, following + n, bytes(each)) for n, each in enumerate(messages)]
            db.executemany("INSERT INTO messages VALUES (?, ?, ?)", rows)
            end = following + len(messages)
            db.execute("UPDATE logs SET next = ? WHERE incarnation = ?", [end, self.place.incarnation])
        return SqliteSent(following, end - 1)

    async def pull(self, position: int, *, max_bytes: int = 1 << 20, max_messages: int | None = None) -> Pulled:
        await anyio.lowlevel.checkpoint()
        with self._use() as (db, start, end):
            if not start <= position <= end:
                raise errors.PositionError(f"{position} is not within {start} to {end}", start=start, end=end)
            found: list[bytes] = []
            for (body,) in db.execute(
                "SELECT body FROM messages WHERE incarnation = ? AND position >= ? ORDER BY position LIMIT ?",
                [self.place.incarnation, position, -1 if max_messages is None else max(1, max_messages)],
            ):
                max_bytes -= len(body)
                if found and max_bytes < 0:
                    break
                found.append(body)
        return Pulled(b"".join(found), position, position + len(found) - 1)

    async def status(self) -> TopicStatus:
        with self._use() as (db, start, end):
            size = "SELECT coalesce(sum(length(body)), 0) FROM messages WHERE incarnation = ?"
            return TopicStatus(start, end, end, db.execute(size, [self.place.incarnation]).fetchone()[0])

    async def trim(self, before: int) -> int:
        with self._use() as (db, start, end):
            start = max(start, min(before, end))
            db.execute("DELETE FROM messages WHERE incarnation = ? AND position < ?", [self.place.incarnation, start])
            db.execute("UPDATE logs SET start = ? WHERE incarnation = ?", [start, self.place.incarnation])
            return start

    # --8<-- [end:topic]

    async def configure(self, settings: TopicSettings) -> None:
        raise NotImplementedError("there are no segments here")

    async def find_by_timestamp(self, timestamp: int, *, start: int = 0) -> Any:
        raise NotImplementedError("messages cannot be searched by time here")

    async def segments(self) -> Any:
        raise NotImplementedError("there are no segments here")

    async def roll(self) -> None:
        raise NotImplementedError("there are no segments here")


async def main(path: str) -> None:
    from kclient.htp.contract.messages import FRAMING, message, payloads

    async with open_sqlite(path) as store:
        try:
            await store.manager.create_domain("demo")
            await store.manager.create_topic(Topic("demo", "topic"))
        except errors.DomainExistsError:
            print("there from an earlier run")
        place = (await store.manager.describe_topic(Topic("demo", "topic"))).place
        topic = await store.broker.open(place, FRAMING, epoch=1)
        await topic.send([message(0, b"hello")])
        status = await topic.status()
        print(f"{payloads((await topic.pull(status.end - 1)).data)[0].decode()} at position {status.end - 1}")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else "./messages.sqlite")
