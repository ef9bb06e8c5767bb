"""The tables of the management part, and counting. Nothing in them is SQLite's own: PostgreSQL can hold them too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    Index,
    LargeBinary,
    MetaData,
    Row,
    String,
    Table,
    bindparam,
    insert,
    select,
    update,
)

from kclient.htp.port import Place, Topic, TopicInfo

T = TypeVar("T")

metadata: Final = MetaData()

domains: Final = Table("domains", metadata, Column("name", String, primary_key=True))

topics: Final = Table(
    "topics",
    metadata,
    Column("domain", String, primary_key=True),
    Column("name", String, primary_key=True),
    Column("broker", String, nullable=True),
    Column("incarnation", BigInteger, nullable=False, unique=True),
)

bindings: Final = Table(
    "bindings",
    metadata,
    Column("domain", String, primary_key=True),
    Column("name", String, primary_key=True),
    Column("broker", String, primary_key=True),
    Column("incarnation", BigInteger, nullable=False, unique=True),
)
"""Of topics that are bound to several brokers, all but the first one, which is told by `topics`; since format 4."""

entries: Final = Table(
    "entries",
    metadata,
    Column("key", String, primary_key=True),
    Column("value", LargeBinary, nullable=False),
    Column("version", BigInteger, nullable=False),
)
"""The key-value part; `version` is the revision of the commit that wrote the value."""

followed: Final = Table(
    "followed",
    metadata,
    Column("prefix", String, primary_key=True),
    Column("revision", BigInteger, nullable=False),
)
"""Prefixes of keys whose changes are recorded, from a revision on."""

changes: Final = Table(
    "changes",
    metadata,
    Column("key", String, primary_key=True),
    Column("deleted", Boolean, primary_key=True),
    Column("version", BigInteger, nullable=False),
    Index("changes_by_version", "version", "key"),
)
"""The last write, and the last deletion, of keys that are followed; `version` is the revision of its commit."""

leases: Final = Table(
    "leases",
    metadata,
    Column("name", String, primary_key=True),
    Column("holder", String, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("ttl", Float, nullable=False),
    Column("held", Boolean, nullable=False),
    Column("version", BigInteger, nullable=False),
)
"""The last holder of each lease; the row stays when it is given up, because epochs only grow. `version` counts its
changes."""

owners: Final = Table(
    "owners",
    metadata,
    Column("incarnation", BigInteger, primary_key=True),
    Column("process", BigInteger, nullable=False),
    Column("wanted", BigInteger, nullable=True),
    Index("owners_wanted", "wanted"),
)
"""Where several processes have the directory open: which of them has the files of a topic, and under which epoch
another one wants to open it. Means nothing once nobody has the directory open."""

lease_processes: Final = Table(
    "lease_processes",
    metadata,
    Column("name", String, primary_key=True),
    Column("process", BigInteger, nullable=False),
)
"""The opening in which a lease was acquired, where several processes have the directory open."""

counters: Final = Table(
    "counters",
    metadata,
    Column("name", String, primary_key=True),
    Column("value", BigInteger, nullable=False),
)
"""`revision`: of the last commit; `incarnation`: of the topic created last; `store`: the store's own number; the log of
changes has some too."""

# Statements of hot paths are made once: making one, and working out that it is the same as one before, takes several
# times as long as carrying it out.
_COUNTER: Final = select(counters.c.value).where(counters.c.name == bindparam("counter"))
_COUNT: Final = update(counters).where(counters.c.name == bindparam("counter")).values(value=bindparam("number"))
_NEXT: Final = (
    update(counters)
    .where(counters.c.name == bindparam("counter"))
    .values(value=counters.c.value + 1)
    .returning(counters.c.value)
)

_CHUNK: Final = 500
"""Keys in one statement, at most."""


def chunks(keys: Sequence[str]) -> Iterable[Sequence[str]]:
    """As many keys as one statement takes, until there are no more."""
    return chunks_of(keys)


def chunks_of(keys: Sequence[T]) -> Iterable[Sequence[T]]:
    """The same, of keys of any kind."""
    for begin in range(0, len(keys), _CHUNK):
        yield keys[begin : begin + _CHUNK]


def topic_infos(of_topics: Iterable[Row[Any]], of_bindings: Iterable[Row[Any]]) -> Iterator[TopicInfo]:
    """The topics that rows of both tables tell of; those of bindings in the order in which they were bound."""
    further: dict[Topic, list[Place]] = {}
    for row in of_bindings:
        place = Place(Topic(row.domain, row.name), row.broker, row.incarnation)
        further.setdefault(place.topic, []).append(place)
    for row in of_topics:
        topic = Topic(row.domain, row.name)
        yield TopicInfo(topic, row.broker, row.incarnation, tuple(further.get(topic, ())))


def counter(connection: Connection, name: str) -> int:
    """The value of a counter; 0 if nobody has set it."""
    return connection.scalar(_COUNTER, {"counter": name}) or 0


def set_counter(connection: Connection, name: str, value: int) -> None:
    """Give a counter another value."""
    if not connection.execute(_COUNT, {"counter": name, "number": value}).rowcount:
        connection.execute(insert(counters).values(name=name, value=value))


def next_number(connection: Connection, name: str) -> int:
    """The next number of a counter, from 1 on."""
    if connection.dialect.update_returning:  # SQLite has it since 3.35
        found: int | None = connection.scalar(_NEXT, {"counter": name})
        if found is not None:
            return found
    value = counter(connection, name) + 1
    set_counter(connection, name, value)
    return value
