"""A partition whose batches lie in extents, used like a topic of HTP whose positions are offsets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from kclient.errors import IllegalStateError
from kclient.gateway.extents import extent as lists
from kclient.gateway.extents.chunks import Chunks
from kclient.gateway.extents.epochs import Behind, EpochStarts
from kclient.gateway.extents.fencing import GuardedSent
from kclient.gateway.extents.reading import ReadExtents
from kclient.htp.errors import (
    DamagedError,
    FencedError,
    HtpError,
    OrderError,
    OutcomeUnknownError,
    StorageError,
)
from kclient.htp.port import Place, SegmentInfo, Sent, TopicSettings, TopicStatus

if TYPE_CHECKING:
    from kclient.gateway.extents.encoding import Encoding
    from kclient.gateway.extents.extent import Extent
    from kclient.gateway.extents.fencing import LeaseGuard
    from kclient.gateway.extents.rows import ExtentRows
    from kclient.htp.port import Broker, OpenTopic
    from kclient.types import Buffer

_STARTS_SENT: Final = 10
"""So often the start of an epoch is sent before opening is given up, and tried again later."""
_LOOKED_BEHIND: Final = 64 << 20
"""Bytes that are read, when a partition is opened, to find starts of epochs that are not needed any more."""
_PAUSE_S: Final = 0.05
"""Seconds until it is looked for again, more each time."""


class ExtentTopic(ReadExtents):
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
        super().__init__(
            place,
            epoch,
            extents,
            broker=broker,
            encoding=encoding,
            settings=settings,
            next_offset=next_offset,
            starts=starts,
            guard=guard,
        )
        self._rows = rows
        self._wall_ms = wall_ms
        self._least = next_offset
        """No offset below this is given."""
        self._end = 0
        self._last: Sent | None = None
        self._lost = True
        """Whether what lies at the end has to be looked for."""
        self._undecided = False
        """Whether the outcome of a send is not known: nothing more is sent before it is opened under a newer epoch."""
        self._smaller = False
        """Whether some of a chunk was trimmed since it was measured."""
        self._moved = False
        """Whether the store begins elsewhere than the chunks say."""
        self._outdated = False
        """Whether the row of the chunks says more than is there."""
        self._failures = 0
        """How many syncs have failed."""
        self._changing = anyio.Lock()
        """Held by whoever appends, or changes the list."""

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
        self._extend_over(
            [*self.extents[:at], *lists.split(extent, offset, position, below.last), *self.extents[at + 1 :]]
        )

    async def _replace(self, extents: list[Extent]) -> None:
        """Record another list, then use it, then drop what it does not name any more."""
        await self._rows.write_list(extents, self.starts)
        before = self.extents
        self._extend_over(extents)
        self._changed()
        for place in dict.fromkeys(extent.place for extent in before):
            starts = [extent.start for extent in extents if extent.place == place]
            topic = await self._topic(place)
            if starts or place == self.place:
                await topic.trim(min(starts) if starts else (await topic.status()).end)
            else:
                del self._opened[place]
                await self._rows.drop(place, self.epoch)
