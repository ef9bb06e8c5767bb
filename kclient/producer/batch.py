"""A batch of records on its way to a partition: what was appended, its sequence, its outcome."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Protocol

from kclient.producer.states import BATCH_TABLE, EVIDENCE_TABLE, AttemptOutcome, BatchEvent, BatchState, Evidence
from kclient.records import BatchBuilder, CompressionType, decode_records
from kclient.state_tables import next_state
from kclient.types import RecordMetadata, TimestampType

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from kclient.errors import KafkaError
    from kclient.producer.interfaces import DeliveryCallback
    from kclient.types import Buffer, TopicPartition


_DONE = frozenset({BatchState.SUCCEEDED, BatchState.FAILED})


class BatchReports(Protocol):
    """Where batches report, and who waits for them finds what it needs: one for each producer."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Guards the change of a batch's state against those who begin to wait for it."""
        ...

    def add(self, batch: ProducerBatch) -> None:
        """A batch succeeded or failed."""
        ...

    def run_callbacks(self) -> None:
        """Call what is due now, in the caller's thread."""
        ...

    def check_loop(self) -> None:
        """Raise in another event loop than the one where batches are completed."""
        ...

    def block_on(self, batch: ProducerBatch, index: int, timeout: float | None) -> None:
        """Wait in this thread until the fate of a record is known."""
        ...


class ProducerBatch:
    """Records for one partition that travel together.

    Appending and closing happen under the buffer's lock; the rest in the sender's task, except the wait for
    the outcome, which has a lock of its own (`reports.lock`).
    """

    __slots__ = (
        "attempt_leader_epoch",
        "attempts",
        "base_offset",
        "base_sequence",
        "builder",
        "callbacks",
        "count",
        "created",
        "data",
        "done_callbacks",
        "error",
        "evidence",
        "full",
        "log_append_time",
        "log_start_offset",
        "observed",
        "producer_epoch",
        "producer_id",
        "record_errors",
        "reports",
        "reserved",
        "retry_at",
        "runs",
        "sequence_reset",
        "size",
        "splits",
        "state",
        "tp",
        "waiters",
    )

    def __init__(
        self, tp: TopicPartition, builder: BatchBuilder, created: float, reserved: int, reports: BatchReports
    ) -> None:
        self.tp: TopicPartition = tp
        self.builder: BatchBuilder | None = builder
        self.created: float = created
        self.reserved: int = reserved
        self.reports: BatchReports = reports
        self.full: bool = False
        self.state: BatchState = BatchState.OPEN
        self.count: int = 0
        self.size: int = 0
        self.data: Buffer | None = None
        self.runs: array[int] = array("q")
        self.attempts: int = 0
        self.retry_at: float = 0.0
        self.attempt_leader_epoch: int | None = None
        self.producer_id: int = -1
        self.producer_epoch: int = -1
        self.base_sequence: int = -1
        self.sequence_reset: bool = False
        self.evidence: Evidence = Evidence.NONE
        self.base_offset: int = -1
        self.log_append_time: int = -1
        self.log_start_offset: int = -1
        self.error: KafkaError | None = None
        self.record_errors: dict[int, KafkaError] | None = None
        self.splits: list[tuple[int, ProducerBatch]] = []
        self.callbacks: list[tuple[int, DeliveryCallback]] | None = None  # turned round once it is done
        self.observed: set[int] | None = None
        self.waiters: list[Callable[[], object]] | None = None
        self.done_callbacks: dict[int, list[tuple[object, Callable[[], object]]]] | None = None
        """By the record's index what the user wants called, and what sees to that at the next change of state."""

    def __repr__(self) -> str:
        return f"<ProducerBatch {self.tp} {self.state.name} {self.count} records>"

    def _on(self, event: BatchEvent) -> None:
        self.state = next_state(BATCH_TABLE, self.state, event, self)

    # ------------------------------------------------------------------ filling

    def close(self) -> None:
        """No more records; called under the buffer's lock."""
        if self.state is not BatchState.OPEN:
            return
        assert self.builder is not None
        self.count = self.builder.count
        self.size = self.builder.size
        self.runs = self.builder.timestamp_runs
        self._on(BatchEvent.COMPLETED)  # last: broken off by a signal handler's exception, it is done once more

    @property
    def records(self) -> int:
        """How many records it has, also while it is filled."""
        return self.builder.count if self.state is BatchState.OPEN and self.builder is not None else self.count

    def encode(self) -> Buffer:
        """The bytes to send, with the producer's id, epoch and sequence as they are now."""
        assert self.builder is not None
        self.data = self.builder.build(
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self.base_sequence,
        )
        return self.data

    @property
    def wire_size(self) -> int:
        """Bytes in a request, at most: before it is encoded, without counting on compression."""
        if self.data is not None:
            return len(self.data)
        return self.builder.size if self.builder is not None else self.size

    # ------------------------------------------------------------------ producer state

    @property
    def has_sequence(self) -> bool:
        """Whether a sequence number was assigned."""
        return self.base_sequence >= 0

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record (they wrap around after 2^31 - 1)."""
        return increment_sequence(self.base_sequence, self.count - 1)

    def set_producer_state(self, producer_id: int, epoch: int, sequence: int) -> None:
        """Assign the first sequence number."""
        self.producer_id, self.producer_epoch, self.base_sequence = producer_id, epoch, sequence

    def reset_producer_state(self, producer_id: int, epoch: int, sequence: int) -> None:
        """Assign another sequence number after the epoch was bumped."""
        self.set_producer_state(producer_id, epoch, sequence)
        self.sequence_reset = True

    def attempt_failed(self, outcome: AttemptOutcome) -> None:
        """What is known now of whether it is stored."""
        self.evidence = next_state(EVIDENCE_TABLE, self.evidence, outcome, self)

    @property
    def must_be_stored(self) -> bool:
        """Whether it is stored if the leader took a later one: nothing says that an attempt was refused first."""
        return self.evidence is Evidence.MAYBE_STORED

    # ------------------------------------------------------------------ on its way

    def send(self, leader_epoch: int | None) -> None:
        """It leaves in a request to the leader of this epoch."""
        self._on(BatchEvent.SENT)
        self.attempt_leader_epoch = leader_epoch

    def retry(self, at: float) -> None:
        """The attempt failed; another follows.

        Args:
            at: When, at the earliest.
        """
        self._on(BatchEvent.RETRIED)
        self.attempts += 1
        self.retry_at = at

    # ------------------------------------------------------------------ outcome

    @property
    def done(self) -> bool:
        """Whether the fate of all its records is known."""
        if self.state is BatchState.SPLIT:
            return all(child.done for _, child in self.splits)
        return self.state in _DONE

    def succeed(self, base_offset: int, log_append_time: int, log_start_offset: int = -1) -> None:
        """The broker has the batch."""
        self.base_offset, self.log_append_time, self.log_start_offset = base_offset, log_append_time, log_start_offset
        self._finish(BatchEvent.ACKNOWLEDGED)

    def fail(self, error: KafkaError, record_errors: dict[int, KafkaError] | None = None) -> None:
        """Give the batch up."""
        self.count = self.records
        self.error, self.record_errors = error, record_errors
        self._finish(BatchEvent.GIVEN_UP)

    def split(self, children: list[ProducerBatch]) -> None:
        """The records travel in smaller batches from now on, in the same order."""
        start = 0
        for child in children:
            self.splits.append((start, child))
            start += child.count
        self._finish(BatchEvent.REFUSED_AS_TOO_LARGE)
        for index, callback in self.callbacks or ():
            child, inner = self.locate(index)
            child.add_callback(inner, callback)
        self.callbacks = None

    def _finish(self, event: BatchEvent) -> None:
        with self.reports.lock:
            self._on(event)
            waiters, self.waiters = self.waiters, None
            done_callbacks, self.done_callbacks = self.done_callbacks, None
        self.builder = self.data = None  # handles may live long; the payload must not
        if self.state is not BatchState.SPLIT:
            self.reports.add(self)
        for waiter in waiters or ():
            waiter()
        for same_record in (done_callbacks or {}).values():
            for _, waiter in same_record:
                waiter()

    def add_waiter(self, waiter: Callable[[], object]) -> bool:
        """Have `waiter` called at the next change of state; False if there will be none."""
        with self.reports.lock:
            if self.state in _DONE or self.state is BatchState.SPLIT:
                return False
            if self.waiters is None:
                self.waiters = []
            self.waiters.append(waiter)
            return True

    def remove_waiter(self, waiter: Callable[[], object]) -> None:
        """Undo `add_waiter`, if it still stands."""
        with self.reports.lock:
            if self.waiters is not None and waiter in self.waiters:
                self.waiters.remove(waiter)

    def add_done_callback(self, index: int, function: object, waiter: Callable[[], object]) -> bool:
        """As `add_waiter`, for the function of a user who waits for one record."""
        with self.reports.lock:
            if self.state in _DONE or self.state is BatchState.SPLIT:
                return False
            if self.done_callbacks is None:
                self.done_callbacks = {}
            self.done_callbacks.setdefault(index, []).append((function, waiter))
            return True

    def remove_done_callback(self, index: int, function: object) -> int:
        """Undo `add_done_callback` for this function at this record; returns how often it was there.

        It costs the same however many records of the batch are waited for: `asyncio.wait` removes one by one.
        """
        with self.reports.lock:
            found = (self.done_callbacks or {}).pop(index, [])
            left = [each for each in found if each[0] != function]
            if left and self.done_callbacks is not None:
                self.done_callbacks[index] = left
            return len(found) - len(left)

    def locate(self, index: int) -> tuple[ProducerBatch, int]:
        """The batch that a record is in now, and its index there."""
        batch = self
        while batch.state is BatchState.SPLIT:
            position = bisect_right(batch.splits, index, key=lambda entry: entry[0]) - 1
            start, batch = batch.splits[position]
            index -= start
        return batch, index

    def error_of(self, index: int) -> KafkaError | None:
        """Why a record of this failed batch failed; None if it did not."""
        if self.record_errors is not None and index in self.record_errors:
            return self.record_errors[index]
        return self.error

    def metadata(self, index: int) -> RecordMetadata:
        """Where a record of this acknowledged batch is stored."""
        timestamp = self.log_append_time
        stamped = TimestampType.CREATE_TIME if timestamp < 0 else TimestampType.LOG_APPEND_TIME
        if timestamp < 0 and self.runs:
            run = bisect_right(range(0, len(self.runs), 2), index, key=self.runs.__getitem__) - 1
            timestamp = self.runs[2 * run + 1]
        offset = self.base_offset + index if self.base_offset >= 0 else -1
        return RecordMetadata(self.tp.topic, self.tp.partition, offset, timestamp, stamped, self.log_start_offset)

    def add_callback(self, index: int, callback: DeliveryCallback) -> None:
        """Have `callback` called with the record's outcome; under the buffer's lock."""
        if self.callbacks is None:
            self.callbacks = []
        self.callbacks.append((index, callback))

    def observe(self, index: int) -> None:
        """Somebody was told of the record's failure, so `flush` need not report it."""
        if self.observed is None:
            self.observed = set()
        self.observed.add(index)

    def unobserve(self, index: int) -> None:
        """Nobody was told of it after all."""
        if self.observed is not None:
            self.observed.discard(index)


def increment_sequence(sequence: int, increment: int) -> int:
    """Sequence numbers count to 2^31 - 1 and start again at 0."""
    return (sequence + increment) & 0x7FFFFFFF


def is_later(one: int, other: int) -> bool:
    """Whether sequence number `one` comes after `other`, across the wrap-around."""
    return 0 < ((one - other) & 0x7FFFFFFF) < 0x40000000


def split_batch(
    batch: ProducerBatch, limit: int, compression: CompressionType, level: int | None, *, is_transactional: bool = False
) -> list[ProducerBatch]:
    """The records of an encoded batch in batches of at most `limit` bytes, each with at least one record.

    They share out its sequence numbers, since they hold the same records in the same order.
    """
    assert batch.data is not None
    children: list[ProducerBatch] = []
    builder: BatchBuilder | None = None
    for record in decode_records(batch.data, *batch.tp, check_crcs=False):
        fields = (record.timestamp, record.key, record.value, record.headers)
        if builder is None or builder.append(*fields) < 0:
            builder = BatchBuilder(limit=limit, compression=compression, level=level, is_transactional=is_transactional)
            builder.append(*fields)
            children.append(ProducerBatch(batch.tp, builder, batch.created, 0, batch.reports))
    sequence = batch.base_sequence
    for child in children:
        child.close()
        child.full = True
        child.reserved = child.size
        child.evidence = batch.evidence
        if batch.has_sequence:
            child.set_producer_state(batch.producer_id, batch.producer_epoch, sequence)
            sequence = increment_sequence(sequence, child.count)
    return children
