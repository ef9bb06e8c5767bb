"""What an audit compares: a topic of a cluster, or what an archive holds of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kclient.arguments import check_topic, shown
from kclient.errors import ConfigError, KafkaError
from kclient.spark.cluster import LiveCluster
from kclient.spark.options import ReadOptions, parse_read_options
from kclient.spark.pipelines.archive_reader import PartitionReader, offsets_of
from kclient.spark.pipelines.archive_view import ArchivedPartition, ArchiveView
from kclient.spark.pipelines.audit_compare import COLUMNS
from kclient.spark.pipelines.places import local_folder
from kclient.spark.pipelines.settings import text_settings
from kclient.spark.ranges import OffsetRange, resolve_ranges, selected_topics
from kclient.spark.reading import RangeReader
from kclient.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class TopicAt:
    """A topic of a cluster, as one side of an audit.

    Attributes:
        topic: its name.
        settings: the consumer's settings by their Java names; `bootstrap.servers` is required. `isolation.level` is
            `read_committed` unless given.
    """

    topic: str
    settings: Mapping[str, Any] = field(repr=False)  # some are passwords

    def __str__(self) -> str:
        return f"{self.topic} at {self.settings.get('bootstrap.servers', self.settings.get('bootstrap_servers'))}"


@dataclass(frozen=True)
class ArchivedTopic:
    """What an archive holds of a topic, as one side of an audit.

    Attributes:
        folder: the archive's folder, which driver and workers share.
        topic: its name.
        topic_id: which one, where several of that name are archived.
    """

    folder: str | Path
    topic: str
    topic_id: str | None = None

    def __str__(self) -> str:
        return f"{self.topic} in {self.folder}"


class ReadableSide(Protocol):
    """A side as the driver has found it, and as tasks read it."""

    @property
    def topic_id(self) -> str:
        """Of its topic."""
        ...

    @property
    def bounds(self) -> Mapping[int, tuple[int, int]]:
        """By partition, the first offset and the one behind the last."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What may explain gaps."""
        ...

    def batches(
        self, partition: int, start: int, end: int, lost: list[tuple[int, int]] | None = None
    ) -> Iterator[pyarrow.RecordBatch]:
        """The records of a range, in the order of their offsets.

        Args:
            partition: of which partition.
            start: the first offset.
            end: the offset behind the last one.
            lost: gets the offsets, from and to before, that were gone, where that is no error.
        """
        ...

    def complete_from(self, partition: int) -> int:
        """The offset from which on nothing was deleted; before it there may be records in part."""
        ...

    def ends_below(self, partition: int, place: int) -> bool:
        """Whether the log ends before this offset, open transactions included: it was cut back."""
        ...


@dataclass(frozen=True)
class _TopicSide:
    options: ReadOptions
    topic: str
    topic_id: str
    bounds: Mapping[int, tuple[int, int]]
    notes: tuple[str, ...]

    def batches(
        self, partition: int, start: int, end: int, lost: list[tuple[int, int]] | None = None
    ) -> Iterator[pyarrow.RecordBatch]:
        if start < end:
            reader = RangeReader(self.options, OffsetRange(self.topic, partition, start, end, self.topic_id))
            yield from reader.batches()
            if lost is not None:
                lost += reader.lost

    def complete_from(self, partition: int) -> int:
        return self.bounds[partition][0]

    def ends_below(self, partition: int, place: int) -> bool:
        tp = TopicPartition(self.topic, partition)
        with LiveCluster(self.options.settings) as cluster:
            return cluster.high_watermarks([tp])[tp] < place


@dataclass(frozen=True)
class _ArchiveSide:
    folder: Path
    topic_id: str
    partitions: Mapping[int, ArchivedPartition]
    notes: tuple[str, ...] = ()

    @property
    def bounds(self) -> Mapping[int, tuple[int, int]]:
        return {number: (each.start, each.end) for number, each in self.partitions.items()}

    def batches(
        self, partition: int, start: int, end: int, lost: list[tuple[int, int]] | None = None
    ) -> Iterator[pyarrow.RecordBatch]:
        if partition in self.partitions:
            yield from PartitionReader(self.folder, self.partitions[partition], start, end, COLUMNS).batches()

    def complete_from(self, partition: int) -> int:
        found = self.partitions[partition]
        return found.start if found.expired is None else max(found.start, found.expired[1])

    def ends_below(self, partition: int, place: int) -> bool:
        return False  # an archive may be of an earlier day than what was read of its topic


def opened(side: TopicAt | ArchivedTopic) -> ReadableSide:
    """A side as it is now: where its partitions begin and end.

    Raises:
        ConfigError: it is none, or a setting is wrong.
        UnknownTopicOrPartitionError: the topic does not exist.
        ArchiveError: the archive does not hold it.
        KafkaError: no broker answers.
    """
    check_side(side)
    if isinstance(side, ArchivedTopic):
        view = ArchiveView(local_folder(side.folder, "the archive's folder"))
        parts = view.partitions([side.topic], [] if side.topic_id is None else [side.topic_id])
        partitions = {each.partition: _with_start(view.folder, each) for each in parts}
        return _ArchiveSide(view.folder, parts[0].topic_id, partitions, view.notes([side.topic]))
    options = _options(side)
    with LiveCluster(options.settings) as cluster:
        known = selected_topics(cluster, options.selection)[side.topic]
        bounds = dict.fromkeys(known.partitions, (0, 0))
        for each in resolve_ranges(cluster, options):
            bounds[each.partition] = each.start, each.end
            if each.topic_id != known.topic_id:
                return opened(side)  # created again since a moment ago
        return _TopicSide(options, side.topic, known.topic_id, bounds, _notes(cluster, side.topic))


def with_own_ends(side: ReadableSide, *, fail_on_data_loss: bool) -> ReadableSide:
    """The same for runs that go on: a partition without records tells where it ends, too.

    One of an archive begins where archiving began, which may be before its first record: what lies between was aborted,
    or compacted, and is no loss.

    Args:
        side: As it was opened.
        fail_on_data_loss: Whether records that are gone when their turn comes are an error.
    """
    if isinstance(side, _ArchiveSide):
        covered = {number: replace(each, start=each.covered) for number, each in side.partitions.items()}
        return replace(side, partitions=covered)
    if not isinstance(side, _TopicSide):
        return side
    empty = [TopicPartition(side.topic, number) for number, (start, end) in side.bounds.items() if start == end]
    with LiveCluster(side.options.settings) as cluster:
        places = cluster.beginning_offsets(empty)  # records may have come since, which the next run takes
    bounds = {**side.bounds, **{tp.partition: (place, place) for tp, place in places.items()}}
    options = replace(side.options, fail_on_data_loss=fail_on_data_loss)
    return replace(side, bounds=bounds, options=options)


def _with_start(folder: Path, partition: ArchivedPartition) -> ArchivedPartition:
    """The partition, which begins at its first record: of footers the first offset may be another partition's."""
    if not partition.pieces or partition.pieces[0].exact:
        return partition
    reader = PartitionReader(folder, partition, partition.start, partition.end, ("offset",))
    first = next(reader.batches(), None)
    return replace(partition, start=partition.end if first is None else offsets_of(first)[0])


def check_side(side: Any) -> None:
    """Whether it is a side, as far as can be said without asking anybody.

    Raises:
        ConfigError: it is none, or a setting is wrong.
    """
    if not isinstance(side, TopicAt | ArchivedTopic):
        raise ConfigError(f"what is read is a TopicAt or an ArchivedTopic, not {shown(side)}")
    check_topic(side.topic)
    if isinstance(side, TopicAt):
        _options(side)
    else:
        local_folder(side.folder, "the archive's folder")


def _options(side: TopicAt) -> ReadOptions:
    given = {"isolation.level": "read_committed", **text_settings(side.settings, "a TopicAt")}
    options = parse_read_options({**{f"kafka.{name}": each for name, each in given.items()}, "subscribe": side.topic})
    return replace(options, columns=COLUMNS, lenience="running this again")


def _notes(cluster: LiveCluster, topic: str) -> tuple[str, ...]:
    """What the topic's settings say about gaps."""
    from kclient import ConfigResource, ConfigResourceType

    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    try:
        entry = cluster.admin.describe_configs([resource])[resource].get("cleanup.policy")
    except KafkaError:  # this user is not told
        return ()
    if entry is not None and entry.value is not None and "compact" in entry.value:
        return (f"{topic} is compacted (cleanup.policy={entry.value}): offsets go missing by that",)
    return ()
