"""The states of a group and the legal steps between them, as in Kafka's ClassicGroup.

The theory: a group has a *generation*. Whenever its membership or a member's metadata changes, every member must
come back with JoinGroup (`PREPARING_REBALANCE`); when all are there, or the longest rebalance timeout has passed,
the next generation begins. One member, the leader, is given everyone's metadata and brings the assignment with its
SyncGroup (`COMPLETING_REBALANCE`); once that is stored, every parked SyncGroup is answered and the group is
`STABLE`. A group without members is `EMPTY`; its committed offsets stay.
"""

from __future__ import annotations

from typing import Final

from kclient.state_tables import PlainEnum, StateTable


class GroupState(PlainEnum):
    """A state; the value is the name that DescribeGroups and ListGroups show."""

    EMPTY = "Empty"
    """No members. Offsets may be committed by clients that manage their partitions themselves."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Waiting for the members to (re)join: JoinGroup parks, SyncGroup and Heartbeat get REBALANCE_IN_PROGRESS."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """Waiting for the leader's assignment: SyncGroup parks, commits get REBALANCE_IN_PROGRESS."""
    STABLE = "Stable"
    """Every member has its assignment."""
    DEAD = "Dead"
    """The group has been removed; whoever still holds it is told to look the coordinator up again."""


class GroupEvent(PlainEnum):
    """What leads to another state; the value is the label in the diagram."""

    CHANGED = "somebody joins, leaves or fails"
    JOINED = "all have joined, or the time is over"
    DESERTED = "nobody is left"
    ASSIGNED = "the leader's assignment is stored"
    RESTORED = "read from the store with members"
    ENDED = "deleted, expired, or its gateway closes"


GROUP_TABLE: Final[StateTable[GroupState, GroupEvent]] = {
    GroupState.EMPTY: {
        GroupEvent.CHANGED: GroupState.PREPARING_REBALANCE,
        GroupEvent.RESTORED: GroupState.STABLE,
        GroupEvent.ENDED: GroupState.DEAD,
    },
    GroupState.PREPARING_REBALANCE: {
        GroupEvent.JOINED: GroupState.COMPLETING_REBALANCE,
        GroupEvent.DESERTED: GroupState.EMPTY,
        GroupEvent.ENDED: GroupState.DEAD,
    },
    GroupState.COMPLETING_REBALANCE: {
        GroupEvent.ASSIGNED: GroupState.STABLE,
        GroupEvent.CHANGED: GroupState.PREPARING_REBALANCE,
        GroupEvent.ENDED: GroupState.DEAD,
    },
    GroupState.STABLE: {
        GroupEvent.CHANGED: GroupState.PREPARING_REBALANCE,
        GroupEvent.ENDED: GroupState.DEAD,
    },
    GroupState.DEAD: {GroupEvent.ENDED: GroupState.DEAD},
}

CAN_REBALANCE: Final = frozenset(state for state, row in GROUP_TABLE.items() if GroupEvent.CHANGED in row)
"""The states in which a new rebalance may begin."""
