"""What share groups read of the partitions that this gateway leads: found, read at first use, released in time."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final

import anyio

from kclient.errors import KafkaStorageError
from kclient.gateway.leadership import Tenure
from kclient.gateway.partition_id import PartitionId
from kclient.gateway.partition_life import moved
from kclient.gateway.partitions import while_it_runs
from kclient.gateway.rows.keys import SHARED_TOPICS, parse_shared_topic_key
from kclient.gateway.rows.share_partitions import SHARED_TOPIC
from kclient.gateway.settings_of_shares import EARLIEST
from kclient.gateway.shares.led import SHARE, LedShare

if TYPE_CHECKING:
    from kclient.gateway.clock import Clock
    from kclient.gateway.fenced_writer import FencedWriter
    from kclient.gateway.leadership import Leadership
    from kclient.gateway.partition import Partition
    from kclient.gateway.partitions import PartitionTable
    from kclient.gateway.shares.settings import DeliverySettings
    from kclient.gateway.shields import Shields
    from kclient.gateway.topics.record import TopicRecord
    from kclient.htp.port import Change, Manager
    from kclient.memory_ledger import LimitedAccount

logger: logging.Logger = logging.getLogger("kclient.gateway.shares")

_STALE: Final = 64
"""So many entries of the heap may be of what has ended, beside as many as are not."""
_LOOKED_AT: Final = 128
"""So many partitions are looked at for one that can be given up, before there is said to be none."""


class ShareTable:
    """The partitions in use by share groups.

    Args:
        partitions: Those that this gateway leads.
        leadership: Tells when that changes.
        manager: Keeps what was delivered.
        writer: Writes it.
        settings: Of a group.
        find_by_time: Offset and timestamp of the first record of a partition that is not older than a time, in
            milliseconds since the epoch; None if there is none.
        is_read: Whether members of a group have sessions here.
        clock: What time it is.
        shields: Keep a write from being left half done.
        memory: Where it counts.
        spawn: Starts a task of the gateway.
    """

    prefixes: tuple[str, ...] = (SHARED_TOPICS,)
    """What it follows in the log of changes."""

    def __init__(
        self,
        partitions: PartitionTable,
        leadership: Leadership,
        *,
        manager: Manager,
        writer: FencedWriter,
        settings: Callable[[str], DeliverySettings],
        find_by_time: Callable[[Partition, int], Awaitable[tuple[int, int] | None]],
        is_read: Callable[[str], bool],
        clock: Clock,
        shields: Shields,
        memory: LimitedAccount,
        spawn: Callable[..., object],
    ) -> None:
        self._partitions = partitions
        self._leadership = leadership
        self._manager = manager
        self._writer = writer
        self.settings: Callable[[str], DeliverySettings] = settings
        self._find_by_time = find_by_time
        self._is_read = is_read
        self._clock = clock
        self._shields = shields
        self._memory = memory
        self._spawn = while_it_runs(spawn)
        self._groups: dict[str, dict[PartitionId, LedShare]] = {}
        self._known = 0
        self._candidates: Iterator[LedShare] = iter(())
        """Those to be looked at next when memory is short: all in turn, however many ask for it."""
        self._heap: list[tuple[float, int, LedShare]] = []
        self._order = count()
        self._sooner = anyio.Event()
        leadership.on_change(self._forget_moved)

    def __len__(self) -> int:
        return self._known

    # Finding

    def get(self, group_id: str, key: PartitionId) -> LedShare | None:
        """What is known here of a partition that a group reads; None if nothing is."""
        return self._groups.get(group_id, {}).get(key)

    def find(self, group_id: str, record: TopicRecord, index: int) -> LedShare:
        """A partition that a group reads; one that is not known here begins to be read.

        Args:
            group_id: The group.
            record: The topic.
            index: The partition's number.

        Raises:
            UnknownTopicOrPartitionError: There is no such partition.
            NotLeaderOrFollowerError: Another gateway leads it.
            KafkaStorageError: There is no memory for more.
        """
        key = PartitionId(record.topic_id, index)
        known = self.get(group_id, key)
        try:
            partition = self._partitions.check(record, index)
        except Exception:
            if known is not None:
                self._drop(known)
            raise
        if known is not None:
            if known.is_here and known.partition is partition:
                return known
            self._drop(known)
        self._make_room()
        made = LedShare(
            group_id, record, partition,
            manager=self._manager, writer=self._writer, shields=self._shields, memory=self._memory,
            first_offset=self._first_offset, spawn=self._spawn, when_saved=self._saved,
        )  # fmt: skip
        self._groups.setdefault(group_id, {})[key] = made
        self._known += 1
        made.load_soon()
        return made

    def _make_room(self) -> None:
        if self._memory.has_room(SHARE):
            return
        for _ in range(_LOOKED_AT):
            share = next(self._candidates, None)
            if share is None:
                self._candidates = self._in_turn()
            elif share.is_idle:
                self._drop(share)
                if self._memory.has_room(SHARE):
                    return
        raise KafkaStorageError(
            "there is no memory for more partitions of share groups: start the gateway with a higher "
            "connections.max.memory.bytes"
        )

    def _in_turn(self) -> Iterator[LedShare]:
        """All of them, one by one, though they come and go meanwhile."""
        for group_id in list(self._groups):
            for key in list(self._groups.get(group_id, ())):
                share = self.get(group_id, key)
                if share is not None:
                    yield share

    async def _first_offset(self, group_id: str, partition: Partition) -> int:
        """Where a group begins that has read nothing of a partition (`share.auto.offset.reset`)."""
        settings, log = self.settings(group_id), partition.log
        if settings.reset == EARLIEST:
            return log.start_offset
        if settings.reset_ms is not None:
            found = await self._find_by_time(partition, self._clock.wall_ms() - settings.reset_ms)
            if found is not None:
                return min(found[0], log.high_watermark)
        return log.high_watermark

    # What happens

    def changed(self, share: LedShare, *, freed: bool = True) -> None:
        """Records of a partition were delivered, acknowledged or given back: see to what follows from that.

        Args:
            share: The partition.
            freed: Whether some may have become available.
        """
        share.save()
        share.count()
        if share.records is not None and share.records.deadline < float("inf"):
            self._watch(share, share.records.deadline)
        if freed:
            share.wake()

    def release(self, group_id: str, member_id: str) -> None:
        """A member reads nothing here any more: what it has is given back."""
        most = self.settings(group_id).deliveries
        for share in list(self._groups.get(group_id, {}).values()):
            if share.records is not None and share.records.release(member_id, most=most):
                self.changed(share)
            elif share.ended is not None or (not self._is_read(group_id) and share.is_idle):
                self._drop(share)

    def _saved(self, share: LedShare) -> None:
        if share.ended is not None or (not self._is_read(share.group_id) and share.is_idle):
            self._drop(share)

    def _drop(self, share: LedShare) -> None:
        """It is not known here any more."""
        group = self._groups.get(share.group_id, {})
        if group.get(share.key) is share:
            del group[share.key]
            self._known -= 1
            if not group:
                del self._groups[share.group_id]
        share.end(moved(share))

    def _forget_moved(self) -> None:
        """There is another generation of gateways: what this one does not lead any more is given up."""
        for share in self._all():
            epoch = share.partition.log.leader_epoch
            if not share.is_here or self._leadership.tenure(share.record, share.key.partition, epoch) is Tenure.LOST:
                self._drop(share)

    def _all(self) -> list[LedShare]:
        return [share for group in self._groups.values() for share in group.values()]

    # What others change

    async def apply(self, changes: Sequence[Change]) -> None:
        """Administrators have moved start offsets, or a partition was read for the first time."""
        for key, value, _ in changes:
            group_id, topic_id = parse_shared_topic_key(key)
            try:
                moves = None if value is None else SHARED_TOPIC.decode(value)
            except ValueError:
                moves = None
            for share in list(self._groups.get(group_id, {}).values()):
                if share.key.topic_id == topic_id and share.moves != moves:
                    share.moves = -1 if moves is None else moves
                    share.doubt()

    async def read_all(self) -> None:
        """Some changes are not known: every row is compared before more is delivered."""
        for share in self._all():
            share.doubt()

    # Time

    def _watch(self, share: LedShare, deadline: float) -> None:
        sooner = not self._heap or deadline < self._heap[0][0]
        heapq.heappush(self._heap, (deadline, next(self._order), share))
        if len(self._heap) > 2 * len(self) + _STALE:
            self._rebuild()
        if sooner:
            news, self._sooner = self._sooner, anyio.Event()
            news.set()

    def _rebuild(self) -> None:
        """Forget entries that say nothing any more: of each one the first is enough."""
        first: dict[LedShare, tuple[float, int, LedShare]] = {}
        for entry in self._heap:
            share = entry[2]
            if share.ended is None and (share not in first or entry < first[share]):
                first[share] = entry
        self._heap = list(first.values())
        heapq.heapify(self._heap)

    async def run(self) -> None:
        """Give back what members have kept too long, until the gateway closes."""
        while True:
            news = self._sooner
            left = self._heap[0][0] - self._clock.now() if self._heap else None
            if left is None:
                await news.wait()
            elif left > 0:
                with anyio.move_on_after(left):
                    await news.wait()
            else:
                self._expire(heapq.heappop(self._heap)[2])
                await anyio.lowlevel.checkpoint()

    def _expire(self, share: LedShare) -> None:
        records = share.records
        if records is None:
            return
        most = self.settings(share.group_id).deliveries
        if records.expire(self._clock.now(), most=most):
            logger.info("%s: records were acquired for too long, and are given back", share)
            self.changed(share)
        elif records.deadline < float("inf"):
            self._watch(share, records.deadline)
