"""The states of a group member and of its knowledge of the coordinator, and which may follow which.

`docs/internals/coordinator.md` draws the tables below; a test compares both.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

from kclient.errors import IllegalStateError


class MemberState(Enum):
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


MEMBER_TRANSITIONS: dict[MemberState, frozenset[MemberState]] = {
    MemberState.UNJOINED: frozenset({MemberState.PREPARING, MemberState.FAILED}),
    MemberState.PREPARING: frozenset(
        {MemberState.UNJOINED, MemberState.JOINING, MemberState.FAILED, MemberState.FENCED}
    ),
    MemberState.JOINING: frozenset(
        {
            MemberState.UNJOINED,
            MemberState.PREPARING,
            MemberState.ASSIGNING,
            MemberState.SYNCING,
            MemberState.FAILED,
            MemberState.FENCED,
        }
    ),
    MemberState.ASSIGNING: frozenset(
        {
            MemberState.UNJOINED,
            MemberState.PREPARING,
            MemberState.JOINING,
            MemberState.SYNCING,
            MemberState.FAILED,
            MemberState.FENCED,
        }
    ),
    MemberState.SYNCING: frozenset(
        {
            MemberState.UNJOINED,
            MemberState.PREPARING,
            MemberState.JOINING,
            MemberState.COMPLETING,
            MemberState.FAILED,
            MemberState.FENCED,
        }
    ),
    MemberState.COMPLETING: frozenset(
        {
            MemberState.UNJOINED,
            MemberState.PREPARING,
            MemberState.STABLE,
            MemberState.FAILED,
            MemberState.FENCED,
        }
    ),
    MemberState.STABLE: frozenset(
        {MemberState.UNJOINED, MemberState.PREPARING, MemberState.FAILED, MemberState.FENCED}
    ),
    MemberState.FAILED: frozenset({MemberState.UNJOINED, MemberState.PREPARING}),
    MemberState.FENCED: frozenset(),
}

IN_GENERATION = frozenset({MemberState.ASSIGNING, MemberState.SYNCING, MemberState.COMPLETING, MemberState.STABLE})
"""The states in which the member belongs to a generation that the broker counts on."""


class CoordinatorState(Enum):
    """What is known about the group's coordinator."""

    UNKNOWN = "unknown"
    """Nothing, and nobody asked."""
    LOOKING_UP = "looking up"
    """FindCoordinator is due or on its way."""
    KNOWN = "known"
    """Requests go to this broker."""


COORDINATOR_TRANSITIONS: dict[CoordinatorState, frozenset[CoordinatorState]] = {
    CoordinatorState.UNKNOWN: frozenset({CoordinatorState.LOOKING_UP}),
    CoordinatorState.LOOKING_UP: frozenset({CoordinatorState.KNOWN, CoordinatorState.UNKNOWN}),
    CoordinatorState.KNOWN: frozenset({CoordinatorState.UNKNOWN}),
}

S = TypeVar("S", MemberState, CoordinatorState)


def step(table: dict[S, frozenset[S]], old: S, new: S) -> S:
    """The new state, if it may follow the old one.

    Raises:
        IllegalStateError: It may not: a bug in the state machine.
    """
    if new not in table[old]:
        raise IllegalStateError(f"{type(old).__name__}: {old.value} -> {new.value} is no legal transition")
    return new


def diagram(table: dict[S, frozenset[S]]) -> str:
    """The table as a Mermaid state diagram."""
    order = list(type(next(iter(table))))
    lines = ["stateDiagram-v2", f"    [*] --> {order[0].name}"]
    for old in order:
        lines += [f"    {old.name} --> {new.name}" for new in order if new in table[old]]
        lines += [] if table[old] else [f"    {old.name} --> [*]"]
    return "\n".join(lines)
