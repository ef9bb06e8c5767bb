"""The messages of the memory backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import anyio.lowlevel

from kclient.htp.errors import StoreClosedError, UnknownTopicError
from kclient.htp.loop import Signal, current_poster
from kclient.htp.memory.state import MemoryLog
from kclient.htp.port import (
    CAP_FENCED_SENDS,
    CAP_FIND_BY_TIMESTAMP,
    CAP_NOWAIT,
    CAP_ORDINAL_POSITIONS,
    CAP_POSITIONS,
    CAP_SEGMENTS,
    Found,
    Framing,
    Pulled,
    SegmentInfo,
    SyncedCallback,
    Topic,
    TopicSettings,
    TopicStatus,
)
from kclient.htp.waiting import pull_waiting

if TYPE_CHECKING:
    from kclient.htp.memory.manager import MemoryManager
    from kclient.htp.memory.state import MemoryState
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


class MemoryBroker:
    """Implements `kclient.htp.port.DirectBroker`."""

    capabilities: frozenset[str] = frozenset(
        {CAP_POSITIONS, CAP_ORDINAL_POSITIONS, CAP_NOWAIT, CAP_FIND_BY_TIMESTAMP, CAP_SEGMENTS, CAP_FENCED_SENDS}
    )

    def __init__(self, state: MemoryState, manager: MemoryManager, durability: str, settings: TopicSettings) -> None:
        self.durability = durability
        self._state = state
        self._manager = manager
        self._settings = settings
        self._post = current_poster()
        self._open: dict[Topic, MemoryLog] = {}
        self._signals: dict[Topic, list[Signal]] = {}
        self._shut = False

    def shut(self) -> None:
        """Refuse every further call, and wake who waits."""
        self._shut = True
        for topic in list(self._open):
            self._forget(topic)

    async def open(
        self,
        topic: Topic,
        framing: Framing,
        *,
        settings: TopicSettings | None = None,
        next_position: int = 0,
    ) -> TopicStatus:
        """Make a topic ready for use."""
        self._check()
        info = await self._manager.describe_topic(topic)
        with self._state.lock:
            log = self._state.logs.get(topic)
            if log is None or log.incarnation != info.incarnation:
                log = MemoryLog(info.incarnation, framing, settings or self._settings, next_position)
                self._state.logs[topic] = log
            elif settings is not None:
                log.settings = settings
            log.raise_next(next_position)
            self._open[topic] = log
            return log.status()

    async def close(self, topic: Topic) -> None:
        """Give up what is held for a topic."""
        await anyio.lowlevel.checkpoint()
        self._forget(topic)

    def _forget(self, topic: Topic) -> None:
        log = self._open.pop(topic, None)
        signals = self._signals.pop(topic, [])
        if log is not None:
            with self._state.lock:
                log.signals = [signal for signal in log.signals if signal not in signals]
        for signal in signals:
            signal.fire()  # a waiting pull finds out that the topic is closed

    def _check(self) -> None:
        if self._shut:
            raise StoreClosedError(f"memory:{self._state.name} was closed")
        self._state.check()

    def _log(self, topic: Topic) -> MemoryLog:
        self._check()
        log = self._open.get(topic)
        if log is None or self._state.logs.get(topic) is not log:  # another opening may have deleted it
            raise UnknownTopicError(f"Topic {topic} is not open")
        return log

    def send_nowait(self, topic: Topic, messages: Sequence[Buffer], *, fence: int | None = None) -> MemorySent:
        """Append whole messages, all or none."""
        with self._state.lock:
            log = self._log(topic)
            first, last = log.append(messages, fence)
            log.notify()
        return MemorySent(first, last)

    async def send(self, topic: Topic, messages: Sequence[Buffer], *, fence: int | None = None) -> MemorySent:
        """Append whole messages, all or none."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        sent = self.send_nowait(topic, messages, fence=fence)
        await anyio.lowlevel.cancel_shielded_checkpoint()
        return sent

    def pull_nowait(
        self, topic: Topic, position: int, *, max_bytes: int = 1 << 20, max_messages: int | None = None
    ) -> Pulled:
        """The messages from a position on."""
        with self._state.lock:
            return self._log(topic).pull(position, max_bytes, max_messages)

    async def pull(
        self,
        topic: Topic,
        position: int,
        *,
        max_bytes: int = 1 << 20,
        max_messages: int | None = None,
        wait: float = 0.0,
    ) -> Pulled:
        """The messages from a position on; waits for one."""

        async def once() -> Pulled:
            return self.pull_nowait(topic, position, max_bytes=max_bytes, max_messages=max_messages)

        await anyio.lowlevel.checkpoint()
        return await pull_waiting(self, topic, once, wait)

    def watch(self, topic: Topic, callback: Callable[[int], object]) -> Callable[[], None]:
        """Have `callback(end)` called whenever the end has moved."""
        with self._state.lock:
            log = self._log(topic)
            signal = Signal(lambda: callback(log.next), self._post)
            log.signals.append(signal)
            self._signals.setdefault(topic, []).append(signal)

        def stop() -> None:
            signal.stop()
            with self._state.lock:
                if signal in log.signals:
                    log.signals.remove(signal)
                if signal in self._signals.get(topic, ()):
                    self._signals[topic].remove(signal)

        return stop

    def status_nowait(self, topic: Topic) -> TopicStatus:
        """Start, end, next ordinal and size."""
        with self._state.lock:
            return self._log(topic).status()

    async def status(self, topic: Topic) -> TopicStatus:
        """Start, end, next ordinal and size."""
        await anyio.lowlevel.checkpoint()
        return self.status_nowait(topic)

    async def start(self, topic: Topic) -> int:
        """The first position that can be read."""
        return (await self.status(topic)).start

    async def end(self, topic: Topic) -> int:
        """The position after the last visible message."""
        return (await self.status(topic)).end

    async def trim(self, topic: Topic, before: int) -> int:
        """Drop whole segments that lie before a position."""
        await anyio.lowlevel.checkpoint()
        with self._state.lock:
            return self._log(topic).trim(before)

    async def delete(self, topic: Topic) -> None:
        """Close a topic and drop all its messages."""
        await anyio.lowlevel.checkpoint()
        self._check()
        self._forget(topic)
        with self._state.lock:
            log = self._state.logs.pop(topic, None)
            if log is not None:
                log.notify()

    async def find_by_timestamp(self, topic: Topic, timestamp: int, *, start: int = 0) -> Found | None:
        """The first message with a timestamp not below the given one."""
        await anyio.lowlevel.checkpoint()
        with self._state.lock:
            return self._log(topic).find_by_timestamp(timestamp, start)

    async def segments(self, topic: Topic) -> list[SegmentInfo]:
        """The segments of a topic in order."""
        await anyio.lowlevel.checkpoint()
        with self._state.lock:
            return self._log(topic).segments()

    async def roll(self, topic: Topic) -> None:
        """Begin another segment, unless the active one is empty."""
        await anyio.lowlevel.checkpoint()
        with self._state.lock:
            self._log(topic).roll()
