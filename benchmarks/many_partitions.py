"""One gateway with very many partitions, by each mapping: creating them, starting, memory, a record into each.

`python -m benchmarks.many_partitions [PARTITIONS [MAPPING …]]`; the topics have 100 partitions each.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import psutil
from rich.table import Table

from benchmarks.harness import console, machine
from benchmarks.mappings import MAPPINGS
from kclient.sync import Admin, Consumer, Producer
from kclient.types import TopicPartition
from tests.gateway_process import GatewayProcess

EACH: Final = 100
"""Partitions of a topic, and brokers of the store where each partition has one."""


def megabytes(process: GatewayProcess) -> float:
    """Resident memory, without what other processes share."""
    return float(psutil.Process(process.pid).memory_full_info().uss) / 1e6


def empty_and_full(mapping: str, partitions: int) -> list[str]:
    """What a row of the table shows."""
    options = ["--mapping", mapping, *(["--brokers", str(EACH)] if mapping == "broker" else [])]
    topics = [f"t-{number}" for number in range(partitions // EACH)]
    with tempfile.TemporaryDirectory() as folder:
        process = GatewayProcess(Path(folder) / "data", durability="written", options=options)
        process.start()
        try:
            bare = megabytes(process)
            started = time.perf_counter()
            with Admin(bootstrap_servers=process.bootstrap) as admin:
                for topic in topics:
                    admin.create_topic(topic, partitions=EACH)
            created = time.perf_counter() - started
            process.stop()
            process.start()
            started = time.perf_counter()
            _all_lead(process, topics)
            led = time.perf_counter() - started + process.startup_seconds
            idle = megabytes(process)
            first = _into_all(process, topics)
            second = _into_all(process, topics)
            used = megabytes(process)
            process.stop(timeout=120)
            process.start()
            started = time.perf_counter()
            _all_lead(process, topics)
            again = time.perf_counter() - started + process.startup_seconds
        finally:
            process.stop(timeout=120)
    kilobytes = [f"{(now - bare) * 1000 / partitions:.1f} kB" for now in (idle, used)]
    return [mapping, *(f"{seconds:.1f} s" for seconds in (created, led, first, second, again)), *kilobytes]


def _all_lead(process: GatewayProcess, topics: list[str]) -> None:
    every = [TopicPartition(topic, number) for topic in topics for number in range(EACH)]
    with Consumer(bootstrap_servers=process.bootstrap) as consumer:
        consumer.end_offsets(every)


def _into_all(process: GatewayProcess, topics: list[str]) -> float:
    started = time.perf_counter()
    with Producer(bootstrap_servers=process.bootstrap) as producer:
        for topic in topics:
            for number in range(EACH):
                producer.send(topic, b"x" * 100, partition=number)
    return time.perf_counter() - started


def main(partitions: int = 10_000, *mappings: str) -> None:
    table = Table(title=f"{partitions:,} partitions", caption=machine())
    for heading in (
        "mapping", "created", "started, all led", "a record into all", "and again", "started when written",
        "memory of each idle", "when written",
    ):  # fmt: skip
        table.add_column(heading, justify="left" if heading == "mapping" else "right")
    for mapping in mappings or MAPPINGS:
        with console.status(mapping):
            table.add_row(*empty_and_full(mapping, partitions))
    console.print(table)


if __name__ == "__main__":
    main(*(int(word) if word.isdecimal() else word for word in sys.argv[1:]))  # type: ignore[arg-type]
