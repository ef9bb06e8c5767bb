"""Members of a group read what is near to them (KIP-881): three brokers of Kafka 4.3.1, each in a rack of its own."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import pytest

from kclient import Consumer
from kclient.admin import Admin, NewTopic
from kclient.types import TopicPartition
from tests.conftest import KAFKA_4, require_java
from tests.kafka_cluster import NODES, ONE_CLUSTER, KafkaCluster

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.kafka,
    pytest.mark.timeout(200),
    ONE_CLUSTER,
    pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True),
]

PLACES = (3, 1, 2, 2, 3, 1)
"""The only replica of each partition."""


@pytest.fixture(scope="module")
def racks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    require_java()
    cluster = KafkaCluster(KAFKA_4, tmp_path_factory.mktemp("racks"), racks=True)
    try:
        cluster.start()
        yield cluster.bootstrap
    finally:
        cluster.stop()


async def test_members_read_what_is_in_their_racks(racks: str, topic: str) -> None:
    async with Admin(bootstrap_servers=racks) as admin:
        await admin.create_topics([NewTopic(topic, assignments={number: [node] for number, node in enumerate(PLACES)})])
    found: dict[int, set[TopicPartition]] = {}
    wanted = {
        node: {TopicPartition(topic, number) for number, place in enumerate(PLACES) if place == node} for node in NODES
    }

    async def member(node: int) -> None:
        async with Consumer(
            topic,
            bootstrap_servers=racks,
            group_id=topic,
            client_rack=f"rack{node}",
            partition_assignment_strategy="range",
        ) as consumer:
            while found != wanted:
                await consumer.poll(0.2)
                found[node] = consumer.assignment()

    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            for node in NODES:
                tasks.start_soon(member, node)
    assert found == wanted


async def test_a_group_follows_replicas_to_another_rack(racks: str, topic: str) -> None:
    async with Admin(bootstrap_servers=racks) as admin:
        await admin.create_topics([NewTopic(topic, assignments={0: [1], 1: [2]})])
        settings = {"bootstrap_servers": racks, "group_id": topic, "partition_assignment_strategy": "range"}
        async with (
            Consumer(topic, client_rack="rack1", metadata_max_age_ms=1000, **settings) as one,
            Consumer(topic, client_rack="rack2", metadata_max_age_ms=1000, **settings) as two,
        ):

            async def until(first: int, second: int) -> None:
                with anyio.fail_after(90):
                    while (one.assignment(), two.assignment()) != ({(topic, first)}, {(topic, second)}):
                        await one.poll(0.1)
                        await two.poll(0.1)

            await until(0, 1)
            await admin.alter_partition_reassignments({(topic, 0): [2], (topic, 1): [1]})
            await until(1, 0)
