"""Which offsets of which partitions a read covers, and how they are shared out to tasks.

Everything is fixed here, once, by the driver: tasks read the ranges they are given and decide nothing.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from kclient.errors import ConfigError, KafkaError, UnknownTopicOrPartitionError
from kclient.spark.cluster import KnownTopic, TopicView
from kclient.spark.options import EARLIEST, LATEST, RangeBound, ReadOptions, Selection
from kclient.types import TopicPartition

T = TypeVar("T")


class DataLossError(KafkaError):
    """Records that the read should have covered are no longer (or not yet) there; see `failOnDataLoss`."""


@dataclass(frozen=True)
class OffsetRange:
    """The records of one partition from `start` to before `end`, of the topic that has this id."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = ""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __len__(self) -> int:
        return self.end - self.start


def resolve_ranges(cluster: TopicView, options: ReadOptions) -> list[OffsetRange]:
    """Asks the cluster for the bounds and returns the ranges to read, sorted, without empty ones.

    Raises:
        UnknownTopicOrPartitionError: a topic or partition does not exist.
        ConfigError: offsets are given for other partitions than selected, or contradict each other.
        DataLossError: an offset lies outside of what the log holds, and `failOnDataLoss` is true.
    """

    def look() -> list[OffsetRange] | None:
        topics = selected_topics(cluster, options.selection)
        ranges = _resolve_ranges(cluster, options, topics)
        return ranges if unchanged(cluster, topics, {whole.topic for whole in ranges}) else None

    return until_found(look, options)


def until_found(look: Callable[[], T | None], options: ReadOptions) -> T:
    """Look until there is something; a retriable error is raised when it was tried often enough."""
    attempt = 0
    while True:
        attempt += 1
        try:
            found = look()
        except KafkaError as error:
            if not error.retriable or isinstance(error, UnknownTopicOrPartitionError):
                raise
            if attempt >= options.offset_attempts:
                raise
        else:
            if found is not None:
                return found
        time.sleep(options.offset_retry_interval_ms / 1000)


def unchanged(cluster: TopicView, topics: Mapping[str, KnownTopic], names: Collection[str]) -> bool:
    """Whether the offsets that were found meanwhile belong to the topics as they were before."""
    now = cluster.topics(names)
    return all(name in now and now[name].topic_id == topics[name].topic_id for name in names)


def _resolve_ranges(cluster: TopicView, options: ReadOptions, topics: Mapping[str, KnownTopic]) -> list[OffsetRange]:
    partitions = selected_partitions(topics, options.selection)
    beginnings = cluster.beginning_offsets(partitions)
    ends = cluster.end_offsets(partitions)
    starting = starting_places(cluster, options, partitions, beginnings, ends)
    ending = _resolve(cluster, options.ending, partitions, "ending", beginnings, ends, options)
    ranges = []
    for partition in sorted(partitions):
        start = starting[partition]
        end = _bounded(partition, ending[partition], beginnings[partition], ends[partition], options)
        if start > end and _explicit(options.starting) and _explicit(options.ending):
            raise ConfigError(f"{partition}: the starting offset {start} lies after the ending one {end}")
        if start < end:
            topic_id = topics[partition.topic].topic_id
            ranges.append(OffsetRange(partition.topic, partition.partition, start, end, topic_id))
    return ranges


def starting_places(
    cluster: TopicView,
    options: ReadOptions,
    partitions: Collection[TopicPartition],
    beginnings: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Where to begin in each partition.

    Raises:
        ConfigError: offsets are given for other partitions than these.
        DataLossError: an offset lies outside of what the log holds, and `failOnDataLoss` is true.
    """
    found = _resolve(cluster, options.starting, partitions, "starting", beginnings, ends, options)
    return {tp: _bounded(tp, found[tp], beginnings[tp], ends[tp], options) for tp in partitions}


def split_ranges(
    ranges: Iterable[OffsetRange], min_partitions: int | None, max_records: int | None
) -> list[OffsetRange]:
    """Cuts ranges so that there are about `min_partitions` of them and none has more than `max_records` records."""
    ranges = [piece for whole in ranges for piece in _cut(whole, -(-len(whole) // max_records) if max_records else 1)]
    if min_partitions is None or len(ranges) >= min_partitions:
        return ranges
    total = sum(map(len, ranges))
    return [piece for whole in ranges for piece in _cut(whole, max(1, round(len(whole) * min_partitions / total)))]


def _cut(whole: OffsetRange, pieces: int) -> list[OffsetRange]:
    pieces = max(1, min(pieces, len(whole)))
    edges = [whole.start + len(whole) * number // pieces for number in range(pieces + 1)]
    return [replace(whole, start=start, end=end) for start, end in itertools.pairwise(edges)]


def selected_topics(cluster: TopicView, selection: Selection, *, missing_ok: bool = False) -> dict[str, KnownTopic]:
    """The topics that are meant, as they are now.

    Raises:
        UnknownTopicOrPartitionError: one that is named does not exist, unless `missing_ok`.
    """
    if selection.pattern is not None:
        return cluster.topics(_matching(cluster, selection.pattern, selection.whole_names))
    names = selection.topics or sorted({partition.topic for partition in selection.partitions})
    found = cluster.topics(names)
    missing = [name for name in names if name not in found]
    if missing and not missing_ok:
        raise UnknownTopicOrPartitionError(f"no such topic: {', '.join(missing)}")
    return found


def selected_partitions(
    topics: Mapping[str, KnownTopic], selection: Selection, *, missing_ok: bool = False
) -> list[TopicPartition]:
    """All partitions of the topics, or those that were assigned.

    Raises:
        UnknownTopicOrPartitionError: one that was assigned does not exist, unless `missing_ok`.
    """
    every = [TopicPartition(name, number) for name, topic in sorted(topics.items()) for number in topic.partitions]
    if not selection.partitions:
        return every
    absent = sorted(set(selection.partitions) - set(every))
    if absent and not missing_ok:
        raise UnknownTopicOrPartitionError(f"no such partition: {', '.join(map(str, absent))}")
    return [tp for tp in selection.partitions if tp not in absent]


def _matching(cluster: TopicView, pattern: str, whole_names: bool) -> list[str]:
    expression = re.compile(pattern)
    matches = expression.fullmatch if whole_names else expression.search
    return [name for name in cluster.names() if matches(name)]


def _explicit(spec: RangeBound) -> bool:
    return bool(spec.offsets or spec.timestamps or spec.timestamp is not None)


def _resolve(
    cluster: TopicView,
    spec: RangeBound,
    partitions: Collection[TopicPartition],
    side: str,
    beginnings: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    options: ReadOptions,
) -> Mapping[TopicPartition, int]:
    if spec.timestamp is not None:
        wanted = dict.fromkeys(partitions, spec.timestamp)
        return _by_timestamp(cluster, wanted, side, ends, options)
    if spec.timestamps:
        _check_covered(f"{side}OffsetsByTimestamp", spec.timestamps, partitions)
        return _by_timestamp(cluster, spec.timestamps, side, ends, options)
    if spec.offsets:
        _check_covered(f"{side}Offsets", spec.offsets, partitions)
        special = {EARLIEST: beginnings, LATEST: ends}
        return {p: special[offset][p] if offset in special else offset for p, offset in spec.offsets.items()}
    return beginnings if spec.everywhere == EARLIEST else ends


def _check_covered(option: str, given: Mapping[TopicPartition, int], partitions: Collection[TopicPartition]) -> None:
    wrong = sorted(set(given) ^ set(partitions))
    if wrong:
        names = ", ".join(map(str, wrong))
        raise ConfigError(
            f"the option {option} must name exactly the partitions that are read; missing or too many: {names}"
        )


def _by_timestamp(
    cluster: TopicView,
    wanted: Mapping[TopicPartition, int],
    side: str,
    ends: Mapping[TopicPartition, int],
    options: ReadOptions,
) -> Mapping[TopicPartition, int]:
    found = cluster.offsets_for_times(wanted)
    result: dict[TopicPartition, int] = {}
    for partition, timestamp in wanted.items():
        answer = found.get(partition)
        if answer is not None:
            result[partition] = answer.offset
        elif side == "ending" or options.no_offset_strategy == "latest":
            result[partition] = ends[partition]
        else:
            raise ConfigError(
                f"{partition} has no record at or after the timestamp {timestamp};"
                " set startingOffsetsByTimestampStrategy=latest to read nothing from such partitions"
            )
    return result


def _bounded(partition: TopicPartition, offset: int, beginning: int, end: int, options: ReadOptions) -> int:
    if beginning <= offset <= end:
        return offset
    if options.fail_on_data_loss:
        raise DataLossError(
            f"{partition} holds the offsets {beginning} to {end}, but {offset} was asked for: records were deleted,"
            f" or the topic was created anew; read what is there by {options.lenience}"
        )
    return min(max(offset, beginning), end)
