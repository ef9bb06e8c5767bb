"""Which partition a record goes to.

Records with a key go where Java's client sends them: murmur2 of the key's bytes, modulo the number of partitions.
Records without a key stick to one partition until `batch.size` bytes are written there, then go on to another
(KIP-480, KIP-794), which fills batches instead of spreading records thinly; partitions whose queues are long are
chosen less often (`partitioner.adaptive.partitioning.enable`).
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from bisect import bisect_right
from itertools import accumulate, count
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kclient.cluster import ClusterSnapshot


LEFT_OPEN: Final = -(2**31)
"""What the built-in ones choose where it is the accumulator's choice, as without a partitioner.

Those of users have to choose: None would stand for it well, but is also what a forgotten `return` gives."""


class Partitioner(ABC):
    """Chooses partitions by rules of your own (`partitioner.class`).

    It is called in the thread or task that calls `send`, for every record without an explicit partition.
    """

    @abstractmethod
    def partition(
        self,
        topic: str,
        key: Any,
        key_bytes: bytes | None,
        value: Any,
        value_bytes: bytes | None,
        cluster: ClusterSnapshot,
    ) -> int:
        """The partition for a record.

        Args:
            topic: Topic of the record.
            key: The key as it was given to `send`.
            key_bytes: The serialized key, or None.
            value: The value as it was given to `send`.
            value_bytes: The serialized value, or None.
            cluster: What is known of the cluster; `cluster.partition_count(topic)` is never 0 here.
        """

    def close(self) -> None:  # noqa: B027  (most partitioners hold nothing)
        """The producer is closed."""


class RoundRobinPartitioner(Partitioner):
    """Spreads the records of each topic over its partitions in turn, with or without a key."""

    def __init__(self) -> None:
        self._counters: dict[str, count[int]] = {}

    def partition(
        self,
        topic: str,
        key: Any,
        key_bytes: bytes | None,
        value: Any,
        value_bytes: bytes | None,
        cluster: ClusterSnapshot,
    ) -> int:
        turn = next(self._counters.setdefault(topic, count()))
        available = available_partitions(cluster, topic)
        if available:
            return available[turn % len(available)]
        return turn % cluster.partition_count(topic)


class StickyChoice:
    """The partition that records without a key of one topic go to now, and the choice of the next.

    Args:
        switch_bytes: Bytes after which another partition is chosen (`batch.size`).
        random: Source of randomness.
    """

    __slots__ = ("_limits", "_partitions", "_random", "current", "produced", "switch_bytes")

    def __init__(self, switch_bytes: int, random: random.Random) -> None:
        self.switch_bytes: int = switch_bytes
        self.current: int = -1
        """The partition, or -1 before the first choice."""
        self.produced: int = 0
        """Bytes that went to `current` in batches that left before they were full."""
        self._random = random
        self._partitions: Sequence[int] = ()
        self._limits: list[int] = []

    def load(self, partitions: Sequence[int], queued: Sequence[int] | None = None) -> None:
        """Set the partitions to choose from.

        Args:
            partitions: Their numbers.
            queued: Batches that wait for each; partitions with fewer are chosen more often. None: all alike.
        """
        self._partitions = partitions
        self._limits = []
        if queued is not None and len(partitions) > 1:
            ceiling = max(queued) + 1
            if any(length != queued[0] for length in queued):
                self._limits = list(accumulate(ceiling - length for length in queued))

    def next(self) -> int:
        """Choose the next partition, at random; a different one if the choice is even and there are others."""
        partitions = self._partitions
        self.produced = 0
        if not partitions:
            return self.current
        if self._limits:
            draw = self._random.randrange(self._limits[-1])
            self.current = partitions[bisect_right(self._limits, draw)]
        else:
            self.current = self._another(partitions)
        return self.current

    def _another(self, partitions: Sequence[int]) -> int:
        choice = partitions[int(self._random.random() * len(partitions))]
        if choice == self.current and len(partitions) > 1:
            # the one after it, so that two full batches in a row spread over two partitions
            position = partitions.index(choice)
            choice = partitions[(position + 1) % len(partitions)]
        return choice

    def batch_left(self, size: int) -> bool:
        """A batch of the current partition left before it was full; True if it is another one's turn."""
        self.produced += size
        return self.produced >= self.switch_bytes


def available_partitions(cluster: ClusterSnapshot, topic: str) -> list[int]:
    """The partitions of a topic that have a leader, in order."""
    found = cluster.topics.get(topic)
    if found is None:
        return []
    return [number for number in sorted(found.partitions) if found.partitions[number].leader_id in cluster.nodes]
