"""Which offsets a read covers, against a cluster described by a table."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.errors import ConfigError, KafkaError, LeaderNotAvailableError, UnknownTopicOrPartitionError
from kclient.spark.cluster import KnownTopic
from kclient.spark.options import parse_read_options
from kclient.spark.ranges import DataLossError, OffsetRange, resolve_ranges, split_ranges
from kclient.types import TopicPartition
from tests.unit.spark.fake_cluster import FakeCluster

CLUSTER = FakeCluster(
    {TopicPartition("a", 0): (10, 100), TopicPartition("a", 1): (0, 0), TopicPartition("b", 0): (5, 50)}
)


def ranges(**options: str) -> list[tuple[str, int, int, int]]:
    parsed = parse_read_options({"kafka.bootstrap.servers": "x:1", **options})
    found = resolve_ranges(CLUSTER, parsed)  # type: ignore[arg-type]
    return [(r.topic, r.partition, r.start, r.end) for r in found]


def test_everything_without_empty_partitions() -> None:
    assert ranges(subscribe="a,b") == [("a", 0, 10, 100), ("b", 0, 5, 50)]


def test_a_pattern_matches_some_part_of_a_name() -> None:
    """As in Spark's own source."""
    cluster = FakeCluster({TopicPartition(name, 0): (0, 1) for name in ("my-flights", "flights", "delays")})

    def topics(pattern: str) -> list[str]:
        parsed = parse_read_options({"kafka.bootstrap.servers": "x:1", "subscribePattern": pattern})
        return [each.topic for each in resolve_ranges(cluster, parsed)]

    assert topics("light") == ["flights", "my-flights"]
    assert topics("^f.*s$") == ["flights"]
    assert topics("x.*") == []


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
        ({"subscribe": "b", "startingOffsets": '{"a":{"0":1}}'}, "must name exactly the partitions"),
        (
            {"assign": '{"a":[0]}', "startingOffsets": '{"a":{"0":60}}', "endingOffsets": '{"a":{"0":20}}'},
            "lies after the ending",
        ),
        ({"subscribePattern": "("}, "not a regular expression"),
    ],
)
def test_what_does_not_fit_is_said(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ranges(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"subscribe": "a,nowhere"}, "no such topic: nowhere"), ({"assign": '{"a":[7]}'}, "no such partition: a-7")],
)
def test_what_is_not_there_is_no_matter_of_settings(options: dict[str, str], message: str) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match=message):
        ranges(**options)


class Restless(FakeCluster):
    """A cluster where a topic is created again between two questions, or where questions fail at first."""

    def __init__(self, changes: int = 0, failures: int = 0) -> None:
        super().__init__(CLUSTER.logs)
        self.changes = changes
        self.failures = failures

    def topics(self, names: Collection[str]) -> dict[str, KnownTopic]:
        found = super().topics(names)
        if self.changes:
            self.changes -= 1
            self.ids["a"] = f"id {self.changes}"
        return found

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        if self.failures:
            self.failures -= 1
            raise LeaderNotAvailableError
        return super().end_offsets(partitions)


def test_offsets_belong_to_the_topic_that_is_planned() -> None:
    cluster = Restless(changes=1)
    parsed = parse_read_options({"kafka.bootstrap.servers": "x:1", "subscribe": "a"})
    assert [whole.topic_id for whole in resolve_ranges(cluster, parsed)] == ["id 0"]


def test_offsets_are_asked_for_again_as_often_as_was_said() -> None:
    base = {"kafka.bootstrap.servers": "x:1", "subscribe": "a", "fetchOffset.retryIntervalMs": "0"}
    with pytest.raises(KafkaError):
        resolve_ranges(Restless(failures=2), parse_read_options({**base, "fetchOffset.numRetries": "2"}))
    assert resolve_ranges(Restless(failures=2), parse_read_options({**base, "fetchOffset.numRetries": "3"}))


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
