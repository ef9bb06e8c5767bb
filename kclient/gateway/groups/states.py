"""The states of a group and the legal steps between them, as in Kafka's ClassicGroup.

The theory: a group has a *generation*. Whenever its membership or a member's metadata changes, every member must
come back with JoinGroup (`PREPARING_REBALANCE`); when all are there, or the longest rebalance timeout has passed,
the next generation begins. One member, the leader, is given everyone's metadata and brings the assignment with its
SyncGroup (`COMPLETING_REBALANCE`); once that is stored, every parked SyncGroup is answered and the group is
`STABLE`. A group without members is `EMPTY`; its committed offsets stay.
"""

from __future__ import annotations

from enum import Enum

from kclient.errors import IllegalStateError


class GroupState(Enum):
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


PREDECESSORS: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(GroupState),
}
"""From which states each state may be entered."""

CAN_REBALANCE = PREDECESSORS[GroupState.PREPARING_REBALANCE]
"""The states in which a new rebalance may begin."""


def check_transition(group_id: str, source: GroupState, target: GroupState) -> None:
    """Raise `IllegalStateError` unless `source` → `target` is in the table."""
    if source not in PREDECESSORS[target]:
        raise IllegalStateError(f"Group {group_id!r} cannot go from {source.value} to {target.value}.")
