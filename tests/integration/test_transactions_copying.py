"""Members of a group that copy a topic in transactions, and come and go: each record is copied once, none is lost."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio
import pytest

import kclient
from kclient.admin import Admin, NewTopic
from kclient.errors import KafkaError
from kclient.types import TopicPartition
from tests.gateway_process import GatewayProcess
from tests.kafka_server import KafkaServer

pytestmark = pytest.mark.anyio

PARTITIONS = 4
MEMBERS = 3


class Copying:
    """Copies records while they are produced.

    Args:
        bootstrap: The brokers.
        topic: What is copied; the copy has another name.
        chance: Decides how long members live.
    """

    def __init__(self, bootstrap: str, topic: str, chance: random.Random) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._copy = f"{topic}-copy"
        self._chance = chance
        self._all_sent = False
        self._done = False
        self.sent = 0
        self.left = 0
        """Members that have left amid a transaction."""

    async def _produce(self) -> None:
        async with kclient.Producer(bootstrap_servers=self._bootstrap, delivery_timeout_ms=600_000) as producer:
            while not self._all_sent:
                for _ in range(20):
                    await producer.send(self._topic, b"%d" % self.sent, partition=self.sent % PARTITIONS)
                    self.sent += 1
                await producer.flush()

    async def _member(self, number: int) -> None:
        while not self._done:
            try:
                async with (
                    kclient.Producer(
                        bootstrap_servers=self._bootstrap, transactional_id=f"{self._topic}-{number}",
                        transaction_timeout_ms=10_000,
                    ) as producer,
                    kclient.Consumer(
                        self._topic, bootstrap_servers=self._bootstrap, group_id=self._topic, enable_auto_commit=False,
                        auto_offset_reset="earliest", isolation_level="read_committed", max_poll_records=50,
                        session_timeout_ms=6000, heartbeat_interval_ms=500,
                    ) as consumer,
                ):  # fmt: skip
                    await producer.init_transactions()
                    await self._live(producer, consumer, self._chance.randrange(5, 30))
            except KafkaError:  # the next one goes on
                await anyio.sleep(0.05)

    async def _live(self, producer: kclient.Producer, consumer: kclient.Consumer, transactions: int) -> None:
        while not self._done:
            records = await consumer.poll(timeout=0.2)
            if not records:
                continue
            await producer.begin_transaction()
            for record in records:
                await producer.send(self._copy, record.value, partition=record.partition)
            positions = {tp: await consumer.position(tp) for tp in records.partitions()}
            await producer.send_offsets_to_transaction(positions, consumer.group_metadata())
            transactions -= 1
            if not transactions:
                self.left += 1
                return
            await producer.commit_transaction()

    async def copied(self) -> list[int]:
        """What a reader of committed records sees of the copy."""
        found: list[int] = []
        partitions = [TopicPartition(self._copy, number) for number in range(PARTITIONS)]
        async with kclient.Consumer(
            bootstrap_servers=self._bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign(partitions)
            ends = await consumer.end_offsets(partitions)
            while any([await consumer.position(tp) < ends[tp] for tp in partitions]):
                found += [int(record.value) for record in await consumer.poll(timeout=0.1)]
        return found

    async def run(self, meanwhile: Callable[[], Awaitable[None]]) -> None:
        """Copy until this is over, and then what is left."""
        async with Admin(bootstrap_servers=self._bootstrap) as admin:
            await admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in (self._topic, self._copy)])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._produce)
            for number in range(MEMBERS):
                tasks.start_soon(self._member, number)
            await meanwhile()
            self._all_sent = True
            with anyio.fail_after(120):
                while len(await self.copied()) < self.sent:
                    await anyio.sleep(0.1)
            self._done = True
        found = Counter(await self.copied())
        assert {number: count for number, count in found.items() if count > 1} == {}, "copied more than once"
        assert sorted(found) == list(range(self.sent))

    async def until_left(self, members: int) -> None:
        """Wait until so many members have left."""
        with anyio.fail_after(120):
            while self.left < members:
                await anyio.sleep(0.05)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("server", [pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.slow]), "gateway"])
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_members_come_and_go(request: pytest.FixtureRequest, server: str, topic: str) -> None:
    found: KafkaServer | str = request.getfixturevalue(server)
    copying = Copying(found if isinstance(found, str) else found.bootstrap, topic, random.Random(1))
    await copying.run(partial(copying.until_left, 6))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_the_gateway_is_killed(tmp_path: Path, pytestconfig: pytest.Config, topic: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    gateway = GatewayProcess(tmp_path / "data")
    await anyio.to_thread.run_sync(gateway.start)
    copying = Copying(gateway.bootstrap, topic, chance)

    async def kill() -> None:
        for _ in range(max(1, pytestconfig.getoption("kills") // 4)):
            sent = copying.sent + chance.randrange(20, 500)
            while copying.sent < sent:
                await anyio.sleep(0.01)
            await anyio.to_thread.run_sync(partial(gateway.stop, kill=True))
            await anyio.to_thread.run_sync(gateway.start)

    try:
        await copying.run(kill)
    finally:
        await anyio.to_thread.run_sync(gateway.stop)
