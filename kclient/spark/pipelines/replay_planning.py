"""What a replay is to do: which records of an archive go to which topics. It asks no broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kclient.arguments import as_names, as_partition, check_topic, shown
from kclient.errors import ConfigError
from kclient.spark.pipelines.archive_view import ArchivedPartition, ArchiveView
from kclient.spark.pipelines.manifest import ArchiveError
from kclient.spark.pipelines.rate_limiter import Rate
from kclient.spark.pipelines.replay_records import fingerprint_of
from kclient.spark.pipelines.replay_tasks import Replayed
from kclient.types import TopicPartition

_FIRST, _LAST = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True)
class ReplaySelection:
    """What is replayed, to where, and how; checked.

    Attributes:
        topics: the source topics; empty for all.
        topic_ids: which topic of a name.
        rename: the target of a source topic.
        prefix: what the targets of others begin with.
        target: the target of all, where there is one.
        times: from when to before when, in microseconds.
        offsets: from which to before which offset of a source partition.
        keep_partitions: whether records stay in the partition of their number.
        rate: the most of a second.
    """

    topics: tuple[str, ...] = ()
    topic_ids: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    target: str | None = None
    times: tuple[int | None, int | None] = (None, None)
    offsets: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    keep_partitions: bool = True
    rate: Rate = field(default_factory=Rate)

    def target_of(self, topic: str) -> str:
        """Where a source topic's records go to."""
        return self.target or self.rename.get(topic, f"{self.prefix}{topic}")

    def fingerprint(self, topic: str) -> str:
        """Of what is replayed of a topic: a replay that goes on has the same."""
        return fingerprint_of(
            {
                "target": self.target_of(topic),
                "times": self.times,
                "offsets": sorted((tp.partition, *ends) for tp, ends in self.offsets.items() if tp.topic == topic),
                "kept": self.keep_partitions,
            }
        )

    def default_id(self, folder: Path) -> str:
        """The id of a replay that was given none: the same for the same arguments, whatever the archive holds."""
        offsets = sorted((tp.topic, tp.partition, *ends) for tp, ends in self.offsets.items())
        told = {
            "folder": str(folder), "topics": sorted(self.topics), "ids": sorted(self.topic_ids),
            "rename": dict(self.rename), "prefix": self.prefix, "target": self.target, "times": self.times,
            "offsets": offsets, "kept": self.keep_partitions,
        }  # fmt: skip
        return f"replay-{fingerprint_of(told)}"


def checked_selection(
    *,
    topics: Sequence[str],
    topic_ids: Sequence[str],
    rename: Mapping[str, str] | None,
    prefix: str,
    target: str | None,
    since: datetime | int | None,
    until: datetime | int | None,
    offsets: Mapping[Any, tuple[int, int]] | None,
    keep_partitions: bool,
    records_per_second: float | None,
    bytes_per_second: float | None,
) -> ReplaySelection:
    """The selection that arguments describe.

    Raises:
        ConfigError: one of them is wrong, or two do not go together.
    """
    names = tuple(dict.fromkeys(as_names(topics, "topics of a replay", empty=True)))  # one named twice is replayed once
    targets = renamed(rename)
    if not isinstance(prefix, str) or (target is not None and not isinstance(target, str)):
        raise ConfigError(f"a prefix and a target are text, not {shown(prefix)} and {shown(target)}")
    if target is not None and (targets or prefix):
        raise ConfigError("one target for all goes with neither rename nor prefix")
    for name in (*names, *targets, *targets.values(), *([] if target is None else [target])):
        check_topic(name)
    unused = sorted(set(targets) - set(names)) if names else []
    if unused:
        raise ConfigError(f"rename names topics that are not replayed: {', '.join(unused)}")
    times = _microseconds(since, "since"), _microseconds(until, "until")
    if times[0] is not None and times[1] is not None and times[0] >= times[1]:
        raise ConfigError("since is not before until: there is no time between them")
    rate = Rate(rate_of(records_per_second, "records_per_second"), rate_of(bytes_per_second, "bytes_per_second"))
    return ReplaySelection(
        names, tuple(as_names(topic_ids, "topic ids of a replay", empty=True)), targets, prefix, target, times,
        _ranges(offsets), bool(keep_partitions), rate,
    )  # fmt: skip


def renamed(rename: Mapping[str, str] | None) -> dict[str, str]:
    """The targets of topics, by their names. Raises `ConfigError` where it is no mapping."""
    if rename is None:
        return {}
    if not isinstance(rename, Mapping):
        raise ConfigError(f"rename is a mapping of a topic to its target, not {shown(rename)}")
    return dict(rename)


def _microseconds(moment: datetime | int | None, what: str) -> int | None:
    """A time in milliseconds, or a datetime with a zone, as the archive has times."""
    if moment is None:
        return None
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise ConfigError(f"{what} is a datetime with a time zone, and {shown(moment)} has none")
        passed = moment - datetime(1970, 1, 1, tzinfo=UTC)
        return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds
    if isinstance(moment, bool) or not isinstance(moment, int):
        raise ConfigError(f"{what} is a datetime or milliseconds since 1970, not {shown(moment)}")
    return max(_FIRST, min(moment * 1000, _LAST))


def rate_of(value: float | None, what: str) -> float | None:
    """So many a second; None is no limit. Raises `ConfigError` where it is no number greater than 0."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ConfigError(f"{what} is a number greater than 0, not {shown(value)}")
    return float(value)


def _ranges(offsets: Mapping[Any, tuple[int, int]] | None) -> dict[TopicPartition, tuple[int, int]]:
    if offsets is None:
        return {}
    if not isinstance(offsets, Mapping):
        raise ConfigError(f"offsets are a mapping of partitions to pairs of offsets, not {shown(offsets)}")
    found: dict[TopicPartition, tuple[int, int]] = {}
    for place, ends in offsets.items():
        partition = as_partition(place)
        if (
            not isinstance(ends, tuple | list)
            or len(ends) != 2
            or not all(isinstance(each, int) and not isinstance(each, bool) for each in ends)
            or not 0 <= ends[0] < ends[1]
        ):
            raise ConfigError(f"offsets of {partition} are a first one and a greater one behind the last")
        found[partition] = ends[0], ends[1]
    return found


def planned(view: ArchiveView, selection: ReplaySelection) -> dict[str, list[ArchivedPartition]]:
    """By topic, the partitions that are replayed. Where ranges of a topic are given, only their partitions are.

    Raises:
        ArchiveError: the archive does not hold what was asked for.
    """
    topics = selection.topics or tuple(view.topics)
    unheld = sorted(set(selection.rename) - set(topics))
    if unheld:  # the topic that was meant would go to its own name
        raise ConfigError(
            f"rename names topics that the archive {view.folder} does not hold: {', '.join(unheld)}; it has"
            f" {', '.join(view.topics)}"
        )
    strangers = sorted({tp.topic for tp in selection.offsets} - set(topics))
    if strangers:
        raise ConfigError(f"offsets are given for topics that are not replayed: {', '.join(strangers)}")
    for topic in topics:
        check_topic(selection.target_of(topic))
    start, end = selection.times
    times = _FIRST if start is None else start, _LAST if end is None else end
    found: dict[str, list[ArchivedPartition]] = {topic: [] for topic in topics}
    for partition in view.partitions(topics, selection.topic_ids, times):
        found[partition.topic].append(partition)
    there = {TopicPartition(each.topic, each.partition) for every in found.values() for each in every}
    missing = sorted(set(selection.offsets) - there)
    if missing:
        raise ArchiveError(f"the archive {view.folder} holds no partition {', '.join(map(str, missing))}")
    return found


def replayed(
    partition: ArchivedPartition, selection: ReplaySelection, anchors: int, target_id: str = ""
) -> Replayed | None:
    """What is done about a partition; None where it is left out."""
    place = TopicPartition(partition.topic, partition.partition)
    ranges = {tp: ends for tp, ends in selection.offsets.items() if tp.topic == partition.topic}
    if ranges and place not in ranges:
        return None
    start, end = ranges.get(place, (partition.start, partition.end))
    # a range that the archive has not reached begins where it begins: a later run goes on from there
    end = max(start, min(end, partition.end))
    return Replayed(partition, selection.target_of(partition.topic), start, end, anchors, target_id)


def shares_of(todo: Sequence[Replayed], tasks: int, rate: Rate) -> list[tuple[tuple[Replayed, ...], float]]:
    """Which task does which partitions, and its part of the rate.

    Without a rate each partition is a task. With one there are no more tasks than run at a time, so that their parts of
    the rate, which are as their work is, never make more than it.
    """
    if rate == Rate() or len(todo) <= 1:
        return [((each,), 1.0) for each in todo]
    bins: list[list[Replayed]] = [[] for _ in range(max(1, min(tasks, len(todo))))]
    sizes = [0] * len(bins)
    for each in sorted(todo, key=lambda one: one.start - one.end):
        least = sizes.index(min(sizes))
        bins[least].append(each)
        sizes[least] += each.end - each.start + 1
    return [(tuple(own), size / sum(sizes)) for own, size in zip(bins, sizes, strict=True)]
