"""Where topics are found by name and by id."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kclient.gateway.topic_record import Intent, TopicRecord


class TopicTable:
    """All topics of a gateway. `TopicCatalogue` changes it, others only look."""

    def __init__(self) -> None:
        self._by_name: dict[str, TopicRecord] = {}
        self._by_id: dict[bytes, TopicRecord] = {}
        self._names: list[str] | None = None
        self.left: dict[str, Intent] = {}
        """What creations and deletions have left to be removed, by the topic's name."""
        self.damaged: dict[str, str] = {}
        """Topics that are not served because their rows cannot be read, and why."""

    def __iter__(self) -> Iterator[TopicRecord]:
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def get(self, name: str) -> TopicRecord | None:
        """The topic of this name."""
        return self._by_name.get(name)

    def by_id(self, topic_id: bytes) -> TopicRecord | None:
        """The topic of this id."""
        return self._by_id.get(topic_id)

    def deleted(self, name: str, topic_id: bytes) -> bool:
        """Whether this topic is known to have been deleted, and something of it is still there."""
        intent = self.left.get(name)
        if intent is None or name in self._by_name or name in self.damaged:
            return False
        return intent.topic_id is None or intent.topic_id == topic_id

    def names(self) -> list[str]:
        """All topics' names, sorted; not to be changed."""
        if self._names is None:
            self._names = sorted(self._by_name)
        return self._names

    def add(self, record: TopicRecord) -> None:
        """Put a topic in: from now on it follows the broker's settings, see `TopicCatalogue.resolve_all`."""
        self._names = None
        self._by_name[record.name] = record
        self._by_id[record.topic_id] = record

    def remove(self, record: TopicRecord) -> None:
        """Take a topic out: nobody finds it any more."""
        self._names = None
        del self._by_name[record.name], self._by_id[record.topic_id]
