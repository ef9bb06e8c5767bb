"""The states of a streams group, and of what one of its members has; and the legal steps between them, as in Kafka.

The theory is that of consumer groups (`consumers.states`), with tasks in place of partitions. Two things are more:
without the topics that its topology needs a group is not ready, and nobody has tasks then; and a process has a task
once only, be it as active, standby or warm-up task of whichever of its members.
"""

from __future__ import annotations

from typing import Final

from kclient.state_tables import PlainEnum, StateTable


class StreamsGroupState(PlainEnum):
    """A state of a group; the value is the name that StreamsGroupDescribe and ListGroups show."""

    EMPTY = "Empty"
    """No members; what was committed is there."""
    NOT_READY = "NotReady"
    """Topics are missing, or have not as many partitions as they have to."""
    ASSIGNING = "Assigning"
    """Something has changed, and the target is not worked out yet."""
    RECONCILING = "Reconciling"
    """There is a target, and some members are not there yet."""
    STABLE = "Stable"
    """Each member has its target."""
    DEAD = "Dead"
    """The group has been removed; whoever still holds it is told to look the coordinator up again."""


class StreamsGroupEvent(PlainEnum):
    """What leads to another state of a group; the value is the label in the diagram."""

    UNFIT = "topics are not as the topology needs them"
    CHANGED = "members, the topology or topics change"
    BEHIND = "there is a target that some members have not reached"
    REACHED = "every member has reached its target"
    DESERTED = "nobody is left"
    REMOVED = "deleted, expired, or its gateway closes"


STREAMS_GROUP_LEADS_TO: Final = {
    StreamsGroupState.EMPTY: StreamsGroupEvent.DESERTED,
    StreamsGroupState.NOT_READY: StreamsGroupEvent.UNFIT,
    StreamsGroupState.ASSIGNING: StreamsGroupEvent.CHANGED,
    StreamsGroupState.RECONCILING: StreamsGroupEvent.BEHIND,
    StreamsGroupState.STABLE: StreamsGroupEvent.REACHED,
}
"""The event that leads to a state, from whatever state."""

STREAMS_GROUP_TABLE: Final[StateTable[StreamsGroupState, StreamsGroupEvent]] = {
    **{
        state: {
            **{event: other for other, event in STREAMS_GROUP_LEADS_TO.items() if other is not state},
            StreamsGroupEvent.REMOVED: StreamsGroupState.DEAD,
        }
        for state in STREAMS_GROUP_LEADS_TO
    },
    StreamsGroupState.DEAD: {StreamsGroupEvent.REMOVED: StreamsGroupState.DEAD},
}


class TaskState(PlainEnum):
    """How far a member is with its target; the value is what its row says."""

    STABLE = "stable"
    """It has what it was to have when it came to its epoch."""
    UNREVOKED_TASKS = "unrevoked"
    """It was told to give tasks up, and has not said yet that it did."""
    UNRELEASED_TASKS = "unreleased"
    """It is at the target's epoch, and others, or others of its process, still have some of its tasks."""


class TaskEvent(PlainEnum):
    """What a member's next step finds; the value is the label in the diagram."""

    MUST_REVOKE = "has tasks that it is to give up"
    MUST_WAIT = "others have tasks that it is to have"
    COMPLETE = "gets all that it is to have"


_STEPS: Final = {
    TaskEvent.MUST_REVOKE: TaskState.UNREVOKED_TASKS,
    TaskEvent.MUST_WAIT: TaskState.UNRELEASED_TASKS,
    TaskEvent.COMPLETE: TaskState.STABLE,
}

TASK_TABLE: Final[StateTable[TaskState, TaskEvent]] = {
    TaskState.STABLE: dict(_STEPS),
    TaskState.UNREVOKED_TASKS: dict(_STEPS),
    TaskState.UNRELEASED_TASKS: dict(_STEPS),
}
