"""The compaction of one partition: what its log holds is read, piece by piece, and its segments are rewritten.

The event loop only passes the pieces on: the store's threads read and write, the gateway's look at the records. Each
segment is rewritten and put in its place by itself, the oldest first. So whatever ends the compaction leaves a log of
which some segments were cleaned and others will be: a later record never goes before the one that it has superseded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio.lowlevel

from kclient.errors import ClosedError
from kclient.gateway.compaction.cleaning import CleaningStats, KeyNoting, LastOfProducer, LogCleaning
from kclient.htp.port import RewritableTopic
from kclient.records import KeyOffsets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kclient.gateway.aborted import Hidden
    from kclient.gateway.compaction.dirty import Cleanable
    from kclient.gateway.partition import Partition
    from kclient.gateway.producer_windows import ProducerWindow
    from kclient.gateway.workers import Workers
    from kclient.htp.port import SegmentInfo
    from kclient.types import Buffer

_PIECE_BYTES: Final = 1 << 20
_SLOT_BYTES: Final = 24
_BATCHES_AT_ONCE: Final = 500
"""Batches that the store takes in one turn of the loop."""


class Cleaned(NamedTuple):
    """What a compaction has done."""

    end: int
    """Everything below this offset is clean now; less than was asked for where the keys have not fitted in memory."""
    stats: CleaningStats
    segments: int
    """How many were replaced."""


class PartitionCleaning:
    """Compacts one partition, once.

    Args:
        partition: It; open.
        found: What is to be cleaned.
        workers: Threads that look at records.
        now_ms: The time in milliseconds since the epoch.
        table_bytes: Memory for the offsets of keys, at most.
        paced: Called with so many bytes that were read; returns when it may go on.
    """

    def __init__(
        self,
        partition: Partition,
        found: Cleanable,
        workers: Workers,
        *,
        now_ms: int,
        table_bytes: int,
        paced: Callable[[int], Awaitable[object]],
    ) -> None:
        topic = partition.stored_in
        assert isinstance(topic, RewritableTopic)
        self._partition = partition
        self._config = partition.config
        self._topic = topic
        self._found = found
        self._workers = workers
        self._now_ms = now_ms
        self._paced = paced
        self._remembered = False
        records = found.end - found.first_dirty
        self._slots = max(min(table_bytes // _SLOT_BYTES, records * 10 // 9 + 2), 2)

    @property
    def table_bytes(self) -> int:
        """What the offsets of keys take of memory."""
        return self._slots * _SLOT_BYTES

    async def run(self) -> Cleaned:
        """Clean it.

        Raises:
            KafkaError: A batch is damaged, the store has failed, or the partition has gone or is another gateway's.
        """
        held: list[KeyOffsets] = []
        try:
            return await self._clean(held)
        finally:
            with suppress(ClosedError):  # giving a large table back takes longer than the loop has time
                self._workers.run(held.clear)

    async def _clean(self, held: list[KeyOffsets]) -> Cleaned:
        offsets = await self._note_keys()
        held.append(offsets)
        segments = [each for each in await self._topic.segments() if not each.active and each.first < offsets.end]
        if not segments:
            return Cleaned(offsets.end, CleaningStats(), 0)
        cleaning = await self._workers.run(
            partial(
                LogCleaning,
                offsets,
                await self._aborted(segments[0].first, segments[-1].next),
                _last_of(self._partition.log.checkpoint().windows),
                now_ms=self._now_ms,
                delete_retention_ms=self._config.delete_retention_ms,
                max_decompressed=self._config.max_decompressed_bytes,
                keeps_aborts=True,
            )
        )
        replaced = 0
        for segment in segments:
            if not self._partition.config.compacts:  # any more
                return Cleaned(self._found.first_dirty, cleaning.stats, replaced)
            replaced += await self._clean_segment(segment, cleaning)
        return Cleaned(offsets.end, cleaning.stats, replaced)

    async def _aborted(self, first: int, until: int) -> Hidden:
        """The aborted transactions of a range. There may be very many: they are gone through in a thread."""
        return await self._partition.aborted(first, until, anyio.lowlevel.checkpoint)

    async def _note_keys(self) -> KeyOffsets:
        position, end = self._found.first_dirty, self._found.end
        offsets = KeyOffsets(self._slots)
        aborted = await self._aborted(position, end)
        most = self._config.max_decompressed_bytes
        noting = await self._workers.run(partial(KeyNoting, offsets, position, aborted, most))
        while position < end:
            pulled = await self._topic.pull(position, max_bytes=_PIECE_BYTES)
            if not pulled.data or not await self._workers.run(partial(noting.feed, pulled.data, end)):
                break
            position = pulled.last + 1
            await self._paced(len(pulled.data))
        return offsets

    async def _clean_segment(self, segment: SegmentInfo, cleaning: LogCleaning) -> bool:
        """Rewrite one segment, unless nothing of it has gone; whether it was."""
        rewriting = await self._topic.rewrite(segment.first)
        try:
            changed, position = cleaning.stats.changed, segment.first
            while position < segment.next:
                pulled = await self._topic.pull(position, max_bytes=_PIECE_BYTES)
                if not pulled.data:
                    break
                kept: list[Buffer] = await self._workers.run(lambda data=pulled.data: list(cleaning.feed(data)))  # type: ignore[misc]
                for number in range(0, len(kept), _BATCHES_AT_ONCE):
                    await rewriting.append(kept[number : number + _BATCHES_AT_ONCE])
                position = pulled.last + 1
                await self._paced(len(pulled.data))
            await rewriting.append(list(cleaning.flush()))
            if cleaning.stats.changed == changed:
                return False
            await self._remember()
            if not self._partition.config.compacts:
                return False
            await rewriting.commit()
            return True
        finally:
            await rewriting.discard()

    async def _remember(self) -> None:
        """Have the partition's checkpoint tell what it knows of producers and transactions from what may go now.

        Whoever opens it after a crash reads on from its last checkpoint: the end of a transaction that was open there
        may be gone by then, and with it all that would tell that it is not open any more.
        """
        checkpoints = self._partition.checkpoints
        if not self._remembered and checkpoints.dirty:
            await checkpoints.write()
        self._remembered = True


def _last_of(windows: Mapping[int, ProducerWindow]) -> dict[int, LastOfProducer]:
    """What is to be kept of each producer."""
    found = {}
    for producer_id, window in windows.items():
        if window.batches:
            last = window.batches[-1]
            records = (last.last_sequence - last.first_sequence) % (1 << 31)
            found[producer_id] = LastOfProducer(window.epoch, last.base_offset + records)
        else:
            found[producer_id] = LastOfProducer(window.epoch)
    return found
