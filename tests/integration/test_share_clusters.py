"""Share consumers (KIP-932) on three real brokers, of which some hang, die, come back, and lose what they lead."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import anyio
import anyio.to_thread
import pytest

import kclient
from kclient import ShareConsumer
from kclient.admin import Admin, ConfigResource, ConfigResourceType
from kclient.errors import KafkaError, KafkaTimeoutError
from kclient.protocol.messages import FindCoordinatorRequest
from kclient.types import TopicPartition
from tests.kafka_cluster import ONE_CLUSTER, KafkaCluster

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.kafka,
    pytest.mark.timeout(240),
    pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True),
    ONE_CLUSTER,
]

PARTITIONS = 6
GROUP_SETTINGS = {"share.auto.offset.reset": "earliest", "share.record.lock.duration.ms": "15000"}


@pytest.fixture
async def group(cluster: KafkaCluster, topic: str) -> AsyncIterator[str]:
    """A share group that begins with the oldest record; there is a topic for it."""
    name = f"share-{uuid.uuid4().hex[:8]}"
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        await admin.create_topic(topic, PARTITIONS)
        await admin.alter_configs({ConfigResource(ConfigResourceType.GROUP, name): GROUP_SETTINGS})
    await anyio.to_thread.run_sync(cluster.wait_for_leaders, topic, PARTITIONS)
    yield name
    await anyio.to_thread.run_sync(cluster.heal)


class Sharers:
    """Several consumers of one group, and what each of them got, and was told of its acknowledgements."""

    def __init__(self, cluster: KafkaCluster, topic: str, group: str) -> None:
        self.cluster = cluster
        self.topic = topic
        self.group = group
        self.received: dict[tuple[int, int], set[str]] = defaultdict(set)
        self.accepted: dict[tuple[int, int], list[str]] = defaultdict(list)
        self.refused: set[tuple[int, int]] = set()
        """Of which an acknowledgement failed: where the broker did not answer, it may have taken it all the same."""
        self.sent = 0
        self.done = anyio.Event()

    async def feed(self) -> None:
        async with kclient.Producer(bootstrap_servers=self.cluster.bootstrap) as producer:
            while not self.done.is_set() and self.sent < 600:
                await producer.send(self.topic, value=b"%d" % self.sent, partition=self.sent % PARTITIONS)
                self.sent += 1
                await anyio.sleep(0.02)  # so that there is something to read whatever happens to the brokers
            await producer.flush()

    async def work(self, name: str, mode: str, **settings: Any) -> None:
        def told(offsets: dict[TopicPartition, set[int]], error: KafkaError | None) -> None:
            for tp, found in offsets.items():
                for offset in found:
                    if error is None:
                        self.accepted[tp.partition, offset].append(name)
                    else:
                        self.refused.add((tp.partition, offset))

        async with ShareConsumer(
            self.topic,
            bootstrap_servers=self.cluster.bootstrap,
            group_id=self.group,
            share_acknowledgement_mode=mode,
            max_poll_records=7,
            **settings,
        ) as consumer:
            consumer.set_acknowledgement_commit_callback(told)
            while not self.done.is_set():
                with anyio.fail_after(2.5):  # whatever becomes of brokers
                    records = await consumer.poll(1.0)
                for record in records:
                    self.received[record.partition, record.offset].add(name)
                    if mode == "explicit":
                        consumer.acknowledge(record)
                if len(records) == 7:
                    continue
                with anyio.fail_after(3.5):
                    with suppress(KafkaTimeoutError):
                        await consumer.commit(2.0)

    async def hurt(self) -> None:
        await self._have(60)
        third, first = self.cluster.servers[3], self.cluster.servers[1]
        third.pause()
        await self._have(120)
        await anyio.to_thread.run_sync(third.resume)
        placement = {
            TopicPartition(self.topic, number): [(number + turn) % 3 + 1 for turn in range(3)]
            for number in range(PARTITIONS)
        }
        await anyio.to_thread.run_sync(self.cluster.reassign, placement)
        await self._have(240)
        await anyio.to_thread.run_sync(lambda: first.stop(kill=True))
        await self._have(360)
        await anyio.to_thread.run_sync(self.cluster.heal)
        await anyio.to_thread.run_sync(self.cluster.elect)
        await self._have(600)
        self.done.set()

    async def _have(self, count: int) -> None:
        with anyio.fail_after(60):
            while len(self.accepted.keys() | self.refused) < count:
                await anyio.sleep(0.05)


async def test_brokers_that_hang_die_and_move_amid_the_work(cluster: KafkaCluster, topic: str, group: str) -> None:
    sharers = Sharers(cluster, topic, group)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sharers.feed)
        tasks.start_soon(sharers.work, "one", "explicit")
        tasks.start_soon(sharers.work, "two", "implicit")
        tasks.start_soon(sharers.work, "three", "explicit")
        tasks.start_soon(sharers.hurt)
    assert len(sharers.accepted.keys() | sharers.refused) == 600
    assert {place: names for place, names in sharers.accepted.items() if len(names) > 1} == {}
    for place, [name] in sharers.accepted.items():
        assert name in sharers.received[place]


async def test_a_broker_that_hangs_does_not_take_the_turns_of_others(
    cluster: KafkaCluster, topic: str, group: str
) -> None:
    """With record_limit, one broker is asked at a time."""
    async with ShareConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap,
        group_id=group,
        share_acknowledgement_mode="explicit",
        share_acquire_mode="record_limit",
        max_poll_records=1,
    ) as consumer:
        while consumer.metrics().value("fetch-total") < 4:
            assert not await consumer.poll(0.1)
        leaders = await anyio.to_thread.run_sync(cluster.leaders, topic)
        key = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
        [coordinator] = (await anyio.to_thread.run_sync(cluster.ask, key)).coordinators
        hung = next(node for node in cluster.servers if node != coordinator.node_id)
        spared = next(number for number, leader in leaders.items() if leader != hung)
        cluster.servers[hung].pause()
        async with kclient.Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for number in range(5):
                await (await producer.send(topic, value=b"%d" % number, partition=spared))
        found: list[int] = []
        with anyio.fail_after(20):
            while len(found) < 5:
                for record in await consumer.poll(1.0):
                    consumer.acknowledge(record)
                    found.append(record.offset)
        assert found == [0, 1, 2, 3, 4]
        cluster.servers[hung].resume()
