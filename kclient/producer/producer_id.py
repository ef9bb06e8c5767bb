"""The idempotent producer's id, epoch and sequence numbers: a state machine without I/O or clock.

A port of the rules of Java's `TransactionManager` and `TxnPartitionMap` for producers without a transactional id
(KIP-98, KIP-360, KIP-854). The broker accepts, per partition, the sequence that follows the last one it stored, and
recognises the last five batches when they come again. So:

- a batch keeps its sequence through its retries, and only the first batch in flight may be retried; until it is
  settled nothing new is sent behind it, or, stored already with only the answer lost, it would fall out of those five
  (Java's sends on);
- when a batch is lost for good, its sequence leaves a gap: the epoch is bumped, and what is still in flight for that
  partition is renumbered from 0. What comes before the gap is settled under its old numbers first: it may be stored
  already with only the answer lost, and under new numbers the broker would not recognise it (Java's does not wait).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kclient.cluster import ZERO_ID
from kclient.errors import ErrorCode, KafkaError
from kclient.producer.batch import increment_sequence, is_later
from kclient.producer.states import PRODUCER_ID_TABLE, AttemptOutcome, ProducerIdEvent, ProducerIdPhase
from kclient.state_tables import next_state

if TYPE_CHECKING:
    from kclient.cluster import ClusterSnapshot
    from kclient.producer.batch import ProducerBatch
    from kclient.types import TopicPartition

_STORED_MAYBE = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)
"""What a broker answers of a batch that it may have appended."""
_NO_LOG = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
"""What a broker answers that has no such log: what is found there later may be a new one."""

_NO_SEQUENCE = -1
MAX_EPOCH = 32767


class ProducerIdAndEpoch(NamedTuple):
    """Who the producer is to the brokers."""

    producer_id: int = -1
    epoch: int = -1

    @property
    def valid(self) -> bool:
        """Whether a broker has given out the id."""
        return self.producer_id >= 0


NO_PRODUCER_ID: Final = ProducerIdAndEpoch()
"""None has been given out yet."""


class PartitionSequences:
    """Sequence numbers of one partition, and the batches that hold one and are not acknowledged."""

    __slots__ = (
        "identity",
        "known",
        "last_acked_offset",
        "last_acked_sequence",
        "next_sequence",
        "on_wire",
        "topic_id",
        "unsettled",
        "wire_node",
    )

    def __init__(self, identity: ProducerIdAndEpoch) -> None:
        self.identity: ProducerIdAndEpoch = identity
        self.next_sequence: int = 0
        self.last_acked_sequence: int = _NO_SEQUENCE
        self.last_acked_offset: int = -1
        self.unsettled: list[ProducerBatch] = []
        """In the order of their sequences; also those that wait for a retry."""
        self.known: bool = False
        """Whether the leader has acknowledged a batch under this id and epoch, so that it notices gaps."""
        self.on_wire: int = 0
        """Requests with a batch of this partition that are not answered."""
        self.wire_node: int = -1
        """The broker that they went to."""
        self.topic_id: bytes = ZERO_ID
        """Which topic of this name the leader keeps, if brokers tell (KIP-516)."""

    def restart(self, identity: ProducerIdAndEpoch) -> None:
        """Renumber what is in flight from 0 under a new id or epoch."""
        sequence = 0
        for batch in self.unsettled:
            batch.reset_producer_state(*identity, sequence)
            sequence = increment_sequence(sequence, batch.count)
        self.identity = identity
        self.next_sequence = sequence
        self.last_acked_sequence = _NO_SEQUENCE
        self.known = False

    def add(self, batch: ProducerBatch) -> None:
        """A batch got its sequence."""
        position = len(self.unsettled)
        # halves of a split batch come back among later ones
        while position and is_later(self.unsettled[position - 1].base_sequence, batch.base_sequence):
            position -= 1
        self.unsettled.insert(position, batch)

    def remove(self, batch: ProducerBatch) -> None:
        """A batch is acknowledged, given up or split."""
        if batch in self.unsettled:
            self.unsettled.remove(batch)

    def doubt_log(self) -> None:
        """The log may be another one, which knows nothing of what the former one acknowledged."""
        self.known = False
        for batch in self.unsettled:
            batch.attempt_failed(AttemptOutcome.ANOTHER_LOG)

    def reaches(self, gap: int) -> bool:
        """Whether no batch in flight comes before a gap in the sequence."""
        return not any(is_later(gap, batch.base_sequence) for batch in self.unsettled)


class ProducerIdState:
    """Assigns sequences and decides what an error means for them.

    Args:
        transactional: Whether ids and epochs are the transactions' affair: it asks for none and bumps none, and a batch
            that leaves a gap is not renumbered but fails.
    """

    def __init__(self, *, transactional: bool = False) -> None:
        self._transactional = transactional
        self.phase: ProducerIdPhase = ProducerIdPhase.UNINITIALIZED
        self.identity: ProducerIdAndEpoch = NO_PRODUCER_ID
        self.error: KafkaError | None = None
        """Why no batch can be sent any more, in FATAL_ERROR."""
        self._partitions: dict[TopicPartition, PartitionSequences] = {}
        self._unresolved: set[TopicPartition] = set()
        """Partitions where a batch was given up that may have been stored."""
        self._snapshot: ClusterSnapshot | None = None
        self._gaps: dict[TopicPartition, int] = {}
        """Partitions whose leader lacks a batch that was given up: its sequence."""

    def _on(self, event: ProducerIdEvent) -> None:
        self.phase = next_state(PRODUCER_ID_TABLE, self.phase, event, "producer id")

    # ------------------------------------------------------------------ the producer id

    @property
    def needs_producer_id(self) -> bool:
        """Whether InitProducerId must be sent now."""
        return self.phase is ProducerIdPhase.UNINITIALIZED and not self._transactional

    def initializing(self) -> None:
        """InitProducerId goes out."""
        self._on(ProducerIdEvent.REQUESTED)

    def initialized(self, producer_id: int, epoch: int) -> None:
        """The broker gave out an id."""
        self.identity = ProducerIdAndEpoch(producer_id, epoch)
        self._on(ProducerIdEvent.GIVEN_OUT)
        self._renumber()

    def renew(self, producer_id: int, epoch: int) -> None:
        """The coordinator of transactions gave out an identity: all sequences begin anew under it."""
        if self.phase is ProducerIdPhase.INITIALIZING:
            self._on(ProducerIdEvent.GIVEN_OUT)
        self.identity = ProducerIdAndEpoch(producer_id, epoch)
        self._gaps.clear()
        self._unresolved.clear()

    def initialization_failed(self, error: KafkaError) -> None:
        """InitProducerId failed: for good, unless a retry can help."""
        if error.retriable:
            self._on(ProducerIdEvent.FAILED)
        else:
            self._on(ProducerIdEvent.REFUSED)
            self.error = error

    # ------------------------------------------------------------------ sending

    def partition(self, tp: TopicPartition) -> PartitionSequences:
        """The sequences of a partition, from 0 if there are none yet."""
        found = self._partitions.get(tp)
        if found is None:
            found = self._partitions[tp] = PartitionSequences(self.identity)
            if self._snapshot is not None:
                found.topic_id = self._snapshot.topic_id(tp.topic)
        return found

    def may_send(self, batch: ProducerBatch, node: int) -> bool:
        """Whether the first batch in a partition's queue may leave for a broker now."""
        if self.phase is not ProducerIdPhase.READY:
            return False
        entry = self.partition(batch.tp)
        if entry.on_wire and entry.wire_node != node:
            return False  # the new leader may never have seen this producer, see below
        if not batch.has_sequence:
            if entry.unsettled and not entry.known:
                # A leader that has never seen this producer takes any sequence: a second batch would get in where the
                # first does not.
                return False
            if entry.unsettled and (entry.unsettled[0].attempts or entry.identity != self.identity):
                return False  # wait until what is sent again, or has the old epoch, is through
            return batch.tp not in self._unresolved and batch.tp not in self._gaps
        # of those with a sequence only the first may be sent again, or a gap appears
        return not entry.unsettled or entry.unsettled[0].base_sequence == batch.base_sequence

    def assign(self, batch: ProducerBatch) -> None:
        """Give a batch its sequence numbers, if it has none."""
        if batch.has_sequence:
            return
        entry = self.partition(batch.tp)
        if entry.identity != self.identity and not entry.unsettled:
            entry.restart(self.identity)
        batch.set_producer_state(*self.identity, entry.next_sequence)
        entry.next_sequence = increment_sequence(entry.next_sequence, batch.count)
        entry.add(batch)

    def departed(self, tp: TopicPartition, node: int) -> None:
        """A batch of the partition leaves for a broker."""
        entry = self.partition(tp)
        entry.on_wire += 1
        entry.wire_node = node

    def landed(self, tp: TopicPartition) -> None:
        """The request that a batch of the partition was in has ended, however."""
        entry = self.partition(tp)
        entry.on_wire = max(entry.on_wire - 1, 0)

    def go_by(self, snapshot: ClusterSnapshot) -> None:
        """New metadata: the sequences begin anew where a topic was deleted and created again.

        What is in flight is settled under its old numbers first: the new log may have it already.
        """
        former = {} if self._snapshot is None else self._snapshot.topics
        self._snapshot = snapshot
        # most often one topic of many has changed
        changed = {name for name, topic in snapshot.topics.items() if former.get(name) is not topic}
        for tp, entry in self._partitions.items():
            if tp.topic not in changed:
                continue
            topic_id = snapshot.topic_id(tp.topic)
            if topic_id in {ZERO_ID, entry.topic_id}:
                continue
            if entry.topic_id != ZERO_ID:
                entry.doubt_log()
                if entry.next_sequence or entry.unsettled:
                    self._gap(tp, entry.next_sequence)
            entry.topic_id = topic_id

    def adopt(self, batch: ProducerBatch) -> None:
        """Track a batch that already has its sequence: a part of one that was split."""
        self.partition(batch.tp).add(batch)

    # ------------------------------------------------------------------ outcomes

    def completed(self, batch: ProducerBatch, base_offset: int) -> None:
        """The broker has the batch."""
        entry = self.partition(batch.tp)
        entry.remove(batch)
        if base_offset >= 0:
            entry.last_acked_offset = max(entry.last_acked_offset, base_offset + batch.count - 1)
        if (batch.producer_id, batch.producer_epoch) != entry.identity:
            return  # it was given up, and its answer comes after all: the sequences have begun anew
        entry.known = True
        if entry.last_acked_sequence == _NO_SEQUENCE or is_later(batch.last_sequence, entry.last_acked_sequence):
            entry.last_acked_sequence = batch.last_sequence

    def failed(self, batch: ProducerBatch, error: KafkaError, *, refused: bool) -> None:
        """The batch was given up.

        Args:
            batch: The batch.
            error: Why.
            refused: Whether the broker surely did not store it, so that its sequence numbers leave a gap.
        """
        self.partition(batch.tp).remove(batch)
        if self.phase is ProducerIdPhase.FATAL_ERROR or not batch.has_sequence:
            return
        if self.overtaken(batch):
            return  # the leader goes on from the later one
        if refused or error.code in {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID}:
            self._gap(batch.tp, batch.base_sequence)

    def split(self, batch: ProducerBatch) -> None:
        """The batch is replaced by smaller ones, which take over its sequence numbers."""
        self.partition(batch.tp).remove(batch)

    def lost(self, batch: ProducerBatch) -> None:
        """A batch is given up and nobody knows whether the broker has it (if it was ever sent)."""
        if batch.has_sequence and not self.overtaken(batch):
            self._unresolved.add(batch.tp)

    def attempt_failed(self, batch: ProducerBatch, code: int | None, *, answered: bool) -> None:
        """An attempt to send the batch failed: what is known now of whether it is stored."""
        maybe_stored = not answered or code in _STORED_MAYBE
        batch.attempt_failed(AttemptOutcome.MAYBE_STORED if maybe_stored else AttemptOutcome.REFUSED)
        if answered and code in _NO_LOG:
            self.partition(batch.tp).doubt_log()

    def may_retry(self, batch: ProducerBatch, error: KafkaError, log_start_offset: int) -> bool:
        """Whether a batch that the broker refused may be sent again; may ask for a new epoch."""
        if error.code == ErrorCode.UNKNOWN_PRODUCER_ID:
            if self._transactional:
                return log_start_offset == -1
            self._on_unknown_producer_id(batch, log_start_offset)
            return True
        if error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            if self.overtaken(batch):
                return False  # the log has a later batch without this one: it was made anew meanwhile
            self._on_out_of_order(batch)
            return not self._transactional or batch.tp not in self._gaps
        return error.retriable

    def overtaken(self, batch: ProducerBatch) -> bool:
        """Whether a later batch was acknowledged.

        A leader takes them in order, so the log that has the later one has this one too. It may be another log than
        this one was refused by, though (`ProducerBatch.must_be_stored`).
        """
        entry = self.partition(batch.tp)
        return (
            entry.last_acked_sequence != _NO_SEQUENCE
            and (batch.producer_id, batch.producer_epoch) == entry.identity
            and is_later(entry.last_acked_sequence, batch.last_sequence)
        )

    def _on_unknown_producer_id(self, batch: ProducerBatch, log_start_offset: int) -> None:
        """The broker forgot us: the log was truncated by retention, or the partition moved (KIP-360)."""
        if log_start_offset == -1 or batch.sequence_reset:
            return  # not known yet why, or renumbered already: just again
        self._gap(batch.tp, batch.base_sequence)

    def _on_out_of_order(self, batch: ProducerBatch) -> None:
        entry = self.partition(batch.tp)
        unresolved = batch.tp in self._unresolved
        if not unresolved and (batch.sequence_reset or not self._is_next(entry, batch.base_sequence)):
            return  # an earlier batch comes first; this one is right after it
        if not unresolved or (entry.unsettled and entry.unsettled[0] is batch):
            self._gap(batch.tp, batch.base_sequence)  # nothing can come any more that would fill it

    @staticmethod
    def _is_next(entry: PartitionSequences, sequence: int) -> bool:
        if entry.last_acked_sequence == _NO_SEQUENCE:
            return sequence == 0
        return sequence == increment_sequence(entry.last_acked_sequence, 1)

    def resolve(self) -> None:
        """Settle partitions where a batch was lost, once nothing is in flight there any more."""
        for tp in list(self._unresolved):
            entry = self.partition(tp)
            if entry.unsettled:
                continue
            # a later batch was acknowledged, so the lost one must have been stored
            if not self._is_next(entry, entry.next_sequence):
                self._gap(tp, entry.next_sequence)
            self._unresolved.discard(tp)

    # ------------------------------------------------------------------ epochs

    def _gap(self, tp: TopicPartition, sequence: int) -> None:
        """The leader will never have what has this sequence: what follows needs new numbers."""
        known = self._gaps.get(tp)
        if known is None or is_later(known, sequence):
            self._gaps[tp] = sequence

    def bump_if_required(self) -> None:
        """Start a new epoch if a partition needs one; what is in flight there is renumbered.

        A batch on its way keeps its old bytes; it is encoded anew if it has to be sent again.
        """
        if self.phase is not ProducerIdPhase.READY or not self._gaps or self._transactional:
            return
        if any(self.partition(tp).identity == self.identity for tp in self._settled_gaps()):
            if self.identity.epoch >= MAX_EPOCH:
                # epochs are used up: what is in flight goes out under a new id, once there is one
                self.identity = NO_PRODUCER_ID
                self._on(ProducerIdEvent.EPOCHS_USED_UP)
                return
            self.identity = self.identity._replace(epoch=self.identity.epoch + 1)
        self._renumber()

    @property
    def has_gaps(self) -> bool:
        """Whether a leader will not take what follows under the present id and epoch."""
        return any(self.partition(tp).identity == self.identity for tp in self._gaps)

    def _settled_gaps(self) -> list[TopicPartition]:
        """The partitions with a gap where all that comes before it is settled."""
        return [tp for tp, gap in self._gaps.items() if self.partition(tp).reaches(gap)]

    def _renumber(self) -> None:
        for tp in self._settled_gaps():
            self.partition(tp).restart(self.identity)
            self._unresolved.discard(tp)
            del self._gaps[tp]
