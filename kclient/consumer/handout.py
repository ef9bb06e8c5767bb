"""Handing out what was fetched: as lists of records, one by one, or as Arrow columns.

Runs in the caller's thread or task. Positions move only when everything that can fail is done, in one go with the
return: an interrupted or failed call has handed out nothing.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

from kclient.consumer.chunk import ENOUGH, with_partition
from kclient.consumer.interception import Interception, UndecodedRecords
from kclient.consumer.records import ConsumerRecords
from kclient.consumer.reset import ResetKind
from kclient.errors import CorruptRecordError, KafkaError, LogTruncationError, OffsetOutOfRangeError
from kclient.records import ArrowChunk, decode_arrow_some, decode_records, decode_some
from kclient.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from kclient.consumer.chunk import Chunk
    from kclient.consumer.core import ConsumerCore
    from kclient.records import ConsumerRecord

logger: logging.Logger = logging.getLogger("kclient.consumer")

_Used: TypeAlias = "tuple[Chunk, int | None]"
"""A chunk, and the offset up to which it was taken, or None if it was taken whole."""


class HandOut:
    """Takes chunks off the fetcher for one consumer."""

    def __init__(self, core: ConsumerCore) -> None:
        self._core = core
        self._fetcher = core.fetcher
        self._options = core.plan.decode_options
        self._column_options = {name: self._options[name] for name in ("check_crcs", "max_decompressed")}
        self._interception = Interception(core.plan.interceptors)
        # one by one
        self._chunk: Chunk | None = None
        self._list: list[ConsumerRecord] = []
        self._index = 0
        self._settled = 0

    # ------------------------------------------------------------------ lists

    def take(self) -> ConsumerRecords | None:
        """Up to `max.poll.records` records; None if nothing is there.

        Raises:
            KafkaError: The next thing is an error, of a partition or a record.
        """
        core = self._core
        while True:
            parts = self._parts(core.plan.max_poll_records)
            if not parts:
                return None
            taken: dict[TopicPartition, list[ConsumerRecord]] = {}
            for chunk, part in parts:
                if part:
                    tp = chunk.state.tp
                    taken[tp] = taken[tp] + part if tp in taken else part
            records = self._pack(taken, parts) if taken else None
            used_up = False
            with core.lock:
                for chunk, part in parts:
                    if self._fetcher.still_there(chunk):  # no interceptor went elsewhere
                        used_up = self._fetcher.advance(chunk, len(part)) or used_up
            if used_up:
                core.fetch_wakeup.set()
            if records is not None:
                core.metrics.records += sum(map(len, taken.values()))
                return records

    def _parts(self, limit: int) -> list[tuple[Chunk, list[ConsumerRecord]]]:
        """Up to `limit` records off the first chunks, all decoded; nothing has moved yet. Empty if nothing is there.

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
        with self._core.lock:
            others = [chunk for chunk in self._fetcher.chunks() if chunk is not head]
        for chunk in others:
            if chunk.error is not None or room <= 0:
                break
            if chunk.records is None:
                try:
                    chunk.decode(decode_some, room, **self._options)
                except KafkaError:
                    break  # raised when its turn has come
            part = _part(chunk, left)
            parts.append((chunk, part))
            left -= len(part)
            room -= chunk.opened
            if left <= 0 or chunk.broken:  # behind a broken one everything is fetched again
                break
        return parts

    def _pack(
        self, taken: dict[TopicPartition, list[ConsumerRecord]], parts: list[tuple[Chunk, list[ConsumerRecord]]]
    ) -> ConsumerRecords:
        """What poll returns, as the interceptors want it: they may be interrupted, so this is before positions move."""
        next_offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        for chunk, part in parts:
            if chunk.state.tp in taken:
                offset, epoch = chunk.place_behind(len(part))
                next_offsets[chunk.state.tp] = OffsetAndMetadata(offset, "", epoch)
        return self._interception.show(ConsumerRecords(taken, next_offsets))

    def _open_head(self) -> Chunk | None:
        """The first chunk that may be handed out, decoded; None if there is none.

        Raises:
            KafkaError: Its turn has come, and it is an error.
        """
        core = self._core
        while True:
            with core.lock:
                chunk = self._fetcher.head()
            if chunk is None:
                return None
            if chunk.error is not None:
                self._deal_with(chunk)
                continue
            if chunk.records is None:
                chunk.decode(decode_some, **self._options)
            return chunk

    def _deal_with(self, chunk: Chunk) -> None:
        """The error's turn has come: go on where `auto.offset.reset` says, or raise it."""
        core = self._core
        error = chunk.error
        assert error is not None
        tp = chunk.state.tp
        policy = core.subscriptions.default_policy
        resets = policy.kind is not ResetKind.NONE and isinstance(error, LogTruncationError | OffsetOutOfRangeError)
        with core.lock:
            if not self._fetcher.still_there(chunk):  # the metadata told in this moment that the topic is another
                return
            self._fetcher.finish(chunk)
            if resets and isinstance(error, LogTruncationError):
                core.subscriptions.seek(tp, chunk.next_offset, chunk.epoch)
            elif resets:
                core.subscriptions.reset(tp)
        core.fetch_wakeup.set()
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
        chunk = self._chunk
        if chunk is None or self._index >= len(self._list):
            return None
        state = chunk.state
        if chunk.version != state.version or state.paused:
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
            chunk = self._open_head()
            if chunk is None:
                return None
            assert chunk.records is not None
            if chunk.index < len(chunk.records):
                break
            with self._core.lock:
                if self._fetcher.still_there(chunk):
                    self._fetcher.advance(chunk, 0)
            self._core.fetch_wakeup.set()
        self._chunk = chunk
        self._list = chunk.records
        self._index = self._settled = chunk.index
        return True

    def settle(self) -> None:
        """Move the position behind the records that were handed out one by one."""
        if self._chunk is None:
            return
        with self._core.lock:  # another thread may close the consumer
            chunk, self._chunk = self._chunk, None
            count = 0 if chunk is None else self._index - self._settled
            if chunk is None or not count:
                return
            self._core.metrics.records += count
            used_up = self._fetcher.still_there(chunk) and self._fetcher.advance(chunk, count)
        if used_up:
            self._core.fetch_wakeup.set()

    # ------------------------------------------------------------------ columns

    def take_arrow(self, include_headers: bool) -> Any:
        """What is there as a `pyarrow.RecordBatch`; None if nothing is.

        Raises:
            KafkaError: The next thing is an error.
            MissingExtraError: pyarrow is not installed.
        """
        core = self._core
        while True:
            chunks = self._ready_chunks()
            if not chunks:
                return None
            if chunks[0].error is not None:
                self._deal_with(chunks[0])
                continue
            batch, used = self._columns(chunks, include_headers)
            rows = batch.num_rows
            if rows and self._interception:
                batch = self._interception.show_columns(batch, self._undecoded(used))
            with core.lock:
                for chunk, end in used:
                    if not self._fetcher.still_there(chunk):  # an interceptor went elsewhere
                        continue
                    if end is None:
                        self._fetcher.finish(chunk)
                    else:
                        self._fetcher.advance_to(chunk, end)
            core.fetch_wakeup.set()
            core.metrics.records += rows
            if batch.num_rows:
                return batch

    def _undecoded(self, used: list[_Used]) -> ConsumerRecords:
        """The records of chunks, with keys and values as bytes."""
        places = {chunk.state.tp: _place_at(chunk, end) for chunk, end in used}
        columns = [
            _columns_of(chunk, chunk.next_offset if chunk.broken and end is None else end) for chunk, end in used
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

    def _ready_chunks(self) -> list[Chunk]:
        """The first chunks, up to an error (which comes alone) or `ENOUGH` bytes as they were fetched."""
        chosen: list[Chunk] = []
        size = 0
        with self._core.lock:
            for chunk in self._fetcher.chunks():
                if chosen and (chunk.error is not None or size + chunk.size > ENOUGH):
                    break
                chosen.append(chunk)
                size += chunk.size
                if chunk.error is not None:
                    break
        return chosen

    def _columns(self, chunks: list[Chunk], include_headers: bool) -> tuple[Any, list[_Used]]:
        """As much of the chunks as `ENOUGH` allows, and what that is of."""
        options = self._column_options
        enough = max(ENOUGH, sum(chunk.size for chunk in chunks))
        try:
            wanted = [_columns_of(chunk) for chunk in chunks]
            batch, whole, end = decode_arrow_some(wanted, enough, include_headers, **options)
        except KafkaError as error:
            if len(chunks) > 1:  # all but the broken one are fine
                return self._columns(chunks[: len(chunks) // 2], include_headers)
            first = chunks[0]
            broken = error.offset if isinstance(error, CorruptRecordError) else None
            if broken is None or broken <= max(first.start_offset, first.state.position):
                raise with_partition(error, first.state.tp) from error.__cause__
            batch, whole, end = decode_arrow_some([_columns_of(first, broken)], enough, include_headers, **options)
            if whole:
                first.broken = True
                first.next_offset = broken
        used: list[_Used] = [(chunk, None) for chunk in chunks[:whole]]
        return batch, used if end is None else [*used, (chunks[whole], end)]


def _place_at(chunk: Chunk, end: int | None) -> OffsetAndMetadata:
    """Behind a whole chunk, or at an offset in it."""
    if end is not None:
        return OffsetAndMetadata(end, "", chunk.epoch_before(end))
    return OffsetAndMetadata(chunk.next_offset, "", chunk.state.epoch if chunk.broken else chunk.epoch)


class ShownHandOut(HandOut):
    """One whose interceptors see each record of an iteration.

    A class of its own, because what nobody intercepts is counted in nanoseconds.
    """

    def __init__(self, core: ConsumerCore) -> None:
        super().__init__(core)
        self._seen: deque[ConsumerRecord] = deque()
        """What interceptors returned beyond one record for the one they were shown."""

    def next_record(self) -> ConsumerRecord | None:
        """As without interceptors: they are shown each record when it is about to be handed out."""
        while not self._seen:
            record = super().next_record()
            chunk = self._chunk
            if record is None or chunk is None:
                return None
            place = OffsetAndMetadata(record.offset + 1, "", record.leader_epoch)
            try:
                shown = self._interception.show(ConsumerRecords({chunk.state.tp: [record]}, {chunk.state.tp: place}))
                self._seen.extend(shown)
            except BaseException:  # they were interrupted: it has not been handed out
                self._index -= 1
                raise
        return self._seen.popleft()

    def settle(self) -> None:
        self._seen.clear()
        super().settle()


def _part(chunk: Chunk, limit: int) -> list[ConsumerRecord]:
    """The next records of a decoded chunk; the list itself where nothing has to be cut off."""
    records = chunk.records
    assert records is not None
    start = chunk.index
    return records if start == 0 and len(records) <= limit else records[start : start + limit]


def _columns_of(chunk: Chunk, end_offset: int | None = None) -> ArrowChunk:
    topic, partition = chunk.state.tp
    start = max(chunk.start_offset, chunk.state.position)
    return ArrowChunk(topic, partition, chunk.data, start, end_offset, chunk.aborted)
