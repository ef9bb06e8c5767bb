"""Spark for the commands that run on it: started without a word, ended whatever happens; and bars for its steps."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from kclient.cli import output
from kclient.cli.errors import UsageError, check_terminated
from kclient.errors import MissingExtraError

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql import SparkSession

_SPARK_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",  # what fails is raised, and said in one sentence
}


def check_spark(spark_settings: Mapping[str, str], what: str) -> None:
    """Whether Spark is installed, and its settings are none that are the command's own.

    Args:
        spark_settings: What the user gave.
        what: What needs it, such as "The archive pipeline".

    Raises:
        UsageError: a setting has an option of its own.
        MissingExtraError: PySpark is not installed.
    """
    if "spark.master" in spark_settings:
        raise UsageError("--master says where Spark runs, not --spark spark.master")
    try:
        import pyspark  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError("pyspark", "spark", what) from error


@contextmanager
def spark_session(name: str, master: str, spark_settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session for the body.

    Raises:
        RuntimeError: Spark did not start; the text says why.
    """
    from pyspark.sql import SparkSession

    # py4j logs a traceback of its own when a call is interrupted; what is raised is said in one sentence
    logging.getLogger().addHandler(logging.NullHandler())
    # the workers need what this process has installed
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).master(master)
    for setting, value in {**_SPARK_SETTINGS, **spark_settings}.items():
        builder = builder.config(setting, value)
    check_terminated()
    silent = "spark.log.level" not in spark_settings
    with _noted_interruptions() as interrupted, shown("starting Spark"), _starting(silent=silent):
        spark = builder.getOrCreate()
    try:
        check_terminated()
        if interrupted:
            raise KeyboardInterrupt
        yield spark
    finally:
        with warnings.catch_warnings(action="ignore"), suppress(Exception):  # SIGTERM may have ended its Java as well
            spark.stop()


@contextmanager
def _noted_interruptions() -> Iterator[list[int]]:
    """Holds the signal once Ctrl-C was pressed: where Java is forked what it raises gets lost at times."""
    found = list[int]()
    if threading.current_thread() is not threading.main_thread():
        yield found
        return
    before = signal.getsignal(signal.SIGINT)

    def interrupt(number: int, frame: FrameType | None) -> None:
        found.append(number)
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield found
    finally:
        if signal.getsignal(signal.SIGINT) is interrupt:  # Spark has its own, which cancels jobs
            signal.signal(signal.SIGINT, before)


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
        except BaseException:  # Ctrl-C: Java, which is just starting, would stay
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


def shown(what: str) -> AbstractContextManager[object]:
    """People see what the body does while it takes its time."""
    if not output.is_terminal():
        return nullcontext()
    from rich.console import Console
    from rich.text import Text

    return Console().status(Text(f"{what} …"))


def progress() -> Any:
    """A bar per step for people; nothing in a pipe."""
    if not output.is_terminal():
        return nullcontext(None)
    return _Bars()


_UNITS = {
    "plan": "", "read": "offsets", "write": "records", "publish": "files", "replay": "offsets", "mirror": "offsets",
    "compare": "offsets", "count": "offsets",
}  # fmt: skip


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
