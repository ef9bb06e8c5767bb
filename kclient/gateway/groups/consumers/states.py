"""The states of a consumer group, and of what one of its members has; and the legal steps between them, as in Kafka.

The theory: a group has three kinds of epochs. The *group epoch* grows whenever its members, what they read or the
topics change. The *assignment epoch* is the group epoch for which the present target was worked out: what each member
is to have in the end. A *member epoch* says which target a member has come to. Members go there one by one, by their
heartbeats: first each gives up what is not in its target, then it is at the target's epoch and gets what others have
given up. No partition is ever assigned to two members.
"""

from __future__ import annotations

from typing import Final

from kclient.state_tables import PlainEnum, StateTable


class ConsumerGroupState(PlainEnum):
    """A state of a group; the value is the name that ConsumerGroupDescribe and ListGroups show."""

    EMPTY = "Empty"
    """No members; what was committed is there."""
    ASSIGNING = "Assigning"
    """Something has changed, and the target is not worked out yet."""
    RECONCILING = "Reconciling"
    """There is a target, and some members are not there yet."""
    STABLE = "Stable"
    """Each member has its target."""
    DEAD = "Dead"
    """The group has been removed; whoever still holds it is told to look the coordinator up again."""


class ConsumerGroupEvent(PlainEnum):
    """What leads to another state of a group; the value is the label in the diagram."""

    CHANGED = "members, subscriptions or topics change"
    BEHIND = "there is a target that some members have not reached"
    REACHED = "every member has reached its target"
    DESERTED = "nobody is left"
    REMOVED = "deleted, expired, or its gateway closes"


CONSUMER_GROUP_TABLE: Final[StateTable[ConsumerGroupState, ConsumerGroupEvent]] = {
    ConsumerGroupState.EMPTY: {
        ConsumerGroupEvent.CHANGED: ConsumerGroupState.ASSIGNING,
        ConsumerGroupEvent.BEHIND: ConsumerGroupState.RECONCILING,
        ConsumerGroupEvent.REACHED: ConsumerGroupState.STABLE,
        ConsumerGroupEvent.REMOVED: ConsumerGroupState.DEAD,
    },
    ConsumerGroupState.ASSIGNING: {
        ConsumerGroupEvent.BEHIND: ConsumerGroupState.RECONCILING,
        ConsumerGroupEvent.REACHED: ConsumerGroupState.STABLE,
        ConsumerGroupEvent.DESERTED: ConsumerGroupState.EMPTY,
        ConsumerGroupEvent.REMOVED: ConsumerGroupState.DEAD,
    },
    ConsumerGroupState.RECONCILING: {
        ConsumerGroupEvent.CHANGED: ConsumerGroupState.ASSIGNING,
        ConsumerGroupEvent.REACHED: ConsumerGroupState.STABLE,
        ConsumerGroupEvent.DESERTED: ConsumerGroupState.EMPTY,
        ConsumerGroupEvent.REMOVED: ConsumerGroupState.DEAD,
    },
    ConsumerGroupState.STABLE: {
        ConsumerGroupEvent.CHANGED: ConsumerGroupState.ASSIGNING,
        ConsumerGroupEvent.BEHIND: ConsumerGroupState.RECONCILING,
        ConsumerGroupEvent.DESERTED: ConsumerGroupState.EMPTY,
        ConsumerGroupEvent.REMOVED: ConsumerGroupState.DEAD,
    },
    ConsumerGroupState.DEAD: {ConsumerGroupEvent.REMOVED: ConsumerGroupState.DEAD},
}

LEADS_TO: Final = {
    ConsumerGroupState.EMPTY: ConsumerGroupEvent.DESERTED,
    ConsumerGroupState.ASSIGNING: ConsumerGroupEvent.CHANGED,
    ConsumerGroupState.RECONCILING: ConsumerGroupEvent.BEHIND,
    ConsumerGroupState.STABLE: ConsumerGroupEvent.REACHED,
}
"""The event that leads to a state, from whatever state."""


class ReconcilingState(PlainEnum):
    """How far a member is with its target; the value is what its row says."""

    STABLE = "stable"
    """It has what it was to have when it came to its epoch."""
    UNREVOKED_PARTITIONS = "unrevoked"
    """It was told to give partitions up, and has not said yet that it did."""
    UNRELEASED_PARTITIONS = "unreleased"
    """It is at the target's epoch, and others still have some of its partitions."""


class ReconcilingEvent(PlainEnum):
    """What a member's next step finds; the value is the label in the diagram."""

    MUST_REVOKE = "has partitions that it is to give up"
    MUST_WAIT = "others have partitions that it is to have"
    COMPLETE = "gets all that it is to have"


_STEPS: Final = {
    ReconcilingEvent.MUST_REVOKE: ReconcilingState.UNREVOKED_PARTITIONS,
    ReconcilingEvent.MUST_WAIT: ReconcilingState.UNRELEASED_PARTITIONS,
    ReconcilingEvent.COMPLETE: ReconcilingState.STABLE,
}

RECONCILING_TABLE: Final[StateTable[ReconcilingState, ReconcilingEvent]] = {
    ReconcilingState.STABLE: dict(_STEPS),
    ReconcilingState.UNREVOKED_PARTITIONS: dict(_STEPS),
    ReconcilingState.UNRELEASED_PARTITIONS: dict(_STEPS),
}
