"""What the demonstration shows: progress, tables, and a chart."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from flights.delays import Statistics

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

console = Console()
EARLY, LATE, RATE = "tab:green", "tab:blue", "tab:orange"


@dataclass
class Rates:
    """What each step did, in records and seconds."""

    steps: list[tuple[str, int, float]] = field(default_factory=list)

    @contextmanager
    def measured(self, name: str, records: int) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.steps.append((name, records, time.perf_counter() - started))


def progress_bar() -> Progress:
    return Progress(
        TextColumn("[bold]{task.description:<28}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def print_results(results: Mapping[str, Statistics], rates: Rates) -> None:
    table = Table(title="Mean arrival delay by carrier, in minutes", caption="each way of reading, against the input")
    table.add_column("carrier")
    table.add_column("flights", justify="right")
    for name in results:
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("agree")
    expected = results["input"]
    for carrier in sorted(expected):
        means = [f"{result[carrier].mean:.2f}" if carrier in result else "—" for result in results.values()]
        agree = all(result.get(carrier) == expected[carrier] for result in results.values())
        table.add_row(carrier, f"{expected[carrier].flights:,}", *means, "[green]✓[/]" if agree else "[red]✗[/]")
    totals = [f"{sum(delays.flights for delays in result.values()):,}" for result in results.values()]
    every = all(result == expected for result in results.values())
    table.add_section()
    table.add_row("read", "", *totals, "[green]✓[/]" if every else "[red]✗[/]")
    console.print(table)
    speeds = Table(title="Rates", caption="Spark's first step starts its Python workers, too")
    for heading in ("step", "records", "seconds", "records/s"):
        speeds.add_column(heading, justify="left" if heading == "step" else "right")
    for name, records, seconds in rates.steps:
        speeds.add_row(name, f"{records:,}", f"{seconds:.1f}", f"{records / seconds:,.0f}")
    console.print(speeds)


def draw(statistics: Statistics, names: Mapping[str, str], rates: Rates, path: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(15, 6.5), width_ratios=(3, 2))
    _draw_delays(left, statistics, names)
    _draw_rates(right, rates)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _draw_delays(axes: Any, statistics: Statistics, names: Mapping[str, str]) -> None:
    """A bar for each carrier, the most punctual at the top, with its mean delay and how many flights that is of."""
    carriers = sorted(statistics, key=lambda carrier: statistics[carrier].mean, reverse=True)
    means = [statistics[carrier].mean for carrier in carriers]
    labels = [f"{names.get(carrier, '?')} ({carrier})" for carrier in carriers]
    bars = axes.barh(labels, means, color=[EARLY if mean < 0 else LATE for mean in means])
    flights = [f"{mean:+.1f}  ({statistics[carrier].arrived:,})" for carrier, mean in zip(carriers, means, strict=True)]
    axes.bar_label(bars, flights, padding=4, fontsize=8)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.margins(x=0.2)
    axes.set_title("Mean arrival delay by carrier, flights from New York in 2013")
    axes.set_xlabel("minutes; in brackets the flights that arrived")
    axes.legend(handles=[Patch(color=LATE, label="late on average"), Patch(color=EARLY, label="early on average")])


def _draw_rates(axes: Any, rates: Rates) -> None:
    steps = [(name, records / seconds) for name, records, seconds in rates.steps[::-1]]
    bars = axes.barh([name for name, _ in steps], [rate for _, rate in steps], color=RATE)
    axes.bar_label(bars, [f"{rate:,.0f}" for _, rate in steps], padding=4, fontsize=8)
    axes.margins(x=0.2)
    axes.xaxis.set_major_locator(MaxNLocator(4))  # more of these long labels run into each other
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_title("Rate of each step")
    axes.set_xlabel("records/s, JSON work included;\nstreaming: the start of Spark's workers, too")
