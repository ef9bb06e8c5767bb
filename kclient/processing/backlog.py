"""What was read and is not committed yet: a state machine without clock or I/O.

Of each partition it knows where a transaction that is aborted goes back to, how far the present one has come, and which
records wait. A record that failed keeps what was decided about it until its offset is committed, so that it is not
asked about anew after an abort.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING

from kclient.consumer import ConsumerRecords
from kclient.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kclient.consumer import ConsumerRecord
    from kclient.processing.failures import FailureAction


@dataclass(slots=True)
class RecordTrouble:
    """What is known of records that failed, by the offset of the first."""

    last: int
    """Offset of the last of them."""
    attempts: int = 0
    not_before: float = 0.0
    """Time of the next attempt."""
    action: FailureAction | None = None
    """What was decided, and could not be carried out yet."""
    error: Exception | None = None
    """The last one."""


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """What the function is given at once: a record, or the records of a partition that a poll returned."""

    partition: TopicPartition
    records: tuple[ConsumerRecord, ...]
    following: OffsetAndMetadata
    """What to commit once it is processed."""

    @property
    def offset(self) -> int:
        """Offset of the first record."""
        return self.records[0].offset

    def as_records(self) -> ConsumerRecords:
        """What a function for batches gets."""
        return ConsumerRecords({self.partition: self.records}, {self.partition: self.following})


@dataclass(slots=True)
class _PartitionWork:
    base: OffsetAndMetadata
    """Where reading goes on after an abort: what is committed, or where it began."""
    done: OffsetAndMetadata | None = None
    """What the transaction commits; None if it holds nothing of the partition."""
    waiting: deque[ConsumerRecord] = field(default_factory=deque)
    behind: OffsetAndMetadata | None = None
    """The position behind all that waits."""
    troubles: dict[int, RecordTrouble] = field(default_factory=dict)
    unread: RecordTrouble | None = None
    """That of a record which the consumer could not make sense of, and is to try again."""
    ahead: bool = True
    """Whether more was read than is committed, so that an abort has to go back."""

    @property
    def place(self) -> OffsetAndMetadata:
        """How far it has come; what is read next lies there or behind."""
        return self.base if self.done is None else self.done


class Backlog:
    """The records that are being processed.

    Args:
        batch: Whether everything that waits of a partition is one unit.
    """

    def __init__(self, *, batch: bool = False) -> None:
        self._batch = batch
        self._work: dict[TopicPartition, _PartitionWork] = {}

    # ------------------------------------------------------------------ reading

    def add(self, records: ConsumerRecords) -> None:
        """A poll returned records."""
        behind = records.next_offsets
        for tp in records.partitions():
            found = records.records(tp)
            work = self._work.get(tp)
            if work is None or found[0].offset < work.place.offset:
                # new here; or the topic was deleted and created again, and what is known is of the one before
                work = self._work[tp] = _PartitionWork(OffsetAndMetadata(found[0].offset))
            work.waiting.extend(found)
            work.unread = None
            work.ahead = True
            work.behind = behind.get(tp) or _following(found[-1])

    @property
    def partitions(self) -> list[TopicPartition]:
        """Those of which anything is known."""
        return list(self._work)

    def held(self, now: float) -> list[TopicPartition]:
        """The partitions of which nothing more is to be read: records wait, or one is to be read again later."""
        for work in self._work.values():
            if work.unread is not None and work.unread.not_before <= now:
                work.unread = None
        return [tp for tp, work in self._work.items() if work.waiting or work.unread is not None]

    # ------------------------------------------------------------------ processing

    def ready(self, now: float) -> list[TopicPartition]:
        """The partitions that have something to process now."""
        return [tp for tp, work in self._work.items() if work.waiting and _not_before(work) <= now]

    @property
    def next_attempt(self) -> float | None:
        """When something that failed is to be tried again; None if nothing is."""
        times = [_not_before(work) for work in self._work.values() if work.waiting]
        times += [work.unread.not_before for work in self._work.values() if work.unread is not None]
        return min(times, default=None)

    def next_unit(self, tp: TopicPartition, now: float) -> WorkUnit | None:
        """The next records of a partition; None if none are due. They wait until `processed`."""
        work = self._work.get(tp)
        if work is None or not work.waiting or _not_before(work) > now:
            return None
        records = self._together(work) if self._batch else (work.waiting[0],)
        all_of_it = len(records) == len(work.waiting) and work.behind is not None
        following = work.behind if all_of_it and work.behind is not None else _following(records[-1])
        return WorkUnit(tp, records, following)

    @staticmethod
    def _together(work: _PartitionWork) -> tuple[ConsumerRecord, ...]:
        """The next batch; after an abort what failed is what it was, however the records were read this time."""
        first = work.waiting[0].offset
        trouble = _trouble(work, first)
        if trouble is not None:
            return tuple(record for record in work.waiting if record.offset <= trouble.last)
        end = min((offset for offset in work.troubles if offset > first), default=None)
        return tuple(record for record in work.waiting if end is None or record.offset < end)

    def run(self, tp: TopicPartition) -> tuple[ConsumerRecord, ...]:
        """The next records of a partition of which none has failed before; none where batches are wanted."""
        work = self._work.get(tp)
        if work is None or self._batch or not work.waiting:
            return ()
        if not work.troubles:
            return tuple(work.waiting)
        return tuple(takewhile(lambda record: _trouble(work, record.offset) is None, work.waiting))

    def processed_run(self, tp: TopicPartition, count: int) -> None:
        """So many records of a run are complete."""
        if not count:
            return
        work = self._work[tp]
        for _ in range(count):
            last = work.waiting.popleft()
        work.done = _following(last) if work.waiting or work.behind is None else work.behind

    def processed(self, unit: WorkUnit) -> None:
        """A unit is complete: written, skipped, or nothing was to be written."""
        work = self._work[unit.partition]
        for _ in unit.records:
            work.waiting.popleft()
        work.done = unit.following

    def passed_over(self, tp: TopicPartition, offset: int) -> None:
        """A record that could not even be read is left out; nothing of its partition waits."""
        work = self._work.setdefault(tp, _PartitionWork(OffsetAndMetadata(offset)))
        work.done = OffsetAndMetadata(offset + 1)
        work.unread = None
        work.ahead = True

    def put_off(self, tp: TopicPartition, trouble: RecordTrouble) -> None:
        """A record that could not even be read is tried again later; nothing of its partition is read until then."""
        self._work[tp].unread = trouble

    # ------------------------------------------------------------------ failures

    def trouble(self, tp: TopicPartition, offset: int) -> RecordTrouble | None:
        """What is known of a record that failed before."""
        work = self._work.get(tp)
        return None if work is None else _trouble(work, offset)

    def failed(self, tp: TopicPartition, offset: int, last: int, error: Exception) -> RecordTrouble:
        """Records failed, once more: from an offset to another one."""
        work = self._work.setdefault(tp, _PartitionWork(OffsetAndMetadata(offset)))
        trouble = _trouble(work, offset) or work.troubles.setdefault(offset, RecordTrouble(last))
        trouble.attempts += 1
        trouble.error = error
        return trouble

    # ------------------------------------------------------------------ the end of a transaction

    @property
    def offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the transaction has to commit."""
        return {tp: work.done for tp, work in self._work.items() if work.done is not None}

    def committed(self) -> None:
        """The transaction is committed."""
        for work in self._work.values():
            if work.done is not None:
                work.base, work.done = work.done, None
                work.ahead = bool(work.waiting)
                work.troubles = {first: kept for first, kept in work.troubles.items() if kept.last >= work.base.offset}

    def rewind(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Forget everything that is not committed; returns where to read on, of partitions that were read further."""
        for work in self._work.values():
            work.waiting.clear()
            work.done = work.behind = work.unread = None
        return {tp: work.base for tp, work in self._work.items() if work.ahead}

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """These partitions are not ours any more."""
        for tp in partitions:
            self._work.pop(tp, None)


def _following(record: ConsumerRecord) -> OffsetAndMetadata:
    return OffsetAndMetadata(record.offset + 1, leader_epoch=record.leader_epoch)


def _not_before(work: _PartitionWork) -> float:
    trouble = _trouble(work, work.waiting[0].offset)
    return 0.0 if trouble is None else trouble.not_before


def _trouble(work: _PartitionWork, offset: int) -> RecordTrouble | None:
    """That of the records which an offset is of: of a batch, less may be read at once after an abort."""
    found = work.troubles.get(offset)
    if found is None:
        found = next((kept for first, kept in work.troubles.items() if first <= offset <= kept.last), None)
    return found
