"""The port to HTP: what the gateway asks of a message store, and nothing more.

Two protocols. `Manager` (HTP's *mgr*) keeps domains, topics, leases and a small key-value part. `Broker` (HTP's
*brk*) keeps messages. A `Store` is the pair of both, opened from a URL by `kclient.htp.open_store`.

What a backend can do beyond the required calls it says in `Broker.capabilities`; the names are the `CAP_*`
constants below. Every call is made from the event loop in which the store was opened, if not said otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Protocol, Self, TypeAlias, runtime_checkable

from kclient.htp.errors import StorageError
from kclient.types import Buffer

CAP_POSITIONS = "positions"
"""`Sent.first` and `Sent.last` tell where the messages were stored."""
CAP_ORDINAL_POSITIONS = "ordinal_positions"
"""Positions are the ordinals that the topic's `Framing` reads from the messages."""
CAP_NOWAIT = "nowait"
"""`Broker.open` gives `DirectTopic`s: appends and warm reads without a switch of tasks."""
CAP_FIND_BY_TIMESTAMP = "find_by_timestamp"
"""`OpenTopic.find_by_timestamp` works."""
CAP_SEGMENTS = "segments"
"""`OpenTopic.segments` and `OpenTopic.roll` work, and `TopicSettings` are heeded."""
CAP_EXCLUSIVE = "exclusive"
"""While a store is open no other process has it, so a lease that cannot be renewed there goes to nobody elsewhere."""
CAP_FENCED_SENDS = "fenced_sends"
"""`Broker.open` seals older epochs, durably: nothing is appended, trimmed or deleted under one afterwards."""

DURABILITY_SYNCED = "synced"
"""Messages are visible, and reported as synced, once they are on disk."""
DURABILITY_WRITTEN = "written"
"""Messages are visible, and reported as synced, once the operating system has them (Kafka's own default)."""


class Topic(NamedTuple):
    """The address of a topic: its domain and its name, which may have several levels (`a/b`)."""

    domain: str
    name: str

    def __str__(self) -> str:
        return f"{self.domain}:{self.name}"


class Place(NamedTuple):
    """What identifies a topic, also when it has been deleted and its name is used again."""

    topic: Topic
    incarnation: int
    """As the manager tells (`TopicInfo.incarnation`); 0 if the backend has none."""

    def __str__(self) -> str:
        return f"{self.topic} (incarnation {self.incarnation})"


# --- messages ---------------------------------------------------------------------------------------------------


class MessageInfo(Protocol):
    """What a `Framing` reads from one message."""

    @property
    def length(self) -> int:
        """Length of the whole message in bytes."""
        ...

    @property
    def first(self) -> int:
        """The least ordinal in the message; not negative."""
        ...

    @property
    def last(self) -> int:
        """The greatest ordinal in the message (inclusive)."""
        ...

    @property
    def max_timestamp(self) -> int:
        """The greatest timestamp in the message, milliseconds since the epoch; -1 if it has none."""
        ...


class Framing(Protocol):
    """How to find one's way in a buffer of messages; supplied by whoever opens the topic.

    Backends index and verify through it and know nothing else of what they store.
    """

    @property
    def prefix(self) -> int:
        """Bytes that `measure` needs; every message is longer than that."""
        ...

    def measure(self, buffer: Buffer, position: int = 0, /) -> int:
        """Length in bytes of the message at `position`, read from its first `prefix` bytes.

        Raises:
            ValueError: If no message can begin like this. Also `kclient.errors.CorruptRecordError`.
        """
        ...

    def inspect(self, buffer: Buffer, position: int = 0, /) -> MessageInfo:
        """What the message at `position`, which is wholly in the buffer, says of itself; without its CRC.

        Raises:
            ValueError: If that is no message. Also `kclient.errors.CorruptRecordError`.
        """
        ...

    def verify(self, buffer: Buffer, position: int = 0, /) -> bool:
        """Whether the message at `position` is whole and its CRC right. Never raises, whatever the bytes."""
        ...


class Pulled(NamedTuple):
    """Messages that `pull` found."""

    data: Buffer
    """Whole messages, one after the other; empty if there are none."""
    first: int
    """First ordinal of the first message (it may lie before the position asked for); if there is none, the
    position asked for."""
    last: int
    """Last ordinal of the last message: ask for `last + 1` next. If there is none, the position asked for - 1."""


class Found(NamedTuple):
    """The message that `find_by_timestamp` found."""

    first: int
    last: int
    max_timestamp: int


class TopicStatus(NamedTuple):
    """Where a topic begins and ends."""

    start: int
    """The first position that can be read."""
    end: int
    """The position after the last *visible* message: the high watermark."""
    next: int
    """The position after the last *written* message: the next ordinal to be given."""
    size: int
    """Bytes of all messages that are kept."""


class SegmentInfo(NamedTuple):
    """A part of a topic that is kept or dropped as a whole; what retention decides upon."""

    first: int
    """The ordinal that the segment is named by; its messages' ordinals are not below it."""
    next: int
    """The position after its last message."""
    size: int
    """Bytes of its messages."""
    max_timestamp: int
    """The greatest timestamp of its messages (milliseconds since the epoch), -1 if there is none."""
    modified_ms: int
    """When it was last written, milliseconds since the epoch."""
    active: bool
    """Whether appends go into it. There is exactly one such segment, the last."""


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """How a backend lays out a topic (capability `segments`)."""

    segment_bytes: int = 1 << 30
    """A segment that would grow beyond this is closed and the next one begun."""
    segment_ms: int = 7 * 24 * 3600 * 1000
    """A segment older than this (since its first message was written) is closed at the next append."""
    index_interval_bytes: int = 16384
    """Bytes between two index entries, at least. An entry takes 24 bytes of memory."""
    dense: bool = False
    """Whether each message's first ordinal is the next one: a gap is damage then, also where a message's CRC does not
    cover its ordinals. A backend that holds to it refuses to append with a gap (`OrderError`)."""


SyncedCallback: TypeAlias = Callable[[BaseException | None], object]
"""Is called with None once the messages are synced, else with the `StorageError` that lost them."""


class Sent(Protocol):
    """The answer to `send`: the messages are written. Whether they are synced it tells later."""

    @property
    def first(self) -> int:
        """First ordinal of what was sent; -1 without capability `positions`."""
        ...

    @property
    def last(self) -> int:
        """Last ordinal of what was sent; -1 without capability `positions`."""
        ...

    @property
    def done(self) -> bool:
        """Whether it is decided already: synced, or lost."""
        ...

    async def synced(self) -> None:
        """Wait until the messages are as durable as the store promises.

        Raises:
            StorageError: If the sync failed: the messages are gone, and so is all that was sent after them.
        """
        ...

    def on_synced(self, callback: SyncedCallback, /) -> None:
        """Have `callback` called in the event loop when it is decided; at once if it is decided already.

        Callbacks of one topic are called in the order of the sends. They must not raise.
        """
        ...


class OpenTopic(Protocol):
    """A topic in use: one incarnation, as its leader of one epoch holds it.

    It never reaches another incarnation of the same name, and never comes after a newer epoch. Every call raises:

    - `UnknownTopicError` once it was closed, its messages were deleted, or a later incarnation was opened;
    - `FencedError` once the topic was opened under a newer epoch (capability `fenced_sends`);
    - `StoreClosedError` once the store was closed.
    """

    @property
    def place(self) -> Place:
        """The topic and its incarnation."""
        ...

    @property
    def epoch(self) -> int:
        """The epoch it was opened under."""
        ...

    async def close(self) -> None:
        """Sync the topic and give up what is held for it. If it has ended already, that is no error."""
        ...

    async def configure(self, settings: TopicSettings) -> None:
        """Change the layout, from the next append on (capability `segments`)."""
        ...

    async def send(self, messages: Sequence[Buffer]) -> Sent:
        """Append whole messages, in this order, all or none; returns when they are written.

        The messages may be changed once this returned.

        Args:
            messages: Each buffer is exactly one message of the topic's framing.

        Raises:
            OrderError: If a message's first ordinal is below the next one.
            StorageFullError: If there is no space; nothing was appended.
            StorageError: If writing failed; nothing was appended.
        """
        ...

    async def pull(
        self, position: int, *, max_bytes: int = 1 << 20, max_messages: int | None = None, wait: float = 0.0
    ) -> Pulled:
        """The visible messages from a position on, beginning with the one that holds it (or comes next).

        At least one message is returned if there is any, even if it is larger than `max_bytes`. Fewer than
        there are may be returned: `last + 1` goes on.

        Args:
            position: Where to begin.
            max_bytes: At most so many bytes, if that is not less than one message.
            max_messages: At most so many messages.
            wait: Seconds to wait for a message if there is none.

        Raises:
            PositionError: If the position lies before the start or after the written end.
            DamagedError: If what is stored there are no messages.
            StorageError: If reading failed.
        """
        ...

    async def start(self) -> int:
        """The first position that can be read."""
        ...

    async def end(self) -> int:
        """The position after the last visible message (the high watermark)."""
        ...

    async def status(self) -> TopicStatus:
        """Start, end, next ordinal and size."""
        ...

    async def trim(self, before: int) -> int:
        """Drop whole messages that lie wholly before a position; returns the new start.

        A backend may keep some of them (it drops whole segments), never drops others.
        """
        ...

    async def find_by_timestamp(self, timestamp: int, *, start: int = 0) -> Found | None:
        """The first visible message, from the one holding `start` on, with a timestamp not below the given one.

        Capability `find_by_timestamp`. None if there is no such message.
        """
        ...

    async def segments(self) -> list[SegmentInfo]:
        """The segments in order (capability `segments`): retention decides upon them, then trims."""
        ...

    async def roll(self) -> None:
        """Close the active segment, unless it is empty, and begin another (capability `segments`)."""
        ...


@runtime_checkable
class DirectTopic(OpenTopic, Protocol):
    """A topic of a broker with capability `nowait`: the hot calls return at once, without a switch of tasks."""

    def send_nowait(self, messages: Sequence[Buffer]) -> Sent | None:
        """As `send`; None, and nothing is stored, if that has to wait for others: `send` does."""
        ...

    def pull_nowait(self, position: int, *, max_bytes: int = 1 << 20, max_messages: int | None = None) -> Pulled | None:
        """As `pull` without waiting; None if the messages must first come from the disk: `pull` fetches them."""
        ...

    def status_nowait(self) -> TopicStatus:
        """As `status`."""
        ...

    def watch(self, callback: Callable[[int], object]) -> Callable[[], None]:
        """Have `callback(end)` called in the event loop whenever the visible end has moved (once per sync).

        It is called a last time when this ends, so that whoever waits looks again. Returns a function that stops it.
        """
        ...


class Broker(Protocol):
    """HTP's *brk*: it keeps the messages of topics."""

    @property
    def capabilities(self) -> frozenset[str]:
        """What this backend can do beyond the required calls (the `CAP_*` names)."""
        ...

    @property
    def durability(self) -> str:
        """`DURABILITY_SYNCED` or `DURABILITY_WRITTEN`."""
        ...

    async def open(
        self,
        place: Place,
        framing: Framing,
        *,
        epoch: int,
        settings: TopicSettings | None = None,
        next_position: int = 0,
    ) -> OpenTopic:
        """Take a topic over under an epoch, and make it ready for use; recovers it if need be.

        Older epochs are sealed, durably, before this returns (capability `fenced_sends`): what was opened under
        one raises `FencedError`, and none can open it again. Nothing is appended between the sealing and what
        `status` then tells. With the epoch that the topic is open under already, this is cheap and gives the
        same again.

        Args:
            place: A topic that the manager knows, in its present incarnation.
            framing: How its messages are to be read.
            epoch: The opener's: it is the leader from now on. Not negative.
            settings: Layout of the topic; the backend's defaults if None.
            next_position: The next ordinal is at least this, whatever is stored: a log that was trimmed to
                nothing, or that lost its end, never restarts below.

        Raises:
            UnknownTopicError: If the manager knows no such topic, or another incarnation of it.
            FencedError: If it was opened under a newer epoch before.
            StorageError: If what is stored cannot be read.
        """
        ...

    async def delete(self, places: Iterable[Place], *, epoch: int) -> None:
        """Drop all messages of some topics, durably; whoever has one of them open has it no more.

        The manager's topics are deleted before or afterwards. One that is not there is no error: that incarnation
        has no messages. Another incarnation of the same name is left alone.

        Args:
            places: The topics; however many they are, it takes few writes.
            epoch: Whoever deletes must not come after a newer epoch either.

        Raises:
            FencedError: If one of them was opened under a newer epoch; then none was deleted.
            StorageError: If the store failed: some may have been deleted, trying again is right.
        """
        ...


# --- management -------------------------------------------------------------------------------------------------


class Versioned(NamedTuple):
    """A value of the key-value part, and the revision of the commit that wrote it."""

    value: bytes
    version: int


class TopicInfo(NamedTuple):
    """What the manager knows of a topic."""

    topic: Topic
    broker: str | None
    """The broker it is bound to; None while it is unbound."""
    incarnation: int
    """Greater for a topic that was created later, also under the same name; 0 if the backend has none."""

    @property
    def place(self) -> Place:
        """What the broker calls it by."""
        return Place(self.topic, self.incarnation)


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
    """On this process's monotonic clock, reckoned from before the lease was asked for."""

    def remaining(self, now: float | None = None) -> float:
        """Seconds that the lease still holds; 0 if it has run out."""
        return max(0.0, self.expires - (time.monotonic() if now is None else now))


class LeaseInfo(NamedTuple):
    """A lease as anybody can see it."""

    name: str
    holder: str
    """Who holds it, or held it last."""
    epoch: int
    remaining: float
    """Seconds for which nobody else can take it; 0 if it is free."""


class Manager(Protocol):
    """HTP's *mgr*: domains, topics, leases, and values that change together or not at all.

    A commit is durable when the call returns.
    """

    async def create_domain(self, domain: str) -> None:
        """Create a domain.

        Raises:
            DomainExistsError: If there is one of that name.
        """
        ...

    async def list_domains(self) -> list[str]:
        """The names of all domains, sorted."""
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
        """
        ...

    async def list_topics(self, domain: str) -> list[TopicInfo]:
        """The topics of a domain, sorted by name.

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

    async def delete_topic(self, topic: Topic, *, lease: Lease | None = None) -> None:
        """Delete a topic. A topic created later under that name does not see the old messages.

        Args:
            topic: Its name.
            lease: Must be held, under its epoch, in the moment of the deletion.

        Raises:
            FencedError: If somebody else has taken the lease.
            UnknownTopicError: If there is no such topic.
        """
        ...

    async def bind(self, topic: Topic, broker: str) -> None:
        """Have all messages of a topic go to one broker, so that they keep their order.

        Raises:
            UnknownTopicError: If there is no such topic.
        """
        ...

    async def get(self, keys: Iterable[str]) -> dict[str, Versioned]:
        """The values of those keys that exist, read at one moment."""
        ...

    async def scan(self, prefix: str) -> dict[str, Versioned]:
        """All keys that begin with `prefix`, sorted, read at one moment."""
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

    async def acquire(self, name: str, holder: str, ttl: float, *, above: int = 0) -> Lease:
        """Take a lease that is free, has run out, or is one's own already; its epoch is a new one.

        Args:
            name: Of the lease.
            holder: Who asks.
            ttl: Seconds that it is to last.
            above: Its epoch is greater than this, too.

        Raises:
            LeaseHeldError: If somebody else holds it.
        """
        ...

    async def renew(self, lease: Lease) -> Lease:
        """Have a lease last for another `ttl` seconds, also one that ran out and that nobody else took.

        Raises:
            FencedError: If somebody acquired it since.
        """
        ...

    async def release(self, lease: Lease) -> None:
        """Give up a lease; one that somebody else has acquired since is left alone."""
        ...

    async def leases(self, prefix: str) -> list[LeaseInfo]:
        """The leases whose names begin with `prefix`, by name, also those that have run out or were given up."""
        ...


class Store(Protocol):
    """A manager and a broker that belong together: `async with open_store(url) as store: ...`."""

    @property
    def manager(self) -> Manager:
        """The management part."""
        ...

    @property
    def broker(self) -> Broker:
        """The messages."""
        ...

    async def __aenter__(self) -> Self:
        """Open the store.

        Raises:
            LockedError: If another process owns it.
            FormatVersionError: If it was written by a newer version.
        """
        ...

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Close the store."""
        ...

    async def aclose(self) -> None:
        """Sync everything and close the store; closing it twice is no error."""
        ...

    def on_failure(self, callback: Callable[[StorageError], object]) -> Callable[[], None]:
        """Have `callback(error)` called in the event loop, once, if an open store fails for good.

        That is when something in the store itself has died. What waits then fails with that error, and so does
        every later call, except closing. A disk that is full or fails to write for a while is no such failure.
        Returns a function that ends it.
        """
        ...
