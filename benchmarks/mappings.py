"""The four mappings side by side under the raw client: batches in and out, as large ones and as small ones.

Each in a gateway of its own on embedded HTP; what is written lies in the page cache, so that the work of the mapping
is seen and not the disk. Rates are in proportion to `domain`, which keeps batches as they come. The interval is that
of the mean ratio over the pairs of runs (95 %, Student's t).
"""

from __future__ import annotations

import contextlib
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from rich.table import Table

from benchmarks.gateway import create, drop, fetched
from benchmarks.harness import alternating, console, machine, number
from benchmarks.raw_client import PARTITIONS, RawClient
from tests.gateway_process import GatewayProcess

RUNS: Final = 20
MAPPINGS: Final = ("multilevel", "broker", "virtual", "domain")
SIZES: Final = {"batches of 1 MB": 8000, "batches of 16 kB": 125}
"""Records of 100 bytes in each batch."""


def student(freedom: int) -> float:
    """The 97.5 % point of Student's t, by Cornish and Fisher's expansion: to a hundredth from 9 degrees on."""
    z = statistics.NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


@contextlib.contextmanager
def gateway_by(mapping: str) -> Iterator[GatewayProcess]:
    """A gateway whose topics lie in the store by that mapping."""
    options = ["--mapping", mapping]
    if mapping == "broker":
        options += ["--brokers", str(PARTITIONS)]
    with tempfile.TemporaryDirectory() as folder:
        process = GatewayProcess(Path(folder) / "data", durability="written", options=options)
        process.start()
        try:
            yield process
        finally:
            process.stop()


def produced(bootstrap: str, records: int, size: int) -> float:
    """The rate into a new topic, which is deleted afterwards."""
    topic = filled(bootstrap, 0, size)
    with contextlib.closing(RawClient(int(bootstrap.rsplit(":", 1)[1]))) as client:
        figure = client.produce(topic, records, records_per_batch=size)
    drop(bootstrap, topic)
    return figure


def filled(bootstrap: str, records: int, size: int) -> str:
    topic = create(bootstrap)
    with contextlib.closing(RawClient(int(bootstrap.rsplit(":", 1)[1]))) as client:
        client.produce(topic, records, records_per_batch=size)
    return topic


def report_pairs(title: str, figures: Mapping[str, list[float]]) -> None:
    """Medians, and the mean ratio to `domain` with its interval."""
    table = Table(title=title, caption=f"{len(figures['domain'])} alternating runs · {machine()}")
    for heading in ("mapping", "median records/s", "× domain", "95 % interval"):
        table.add_column(heading, justify="left" if heading == "mapping" else "right")
    for name, values in figures.items():
        ratios = [math.log(own / base) for own, base in zip(values, figures["domain"], strict=True)]
        mean = statistics.mean(ratios)
        apart = (
            student(len(ratios) - 1) * statistics.stdev(ratios) / math.sqrt(len(ratios))
            if len(ratios) > 1
            else math.inf
        )
        interval = f"{math.exp(mean - apart):.3f} to {math.exp(mean + apart):.3f}"
        table.add_row(name, number(statistics.median(values)), f"{math.exp(mean):.3f}", interval)
    console.print(table)


def main(records: int = 2_000_000, runs: int = RUNS) -> None:
    with ExitStack() as stack:
        gateways = {name: stack.enter_context(gateway_by(name)).bootstrap for name in MAPPINGS}
        for title, size in SIZES.items():
            count = (records if size > 1000 else records // 4) // size * size

            def writing(bootstrap: str, count: int = count, size: int = size) -> Callable[[], float]:
                return lambda: produced(bootstrap, count, size)

            def reading(bootstrap: str, count: int = count, size: int = size) -> Callable[[], float]:
                topic = filled(bootstrap, count, size)
                return lambda: fetched(bootstrap, topic, count)

            for verb, work in (("in", writing), ("out", reading)):
                contenders = {name: work(bootstrap) for name, bootstrap in gateways.items()}
                report_pairs(f"{count:,} records of 100 bytes {verb}, {title}", alternating(contenders, runs))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
