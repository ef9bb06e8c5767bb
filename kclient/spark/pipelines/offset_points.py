"""Which offset of a target belongs to which of the source: points that are known, and what lies between; no I/O here.

A mirror notes a point with each transaction. They are thinned out as they grow old, so that they fit into the metadata
of a committed offset; what lies between two of them is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MOST_TEXT = 3500
"""Characters that points take: brokers keep 4,096 of metadata (`offset.metadata.max.bytes`)."""


class OffsetPoint(NamedTuple):
    """Where a transaction began.

    Attributes:
        source: the offset of the source from which on it has records.
        target: the offset of its first record in the target.
        records: how many records were written before it.
    """

    source: int
    target: int
    records: int


class OffsetStretch(NamedTuple):
    """What is known between two points.

    Attributes:
        low: the point at or before an offset of the source.
        source_end: the offset of the source where the next one begins.
        target_end: the offset of the target there.
        records: how many records were written between them.
    """

    low: OffsetPoint
    source_end: int
    target_end: int
    records: int


def with_point(points: Sequence[OffsetPoint], point: OffsetPoint) -> tuple[OffsetPoint, ...]:
    """The points and a newer one; where they are too many, those go that leave the smallest gap for their age."""
    found = [*points, point]
    while len(points_text(found)) > MOST_TEXT:
        newest = found[-1].source

        def gap(index: int, newest: int = newest) -> float:
            before, behind = found[index - 1].source, found[index + 1].source
            return (behind - before) / (newest - before)

        del found[min(range(1, len(found) - 1), key=gap)]
    return tuple(found)


def points_text(points: Sequence[OffsetPoint]) -> str:
    """As it is committed: the first point, and of each other how much further it is."""
    before = OffsetPoint(0, 0, 0)
    parts = []
    for point in points:
        parts.append(".".join(str(own - former) for own, former in zip(point, before, strict=True)))
        before = point
    return " ".join(parts)


def points_of(text: str) -> tuple[OffsetPoint, ...]:
    """As they were committed.

    Raises:
        ValueError: they were not.
    """
    found: list[OffsetPoint] = []
    before = OffsetPoint(0, 0, 0)
    for part in text.split():
        source, target, records = (int(each) for each in part.split("."))
        before = OffsetPoint(before.source + source, before.target + target, before.records + records)
        found.append(before)
    return tuple(found)


def stretch_at(
    points: Sequence[OffsetPoint], offset: int, position: int, records: int, target_end: int
) -> OffsetStretch | None:
    """The stretch in which an offset of the source is.

    Args:
        points: What is known, in order.
        offset: The offset of the source, below the position.
        position: Up to where the source was mirrored.
        records: How many records were written in all.
        target_end: The offset behind the last of them.

    Returns:
        None where the offset lies before all that was mirrored, or there is no point.
    """
    index = sum(point.source <= offset for point in points) - 1
    if index < 0:
        return None
    low = points[index]
    if index + 1 == len(points):
        return OffsetStretch(low, position, target_end, records - low.records)
    high = points[index + 1]
    return OffsetStretch(low, high.source, high.target, high.records - low.records)


def rank_in(stretch: OffsetStretch, before: int, behind: int, *, from_end: bool) -> tuple[int, bool]:
    """How many records of a stretch come before an offset, and whether that is certain.

    Args:
        stretch: What was written.
        before: How many records the source has of it now, below the offset.
        behind: How many from the offset on.
        from_end: Whether only records before the offset may be gone, by retention: then those behind it tell.

    Returns:
        Where others may be gone the least number that can be true, so that no record is left out.
    """
    if before + behind == stretch.records:
        return before, True
    if from_end:
        return max(0, stretch.records - behind), True
    return min(before, stretch.records), False
