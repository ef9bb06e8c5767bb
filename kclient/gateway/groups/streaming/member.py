"""A member of a streams group."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from kclient.gateway.groups.assignors.tasks import NO_TASKS, NOTHING_TO_DO, Tasks, TaskSets
from kclient.gateway.groups.streaming.states import TaskState

if TYPE_CHECKING:
    from kclient.gateway.groups.streams_beats import QueryEndpoint

Dated: TypeAlias = Mapping[str, Mapping[int, int]]
"""Active tasks, by subtopology and number, each with the member's epoch when it got it. Never changed."""

JOINING: Final = 0
"""The epoch of a member that joins."""
_MEMBER: Final = 2_000
"""About how many bytes of memory a member takes, beside its names and tasks."""
_SUBTOPOLOGY, _TASK = 300, 60
"""The same of each subtopology, and of each task, that it has or is to have."""


class HeldTasks(NamedTuple):
    """What a member has."""

    active: Dated = {}
    standby: Tasks = NO_TASKS
    warmup: Tasks = NO_TASKS

    @property
    def sets(self) -> TaskSets:
        """The same without epochs."""
        return TaskSets({name: frozenset(held) for name, held in self.active.items()}, self.standby, self.warmup)

    @property
    def size(self) -> int:
        """About how many bytes of memory it takes."""
        return sum(_SUBTOPOLOGY + _TASK * len(held) for tasks in self for held in tasks.values())


NOTHING_HELD: Final = HeldTasks()


class StreamsMember:
    """A member.

    Args:
        member_id: Its id.
    """

    __slots__ = (
        "assigned", "client_host", "client_id", "endpoint", "epoch", "member_id", "previous_epoch", "process_id",
        "rack_id", "rebalance_timeout_ms", "revoking", "state", "tags", "target", "topology_epoch", "untold",
    )  # fmt: skip

    def __init__(self, member_id: str) -> None:
        self.member_id: str = member_id
        self.rack_id: str | None = None
        self.client_id: str = ""
        self.client_host: str = ""
        self.rebalance_timeout_ms: int = -1
        """How long it may take to give tasks up, in milliseconds."""
        self.topology_epoch: int = -1
        """Of the topology that it has brought along."""
        self.process_id: str = ""
        """Of its process, which may have several members."""
        self.endpoint: QueryEndpoint | None = None
        """Where it answers queries."""
        self.tags: tuple[tuple[str, str], ...] = ()
        """What its administrator says of it."""
        self.epoch: int = JOINING
        self.previous_epoch: int = JOINING
        """The one before: a request with it is taken if the answer with the present one was lost."""
        self.state: TaskState = TaskState.STABLE
        self.assigned: HeldTasks = NOTHING_HELD
        """What it has."""
        self.revoking: HeldTasks = NOTHING_HELD
        """What it was told to give up."""
        self.target: TaskSets = NOTHING_TO_DO
        """What it is to have in the end."""
        self.untold: bool = False
        """Whether what it has may be another than it knows, since an answer could not be given."""

    @property
    def size(self) -> int:
        """About how many bytes of memory it takes."""
        names = (self.member_id, self.rack_id, self.client_id, self.client_host, self.process_id)
        size = _MEMBER + sum(sys.getsizeof(name or "") for name in names)
        size += sum(sys.getsizeof(key) + sys.getsizeof(value) for key, value in self.tags)
        size += 0 if self.endpoint is None else len(self.endpoint.host)
        size += self.assigned.size + self.revoking.size
        return size + sum(_SUBTOPOLOGY + _TASK * len(numbers) for tasks in self.target for numbers in tasks.values())

    @property
    def told(self) -> tuple[object, ...]:
        """What it has said of itself."""
        return (
            self.rack_id, self.client_id, self.client_host, self.rebalance_timeout_ms, self.topology_epoch,
            self.process_id, self.endpoint, self.tags,
        )  # fmt: skip

    def reached(self, target_epoch: int) -> bool:
        """Whether it has all that it is to have by a target."""
        return self.state is TaskState.STABLE and self.epoch == target_epoch
