"""The leader's part in a group: assigning partitions, and noticing when that has to be done again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kclient.consumer.group.requests import assign_members

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from kclient.consumer.group.assignors import Assignor, Subscription


class GroupLeader:
    """What a member knows while it leads its group; nothing while another does."""

    def __init__(self) -> None:
        self._members: dict[str, Subscription] = {}
        self._counts: Mapping[str, int] = {}
        self._unknown: Collection[str] = ()
        self._assigned_by: dict[str, int | None] | None = None

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

    def update(self, counts: Mapping[str, int], unknown: Collection[str]) -> None:
        """There are new metadata: the numbers of partitions, and the topics known not to exist."""
        self._counts = counts
        self._unknown = unknown

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
        return assign_members(assignor, self._members, counts)

    def keep(self) -> None:
        """The broker still has the assignment (KIP-814): only watch for changes."""
        self._assigned_by = self._numbers() if self.ready else None

    @property
    def outdated(self) -> bool:
        """Whether topics came, went or grew since the partitions were assigned."""
        return self._assigned_by is not None and self._assigned_by != self._numbers()

    def _numbers(self) -> dict[str, int | None]:
        return {topic: self._counts.get(topic) for topic in self.topics}
