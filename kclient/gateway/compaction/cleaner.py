"""The log cleaner of a gateway: looks which compacted logs are dirty, and cleans one after the other."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import anyio
import anyio.lowlevel

from kclient.concurrency import Wakeup
from kclient.errors import CorruptRecordError, KafkaError, NotLeaderOrFollowerError, RecordTooLargeError
from kclient.gateway.compaction.dirty import Cleanable, cleanable
from kclient.gateway.compaction.partition import Cleaned, PartitionCleaning
from kclient.gateway.setting import LONG_MAX
from kclient.htp.errors import DamagedError, FencedError, PositionError
from kclient.htp.port import RewritableTopic
from kclient.records import read_header

if TYPE_CHECKING:
    from kclient.gateway.clock import Clock
    from kclient.gateway.config import Live
    from kclient.gateway.partition import Partition
    from kclient.gateway.partitions import PartitionTable
    from kclient.gateway.topics.record import TopicRecord
    from kclient.gateway.topics.table import TopicTable
    from kclient.gateway.workers import Workers
    from kclient.htp.port import SegmentInfo
    from kclient.memory_ledger import MemoryAccount

logger: logging.Logger = logging.getLogger("kclient.gateway.compaction")

_FOR_GOOD: Final = (CorruptRecordError, RecordTooLargeError, DamagedError)
"""What is wrong with a log itself: it is not tried again."""
_LONG_S: Final = 1.0
"""Seconds for which it is looked at a partition."""
_LONGEST_PAUSE_S: Final = 60.0


class CleaningPace:
    """Keeps reading below a rate: whoever has read more waits.

    Args:
        clock: What time it is.
        bytes_per_second: The rate.
    """

    def __init__(self, clock: Clock, bytes_per_second: Live[float]) -> None:
        self._clock = clock
        self._rate = bytes_per_second
        self._due = clock.now()

    async def __call__(self, size: int) -> None:
        """So many bytes were read."""
        now = self._clock.now()
        self._due = max(self._due, now) + size / self._rate()
        if self._due > now:
            await anyio.sleep(min(self._due - now, _LONGEST_PAUSE_S))


class LogCleaner:
    """Cleans the logs of all partitions with `cleanup.policy=compact` that this gateway leads.

    What was cleaned is remembered as long as the gateway lives: afterwards all counts as dirty, and is cleaned once.

    Args:
        topics: Of which partitions.
        partitions: Has them.
        clock: What time it is.
        workers: Threads that look at records.
        memory: Where the table of keys counts.
        enabled: Whether anything is cleaned.
        backoff_ms: Time until it is looked again, when nothing was to be cleaned.
        table_bytes: Memory for the keys of one log, at most.
        bytes_per_second: How much is read in a second, at most.
        unreadable: Whether the settings that say what is to be cleaned cannot be read.
    """

    def __init__(
        self,
        topics: TopicTable,
        partitions: PartitionTable,
        clock: Clock,
        workers: Workers,
        memory: MemoryAccount,
        *,
        enabled: bool,
        backoff_ms: Live[int],
        table_bytes: Live[int],
        bytes_per_second: Live[float],
        unreadable: Live[bool],
    ) -> None:
        self._topics = topics
        self._partitions = partitions
        self._clock = clock
        self._workers = workers
        self._memory = memory
        self._enabled = enabled
        self._backoff_ms = backoff_ms
        self._table_bytes = table_bytes
        self._unreadable = unreadable
        self._pace = CleaningPace(clock, bytes_per_second)
        self._cleaned: dict[Partition, int] = {}
        """Up to where each was cleaned."""
        self._given_up: dict[Partition, str] = {}
        """Which cannot be cleaned, and why."""
        self._kept: dict[Partition, None] = {}
        """Those whose store cannot rewrite what it has."""
        self._dirty: list[tuple[TopicRecord, Partition]] = []
        """Those that were dirty when all were looked at, and have not had their turn since; the dirtiest last."""
        self._running = anyio.Lock()
        self._changed = Wakeup()
        self.runs: int = 0
        """How many logs were cleaned."""
        self.read_bytes: int = 0
        """Bytes that were read of them."""
        self.kept_bytes: int = 0
        """Bytes that were kept of these."""

    @property
    def uncleanable(self) -> int:
        """How many partitions cannot be cleaned because their logs are damaged."""
        return len(self._given_up)

    def reconfigure(self) -> None:
        """The settings may have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Clean what is dirty, for ever."""
        while self._enabled:
            if not await self._changed.wait(self._backoff_ms() / 1000):
                while await self.clean_dirtiest():
                    await anyio.lowlevel.checkpoint()

    async def clean_dirtiest(self) -> bool:
        """Clean the log of which most is dirty; whether there was one.

        There may be thousands, after a start above all: they are all looked at again only when those that were dirty
        the last time have had their turn.
        """
        if self._unreadable():
            return False
        async with self._running:
            looked = False
            while self._dirty or not looked:
                if not self._dirty:
                    self._dirty, looked = await self._find_dirty(), True
                while self._dirty:
                    record, partition = self._dirty.pop()
                    range_ = await self._due(record, partition)
                    if range_ is not None and await self._clean_or_warn(partition, range_):
                        return True
            return False

    def _all(self) -> Iterator[tuple[TopicRecord, Partition]]:
        for record in self._topics:
            if not record.config.compacts or record.config.mirrored:
                continue
            for index in range(record.partitions):
                partition = self._partitions.of(record, index)
                if partition is not None:  # else another gateway leads it, or the topic was deleted meanwhile
                    yield record, partition

    async def _find_dirty(self) -> list[tuple[TopicRecord, Partition]]:
        """Those that are to be cleaned, the dirtiest last."""
        found: list[tuple[float, TopicRecord, Partition]] = []
        seen: set[Partition] = set()
        for record, partition in self._all():
            seen.add(partition)
            range_ = await self._due(record, partition)
            if range_ is not None:
                found.append((range_.ratio, record, partition))
        self._cleaned = {each: end for each, end in self._cleaned.items() if each in seen}
        self._given_up = {each: why for each, why in self._given_up.items() if each in seen}
        self._kept = {each: None for each in self._kept if each in seen}
        found.sort(key=itemgetter(0))
        return [(record, partition) for _, record, partition in found]

    async def _due(self, record: TopicRecord, partition: Partition) -> Cleanable | None:
        """What of a partition is to be cleaned, if it is due and can be."""
        if not record.config.compacts or partition in self._given_up or partition in self._kept:
            return None
        with anyio.move_on_after(_LONG_S):  # of one whose disk hangs nothing is known for now
            try:
                return await self._look(partition)
            except (KafkaError, OSError) as error:
                if not record.gone:
                    logger.debug("%s is not looked at for what is dirty: %s", partition, error)
        return None

    async def _look(self, partition: Partition) -> Cleanable | None:
        """What of a partition is to be cleaned, if it is due."""
        await partition.ready()
        if not isinstance(partition.stored_in, RewritableTopic):
            self._kept[partition] = None
            logger.warning(
                "%s keeps every record, though its topic has cleanup.policy=compact: where it lies nothing can be "
                "rewritten (the mapping virtual, or a store without the capability rewrite)", partition,
            )  # fmt: skip
            return None
        segments, config, log = await partition.segments(), partition.config, partition.log
        cleaned = self._cleaned.get(partition, 0)
        since = LONG_MAX
        if config.max_compaction_lag_ms < LONG_MAX:
            since = await _waiting_since(partition, segments, cleaned)
        found = cleanable(
            segments, config,
            cleaned=cleaned, start=log.start_offset, stable=log.transactions.stable_offset(log.high_watermark),
            now_ms=self._clock.wall_ms(), waiting_since=since,
        )  # fmt: skip
        return found if found.is_due(config) else None

    async def _clean_or_warn(self, partition: Partition, found: Cleanable) -> bool:
        try:
            done = await self._clean(partition, found)
        except _FOR_GOOD as error:
            self._given_up[partition] = str(error)
            logger.error(
                "%s is not compacted any more until the gateway is started again, because its log is damaged: %s",
                partition, error,
            )  # fmt: skip
            return False
        except (FencedError, NotLeaderOrFollowerError) as error:
            logger.debug("%s is left to the gateway that leads it now: %s", partition, error)
            return False
        except PositionError as error:  # trimmed, or not synced yet
            logger.info("the log of %s has changed while it was compacted, which is tried again: %s", partition, error)
            return False
        except (KafkaError, OSError) as error:
            logger.warning("compaction of %s failed, it is tried again: %s", partition, error)
            return False
        except MemoryError:
            logger.warning(
                "compaction of %s failed, it is tried again: there is not enough memory; have the table of keys take "
                "less of it (log.cleaner.dedupe.buffer.size=%d)", partition, self._table_bytes(),
            )  # fmt: skip
            return False
        self._cleaned[partition] = done.end
        self.runs += 1
        self.read_bytes += done.stats.read_bytes
        self.kept_bytes += done.stats.kept_bytes
        logger.info(
            "%s was compacted up to offset %d: of %d bytes %d were kept, %d segments were replaced",
            partition, done.end, done.stats.read_bytes, done.stats.kept_bytes, done.segments,
        )  # fmt: skip
        return done.end > found.first_dirty

    async def _clean(self, partition: Partition, found: Cleanable) -> Cleaned:
        cleaning = PartitionCleaning(
            partition, found, self._workers,
            now_ms=self._clock.wall_ms(), table_bytes=self._table_bytes(), paced=self._pace,
        )  # fmt: skip
        size = cleaning.table_bytes
        self._memory.add(size)
        try:
            return await cleaning.run()
        finally:
            self._memory.add(-size)


async def _waiting_since(partition: Partition, segments: list[SegmentInfo], cleaned: int) -> int:
    """The least timestamp with which a closed segment begins that was not cleaned yet."""
    least = LONG_MAX
    for segment in segments:
        if not segment.active and segment.next > cleaned:
            pulled = await partition.stored_in.pull(segment.first, max_messages=1)
            if pulled.data:
                stamp = read_header(pulled.data).base_timestamp
                least = min(least, stamp) if stamp > 0 else least
    return least
