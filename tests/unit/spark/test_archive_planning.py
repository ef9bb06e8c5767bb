"""What a run archives, against a cluster described by a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kclient.admin.types import topic_id_text
from kclient.errors import UnknownTopicOrPartitionError
from kclient.protocol import ZERO_UUID
from kclient.spark.options import parse_read_options
from kclient.spark.pipelines.manifest import ArchivedRange, ArchiveError, Manifest
from kclient.spark.pipelines.planning import ArchivePlan, plan
from kclient.spark.ranges import DataLossError
from kclient.types import TopicPartition
from tests.unit.spark.fake_cluster import FakeCluster

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def archived(
    *positions: tuple[int, int], topic_id: str = "id of a", incomplete: tuple[str, ...] | None = ()
) -> Manifest:
    """A last run, after which partitions of `a` stand at these places."""
    places = tuple(ArchivedRange("a", topic_id, number, 0, end) for number, end in positions)
    return Manifest(1, "run", (), (), places, incomplete=incomplete)


def planned(
    cluster: FakeCluster,
    last: Manifest | None = None,
    *,
    topics: str = "a",
    lenient: bool = False,
    restart: bool = False,
    most: int | None = None,
) -> ArchivePlan:
    options = parse_read_options({"kafka.bootstrap.servers": "x:1", "subscribe": topics})
    return plan(cluster, replace(options, fail_on_data_loss=not lenient), last, restart_recreated=restart, most=most)


def spans(ranges: Sequence[ArchivedRange]) -> list[tuple[int, int, int]]:
    return [(each.partition, each.start, each.end) for each in ranges]


def test_the_first_run_takes_all_there_is_and_remembers_every_partition() -> None:
    found = planned(FakeCluster({A0: (5, 20), A1: (0, 0)}))
    assert spans(found.ranges) == [(0, 5, 20)]
    assert spans(found.positions) == [(0, 5, 20), (1, 0, 0)]
    assert found.lost == ()


def test_a_run_that_takes_so_many_leaves_the_rest_and_starves_nobody() -> None:
    cluster = FakeCluster({A0: (100, 1100), A1: (0, 2)})
    found = planned(cluster, most=100)
    assert spans(found.ranges) == [(0, 100, 199), (1, 0, 1)]
    assert spans(found.positions) == spans(found.ranges)
    assert found.remaining == 902
    runs, last = 1, Manifest(1, "run", (), (), found.positions)
    while found.remaining:
        found = planned(cluster, last, most=100)
        runs, last = runs + 1, Manifest(runs + 1, "run", (), (), found.positions)
    assert (runs, spans(found.ranges)[-1][2]) == (11, 1100)
    assert not planned(cluster, last, most=100).ranges
    assert planned(cluster, most=1002).remaining == 0


def test_what_is_lost_is_told_once_where_a_run_takes_few() -> None:
    cluster = FakeCluster({A0: (50, 60), A1: (0, 0)})
    found = planned(cluster, archived((0, 20), (1, 0)), lenient=True, most=5)
    assert (spans(found.lost), spans(found.ranges)) == ([(0, 20, 50)], [(0, 50, 55)])
    found = planned(cluster, archived((0, 55), (1, 0)), lenient=True, most=5)
    assert (found.lost, found.remaining) == ((), 0)


def test_a_later_run_goes_on_where_the_last_one_ended() -> None:
    found = planned(FakeCluster({A0: (5, 30), A1: (0, 7)}), archived((0, 20), (1, 0)))
    assert spans(found.ranges) == [(0, 20, 30), (1, 0, 7)]


@pytest.mark.parametrize(
    ("now", "gone", "goes_on"),
    [
        ((25, 30), (20, 25), [(0, 25, 30)]),
        ((30, 30), (20, 30), []),  # nothing is left in the partition, and yet records were never archived
        ((0, 12), (12, 20), []),  # the log was cut back below what was archived
    ],
)
def test_records_that_went_unarchived_are_noticed(
    now: tuple[int, int], gone: tuple[int, int], goes_on: list[tuple[int, int, int]]
) -> None:
    cluster, last = FakeCluster({A0: now}), archived((0, 20))
    with pytest.raises(DataLossError, match=f"a-0 from {gone[0]} to before {gone[1]}; .* by failOnDataLoss=false"):
        planned(cluster, last)
    found = planned(cluster, last, lenient=True)
    assert spans(found.lost) == [(0, *gone)]
    assert spans(found.ranges) == goes_on
    assert found.positions[0].end == now[1]  # the next run does not lament it again


def test_a_partition_that_came_later_begins_at_zero() -> None:
    cluster = FakeCluster({A0: (0, 20), A1: (10, 30)})
    with pytest.raises(DataLossError, match="a-1 from 0 to before 10"):
        planned(cluster, archived((0, 20)))
    # nor does it where others were incomplete; the first format did not remember partitions that were empty
    with pytest.raises(DataLossError, match="a-1 from 0 to before 10"):
        planned(cluster, archived((0, 20), incomplete=("id of b",)))
    assert spans(planned(cluster, archived((0, 20), incomplete=("id of a",))).ranges) == [(1, 10, 30)]


def test_an_open_transaction_below_what_was_archived_is_no_loss() -> None:
    """An earlier run with `read_uncommitted` went beyond the last stable offset, where this one stops."""
    cluster = FakeCluster({A0: (0, 12)})
    cluster.tops[A0] = 25
    found = planned(cluster, archived((0, 20)))
    assert (found.lost, found.ranges) == ((), ())
    assert spans(found.positions) == [(0, 20, 20)]


def test_a_topic_created_again_is_an_error_or_a_fresh_start() -> None:
    cluster = FakeCluster({A0: (0, 30)})
    cluster.ids["a"] = "another id"
    last = archived((0, 20))
    with pytest.raises(ArchiveError, match=r"created again since it was archived: a; .* --restart-recreated"):
        planned(cluster, last)
    found = planned(cluster, last, restart=True)
    assert spans(found.ranges) == [(0, 0, 30)]
    assert found.ranges[0].topic_id == "another id"


def test_offsets_of_a_namesake_are_not_taken() -> None:
    class Restless(FakeCluster):
        changes = 1

        def end_offsets(self, partitions: object) -> dict[TopicPartition, int]:
            if self.changes:
                self.changes -= 1
                self.ids["a"] = "another id"
                return {A0: 10}
            return {A0: 3}

    found = planned(Restless({A0: (0, 3)}))
    assert [(each.topic_id, each.end) for each in found.ranges] == [("another id", 3)]


def test_what_was_archived_when_it_had_another_name_for_offsets_stays_out_of_it() -> None:
    assert spans(planned(FakeCluster({A0: (0, 30)}), archived((0, 20), topic_id="id of b"), restart=True).ranges) == [
        (0, 0, 30)
    ]


def test_a_topic_that_is_not_there() -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="no such topic: b"):
        planned(FakeCluster({A0: (0, 1)}), topics="a,b")


@pytest.mark.parametrize("restart", [False, True])
def test_brokers_without_topic_ids_are_refused_before_anything_is_read(restart: bool) -> None:
    cluster = FakeCluster({A0: (0, 1000), TopicPartition("b", 0): (0, 5000)})
    cluster.ids = dict.fromkeys(("a", "b"), topic_id_text(ZERO_UUID))
    for last in (None, archived((0, 1000), topic_id=topic_id_text(ZERO_UUID))):
        with pytest.raises(ArchiveError, match=r"the brokers give no topic ids \(a, b\).*nothing was archived"):
            planned(cluster, last, topics="a,b", restart=restart)


def test_positions_of_one_topic_are_never_those_of_another() -> None:
    cluster = FakeCluster({A0: (0, 30), TopicPartition("b", 0): (0, 50)})
    cluster.ids = {"b": "id of a"}
    found = planned(cluster, archived((0, 20)), topics="a,b")
    assert [(each.topic, each.start, each.end) for each in found.ranges] == [("a", 20, 30), ("b", 0, 50)]


@pytest.mark.parametrize("topics", ["__HIVE_DEFAULT_PARTITION__", "a,__HIVE_DEFAULT_PARTITION__"])
def test_a_name_that_readers_take_for_null_is_refused(topics: str) -> None:
    cluster = FakeCluster({A0: (0, 5), TopicPartition("__HIVE_DEFAULT_PARTITION__", 0): (0, 5)})
    with pytest.raises(ArchiveError, match=r"'__HIVE_DEFAULT_PARTITION__' cannot be archived: .* leave it out"):
        planned(cluster, topics=topics)
    assert planned(cluster).ranges
