"""`kclient pipeline archive`: topics to Parquet with Spark."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kclient.cli import output
from kclient.cli.errors import UsageError
from kclient.errors import MissingExtraError

if TYPE_CHECKING:
    from kclient.spark.pipelines import ArchiveSummary


def archive(
    topics: list[str],
    settings: dict[str, str],
    *,
    pattern: str | None,
    destination: Path,
    master: str,
    allow_data_loss: bool,
) -> int:
    """Archive what no earlier run has archived, and print a summary."""
    if bool(topics) == (pattern is not None):
        raise UsageError("say what to archive: topics, or --pattern")
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise MissingExtraError("pyspark", "spark", "The archive pipeline") from error
    from kclient.spark.pipelines import archive as run

    # py4j logs a traceback of its own when a call is interrupted; what is raised is said in one sentence
    logging.getLogger().addHandler(logging.NullHandler())
    # the workers need what this process has installed
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("kclient archive").master(master)
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR").getOrCreate()
    try:
        with _progress() as progress:
            summary = run(
                spark, destination, settings, topics=topics, pattern=pattern,
                fail_on_data_loss=not allow_data_loss, progress=progress,
            )  # fmt: skip
    finally:
        spark.stop()
    _print(summary)
    return 0


def _print(summary: ArchiveSummary) -> None:
    rows = [(topic.topic, topic.partitions, topic.records, topic.files, topic.size) for topic in summary.topics]
    title = f"{summary.records} records to {summary.destination} in {summary.seconds:.1f} s"
    output.table(["topic", "partitions", "records", "files", "bytes"], rows, title=title)


def _progress() -> Any:
    """A bar per step for people; nothing in a pipe."""
    if not output.is_terminal():
        return nullcontext(None)
    return _Bars()


class _Bars:
    """Shows the steps of a run as bars."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), transient=True
        )
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Any:
        self._progress.start()
        return self._show

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _show(self, step: str, done: int, total: int) -> None:
        if step not in self._tasks:
            self._tasks[step] = self._progress.add_task(step, total=total)
        self._progress.update(self._tasks[step], completed=done, total=total)
