"""The management part of the memory backend."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from kclient.concurrency import Wakeup
from kclient.htp.brokers import binding_of, broker_names, check_broker
from kclient.htp.change_tokens import check_limit, check_prefixes, parse_token
from kclient.htp.errors import (
    ConflictError,
    DomainExistsError,
    FencedError,
    LeaseHeldError,
    StoreClosedError,
    TopicExistsError,
    UnknownDomainError,
    UnknownTopicError,
)
from kclient.htp.leases import check_ttl, next_epoch
from kclient.htp.memory.state import DomainTopics, LeaseRow
from kclient.htp.port import ChangePage, Lease, LeaseInfo, Place, Topic, TopicInfo, Versioned
from kclient.htp.rows import prefix_end

if TYPE_CHECKING:
    from kclient.htp.memory.state import MemoryState


class MemoryManager:
    """Implements `kclient.htp.port.Manager`.

    Args:
        state: What is stored under the name.
        clock: The monotonic clock by which leases are reckoned, in seconds; the system's if None.
    """

    def __init__(self, state: MemoryState, clock: Callable[[], float] | None = None) -> None:
        self._state = state
        self._clock = clock or time.monotonic
        self._shut = False

    def shut(self) -> None:
        """Refuse every further call, and end those that wait."""
        with self._state.lock:
            self._shut = True
            self._state.changes.tell()

    def _check(self) -> None:
        if self._shut:
            raise StoreClosedError(f"memory:{self._state.name} was closed")
        self._state.check()

    async def brokers(self) -> list[str]:
        """The names of the brokers that topics can be bound to."""
        with self._state.lock:
            self._check()
            return broker_names(self._state.brokers)

    async def create_domain(self, domain: str) -> None:
        """Create a domain."""
        with self._state.lock:
            self._check()
            if domain in self._state.domains:
                raise DomainExistsError(f"Domain {domain!r} exists already")
            self._state.domains[domain] = DomainTopics()

    async def delete_domain(self, domain: str, *, lease: Lease | None = None) -> None:
        """Delete a domain and its topics."""
        with self._state.lock:
            if lease is not None:
                self._check_epoch(lease)
            self._topics(domain)
            del self._state.domains[domain]

    async def create_topic(self, topic: Topic, *, broker: str | None = None) -> TopicInfo:
        """Create a topic, bound to a broker if one is named."""
        with self._state.lock:
            topics = self._topics(topic.domain)
            if topics.get(topic.name) is not None:
                raise TopicExistsError(f"Topic {topic} exists already")
            if broker is not None:
                check_broker(broker, broker_names(self._state.brokers))
            self._state.incarnations += 1
            info = TopicInfo(topic, broker, self._state.incarnations)
            topics.add(info)
            return info

    async def bind(self, topic: Topic, broker: str, *, lease: Lease | None = None) -> Place:
        """Bind a topic to one more broker."""
        with self._state.lock:
            if lease is not None:
                self._check_epoch(lease)
            self._check()
            info = self._state.topic(topic)
            if info is None:
                raise UnknownTopicError(f"There is no topic {topic}")
            check_broker(broker, broker_names(self._state.brokers))
            found = binding_of(info, broker)
            if found is None:
                self._state.incarnations += 1
                found = Place(topic, broker, self._state.incarnations)
                self._state.domains[topic.domain].change(info._replace(further=(*info.further, found)))
            return found

    async def list_topics(self, domain: str, prefix: str = "") -> list[TopicInfo]:
        """The topics of a domain, sorted by name."""
        with self._state.lock:
            return self._topics(domain).below(prefix)

    async def describe_topic(self, topic: Topic) -> TopicInfo:
        """What is known of a topic."""
        with self._state.lock:
            self._check()
            info = self._state.topic(topic)
            if info is None:
                raise UnknownTopicError(f"There is no topic {topic}")
            return info

    async def delete_topics(self, names: Iterable[Topic], *, lease: Lease | None = None) -> None:
        """Delete topics; what is not there is no error."""
        with self._state.lock:
            if lease is not None:
                self._check_epoch(lease)
            self._check()
            for topic in names:
                if self._state.topic(topic) is not None:
                    self._state.domains[topic.domain].remove(topic.name)

    def _topics(self, domain: str) -> DomainTopics:
        self._check()
        topics = self._state.domains.get(domain)
        if topics is None:
            raise UnknownDomainError(f"There is no domain {domain!r}")
        return topics

    async def get(self, keys: Iterable[str]) -> dict[str, Versioned]:
        """The values of those keys that exist."""
        with self._state.lock:
            self._check()
            values = self._state.values
            return {key: values[key] for key in keys if key in values}

    async def scan(self, prefix: str, *, after: str = "", limit: int) -> dict[str, Versioned]:
        """A page of the keys that begin with a prefix, sorted."""
        with self._state.lock:
            self._check()
            values, keys = self._state.values, self._state.keys()
            begin = max(bisect_right(keys, after), bisect_left(keys, prefix))
            after_all = prefix_end(prefix)
            end = len(keys) if after_all is None else bisect_left(keys, after_all)
            return {key: values[key] for key in keys[begin : min(end, begin + limit)]}

    async def commit(
        self,
        writes: Mapping[str, bytes | None],
        expect: Mapping[str, int] | None = None,
        *,
        lease: Lease | None = None,
    ) -> int:
        """Write several values, all or none."""
        state = self._state
        with state.lock:
            self._check()
            if lease is not None:
                self._check_epoch(lease)
            for key, expected in (expect or {}).items():
                found = state.values[key].version if key in state.values else 0
                if found != expected:
                    raise ConflictError(key, expected, found)
            state.revision += 1
            state.changes.record(state.revision, writes, state.values)
            for key, value in writes.items():
                if value is None:
                    state.values.pop(key, None)
                else:
                    state.values[key] = Versioned(bytes(value), state.revision)
            return state.revision

    async def changes(
        self, prefixes: Iterable[str], since: str | None = None, *, limit: int = 1000, wait: float = 0.0
    ) -> ChangePage:
        """A page of what has changed below some prefixes since a token was given."""
        prefixes, limit = check_prefixes(prefixes), check_limit(limit)
        place = None if since is None else parse_token(since)
        state, until = self._state, anyio.current_time() + wait
        with self._waiter(prefixes) as news:
            while True:
                with state.lock:
                    self._check()
                    page = state.changes.page(prefixes, place, limit, state.revision, state.values)
                left = until - anyio.current_time()
                if place is None or page.changes or left <= 0:
                    return page
                place = parse_token(page.token)
                await news.wait(left)

    @contextmanager
    def _waiter(self, prefixes: tuple[str, ...]) -> Iterator[Wakeup]:
        news, changes = Wakeup(), self._state.changes
        with self._state.lock:
            changes.wait(news, prefixes)
        try:
            yield news
        finally:
            with self._state.lock:
                changes.wait_no_more(news, prefixes)

    async def acquire(
        self, name: str, holder: str, ttl: float, *, above: int = 0, over: LeaseInfo | None = None
    ) -> Lease:
        """Take a lease that is free, or is one's own already, or somebody's that is known to be over."""
        expires = self._clock() + check_ttl(ttl)
        with self._state.lock:
            self._check()
            row = self._state.leases.get(name)
            if row is not None and row.held and row.holder != holder and row.info(name) != over:
                raise LeaseHeldError(f"{row.holder!r} holds {name!r}", holder=row.holder)
            epoch = next_epoch(name, 0 if row is None else row.epoch, above)
            self._state.leases[name] = LeaseRow(holder, epoch, ttl, True, 1 if row is None else row.version + 1)
            return Lease(name, holder, epoch, ttl, expires)

    async def renew(self, lease: Lease) -> Lease:
        """Have a lease last for another `ttl` seconds."""
        expires = self._clock() + lease.ttl
        with self._state.lock:
            self._check()
            row = self._check_epoch(lease)
            row.held = True
            row.version += 1
            return replace(lease, expires=expires)

    async def release(self, lease: Lease) -> None:
        """Give up a lease."""
        with self._state.lock:
            self._check()
            row = self._state.leases.get(lease.name)
            if row is not None and row.epoch == lease.epoch:
                row.held = False
                row.version += 1

    async def leases(self, prefix: str) -> list[LeaseInfo]:
        """The leases whose names begin with a prefix, by name."""
        with self._state.lock:
            self._check()
            rows = self._state.leases
            return [rows[name].info(name) for name in sorted(rows) if name.startswith(prefix)]

    def _check_epoch(self, lease: Lease) -> LeaseRow:
        row = self._state.leases.get(lease.name)
        if row is None or row.epoch != lease.epoch:
            newer = None if row is None else row.epoch
            raise FencedError(f"{lease.name!r} has epoch {newer}, not {lease.epoch}", epoch=newer)
        return row
