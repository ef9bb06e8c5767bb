"""What an assignor of tasks is given of a streams group, and what it returns (KIP-1071)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

Tasks: TypeAlias = Mapping[str, frozenset[int]]
"""Tasks: numbers of partitions by the ids of subtopologies. Never changed."""

NO_TASKS: Final[Tasks] = {}


class TaskSets(NamedTuple):
    """What a member of a streams group is to have, or says that it has."""

    active: Tasks = NO_TASKS
    """Tasks that it works on."""
    standby: Tasks = NO_TASKS
    """Tasks whose state it keeps, to take over when somebody else fails."""
    warmup: Tasks = NO_TASKS
    """Tasks whose state it builds up, to work on them then. Kafka 4.3 gives out none."""


NOTHING_TO_DO: Final = TaskSets()


class TaskMember(NamedTuple):
    """A member, as an assignor sees it."""

    process_id: str
    """Of the process, which may have several members: its threads."""
    target: TaskSets
    """What it was to have so far."""


class TaskView(NamedTuple):
    """A group, as an assignor sees it."""

    members: Mapping[str, TaskMember]
    """By id, in the order in which they joined."""
    subtopologies: Mapping[str, tuple[int, bool]]
    """By id, how many tasks each has, and whether these have state."""
    standbys: int
    """How many standby tasks each task with state is to have."""
