"""Offsets that a mirror translates, by two logs in memory: what is read of them, and when."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pyarrow
import pytest

from kclient.spark.pipelines import mirror_offsets
from kclient.spark.pipelines.failures import MirrorError
from kclient.spark.pipelines.mirror_offsets import OffsetTranslator
from kclient.spark.pipelines.offset_points import OffsetPoint
from kclient.spark.pipelines.replay_records import Position
from kclient.types import TopicPartition

HERE, THERE = TopicPartition("t", 0), TopicPartition("m-t", 0)


class Log:
    """One partition: the offsets of its records, where it begins, and where it ends as told from look to look."""

    def __init__(self, offsets: Sequence[int], ends: Sequence[int], start: int = 0) -> None:
        self.offsets = offsets
        self.start = start
        self.looks = 0
        self._ends = ends
        self._place = 0

    @property
    def consumer(self) -> Log:
        return self

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self.start)

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        self.looks += 1
        return dict.fromkeys(partitions, self._ends[min(self.looks, len(self._ends)) - 1])

    def assign(self, partitions: Collection[TopicPartition]) -> None: ...

    def seek(self, place: TopicPartition, offset: int) -> None:
        self._place = offset

    def position(self, place: TopicPartition) -> int:
        return self._place

    def poll_arrow(self, **_: Any) -> pyarrow.Table:
        found = [offset for offset in self.offsets if offset >= self._place]
        self._place = self._ends[-1]
        return pyarrow.table({"offset": pyarrow.array(found, pyarrow.int64())})


def translator(source: Any, target: Any, position: Position, *, compacted: bool = False) -> OffsetTranslator:
    return OffsetTranslator(source, target, (HERE, THERE), position, compacted=compacted)


def translated(by: OffsetTranslator, offsets: Sequence[int]) -> list[tuple[int, bool]]:
    return [(each.offset, each.certain) for each in map(by.translate, offsets) if each is not None]


def test_the_end_of_a_commit_that_is_on_its_way_is_waited_for() -> None:
    """Until its marker is there, readers see none of the last transaction."""
    target = Log(range(5, 10), [0, 5, 5, 11])
    by = translator(Log(range(5, 10), [10]), target, Position(10, 10, 0, "", (OffsetPoint(5, 5, 5),)))
    assert (translated(by, [10, 7]), target.looks) == ([(11, True), (7, True)], 4)


def test_a_target_that_lacks_what_was_mirrored_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_offsets, "_PATIENCE_S", 0.0)
    by = translator(Log(range(10), [10]), Log(range(6), [6]), Position(10, 10, 0, "", (OffsetPoint(0, 0, 0),)))
    with pytest.raises(
        MirrorError, match=r"m-t-0 ends at offset 6 .* has got records of t-0 up to 10: its log was cut"
    ):
        by.check_only_ours()


def test_records_of_others_move_no_group_past_its_own() -> None:
    """Offsets 1 to 4 of the target are of others, 5 and 6 the mirror's; a point lies on either side."""
    points = (OffsetPoint(0, 0, 0), OffsetPoint(3, 9, 3))
    target = Log([0, 1, 2, 3, 4, 5, 6, 9], [11])
    by = translator(Log(range(4), [4]), target, Position(4, 4, 0, "", points))
    assert translated(by, [0, 1, 2, 3]) == [(0, True), (1, False), (2, False), (9, True)]


def test_a_source_that_was_compacted_once_is_not_taken_for_one_with_retention() -> None:
    """Ten records were mirrored; compaction has left one, behind the group. That retention did it would give rank 9."""
    by = translator(Log([9], [12]), Log(range(10), [11]), Position(12, 10, 0, "", (OffsetPoint(0, 0, 0),)))
    assert translated(by, [5]) == [(0, False)]


def test_below_where_the_target_begins_a_group_goes_to_its_first_record() -> None:
    """Else its consumers would go by auto.offset.reset, and might begin at the end."""
    points = (OffsetPoint(0, 0, 0), OffsetPoint(5, 6, 5))
    target = Log([8, 9, 10], [12], start=8)
    by = translator(Log(range(10), [10]), target, Position(10, 10, 0, "", points))
    assert translated(by, [0, 3, 5, 7, 9]) == [(8, True), (8, True), (8, True), (8, True), (10, True)]
