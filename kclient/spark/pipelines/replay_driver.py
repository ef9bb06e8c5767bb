"""The driver of a replay, or of a mirror, while Spark's tasks write."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from kclient.errors import KafkaError
from kclient.spark.pipelines.failures import PipelineError
from kclient.spark.pipelines.job import cause_of, run_job
from kclient.spark.pipelines.replay_planning import shares_of
from kclient.spark.pipelines.replay_target import ReplayTarget
from kclient.spark.pipelines.replay_tasks import RECEIPT, PartitionReceipt, Replayed, Replaying, ReplayJob, receipt_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_S = 1.0
"""Seconds between two looks at the positions."""


def carried_out(
    spark: SparkSession, job: ReplayJob, todo: Sequence[Replayed], look: Callable[[], None]
) -> list[PartitionReceipt]:
    """Have Spark's tasks do it.

    Args:
        spark: The session.
        job: What the tasks share.
        todo: The partitions.
        look: Called meanwhile; what it raises ends the job.

    Raises:
        KafkaError: What a task raised.
    """
    context, noun = spark.sparkContext, job.work.noun
    shares = shares_of(todo, context.defaultParallelism, job.rate)
    numbers = spark.range(0, len(shares), 1, len(shares))
    told = numbers.mapInArrow(Replaying(job, shares).run, RECEIPT)

    def collect() -> list[PartitionReceipt]:
        try:
            rows = told.collect()
        except Exception as error:
            raise cause_of(error, job.work.failure) from error
        return [receipt_of(row.receipt) for row in rows]

    return run_job(context, f"kclient-{noun}-{job.run}", f"kclient {noun}", collect, look)


def by_partition(
    receipts: Sequence[PartitionReceipt], todo: Sequence[Replayed], failure: type[PipelineError]
) -> dict[tuple[str, int], PartitionReceipt]:
    """The receipts of a job, by source topic and partition.

    Raises:
        PipelineError: There is not one for each partition; of the given kind.
    """
    found = {(each.topic, each.partition): each for each in receipts}
    if found.keys() != {key_of(each) for each in todo} or len(receipts) != len(todo):
        raise failure("tasks gave receipts of other partitions than planned; run again, it goes on: a bug")
    return found


def key_of(todo: Replayed) -> tuple[str, int]:
    """The source topic and partition."""
    return todo.source.topic, todo.source.partition


def size_of(todo: Sequence[Replayed]) -> int:
    """How many offsets there are."""
    return sum(max(0, each.end - each.start) for each in todo)


def nothing() -> None:
    """Nobody watches."""


class Watch:
    """Tells how far a run is, by what is committed of it.

    Args:
        target: Where to.
        todo: What is done, from where each partition was.
        report: Called with the name of the step, what is done and what there is: offsets of the source.
        step: That name.
    """

    def __init__(
        self,
        target: ReplayTarget,
        todo: Sequence[Replayed],
        report: Callable[[str, int, int], None],
        step: str = "replay",
    ) -> None:
        self._target = target
        self._todo = todo
        self._report = report
        self._step = step
        self._looked = time.monotonic()

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        with suppress(KafkaError):  # a look that fails is no reason to end the run: its tasks tell what is wrong
            reached = self._target.reached(self._todo)
            done = sum(min(reached.get(key_of(each), each.start), each.end) - each.start for each in self._todo)
            self._report(self._step, done, size_of(self._todo))
