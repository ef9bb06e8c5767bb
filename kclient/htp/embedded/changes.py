"""The log of changes in the database: which watched values were written or deleted, and when; inside a transaction.

A row for the last write of a key below a prefix that somebody follows, and one for its last deletion, each with the
revision of its commit; the value is in its own table. So a commit that writes nothing that is followed pays for a look
at its keys, and following costs as much as has changed, however many values there are.
"""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from sqlalchemy import BindParameter, ColumnElement, Connection, and_, bindparam, delete, insert, or_, select

from kclient.htp.change_tokens import CHANGES_KEPT, ChangePlace, below, check_place, to_be_followed
from kclient.htp.embedded.tables import changes, chunks, counter, entries, followed, set_counter
from kclient.htp.port import Change, ChangePage
from kclient.htp.rows import prefix_end

_REVISION: Final = "revision"
_HISTORY: Final = "history"
_FLOOR: Final = "changes forgotten"
_COMPARED: Final = 100
"""Prefixes that the database compares with itself: an expression may be only so deep, and so many values be bound."""

# made once: see tables.py
_SOME: Final[BindParameter[str]] = bindparam("keys", expanding=True)
_THERE: Final = select(entries.c.key).where(entries.c.key.in_(_SOME))
_FORGET: Final = delete(changes).where(changes.c.key.in_(_SOME))
_REPLACE: Final = delete(changes).where(changes.c.key.in_(_SOME), changes.c.deleted.is_(False))
_INSERT: Final = insert(changes)


class ChangeLog:
    """Records and tells changes; only for the thread that writes the database.

    Args:
        recorded: Called when changes are recorded, before they are committed: with the keys, now and then with None,
            for everybody to look.
        exclusive: Whether nobody else has the database open: then nobody else begins to follow a prefix.
    """

    def __init__(self, recorded: Callable[[Sequence[str] | None], object], *, exclusive: bool) -> None:
        self._recorded = recorded
        self._exclusive = exclusive
        self._spare = 0
        """Changes that may be recorded until it is time to forget some."""
        self._prefixes: tuple[str, ...] | None = None
        """That are followed, or were about to be when a transaction was rolled back; None if nobody has looked."""

    def look_again(self) -> None:
        """Another process has changed the database, maybe what is followed."""
        self._prefixes = None

    def record(self, connection: Connection, revision: int, writes: Mapping[str, bytes | None]) -> None:
        """Note what a commit is about to write, as far as it is followed."""
        if self._prefixes is None or not self._exclusive:
            self._prefixes = tuple(self._followed(connection))
        touched = below(writes, self._prefixes)
        if not touched:
            return
        written = [key for key in touched if writes[key] is not None]
        gone = [key for key in touched if writes[key] is None]
        for some in chunks(gone):
            there = list(connection.scalars(_THERE, {"keys": some}))
            connection.execute(_FORGET, {"keys": there})
            self._add(connection, revision, there, deleted=True)
        for some in chunks(written):
            connection.execute(_REPLACE, {"keys": some})
            self._add(connection, revision, some, deleted=False)
        self._spare -= len(touched)
        if self._spare >= 0:
            self._recorded(touched)
            return
        self._forget(connection)
        self._recorded(None)  # who waits for what never changes would fall behind

    @staticmethod
    def _add(connection: Connection, revision: int, keys: Iterable[str], *, deleted: bool) -> None:
        rows = [{"key": key, "deleted": deleted, "version": revision} for key in keys]
        if rows:
            connection.execute(_INSERT, rows)

    def _forget(self, connection: Connection) -> None:
        """Let the oldest go, of each commit all or none."""
        self._spare = CHANGES_KEPT // 10
        newest_first = select(changes.c.version).order_by(changes.c.version.desc())
        oldest: int | None = connection.scalar(newest_first.offset(CHANGES_KEPT).limit(1))
        if oldest is not None and connection.execute(delete(changes).where(changes.c.version < oldest)).rowcount:
            set_counter(connection, _FLOOR, oldest - 1)

    def page(
        self, connection: Connection, prefixes: Sequence[str], place: ChangePlace | None, limit: int
    ) -> ChangePage:
        """What `Manager.changes` returns if it does not wait."""
        known = self._followed(connection)
        revision = counter(connection, _REVISION)
        history = counter(connection, _HISTORY)
        if place is None:
            for prefix in to_be_followed(prefixes, known):
                connection.execute(insert(followed).values(prefix=prefix, revision=revision))
                known[prefix] = revision
            self._prefixes = tuple(known)
            if not history:
                history = secrets.randbits(48) + 1
                set_counter(connection, _HISTORY, history)
            return ChangePage([], ChangePlace(history, revision).token, more=False)
        self._prefixes = tuple(known)
        check_place(place, prefixes, history, revision, counter(connection, _FLOOR), known)
        found = self._since(connection, place, prefixes, limit)
        if len(found) > limit:
            last = found[limit - 1]
            return ChangePage(found[:limit], ChangePlace(history, last.version, last.key).token, more=True)
        return ChangePage(found, ChangePlace(history, revision).token, more=False)

    @staticmethod
    def _since(connection: Connection, place: ChangePlace, prefixes: Sequence[str], limit: int) -> list[Change]:
        """One more than `limit`, if there are as many."""
        value = and_(changes.c.key == entries.c.key, changes.c.deleted.is_(False))
        query = (
            select(changes.c.key, changes.c.version, entries.c.value)
            .select_from(changes.outerjoin(entries, value))
            .where(changes.c.version > place.whole)
            .order_by(changes.c.version, changes.c.key)
        )
        if place.key is not None:
            query = query.where(or_(changes.c.version > place.revision, changes.c.key > place.key))
        if len(prefixes) <= _COMPARED:
            query = query.where(or_(*map(_below, prefixes))).limit(limit + 1)
            return [Change(row.key, row.value, row.version) for row in connection.execute(query)]
        told = _among(prefixes)
        with connection.execute(query) as rows:
            found = (Change(row.key, row.value, row.version) for row in rows if told(row.key))
            return list(islice(found, limit + 1))

    @staticmethod
    def _followed(connection: Connection) -> dict[str, int]:
        """The prefixes, each with the revision from which on its changes are known."""
        return {row.prefix: row.revision for row in connection.execute(select(followed))}


def _below(prefix: str) -> ColumnElement[bool]:
    end = prefix_end(prefix)
    return changes.c.key >= prefix if end is None else and_(changes.c.key >= prefix, changes.c.key < end)


def _among(prefixes: Iterable[str]) -> Callable[[str], bool]:
    """What tells whether a key is below one of many prefixes."""
    shortest: list[str] = []
    for prefix in sorted(prefixes):
        if not (shortest and prefix.startswith(shortest[-1])):
            shortest.append(prefix)

    def told(key: str) -> bool:
        place = bisect_right(shortest, key)  # none is below another, so no other can be the key's
        return place > 0 and key.startswith(shortest[place - 1])

    return told
