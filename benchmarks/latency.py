"""How long one record takes: until it is acknowledged, and until a consumer has it, one at a time.

Beside confluent-kafka, and beside a plain socket's round trip with a request built beforehand: what is above that is
the client's. 100-byte values, one partition, `acks=all`, no linger; on real Kafka, and on the gateway with both ways to
be durable. The contenders alternate in slices, so that what else the machine does meets all alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import confluent_kafka
from rich.progress import Progress
from rich.table import Table

import kclient
from benchmarks.harness import console, gateway, kafka, machine
from benchmarks.raw_client import RawClient
from kclient import TopicPartition, sync

VALUE = b"x" * 100
TOPIC = "bench-latency"
SLICE = 100
"""Records that a contender sends before it is another's turn."""
WARM_UP = 200
WAIT_SECONDS = 10.0

Times = list[float]
"""In seconds, of each record."""


class Contender(Protocol):
    """Sends records one at a time, and takes the time of each."""

    def __call__(self, count: int) -> Times: ...


def timed(work: Callable[[], object], count: int) -> Times:
    times = []
    for _ in range(count):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return times


# ------------------------------------------------------------------ until it is acknowledged


@contextlib.contextmanager
def acknowledged_raw(bootstrap: str) -> Iterator[Contender]:
    with contextlib.closing(RawClient(int(bootstrap.rsplit(":", 1)[1]))) as client:
        yield lambda count: client.round_trips(TOPIC, count)


@contextlib.contextmanager
def acknowledged_blocking(bootstrap: str) -> Iterator[Contender]:
    with sync.Producer(bootstrap_servers=bootstrap, linger_ms=0) as producer:
        yield lambda count: timed(lambda: producer.send(TOPIC, VALUE).result(), count)


@contextlib.contextmanager
def acknowledged_async(bootstrap: str) -> Iterator[Contender]:
    async def times(count: int) -> Times:
        found = []
        for _ in range(count):
            started = time.perf_counter()
            await (await producer.send(TOPIC, VALUE))
            found.append(time.perf_counter() - started)
        return found

    with asyncio.Runner() as runner:
        clients = contextlib.AsyncExitStack()
        producer = kclient.Producer(bootstrap_servers=bootstrap, linger_ms=0)
        try:
            runner.run(clients.enter_async_context(producer))
            yield lambda count: runner.run(times(count))
        finally:
            runner.run(clients.aclose())


@contextlib.contextmanager
def acknowledged_confluent(bootstrap: str) -> Iterator[Contender]:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all", "enable.idempotence": True}
    )

    def send() -> None:
        delivered: list[object] = []
        producer.produce(TOPIC, VALUE, on_delivery=lambda error, _: delivered.append(error))
        while not delivered:
            producer.poll(WAIT_SECONDS)

    yield lambda count: timed(send, count)


# ------------------------------------------------------------------ until a consumer has it


@contextlib.contextmanager
def end_to_end_blocking(bootstrap: str) -> Iterator[Contender]:
    with (
        sync.Producer(bootstrap_servers=bootstrap, linger_ms=0) as producer,
        sync.Consumer(bootstrap_servers=bootstrap) as consumer,
    ):
        partition = TopicPartition(TOPIC, 0)
        consumer.assign([partition])
        consumer.seek_to_end([partition])
        consumer.position(partition)

        def send() -> None:
            producer.send(TOPIC, VALUE)
            while not consumer.poll(WAIT_SECONDS):
                pass

        yield lambda count: timed(send, count)


@contextlib.contextmanager
def end_to_end_async(bootstrap: str) -> Iterator[Contender]:
    async def times(count: int) -> Times:
        found = []
        for _ in range(count):
            started = time.perf_counter()
            await producer.send(TOPIC, VALUE)
            while not await consumer.poll(WAIT_SECONDS):
                pass
            found.append(time.perf_counter() - started)
        return found

    async def at_the_end() -> None:
        partition = TopicPartition(TOPIC, 0)
        consumer.assign([partition])
        consumer.seek_to_end([partition])
        await consumer.position(partition)

    with asyncio.Runner() as runner:
        clients = contextlib.AsyncExitStack()
        producer = kclient.Producer(bootstrap_servers=bootstrap, linger_ms=0)
        consumer = kclient.Consumer(bootstrap_servers=bootstrap)
        try:
            runner.run(clients.enter_async_context(producer))
            runner.run(clients.enter_async_context(consumer))
            runner.run(at_the_end())
            yield lambda count: runner.run(times(count))
        finally:
            runner.run(clients.aclose())


@contextlib.contextmanager
def end_to_end_confluent(bootstrap: str) -> Iterator[Contender]:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all", "enable.idempotence": True}
    )
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False, "fetch.wait.max.ms": 500}
    )
    _, end = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(TOPIC, 0), timeout=WAIT_SECONDS)
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, end)])

    def send() -> None:
        producer.produce(TOPIC, VALUE)
        while consumer.poll(WAIT_SECONDS) is None:
            pass
        producer.poll(0)

    try:
        yield lambda count: timed(send, count)
    finally:
        consumer.close()


# ------------------------------------------------------------------ side by side

ACKNOWLEDGED = {
    "kclient.sync": acknowledged_blocking,
    "kclient": acknowledged_async,
    "a plain socket": acknowledged_raw,
    "confluent-kafka": acknowledged_confluent,
}
END_TO_END = {
    "kclient.sync": end_to_end_blocking,
    "kclient": end_to_end_async,
    "confluent-kafka": end_to_end_confluent,
}


def measure(
    title: str,
    bootstrap: str,
    contenders: dict[str, Callable[[str], contextlib.AbstractContextManager[Contender]]],
    records: int,
) -> None:
    """Percentiles of each contender's records, sent in alternating slices."""
    times: dict[str, Times] = {name: [] for name in contenders}
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(title, total=len(contenders) * records)
        # one client at a time: another's waiting requests would count
        for begin in range(0, records, SLICE * 10):
            for name, contender in contenders.items():
                count = min(SLICE * 10, records - begin)
                with contender(bootstrap) as send:
                    send(WARM_UP)
                    times[name] += send(count)
                progress.advance(task, count)
    table = Table(title=title, caption=f"{records:,} records each, one at a time · {machine()}")
    table.add_column("who")
    for heading in ("p50 ms", "p99 ms", "worst ms", "p50 × confluent-kafka", "p99 × confluent-kafka"):
        table.add_column(heading, justify="right")
    figures = {name: (*_percentiles(found), max(found)) for name, found in times.items()}
    reference = figures["confluent-kafka"]
    for name, (p50, p99, worst) in figures.items():
        ratios = (f"{p50 / reference[0]:.2f}", f"{p99 / reference[1]:.2f}")
        table.add_row(name, f"{p50 * 1e3:.3f}", f"{p99 * 1e3:.3f}", f"{worst * 1e3:.1f}", *ratios)
    console.print(table)


def _percentiles(times: Times) -> tuple[float, float]:
    cuts = statistics.quantiles(times, n=100)
    return cuts[49], cuts[98]


def main(records: int = 5_000) -> None:
    with kafka() as theirs, gateway("written") as written, gateway("synced") as synced:
        places = {"real Kafka": theirs, "the gateway, written": written, "the gateway, synced": synced}
        for server in places.values():
            with sync.Admin(bootstrap_servers=server.bootstrap) as admin:
                admin.create_topic(TOPIC, partitions=1)
        for place, server in places.items():
            measure(f"Acknowledged send to {place}", server.bootstrap, ACKNOWLEDGED, records)
            measure(f"End to end through {place}", server.bootstrap, END_TO_END, records)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
