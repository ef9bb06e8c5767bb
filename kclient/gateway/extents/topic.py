"""A partition whose batches lie in extents, used like a topic of HTP whose positions are offsets."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import anyio

from kclient.errors import IllegalStateError
from kclient.gateway.extents import extent as lists
from kclient.gateway.extents.chunks import Chunks
from kclient.gateway.extents.epochs import Behind, EpochStarts
from kclient.gateway.extents.fencing import GuardedSent
from kclient.gateway.recovery import behind_damage
from kclient.htp.errors import (
    DamagedError,
    FencedError,
    HtpError,
    OrderError,
    OutcomeUnknownError,
    PositionError,
    StorageError,
    UnknownTopicError,
)
from kclient.htp.port import Found, Place, Pulled, SegmentInfo, Sent, TopicSettings, TopicStatus

if TYPE_CHECKING:
    from kclient.gateway.extents.encoding import Encoding, Stored
    from kclient.gateway.extents.extent import Extent
    from kclient.gateway.extents.fencing import LeaseGuard
    from kclient.gateway.extents.rows import ExtentRows
    from kclient.htp.port import Broker, OpenTopic
    from kclient.types import Buffer

T = TypeVar("T")

_SCAN_BYTES: Final = 1 << 20
_NEAR: Final = 16
"""Positions that are read through rather than bisected."""
_HINTS: Final = 64
"""Readers of a partition whose places are remembered."""
_STARTS_SENT: Final = 10
"""So often the start of an epoch is sent before opening is given up, and tried again later."""
_LOOKED_BEHIND: Final = 64 << 20
"""Bytes that are read, when a partition is opened, to find starts of epochs that are not needed any more."""
_PAUSE_S: Final = 0.05
"""Seconds until it is looked for again, more each time."""


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


class ExtentTopic:
    """Implements `kclient.htp.port.OpenTopic` with offsets for positions; made and opened by `ExtentStore`.

    One send is under way at a time, so that what is stored is in order.

    Args:
        place: The partition's own, where its first extent lies.
        epoch: Of the leader.
        extents: Where its batches lie.
        broker: Keeps them.
        encoding: What a message is.
        settings: Layout of its topics.
        next_offset: No offset below this is given, whatever is stored.
        rows: Keep the list of extents and the chunks.
        wall_ms: The time in milliseconds since the epoch.
        starts: Where epochs start in the topic that is appended to, as far as it is known.
        guard: Where the store cannot fence: the epoch is started with a message, which the encoding tells, and what the
            store does is told on only while the guard says so.
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
        rows: ExtentRows,
        wall_ms: Callable[[], int],
        starts: EpochStarts | None = None,
        guard: LeaseGuard | None = None,
    ) -> None:
        self.place: Place = place
        self.epoch: int = epoch
        self.extents: list[Extent] = list(extents)
        self._broker = broker
        self._encoding = encoding
        self._settings = settings
        self._rows = rows
        self._wall_ms = wall_ms
        self.starts: EpochStarts = starts or EpochStarts()
        """Where epochs start in the topic that is appended to."""
        self._guard = guard
        self._next = self._least = next_offset
        self._end = 0
        self._last: Sent | None = None
        self._lost = True
        """Whether what lies at the end has to be looked for."""
        self._undecided = False
        """Whether the outcome of a send is not known: nothing more is sent before it is opened under a newer epoch."""
        self._trimmed = 0
        """The greatest offset that it was trimmed up to."""
        self._smaller = False
        """Whether some of a chunk was trimmed since it was measured."""
        self._moved = False
        """Whether the store begins elsewhere than the chunks say."""
        self._outdated = False
        """Whether the row of the chunks says more than is there."""
        self._failures = 0
        """How many syncs have failed."""
        self._changes = 0
        """How often what is known of positions has changed, but by what was appended."""
        self._changing = anyio.Lock()
        """Held by whoever appends, or changes the list."""
        self._opened: dict[Place, OpenTopic] = {}
        self._hints: OrderedDict[int, tuple[Place, int]] = OrderedDict()
        """Where readers go on."""

    # The topics behind it

    async def open(self) -> None:
        """Open every topic under the epoch: whoever led before appends and trims no more."""
        for extent in self.extents:
            status = await (await self._topic(extent.place)).status()
            if status.start > extent.start:
                extent.chunks.start_at(status.start)
                self._moved = True
        for extent in self.extents[:-1]:
            await self._measure(extent)
        if self._guard is not None:
            await self._start_epoch()

    async def _start_epoch(self) -> None:
        """Have what older epochs send from now on count no more: send the start of this one until it is seen.

        Raises:
            FencedError: A newer one has started.
            StorageError: It is not seen; opening it again is right.
        """
        async with self._changing:
            topic = await self._topic(self.extents[-1].place)
            for tries in range(_STARTS_SENT):
                with suppress(OutcomeUnknownError):  # twice does no harm
                    await (await topic.send((self._encoding.epoch_start(self._wall_ms()),))).synced()
                await self._find_end()
                if self.starts.newest == self.epoch:
                    await self._thin_starts(topic)
                    return
                await anyio.sleep(_PAUSE_S * tries)
        raise StorageError(f"{self.place}: the start of epoch {self.epoch} was sent, and is not found there")

    async def _thin_starts(self, topic: OpenTopic) -> None:
        """Where many starts are known, find out of some whether they are needed: else each opening would add one."""
        left = _LOOKED_BEHIND
        for start, until in self.starts.narrowest():
            behind = Behind()
            async with aclosing(self._scan(topic, start.position, until, behind)) as pieces:
                async for _ in pieces:
                    if behind.size > left:
                        return
            left -= behind.size
            self.starts.settle(start.position, until, behind)
            if not self.starts.narrowest():
                return

    async def _topic(self, place: Place) -> OpenTopic:
        found = self._opened.get(place)
        if found is None:
            found = self._opened[place] = await self._broker.open(
                place, self._encoding.framing, epoch=self.epoch, settings=self._settings
            )
        return found

    async def close(self) -> None:
        """Sync the topics and give up what is held for them."""
        for topic in list(self._opened.values()):
            await topic.close()

    async def configure(self, settings: TopicSettings) -> None:
        """Change the layout of the topics."""
        self._settings = settings
        for topic in list(self._opened.values()):
            await topic.configure(settings)

    # Appending

    async def send(self, messages: Sequence[Buffer]) -> Sent:
        """Append batches, all or none; nothing if the sync of earlier ones fails while this waits.

        An outcome that the store does not know is passed on; nothing more is sent then.
        """
        failures = self._failures
        async with self._changing:
            self._check_decided()
            if self._guard is not None:
                self._guard.check_send(self.place)
            if self._lost:
                await self._find_end()
            framing = self._encoding.framing
            wrapped = [self._encoding.wrap(message) for message in messages]
            infos = [framing.inspect(message) for message in wrapped]
            expected = self._next
            for info in infos:
                if info.first < expected:
                    raise OrderError(f"{self.place}: offset {info.first} was given, {expected} is the next")
                expected = info.last + 1
            if self.extents[-1].chunks.full:
                await self._begin_chunk()
            topic = await self._topic(self.extents[-1].place)
            self._check_decided()
            if self._failures != failures:  # whoever sends was told that this is undone with those
                raise StorageError(f"{self.place}: what was sent before could not be synced")
            self._lost = True  # unless it succeeds
            try:
                sent = await topic.send(wrapped)
                if self._guard is not None:
                    self._guard.check_stored(self.place)
                    sent = GuardedSent(sent, self._guard, self.place)
                self._last = sent
            except OutcomeUnknownError:
                self._undecided = True
                if self._guard is not None:  # whoever finds out has to read less, which takes long there
                    with suppress(HtpError):
                        await self._rows.write_chunks(self.extents, self.starts)
                raise
            self._lost = self._failures != failures
            now_ms = self._wall_ms()
            for message, info in zip(messages, infos, strict=True):
                self.extents[-1].chunks.grow(len(message), info.max_timestamp, now_ms)
            self._next = expected
            sent.on_synced(partial(self._synced, self._next))
            return sent

    def _check_decided(self) -> None:
        if self._undecided:
            raise StorageError(f"{self.place}: what became of an earlier send is not known, so nothing was sent")

    def _synced(self, end: int, error: BaseException | None) -> None:
        if error is None:
            self._end = max(self._end, end)
            self._least = max(self._least, end)
        else:  # its positions are given again, or it is not known whether they are
            self._undecided = self._undecided or isinstance(error, OutcomeUnknownError)
            self._lost = True
            self._failures += 1
            self._changed()

    def _changed(self) -> None:
        self._changes += 1
        self._hints.clear()

    async def _begin_chunk(self) -> None:
        """The store may not say where it puts what is sent: what comes next begins where it ends."""
        extent = self.extents[-1]
        topic = await self._topic(extent.place)
        if self._last is not None:
            try:
                await self._last.synced()
            except OutcomeUnknownError as error:
                raise StorageError(f"{self.place}: no chunk was begun: {error}") from error
            self._last = None
        extent.chunks.begin(self._next, (await topic.status()).end)

    async def _find_end(self) -> None:
        """Read the last chunk again: what is in it, and where the partition ends."""
        if self._last is not None:
            with suppress(HtpError):
                await self._last.synced()
            self._last = None
        extent = self.extents[-1]
        topic = await self._topic(extent.place)
        status = await topic.status()
        forgotten = extent.chunks.forget_from(status.end), self.starts.forget_from(status.end)
        if any(forgotten):
            self._outdated = True
        if self._outdated:  # else they could be taken for right when more has come
            await self._rows.write_chunks(self.extents, self.starts)
            self._outdated = False
        last = extent.chunks.last
        measured = Chunks.starting_at(last.first, last.position, extent.chunks.unit)
        behind = Behind()
        end = await self._look_through(extent, measured, status.end, last.modified_ms, behind)
        if self.starts.all:
            self.starts.settle(last.position, self.starts.all[-1].position, behind)
        if self._guard is not None and self.starts.newest > self.epoch:
            raise FencedError(f"{self.place}: epoch {self.starts.newest} has started", epoch=self.starts.newest)
        self._end = end
        extent.chunks.end_with(measured)  # at once: readers go by it
        self._next = self._least = max(self._end, self._least)
        self._lost = self._smaller = False

    async def _measure(self, extent: Extent) -> None:
        """Find out what is in an extent that is not appended to, unless it is known."""
        if not extent.chunks.known and extent.end is not None:
            measured = Chunks.starting_at(extent.first, extent.start, extent.chunks.unit)
            await self._look_through(extent, measured, extent.end, 0)
            extent.chunks.end_with(measured)

    async def _look_through(
        self, extent: Extent, chunks: Chunks, end: int, modified_ms: int, behind: Behind | None = None
    ) -> int:
        """Find out what lies from the beginning of chunks up to a position; the offset behind it."""
        topic = await self._topic(extent.place)
        begin = max(chunks.last.position, (await topic.status()).start)
        found, now_ms = chunks.last.first, self._wall_ms()
        async with aclosing(self._scan(topic, begin, end, behind)) as pieces:
            async for position, batches in pieces:
                for header, _ in batches:
                    if extent.next is None or header.base_offset < extent.next:
                        chunks.grow(header.length, header.max_timestamp, modified_ms or now_ms)
                        found = max(found, header.last_offset + 1)
                if chunks.full and position < end:
                    chunks.begin(found, position)
        return found

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

    async def status(self) -> TopicStatus:
        """Start, end, next offset and size; looks for the end anew, unless nothing was sent or trimmed since."""
        async with self._changing:
            if self._lost or self._last is not None or self._smaller:
                await self._find_end()
            size = sum(extent.chunks.size for extent in self.extents)
            return TopicStatus(await self._start(), self._end, self._next, size)

    async def _start(self) -> int:
        """The first offset that can be read; where that is not known, one before it."""
        if self._moved:
            with suppress(DamagedError):
                for extent in self.extents:
                    found = await self._first(extent, extent.start)
                    if found is not None:
                        return found.base_offset
                return self._next
        return min(self.extents[0].chunks.all[0].first, self._next)

    # Reading

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

    # What is kept of it

    async def segments(self) -> list[SegmentInfo]:
        """The chunks, which retention may drop."""
        chunks = [chunk for extent in self.extents for chunk in extent.chunks.all]
        nexts = [*(chunk.first for chunk in chunks[1:]), self._next]
        return [
            SegmentInfo(chunk.first, ends, chunk.size, chunk.max_timestamp, chunk.modified_ms, chunk is chunks[-1])
            for chunk, ends in zip(chunks, nexts, strict=True)
        ]

    def rows(self) -> dict[str, bytes]:
        """What is known of positions, to be written with the checkpoint."""
        return self._rows.chunks(self.extents, self.starts)

    async def roll(self) -> None:
        """Begin another chunk, unless the last one is empty."""
        async with self._changing:
            if self._lost:
                await self._find_end()
            if self.extents[-1].chunks.last.size:
                await self._begin_chunk()

    async def trim(self, before: int) -> int:
        """Drop whole batches that lie below an offset, and extents that hold no others."""
        async with self._changing:
            if self._lost:
                await self._find_end()
            kept = lists.trimmed(self.extents, before)
            if len(kept) < len(self.extents):
                await self._replace(kept)
            extent = self.extents[0]
            topic = await self._topic(extent.place)
            position = await self._locate(extent, before)
            if self._guard is not None:
                with suppress(DamagedError):
                    first = await self._first(extent, position)
                    if first is not None:
                        position = first.position  # so that what older epochs have left never comes first
            self._trimmed = max(self._trimmed, min(before, self._end))
            self._changed()
            if all(other.place != extent.place or other.start >= position for other in self.extents[1:]):
                await topic.trim(position)
            extent.chunks.trim(before, position)
            self._smaller = True
            if len(self.extents) == 1:
                self.starts.trim(position)
            self._changed()
            return await self._start()

    async def swap(self, first: int, until: int, by: Sequence[Extent]) -> None:
        """Have other extents hold the offsets from one to another, as after a compaction: one commit of the manager.

        The new ones hold copies that are synced. What held the offsets before is dropped, if nothing else is there.

        Raises:
            IllegalStateError: The new ones do not fit.
            ConflictError: Somebody else has changed the list.
        """
        async with self._changing:
            if self._lost:
                await self._find_end()
            await self._divide(first)
            await self._divide(until)
            extents = lists.replaced(self.extents, first, until, by)
            for extent in by:
                await self._measure(extent)
            await self._replace(extents)

    async def _divide(self, offset: int) -> None:
        """Make an offset the bound of extents, in memory."""
        at = lists.find(self.extents, offset)
        extent = self.extents[at]
        if not extent.first < offset <= self._end:
            return
        position = await self._locate(extent, offset)
        while (found := await self._first(extent, position)) is not None and found.base_offset < offset:
            if found.last_offset >= offset:
                raise IllegalStateError(f"the batch at offset {found.base_offset} goes on at {offset}")
            position = found.following
        chunk = extent.chunks.all[extent.chunks.index(offset)]
        below = Chunks.starting_at(chunk.first, chunk.position, chunk.size + 1)
        await self._look_through(replace(extent, next=offset), below, position, chunk.modified_ms)
        self.extents = [*self.extents[:at], *lists.split(extent, offset, position, below.last), *self.extents[at + 1 :]]

    async def _replace(self, extents: list[Extent]) -> None:
        """Record another list, then use it, then drop what it does not name any more."""
        await self._rows.write_list(extents, self.starts)
        before, self.extents = self.extents, extents
        self._changed()
        for place in dict.fromkeys(extent.place for extent in before):
            starts = [extent.start for extent in extents if extent.place == place]
            topic = await self._topic(place)
            if starts or place == self.place:
                await topic.trim(min(starts) if starts else (await topic.status()).end)
            else:
                del self._opened[place]
                await self._rows.drop(place, self.epoch)
