"""The states of a batch, of the producer id and of a transaction, and what leads from one to the next.

`docs/internals/producer.md` and `transactions.md` draw the tables below; a test compares both.
"""

from __future__ import annotations

from enum import auto

from kclient.state_tables import PlainEnum, StateTable


class BatchState(PlainEnum):
    """Where a batch stands."""

    OPEN = auto()
    """Records may be appended."""
    QUEUED = auto()
    """Complete; waits to be sent for the first time."""
    IN_FLIGHT = auto()
    """In a request that is not answered yet."""
    RETRYING = auto()
    """An attempt failed; waits to be sent again."""
    SUCCEEDED = auto()
    """The broker acknowledged it."""
    FAILED = auto()
    """Given up; every record has the same error, or its own."""
    SPLIT = auto()
    """Was too large for the broker; its records are in smaller batches now."""


class BatchEvent(PlainEnum):
    """What happens to a batch; the values are the labels of the diagram."""

    COMPLETED = "drained, or as large as it may grow"
    SENT = "its turn in a request"
    ACKNOWLEDGED = "acknowledged, or a duplicate"
    RETRIED = "no answer, or an error that can pass"
    REFUSED_AS_TOO_LARGE = "too large for the broker"
    GIVEN_UP = "refused, its time is over, or aborted"


BATCH_TABLE: StateTable[BatchState, BatchEvent] = {
    BatchState.OPEN: {
        BatchEvent.COMPLETED: BatchState.QUEUED,
        BatchEvent.GIVEN_UP: BatchState.FAILED,
    },
    BatchState.QUEUED: {
        BatchEvent.SENT: BatchState.IN_FLIGHT,
        BatchEvent.GIVEN_UP: BatchState.FAILED,
    },
    BatchState.IN_FLIGHT: {
        BatchEvent.ACKNOWLEDGED: BatchState.SUCCEEDED,
        BatchEvent.RETRIED: BatchState.RETRYING,
        BatchEvent.REFUSED_AS_TOO_LARGE: BatchState.SPLIT,
        BatchEvent.GIVEN_UP: BatchState.FAILED,
    },
    BatchState.RETRYING: {
        BatchEvent.SENT: BatchState.IN_FLIGHT,
        BatchEvent.GIVEN_UP: BatchState.FAILED,
    },
    BatchState.SUCCEEDED: {},
    BatchState.FAILED: {},
    BatchState.SPLIT: {},
}


class Evidence(PlainEnum):
    """What the attempts to send a batch say about whether the log has it."""

    NONE = auto()
    """No attempt has failed."""
    MAYBE_STORED = auto()
    """An attempt may have stored it, and none was refused before."""
    REFUSED = auto()
    """A log refused it, or the log may be another one by now: that a later batch is there proves nothing."""


class AttemptOutcome(PlainEnum):
    """What an attempt that failed leaves behind."""

    MAYBE_STORED = "no answer, or one that leaves it open"
    REFUSED = "refused"
    ANOTHER_LOG = "the log may be another one"


EVIDENCE_TABLE: StateTable[Evidence, AttemptOutcome] = {
    Evidence.NONE: {
        AttemptOutcome.MAYBE_STORED: Evidence.MAYBE_STORED,
        AttemptOutcome.REFUSED: Evidence.REFUSED,
        AttemptOutcome.ANOTHER_LOG: Evidence.REFUSED,
    },
    Evidence.MAYBE_STORED: {
        # the first attempt may have stored it, whatever is said of the others
        AttemptOutcome.MAYBE_STORED: Evidence.MAYBE_STORED,
        AttemptOutcome.REFUSED: Evidence.MAYBE_STORED,
        AttemptOutcome.ANOTHER_LOG: Evidence.REFUSED,
    },
    Evidence.REFUSED: dict.fromkeys(AttemptOutcome, Evidence.REFUSED),
}


class ProducerIdPhase(PlainEnum):
    """Where the producer id stands."""

    UNINITIALIZED = auto()
    """No producer id; one has to be asked for."""
    INITIALIZING = auto()
    """InitProducerId is on its way."""
    READY = auto()
    """There is a producer id; batches may be sent."""
    FATAL_ERROR = auto()
    """The broker will never give one out to us; every call raises."""


class ProducerIdEvent(PlainEnum):
    """What happens to the producer id; the values are the labels of the diagram."""

    REQUESTED = "InitProducerId goes out"
    GIVEN_OUT = "an id and an epoch"
    FAILED = "an error that can pass"
    REFUSED = "an error that cannot, such as not authorized"
    EPOCHS_USED_UP = "epochs used up"


PRODUCER_ID_TABLE: StateTable[ProducerIdPhase, ProducerIdEvent] = {
    ProducerIdPhase.UNINITIALIZED: {
        ProducerIdEvent.REQUESTED: ProducerIdPhase.INITIALIZING,
    },
    ProducerIdPhase.INITIALIZING: {
        ProducerIdEvent.GIVEN_OUT: ProducerIdPhase.READY,
        ProducerIdEvent.FAILED: ProducerIdPhase.UNINITIALIZED,
        ProducerIdEvent.REFUSED: ProducerIdPhase.FATAL_ERROR,
    },
    ProducerIdPhase.READY: {
        ProducerIdEvent.EPOCHS_USED_UP: ProducerIdPhase.UNINITIALIZED,
    },
    ProducerIdPhase.FATAL_ERROR: {},
}


class TransactionState(PlainEnum):
    """Where a transactional producer stands."""

    UNINITIALIZED = auto()
    """`init_transactions` was not called."""
    INITIALIZING = auto()
    """The coordinator was asked for a producer id, or for the next epoch of the present one."""
    READY = auto()
    """A transaction may begin."""
    IN_TRANSACTION = auto()
    """Records and offsets may be added."""
    COMMITTING = auto()
    """What was sent is waited for, then the coordinator is asked to commit."""
    ABORTING = auto()
    """What has left is waited for, then the coordinator is asked to abort."""
    HANDING_OVER = auto()
    """What was sent is waited for; the coordinator is not asked."""
    HANDED_OVER = auto()
    """All of it is there, and the transaction is open: another producer ends it."""
    ABORTABLE_ERROR = auto()
    """The transaction cannot be committed any more: it has to be aborted, then the producer can go on."""
    FATAL_ERROR = auto()
    """The producer cannot go on; every call raises."""


class TransactionEvent(PlainEnum):
    """What happens to a transactional producer; the values are the labels of the diagram."""

    INIT = "init_transactions"
    GIVEN_OUT = "an id and an epoch"
    BEGIN = "begin_transaction"
    COMMIT = "commit_transaction"
    ABORT = "abort_transaction"
    HAND_OVER = "hand_over"
    ALL_THERE = "all of it is there"
    FAILED = "what it holds cannot be committed any more"
    ENDED = "ended"
    ENDED_WITH_BUMP = "ended, and the epoch has to be bumped"
    FATAL = "fenced, or an error that cannot pass"


TRANSACTION_TABLE: StateTable[TransactionState, TransactionEvent] = {
    TransactionState.UNINITIALIZED: {
        TransactionEvent.INIT: TransactionState.INITIALIZING,
    },
    TransactionState.INITIALIZING: {
        TransactionEvent.GIVEN_OUT: TransactionState.READY,
        TransactionEvent.FATAL: TransactionState.FATAL_ERROR,
    },
    TransactionState.READY: {
        TransactionEvent.BEGIN: TransactionState.IN_TRANSACTION,
    },
    TransactionState.IN_TRANSACTION: {
        TransactionEvent.COMMIT: TransactionState.COMMITTING,
        TransactionEvent.ABORT: TransactionState.ABORTING,
        TransactionEvent.HAND_OVER: TransactionState.HANDING_OVER,
        TransactionEvent.FAILED: TransactionState.ABORTABLE_ERROR,
        TransactionEvent.FATAL: TransactionState.FATAL_ERROR,
    },
    TransactionState.COMMITTING: {
        TransactionEvent.ENDED: TransactionState.READY,
        TransactionEvent.ENDED_WITH_BUMP: TransactionState.INITIALIZING,
        TransactionEvent.FAILED: TransactionState.ABORTABLE_ERROR,
        TransactionEvent.FATAL: TransactionState.FATAL_ERROR,
    },
    TransactionState.ABORTING: {
        TransactionEvent.ENDED: TransactionState.READY,
        TransactionEvent.ENDED_WITH_BUMP: TransactionState.INITIALIZING,
        TransactionEvent.FATAL: TransactionState.FATAL_ERROR,
    },
    TransactionState.HANDING_OVER: {
        TransactionEvent.ALL_THERE: TransactionState.HANDED_OVER,
        TransactionEvent.FAILED: TransactionState.ABORTABLE_ERROR,
        TransactionEvent.FATAL: TransactionState.FATAL_ERROR,
    },
    TransactionState.HANDED_OVER: {},
    TransactionState.ABORTABLE_ERROR: {
        TransactionEvent.ABORT: TransactionState.ABORTING,
        TransactionEvent.FATAL: TransactionState.FATAL_ERROR,
    },
    TransactionState.FATAL_ERROR: {},
}
