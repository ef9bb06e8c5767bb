"""A store as little as the port allows: positions with gaps that mean nothing, and that no answer to a send tells.

It has none of the capabilities but that it fences. Everything is kept by the memory backend: each message in it has a
head with the position that it was given here. What was sent is synced, and visible, some turns of the loop later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from struct import Struct
from types import TracebackType
from typing import Any, NamedTuple, Self

import anyio

from kclient.concurrency import LoopHandle
from kclient.htp.errors import DamagedError, PositionError, StorageError
from kclient.htp.memory import MemoryStore, open_memory
from kclient.htp.port import (
    CAP_FENCED_SENDS,
    Framing,
    Manager,
    OpenTopic,
    Place,
    Pulled,
    SyncedCallback,
    TopicSettings,
    TopicStatus,
)
from kclient.types import Buffer

HEAD = Struct(">QII")
"""First position, how many positions it takes, and length of the message."""
_HEADS = 1000
"""Messages in one answer, about."""
_GAP = 40
_WIDTH = 3


class _Info(NamedTuple):
    length: int
    first: int
    last: int
    max_timestamp: int


class _Placed:
    """Messages with their heads, as the memory backend sees them."""

    name = "tests.placed"
    prefix = HEAD.size

    def measure(self, buffer: Buffer, position: int = 0, /) -> int:
        return HEAD.size + int(HEAD.unpack_from(buffer, position)[2])

    def inspect(self, buffer: Buffer, position: int = 0, /) -> _Info:
        first, width, length = HEAD.unpack_from(buffer, position)
        return _Info(HEAD.size + length, first, first + width - 1, -1)

    def verify(self, buffer: Buffer, position: int = 0, /) -> bool:
        return len(buffer) - position >= HEAD.size


class PlainSent:
    """Tells nothing of where it is."""

    first = last = -1

    def __init__(self) -> None:
        self.done = False
        self._error: BaseException | None = None
        self._callbacks: list[SyncedCallback] = []
        self._decided = anyio.Event()

    async def synced(self) -> None:
        await self._decided.wait()
        if self._error is not None:
            raise self._error

    def on_synced(self, callback: SyncedCallback, /) -> None:
        if self.done:
            callback(self._error)
        else:
            self._callbacks.append(callback)

    def decide(self, error: BaseException | None = None) -> None:
        if not self.done:
            self.done, self._error = True, error
            self._decided.set()
            for callback in self._callbacks:
                callback(error)


class PlainTopic:
    """A topic of the memory backend with positions of its own."""

    def __init__(self, inner: Any, framing: Framing, status: TopicStatus) -> None:
        self._inner = inner
        self._framing = framing
        self._random = Random(inner.place.incarnation)
        self._next = self._visible = status.next
        self._post = LoopHandle().post
        self._under_way: list[tuple[PlainSent, int]] = []
        self.failing: Callable[[], bool] = lambda: False
        """Whether the next sync fails."""
        self.damaged: Callable[[bytes], bool] = lambda _: False
        """Whether a message cannot be read."""
        self.width: Callable[[int], int] = lambda _: self._random.randint(1, _WIDTH)
        """How many positions a message of this length takes."""
        self.gap: int = _GAP

    @property
    def place(self) -> Place:
        return self._inner.place  # type: ignore[no-any-return]

    @property
    def epoch(self) -> int:
        return self._inner.epoch  # type: ignore[no-any-return]

    async def close(self) -> None:
        await self._inner.close()

    async def configure(self, settings: TopicSettings) -> None:
        await self._inner.configure(settings)

    async def send(self, messages: Sequence[Buffer]) -> PlainSent:
        placed, position = [], self._next
        for message in messages:
            if self._framing.measure(message) != len(message) or not self._framing.verify(message):
                raise ValueError("a buffer holds one message")
            position += self._random.randrange(self.gap)
            width = self.width(len(message))
            placed.append(HEAD.pack(position, width, len(message)) + bytes(message))
            position += width
        await self._inner.send(placed)
        self._next = position
        sent = PlainSent()
        self._under_way.append((sent, position))
        self._post(self._sync)
        return sent

    def _sync(self) -> None:
        if not self._under_way:
            return
        if self.failing():
            kept = [each for each in self._inner._log._segments if each.messages]
            under_way, self._under_way = self._under_way, []
            self._cut_back(kept)
            for sent, _ in under_way:
                sent.decide(StorageError("the disk has failed"))
            return
        sent, end = self._under_way.pop(0)
        self._visible = end
        sent.decide()

    def _cut_back(self, segments: list[Any]) -> None:
        """What was not synced is gone, and its positions are given again."""
        for segment in segments:
            while segment.messages and segment.lasts[-1] >= self._visible:
                for row in (segment.messages, segment.firsts, segment.lasts, segment.stamps, segment.ends):
                    row.pop()
        self._inner._log.next = self._next = self._visible

    async def pull(self, position: int, *, max_bytes: int = 1 << 20, max_messages: int | None = None) -> Pulled:
        status = await self._inner.status()
        if not status.start <= position <= self._next:
            raise PositionError(f"{position} is asked for", start=status.start, end=self._next)
        pulled = await self._inner.pull(
            min(position, status.next), max_bytes=max_bytes + _HEADS * HEAD.size, max_messages=max_messages
        )
        found: list[memoryview] = []
        first, last, at, size = position, position - 1, 0, 0
        data = memoryview(pulled.data)
        while at < len(data):
            begins, width, length = HEAD.unpack_from(data, at)
            if begins + width > self._visible or (found and size + length > max_bytes):
                break
            if self.damaged(bytes(data[at + HEAD.size : at + HEAD.size + length])):
                if found:
                    break
                raise DamagedError(f"no message at {begins}")
            first = first if found else begins
            last = begins + width - 1
            found.append(data[at + HEAD.size : at + HEAD.size + length])
            size += length
            at += HEAD.size + length
        return Pulled(b"".join(found), first, last)

    async def status(self) -> TopicStatus:
        status = await self._inner.status()
        heads = HEAD.size * sum(len(segment.messages) for segment in self._inner._log._segments)
        return TopicStatus(status.start, max(self._visible, status.start), self._next, status.size - heads)

    async def trim(self, before: int) -> int:
        return await self._inner.trim(before)  # type: ignore[no-any-return]


class PlainBroker:
    """A broker without anything that a store need not have."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.capabilities = frozenset({CAP_FENCED_SENDS})
        self.opened: dict[Place, PlainTopic] = {}

    async def open(
        self,
        place: Place,
        framing: Framing,
        *,
        epoch: int,
        settings: TopicSettings | None = None,
        next_position: int = 0,
    ) -> OpenTopic:
        assert next_position == 0, "positions are the store's own"
        inner = await self._store.broker.open(place, _Placed(), epoch=epoch, settings=settings)
        found = self.opened.get(place)
        if found is None or found._inner is not inner:
            found = self.opened[place] = PlainTopic(inner, framing, await inner.status())
        return found  # type: ignore[return-value]

    async def delete(self, places: Iterable[Place], *, epoch: int) -> None:
        await self._store.broker.delete(places, epoch=epoch)


class PlainStore:
    """The memory backend's manager, and a plain broker."""

    def __init__(self, name: str) -> None:
        self._store = open_memory(name)

    @property
    def manager(self) -> Manager:
        return self._store.manager

    @property
    def broker(self) -> PlainBroker:
        _ = self._store.broker  # raises while the store is not open
        return self._broker

    async def __aenter__(self) -> Self:
        await self._store.__aenter__()
        self._broker = PlainBroker(self._store)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._store.__aexit__(kind, error, trace)

    async def aclose(self) -> None:
        await self._store.aclose()

    def on_failure(self, callback: Callable[[StorageError], object]) -> Callable[[], None]:
        return self._store.on_failure(callback)


def open_plain(name: str, *, durability: str = "synced") -> PlainStore:
    """In the place of `kclient.htp.memory.open_memory`."""
    return PlainStore(name)
