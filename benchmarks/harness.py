"""Alternating runs, medians and ratios: machines drift, so only what was measured side by side is compared."""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.gateway_process import GatewayProcess
from tests.kafka_artifacts import KAFKA_4
from tests.kafka_server import KafkaServer

RUNS = int(os.environ.get("KCLIENT_BENCHMARK_RUNS", "5"))

console = Console()


def rate(records: int, work: Callable[[], object]) -> float:
    """Records per second of one call."""
    started = time.perf_counter()
    work()
    return records / (time.perf_counter() - started)


def alternating(contenders: Mapping[str, Callable[[], float]], runs: int = RUNS) -> dict[str, list[float]]:
    """Each contender once to warm up, then all in turn, `runs` times; what each returned."""
    figures: dict[str, list[float]] = {name: [] for name in contenders}
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=len(contenders) * (runs + 1))
        for run in range(runs + 1):
            for name, contender in contenders.items():
                progress.update(task, description=f"{name} ({'warm-up' if run == 0 else run})")
                figure = contender()
                if run:
                    figures[name].append(figure)
                progress.advance(task)
    return figures


def report(
    title: str, figures: Mapping[str, list[float]], unit: str = "records/s", baseline: str | None = None
) -> None:
    """One line a contender: median, least, greatest, and the ratio of its median to the baseline's."""
    baseline = baseline or next(reversed(figures))
    reference = statistics.median(figures[baseline])
    table = Table(title=title, caption=f"medians of {len(figures[baseline])} alternating runs · {machine()}")
    table.add_column("who")
    for heading in (f"median {unit}", "min", "max", f"× {baseline}"):
        table.add_column(heading, justify="right")
    for name, values in figures.items():
        median = statistics.median(values)
        table.add_row(name, number(median), number(min(values)), number(max(values)), f"{median / reference:.2f}")
    console.print(table)


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


def machine() -> str:
    return f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}"


@contextlib.contextmanager
def kafka(**overrides: str) -> Iterator[KafkaServer]:
    """A real Kafka for the length of the block; settings with `_` for `.`."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {name.replace("_", "."): value for name, value in overrides.items()}
        server = KafkaServer(KAFKA_4, Path(folder), settings)
        server.format()
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def gateway(durability: str) -> Iterator[GatewayProcess]:
    """A gateway on embedded HTP for the length of the block."""
    with tempfile.TemporaryDirectory() as folder:
        process = GatewayProcess(Path(folder) / "data", durability=durability)
        process.start()
        try:
            yield process
        finally:
            process.stop()
