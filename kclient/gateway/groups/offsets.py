"""The committed offsets of one group, and when they may be forgotten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kclient.types import TopicPartition


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A committed position."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int = 0
    """When it was committed, milliseconds since the epoch."""
    expire_ms: int | None = None
    """When it may be forgotten, if the client said so (OffsetCommit versions 2 to 4)."""

    def outlived(self, now_ms: int, retention_ms: int, base_ms: int | None = None) -> bool:
        """Whether it may be forgotten; the time runs from `base_ms`, or from the commit."""
        if self.expire_ms is not None:
            return now_ms >= self.expire_ms
        return now_ms - (self.commit_ms if base_ms is None else base_ms) >= retention_ms


class Expiry(NamedTuple):
    """When a group's offsets may be forgotten."""

    retention_ms: int
    """How long an offset is kept."""
    base_ms: int | None
    """Since when the group has been without members; None counts from each commit."""
    keep: frozenset[str]
    """Topics that members read: their offsets stay."""


class GroupOffsets:
    """The committed offsets of one group. A commit is visible once it is stored."""

    def __init__(self) -> None:
        self._committed: dict[str, dict[int, CommittedOffset]] = {}
        self._pending: Counter[TopicPartition] = Counter()
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
        """Everything that is committed."""
        for topic, partitions in self._committed.items():
            for partition, committed in partitions.items():
                yield TopicPartition(topic, partition), committed

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Commits of these partitions are on their way to the store."""
        self.commits += 1
        self._pending.update(list(partitions))

    def end(self, partitions: Iterable[TopicPartition]) -> None:
        """Commits of these partitions are stored, or failed."""
        for partition in partitions:
            left = self._pending[partition] - 1
            if left > 0:
                self._pending[partition] = left
            else:
                del self._pending[partition]

    def put(self, partition: TopicPartition, committed: CommittedOffset) -> None:
        """Make a stored commit visible."""
        self._committed.setdefault(partition.topic, {})[partition.partition] = committed

    def remove(self, partition: TopicPartition) -> None:
        """Forget a partition's offset."""
        partitions = self._committed.get(partition.topic)
        if partitions is None:
            return
        partitions.pop(partition.partition, None)
        if not partitions:
            del self._committed[partition.topic]

    def drop_topic(self, topic: str) -> None:
        """Forget a topic's offsets."""
        self._committed.pop(topic, None)

    def each(self) -> Iterator[TopicPartition]:
        """Every partition that the store has, or is about to have, an offset of; the same one may come twice."""
        for partition, _ in self.items():
            yield partition
        yield from self._pending

    @property
    def pending(self) -> bool:
        """Whether commits are on their way to the store."""
        return bool(self._pending)

    def of_topic(self, topic: str) -> set[TopicPartition]:
        """Every partition of a topic that the store has, or is about to have, an offset of."""
        found = {TopicPartition(topic, partition) for partition in self._committed.get(topic, ())}
        return found | {partition for partition in self._pending if partition.topic == topic}

    def expired(self, topic: str, now_ms: int, rule: Expiry) -> list[TopicPartition]:
        """The partitions of a topic whose offsets have outlived their time (KIP-211)."""
        found = []
        for number, committed in self._committed.get(topic, {}).items():
            gone = committed.outlived(now_ms, rule.retention_ms, rule.base_ms)
            if gone and (partition := TopicPartition(topic, number)) not in self._pending:
                found.append(partition)
        return found
