"""The states of a partition, and which event leads where."""

from __future__ import annotations

from typing import Final

from kclient.state_tables import PlainEnum, StateTable


class State(PlainEnum):
    """The life of a partition."""

    CLOSED = "closed"
    """Known, not opened yet."""
    OPENING = "opening"
    """Its place is being opened, and its log read. Appends queue."""
    RESUMING = "resuming"
    """It can be used; what has queued is appended first, and what comes meanwhile queues behind it."""
    OPEN = "open"
    STALLED = "stalled"
    """What is stored of the appends under way is not known, and will be found out later. Others are refused."""
    REOPENING = "reopening"
    """Its place is being opened anew under a raised epoch, and what is stored read back. Appends queue."""
    LEAVING = "leaving"
    """Another gateway leads it from now on. Nothing is taken any more; what is on its way is waited for."""
    GONE = "gone"
    """Its topic was deleted, another gateway leads it, or this one has closed."""


UNREAD: Final = frozenset({State.CLOSED, State.OPENING})
"""What is stored of it is not known, not even where it begins and ends."""


class Event(PlainEnum):
    """What happens to a partition."""

    USED = "first use"
    READ = "opened and read"
    FAILED = "not opened"
    CAUGHT_UP = "nothing queued"
    OUTCOME_UNKNOWN = "outcome unknown"
    TRIED_AGAIN = "tried again"
    MOVED = "led elsewhere"
    ENDED = "deleted, handed over, or the gateway closes"


PARTITION_TABLE: Final[StateTable[State, Event]] = {
    State.CLOSED: {Event.USED: State.OPENING, Event.ENDED: State.GONE},
    State.OPENING: {Event.READ: State.RESUMING, Event.FAILED: State.CLOSED, Event.ENDED: State.GONE},
    State.RESUMING: {
        Event.CAUGHT_UP: State.OPEN,
        Event.OUTCOME_UNKNOWN: State.STALLED,
        Event.ENDED: State.GONE,
    },
    State.OPEN: {Event.OUTCOME_UNKNOWN: State.STALLED, Event.MOVED: State.LEAVING, Event.ENDED: State.GONE},
    State.STALLED: {Event.TRIED_AGAIN: State.REOPENING, Event.ENDED: State.GONE},
    State.REOPENING: {Event.READ: State.RESUMING, Event.FAILED: State.STALLED, Event.ENDED: State.GONE},
    State.LEAVING: {Event.ENDED: State.GONE},
    State.GONE: {},
}
