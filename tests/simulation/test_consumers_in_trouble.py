"""Groups of real consumers on connections that are cut all the time: nothing is passed over, and the group settles."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import anyio
import pytest

import kclient
from kclient.errors import CommitFailedError, RebalanceInProgressError
from kclient.gateway import Gateway
from kclient.net import connectors
from kclient.net.address import Address
from kclient.net.settings import ConnectionConfig
from kclient.net.streams import ByteStream
from kclient.records import ConsumerRecord
from kclient.testing.faults import FaultyStream

pytestmark = pytest.mark.anyio

PARTITIONS = 3
RECORDS = 300
CUTS = 60
SOON = {
    "retry_backoff_ms": 1,
    "retry_backoff_max_ms": 5,
    "reconnect_backoff_ms": 1,
    "reconnect_backoff_max_ms": 5,
}
STRATEGIES = ("range", "roundrobin", "sticky", "cooperative-sticky")


class Trouble:
    """Cuts connections after a few bytes, in one direction or the other, until enough have been cut."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.cuts = 0

    @property
    def over(self) -> bool:
        return self.cuts >= CUTS

    async def connect(self, address: Address, config: ConnectionConfig) -> ByteStream:
        stream = await connectors.connect_tcp(address, config)
        if self.over:
            return stream
        self.cuts += 1
        after = self.random.randrange(self.random.choice([50, 300, 1000, 5000, 20_000]))
        way = self.random.choice(["cut_received", "cut_sent"])
        split = self.random.choice([None, 50, 1000])
        return FaultyStream(stream, split=split, delay=3, seed=self.random.getrandbits(30), **{way: after})  # type: ignore[arg-type]


class Group:
    """What the members of a group have read, and what they make of it."""

    def __init__(self, address: str, random: Random) -> None:
        self.address = address
        self.random = random
        self.strategy = random.choice(STRATEGIES)
        self.seen: list[set[int]] = [set() for _ in range(PARTITIONS)]

    @property
    def complete(self) -> bool:
        return sum(map(len, self.seen)) == RECORDS

    async def member(self, polls: int | None = None) -> None:
        """Reads until all is read, or for some polls; commits in one of the ways there are."""
        manner = self.random.choice(["commit", "commit_async", "auto"])
        settings: dict[str, Any] = {
            "enable_auto_commit": manner == "auto",
            "auto_commit_interval_ms": 10,
            "auto_offset_reset": "earliest",
            "session_timeout_ms": 500,
            "heartbeat_interval_ms": 50,
            "fetch_max_wait_ms": 20,
            "max_poll_records": self.random.choice([5, 50, 500]),
            "partition_assignment_strategy": self.strategy,
        }
        async with kclient.Consumer("t", bootstrap_servers=self.address, group_id="g", **settings, **SOON) as consumer:
            while not self.complete and polls != 0:
                polls = None if polls is None else polls - 1
                self.take(await consumer.poll(0.05))
                if self.random.random() < 0.5:
                    continue
                if manner == "commit_async":
                    consumer.commit_async()
                elif manner == "commit":
                    # where the group has moved on, who has the partitions now reads these records again
                    with contextlib.suppress(CommitFailedError, RebalanceInProgressError):
                        await consumer.commit(timeout=10)

    def take(self, records: list[ConsumerRecord]) -> None:
        for record in records:
            assert int(record.value) == record.offset
            seen = self.seen[record.partition]
            # whoever had the partition before went on from what was read and committed
            assert record.offset in seen or record.offset == len(seen), f"{len(seen)} was passed over by {record}"
            seen.add(record.offset)


async def produce(address: str, random: Random) -> None:
    async with kclient.Producer(bootstrap_servers=address, linger_ms=0, **SOON) as producer:  # type: ignore[arg-type]
        for number in range(RECORDS):
            offset, partition = divmod(number, PARTITIONS)
            await producer.send("t", b"%d" % offset, partition=partition)
            if random.random() < 0.5:
                await anyio.sleep(0.005)
        await producer.flush(timeout=60)


@pytest.fixture
async def address() -> AsyncIterator[str]:
    config = {"num.partitions": PARTITIONS, "group.min.session.timeout.ms": 100, "group.initial.rebalance.delay.ms": 0}
    async with Gateway(f"memory:{uuid.uuid4().hex}", "127.0.0.1:0", config=config) as gateway:
        yield gateway.bootstrap


@pytest.mark.parametrize("seed", range(6))
async def test_nothing_is_passed_over(seed: int, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    trouble, group = Trouble(random), Group(address, random)
    monkeypatch.setattr(connectors, "_connectors", dict(connectors._connectors))
    connectors.register("tcp", trouble.connect)

    async def come_and_go() -> None:
        while not trouble.over and not group.complete:
            await group.member(random.randrange(1, 30))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(produce, address, random)
            tasks.start_soon(group.member)
            for _ in range(seed % 3):
                tasks.start_soon(come_and_go)
    assert trouble.cuts
    assert group.seen == [set(range(RECORDS // PARTITIONS))] * PARTITIONS
