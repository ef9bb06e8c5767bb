"""An archive back to topics: with the original keys, values, headers, timestamps, partitions and order.

Exactly once: a task writes transactions, each of some records and the position behind them, and a run that goes on
begins at the position. `docs/internals/replay.md` proves it by cases.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kclient.arguments import check_callback
from kclient.config import ProducerConfig
from kclient.errors import ConfigError
from kclient.spark.options import check_address, shared_address
from kclient.spark.pipelines.archive_view import ArchivedPartition, ArchiveView
from kclient.spark.pipelines.failures import ReplayError
from kclient.spark.pipelines.job import OnProgress
from kclient.spark.pipelines.places import local_folder
from kclient.spark.pipelines.replay_driver import Watch, by_partition, carried_out, key_of, nothing, size_of
from kclient.spark.pipelines.replay_planning import (
    ReplaySelection,
    checked_selection,
    planned,
    replayed,
)
from kclient.spark.pipelines.replay_records import REPLAY, Position, Work, check_id
from kclient.spark.pipelines.replay_target import ReplayTarget, TargetPlan
from kclient.spark.pipelines.replay_tasks import (
    CLIENT,
    ArchiveRecords,
    PartitionReceipt,
    Replayed,
    ReplayJob,
)
from kclient.spark.pipelines.settings import text_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REFUSED = {
    "key.serializer": "keys are bytes already",
    "value.serializer": "values are bytes already",
    "interceptor.classes": "records go to the brokers as columns, past any interceptor",
    "transactional.id": "transactions are named by the id of the work",
}
_LEAST_TIMEOUT_MS = 10_000
_ASKING = ("default.api.timeout.ms",)
"""Settings that producers do not have; those who ask about topics and offsets obey them."""


@dataclass(frozen=True)
class TopicReplay:
    """What a run did, or would do, of one source topic.

    Attributes:
        topic: the source topic.
        target: the topic that its records go to.
        partitions: how many source partitions.
        offsets: how many offsets were to be looked at: records, and what is between them.
        records: how many records were written; 0 in a dry run.
        size: the bytes of their keys, values and headers, uncompressed.
        total: how many this and all earlier runs of the replay have written.
    """

    topic: str
    target: str
    partitions: int
    offsets: int
    records: int
    size: int
    total: int


@dataclass(frozen=True)
class ReplaySummary:
    """What one run did, or in a dry run would do.

    Attributes:
        id: the replay's id: the next run with it goes on.
        source: the archive's folder.
        manifest: the number of its newest manifest.
        topics: by source topic.
        seconds: the run's wall time.
        dry_run: whether nothing was written.
        warnings: what the target will do to the records that nobody may want.
    """

    id: str
    source: Path
    manifest: int
    topics: tuple[TopicReplay, ...]
    seconds: float
    dry_run: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def records(self) -> int:
        """How many records the run has written, of all topics."""
        return sum(topic.records for topic in self.topics)

    def to_json(self) -> str:
        """As one JSON object."""
        return json.dumps({**asdict(self), "source": str(self.source), "records": self.records})


def replay(
    spark: SparkSession | None,
    source: str | Path,
    settings: Mapping[str, Any],
    *,
    topics: Sequence[str] = (),
    topic_ids: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    prefix: str = "",
    target: str | None = None,
    since: datetime | int | None = None,
    until: datetime | int | None = None,
    offsets: Mapping[Any, tuple[int, int]] | None = None,
    keep_partitions: bool = True,
    records_per_second: float | None = None,
    bytes_per_second: float | None = None,
    append: bool = False,
    replay_id: str | None = None,
    dry_run: bool = False,
    progress: OnProgress | None = None,
) -> ReplaySummary:
    """Writes what an archive holds to topics, each record once, and goes on where an earlier run has ended.

    Args:
        spark: the session that does the work; its settings are left as they are. A dry run needs none.
        source: the archive's folder, which driver and workers share, as a path or a `file:` URL.
        settings: the producer's settings by their Java names; `bootstrap.servers` is required. `default.api.timeout.ms`
            goes to those who ask about topics and offsets.
        topics: the source topics; by default all of the archive.
        topic_ids: where the archive holds several topics of one name, the ids of those that are meant.
        rename: the target of a source topic, by its name; the others keep theirs.
        prefix: what the names of the targets of all others begin with.
        target: one target for all.
        since: only records with this timestamp or a later one: a datetime with a zone, or milliseconds.
        until: only records with an earlier timestamp than this.
        offsets: by source partition, the first offset and the one behind the last. Of a topic that is named here only
            these partitions are replayed.
        keep_partitions: a record goes to the partition of its source's number; else the partitioner chooses.
        records_per_second: the most of all tasks together.
        bytes_per_second: likewise, of keys, values and headers.
        append: write to a target that has other records already.
        replay_id: what names of transactions and groups begin with, and what a run that goes on is known by. By default
            it follows from the archive's folder, the targets, the times and the offsets. Letters, digits, dots,
            underscores and hyphens, at most 200.
        dry_run: only look, and say what would be done.
        progress: called with the step's name (`plan`, `replay`), what is done and what there is: offsets of the source.

    Raises:
        ConfigError: an argument or a setting is wrong.
        ArchiveError: the source is no archive, is damaged, or does not hold what was asked for.
        UnknownTopicOrPartitionError: a target does not exist.
        ReplayError: a target has fewer partitions than its source, or other records; the replay was begun with other
            arguments; its positions have expired; or another run goes on with it.
        KafkaError: the target refuses a record, or cannot be reached. The next run goes on.
    """
    selection = checked_selection(
        topics=topics, topic_ids=topic_ids, rename=rename, prefix=prefix, target=target, since=since, until=until,
        offsets=offsets, keep_partitions=keep_partitions, records_per_second=records_per_second,
        bytes_per_second=bytes_per_second,
    )  # fmt: skip
    if not dry_run and not hasattr(spark, "sparkContext"):
        raise ConfigError("replay needs a Spark session of its own process; one of Spark Connect has no job groups")
    check_callback(progress, "progress")
    if replay_id is not None:
        check_id(replay_id)
    folder = local_folder(source, "the archive's folder")
    writing, asking = checked_settings(settings)
    run = ReplayRun(spark, folder, writing, asking, selection, replay_id, append, progress)
    return run.look() if dry_run else run.run()


def checked_settings(settings: Mapping[str, Any], work: Work = REPLAY) -> tuple[dict[str, str], dict[str, str]]:
    """The settings of the tasks' producers, checked without asking a broker; and those of the clients that only ask.

    Args:
        settings: What the user gave.
        work: What they are for.

    Raises:
        ConfigError: one is wrong.
    """
    found = text_settings(settings, f"a {work.noun}")
    for name, reason in _REFUSED.items():
        if name in found:
            raise ConfigError(f"the setting {name} has no place here: {reason}")
    check_address(found)
    found["bootstrap.servers"] = shared_address(found["bootstrap.servers"])
    writing = {name: value for name, value in found.items() if name not in _ASKING}
    parsed = ProducerConfig.parse({**CLIENT, **writing, "transactional.id": "checked"})
    if parsed.transaction_timeout_ms < _LEAST_TIMEOUT_MS:
        raise ConfigError(
            f"transaction.timeout.ms is {_LEAST_TIMEOUT_MS} at least, not {parsed.transaction_timeout_ms}: transactions"
            f" of a {work.noun} are open for five seconds, and a little more where brokers are slow"
        )
    return writing, found


class ReplayRun:
    """One run, a method a step; tests carry it out without Spark, and end it anywhere."""

    def __init__(
        self,
        spark: SparkSession | None,
        folder: Path,
        settings: Mapping[str, str],
        asking: Mapping[str, str],
        selection: ReplaySelection,
        replay_id: str | None,
        append: bool,
        progress: OnProgress | None,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._selection = selection
        self._append = append
        self._report = progress or (lambda step, done, total: None)
        self._watched = progress is not None
        self._started = time.monotonic()
        self._report("plan", 0, 1)
        self._view = ArchiveView(folder)
        self._sources = planned(self._view, selection)
        self._id = selection.default_id(folder) if replay_id is None else replay_id
        self._target = ReplayTarget(settings, asking, self._id)

    def look(self) -> ReplaySummary:
        """What a run would do."""
        with self._target:
            plans = self._plans()
            warnings = self._target.warnings(plans)
            positions = self._target.look(plans, append=self._append)
        return self._summary(self._todo(plans), positions, {}, warnings, dry_run=True)

    def run(self) -> ReplaySummary:
        run = uuid.uuid4().hex[:16]
        with self._target:
            plans = self._plans()
            warnings = self._target.warnings(plans)
            plans = self._target.claim(plans, run, self._view.number, append=self._append)
            todo = self._todo(plans)
            positions = self._target.positions(plans)
            self._report("plan", 1, 1)
            receipts = self._write(run, plans, todo, positions)
            self._target.check(plans)
        return self._summary(todo, positions, receipts, warnings)

    def _plans(self) -> list[TargetPlan]:
        """What is wanted of the target, topic by topic, checked against what it is."""
        return self._target.plans(
            {topic: (self._selection.target_of(topic), self._selection.fingerprint(topic), parts)
             for topic, parts in self._sources.items()},
            self._starts(), keep_partitions=self._selection.keep_partitions,
        )  # fmt: skip

    def _starts(self) -> dict[tuple[str, int], int]:
        every = (replayed(each, self._selection, 1) for each in self._partitions())
        return {key_of(each): each.start for each in every if each is not None}

    def _partitions(self) -> list[ArchivedPartition]:
        return [each for every in self._sources.values() for each in every]

    def _todo(self, plans: Sequence[TargetPlan]) -> list[Replayed]:
        targets = {plan.topic: (plan.anchors, plan.target_id) for plan in plans}
        every = (replayed(each, self._selection, *targets[each.topic]) for each in self._partitions())
        return [each for each in every if each is not None]

    def _write(
        self,
        run: str,
        plans: Sequence[TargetPlan],
        todo: Sequence[Replayed],
        positions: Mapping[tuple[str, int], Position],
    ) -> dict[tuple[str, int], PartitionReceipt]:
        if not todo:
            return {}
        job = ReplayJob(
            self._id, run, ArchiveRecords(self._view.folder), self._view.number, self._settings, self._selection.times,
            self._selection.keep_partitions, self._selection.rate,
        )  # fmt: skip
        ahead = [replace(each, start=positions[key_of(each)].offset) for each in todo]
        look = Watch(self._target, ahead, self._report) if self._watched else nothing
        try:
            receipts = self.carry_out(job, ahead, look)
        except BaseException:  # Ctrl-C, too: readers would wait for transactions that stay open
            self._target.give_up(plans, run, todo)
            raise
        found = by_partition(receipts, todo, ReplayError)
        if self._watched:
            total = size_of(ahead)
            self._report("replay", total, total)
        return found

    def carry_out(self, job: ReplayJob, todo: Sequence[Replayed], look: Callable[[], None]) -> list[PartitionReceipt]:
        """Have Spark's tasks do it; `look` is called meanwhile."""
        assert self._spark is not None, "a dry run writes nothing"
        return carried_out(self._spark, job, todo, look)

    def _summary(
        self,
        todo: Sequence[Replayed],
        positions: Mapping[tuple[str, int], Position],
        receipts: Mapping[tuple[str, int], PartitionReceipt],
        warnings: Sequence[str],
        *,
        dry_run: bool = False,
    ) -> ReplaySummary:
        by_topic: dict[str, list[Replayed]] = defaultdict(list)
        for each in todo:
            by_topic[each.source.topic].append(each)
        topics = []
        for topic, partitions in sorted(by_topic.items()):
            done = [receipts[key_of(each)] for each in partitions if key_of(each) in receipts]
            before = {key_of(each): positions.get(key_of(each)) for each in partitions}
            starts = {key: each.offset for key, each in before.items() if each is not None}
            totals = sum(each.records for each in before.values() if each is not None)
            topics.append(
                TopicReplay(
                    topic,
                    self._selection.target_of(topic),
                    len(partitions),
                    sum(max(0, each.end - starts.get(key_of(each), each.start)) for each in partitions),
                    sum(each.records for each in done),
                    sum(each.size for each in done),
                    sum(each.total for each in done) if done else totals,
                )
            )
        return ReplaySummary(
            self._id, self._view.folder, self._view.number, tuple(topics), time.monotonic() - self._started, dry_run,
            tuple(warnings),
        )  # fmt: skip
