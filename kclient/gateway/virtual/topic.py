"""A topic of HTP that several partitions share: opened once for all, its positions are the ordinals of its messages.

What is sent for them is in order. If a sync fails, all partitions are told whose messages are lost; if the outcome of a
send is not known, all of them: the topic is opened anew under one newer epoch, and each finds out what is stored.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import anyio
import anyio.lowlevel

from kclient.errors import CorruptRecordError, KafkaError
from kclient.gateway.recovery import behind_damage
from kclient.gateway.virtual.envelopes import FoundBatch, found_in, wrap
from kclient.gateway.virtual.holdings import Holdings
from kclient.gateway.virtual.index import ENTRY, Block, IndexEntries, PartitionIndex
from kclient.gateway.virtual.sent import SharedSent
from kclient.gateway.virtual.window_reader import WindowReader
from kclient.gateway.virtual.windows import WINDOW_BYTES, Kept, Windows
from kclient.htp.errors import (
    DamagedError,
    FencedError,
    HtpError,
    OutcomeUnknownError,
    StorageError,
)
from kclient.htp.port import DirectTopic, OpenTopic, Place, Sent, TopicSettings, TopicStatus

if TYPE_CHECKING:
    from kclient.gateway.extents import CommitRows
    from kclient.gateway.virtual.index_rows import IndexRows, Written
    from kclient.large_buffers import LargeBuffers
    from kclient.types import Buffer

logger: logging.Logger = logging.getLogger("kclient.gateway.log")

_SAVED_BYTES: Final = 64 << 20
_SAVED_MESSAGES: Final = 50_000
"""The index is written after so many bytes or messages: the most that opening the topic has to read."""
_LOOKED_AT_ONCE: Final = 200
"""Messages of which the index learns in one turn of the loop."""
_MUCH: Final = 64 << 20
"""Bytes that the slowest partition keeps, and that are told of."""


class User(Protocol):
    """A partition in use."""

    number: int
    index: PartitionIndex
    stalled: Callable[[BaseException], object]
    """Called once nothing is done any more before the topic was opened anew."""

    def give_up(self) -> None:
        """It is not used any more."""
        ...


class Standing(NamedTuple):
    """What a topic keeps, and for whom."""

    retained: int
    """Bytes that no partition keeps any more: space is freed only below the slowest."""
    slowest: int | None
    """The partition that keeps the oldest message; None where there is none."""


class SharedTopic:
    """Made and opened by `SharedStore`.

    Args:
        inner: The topic.
        direct: The same, if it has calls without a switch of tasks.
        rows: Keep the index.
        others: Rows of the topic that are written with the index.
        kept: Of the gateway.
        buffers: For large messages and answers, also the gateway's.
        settings: Layout of the topic.
        wall_ms: The time in milliseconds since the epoch.
        save_soon: Has `save` called, soon.
    """

    def __init__(
        self,
        inner: OpenTopic,
        direct: DirectTopic | None,
        rows: IndexRows,
        others: Callable[[], Mapping[str, bytes]],
        *,
        kept: Kept,
        buffers: LargeBuffers,
        settings: TopicSettings,
        wall_ms: Callable[[], int],
        save_soon: Callable[[SharedTopic], object],
    ) -> None:
        self.inner: OpenTopic = inner
        self.direct: DirectTopic | None = direct
        self.settings: TopicSettings = settings
        self.indexes: dict[int, PartitionIndex] = {}
        """Of all partitions that have any batch, and of those in use."""
        self._unwritten: dict[int, PartitionIndex] = {}
        """Those that have changed since they were written."""
        self._holdings = Holdings(self.indexes)
        self.partitions: dict[int, User] = {}
        """Those in use."""
        self.next: int = 0
        """The next ordinal."""
        self.end: int = 0
        """The ordinal behind the last message that is visible, and durable."""
        self._least = 0
        """Ordinals below this were given by whoever had it open before, and are not given again."""
        self.over: bool = False
        """Whether nothing is done any more: the outcome of a send is not known, or a newer epoch has it."""
        self.windows: Windows = Windows(kept)
        self.reader: WindowReader = WindowReader(inner, direct, self.windows)
        self.buffers: LargeBuffers = buffers
        self._kept = kept
        self._rows = rows
        self._others = others
        self._wall_ms = wall_ms
        self._save_soon = save_soon
        self._unsynced: deque[SharedSent] = deque()
        self._sending = anyio.Lock()
        self._saving = anyio.Lock()
        self._lost = False
        """Whether it has to be asked where the topic ends."""
        self._failures = 0
        """How many syncs have failed."""
        self._new_bytes = self._new_messages = 0
        """Since the index was written."""
        self._moved = True
        """Whether the row of the index says less than is known."""
        self._stored = 0
        """Bytes of the topic in the store, as far as is known."""
        self._told = 0
        """Bytes that the slowest partition kept when that was told last."""

    @property
    def place(self) -> Place:
        """The topic and its incarnation."""
        return self.inner.place

    @property
    def epoch(self) -> int:
        """The epoch that it was opened under."""
        return self.inner.epoch

    def __str__(self) -> str:
        return str(self.place.topic)

    # Opening

    async def load(self, written: Written) -> None:
        """Find out what is in the topic: what the index's rows say, and what lies behind it, read once for all.

        Raises:
            HtpError: It cannot be read.
        """
        status = await self.inner.status()
        indexes, begin = written.indexes, max(written.end, status.start)
        if status.end < written.end:
            logger.error("%s ends at message %d; what had been durable up to %d is lost", self, status.end, written.end)
        if not await self._have_entries(indexes, status.end):
            await self._rows.forget_all()
            indexes, begin = {}, status.start
        for index in indexes.values():
            index.start_at(status.start)
            index.cut(status.end)
        self._take(indexes)
        for index in self.indexes.values():
            index.configure(self.settings)
        self._holdings.forget()
        await self._look_through(begin, status.end)
        self.next, self.end = max(status.next, written.next), status.end
        self._least = self.next
        if status.end > status.start:
            self.reader.mean = status.size // (status.end - status.start)
        if status.end < written.end or status.end > written.end + _SAVED_MESSAGES:
            await self.save()  # what comes next has other places than what the rows say is lost

    async def _have_entries(self, indexes: Mapping[int, PartitionIndex], end: int) -> bool:
        """Have those of blocks in memory of which only a part is there; False if they cannot be read."""
        for index in indexes.values():
            for block in index.blocks:
                if block.ordinal < end <= block.last and block.entries is None:
                    block.entries = await self._rows.entries(index, block)
                    if block.entries is None:
                        return False
        return True

    def take_over(self, before: SharedTopic) -> int:
        """Go on with the index of the topic as it was opened before; up to which ordinal it tells everything."""
        before.cut_back(before.end)
        for index in before.indexes.values():
            index.cut(before.end)  # a try that failed has found more
        self._take(before.indexes)
        return before.end

    def _take(self, indexes: Mapping[int, PartitionIndex]) -> None:
        """Have these from now on."""
        self.indexes.update(indexes)
        for index in indexes.values():
            index.join(self._unwritten)

    async def find_out(self, begin: int) -> None:
        """Find out what lies behind an ordinal after it was opened anew."""
        status = await self.inner.status()
        looked = begin
        if status.end < begin:
            logger.error("%s ends at message %d; what had been durable up to %d is lost", self, status.end, begin)
            if not await self._have_entries(self.indexes, status.end):
                await self._rows.forget_all()
                self.indexes.clear()
                self._unwritten.clear()
                looked = status.start
            for index in self.indexes.values():
                index.cut(status.end)
        self._holdings.forget()
        await self._look_through(looked, status.end)
        self.next, self.end = max(status.next, begin), status.end
        self._least = self.next

    async def _look_through(self, begin: int, end: int) -> None:
        """Have an entry for each batch between two ordinals."""
        now_ms, damaged = self._wall_ms(), list[int]()
        async for found in self._scan(begin, end, damaged):
            index = self.index(found.partition)
            if found.offset < index.after and index.blocks:
                logger.error(
                    "%s: message %d holds offset %d of partition %d, which is there already: it is left out",
                    self, found.ordinal, found.offset, found.partition,
                )  # fmt: skip
                continue
            if damaged and index.blocks and found.offset > index.after and damaged[-1] > index.blocks[-1].last:
                # offsets are missing, so they are in what is damaged: whoever asks for them is told
                self._holdings.adds(index, damaged[-1], 0)
                index.add(index.after, found.offset - 1, damaged[-1], 0, -1, now_ms)
            self._holdings.adds(index, found.ordinal, found.size)
            index.add(found.offset, found.last_offset, found.ordinal, found.size, found.max_timestamp, now_ms)
            self._new_bytes += found.size
            self._new_messages += 1
            self._moved = True

    async def _scan(self, begin: int, end: int, damaged: list[int]) -> AsyncIterator[FoundBatch]:
        """The batches between two ordinals; what is damaged is passed over, and its last ordinal added to a list."""
        looked = 0
        while begin < end:
            asked = begin
            try:
                pulled = await self.inner.pull(begin, max_bytes=WINDOW_BYTES)
                if not pulled.data:
                    return
                begin = pulled.first
                for found in found_in(pulled.data, pulled.first):
                    if found.ordinal >= end:
                        return
                    yield found
                    begin = found.ordinal + 1
                    looked += 1
                    if looked % _LOOKED_AT_ONCE == 0:
                        await anyio.lowlevel.checkpoint()
                begin = pulled.last + 1
            except (DamagedError, CorruptRecordError) as damage:
                if begin > asked:  # what follows may only leave ordinals out: reading on there tells
                    continue
                behind = await behind_damage(self.inner, begin, end)
                behind = max(behind, begin + 1)
                logger.error(
                    "%s: messages from %d to %d are damaged, and whatever partitions they belong to lack them. Restore "
                    "the data directory from a backup (%s)", self, begin, behind, damage,
                )  # fmt: skip
                damaged.append(behind - 1)
                begin = behind
            await anyio.lowlevel.checkpoint()

    def index(self, partition: int) -> PartitionIndex:
        """That of a partition; an empty one if it has none yet."""
        found = self.indexes.get(partition)
        if found is None:
            found = self.indexes[partition] = PartitionIndex(partition)
            found.configure(self.settings)
            found.join(self._unwritten)
        return found

    async def configure(self, settings: TopicSettings) -> None:
        """Change the layout."""
        if settings != self.settings:
            await self.inner.configure(settings)
            self.settings = settings
            for index in self.indexes.values():
                index.configure(settings)

    # Sending

    def check(self) -> None:
        """Raise if it is over."""
        if self.over:
            raise OutcomeUnknownError(
                f"{self}: what became of an earlier send is not known, and nothing is done before it is opened anew"
            )

    def send_nowait(self, partition: User, batches: Sequence[FoundBatch], data: Sequence[Buffer]) -> Sent | None:
        """Append batches of a partition, all or none; None, and nothing is done, if that has to wait.

        The caller has checked that it is not over.
        """
        direct = self.direct
        if direct is None or self._lost or self._sending.locked():
            return None
        number, ordinal, take = partition.number, self.next, self.buffers.take
        try:
            sent = direct.send_nowait([wrap(number, ordinal + at, batch, take) for at, batch in enumerate(data)])
        except OutcomeUnknownError as error:
            self.stop(error, but=partition)
            raise
        return None if sent is None else self._sent(partition.index, batches, sent, ordinal)

    async def send(self, partition: User, batches: Sequence[FoundBatch], data: Sequence[Buffer]) -> Sent:
        """Append batches of a partition, all or none; nothing if the sync of earlier ones fails while this waits."""
        failures, number, take = self._failures, partition.number, self.buffers.take
        async with self._sending:
            self.check()
            if self._lost:
                await self._find_end()
            if self._failures != failures:  # whoever sends was told that this is undone with those
                raise StorageError(f"{self}: what was sent before could not be synced")
            ordinal = self.next
            messages = [wrap(number, ordinal + at, batch, take) for at, batch in enumerate(data)]
            self._lost = True  # unless it succeeds
            try:
                sent = await self.inner.send(messages)
            except OutcomeUnknownError as error:
                self.stop(error, but=partition)
                raise
            self.check()
            self._lost = self._failures != failures  # then it lies behind ordinals that nothing has
            return self._sent(partition.index, batches, sent, ordinal)

    def _sent(self, index: PartitionIndex, batches: Sequence[FoundBatch], inner: Sent, ordinal: int) -> SharedSent:
        before, now_ms = index.after, self._wall_ms()
        self.next, sizes = ordinal, []
        for each in batches:
            self._holdings.adds(index, self.next, each.size)
            index.add(each.offset, each.last_offset, self.next, each.size, each.max_timestamp, now_ms)
            self.next += 1
            sizes.append(each.size)
            self._new_bytes += each.size
        self._new_messages += len(sizes)
        self.reader.learn(sizes[-1])
        sent = SharedSent(index, batches[0].offset, batches[-1].last_offset, ordinal, sizes, before, inner)
        self._unsynced.append(sent)
        inner.on_synced(partial(self._synced, sent))
        return sent

    def _synced(self, sent: SharedSent, error: BaseException | None) -> None:
        if self.over or sent.undone:
            return
        if error is None:
            self.end = max(self.end, sent.ordinal + len(sent.sizes))
            self._moved = True
            while self._unsynced and self._unsynced[0].ordinal <= sent.ordinal:
                self._unsynced.popleft()
            if self._new_bytes > _SAVED_BYTES or self._new_messages > _SAVED_MESSAGES:
                self._new_bytes = self._new_messages = 0
                self._save_soon(self)
        elif isinstance(error, OutcomeUnknownError):
            if sent.ordinal + len(sent.sizes) > self.end:  # else what came after it is durable, and so is it
                self.stop(error, but=self.partitions.get(sent.index.number) if sent.heard else None)
        else:
            self._failed(sent.ordinal)

    def _failed(self, ordinal: int) -> None:
        """What was sent from an ordinal on is not there."""
        self._failures += 1
        self.cut_back(ordinal)
        self.windows.clear()
        self.next, self._lost = ordinal, True
        if self.direct is not None:
            try:
                self.next, self._lost = self.direct.status_nowait().next, False
            except KafkaError as error:
                logger.error("%s: its end is not known: %s", self, error)

    def cut_back(self, ordinal: int) -> None:
        """Forget what was sent from an ordinal on, and is not durable."""
        while self._unsynced and self._unsynced[-1].ordinal >= ordinal:
            sent = self._unsynced.pop()
            sent.undone = True
            self._holdings.forget()
            sent.index.undo(sent.sizes, sent.before)

    async def _find_end(self) -> None:
        """Ask where the topic ends; what is there against expectation is known from then on."""
        status = await self.inner.status()
        if not self._unsynced:
            await self._look_through(self.next, status.end)
            self.end = max(self.end, status.end)
        self.next, self._lost = max(status.next, self.next if self._unsynced else 0), False

    def stop(self, error: BaseException, but: User | None) -> None:
        """Nothing is done any more before it is opened anew: have its partitions do so, but for one."""
        if not self.over:
            self.over = True
            self.reader.stop()
            for partition in list(self.partitions.values()):
                if partition is not but:
                    partition.stalled(error)

    def visible(self, index: PartitionIndex) -> int:
        """The offset behind the last visible batch of a partition."""
        for sent in self._unsynced:
            if sent.index is index:
                return sent.before
        return index.after

    async def ends(self) -> TopicStatus:
        """Where the topic begins and ends, looked for anew if that is not known."""
        if self.over:
            raise FencedError(f"{self} is opened anew")
        if self._lost:
            async with self._sending:
                self.check()
                if self._lost:
                    await self._find_end()
        return await self.inner.status()

    # The entries of its indexes

    async def entries(self, index: PartitionIndex, block: Block) -> bool:
        """Have the entries of a block in memory; False if there is no room to keep them: whoever asks forgets them.

        Raises:
            DamagedError: They cannot be read, and not be found among the messages either.
        """
        if block.entries is None:
            found = await self._rows.entries(index, block) or await self._find_entries(index, block)
            if block.entries is None:
                block.entries = found
                return self._keep(block)
        return True

    async def _find_entries(self, index: PartitionIndex, block: Block) -> IndexEntries:
        found = IndexEntries.none()
        async for each in self._scan(block.ordinal, block.last + 1, []):
            if each.partition == index.number:
                found.offsets.append(each.offset)
                found.ordinals.append(each.ordinal)
                found.timestamps.append(each.max_timestamp)
        if not len(found):
            raise DamagedError(f"{self}: nothing of partition {index.number} is left from offset {block.first} on")
        return found

    def used(self, block: Block) -> None:
        """The entries of a block were used just now."""
        self._kept.used(block)

    def _keep(self, block: Block) -> bool:
        """The entries of a block are written: they stay in memory as long as there is room."""

        def drop() -> None:
            if block.saved:  # else it was cut since
                block.entries = None

        return self._kept.keep(block, ENTRY * block.count, drop)

    # What is kept of it

    def trim_index(self, index: PartitionIndex, before: int) -> None:
        """Offsets of a partition below this one are not needed, as far as they are visible."""
        self._holdings.trim(index, min(before, self.visible(index)))

    async def trim(self) -> None:
        """Drop the messages that no partition needs any more."""
        if self.over:
            return
        slowest = self._holdings.slowest
        start = await self.inner.trim(self.end if slowest is None else min(slowest[1], self.end))
        self.windows.drop_below(start)
        if slowest is not None:
            await self._tell_of(slowest[0])

    def standing(self) -> Standing:
        """What is kept for whom. On a store that has to be asked for its size, as of the last trim."""
        if self.direct is not None:
            with suppress(HtpError):  # it is being deleted, or the store has failed
                self._stored = self.direct.status_nowait().size
        slowest = self._holdings.slowest
        return Standing(self._retained(self._stored), None if slowest is None else slowest[0])

    def _retained(self, size: int) -> int:
        """Bytes of these that belong to no partition any more."""
        return max(size - self._holdings.size, 0)

    async def _tell_of(self, slowest: int) -> None:
        """Say what the slowest partition keeps of the others, if that is much, and has become twice as much."""
        status = await self.inner.status()
        self._stored, kept = status.size, self._retained(status.size)
        if kept < _MUCH or 2 * kept < status.size:
            self._told = 0
        elif kept >= 2 * self._told:
            self._told = kept
            logger.warning(
                "%s keeps %d bytes that were deleted, of %d: space is freed only below the oldest record of all "
                "partitions, which is partition %d's. Have retention or DeleteRecords remove that, or use "
                "mapping=multilevel for topics whose partitions differ so much",
                self, kept, status.size, slowest,
            )  # fmt: skip

    async def save(self, commit: CommitRows | None = None) -> None:
        """Write the index, as far as it is durable.

        Args:
            commit: Writes its rows, all or none; if None, they are written as those of a topic that is led here.

        Raises:
            HtpError: The store failed; the next call writes it. What `commit` raises is raised too.
        """
        async with self._saving:
            if self.over or not (self._moved or self._unwritten):
                return
            self._moved = False
            self._new_bytes = self._new_messages = 0
            try:
                following = max(self.end, self._least)
                whole = await self._rows.write(self._unwritten, self.end, following, self._others, commit)
            except BaseException:  # cancelled too
                self._moved = True
                raise
            for number in [number for number, index in self._unwritten.items() if index.is_written]:
                del self._unwritten[number]
        for _, block in whole:
            if block.entries is not None and not self._keep(block):
                block.entries = None

    @property
    def saving(self) -> bool:
        """Whether the index is being written."""
        return self._saving.locked()

    async def saved(self) -> None:
        """Until the index is not being written."""
        async with self._saving:
            return

    def close(self) -> None:
        """Nothing of it is used any more."""
        self.over = True
        self.reader.stop()
        for index in self.indexes.values():
            for block in index.blocks:
                self._kept.discard(block)
