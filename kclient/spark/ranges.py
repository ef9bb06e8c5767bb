"""Which offsets of which partitions a read covers, and how they are shared out to tasks.

Everything is fixed here, once, by the driver: tasks read the ranges they are given and decide nothing.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kclient.errors import ConfigError, KafkaError
from kclient.spark.options import EARLIEST, LATEST, OffsetSpec, ReadOptions, Selection
from kclient.types import TopicPartition

if TYPE_CHECKING:
    from kclient.sync import Consumer


class DataLossError(KafkaError):
    """Records that the read should have covered are no longer (or not yet) there; see `failOnDataLoss`."""


@dataclass(frozen=True)
class OffsetRange:
    """The records of one partition from `start` to before `end`."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __len__(self) -> int:
        return self.end - self.start


def resolve_ranges(consumer: Consumer, options: ReadOptions) -> list[OffsetRange]:
    """Asks the cluster for the bounds and returns the ranges to read, sorted, without empty ones.

    Raises:
        ConfigError: a topic or partition does not exist, or offsets are given for other partitions than selected.
        DataLossError: an offset lies outside of what the log holds, and `failOnDataLoss` is true.
    """
    partitions = _selected(consumer, options.selection)
    beginnings = consumer.beginning_offsets(partitions)
    ends = consumer.end_offsets(partitions)
    starting = _resolve(consumer, options.starting, partitions, "starting", beginnings, ends, options)
    ending = _resolve(consumer, options.ending, partitions, "ending", beginnings, ends, options)
    ranges = []
    for partition in sorted(partitions):
        start = _bounded(partition, starting[partition], beginnings[partition], ends[partition], options)
        end = _bounded(partition, ending[partition], beginnings[partition], ends[partition], options)
        if start > end and _explicit(options.starting) and _explicit(options.ending):
            raise ConfigError(
                f"{partition.topic}-{partition.partition}: the starting offset {start} lies after the ending one {end}"
            )
        if start < end:
            ranges.append(OffsetRange(partition.topic, partition.partition, start, end))
    return ranges


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
    return [OffsetRange(whole.topic, whole.partition, start, end) for start, end in itertools.pairwise(edges)]


def _selected(consumer: Consumer, selection: Selection) -> list[TopicPartition]:
    if selection.pattern is not None:
        return _matching(consumer, selection.pattern)
    topics = selection.topics or sorted({partition.topic for partition in selection.partitions})
    existing = consumer.list_topics()
    missing = [topic for topic in topics if topic not in existing]
    if missing:
        raise ConfigError(f"no such topic: {', '.join(missing)}")
    every = [TopicPartition(topic, info.partition) for topic in topics for info in existing[topic]]
    if not selection.partitions:
        return every
    absent = sorted(set(selection.partitions) - set(every))
    if absent:
        raise ConfigError(f"no such partition: {', '.join(f'{p.topic}-{p.partition}' for p in absent)}")
    return list(selection.partitions)


def _matching(consumer: Consumer, pattern: str) -> list[TopicPartition]:
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"the option subscribePattern is no regular expression: {pattern!r}: {error}") from error
    return [
        TopicPartition(topic, info.partition)
        for topic, infos in sorted(consumer.list_topics().items())
        if expression.fullmatch(topic) and not topic.startswith("__")
        for info in infos
    ]


def _explicit(spec: OffsetSpec) -> bool:
    return bool(spec.offsets or spec.timestamps or spec.timestamp is not None)


def _resolve(
    consumer: Consumer,
    spec: OffsetSpec,
    partitions: Collection[TopicPartition],
    side: str,
    beginnings: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    options: ReadOptions,
) -> Mapping[TopicPartition, int]:
    if spec.timestamp is not None:
        wanted = dict.fromkeys(partitions, spec.timestamp)
        return _by_timestamp(consumer, wanted, side, ends, options)
    if spec.timestamps:
        _check_covered(f"{side}OffsetsByTimestamp", spec.timestamps, partitions)
        return _by_timestamp(consumer, spec.timestamps, side, ends, options)
    if spec.offsets:
        _check_covered(f"{side}Offsets", spec.offsets, partitions)
        special = {EARLIEST: beginnings, LATEST: ends}
        return {p: special[offset][p] if offset in special else offset for p, offset in spec.offsets.items()}
    return beginnings if spec.everywhere == EARLIEST else ends


def _check_covered(option: str, given: Mapping[TopicPartition, int], partitions: Collection[TopicPartition]) -> None:
    wrong = sorted(set(given) ^ set(partitions))
    if wrong:
        names = ", ".join(f"{p.topic}-{p.partition}" for p in wrong)
        raise ConfigError(
            f"the option {option} must name exactly the partitions that are read; missing or too many: {names}"
        )


def _by_timestamp(
    consumer: Consumer,
    wanted: Mapping[TopicPartition, int],
    side: str,
    ends: Mapping[TopicPartition, int],
    options: ReadOptions,
) -> Mapping[TopicPartition, int]:
    found = consumer.offsets_for_times(wanted)
    result: dict[TopicPartition, int] = {}
    for partition, timestamp in wanted.items():
        answer = found.get(partition)
        if answer is not None:
            result[partition] = answer.offset
        elif side == "ending" or options.no_offset_strategy == "latest":
            result[partition] = ends[partition]
        else:
            raise ConfigError(
                f"{partition.topic}-{partition.partition} has no record at or after the timestamp {timestamp};"
                " set startingOffsetsByTimestampStrategy=latest to read nothing from such partitions"
            )
    return result


def _bounded(partition: TopicPartition, offset: int, beginning: int, end: int, options: ReadOptions) -> int:
    if beginning <= offset <= end:
        return offset
    if options.fail_on_data_loss:
        raise DataLossError(
            f"{partition.topic}-{partition.partition} holds the offsets {beginning} to {end}, but {offset} was asked"
            " for: records were deleted, or the topic was created anew; set failOnDataLoss=false to read what is there"
        )
    return min(max(offset, beginning), end)
