"""Consumers through the trouble that clusters make, in virtual time.

What is said of producers in `test_clusters_in_trouble` holds for who reads: no client dies, nothing is lost, doubled or
reordered, every position moves and is found, and no call outlasts its timeout.
"""

from __future__ import annotations

import random
from typing import Any

import anyio
import pytest

from kclient.errors import CommitFailedError, KafkaTimeoutError, RebalanceInProgressError
from kclient.types import TopicPartition
from tests.simulation.seeds import blocks
from tests.simulation.trouble import (
    BROKERS,
    PARTITIONS,
    REQUEST_TIMEOUT,
    SEEDS,
    SESSION,
    Scenario,
    TimedConsumer,
    Trouble,
    Watch,
    sweep,
)
from tests.simulation.troubled_kafka import TroubledKafka
from tests.simulation.virtual_time import BACKENDS, run_virtually

TPS = [TopicPartition("t", number) for number in range(PARTITIONS)]
LATE = 0.5
"""Seconds by which a call may outlast its timeout."""
SOON = 5.0
"""Seconds within which a record is read where nothing is wrong; a few times `fetch.max.wait.ms`."""
STRATEGIES = ("range", "roundrobin", "sticky", "cooperative-sticky")


def settings_of(kafka: TroubledKafka, dice: random.Random) -> dict[str, Any]:
    return {
        "bootstrap_servers": kafka.bootstrap,
        "auto_offset_reset": "earliest",
        "request_timeout_ms": int(REQUEST_TIMEOUT * 1000),
        "fetch_max_bytes": dice.choice([1, 1000, 1_048_576, 52_428_800]),
        "max_partition_fetch_bytes": dice.choice([1, 300, 1_048_576]),
        "max_poll_records": dice.choice([3, 500]),
    }


async def feed(trouble: Trouble) -> None:
    """Records come as long as the trouble lasts; some partitions get many, some few."""
    dice = trouble.random
    shares = [dice.choice([0.02, 0.3, 1.0]) for _ in TPS]
    while not trouble.over:
        for tp, share in zip(TPS, shares, strict=True):
            if dice.random() < share:
                trouble.kafka.feed(tp, dice.randint(1, 5))
        await anyio.sleep(dice.random())


class Reader:
    """Assigned to all partitions; knows which record is to come next in each.

    Args:
        consumer: Reads.
        most: Records that a poll gives at most.
        trouble: What goes on meanwhile.
    """

    def __init__(self, consumer: TimedConsumer, most: int, trouble: Trouble) -> None:
        self.consumer = consumer
        self.most = most
        self.trouble = trouble
        self.kafka = trouble.kafka
        self.dice = trouble.random
        self.next = dict.fromkeys(TPS, 0)
        self.away = False
        """Whether the user waits for a position of one partition, and so reads none."""
        self.watch = Watch(trouble, self.waits)

    def waits(self, number: int) -> bool:
        tp = TPS[number]
        return not self.away and self.next[tp] < self.kafka.partitions[tp].end and tp not in self.consumer.paused()

    async def read(self) -> None:
        while not self.trouble.over:
            count = await self.poll(self.dice.choice([0.0, 0.1, 2.0, 100.0]) * self.dice.random())
            # who is not through with what has come takes no breaks: else partitions wait for the reader
            behind = count == self.most
            if not behind:
                await anyio.sleep(self.dice.choice([0.0, 0.0, 0.5]) * self.dice.random())
            if self.dice.random() < (0.01 if behind else 0.1):
                await self.meddle()
        self.consumer.resume(TPS)

    async def poll(self, timeout: float) -> int:
        begun = anyio.current_time()
        records = await self.consumer.poll(timeout)
        assert anyio.current_time() - begun <= timeout + LATE
        for record in records:
            tp = TopicPartition(record.topic, record.partition)
            assert record.offset == int(record.value) == self.next[tp], f"{tp}: {record.offset}, not {self.next[tp]}"
            self.next[tp] += 1
            self.watch.moved(record.partition)
        return len(records)

    async def meddle(self) -> None:
        some = self.dice.sample(TPS, self.dice.randint(1, PARTITIONS))
        tp = some[0]
        match self.dice.choice(["pause", "resume", "resume", "seek", "seek to the beginning", "position", "assign"]):
            case "pause":
                self.consumer.pause(some)
            case "resume":
                self.consumer.resume(TPS)
            case "seek":
                self.next[tp] = self.dice.randint(0, self.next[tp])
                self.consumer.seek(tp, self.next[tp])
            case "seek to the beginning":
                self.consumer.seek_to_beginning([tp])
                self.next[tp] = 0
            case "position":
                timeout = self.dice.choice([0.1, 5.0, 100.0])
                begun = anyio.current_time()
                self.away = True
                try:
                    assert await self.consumer.position(tp, timeout) == self.next[tp]
                except KafkaTimeoutError:
                    assert anyio.current_time() - begun >= timeout - 0.001
                finally:
                    self.away = False
                assert anyio.current_time() - begun <= timeout + LATE
            case "assign":
                # what is given up and taken again begins anew
                self.consumer.assign(some)
                self.consumer.assign(TPS)
                for other in set(TPS) - set(some):
                    self.next[other] = 0

    async def ask(self) -> None:
        """Looks for offsets, beside the polls."""
        while not self.trouble.over:
            some = self.dice.sample(TPS, self.dice.randint(1, PARTITIONS))
            timeout = self.dice.choice([0.1, 5.0, 100.0])
            begun = anyio.current_time()
            before = {tp: self.kafka.partitions[tp].end for tp in some}
            try:
                ends = await self.consumer.end_offsets(some, timeout)
                assert all(before[tp] <= ends[tp] <= self.kafka.partitions[tp].end for tp in some)
                assert await self.consumer.beginning_offsets(some, timeout) == dict.fromkeys(some, 0)
                assert len(await self.consumer.partitions_for("t", timeout)) == PARTITIONS
            except KafkaTimeoutError:
                assert anyio.current_time() - begun >= timeout - 0.001
            assert anyio.current_time() - begun <= 3 * timeout + LATE
            await anyio.sleep(3 * self.dice.random())

    async def finish(self) -> None:
        """The trouble is over: everything is read to its end within one request's time, and what comes then soon."""
        with anyio.fail_after(REQUEST_TIMEOUT + 2):
            await self.catch_up()
        for tp in (TPS[-1], TPS[0]):  # the others are quiet
            self.kafka.feed(tp, 1)
            with anyio.fail_after(SOON):
                await self.catch_up()

    async def catch_up(self) -> None:
        while any(self.next[tp] < self.kafka.partitions[tp].end for tp in TPS):
            await self.poll(1.0)


async def read(seed: int) -> None:
    """A consumer of assigned partitions over several brokers."""
    random.seed(seed)
    async with TroubledKafka({"t": PARTITIONS}, brokers=BROKERS) as kafka:
        trouble = Trouble(kafka, seed)
        settings = settings_of(kafka, trouble.random)
        async with TimedConsumer(**settings) as consumer:
            consumer.assign(TPS)
            reader = Reader(consumer, settings["max_poll_records"], trouble)
            async with anyio.create_task_group() as group:
                for task in (trouble.run, reader.watch.run, reader.read, reader.ask):
                    group.start_soon(task)
                group.start_soon(feed, trouble)
            await reader.finish()


class Readers:
    """A group: what its members have read, and what they make of it."""

    def __init__(self, trouble: Trouble) -> None:
        self.trouble = trouble
        self.kafka = trouble.kafka
        self.dice = trouble.random
        self.settings = {
            **settings_of(self.kafka, self.dice),
            "group_id": "g",
            "partition_assignment_strategy": self.dice.choice(STRATEGIES),
            "session_timeout_ms": 10_000,
            "auto_commit_interval_ms": 1000,
        }
        self.next = dict.fromkeys(TPS, 0)

    @property
    def complete(self) -> bool:
        return all(self.next[tp] == self.kafka.partitions[tp].end for tp in TPS)

    async def member(self, seconds: float = 1e6) -> None:
        """Reads until all is read, or for a time; commits in one of the ways there are."""
        manner = self.dice.choice(["commit", "commit_async", "auto"])
        end = anyio.current_time() + seconds
        async with TimedConsumer("t", **self.settings, enable_auto_commit=manner == "auto") as consumer:
            while anyio.current_time() < end and not (self.trouble.over and self.complete):
                timeout = self.dice.choice([0.0, 0.1, 2.0])
                begun = anyio.current_time()
                records = await consumer.poll(timeout)
                assert anyio.current_time() - begun <= timeout + LATE
                for record in records:
                    self.take(record)
                if not self.trouble.over:
                    await anyio.sleep(0.2 * self.dice.random())
                if manner == "commit_async":
                    consumer.commit_async()
                elif manner == "commit" and self.dice.random() < 0.5:
                    await self.commit(consumer)

    def take(self, record: Any) -> None:
        tp = TopicPartition(record.topic, record.partition)
        assert record.offset == int(record.value)
        # whoever had the partition before went on from what was read and committed
        assert record.offset <= self.next[tp], f"{self.next[tp]} was passed over by {record}"
        self.next[tp] = max(self.next[tp], record.offset + 1)

    async def commit(self, consumer: TimedConsumer) -> None:
        timeout = self.dice.choice([1.0, 10.0, 100.0])
        begun = anyio.current_time()
        try:
            await consumer.commit(timeout=timeout)
        except (CommitFailedError, RebalanceInProgressError):
            pass  # the group has moved on: who has the partitions now reads these records again
        except KafkaTimeoutError:
            assert anyio.current_time() - begun >= timeout - 1.0
        assert anyio.current_time() - begun <= timeout + LATE

    async def come_and_go(self) -> None:
        while not self.trouble.over:
            await self.member(self.dice.choice([5.0, 60.0]) * self.dice.random())
            await anyio.sleep(10.0 * self.dice.random())

    async def finish(self) -> None:
        """The trouble is over: a member that is gone is noticed, and everything is read."""
        while not self.trouble.over:
            await anyio.sleep(1.0)
        with anyio.fail_after(REQUEST_TIMEOUT + SESSION + 2 + 30):
            while not self.complete:
                await anyio.sleep(0.5)


async def share(seed: int) -> None:
    """A group whose coordinator moves, hangs and dies."""
    random.seed(seed)
    async with TroubledKafka({"t": PARTITIONS}, brokers=BROKERS) as kafka:
        trouble = Trouble(kafka, seed)
        readers = Readers(trouble)
        async with anyio.create_task_group() as group:
            group.start_soon(trouble.run)
            group.start_soon(feed, trouble)
            group.start_soon(readers.member)
            for _ in range(trouble.random.randint(0, 2)):
                group.start_soon(readers.come_and_go)
            group.start_soon(readers.finish)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scenario", [read, share])
@pytest.mark.parametrize("seed", SEEDS)
def test_trouble(seed: int, scenario: Scenario, backend: str) -> None:
    run_virtually(backend, scenario, seed)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scenario", [read, share])
@pytest.mark.parametrize("seeds", blocks(4), ids=str)
def test_much_trouble(seeds: range, scenario: Scenario, backend: str) -> None:
    sweep(backend, scenario, seeds)
