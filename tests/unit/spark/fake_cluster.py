"""A cluster that is described by a table, for what plans."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kclient.spark.cluster import KnownTopic
from kclient.types import OffsetAndTimestamp, TopicPartition


class FakeCluster:
    """Partition → (beginning, end). A topic's id is made of its name until `ids` gives it another."""

    def __init__(self, logs: Mapping[TopicPartition, tuple[int, int]]) -> None:
        self.logs = dict(logs)
        self.ids: dict[str, str] = {}
        self.tops: dict[TopicPartition, int] = {}

    def names(self) -> list[str]:
        return sorted({partition.topic for partition in self.logs})

    def topics(self, names: Collection[str]) -> dict[str, KnownTopic]:
        known: dict[str, list[int]] = {}
        for partition in sorted(self.logs):
            known.setdefault(partition.topic, []).append(partition.partition)
        return {
            name: KnownTopic(self.ids.get(name, f"id of {name}"), tuple(known[name])) for name in names if name in known
        }

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {partition: self.logs[partition][0] for partition in partitions}

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {partition: self.logs[partition][1] for partition in partitions}

    def high_watermarks(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {partition: self.tops.get(partition, self.logs[partition][1]) for partition in partitions}

    def offsets_for_times(
        self, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """A record's timestamp is its offset here."""
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        for partition, timestamp in wanted.items():
            beginning, end = self.logs[partition]
            offset = max(beginning, timestamp)
            found[partition] = OffsetAndTimestamp(offset, offset) if offset < end else None
        return found
