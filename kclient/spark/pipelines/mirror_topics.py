"""The topics of a mirror on both sides: what the source has, whether it may go to the target, what is made there."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from kclient.config import ConsumerConfig
from kclient.errors import (
    ConfigError,
    ErrorCode,
    InvalidConfigurationError,
    InvalidTopicError,
    KafkaError,
    TopicExistsError,
)
from kclient.spark.cluster import NO_TOPIC_ID, KnownTopic, LiveCluster
from kclient.spark.options import ReadOptions
from kclient.spark.pipelines.failures import MirrorError
from kclient.spark.pipelines.mirror_planning import MirrorSelection, check_goal
from kclient.spark.pipelines.mirror_source import origins_of, settings_of
from kclient.spark.ranges import DataLossError, OffsetRange, selected_topics
from kclient.types import TopicPartition

_ATTEMPTS = 3
_PAUSE_S = 0.2
_KEPT_TIMES = {"message.timestamp.type": "CreateTime"}
"""Whatever the target's brokers have as their default: records keep their timestamps."""


@dataclass(frozen=True)
class MirrorLook:
    """What both sides were when they were looked at.

    Attributes:
        cluster_id: the source's.
        topics: the source's topics.
        beginnings: where their partitions begin.
        ends: where what is committed ends.
        tops: where they end.
        origins: by topic, the clusters that its records come through, this one among them.
        left_out: topics of a pattern that come from the target's cluster.
        missing: targets that are not there.
        unfit: source topics whose target is not there, or has too few partitions.
    """

    cluster_id: str
    topics: Mapping[str, KnownTopic]
    beginnings: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    tops: Mapping[TopicPartition, int]
    origins: Mapping[str, tuple[str, ...]]
    left_out: tuple[str, ...]
    missing: frozenset[str]
    unfit: frozenset[str]

    @property
    def waiting(self) -> int:
        """How many offsets lie behind transactions that are open, in all partitions."""
        return sum(max(0, self.tops[tp] - end) for tp, end in self.ends.items())

    def of(self, topics: Collection[str]) -> MirrorLook:
        """The same of some topics only."""
        return replace(
            self,
            topics={name: topic for name, topic in self.topics.items() if name in topics},
            beginnings={tp: offset for tp, offset in self.beginnings.items() if tp.topic in topics},
        )

    def partitions(self, topic: str) -> list[OffsetRange]:
        """The partitions of a topic."""
        known = self.topics[topic]
        places = (TopicPartition(topic, number) for number in known.partitions)
        return [OffsetRange(topic, tp.partition, self.beginnings[tp], self.ends[tp], known.topic_id) for tp in places]


class MirrorTopics:
    """Both clusters, as the driver asks about topics; `with` closes what was opened.

    Args:
        selection: What is mirrored.
        asking: Settings of the target's clients.
    """

    def __init__(self, selection: MirrorSelection, asking: Mapping[str, str]) -> None:
        self._selection = selection
        known = {name: value for name, value in asking.items() if name in ConsumerConfig.settings()}
        self._reading = {**known, "isolation.level": "read_committed"}
        self._open = ExitStack()
        self.source: LiveCluster = LiveCluster(selection.options.settings)
        """The cluster that is read."""
        self.reading_target: LiveCluster = LiveCluster(self._reading)
        """The cluster that is written, to be read."""

    def __enter__(self) -> Self:
        self._open.enter_context(self.source)
        self._open.enter_context(self.reading_target)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def look(self) -> MirrorLook:
        """Look at both sides.

        Raises:
            UnknownTopicOrPartitionError: a topic does not exist.
            MirrorError: one cannot be mirrored.
            ConfigError: names do not go together.
        """
        ids = tuple(each.admin.describe_cluster().cluster_id for each in (self.source, self.reading_target))
        here, there = ids
        if not here or not there:
            raise MirrorError("the brokers give their cluster no id: a mirror needs Kafka 2.8 or newer, or a gateway")
        for _ in range(_ATTEMPTS):
            topics = selected_topics(self.source, self._selection.options.selection)
            origins = origins_of(self.source.admin, topics)
            left_out = self._left_out(topics, origins, there)
            topics = {name: topic for name, topic in topics.items() if name not in left_out}
            self._check(topics, same=here == there)
            partitions = [TopicPartition(name, number) for name, topic in topics.items() for number in topic.partitions]
            # where they end, then where what is committed ends: what lies between is of transactions that are open
            tops = self.source.high_watermarks(partitions)
            bounds = self.source.beginning_offsets(partitions), self.source.end_offsets(partitions), tops
            now = self.source.topics(topics)
            if all(name in now and now[name].topic_id == topic.topic_id for name, topic in topics.items()):
                chains = {name: (*origins.get(name, ()), here) for name in topics}
                return MirrorLook(here, topics, *bounds, chains, left_out, *self._missing(topics))
            time.sleep(_PAUSE_S)
        raise MirrorError("topics are deleted and created again all the time; nothing was mirrored, run again later")

    def _left_out(
        self, topics: Mapping[str, KnownTopic], origins: Mapping[str, tuple[str, ...]], there: str
    ) -> tuple[str, ...]:
        back = tuple(sorted(name for name in topics if there in origins.get(name, ())))
        if back and self._selection.options.selection.pattern is None:
            raise MirrorError(
                f"{back[0]} was mirrored from the target's own cluster, and mirroring it back would go round without an"
                " end; mirror only topics that are written here"
            )
        return back

    def _check(self, topics: Mapping[str, KnownTopic], *, same: bool) -> None:
        goals: dict[str, str] = {}
        for name, topic in topics.items():
            goal = self._selection.target_of(name)
            check_goal(goal)
            if topic.topic_id in ("", NO_TOPIC_ID):
                raise MirrorError(
                    f"the brokers give no topic ids ({name}): without them a topic that is deleted and created again"
                    " would be taken for the former one; a mirror needs Kafka 2.8 or newer"
                )
            if same and goal == name:
                raise ConfigError(f"{name} would be mirrored to itself: give it another name by --prefix or --rename")
            if goal in goals:
                raise ConfigError(f"{goals[goal]} and {name} would both go to {goal}: a target has one source")
            goals[goal] = name
        unheld = sorted(set(self._selection.rename) - set(topics))
        if unheld:
            raise ConfigError(f"rename names topics that are not mirrored: {', '.join(unheld)}")

    def _missing(self, topics: Mapping[str, KnownTopic]) -> tuple[frozenset[str], frozenset[str]]:
        goals = {name: self._selection.target_of(name) for name in topics}
        there = self.reading_target.topics(goals.values())
        missing = frozenset(goals.values()) - there.keys()
        few = {
            name
            for name, goal in goals.items()
            if goal not in there or len(there[goal].partitions) < len(topics[name].partitions)
        }
        return frozenset(missing), frozenset(few)

    def check(self, seen: MirrorLook, starts: Mapping[TopicPartition, int], options: ReadOptions) -> None:
        """See to it that what follows on these offsets is there.

        Raises:
            DataLossError: it is gone, and that is not allowed.
            MirrorError: the source ends before them.
        """
        beyond = [tp for tp, start in sorted(starts.items()) if start > seen.tops[tp]]
        now = self.source.high_watermarks(beyond)  # an earlier run that is still at work may have come there since
        for tp in beyond:
            if starts[tp] > now[tp]:
                raise MirrorError(
                    f"{tp} ends at offset {now[tp]} now, and was mirrored up to {starts[tp]}: its log was cut back (an"
                    " unclean leader election), and other records get these offsets; give a new id and another target"
                )
        for tp, start in sorted(starts.items()):
            if start < seen.beginnings[tp] and options.fail_on_data_loss:
                raise DataLossError(
                    f"{tp}: the records from offset {start} to before {seen.beginnings[tp]} are gone, and were never"
                    f" mirrored; go on with what is there by {options.lenience}"
                )

    def make(self, seen: MirrorLook, *, validate_only: bool = False) -> None:
        """Make the targets that are missing, and give the others as many partitions as their sources have.

        Args:
            seen: What is there.
            validate_only: Only have the target's brokers check it.

        Raises:
            MirrorError: the target's cluster takes a setting not.
            KafkaError: it refuses otherwise.
        """
        from kclient import NewTopic

        admin = self.reading_target.admin
        counts = {name: len(seen.topics[name].partitions) for name in sorted(seen.unfit)}
        goals = {name: self._selection.target_of(name) for name in counts}
        missing = [name for name in counts if goals[name] in seen.missing]
        settings = settings_of(self.source.admin, missing) if self._selection.copy_settings else {}
        for name in missing:
            given = {**_KEPT_TIMES, **settings.get(name, {})}
            new = NewTopic(goals[name], counts[name], configs=given)
            try:
                admin.create_topics([new], validate_only=validate_only)
            except TopicExistsError:  # by another run
                continue
            except InvalidTopicError as error:
                raise MirrorError(
                    f"{goals[name]} cannot be made for {name}: {error}; give it another name by --rename or --prefix"
                ) from error
            except InvalidConfigurationError as error:
                if error.code != ErrorCode.INVALID_CONFIG:
                    raise
                raise MirrorError(
                    f"{goals[name]} cannot be made with the settings of {name}: {error}; leave them out by"
                    " --no-settings (copy_settings=False), or create it yourself"
                ) from error
        for name in (name for name in counts if name not in missing):
            admin.create_partitions({goals[name]: counts[name]}, validate_only=validate_only)

    def compacted(self, seen: MirrorLook) -> frozenset[str]:
        """Topics of which records between others may be gone; where settings are not told, all of them."""
        from kclient import ConfigResource, ConfigResourceType

        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in seen.topics]
        try:
            described = self.source.admin.describe_configs(resources) if resources else {}
        except KafkaError:  # nobody need be allowed to ask
            return frozenset(seen.topics)
        policies = {resource.name: entries.get("cleanup.policy") for resource, entries in described.items()}
        return frozenset(
            name for name, entry in policies.items() if entry is None or "compact" in (entry.value or "compact")
        )
