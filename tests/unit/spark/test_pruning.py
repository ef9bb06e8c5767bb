"""Which ranges a query's filters leave."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from kclient.spark.pruning import Pruning
from kclient.spark.ranges import OffsetRange
from kclient.types import OffsetAndTimestamp, TopicPartition

datasource = pytest.importorskip("pyspark.sql.datasource")

WHOLE = [OffsetRange("a", 0, 0, 10), OffsetRange("a", 1, 5, 20), OffsetRange("b", 0, 0, 30)]
NOON = datetime.datetime(2024, 5, 17, 12, tzinfo=datetime.UTC)


class Times:
    """Tells where times begin: in `a-0` at 4, in `a-1` before its range, in `b-0` nowhere."""

    def __init__(self) -> None:
        self.asked: list[dict[TopicPartition, int]] = []

    def offsets_for_times(self, wanted: dict[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        self.asked.append(wanted)
        found = {TopicPartition("a", 0): 4, TopicPartition("a", 1): 2}
        return {tp: OffsetAndTimestamp(found[tp], at) if tp in found else None for tp, at in wanted.items()}


def pruned(*filters: Any) -> tuple[list[tuple[str, int, int, int]], list[Any]]:
    """What is left of the ranges, and which filters Spark has to look at still."""
    pruning, rest = Pruning(), []
    for each in filters:
        pruning, done = pruning.with_filter(each)
        if not done:
            rest.append(each)
    left = pruning.narrowed(Times(), WHOLE)  # type: ignore[arg-type]
    return [(piece.topic, piece.partition, piece.start, piece.end) for piece in left], rest


def by(name: str, attribute: str, *value: Any) -> Any:
    return getattr(datasource, name)((attribute,), *value)


EVERY = [("a", 0, 0, 10), ("a", 1, 5, 20), ("b", 0, 0, 30)]


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ([], EVERY),
        ([by("EqualTo", "topic", "b")], EVERY[2:]),
        ([by("In", "topic", ("a", "c")), by("IsNotNull", "topic")], EVERY[:2]),
        ([by("In", "partition", (0, 1)), by("EqualTo", "partition", 1)], [("a", 1, 5, 20)]),
        ([by("EqualTo", "partition", 0), by("EqualTo", "partition", 1)], []),
        ([by("EqualTo", "topic", "a"), by("EqualTo", "topic", "b")], []),
        ([by("GreaterThan", "offset", 8), by("LessThanOrEqual", "offset", 15)], [
            ("a", 0, 9, 10), ("a", 1, 9, 16), ("b", 0, 9, 16),
        ]),
        ([by("GreaterThanOrEqual", "offset", 10), by("LessThan", "offset", 20)], [("a", 1, 10, 20), ("b", 0, 10, 20)]),
        ([by("EqualTo", "offset", 5)], [("a", 0, 5, 6), ("a", 1, 5, 6), ("b", 0, 5, 6)]),
        ([by("EqualTo", "offset", -1)], []),
    ],
)  # fmt: skip
def test_what_needs_no_other_look(filters: list[Any], left: list[Any]) -> None:
    assert pruned(*filters) == (left, [])


@pytest.mark.parametrize("name", ["EqualTo", "GreaterThan", "GreaterThanOrEqual"])
def test_times_say_where_it_begins_and_are_looked_at_again(name: str) -> None:
    later = by(name, "timestamp", NOON)
    assert pruned(by("GreaterThan", "timestamp", NOON - datetime.timedelta(days=1)), later)[0] == [
        ("a", 0, 4, 10),
        ("a", 1, 5, 20),
    ]
    assert pruned(later)[1] == [later]


def test_the_latest_time_is_asked_for_in_what_is_left() -> None:
    pruning = Pruning()
    for each in (by("GreaterThan", "timestamp", NOON), by("GreaterThan", "timestamp", NOON.replace(year=2020))):
        pruning, _ = pruning.with_filter(each)
    times = Times()
    pruning.with_filter(by("EqualTo", "topic", "a"))[0].narrowed(times, WHOLE)  # type: ignore[arg-type]
    assert times.asked == [
        dict.fromkeys([TopicPartition("a", 0), TopicPartition("a", 1)], int(NOON.timestamp()) * 1000)
    ]


@pytest.mark.parametrize(
    "each",
    [
        by("EqualTo", "value", b"x"),
        by("EqualNullSafe", "partition", 0),
        by("GreaterThan", "partition", 0),
        by("LessThan", "timestamp", NOON),
        by("EqualTo", "timestamp", NOON.replace(tzinfo=None)),
        by("GreaterThanOrEqual", "timestamp", NOON.replace(year=1969)),  # of records without a time, which are at -1
        by("StringStartsWith", "topic", "a"),
        by("IsNotNull", "value"),
        by("IsNull", "topic"),
        datasource.Not(by("EqualTo", "partition", 0)),
        datasource.EqualTo(("headers", "key"), "x"),
    ],
)
def test_the_rest_is_spark_s(each: Any) -> None:
    assert pruned(each) == (EVERY, [each])
