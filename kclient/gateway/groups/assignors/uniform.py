"""The assignor `uniform`: equal shares for all members, and as few moves as that allows."""

from __future__ import annotations

from kclient.gateway.groups.assignors.model import GroupView, Partitions
from kclient.gateway.groups.assignors.uniform_mixed import MixedAssignment


def assign_uniformly(group: GroupView) -> dict[str, Partitions]:
    """Divide the partitions of all topics among all members."""
    if not group.alike:
        return MixedAssignment(group).made()
    topics = next(iter(group.members.values())).topics
    if not topics:
        return {}
    held = {
        (topic, number)
        for member in group.members.values()
        for topic, numbers in member.target.items()
        for number in numbers
    }
    free = [(topic, number) for topic in topics for number in range(group.counts[topic]) if (topic, number) not in held]
    least, more = divmod(sum(group.counts[topic] for topic in topics), len(group.members))
    assigned: dict[str, Partitions] = {}
    room: list[tuple[str, int]] = []
    for place, (member_id, member) in enumerate(group.members.items()):
        extra = more > 0
        """Whether it may have one more than others."""
        kept, left = _kept(member.target, frozenset(topics), least + extra, free)
        assigned[member_id] = kept
        if left and extra and len(group.members) - place > more:
            left, extra = left - 1, False  # that is for one behind it, who has it already
        more -= extra
        if left:
            room.append((member_id, left))
    taken = 0
    for member_id, left in room:
        new = free[taken : taken + left]
        taken += len(new)
        if new:
            assigned[member_id] = _with(assigned[member_id], new)
    return assigned


def _kept(
    target: Partitions, topics: frozenset[bytes], quota: int, free: list[tuple[bytes, int]]
) -> tuple[Partitions, int]:
    """What a member keeps of its target, and how many partitions it may have beside that; the rest is free."""
    kept: dict[bytes, frozenset[int]] = {}
    same = True
    for topic, numbers in target.items():
        if topic not in topics:
            same = False
        elif len(numbers) <= quota:
            kept[topic] = numbers
            quota -= len(numbers)
        else:
            ordered = sorted(numbers)
            if quota:
                kept[topic] = frozenset(ordered[:quota])
            free += [(topic, number) for number in ordered[quota:]]
            quota, same = 0, False
    return (target if same else kept), quota


def _with(partitions: Partitions, new: list[tuple[bytes, int]]) -> Partitions:
    more: dict[bytes, set[int]] = {}
    for topic, number in new:
        more.setdefault(topic, set()).add(number)
    return {**partitions, **{topic: partitions.get(topic, frozenset()) | numbers for topic, numbers in more.items()}}
