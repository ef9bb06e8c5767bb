"""The committed offsets of one group, and when they may be forgotten."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from kclient.gateway.rows.groups import CommittedOffset
from kclient.types import TopicPartition

if TYPE_CHECKING:
    from kclient.gateway.topic_record import TopicRecord
    from kclient.memory_ledger import MemoryAccount

_OFFSET: Final = 220
"""About how many bytes of memory an offset takes, beside its metadata."""
_DELETION: Final = 150
"""The same of the deletion of one, until it is stored."""


class OffsetCommit:
    """What one request commits, or deletes, by topic and partition: it is taken as a whole, or not at all."""

    __slots__ = ("held", "size", "topics")

    def __init__(self) -> None:
        self.topics: dict[TopicRecord, dict[int, CommittedOffset | None]] = {}
        """The topics as the request found them: those that have gone since are passed over."""
        self.size: int = 0
        """How many partitions."""
        self.held: int = 0
        """About how many bytes of memory they take, those that are given anew counted twice."""

    def add(self, record: TopicRecord, number: int, committed: CommittedOffset | None) -> None:
        """One more partition; None deletes its offset. Of several for one, the last counts."""
        offsets = self.topics.setdefault(record, {})
        self.size += number not in offsets
        offsets[number] = committed
        self.held += _size(committed) or _DELETION

    def drop(self, topics: Container[str]) -> None:
        """Leave out the topics of these names."""
        for record in [record for record in self.topics if record.name in topics]:
            self.size -= len(self.topics.pop(record))

    def items(self) -> Iterator[tuple[TopicRecord, TopicPartition, CommittedOffset | None]]:
        """Everything whose topic is there when its turn comes."""
        for record, offsets in self.topics.items():
            for number, committed in offsets.items():
                if record.gone:
                    break
                yield record, TopicPartition(record.name, number), committed

    def beyond(self, known: Mapping[str, Mapping[int, CommittedOffset]]) -> int:
        """How many of the partitions are not among these."""
        return sum(
            len(offsets.keys() - known[record.name].keys()) if record.name in known else len(offsets)
            for record, offsets in self.topics.items()
        )

    def partitions(self, topic: str) -> Iterator[int]:
        """The partitions of a topic of that name."""
        for record, offsets in self.topics.items():
            if record.name == topic:
                yield from offsets


class Expiry(NamedTuple):
    """When a group's offsets may be forgotten."""

    retention_ms: int
    """How long an offset is kept."""
    base_ms: int | None
    """Since when the group has been without members; None counts from each commit."""
    keep: frozenset[str]
    """Topics that members read: their offsets stay."""


class GroupOffsets:
    """The committed offsets of one group. A commit is visible once it is stored.

    Args:
        memory: Where they count.
    """

    def __init__(self, memory: MemoryAccount | None = None) -> None:
        self._memory = memory
        self._held = 0
        self._committed: dict[str, dict[int, CommittedOffset]] = {}
        self._pending: dict[OffsetCommit, None] = {}
        self.commits: int = 0
        """How many commits have begun."""

    def __bool__(self) -> bool:
        return bool(self._committed) or bool(self._pending)

    def get(self, topic: str, partition: int) -> CommittedOffset | None:
        """The committed offset of a partition, or None."""
        return self._committed.get(topic, {}).get(partition)

    def topics(self) -> Mapping[str, Mapping[int, CommittedOffset]]:
        """Everything that is committed, by topic and partition."""
        return self._committed

    def items(self) -> Iterator[tuple[TopicPartition, CommittedOffset]]:
        """Everything that is committed; topics may be dropped meanwhile, and are left out from then on."""
        for topic, partitions in list(self._committed.items()):
            for partition, committed in partitions.items():
                if self._committed.get(topic) is not partitions:
                    break
                yield TopicPartition(topic, partition), committed

    def begin(self, commit: OffsetCommit) -> None:
        """A commit is on its way to the store; it counts there."""
        self.commits += 1
        self._pending[commit] = None

    def end(self, commit: OffsetCommit) -> None:
        """It is stored, or failed."""
        del self._pending[commit]

    def put(self, partition: TopicPartition, committed: CommittedOffset | None) -> None:
        """Make a stored offset visible; None for one that was deleted."""
        topic, number = partition
        if committed is not None:
            partitions = self._committed.setdefault(topic, {})
            change = _size(committed) - _size(partitions.get(number))
            partitions[number] = committed
            if change:
                self._count(change)
        elif (found := self._committed.get(topic)) is not None:
            self._count(-_size(found.pop(number, None)))
            if not found:
                del self._committed[topic]

    def drop_topic(self, topic: str) -> None:
        """Forget a topic's offsets."""
        self._count(-sum(map(_size, self._committed.pop(topic, {}).values())))

    def close(self) -> None:
        """They are not used any more."""
        self._count(-self._held)

    def _count(self, size: int) -> None:
        if self._memory is not None:
            self._held += size
            self._memory.add(size)

    @property
    def pending(self) -> bool:
        """Whether commits are on their way to the store."""
        return bool(self._pending)

    def of_topic(self, topic: str) -> set[int]:
        """Every partition of a topic that the store has, or is about to have, an offset of."""
        return {*self._committed.get(topic, ()), *self._pending_of(topic)}

    def expired(self, topic: str, now_ms: int, rule: Expiry) -> list[int]:
        """The partitions of a topic whose offsets have outlived their time (KIP-211)."""
        pending = set(self._pending_of(topic))
        return [
            number
            for number, committed in self._committed.get(topic, {}).items()
            if number not in pending and committed.outlived(now_ms, rule.retention_ms, rule.base_ms)
        ]

    def _pending_of(self, topic: str) -> Iterator[int]:
        for commit in self._pending:
            yield from commit.partitions(topic)


def _size(committed: CommittedOffset | None) -> int:
    """About how many bytes of memory an offset takes."""
    if committed is None:
        return 0
    return _OFFSET if not committed.metadata else _OFFSET + sys.getsizeof(committed.metadata)
