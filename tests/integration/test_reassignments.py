"""Moving partitions by hand and electing leaders, at three real brokers; `kclient cluster` there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from kclient.admin import ElectionType, NewTopic
from kclient.cli.app import run
from kclient.errors import (
    ElectionNotNeededError,
    InvalidReplicaAssignmentError,
    NoReassignmentInProgressError,
    UnknownTopicOrPartitionError,
)
from kclient.sync import Admin, Producer
from kclient.types import TopicPartition
from tests.kafka_cluster import ONE_CLUSTER, KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300), ONE_CLUSTER]


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("version", ["cluster", "cluster3"])
def test_partitions_are_moved(
    request: pytest.FixtureRequest, version: str, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster: KafkaCluster = request.getfixturevalue(version)
    place = TopicPartition(topic, 0)
    with Admin(bootstrap_servers=cluster.bootstrap) as admin, Producer(bootstrap_servers=cluster.bootstrap) as producer:
        admin.create_topics([NewTopic(topic, assignments={0: [1, 2]})])
        producer.send(topic, b"a").result(30)
        admin.alter_partition_reassignments({place: [3, 1]})

        def replicas() -> list[int]:
            (info,) = admin.describe_topics([topic])[topic].partitions
            return [node.id for node in info.replicas]

        until(lambda: place not in admin.list_partition_reassignments([place]) and replicas() == [3, 1])
        for reassignment, error in (
            ({place: None}, NoReassignmentInProgressError),
            ({place: [7]}, InvalidReplicaAssignmentError),
            ({place: [1, 1]}, InvalidReplicaAssignmentError),
            ({place: []}, InvalidReplicaAssignmentError),
            ({(topic, 9): [1]}, UnknownTopicOrPartitionError),
        ):
            with pytest.raises(error):
                admin.alter_partition_reassignments(reassignment)
        assert admin.elect_leaders(ElectionType.PREFERRED, [place])[place] is None or cluster.leaders(topic)[0] == 3
        until(lambda: cluster.leaders(topic)[0] == 3)
        elected = admin.elect_leaders(ElectionType.PREFERRED, [place, (topic, 9)])
        assert isinstance(elected[place], ElectionNotNeededError)
        assert isinstance(elected[TopicPartition(topic, 9)], UnknownTopicOrPartitionError)
        assert isinstance(admin.elect_leaders(ElectionType.UNCLEAN, [place])[place], ElectionNotNeededError)
        assert place not in admin.elect_leaders(ElectionType.PREFERRED)

        def shown() -> tuple[int, list[int]]:
            capsys.readouterr()
            assert run(["cluster", "describe", topic, "--output", "json", "--bootstrap", cluster.bootstrap]) == 0
            (row,) = json.loads(capsys.readouterr().out)["partitions"]
            return row["leader"], row["replicas"]

        until(lambda: shown() == (3, [3, 1]))  # each broker hears of it later
        capsys.readouterr()
        assert run(["cluster", "status", "--bootstrap", cluster.bootstrap]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 4
        assert run(["cluster", "move", f"{topic}:0", "--to", "2,3", "--bootstrap", cluster.bootstrap]) == 0
        until(lambda: place not in admin.list_partition_reassignments([place]) and replicas() == [2, 3])
        fewer = ["cluster", "move", topic, "--to", "1", "--bootstrap", cluster.bootstrap]
        until(lambda: run(fewer) == 2 and "has 2 replicas" in capsys.readouterr().err)
        assert run([*fewer, "--allow-replication-factor-change"]) == 0
        until(lambda: replicas() == [1])
        admin.delete_topics([topic])
