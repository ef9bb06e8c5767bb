"""A topic of the memory backend, as somebody holds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import anyio.lowlevel

from kclient.htp.errors import StoreClosedError, UnknownTopicError
from kclient.htp.loop import Signal
from kclient.htp.port import Found, Place, Pulled, SegmentInfo, SyncedCallback, TopicSettings, TopicStatus
from kclient.htp.waiting import pull_waiting

if TYPE_CHECKING:
    from kclient.htp.memory.state import MemoryLog, MemoryState
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


class MemoryTopic:
    """Implements `kclient.htp.port.DirectTopic`.

    Args:
        state: What is stored under the name; its lock guards the log.
        log: The topic's.
        epoch: That the topic was opened under.
        post: Runs a function in the event loop of whoever opened it.
    """

    __slots__ = ("_closed", "_log", "_post", "_shut", "_signals", "_state", "epoch")

    def __init__(
        self, state: MemoryState, log: MemoryLog, epoch: int, post: Callable[[Callable[[], object]], None]
    ) -> None:
        self.epoch: int = epoch
        self._state = state
        self._log = log
        self._post = post
        self._signals: list[Signal] = []
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
        """Refuse every further call, and wake who waits; `shut` if the store is closed."""
        self._shut = self._shut or shut
        self._closed = self._closed or self.alive  # what has ended already keeps its reason
        signals, self._signals = self._signals, []
        with self._state.lock:
            self._log.signals = [signal for signal in self._log.signals if signal not in signals]
        for signal in signals:
            signal.fire()  # a waiting pull finds out

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
            log = self._use()
            first, last = log.append(messages)
            log.notify()
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

    async def pull(
        self, position: int, *, max_bytes: int = 1 << 20, max_messages: int | None = None, wait: float = 0.0
    ) -> Pulled:
        """The messages from a position on; waits for one."""

        async def once() -> Pulled:
            return self.pull_nowait(position, max_bytes=max_bytes, max_messages=max_messages)

        await anyio.lowlevel.checkpoint()
        return await pull_waiting(self, once, wait)

    def watch(self, callback: Callable[[int], object]) -> Callable[[], None]:
        """Have `callback(end)` called whenever the end has moved, and when this ends."""
        with self._state.lock:
            log = self._use()
            signal = Signal(lambda: callback(log.next), self._post)
            log.signals.append(signal)
            self._signals.append(signal)

        def stop() -> None:
            signal.stop()
            with self._state.lock:
                if signal in log.signals:
                    log.signals.remove(signal)
                if signal in self._signals:
                    self._signals.remove(signal)

        return stop

    def status_nowait(self) -> TopicStatus:
        """Start, end, next ordinal and size."""
        with self._state.lock:
            return self._use().status()

    async def status(self) -> TopicStatus:
        """Start, end, next ordinal and size."""
        await anyio.lowlevel.checkpoint()
        return self.status_nowait()

    async def start(self) -> int:
        """The first position that can be read."""
        return (await self.status()).start

    async def end(self) -> int:
        """The position after the last visible message."""
        return (await self.status()).end

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

    async def roll(self) -> None:
        """Begin another segment, unless the active one is empty."""
        await anyio.lowlevel.checkpoint()
        with self._state.lock:
            self._use().roll()
