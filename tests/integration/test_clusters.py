"""Three real brokers in trouble, under all our clients.

Nothing acknowledged is lost, doubled or reordered, no client dies, and no partition whose leader is well waits longer
than one request timeout and two seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kclient import ConsumerRecord
from kclient.sync import Admin, Consumer
from kclient.types import TopicPartition
from tests.cluster_clients import Clients
from tests.cluster_trouble import Trouble
from tests.kafka_cluster import ONE_CLUSTER, KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(1200), ONE_CLUSTER]

PARTITIONS = 100
REPLICATION = 3


@contextmanager
def at_work(
    cluster: KafkaCluster,
    topic: str,
    backend: str,
    assignor: str = "range",
    seed: int = 0,
    request_timeout: float = 10,
) -> Iterator[Trouble]:
    """All clients at work on a new topic; afterwards everything is compared."""
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic(topic, PARTITIONS, REPLICATION)
    cluster.wait_for_leaders(topic, PARTITIONS)
    with Clients(cluster.bootstrap, topic, PARTITIONS, backend, assignor, request_timeout) as clients:
        clients.wait_until_started()
        with Trouble(cluster, topic, PARTITIONS, clients.waits, seed) as trouble:
            try:
                yield trouble
                clients.wait_until_read()
            finally:
                print(trouble.told(), clients.told(), sep="\n")  # shown where something is wrong
    clients.raise_deaths()
    everything = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    with Consumer(bootstrap_servers=cluster.bootstrap) as consumer:
        consumer.assign(everything)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(everything)
        stored: dict[TopicPartition, list[ConsumerRecord]] = {tp: [] for tp in everything}
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            for record in consumer.poll(10):
                stored[TopicPartition(record.topic, record.partition)].append(record)
    for tp, records in stored.items():
        clients.check(tp.partition, records)
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        committed = admin.list_group_offsets(clients.group_id)
        assert {tp: found.offset for tp, found in committed.items()} == ends, "the group's positions moved to the end"
        admin.delete_topics([topic])
    for client, (longest, partition, _) in clients.waits.longest.items():
        assert longest <= request_timeout + 2, f"{client}: partition {partition} waited {longest:.1f} s"


def test_everything_that_happens_to_brokers(cluster: KafkaCluster, topic: str) -> None:
    with at_work(cluster, topic, "asyncio") as trouble:
        trouble.pause(1, seconds=15)
        trouble.recovered()
        trouble.kill(2, seconds=5)
        trouble.recovered()
        trouble.move()
        trouble.restart(3)
        trouble.recovered()
        trouble.swallow(1, seconds=15)
        trouble.recovered()
        trouble.move()


@pytest.mark.long
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("version", ["cluster", "cluster3"])
def test_a_leader_that_hangs_at_the_default_timeout(
    request: pytest.FixtureRequest, version: str, backend: str, topic: str
) -> None:
    cluster: KafkaCluster = request.getfixturevalue(version)
    with at_work(cluster, topic, backend, request_timeout=30) as trouble:
        trouble.pause(2, seconds=45)
        trouble.recovered()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("version", ["cluster", "cluster3"])
def test_much_that_happens_to_brokers(request: pytest.FixtureRequest, version: str, seed: int, topic: str) -> None:
    cluster: KafkaCluster = request.getfixturevalue(version)
    backend = ("asyncio", "trio")[seed % 2]
    assignor = ("range", "cooperative-sticky")[seed // 2 % 2]
    with at_work(cluster, topic, backend, assignor, seed) as trouble:
        for _ in range(12):
            trouble.anything()
            if trouble.random.random() < 0.7:
                trouble.recovered()
        trouble.recovered()
