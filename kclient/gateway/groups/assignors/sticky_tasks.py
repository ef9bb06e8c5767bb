"""The assignor `sticky` of streams groups (KIP-1071): tasks stay where they are, as far as nobody has too many.

As that of Kafka 4.3, decision by decision. Active tasks first stay where they were active, then go where they were
standby, then to the process with the least load: tasks by members. Standby tasks likewise, at other processes than the
active one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from kclient.gateway.groups.assignors.java_order import PriorityQueue, hash_order
from kclient.gateway.groups.assignors.tasks import NO_TASKS, TaskMember, Tasks, TaskSets, TaskView

__all__ = ["STICKY", "assign_tasks"]

STICKY: Final = "sticky"
"""Its name."""


class _Task(NamedTuple):
    subtopology: str
    number: int


def _by_number(task: _Task) -> tuple[int, str]:
    return task.number, task.subtopology


class _Quota:
    """How many tasks a member is to have: as many as are left, by those members who have not got as many."""

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks = tasks
        self._members = members
        self.each = 0
        self._reckon()

    def took(self, count: int) -> None:
        """A member has so many now."""
        if count == self.each:
            self._members -= 1
            self._tasks -= count
            self._reckon()

    def _reckon(self) -> None:
        self.each = -(-self._tasks // self._members) if self._members else 0


class _Process:
    """A process, with its members and what they get.

    Args:
        members: Their ids, in the order in which they joined.
    """

    def __init__(self, members: Sequence[str]) -> None:
        self.counts: dict[str, int] = dict.fromkeys(members, 0)
        """How many tasks each of its members has."""
        self.tasks: set[_Task] = set()
        self._total = 0
        self._by_load: PriorityQueue[list[int]] | None = None
        """Places of members in `_order`, and how many tasks each has."""
        self._order: list[str] = []
        self.active: dict[str, set[_Task]] = {}
        self.standby: dict[str, set[_Task]] = {}

    @property
    def load(self) -> float:
        """Tasks by members."""
        return self._total / len(self.counts)

    def add(self, member_id: str, task: _Task, *, active: bool) -> int:
        """Give a task to a member; how many that one has now."""
        self._by_load = None
        return self._add(member_id, task, active=active)

    def _add(self, member_id: str, task: _Task, *, active: bool) -> int:
        self._total += 1
        self.tasks.add(task)
        (self.active if active else self.standby).setdefault(member_id, set()).add(task)
        self.counts[member_id] += 1
        return self.counts[member_id]

    def add_to_least_loaded(self, task: _Task, *, active: bool) -> int:
        """Give a task to the member with the fewest; how many that one has now."""
        if len(self.counts) == 1:
            return self._add(next(iter(self.counts)), task, active=active)
        if self._by_load is None:
            self._order = hash_order(self.counts)
            entries = ([place, self.counts[member_id]] for place, member_id in enumerate(self._order))
            self._by_load = PriorityQueue(lambda entry: entry[1], entries)
        entry = self._by_load.poll()
        entry[1] = self._add(self._order[entry[0]], task, active=active)
        self._by_load.add(entry)
        return entry[1]


class _Assignment:
    """One assignment that is being worked out."""

    def __init__(self, view: TaskView) -> None:
        members = view.members
        self._members: Mapping[str, TaskMember] = members
        self._standbys = view.standbys
        self._active = [
            _Task(name, number) for name, (count, _) in view.subtopologies.items() for number in range(count)
        ]
        stateful = {name for name, (_, has_state) in view.subtopologies.items() if has_state}
        self._stateful = [task for task in self._active if task.subtopology in stateful]
        self._active_quota = _Quota(len(self._active), len(members))
        self._quota = _Quota(len(self._active) + self._standbys * len(self._stateful), len(members))
        self._was_active: dict[_Task, str] = {}
        self._was_standby: dict[_Task, list[str]] = {}
        by_process: dict[str, list[str]] = {}
        for member_id in hash_order(members):
            member = members[member_id]
            by_process.setdefault(member.process_id, []).append(member_id)
            for task in _tasks_of(member.target.active):
                self._was_active[task] = member_id
            for task in _tasks_of(member.target.standby):
                self._was_standby.setdefault(task, []).append(member_id)
        order = hash_order(by_process, len(members))
        self._processes = {process_id: _Process(by_process[process_id]) for process_id in order}

    def _process(self, member_id: str) -> _Process:
        return self._processes[self._members[member_id].process_id]

    def _by_load(self) -> PriorityQueue[_Process]:
        return PriorityQueue(lambda process: process.load, self._processes.values())

    def _took(self, count: int, *, active: bool) -> None:
        if active:
            self._active_quota.took(count)
        self._quota.took(count)

    def _stays(self, member_id: str | None, task: _Task, quota: _Quota, *, active: bool) -> bool:
        """Give a task to who had it before, unless that one has enough."""
        if member_id is None:
            return False
        process = self._process(member_id)
        if process.counts[member_id] >= quota.each:
            return False
        self._took(process.add(member_id, task, active=active), active=active)
        return True

    def assign_active(self) -> None:
        """Give all active tasks to members."""
        quota = self._active_quota
        tasks = sorted(self._active, key=_by_number)
        tasks = [task for task in tasks if not self._stays(self._was_active.get(task), task, quota, active=True)]
        tasks = [task for task in tasks if not self._stays(self._had_standby(task), task, quota, active=True)]
        queue = self._by_load()
        for task in sorted(tasks):
            process = queue.poll()
            self._took(process.add_to_least_loaded(task, active=True), active=True)
            queue.add(process)

    def _had_standby(self, task: _Task, *, elsewhere: bool = False) -> str | None:
        """Of those who had a standby task the one with the least load.

        With `elsewhere`, None where the process of the first of them has the task. That it is the first whose process
        is looked at is so in Kafka.
        """
        members = self._was_standby.get(task)
        if not members:
            return None
        found = members[0]
        first = process = self._process(found)
        load, count = process.load, process.counts[found]
        for member_id in members[1:]:
            process = self._process(member_id)
            if process.load < load and not (elsewhere and task in process.tasks) and process.counts[member_id] < count:
                found, load, count = member_id, process.load, process.counts[member_id]
        return None if elsewhere and task in first.tasks else found

    def assign_standby(self) -> None:
        """Give all standby tasks to members, as far as there are processes for them."""
        left: list[tuple[_Task, int]] = []
        for task in sorted(self._stateful, key=_by_number, reverse=True):
            count = 0
            while count < self._standbys and self._keeps_standby(task):
                count += 1
            left.append((task, self._standbys - count))
        left.sort(key=lambda each: each[0], reverse=True)
        queue = self._by_load()
        for task, count in left:
            for _ in range(count):
                if not self._give_standby(queue, task):
                    break

    def _keeps_standby(self, task: _Task) -> bool:
        """Give a standby task to somebody who has had the task."""
        active = self._was_active.get(task)
        elsewhere = active is not None and task not in self._process(active).tasks
        if elsewhere and self._stays(active, task, self._quota, active=False):
            return True
        return self._stays(self._had_standby(task, elsewhere=True), task, self._quota, active=False)

    def _give_standby(self, queue: PriorityQueue[_Process], task: _Task) -> bool:
        """Give a standby task to the process with the least load of those that have not the task."""
        polled: list[_Process] = []
        found = False
        while queue and not found:
            process = queue.poll()
            polled.append(process)
            if task not in process.tasks:
                found = True
                self._took(process.add_to_least_loaded(task, active=False), active=False)
        for process in reversed(polled):
            queue.add(process)
        return found

    def result(self) -> dict[str, TaskSets]:
        """What each member has."""
        found: dict[str, TaskSets] = {}
        for member_id in self._members:
            process = self._process(member_id)
            active, standby = process.active.get(member_id, ()), process.standby.get(member_id, ())
            found[member_id] = TaskSets(_grouped(active), _grouped(standby))
        return found


def assign_tasks(view: TaskView) -> dict[str, TaskSets]:
    """Divide the tasks of a topology among the members of a group, who are at least one."""
    assignment = _Assignment(view)
    assignment.assign_active()
    if view.standbys:
        assignment.assign_standby()
    return assignment.result()


def _tasks_of(tasks: Tasks) -> Iterable[_Task]:
    return (_Task(name, number) for name, numbers in tasks.items() for number in numbers)


def _grouped(tasks: Iterable[_Task]) -> Tasks:
    found: dict[str, set[int]] = {}
    for task in tasks:
        found.setdefault(task.subtopology, set()).add(task.number)
    return {name: frozenset(found[name]) for name in sorted(found)} if found else NO_TASKS
