"""The management part of the embedded backend: SQLite, through SQLAlchemy Core."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
from sqlalchemy import Connection, Select, Table, bindparam, delete, insert, select

from kclient.concurrency import Completion, LoopHandle, thread_to_the_end
from kclient.htp.brokers import FIRST_BROKER, binding_of, check_broker
from kclient.htp.change_tokens import check_limit, check_prefixes, parse_token, touched_by
from kclient.htp.embedded.bell import Bell
from kclient.htp.embedded.changes import ChangeLog
from kclient.htp.embedded.leases import LeaseTable, check_epoch
from kclient.htp.embedded.owners import OwnerTable
from kclient.htp.embedded.tables import (
    bindings,
    chunks,
    counter,
    domains,
    next_number,
    set_counter,
    topic_infos,
    topics,
)
from kclient.htp.embedded.values import ValueTable
from kclient.htp.embedded.writer import DatabaseWriter, Job
from kclient.htp.errors import (
    DomainExistsError,
    HtpError,
    StorageError,
    TopicExistsError,
    UnknownDomainError,
    UnknownTopicError,
)
from kclient.htp.leases import check_ttl
from kclient.htp.loop import Signal
from kclient.htp.port import ChangePage, Lease, LeaseInfo, Place, Topic, TopicInfo, Versioned
from kclient.htp.rows import prefix_end

if TYPE_CHECKING:
    from kclient.htp.embedded.processes import Processes

T = TypeVar("T")

_LOOK_AGAIN_S: Final = 0.5
"""Who waits for changes looks so often whether another process has made some."""


class _Followers:
    """Those who wait for changes below the same prefixes."""

    __slots__ = ("count", "news")

    def __init__(self) -> None:
        self.count = 0
        self.news = anyio.Event()
        """Is set when there are some, or will be none any more."""

    def tell(self) -> None:
        """Have them look again."""
        news, self.news = self.news, anyio.Event()
        news.set()


class SqliteManager:
    """Implements `kclient.htp.port.Manager`.

    Args:
        path: The database file; its directory exists.
        failed: Called in the event loop if nothing can be written any more.
        exclusive: Whether nobody else opens the database while this is open, in this process or another.
        clock: The monotonic clock by which leases are reckoned, in seconds; the system's if None.
        brokers: The names of those that topics can be bound to.
        processes: Tell which processes have the database open; None if nobody knows, or no other has. What they change
            is seen at once then, and a topic belongs to the one that has opened it.
        joined: Whether one of them has made the database ready.
    """

    def __init__(
        self,
        path: str,
        failed: Callable[[StorageError], object],
        *,
        exclusive: bool,
        clock: Callable[[], float] | None = None,
        brokers: Sequence[str] = (FIRST_BROKER,),
        processes: Processes | None = None,
        joined: bool = False,
    ) -> None:
        self._owners = None if processes is None else OwnerTable(processes)
        self._joined = joined
        self._watched = exclusive or processes is not None
        """Whether all changes are told, those of others too."""
        self._blocked: dict[object, tuple[frozenset[int], anyio.Event]] = {}
        """Who waits for topics whose files other processes have, and for which."""
        self._looking = False
        """Whether it is looked which of them were given up."""
        self._foreign = anyio.Event()
        """Is set when another process has changed something."""
        self._brokers = list(brokers)
        post = LoopHandle().post
        self._failed = failed
        self._bell = None if processes is None else Bell(processes)
        if processes is None:
            self._writer = DatabaseWriter(path, post, self._fail)
        else:
            self._writer = DatabaseWriter(
                path,
                post,
                self._fail,
                changed=self._changed_elsewhere,
                bell=self._bell,
                joined=joined,
            )
        self._exclusive = exclusive
        self._leases = LeaseTable(exclusive=exclusive, processes=processes)
        self._log = ChangeLog(self._recorded, exclusive=self._watched)
        self._values = ValueTable(self._log)
        self._clock = clock or time.monotonic
        self._touched: deque[Sequence[str] | None] = deque()
        """Keys of changes that were recorded, and that nobody was told of yet; None: all are to be told."""
        self._news = Signal(self._tell, post)
        self._waiting: dict[tuple[str, ...], _Followers] = {}
        """Who waits for changes, by the prefixes that they follow."""

    async def start(self) -> None:
        """Open the database; whoever calls this calls `aclose` too, even if it raises."""
        await thread_to_the_end(self._writer.start)
        if self._owners is not None and not self._joined:
            await self._do(self._begin_together)

    @staticmethod
    def _begin_together(connection: Connection) -> None:
        """No other process has the database open: what such have left means nothing."""
        OwnerTable.clear(connection)
        LeaseTable.free_all(connection)

    async def aclose(self) -> None:
        """Finish what waits, and close the database; a cancellation waits, since nobody else would end the thread."""
        try:
            await thread_to_the_end(self._writer.stop)
        finally:
            self._tell_all()

    def abandon(self) -> None:
        """In a forked child: others ring for the parent."""
        if self._bell is not None:
            self._bell.abandon()

    def _fail(self, error: StorageError) -> None:
        self._tell_all()
        self._failed(error)

    @property
    def transactions(self) -> int:
        """How many transactions were made: fewer than calls, because those that wait share one."""
        return self._writer.transactions

    async def _do(self, work: Callable[[Connection], T]) -> T:
        completion: Completion[T] = Completion()
        self._writer.submit(Job(work, partial(_completing, completion)))
        return await completion.wait()

    # --- domains and topics ---

    async def brokers(self) -> list[str]:
        """The names of the brokers that topics can be bound to."""
        return await self._do(lambda _: list(self._brokers))

    async def store_number(self) -> int:
        """The number of this store: no other one has it, but copies of this."""

        def work(connection: Connection) -> int:
            number = counter(connection, "store")
            if not number:
                number = secrets.randbits(62) + 1
                set_counter(connection, "store", number)
            return number

        return await self._do(work)

    async def create_domain(self, domain: str) -> None:
        """Create a domain."""

        def work(connection: Connection) -> None:
            if _has_domain(connection, domain):
                raise DomainExistsError(f"Domain {domain!r} exists already")
            connection.execute(insert(domains).values(name=domain))

        await self._do(work)

    async def delete_domain(self, domain: str, *, lease: Lease | None = None) -> None:
        """Delete a domain and its topics."""

        def work(connection: Connection) -> None:
            if lease is not None:
                check_epoch(connection, lease)
            if not connection.execute(_DELETE_DOMAIN, {"of_domain": domain}).rowcount:
                raise _no_domain(domain)
            for of_domain in _DELETE_ALL:
                connection.execute(of_domain, {"of_domain": domain})

        await self._do(work)

    async def create_topic(self, topic: Topic, *, broker: str | None = None) -> TopicInfo:
        """Create a topic, bound to a broker if one is named."""

        def work(connection: Connection) -> TopicInfo:
            _check_domain(connection, topic.domain)
            if _find_topic(connection, topic) is not None:
                raise TopicExistsError(f"Topic {topic} exists already")
            if broker is not None:
                check_broker(broker, self._brokers)
            incarnation = next_number(connection, "incarnation")
            connection.execute(
                insert(topics).values(domain=topic.domain, name=topic.name, broker=broker, incarnation=incarnation)
            )
            return TopicInfo(topic, broker, incarnation)

        return await self._do(work)

    async def bind(self, topic: Topic, broker: str, *, lease: Lease | None = None) -> Place:
        """Bind a topic to one more broker."""

        def work(connection: Connection) -> Place:
            if lease is not None:
                check_epoch(connection, lease)
            info = _check_topic(connection, topic)
            check_broker(broker, self._brokers)
            found = binding_of(info, broker)
            if found is None:
                found = Place(topic, broker, next_number(connection, "incarnation"))
                connection.execute(
                    insert(bindings).values(
                        domain=topic.domain, name=topic.name, broker=broker, incarnation=found.incarnation
                    )
                )
            return found

        return await self._do(work)

    async def list_topics(self, domain: str, prefix: str = "") -> list[TopicInfo]:
        """The topics of a domain, sorted by name."""
        after_all = prefix_end(prefix)
        asked = {"of_domain": domain, "first": prefix} | ({} if after_all is None else {"end": after_all})
        queries = _LIST_TO_THE_END if after_all is None else _LIST

        def work(connection: Connection) -> list[TopicInfo]:
            _check_domain(connection, domain)
            return list(topic_infos(*(connection.execute(query, asked).all() for query in queries)))

        return await self._do(work)

    async def describe_topic(self, topic: Topic) -> TopicInfo:
        """What is known of a topic."""
        return await self._do(partial(_check_topic, topic=topic))

    async def delete_topics(self, names: Iterable[Topic], *, lease: Lease | None = None) -> None:
        """Delete topics; what is not there is no error."""
        by_domain: dict[str, list[str]] = {}
        for topic in names:
            by_domain.setdefault(topic.domain, []).append(topic.name)

        def work(connection: Connection) -> None:
            if lease is not None:
                check_epoch(connection, lease)
            for domain, among in by_domain.items():
                for some in chunks(among):
                    for table in (topics, bindings):
                        connection.execute(delete(table).where(table.c.domain == domain, table.c.name.in_(some)))

        await self._do(work)

    async def incarnations(self) -> tuple[set[int], int]:
        """The incarnations of all topics there are, at every broker, and the last one that was ever given."""

        def work(connection: Connection) -> tuple[set[int], int]:
            last = counter(connection, "incarnation")
            # whole rows: the column alone would be read from its index, and the rows are what counts
            rows = (connection.execute(select(table)) for table in (topics, bindings))
            return {row.incarnation for each in rows for row in each}, last

        return await self._do(work)

    async def bound(self) -> set[str | None]:
        """The brokers that topics are bound to; None among them if one is bound to none."""

        def work(connection: Connection) -> set[str | None]:
            columns = (topics.c.broker, bindings.c.broker)
            return {row[0] for column in columns for row in connection.execute(select(column).distinct())}

        return await self._do(work)

    # --- who has the files of a topic ---

    @property
    def foreign(self) -> anyio.Event:
        """Is set when another process changes something from now on."""
        return self._foreign

    async def given_up(self, incarnations: Collection[int], timeout: float) -> None:
        """Until no other process has the files of some topics; at most so many seconds, or if one has ended."""
        key, free = object(), anyio.Event()
        self._blocked[key] = frozenset(incarnations), free
        try:
            with anyio.move_on_after(timeout):
                await free.wait()
        finally:
            del self._blocked[key]

    def _look_for_free(self) -> None:
        """Have those go on whose topics were given up: one look for all of them, after another process's change."""
        if self._owners is None or not self._blocked or self._looking:
            return
        self._looking = True
        wanted = frozenset().union(*(each for each, _ in self._blocked.values()))

        def tell(held: Collection[int] | None) -> None:
            self._looking = False
            for each, free in list(self._blocked.values()):
                if held is None or each.isdisjoint(held):
                    free.set()

        work = partial(self._owners.elsewhere, incarnations=wanted)
        with suppress(HtpError):
            self._writer.submit(Job(work, lambda held, _error: partial(tell, held)))
            return
        self._looking = False

    async def take(self, wanted: Mapping[int, int]) -> int | None:
        """Take the files of some topics, see `OwnerTable.take`; they are this process's if no other has the store."""
        if self._owners is None:
            return None
        return await self._do(partial(self._owners.take, wanted=dict(wanted)))

    async def give_up(self, incarnations: Iterable[int]) -> None:
        """Let other processes have the files of some topics, which this one uses no more."""
        if self._owners is not None:
            await self._do(partial(self._owners.give_up, incarnations=list(incarnations)))

    async def wanted(self) -> dict[int, int]:
        """The topics whose files other processes want, by incarnation, each with the epoch under which they open it."""
        return {} if self._owners is None else await self._do(self._owners.wanted)

    async def change_of(
        self, place: Place, key: str, change: Callable[[bytes | None], bytes | None], epoch: int
    ) -> int | None:
        """Change a value that belongs to a topic, in one transaction with looking whether the topic is there.

        The files of the topic are this process's then; where another one has them nothing is changed.

        Args:
            place: The topic.
            key: Of the value.
            change: Makes the new value of the old one (None: there is none); None for no change. It is called in
                another thread, twice in the worst case, and may raise `HtpError`.
            epoch: Under which the topic is opened.

        Returns:
            None once that is done; else the process id of the one that has the files, and is asked to give them up.

        Raises:
            UnknownTopicError: If there is no such topic, or another incarnation of it.
        """

        def work(connection: Connection) -> int | None:
            if not _is_there(connection, place):
                raise UnknownTopicError(f"There is no topic {place}: it was deleted and created again")
            found = self._values.read(connection, [key]).get(key)
            value = change(None if found is None else found.value)
            if self._owners is not None:
                holder = self._owners.take(connection, {place.incarnation: epoch})
                if holder is not None:
                    return holder
            if value is not None:
                self._values.commit(connection, {key: value})
            return None

        return await self._do(work)

    # --- values ---

    async def get(self, keys: Iterable[str]) -> dict[str, Versioned]:
        """The values of those keys that exist."""
        return await self._do(partial(self._values.read, keys=list(keys)))

    async def scan(self, prefix: str, *, after: str = "", limit: int) -> dict[str, Versioned]:
        """A page of the keys that begin with a prefix, sorted."""
        return await self._do(partial(self._values.scan, prefix=prefix, after=after, limit=limit))

    async def commit(
        self,
        writes: Mapping[str, bytes | None],
        expect: Mapping[str, int] | None = None,
        *,
        lease: Lease | None = None,
    ) -> int:
        """Write several values, all or none."""
        return await self._do(partial(self._values.commit, writes=dict(writes), expect=dict(expect or {}), lease=lease))

    def commit_soon(self, writes: Mapping[str, bytes | None], done: Callable[[Exception | None], object]) -> None:
        """Write several values without waiting; `done` is called in the event loop."""
        work = partial(self._values.commit, writes=dict(writes))
        self._writer.submit(Job(work, lambda _result, error: partial(done, error)))

    async def changes(
        self, prefixes: Iterable[str], since: str | None = None, *, limit: int = 1000, wait: float = 0.0
    ) -> ChangePage:
        """A page of what has changed below some prefixes since a token was given."""
        prefixes, limit = check_prefixes(prefixes), check_limit(limit)
        place = None if since is None else parse_token(since)
        until = anyio.current_time() + wait
        with self._follower(prefixes) as follower:
            while True:
                news = follower.news  # of what comes from now on
                page = await self._do(partial(self._log.page, prefixes=prefixes, place=place, limit=limit))
                left = until - anyio.current_time()
                if place is None or page.changes or left <= 0:
                    return page
                place = parse_token(page.token)
                with anyio.move_on_after(left if self._watched else min(left, _LOOK_AGAIN_S)):
                    await news.wait()

    @contextmanager
    def _follower(self, prefixes: tuple[str, ...]) -> Iterator[_Followers]:
        followers = self._waiting.setdefault(prefixes, _Followers())
        followers.count += 1
        try:
            yield followers
        finally:
            followers.count -= 1
            if not followers.count:
                del self._waiting[prefixes]

    def _recorded(self, keys: Sequence[str] | None) -> None:
        """In the writer's thread: something changes."""
        self._touched.append(keys)
        self._news.fire()

    def _changed_elsewhere(self) -> None:
        """In the writer's thread: another process has changed something."""
        self._log.look_again()
        self._recorded(None)

    def _tell(self) -> None:
        """Whoever waits for what has changed looks again."""
        touched: list[str] = []
        while self._touched:
            keys = self._touched.popleft()
            if keys is None:
                self._tell_all()
            else:
                touched += keys
        for prefixes, followers in self._waiting.items():
            if touched_by(touched, prefixes):
                followers.tell()

    def _tell_all(self) -> None:
        """All who wait look again: there will be no changes any more, or there have been many."""
        foreign, self._foreign = self._foreign, anyio.Event()
        foreign.set()
        self._look_for_free()
        for followers in self._waiting.values():
            followers.tell()

    # --- leases ---

    async def acquire(
        self, name: str, holder: str, ttl: float, *, above: int = 0, over: LeaseInfo | None = None
    ) -> Lease:
        """Take a lease that is free, or is one's own already, or somebody's that is known to be over."""
        expires = self._clock() + check_ttl(ttl)
        completion: Completion[Lease] = Completion()
        taken: Lease | None = None

        def work(connection: Connection) -> Lease:
            nonlocal taken
            taken = None  # it may be done twice
            epoch = self._leases.acquire(connection, name, holder, above, ttl, over)
            taken = Lease(name, holder, epoch, ttl, expires)
            return taken

        def done(result: Lease, error: Exception | None) -> Callable[[], object]:
            nonlocal taken
            if error is not None:
                taken = None  # that was rolled back
            return _completing(completion, result, error)

        def give_back(connection: Connection) -> None:
            if taken is not None:
                self._leases.release(connection, taken)

        self._writer.submit(Job(work, done))
        try:
            return await completion.wait()
        except anyio.get_cancelled_exc_class():
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


# Statements are made once: see tables.py.


def _rows_of(table: Table) -> Select[Any]:
    """The rows of a topic in a table."""
    return select(table).where(table.c.domain == bindparam("of_domain"), table.c.name == bindparam("of_name"))


def _listed_from(table: Table) -> Select[Any]:
    """The rows of the topics of a domain, from a name on."""
    listed = select(table).where(table.c.domain == bindparam("of_domain"), table.c.name >= bindparam("first"))
    return listed.order_by(table.c.name, table.c.incarnation)


_TOPIC: Final = _rows_of(topics)
_BINDINGS: Final = _rows_of(bindings).order_by(bindings.c.incarnation)
_BINDING: Final = _rows_of(bindings).where(
    bindings.c.incarnation == bindparam("of_incarnation"), bindings.c.broker == bindparam("of_broker")
)
_LIST_TO_THE_END: Final = [_listed_from(table) for table in (topics, bindings)]
_LIST: Final = [_listed_from(table).where(table.c.name < bindparam("end")) for table in (topics, bindings)]
_DOMAIN: Final = select(domains.c.name).where(domains.c.name == bindparam("of_domain"))
_DELETE_DOMAIN: Final = delete(domains).where(domains.c.name == bindparam("of_domain"))
_DELETE_ALL: Final = [delete(table).where(table.c.domain == bindparam("of_domain")) for table in (topics, bindings)]
"""Those of a domain."""


def _has_domain(connection: Connection, domain: str) -> bool:
    return connection.execute(_DOMAIN, {"of_domain": domain}).first() is not None


def _check_domain(connection: Connection, domain: str) -> None:
    if not _has_domain(connection, domain):
        raise _no_domain(domain)


def _no_domain(domain: str) -> UnknownDomainError:
    return UnknownDomainError(f"There is no domain {domain!r}")


def _named(topic: Topic) -> dict[str, object]:
    return {"of_domain": topic.domain, "of_name": topic.name}


def _find_topic(connection: Connection, topic: Topic) -> TopicInfo | None:
    row = connection.execute(_TOPIC, _named(topic)).first()
    if row is None:
        return None
    further = connection.execute(_BINDINGS, _named(topic))
    return next(topic_infos([row], further.all()))


def _check_topic(connection: Connection, topic: Topic) -> TopicInfo:
    info = _find_topic(connection, topic)
    if info is None:
        raise _unknown(topic)
    return info


def _is_there(connection: Connection, place: Place) -> bool:
    """Whether a topic is at a broker in this incarnation. Raises `UnknownTopicError` if there is none of the name."""
    row = connection.execute(_TOPIC, _named(place.topic)).first()
    if row is None:
        raise _unknown(place.topic)
    if row.incarnation == place.incarnation:
        return (row.broker or "") == place.broker
    mine = _named(place.topic) | {"of_incarnation": place.incarnation, "of_broker": place.broker}
    return connection.execute(_BINDING, mine).first() is not None


def _unknown(topic: Topic) -> UnknownTopicError:
    return UnknownTopicError(f"There is no topic {topic}")
