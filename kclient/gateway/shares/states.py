"""The states of a record for a share group: which event leads where (KIP-932, KIP-1222).

`docs/internals/shares.md` draws the table below; a test compares both.
"""

from __future__ import annotations

from kclient.state_tables import PlainEnum, StateTable


class RecordState(PlainEnum):
    """What became of a record in a share group."""

    AVAILABLE = "available"
    """Nobody has it: whoever asks next gets it."""
    ACQUIRED = "acquired"
    """A member has it, until it says what became of it, or its lock is over."""
    ACKNOWLEDGED = "acknowledged"
    """A member has accepted it: it is not delivered again."""
    ARCHIVED = "archived"
    """It is not delivered again, though nobody has accepted it."""


class RecordEvent(PlainEnum):
    """What happens to a record."""

    ACQUIRE = "acquire"
    """It is delivered to a member."""
    ACCEPT = "accept"
    """The member has processed it."""
    RELEASE = "release"
    """The member gives it back, its lock is over, or its session; it has not been delivered too often."""
    GIVE_UP = "give up"
    """The same, and it has been delivered as often as is allowed; or the member rejects it, or there is no record."""
    RENEW = "renew"
    """The member goes on with it: its lock begins anew."""
    LEAVE_OUT = "leave out"
    """The log has no such record, or none that is to be delivered."""


RECORD_TABLE: StateTable[RecordState, RecordEvent] = {
    RecordState.AVAILABLE: {
        RecordEvent.ACQUIRE: RecordState.ACQUIRED,
        RecordEvent.LEAVE_OUT: RecordState.ARCHIVED,
    },
    RecordState.ACQUIRED: {
        RecordEvent.ACCEPT: RecordState.ACKNOWLEDGED,
        RecordEvent.RELEASE: RecordState.AVAILABLE,
        RecordEvent.GIVE_UP: RecordState.ARCHIVED,
        RecordEvent.RENEW: RecordState.ACQUIRED,
    },
    RecordState.ACKNOWLEDGED: {},
    RecordState.ARCHIVED: {},
}
"""What is below the start offset is forgotten, whatever its state."""
