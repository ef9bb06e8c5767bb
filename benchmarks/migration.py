"""Moving in from Kafka: the mirror that `kclient migrate run` works with, beside what only fetches.

Each from the first request to the last record: that is durable in the store, or received. Pairs of runs, one right
after the other, are compared. Two things only fetch the same records, and throw them away: the raw client, which looks
at the headers of batches but at no checksum, and what the mirror itself fetches with, every checksum compared. Beside
them stands what processor time a gigabyte takes, of this process and of Kafka.

    python -m benchmarks.migration [RECORDS [RECORDS_IN_A_BATCH [PAIRS]]]
"""

from __future__ import annotations

import contextlib
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import anyio
import psutil
import uvloop
from rich.table import Table

from benchmarks.gateway import create, fetched
from benchmarks.harness import console, kafka, machine, number
from benchmarks.raw_client import PARTITIONS, RECORDS_PER_BATCH, RawClient
from kclient.gateway import Gateway
from kclient.migration import Mirror, SourceCluster, Target
from kclient.records import check_batch, iter_headers
from kclient.types import TopicPartition

PAIRS = 10
_LOOK_S = 0.005
_RECORD_BYTES = 110
"""Of a record in a batch, about."""
_RESPONSE_BYTES, _PARTITION_BYTES = 64 << 20, 16 << 20
"""As the raw client asks for; the mirror asks for less."""


class Costs:
    """Processor time of this process and of a broker.

    Args:
        port: Where the broker listens.
    """

    def __init__(self, port: int) -> None:
        pid = next(
            each.pid for each in psutil.net_connections("tcp") if each.status == "LISTEN" and each.laddr.port == port
        )
        self._broker = psutil.Process(pid)
        self.spent: dict[str, list[tuple[float, float]]] = {}
        """Seconds of this process and of the broker, for each run."""

    def _now(self) -> tuple[float, float]:
        own, broker = resource.getrusage(resource.RUSAGE_SELF), self._broker.cpu_times()
        return own.ru_utime + own.ru_stime, broker.user + broker.system

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Note what the block costs."""
        before = self._now()
        yield
        after = self._now()
        self.spent.setdefault(name, []).append((after[0] - before[0], after[1] - before[1]))


async def mirrored(bootstrap: str, topic: str, records: int, durability: str, costs: Costs) -> float:
    """The rate into a new store."""
    with tempfile.TemporaryDirectory() as folder:
        async with (
            Gateway(f"embedded:{Path(folder) / 'data'}", None, durability=durability) as gateway,
            SourceCluster(bootstrap_servers=bootstrap) as source,
            anyio.create_task_group() as tasks,
        ):
            mirror = Mirror(source, Target(gateway), lambda name: name == topic)
            await mirror.prepare()
            started = time.perf_counter()
            with costs.of(f"migrate, {durability}"):
                tasks.start_soon(mirror.run)
                while mirror.lag != 0:  # noqa: ASYNC110  (nothing tells of it)
                    await anyio.sleep(_LOOK_S)
            took = time.perf_counter() - started
            mirror.stop()
    return records / took


async def checked(bootstrap: str, topic: str, records: int, costs: Costs) -> float:
    """The rate of what the mirror fetches with, checksums compared, nothing stored."""
    async with SourceCluster(bootstrap_servers=bootstrap) as source:
        snapshot = await source.look()
        offsets = {TopicPartition(topic, partition): 0 for partition in range(PARTITIONS)}
        leader = snapshot.leader_id(TopicPartition(topic, 0))
        assert leader is not None
        read, started = 0, time.perf_counter()
        with costs.of("fetch, checksums compared"):
            while read < records:
                answers = await source.fetch(
                    leader, offsets, {topic: snapshot.topics[topic].topic_id},
                    response_bytes=_RESPONSE_BYTES, partition_bytes=_PARTITION_BYTES,
                )  # fmt: skip
                for tp, answer in answers.items():
                    for position, header in iter_headers(answer.records):
                        check_batch(answer.records, position)
                        offsets[tp] = header.next_offset
                        read += header.count
    return records / (time.perf_counter() - started)


def in_loop(work: Callable[[], Awaitable[float]]) -> float:
    """In an event loop such as the command has."""
    figure = anyio.run(work, backend_options={"loop_factory": uvloop.new_event_loop})
    os.sync()  # what is still to be written of it is not the next one's
    return figure


def interval(ratios: list[float]) -> tuple[float, float]:
    """Between which the median is, with more than 95 % certainty from nine on: the second least and greatest."""
    ordered = sorted(ratios)
    return (ordered[1], ordered[-2]) if len(ordered) > 2 else (ordered[0], ordered[-1])


def main(records: int = 16_000_000, records_per_batch: int = RECORDS_PER_BATCH, pairs: int = PAIRS) -> None:
    records -= records % (records_per_batch * PARTITIONS)
    with kafka() as source:
        bootstrap, topic = source.bootstrap, create(source.bootstrap)
        with contextlib.closing(RawClient(source.port)) as client:
            client.produce(topic, records, records_per_batch=records_per_batch)
        costs = Costs(source.port)
        contenders: dict[str, Callable[[], float]] = {
            "migrate, synced": partial(in_loop, partial(mirrored, bootstrap, topic, records, "synced", costs)),
            "migrate, written": partial(in_loop, partial(mirrored, bootstrap, topic, records, "written", costs)),
            "fetch, checksums compared": partial(in_loop, partial(checked, bootstrap, topic, records, costs)),
        }
        gigabytes = records * _RECORD_BYTES / 1e9
        table = Table(
            title=f"{records:,} records of 100 bytes in batches of {records_per_batch} moved from Kafka",
            caption=f"{pairs} pairs of runs each · {machine()}",
        )
        for heading in (
            "who", "median records/s", "raw fetch beside it", "× raw fetch", "interval", "CPU-s/GB", "Kafka's",
        ):  # fmt: skip
            table.add_column(heading, justify="left" if heading == "who" else "right")
        figures: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
        for run in range(pairs + 1):
            for name, contender in contenders.items():
                ours = contender()
                with costs.of("raw fetch"):
                    theirs = fetched(bootstrap, topic, records)
                if run:
                    figures[name].append((ours, theirs))
        for name, measured in figures.items():
            ratios = [ours / theirs for ours, theirs in measured]
            least, greatest = interval(ratios)
            own, broker = (statistics.median(each) / gigabytes for each in zip(*costs.spent[name][1:], strict=True))
            table.add_row(
                name, *(number(statistics.median(each)) for each in zip(*measured, strict=True)),
                f"{statistics.median(ratios):.2f}", f"{least:.2f} to {greatest:.2f}", f"{own:.2f}", f"{broker:.2f}",
            )  # fmt: skip
        own, broker = (statistics.median(each) / gigabytes for each in zip(*costs.spent["raw fetch"][1:], strict=True))
        table.add_row("raw fetch", "", "", "1.00", "", f"{own:.2f}", f"{broker:.2f}")
        console.print(table)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
