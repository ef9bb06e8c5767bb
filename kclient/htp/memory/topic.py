"""A topic of the memory backend, as somebody holds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import anyio.lowlevel

from kclient.errors import IllegalStateError
from kclient.htp.errors import StoreClosedError, UnknownTopicError
from kclient.htp.port import Found, Place, Pulled, SegmentInfo, SyncedCallback, TopicSettings, TopicStatus

if TYPE_CHECKING:
    from kclient.htp.memory.state import MemoryLog, MemorySegment, MemoryState
    from kclient.types import Buffer


class MemorySent:
    """What was sent to memory is as durable as it will ever be."""

    __slots__ = ("first", "last")

    done = True

    def __init__(self, first: int, last: int) -> None:
        self.first: int = first
        self.last: int = last

    async def synced(self) -> None:
        """Return at once."""
        await anyio.lowlevel.checkpoint()

    def on_synced(self, callback: SyncedCallback, /) -> None:
        """Call back at once."""
        callback(None)


class MemoryRewriting:
    """Implements `kclient.htp.port.Rewriting`.

    Args:
        state: What is stored under the name; its lock guards the log.
        use: The log, if it may be used.
        segment: Takes the messages.
    """

    __slots__ = ("_segment", "_state", "_use")

    def __init__(self, state: MemoryState, use: Callable[[], MemoryLog], segment: MemorySegment) -> None:
        self._state = state
        self._use = use
        self._segment: MemorySegment | None = segment

    @property
    def size(self) -> int:
        """Bytes of the messages so far."""
        return self._segment.size if self._segment is not None else 0

    def _go_on(self) -> MemorySegment:
        if self._segment is None:
            raise IllegalStateError(f"memory:{self._state.name}: this rewriting of a segment has ended; begin another")
        return self._segment

    async def append(self, messages: Sequence[Buffer]) -> None:
        """Add whole messages behind those so far."""
        await anyio.lowlevel.checkpoint()
        with self._state.lock:
            segment, log = self._go_on(), self._use()
            if messages:
                log.fill(segment, messages)

    async def commit(self) -> None:
        """Have the messages take the place of the segment's."""
        await anyio.lowlevel.checkpoint()
        with self._state.lock:
            segment, log = self._go_on(), self._use()
            log.replace(segment)
            self._segment = None

    async def discard(self) -> None:
        """Give up what was appended."""
        await anyio.lowlevel.checkpoint()
        self._segment = None


class MemoryTopic:
    """Implements `kclient.htp.port.DirectTopic`.

    Args:
        state: What is stored under the name; its lock guards the log.
        log: The topic's.
        epoch: That the topic was opened under.
    """

    __slots__ = ("_closed", "_log", "_shut", "_state", "epoch")

    def __init__(self, state: MemoryState, log: MemoryLog, epoch: int) -> None:
        self.epoch: int = epoch
        self._state = state
        self._log = log
        self._closed = self._shut = False

    @property
    def place(self) -> Place:
        """The topic and its incarnation."""
        return self._log.place

    @property
    def alive(self) -> bool:
        """Whether it may still be used."""
        return not (self._closed or self._log.gone or self._log.epoch != self.epoch)

    def _use(self) -> MemoryLog:
        """The log, if it may be used; the caller holds the lock."""
        log = self._log
        if self._closed or log.gone or log.epoch != self.epoch:
            self._refuse()
        return log

    def _refuse(self) -> None:
        if self._shut:
            raise StoreClosedError(f"memory:{self._state.name} was closed")
        self._state.check()
        if self._closed:
            raise UnknownTopicError(f"{self.place} was closed")
        self._log.check(self.epoch)

    def give_up(self, *, shut: bool = False) -> None:
        """Refuse every further call; `shut` if the store is closed."""
        self._shut = self._shut or shut
        self._closed = self._closed or self.alive  # what has ended already keeps its reason

    async def close(self) -> None:
        """Give up what is held for the topic."""
        await anyio.lowlevel.checkpoint()
        self.give_up()

    async def configure(self, settings: TopicSettings) -> None:
        """Change the layout."""
        await anyio.lowlevel.checkpoint()
        with self._state.lock:
            self._use().settings = settings

    def send_nowait(self, messages: Sequence[Buffer]) -> MemorySent:
        """Append whole messages, all or none."""
        with self._state.lock:
            first, last = self._use().append(messages)
        return MemorySent(first, last)

    async def send(self, messages: Sequence[Buffer]) -> MemorySent:
        """Append whole messages, all or none."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        sent = self.send_nowait(messages)
        await anyio.lowlevel.cancel_shielded_checkpoint()
        return sent

    def pull_nowait(self, position: int, *, max_bytes: int = 1 << 20, max_messages: int | None = None) -> Pulled:
        """The messages from a position on."""
        with self._state.lock:
            return self._use().pull(position, max_bytes, max_messages)

    async def pull(self, position: int, *, max_bytes: int = 1 << 20, max_messages: int | None = None) -> Pulled:
        """The messages from a position on."""
        await anyio.lowlevel.checkpoint()
        return self.pull_nowait(position, max_bytes=max_bytes, max_messages=max_messages)

    def status_nowait(self) -> TopicStatus:
        """Start, end, next ordinal and size."""
        with self._state.lock:
            return self._use().status()

    async def status(self) -> TopicStatus:
        """Start, end, next ordinal and size."""
        await anyio.lowlevel.checkpoint()
        return self.status_nowait()

    async def trim(self, before: int) -> int:
        """Drop whole segments that lie before a position."""
        await anyio.lowlevel.checkpoint()
        with self._state.lock:
            return self._use().trim(before)

    async def find_by_timestamp(self, timestamp: int, *, start: int = 0) -> Found | None:
        """The first message with a timestamp not below the given one."""
        await anyio.lowlevel.checkpoint()
        with self._state.lock:
            return self._use().find_by_timestamp(timestamp, start)

    async def segments(self) -> list[SegmentInfo]:
        """The segments of a topic in order."""
        await anyio.lowlevel.checkpoint()
        with self._state.lock:
            return self._use().segments()

    async def rewrite(self, first: int) -> MemoryRewriting:
        """Have other messages take the place of those of a closed segment."""
        await anyio.lowlevel.checkpoint()
        with self._state.lock:
            segment = self._use().rewriting(first)
        return MemoryRewriting(self._state, self._use, segment)

    async def roll(self) -> None:
        """Begin another segment, unless the active one is empty."""
        await anyio.lowlevel.checkpoint()
        with self._state.lock:
            self._use().roll()
