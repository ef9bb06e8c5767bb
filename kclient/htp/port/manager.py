"""HTP's *mgr*: domains, topics, leases, and a small key-value part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kclient.htp.port.places import Place, Topic

__all__ = ["Change", "ChangePage", "Lease", "LeaseInfo", "Manager", "TopicInfo", "Versioned"]


class Versioned(NamedTuple):
    """A value of the key-value part, and the revision of the commit that wrote it."""

    value: bytes
    version: int


class Change(NamedTuple):
    """What has become of a value."""

    key: str
    value: bytes | None
    """None: it was deleted."""
    version: int
    """The revision of the commit that did it."""


class ChangePage(NamedTuple):
    """What has changed since a token was given."""

    changes: list[Change]
    """In the order of the commits; within one commit in that of the keys."""
    token: str
    """Stands for everything up to here; a text that nobody but the manager reads."""
    more: bool
    """Whether there are more. If not, what was told up to here is how everything stood at one moment."""


class TopicInfo(NamedTuple):
    """What the manager knows of a topic."""

    topic: Topic
    broker: str | None
    """The broker it was bound to first; None if it is bound to none."""
    incarnation: int
    """Greater for a topic that was created later, also under the same name; 0 if the backend has none."""
    further: tuple[Place, ...] = ()
    """Its messages at the other brokers that it is bound to, in the order in which it was; see `Manager.bind`."""

    @property
    def place(self) -> Place:
        """Where its messages are, at the broker that it was bound to first."""
        return Place(self.topic, self.broker or "", self.incarnation)

    @property
    def places(self) -> tuple[Place, ...]:
        """Where its messages are: a place for each broker that it is bound to, in the order in which it was."""
        return self.place, *self.further


@dataclass(frozen=True, slots=True)
class Lease:
    """A right that ends by itself unless it is renewed."""

    name: str
    holder: str
    epoch: int
    """Greater than that of every earlier holder."""
    ttl: float
    """Seconds that the lease is asked for."""
    expires: float
    """On this process's monotonic clock, reckoned from before the lease, or its renewal, was asked for."""


class LeaseInfo(NamedTuple):
    """A lease as anybody can see it. When it ends only its holder knows."""

    name: str
    holder: str
    """Who holds it, or held it last."""
    epoch: int
    ttl: float
    """Seconds that its holder has asked for."""
    held: bool
    """False once it was given up, or nobody can have it any more (capability `exclusive`)."""
    version: int
    """Another one whenever the lease was acquired, renewed or given up."""


class Manager(Protocol):
    """HTP's *mgr*: domains, topics, leases, and values that change together or not at all.

    A commit is durable when the call returns. Values and leases are told as they are. `list_topics` and
    `describe_topic` may miss for some seconds what others have made or deleted, never what was done here.
    """

    async def brokers(self) -> list[str]:
        """The names of the brokers that topics can be bound to, in an order that stays; new ones come last."""
        ...

    async def create_domain(self, domain: str) -> None:
        """Create a domain.

        Raises:
            DomainExistsError: If there is one of that name.
        """
        ...

    async def delete_domain(self, domain: str, *, lease: Lease | None = None) -> None:
        """Delete a domain and its topics (their messages: `Broker.delete`).

        Args:
            domain: Its name.
            lease: Must be held, under its epoch, in the moment of the deletion.

        Raises:
            FencedError: If somebody else has taken the lease.
            UnknownDomainError: If there is none of that name.
        """
        ...

    async def create_topic(self, topic: Topic, *, broker: str | None = None) -> TopicInfo:
        """Create a topic, bound to a broker if one is named.

        Raises:
            UnknownDomainError: If the domain does not exist.
            TopicExistsError: If there is one of that name.
            BindingError: If there is no such broker.
        """
        ...

    async def bind(self, topic: Topic, broker: str, *, lease: Lease | None = None) -> Place:
        """Bind a topic to one more broker; its messages there are apart from those at the others.

        Args:
            topic: Its name. It was created with a broker.
            broker: The broker. Where the topic is bound to it already, nothing changes.
            lease: Must be held, under its epoch, in the moment of the binding.

        Returns:
            The topic at that broker, with an incarnation of its own, greater than that of every earlier binding.

        Raises:
            UnknownTopicError: If there is no such topic.
            BindingError: If there is no such broker, or the topic is bound to none: its messages may be anywhere.
            FencedError: If somebody else has taken the lease.
        """
        ...

    async def list_topics(self, domain: str, prefix: str = "") -> list[TopicInfo]:
        """The topics of a domain, sorted by name.

        Args:
            domain: Its name.
            prefix: Only topics whose names begin with it; empty for all.

        Raises:
            UnknownDomainError: If the domain does not exist.
        """
        ...

    async def describe_topic(self, topic: Topic) -> TopicInfo:
        """What is known of a topic.

        Raises:
            UnknownTopicError: If there is no such topic.
        """
        ...

    async def delete_topics(self, names: Iterable[Topic], *, lease: Lease | None = None) -> None:
        """Delete topics, also thousands; what is not there is no error. If it fails, some may have been deleted.

        A topic created later under such a name does not see the old messages.

        Args:
            names: Which.
            lease: Must be held, under its epoch, in the moment of each deletion.

        Raises:
            FencedError: If somebody else has taken the lease.
        """
        ...

    async def get(self, keys: Iterable[str]) -> dict[str, Versioned]:
        """The values of those keys that exist, read at one moment."""
        ...

    async def scan(self, prefix: str, *, after: str = "", limit: int) -> dict[str, Versioned]:
        """A page of the keys that begin with `prefix`, sorted, read at one moment.

        Args:
            prefix: Of the keys; empty for all.
            after: Only keys that come after this one: the last of the page before.
            limit: At most so many keys. Fewer are returned only where there are no more.
        """
        ...

    async def commit(
        self,
        writes: Mapping[str, bytes | None],
        expect: Mapping[str, int] | None = None,
        *,
        lease: Lease | None = None,
    ) -> int:
        """Write several values, all or none.

        Args:
            writes: The new values; None deletes the key.
            expect: Versions that keys (also ones not written) must have; 0 for a key that must not exist.
            lease: A lease that nobody else may have acquired since; it may have run out.

        Returns:
            The revision of this commit: the version of every value it wrote. Revisions only grow.

        Raises:
            ConflictError: If a version is another than expected; nothing was written.
            FencedError: If the lease has a newer epoch; nothing was written.
        """
        ...

    async def changes(
        self, prefixes: Iterable[str], since: str | None = None, *, limit: int = 1000, wait: float = 0.0
    ) -> ChangePage:
        """A page of what has changed below some prefixes since a token was given.

        Whoever is to know what is there takes a token first (`since=None`), then scans, and goes on with this from
        token to token: nothing is missed. What the scan has shown may be told again; its version tells.

        Of several changes of a key the last one is told, and before it the last deletion, if there was one since:
        nobody takes a value that was made anew for the old one. As long as there are `more`, of what one commit wrote
        together some may come later, because it was changed again.

        Only what is followed is recorded: a prefix (or a shorter one) is from the first call on that names it without
        a token, for ever. Tokens survive a restart of the store. The oldest changes are forgotten once there are many.

        Args:
            prefixes: Of the keys; the empty one for all.
            since: The token; None for one that stands for now, and no changes.
            limit: At most so many changes, and at least one.
            wait: Seconds that the call may take if there are none, until there are: then it returns at once if the
                commit came from this process, and soon if another process made it. It may be cancelled.

        Raises:
            TokenTooOldError: If some of the changes have been forgotten, the prefixes were not followed when the token
                was given, or it is another store's: take a new token and scan again.
            StoreClosedError: If the store is closed meanwhile.
            ValueError: If `since` is no token, or `limit` below one.
        """
        ...

    async def acquire(
        self, name: str, holder: str, ttl: float, *, above: int = 0, over: LeaseInfo | None = None
    ) -> Lease:
        """Take a lease that is free, or is one's own already, or somebody's that is known to be over.

        Its epoch is a new one. A call that is cancelled leaves no lease behind, or gives it back as soon as it has it.

        The store knows no time: whether a lease is over is found out by whoever wants it, which is what
        `kclient.htp.leases` does.

        Args:
            name: Of the lease.
            holder: Who asks.
            ttl: Seconds that it is to last; finite.
            above: Its epoch is greater than this, too.
            over: The lease as `leases` has shown it for as long as it lasts: it is taken from its holder if it is
                still like this.

        Raises:
            HtpError: If no epoch is left above that one: they have 31 bits.
            LeaseHeldError: If somebody else holds it.
            ValueError: If nothing can last for so many seconds.
        """
        ...

    async def renew(self, lease: Lease) -> Lease:
        """Have a lease last for another `ttl` seconds, also one that ran out and that nobody else has acquired.

        Raises:
            FencedError: If somebody acquired it since.
        """
        ...

    async def release(self, lease: Lease) -> None:
        """Give up a lease; one that somebody else has acquired since is left alone."""
        ...

    async def leases(self, prefix: str) -> list[LeaseInfo]:
        """The leases whose names begin with `prefix`, by name, also those that were given up."""
        ...
