"""Which offsets a read covers, against a cluster described by a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.errors import ConfigError
from kclient.spark.options import parse_read_options
from kclient.spark.ranges import DataLossError, OffsetRange, resolve_ranges, split_ranges
from kclient.types import OffsetAndTimestamp, PartitionInfo, TopicPartition


class FakeCluster:
    """The consumer's calls that planning uses: partition → (beginning, end, timestamps of the records)."""

    def __init__(self, logs: Mapping[TopicPartition, tuple[int, int]]) -> None:
        self._logs = logs

    def list_topics(self) -> dict[str, list[PartitionInfo]]:
        topics: dict[str, list[PartitionInfo]] = {}
        for topic, partition in sorted(self._logs):
            topics.setdefault(topic, []).append(PartitionInfo(topic, partition, None))
        return topics

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {partition: self._logs[partition][0] for partition in partitions}

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {partition: self._logs[partition][1] for partition in partitions}

    def offsets_for_times(
        self, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """A record's timestamp is its offset here."""
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        for partition, timestamp in wanted.items():
            beginning, end = self._logs[partition]
            offset = max(beginning, timestamp)
            found[partition] = OffsetAndTimestamp(offset, offset) if offset < end else None
        return found


CLUSTER = FakeCluster(
    {TopicPartition("a", 0): (10, 100), TopicPartition("a", 1): (0, 0), TopicPartition("b", 0): (5, 50)}
)


def ranges(**options: str) -> list[tuple[str, int, int, int]]:
    parsed = parse_read_options({"kafka.bootstrap.servers": "x:1", **options})
    found = resolve_ranges(CLUSTER, parsed)  # type: ignore[arg-type]
    return [(r.topic, r.partition, r.start, r.end) for r in found]


def test_everything_without_empty_partitions() -> None:
    assert ranges(subscribe="a,b") == [("a", 0, 10, 100), ("b", 0, 5, 50)]


def test_a_pattern_matches_whole_names() -> None:
    assert ranges(subscribePattern="[b-z]") == [("b", 0, 5, 50)]
    assert ranges(subscribePattern="x.*") == []


def test_offsets_per_partition() -> None:
    assert ranges(assign='{"a":[0]}', startingOffsets='{"a":{"0":20}}', endingOffsets='{"a":{"0":30}}') == [
        ("a", 0, 20, 30)
    ]
    assert ranges(assign='{"a":[0]}', startingOffsets='{"a":{"0":-2}}', endingOffsets='{"a":{"0":-1}}') == [
        ("a", 0, 10, 100)
    ]


def test_timestamps() -> None:
    assert ranges(assign='{"a":[0]}', startingTimestamp="42", endingTimestamp="60") == [("a", 0, 42, 60)]
    assert ranges(assign='{"a":[0]}', endingTimestamp="1000") == [("a", 0, 10, 100)]
    with pytest.raises(ConfigError, match="startingOffsetsByTimestampStrategy=latest"):
        ranges(assign='{"a":[0]}', startingTimestamp="1000")
    assert ranges(assign='{"a":[0]}', startingTimestamp="1000", startingOffsetsByTimestampStrategy="latest") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "a,nowhere"}, "no such topic: nowhere"),
        ({"assign": '{"a":[7]}'}, "no such partition: a-7"),
        ({"subscribe": "b", "startingOffsets": '{"a":{"0":1}}'}, "must name exactly the partitions"),
        (
            {"assign": '{"a":[0]}', "startingOffsets": '{"a":{"0":60}}', "endingOffsets": '{"a":{"0":20}}'},
            "lies after the ending",
        ),
        ({"subscribePattern": "("}, "no regular expression"),
    ],
)
def test_what_does_not_fit_is_said(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ranges(**options)


@pytest.mark.parametrize("offset", [3, 500])
def test_offsets_outside_of_the_log_are_data_loss(offset: int) -> None:
    start = f'{{"a":{{"0":{offset}}}}}'
    with pytest.raises(DataLossError, match="holds the offsets 10 to 100"):
        ranges(assign='{"a":[0]}', startingOffsets=start)
    assert ranges(assign='{"a":[0]}', startingOffsets=start, failOnDataLoss="false") in ([("a", 0, 10, 100)], [])


@given(
    sizes=st.lists(st.integers(1, 10_000), min_size=1, max_size=8),
    min_partitions=st.none() | st.integers(1, 50),
    max_records=st.none() | st.integers(1, 5_000),
)
def test_splitting_loses_nothing_and_doubles_nothing(
    sizes: list[int], min_partitions: int | None, max_records: int | None
) -> None:
    whole = [OffsetRange("t", number, 7, 7 + size) for number, size in enumerate(sizes)]
    pieces = split_ranges(whole, min_partitions, max_records)
    assert all(len(piece) > 0 for piece in pieces)
    for part in whole:
        mine = sorted((p for p in pieces if p.partition == part.partition), key=lambda p: p.start)
        assert [mine[0].start, mine[-1].end] == [part.start, part.end]
        assert all(left.end == right.start for left, right in pairwise(mine))
    if max_records:
        assert max(map(len, pieces)) <= max_records
