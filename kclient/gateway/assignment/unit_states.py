"""What a gateway has to do with a unit, and which event leads where."""

from __future__ import annotations

from typing import Final

from kclient.state_tables import PlainEnum, StateTable


class UnitState(PlainEnum):
    """A unit, as one gateway sees it."""

    ELSEWHERE = "elsewhere"
    """Another gateway leads it: clients are told which one."""
    AWAITED = "awaited"
    """It is this gateway's from now on; its former leader has not released it yet. What comes for it queues."""
    CLAIMED = "claimed"
    """Its former leader has not released it in time: its row says, soon, that whatever that writes is too late."""
    LED = "led"
    """This gateway serves it."""
    RELEASED = "released"
    """Another gateway leads it from now on; what was taken is being synced, the checkpoint and the release written."""
    RETURNING = "returning"
    """While it was being released it came back: when that is done, it is opened under its new epoch."""


class UnitEvent(PlainEnum):
    """What happens to a unit."""

    GAINED = "a generation assigns it here"
    TAKEN_AWAY = "a generation assigns it elsewhere"
    HANDED_OVER = "its former leader has released it"
    OVERDUE = "its former leader is lost, or late"
    CLAIM_WRITTEN = "the claim is durable"
    RELEASE_WRITTEN = "checkpoint and release are durable"
    FENCED = "this gateway's lease is over"


UNIT_TABLE: Final[StateTable[UnitState, UnitEvent]] = {
    UnitState.ELSEWHERE: {UnitEvent.GAINED: UnitState.AWAITED},
    UnitState.AWAITED: {
        UnitEvent.HANDED_OVER: UnitState.LED,
        UnitEvent.OVERDUE: UnitState.CLAIMED,
        UnitEvent.TAKEN_AWAY: UnitState.ELSEWHERE,
        UnitEvent.FENCED: UnitState.ELSEWHERE,
    },
    UnitState.CLAIMED: {
        UnitEvent.HANDED_OVER: UnitState.LED,
        UnitEvent.CLAIM_WRITTEN: UnitState.LED,
        UnitEvent.TAKEN_AWAY: UnitState.ELSEWHERE,
        UnitEvent.FENCED: UnitState.ELSEWHERE,
    },
    UnitState.LED: {UnitEvent.TAKEN_AWAY: UnitState.RELEASED, UnitEvent.FENCED: UnitState.ELSEWHERE},
    UnitState.RELEASED: {
        UnitEvent.RELEASE_WRITTEN: UnitState.ELSEWHERE,
        UnitEvent.GAINED: UnitState.RETURNING,
        UnitEvent.FENCED: UnitState.ELSEWHERE,
    },
    UnitState.RETURNING: {
        UnitEvent.RELEASE_WRITTEN: UnitState.LED,
        UnitEvent.TAKEN_AWAY: UnitState.RELEASED,
        UnitEvent.FENCED: UnitState.ELSEWHERE,
    },
}
