"""Handing out what was fetched: as lists of records, one by one, or as Arrow columns.

Runs in the caller's thread or task. Positions move only when everything that can fail is done: a call that failed has
handed out nothing. The exception of a signal handler may come at any time: positions that were moved for what nobody
got go back (`put_back`), and a change that was broken off has everything fetched again (`FetchBuffer.start_over`).
The task that fetches is woken before a change is over; it has to wait for the lock.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeAlias

from kclient.consumer.fetch.completed_fetch import ENOUGH, with_partition
from kclient.consumer.fetch.interception import Interception, UndecodedRecords
from kclient.consumer.records import ConsumerRecords
from kclient.consumer.reset import ResetKind
from kclient.errors import CorruptRecordError, KafkaError, LogTruncationError, OffsetOutOfRangeError
from kclient.records import ArrowChunk, decode_arrow_some, decode_records, decode_some
from kclient.reentry import reentered
from kclient.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kclient.concurrency import MomentLock, Wakeup
    from kclient.consumer.fetch.buffer import FetchBuffer
    from kclient.consumer.fetch.completed_fetch import CompletedFetch
    from kclient.consumer.interfaces import ConsumerInterceptor
    from kclient.consumer.metrics import FetchMetrics
    from kclient.consumer.subscription import SubscriptionState
    from kclient.records import ConsumerRecord

logger: logging.Logger = logging.getLogger("kclient.consumer")

_Used: TypeAlias = "tuple[CompletedFetch, int | None]"
"""A completed fetch, and the offset up to which it was taken, or None if it was taken whole."""


class FetchCollector:
    """Takes completed fetches off the buffer of one consumer.

    Args:
        lock: Guards the state machines.
        subscriptions: The positions.
        buffer: What was fetched.
        metrics: Count records.
        wakeup: Of the task that fetches: there is room again.
        max_poll_records: `max.poll.records`.
        decode_options: Arguments for `records.decode_records`.
        interceptors: See what is handed out.
    """

    def __init__(
        self,
        *,
        lock: MomentLock,
        subscriptions: SubscriptionState,
        buffer: FetchBuffer,
        metrics: FetchMetrics,
        wakeup: Wakeup,
        max_poll_records: int,
        decode_options: Mapping[str, Any],
        interceptors: Sequence[ConsumerInterceptor],
    ) -> None:
        self._lock = lock
        self._subscriptions = subscriptions
        self._buffer = buffer
        self._metrics = metrics
        self._wakeup = wakeup
        self._max_poll_records = max_poll_records
        self._options = decode_options
        self._column_options = {name: self._options[name] for name in ("check_crcs", "max_decompressed")}
        self._interception = Interception(interceptors)
        # one by one
        self._completed: CompletedFetch | None = None
        self._list: list[ConsumerRecord] = []
        self._index = 0

    # ------------------------------------------------------------------ not handed out after all

    def put_back(self) -> None:
        """Go back to where the records begin that were taken and that nobody got: the call was interrupted."""
        if self._buffer.taken is None:
            return
        with self._lock:
            self._wakeup.set()
            self._buffer.put_back()

    def _start_over(self) -> None:
        """Under the lock: a change was broken off."""
        self._wakeup.set()
        self._buffer.start_over()

    # ------------------------------------------------------------------ lists

    def take(self, limit: int | None = None) -> ConsumerRecords | None:
        """Up to so many records, or `max.poll.records`; None if nothing is there.

        Raises:
            KafkaError: The next thing is an error, of a partition or a record.
        """
        while True:
            parts = self._parts(limit or self._max_poll_records)
            if not parts:
                return None
            taken: dict[TopicPartition, list[ConsumerRecord]] = {}
            for completed, part in parts:
                if part:
                    tp = completed.state.tp
                    taken[tp] = taken[tp] + part if tp in taken else part
            records = self._pack(taken, parts) if taken else None
            used_up = False
            with self._lock:
                self._buffer.changing = True
                if records:
                    self._buffer.taken = {}
                for completed, part in parts:
                    if self._buffer.still_there(completed):  # no interceptor went elsewhere
                        if records:
                            self._buffer.note(completed.state)
                        used_up = self._buffer.advance(completed, len(part)) or used_up
                if used_up:
                    self._wakeup.set()
                self._buffer.changing = False
            if records is not None:
                for completed, part in parts:
                    if part:
                        self._metrics.handed_out(completed.state, len(part))
                return records

    def _parts(self, limit: int) -> list[tuple[CompletedFetch, list[ConsumerRecord]]]:
        """Up to `limit` records off the first fetches, all decoded; nothing has moved yet. Empty if nothing is there.

        Raises:
            KafkaError: The first thing is an error, of a partition or a record.
        """
        head = self._open_head()
        if head is None:
            return []
        parts = [(head, _part(head, limit))]
        left = limit - len(parts[0][1])
        room = ENOUGH - head.opened
        if left <= 0 or head.broken or room <= 0:
            return parts
        with self._lock:
            others = [completed for completed in self._buffer.available() if completed is not head]
        # partitions of which a fetch has more to open: what was fetched behind it waits
        unfinished = {head.state.tp} if head.rest is not None else set()
        for completed in others:
            if completed.error is not None or room <= 0:
                break
            if completed.state.tp in unfinished:
                continue
            if completed.records is None:
                try:
                    completed.decode(decode_some, room, **self._options)
                except KafkaError:
                    break  # raised when its turn has come
            part = _part(completed, left)
            parts.append((completed, part))
            left -= len(part)
            room -= completed.opened
            if left <= 0 or completed.broken:  # behind a broken one everything is fetched again
                break
            if completed.rest is not None:
                unfinished.add(completed.state.tp)
        return parts

    def _pack(
        self,
        taken: dict[TopicPartition, list[ConsumerRecord]],
        parts: list[tuple[CompletedFetch, list[ConsumerRecord]]],
    ) -> ConsumerRecords:
        """What poll returns, as the interceptors want it: they may be interrupted, so this is before positions move."""
        next_offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        for completed, part in parts:
            if completed.state.tp in taken:
                offset, epoch = completed.place_behind(len(part))
                next_offsets[completed.state.tp] = OffsetAndMetadata(offset, "", epoch)
        return self._interception.show(ConsumerRecords(taken, next_offsets))

    def _open_head(self) -> CompletedFetch | None:
        """The first completed fetch that may be handed out, decoded; None if there is none.

        Raises:
            KafkaError: Its turn has come, and it is an error.
        """
        while True:
            with self._lock:
                if self._buffer.changing:
                    self._start_over()
                completed = self._buffer.head()
            if completed is None:
                return None
            if completed.error is not None:
                self._deal_with(completed)
                continue
            if completed.records is None:
                completed.decode(decode_some, **self._options)
            return completed

    def _deal_with(self, completed: CompletedFetch) -> None:
        """The error's turn has come: go on where `auto.offset.reset` says, or raise it."""
        error = completed.error
        assert error is not None
        tp = completed.state.tp
        policy = self._subscriptions.default_policy
        resets = policy.kind is not ResetKind.NONE and isinstance(error, LogTruncationError | OffsetOutOfRangeError)
        with self._lock:
            if not self._buffer.still_there(completed):  # the metadata told in this moment that the topic is another
                return
            self._buffer.changing = True
            self._buffer.finish(completed)
            if resets and isinstance(error, LogTruncationError):
                self._subscriptions.seek(tp, completed.next_offset, completed.epoch)
            elif resets:
                self._subscriptions.reset(tp)
            self._wakeup.set()
            self._buffer.changing = False
        if resets:
            logger.warning("%s; going on, because auto.offset.reset is %s", error, policy.kind.value)
            return
        if isinstance(error, LogTruncationError | OffsetOutOfRangeError):
            error.message += (
                ", and auto.offset.reset is none: seek to a position, or set auto.offset.reset to earliest, latest or "
                "by_duration"
            )
        raise error

    # ------------------------------------------------------------------ one by one

    def next_record(self) -> ConsumerRecord | None:
        """The next record of those at hand, or None if `refill` has to be called; for iteration.

        The record before it counts as processed from now on.
        """
        completed = self._completed
        if completed is None or self._index >= len(self._list):
            return None
        state = completed.state
        if completed.version != state.version or state.paused:
            return None
        record = self._list[self._index]
        self._index += 1
        return record

    def refill(self) -> bool | None:
        """Have records at hand for `next_record`; None if there are none.

        Raises:
            KafkaError: The next thing is an error, of a partition or a record.
        """
        self.settle()
        while True:
            completed = self._open_head()
            if completed is None:
                return None
            assert completed.records is not None
            if completed.index < len(completed.records):
                break
            with self._lock:
                self._buffer.changing = True
                if self._buffer.still_there(completed):
                    self._buffer.advance(completed, 0)
                self._wakeup.set()
                self._buffer.changing = False
        with self._lock:
            if self._buffer.still_there(completed):  # what is stored of these records is stored before they are settled
                completed.state.read_id = completed.state.topic_id
        self._completed = completed
        self._list = completed.records
        self._index = completed.index
        return True

    def settle(self) -> None:
        """Bring the position to where the user is: behind the records that were handed out one by one.

        Raises:
            IllegalStateError: This is a signal handler that came amid a change, which must be whole first.
        """
        if self._lock.held:
            raise reentered()
        if self._buffer.taken is not None:
            self.put_back()
        if self._completed is None:
            return
        with self._lock:  # another thread may close the consumer
            completed = self._completed
            if completed is not None and completed.records is self._list and self._buffer.still_there(completed):
                count = self._index - completed.index
                if count:
                    # first of all, and as a whole: whatever is broken off from here on, they have been handed out
                    self._buffer.move(completed, count)
                    if self._buffer.changing:
                        self._start_over()
                    self._buffer.changing = True
                    self._metrics.handed_out(completed.state, count)
                    if self._buffer.still_there(completed) and self._buffer.advance(completed, count):
                        self._wakeup.set()
                    self._buffer.changing = False
            self._completed = None

    # ------------------------------------------------------------------ columns

    def take_arrow(self, columns: Sequence[str], most: int | None = None) -> Any:
        """What is there as a `pyarrow.RecordBatch` of these columns; None if nothing is.

        Args:
            columns: Their names.
            most: Bytes after decompression behind which no further batch is opened; None for the usual.

        Raises:
            KafkaError: The next thing is an error.
            MissingExtraError: pyarrow is not installed.
        """
        while True:
            fetches = self._ready_fetches(most or ENOUGH)
            if not fetches:
                return None
            if fetches[0].error is not None:
                self._deal_with(fetches[0])
                continue
            batch, used = self._columns(fetches, columns, most)
            rows = batch.num_rows
            if rows and self._interception:
                batch = self._interception.show_columns(batch, self._undecoded(used))
            with self._lock:
                self._buffer.changing = True
                if batch.num_rows:
                    self._buffer.taken = {}
                for completed, end in used:
                    if not self._buffer.still_there(completed):  # an interceptor went elsewhere
                        continue
                    if batch.num_rows:
                        self._buffer.note(completed.state)
                    if end is None:
                        self._buffer.finish(completed)
                    else:
                        self._buffer.advance_to(completed, end)
                self._wakeup.set()
                self._buffer.changing = False
            if rows:
                self._metrics.handed_out_rows((completed.state for completed, _ in used), rows)
            if batch.num_rows:
                return batch

    def _undecoded(self, used: list[_Used]) -> ConsumerRecords:
        """The records of completed fetches, with keys and values as bytes."""
        places = {completed.state.tp: _place_at(completed, end) for completed, end in used}
        columns = [
            _columns_of(completed, completed.next_offset if completed.broken and end is None else end)
            for completed, end in used
        ]
        options = self._column_options

        def load() -> dict[TopicPartition, list[ConsumerRecord]]:
            made: dict[TopicPartition, list[ConsumerRecord]] = {}
            for one in columns:
                records = decode_records(
                    one.buffer,
                    one.topic,
                    one.partition,
                    start_offset=one.start_offset,
                    end_offset=one.end_offset,
                    aborted=one.aborted,
                    **options,
                )
                if records:
                    made.setdefault(TopicPartition(one.topic, one.partition), []).extend(records)
            return made

        return UndecodedRecords(load, places)

    def _ready_fetches(self, most: int) -> list[CompletedFetch]:
        """The first completed fetches, up to an error (which comes alone) or so many bytes as they were fetched."""
        chosen: list[CompletedFetch] = []
        size = 0
        with self._lock:
            if self._buffer.changing:
                self._start_over()
            for completed in self._buffer.available():
                completed.forget_broken()
                if chosen and (completed.error is not None or size + completed.size > most):
                    break
                chosen.append(completed)
                size += completed.size
                if completed.error is not None:
                    break
        return chosen

    def _columns(
        self, fetches: list[CompletedFetch], columns: Sequence[str], most: int | None
    ) -> tuple[Any, list[_Used]]:
        """As much of the completed fetches as `most` or `ENOUGH` allows, and what that is of."""
        options = self._column_options
        enough = most or max(ENOUGH, sum(completed.size for completed in fetches))
        try:
            wanted = [_columns_of(completed) for completed in fetches]
            batch, whole, end = decode_arrow_some(wanted, enough, columns=columns, **options)
        except KafkaError as error:
            if len(fetches) > 1:  # all but the broken one are fine
                return self._columns(fetches[: len(fetches) // 2], columns, most)
            first = fetches[0]
            broken = error.offset if isinstance(error, CorruptRecordError) else None
            if broken is None or broken <= max(first.start_offset, first.state.position):
                raise with_partition(error, first.state.tp) from error.__cause__
            cut = [_columns_of(first, broken)]
            batch, whole, end = decode_arrow_some(cut, enough, columns=columns, **options)
            if whole:
                first.broken = True
                first.next_offset = broken
        used: list[_Used] = [(completed, None) for completed in fetches[:whole]]
        return batch, used if end is None else [*used, (fetches[whole], end)]


def _place_at(completed: CompletedFetch, end: int | None) -> OffsetAndMetadata:
    """Behind a whole completed fetch, or at an offset in it."""
    if end is not None:
        return OffsetAndMetadata(end, "", completed.epoch_before(end))
    return OffsetAndMetadata(completed.next_offset, "", completed.state.epoch if completed.broken else completed.epoch)


class InterceptedFetchCollector(FetchCollector):
    """One whose interceptors see each record of an iteration.

    A class of its own, because what nobody intercepts is counted in nanoseconds.
    """

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self._seen: list[ConsumerRecord] = []
        """What interceptors returned beyond one record for the one they were shown."""

    def next_record(self) -> ConsumerRecord | None:
        """As without interceptors: they are shown each record when it is about to be handed out."""
        while not self._seen:
            record = super().next_record()
            completed = self._completed
            if record is None or completed is None:
                return None
            try:
                place = OffsetAndMetadata(record.offset + 1, "", record.leader_epoch)
                shown = self._interception.show(
                    ConsumerRecords({completed.state.tp: [record]}, {completed.state.tp: place})
                )
                self._seen.extend(shown)
            except BaseException:  # they were interrupted: it has not been handed out
                self._index -= 1
                self._seen = []  # no call, which a second signal could come behind
                raise
        found = self._seen[0]
        del self._seen[0]  # unlike `pop`, which a signal may come behind
        return found

    def settle(self) -> None:
        super().settle()
        self._seen.clear()


def _part(completed: CompletedFetch, limit: int) -> list[ConsumerRecord]:
    """The next records of a decoded completed fetch; the list itself where nothing has to be cut off."""
    records = completed.records
    assert records is not None
    start = completed.index
    return records if start == 0 and len(records) <= limit else records[start : start + limit]


def _columns_of(completed: CompletedFetch, end_offset: int | None = None) -> ArrowChunk:
    topic, partition = completed.state.tp
    start = max(completed.start_offset, completed.state.position)
    return ArrowChunk(topic, partition, completed.data, start, end_offset, completed.aborted)
