"""The topics that a mirror reads: which they are, what is theirs, and their records in a task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kclient.errors import GroupIdNotFoundError
from kclient.spark.cluster import LiveCluster
from kclient.spark.options import ReadOptions
from kclient.spark.pipelines.failures import MirrorError
from kclient.spark.pipelines.replay_records import Claim, Work
from kclient.spark.pipelines.replay_tasks import Records, SourcePartition
from kclient.spark.ranges import DataLossError, OffsetRange
from kclient.spark.reading import Fate, RangeReader
from kclient.types import OffsetAndMetadata

if TYPE_CHECKING:
    import pyarrow

    from kclient.sync import Admin

MIRROR = Work("mirror", MirrorError)

_NOT_COPIED = frozenset(
    {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "message.downconversion.enable",
        "message.format.version",
        "message.timestamp.difference.max.ms",
        "message.timestamp.type",
        "min.insync.replicas",
        "unclean.leader.election.enable",
    }
)
"""What belongs to the source's brokers, how many and how old they are; and what would give records other timestamps."""


@dataclass(frozen=True)
class TopicRecords:
    """Topics as a source.

    Attributes:
        options: how they are read.
    """

    options: ReadOptions

    def records(self, partition: SourcePartition, start: int, end: int) -> Records:
        return _Read(self.options, OffsetRange(partition.topic, partition.partition, start, end, partition.topic_id))


class _Read:
    def __init__(self, options: ReadOptions, wanted: OffsetRange) -> None:
        self.lost = 0
        self._options = options
        self._wanted = wanted
        self._cluster: LiveCluster | None = None

    def batches(self) -> Iterator[pyarrow.RecordBatch]:
        wanted = self._wanted
        if not len(wanted):
            return
        reader = RangeReader(self._options, wanted)
        try:
            with LiveCluster(self._options.settings) as self._cluster:
                yield from reader.batches()
        finally:
            self._cluster = None
        self.lost = sum(end - start for start, end in reader.lost)
        if reader.fate is not Fate.THERE and not self.lost:
            raise DataLossError(f"{wanted.topic_partition}: the topic was {reader.fate.value} while it was mirrored")

    def check(self) -> None:
        """Ids never come again: while the topic has this one, all that was read is of it."""
        if self._cluster is None:
            return
        topic = self._wanted.topic
        now = self._cluster.topics([topic])
        if topic in now and now[topic].topic_id != self._wanted.topic_id:
            raise DataLossError(
                f"{self._wanted.topic_partition}: the topic was deleted and created again while it was mirrored"
            )


def settings_of(admin: Admin, topics: Collection[str]) -> dict[str, dict[str, str]]:
    """The settings of topics that were given to them, and that their mirrors are to have."""
    from kclient import ConfigResource, ConfigResourceType

    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in topics]
    return {
        resource.name: {
            name: entry.value
            for name, entry in entries.items()
            if entry.source.name == "DYNAMIC_TOPIC_CONFIG" and entry.value is not None
            if name not in _NOT_COPIED
        }
        for resource, entries in (admin.describe_configs(resources) if resources else {}).items()
    }


def origins_of(admin: Admin, topics: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The clusters that the records of topics have come through, of those that mirrors have written.

    Their claims tell it, which lie in the groups `ID:TOPIC` of the cluster that they have written to.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for group in admin.list_groups().complete():
        if group.group_id.count(":") != 1:
            continue
        try:
            offsets = admin.list_group_offsets(group.group_id)
        except GroupIdNotFoundError:  # it has just gone, or is of a type that commits none
            continue
        for tp, offset in offsets.items():
            if tp.partition == 0 and tp.topic in topics:
                found[tp.topic] += _origins(group.group_id, offset)
    return {topic: tuple(dict.fromkeys(origins)) for topic, origins in found.items() if origins}


def _origins(group: str, offset: OffsetAndMetadata) -> tuple[str, ...]:
    try:
        return Claim.read(group, offset, MIRROR).origins
    except MirrorError:  # a group of others may have such a name
        return ()
