"""What is in a topic, or in what an archive holds of one: sizes, rates, and how evenly keys and partitions share it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from kclient.arguments import as_count, check_callback, shown
from kclient.errors import ConfigError
from kclient.spark.pipelines.audit_sides import ArchivedTopic, ReadableSide, TopicAt, check_side, opened
from kclient.spark.pipelines.failures import StatsError
from kclient.spark.pipelines.job import OnProgress, collected
from kclient.spark.pipelines.stats_counting import RangeCounter, by_key
from kclient.spark.pipelines.stats_report import SPANS_MS, StatsReport
from kclient.spark.pipelines.stats_results import (
    KeyShare,
    KeyStats,
    by_partition,
    keys_from_text,
    keys_to_text,
    largest,
    range_from_text,
    range_to_text,
)

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

_COUNTED = "result string, key binary, records long, size long"
_TOLD = "result string, keys string"
_RANGE = 1_000_000


@dataclass(frozen=True)
class CountedRange:
    """What a task reads: of a partition, from an offset to before another."""

    partition: int
    start: int
    end: int


def stats(
    spark: SparkSession,
    source: TopicAt | ArchivedTopic,
    *,
    per: str = "hour",
    keys: bool = True,
    top: int = 20,
    progress: OnProgress | None = None,
) -> StatsReport:
    """Counts what a topic holds now, or an archive of it.

    Args:
        spark: the session that does the work; its settings are left as they are.
        source: a `TopicAt` or an `ArchivedTopic`.
        per: rates are told by `minute`, `hour` or `day` of the records' timestamps.
        keys: whether to count keys, which go through a shuffle for that (their values do not).
        top: how many of the keys with the most records are told.
        progress: called with the step's name (`plan`, `count`), what is done and what there is: offsets.

    Raises:
        ConfigError: an argument or a setting is wrong.
        TypeError, ValueError: `top` is no number from 1 on.
        UnknownTopicOrPartitionError: the topic does not exist.
        ArchiveError: the archive is none, is damaged, or does not hold the topic.
        DataLossError: records were deleted, or the topic created again, while it was read.
        StatsError: the job failed.
        KafkaError: no broker answers.
    """
    most = check_stats(source, per=per, top=top)
    if not hasattr(spark, "sparkContext"):
        raise ConfigError("stats needs a Spark session of its own process; one of Spark Connect has no job groups")
    check_callback(progress, "progress")
    report = progress or (lambda step, done, total: None)
    started = time.monotonic()
    report("plan", 0, 1)
    side = opened(source)
    ranges = [
        CountedRange(partition, first, min(first + _RANGE, end))
        for partition, (start, end) in sorted(side.bounds.items())
        for first in range(start, max(end, start + 1), _RANGE)
    ]
    report("plan", 1, 1)
    counting = Counting(side, ranges, SPANS_MS[per], most if keys else None)
    texts, keyed = _counted(spark, counting, ranges, report)
    found = by_partition(map(range_from_text, texts))
    told = reduce(lambda one, other: one.joined(other, most), map(keys_from_text, keyed), KeyStats(0, ()))
    return StatsReport(str(source), per, found, told if keys else None, side.notes, time.monotonic() - started)


def check_stats(source: Any, *, per: str, top: int) -> int:
    """Whether `stats` would take these, as far as can be said without Spark and without asking a broker: `top`.

    Raises:
        ConfigError: one is wrong.
        TypeError, ValueError: `top` is no number from 1 on.
    """
    check_side(source)
    if not isinstance(per, str) or per not in SPANS_MS:
        raise ConfigError(f"rates are told by {', '.join(SPANS_MS)}, not by {shown(per)}")
    most = as_count(top, "top")
    if most is None:
        raise ConfigError("top is how many keys are told, from 1 on")
    return most


class Counting:
    """The tasks: some read ranges and count, and where keys are counted others get all that belongs to a key.

    Args:
        side: What is counted.
        ranges: What each task reads.
        span_ms: How long a span of time is, in milliseconds.
        top: How many keys are told; None where they are not counted.
    """

    def __init__(self, side: ReadableSide, ranges: Sequence[CountedRange], span_ms: int, top: int | None) -> None:
        self._side = side
        self._ranges = tuple(ranges)
        self._span_ms = span_ms
        self.top: int | None = top

    def read(self, numbers: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """The function for `mapInArrow`: from `id long` to keys, and in the end a row with what was found in the range.

        Such a row goes the way of the keys, so that a task that is tried again counts once.
        """
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from self._read(self._ranges[number])

    def _read(self, wanted: CountedRange) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        counter = RangeCounter(wanted.partition, wanted.start, wanted.end, self._span_ms)
        for batch in self._side.batches(wanted.partition, wanted.start, wanted.end):
            sizes = counter.add(batch)
            if self.top is not None:
                for part in by_key(batch, sizes).to_batches():
                    nothing = pyarrow.nulls(part.num_rows, pyarrow.string())
                    yield _counted_rows(nothing, *part.columns)
        text = pyarrow.array([range_to_text(counter.found())], pyarrow.string())
        yield _counted_rows(
            text,
            pyarrow.nulls(1, pyarrow.binary()),
            pyarrow.nulls(1, pyarrow.int64()),
            pyarrow.nulls(1, pyarrow.int64()),
        )

    def tell(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """The function for `mapInArrow`: from one row for each key, and those of ranges, to `result` and `keys`."""
        import pyarrow

        most = self.top or 0
        found = KeyStats(0, ())
        for batch in batches:
            ranges = batch.filter(batch.column("result").is_valid())
            if ranges.num_rows:
                nothing = pyarrow.nulls(ranges.num_rows, pyarrow.string())
                yield pyarrow.RecordBatch.from_arrays([ranges.column("result"), nothing], names=["result", "keys"])
            keyed = batch.filter(batch.column("key").is_valid())
            found = found.joined(KeyStats(keyed.num_rows, _largest_of(keyed, most)), most)
        if found.distinct:
            arrays = [pyarrow.nulls(1, pyarrow.string()), pyarrow.array([keys_to_text(found)], pyarrow.string())]
            yield pyarrow.RecordBatch.from_arrays(arrays, names=["result", "keys"])


def _counted_rows(*columns: Any) -> pyarrow.RecordBatch:
    import pyarrow

    return pyarrow.RecordBatch.from_arrays(list(columns), names=["result", "key", "records", "size"])


def _largest_of(batch: pyarrow.RecordBatch, most: int) -> tuple[KeyShare, ...]:
    """The keys of the most records in a batch of `key`, `records` and `size`."""
    from pyarrow import compute

    ranking = [("records", "descending"), ("size", "descending"), ("key", "ascending")]
    first = compute.sort_indices(batch.select(["key", "records", "size"]), sort_keys=ranking)[:most]
    rows = batch.take(first)
    columns = (rows.column(name).to_pylist() for name in ("key", "records", "size"))
    return largest((KeyShare(bytes(key), records, size) for key, records, size in zip(*columns, strict=True)), most)


def _counted(
    spark: SparkSession, counting: Counting, ranges: Sequence[CountedRange], report: OnProgress
) -> tuple[list[str], list[str]]:
    """What was found in ranges, and of keys."""
    from pyspark.sql import functions

    if not ranges:
        return [], []
    numbers = spark.range(0, len(ranges), 1, len(ranges))
    told = numbers.mapInArrow(counting.read, _COUNTED)
    if counting.top is not None:
        sums = [functions.sum(name).alias(name) for name in ("records", "size")]
        told = told.groupBy("result", "key").agg(*sums).mapInArrow(counting.tell, _TOLD)
    total = sum(each.end - each.start for each in ranges)
    rows = collected(told, "stats", StatsError, lambda percent: report("count", total * percent // 100, total))
    texts = [row.result for row in rows if row.result is not None]
    return texts, [row.keys for row in rows if row.result is None] if counting.top is not None else []
