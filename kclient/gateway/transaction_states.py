"""The states of a transactional id and the legal steps between them, as in Kafka's TransactionMetadata."""

from __future__ import annotations

from typing import Final

from kclient.state_tables import PlainEnum, StateTable


class CoordinatedState(PlainEnum):
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


class CoordinatedEvent(PlainEnum):
    """What leads to another state; the value is the label in the diagram."""

    INITIALIZED = "a producer gets an id and an epoch"
    JOINED = "a partition or a group joins"
    COMMITTED = "EndTxn commits"
    ABORTED = "EndTxn aborts, its time is over, or another producer comes"
    NOTHING_ABORTED = "EndTxn aborts, and nothing has joined"
    ENDED = "all ends are durable"
    EXPIRED = "nobody has used it for long"


_IDLE: Final = {
    CoordinatedEvent.INITIALIZED: CoordinatedState.EMPTY,
    CoordinatedEvent.JOINED: CoordinatedState.ONGOING,
    CoordinatedEvent.NOTHING_ABORTED: CoordinatedState.COMPLETE_ABORT,
    CoordinatedEvent.EXPIRED: CoordinatedState.DEAD,
}

COORDINATED_TABLE: Final[StateTable[CoordinatedState, CoordinatedEvent]] = {
    CoordinatedState.EMPTY: dict(_IDLE),
    CoordinatedState.ONGOING: {
        CoordinatedEvent.JOINED: CoordinatedState.ONGOING,
        CoordinatedEvent.COMMITTED: CoordinatedState.PREPARE_COMMIT,
        CoordinatedEvent.ABORTED: CoordinatedState.PREPARE_ABORT,
    },
    CoordinatedState.PREPARE_COMMIT: {CoordinatedEvent.ENDED: CoordinatedState.COMPLETE_COMMIT},
    CoordinatedState.PREPARE_ABORT: {CoordinatedEvent.ENDED: CoordinatedState.COMPLETE_ABORT},
    CoordinatedState.COMPLETE_COMMIT: dict(_IDLE),
    CoordinatedState.COMPLETE_ABORT: dict(_IDLE),
    CoordinatedState.DEAD: {},
}

PREPARED: Final = frozenset({CoordinatedState.PREPARE_COMMIT, CoordinatedState.PREPARE_ABORT})
"""The states in which it is decided, and its ends are being written."""
COMMITTING: Final = frozenset({CoordinatedState.PREPARE_COMMIT, CoordinatedState.COMPLETE_COMMIT})
"""The states of one that was committed."""
IDLE: Final = frozenset(state for state, row in COORDINATED_TABLE.items() if CoordinatedEvent.EXPIRED in row)
"""The states in which nothing belongs to a transaction."""
