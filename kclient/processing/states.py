"""The states of the transaction that processing has open, and which may follow which."""

from __future__ import annotations

from enum import auto
from typing import TYPE_CHECKING, Final

from kclient.state_tables import PlainEnum

if TYPE_CHECKING:
    from collections.abc import Mapping


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


PROCESSING_TABLE: Final[Mapping[ProcessingState, frozenset[ProcessingState]]] = {
    ProcessingState.IDLE: frozenset({ProcessingState.OPEN, ProcessingState.FAILED}),
    ProcessingState.OPEN: frozenset(
        {ProcessingState.IDLE, ProcessingState.COMMITTING, ProcessingState.ABORTING, ProcessingState.FAILED}
    ),
    ProcessingState.COMMITTING: frozenset({ProcessingState.IDLE, ProcessingState.ABORTING, ProcessingState.UNDECIDED}),
    ProcessingState.ABORTING: frozenset({ProcessingState.IDLE, ProcessingState.FAILED}),
    ProcessingState.UNDECIDED: frozenset(),
    ProcessingState.FAILED: frozenset(),
}
"""Which state may follow each."""
