"""HTP's brk: the messages of topics."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import anyio.lowlevel

from htp_sqlite.database import BROKER, Database, describe
from kclient.htp import errors
from kclient.htp.framings import check_framing
from kclient.htp.port import (
    CAP_DURABLE,
    CAP_FENCED_SENDS,
    CAP_POSITIONS,
    Found,
    Framing,
    Place,
    Pulled,
    SegmentInfo,
    SyncedCallback,
    TopicSettings,
    TopicStatus,
)
from kclient.htp.rows import check_opening
from kclient.types import Buffer


class SqliteBroker:
    """Implements `kclient.htp.port.Broker`; positions are its own, one for each message."""

    capabilities = frozenset({CAP_POSITIONS, CAP_FENCED_SENDS, CAP_DURABLE})

    def __init__(self, database: Database) -> None:
        self._database = database

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
        if next_position:
            raise ValueError("positions are the backend's own here: none can be asked for")
        with self._database.transaction() as db:
            if describe(db, place.topic).place != place:
                raise errors.UnknownTopicError(f"there is no topic {place}")
            row = db.execute("SELECT framing, epoch FROM logs WHERE incarnation = ?", [place.incarnation]).fetchone()
            if row is not None:
                check_framing(place, row[0], framing.name)
                fence(place, epoch, row[1])
                db.execute("UPDATE logs SET epoch = ? WHERE incarnation = ?", [epoch, place.incarnation])
            else:  # what the name stood for before has gone
                before = db.execute("SELECT incarnation FROM logs WHERE domain = ? AND name = ?", place.topic)
                for (old,) in before.fetchall():
                    drop(db, old)
                db.execute(
                    "INSERT INTO logs VALUES (?, ?, ?, ?, ?, 0, 0)",
                    [place.incarnation, *place.topic, framing.name, epoch],
                )
        return SqliteTopic(self._database, place, epoch, framing)

    async def delete(self, places: Iterable[Place], *, epoch: int) -> None:
        with self._database.transaction() as db:
            for place in places:
                row = db.execute("SELECT epoch FROM logs WHERE incarnation = ?", [place.incarnation]).fetchone()
                if row is not None and place.broker in ("", BROKER):
                    fence(place, epoch, row[0])
                    drop(db, place.incarnation)


def fence(place: Place, epoch: int, newest: int) -> None:
    if epoch < newest:
        raise errors.FencedError(f"{place}: epoch {epoch} is older than {newest}", epoch=newest)


def drop(db: sqlite3.Connection, incarnation: int) -> None:
    db.execute("DELETE FROM messages WHERE incarnation = ?", [incarnation])
    db.execute("DELETE FROM logs WHERE incarnation = ?", [incarnation])


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

    def __init__(self, database: Database, place: Place, epoch: int, framing: Framing) -> None:
        self.place, self.epoch = place, epoch
        self._database, self._framing = database, framing
        self._closed = False

    @contextmanager
    def _use(self) -> Iterator[tuple[sqlite3.Connection, int, int]]:
        """The database, the topic's start and its end, as long as nobody else has taken it."""
        with self._database.transaction() as db:
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

    async def configure(self, settings: TopicSettings) -> None:
        raise NotImplementedError("there are no segments here")

    async def find_by_timestamp(self, timestamp: int, *, start: int = 0) -> Found | None:
        raise NotImplementedError("messages cannot be searched by time here")

    async def segments(self) -> list[SegmentInfo]:
        raise NotImplementedError("there are no segments here")

    async def roll(self) -> None:
        raise NotImplementedError("there are no segments here")
