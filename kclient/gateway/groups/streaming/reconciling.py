"""A member's next step from the tasks that it has to those that it is to have."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Protocol

from kclient.gateway.groups.assignors.tasks import Tasks, TaskSets
from kclient.gateway.groups.streaming.member import NOTHING_HELD, HeldTasks, StreamsMember
from kclient.gateway.groups.streaming.states import TASK_TABLE, TaskEvent, TaskState
from kclient.state_tables import next_state


class TaskOwners(Protocol):
    """Who has which tasks, or was told to give them up."""

    def inactive(self, subtopology_id: str, numbers: AbstractSet[int]) -> AbstractSet[int]:
        """Those of a subtopology's tasks that nobody has as active task."""
        ...

    def not_at(self, process_id: str, subtopology_id: str, numbers: AbstractSet[int]) -> AbstractSet[int]:
        """Those that no member of a process has, in whatever role."""
        ...


def reconcile_tasks(
    member: StreamsMember, target_epoch: int, target: TaskSets, owners: TaskOwners, owned: TaskSets | None
) -> bool:
    """Take a member a step towards a target; whether anything of it has changed.

    Args:
        member: The member.
        target_epoch: The epoch of the target.
        target: What the member is to have by it.
        owners: Who has which tasks.
        owned: The tasks that it says it has; None if it says nothing.
    """
    epoch = member.epoch
    if member.reached(target_epoch):
        return False
    if member.state is TaskState.UNREVOKED_TASKS:
        if owned is None or _has_any(owned, member.revoking):
            return False
        epoch += 1  # of the step by which it gives more up, if it has to
    return _step(member, epoch, target_epoch, target, owners, owned)


def _step(
    member: StreamsMember,
    epoch: int,
    target_epoch: int,
    target: TaskSets,
    owners: TaskOwners,
    owned: TaskSets | None,
) -> bool:
    process = member.process_id
    active, active_revoking = _divided_dated(member.assigned.active, target.active)
    standby, standby_revoking = _divided(member.assigned.standby, target.standby)
    warmup, warmup_revoking = _divided(member.assigned.warmup, target.warmup)
    revoking = HeldTasks(active_revoking, standby_revoking, warmup_revoking)
    if any(revoking) and (owned is None or _has_any(owned, revoking)):
        return _move(member, TaskEvent.MUST_REVOKE, epoch, HeldTasks(active, standby, warmup), revoking)
    waits = False
    for name, numbers in target.active.items():
        kept = active.get(name, {})
        new = numbers - kept.keys() if kept else numbers
        free = owners.not_at(process, name, owners.inactive(name, new))
        waits = waits or len(free) < len(new)
        if free:
            active[name] = {**kept, **dict.fromkeys(free, target_epoch)}

    not_here = partial(owners.not_at, process)
    waits = _take(standby, target.standby, not_here) or waits
    waits = _take(warmup, target.warmup, not_here) or waits
    event = TaskEvent.MUST_WAIT if waits else TaskEvent.COMPLETE
    return _move(member, event, target_epoch, HeldTasks(active, standby, warmup), NOTHING_HELD)


def _divided_dated(
    held: Mapping[str, Mapping[int, int]], wanted: Tasks
) -> tuple[dict[str, Mapping[int, int]], dict[str, Mapping[int, int]]]:
    """What of the active tasks is kept, and what is to be given up."""
    kept: dict[str, Mapping[int, int]] = {}
    revoking: dict[str, Mapping[int, int]] = {}
    for name, numbers in held.items():
        stays = wanted.get(name, frozenset())
        if numbers.keys() <= stays:
            kept[name] = numbers
            continue
        if mine := {number: since for number, since in numbers.items() if number in stays}:
            kept[name] = mine
        if gone := {number: since for number, since in numbers.items() if number not in stays}:
            revoking[name] = gone
    return kept, revoking


def _divided(held: Tasks, wanted: Tasks) -> tuple[dict[str, frozenset[int]], dict[str, frozenset[int]]]:
    kept: dict[str, frozenset[int]] = {}
    revoking: dict[str, frozenset[int]] = {}
    for name, numbers in held.items():
        stays = wanted.get(name, frozenset())
        if mine := numbers & stays:
            kept[name] = mine
        if gone := numbers - stays:
            revoking[name] = gone
    return kept, revoking


def _take(
    kept: dict[str, frozenset[int]], wanted: Tasks, not_here: Callable[[str, AbstractSet[int]], AbstractSet[int]]
) -> bool:
    """Get what is free of what is wanted; whether something is not."""
    waits = False
    for name, numbers in wanted.items():
        new = numbers - kept.get(name, frozenset())
        free = not_here(name, new)
        waits = waits or len(free) < len(new)
        if free:
            kept[name] = kept.get(name, frozenset()) | free
    return waits


def _move(member: StreamsMember, event: TaskEvent, epoch: int, assigned: HeldTasks, revoking: HeldTasks) -> bool:
    following = next_state(TASK_TABLE, member.state, event, member.member_id)
    if (following, epoch, assigned, revoking) == (member.state, member.epoch, member.assigned, member.revoking):
        return False  # others still have what it waits for
    member.state = following
    member.previous_epoch, member.epoch = member.epoch, epoch
    member.assigned, member.revoking = assigned, revoking
    return True


def _has_any(owned: TaskSets, held: HeldTasks) -> bool:
    """Whether a member says that it has some of these."""
    return any(
        not _numbers(numbers).isdisjoint(mine.get(name, ()))
        for mine, tasks in zip(owned, held, strict=True)
        for name, numbers in tasks.items()
    )


def _numbers(numbers: Collection[int]) -> AbstractSet[int]:
    return numbers.keys() if isinstance(numbers, Mapping) else frozenset(numbers)


def has_all(held: HeldTasks, owned: TaskSets | None) -> bool:
    """Whether all that a member says it has was assigned to it."""
    if owned is None:
        return False
    return all(
        numbers <= _numbers(tasks.get(name, frozenset()))
        for mine, tasks in zip(owned, held, strict=True)
        for name, numbers in mine.items()
    )
