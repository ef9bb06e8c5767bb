"""The management part of the embedded backend: SQLite, through SQLAlchemy Core."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from anyio import get_cancelled_exc_class
from sqlalchemy import Connection, Row, delete, insert, select, update

from kclient.concurrency import Completion, thread_to_the_end
from kclient.htp.embedded.leases import LeaseTable, check_epoch
from kclient.htp.embedded.tables import counters, domains, entries, topics
from kclient.htp.embedded.writer import DatabaseWriter, Job
from kclient.htp.errors import (
    ConflictError,
    DomainExistsError,
    HtpError,
    StorageError,
    TopicExistsError,
    UnknownDomainError,
    UnknownTopicError,
)
from kclient.htp.loop import current_poster
from kclient.htp.port import Lease, LeaseInfo, Place, Topic, TopicInfo, Versioned
from kclient.htp.rows import prefix_end

T = TypeVar("T")

_CHUNK: Final = 500
"""Keys in one statement, at most."""


class SqliteManager:
    """Implements `kclient.htp.port.Manager`.

    Args:
        path: The database file; its directory exists.
        failed: Called in the event loop if nothing can be written any more.
        exclusive: Whether nobody else opens the database while this is open, in this process or another.
        clock: The monotonic clock by which leases are reckoned, in seconds; the system's if None.
    """

    def __init__(
        self,
        path: str,
        failed: Callable[[StorageError], object],
        *,
        exclusive: bool,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._writer = DatabaseWriter(path, current_poster(), failed)
        self._leases = LeaseTable(exclusive=exclusive)
        self._clock = clock or time.monotonic

    async def start(self) -> None:
        """Open the database; whoever calls this calls `aclose` too, even if it raises."""
        await thread_to_the_end(self._writer.start)

    async def aclose(self) -> None:
        """Finish what waits, and close the database; a cancellation waits, since nobody else would end the thread."""
        await thread_to_the_end(self._writer.stop)

    @property
    def transactions(self) -> int:
        """How many transactions were made: fewer than calls, because those that wait share one."""
        return self._writer.transactions

    async def _do(self, work: Callable[[Connection], T]) -> T:
        completion: Completion[T] = Completion()
        self._writer.submit(Job(work, partial(_completing, completion)))
        return await completion.wait()

    # --- domains and topics ---

    async def create_domain(self, domain: str) -> None:
        """Create a domain."""

        def work(connection: Connection) -> None:
            if _has_domain(connection, domain):
                raise DomainExistsError(f"Domain {domain!r} exists already")
            connection.execute(insert(domains).values(name=domain))

        await self._do(work)

    async def list_domains(self) -> list[str]:
        """The names of all domains, sorted."""

        def work(connection: Connection) -> list[str]:
            return list(connection.scalars(select(domains.c.name).order_by(domains.c.name)))

        return await self._do(work)

    async def delete_domain(self, domain: str, *, lease: Lease | None = None) -> None:
        """Delete a domain and its topics."""

        def work(connection: Connection) -> None:
            if lease is not None:
                check_epoch(connection, lease)
            _check_domain(connection, domain)
            connection.execute(delete(topics).where(topics.c.domain == domain))
            connection.execute(delete(domains).where(domains.c.name == domain))

        await self._do(work)

    async def create_topic(self, topic: Topic, *, broker: str | None = None) -> TopicInfo:
        """Create a topic, bound to a broker if one is named."""

        def work(connection: Connection) -> TopicInfo:
            _check_domain(connection, topic.domain)
            if _find_topic(connection, topic) is not None:
                raise TopicExistsError(f"Topic {topic} exists already")
            incarnation = _count(connection, "incarnation")
            connection.execute(
                insert(topics).values(domain=topic.domain, name=topic.name, broker=broker, incarnation=incarnation)
            )
            return TopicInfo(topic, broker, incarnation)

        return await self._do(work)

    async def list_topics(self, domain: str) -> list[TopicInfo]:
        """The topics of a domain, sorted by name."""

        def work(connection: Connection) -> list[TopicInfo]:
            _check_domain(connection, domain)
            rows = connection.execute(select(topics).where(topics.c.domain == domain).order_by(topics.c.name))
            return [_topic_info(row) for row in rows]

        return await self._do(work)

    async def describe_topic(self, topic: Topic) -> TopicInfo:
        """What is known of a topic."""
        return await self._do(partial(_check_topic, topic=topic))

    async def delete_topic(self, topic: Topic, *, lease: Lease | None = None) -> None:
        """Delete a topic."""

        def work(connection: Connection) -> None:
            if lease is not None:
                check_epoch(connection, lease)
            _check_topic(connection, topic)
            connection.execute(delete(topics).where(topics.c.domain == topic.domain, topics.c.name == topic.name))

        await self._do(work)

    async def incarnations(self) -> tuple[set[int], int]:
        """The incarnations of all topics there are, and the last one that was ever given."""

        def work(connection: Connection) -> tuple[set[int], int]:
            last = connection.scalar(select(counters.c.value).where(counters.c.name == "incarnation"))
            # whole rows: the column alone would be read from its index, and the rows are what counts
            return {row.incarnation for row in connection.execute(select(topics))}, last or 0

        return await self._do(work)

    async def change_of(self, place: Place, key: str, change: Callable[[bytes | None], bytes | None]) -> None:
        """Change a value that belongs to a topic, in one transaction with looking whether the topic is there.

        Args:
            place: The topic.
            key: Of the value.
            change: Makes the new value of the old one (None: there is none); None for no change. It is called in
                another thread, twice in the worst case, and may raise `HtpError`.

        Raises:
            UnknownTopicError: If there is no such topic, or another incarnation of it.
        """

        def work(connection: Connection) -> None:
            if _check_topic(connection, place.topic).incarnation != place.incarnation:
                raise UnknownTopicError(f"There is no topic {place}: it was deleted and created again")
            found = _read_keys(connection, [key]).get(key)
            value = change(None if found is None else found.value)
            if value is not None:
                _commit(connection, {key: value}, {}, None)

        await self._do(work)

    # --- values ---

    async def get(self, keys: Iterable[str]) -> dict[str, Versioned]:
        """The values of those keys that exist."""
        return await self._do(partial(_read_keys, keys=list(keys)))

    async def scan(self, prefix: str, *, after: str = "", limit: int) -> dict[str, Versioned]:
        """A page of the keys that begin with a prefix, sorted."""

        def work(connection: Connection) -> dict[str, Versioned]:
            query = select(entries).order_by(entries.c.key).where(entries.c.key > after).limit(limit)
            if prefix:
                query = query.where(entries.c.key >= prefix)
            if (after_all := prefix_end(prefix)) is not None:
                query = query.where(entries.c.key < after_all)
            return {row.key: Versioned(row.value, row.version) for row in connection.execute(query)}

        return await self._do(work)

    async def commit(
        self,
        writes: Mapping[str, bytes | None],
        expect: Mapping[str, int] | None = None,
        *,
        lease: Lease | None = None,
    ) -> int:
        """Write several values, all or none."""
        return await self._do(partial(_commit, writes=dict(writes), expect=dict(expect or {}), lease=lease))

    def commit_soon(self, writes: Mapping[str, bytes | None], done: Callable[[Exception | None], object]) -> None:
        """Write several values without waiting; `done` is called in the event loop."""
        work = partial(_commit, writes=dict(writes), expect={}, lease=None)
        self._writer.submit(Job(work, lambda _result, error: partial(done, error)))

    # --- leases ---

    async def acquire(
        self, name: str, holder: str, ttl: float, *, above: int = 0, over: LeaseInfo | None = None
    ) -> Lease:
        """Take a lease that is free, or is one's own already, or somebody's that is known to be over."""
        expires = self._clock() + ttl
        taken: Lease | None = None

        def work(connection: Connection) -> Lease:
            nonlocal taken
            taken = None  # it may be done twice
            epoch = self._leases.acquire(connection, name, holder, above, ttl, over)
            taken = Lease(name, holder, epoch, ttl, expires)
            return taken

        def give_back(connection: Connection) -> None:
            if taken is not None:
                self._leases.release(connection, taken)

        try:
            return await self._do(work)
        except get_cancelled_exc_class():
            # it is taken all the same, or will be: what is submitted now comes after it
            with suppress(HtpError):
                self._writer.submit(Job(give_back, lambda _result, _error: _nothing))
            raise

    async def leases(self, prefix: str) -> list[LeaseInfo]:
        """The leases whose names begin with a prefix, by name."""
        return await self._do(partial(self._leases.all, prefix=prefix))

    async def renew(self, lease: Lease) -> Lease:
        """Have a lease last for another `ttl` seconds."""
        expires = self._clock() + lease.ttl
        await self._do(partial(self._leases.renew, lease=lease))
        return replace(lease, expires=expires)

    async def release(self, lease: Lease) -> None:
        """Give up a lease."""
        await self._do(partial(self._leases.release, lease=lease))


def _completing(completion: Completion[T], result: T, error: Exception | None) -> Callable[[], object]:
    if error is not None:
        return partial(completion.set_error, error)
    return partial(completion.set_result, result)


def _nothing() -> None:
    """Whoever asked for it has gone."""


def _has_domain(connection: Connection, domain: str) -> bool:
    return connection.execute(select(domains.c.name).where(domains.c.name == domain)).first() is not None


def _check_domain(connection: Connection, domain: str) -> None:
    if not _has_domain(connection, domain):
        raise UnknownDomainError(f"There is no domain {domain!r}")


def _topic_info(row: Row[Any]) -> TopicInfo:
    return TopicInfo(Topic(row.domain, row.name), row.broker, row.incarnation)


def _find_topic(connection: Connection, topic: Topic) -> TopicInfo | None:
    row = connection.execute(select(topics).where(topics.c.domain == topic.domain, topics.c.name == topic.name)).first()
    return None if row is None else _topic_info(row)


def _check_topic(connection: Connection, topic: Topic) -> TopicInfo:
    info = _find_topic(connection, topic)
    if info is None:
        raise UnknownTopicError(f"There is no topic {topic}")
    return info


def _count(connection: Connection, name: str) -> int:
    """The next number of a counter."""
    value: int | None = connection.scalar(select(counters.c.value).where(counters.c.name == name))
    if value is None:
        connection.execute(insert(counters).values(name=name, value=1))
        return 1
    connection.execute(update(counters).where(counters.c.name == name).values(value=value + 1))
    return value + 1


def _chunks(keys: Sequence[str]) -> Iterable[Sequence[str]]:
    for begin in range(0, len(keys), _CHUNK):
        yield keys[begin : begin + _CHUNK]


def _read_keys(connection: Connection, keys: Sequence[str]) -> dict[str, Versioned]:
    found: dict[str, Versioned] = {}
    for some in _chunks(keys):
        for row in connection.execute(select(entries).where(entries.c.key.in_(some))):
            found[row.key] = Versioned(row.value, row.version)
    return found


def _commit(
    connection: Connection,
    writes: Mapping[str, bytes | None],
    expect: Mapping[str, int],
    lease: Lease | None,
) -> int:
    if lease is not None:
        check_epoch(connection, lease)
    for some in _chunks(list(expect)):
        query = select(entries.c.key, entries.c.version).where(entries.c.key.in_(some))
        versions = {row.key: row.version for row in connection.execute(query)}
        for key in some:
            if versions.get(key, 0) != expect[key]:
                raise ConflictError(key, expect[key], versions.get(key, 0))
    revision = _count(connection, "revision")
    for some in _chunks(list(writes)):
        connection.execute(delete(entries).where(entries.c.key.in_(some)))
    rows = [
        {"key": key, "value": bytes(value), "version": revision} for key, value in writes.items() if value is not None
    ]
    if rows:
        connection.execute(insert(entries), rows)
    return revision
