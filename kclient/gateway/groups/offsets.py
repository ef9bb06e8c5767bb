"""The committed offsets of one group, and when they may be forgotten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

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


class GroupOffsets:
    """The committed offsets of one group. A commit is visible once it is stored."""

    def __init__(self) -> None:
        self._committed: dict[str, dict[int, CommittedOffset]] = {}
        self._pending: Counter[TopicPartition] = Counter()

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
        self._pending.update(list(partitions))

    def end(self, partitions: Iterable[TopicPartition]) -> None:
        """Commits of these partitions are stored, or failed."""
        self._pending.subtract(list(partitions))
        self._pending = +self._pending

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

    def known(self) -> set[TopicPartition]:
        """Every partition that the store has, or is about to have, an offset of."""
        return {partition for partition, _ in self.items()} | set(self._pending)

    def of_topic(self, topic: str) -> set[TopicPartition]:
        """Those of `known` that belong to a topic."""
        return {partition for partition in self.known() if partition.topic == topic}

    def expired(self, now_ms: int, retention_ms: int, base_ms: int | None, keep: set[str]) -> set[TopicPartition]:
        """The partitions whose offsets have outlived their time (KIP-211).

        Args:
            now_ms: The wall clock.
            retention_ms: How long an offset is kept.
            base_ms: Since when the group has been without members; None counts from each commit.
            keep: Topics that members read: their offsets stay.
        """
        found: set[TopicPartition] = set()
        for partition, committed in self.items():
            if partition in self._pending or partition.topic in keep:
                continue
            if committed.expire_ms is not None:
                gone = now_ms >= committed.expire_ms
            else:
                since = committed.commit_ms if base_ms is None else base_ms
                gone = now_ms - since >= retention_ms
            if gone:
                found.add(partition)
        return found
