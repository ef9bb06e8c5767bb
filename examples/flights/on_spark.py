"""What Spark does with the flights: a streaming query, an archive, SQL over it, and the audit of both."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flights.delays import Delays, Statistics
from flights.shown import console, progress_bar

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


@contextmanager
def spark_session(folder: Path) -> Iterator[Any]:
    """Spark on two cores; its logging configuration lies in the folder."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    log4j2 = folder / "log4j2.properties"
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


class StreamedTopic:
    """A streaming query from one topic to another: of each flight the carrier and the delay, exactly once.

    Micro-batches come to a fifth of what there is, so that one sees them; the bar is the query's lag as Spark tells it.
    """

    def __init__(self, spark: Any, bootstrap: str, checkpoint: Path) -> None:
        self._spark = spark
        self._address = bootstrap
        self._checkpoint = checkpoint

    def run(self, source: str, target: str, records: int) -> None:
        """Reads what the source holds now, writes it to the target, and ends."""
        from kclient.spark import LagListener

        with progress_bar() as bar:
            task = bar.add_task("streaming query", total=records)
            listener = LagListener(lambda lag: bar.update(task, completed=records - lag.total))
            self._spark.streams.addListener(listener)
            try:
                query = self._started(source, target, max(records // 5, 1))
                query.awaitTermination()
            finally:
                self._spark.streams.removeListener(listener)
            bar.update(task, completed=records)
        console.print(f"  {len(query.recentProgress)} micro-batches, each of them written as a whole or not at all")

    def _started(self, source: str, target: str, batch: int) -> Any:
        flights = (
            self._spark.readStream.format("kclient")
            .option("kafka.bootstrap.servers", self._address)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", str(batch))
            .load()
        )
        arrivals = flights.selectExpr(
            "key",
            "to_json(from_json(CAST(value AS STRING), 'carrier STRING, arr_delay DOUBLE'),"
            " map('ignoreNullFields', 'false')) AS value",
            "partition",
            "timestamp",
        )
        return (
            arrivals.writeStream.format("kclient")
            .option("kafka.bootstrap.servers", self._address)
            .option("topic", target)
            .option("checkpointLocation", str(self._checkpoint.absolute()))
            .trigger(availableNow=True)
            .start()
        )


def archive_topic(spark: Any, bootstrap: str, topic: str, folder: Path) -> None:
    """As Parquet."""
    from kclient.spark import archive

    with progress_bar() as bar:
        tasks: dict[str, Any] = {}

        def report(step: str, done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = bar.add_task(f"archive: {step}", total=total)
            bar.update(tasks[step], completed=done, total=total)

        summary = archive(spark, folder, {"bootstrap.servers": bootstrap}, topics=[topic], progress=report)
    (archived,) = summary.topics
    console.print(
        f"  {archived.records:,} records in {archived.files:,} files, {archived.size / 1e6:.1f} MB of Parquet"
    )


def statistics_of_archive(spark: Any, folder: Path, topic: str) -> Statistics:
    """By SQL over the Parquet files, which takes nothing of ours."""
    spark.read.parquet(str(folder)).createOrReplaceTempView("archive")
    rows = spark.sql(
        """
        SELECT flight.carrier, count(*) AS flights, count(flight.arr_delay) AS arrived,
               coalesce(sum(cast(flight.arr_delay AS int)), 0) AS minutes
        FROM (SELECT from_json(cast(value AS string), 'carrier string, arr_delay double') AS flight
              FROM archive WHERE topic = :topic)
        GROUP BY flight.carrier
        """,
        {"topic": topic},
    ).collect()
    statistics = Statistics()
    statistics.update({row.carrier: Delays(row.flights, row.arrived, row.minutes) for row in rows})
    return statistics


def audit_archive(spark: Any, bootstrap: str, topic: str, folder: Path, page: Path) -> bool:
    """Whether topic and archive hold the same, record by record; what was found becomes a page with pictures."""
    from kclient.spark import ArchivedTopic, TopicAt, audit

    with progress_bar() as bar:
        task = bar.add_task("audit", total=None)

        def report(step: str, done: int, total: int) -> None:
            if step == "compare":
                bar.update(task, completed=done, total=total)

        found = audit(
            spark, TopicAt(topic, {"bootstrap.servers": bootstrap}), ArchivedTopic(folder, topic), progress=report
        )
    found.write_html(page)
    colour = "green" if found.same else "red"
    console.print(f"  the topic and its archive: [{colour}]{found.summary()}[/]")
    return found.same
