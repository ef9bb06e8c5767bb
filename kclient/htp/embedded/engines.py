"""Engines of SQLAlchemy for databases by their paths.

All of them share one dialect, and so what is compiled of the statements: with an engine of its own, each store that is
opened would compile all of them again, which takes several times as long as what they do.
"""

from __future__ import annotations

import sqlite3
from functools import cache, partial
from typing import Any, Final, NamedTuple

from sqlalchemy import URL, Dialect, Engine, create_engine
from sqlalchemy.pool import NullPool
from sqlalchemy.util import LRUCache

__all__ = ["open_database", "sqlite_engine"]

_COMPILED: Final = 500
"""Compiled statements that are kept, at least; a store has some fifty."""


class _Shared(NamedTuple):
    dialect: Dialect
    compiled: LRUCache[Any, Any]


def open_database(path: str) -> sqlite3.Connection:
    """Open a database, or make it; the connection may be used by one thread after the other."""
    return sqlite3.connect(path, check_same_thread=False)


def sqlite_engine(path: str) -> Engine:
    """An engine that opens the database anew for each connection.

    Args:
        path: Of the database file, whose directory exists.
    """
    dialect, compiled = _shared()
    connect: Any = partial(open_database, path)  # sqlite3's connection is one of DBAPI, but for the names of arguments
    pool = NullPool(connect, dialect=dialect)
    url = URL.create("sqlite", database=path)
    return Engine(pool, dialect, url, execution_options={"compiled_cache": compiled})


@cache
def _shared() -> _Shared:
    """The dialect, which has asked a database in memory what SQLite can do."""
    engine = create_engine("sqlite://", poolclass=NullPool)
    engine.connect().close()
    return _Shared(engine.dialect, LRUCache(_COMPILED))
