"""The name server of a simulated installation, as one of its clients sees it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from kclient.htp.brokers import binding_of, check_broker
from kclient.htp.errors import (
    DomainExistsError,
    StorageError,
    TopicExistsError,
    UnknownDomainError,
    UnknownTopicError,
)
from kclient.htp.memory.manager import MemoryManager
from kclient.htp.port import ChangePage, Lease, LeaseInfo, Place, Topic, TopicInfo, Versioned
from kclient.htp.testing.installation import Installation


class SimulatedManager:
    """Implements `kclient.htp.port.Manager`: values and leases are consistent, what it tells of topics may be old.

    Args:
        installation: Whose name server it is.
        clock: The monotonic clock by which leases are reckoned, in seconds; the system's if None.
    """

    def __init__(self, installation: Installation, clock: Callable[[], float] | None = None) -> None:
        self._installation = installation
        self._clock = clock or time.monotonic
        self._values = MemoryManager(installation.values, self._clock)
        self._seen = -math.inf
        """As of when this client has seen the topics: never older again."""
        self.reachable: bool = True
        """Whether its requests get through; if not, every call raises `StorageError`."""

    def shut(self) -> None:
        """Refuse every further call."""
        self._values.shut()

    async def _ask(self) -> None:
        if not self.reachable:
            raise StorageError(f"simulated:{self._installation.name}: the name server cannot be reached")
        await self._installation.travel()

    async def _check(self, lease: Lease | None = None) -> None:
        """Raises `FencedError` if the lease is somebody else's, `StoreClosedError` if the store is closed."""
        if lease is not None:
            await self._values.commit({}, lease=lease)
        else:
            await self._values.get(())

    # Topics

    def _view(self) -> float:
        """As of when the topics are told: some time ago, but not before this client has changed or seen them last."""
        place = self._installation
        self._seen = max(self._seen, place.now - place.dice.random() * place.options.stale_ms / 1000)
        return self._seen

    def _changes(self) -> float:
        self._seen = self._installation.now
        return self._seen

    async def brokers(self) -> list[str]:
        """The names of the brokers that topics can be bound to."""
        await self._ask()
        await self._check()
        return list(self._installation.brokers)

    async def create_domain(self, domain: str) -> None:
        """Create a domain."""
        await self._ask()
        await self._check()
        now = self._changes()
        if self._installation.directory.domain(domain, now):
            raise DomainExistsError(f"Domain {domain!r} exists already")
        self._installation.directory.add_domain(domain, now)

    async def delete_domain(self, domain: str, *, lease: Lease | None = None) -> None:
        """Delete a domain and its topics."""
        await self._ask()
        await self._check(lease)
        now, place = self._changes(), self._installation
        if not place.directory.domain(domain, now):
            raise UnknownDomainError(f"There is no domain {domain!r}")
        for info in place.directory.topics(domain, "", now):
            place.delete_later(info)
        place.directory.remove_domain(domain, now)

    async def create_topic(self, topic: Topic, *, broker: str | None = None) -> TopicInfo:
        """Create a topic, at a broker if one is named."""
        await self._ask()
        await self._check()
        now, place = self._changes(), self._installation
        if not place.directory.domain(topic.domain, now):
            raise UnknownDomainError(f"There is no domain {topic.domain!r}")
        if place.directory.topic(topic, now) is not None:
            raise TopicExistsError(f"Topic {topic} exists already")
        if broker is not None:
            check_broker(broker, place.brokers)
        info = TopicInfo(topic, broker, 0)
        place.directory.add_topic(info, now)
        return info

    async def bind(self, topic: Topic, broker: str, *, lease: Lease | None = None) -> Place:
        """Bind a topic to one more broker; everybody knows of that at once."""
        await self._ask()
        await self._check(lease)
        now, place = self._changes(), self._installation
        info = place.directory.topic(topic, now)
        if info is None:
            raise UnknownTopicError(f"There is no topic {topic}")
        check_broker(broker, place.brokers)
        found = binding_of(info, broker)
        if found is None:
            found = Place(topic, broker, 0)
            place.directory.change(info._replace(further=(*info.further, found)), now)
        return found

    async def list_topics(self, domain: str, prefix: str = "") -> list[TopicInfo]:
        """The topics of a domain, as they were a moment ago."""
        await self._ask()
        await self._check()
        at = self._view()
        if not self._installation.directory.domain(domain, at):
            raise UnknownDomainError(f"There is no domain {domain!r}")
        return self._installation.directory.topics(domain, prefix, at)

    async def describe_topic(self, topic: Topic) -> TopicInfo:
        """What was known of a topic a moment ago."""
        await self._ask()
        await self._check()
        found = self._installation.directory.topic(topic, self._view())
        if found is None:
            raise UnknownTopicError(f"There is no topic {topic}")
        return found

    async def delete_topics(self, names: Iterable[Topic], *, lease: Lease | None = None) -> None:
        """Delete topics; what is not there is no error."""
        await self._ask()
        await self._check(lease)
        now, place = self._changes(), self._installation
        for topic in names:
            info = place.directory.topic(topic, now)
            if info is not None:
                place.delete_later(info)
                place.directory.remove_topic(topic, now)

    # Values and leases

    async def get(self, keys: Iterable[str]) -> dict[str, Versioned]:
        """The values of those keys that exist."""
        await self._ask()
        return await self._values.get(keys)

    async def scan(self, prefix: str, *, after: str = "", limit: int) -> dict[str, Versioned]:
        """A page of the keys that begin with a prefix, sorted."""
        await self._ask()
        return await self._values.scan(prefix, after=after, limit=limit)

    async def commit(
        self,
        writes: Mapping[str, bytes | None],
        expect: Mapping[str, int] | None = None,
        *,
        lease: Lease | None = None,
    ) -> int:
        """Write several values, all or none."""
        await self._ask()
        return await self._values.commit(writes, expect, lease=lease)

    async def changes(
        self, prefixes: Iterable[str], since: str | None = None, *, limit: int = 1000, wait: float = 0.0
    ) -> ChangePage:
        """A page of what has changed below some prefixes since a token was given."""
        await self._ask()
        return await self._values.changes(prefixes, since, limit=limit, wait=wait)

    async def acquire(
        self, name: str, holder: str, ttl: float, *, above: int = 0, over: LeaseInfo | None = None
    ) -> Lease:
        """Take a lease that is free, or is one's own already, or somebody's that is known to be over."""
        began = self._clock()
        await self._ask()
        return replace(await self._values.acquire(name, holder, ttl, above=above, over=over), expires=began + ttl)

    async def renew(self, lease: Lease) -> Lease:
        """Have a lease last for another `ttl` seconds."""
        began = self._clock()
        await self._ask()
        return replace(await self._values.renew(lease), expires=began + lease.ttl)

    async def release(self, lease: Lease) -> None:
        """Give up a lease."""
        await self._ask()
        await self._values.release(lease)

    async def leases(self, prefix: str) -> list[LeaseInfo]:
        """The leases whose names begin with a prefix, by name."""
        await self._ask()
        return await self._values.leases(prefix)
