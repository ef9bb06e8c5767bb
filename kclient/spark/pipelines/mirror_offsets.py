"""Which offset of a mirror's target belongs to one of its source: exact by what was noted, and what is counted."""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from kclient.errors import KafkaTimeoutError
from kclient.spark.cluster import LiveCluster
from kclient.spark.pipelines.failures import MirrorError
from kclient.spark.pipelines.offset_points import OffsetStretch, rank_in, stretch_at
from kclient.spark.pipelines.replay_records import Position
from kclient.types import TopicPartition

_PATIENCE_S = 60.0
"""So long nothing may arrive of a stretch that is read, and so long what was committed may take to be seen."""
_PAUSE_S = 0.05


@dataclass(frozen=True)
class Translated:
    """An offset of the target.

    Attributes:
        offset: it.
        certain: whether it is exact; else it may lie before the exact one, and never behind.
    """

    offset: int
    certain: bool


class OffsetTranslator:
    """Translates offsets of one partition, of what is mirrored and committed.

    Args:
        source: The cluster that the mirror reads.
        target: The one that it writes; both with `isolation.level=read_committed`.
        places: The partition of the source, and that of the target.
        position: Where the mirror is.
        compacted: Whether records of the source may be gone from between others.
    """

    def __init__(
        self,
        source: LiveCluster,
        target: LiveCluster,
        places: tuple[TopicPartition, TopicPartition],
        position: Position,
        *,
        compacted: bool,
    ) -> None:
        self._source = source
        self._target = target
        self._from, self._to = places
        self._position = position
        self._compacted = compacted
        self._end: int | None = None
        self._read: dict[tuple[TopicPartition, int, int], array[int]] = {}

    def settle(self) -> None:
        """Look where the target ends, once what was mirrored is there.

        Raises:
            MirrorError: it is not seen, however long that is waited for.
        """
        _ = self.end

    def translate(self, offset: int) -> Translated | None:
        """The offset of the target's first record whose source is this offset or one behind it.

        Returns:
            None where the mirror has not come so far.
        """
        if offset > self._position.offset:
            return None
        found = self._translate(offset)
        # what lies below is gone by retention, and consumers that begin there go by auto.offset.reset
        return found if found.offset >= self._start else Translated(self._start, found.certain)

    def _translate(self, offset: int) -> Translated:
        position = self._position
        if offset == position.offset or not position.points:
            return Translated(self.end, True)
        if offset <= position.points[0].source:
            return Translated(position.points[0].target, True)
        stretch = stretch_at(position.points, offset, position.offset, position.records, self.end)
        assert stretch is not None, "it is behind the first point"
        rank, certain = self._rank(stretch, offset)
        return self._at(stretch, rank, certain)

    @cached_property
    def _start(self) -> int:
        """Where the target's log begins."""
        return self._target.beginning_offsets([self._to])[self._to]

    @property
    def end(self) -> int:
        """The offset behind all that the target has committed.

        A commit is answered before each partition has its end; until then readers see none of its records.

        Raises:
            MirrorError: what was mirrored is not seen, however long that is waited for.
        """
        if self._end is None:
            deadline = time.monotonic() + _PATIENCE_S
            while (end := self._target.end_offsets([self._to])[self._to]) < self._least_end:
                if time.monotonic() > deadline:
                    raise MirrorError(
                        f"{self._to} ends at offset {end} for readers of what is committed, and has got records of"
                        f" {self._from} up to {self._least_end}: its log was cut back (an unclean leader election), or"
                        " somebody else has a transaction open in it; end that, or give a new id and a target without"
                        " records"
                    )
                time.sleep(_PAUSE_S)
            self._end = end
        return self._end

    @property
    def _least_end(self) -> int:
        """The offset behind the last record that was written."""
        position = self._position
        if not position.points:
            return 0
        last = position.points[-1]
        return last.target + position.records - last.records

    def check_only_ours(self) -> None:
        """See to it that nobody else has written to the target since the last point.

        Raises:
            MirrorError: somebody has.
        """
        position = self._position
        if not position.points:
            return
        last = position.points[-1]
        written = position.records - last.records
        if self.end <= last.target + written + 1:  # the records, and the end of their transaction
            return
        if len(self._offsets(self._target, self._to, last.target, self.end)) > written:
            raise MirrorError(
                f"{self._to} has records that the mirror of {self._from} has not written: a mirror's target takes none"
                " of others; give a new id and a target without records"
            )

    def _rank(self, stretch: OffsetStretch, offset: int) -> tuple[int, bool]:
        low = stretch.low.source
        if stretch.source_end - low == stretch.records:  # no gaps
            return offset - low, True
        offsets = self._offsets(self._source, self._from, low, stretch.source_end)
        before = bisect_left(offsets, offset)
        # below the log's start some of those behind the offset are gone as well, and tell nothing; where the log begins
        # before the stretch nothing is gone by retention, so that it was compacted once
        beginning = self._source.beginning_offsets([self._from])[self._from]
        by_retention = low < beginning <= offset and not self._compacted
        return rank_in(stretch, before, len(offsets) - before, from_end=by_retention)

    def _at(self, stretch: OffsetStretch, rank: int, certain: bool) -> Translated:
        low, end = stretch.low.target, stretch.target_end
        if rank >= stretch.records:
            return Translated(end, certain)
        if end - low <= stretch.records + 1:  # one transaction, whose end has an offset
            return Translated(low + rank, certain)
        offsets = self._offsets(self._target, self._to, low, end)
        gone = stretch.records - len(offsets)
        if gone < 0:  # records of others lie among them; then none of the mirror's comes before its rank among all
            return Translated(offsets[rank], False)
        index = max(0, rank - gone)
        if gone:  # the first ones, by retention; or any, by compaction
            certain = certain and self._start > low and not self._compacted
        return Translated(offsets[index] if index < len(offsets) else end, certain)

    def _offsets(self, cluster: LiveCluster, place: TopicPartition, start: int, end: int) -> array[int]:
        key = (place, start, end)
        if key not in self._read:
            self._read = {key: _offsets_within(cluster, place, start, end), **dict(list(self._read.items())[-1:])}
        return self._read[key]


def _offsets_within(cluster: LiveCluster, place: TopicPartition, start: int, end: int) -> array[int]:
    """The offsets of the records that a partition has of a range now.

    Raises:
        KafkaTimeoutError: nothing arrived for a minute.
    """
    found: array[int] = array("q")
    bounds: Mapping[TopicPartition, int] = cluster.beginning_offsets([place])
    start = max(start, bounds[place])
    consumer = cluster.consumer
    consumer.assign([place])
    if start >= end:
        return found
    consumer.seek(place, start)
    moved = time.monotonic()
    reached = start
    while reached < end:
        batch = consumer.poll_arrow(timeout=1.0, columns=("offset",))
        found.extend(each for each in batch.column("offset").to_pylist() if each < end)
        if consumer.position(place) > reached:
            reached, moved = consumer.position(place), time.monotonic()
        elif time.monotonic() - moved > _PATIENCE_S:
            raise KafkaTimeoutError(f"{place}: nothing arrived for {_PATIENCE_S:.0f} s at offset {reached} of {end}")
    return found
