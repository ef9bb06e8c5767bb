"""The members of a streams group, and which process has which task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from kclient.gateway.groups.streaming.member import NOTHING_HELD, HeldTasks, StreamsMember

if TYPE_CHECKING:
    from kclient.gateway.groups.assignors.tasks import TaskSets


class StreamsRoster:
    """The members by id, in the order in which they joined, with the indexes that go with them."""

    def __init__(self) -> None:
        self._members: dict[str, StreamsMember] = {}
        self._active: dict[str, dict[int, str]] = {}
        """By subtopology and number, the process whose active task it is, or was told to give it up."""
        self._held: dict[tuple[str, str], dict[int, int]] = {}
        """By process and subtopology, how often it has a task of a number, in whatever role."""
        self._sizes: dict[str, int] = {}
        self._size = 0
        self.lagging: set[str] = set()
        """The members that have not reached their target."""

    @property
    def size(self) -> int:
        """About how many bytes of memory they take."""
        return self._size

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[StreamsMember]:
        return iter(list(self._members.values()))

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def get(self, member_id: str) -> StreamsMember | None:
        """The member with this id."""
        return self._members.get(member_id)

    def add(self, member: StreamsMember) -> None:
        """A member is in the group."""
        self._members[member.member_id] = member
        self.hold(member, member.process_id, NOTHING_HELD, NOTHING_HELD)

    def remove(self, member: StreamsMember) -> None:
        """A member is in it no more: what it had is free."""
        member_id = member.member_id
        del self._members[member_id]
        self._release(member.process_id, member.assigned)
        self._release(member.process_id, member.revoking)
        self._size -= self._sizes.pop(member_id, 0)
        self.lagging.discard(member_id)

    def hold(self, member: StreamsMember, process_id: str, assigned: HeldTasks, revoking: HeldTasks) -> None:
        """A member has something else, or is of another process; what it takes is counted.

        Args:
            member: It, as it is now.
            process_id: Its process before.
            assigned: What it had.
            revoking: What it was to give up.
        """
        self._release(process_id, assigned)
        self._release(process_id, revoking)
        for held in (member.assigned, member.revoking):
            for tasks in held:
                for name, numbers in tasks.items():
                    counts = self._held.setdefault((member.process_id, name), {})
                    if not counts:  # as nearly always; a group may have 20,000 tasks, which all are one member's
                        counts.update(dict.fromkeys(numbers, 1))
                        continue
                    for number in numbers:
                        counts[number] = counts.get(number, 0) + 1
            for name, dated in held.active.items():
                self._active.setdefault(name, {}).update(dict.fromkeys(dated, member.process_id))
        self.measure(member)

    def _release(self, process_id: str, held: HeldTasks) -> None:
        for tasks in held:
            for name, numbers in tasks.items():
                counts = self._held.get((process_id, name), {})
                if len(counts) == len(numbers) == sum(counts.values()) and all(map(numbers.__contains__, counts)):
                    self._held.pop((process_id, name), None)  # likewise
                    continue
                for number in numbers:
                    left = counts.get(number, 0) - 1
                    if left > 0:
                        counts[number] = left
                    else:
                        counts.pop(number, None)
                if not counts:
                    self._held.pop((process_id, name), None)
        for name, dated in held.active.items():
            owners = self._active.get(name, {})
            for number in dated:
                if owners.get(number) == process_id:
                    del owners[number]
            if not owners:
                self._active.pop(name, None)

    def measure(self, member: StreamsMember) -> None:
        """Count what a member takes."""
        size = member.size
        self._size += size - self._sizes.get(member.member_id, 0)
        self._sizes[member.member_id] = size

    def inactive(self, subtopology_id: str, numbers: AbstractSet[int]) -> AbstractSet[int]:
        """Those of a subtopology's tasks that nobody has as active task, or was told to give up."""
        active = self._active.get(subtopology_id)
        return numbers - active.keys() if active else numbers

    def not_at(self, process_id: str, subtopology_id: str, numbers: AbstractSet[int]) -> AbstractSet[int]:
        """Those that no member of a process has in whatever role, or was told to give up."""
        held = self._held.get((process_id, subtopology_id))
        return numbers - held.keys() if held else numbers

    def note(self, member: StreamsMember, target_epoch: int) -> None:
        """Whether a member has reached a target may have changed."""
        if member.reached(target_epoch):
            self.lagging.discard(member.member_id)
        else:
            self.lagging.add(member.member_id)

    def retarget(self, targets: Mapping[str, TaskSets], nothing: TaskSets) -> list[StreamsMember]:
        """There is a new target; the members for which it is another than before."""
        changed = []
        for member in self._members.values():
            target = targets.get(member.member_id, nothing)
            if member.target != target:
                member.target = target
                self.measure(member)
                changed.append(member)
        self.lagging = set(self._members)
        return changed
