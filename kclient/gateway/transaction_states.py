"""The states of a transactional id and the legal steps between them, as in Kafka's TransactionMetadata."""

from __future__ import annotations

from typing import Final

from kclient.state_tables import PlainEnum, StateTable


class TransactionState(PlainEnum):
    """A state; the value is the name that DescribeTransactions and ListTransactions show."""

    EMPTY = "Empty"
    """A producer has an id and an epoch, and nothing belongs to a transaction of it."""
    ONGOING = "Ongoing"
    """Partitions or groups have joined."""
    PREPARE_COMMIT = "PrepareCommit"
    """It is decided: the ends are being written, and asked for again until all are durable."""
    PREPARE_ABORT = "PrepareAbort"
    """The same of one that is aborted."""
    COMPLETE_COMMIT = "CompleteCommit"
    """All of it is visible. The next one may begin."""
    COMPLETE_ABORT = "CompleteAbort"
    """None of it ever will be. The next one may begin."""
    DEAD = "Dead"
    """It has been forgotten."""


class TransactionEvent(PlainEnum):
    """What leads to another state; the value is the label in the diagram."""

    INITIALIZED = "a producer gets an id and an epoch"
    JOINED = "a partition or a group joins"
    COMMITTED = "EndTxn commits"
    ABORTED = "EndTxn aborts, its time is over, or another producer comes"
    NOTHING_ABORTED = "EndTxn aborts, and nothing has joined"
    ENDED = "all ends are durable"
    EXPIRED = "nobody has used it for long"


_IDLE: Final = {
    TransactionEvent.INITIALIZED: TransactionState.EMPTY,
    TransactionEvent.JOINED: TransactionState.ONGOING,
    TransactionEvent.NOTHING_ABORTED: TransactionState.COMPLETE_ABORT,
    TransactionEvent.EXPIRED: TransactionState.DEAD,
}

COORDINATED_TABLE: Final[StateTable[TransactionState, TransactionEvent]] = {
    TransactionState.EMPTY: dict(_IDLE),
    TransactionState.ONGOING: {
        TransactionEvent.JOINED: TransactionState.ONGOING,
        TransactionEvent.COMMITTED: TransactionState.PREPARE_COMMIT,
        TransactionEvent.ABORTED: TransactionState.PREPARE_ABORT,
    },
    TransactionState.PREPARE_COMMIT: {TransactionEvent.ENDED: TransactionState.COMPLETE_COMMIT},
    TransactionState.PREPARE_ABORT: {TransactionEvent.ENDED: TransactionState.COMPLETE_ABORT},
    TransactionState.COMPLETE_COMMIT: dict(_IDLE),
    TransactionState.COMPLETE_ABORT: dict(_IDLE),
    TransactionState.DEAD: {},
}

PREPARED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
"""The states in which it is decided, and its ends are being written."""
COMMITTING: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT})
"""The states of one that was committed."""
IDLE: Final = frozenset(state for state, row in COORDINATED_TABLE.items() if TransactionEvent.EXPIRED in row)
"""The states in which nothing belongs to a transaction."""
