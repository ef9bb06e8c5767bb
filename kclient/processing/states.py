"""The states of the transaction that processing has open, and what leads from one to the other."""

from __future__ import annotations

from enum import auto
from typing import Final

from kclient.state_tables import PlainEnum, StateTable


class ProcessingState(PlainEnum):
    """Of one processor."""

    IDLE = auto()
    """No transaction is open, and nothing of what was read has been processed."""
    OPEN = auto()
    """A transaction has begun, or may have, where a signal came amid the call."""
    COMMITTING = auto()
    """Its commit was asked for, and the outcome is not known yet."""
    ABORTING = auto()
    """It is being aborted; positions are back already."""
    UNDECIDED = auto()
    """A commit was asked for, and its outcome will not be known to this producer."""
    FAILED = auto()
    """The producer cannot go on: the brokers abort what it has left open."""


class ProcessingEvent(PlainEnum):
    """What happens to a transaction of processing; the values are the labels of the diagram in the docs."""

    BEGUN = "there is something to work on"
    REFUSED = "the producer does not begin one"
    FINISHED = "its commit is asked for"
    COMMITTED = "committed"
    GIVEN_UP = "it cannot be committed, or must not be"
    ABORTED = "aborted"
    UNKNOWN = "nobody can say whether it was committed"
    FATAL = "the producer cannot go on"


PROCESSING_TABLE: Final[StateTable[ProcessingState, ProcessingEvent]] = {
    ProcessingState.IDLE: {
        ProcessingEvent.BEGUN: ProcessingState.OPEN,
    },
    ProcessingState.OPEN: {
        ProcessingEvent.REFUSED: ProcessingState.IDLE,
        ProcessingEvent.FINISHED: ProcessingState.COMMITTING,
        ProcessingEvent.GIVEN_UP: ProcessingState.ABORTING,
        ProcessingEvent.FATAL: ProcessingState.FAILED,
    },
    ProcessingState.COMMITTING: {
        ProcessingEvent.COMMITTED: ProcessingState.IDLE,
        ProcessingEvent.GIVEN_UP: ProcessingState.ABORTING,
        ProcessingEvent.UNKNOWN: ProcessingState.UNDECIDED,
    },
    ProcessingState.ABORTING: {
        ProcessingEvent.ABORTED: ProcessingState.IDLE,
        ProcessingEvent.FATAL: ProcessingState.FAILED,
    },
    ProcessingState.UNDECIDED: {},
    ProcessingState.FAILED: {},
}
