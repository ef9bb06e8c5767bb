"""A Spark job that can be watched and that ends with its caller."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from kclient import errors
from kclient.errors import KafkaError
from kclient.spark.pipelines.failures import (
    AuditError,
    CompactError,
    MirrorError,
    PipelineError,
    ReplayError,
    StatsError,
)
from kclient.spark.pipelines.manifest import ArchiveError
from kclient.spark.ranges import DataLossError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, Row

T = TypeVar("T")

OnProgress = Callable[[str, int, int], None]
"""Told of a step's name, what is done of it, and what there is."""

_PROPERTIES = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
_LOOK_S = 0.25
_END_S = 15.0
"""How long to wait for the tasks of a job that was cancelled."""
_OWN: tuple[type[KafkaError], ...] = (
    DataLossError, ArchiveError, ReplayError, MirrorError, AuditError, StatsError, CompactError,
)  # fmt: skip
"""What tasks raise of these pages' own."""
_RAISED = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?([A-Z]\w*(?:Error|Exception)): (.*)$")


def run_job(context: SparkContext, group: str, description: str, work: Callable[[], T], look: Callable[[], None]) -> T:
    """What `work` returns, whose Spark jobs belong to the group.

    Spark is called in a thread of its own. The caller's has its own job group and other local properties unchanged; and
    an interruption of it cannot leave half an answer on its connection to Java, which no later call would survive.

    Args:
        context: Where the jobs run.
        group: The job group; no other job has it.
        description: What Spark shows of it.
        work: Calls Spark.
        look: Called again and again meanwhile, and once at the end; what it raises ends the job.
    """
    from pyspark import InheritableThread

    results = list[T]()
    failures = list[BaseException]()

    def body() -> None:
        try:
            with _job_group(context, group, description):
                results.append(work())
        except BaseException as error:  # noqa: BLE001  (raised by the caller's thread)
            failures.append(error)

    thread = InheritableThread(target=body, name="kclient-pipeline")
    thread.daemon = True  # where even cancelling fails, the program may end
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_LOOK_S)
            look()
    except BaseException:
        _cancel(context, group)
        thread.join(_END_S)
        raise
    if failures:
        raise failures[0]
    return results[0]


def collected(frame: DataFrame, name: str, failure: type[PipelineError], report: Callable[[int], None]) -> list[Row]:
    """The rows of a pipeline's frame.

    Args:
        frame: What is collected.
        name: The pipeline's.
        failure: What it raises where what a task raised is no error of Kafka's.
        report: Called meanwhile with how many percent of the tasks that read have ended; at the end with 100.
    """
    context, group = frame.sparkSession.sparkContext, f"kclient-{name}-{uuid.uuid4().hex[:16]}"

    def collect() -> list[Row]:
        try:
            return frame.collect()
        except Exception as error:
            raise cause_of(error, failure) from error

    def look() -> None:
        done, tasks = _tasks_done(context, group)
        if tasks:
            report(100 * done // tasks)

    rows = run_job(context, group, f"kclient {name}", collect, look)
    report(100)
    return rows


def _tasks_done(context: SparkContext, group: str) -> tuple[int, int]:
    """How many tasks of a job group's first stage have ended, and how many it has; 0 and 0 while Spark knows of none.

    The first stage reads. Those behind a shuffle are left out: adaptive execution makes jobs of their own of them while
    it goes on, which list the stages before once more as skipped, so that what is done would seem to grow less.
    """
    tracker = context.statusTracker()
    jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup(group))
    first = min((stage for about in jobs if about is not None for stage in about.stageIds), default=None)
    info = None if first is None else tracker.getStageInfo(first)
    return (0, 0) if info is None else (info.numCompletedTasks, info.numTasks)


@contextmanager
def _job_group(context: SparkContext, group: str, description: str) -> Iterator[None]:
    """Jobs of the body belong to the group; where threads share their properties, the former ones come back."""
    before = {name: context.getLocalProperty(name) for name in _PROPERTIES}
    context.setJobGroup(group, description)
    try:
        yield
    finally:
        with suppress(Exception):  # Spark may be gone: what the body raised counts
            for name, value in before.items():
                context.setLocalProperty(name, value)  # type: ignore[arg-type]  # None clears it


def _cancel(context: SparkContext, group: str) -> None:
    """Ends the group's jobs, and waits until their tasks are over."""
    with suppress(Exception):  # Spark may be gone
        context.cancelJobGroup(group)
        tracker = context.statusTracker()
        deadline = time.monotonic() + _END_S
        while time.monotonic() < deadline and set(tracker.getJobIdsForGroup(group)) & set(tracker.getActiveJobsIds()):
            time.sleep(0.05)


def cause_of(error: Exception, failure: type[PipelineError] = ArchiveError) -> KafkaError:
    """What a task raised, out of the text that Spark made of it.

    Args:
        error: What Spark raised.
        failure: What the pipeline raises where it is no error of Kafka's.
    """
    text = str(error).strip() or type(error).__name__
    if isinstance(error, ConnectionError):
        return failure(f"Spark's Java process does not answer any more; was it killed? ({text.splitlines()[0]})")
    raised = [found for line in _traceback_in(text) if (found := _RAISED.match(line))]
    if raised:  # the last one is what the others led to
        kind, told = raised[-1].groups()
        return _again(kind, told, failure)
    return failure(f"the Spark job failed: {text.splitlines()[0]}")


def _traceback_in(text: str) -> Iterator[str]:
    """The lines of Python's traceback, up to Java's."""
    _, _, rest = text.partition("Traceback (most recent call last)")
    for line in rest.splitlines():
        if line.startswith(("\tat ", "Caused by: ")):
            return
        yield line


def _again(kind: str, text: str, failure: type[PipelineError]) -> KafkaError:
    own = next((each for each in _OWN if each.__name__ == kind), None)
    if own is not None:
        return own(text)
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, KafkaError):
        with suppress(TypeError):
            return known(text)
    if kind in ("ModuleNotFoundError", "MissingExtraError"):
        return failure(f"Spark's workers run a Python that lacks a package: {text}{_remedy(text)}")
    return failure(f"a task failed: {kind}: {text}")


def _remedy(text: str) -> str:
    if "pip install" in text:
        return ""
    return (
        "; pip install 'htp-kclient[spark]' for that Python, or name the one that has it (PYSPARK_PYTHON or "
        "spark.pyspark.python)"
    )
