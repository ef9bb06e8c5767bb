"""The leader's part in a group: assigning partitions, and noticing when that has to be done again."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from kclient.consumer.group.requests import assign_members

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from kclient.consumer.group.assignors import Assignor, Subscription
    from kclient.consumer.group.model import RacksOf

_Known: TypeAlias = dict[str, tuple[int | None, list[frozenset[str]] | None]]
"""The number of partitions of each topic, and where their replicas are if that counts."""


def _unknown(topic: str) -> Sequence[Collection[str]]:
    """Nobody has told where replicas are."""
    return ()


class GroupLeader:
    """What a member knows while it leads its group; nothing while another does.

    Args:
        by_rack: Whether the group has to assign anew when replicas have gone to other racks: the leader has a
            `client.rack` itself (KIP-881).
    """

    def __init__(self, *, by_rack: bool) -> None:
        self._by_rack = by_rack
        self._racks: RacksOf = _unknown
        self._members: dict[str, Subscription] = {}
        self._counts: Mapping[str, int] = {}
        self._unknown: Collection[str] = ()
        self._assigned_by: _Known | None = None

    def elect(self, members: dict[str, Subscription]) -> None:
        """This member leads the group, whose members subscribe as given."""
        self._members = members
        self._assigned_by = None

    def dismiss(self) -> None:
        """Another member leads, or the membership ended."""
        self._members = {}
        self._assigned_by = None

    @property
    def topics(self) -> set[str]:
        """The topics of all members, whose metadata are needed."""
        return {topic for subscription in self._members.values() for topic in subscription.topics}

    def update(self, counts: Mapping[str, int], unknown: Collection[str], racks: RacksOf | None) -> None:
        """There are new metadata: the numbers of partitions, the topics known not to exist, and where replicas are."""
        self._counts = counts
        self._unknown = unknown
        self._racks = racks or _unknown

    @property
    def ready(self) -> bool:
        """Whether enough is known to assign."""
        return all(topic in self._counts or topic in self._unknown for topic in self.topics)

    def assign(self, assignor: Assignor) -> dict[str, bytes]:
        """Decide who reads what; the encoded assignments by member id.

        Raises:
            KafkaError: The assignor failed.
        """
        counts = {topic: self._counts[topic] for topic in self.topics if topic in self._counts}
        self._assigned_by = self._numbers()
        return assign_members(assignor, self._members, counts, self._racks)

    def keep(self) -> None:
        """The broker still has the assignment (KIP-814): only watch for changes."""
        self._assigned_by = self._numbers() if self.ready else None

    @property
    def outdated(self) -> bool:
        """Whether topics came, went or grew since the partitions were assigned."""
        return self._assigned_by is not None and self._assigned_by != self._numbers()

    def _numbers(self) -> _Known:
        return {topic: (self._counts.get(topic), self._places(topic)) for topic in self.topics}

    def _places(self, topic: str) -> list[frozenset[str]] | None:
        """The racks of each partition's replicas, where they count."""
        return [frozenset(racks) for racks in self._racks(topic)] if self._by_rack else None
