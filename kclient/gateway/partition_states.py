"""The states of a partition, and which event leads where."""

from __future__ import annotations

from typing import Final

from kclient.state_tables import PlainEnum, StateTable


class PartitionPhase(PlainEnum):
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


UNREAD: Final = frozenset({PartitionPhase.CLOSED, PartitionPhase.OPENING})
"""What is stored of it is not known, not even where it begins and ends."""


class PartitionEvent(PlainEnum):
    """What happens to a partition."""

    USED = "first use"
    READ = "opened and read"
    FAILED = "not opened"
    CAUGHT_UP = "nothing queued"
    OUTCOME_UNKNOWN = "outcome unknown"
    TRIED_AGAIN = "tried again"
    MOVED = "led elsewhere"
    ENDED = "deleted, handed over, or the gateway closes"


PARTITION_TABLE: Final[StateTable[PartitionPhase, PartitionEvent]] = {
    PartitionPhase.CLOSED: {PartitionEvent.USED: PartitionPhase.OPENING, PartitionEvent.ENDED: PartitionPhase.GONE},
    PartitionPhase.OPENING: {
        PartitionEvent.READ: PartitionPhase.RESUMING,
        PartitionEvent.FAILED: PartitionPhase.CLOSED,
        PartitionEvent.ENDED: PartitionPhase.GONE,
    },
    PartitionPhase.RESUMING: {
        PartitionEvent.CAUGHT_UP: PartitionPhase.OPEN,
        PartitionEvent.OUTCOME_UNKNOWN: PartitionPhase.STALLED,
        PartitionEvent.ENDED: PartitionPhase.GONE,
    },
    PartitionPhase.OPEN: {
        PartitionEvent.OUTCOME_UNKNOWN: PartitionPhase.STALLED,
        PartitionEvent.MOVED: PartitionPhase.LEAVING,
        PartitionEvent.ENDED: PartitionPhase.GONE,
    },
    PartitionPhase.STALLED: {
        PartitionEvent.TRIED_AGAIN: PartitionPhase.REOPENING,
        PartitionEvent.ENDED: PartitionPhase.GONE,
    },
    PartitionPhase.REOPENING: {
        PartitionEvent.READ: PartitionPhase.RESUMING,
        PartitionEvent.FAILED: PartitionPhase.STALLED,
        PartitionEvent.ENDED: PartitionPhase.GONE,
    },
    PartitionPhase.LEAVING: {PartitionEvent.ENDED: PartitionPhase.GONE},
    PartitionPhase.GONE: {},
}
