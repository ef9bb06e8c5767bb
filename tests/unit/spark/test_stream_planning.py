"""What micro-batches take: places, limits, delays, and topics that come, go and come again."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.errors import ConfigError, UnknownTopicOrPartitionError
from kclient.spark.admission import TriggerDelay, limited
from kclient.spark.options import parse_stream_options
from kclient.spark.ranges import DataLossError
from kclient.spark.stream_offsets import StreamOffsets
from kclient.spark.stream_planning import StreamPlanner
from kclient.types import TopicPartition
from tests.unit.spark.fake_cluster import FakeCluster

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def planner_of(cluster: FakeCluster, clock: Any = lambda: 0.0, **options: str) -> StreamPlanner:
    given = {"kafka.bootstrap.servers": "x:1", "subscribe": "a", **options}
    if "subscribePattern" in options:
        del given["subscribe"]
    return StreamPlanner(cluster, parse_stream_options(given), clock)


def restarted(offsets: StreamOffsets) -> StreamOffsets:
    """As Spark gives it back."""
    return StreamOffsets.from_json(json.loads(json.dumps(offsets.to_json())))


def read(start: StreamOffsets, end: StreamOffsets) -> dict[TopicPartition, tuple[int, int]]:
    return {each.topic_partition: (each.start, each.end) for each in restarted(end).ranges_from(restarted(start))}


def test_it_begins_at_the_end_by_default_and_that_is_noted() -> None:
    cluster = FakeCluster({A0: (0, 5), A1: (2, 7)})
    planner = planner_of(cluster)
    start = restarted(planner.initial())
    first = planner.latest(start, None, None)
    assert first is not None
    assert read(start, first) == {}
    cluster.logs[A0] = (0, 9)
    again = planner_of(cluster)  # the first batch is planned again after a restart: it begins where it began
    assert read(again.initial(), first) == {}
    second = again.latest(restarted(first), None, None)
    assert second is not None
    assert read(first, second) == {A0: (5, 9)}
    assert again.latest(restarted(second), None, None) is None


def test_the_first_batch_is_the_same_when_it_is_planned_again() -> None:
    cluster = FakeCluster({A0: (0, 5), A1: (2, 7)})
    planner = planner_of(cluster, startingOffsets="earliest")
    first = planner.latest(planner.initial(), None, None)
    assert first is not None
    cluster.logs = {A0: (3, 9), A1: (2, 7)}
    assert read(planner_of(cluster, startingOffsets="earliest").initial(), first) == {A0: (0, 5), A1: (2, 7)}


def test_nothing_there_is_no_batch_where_the_beginning_is_fixed() -> None:
    planner = planner_of(FakeCluster({A0: (0, 0), A1: (4, 4)}), startingOffsets="earliest")
    assert planner.latest(planner.initial(), None, None) is None
    explicit = planner_of(FakeCluster({A0: (0, 3)}), startingOffsets='{"a":{"0":3}}')
    assert explicit.latest(explicit.initial(), None, None) is None
    latest = planner_of(FakeCluster({A0: (0, 3)}), startingOffsets='{"a":{"0":-1}}')
    assert latest.latest(latest.initial(), None, None) is not None


def test_the_initial_place_stays_while_it_is_asked_for() -> None:
    cluster = FakeCluster({A0: (0, 5)})
    planner = planner_of(cluster)
    first = planner.initial()
    cluster.logs[A0] = (0, 9)
    assert planner.initial() == first


def test_equal_places_are_equal_text() -> None:
    one = StreamOffsets({B0: 1, A1: 2, A0: 3}, {"b": "y", "a": "x"}, {A1: 0, A0: 1})
    other = StreamOffsets({A0: 3, A1: 2, B0: 1}, {"a": "x", "b": "y"}, {A0: 1, A1: 0})
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())
    assert restarted(one) == one


def test_checkpoints_of_others_and_of_the_future() -> None:
    with pytest.raises(ConfigError, match="another source"):
        StreamOffsets.from_json({"a": {"0": 5}})
    with pytest.raises(ConfigError, match=r"newer version of kclient \(format 2"):
        StreamOffsets.from_json({"format": 2, "topics": {}})


def test_partitions_and_topics_that_come_begin_at_the_start_and_that_is_noted() -> None:
    cluster = FakeCluster({A0: (0, 5)})
    planner = planner_of(cluster, startingOffsets="earliest", subscribePattern=".*")
    first = planner.latest(planner.initial(), None, None)
    assert first is not None
    cluster.logs |= {A1: (0, 3), B0: (0, 2)}
    second = planner.latest(first, None, None)
    assert second is not None
    assert read(first, second) == {A1: (0, 3), B0: (0, 2)}
    assert second.began == {A1: 0, B0: 0}
    cluster.logs[TopicPartition("b", 1)] = (4, 6)
    with pytest.raises(DataLossError, match=r"b-1 is new, and its log begins at 4"):
        planner.latest(second, None, None)
    third = planner_of(cluster, subscribePattern=".*", failOnDataLoss="false").latest(second, None, None)
    assert third is not None
    assert read(second, third) == {TopicPartition("b", 1): (4, 6)}


def test_a_topic_that_was_created_again(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster({A0: (0, 5)})
    planner = planner_of(cluster, startingOffsets="earliest")
    first = planner.latest(planner.initial(), None, None)
    assert first is not None
    cluster.ids["a"], cluster.logs[A0] = "another", (0, 9)
    with pytest.raises(DataLossError, match=r"a was deleted and created again.*failOnDataLoss=false"):
        planner.latest(first, None, None)
    with caplog.at_level(logging.WARNING, "kclient.spark"):
        second = planner_of(cluster, failOnDataLoss="false").latest(first, None, None)
    assert second is not None
    assert read(first, second) == {A0: (0, 9)}
    assert "deleted and created again" in caplog.text


def test_a_topic_that_was_created_again_with_fewer_partitions() -> None:
    """And gets more later: where the old topic's had come to is no place in them."""
    cluster = FakeCluster({A0: (0, 5), A1: (0, 7)})
    planner = planner_of(cluster, startingOffsets="earliest", failOnDataLoss="false")
    first = planner.latest(planner.initial(), None, None)
    assert first is not None
    cluster.ids["a"] = "another"
    cluster.logs = {A0: (0, 2)}
    second = planner.latest(restarted(first), None, None)
    assert second is not None
    assert read(first, second) == {A0: (0, 2)}
    cluster.logs[A1] = (0, 9)
    third = planner.latest(restarted(second), None, None)
    assert third is not None
    assert read(second, third) == {A1: (0, 9)}


def test_a_topic_that_is_gone_for_a_while_is_not_read_again() -> None:
    cluster = FakeCluster({A0: (0, 5), B0: (0, 4)})
    planner = planner_of(cluster, startingOffsets="earliest", subscribe="a,b", failOnDataLoss="false")
    first = planner.latest(planner.initial(), None, None)
    assert first is not None
    del cluster.logs[B0]
    cluster.logs[A0] = (0, 6)
    second = planner.latest(first, None, None)
    assert second is not None
    assert read(first, second) == {A0: (5, 6)}
    assert planner.latest(restarted(second), None, None) is None
    cluster.logs[B0] = (0, 7)
    third = planner.latest(restarted(second), None, None)
    assert third is not None
    assert read(second, third) == {B0: (4, 7)}
    del cluster.logs[B0]
    with pytest.raises(UnknownTopicOrPartitionError, match="no such topic: b"):
        planner_of(cluster, subscribe="a,b").latest(third, None, None)
    with pytest.raises(DataLossError, match="b-0 are not there any more"):
        planner_of(cluster, subscribePattern=".*").latest(third, None, None)


def test_a_log_that_was_cut_back() -> None:
    cluster = FakeCluster({A0: (0, 5)})
    planner = planner_of(cluster, startingOffsets="earliest")
    first = planner.latest(planner.initial(), None, None)
    assert first is not None
    cluster.logs[A0] = (0, 3)
    with pytest.raises(DataLossError, match="its log was cut back"):
        planner.latest(first, None, None)
    lenient = planner_of(cluster, failOnDataLoss="false")
    second = lenient.latest(first, None, None)
    assert second is not None
    assert read(first, second) == {}
    cluster.logs[A0] = (0, 6)
    third = lenient.latest(second, None, None)
    assert third is not None
    assert read(second, third) == {A0: (3, 6)}


def test_all_that_is_there_now_and_no_more() -> None:
    cluster = FakeCluster({A0: (0, 5)})
    planner = planner_of(cluster, startingOffsets="earliest", minOffsetsPerTrigger="4")
    planner.stop_at_newest()
    cluster.logs = {A0: (0, 50), A1: (0, 5)}
    first = planner.latest(planner.initial(), 3, 4)
    assert first is not None
    second = planner.latest(first, 3, 4)
    assert second is not None
    assert (read(planner.initial(), first), read(first, second)) == ({A0: (0, 3)}, {A0: (3, 5)})
    assert planner.latest(second, 3, 4) is None


def test_the_end_when_all_there_is_was_to_be_read() -> None:
    cluster = FakeCluster({A0: (0, 5)})
    planner = planner_of(cluster)
    planner.stop_at_newest()
    cluster.logs[A0] = (0, 8)
    start = planner.initial()
    first = planner.latest(start, None, None)
    assert first is not None
    assert read(start, first) == {}
    assert planner.latest(first, None, None) is None


def test_small_batches_wait_but_not_for_ever() -> None:
    cluster, now = FakeCluster({A0: (0, 5)}), 0.0
    planner = planner_of(
        cluster, lambda: now, startingOffsets="earliest", minOffsetsPerTrigger="10", maxTriggerDelay="30s"
    )
    first = planner.latest(planner.initial(), None, 10)
    assert first is not None  # the first one never waits
    cluster.logs[A0], now = (0, 9), 29.0
    assert planner.latest(first, None, 10) is None
    assert planner.latest(first, None, None) is not None
    now = 30.0
    second = planner.latest(first, None, 10)
    assert second is not None
    cluster.logs[A0], now = (0, 19), 31.0
    assert planner.latest(second, None, 10) is not None


def test_a_delay_begins_with_each_batch() -> None:
    delay = TriggerDelay(least=5, longest=10.0)
    assert [delay.holds_back(available, now) for available, now in ((0, 0.0), (4, 9.0), (5, 9.5), (4, 19.0))] == [
        False, True, False, True,
    ]  # fmt: skip


@given(
    st.dictionaries(st.integers(0, 20), st.tuples(st.integers(0, 1000), st.integers(0, 10**12)), min_size=1),
    st.integers(1, 10**9),
)
def test_limits(logs: dict[int, tuple[int, int]], most: int) -> None:
    starts = {TopicPartition("a", number): start for number, (start, _) in logs.items()}
    ends = {TopicPartition("a", number): start + size for number, (start, size) in logs.items()}
    found = limited(starts, ends, most)
    taken = {tp: found[tp] - starts[tp] for tp in found}
    assert found.keys() == ends.keys()
    assert all(0 <= taken[tp] <= ends[tp] - starts[tp] for tp in found)
    assert all(taken[tp] > 0 for tp in found if ends[tp] > starts[tp])
    assert sum(taken.values()) <= most + len(found)  # a partition that has anything gets one
    if sum(ends[tp] - starts[tp] for tp in ends) <= most:
        assert found == ends


@pytest.mark.parametrize(
    ("text", "milliseconds"), [("15m", 900_000), ("2 min", 120_000), ("90S", 90_000), ("7", 7), ("1d", 86_400_000)]
)
def test_delays(text: str, milliseconds: int) -> None:
    options = {"kafka.bootstrap.servers": "x:1", "subscribe": "a", "maxTriggerDelay": text}
    assert parse_stream_options(options).longest_delay_ms == milliseconds


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"maxTriggerDelay": "-1s"}, "takes a time such as 15m"),
        ({"maxTriggerDelay": "9" * 30}, "must be at most 2147483647"),
        ({"endingTimestamp": "5"}, "endingTimestamp is for batch reads"),
        ({"pushFilters": "false"}, "pushFilters is for batch reads"),
        ({"commitGroupOffsets": "true"}, "needs kafka.group.id"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "is above maxOffsetsPerTrigger"),
        ({"maxOffsetsPerTrigger": "0"}, "must be at least 1"),
    ],
)
def test_wrong_options(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_stream_options({"kafka.bootstrap.servers": "x:1", "subscribe": "a", **options})
