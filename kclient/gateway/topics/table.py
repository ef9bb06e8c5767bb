"""Where topics are found by name and by id."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Final

from kclient.errors import InvalidTopicError, PolicyViolationError

if TYPE_CHECKING:
    from kclient.gateway.topics.record import Intent, TopicRecord
    from kclient.memory_ledger import LimitedAccount

_TOPIC, _PARTITION, _SETTING = 2_000, 330, 200
"""About how many bytes of memory a topic takes, each of its partitions, which is not used yet, and of its settings."""
_REMEMBERED: Final = 4_096
"""So many changes of topics are known, for those who follow them one by one."""


class TopicTable:
    """All topics of a gateway. `TopicCatalogue` changes it, others only look.

    Args:
        memory: Where they count.
        internal: Kafka's own topics, which are told of, and nothing else: only what says so finds them.
    """

    def __init__(self, memory: LimitedAccount, internal: Iterable[TopicRecord] = ()) -> None:
        self._internal = {record.name: record for record in internal}
        self._internal_by_id = {record.topic_id: record for record in self._internal.values()}
        self._memory = memory
        self._by_name: dict[str, TopicRecord] = {}
        self._by_id: dict[bytes, TopicRecord] = {}
        self._names: list[str] | None = None
        self._told: list[str] | None = None
        self.changes: int = 0
        """Grows whenever a topic comes or goes, or gets more partitions."""
        self._changed: deque[str] = deque(maxlen=_REMEMBERED)
        """The names of those of the last changes."""
        self.left: dict[str, Intent] = {}
        """What creations and deletions have left to be removed, by the topic's name."""
        self.damaged: dict[str, str] = {}
        """Topics that are not served because their rows cannot be read, and why."""
        self.unsure: dict[str, TopicRecord] = {}
        """Topics of which it is not known what their rows say, by name: those that may be deleted are not served."""

    def __iter__(self) -> Iterator[TopicRecord]:
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def all(self) -> list[TopicRecord]:
        """Every topic, those too that may be deleted."""
        return [*self._by_name.values(), *(each for name, each in self.unsure.items() if name not in self._by_name)]

    def get(self, name: str) -> TopicRecord | None:
        """The topic of this name."""
        return self._by_name.get(name)

    def may_have(self, name: str) -> bool:
        """Whether there is a topic of this name, or may be one, though it is not served."""
        return name in self._by_name or name in self.damaged or name in self.unsure

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

    def told(self) -> list[str]:
        """The names of all topics that clients are told of, Kafka's own among them, sorted; not to be changed."""
        if self._told is None:
            self._told = sorted(self._by_name.keys() | self._internal.keys())
        return self._told

    def kafkas_own(self) -> list[TopicRecord]:
        """Kafka's own topics, those too that one which was made under the name comes before."""
        return list(self._internal.values())

    def internal(self, name: str) -> TopicRecord | None:
        """Kafka's own topic of this name. One that was made under it, as earlier releases allowed, comes first."""
        return None if name in self._by_name else self._internal.get(name)

    def internal_by_id(self, topic_id: bytes) -> TopicRecord | None:
        """Kafka's own topic of this id."""
        record = self._internal_by_id.get(topic_id)
        return None if record is None else self.internal(record.name)

    def check_not_internal(self, name: str) -> None:
        """Refuse a change of one of Kafka's own topics, and records for it.

        Raises:
            InvalidTopicError: It is one.
        """
        if self._internal and self.internal(name) is not None:
            raise InvalidTopicError(
                f"The topic {name} is internal: the gateway keeps what Kafka has in it in its store, so it is always "
                "there, empty, and cannot be written to, changed or deleted."
            )

    def changed_since(self, changes: int) -> AbstractSet[str] | None:
        """The names of topics that have changed since there were so many `changes`; None if that is too long ago."""
        missed = self.changes - changes
        if missed > len(self._changed):
            return None
        return set(islice(reversed(self._changed), missed))

    def _note(self, name: str) -> None:
        self.changes += 1
        self._changed.append(name)

    def add(self, record: TopicRecord) -> None:
        """Put a topic in: from now on it follows the broker's settings, see `TopicCatalogue.resolve_all`."""
        self._names = self._told = None
        self._by_name[record.name] = record
        self._by_id[record.topic_id] = record
        self.count(record)

    def check_room(self, partitions: int, settings: Mapping[str, str]) -> None:
        """See to it that there is memory for so many partitions more and these settings, of one topic.

        Raises:
            PolicyViolationError: There is none.
        """
        memory = self._memory
        if not memory.has_room(_size(partitions, settings)):
            raise PolicyViolationError(
                f"There is no room for {partitions} partitions and {len(settings)} settings more: topics take "
                f"{memory.held} bytes of memory, and may take {memory.limit}, a quarter of "
                "connections.max.memory.bytes, as far as the rest of that leaves it. Start the gateway with a higher "
                "setting, or delete topics."
            )

    @contextmanager
    def room(self, partitions: int, settings: Mapping[str, str]) -> Iterator[None]:
        """Keep the memory for so many partitions and these settings from others, until they count or are given up.

        Raises:
            PolicyViolationError: There is none.
        """
        self.check_room(partitions, settings)
        size = _size(partitions, settings)
        self._memory.add(size)
        try:
            yield
        finally:
            self._memory.add(-size)

    def count(self, record: TopicRecord) -> None:
        """Count what a topic that is in it takes, which has changed."""
        self._note(record.name)
        before, record.held = record.held, _size(record.partitions, record.overrides)
        self._memory.add(record.held - before)

    def take_over(self, record: TopicRecord, written: TopicRecord) -> None:
        """Make a topic's record what another one says that was made of its row."""
        record.places, record.partitions, record.overrides = written.places, written.partitions, written.overrides
        record.mirror, record.version = written.mirror, written.version
        if record.name in self:
            self.count(record)

    def remove(self, record: TopicRecord) -> None:
        """Take a topic out: nobody finds it any more."""
        self._note(record.name)
        self._names = self._told = None
        del self._by_name[record.name], self._by_id[record.topic_id]
        self._memory.add(-record.held)
        record.held = 0


def _size(partitions: int, settings: Mapping[str, str]) -> int:
    return _TOPIC + _PARTITION * partitions + sum(_SETTING + len(value) for value in settings.values())
