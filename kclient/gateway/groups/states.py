"""The states of a group and the legal steps between them, as in Kafka's ClassicGroup.

The theory: a group has a *generation*. Whenever its membership or a member's metadata changes, every member must
come back with JoinGroup (`PREPARING_REBALANCE`); when all are there, or the longest rebalance timeout has passed,
the next generation begins. One member, the leader, is given everyone's metadata and brings the assignment with its
SyncGroup (`COMPLETING_REBALANCE`); once that is stored, every parked SyncGroup is answered and the group is
`STABLE`. A group without members is `EMPTY`; its committed offsets stay.
"""

from __future__ import annotations

from kclient.state_tables import PlainEnum


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


SUCCESSORS: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.DEAD},
    ),
    GroupState.COMPLETING_REBALANCE: frozenset(
        {GroupState.STABLE, GroupState.PREPARING_REBALANCE, GroupState.DEAD},
    ),
    GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.DEAD: frozenset({GroupState.DEAD}),
}
"""Which states may follow each."""

CAN_REBALANCE = frozenset(state for state, then in SUCCESSORS.items() if GroupState.PREPARING_REBALANCE in then)
"""The states in which a new rebalance may begin."""
