"""What is known of the topics that are mirrored, and of each of their partitions."""

from __future__ import annotations

from dataclasses import dataclass, field

from kclient.gateway.partition import Partition
from kclient.gateway.topics.record import TopicRecord
from kclient.migration.source import Bounds, SourceTopic
from kclient.types import TopicPartition


@dataclass(slots=True, eq=False)
class MirroredPartition:
    """One partition that is mirrored."""

    tp: TopicPartition
    partition: Partition
    """Where to."""
    topic_id: bytes
    """Of its topic at the source."""
    lane: int = 0
    """Which of the requests to its broker it is asked for with."""
    source: Bounds | None = None
    """Where it begins and ends at the source, as a broker has told last."""
    records: int = 0
    """Records that were moved."""
    size: int = 0
    """And their bytes, in batches as they are stored."""
    problem: str | None = None
    """Why it is not mirrored any more."""
    retry_at: float = 0.0
    """It is not asked for before."""
    begin: int = 0
    """What comes before is not at the source any more."""
    empty: int = 0
    """How often in turn a broker had nothing for it, though its end is further on."""
    damaged: int = 0
    """How often in turn what came was damaged."""
    settling: int = 0
    """How many answers are not durable yet, or the log not trimmed as far as its source was then."""

    @property
    def position(self) -> int:
        """The next offset to be moved."""
        return max(self.partition.log.next_offset, self.begin)

    @property
    def lag(self) -> int | None:
        """How many offsets the mirror is behind; None where the source's end is not known yet."""
        return None if self.source is None else max(0, self.source.end - self.partition.log.high_watermark)


@dataclass(slots=True, eq=False)
class MirroredTopic:
    """One topic that is mirrored."""

    source: SourceTopic
    record: TopicRecord
    """In the store."""
    remote: bool = False
    """Whether the source keeps some of its records in remote storage."""
    partitions: list[MirroredPartition] = field(default_factory=list)
    problem: str | None = None
    """Why it is not mirrored any more."""

    @property
    def name(self) -> str:
        """Its name, on both sides."""
        return self.source.name

    @property
    def problems(self) -> list[str]:
        """Why it, or some of its partitions, are not mirrored any more."""
        if self.problem is not None:
            return [self.problem]
        return [state.problem for state in self.partitions if state.problem is not None]

    @property
    def lag(self) -> int | None:
        """How many offsets it is behind; None where that is not known yet."""
        total = 0
        for state in self.partitions:
            lag = state.lag
            if lag is None:
                return None
            total += lag
        return total
