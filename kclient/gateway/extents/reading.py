"""Reading a partition whose batches lie in extents: by offset, by timestamp, and all of it piece by piece."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from kclient.gateway.extents import extent as lists
from kclient.gateway.extents.epochs import Behind, EpochStarts
from kclient.gateway.recovery import behind_damage
from kclient.htp.errors import DamagedError, PositionError, UnknownTopicError
from kclient.htp.port import Found, Place, Pulled, TopicSettings

if TYPE_CHECKING:
    from kclient.gateway.extents.encoding import Encoding, Stored
    from kclient.gateway.extents.extent import Extent
    from kclient.gateway.extents.fencing import LeaseGuard
    from kclient.htp.port import Broker, OpenTopic

T = TypeVar("T")

_SCAN_BYTES: Final = 1 << 20
_NEAR: Final = 16
"""Positions that are read through rather than bisected."""
_HINTS: Final = 64
"""Readers of a partition whose places are remembered."""


def _base_offset(stored: Stored) -> int:
    return stored[0].base_offset


def _last_offset(stored: Stored) -> int:
    return stored[0].last_offset


class _Placed(NamedTuple):
    """A batch in a topic."""

    position: int
    following: int
    """Where what follows it is, or comes next."""
    base_offset: int
    last_offset: int


class ReadExtents:
    """What can be read of a partition; `ExtentTopic` writes it.

    Args:
        place: The partition's own, where its first extent lies.
        epoch: Of the leader.
        extents: Where its batches lie.
        broker: Keeps them.
        encoding: What a message is.
        settings: Layout of its topics.
        next_offset: No offset below this is given, whatever is stored.
        starts: Where epochs start in the topic that is appended to, as far as it is known.
        guard: Where the store cannot fence: what it does is told on only while the guard says so.
    """

    def __init__(
        self,
        place: Place,
        epoch: int,
        extents: Sequence[Extent],
        *,
        broker: Broker,
        encoding: Encoding,
        settings: TopicSettings,
        next_offset: int,
        starts: EpochStarts | None = None,
        guard: LeaseGuard | None = None,
    ) -> None:
        self.place: Place = place
        self.epoch: int = epoch
        self.extents: list[Extent] = list(extents)
        self.starts: EpochStarts = starts or EpochStarts()
        """Where epochs start in the topic that is appended to."""
        self._broker = broker
        self._encoding = encoding
        self._settings = settings
        self._guard = guard
        self._next = next_offset
        """The offset behind all that was sent."""
        self._trimmed = 0
        """The greatest offset that it was trimmed up to."""
        self._changes = 0
        """How often what is known of positions has changed, but by what was appended."""
        self._opened: dict[Place, OpenTopic] = {}
        self._hints: OrderedDict[int, tuple[Place, int]] = OrderedDict()
        """Where readers go on."""

    async def _topic(self, place: Place) -> OpenTopic:
        found = self._opened.get(place)
        if found is None:
            found = self._opened[place] = await self._broker.open(
                place, self._encoding.framing, epoch=self.epoch, settings=self._settings
            )
        return found

    def _extend_over(self, extents: list[Extent]) -> None:
        self.extents = extents

    def _changed(self) -> None:
        self._changes += 1
        self._hints.clear()

    async def pull(self, position: int, *, max_bytes: int = 1 << 20, max_messages: int | None = None) -> Pulled:
        """The visible batches from an offset on."""
        found = await self._steadily(self._pull, position, max_bytes, max_messages)
        if self._guard is not None:
            self._guard.check_read(self.place)
        return found

    async def _steadily(self, look: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
        """Look again where something that was to be read was trimmed or replaced meanwhile."""
        while True:
            changes = self._changes
            try:
                return await look(*arguments)
            except (PositionError, UnknownTopicError) as error:
                if self._changes != changes:
                    continue
                if isinstance(error, UnknownTopicError):
                    raise
                raise PositionError(str(error), start=self._first_offset, end=self._next) from error

    @property
    def _first_offset(self) -> int:
        return max(self._trimmed, self.extents[0].first)

    async def _pull(self, offset: int, max_bytes: int, max_messages: int | None) -> Pulled:
        extents = self.extents
        if not self._trimmed <= offset <= self._next:
            start = self._first_offset
            raise PositionError(f"{self.place}: there is no offset {offset}", start=start, end=self._next)
        if offset == self._next:
            return Pulled(b"", offset, offset - 1)
        for extent in extents[lists.find(extents, offset) :]:
            found = await self._pull_from(extent, max(offset, extent.first), max_bytes, max_messages)
            if found is not None:
                return found
        return Pulled(b"", offset, offset - 1)

    async def _pull_from(self, extent: Extent, offset: int, max_bytes: int, max_messages: int | None) -> Pulled | None:
        topic, changes = await self._topic(extent.place), self._changes
        at = await self._locate(extent, offset)
        while extent.end is None or at < extent.end:
            try:
                pulled = await topic.pull(at, max_bytes=self._encoding.room(max_bytes), max_messages=max_messages)
            except DamagedError:
                behind = await self._first_behind_damage(extent, at)
                if behind is None or behind.base_offset > offset:  # that is what is damaged
                    raise
                at = behind.position
                continue
            if not pulled.data:
                return None
            at = pulled.last + 1
            found = self._batches(extent.place, pulled)
            first = bisect_left(found, offset, key=_last_offset)
            until = len(found) if extent.next is None else bisect_left(found, extent.next, key=_base_offset)
            if first < until:
                whole, size = until, sum(header.length for header, _ in found[first:until])
                while size > max_bytes and until - first > 1:
                    until -= 1
                    size -= found[until][0].length
                last = _last_offset(found[until - 1])
                if whole == len(found) and changes == self._changes:
                    self._remember(last + 1, extent.place, at if until == whole else pulled.first)
                data = self._encoding.joined(pulled.data, found[:first], found[first:until])
                return Pulled(data, _base_offset(found[first]), last)
        return None

    def _remember(self, offset: int, place: Place, position: int) -> None:
        self._hints[offset] = place, position
        if len(self._hints) > _HINTS:
            self._hints.popitem(last=False)

    async def _locate(self, extent: Extent, offset: int) -> int:
        """A position in an extent not far before the batch that holds an offset, or comes next; never behind it."""
        hint = self._hints.get(offset)
        if hint is not None and hint[0] == extent.place:
            return hint[1]
        chunks = extent.chunks.all
        at = extent.chunks.index(offset)
        low, high = chunks[at].position, extent.end
        if chunks[at].first >= offset:
            return low
        if at + 1 < len(chunks):
            high = chunks[at + 1].position
        elif high is None:
            high = (await (await self._topic(extent.place)).status()).end
        while high - low > _NEAR:
            middle = (low + high) // 2
            try:
                found = await self._first(extent, middle, high)
            except DamagedError:
                found = await self._first_behind_damage(extent, middle)
            if found is None or found.position >= high or found.base_offset > offset:
                high = middle
            elif found.last_offset >= offset:
                return found.position
            else:
                low = found.following
        return low

    async def _first_behind_damage(self, extent: Extent, position: int) -> _Placed | None:
        """The partition's first batch behind what is damaged at a position, of an extent; None if none can be read."""
        topic = await self._topic(extent.place)
        end = extent.end if extent.end is not None else (await topic.status()).end
        behind = await behind_damage(topic, position, end)
        if behind >= end:
            return None
        try:
            return await self._first(extent, behind)
        except DamagedError:  # among messages of others
            return None

    async def _first(self, extent: Extent, position: int, until: int | None = None) -> _Placed | None:
        """The partition's first batch in an extent from a position on, up to its end or another position."""
        topic = await self._topic(extent.place)
        end = extent.end if until is None else until
        while end is None or position < end:
            pulled = await topic.pull(position, max_bytes=1, max_messages=1)
            if not pulled.data:
                return None
            for header, _ in self._batches(extent.place, pulled):
                if extent.next is not None and header.base_offset >= extent.next:
                    return None
                return _Placed(pulled.first, pulled.last + 1, header.base_offset, header.last_offset)
            position = pulled.last + 1
        return None

    async def find_by_timestamp(self, timestamp: int, *, start: int = 0) -> Found | None:
        """The first visible batch, from the one holding `start` on, with a timestamp not below the given one."""
        return await self._steadily(self._find_by_timestamp, timestamp, start)

    async def _find_by_timestamp(self, timestamp: int, start: int) -> Found | None:
        extents = self.extents
        for extent in extents[lists.find(extents, start) :]:
            topic = await self._topic(extent.place)
            chunks = extent.chunks.all[extent.chunks.index(start) :]
            ends = extent.end if extent.end is not None else (await topic.status()).end
            for chunk, following in zip(chunks, [*(each.position for each in chunks[1:]), ends], strict=True):
                if chunk.max_timestamp < timestamp:
                    continue
                begin = await self._locate(extent, start) if start > chunk.first else chunk.position
                async with aclosing(self._scan(topic, begin, following)) as pieces:
                    async for _, batches in pieces:
                        for header, _ in batches:
                            if extent.next is not None and header.base_offset >= extent.next:
                                break
                            if header.last_offset >= start and header.max_timestamp >= timestamp:
                                return Found(header.base_offset, header.last_offset, header.max_timestamp)
        return None

    # All of it, piece by piece

    async def _scan(
        self, topic: OpenTopic, position: int, end: int, behind: Behind | None = None
    ) -> AsyncGenerator[tuple[int, list[Stored]]]:
        """What can be read, piece by piece, each with the position behind it; `behind` is told of epochs."""
        while position < end:
            try:
                pulled = await topic.pull(position, max_bytes=_SCAN_BYTES)
            except DamagedError:
                if behind is not None:
                    behind.whole = False
                position = await behind_damage(topic, position, end)
                continue
            if not pulled.data:
                return
            if self._encoding.newest_start(pulled.data) > self.starts.newest:
                await self._learn_starts(topic, pulled)
            if behind is not None:
                behind.overtaken.update(
                    self._encoding.overtaken(pulled.data, self._epoch_at(topic.place, pulled.first))
                )
                behind.size, behind.reached = behind.size + len(pulled.data), pulled.last + 1
            position = pulled.last + 1
            yield position, self._batches(topic.place, pulled)

    def _batches(self, place: Place, pulled: Pulled) -> list[Stored]:
        """The partition's batches in what was pulled, but for what older epochs have left."""
        return list(self._encoding.batches(pulled.data, self._epoch_at(place, pulled.first)))

    def _epoch_at(self, place: Place, position: int) -> int:
        return self.starts.at(position) if place == self.extents[-1].place else 0

    async def _learn_starts(self, topic: OpenTopic, pulled: Pulled) -> None:
        """Find out where exactly epochs start in what was pulled: others read from anywhere."""
        position = max(pulled.first, self.starts.all[-1].position if self.starts.all else 0)
        while topic.place == self.extents[-1].place and position <= pulled.last:
            one = await topic.pull(position, max_bytes=1, max_messages=1)
            if not one.data:
                return
            started = self._encoding.newest_start(one.data)
            if started > self.starts.newest:  # those before it were forgotten, as they are not needed
                self.starts.add(started, one.first)
                self._changed()
            position = one.last + 1
