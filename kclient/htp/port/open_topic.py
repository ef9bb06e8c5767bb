"""A topic in use: messages in and out, what is kept of them, and how they are laid out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from kclient.htp.port.places import Place
from kclient.types import Buffer

__all__ = [
    "DirectTopic",
    "Found",
    "OpenTopic",
    "Pulled",
    "RewritableTopic",
    "Rewriting",
    "SegmentInfo",
    "Sent",
    "SyncedCallback",
    "TopicSettings",
    "TopicStatus",
]


class Pulled(NamedTuple):
    """Messages that `pull` found."""

    data: Buffer
    """Whole messages, one after the other; empty if there are none."""
    first: int
    """First position of the first message (it may lie before the position asked for); if there is none, the
    position asked for."""
    last: int
    """Last position of the last message: ask for `last + 1` next. If there is none, the position asked for - 1."""


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
    """The position after the last *written* message: where positions are ordinals, the next one to be given."""
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
"""Is called with None once the messages are synced, with the `StorageError` that lost them, or with an
`OutcomeUnknownError` where nobody knows."""


class Sent(Protocol):
    """The answer to `send`: the messages are written. Whether they are synced it tells later."""

    @property
    def first(self) -> int:
        """First position of what was sent; -1 without capability `positions`."""
        ...

    @property
    def last(self) -> int:
        """Last position of what was sent; -1 without capability `positions`."""
        ...

    @property
    def done(self) -> bool:
        """Whether it is decided already: synced, lost, or that it is not known which."""
        ...

    async def synced(self) -> None:
        """Wait until the messages are as durable as the store promises.

        Raises:
            StorageError: If the sync failed: the messages are gone, and so is all that was sent after them.
            OutcomeUnknownError: If it is not known whether they are synced, or gone with all that was sent after them.
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

        The messages may be changed once this returned. A send that is under way when the sync of an earlier one fails
        raises too, or its messages are lost with those. What was sent is stored without a hole: nothing is there unless
        what was sent before it is, but for what was refused. So after an `OutcomeUnknownError` nothing more is sent
        before the topic was opened under a newer epoch.

        Args:
            messages: Each buffer is exactly one message of the topic's framing.

        Raises:
            OrderError: If a message's first ordinal is below the next one, or above its last one (capability
                `ordinal_positions`).
            ValueError: If an ordinal is too large to be recorded (62 bits), or a buffer is not one message.
            StorageFullError: If there is no space; nothing was appended.
            StorageError: If writing failed; nothing was appended.
            OutcomeUnknownError: If it is not known whether they are stored; they may still become so.
        """
        ...

    async def pull(self, position: int, *, max_bytes: int = 1 << 20, max_messages: int | None = None) -> Pulled:
        """The visible messages from a position on, beginning with the one that holds it (or comes next).

        At least one message is returned if there is any, even if it is larger than `max_bytes`. Fewer than
        there are may be returned: `last + 1` goes on.

        Args:
            position: Where to begin.
            max_bytes: At most so many bytes, if that is not less than one message.
            max_messages: At most so many messages.

        Raises:
            PositionError: If the position lies before the start or after the written end.
            DamagedError: If what is stored there are no messages.
            StorageError: If reading failed.
        """
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
        """As `pull`; None if the messages must first come from the disk: `pull` fetches them."""
        ...

    def status_nowait(self) -> TopicStatus:
        """As `status`."""
        ...


class Rewriting(Protocol):
    """Messages that are to take the place of those of a closed segment; one task uses it at a time.

    It ends with `commit` or `discard`, or with its topic. What was appended then is of no more use, and is removed.
    """

    @property
    def size(self) -> int:
        """Bytes of the messages so far."""
        ...

    async def append(self, messages: Sequence[Buffer]) -> None:
        """Add whole messages behind those so far; nobody sees them before `commit`.

        Args:
            messages: Each buffer is exactly one message of the topic's framing. They may be changed once this returned.

        Raises:
            OrderError: If one does not follow on what is before it, or lies behind the segment.
            ValueError: If a buffer is not one message.
            StorageFullError: If there is no space.
            StorageError: If writing failed.
            IllegalStateError: If it has ended.
        """
        ...

    async def commit(self) -> None:
        """Have the messages take the place of the segment's, durably and all at once.

        Until then the old ones are there, also after a crash. A reader that is at work in them may see them to the
        end. The segment keeps its name, and when it was last written.

        Raises:
            OrderError: If the messages end before those of the segment, or there are none: what was the last ordinal
                stays that.
            PositionError: If the segment was trimmed or changed meanwhile.
            StorageError: If the store failed. The old messages are there, or the new ones, and in the latter case it
                is not known whether they are after a crash.
            IllegalStateError: If it has ended.
        """
        ...

    async def discard(self) -> None:
        """Give up what was appended. If it has ended already, that is no error."""
        ...


@runtime_checkable
class RewritableTopic(OpenTopic, Protocol):
    """A topic of a broker with capability `rewrite`."""

    async def rewrite(self, first: int) -> Rewriting:
        """Begin to write messages that are to take the place of those of a segment.

        Args:
            first: The ordinal that the segment is named by (`SegmentInfo.first`). It is not the active one.

        Raises:
            PositionError: If no segment is named like this, or it is not closed and synced yet.
        """
        ...
