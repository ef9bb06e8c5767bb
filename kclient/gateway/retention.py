"""Retention: which segments of a partition are old or too many, decided apart from dropping them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from kclient.concurrency import Wakeup
from kclient.errors import KafkaError, NotLeaderOrFollowerError
from kclient.gateway.config import TopicConfig
from kclient.htp.errors import FencedError
from kclient.htp.port import SegmentInfo

if TYPE_CHECKING:
    from kclient.concurrency import TaskHandle
    from kclient.gateway.clock import Clock
    from kclient.gateway.config import Live
    from kclient.gateway.partition import Partition
    from kclient.gateway.partitions import PartitionTable
    from kclient.gateway.topics.record import TopicRecord
    from kclient.gateway.topics.table import TopicTable

logger: logging.Logger = logging.getLogger("kclient.gateway.retention")

_LONG_S: Final = 1.0
"""Seconds until the others of a pass no longer wait for a partition."""
_PATIENCE_S: Final = 10.0
"""Seconds that a pass waits for appends that are on their way, and for partitions that take longer than all others: the
next one waits for its end."""


class Cut(NamedTuple):
    """What retention asks for: everything before an offset goes."""

    before: int
    roll: bool
    """Whether the active segment goes too and has to be closed first."""
    reason: str


def cut(segments: Sequence[SegmentInfo], config: TopicConfig, now_ms: int) -> Cut | None:
    """What is to be dropped of these segments, oldest first, or None; Kafka's rules by time, then by size."""
    if not config.deletes or config.mirrored:  # what mirrors another log begins where that does
        return None
    dropped, reason = 0, ""
    if config.retention_ms >= 0:
        oldest = now_ms - config.retention_ms
        while dropped < len(segments) and segments[dropped].size and _newest(segments[dropped]) < oldest:
            dropped += 1
            reason = f"older than retention.ms={config.retention_ms}"
    if config.retention_bytes >= 0:
        excess = sum(segment.size for segment in segments[dropped:]) - config.retention_bytes
        while dropped < len(segments) and not segments[dropped].active and 0 < segments[dropped].size <= excess:
            excess -= segments[dropped].size
            dropped += 1
            reason = f"beyond retention.bytes={config.retention_bytes}"
    if not dropped:
        return None
    last = segments[dropped - 1]
    return Cut(last.next, last.active, reason)


def _newest(segment: SegmentInfo) -> int:
    return segment.max_timestamp if segment.max_timestamp >= 0 else segment.modified_ms


@dataclass(slots=True)
class _Look:
    """One look at all partitions."""

    expired_ms: int
    """Who produced last before this is forgotten."""
    moved: int = 0
    """Logs that were cut."""
    unopened: list[Partition] = field(default_factory=list)
    """What was still being opened, and is left to the next pass."""


class Retention:
    """Applies retention to every partition, now and then or on demand.

    Args:
        topics: Of which partitions.
        partitions: Has them.
        clock: What time it is.
        check_interval_ms: Time between two passes.
        producer_id_expiration_ms: After this time an idle producer is forgotten.
        unreadable: Whether the settings that say how long records are kept cannot be read.
        spawn: Starts a task of the gateway.
    """

    FIRST: Final = 30.0
    """Seconds after the start until the first pass, as in Kafka."""

    def __init__(
        self,
        topics: TopicTable,
        partitions: PartitionTable,
        clock: Clock,
        *,
        check_interval_ms: Live[int],
        producer_id_expiration_ms: Live[int],
        unreadable: Live[bool],
        spawn: Callable[..., TaskHandle],
    ) -> None:
        self._topics = topics
        self._partitions = partitions
        self._clock = clock
        self._spawn = spawn
        self._check_interval_ms = check_interval_ms
        self._producer_id_expiration_ms = producer_id_expiration_ms
        self._unreadable = unreadable
        self._running = anyio.Lock()
        self._changed = Wakeup()
        self._under_way: dict[Partition, TaskHandle] = {}
        """What looks at partitions, of this pass or of an earlier one that their store has not answered."""

    def reconfigure(self) -> None:
        """The interval may have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Apply retention every `log.retention.check.interval.ms`, for ever."""
        last, most = self._clock.now(), self.FIRST
        try:
            while True:
                pause = last + min(most, self._interval()) - self._clock.now()
                if not await self._changed.wait(max(0.0, pause)):
                    await self.apply()
                    last, most = self._clock.now(), inf
        finally:  # the gateway closes: what an earlier pass has left
            with anyio.CancelScope(shield=True):
                await self._end()

    def _interval(self) -> float:
        return self._check_interval_ms() / 1000

    async def apply(self) -> int:
        """Apply retention to all partitions, and forget idle producers; how many logs were cut."""
        if self._unreadable():
            logger.error("nothing is removed: the broker settings, which may say how long, cannot be read")
            return 0
        async with self._running:
            look = _Look(self._clock.wall_ms() - self._producer_id_expiration_ms())
            try:
                for record, partition in self._all():
                    if partition not in self._under_way:
                        with anyio.move_on_after(_LONG_S):  # one after the other, but for those that take long
                            await self._begin(record, partition, look).wait()
                with anyio.move_on_after(_PATIENCE_S):
                    for task in list(self._under_way.values()):
                        await task.wait()
            except BaseException:  # cancelled: its tasks use what is closed next
                with anyio.CancelScope(shield=True):
                    await self._end()
                raise
            for partition in self._under_way:
                logger.warning(
                    "retention of %s waits for its store: until that answers, passes leave it out", partition
                )
            if look.unopened:  # one line: after a topic of thousands of partitions was created there are as many
                logger.warning(
                    "%d partitions are still being opened (%s is one), retention comes to them in its next pass",
                    len(look.unopened), look.unopened[0],
                )  # fmt: skip
            return look.moved

    def _begin(self, record: TopicRecord, partition: Partition, look: _Look) -> TaskHandle:
        """Look at a partition in a task of its own, which outlives the pass where the store does not answer it."""
        task = self._spawn(self._apply_or_warn, record, partition, look, name=f"retention of {partition}")
        self._under_way[partition] = task
        task.on_done(lambda _: self._under_way.pop(partition))
        return task

    async def _end(self) -> None:
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        for task in tasks:
            await task.wait()

    def _all(self) -> Iterator[tuple[TopicRecord, Partition]]:
        for record in self._topics:
            for index in range(record.partitions):
                partition = self._partitions.of(record, index)
                if partition is not None:  # else another gateway leads it, or the topic was deleted meanwhile
                    yield record, partition

    async def _apply_or_warn(self, record: TopicRecord, partition: Partition, look: _Look) -> None:
        try:
            if await self._apply(partition):
                look.moved += 1
        except (KafkaError, OSError) as error:
            if not record.gone and partition.being_opened:
                look.unopened.append(partition)
            elif isinstance(error, FencedError | NotLeaderOrFollowerError):
                logger.debug("%s is left to the gateway that leads it now: %s", partition, error)
            elif not record.gone:
                logger.warning("retention of %s failed, the next pass tries again: %s", partition, error)
        finally:
            partition.log.expire(look.expired_ms)  # also of one that cannot be opened

    async def _apply(self, partition: Partition) -> bool:
        await partition.ready()
        segments, config = await partition.segments(), partition.config
        durable = partition.log.high_watermark  # what is not may fail, and its offsets be given to younger records
        found = cut(segments, config, self._clock.wall_ms())
        if found is None:
            return False
        if found.roll:
            with anyio.move_on_after(_PATIENCE_S) as waiting:
                await partition.settled()
            if waiting.cancelled_caught:
                logger.warning("retention of %s waits for its store, the next pass tries again", partition)
                return False
            await partition.stored_in.roll()
        if partition.config is not config:  # changed meanwhile: the next pass heeds it
            return False
        before = partition.log.start_offset
        await partition.trim(min(found.before, durable))
        if partition.log.start_offset > before:
            logger.info("%s: the log starts at %d now, what came before was %s", partition,
                        partition.log.start_offset, found.reason)  # fmt: skip
        return partition.log.start_offset > before
