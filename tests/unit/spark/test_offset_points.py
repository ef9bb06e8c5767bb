"""Points of a mirror: they fit into an offset's metadata, however many there were, and tell ranks."""

from __future__ import annotations

import itertools
import random

import pytest

from kclient.spark.pipelines.offset_points import (
    MOST_TEXT,
    OffsetPoint,
    OffsetStretch,
    points_of,
    points_text,
    rank_in,
    stretch_at,
    with_point,
)
from kclient.spark.pipelines.replay_records import Position


def test_they_are_read_as_they_were_written() -> None:
    points = (OffsetPoint(5, 1 << 62, 0), OffsetPoint(9, (1 << 62) + 7, 4))
    assert points_of(points_text(points)) == points
    assert points_of("") == ()
    with pytest.raises(ValueError, match="unpack"):
        points_of("1.2")
    position = Position(12, 6, 0, "target's id", points)
    assert Position.read("g", position.committed()) == position


@pytest.mark.slow
def test_newer_ones_lie_denser() -> None:
    chance = random.Random(1)
    points: tuple[OffsetPoint, ...] = ()
    source, target = (1 << 40), (1 << 41)
    first = OffsetPoint(source, target, 0)
    for records in range(0, 40_000_000, 10_000):
        points = with_point(points, OffsetPoint(source, target, records))
        source += 10_000 + chance.randrange(5000)
        target += 10_001
    assert len(points_text(points)) <= MOST_TEXT
    assert len(Position(source, 40_000_000, 0, "A" * 22, points).committed().metadata) < 4096
    assert points[0] == first
    assert points[-1].records == 39_990_000
    assert list(points) == sorted(points)
    newest = points[-1].source
    for before, behind in itertools.pairwise(points[:-1]):
        assert behind.source - before.source <= 0.2 * (newest - before.source) + 30_000


def test_the_stretch_of_an_offset() -> None:
    points = (OffsetPoint(10, 100, 0), OffsetPoint(20, 111, 10))
    assert stretch_at(points, 9, 30, 18, 120) is None
    assert stretch_at((), 9, 30, 0, 120) is None
    assert stretch_at(points, 10, 30, 18, 120) == OffsetStretch(points[0], 20, 111, 10)
    assert stretch_at(points, 19, 30, 18, 120) == OffsetStretch(points[0], 20, 111, 10)
    assert stretch_at(points, 20, 30, 18, 120) == OffsetStretch(points[1], 30, 120, 8)


@pytest.mark.parametrize(
    ("before", "behind", "from_end", "expected"),
    [
        (4, 6, True, (4, True)),
        (4, 6, False, (4, True)),
        (1, 6, True, (4, True)),  # retention has removed three
        (0, 0, False, (0, False)),  # retention has gone past the offset
        (1, 6, False, (1, False)),  # compaction, from wherever
    ],
)
def test_ranks(before: int, behind: int, from_end: bool, expected: tuple[int, bool]) -> None:
    assert rank_in(OffsetStretch(OffsetPoint(0, 0, 0), 20, 20, 10), before, behind, from_end=from_end) == expected
