"""What the broker assigns to a member (KIP-848): topic ids and numbers, whose names have to be found."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from kclient.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping


class AssignmentTarget:
    """What one member is to read; without I/O or clock."""

    def __init__(self) -> None:
        self.failures: int = 0
        """How often names were looked for in vain, since all were known."""
        self.reached: bool = False
        """Whether an assignment was carried out."""
        self.moved: bool = False
        """Whether there is another aim than before."""
        self._assigned: frozenset[tuple[bytes, int]] | None = None
        """What the broker assigned last; None before it has."""
        self._names: dict[bytes, str] = {}
        self._unknown: frozenset[bytes] = frozenset()
        self._asked = False
        self._retry_at = 0.0
        self._aim: dict[TopicPartition, bytes] = {}
        self._answered = True
        """Whether what the broker assigned last was carried out as far as it can be."""

    def set(self, assigned: Iterable[tuple[bytes, int]]) -> None:
        """The broker assigns this."""
        new = frozenset(assigned)
        if new == self._assigned:
            return
        self._assigned = new
        self._answered = False
        ids = {topic_id for topic_id, _ in new}
        self._names = {topic_id: name for topic_id, name in self._names.items() if topic_id in ids}
        self._unknown = frozenset(ids - self._names.keys())
        self.failures = 0
        self._retry_at = 0.0

    # ------------------------------------------------------------------ names

    def unresolved(self, now: float) -> tuple[frozenset[bytes], float]:
        """The topics whose names are to be looked for now, and when others are, unless something happens before."""
        if not self._unknown or self._asked:
            return frozenset(), inf
        if now < self._retry_at:
            return frozenset(), self._retry_at
        self._asked = True
        return self._unknown, inf

    def resolved(self, names: Mapping[bytes, str], retry_at: float) -> None:
        """The names that were found.

        Args:
            names: By topic id.
            retry_at: When to look for the others again.
        """
        self._asked = False
        self._names.update({topic_id: names[topic_id] for topic_id in self._unknown & names.keys()})
        self._unknown -= names.keys()
        if self._unknown:
            self.failures += 1
            self._retry_at = retry_at

    # ------------------------------------------------------------------ the way there

    def aim(
        self, owned: Mapping[TopicPartition, bytes], topics: Collection[str] | None
    ) -> Mapping[TopicPartition, bytes] | None:
        """What is to be read, with the topics' ids; None if nothing is to be done, or the names are not known yet.

        Args:
            owned: What is read now.
            topics: Those that are subscribed; None for all.
        """
        if self._assigned is None:
            return None
        found = {
            TopicPartition(name, number): topic_id
            for topic_id, number in self._assigned
            if (name := self._names.get(topic_id)) is not None and (topics is None or name in topics)
        }
        same = found.items() == owned.items()
        if same and (self._unknown or self._answered):
            return None
        if found != self._aim:
            self._aim = found
            self.moved = True
        return found

    def reach(self) -> dict[TopicPartition, bytes]:
        """The aim is reached; it is what is read now."""
        self.reached = True
        self._answered = not self._unknown
        return dict(self._aim)
