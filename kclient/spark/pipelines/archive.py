"""Topics to Parquet, partitioned by topic and by the UTC date of the record; a re-run continues where it ended.

The order of steps is what makes it exact (see `manifest`): replay what the last run left, fix ranges and topic
ids, stage, commit, move. Killed anywhere, the next run leaves no record out and writes none twice.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kclient.errors import ConfigError
from kclient.spark.options import EARLIEST, ReadOptions, parse_read_options
from kclient.spark.pipelines.manifest import ArchivedFile, ArchivedRange, ArchiveFolder, Manifest
from kclient.spark.ranges import OffsetRange, resolve_ranges
from kclient.spark.source import open_consumer, register
from kclient.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Progress = Callable[[str, int, int], None]

_MICROSECONDS_PER_DAY = 86_400_000_000


@dataclass(frozen=True)
class TopicSummary:
    """What one run archived of a topic."""

    topic: str
    partitions: int
    records: int
    files: int
    size: int


@dataclass(frozen=True)
class ArchiveSummary:
    """What one run did. `manifest` is None when there was nothing new; `seconds` is the run's wall time."""

    destination: Path
    manifest: int | None
    topics: tuple[TopicSummary, ...]
    seconds: float

    @property
    def records(self) -> int:
        """How many records the run archived, of all topics."""
        return sum(topic.records for topic in self.topics)


def archive(
    spark: SparkSession,
    destination: str | Path,
    settings: Mapping[str, str],
    *,
    topics: Sequence[str] = (),
    pattern: str | None = None,
    fail_on_data_loss: bool = True,
    progress: Progress | None = None,
) -> ArchiveSummary:
    """Archives what the topics hold now and no earlier run has archived.

    Args:
        spark: the session that does the work; its settings are left as they are.
        destination: a folder on a file system that driver and workers share. Parquet files come to lie in
            `topic=NAME/date=YYYY-MM-DD/`; `_kclient/` holds the manifests.
        settings: the client's settings by their Java names; `bootstrap.servers` is required.
        topics: the topics' names; or
        pattern: a regular expression that whole names must match.
        fail_on_data_loss: raise when records were deleted before they were archived; else go on with what is there.
        progress: called with the step's name, what is done and what there is, as the run goes on.

    Raises:
        ConfigError: a setting is wrong, or a topic does not exist.
        ArchiveError: another run is at work in the folder, or a newer release wrote it.
        DataLossError: records are gone that no run archived, and `fail_on_data_loss` is true.
    """
    run = ArchiveRun(spark, _local_path(destination), settings, topics, pattern, fail_on_data_loss, progress)
    return run.run()


def _local_path(destination: str | Path) -> Path:
    text = str(destination)
    if text.startswith("file:"):
        text = text.removeprefix("file:").replace("//", "/", 1) if text.startswith("file://") else text[5:]
    elif "://" in text:
        raise ConfigError(f"archive writes to folders on a local or mounted file system, not to {text}")
    return Path(text).absolute()


class ArchiveRun:
    """One run, a method a step; tests stop it between any two."""

    def __init__(
        self,
        spark: SparkSession,
        destination: Path,
        settings: Mapping[str, str],
        topics: Sequence[str],
        pattern: str | None,
        fail_on_data_loss: bool,
        progress: Progress | None,
    ) -> None:
        self._spark = spark
        self._folder = ArchiveFolder(destination)
        self._options = {f"kafka.{name}": str(value) for name, value in settings.items()}
        self._options["failOnDataLoss"] = str(fail_on_data_loss).lower()
        self._selection = _selection_option(topics, pattern)
        self._report = progress or (lambda step, done, total: None)

    def run(self) -> ArchiveSummary:
        started = time.monotonic()
        options = parse_read_options({**self._options, **self._selection})
        with self._folder.lock():
            last = self.recover()
            ranges = self.plan(options, last)
            if not ranges:
                return ArchiveSummary(self._folder.destination, None, (), time.monotonic() - started)
            number = last.number + 1 if last else 1
            self.stage(number, ranges)
            manifest = self.commit(number, ranges, last)
            self.publish(manifest)
        return _summary(self._folder.destination, manifest, time.monotonic() - started)

    def recover(self) -> Manifest | None:
        """Finishes the moves of the last committed run, and forgets runs that were never committed."""
        last = self._folder.last()
        if last is not None:
            self._folder.publish(last)
        self._folder.discard_uncommitted(last)
        return last

    def plan(self, options: ReadOptions, last: Manifest | None) -> list[ArchivedRange]:
        """Fixes topic ids and offsets: from where the last run ended to where each partition ends now."""
        self._report("plan", 0, 1)
        with open_consumer(options.settings) as consumer:
            everything = resolve_ranges(consumer, options)
            ids = self._topic_ids(options, {whole.topic for whole in everything})
            known = {(p.topic_id, p.partition): p.end for p in (last.positions if last else ())}
            starts = {
                whole.topic_partition: known.get((ids[whole.topic], whole.partition), EARLIEST) for whole in everything
            }
            ranges = self._resolve(consumer, starts) if everything else []
        self._report("plan", 1, 1)
        return [ArchivedRange(r.topic, ids[r.topic], r.partition, r.start, r.end) for r in ranges]

    def _resolve(self, consumer: Any, starts: Mapping[TopicPartition, int]) -> list[OffsetRange]:
        options = parse_read_options(
            {**self._options, "assign": _assign_json(starts), "startingOffsets": _offsets_json(starts)}
        )
        return resolve_ranges(consumer, options)

    def _topic_ids(self, options: ReadOptions, topics: set[str]) -> dict[str, str]:
        from kclient.sync import Admin

        if not topics:
            return {}
        with Admin({"client.id": "kclient-archive", **options.settings}) as admin:
            return {name: topic.topic_id for name, topic in admin.describe_topics(sorted(topics)).items()}

    def stage(self, number: int, ranges: Sequence[ArchivedRange]) -> None:
        """Spark reads just these ranges and writes them as Parquet below the staging folder."""
        starts = {TopicPartition(r.topic, r.partition): r.start for r in ranges}
        ends = {TopicPartition(r.topic, r.partition): r.end for r in ranges}
        register(self._spark)
        frame = (
            self._spark.read.format("kclient")
            .options(**self._options)
            .option("assign", _assign_json(starts))
            .option("startingOffsets", _offsets_json(starts))
            .option("endingOffsets", _offsets_json(ends))
            .option("includeHeaders", "true")
            .load()
        )
        # Without it every task would write a file for each date it meets: small files by the thousand. The hint
        # brings a date's records together, and splits what would be too large for one task.
        dated = _with_date(frame).hint("rebalance", "topic", "date")
        with self._watched(f"kclient-archive-{number}-{time.monotonic_ns()}"):
            dated.write.partitionBy("topic", "date").parquet(str(self._folder.staging(number)))
        self._report("write", 1, 1)  # Spark counts tasks that it then skips

    def commit(self, number: int, ranges: Sequence[ArchivedRange], last: Manifest | None) -> Manifest:
        """Writes the manifest: from here on the run has happened."""
        files = tuple(_staged_files(self._folder.staging(number)))
        positions = {(p.topic_id, p.partition): p for p in (*(last.positions if last else ()), *ranges)}
        manifest = Manifest(number, tuple(ranges), files, tuple(positions.values()))
        self._folder.commit(manifest)
        return manifest

    def publish(self, manifest: Manifest) -> None:
        """Moves the files to where readers look."""
        self._report("publish", 0, len(manifest.files))
        self._folder.publish(manifest)
        self._report("publish", len(manifest.files), len(manifest.files))

    @contextmanager
    def _watched(self, group: str) -> Iterator[None]:
        """Reports Spark's finished tasks while the body runs."""
        stop = threading.Event()
        context = self._spark.sparkContext
        context.setJobGroup(group, "kclient archive")
        watcher = threading.Thread(target=self._watch, args=(group, stop), name="kclient-archive-progress")
        watcher.start()
        try:
            yield
        finally:
            stop.set()
            watcher.join()
            context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # None clears it

    def _watch(self, group: str, stop: threading.Event) -> None:
        tracker = self._spark.sparkContext.statusTracker()
        while not stop.wait(0.2):
            done = total = 0
            for job in tracker.getJobIdsForGroup(group):
                info = tracker.getJobInfo(job)
                for stage in info.stageIds if info else ():
                    details = tracker.getStageInfo(stage)
                    if details:
                        done += details.numCompletedTasks
                        total += details.numTasks
            if total:
                self._report("write", done, total)


def _selection_option(topics: Sequence[str], pattern: str | None) -> dict[str, str]:
    if bool(topics) == (pattern is not None):
        raise ConfigError("archive takes either topics or a pattern")
    return {"subscribePattern": pattern} if pattern is not None else {"subscribe": ",".join(topics)}


def _assign_json(offsets: Mapping[TopicPartition, int]) -> str:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for partition in sorted(offsets):
        by_topic[partition.topic].append(partition.partition)
    return json.dumps(by_topic)


def _offsets_json(offsets: Mapping[TopicPartition, int]) -> str:
    by_topic: dict[str, dict[str, int]] = defaultdict(dict)
    for partition in sorted(offsets):
        by_topic[partition.topic][str(partition.partition)] = offsets[partition]
    return json.dumps(by_topic)


def _with_date(frame: DataFrame) -> DataFrame:
    """Adds the UTC date, reckoned from the instant so that the session's time zone has no part in it."""
    from pyspark.sql import functions

    days = functions.floor(functions.unix_micros("timestamp") / _MICROSECONDS_PER_DAY).cast("int")
    return frame.withColumn("date", functions.date_add(functions.lit("1970-01-01").cast("date"), days))


def _staged_files(staging: Path) -> Iterator[ArchivedFile]:
    from pyarrow import parquet

    for path in sorted(staging.rglob("*.parquet")):
        rows = parquet.read_metadata(path).num_rows
        yield ArchivedFile(path.relative_to(staging).as_posix(), rows, path.stat().st_size)


def _summary(destination: Path, manifest: Manifest, seconds: float) -> ArchiveSummary:
    partitions: dict[str, int] = defaultdict(int)
    for archived in manifest.ranges:
        partitions[archived.topic] += 1
    files: dict[str, list[ArchivedFile]] = defaultdict(list)
    for file in manifest.files:
        files[_topic_of(file.path)].append(file)
    topics = tuple(
        TopicSummary(
            topic,
            partitions[topic],
            sum(file.rows for file in files[topic]),
            len(files[topic]),
            sum(file.size for file in files[topic]),
        )
        for topic in sorted(partitions)
    )
    return ArchiveSummary(destination, manifest.number, topics, seconds)


def _topic_of(path: str) -> str:
    """The topic in `topic=NAME/…`; Kafka's names hold nothing that Spark would escape in a path."""
    return path.split("/", 1)[0].removeprefix("topic=")
