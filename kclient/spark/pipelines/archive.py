"""Topics to Parquet, in folders by topic and by the UTC time of the record; a re-run continues where it ended.

The order of steps is what makes it exact (see `folder`): replay what the last run left, fix ranges and topic ids,
stage, verify, commit, move. Killed anywhere, the next run leaves no record out and writes none twice.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kclient.arguments import as_count, as_names, check_callback, check_topic, shown
from kclient.errors import ConfigError
from kclient.records.arrow import COLUMN_NAMES
from kclient.spark.cluster import LiveCluster
from kclient.spark.options import ReadOptions, parse_read_options
from kclient.spark.pipelines.columns import RECEIPTS, SCHEMA
from kclient.spark.pipelines.folder import ArchiveFolder, StagedRun
from kclient.spark.pipelines.job import OnProgress, cause_of, run_job
from kclient.spark.pipelines.layout import BY_DATE, ArchiveLayout, layout_of, topic_of
from kclient.spark.pipelines.manifest import ArchivedFile, ArchivedRange, ArchiveError, Manifest
from kclient.spark.pipelines.parquet_choices import parquet_choices, session_for
from kclient.spark.pipelines.places import local_folder
from kclient.spark.pipelines.planning import ArchivePlan, archivable_topics, plan
from kclient.spark.pipelines.publishing import publish
from kclient.spark.pipelines.receipts import ReadReceipt, Receipt, from_text, verified_files
from kclient.spark.pipelines.settings import text_settings
from kclient.spark.pipelines.tasks import PROGRESS, READ, WRITE, Reading, Writing, progress_of
from kclient.spark.ranges import OffsetRange, split_ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class TopicSummary:
    """What one run archived of a topic, or in a dry run would archive.

    Attributes:
        topic: its name.
        partitions: of how many of its partitions.
        records: how many records were written; 0 in a dry run.
        files: into how many files; 0 in a dry run.
        size: the files' bytes; 0 in a dry run.
        lost: how many offsets were gone before they were archived.
        offsets: how many offsets were read: records, and what is between them.
    """

    topic: str
    partitions: int
    records: int
    files: int
    size: int
    lost: int = 0
    offsets: int = 0


@dataclass(frozen=True)
class ArchiveSummary:
    """What one run did, or in a dry run would do.

    Attributes:
        destination: the archive's folder.
        manifest: the number of the run's manifest; None when there was nothing new, and in a dry run.
        topics: by topic.
        seconds: the run's wall time.
        dry_run: whether nothing was written.
        remaining: how many offsets that were there are left to later runs, because of `max_offsets`.
    """

    destination: Path
    manifest: int | None
    topics: tuple[TopicSummary, ...]
    seconds: float
    dry_run: bool = False
    remaining: int = 0

    @property
    def records(self) -> int:
        """How many records the run archived, of all topics."""
        return sum(topic.records for topic in self.topics)

    def to_json(self) -> str:
        """As one JSON object."""
        return json.dumps({**asdict(self), "destination": str(self.destination), "records": self.records})


def archive(
    spark: SparkSession | None,
    destination: str | Path,
    settings: Mapping[str, Any],
    *,
    topics: Sequence[str] = (),
    pattern: str | None = None,
    fail_on_data_loss: bool = True,
    restart_recreated: bool = False,
    max_offsets: int | None = None,
    min_partitions: int | None = None,
    compression: str | None = None,
    compression_level: int | None = None,
    file_size: int | None = None,
    row_group_size: int | None = None,
    partition_by: str | Sequence[str] | None = None,
    dry_run: bool = False,
    progress: OnProgress | None = None,
) -> ArchiveSummary:
    """Archives what the topics hold now and no earlier run has archived.

    Args:
        spark: the session that does the work; its settings are left as they are. A dry run needs none.
        destination: a folder on a file system that driver and workers share, as a path or a `file:` URL. Parquet files
            come to lie in `topic=NAME/date=YYYY-MM-DD/`, or as `partition_by` says; `_kclient/` holds the manifests.
        settings: the consumer's settings by their Java names; `bootstrap.servers` is required. `isolation.level` is
            `read_committed` unless given: what was aborted is not archived, and what is still open comes later.
        topics: the topics' names; or
        pattern: a regular expression that whole names must match.
        fail_on_data_loss: raise when records were deleted before they were archived; else go on with what is there.
        restart_recreated: archive a topic that was deleted and created again since an earlier run from its new start;
            else that is an error, since its offsets are others than those that the archive holds.
        max_offsets: how many offsets the run takes, of all partitions together and about: each gets its share, and one
            at least; later runs go on. All if None.
        min_partitions: how many tasks read at least, as Spark's `minPartitions`: large ranges are split. One for each
            partition of the topics if None.
        compression: `zstd`, `snappy`, `gzip`, `brotli`, `lz4` or `none`; if None, that of the session
            (`spark.sql.parquet.compression.codec`).
        compression_level: the compression's level, such as 1 to 22 of zstd; its default if None.
        file_size: in bytes: a file that has about so many is followed by another, and tasks get as much as that. If
            None, what Spark gives a task (`spark.sql.adaptive.advisoryPartitionSizeInBytes`) of a topic and date is one
            file.
        row_group_size: in bytes of records in memory, before they are compressed: 67,108,864 (64 MiB) if None. A task
            has about one row group in memory, and so does who reads it.
        partition_by: what the folders are made of, as names or as a text with commas: `topic`; `topic,date`;
            `topic,date,hour`; or `topic` and `year`, `month`, `day`, `hour` up to one of them. Times are the records',
            in UTC. An archive keeps the layout of its first run; if None, it is that, or `topic,date`.
        dry_run: only look, and say what would be done.
        progress: called with the step's name (`plan`, `read`, `write`, `publish`), what is done and what there is, as
            the run goes on: topics' offsets that were read, records that were written, files that were moved.

    Raises:
        ConfigError: a setting is wrong, the destination is none that archives can be written to, or there is no such
            compression, level, size or layout.
        TypeError, ValueError: `max_offsets` or `min_partitions` is no number from 1 on; a level or a size is none.
        UnknownTopicOrPartitionError: a topic does not exist.
        ArchiveError: another run is at work in the folder, it cannot be written or is not shared with the workers, a
            newer release wrote it, it has another layout, a topic was created again, or the brokers give no topic ids
            (Kafka before 2.8).
            Nothing was archived, or the next run goes on.
        DataLossError: records are gone that no run archived, and `fail_on_data_loss` is true.
    """
    if not dry_run and not hasattr(spark, "sparkContext"):
        raise ConfigError("archive needs a Spark session of its own process; one of Spark Connect has no job groups")
    run = ArchiveRun(
        spark, local_folder(destination), settings, topics, pattern, fail_on_data_loss, restart_recreated, progress,
        max_offsets=max_offsets, min_partitions=min_partitions,
        choices=(compression, compression_level, file_size, row_group_size),
        layout=None if partition_by is None else layout_of(partition_by),
    )  # fmt: skip
    return run.look() if dry_run else run.run()


def check_folder(destination: str | Path, partition_by: str | Sequence[str] | None = None) -> None:
    """Whether `archive` would take the destination, and this layout, as far as can be said without making anything.

    Raises:
        ConfigError: it is none that archives can be written to, or there is no such layout.
        ArchiveError: it cannot be written, is damaged, or is laid out otherwise.
    """
    folder = ArchiveFolder(local_folder(destination))
    folder.check()
    if partition_by is not None:
        _check_layout(folder, folder.last(), layout_of(partition_by))


def check_selection(settings: Mapping[str, Any], *, topics: Sequence[str] = (), pattern: str | None = None) -> None:
    """Whether `archive` would take these, without Spark and without asking a broker.

    Raises:
        ConfigError: a setting, a name or the pattern is wrong.
    """
    _read_options(settings, topics, pattern, fail_on_data_loss=True)


def check_topics(settings: Mapping[str, Any], *, topics: Sequence[str] = (), pattern: str | None = None) -> None:
    """Whether there are the topics that `archive` would read: asks the brokers once, without Spark.

    Raises:
        ConfigError: a setting, a name or the pattern is wrong.
        UnknownTopicOrPartitionError: a topic does not exist.
        ArchiveError: a topic cannot be archived.
        KafkaError: no broker answers.
    """
    options = _read_options(settings, topics, pattern, fail_on_data_loss=True)
    with LiveCluster(options.settings) as cluster:
        archivable_topics(cluster, options)


class ArchiveRun:
    """One run, a method a step; tests stop it between any two."""

    def __init__(
        self,
        spark: SparkSession | None,
        destination: Path,
        settings: Mapping[str, Any],
        topics: Sequence[str],
        pattern: str | None,
        fail_on_data_loss: bool,
        restart_recreated: bool,
        progress: OnProgress | None,
        *,
        max_offsets: int | None = None,
        min_partitions: int | None = None,
        choices: tuple[str | None, int | None, int | None, int | None] = (None, None, None, None),
        layout: ArchiveLayout | None = None,
    ) -> None:
        check_callback(progress, "progress")
        self._spark = spark
        self._folder = ArchiveFolder(destination)
        self._options = _read_options(settings, topics, pattern, fail_on_data_loss)
        self._restart_recreated = restart_recreated
        self._max_offsets = as_count(max_offsets, "max_offsets")
        self._min_partitions = as_count(min_partitions, "min_partitions")
        self._report = progress or (lambda step, done, total: None)
        self._layout = layout
        self._choices = parquet_choices(spark, *choices)

    def look(self) -> ArchiveSummary:
        """What a run would do; nothing is written, and another run may be at work."""
        started = time.monotonic()
        todo = self.plan(self._folder.last())
        return self._summary(None, todo, (), todo.lost, started, dry_run=True)

    def run(self) -> ArchiveSummary:
        started = time.monotonic()
        with self._folder.lock():
            last = self.recover()
            todo = self.plan(last)
            if not todo.ranges and not _moves(todo, last):
                return self._summary(None, todo, (), (), started)
            number = last.number + 1 if last else 1
            with self._folder.run(number) as staged:
                receipts = self.stage(staged, todo.ranges, _layout_of(last, self._layout))
                manifest = self.commit(number, staged, todo, receipts, last)
            self.publish(manifest)
        return self._summary(manifest.number, todo, manifest.files, manifest.lost, started)

    def recover(self) -> Manifest | None:
        """Finishes the moves of the last committed run, and forgets runs that were never committed."""
        last = self._folder.last()
        if last is not None:
            publish(self._folder, last)
        self._folder.discard_dead()
        return last

    def plan(self, last: Manifest | None) -> ArchivePlan:
        """Fixes topic ids and offsets: from where the last run ended to where each partition ends now."""
        self._report("plan", 0, 1)
        _check_layout(self._folder, last, self._layout)
        with LiveCluster(self._options.settings) as cluster:
            todo = plan(cluster, self._options, last, restart_recreated=self._restart_recreated, most=self._max_offsets)
        self._report("plan", 1, 1)
        return todo

    def stage(
        self, staged: StagedRun, ranges: Sequence[ArchivedRange], layout: ArchiveLayout = BY_DATE
    ) -> list[Receipt]:
        """Tasks read just these ranges and write them as Parquet below the staging folder; returns what they say."""
        if not ranges:
            return []
        assert self._spark is not None, "a dry run writes nothing"
        spark = session_for(self._spark, self._choices)
        (staged.folder / PROGRESS).mkdir()
        whole = [OffsetRange(r.topic, r.partition, r.start, r.end, r.topic_id) for r in ranges]
        pieces = split_ranges(whole, self._min_partitions, None)
        numbers = spark.range(0, len(pieces), 1, len(pieces))
        records = numbers.mapInArrow(Reading(self._options, pieces, staged, layout).run, SCHEMA)
        # Without it every task would write a file for each period it meets: small files by the thousand. The hint
        # brings a period's records together, and splits what would be too large for one task.
        order = ("topic", "period", "partition", "offset")
        gathered = records.hint("rebalance", "topic", "period").sortWithinPartitions(*order)
        ids = {each.topic: each.topic_id for each in ranges}
        written = gathered.mapInArrow(Writing(staged, ids, self._choices, layout).run, RECEIPTS)
        total = sum(map(len, pieces))

        def look() -> None:
            self._report("read", min(progress_of(staged, READ), total), total)
            done = progress_of(staged, WRITE)
            if done:
                self._report("write", done, max(done, total))

        def collect() -> list[Receipt]:
            try:
                rows = written.collect()
            except Exception as error:
                raise cause_of(error) from error
            return [from_text(row.receipt) for row in rows]

        return run_job(spark.sparkContext, f"kclient-archive-{staged.run}", "kclient archive", collect, look)

    def commit(
        self, number: int, staged: StagedRun, todo: ArchivePlan, receipts: Sequence[Receipt], last: Manifest | None
    ) -> Manifest:
        """Checks what was staged and writes the manifest: from here on the run has happened.

        Raises:
            ArchiveError: the files are not what was planned and read, or the manifest cannot be written.
        """
        files = verified_files(todo.ranges, receipts, staged.folder)
        former = last.positions if last else ()
        positions = {each.key: each for each in (*former, *todo.positions)}
        manifest = Manifest(
            number, staged.run, todo.ranges, files, tuple(positions.values()), (*todo.lost, *_lost(receipts)),
            _still_incomplete(todo, last), _layout_of(last, self._layout).names, last.expired if last else (),
        )  # fmt: skip
        self._folder.commit(manifest)
        return manifest

    def publish(self, manifest: Manifest) -> None:
        """Moves the files to where readers look."""
        self._report("publish", 0, len(manifest.files))
        publish(self._folder, manifest)
        self._report("publish", len(manifest.files), len(manifest.files))

    def _summary(
        self,
        number: int | None,
        todo: ArchivePlan,
        files: Sequence[ArchivedFile],
        lost: Sequence[ArchivedRange],
        started: float,
        *,
        dry_run: bool = False,
    ) -> ArchiveSummary:
        topics = _by_topic(todo.ranges, files, lost)
        seconds = time.monotonic() - started
        return ArchiveSummary(self._folder.destination, number, topics, seconds, dry_run, todo.remaining)


def _check_layout(folder: ArchiveFolder, last: Manifest | None, wanted: ArchiveLayout | None) -> None:
    if last is not None and wanted is not None and wanted.names != last.layout:
        kept = ArchiveLayout(last.layout)
        raise ArchiveError(
            f"the archive {folder.destination} is laid out by {kept}, and was to go on by {wanted}: readers of Parquet"
            f" take one layout; go on with --partition-by {kept} (partition_by={str(kept)!r}, or none), or archive into"
            " another folder"
        )


def _layout_of(last: Manifest | None, wanted: ArchiveLayout | None) -> ArchiveLayout:
    """That of the archive, if there is one."""
    return ArchiveLayout(last.layout) if last is not None else wanted or BY_DATE


def _read_options(
    settings: Mapping[str, Any], topics: Sequence[str], pattern: str | None, fail_on_data_loss: bool
) -> ReadOptions:
    if isinstance(topics, str):
        raise ConfigError(f"archive takes a list of topics, as in topics=[{shown(topics)}]")
    names = as_names(topics, "topics of an archive")
    for name in names:
        check_topic(name)
        if "," in name:
            raise ConfigError(f"topics of an archive are given one by one, not as {shown(name)}")
    if bool(names) == (pattern is not None):
        raise ConfigError("archive takes either topics or a pattern")
    given = text_settings(settings, "an archive")
    selection = {"subscribePattern": pattern} if pattern is not None else {"subscribe": ",".join(names)}
    options = {f"kafka.{name}": value for name, value in {"isolation.level": "read_committed", **given}.items()}
    parsed = parse_read_options({**options, **selection})
    return replace(
        parsed,
        selection=replace(parsed.selection, whole_names=True),
        columns=COLUMN_NAMES,
        fail_on_data_loss=fail_on_data_loss,
        lenience="--allow-data-loss (fail_on_data_loss=False)",
    )


def _moves(todo: ArchivePlan, last: Manifest | None) -> bool:
    """Whether there is something to remember, though nothing to archive: partitions seen first, records lost."""
    known = {each.key: each.end for each in (last.positions if last else ())}
    completes = last is not None and _still_incomplete(todo, last) != last.incomplete
    return completes or any(known.get(each.key) != each.end for each in todo.positions)


def _still_incomplete(todo: ArchivePlan, last: Manifest | None) -> tuple[str, ...]:
    """Topics of which the archive does not know all partitions, after a run that looked at all those of some."""
    looked_at = {each.topic_id for each in todo.positions}
    return tuple(each for each in (last.incomplete or () if last else ()) if each not in looked_at)


def _lost(receipts: Sequence[Receipt]) -> list[ArchivedRange]:
    """What was gone when its turn to be read had come."""
    return [
        ArchivedRange(receipt.wanted.topic, receipt.wanted.topic_id, receipt.wanted.partition, start, end)
        for receipt in receipts
        if isinstance(receipt, ReadReceipt)
        for start, end in receipt.lost
    ]


def _by_topic(
    ranges: Sequence[ArchivedRange], files: Sequence[ArchivedFile], lost: Sequence[ArchivedRange]
) -> tuple[TopicSummary, ...]:
    read: dict[str, list[int]] = defaultdict(list)
    for archived in ranges:
        read[archived.topic].append(archived.end - archived.start)
    gone: dict[str, int] = defaultdict(int)
    for each in lost:
        gone[each.topic] += each.end - each.start
    written: dict[str, list[ArchivedFile]] = defaultdict(list)
    for file in files:
        written[topic_of(file.path)].append(file)
    return tuple(
        TopicSummary(
            topic,
            len(read[topic]),
            sum(file.rows for file in written[topic]),
            len(written[topic]),
            sum(file.size for file in written[topic]),
            gone[topic],
            sum(read[topic]),
        )
        for topic in sorted(read.keys() | gone.keys())
    )
