"""Producer and cluster layer through the trouble that clusters make, in virtual time.

Brokers are paused, fenced, killed, cut off, swallowed by black holes; leaders move; connecting takes its time, and
links are dropped meanwhile. No client dies, nothing acknowledged is lost, doubled or reordered, and no partition that
has a healthy leader waits longer than one request timeout.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from kclient.cluster import Cluster
from kclient.concurrency import Supervisor, loop_clock
from kclient.config import AdminConfig
from kclient.protocol.messages import InitProducerIdRequest
from kclient.types import TopicPartition
from tests.simulation.seeds import blocks
from tests.simulation.trouble import (
    BROKERS,
    PARTITIONS,
    REQUEST_TIMEOUT,
    SEEDS,
    SESSION,
    Scenario,
    TimedProducer,
    Trouble,
    Watch,
    passing,
    sweep,
)
from tests.simulation.troubled_kafka import TroubledKafka
from tests.simulation.virtual_time import BACKENDS, run_virtually


async def produce(seed: int) -> None:
    random.seed(seed)
    async with TroubledKafka({"t": PARTITIONS}, brokers=BROKERS) as kafka:
        trouble = Trouble(kafka, seed)
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

            def told(metadata: Any, error: Any) -> None:
                assert error is None
                watch.moved(metadata.partition)

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


async def ask(seed: int) -> None:
    """Many callers ask the cluster for this and that; each is answered, or told why not, within its time."""
    random.seed(seed)
    async with TroubledKafka({"t": PARTITIONS}, brokers=BROKERS) as kafka, Supervisor("client") as supervisor:
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
    async with TroubledKafka({"t": PARTITIONS}, brokers=BROKERS) as kafka:
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
@pytest.mark.parametrize("seeds", blocks(4), ids=str)
def test_much_trouble(seeds: range, scenario: Scenario, backend: str) -> None:
    sweep(backend, scenario, seeds)
