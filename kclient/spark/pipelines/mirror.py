"""Topics of a cluster to another one: with keys, values, headers, timestamps, partitions and order.

Exactly once, as a replay: a task writes transactions, each of some records and the position behind them. With the
position it notes which offset of the target belongs to which of the source. `docs/internals/mirror.md` has the rest.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from kclient.arguments import check_callback
from kclient.errors import ConfigError
from kclient.spark.admission import limited
from kclient.spark.pipelines.failures import MirrorError
from kclient.spark.pipelines.job import OnProgress
from kclient.spark.pipelines.mirror_groups import GroupsMirrored, mirror_groups
from kclient.spark.pipelines.mirror_offsets import OffsetTranslator
from kclient.spark.pipelines.mirror_planning import MirrorSelection, checked_mirror
from kclient.spark.pipelines.mirror_source import MIRROR, TopicRecords
from kclient.spark.pipelines.mirror_topics import MirrorLook, MirrorTopics
from kclient.spark.pipelines.replay import checked_settings
from kclient.spark.pipelines.replay_driver import Watch, by_partition, carried_out, key_of, nothing, size_of
from kclient.spark.pipelines.replay_records import Position, check_id
from kclient.spark.pipelines.replay_target import ReplayTarget, TargetPlan
from kclient.spark.pipelines.replay_tasks import PartitionReceipt, Replayed, ReplayJob
from kclient.spark.pipelines.settings import as_flag
from kclient.spark.ranges import OffsetRange
from kclient.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class TopicMirror:
    """What a run did, or would do, of one topic.

    Attributes:
        topic: the source topic.
        target: the topic that its records go to.
        partitions: how many partitions.
        created: whether the target was not there before.
        offsets: how many offsets were to be looked at: records, and what is between them.
        records: how many records were written; 0 in a dry run.
        size: the bytes of their keys, values and headers, uncompressed.
        total: how many this and all earlier runs of the mirror have written.
        lost: how many offsets were gone before they were mirrored.
    """

    topic: str
    target: str
    partitions: int
    created: bool
    offsets: int
    records: int
    size: int
    total: int
    lost: int


@dataclass(frozen=True)
class MirrorSummary:
    """What one run did, or in a dry run would do.

    Attributes:
        id: the mirror's id: the next run with it goes on.
        topics: by source topic.
        left_out: topics of the pattern that come from the target's cluster themselves.
        groups: what became of committed offsets; None where none were asked for, and in a dry run.
        seconds: the run's wall time.
        dry_run: whether nothing was written.
        remaining: how many offsets that were there are left to later runs, because of `max_offsets`.
        waiting: how many offsets of the source lie behind transactions that are open, and wait for those to end.
        warnings: what the targets will do to the records that nobody may want.
    """

    id: str
    topics: tuple[TopicMirror, ...]
    left_out: tuple[str, ...]
    groups: GroupsMirrored | None
    seconds: float
    dry_run: bool = False
    remaining: int = 0
    warnings: tuple[str, ...] = ()
    waiting: int = 0

    @property
    def records(self) -> int:
        """How many records the run has written, of all topics."""
        return sum(topic.records for topic in self.topics)

    def to_json(self) -> str:
        """As one JSON object."""
        return json.dumps({**asdict(self), "records": self.records})


def mirror(
    spark: SparkSession | None,
    source: Mapping[str, Any],
    target: Mapping[str, Any],
    *,
    topics: Sequence[str] = (),
    pattern: str | None = None,
    rename: Mapping[str, str] | None = None,
    prefix: str = "",
    copy_settings: bool = True,
    fail_on_data_loss: bool = True,
    restart_recreated: bool = False,
    groups: str | None = None,
    records_per_second: float | None = None,
    bytes_per_second: float | None = None,
    max_offsets: int | None = None,
    mirror_id: str | None = None,
    dry_run: bool = False,
    progress: OnProgress | None = None,
) -> MirrorSummary:
    """Writes what topics hold now to another cluster, each record once, and goes on where an earlier run has ended.

    Args:
        spark: the session that does the work; its settings are left as they are. A dry run needs none.
        source: settings of the consumers that read, by their Java names; `bootstrap.servers` is required.
        target: settings of the producers that write, likewise.
        topics: the topics' names; or
        pattern: a regular expression that whole names must match. Topics that come from the target's cluster are left
            out.
        rename: the target of a topic, by its name; the others keep theirs.
        prefix: what the names of the targets of all others begin with.
        copy_settings: give targets that are made the settings that their sources were given, but for those that belong
            to the source's brokers (`min.insync.replicas`, throttles) and `message.timestamp.type`.
        fail_on_data_loss: raise when records were deleted before they were mirrored; else go on with what is there.
        restart_recreated: mirror a topic that was deleted and created again from its new start, behind the records of
            the former one; else that is an error.
        groups: a regular expression that whole ids of groups must match whose committed offsets are translated, and
            committed in the target; none by default.
        records_per_second: the most of all tasks together.
        bytes_per_second: likewise, of keys, values and headers.
        max_offsets: how many offsets the run takes, of all partitions together and about; later runs go on.
        mirror_id: what names of transactions and groups begin with, and what a run that goes on is known by. By default
            it follows from the source's cluster and the prefix. Letters, digits, dots, underscores and hyphens, at most
            200.
        dry_run: only look, and say what would be done.
        progress: called with the step's name (`plan`, `mirror`), what is done and what there is: offsets of the source.

    Raises:
        ConfigError: an argument or a setting is wrong.
        TypeError, ValueError: `max_offsets` is no number from 1 on.
        UnknownTopicOrPartitionError: a topic does not exist.
        MirrorError: a target has fewer partitions than its source, or records of others, or was created again; a source
            topic was created again, was cut back, or comes from the target's cluster; the positions have expired; the
            brokers give no ids; or another run goes on with the mirror.
        DataLossError: records are gone that were not mirrored, and `fail_on_data_loss` is true.
        KafkaError: the target refuses a record or a setting, or a side cannot be reached. The next run goes on.
    """
    selection = checked_mirror(
        source, topics=topics, pattern=pattern, rename=rename, prefix=prefix, copy_settings=copy_settings,
        fail_on_data_loss=fail_on_data_loss, restart_recreated=restart_recreated, groups=groups,
        max_offsets=max_offsets, records_per_second=records_per_second, bytes_per_second=bytes_per_second,
    )  # fmt: skip
    if not as_flag(dry_run, "dry_run") and not hasattr(spark, "sparkContext"):
        raise ConfigError("mirror needs a Spark session of its own process; one of Spark Connect has no job groups")
    check_callback(progress, "progress")
    if mirror_id is not None:
        check_id(mirror_id, MIRROR)
    writing, asking = checked_settings(target, MIRROR)
    run = MirrorRun(spark, selection, writing, asking, mirror_id, progress)
    return run.look() if dry_run else run.run()


class MirrorRun:
    """One run, a method a step; tests carry it out without Spark, and end it anywhere."""

    def __init__(
        self,
        spark: SparkSession | None,
        selection: MirrorSelection,
        settings: Mapping[str, str],
        asking: Mapping[str, str],
        mirror_id: str | None,
        progress: OnProgress | None,
    ) -> None:
        self._spark = spark
        self._selection = selection
        self._settings = settings
        self._topics = MirrorTopics(selection, asking)
        self._asking = asking
        self._given_id = mirror_id
        self._report = progress or (lambda step, done, total: None)
        self._watched = progress is not None
        self._started = time.monotonic()

    def look(self) -> MirrorSummary:
        """What a run would do."""
        with self._topics:
            seen = self._topics.look()
            with self._target(seen) as target:
                plans, positions, todo, remaining = self._looked(target, seen)
                warnings = _warnings(target, plans)
        return self._summary(seen, todo, positions, {}, None, remaining, warnings, dry_run=True)

    def run(self) -> MirrorSummary:
        """Makes what is missing, claims the targets, has the records written, and translates offsets."""
        run = uuid.uuid4().hex[:16]
        self._report("plan", 0, 1)
        with self._topics:
            seen = self._topics.look()
            with self._target(seen) as target:
                self._looked(target, seen)  # what cannot be done of one topic is told before any other is made
                self._topics.make(seen)
                target.await_made(
                    {self._selection.target_of(name): len(seen.topics[name].partitions) for name in seen.unfit}
                )
                plans = self._plans(target, seen)
                warnings = _warnings(target, plans)
                plans = target.claim(plans, run, 0, append=False)
                positions = target.positions(plans)
                self._check_only_ours(target, plans, seen, positions)
                todo, remaining = self._todo(plans, seen, positions)
                self._report("plan", 1, 1)
                receipts = self._write(run, target, plans, todo)
                target.check(plans)
                groups = self._mirror_groups(target, plans, seen)
        return self._summary(seen, todo, positions, receipts, groups, remaining, warnings)

    def _looked(
        self, target: ReplayTarget, seen: MirrorLook
    ) -> tuple[list[TargetPlan], dict[tuple[str, int], Position], list[Replayed], int]:
        """The targets that are there, where each partition is, what would be done, and what later."""
        made = {topic for topic in seen.topics if self._selection.target_of(topic) not in seen.missing}
        plans = self._plans(target, seen.of(made), keep_partitions=False)  # a run adds what they lack
        positions = target.look(plans, append=False)
        missing = [self._unmade(seen, topic) for topic in sorted(seen.topics.keys() - made)]
        todo, remaining = self._todo([*plans, *missing], seen, positions)
        self._topics.make(seen, validate_only=True)
        return plans, positions, todo, remaining

    def _target(self, seen: MirrorLook) -> ReplayTarget:
        self._id = self._given_id or self._selection.default_id(seen.cluster_id)
        return ReplayTarget(self._settings, self._asking, self._id, MIRROR, restarts=self._selection.restart_recreated)

    def _plans(self, target: ReplayTarget, seen: MirrorLook, *, keep_partitions: bool = True) -> list[TargetPlan]:
        starts = {(tp.topic, tp.partition): offset for tp, offset in seen.beginnings.items()}
        found = target.plans(
            {topic: (self._selection.target_of(topic), self._selection.fingerprint(topic), seen.partitions(topic))
             for topic in seen.topics},
            starts, keep_partitions=keep_partitions, origins=seen.origins,
        )  # fmt: skip
        return [_from_zero(plan) for plan in found]

    def _unmade(self, seen: MirrorLook, topic: str) -> TargetPlan:
        """What a run would claim of a target that it would make."""
        starts = {tp.partition: offset for tp, offset in seen.beginnings.items() if tp.topic == topic}
        return TargetPlan(topic, seen.topics[topic].topic_id, self._selection.target_of(topic), "", starts, 1)

    def _todo(
        self, plans: Sequence[TargetPlan], seen: MirrorLook, positions: Mapping[tuple[str, int], Position]
    ) -> tuple[list[Replayed], int]:
        """What is to be done from where each partition is, and how many offsets are left to later runs."""
        starts: dict[TopicPartition, int] = {}
        targets = {plan.topic: plan for plan in plans}
        for plan in plans:
            for number, start in plan.starts.items():
                tp = TopicPartition(plan.topic, number)
                known = None if plan.anew else positions.get((plan.topic, number))
                starts[tp] = start if known is None else known.offset
        self._topics.check(seen, starts, self._selection.options)
        ends = {tp: max(starts[tp], seen.ends[tp]) for tp in starts}
        most = self._selection.max_offsets
        taken = ends if most is None else limited(starts, ends, most)
        todo = [
            Replayed(
                OffsetRange(tp.topic, tp.partition, starts[tp], taken[tp], seen.topics[tp.topic].topic_id),
                targets[tp.topic].target, starts[tp], taken[tp], targets[tp.topic].anchors, targets[tp.topic].target_id,
            )
            for tp in sorted(starts)
        ]  # fmt: skip
        return todo, sum(ends[tp] - taken[tp] for tp in ends)

    def _write(
        self, run: str, target: ReplayTarget, plans: Sequence[TargetPlan], todo: Sequence[Replayed]
    ) -> dict[tuple[str, int], PartitionReceipt]:
        if not todo:
            return {}
        job = ReplayJob(
            self._id, run, TopicRecords(self._selection.options), 0, self._settings, rate=self._selection.rate,
            work=MIRROR, notes_points=True,
        )  # fmt: skip
        look = Watch(target, todo, self._report, "mirror") if self._watched else nothing
        try:
            receipts = self.carry_out(job, todo, look)
        except BaseException:  # Ctrl-C, too: readers would wait for transactions that stay open
            target.give_up(plans, run, todo)
            raise
        found = by_partition(receipts, todo, MirrorError)
        total = size_of(todo)
        self._report("mirror", total, total)
        return found

    def carry_out(self, job: ReplayJob, todo: Sequence[Replayed], look: Callable[[], None]) -> list[PartitionReceipt]:
        """Have Spark's tasks do it; `look` is called meanwhile."""
        assert self._spark is not None, "a dry run writes nothing"
        return carried_out(self._spark, job, todo, look)

    def _translators(
        self,
        plans: Sequence[TargetPlan],
        seen: MirrorLook,
        positions: Mapping[tuple[str, int], Position],
    ) -> dict[TopicPartition, OffsetTranslator]:
        compacted = self._topics.compacted(seen)
        reading = self._topics.source, self._topics.reading_target
        found = {}
        for plan in plans:
            for number in plan.starts:
                places = TopicPartition(plan.topic, number), TopicPartition(plan.target, number)
                found[places[0]] = OffsetTranslator(
                    *reading, places, positions[plan.topic, number], compacted=plan.topic in compacted
                )
        return found

    def _check_only_ours(
        self,
        target: ReplayTarget,
        plans: Sequence[TargetPlan],
        seen: MirrorLook,
        positions: Mapping[tuple[str, int], Position],
    ) -> None:
        try:
            for translator in self._translators(plans, seen, positions).values():
                translator.check_only_ours()
        except MirrorError:
            if target.positions(plans, stable=True) == positions:
                raise
            # else tasks of an earlier run still write, or its last commit was on its way; those of this one fence them

    def _mirror_groups(
        self, target: ReplayTarget, plans: Sequence[TargetPlan], seen: MirrorLook
    ) -> GroupsMirrored | None:
        if self._selection.groups is None:
            return None
        positions = target.positions(plans, stable=True)
        translators = self._translators(plans, seen, positions)
        # the end of a target belongs to the position only if that was the same before and after
        for translator in translators.values():
            translator.settle()
        if target.positions(plans, stable=True) != positions:
            raise MirrorError(
                f"another run goes on with the mirror {self._id}, and translates the offsets of groups; the records of"
                " this one are written"
            )
        return mirror_groups(
            self._topics.source.admin, self._topics.reading_target.admin, self._selection.groups, translators,
            {plan.topic: plan.target for plan in plans},
        )  # fmt: skip

    def _summary(
        self,
        seen: MirrorLook,
        todo: Sequence[Replayed],
        positions: Mapping[tuple[str, int], Position],
        receipts: Mapping[tuple[str, int], PartitionReceipt],
        groups: GroupsMirrored | None,
        remaining: int,
        warnings: Sequence[str],
        *,
        dry_run: bool = False,
    ) -> MirrorSummary:
        by_topic: dict[str, list[Replayed]] = defaultdict(list)
        for each in todo:
            by_topic[each.source.topic].append(each)
        topics = []
        for topic, partitions in sorted(by_topic.items()):
            done = [receipts[key_of(each)] for each in partitions if key_of(each) in receipts]
            before = [positions[key_of(each)].records for each in partitions if key_of(each) in positions]
            target = self._selection.target_of(topic)
            topics.append(
                TopicMirror(
                    topic, target, len(partitions), target in seen.missing, size_of(partitions),
                    sum(each.records for each in done), sum(each.size for each in done),
                    sum(each.total for each in done) if done else sum(before), sum(each.lost for each in done),
                )
            )  # fmt: skip
        seconds = time.monotonic() - self._started
        return MirrorSummary(
            self._id, tuple(topics), seen.left_out, groups, seconds, dry_run, remaining, tuple(warnings), seen.waiting
        )


def _from_zero(plan: TargetPlan) -> TargetPlan:
    """Of a topic that is being mirrored, a partition that is new begins at 0: what is gone of it is lost."""
    if plan.claim is None or plan.anew:
        return plan
    known = plan.claim.partitions
    return replace(plan, starts={number: start if number < known else 0 for number, start in plan.starts.items()})


def _warnings(target: ReplayTarget, plans: Sequence[TargetPlan]) -> list[str]:
    """The settings are those of the source; only what would give records other times is worth a word."""
    return [each for each in target.warnings(plans) if "LogAppendTime" in each]
