"""`kclient.net.Connection` beside a plain blocking socket: how much of what the server can do gets through.

Produce: requests of one batch of 1 MB (9,500 records of 100 bytes), made beforehand, five in flight, `acks=all`, four
partitions. Fetch: responses of up to 64 MB whose batches are counted by their headers and not decoded. One connection
to a real Kafka on the same machine; connecting is not measured.

The broker shares the processors with the client, so where others use them as well the rates say little; the processor
time that the client took is told beside them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import statistics
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from benchmarks.harness import alternating, kafka, report
from benchmarks.raw_client import (
    FETCH_VERSION,
    IN_FLIGHT,
    PARTITIONS,
    PRODUCE_VERSION,
    RawClient,
    check_produced,
    count_fetched,
    fetch_request,
    prepared_batch,
    produce_request,
)
from kclient import sync
from kclient.concurrency import Supervisor
from kclient.net.connection import Connection, Pending

RECORDS_PER_BATCH = 9500
"""1,046,305 bytes; brokers accept 1,048,588."""
PASSES = 8
"""How often a run of Fetch reads the topic."""
WRITTEN = "bench-net-produce"
READ = "bench-net-fetch"


async def produce(connection: Connection, batches: int) -> float:
    """Records per second."""
    batch = prepared_batch(RECORDS_PER_BATCH)
    requests = [produce_request(WRITTEN, partition, batch) for partition in range(PARTITIONS)]
    waiting: deque[Pending] = deque()
    sent = 0
    started = time.perf_counter()
    while sent < batches or waiting:
        while sent < batches and len(waiting) < IN_FLIGHT:
            waiting.append(connection.send_nowait(requests[sent % PARTITIONS], PRODUCE_VERSION))
            sent += 1
        check_produced(await waiting.popleft())
    return batches * RECORDS_PER_BATCH / (time.perf_counter() - started)


async def fetch(connection: Connection, batches: int) -> float:
    """Records per second."""
    total, records = 0, batches * RECORDS_PER_BATCH
    started = time.perf_counter()
    for _ in range(PASSES):
        offsets, read = dict.fromkeys(range(PARTITIONS), 0), 0
        while read < records:
            read += count_fetched(await connection.request(fetch_request(READ, offsets), FETCH_VERSION), offsets)
        total += read
    return total / (time.perf_counter() - started)


def raw_produce(port: int, batches: int, topic: str = WRITTEN) -> float:
    """Records per second."""
    with contextlib.closing(RawClient(port)) as raw:
        return raw.produce(topic, batches * RECORDS_PER_BATCH, records_per_batch=RECORDS_PER_BATCH)


def raw_fetch(port: int, batches: int) -> float:
    """Records per second."""
    with contextlib.closing(RawClient(port)) as raw:
        return statistics.harmonic_mean([raw.fetch(READ, batches * RECORDS_PER_BATCH) for _ in range(PASSES)])


def connected(
    work: Callable[[Connection, int], Awaitable[float]], bootstrap: str, batches: int, **loop: Any
) -> Callable[[], float]:
    """A run on a loop and a connection of its own."""

    async def main() -> float:
        async with Supervisor("benchmark") as supervisor:
            connection = await Connection.open(bootstrap, supervisor=supervisor)
            try:
                return await work(connection, batches)
            finally:
                await connection.aclose()

    return lambda: anyio.run(main, **loop)


def contenders(
    work: Callable[[Connection, int], Awaitable[float]], bootstrap: str, batches: int
) -> dict[str, Callable[[], float]]:
    found = {"kclient, asyncio": connected(work, bootstrap, batches)}
    if importlib.util.find_spec("uvloop"):
        found["kclient, uvloop"] = connected(work, bootstrap, batches, backend_options={"use_uvloop": True})
    found["kclient, trio"] = connected(work, bootstrap, batches, backend="trio")
    return found


def main(batches: int = 150) -> None:
    with kafka() as server:
        with sync.Admin(bootstrap_servers=server.bootstrap) as admin:
            for topic in (WRITTEN, READ):
                admin.create_topic(topic, partitions=PARTITIONS)
        with sync.Producer(bootstrap_servers=server.bootstrap) as producer:  # which waits until all have a leader
            for topic in (WRITTEN, READ):
                for partition in range(PARTITIONS):
                    producer.send(topic, b"ready", partition=partition)
        raw_produce(server.port, batches, READ)
        compare(
            f"Produce, {batches} requests of 1 MB, {IN_FLIGHT} in flight",
            batches,
            contenders(produce, server.bootstrap, batches) | {"raw socket": lambda: raw_produce(server.port, batches)},
        )
        compare(
            f"Fetch of {PASSES} × {batches} MB, not decoded",
            batches * PASSES,
            contenders(fetch, server.bootstrap, batches) | {"raw socket": lambda: raw_fetch(server.port, batches)},
        )


def compare(title: str, megabytes: int, runs: dict[str, Callable[[], float]]) -> None:
    """Rates, and processor time of this process, connecting included; the first run of each warms up."""
    spent: dict[str, list[float]] = {name: [] for name in runs}

    def metered(name: str) -> Callable[[], float]:
        def run() -> float:
            started = time.process_time()
            figure = runs[name]()
            spent[name].append((time.process_time() - started) / megabytes * 1e6)
            return figure

        return run

    report(title, alternating({name: metered(name) for name in runs}))
    report(title, {name: figures[1:] for name, figures in spent.items()}, unit="µs of processor per MB")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
