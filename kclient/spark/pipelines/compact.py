"""A topic to a table of the latest record of each key: Parquet, made anew of the last one and of what is new.

A run is all or nothing: it reads ranges that were fixed before, writes a table of its own, checks what tasks say they
did, and then has the link `current` name that table (see `compact_folder`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kclient.arguments import check_callback
from kclient.errors import ConfigError
from kclient.spark.cluster import NO_TOPIC_ID
from kclient.spark.pipelines.audit_sides import ArchivedTopic, ReadableSide, TopicAt, check_side, opened, with_own_ends
from kclient.spark.pipelines.compact_folder import CompactedTable, CompactFolder, StagedTable, is_seen
from kclient.spark.pipelines.compact_tasks import (
    RECEIPTS,
    SCHEMA,
    SORTED_BY,
    FormerFile,
    NewRange,
    TableReading,
    TableReadReceipt,
    TableWriting,
    WriteReceipt,
    receipt_of,
    write_empty,
)
from kclient.spark.pipelines.failures import CompactError
from kclient.spark.pipelines.job import OnProgress, collected
from kclient.spark.pipelines.parquet_choices import codec_of
from kclient.spark.pipelines.places import local_folder
from kclient.spark.ranges import DataLossError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RANGE = 1_000_000
"""A task reads so many offsets at most."""


@dataclass(frozen=True)
class CompactSummary:
    """What a run did, or in a dry run would do.

    Attributes:
        source: the topic and where it is.
        destination: the folder.
        table: the folder of the table that counts now; None where there is none yet.
        number: of the run that made it, from 1 on; 0 where there is none.
        partitions: of how many partitions there were new offsets.
        offsets: how many offsets were new: records, and what is between them.
        records: how many records were read; 0 in a dry run.
        rows: how many rows the table has.
        tombstones: how many keys have a latest record without a value.
        split_keys: how many keys have records in several partitions: of these the latest timestamp counts.
        null_keys: how many records without a key this run has left out.
        lost: how many offsets were gone before they were read.
        size: the bytes of the table's files.
        seconds: the run's wall time.
        dry_run: whether nothing was written.
    """

    source: str
    destination: Path
    table: Path | None
    number: int
    partitions: int
    offsets: int
    records: int
    rows: int
    tombstones: int
    split_keys: int
    null_keys: int
    lost: int
    size: int
    seconds: float
    dry_run: bool = False

    def to_json(self) -> str:
        """As one JSON object."""
        paths = {"destination": str(self.destination), "table": None if self.table is None else str(self.table)}
        return json.dumps({**asdict(self), **paths})


def compact(
    spark: SparkSession | None,
    source: TopicAt | ArchivedTopic,
    destination: str | Path,
    *,
    headers: bool = False,
    keep_tombstones: bool = False,
    refuse_null_keys: bool = False,
    fail_on_data_loss: bool = True,
    restart_recreated: bool = False,
    dry_run: bool = False,
    progress: OnProgress | None = None,
) -> CompactSummary:
    """Makes a table of the latest record of each key: of what is new since the last run, and of the last run's table.

    Of a partition the record with the greatest offset is the latest. Of a key with records in several partitions, the
    latest of each are compared by timestamp, then by partition and offset.

    Args:
        spark: the session that does the work; its settings are left as they are. A dry run needs none.
        source: a `TopicAt`, or an `ArchivedTopic`. Later runs may read the same topic from the other one.
        destination: a folder on a file system that driver and workers share, as a path or a `file:` URL, of this topic
            alone. Its link `current` names the table; `compacted_table` tells the folder.
        headers: whether the table has a column for headers.
        keep_tombstones: keep a row, with null for the value, of keys whose latest record has no value; else there is
            none.
        refuse_null_keys: raise where records have no key; else they are left out, and counted.
        fail_on_data_loss: raise where records were deleted that no run has read; else go on with what is there.
        restart_recreated: begin a new table where the topic was deleted and created again; else that is an error.
        dry_run: only look, and say what would be done.
        progress: called with the step's name (`plan`, `read`, `publish`), what is done and what there is: offsets that
            were read, files of the table.

    Returns:
        What was done. Where nothing is new the table is left as it is.

    Raises:
        ConfigError: an argument or a setting is wrong.
        UnknownTopicOrPartitionError: the topic does not exist.
        ArchiveError: the archive is none, is damaged, or does not hold the topic.
        DataLossError: records are gone that no run has read, and `fail_on_data_loss` is true.
        CompactError: the folder is another topic's, in use, or cannot be written; the topic was created again; there
            are records without keys, and `refuse_null_keys` is true; or the job failed. The former table is left.
        KafkaError: no broker answers.
    """
    check_side(source)
    check_callback(progress, "progress")
    folder = local_folder(destination, "the table's folder")
    if not dry_run and not hasattr(spark, "sparkContext"):
        raise ConfigError("compact needs a Spark session of its own process; one of Spark Connect has no job groups")
    run = CompactRun(
        None if dry_run else spark, source, folder, headers=headers, keep_tombstones=keep_tombstones,
        refuse_null_keys=refuse_null_keys, fail_on_data_loss=fail_on_data_loss, restart_recreated=restart_recreated,
        progress=progress,
    )  # fmt: skip
    return run.look() if dry_run else run.run()


def check_table_folder(destination: str | Path) -> None:
    """Whether `compact` would take the destination, as far as can be said without making anything.

    Raises:
        ConfigError: it is none that tables can be written to.
        CompactError: it cannot be written, or is an archive's.
    """
    CompactFolder(local_folder(destination, "the table's folder")).check()


@dataclass(frozen=True)
class _Plan:
    side: ReadableSide
    ranges: tuple[NewRange, ...]
    positions: Mapping[int, int]
    lost: int
    former: CompactedTable | None
    """The table that goes into the new one."""

    @property
    def offsets(self) -> int:
        return sum(each.end - each.start for each in self.ranges)


class CompactRun:
    """One run, a method a step; tests stop it between any two."""

    def __init__(
        self,
        spark: SparkSession | None,
        source: TopicAt | ArchivedTopic,
        destination: Path,
        *,
        headers: bool = False,
        keep_tombstones: bool = False,
        refuse_null_keys: bool = False,
        fail_on_data_loss: bool = True,
        restart_recreated: bool = False,
        progress: OnProgress | None = None,
    ) -> None:
        self._spark = spark
        self._source = source
        self._folder = CompactFolder(destination)
        self._headers = headers
        self._keep_tombstones = keep_tombstones
        self._refuse_null_keys = refuse_null_keys
        self._fail_on_data_loss = fail_on_data_loss
        self._restart_recreated = restart_recreated
        self._report = progress or (lambda step, done, total: None)
        self._compression = "snappy" if spark is None else codec_of(spark)
        self._started = time.monotonic()

    def look(self) -> CompactSummary:
        """What a run would do."""
        last = self._folder.last()
        return self._summary(self.plan(last), last, dry_run=True)

    def run(self) -> CompactSummary:
        with self._folder.lock():
            last = self._folder.recover()
            todo = self.plan(last)
            if last is not None and todo.former is last and self._is_current(todo, last):
                return self._summary(todo, last)
            with self._folder.run() as staged:
                reads, writes = self.stage(staged, todo)
                table = self._table(staged, todo, last, reads, writes)
                self._folder.commit(staged, table)
            self._folder.discard_dead(table)
            self._report("publish", len(table.files), len(table.files))
        left_out = table.null_keys - (todo.former.null_keys if todo.former else 0)
        read = sum(each.records for each in reads if each.task < len(todo.ranges))
        gone = sum(each.lost for each in reads)
        return self._summary(todo, table, records=read, null_keys=left_out, gone=gone)

    def _is_current(self, todo: _Plan, last: CompactedTable) -> bool:
        return (todo.positions, self._keep_tombstones) == (last.positions, last.keep_tombstones)

    def plan(self, last: CompactedTable | None) -> _Plan:
        """Fix the topic's id and offsets: from where the last run ended to where each partition ends now.

        Raises:
            DataLossError: records are gone that no run has read.
            CompactError: the folder holds another topic's table, or one of other columns; or the brokers have no ids.
        """
        self._report("plan", 0, 1)
        side = with_own_ends(opened(self._source), fail_on_data_loss=self._fail_on_data_loss)
        if side.topic_id in ("", NO_TOPIC_ID):
            raise CompactError(
                f"the brokers give no topic ids ({self._source}): a topic that is created again would be taken for the"
                " former one; compacting needs Kafka 2.8 or newer"
            )
        former = last if last is not None and self._goes_on(last, side) else None
        known = former.positions if former else {}
        ranges, positions, lost = list[NewRange](), dict(known), list[tuple[int, int, int]]()
        for partition, (begin, end) in sorted(side.bounds.items()):
            # of a topic that was read before, a partition that was not there begins at 0
            place = known.get(partition, 0 if former and isinstance(self._source, TopicAt) else begin)
            whole = side.complete_from(partition) if partition in known else begin
            if place < whole:
                lost.append((partition, place, whole))
            elif place > end and side.ends_below(partition, place):
                lost.append((partition, end, place))
                place = end
            start, positions[partition] = max(place, begin), max(place, end)
            ranges += (NewRange(partition, first, min(first + _RANGE, end)) for first in range(start, end, _RANGE))
        if lost and self._fail_on_data_loss:
            partition, start, end = lost[0]
            raise DataLossError(
                f"records are gone that no run has read, or the log was cut back: of {self._source.topic}-{partition}"
                f" from {start} to before {end}, and of {len(lost) - 1} other partitions; go on with what is there by"
                " --allow-data-loss (fail_on_data_loss=False)"
            )
        self._report("plan", 1, 1)
        return _Plan(side, tuple(ranges), positions, sum(end - start for _, start, end in lost), former)

    def _goes_on(self, last: CompactedTable, side: ReadableSide) -> bool:
        """Whether the last table goes into the new one."""
        if last.topic != self._source.topic:
            raise CompactError(
                f"{self._folder.destination} holds the table of {last.topic}, not of {self._source.topic}: each topic"
                " has a folder of its own"
            )
        if last.topic_id != side.topic_id:
            if self._restart_recreated:
                return False
            raise CompactError(
                f"{last.topic} was deleted and created again since it was compacted (its id was {last.topic_id}, and is"
                f" {side.topic_id}): begin a new table by --restart-recreated (restart_recreated=True), or compact into"
                " another folder"
            )
        if last.headers != self._headers:
            begun, on = ("with", "by --headers (headers=True)") if last.headers else ("without", "without them")
            raise CompactError(
                f"the table in {self._folder.destination} was begun {begun} headers: go on {on}, or compact into"
                " another folder"
            )
        return True

    def stage(self, staged: StagedTable, todo: _Plan) -> tuple[list[TableReadReceipt], list[WriteReceipt]]:
        """Tasks read and write; returns what they say."""
        former = todo.former
        files = [] if former is None else [
            FormerFile(self._folder.table_of(former) / each.path, each.rows) for each in former.files
        ]  # fmt: skip
        sources: list[NewRange | FormerFile] = [*todo.ranges, *files]
        if not sources:
            return [], []
        spark = self._spark
        assert spark is not None, "a dry run writes nothing"
        numbers = spark.range(0, len(sources), 1, len(sources))
        records = numbers.mapInArrow(TableReading(todo.side, sources, self._headers).run, SCHEMA)
        keyed = records.repartition("key").sortWithinPartitions(*SORTED_BY)
        writing = TableWriting(staged, self._source.topic, self._headers, self._keep_tombstones, self._compression)
        total = todo.offsets
        rows = collected(
            keyed.mapInArrow(writing.run, RECEIPTS), "compact", CompactError,
            lambda percent: self._report("read", total * percent // 100, total),
        )  # fmt: skip
        return checked([receipt_of(row.receipt) for row in rows], len(sources))

    def _table(
        self,
        staged: StagedTable,
        todo: _Plan,
        last: CompactedTable | None,
        reads: Sequence[TableReadReceipt],
        writes: Sequence[WriteReceipt],
    ) -> CompactedTable:
        null_keys = sum(each.null_keys for each in reads)
        if null_keys and self._refuse_null_keys:
            raise CompactError(
                f"{null_keys} new records of {self._source} have no key, and none can be the latest of its key; they"
                " are left out without --refuse-null-keys (refuse_null_keys=True); the former table is left"
            )
        tombstones = sum(each.tombstones for each in writes)
        keys = sum(each.keys for each in writes)
        files = [file for each in writes for file in each.files]
        if not any(is_seen(file) for file in files):  # readers want to know the columns
            files.append(write_empty(staged, self._headers))
        former = todo.former
        return CompactedTable(
            1 if last is None else last.number + 1, staged.run, self._source.topic, todo.side.topic_id, self._headers,
            self._keep_tombstones, todo.positions, tuple(files), keys + (tombstones if self._keep_tombstones else 0),
            tombstones, sum(each.split_keys for each in writes), null_keys + (former.null_keys if former else 0),
        )  # fmt: skip

    def _summary(
        self,
        todo: _Plan,
        table: CompactedTable | None,
        *,
        records: int = 0,
        null_keys: int = 0,
        gone: int = 0,
        dry_run: bool = False,
    ) -> CompactSummary:
        return CompactSummary(
            str(self._source), self._folder.destination, None if table is None else self._folder.table_of(table),
            0 if table is None else table.number, len({each.partition for each in todo.ranges}), todo.offsets, records,
            0 if table is None else table.rows, 0 if table is None else table.tombstones,
            0 if table is None else table.split_keys, null_keys, todo.lost + gone, 0 if table is None else table.size,
            time.monotonic() - self._started, dry_run,
        )  # fmt: skip


def checked(
    receipts: Sequence[TableReadReceipt | WriteReceipt], sources: int
) -> tuple[list[TableReadReceipt], list[WriteReceipt]]:
    """The receipts of all tasks, where nothing is missing.

    Raises:
        CompactError: a source was not read, or records that were read did not come to those who write.
    """
    reads = [each for each in receipts if isinstance(each, TableReadReceipt)]
    writes = [each for each in receipts if isinstance(each, WriteReceipt)]
    given, taken = sum(each.given for each in reads), sum(each.taken for each in writes)
    if sorted(each.task for each in reads) != list(range(sources)) or given != taken:
        raise CompactError(
            f"of {sources} tasks {len(reads)} have read {given} records, and {taken} came to those who write; the"
            " former table is left, run again"
        )
    return reads, writes
