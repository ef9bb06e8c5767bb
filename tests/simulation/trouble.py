"""The trouble that clusters make, and clients that go by the loop's clock so that they live through it in no time."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest

from kclient.admin import Admin
from kclient.cluster import Cluster
from kclient.concurrency import loop_clock
from kclient.config import ProducerConfig
from kclient.consumer import Consumer
from kclient.errors import KafkaError
from kclient.producer import Producer
from kclient.producer.lifecycle import ProducerLifecycle
from kclient.types import TopicPartition
from tests.simulation.troubled_kafka import TroubledKafka
from tests.simulation.virtual_time import run_virtually

PARTITIONS = 6
BROKERS = 3
SECONDS = 150.0
"""How long the trouble lasts."""
REQUEST_TIMEOUT = 30.0
SESSION = 9.0
"""How long a broker may be silent before the cluster takes its leaderships away."""
SEEDS = [
    0,
    *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 12)),
    *(pytest.param(seed, marks=pytest.mark.long) for seed in range(12, 27)),
]
"""With two loops and two scenarios, about fifty runs in `make test`."""

Scenario = Callable[[int], Awaitable[None]]


def sweep(backend: str, scenario: Scenario, seeds: range) -> None:
    """Run one seed after the other; a failure names its own."""
    for seed in seeds:
        try:
            run_virtually(backend, scenario, seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


class Trouble:
    """Does things to a cluster, and knows what a real one would make of them."""

    def __init__(self, kafka: TroubledKafka, seed: int) -> None:
        self.kafka = kafka
        self.random = random.Random(seed)
        self.over = False
        self.slow = self.random.choice([0.0, 0.01, 1.0, 12.0])
        """How long connecting takes at most."""
        kafka.lag = self.random.choice([0.0, 0.0, 0.5]) * self.random.random()
        kafka.has_sessions = self.random.random() < 0.7
        kafka.announce_leaders = self.random.random() < 0.5
        for broker in kafka.brokers.values():
            broker.connect_seconds = lambda: 0.0 if self.over else self.random.random() * self.slow

    async def run(self) -> None:
        """Trouble, until its time is over; then all is well again."""
        end = anyio.current_time() + SECONDS
        async with anyio.create_task_group() as group:
            while anyio.current_time() < end:
                group.start_soon(self._one, self.random.choice(list(self.kafka.brokers)))
                await anyio.sleep(self.random.choice([0.01, 1.0, 5.0, 20.0]) * self.random.random())
        self.over = True

    async def _one(self, node: int) -> None:
        broker = self.kafka.brokers[node]
        kind = self.random.choice(["move", "move", "hang up", "pause", "kill", "black hole", "unlist"])
        if kind == "move":
            self._give_away(node, self.random.choice([self.random.random(), 1.0]))
            return
        if kind == "hang up":
            broker.hang_up()
            return
        if broker.paused or broker.down or broker.black_hole or not broker.listed or self._healthy() <= 1:
            return
        length = self.random.choice([0.5, 3.0, 12.0, 45.0]) * self.random.random()
        if kind == "pause":
            broker.pause()
        elif kind == "kill":
            self.kafka.die(node)
        elif kind == "black hole":  # only for those who connect anew; who is connected gets no more answers
            broker.black_hole = True
            broker.pause()
        else:  # the controller takes it for dead though it answers
            length = min(length, 3.0)
            broker.listed = False
            self._give_away(node, 1.0)
        fenced = kind in {"pause", "kill"} and length > SESSION
        await anyio.sleep(SESSION if fenced else length)
        if fenced:
            broker.listed = False
            self._give_away(node, 1.0)
            await anyio.sleep(length - SESSION)
        broker.listed, broker.down, broker.black_hole = True, False, False
        broker.resume()

    def healthy(self, node: int) -> bool:
        """Whether a broker works, and the metadata say so."""
        broker = self.kafka.brokers[node]
        return broker.listed and not (broker.paused or broker.down or broker.black_hole)

    def _healthy(self) -> int:
        return sum(map(self.healthy, self.kafka.brokers))

    def _give_away(self, node: int, share: float) -> None:
        """Others lead what a broker leads."""
        others = [n for n, broker in self.kafka.brokers.items() if n != node and broker.listed and not broker.down]
        if others and share == 1.0:
            if self.kafka.coordinator == node:
                self.kafka.coordinate(self.random.choice(others))
            if self.kafka.controller == node:
                self.kafka.controller = self.random.choice(others)
        for tp, partition in self.kafka.partitions.items():
            if others and partition.leader == node and self.random.random() < share:
                self.kafka.move(tp.topic, tp.partition, self.random.choice(others))


class Watch:
    """Looks that no partition is starved: things go on while its leader is well, and stays the leader.

    Args:
        trouble: The trouble.
        waiting: Whether a partition has something that waits; else it is not looked at.
    """

    def __init__(self, trouble: Trouble, waiting: Callable[[int], bool] = lambda number: True) -> None:
        self.trouble = trouble
        self.longest = 0.0
        """Seconds that a partition waited."""
        self._waiting = waiting
        self._moved = [anyio.current_time()] * PARTITIONS

    def moved(self, number: int) -> None:
        """A partition went on."""
        self._moved[number] = anyio.current_time()

    async def run(self) -> None:
        """Look, until the trouble is over."""
        kafka = self.trouble.kafka
        since: dict[int, tuple[int, float]] = {}
        while not self.trouble.over:
            now = anyio.current_time()
            for number in range(PARTITIONS):
                leader = kafka.partitions[TopicPartition("t", number)].leader
                if not self._waiting(number):
                    self.moved(number)
                if not self.trouble.healthy(leader):
                    since.pop(number, None)
                    continue
                if since.get(number, (-1, 0.0))[0] != leader:
                    since[number] = leader, now
                self.longest = max(self.longest, now - max(since[number][1], self._moved[number]))
            assert self.longest <= REQUEST_TIMEOUT + 2 + self.trouble.slow, f"partition starved for {self.longest} s"
            await anyio.sleep(0.5)


class TimedProducer(Producer):
    """A producer that goes by the loop's clock."""

    def _make(self, config: ProducerConfig, clock: Callable[[], float]) -> ProducerLifecycle:
        return super()._make(config, loop_clock())


class TimedConsumer(Consumer):
    """A consumer that goes by the loop's clock."""

    def __init__(self, *topics: str, **settings: Any) -> None:
        self._clock = loop_clock()
        super().__init__(*topics, **settings)


class TimedAdmin(Admin):
    """An admin client that goes by the loop's clock."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._cluster = Cluster(self._config, self._supervisor, allow_auto_topic_creation=False, clock=loop_clock())


@contextmanager
def passing() -> Iterator[None]:
    """Failures are fine that another attempt may cure."""
    try:
        yield
    except KafkaError as error:
        if not error.retriable:
            raise
