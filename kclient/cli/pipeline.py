"""`kclient pipeline archive`: topics to Parquet with Spark."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from kclient.cli import output
from kclient.cli.errors import UsageError, check_terminated
from kclient.cli.settings import client_settings, refuse_group_settings, with_patience
from kclient.cli.trouble import told, trying_for
from kclient.errors import MissingExtraError

if TYPE_CHECKING:
    from kclient.spark.pipelines import ArchiveSummary

_SPARK_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",  # what fails is raised, and said in one sentence
}


def archive(
    topics: list[str],
    bootstrap: str,
    config: list[str] | None,
    *,
    pattern: str | None,
    destination: str,
    master: str,
    spark_settings: dict[str, str],
    allow_data_loss: bool,
    restart_recreated: bool,
) -> int:
    """Archive what no earlier run has archived, and print a summary."""
    if bool(topics) == (pattern is not None):
        raise UsageError("say what to archive: topics, or --pattern")
    if "spark.master" in spark_settings:
        raise UsageError("--master says where Spark runs, not --spark spark.master")
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise MissingExtraError("pyspark", "spark", "The archive pipeline") from error
    from kclient.spark.pipelines import archive as run
    from kclient.spark.pipelines.archive import check_folder, check_selection, check_topics

    # all that can be wrong is said before a broker is asked, and that before Spark takes its seconds to start
    check_folder(destination)
    settings = client_settings(bootstrap, config, refused=("key.deserializer", "value.deserializer"))
    refuse_group_settings({name.replace("_", ".") for name in settings}, "an archive has none")
    check_selection(settings, topics=topics, pattern=pattern)
    logging.getLogger("kclient").addHandler(logging.NullHandler())
    asking, patience = with_patience(settings)
    with told(output.note, going_on=trying_for(patience)):
        check_topics(asking, topics=topics, pattern=pattern)
    # py4j logs a traceback of its own when a call is interrupted; what is raised is said in one sentence
    logging.getLogger().addHandler(logging.NullHandler())
    # the workers need what this process has installed
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("kclient archive").master(master)
    for name, value in {**_SPARK_SETTINGS, **spark_settings}.items():
        builder = builder.config(name, value)
    check_terminated()
    with _shown("starting Spark"), _starting(silent="spark.log.level" not in spark_settings):
        spark = builder.getOrCreate()
    try:
        check_terminated()
        with _progress() as progress:
            summary = run(
                spark, destination, settings, topics=topics, pattern=pattern, fail_on_data_loss=not allow_data_loss,
                restart_recreated=restart_recreated, progress=progress,
            )  # fmt: skip
    finally:
        with warnings.catch_warnings(action="ignore"), suppress(Exception):  # SIGTERM may have ended its Java as well
            spark.stop()
    _print(summary)
    return 0


@contextmanager
def _starting(*, silent: bool) -> Iterator[None]:
    """The body starts Spark, which says nothing on standard error if it is to be silent, now or later.

    Raises:
        RuntimeError: The body failed; the text says why.
    """
    sys.stderr.flush()
    ours = os.dup(2)
    with tempfile.TemporaryFile() as said:
        if silent:
            os.dup2(said.fileno(), 2)
        try:
            yield
        except Exception as error:
            said.seek(0)
            reason = _reason(str(error), said.read().decode(errors="replace"))
            hint = "--spark spark.log.level=INFO shows more"
            raise RuntimeError(f"Spark did not start: {reason}; {hint}") from error
        except BaseException:
            _end_children()
            raise
        finally:
            os.dup2(ours, 2)
            os.close(ours)


def _end_children() -> None:
    """Spark's Java, interrupted while it starts, would stay for ever: it ignores Ctrl-C, and nobody knows it yet."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=False)  # noqa: S607
    for line in listed.stdout.splitlines():
        pid, parent = line.split()
        if int(parent) == os.getpid():
            with suppress(ProcessLookupError):  # `ps` itself has ended
                os.kill(int(pid), signal.SIGTERM)


_CHATTER = re.compile(r"WARNING|Using Spark's default|Setting|To adjust|\d\d/\d\d/\d\d ")


def _reason(error: str, said: str) -> str:
    """The line that tells why Spark did not start, of what Python raised and of what Java, or its script, said."""
    complaints = [line for line in said.splitlines() if line.strip() and not _CHATTER.match(line)]
    if "JAVA_GATEWAY_EXITED" in error and complaints:
        return complaints[0]
    lines = error.strip().splitlines() or ["nothing is known"]
    return next((line.removeprefix(": ") for line in lines if line.startswith(": ")), lines[0])


def _print(summary: ArchiveSummary) -> None:
    rows = [(topic.topic, topic.partitions, topic.records, topic.files, topic.size) for topic in summary.topics]
    title = f"{summary.records} records to {summary.destination} in {summary.seconds:.1f} s"
    output.table(["topic", "partitions", "records", "files", "bytes"], rows, title=title)
    for topic in summary.topics:
        if topic.lost:
            output.warn(f"{topic.topic}: {topic.lost} offsets were gone before they were archived")


def _shown(what: str) -> AbstractContextManager[object]:
    """People see what the body does while it takes its time."""
    if not output.is_terminal():
        return nullcontext()
    from rich.console import Console

    return Console().status(f"{what} …")


def _progress() -> Any:
    """A bar per step for people; nothing in a pipe."""
    if not output.is_terminal():
        return nullcontext(None)
    return _Bars()


_UNITS = {"plan": "", "read": "records", "write": "records", "publish": "files"}


class _Bars:
    """Shows the steps of a run as bars."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f} of {task.total:,.0f} {task.fields[unit]}"),
            TimeElapsedColumn(),
            transient=True,
        )
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Any:
        self._progress.start()
        return self._show

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _show(self, step: str, done: int, total: int) -> None:
        if step not in self._tasks:
            self._tasks[step] = self._progress.add_task(step, total=total, unit=_UNITS.get(step, ""))
        self._progress.update(self._tasks[step], completed=done, total=total)
