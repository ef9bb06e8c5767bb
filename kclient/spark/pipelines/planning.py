"""What a run archives: for each partition from where the last run ended to where its log ends now."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from kclient.errors import KafkaError
from kclient.spark.admission import limited
from kclient.spark.cluster import NO_TOPIC_ID, KnownTopic, TopicView
from kclient.spark.options import ReadOptions
from kclient.spark.pipelines.manifest import ArchivedRange, ArchiveError, Manifest
from kclient.spark.ranges import DataLossError, selected_partitions, selected_topics
from kclient.types import TopicPartition

_ATTEMPTS = 3
_PAUSE_S = 0.2
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""How Hive, and all who read folders as it does, write null as a part of a path."""
_SHOWN = 3
"""So many partitions are named in an error; the others are counted."""


@dataclass(frozen=True)
class ArchivePlan:
    """What a run is to do."""

    ranges: tuple[ArchivedRange, ...]
    """What to archive, without empty ones."""
    positions: tuple[ArchivedRange, ...]
    """Where each partition stands afterwards, of those that were looked at."""
    lost: tuple[ArchivedRange, ...]
    """What is gone already, and was never archived."""
    remaining: int = 0
    """Offsets that are there now, and are left to later runs."""


def plan(
    cluster: TopicView,
    options: ReadOptions,
    last: Manifest | None,
    *,
    restart_recreated: bool,
    most: int | None = None,
) -> ArchivePlan:
    """Fixes topic ids and offsets: about `most` of these, as Spark's `maxOffsetsPerTrigger`; all if it is None.

    Raises:
        UnknownTopicOrPartitionError: a topic does not exist.
        ArchiveError: a topic was created again since it was archived, and `restart_recreated` is not set; or the
            brokers know no topic ids, so that this could not be seen; or a topic's name would read back as null.
        DataLossError: records are gone that no run archived, and `failOnDataLoss` is true.
    """
    for _ in range(_ATTEMPTS):
        topics = archivable_topics(cluster, options)
        _check_recreated(topics, last, restart_recreated)
        partitions = selected_partitions(topics, options.selection)
        beginnings, ends = cluster.beginning_offsets(partitions), cluster.end_offsets(partitions)
        found = _plan(cluster, topics, partitions, beginnings, ends, last)
        now = cluster.topics(topics)
        # else the offsets may be a namesake's
        if all(name in now and now[name].topic_id == topic.topic_id for name, topic in topics.items()):
            if found.lost and options.fail_on_data_loss:
                raise _loss(found.lost, options.lenience)
            return found if most is None else _limited(found, most)
        time.sleep(_PAUSE_S)
    raise ArchiveError("topics are deleted and created again all the time; nothing was archived, run again later")


def archivable_topics(cluster: TopicView, options: ReadOptions) -> dict[str, KnownTopic]:
    """The topics that are meant, as they are now.

    Raises:
        UnknownTopicOrPartitionError: one that is named does not exist.
        ArchiveError: one cannot be archived, as `plan` says.
    """
    topics = selected_topics(cluster, options.selection)
    _check_names(topics)
    _check_ids(topics)
    return topics


def _check_names(topics: Collection[str]) -> None:
    if _NO_VALUE in topics:
        raise ArchiveError(
            f"the topic {_NO_VALUE!r} cannot be archived: readers of Parquet take a folder of that name for one without"
            " a topic, and its records would come back with null; nothing was archived, leave it out (a pattern such as"
            " '(?!__HIVE).*' does)"
        )


def _check_ids(topics: Mapping[str, KnownTopic]) -> None:
    without = sorted(name for name, topic in topics.items() if topic.topic_id in ("", NO_TOPIC_ID))
    if without:
        raise ArchiveError(
            f"the brokers give no topic ids ({_listed(without)}): without them a topic that is deleted and created"
            " again would be taken for the former one; archives need Kafka 2.8 or newer, and Metadata 10 of other"
            " brokers; nothing was archived"
        )


def _check_recreated(topics: Mapping[str, KnownTopic], last: Manifest | None, restart: bool) -> None:
    known = {(position.topic, position.topic_id) for position in last.positions} if last else set()
    former = {name for name, _ in known}
    again = sorted(name for name, topic in topics.items() if name in former and (name, topic.topic_id) not in known)
    if again and not restart:
        raise ArchiveError(
            f"deleted and created again since it was archived: {_listed(again)}; what the archive holds is of the"
            " former topic, and offsets begin anew: archive into another folder, or go on in this one from the new"
            " topic's start with --restart-recreated (restart_recreated=True)"
        )


def _plan(
    cluster: TopicView,
    topics: Mapping[str, KnownTopic],
    partitions: Collection[TopicPartition],
    beginnings: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    last: Manifest | None,
) -> ArchivePlan:
    known = {each.key: each.end for each in (last.positions if last else ())}
    incomplete = set(last.incomplete or ()) if last else set()
    seen = {(topic, topic_id) for topic, topic_id, _ in known if topic_id not in incomplete}
    behind = [p for p in partitions if known.get(_key(p, topics[p.topic].topic_id), 0) > ends[p]]
    tops = cluster.high_watermarks(behind)
    ranges, positions, lost = list[ArchivedRange](), list[ArchivedRange](), list[ArchivedRange]()
    for partition in sorted(partitions):
        topic_id = topics[partition.topic].topic_id
        # of a topic all of whose partitions were remembered, one that was not there yet begins at 0
        expected = 0 if (partition.topic, topic_id) in seen else beginnings[partition]
        place = known.get(_key(partition, topic_id), expected)
        start, end = max(place, beginnings[partition]), ends[partition]
        if place > tops.get(partition, place):  # the log was cut back; behind its end other records get these offsets
            start = end
            lost.append(ArchivedRange(*_key(partition, topic_id), tops[partition], place))
        elif place > end:  # below the end of open transactions: an earlier run took those too
            start = end = place
        elif place < start:
            lost.append(ArchivedRange(*_key(partition, topic_id), place, start))
        whole = ArchivedRange(*_key(partition, topic_id), start, end)
        positions.append(whole)
        if start < end:
            ranges.append(whole)
    return ArchivePlan(tuple(ranges), tuple(positions), tuple(lost))


def _limited(found: ArchivePlan, most: int) -> ArchivePlan:
    """A part of it: each partition gets its share, and goes on from there the next time."""
    whole = {each.key: each for each in found.positions}
    ends = limited(
        {key: each.start for key, each in whole.items()}, {key: each.end for key, each in whole.items()}, most
    )
    positions = tuple(replace(each, end=ends[key]) for key, each in whole.items())
    ranges = tuple(each for each in positions if each.start < each.end)
    return replace(found, ranges=ranges, positions=positions, remaining=_size(found.ranges) - _size(ranges))


def _size(ranges: Collection[ArchivedRange]) -> int:
    return sum(each.end - each.start for each in ranges)


def _key(partition: TopicPartition, topic_id: str) -> tuple[str, str, int]:
    """The first fields of an `ArchivedRange`."""
    return partition.topic, topic_id, partition.partition


def _loss(lost: Collection[ArchivedRange], lenience: str) -> KafkaError:
    places = [f"{each.topic}-{each.partition} from {each.start} to before {each.end}" for each in lost]
    return DataLossError(
        f"records are gone that were never archived, or the log was cut back below what was: {_listed(places)}; go on"
        f" with what is there by {lenience}"
    )


def _listed(names: Collection[str]) -> str:
    shown = list(names)[:_SHOWN]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
