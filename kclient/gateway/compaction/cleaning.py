"""What survives of a compacted log: batches go in, in order, and what is kept of them comes out.

A compaction goes over a log twice. `KeyNoting` notes the last offset of each key of what has come since the compaction
before, as far as its table has room; `LogCleaning` goes over everything from the log's beginning on, and keeps what
Kafka's cleaner keeps:

- of the records of a key the last one; a record without a value, as long as its batch's delete horizon is not reached;
- nothing of aborted transactions, and the markers of others until their records have gone and their own horizon is
  reached;
- the last batch of each producer that the log remembers, though it may be empty: it has the last sequence.

Offsets stay. Where Kafka leaves a gap there is a batch without records, so that in HTP a gap remains what it is:
damage. One such batch stands for any number of those that have gone, up to where another leader epoch begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from kclient.gateway.compaction.transactions import CleanedTransactions
from kclient.gateway.mirroring import fillers
from kclient.records import (
    KeyOffsets,
    compact_batch,
    emptied_batch,
    iter_headers,
    marker_until,
    note_keys,
    read_end_marker,
)
from kclient.records.bounds import INT64_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kclient.records import BatchHeader, EndMarker
    from kclient.types import Buffer

_NO_OFFSET: Final = -1


class LastOfProducer(NamedTuple):
    """What a log remembers of a producer, as far as a compaction has to keep it."""

    epoch: int
    offset: int = _NO_OFFSET
    """Of its last record with data; -1 where nothing is remembered but the epoch."""

    def is_in(self, header: BatchHeader) -> bool:
        """Whether this is the batch that tells it."""
        if self.offset < 0:
            return header.is_control and header.producer_epoch == self.epoch
        return header.last_offset == self.offset


@dataclass(slots=True)
class CleaningStats:
    """What a compaction has done so far."""

    read_bytes: int = 0
    read_batches: int = 0
    kept_bytes: int = 0
    """Of what was kept, with the batches that stand for those that have gone."""
    kept_batches: int = 0
    changed: int = 0
    """How many batches have gone, or became others."""


class KeyNoting:
    """Notes the last offset of each key.

    Args:
        offsets: Where they are noted.
        start: Records below this offset are passed over.
        aborted: Producer id and first offset of each aborted transaction with records from there on.
        max_decompressed: Greatest size in bytes of a batch's records after decompression.
    """

    def __init__(
        self, offsets: KeyOffsets, start: int, aborted: Iterable[tuple[int, int]], max_decompressed: int
    ) -> None:
        self.offsets: KeyOffsets = offsets
        self._start = start
        self._transactions = CleanedTransactions(aborted)
        self._max_decompressed = max_decompressed
        offsets.passed(start)

    def feed(self, batches: Buffer, end: int) -> bool:
        """Note those of some batches; batches come in order.

        Args:
            batches: Whole ones, one behind the other.
            end: Batches from this offset on are passed over.

        Returns:
            False if there is no room for more.

        Raises:
            CorruptRecordError: A batch is damaged.
            RecordTooLargeError: The records of one are larger than allowed.
        """
        view = memoryview(batches)
        for position, header in iter_headers(batches):
            if header.base_offset >= end:
                return True
            batch = view[position : position + header.length]
            if header.is_control:
                self._transactions.take_control(header, _marker(batch, header))
            elif not self._transactions.take_batch(header) and header.count and header.last_offset >= self._start:
                if not note_keys(batch, header, self.offsets, self._start, self._max_decompressed):
                    return False
                continue
            self.offsets.passed(max(self.offsets.end, header.next_offset))
        return True


class LogCleaning:
    """Makes of the batches of a log those that remain of them.

    Args:
        offsets: The last offset of each key; everything from `offsets.end` on stays.
        aborted: Producer id and first offset of each aborted transaction of the log.
        producers: What the log remembers of each producer.
        now_ms: The time in milliseconds since the epoch.
        delete_retention_ms: How long records without a value, and markers, stay from now on (`delete.retention.ms`).
        max_decompressed: Greatest size in bytes of a batch's records after decompression.
        keeps_aborts: Whether to keep the markers of aborted transactions, because the index of these goes on telling of
            them: a reader who never comes to the marker would leave out what the producer has written since.
    """

    def __init__(
        self,
        offsets: KeyOffsets,
        aborted: Iterable[tuple[int, int]],
        producers: Mapping[int, LastOfProducer],
        *,
        now_ms: int,
        delete_retention_ms: int,
        max_decompressed: int,
        keeps_aborts: bool = False,
    ) -> None:
        self.stats: CleaningStats = CleaningStats()
        self._offsets = offsets
        self._transactions = CleanedTransactions(aborted)
        self._producers = producers
        self._now_ms = now_ms
        self._horizon_ms = min(now_ms + delete_retention_ms, INT64_MAX)
        self._max_decompressed = max_decompressed
        self._keeps_aborts = keeps_aborts
        self._hole: tuple[int, int, int] | None = None
        """First offset, end and leader epoch of what has gone and nothing stands for yet."""

    def feed(self, batches: Buffer) -> Iterator[Buffer]:
        """What remains of some batches; batches come in order, each once.

        Args:
            batches: Whole ones, one behind the other.

        Raises:
            CorruptRecordError: A batch is damaged.
            RecordTooLargeError: The records of one are larger than allowed.
        """
        view, stats = memoryview(batches), self.stats
        for position, header in iter_headers(batches):
            batch = view[position : position + header.length]
            stats.read_batches += 1
            stats.read_bytes += header.length
            kept = self._kept(batch, header)
            if kept is None:
                stats.changed += header.count > 0 or header.producer_id >= 0  # else it stood for others already
                yield from self._gone(header)
                continue
            stats.changed += kept is not batch
            yield from self.flush()
            yield self._counted(kept)

    def flush(self) -> Iterator[Buffer]:
        """What stands for the last batches, if they have gone: nothing is put together beyond this."""
        if self._hole is not None:
            hole, self._hole = self._hole, None
            yield from map(self._counted, fillers(*hole))

    def _counted(self, batch: Buffer) -> Buffer:
        self.stats.kept_batches += 1
        self.stats.kept_bytes += len(batch)
        return batch

    def _gone(self, header: BatchHeader) -> Iterator[Buffer]:
        first, epoch = header.base_offset, header.partition_leader_epoch
        if self._hole is not None:
            if self._hole[1:] == (first, epoch):
                first = self._hole[0]
                self.stats.changed += 1
            else:
                yield from self.flush()
        self._hole = (first, header.next_offset, epoch)

    def _kept(self, batch: memoryview, header: BatchHeader) -> Buffer | None:
        kept = self._marker_kept(batch, header) if header.is_control else self._data_kept(batch, header)
        if kept is not None:
            return kept
        last = self._producers.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None or not last.is_in(header):
            return None
        return emptied_batch(header) if header.count else batch

    def _data_kept(self, batch: memoryview, header: BatchHeader) -> Buffer | None:
        if self._transactions.take_batch(header) or not header.count:
            return None
        return compact_batch(
            batch,
            header,
            self._offsets,
            now_ms=self._now_ms,
            horizon_ms=self._horizon_ms,
            max_decompressed=self._max_decompressed,
        )

    def _marker_kept(self, batch: memoryview, header: BatchHeader) -> Buffer | None:
        marker = _marker(batch, header)
        needed = not self._transactions.take_control(header, marker)
        if needed or (self._keeps_aborts and marker is not None and not marker.committed):
            return batch
        if not header.count:
            return None
        horizon = header.delete_horizon
        if horizon is None:
            return marker_until(batch, header, self._horizon_ms)
        return batch if self._now_ms < horizon else None


def _marker(batch: memoryview, header: BatchHeader) -> EndMarker | None:
    """What a control batch says of the end of a transaction. Raises `CorruptRecordError` where it cannot be read."""
    return read_end_marker(batch) if header.count else None
