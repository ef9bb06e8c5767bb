"""A partition that shares a topic of HTP with others, used like a topic whose positions are offsets."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import anyio.lowlevel

from kclient.gateway.virtual.envelopes import FoundBatch, found_as
from kclient.gateway.virtual.index import Block
from kclient.gateway.virtual.reading import Missing, pull
from kclient.gateway.virtual.windows import AT_ONCE, Window
from kclient.htp.errors import DamagedError, FencedError, OrderError, PositionError, UnknownTopicError
from kclient.htp.port import Found, Place, Pulled, SegmentInfo, Sent, TopicSettings, TopicStatus

if TYPE_CHECKING:
    from kclient.gateway.virtual.index import PartitionIndex
    from kclient.gateway.virtual.topic import SharedTopic
    from kclient.types import Buffer

_WINDOWS_AT_ONCE: Final = 4
_BYTES_AT_ONCE: Final = 6 << 20
"""What is read at once, at most, or a little more: others have their turn after that."""


class _AtHand:
    """What can be read of a topic without waiting, up to a limit.

    Args:
        topic: The topic.
    """

    __slots__ = ("_left", "_room", "_topic")

    def __init__(self, topic: SharedTopic) -> None:
        self._topic = topic
        self._left = _BYTES_AT_ONCE
        self._room = AT_ONCE

    def read(self, ordinal: int, few: int | None) -> Window | None:
        """Messages from an ordinal on; None if they must first come from the disk, or enough was read."""
        window = self._topic.windows.find(ordinal)
        if window is None and self._left > 0 and self._room > 0:
            window = self._topic.reader.read_nowait(ordinal, few)
            if window is not None:
                self._left -= len(window.data)
                self._room -= window.next - window.first
        return window


class SharedPartition:
    """Implements `kclient.htp.port.DirectTopic` with offsets for positions; made by `SharedStore`.

    Args:
        topic: The topic.
        index: Where the partition's batches lie in it.
        name: For messages.
        stalled: Called once nothing is done any more before the topic was opened anew.
    """

    __slots__ = ("_closed", "_name", "index", "number", "stalled", "topic")

    def __init__(
        self, topic: SharedTopic, index: PartitionIndex, name: str, stalled: Callable[[BaseException], object]
    ) -> None:
        self.topic: SharedTopic = topic
        self.index: PartitionIndex = index
        self.number: int = index.number
        self.stalled: Callable[[BaseException], object] = stalled
        self._name = name
        self._closed = False

    @property
    def place(self) -> Place:
        """The topic and its incarnation."""
        return self.topic.place

    @property
    def epoch(self) -> int:
        """The epoch that the topic was opened under."""
        return self.topic.epoch

    def give_up(self) -> None:
        """It is not used any more."""
        self._closed = True

    def _check(self) -> None:
        if self._closed:
            raise UnknownTopicError(f"{self._name} was closed")
        if self.topic.over:
            raise FencedError(f"{self._name}: its topic is opened anew")

    async def close(self) -> None:
        """Write the index."""
        if not self._closed:
            await self.topic.save()
            self.give_up()

    async def configure(self, settings: TopicSettings) -> None:
        """Change the layout of the topic, which is that of all its partitions."""
        self._check()
        await self.topic.configure(settings)

    # Sending

    def _batches(self, messages: Sequence[Buffer]) -> list[FoundBatch]:
        """What the index has to know of them. Raises `OrderError` if they do not follow on what is there."""
        found, expected = [], self.index.next
        for message in messages:
            batch = found_as(self.number, message)
            if batch.offset < expected:
                raise OrderError(f"{self._name}: offset {batch.offset} was given, {expected} is the next")
            found.append(batch)
            expected = batch.last_offset + 1
        if not found:
            raise ValueError("no message to send")
        return found

    def send_nowait(self, messages: Sequence[Buffer]) -> Sent | None:
        """Append whole batches, all or none; None if that has to wait for others."""
        if self._closed:
            self._check()
        self.topic.check()
        return self.topic.send_nowait(self, self._batches(messages), messages)

    async def send(self, messages: Sequence[Buffer]) -> Sent:
        """Append whole batches, all or none."""
        if self._closed:
            self._check()
        self.topic.check()
        return await self.topic.send(self, self._batches(messages), messages)

    # Reading

    def _check_position(self, position: int) -> None:
        index = self.index
        if not index.start <= position <= index.next:
            raise PositionError(
                f"{self._name}: offset {position} is not within {index.start} to {index.next}",
                start=index.start, end=index.next,
            )  # fmt: skip

    def _positions(self, error: PositionError) -> PositionError:
        """The topic was trimmed meanwhile."""
        return PositionError(f"{self._name}: {error}", start=self.index.start, end=self.index.next)

    def pull_nowait(self, position: int, *, max_bytes: int = 1 << 20, max_messages: int | None = None) -> Pulled | None:
        """The visible batches from an offset on; None if something must first come from the disk."""
        self._check()
        self._check_position(position)
        topic = self.topic
        at_hand = _AtHand(topic)
        try:
            pulled = pull(
                self.index, self._name, topic.end, at_hand.read, topic.buffers.take, position, max_bytes, max_messages
            )
        except Missing:
            return None
        except PositionError as error:
            raise self._positions(error) from error
        self._used(pulled)
        return pulled

    async def pull(self, position: int, *, max_bytes: int = 1 << 20, max_messages: int | None = None) -> Pulled:
        """The visible batches from an offset on."""
        await anyio.lowlevel.checkpoint()
        topic, got, borrowed = self.topic, list[Window](), list[Block]()
        at_hand = _AtHand(topic)
        damage: DamagedError | None = None

        def read(ordinal: int, few: int | None) -> Window | None:
            for window in got:  # where there is no room to keep them
                if window.first <= ordinal < window.next:
                    return window
            return at_hand.read(ordinal, few)

        try:
            while True:
                self._check()
                self._check_position(position)
                patient = damage is None and len(got) < _WINDOWS_AT_ONCE
                try:
                    pulled = pull(
                        self.index, self._name, topic.end, read, topic.buffers.take, position, max_bytes, max_messages,
                        patient=patient,
                    )  # fmt: skip
                    self._used(pulled)
                    return pulled
                except Missing as missing:
                    what, few = missing.what, missing.few
                if damage is not None:  # there is nothing before it
                    raise damage
                try:
                    if isinstance(what, int):
                        got.append(await topic.reader.read(what, few))
                    elif not await topic.entries(self.index, what):
                        borrowed.append(what)
                except DamagedError as error:
                    damage = error
        except PositionError as error:
            raise self._positions(error) from error
        finally:
            for block in borrowed:
                self._give_back(block)

    def _used(self, pulled: Pulled) -> None:
        """The entries behind what was read are needed next: windows, which are large, go before them."""
        blocks, number = self.index.blocks, self.index.find(pulled.last + 1)
        if number < len(blocks):
            self.topic.used(blocks[number])

    @staticmethod
    def _give_back(block: Block) -> None:
        if block.saved:
            block.entries = None

    async def find_by_timestamp(self, timestamp: int, *, start: int = 0) -> Found | None:
        """The first visible batch, from the one holding `start` on, with a timestamp not below the given one."""
        await anyio.lowlevel.checkpoint()
        self._check()
        for block in self.index.blocks[self.index.find(start) :]:
            if block.max_timestamp < timestamp:
                continue
            kept = await self.topic.entries(self.index, block)
            self._check()
            entries = block.entries
            if not kept:
                self._give_back(block)
            if entries is None:
                continue
            for number in range(max(bisect_right(entries.offsets, start) - 1, 0), len(entries)):
                if entries.ordinals[number] >= self.topic.end:
                    return None
                if entries.timestamps[number] >= timestamp:
                    after = entries.offsets[number + 1] if number + 1 < len(entries) else block.next
                    if after > start:
                        return Found(entries.offsets[number], after - 1, entries.timestamps[number])
        return None

    # What is kept of it

    def status_nowait(self) -> TopicStatus:
        """Start, end, next offset and size."""
        self._check()
        index = self.index
        return TopicStatus(index.start, self.topic.visible(index), index.next, index.size)

    async def status(self) -> TopicStatus:
        """Start, end, next offset and size; looks for the end of the topic anew if that is not known."""
        await self.topic.ends()
        return self.status_nowait()

    async def segments(self) -> list[SegmentInfo]:
        """Runs of blocks, which retention may drop."""
        await anyio.lowlevel.checkpoint()
        self._check()
        return self.index.segments()

    async def roll(self) -> None:
        """Begin another segment, unless the last one is empty."""
        await anyio.lowlevel.checkpoint()
        self._check()
        self.index.roll()

    async def trim(self, before: int) -> int:
        """Forget batches that lie below an offset; the topic drops what no partition needs any more."""
        await anyio.lowlevel.checkpoint()
        self._check()
        self.topic.trim_index(self.index, before)
        await self.topic.trim()
        return self.index.start
