"""The log of a partition as a state machine: offsets, the high watermark, producers, leader epochs.

It decides and remembers; it stores nothing, waits for nothing and reads no clock (`partition.py` does). One batch
goes through it like this::

    prepare(header) ──> Append ──> stored() ──> durable(offset) ──> the high watermark moves, the append is done
        │                  └────────── failed(append) ──> it and all later ones are undone
        ├──> Duplicate (of a stored batch, or of an append under way)
        └──> KafkaError (the sequence is out of order, the epoch is old)

The producer window is Kafka's: the last five batches of each producer id are remembered, and a batch that repeats
one of them is answered with the offset it got then. Windows are immutable values, so undoing an append is putting
the previous one back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from kclient.errors import (
    FencedLeaderEpochError,
    InvalidProducerEpochError,
    InvalidRecordError,
    KafkaError,
    OutOfOrderSequenceError,
    UnknownLeaderEpochError,
)
from kclient.gateway.append import Append, AppendState
from kclient.gateway.producer_windows import (
    SEQUENCES,
    FirstBatch,
    ProducerLimit,
    ProducerWindow,
    ProducerWindows,
    RefusedProducers,
    Remembered,
)

WINDOW: Final = 5
"""Batches remembered per producer id, as in Kafka: as many as an idempotent producer keeps in flight."""


class Header(Protocol):
    """What the log reads of a batch's header (`kclient.records.BatchHeader` has it all)."""

    @property
    def length(self) -> int: ...
    @property
    def last_offset_delta(self) -> int: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def base_sequence(self) -> int: ...


class StoredHeader(Header, Protocol):
    """What recovery reads of a stored batch's header."""

    @property
    def base_offset(self) -> int: ...
    @property
    def partition_leader_epoch(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def is_control(self) -> bool: ...


class Duplicate(NamedTuple):
    """The answer to a batch that is already there."""

    base_offset: int
    timestamp: int
    pending: Append | None
    """The first append where it is still on its way: the answer waits for it."""

    def append(self) -> Append:
        """The first append, as far as it has come."""
        if self.pending is not None:
            return self.pending
        first = Append()
        first.base_offset, first.timestamp = self.base_offset, self.timestamp
        first.move(AppendState.DURABLE)
        return first


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What recovery starts from instead of the log's beginning."""

    next_offset: int
    start_offset: int
    windows: dict[int, ProducerWindow]
    epochs: tuple[tuple[int, int], ...]


class PartitionLog:
    """The offsets, producers and epochs of one partition."""

    __slots__ = (
        "_epochs",
        "_refused",
        "_windows",
        "high_watermark",
        "leader_epoch",
        "next_offset",
        "pending",
        "start_offset",
    )

    def __init__(
        self, leader_epoch: int = 0, checkpoint: Checkpoint | None = None, producers: ProducerLimit | None = None
    ) -> None:
        self.leader_epoch: int = leader_epoch
        self.start_offset: int = checkpoint.start_offset if checkpoint else 0
        """The log start: the first offset that may be read."""
        self.next_offset: int = checkpoint.next_offset if checkpoint else 0
        """The log end: the offset the next record gets."""
        self.high_watermark: int = self.next_offset
        """The end of what is durable, and so of what is visible."""
        self.pending: deque[Append] = deque()
        """The appends above the high watermark, in order."""
        producers = producers or ProducerLimit()
        self._windows = ProducerWindows(producers, checkpoint.windows if checkpoint else None)
        self._refused = RefusedProducers(producers)
        self._epochs: list[tuple[int, int]] = list(checkpoint.epochs) if checkpoint else []

    # Appending

    def prepare(
        self, header: Header, now_ms: int, timestamp: int = -1, queued: Append | None = None
    ) -> Append | Duplicate:
        """Give a batch its offsets, or find that it is there already.

        `timestamp` is the log append time to stamp, or -1; `queued` is the append if somebody waits for it already.
        Raises `InvalidProducerEpochError` for a fenced producer, `OutOfOrderSequenceError` for a gap in its sequences;
        then nothing has changed.
        """
        producer_id = header.producer_id
        window = None
        if producer_id >= 0:
            window = self._windows.get(producer_id)
            duplicate = self._check(header, window)
            if duplicate is not None:
                return duplicate
        base = self.next_offset
        append = Append() if queued is None else queued
        append.move(AppendState.PREPARED)
        append.base_offset = base
        append.next_offset = base + header.last_offset_delta + 1
        append.length = header.length
        append.timestamp = timestamp
        if producer_id >= 0:
            append.producer_id = producer_id
            append.undo = window
            if window is None:
                append.begins = FirstBatch(header.producer_epoch, header.base_sequence, now_ms)
                self._refused.pop(producer_id)
            self._windows.put(producer_id, _extended(window, header, base, timestamp, now_ms))
        self.next_offset = append.next_offset
        self.pending.append(append)
        return append

    def _check(self, header: Header, window: ProducerWindow | None) -> Duplicate | None:
        if header.base_sequence < 0:
            raise InvalidRecordError(
                f"Invalid sequence number {header.base_sequence} in record batch with producerId {header.producer_id}"
            )
        epoch, first = header.producer_epoch, header.base_sequence
        if window is None:
            if (begins := self._refused.get(header.producer_id)) is not None:
                self._check_first(header.producer_id, epoch, first, begins)
            return None  # an unknown producer may start at any sequence
        if self._begins_epoch(header.producer_id, epoch, first, window.epoch):
            return None
        last = (first + header.last_offset_delta) % SEQUENCES
        for batch in window.batches:
            if batch.first_sequence == first and batch.last_sequence == last:
                return Duplicate(batch.base_offset, batch.timestamp, self._pending_at(batch.base_offset))
        if window.batches and first != window.next_sequence:
            raise OutOfOrderSequenceError(
                f"producer id {header.producer_id} appended sequence {first}, expected {window.next_sequence}"
            )
        return None

    @staticmethod
    def _begins_epoch(producer_id: int, epoch: int, first: int, newest: int) -> bool:
        if epoch < newest:
            raise InvalidProducerEpochError(
                f"producer id {producer_id} appended with epoch {epoch}, the newest seen is {newest}"
            )
        if epoch > newest and first != 0:
            raise OutOfOrderSequenceError(
                f"producer id {producer_id} begins epoch {epoch} at sequence {first} instead of 0"
            )
        return epoch > newest

    def _check_first(self, producer_id: int, epoch: int, first: int, begins: FirstBatch) -> None:
        if not self._begins_epoch(producer_id, epoch, first, begins.epoch) and first != begins.sequence:
            raise OutOfOrderSequenceError(
                f"producer id {producer_id} appended sequence {first}, expected {begins.sequence}"
            )

    def _pending_at(self, base_offset: int) -> Append | None:
        if base_offset < self.high_watermark:
            return None
        return next((append for append in self.pending if append.base_offset == base_offset), None)

    def stored(self, append: Append) -> None:
        """The store took the batch; its sync is on the way."""
        append.move(AppendState.STORED)
        if not self._epochs or self._epochs[-1][0] < self.leader_epoch:
            self._epochs.append((self.leader_epoch, append.base_offset))

    def durable(self, offset: int) -> tuple[list[Append], int]:
        """Everything below `offset` is durable: the appends that are done now, and how many bytes they are."""
        done: list[Append] = []
        size = 0
        while self.pending and self.pending[0].next_offset <= offset:
            append = self.pending.popleft()
            append.move(AppendState.DURABLE)
            self.high_watermark = append.next_offset
            size += append.length
            done.append(append)
        if done and not self.pending:
            self.high_watermark = self.next_offset
        return done, size

    def failed(self, append: Append, error: KafkaError) -> list[Append]:
        """The store failed this append: undo it and all later ones, which are returned, oldest first."""
        undone: list[Append] = []
        if append.state is AppendState.FAILED or append not in self.pending:
            return undone
        while True:
            last = self.pending.pop()
            if last.producer_id >= 0:
                self._put(last.producer_id, last.undo)
                if last.begins is not None:
                    self._refused.put(last.producer_id, last.begins)
            last.fail(error)
            undone.append(last)
            if last is append:
                break
        self.next_offset = append.base_offset
        while self._epochs and self._epochs[-1][1] >= self.next_offset:
            self._epochs.pop()
        undone.reverse()
        return undone

    def refuse(self, header: Header, now_ms: int) -> None:
        """A batch was refused because the log could not be opened: its producer has to begin with it later.

        Whether the producer is known only the log that is opened can tell (`follow`).
        """
        if header.producer_id < 0 or header.base_sequence < 0:
            return
        before = self._refused.get(header.producer_id)
        if before is None or before.epoch < header.producer_epoch:
            self._refused.put(header.producer_id, FirstBatch(header.producer_epoch, header.base_sequence, now_ms))

    def follow(self, unopened: PartitionLog) -> None:
        """This log was opened after all: heed what was refused before, of producers that it does not know."""
        for producer_id, begins in unopened._refused.items():
            if self._windows.get(producer_id) is None:
                self._refused.put(producer_id, begins)
        unopened.close()

    def _put(self, producer_id: int, window: ProducerWindow | None) -> None:
        if window is None:
            self._windows.pop(producer_id)
        else:
            self._windows.put(producer_id, window)

    # Recovery and checkpoints

    def recovered(self, headers: Iterable[StoredHeader], now_ms: int) -> None:
        """Take stored batches into account, in order: those the checkpoint has not seen."""
        for header in headers:
            base = header.base_offset
            next_offset = base + header.last_offset_delta + 1
            if next_offset <= self.next_offset:
                continue
            self.next_offset = self.high_watermark = max(self.next_offset, next_offset)
            epoch = header.partition_leader_epoch
            if not self._epochs or self._epochs[-1][0] < epoch:
                self._epochs.append((epoch, base))
            if header.producer_id >= 0 and not header.is_control:
                stamp = header.max_timestamp if getattr(header, "timestamp_type", 0) == 1 else -1
                window = self._windows.get(header.producer_id)
                self._windows.put(header.producer_id, _extended(window, header, base, stamp, now_ms))

    def skip_to(self, next_offset: int, end: int | None = None) -> None:
        """The log goes on at `next_offset` at least: offsets that were ever given are not given again.

        Args:
            next_offset: The store's.
            end: Where the records that are there end, if some after them were lost: nobody is to wait for those.
        """
        if next_offset > self.next_offset:
            self.next_offset = next_offset
            if not self.pending:  # else with the last of them
                self.high_watermark = next_offset
        if end is not None and end < self.high_watermark:
            self.high_watermark = max(end, self.start_offset)

    def checkpoint(self, *, start_offset: int | None = None) -> Checkpoint:
        """The state at the high watermark: what is not durable yet is left out.

        Args:
            start_offset: The log start as it will be after a trim; as it is if None.
        """
        windows = self._windows.copy()
        for append in reversed(self.pending):
            if append.producer_id >= 0:
                if append.undo is None:
                    windows.pop(append.producer_id, None)
                else:
                    windows[append.producer_id] = append.undo
        start = self.start_offset if start_offset is None else start_offset
        epochs = _since([entry for entry in self._epochs if entry[1] < self.high_watermark], start)
        return Checkpoint(self.high_watermark, start, windows, tuple(epochs))

    def expire(self, before_ms: int) -> int:
        """Forget the producers that have appended nothing since `before_ms`; how many there were."""
        self._refused.forget(before_ms)
        return self._windows.forget(before_ms, {append.producer_id for append in self.pending})

    def close(self) -> None:
        """The log is not used any more: what it remembers of producers counts no longer."""
        self._windows.clear()
        self._refused.clear()

    # Reading

    def trim(self, before: int) -> bool:
        """Move the log start up to `before` (no further than the high watermark); whether it moved."""
        before = min(before, self.high_watermark)
        if before <= self.start_offset:
            return False
        self.start_offset = before
        self._epochs = _since(self._epochs, before)
        return True

    def readable(self, offset: int) -> bool:
        """Whether a fetch at this offset is in range (at the end there is nothing yet, and it may wait)."""
        return self.start_offset <= offset <= self.high_watermark

    def check_epoch(self, epoch: int) -> None:
        """The leader epoch a client believes in (-1: none): `FencedLeaderEpochError` or `UnknownLeaderEpochError`."""
        if epoch < 0 or epoch == self.leader_epoch:
            return
        error: type[KafkaError] = FencedLeaderEpochError if epoch < self.leader_epoch else UnknownLeaderEpochError
        raise error(f"the leader epoch is {self.leader_epoch}, the request says {epoch}")

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The greatest epoch not above `epoch` and where it ends, (-1, -1) when unknown (KIP-101, KIP-279)."""
        if epoch == self.leader_epoch:
            return epoch, self.high_watermark
        if not 0 <= epoch < self.leader_epoch or not self._epochs:
            return -1, -1
        index = bisect_right([known for known, _ in self._epochs], epoch)
        if index == 0:
            return epoch, self._epochs[0][1]
        found = self._epochs[index - 1][0]
        return found, self._epochs[index][1] if index < len(self._epochs) else self.high_watermark

    def epoch_of(self, offset: int) -> int:
        """The leader epoch of the record at this offset; -1 when unknown."""
        index = bisect_right([start for _, start in self._epochs], offset)
        return self._epochs[index - 1][0] if index else -1

    @property
    def windows(self) -> dict[int, ProducerWindow]:
        """What is remembered of each producer id, for descriptions and tests."""
        return self._windows.copy()


def _since(epochs: list[tuple[int, int]], start: int) -> list[tuple[int, int]]:
    """Epochs from an offset on: one that lies below it is gone, the one it lies in begins there."""
    kept = bisect_right([begin for _, begin in epochs], start) - 1
    if kept < 0:
        return epochs
    return [(epochs[kept][0], start), *epochs[kept + 1 :]]


def _extended(window: ProducerWindow | None, header: Header, base: int, timestamp: int, now_ms: int) -> ProducerWindow:
    first = header.base_sequence
    last = (first + header.last_offset_delta) % SEQUENCES
    batch = Remembered(first, last, base, timestamp)
    if window is None or window.epoch != header.producer_epoch:
        return ProducerWindow(header.producer_epoch, (batch,), now_ms)
    return ProducerWindow(window.epoch, (*window.batches, batch)[-WINDOW:], now_ms)
