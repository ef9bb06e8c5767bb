"""Instances that process a topic are killed with -9, and so are brokers: the copy is the topic, record by record."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

import kclient
from kclient.admin import Admin, NewTopic
from kclient.errors import CommitFailedError
from kclient.types import TopicPartition
from tests.gateway_process import GatewayProcess
from tests.kafka_cluster import NODES, ONE_CLUSTER, KafkaCluster
from tests.kafka_server import KafkaServer
from tests.processing_worker import Worker

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)]

PARTITIONS = 4
MEMBERS = 3  # of each kind one


class Copying:
    """A topic that grows while instances copy it.

    Args:
        bootstrap: The brokers.
        topic: What is copied.
        folder: Where instances leave what they say.
        replicas: Of each partition.
    """

    def __init__(self, bootstrap: str, topic: str, folder: Path, *, replicas: int = 1) -> None:
        self.workers = [Worker(bootstrap, topic, number, folder) for number in range(MEMBERS)]
        self.sent = 0
        self._bootstrap = bootstrap
        self._topic = topic
        self._replicas = replicas
        self._all_sent = False
        self._found: list[list[int]] = [[] for _ in range(PARTITIONS)]

    @property
    def copied(self) -> int:
        """How many records a reader of the copy has seen."""
        return sum(map(len, self._found))

    async def _produce(self) -> None:
        async with kclient.Producer(bootstrap_servers=self._bootstrap, delivery_timeout_ms=600_000) as producer:
            while not self._all_sent:
                for _ in range(20):
                    await producer.send(self._topic, b"%d" % self.sent, partition=self.sent % PARTITIONS)
                    self.sent += 1
                await producer.flush()
                while self.sent > self.copied + 2000 and not self._all_sent:
                    await anyio.sleep(0.01)

    async def _read(self) -> None:
        partitions = [TopicPartition(f"{self._topic}-copy", number) for number in range(PARTITIONS)]
        async with kclient.Consumer(
            bootstrap_servers=self._bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign(partitions)
            while not self._all_sent or self.copied < self.sent:
                for record in await consumer.poll(timeout=0.2):
                    self._found[record.partition].append(int(record.value))
            ends = await consumer.end_offsets(partitions)
            while any([await consumer.position(tp) < ends[tp] for tp in partitions]):
                for record in await consumer.poll(timeout=0.1):
                    self._found[record.partition].append(int(record.value))

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        try:
            for worker in self.workers:
                worker.start()
            yield
        finally:
            for worker in self.workers:
                if worker.running:
                    worker.kill()

    async def run(self, meanwhile: Callable[[], Awaitable[None]]) -> None:
        """Copy until this is over, and then what is left; look at the copy."""
        async with Admin(bootstrap_servers=self._bootstrap) as admin:
            names = (self._topic, f"{self._topic}-copy")
            await admin.create_topics([NewTopic(name, PARTITIONS, self._replicas) for name in names])
        with self._at_work():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._produce)
                tasks.start_soon(self._read)
                await self.until_copied(100)
                await meanwhile()
                self._all_sent = True
                with anyio.fail_after(120):
                    while self.copied < self.sent:
                        await anyio.sleep(0.05)
            codes = [await anyio.to_thread.run_sync(worker.stop) for worker in self.workers]
            assert codes == [0] * MEMBERS, "".join(worker.told for worker in self.workers)
        assert self._found == [list(range(number, self.sent, PARTITIONS)) for number in range(PARTITIONS)]

    async def until_copied(self, more: int) -> None:
        """Wait until so many more records were copied."""
        goal = self.copied + more
        with anyio.fail_after(120):
            while self.copied < goal:
                ended = [worker for worker in self.workers if not worker.running]
                assert not ended, "".join(worker.told for worker in ended)
                await anyio.sleep(0.005)

    async def kill_workers(self, times: int, chance: random.Random) -> None:
        """Kill one after the other, each after some more records, and start it again."""
        for _ in range(times):
            await self.until_copied(chance.randrange(1, 400))
            worker = chance.choice(self.workers)
            await anyio.to_thread.run_sync(worker.kill)
            worker.start()


def seeded() -> random.Random:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.mark.timeout(400)
@pytest.mark.slow
@pytest.mark.parametrize(
    "server",
    [
        pytest.param("kafka", marks=pytest.mark.kafka),
        pytest.param("kafka3", marks=[pytest.mark.kafka, pytest.mark.long]),
        "gateway",
    ],
)
async def test_instances_are_killed(request: pytest.FixtureRequest, server: str, topic: str, tmp_path: Path) -> None:
    found: KafkaServer | str = request.getfixturevalue(server)
    copying = Copying(found if isinstance(found, str) else found.bootstrap, topic, tmp_path)
    times = max(2, request.config.getoption("kills") // 3)
    await copying.run(partial(copying.kill_workers, times, seeded()))


@pytest.mark.timeout(400)
@pytest.mark.slow
async def test_the_gateway_is_killed(tmp_path: Path, pytestconfig: pytest.Config, topic: str) -> None:
    chance = seeded()
    gateway = GatewayProcess(tmp_path / "data")
    await anyio.to_thread.run_sync(gateway.start)
    copying = Copying(gateway.bootstrap, topic, tmp_path)

    async def kill() -> None:
        for number in range(max(2, pytestconfig.getoption("kills") // 4)):
            await copying.until_copied(chance.randrange(1, 400))
            await anyio.to_thread.run_sync(partial(gateway.stop, kill=True))
            if number % 2:
                await anyio.to_thread.run_sync(copying.workers[0].kill)
            await anyio.to_thread.run_sync(gateway.start)
            if number % 2:
                copying.workers[0].start()

    try:
        await copying.run(kill)
    finally:
        await anyio.to_thread.run_sync(gateway.stop)


@pytest.fixture(params=["cluster", pytest.param("cluster3", marks=pytest.mark.long)])
def brokers(request: pytest.FixtureRequest) -> KafkaCluster:
    made: KafkaCluster = request.getfixturevalue(request.param)
    return made


@ONE_CLUSTER
@pytest.mark.timeout(600)
@pytest.mark.long
@pytest.mark.kafka
async def test_brokers_of_a_cluster_are_killed(brokers: KafkaCluster, topic: str, tmp_path: Path) -> None:
    chance = seeded()
    copying = Copying(brokers.bootstrap, topic, tmp_path, replicas=3)

    async def kill() -> None:
        for node in NODES:
            await copying.until_copied(chance.randrange(1, 400))
            server = brokers.servers[node]
            await anyio.to_thread.run_sync(partial(server.stop, kill=True))
            await copying.kill_workers(1, chance)
            await copying.until_copied(100)
            await anyio.to_thread.run_sync(brokers.heal)

    try:
        await copying.run(kill)
    finally:
        await anyio.to_thread.run_sync(brokers.heal)


@pytest.mark.timeout(200)
async def test_a_member_that_was_lost_is_fenced(broker: str, topic: str) -> None:
    """It took too long and has not polled since, while another one has its partitions: its offsets are refused."""
    reading: dict[str, Any] = {
        "bootstrap_servers": broker, "group_id": topic, "auto_offset_reset": "earliest", "enable_auto_commit": False,
        "heartbeat_interval_ms": 300,
    }  # fmt: skip
    async with Admin(bootstrap_servers=broker) as admin:
        await admin.create_topics([NewTopic(topic, 1, 1)])
    async with (
        kclient.Producer(bootstrap_servers=broker, transactional_id=topic) as producer,
        kclient.Consumer(topic, max_poll_interval_ms=1000, **reading) as zombie,
        kclient.Consumer(topic, **reading) as successor,
    ):
        await producer.init_transactions()
        async with producer.transaction():
            await producer.send(topic, b"1")
        with anyio.fail_after(60):
            while not await zombie.poll(0.5):
                pass
            await producer.begin_transaction()
            while not await successor.poll(0.5):
                pass
        with pytest.raises(CommitFailedError):
            await producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, zombie.group_metadata())
        await producer.abort_transaction()
        assert await successor.committed([(topic, 0)]) == {TopicPartition(topic, 0): None}
