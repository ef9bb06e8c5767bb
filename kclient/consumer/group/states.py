"""The states of a group member, of what it holds, and of its knowledge of the coordinator: which event leads where.

`docs/internals/coordinator.md` draws the tables below; a test compares both.
"""

from __future__ import annotations

from kclient.state_tables import PlainEnum


class MemberState(PlainEnum):
    """Where a member stands in the classic group protocol."""

    UNJOINED = "unjoined"
    """Not in the group: not subscribed, not polled yet, or it left."""
    PREPARING = "preparing"
    """About to (re)join: the next poll commits, runs the listener and gives partitions up."""
    JOINING = "joining"
    """JoinGroup is due or on its way; the broker answers when all members have joined."""
    ASSIGNING = "assigning"
    """Leader of the group: waiting for the metadata of all subscribed topics."""
    SYNCING = "syncing"
    """SyncGroup is due or on its way; the answer brings the assignment."""
    COMPLETING = "completing"
    """The assignment is there: the next poll takes it over and runs the listener."""
    STABLE = "stable"
    """A member with an assignment."""
    FAILED = "failed"
    """The group refused this member; the next poll raises the reason and, if it may, tries again."""
    FENCED = "fenced"
    """Another consumer took over this `group.instance.id`: the end."""


class MemberEvent(PlainEnum):
    """What happens to a member."""

    POLLED = "polled"
    """The user polls, and is subscribed."""
    REJOIN_WANTED = "rejoin wanted"
    """The group rebalances, or the subscription or a number of partitions changed."""
    PREPARED = "prepared"
    """The poll has given up what must not be kept."""
    TRY_AGAIN = "try again"
    """JoinGroup or SyncGroup was refused for a while, or the coordinator lost: join again."""
    ELECTED = "elected"
    """JoinGroup was answered: this member leads, and has to assign."""
    JOINED = "joined"
    """JoinGroup was answered: another member leads, or the broker has kept the assignment."""
    ASSIGNED = "assigned"
    """As leader: the assignor has divided the partitions."""
    SYNCED = "synced"
    """SyncGroup was answered with the assignment."""
    COMPLETED = "completed"
    """The poll has taken the assignment over."""
    EXPELLED = "expelled"
    """The broker does not count on this member any more."""
    LEFT = "left"
    """The user unsubscribes or closes, or `max.poll.interval.ms` is over."""
    REFUSED = "refused"
    """The group does not take this member."""
    TAKEN_OVER = "taken over"
    """Another consumer has the same `group.instance.id`."""
    RAISED = "raised"
    """The poll has raised why the group refused this member."""


_ENDS = {
    MemberEvent.LEFT: MemberState.UNJOINED,
    MemberEvent.REFUSED: MemberState.FAILED,
    MemberEvent.TAKEN_OVER: MemberState.FENCED,
}
_IN_GROUP = {**_ENDS, MemberEvent.EXPELLED: MemberState.PREPARING}

MEMBER_TABLE: dict[MemberState, dict[MemberEvent, MemberState]] = {
    MemberState.UNJOINED: {
        MemberEvent.POLLED: MemberState.PREPARING,
        MemberEvent.REFUSED: MemberState.FAILED,
    },
    MemberState.PREPARING: {MemberEvent.PREPARED: MemberState.JOINING, **_IN_GROUP},
    MemberState.JOINING: {
        MemberEvent.TRY_AGAIN: MemberState.JOINING,
        MemberEvent.ELECTED: MemberState.ASSIGNING,
        MemberEvent.JOINED: MemberState.SYNCING,
        **_IN_GROUP,
    },
    MemberState.ASSIGNING: {MemberEvent.ASSIGNED: MemberState.SYNCING, **_IN_GROUP},
    MemberState.SYNCING: {
        MemberEvent.TRY_AGAIN: MemberState.JOINING,
        MemberEvent.SYNCED: MemberState.COMPLETING,
        **_IN_GROUP,
    },
    MemberState.COMPLETING: {MemberEvent.COMPLETED: MemberState.STABLE, **_IN_GROUP},
    MemberState.STABLE: {MemberEvent.REJOIN_WANTED: MemberState.PREPARING, **_IN_GROUP},
    MemberState.FAILED: {
        MemberEvent.RAISED: MemberState.UNJOINED,
        MemberEvent.LEFT: MemberState.UNJOINED,
    },
    MemberState.FENCED: {},
}


class HoldingState(PlainEnum):
    """What the partitions are worth that the consumer still reads."""

    KEPT = "kept"
    """They are the member's: positions are committed before they go."""
    LOST = "lost"
    """Others may read them already: nothing is committed of them, and the listener is told that they are lost."""


class HoldingEvent(PlainEnum):
    """What happens to the partitions that a consumer reads."""

    ENDED = "membership ended"
    """The membership is over that they came with."""
    GIVEN_UP = "given up"
    """The poll has given up what must not be kept, or the user unsubscribed."""


HOLDING_TABLE: dict[HoldingState, dict[HoldingEvent, HoldingState]] = {
    HoldingState.KEPT: {HoldingEvent.ENDED: HoldingState.LOST, HoldingEvent.GIVEN_UP: HoldingState.KEPT},
    HoldingState.LOST: {HoldingEvent.ENDED: HoldingState.LOST, HoldingEvent.GIVEN_UP: HoldingState.KEPT},
}


class ErrandState(PlainEnum):
    """Something that is to be sent once: LeaveGroup, or the request for fresh metadata."""

    NONE = "none"
    """Nothing is to be sent."""
    DUE = "due"
    """It goes out with the next requests."""
    SENT = "sent"
    """It is on its way."""


class ErrandEvent(PlainEnum):
    """What happens to an errand."""

    WANTED = "wanted"
    """It is to be sent, in place of one before it."""
    GIVEN_OUT = "given out"
    """It was given out to be sent."""
    ENDED = "ended"
    """It was answered, or has lost its sense."""


ERRAND_TABLE: dict[ErrandState, dict[ErrandEvent, ErrandState]] = {
    ErrandState.NONE: {ErrandEvent.WANTED: ErrandState.DUE, ErrandEvent.ENDED: ErrandState.NONE},
    ErrandState.DUE: {
        ErrandEvent.WANTED: ErrandState.DUE,
        ErrandEvent.GIVEN_OUT: ErrandState.SENT,
        ErrandEvent.ENDED: ErrandState.NONE,
    },
    ErrandState.SENT: {ErrandEvent.WANTED: ErrandState.DUE, ErrandEvent.ENDED: ErrandState.NONE},
}


class CoordinatorState(PlainEnum):
    """What is known about the group's coordinator."""

    UNKNOWN = "unknown"
    """Nothing, and nobody asked."""
    LOOKING_UP = "looking up"
    """FindCoordinator is due or on its way."""
    KNOWN = "known"
    """Requests go to this broker."""


class CoordinatorEvent(PlainEnum):
    """What happens to the knowledge of the coordinator."""

    ASKED = "asked"
    """FindCoordinator is due."""
    FOUND = "found"
    """It was answered with a broker."""
    NOT_FOUND = "not found"
    """It was refused, could not be sent, or was not answered."""
    LOST = "lost"
    """The coordinator cannot be reached, or is another broker by now."""


COORDINATOR_TABLE: dict[CoordinatorState, dict[CoordinatorEvent, CoordinatorState]] = {
    CoordinatorState.UNKNOWN: {CoordinatorEvent.ASKED: CoordinatorState.LOOKING_UP},
    CoordinatorState.LOOKING_UP: {
        CoordinatorEvent.FOUND: CoordinatorState.KNOWN,
        CoordinatorEvent.NOT_FOUND: CoordinatorState.UNKNOWN,
    },
    CoordinatorState.KNOWN: {CoordinatorEvent.LOST: CoordinatorState.UNKNOWN},
}
