"""The assignor `range`: of each topic a member gets neighbouring partitions."""

from __future__ import annotations

from collections import Counter

from kclient.gateway.groups.assignors.model import GroupView, MemberView, Partitions


def assign_ranges(group: GroupView) -> dict[str, Partitions]:
    """Divide each topic among those who read it; the first members get one partition more where it does not go up.

    So members with the same place get partitions of the same numbers of all topics: records that belong together by
    their keys are read by the same member.
    """
    ordered = sorted(group.members.items(), key=_place)
    readers = Counter(topic for _, member in ordered for topic in member.topics)
    before: Counter[bytes] = Counter()
    """How many members have had their part of each topic."""
    assigned: dict[str, Partitions] = {}
    for member_id, member in ordered:
        mine: dict[bytes, frozenset[int]] = {}
        for topic in member.topics:
            least, more = divmod(group.counts[topic], readers[topic])
            place = before[topic]
            start = least * place + min(place, more)
            end = start + least + (place < more)
            if start < end:
                mine[topic] = frozenset(range(start, end))
            before[topic] += 1
        assigned[member_id] = mine
    return assigned


def _place(item: tuple[str, MemberView]) -> tuple[bool, bytes]:
    """Static members come first, by the names that they keep; the others by their ids. Java compares UTF-16."""
    member_id, member = item
    static = member.instance_id is not None
    return not static, (member.instance_id or member_id if static else member_id).encode("utf-16-be", "surrogatepass")
