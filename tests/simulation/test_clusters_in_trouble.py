"""Producer and cluster layer through the trouble that clusters make, in virtual time.

Brokers are paused, fenced, killed, cut off, swallowed by black holes; leaders move; connecting takes its time, and
links are dropped meanwhile. No client dies, nothing acknowledged is lost, doubled or reordered, and no partition that
has a healthy leader waits longer than one request timeout.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest

from kclient.cluster import Cluster
from kclient.concurrency import Supervisor, loop_clock
from kclient.config import AdminConfig, ProducerConfig
from kclient.errors import KafkaError
from kclient.producer import Producer
from kclient.producer.core import ProducerCore
from kclient.protocol.messages import InitProducerIdRequest
from kclient.types import TopicPartition
from tests.fake_kafka import FakeKafka
from tests.simulation.virtual_time import BACKENDS, run_virtually

SEEDS = [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 15))]
BLOCK = 500
"""How many seeds a test of a sweep has."""
PARTITIONS = 6
BROKERS = 3
SECONDS = 150.0
"""How long the trouble lasts."""
REQUEST_TIMEOUT = 30.0
SESSION = 9.0
"""How long a broker may be silent before the cluster takes its leaderships away."""

Scenario = Callable[[int], Awaitable[None]]


class Trouble:
    """Does things to a cluster, and knows what a real one would make of them."""

    def __init__(self, kafka: FakeKafka, seed: int) -> None:
        self.kafka = kafka
        self.random = random.Random(seed)
        self.over = False
        self.slow = self.random.choice([0.0, 0.01, 1.0, 12.0])
        """How long connecting takes at most."""
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
            self._give_away(node, self.random.random())
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
            broker.down = True
            broker.hang_up()
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
        for tp, partition in self.kafka.partitions.items():
            if others and partition.leader == node and self.random.random() < share:
                self.kafka.move(tp.topic, tp.partition, self.random.choice(others))


class Watch:
    """Looks that no partition is starved: acknowledgements come while its leader is well, and stays the leader."""

    def __init__(self, trouble: Trouble) -> None:
        self.trouble = trouble
        self.acknowledged = [0.0] * PARTITIONS
        self.longest = 0.0
        """Seconds that a partition waited."""

    async def run(self) -> None:
        kafka = self.trouble.kafka
        since: dict[int, tuple[int, float]] = {}
        while not self.trouble.over:
            now = anyio.current_time()
            for number in range(PARTITIONS):
                leader = kafka.partitions[TopicPartition("t", number)].leader
                if not self.trouble.healthy(leader):
                    since.pop(number, None)
                    continue
                if since.get(number, (-1, 0.0))[0] != leader:
                    since[number] = leader, now
                self.longest = max(self.longest, now - max(since[number][1], self.acknowledged[number]))
            assert self.longest <= REQUEST_TIMEOUT + 2 + self.trouble.slow, f"partition starved for {self.longest} s"
            await anyio.sleep(0.5)


class TimedProducer(Producer):
    """A producer that goes by the loop's clock."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._core = ProducerCore(ProducerConfig.parse(**settings), loop_clock())
        self._fast = self._core.accumulator.appender.append


async def produce(seed: int) -> None:
    random.seed(seed)
    async with FakeKafka({"t": PARTITIONS}, brokers=BROKERS) as kafka:
        trouble = Trouble(kafka, seed)
        kafka.announce_leaders = trouble.random.random() < 0.5
        sent: dict[int, list[tuple[int, Any]]] = {number: [] for number in range(PARTITIONS)}
        settings: dict[str, Any] = {
            "bootstrap_servers": kafka.bootstrap,
            "linger_ms": 5,
            "delivery_timeout_ms": 1_000_000,
            "request_timeout_ms": int(REQUEST_TIMEOUT * 1000),
            "max_block_ms": 200_000,
            "max_in_flight_requests_per_connection": trouble.random.choice([1, 5]),
        }
        async with TimedProducer(**settings) as producer:
            watch = Watch(trouble)
            watch.acknowledged = [anyio.current_time()] * PARTITIONS

            def told(metadata: Any, error: Any) -> None:
                assert error is None
                watch.acknowledged[metadata.partition] = anyio.current_time()

            async def send() -> None:
                number = 0
                while not trouble.over:
                    for partition in range(PARTITIONS):
                        number += 1
                        delivery = await producer.send("t", b"%d" % number, partition=partition, on_delivery=told)
                        sent[partition].append((number, delivery))
                    await anyio.sleep(trouble.random.random())

            async with anyio.create_task_group() as group:
                group.start_soon(trouble.run)
                group.start_soon(send)
                group.start_soon(watch.run)
            over = anyio.current_time()
            await producer.flush()
            assert anyio.current_time() - over <= REQUEST_TIMEOUT + 2, "somebody waited too long"
        for partition, deliveries in sent.items():
            stored = [int(value) for value in kafka.values("t", partition)]
            assert stored == [number for number, _ in deliveries], "each once, in order"
            for number, delivery in deliveries:
                metadata = await delivery
                assert metadata.offset < 0 or stored[metadata.offset] == number


@contextmanager
def passing() -> Iterator[None]:
    """Failures are fine that another attempt may cure."""
    try:
        yield
    except KafkaError as error:
        if not error.retriable:
            raise


async def ask(seed: int) -> None:
    """Many callers ask the cluster for this and that; each is answered, or told why not, within its time."""
    random.seed(seed)
    async with FakeKafka({"t": PARTITIONS}, brokers=BROKERS) as kafka, Supervisor("client") as supervisor:
        trouble = Trouble(kafka, seed)
        cluster = Cluster(AdminConfig.parse(bootstrap_servers=kafka.bootstrap), supervisor, clock=loop_clock())
        await cluster.start()
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: cluster.refresh(["t"], timeout=5),
            lambda: cluster.connection(),
            lambda: cluster.connection(trouble.random.randint(1, BROKERS), trouble.random.choice(["", "fetch"])),
            lambda: cluster.request(None, InitProducerIdRequest(transaction_timeout_ms=1)),
            lambda: cluster.request(
                trouble.random.randint(1, BROKERS), InitProducerIdRequest(transaction_timeout_ms=1), channel="fetch"
            ),
            lambda: cluster.find_coordinator("g"),
        ]

        async def call() -> None:
            while not trouble.over:
                begun = anyio.current_time()
                with anyio.move_on_after(trouble.random.choice([0.1, 10.0, 1000.0])):
                    with passing():
                        await trouble.random.choice(calls)()
                # to connect takes up to ten seconds, to be told the versions, and the answer, thirty each
                assert anyio.current_time() - begun <= 2 * REQUEST_TIMEOUT + 15
                await anyio.sleep(trouble.random.random() * 3)

        async with anyio.create_task_group() as group:
            group.start_soon(trouble.run)
            for _ in range(5):
                group.start_soon(call)
        supervisor.check()
        with anyio.fail_after(REQUEST_TIMEOUT + 2):
            snapshot = await cluster.refresh(["t"])
            while set(snapshot.nodes) != set(kafka.brokers):
                snapshot = await cluster.refresh(["t"])
        assert snapshot.leader_id(TopicPartition("t", 0)) == kafka.partitions[TopicPartition("t", 0)].leader
        for node in kafka.brokers:
            answered = False
            with anyio.fail_after(REQUEST_TIMEOUT + 2):
                while not answered:
                    with passing():
                        await cluster.request(node, InitProducerIdRequest(transaction_timeout_ms=1))
                        answered = True
        await cluster.aclose()


async def hang() -> None:
    """A leader hangs, and nobody sends anything that would fail sooner than with the request's timeout."""
    async with FakeKafka({"t": PARTITIONS}, brokers=BROKERS) as kafka:
        settings = {"bootstrap_servers": kafka.bootstrap, "request_timeout_ms": int(REQUEST_TIMEOUT * 1000)}
        async with TimedProducer(**settings) as producer:
            for partition in range(PARTITIONS):
                await (await producer.send("t", b"before", partition=partition))
            kafka.brokers[1].pause()
            deliveries = [await producer.send("t", b"after", partition=partition) for partition in range(PARTITIONS)]
            await anyio.sleep(SESSION)
            kafka.brokers[1].listed = False
            for tp, partition in kafka.partitions.items():
                if partition.leader == 1:
                    kafka.move(tp.topic, tp.partition, 2)
            with anyio.fail_after(SESSION):
                for delivery in deliveries:
                    await delivery
            kafka.brokers[1].resume()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_leader_that_hangs_is_left_when_the_cluster_has_left_it(backend: str) -> None:
    run_virtually(backend, hang)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scenario", [produce, ask])
@pytest.mark.parametrize("seed", SEEDS)
def test_trouble(seed: int, scenario: Scenario, backend: str) -> None:
    run_virtually(backend, scenario, seed)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scenario", [produce, ask])
@pytest.mark.parametrize("first", range(1000, 3000, BLOCK))
def test_much_trouble(first: int, scenario: Scenario, backend: str) -> None:
    for seed in range(first, first + BLOCK):
        try:
            run_virtually(backend, scenario, seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
