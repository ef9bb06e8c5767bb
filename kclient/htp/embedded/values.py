"""The key-value part in the database: what is done with it inside a transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy import Connection, bindparam, delete, insert, select

from kclient.htp.embedded.changes import ChangeLog
from kclient.htp.embedded.leases import check_epoch
from kclient.htp.embedded.tables import chunks, counter, entries, next_number
from kclient.htp.errors import ConflictError
from kclient.htp.port import Lease, Versioned
from kclient.htp.rows import prefix_end

# Made once, see tables.py; besides, those that are made anew are cycles, and hold their keys until the collector comes.
_DELETE: Final = delete(entries).where(entries.c.key == bindparam("gone"))
_INSERT: Final = insert(entries)
_READ: Final = select(entries).where(entries.c.key == bindparam("wanted"))
_READ_SOME: Final = select(entries).where(entries.c.key.in_(bindparam("wanted", expanding=True)))
_VERSION: Final = select(entries.c.version).where(entries.c.key == bindparam("wanted"))
_VERSIONS: Final = select(entries.c.key, entries.c.version).where(
    entries.c.key.in_(bindparam("wanted", expanding=True))
)
_SCAN_TO_THE_END: Final = (
    select(entries)
    .where(entries.c.key > bindparam("after"), entries.c.key >= bindparam("first"))
    .order_by(entries.c.key)
    .limit(bindparam("most"))
)
_SCAN: Final = _SCAN_TO_THE_END.where(entries.c.key < bindparam("end"))
_FEW: Final = 2
"""Keys that are looked for one by one: a list of keys is written out anew for each statement."""


class ValueTable:
    """Reads and writes values; only for the thread that writes the database.

    Args:
        changes: Is told what is written.
    """

    def __init__(self, changes: ChangeLog) -> None:
        self._changes = changes

    def read(self, connection: Connection, keys: Sequence[str]) -> dict[str, Versioned]:
        """The values of those keys that exist."""
        found: dict[str, Versioned] = {}
        if len(keys) <= _FEW:
            for key in keys:
                if (one := connection.execute(_READ, {"wanted": key}).first()) is not None:
                    found[key] = Versioned(one.value, one.version)
            return found
        for some in chunks(keys):
            for row in connection.execute(_READ_SOME, {"wanted": some}):
                found[row.key] = Versioned(row.value, row.version)
        return found

    def scan(self, connection: Connection, prefix: str, after: str, limit: int) -> dict[str, Versioned]:
        """A page of the keys that begin with a prefix, sorted."""
        asked: dict[str, str | int] = {"after": after, "first": prefix, "most": limit}
        if (end := prefix_end(prefix)) is None:
            found = connection.execute(_SCAN_TO_THE_END, asked)
        else:
            found = connection.execute(_SCAN, asked | {"end": end})
        return {row.key: Versioned(row.value, row.version) for row in found}

    def commit(
        self,
        connection: Connection,
        writes: Mapping[str, bytes | None],
        expect: Mapping[str, int] | None = None,
        lease: Lease | None = None,
    ) -> int:
        """Write several values if all versions are as expected; the revision."""
        if lease is not None:
            check_epoch(connection, lease)
        if expect:
            self._compare(connection, expect)
        if not writes:  # it is about the versions, or the lease
            return counter(connection, "revision")
        revision = next_number(connection, "revision")
        self._changes.record(connection, revision, writes)
        connection.execute(_DELETE, [{"gone": key} for key in writes])
        rows = [
            {"key": key, "value": bytes(value), "version": revision}
            for key, value in writes.items()
            if value is not None
        ]
        if rows:
            connection.execute(_INSERT, rows)
        return revision

    @staticmethod
    def _compare(connection: Connection, expect: Mapping[str, int]) -> None:
        if len(expect) <= _FEW:
            for key in expect:
                version = connection.scalar(_VERSION, {"wanted": key}) or 0
                if version != expect[key]:
                    raise ConflictError(key, expect[key], version)
            return
        for some in chunks(list(expect)):
            versions = {row.key: row.version for row in connection.execute(_VERSIONS, {"wanted": some})}
            for key in some:
                if versions.get(key, 0) != expect[key]:
                    raise ConflictError(key, expect[key], versions.get(key, 0))
