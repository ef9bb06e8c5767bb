"""Whether a partition has the same records on both sides: by batches where these are equal, else by records."""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import anyio

from kclient.errors import CorruptRecordError, KafkaError, OffsetOutOfRangeError
from kclient.migration.source import Bounds, Fetched, SourceCluster
from kclient.records import HEADER_SIZE, BatchHeader, check_batch, decode_records, iter_headers
from kclient.types import TopicPartition

_FETCH_BYTES: Final = 4 << 20
_RETRIES: Final = 20
_RETRY_S: Final = 0.25
_SURE: Final = 3
_EMPTY: Final = 20
"""Answers without records in a row, after which comparing is given up."""
_EPOCH: Final = slice(12, 16)
"""Where the leader epoch stands in a batch: each side has its own."""


_PIECE: Final = 64 << 10

AT_SOURCE: Final = "at the source"
IN_STORE: Final = "in the store"


@dataclass(slots=True)
class PartitionComparison:
    """How a partition compares."""

    tp: TopicPartition
    source: Bounds | None
    """Where it begins and ends there; None if it does not tell."""
    target: Bounds | None
    records: int = 0
    """Records that are equal on both sides."""
    checksum: str = ""
    """Of these: the same whenever the same batches are compared."""
    difference: str | None = None
    """The first difference; None for none."""
    note: str | None = None
    """What differs, and may."""


class Batch(NamedTuple):
    """One batch, as a side has it."""

    header: BatchHeader
    data: memoryview

    def same(self, other: Batch) -> bool:
        """Whether it is the same batch, but for the leader epoch."""
        return (
            self.header.base_offset == other.header.base_offset
            and self.header.length == other.header.length
            and self.header.crc == other.header.crc
            and self.data[: _EPOCH.start] == other.data[: _EPOCH.start]
            and _equal(self.data[_EPOCH.stop :], other.data[_EPOCH.stop :])
        )


def _equal(one: memoryview, other: memoryview) -> bool:
    """Whether two views of the same length have the same bytes: comparing views themselves takes ten times as long."""
    return all(
        bytes(one[begin : begin + _PIECE]).startswith(other[begin : begin + _PIECE])
        for begin in range(0, len(one), _PIECE)
    )


class UnreadableError(KafkaError):
    """A partition cannot be read on one side.

    Args:
        where: The side, as a sentence goes on.
        error: Why.
    """

    def __init__(self, where: str, error: KafkaError) -> None:
        what = "a batch is damaged" if isinstance(error, CorruptRecordError) else "it cannot be read"
        super().__init__(f"{what} {where}: {error}")


class SideReader:
    """The batches of a partition on one side, in order.

    Args:
        side: The cluster.
        where: Which of both it is, as a sentence goes on.
        tp: The partition.
        topic_id: Its topic's.
        start: The first offset that counts.
        end: Where to stop.
    """

    def __init__(
        self, side: SourceCluster, where: str, tp: TopicPartition, topic_id: bytes, start: int, end: int
    ) -> None:
        self._side = side
        self._where = where
        self._tp = tp
        self._topic_id = topic_id
        self.floor: int = start
        """Records before this do not count: they are not there any more."""
        self._end = end
        self._position = start
        self._batches: deque[Batch] = deque()
        self._items: deque[tuple[Any, ...]] = deque()

    async def batch(self) -> Batch | None:
        """The next whole batch, which is not taken; None at the end, or amid the records of one.

        Raises:
            UnreadableError: It cannot be read.
        """
        if self._items:
            return None
        while True:
            while self._batches and not self._batches[0].header.count:  # only holds the place of what is not there
                self._batches.popleft()
            if self._batches or self._position >= self._end:
                return self._batches[0] if self._batches else None
            try:
                await self._read()
            except KafkaError as error:
                raise UnreadableError(self._where, error) from error

    def take(self) -> Batch:
        """Take the next batch as a whole."""
        return self._batches.popleft()

    async def item(self) -> tuple[Any, ...] | None:
        """The next record, which is not taken: its offset first; None at the end.

        Raises:
            UnreadableError: It cannot be read.
        """
        while not self._items or self._items[0][0] < self.floor:
            if self._items:
                self._items.popleft()
            elif (batch := await self.batch()) is not None:
                self._batches.popleft()
                try:
                    self._items.extend(_items(batch, self._tp))
                except KafkaError as error:
                    raise UnreadableError(self._where, error) from error
            else:
                return None
        return self._items[0]

    def take_item(self) -> tuple[Any, ...]:
        """Take that record."""
        return self._items.popleft()

    async def _read(self) -> None:
        """Read on; where nothing is left up to the end, as after a compaction, that is the end.

        Raises:
            KafkaError: There should be something, and nothing is answered.
        """
        told: Fetched | None = None
        for number in range(1, _EMPTY + 1):
            told = await self._fetch()
            if self._take_in(memoryview(told.records)):
                return
            if number >= _SURE and told.end >= self._end and await self._is_hole():
                return
        end = "" if told is None else f", though it ends at {told.end}"
        raise KafkaError(
            f"{self._tp}: nothing is answered from offset {self._position} up to {self._end}{end}. Look at the "
            "brokers' logs, and compare again", retriable=True,
        )  # fmt: skip

    def _take_in(self, records: memoryview) -> bool:
        """Take over the batches of an answer; whether there is something to go on with."""
        for position, header in iter_headers(records):
            if header.last_offset < self._position:
                continue
            if header.base_offset >= self._end:
                self._position = self._end
                break
            check_batch(records, position)
            self._batches.append(Batch(header, records[position : position + header.length]))
            self._position = header.last_offset + 1
        return bool(self._batches) or self._position >= self._end

    async def _is_hole(self) -> bool:
        """Whether nothing is there, rather than that the partition answers nothing for a while.

        A leader that finds out what it has, or whose replicas have not told it yet, answers fetches without news or an
        error; it does not tell then where it ends, or not this end. So that is asked for before and after a fetch.
        """
        for last in (False, True):
            if (await self._side.bounds([self._tp]))[self._tp].end < self._end:
                return False
            if not last:
                answer = await self._fetch()
                if self._take_in(memoryview(answer.records)):
                    return True
        self._position = self._end
        return True

    async def _fetch(self) -> Fetched:
        last: KafkaError | None = None
        for _ in range(_RETRIES):
            leader = self._side.snapshot.leader_id(self._tp)
            try:
                if leader is None:
                    await self._side.look()
                    leader = self._side.snapshot.leader_id(self._tp)
                if leader is not None:
                    found = await self._side.fetch(
                        leader, {self._tp: self._position}, {self._tp.topic: self._topic_id},
                        response_bytes=_FETCH_BYTES, partition_bytes=_FETCH_BYTES,
                    )  # fmt: skip
                    answer = found[self._tp]
                    if answer.error is None:
                        return answer
                    raise answer.error
            except OffsetOutOfRangeError:
                bounds = (await self._side.bounds([self._tp]))[self._tp]
                if bounds.start <= self._position:
                    raise
                self._position = self.floor = bounds.start  # retention went on
                continue
            except KafkaError as error:
                if not error.retriable:
                    raise
                last = error
                self._side.request_update()
            await anyio.sleep(_RETRY_S)
        raise last or KafkaError(f"{self._tp}: no leader is known")


def _items(batch: Batch, tp: TopicPartition) -> list[tuple[Any, ...]]:
    """What a batch holds, as it must be the same on both sides however it is packed."""
    header = batch.header
    who = (header.producer_id, header.producer_epoch, header.is_transactional)
    if header.is_control:
        return [(header.base_offset, *who, bytes(batch.data[61:]))]
    return [
        (
            record.offset, *who, record.timestamp, record.key, record.value,
            tuple((name, value) for name, value in record.headers),
            # the oldest format has neither, and becomes one that always tells a type
            record.timestamp_type if record.timestamp >= 0 else None,
        )
        for record in decode_records(batch.data, tp.topic, tp.partition)
    ]  # fmt: skip


async def compare(
    tp: TopicPartition,
    source: tuple[SourceCluster, bytes, Bounds],
    target: tuple[SourceCluster, bytes, Bounds],
    *,
    compacted: bool,
    taken_over: bool,
    records: bool = True,
    end: int | None = None,
) -> PartitionComparison:
    """Compare what a partition has on both sides, up to the first difference; that one cannot be read is one, too.

    Args:
        tp: The partition.
        source: The source, its topic's id there, and where the partition begins and ends.
        target: The same of the other side.
        compacted: Whether the source may have compacted away what the target still has.
        taken_over: Whether the target has gone on by itself: what it has behind the source's end does not count.
        records: Whether the records are read; else only where it begins and ends is compared.
        end: Where the source has ended after it was looked where the target ends, which may follow; None for its end.

    """
    theirs, ours = source[2], target[2]
    result = PartitionComparison(tp, theirs, ours)
    result.difference = _ranges(theirs, ours, theirs.end if end is None else end, taken_over=taken_over)
    if result.difference is not None or not records:
        return result
    start, until = max(theirs.start, ours.start), theirs.end
    if ours.start < theirs.start:
        result.note = (
            f"the store has the offsets {ours.start} to {theirs.start - 1}, which the source has deleted since"
        )
    work = _Comparison(
        SideReader(source[0], AT_SOURCE, tp, source[1], start, until),
        SideReader(target[0], IN_STORE, tp, target[1], start, until),
        compacted,
    )
    try:
        result.difference = await work.run()
    except UnreadableError as error:
        result.difference = str(error)
    result.records, result.checksum = work.records, work.digest.hexdigest()
    if work.only_ours and result.note is None:
        result.note = f"{work.only_ours} records that the source has compacted away are still in the store"
    return result


def _ranges(theirs: Bounds, ours: Bounds, end: int, *, taken_over: bool) -> str | None:
    if ours.end < theirs.end:
        return f"the store ends at offset {ours.end}, the source at {theirs.end}"
    if ours.end > end and not taken_over:
        return f"the store ends at offset {ours.end}, and the source at {end} already"
    if ours.start > theirs.start and not taken_over:
        return f"the store begins at offset {ours.start}, and the source at {theirs.start}"
    return None


class _Comparison:
    def __init__(self, theirs: SideReader, ours: SideReader, compacted: bool) -> None:
        self._theirs = theirs
        self._ours = ours
        self._compacted = compacted
        self.records = 0
        self.only_ours = 0
        self.digest = hashlib.blake2b(digest_size=8)

    async def run(self) -> str | None:
        """The first difference. Raises `UnreadableError` if a side cannot be read."""
        while True:
            theirs, ours = await self._theirs.batch(), await self._ours.batch()
            if theirs is not None and ours is not None and theirs.same(ours):
                self._take_both(theirs)
                continue
            mine, other = await self._theirs.item(), await self._ours.item()
            if mine is None and other is None:
                return None
            if (difference := self._compare(mine, other)) is not None:
                return difference

    def _take_both(self, batch: Batch) -> None:
        self._theirs.take()
        self._ours.take()
        # the checksum in the header, which was compared with the records, stands for them
        self.digest.update(batch.data[: _EPOCH.start])
        self.digest.update(batch.data[_EPOCH.stop : HEADER_SIZE])
        self.records += 0 if batch.header.is_control else batch.header.count

    def _compare(self, theirs: tuple[Any, ...] | None, ours: tuple[Any, ...] | None) -> str | None:
        if theirs == ours:
            self.digest.update(repr(theirs).encode())
            self._theirs.take_item()
            self._ours.take_item()
            self.records += 1
            return None
        if ours is not None and (theirs is None or ours[0] < theirs[0]):
            if not self._compacted and ours[0] >= self._theirs.floor:
                return f"the store has a record at offset {ours[0]}, and the source has none"
            self._ours.take_item()
            self.only_ours += self._compacted
            return None
        assert theirs is not None
        if ours is not None and ours[0] == theirs[0]:
            return (
                f"the records at offset {theirs[0]} differ: {_shown(theirs)} at the source, {_shown(ours)} in the store"
            )
        return f"the source has a record at offset {theirs[0]}, and the store has none"


def _shown(item: tuple[Any, ...]) -> str:
    text = repr(item[1:])
    return text if len(text) <= 200 else f"{text[:200]}…"
