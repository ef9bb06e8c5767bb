"""Which partitions are read behind which endpoint: members tell it their applications, which query one another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from kclient.gateway.groups.streams_beats import Placed

if TYPE_CHECKING:
    from kclient.gateway.groups.streaming.configuring import Configured, CountOf
    from kclient.gateway.groups.streaming.member import StreamsMember
    from kclient.gateway.groups.streams_beats import QueryEndpoint


class Endpoints:
    """The endpoints of members, and what is read there. It is worked out again for those that have changed."""

    def __init__(self) -> None:
        self.epoch: int = 0
        """Grows whenever something else is read behind an endpoint."""
        self._known: dict[str, Placed] = {}

    def forget(self, member_id: str) -> None:
        """A member has something else, or has gone."""
        self._known.pop(member_id, None)

    def forget_all(self) -> None:
        """The topics may be others."""
        self._known.clear()

    def all(self, members: Iterable[StreamsMember], configured: Configured, count_of: CountOf) -> tuple[Placed, ...]:
        """What is read behind each endpoint."""
        found = []
        for member in members:
            if member.endpoint is None:
                continue
            placed = self._known.get(member.member_id)
            if placed is None:
                placed = _placed(member, member.endpoint, configured, count_of)
                self._known[member.member_id] = placed
            found.append(placed)
        return tuple(found)


def _placed(member: StreamsMember, endpoint: QueryEndpoint, configured: Configured, count_of: CountOf) -> Placed:
    tasks = member.assigned.sets
    return Placed(
        endpoint,
        _partitions(tasks.active, configured, count_of),
        _partitions(tasks.standby, configured, count_of),
    )


def _partitions(
    tasks: Mapping[str, Iterable[int]], configured: Configured, count_of: Callable[[str], int | None]
) -> dict[str, list[int]]:
    """What the tasks read: of a topic with fewer partitions than its subtopology has tasks, those that it has."""
    found: dict[str, list[int]] = {}
    for name, numbers in tasks.items():
        subtopology = configured.subtopologies.get(name)
        for topic in () if subtopology is None else subtopology.reads:
            count = count_of(topic) or 0
            mine = [number for number in sorted(numbers) if number < count]
            if mine:
                found[topic] = mine
    return found
