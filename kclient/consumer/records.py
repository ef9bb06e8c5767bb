"""What a poll returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from kclient.arguments import as_partition
from kclient.types import OffsetAndMetadata, Partition, TopicPartition

if TYPE_CHECKING:
    from kclient.records import ConsumerRecord


class ConsumerRecords(Sequence["ConsumerRecord"]):
    """Records of several partitions; iterating yields all of them, one partition after the other.

    Within a partition they are in the order of their offsets. Making one costs nothing per record: it holds the
    lists as they were decoded.
    """

    __slots__ = ("_by_partition", "_next_offsets")

    def __init__(
        self,
        by_partition: Mapping[TopicPartition, Sequence[ConsumerRecord]] | None = None,
        next_offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None,
    ) -> None:
        self._by_partition = by_partition or {}
        self._next_offsets = next_offsets or {}

    def partitions(self) -> set[TopicPartition]:
        """The partitions that have records here."""
        return set(self._by_partition)

    def records(self, partition: Partition | str) -> list[ConsumerRecord]:
        """The records of a partition, or of all partitions of a topic; an empty list if there are none."""
        if isinstance(partition, str):
            return [record for tp, records in self._by_partition.items() if tp.topic == partition for record in records]
        return list(self._by_partition.get(as_partition(partition), ()))

    @property
    def next_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The position behind these records in each of their partitions: what to commit for them (KIP-1094)."""
        return dict(self._next_offsets)

    @property
    def partition_ends(self) -> dict[TopicPartition, int]:
        """The partitions of which the end is reached with these records, and its offset (`enable.partition.eof`).

        It is told once, and again after further records or a `seek`. A poll that has only ends to tell returns them
        without records, and counts as true.
        """
        return {}

    @property
    def is_empty(self) -> bool:
        """Whether there are no records."""
        return not self._by_partition

    def __len__(self) -> int:
        return sum(map(len, self._by_partition.values()))

    def __bool__(self) -> bool:
        return bool(self._by_partition)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return chain.from_iterable(self._by_partition.values())

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]

    def __repr__(self) -> str:
        counts = ", ".join(f"{tp}: {len(records)}" for tp, records in self._by_partition.items())
        return f"<ConsumerRecords {counts or 'empty'}>"
