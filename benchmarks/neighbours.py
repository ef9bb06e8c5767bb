"""What a quiet client waits while a hostile one has its way, and how much memory the gateway takes meanwhile.

The quiet one asks for ApiVersions, produces 1 kB (`acks=all`) and fetches 1 kB, in a process of its own. Milliseconds
at the 99th percentile and at worst over its three kinds of requests, also without the time that other processes of the
machine took (*own*); megabytes of the gateway's resident memory.

`python -m benchmarks.neighbours [SECONDS [NAME …]]`: all attacks, or those whose names contain one of the words.
"""

from __future__ import annotations

import sys

from rich.table import Table

from benchmarks.harness import console, machine
from tests.hostile_clients import ATTACKS
from tests.neighbourhood import suffer

MB = 1e6
HEADINGS = ("median ms", "p99 ms", "worst ms", "own p99", "own worst", "MB before", "peak", "after", "answered", "cuts")


def main(seconds: float = 5.0, words: tuple[str, ...] = ()) -> None:
    table = Table(title="the neighbours of a hostile client", caption=f"{seconds:g} s each · {machine()}")
    table.add_column("the hostile client")
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    for name in ATTACKS:
        if words and not any(word in name for word in words):
            continue
        console.print(f"[dim]{name}[/dim]")
        found = suffer(name, seconds)
        median = max(waited.median for waited in found.waited.values())
        memory = (found.resident_before, found.resident_peak, found.resident_after)
        waits = (found.p99, found.worst, found.own_p99, found.own_worst)
        row = (f"{median:.1f}", *(f"{wait:.0f}" for wait in waits), *(f"{value / MB:.0f}" for value in memory))
        table.add_row(name, *row, f"{found.answered:,}", str(found.cuts))
        console.print("   " + " | ".join((*row, f"{found.answered:,}", str(found.cuts))), highlight=False)
    console.print(table)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0, tuple(sys.argv[2:]))
