"""Two of {topic, archive, another cluster's topic} compared, record by record: where they part, and what either lacks.

Spark's tasks read both sides of a range and tell what they found in a few numbers; no record goes through a shuffle.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kclient.arguments import as_names, check_callback, shown
from kclient.errors import ConfigError
from kclient.spark.pipelines.audit_compare import CONTENT, Comparison, Rules
from kclient.spark.pipelines.audit_report import AuditReport
from kclient.spark.pipelines.audit_results import RangeResult, from_text, to_text
from kclient.spark.pipelines.audit_sides import ArchivedTopic, ReadableSide, TopicAt, check_side, opened
from kclient.spark.pipelines.failures import AuditError
from kclient.spark.pipelines.job import OnProgress, collected

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

_WAYS = ("auto", "offset", "order")
_EMPTY = (0, 0)


@dataclass(frozen=True)
class Stretch:
    """What a task compares: of a partition, from which offset to before which one at either side."""

    partition: int
    left: tuple[int, int]
    right: tuple[int, int]

    def __len__(self) -> int:
        return max(self.left[1] - self.left[0], self.right[1] - self.right[0])


def audit(
    spark: SparkSession,
    left: TopicAt | ArchivedTopic,
    right: TopicAt | ArchivedTopic,
    *,
    by: str = "auto",
    overlap: bool = False,
    ignore: Collection[str] = (),
    range_size: int = 1_000_000,
    progress: OnProgress | None = None,
) -> AuditReport:
    """Compares two topics, or a topic and an archive, or two archives.

    Args:
        spark: the session that does the work; its settings are left as they are.
        left: what is taken for the original: `TopicAt` or `ArchivedTopic`.
        right: what is compared with it.
        by: `offset`: records are counterparts that have the same offset; `order`: that come in the same place of their
            partition, whatever their offsets, as after a replay. `auto` takes offsets where both sides are of one
            topic, by its id, else the order.
        overlap: by offset, compare only what lies within the bounds of both sides; else what lies outside of one is
            missing there.
        ignore: which of `key`, `value`, `headers` and `timestamp` do not count. Times of arrival (LogAppendTime) never
            do, except by offset where both sides have them: what lies between them and the other side's is the latency.
        range_size: how many offsets, or records, a range has: each has its checksums.
        progress: called with the step's name (`plan`, `compare`), what is done and what there is: offsets.

    Raises:
        ConfigError: an argument or a setting is wrong.
        UnknownTopicOrPartitionError: a topic does not exist.
        ArchiveError: an archive is none, is damaged, or does not hold the topic.
        DataLossError: records were deleted, or a topic created again, while they were read.
        AuditError: the job failed.
        KafkaError: brokers cannot be reached.
    """
    check_audit(left, right, by=by, overlap=overlap, ignore=ignore, range_size=range_size)
    if not hasattr(spark, "sparkContext"):
        raise ConfigError("audit needs a Spark session of its own process; one of Spark Connect has no job groups")
    check_callback(progress, "progress")
    report = progress or (lambda step, done, total: None)
    started = time.monotonic()
    report("plan", 0, 1)
    sides = opened(left), opened(right)
    by_offset = by == "offset" or (by == "auto" and sides[0].topic_id == sides[1].topic_id)
    if overlap and not by_offset:
        raise ConfigError("overlap is for audits by offset: in order, records have no place of their own")
    rules = Rules(by_offset, frozenset(ignore), range_size)
    stretches = stretches_of(sides, by_offset=by_offset, overlap=overlap, size=range_size)
    report("plan", 1, 1)
    results = _compared(spark, sides, rules, stretches, report)
    notes = tuple(dict.fromkeys((*sides[0].notes, *sides[1].notes)))
    return AuditReport(
        str(left), str(right), "offset" if by_offset else "order", tuple(sorted(ignore)), tuple(results), notes,
        time.monotonic() - started,
    )  # fmt: skip


def check_audit(left: Any, right: Any, *, by: str, overlap: bool, ignore: Collection[str], range_size: int) -> None:
    """Whether `audit` would take these, as far as can be said without Spark and without asking a broker.

    Raises:
        ConfigError: one is wrong.
    """
    check_side(left)
    check_side(right)
    if by not in _WAYS:
        raise ConfigError(f"an audit goes by one of {', '.join(_WAYS)}, not {shown(by)}")
    if overlap and by == "order":
        raise ConfigError("overlap is for audits by offset: in order, records have no place of their own")
    unknown = sorted(set(as_names(ignore, "columns that do not count", empty=True)) - set(CONTENT))
    if unknown:
        raise ConfigError(f"what may be left out is {', '.join(CONTENT)}, not {', '.join(map(shown, unknown))}")
    if isinstance(range_size, bool) or not isinstance(range_size, int) or range_size < 1:
        raise ConfigError(f"range_size is a number of records greater than 0, not {shown(range_size)}")


def stretches_of(sides: Sequence[ReadableSide], *, by_offset: bool, overlap: bool, size: int) -> list[Stretch]:
    """What tasks compare. By offset these are ranges; in order a partition cannot be divided."""
    found = []
    for partition in sorted({*sides[0].bounds, *sides[1].bounds}):
        left, right = (side.bounds.get(partition, _EMPTY) for side in sides)
        if not by_offset:
            found.append(Stretch(partition, left, right))
            continue
        known = [bounds for bounds in (left, right) if bounds[0] < bounds[1]]
        start, end = min((each[0] for each in known), default=0), max((each[1] for each in known), default=0)
        if overlap:
            start, end = max(left[0], right[0]), min(left[1], right[1])
        for first in range(start, max(end, start + 1), size):
            last = max(first, min(first + size, end))
            found.append(Stretch(partition, _within(left, first, last), _within(right, first, last)))
    return found


def _within(bounds: tuple[int, int], first: int, last: int) -> tuple[int, int]:
    start = min(max(bounds[0], first), last)
    return start, max(start, min(bounds[1], last))


class Comparing:
    """The tasks: each gets the number of its stretch, and gives what it found.

    Args:
        sides: What is compared.
        rules: How.
        stretches: What each task compares.
    """

    def __init__(self, sides: Sequence[ReadableSide], rules: Rules, stretches: Sequence[Stretch]) -> None:
        self._left, self._right = sides
        self._rules = rules
        self._stretches = tuple(stretches)

    def run(self, numbers: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """The function for `mapInArrow`: from `id long` to `result string`."""
        import pyarrow

        for batch in numbers:
            for number in batch.column(0).to_pylist():
                texts = [to_text(each) for each in self.compare(self._stretches[number])]
                yield pyarrow.RecordBatch.from_arrays([pyarrow.array(texts, pyarrow.string())], names=["result"])

    def compare(self, stretch: Stretch) -> Iterator[RangeResult]:
        """What is found in a stretch."""
        left = self._left.batches(stretch.partition, *stretch.left)
        right = self._right.batches(stretch.partition, *stretch.right)
        leading = (
            stretch.left[0] <= self._left.bounds.get(stretch.partition, _EMPTY)[0],
            stretch.right[0] <= self._right.bounds.get(stretch.partition, _EMPTY)[0],
        )
        comparison = Comparison(self._rules, stretch.partition, (stretch.left, stretch.right), leading)
        yield from comparison.ranges(left, right)


def _compared(
    spark: SparkSession, sides: Sequence[ReadableSide], rules: Rules, stretches: Sequence[Stretch], report: OnProgress
) -> list[RangeResult]:
    if not stretches:
        return []
    numbers = spark.range(0, len(stretches), 1, len(stretches))
    told = numbers.mapInArrow(Comparing(sides, rules, stretches).run, "result string")
    total = sum(map(len, stretches))
    rows = collected(told, "audit", AuditError, lambda percent: report("compare", total * percent // 100, total))
    return [from_text(row.result) for row in rows]
