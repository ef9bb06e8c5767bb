"""A batch of records on its way to a partition: what was appended, its sequence, its outcome."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from enum import Enum, auto
from typing import TYPE_CHECKING

from kclient.errors import IllegalStateError, KafkaError
from kclient.types import RecordMetadata

if TYPE_CHECKING:
    from collections.abc import Callable

    from kclient.producer.interfaces import DeliveryCallback
    from kclient.producer.outcomes import Outcomes
    from kclient.records import BatchBuilder
    from kclient.types import Buffer, TopicPartition


class BatchState(Enum):
    """Where a batch stands."""

    OPEN = auto()
    """Records may be appended."""
    CLOSED = auto()
    """Complete; waits for its turn, or is on its way."""
    SUCCEEDED = auto()
    """The broker acknowledged it."""
    FAILED = auto()
    """Given up; every record has the same error, or its own."""
    SPLIT = auto()
    """Was too large for the broker; its records are in smaller batches now."""


_TRANSITIONS = {
    BatchState.OPEN: {BatchState.CLOSED, BatchState.FAILED},
    BatchState.CLOSED: {BatchState.SUCCEEDED, BatchState.FAILED, BatchState.SPLIT},
    BatchState.SUCCEEDED: set[BatchState](),
    BatchState.FAILED: set[BatchState](),
    BatchState.SPLIT: set[BatchState](),
}
_DONE = frozenset({BatchState.SUCCEEDED, BatchState.FAILED})


class ProducerBatch:
    """Records for one partition that travel together.

    Appending and closing happen under the accumulator's lock; the rest in the sender's task, except the wait for
    the outcome, which has a lock of its own (`outcomes.lock`).
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
        "doubtful",
        "drained",
        "error",
        "full",
        "log_append_time",
        "observed",
        "outcomes",
        "producer_epoch",
        "producer_id",
        "record_errors",
        "refused",
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
        self, tp: TopicPartition, builder: BatchBuilder, created: float, reserved: int, outcomes: Outcomes
    ) -> None:
        self.tp: TopicPartition = tp
        self.builder: BatchBuilder | None = builder
        self.created: float = created
        self.reserved: int = reserved
        self.outcomes: Outcomes = outcomes
        self.full: bool = False
        self.state: BatchState = BatchState.OPEN
        self.count: int = 0
        self.size: int = 0
        self.data: Buffer | None = None
        self.drained: float = 0.0
        self.runs: array[int] = array("q")
        self.attempts: int = 0
        self.retry_at: float = 0.0
        self.attempt_leader_epoch: int | None = None
        self.producer_id: int = -1
        self.producer_epoch: int = -1
        self.base_sequence: int = -1
        self.sequence_reset: bool = False
        self.doubtful: bool = False
        self.refused: bool = False
        self.base_offset: int = -1
        self.log_append_time: int = -1
        self.error: KafkaError | None = None
        self.record_errors: dict[int, KafkaError] | None = None
        self.splits: list[tuple[int, ProducerBatch]] = []
        self.callbacks: list[tuple[int, DeliveryCallback]] | None = None
        self.observed: set[int] | None = None
        self.waiters: list[Callable[[], object]] | None = None

    def __repr__(self) -> str:
        return f"<ProducerBatch {self.tp} {self.state.name} {self.count} records>"

    def _move(self, state: BatchState) -> None:
        if state not in _TRANSITIONS[self.state]:
            raise IllegalStateError(f"batch of {self.tp}: {self.state.name} -> {state.name}")
        self.state = state

    # ------------------------------------------------------------------ filling

    def close(self) -> None:
        """No more records; called under the accumulator's lock."""
        if self.state is not BatchState.OPEN:
            return
        assert self.builder is not None
        self._move(BatchState.CLOSED)
        self.count = self.builder.count
        self.size = self.builder.size
        self.runs = self.builder.timestamp_runs

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

    def attempt_failed(self, *, stored: bool) -> None:
        """An attempt to send it failed; `stored`: it may have been stored all the same."""
        if stored:
            self.doubtful = True
        elif not self.doubtful:
            self.refused = True

    @property
    def must_be_stored(self) -> bool:
        """Whether it is stored if the leader took a later one: nothing says that an attempt was refused first."""
        return self.doubtful and not self.refused

    # ------------------------------------------------------------------ outcome

    @property
    def done(self) -> bool:
        """Whether the fate of all its records is known."""
        if self.state is BatchState.SPLIT:
            return all(child.done for _, child in self.splits)
        return self.state in _DONE

    def succeed(self, base_offset: int, log_append_time: int) -> None:
        """The broker has the batch."""
        self.base_offset, self.log_append_time = base_offset, log_append_time
        self._finish(BatchState.SUCCEEDED)

    def fail(self, error: KafkaError, record_errors: dict[int, KafkaError] | None = None) -> None:
        """Give the batch up."""
        self.count = self.records
        self.error, self.record_errors = error, record_errors
        self._finish(BatchState.FAILED)

    def split(self, children: list[ProducerBatch]) -> None:
        """The records travel in smaller batches from now on, in the same order."""
        start = 0
        for child in children:
            self.splits.append((start, child))
            start += child.count
        self._finish(BatchState.SPLIT)
        for index, callback in self.callbacks or ():
            child, inner = self.locate(index)
            child.add_callback(inner, callback)
        self.callbacks = None

    def _finish(self, state: BatchState) -> None:
        with self.outcomes.lock:
            self._move(state)
            waiters, self.waiters = self.waiters, None
        self.builder = self.data = None  # handles may live long; the payload must not
        if state is not BatchState.SPLIT:
            self.outcomes.add(self)
        for waiter in waiters or ():
            waiter()

    def add_waiter(self, waiter: Callable[[], object]) -> bool:
        """Have `waiter` called at the next change of state; False if there will be none."""
        with self.outcomes.lock:
            if self.state in _DONE or self.state is BatchState.SPLIT:
                return False
            if self.waiters is None:
                self.waiters = []
            self.waiters.append(waiter)
            return True

    def remove_waiter(self, waiter: Callable[[], object]) -> None:
        """Undo `add_waiter`, if it still stands."""
        with self.outcomes.lock:
            if self.waiters is not None and waiter in self.waiters:
                self.waiters.remove(waiter)

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
        if timestamp < 0 and self.runs:
            run = bisect_right(range(0, len(self.runs), 2), index, key=self.runs.__getitem__) - 1
            timestamp = self.runs[2 * run + 1]
        offset = self.base_offset + index if self.base_offset >= 0 else -1
        return RecordMetadata(self.tp.topic, self.tp.partition, offset, timestamp)

    def add_callback(self, index: int, callback: DeliveryCallback) -> None:
        """Have `callback` called with the record's outcome; under the accumulator's lock."""
        if self.callbacks is None:
            self.callbacks = []
        self.callbacks.append((index, callback))

    def observe(self, index: int) -> None:
        """Somebody was told of the record's failure, so `flush` need not report it."""
        if self.observed is None:
            self.observed = set()
        self.observed.add(index)


def increment_sequence(sequence: int, increment: int) -> int:
    """Sequence numbers count to 2^31 - 1 and start again at 0."""
    return (sequence + increment) & 0x7FFFFFFF


def is_later(one: int, other: int) -> bool:
    """Whether sequence number `one` comes after `other`, across the wrap-around."""
    return 0 < ((one - other) & 0x7FFFFFFF) < 0x40000000
