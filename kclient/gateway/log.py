"""The log of a partition as a state machine: offsets, the high watermark, producers, transactions, leader epochs.

It decides and remembers; it stores nothing, waits for nothing and reads no clock (`partition.py` does). One batch
goes through it like this::

    prepare(header) ──> Append ──> stored() ──> durable(offset) ──> the high watermark moves, the append is done
        │                  ├────────── failed(append) ──> it and all later ones are undone
        │                  └────────── withdraw() ──> nobody knows of any: found() or lost() once it was read back
        ├──> Duplicate (of a stored batch, or of an append under way)
        └──> KafkaError (the sequence is out of order, the epoch is old)

The producer window is Kafka's: the last five batches of each producer id are remembered, and a batch that repeats
one of them is answered with the offset it got then. Windows are immutable values, so undoing an append is putting
the previous one back.

A transaction begins with a producer's first transactional batch and ends with the control record that its coordinator
writes. Until that is durable nothing from the first batch on is stable: the last stable offset stays before it, and
readers of committed records see nothing beyond. The windows tell which producers have open transactions, so undoing
an append undoes that too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from kclient.errors import (
    FencedLeaderEpochError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTxnStateError,
    KafkaError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
    UnknownLeaderEpochError,
)
from kclient.gateway.aborted import ChunkBounds
from kclient.gateway.append import Append, AppendEvent, AppendState
from kclient.gateway.batch_headers import Header, Marker, StoredHeader, in_transaction, log_append_time
from kclient.gateway.leader_epochs import LeaderEpochs
from kclient.gateway.log_transactions import EndedTransaction, LogTransactions, Verification
from kclient.gateway.producer_windows import (
    NO_TRANSACTION,
    SEQUENCES,
    FirstBatch,
    ProducerLimit,
    ProducerWindow,
    ProducerWindows,
    RefusedProducers,
    Remembered,
    after_end,
    begins_epoch,
    check_first,
    goes_on,
)

WINDOW: Final = 5
"""Batches remembered per producer id, as in Kafka: as many as an idempotent producer keeps in flight."""


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
        first.move(AppendEvent.SYNCED)
        return first


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What recovery starts from instead of the log's beginning."""

    next_offset: int
    start_offset: int
    windows: dict[int, ProducerWindow]
    epochs: tuple[tuple[int, int], ...]
    aborted: tuple[ChunkBounds, ...] = ()
    """Where aborted transactions are told of."""


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
        "transactions",
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
        self._epochs = LeaderEpochs(checkpoint.epochs if checkpoint else ())
        begun = [window.transaction_start for window in checkpoint.windows.values()] if checkpoint else ()
        self.transactions: LogTransactions = LogTransactions(
            (first for first in begun if first >= 0), checkpoint.aborted if checkpoint else ()
        )

    # Appending

    def prepare(
        self,
        header: Header,
        now_ms: int,
        timestamp: int = -1,
        queued: Append | None = None,
        verified: Verification | None = None,
    ) -> Append | Duplicate:
        """Give a batch its offsets, or find that it is there already.

        `timestamp` is the log append time to stamp, or -1; `queued` is the append if somebody waits for it already;
        `verified` stands for the coordinator's word that the partition is in the producer's transaction.
        Raises `InvalidProducerEpochError` for a fenced producer, `OutOfOrderSequenceError` for a gap in its sequences,
        `InvalidTxnStateError` for a batch that does not belong to its producer's transaction; then nothing has changed.
        """
        producer_id = header.producer_id
        window, transactional = None, False
        if producer_id >= 0:
            window, transactional = self._windows.get(producer_id), header.is_transactional
            duplicate = self._check(header, window)
            if duplicate is not None:
                return duplicate
            if transactional:
                if not goes_on(window, header):
                    self.transactions.check(producer_id, verified)
            elif window is not None and window.transaction_start >= 0:
                raise InvalidTxnStateError(f"producer id {producer_id} has an open transaction, this is not part of it")
        append = Append() if queued is None else queued
        base = self._take_place(append, header)
        append.timestamp = timestamp
        if producer_id >= 0:
            append.producer_id = producer_id
            append.undo = window
            if window is None:
                append.begins = FirstBatch(header.producer_epoch, header.base_sequence, now_ms)
                self._refused.pop(producer_id)
            self._windows.put(producer_id, self._extended(window, header, base, timestamp, now_ms, transactional))
        return append

    def _take_place(self, append: Append, header: Header) -> int:
        append.move(AppendEvent.PLACED)
        base = append.base_offset = self.next_offset
        self.next_offset = append.next_offset = base + header.last_offset_delta + 1
        append.length = header.length
        self.pending.append(append)
        return base

    def prepare_mirrored(self, header: StoredHeader, marker: Marker | None, now_ms: int) -> Append:
        """Give a batch of another log the offsets that it has there: the first has to be the next one.

        That log has checked it: producers and transactions are taken over as it tells them.

        Args:
            header: The batch's.
            marker: What it says of a transaction's end, if it is a control batch that does.
            now_ms: The time in milliseconds since the epoch.

        Raises:
            OutOfOrderSequenceError: It does not begin at the next offset; then nothing has changed.
        """
        if header.base_offset != self.next_offset:
            raise OutOfOrderSequenceError(
                f"a batch begins at offset {header.base_offset}, and the next one is {self.next_offset}"
            )
        append = Append()
        self._take_place(append, header)
        producer_id = header.producer_id
        if producer_id < 0 or (header.is_control and marker is None):
            return append
        window = self._windows.get(producer_id)
        append.producer_id, append.undo = producer_id, window
        if marker is None:
            stamp = log_append_time(header)
            extended = self._extended(window, header, append.base_offset, stamp, now_ms, in_transaction(header))
        else:
            extended = after_end(window, header, marker, now_ms)
            if window is not None and window.transaction_start >= 0:
                append.ends = EndedTransaction(window.transaction_start, marker.committed)
        self._windows.put(producer_id, extended)
        return append

    def _check(self, header: Header, window: ProducerWindow | None) -> Duplicate | None:
        if header.base_sequence < 0:
            raise InvalidRecordError(
                f"Invalid sequence number {header.base_sequence} in record batch with producerId {header.producer_id}"
            )
        epoch, first = header.producer_epoch, header.base_sequence
        if window is None:
            if (begins := self._refused.get(header.producer_id)) is not None:
                check_first(header.producer_id, epoch, first, begins)
            return None  # an unknown producer may start at any sequence
        if begins_epoch(header.producer_id, epoch, first, window.epoch):
            return None
        last = (first + header.last_offset_delta) % SEQUENCES
        for batch in window.batches:
            if batch.first_sequence == first and batch.last_sequence == last:
                return Duplicate(batch.base_offset, batch.timestamp, self._pending_at(batch.base_offset))
        if first != window.next_sequence:
            raise OutOfOrderSequenceError(
                f"producer id {header.producer_id} appended sequence {first}, expected {window.next_sequence}"
            )
        return None

    def _extended(
        self,
        window: ProducerWindow | None,
        header: Header,
        base: int,
        timestamp: int,
        now_ms: int,
        transactional: bool,
    ) -> ProducerWindow:
        """A producer's window with one more batch, whose transaction may begin with it."""
        first = header.base_sequence
        last = (first + header.last_offset_delta) % SEQUENCES
        batch = Remembered(first, last, base, timestamp)
        epoch = header.producer_epoch
        if window is None:
            known, begun, coordinator_epoch = -1, NO_TRANSACTION, -1
            batches: tuple[Remembered, ...] = ()
        else:
            known, batches, _, begun, coordinator_epoch = window
        if transactional and begun < 0:
            begun = base
            self.transactions.begin(base)
        batches = (*batches, batch)[-WINDOW:] if known == epoch else (batch,)
        return ProducerWindow(epoch, batches, now_ms, begun, coordinator_epoch)

    def _pending_at(self, base_offset: int) -> Append | None:
        if base_offset < self.high_watermark:
            return None
        return next((append for append in self.pending if append.base_offset == base_offset), None)

    def stored(self, append: Append) -> None:
        """The store took the batch; its sync is on the way."""
        append.move(AppendEvent.STORED)
        if self._epochs.newest < self.leader_epoch:
            self._epochs.begin(self.leader_epoch, append.base_offset)

    def durable(self, offset: int) -> tuple[list[Append], int, int]:
        """Everything below `offset` is durable.

        Returns:
            The appends that are done now; how many bytes became visible; and how many became visible to readers of
            committed records, or less than that.
        """
        done: list[Append] = []
        size, decided = 0, False
        while self.pending and self.pending[0].next_offset <= offset:
            append = self.pending.popleft()
            append.move(AppendEvent.SYNCED)
            self.high_watermark = append.next_offset
            size += append.length
            done.append(append)
            if append.ends is not None:
                self.transactions.decided(append.producer_id, append.ends, append.base_offset)
                decided = True
        if done and not self.pending:
            self.high_watermark = self.next_offset
        transactions = self.transactions
        if transactions.unstable or transactions.held_back:
            return done, size, transactions.visible(size, decided=decided)
        return done, size, size

    def failed(self, append: Append, error: KafkaError) -> list[Append]:
        """The store failed this append: undo it and all later ones, which are returned, oldest first."""
        if append.state is AppendState.FAILED or append not in self.pending:
            return []
        undone = self._undo(append)
        for each in reversed(undone):  # what a producer begins with is what it was refused first
            self.lost(each, error)
        return undone

    def _undo(self, append: Append) -> list[Append]:
        """As if this append and all later ones had not come; they are returned, oldest first."""
        undone: list[Append] = []
        while True:
            last = self.pending.pop()
            if last.producer_id >= 0:
                self._put(last.producer_id, last.undo)
            self.transactions.undo(last.base_offset)
            undone.append(last)
            if last is append:
                break
        self.next_offset = append.base_offset
        self._epochs.cut(self.next_offset)
        undone.reverse()
        return undone

    # An outcome that is not known

    def withdraw(self) -> list[Append]:
        """What became of the appends under way is not known: as if none had come; they are returned, oldest first.

        What is stored of them comes back by `recovered`. After that each is told to be `found` or `lost`.
        """
        return self._undo(self.pending[0]) if self.pending else []

    def lead(self, epoch: int) -> None:
        """Append under another leader epoch from now on; nothing may be under way."""
        self.leader_epoch = epoch

    def found(self, append: Append) -> None:
        """A withdrawn append is stored, and durable; `recovered` has seen it."""
        if append.producer_id >= 0:
            self._refused.pop(append.producer_id)
        if append.state is AppendState.PREPARED:
            append.move(AppendEvent.STORED)
        append.move(AppendEvent.SYNCED)

    def lost(self, append: Append, error: KafkaError) -> None:
        """An append that was undone is not stored: its producer has to begin with it, if it is not known."""
        if append.begins is not None and self._windows.get(append.producer_id) is None:
            self._refused.put(append.producer_id, append.begins)
        append.fail(error)

    def refuse(self, header: Header, now_ms: int) -> None:
        """A batch was refused before it was prepared, and will come again: its producer has to begin with it later.

        As where the log could not be opened, or its coordinator could not tell yet. Whether the producer is known only
        the log that is opened can tell (`follow`, `found`).
        """
        if header.producer_id < 0 or header.base_sequence < 0 or self._windows.get(header.producer_id) is not None:
            return
        before = self._refused.get(header.producer_id)
        begins = FirstBatch(header.producer_epoch, header.base_sequence, now_ms)
        if before is None or before.epoch < begins.epoch or begins.precedes(before.epoch, before.sequence):
            self._refused.put(header.producer_id, begins)

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
            self._refused.pop(producer_id)  # it may have been forgotten, and refused, meanwhile
            self._windows.put(producer_id, window)

    # Transactions

    @property
    def last_stable_offset(self) -> int:
        """Everything below is decided, committed or aborted, and durable: the end for readers of committed records."""
        return max(self.transactions.stable_offset(self.high_watermark), self.start_offset)

    def verify(self, header: Header) -> Verification | None:
        """What a transactional batch has to be prepared with, once its coordinator has said that it may be (KIP-890).

        None where nobody has to be asked: its transaction is open, or it is there already.

        Raises:
            KafkaError: It is refused, as by `prepare`.
        """
        window = self._windows.get(header.producer_id)
        if self._check(header, window) is not None or goes_on(window, header):
            return None
        return self.transactions.verify(header.producer_id, header.producer_epoch)

    def prepare_end(self, header: Header, marker: Marker, now_ms: int, *, bumped: bool = False) -> Append:
        """Give the control record of a transaction's coordinator its offset. It need not end anything.

        `bumped`: its epoch is greater than that of the transaction, so batches of that epoch are of a later one, which
        it does not end however late it comes (KIP-1228).

        Raises `InvalidProducerEpochError` where the producer has a newer epoch, or such a later transaction is open,
        and `TransactionCoordinatorFencedError` where a newer coordinator has ended a transaction of it; then nothing
        has changed.
        """
        producer_id, epoch = header.producer_id, header.producer_epoch
        window = self._windows.get(producer_id)
        if window is not None:
            if epoch < window.epoch:
                raise InvalidProducerEpochError(
                    f"a transaction of producer id {producer_id} is to end under epoch {epoch}, the newest seen is "
                    f"{window.epoch}"
                )
            if bumped and epoch == window.epoch and window.transaction_start >= 0:
                raise InvalidProducerEpochError(
                    f"a transaction of producer id {producer_id} is to end under epoch {epoch}, under which a later "
                    "one is open"
                )
            if marker.coordinator_epoch < window.coordinator_epoch:
                raise TransactionCoordinatorFencedError(
                    f"a transaction of producer id {producer_id} is to be ended by a coordinator of epoch "
                    f"{marker.coordinator_epoch}, the newest seen is {window.coordinator_epoch}"
                )
        append = Append()
        self._take_place(append, header)
        append.producer_id = producer_id
        append.undo = window
        if window is None:  # it is known from now on, and unless this is undone it begins with what it likes
            append.begins = self._refused.get(producer_id)
            self._refused.pop(producer_id)
        elif window.transaction_start >= 0:
            append.ends = EndedTransaction(window.transaction_start, marker.committed)
        self._windows.put(producer_id, after_end(window, header, marker, now_ms))
        self.transactions.void(producer_id, epoch if bumped else None)
        return append

    # Recovery and checkpoints

    def recovered(self, headers: Iterable[StoredHeader], now_ms: int) -> None:
        """Take stored batches into account, in order: those the checkpoint has not seen. No control batches."""
        for header in headers:
            if not self._pass(header):
                continue
            if header.producer_id >= 0:
                stamp = log_append_time(header)
                window = self._windows.get(header.producer_id)
                transactional = in_transaction(header)
                extended = self._extended(window, header, header.base_offset, stamp, now_ms, transactional)
                self._windows.put(header.producer_id, extended)
            self.transactions.visible(header.length, decided=False)

    def recovered_end(self, header: StoredHeader, marker: Marker | None, now_ms: int) -> None:
        """Take a stored control batch into account; `marker` is None for one that ends no transaction."""
        if not self._pass(header) or marker is None:
            return
        window = self._windows.get(header.producer_id)
        self._windows.put(header.producer_id, after_end(window, header, marker, now_ms))
        if window is not None and window.transaction_start >= 0:
            ended = EndedTransaction(window.transaction_start, marker.committed)
            self.transactions.decided(header.producer_id, ended, header.base_offset)
        self.transactions.visible(header.length, decided=False)

    def _pass(self, header: StoredHeader) -> bool:
        """Go on behind a stored batch; False if that is known already."""
        next_offset = header.base_offset + header.last_offset_delta + 1
        if next_offset <= self.next_offset:
            return False
        self.next_offset = self.high_watermark = next_offset
        epoch = header.partition_leader_epoch
        if self._epochs.newest < epoch:
            self._epochs.begin(epoch, header.base_offset)
        return True

    def skip_to(self, next_offset: int, end: int | None = None) -> None:
        """The log goes on at `next_offset` at least: a store may leave out offsets of what it has lost.

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
        epochs = self._epochs.between(start, self.high_watermark)
        return Checkpoint(self.high_watermark, start, windows, epochs, self.transactions.aborted.trimmed(start))

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
        self._epochs.trim(before)
        self.transactions.aborted.trim(before)
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
        if not 0 <= epoch < self.leader_epoch:
            return -1, -1
        return self._epochs.end_of(epoch, self.high_watermark)

    def epoch_of(self, offset: int) -> int:
        """The leader epoch of the record at this offset; -1 when unknown."""
        return self._epochs.of(offset)

    @property
    def windows(self) -> dict[int, ProducerWindow]:
        """What is remembered of each producer id, for descriptions and tests."""
        return self._windows.copy()

    @property
    def producers(self) -> int:
        """How many producer ids are remembered."""
        return len(self._windows)
