"""HTP's mgr: domains, topics, values, changes and leases."""

import sqlite3
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel

from htp_sqlite.database import BROKER, Database, bounds, describe
from kclient.htp import errors
from kclient.htp.brokers import check_broker
from kclient.htp.change_tokens import (
    CHANGES_KEPT,
    ChangePlace,
    check_limit,
    check_place,
    check_prefixes,
    parse_token,
    to_be_followed,
)
from kclient.htp.leases import check_ttl, next_epoch
from kclient.htp.port import Change, ChangePage, Lease, LeaseInfo, Place, Topic, TopicInfo, Versioned


class SqliteManager:
    """Implements `kclient.htp.port.Manager`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def _domain(self, db: sqlite3.Connection, domain: str) -> None:
        if not db.execute("SELECT 1 FROM domains WHERE name = ?", [domain]).fetchone():
            raise errors.UnknownDomainError(f"there is no domain {domain!r}")

    async def brokers(self) -> list[str]:
        with self._database.transaction():
            return [BROKER]

    async def create_domain(self, domain: str) -> None:
        with self._database.transaction() as db:
            if not db.execute("INSERT OR IGNORE INTO domains VALUES (?)", [domain]).rowcount:
                raise errors.DomainExistsError(f"domain {domain!r} exists already")

    async def delete_domain(self, domain: str, *, lease: Lease | None = None) -> None:
        with self._database.transaction() as db:
            self._holds(db, lease)
            self._domain(db, domain)
            db.execute("DELETE FROM topics WHERE domain = ?", [domain])
            db.execute("DELETE FROM domains WHERE name = ?", [domain])

    async def create_topic(self, topic: Topic, *, broker: str | None = None) -> TopicInfo:
        with self._database.transaction() as db:
            self._domain(db, topic.domain)
            if broker is not None:
                check_broker(broker, [BROKER])
            made = db.execute("INSERT OR IGNORE INTO topics VALUES (NULL, ?, ?, ?)", [*topic, broker])
            if not made.rowcount:
                raise errors.TopicExistsError(f"topic {topic} exists already")
            return TopicInfo(topic, broker, made.lastrowid or 0)

    async def bind(self, topic: Topic, broker: str, *, lease: Lease | None = None) -> Place:
        with self._database.transaction() as db:
            self._holds(db, lease)
            info = describe(db, topic)
            check_broker(broker, [BROKER])
            if info.broker is None:
                raise errors.BindingError(f"topic {topic} was created without a broker")
            return info.place  # there is no other broker

    async def list_topics(self, domain: str, prefix: str = "") -> list[TopicInfo]:
        with self._database.transaction() as db:
            self._domain(db, domain)
            found = db.execute(
                "SELECT name, broker, incarnation FROM topics "
                "WHERE domain = ? AND name >= ? AND name < ? ORDER BY name",
                [domain, *bounds(prefix)],
            )
            return [TopicInfo(Topic(domain, name), broker, number) for name, broker, number in found]

    async def describe_topic(self, topic: Topic) -> TopicInfo:
        with self._database.transaction() as db:
            return describe(db, topic)

    async def delete_topics(self, names: Iterable[Topic], *, lease: Lease | None = None) -> None:
        with self._database.transaction() as db:
            self._holds(db, lease)
            db.executemany("DELETE FROM topics WHERE domain = ? AND name = ?", names)

    async def get(self, keys: Iterable[str]) -> dict[str, Versioned]:
        with self._database.transaction() as db:
            found = (
                (key, db.execute("SELECT value, version FROM rows WHERE key = ?", [key]).fetchone()) for key in keys
            )
            return {key: Versioned(*row) for key, row in found if row}

    async def scan(self, prefix: str, *, after: str = "", limit: int) -> dict[str, Versioned]:
        with self._database.transaction() as db:
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
        with self._database.transaction() as db:
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
        self._database.tell()
        return revision

    async def changes(
        self, prefixes: Iterable[str], since: str | None = None, *, limit: int = 1000, wait: float = 0.0
    ) -> ChangePage:
        prefixes, limit = check_prefixes(prefixes), check_limit(limit)
        place = None if since is None else parse_token(since)
        until = anyio.current_time() + wait
        while True:
            news = self._database.news
            page = self._page(prefixes, place, limit)
            left = until - anyio.current_time()
            if place is None or page.changes or left <= 0:
                return page
            place = parse_token(page.token)
            with anyio.move_on_after(min(left, 0.2)):  # another process wakes nobody here
                await news.wait()

    def _page(self, prefixes: tuple[str, ...], place: ChangePlace | None, limit: int) -> ChangePage:
        with self._database.transaction() as db:
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

    async def acquire(
        self, name: str, holder: str, ttl: float, *, above: int = 0, over: LeaseInfo | None = None
    ) -> Lease:
        expires = time.monotonic() + check_ttl(ttl)
        with self._database.transaction() as db:
            row = lease_row(db, name)
            if row is not None and row.held and row.holder != holder and row != over:
                raise errors.LeaseHeldError(f"{row.holder!r} holds {name!r}", holder=row.holder)
            epoch = next_epoch(name, row.epoch if row else 0, above)
            version = row.version + 1 if row else 1
            db.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, 1, ?)", [name, holder, epoch, ttl, version])
        return Lease(name, holder, epoch, ttl, expires)

    async def renew(self, lease: Lease) -> Lease:
        expires = time.monotonic() + lease.ttl
        with self._database.transaction() as db:
            self._holds(db, lease)
            db.execute("UPDATE leases SET held = 1, version = version + 1 WHERE name = ?", [lease.name])
        return replace(lease, expires=expires)

    async def release(self, lease: Lease) -> None:
        with self._database.transaction() as db:
            db.execute(
                "UPDATE leases SET held = 0, version = version + 1 WHERE name = ? AND epoch = ?",
                [lease.name, lease.epoch],
            )

    async def leases(self, prefix: str) -> list[LeaseInfo]:
        with self._database.transaction() as db:
            found = db.execute("SELECT * FROM leases WHERE name >= ? AND name < ? ORDER BY name", bounds(prefix))
            return [lease_info(row) for row in found]

    def _holds(self, db: sqlite3.Connection, lease: Lease | None) -> None:
        row = lease_row(db, lease.name) if lease else None
        if lease is not None and (row is None or row.epoch != lease.epoch):
            raise errors.FencedError(f"{lease.name!r} has a newer epoch", epoch=row.epoch if row else None)


def counters(db: sqlite3.Connection) -> tuple[int, int]:
    """The number of the last commit, and that of the store itself."""
    found = dict(db.execute("SELECT name, value FROM counters").fetchall())
    return found["revision"], found["history"]


def lease_info(row: tuple[Any, ...]) -> LeaseInfo:
    name, holder, epoch, ttl, held, version = row
    return LeaseInfo(name, holder, epoch, ttl, bool(held), version)


def lease_row(db: sqlite3.Connection, name: str) -> LeaseInfo | None:
    row = db.execute("SELECT * FROM leases WHERE name = ?", [name]).fetchone()
    return None if row is None else lease_info(row)
