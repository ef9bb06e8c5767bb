"""Comparing all that was moved: records of topics, and what groups have committed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import anyio

from kclient.admin import ConfigResource, ConfigResourceType
from kclient.errors import KafkaError
from kclient.gateway.rows.topics import TAKEN_OVER
from kclient.gateway.settings_told import HTP_MIRROR
from kclient.migration.comparison import AT_SOURCE, IN_STORE, PartitionComparison, UnreadableError, compare
from kclient.migration.offsets import committed
from kclient.migration.source import Bounds, SourceCluster, SourceTopic
from kclient.types import TopicPartition

_TOGETHER: Final = 4
"""Partitions that are compared at the same time."""
_ASKED_TOGETHER: Final = 32
"""And those of which each is asked for by itself where it begins and ends."""
_PATIENCE_S: Final = 5.0
"""Seconds for that: all together have had longer before."""


@dataclass(slots=True)
class ComparedSides:
    """What comparing both sides has found."""

    partitions: list[PartitionComparison] = field(default_factory=list)
    offsets: int = 0
    """Committed offsets that are equal on both sides."""
    differences: list[str] = field(default_factory=list)
    """Of topics and committed offsets as a whole; those of partitions are told there."""

    notes: list[str] = field(default_factory=list)
    """What differs, and may."""

    @property
    def failures(self) -> list[str]:
        """Every difference."""
        return [
            *self.differences,
            *(f"{each.tp}: {each.difference}" for each in self.partitions if each.difference is not None),
        ]


async def verify(
    source: SourceCluster,
    target: SourceCluster,
    topics: Iterable[SourceTopic],
    *,
    records: bool = True,
    offsets: bool = True,
    progress: Callable[[PartitionComparison], object] = lambda _: None,
) -> ComparedSides:
    """Compare topics and committed offsets on both sides.

    Args:
        source: The source.
        target: The gateway, or any other cluster.
        topics: Which, as they are at the source.
        records: Whether records are read and compared, too; else only where partitions begin and end.
        offsets: Whether committed offsets are compared.
        progress: Is told of each partition that was compared.

    Raises:
        KafkaError: A side cannot be read at all; that some partitions cannot is told as their difference.
    """
    result = ComparedSides()
    here = await target.topics()
    wanted: list[tuple[TopicPartition, SourceTopic]] = []
    names: list[str] = []
    for topic in topics:
        found = here.get(topic.name)
        if found is None:
            result.differences.append(f"topic {topic.name} is not in the store")
        elif found.partitions < topic.partitions:
            result.differences.append(
                f"topic {topic.name} has {topic.partitions} partitions at the source, {found.partitions} in the store"
            )
        else:
            names.append(topic.name)
            wanted += [(TopicPartition(topic.name, number), topic) for number in range(topic.partitions)]
    if names:
        work = _Verifying(source, target, here, result, progress, records)
        await work.run(wanted, names)
    if offsets:
        await _compare_offsets(source, target, {topic.name: topic.partitions for _, topic in wanted}, result)
    return result


class _Verifying:
    def __init__(
        self,
        source: SourceCluster,
        target: SourceCluster,
        here: dict[str, SourceTopic],
        result: ComparedSides,
        progress: Callable[[PartitionComparison], object],
        records: bool,
    ) -> None:
        self._source = source
        self._target = target
        self._here = here
        self._result = result
        self._progress = progress
        self._records = records

    async def run(self, wanted: list[tuple[TopicPartition, SourceTopic]], names: list[str]) -> None:
        policies = {name: own.get("cleanup.policy", "") for name, own in (await self._source.settings(names)).items()}
        taken = await taken_over(self._target, names)
        # the source's ends first: what is there then has to be in the store a moment later
        theirs = await self._bounds(self._source, AT_SOURCE, [tp for tp, _ in wanted], {})
        ours = await self._bounds(self._target, IN_STORE, theirs, theirs)
        later = await self._bounds(self._source, AT_SOURCE, ours, theirs)
        places = anyio.Semaphore(_TOGETHER)

        async def one(tp: TopicPartition, topic: SourceTopic) -> None:
            async with places:
                compared = await compare(
                    tp,
                    (self._source, topic.topic_id, theirs[tp]._replace(start=later[tp].start)),
                    (self._target, self._here[tp.topic].topic_id, ours[tp]),
                    compacted="compact" in policies[tp.topic],
                    taken_over=tp.topic in taken,
                    records=self._records,
                    end=later[tp].end,
                )
            self._result.partitions.append(compared)
            self._progress(compared)

        async with anyio.create_task_group() as tasks:
            for tp, topic in wanted:
                if tp in later:
                    tasks.start_soon(one, tp, topic)
        self._result.partitions.sort(key=lambda each: each.tp)

    async def _bounds(
        self,
        side: SourceCluster,
        where: str,
        partitions: Collection[TopicPartition],
        theirs: Mapping[TopicPartition, Bounds],
    ) -> dict[TopicPartition, Bounds]:
        """Where partitions begin and end; those that do not tell it differ.

        Args:
            side: The source or the store.
            where: Which of both that is, as a sentence goes on.
            partitions: Whose.
            theirs: What is known of the source.

        Raises:
            KafkaError: None of them tells it.
        """
        try:
            return await side.bounds(partitions)
        except KafkaError as error:
            if len(partitions) == 1:
                raise
            failure = error
        found: dict[TopicPartition, Bounds] = {}
        unreadable: dict[TopicPartition, KafkaError] = {}
        places = anyio.Semaphore(_ASKED_TOGETHER)

        async def one(tp: TopicPartition) -> None:
            async with places:
                try:
                    found.update(await side.bounds([tp], timeout=_PATIENCE_S))
                except KafkaError as error:
                    unreadable[tp] = error

        async with anyio.create_task_group() as tasks:
            for tp in partitions:
                tasks.start_soon(one, tp)
        if not found:
            raise failure
        for tp, why in unreadable.items():
            compared = PartitionComparison(tp, theirs.get(tp), None, difference=str(UnreadableError(where, why)))
            self._result.partitions.append(compared)
            self._progress(compared)
        return found


async def _compare_offsets(
    source: SourceCluster, target: SourceCluster, topics: dict[str, int], result: ComparedSides
) -> None:
    theirs = await committed(source, topics)
    ours = {group.group_id: group.offsets for group in await committed(target, topics)}
    for group in theirs:
        for tp, offset in group.offsets.items():
            there = ours.get(group.group_id, {}).get(tp)
            if there is None:
                text = (
                    f"group {group.group_id} has committed {offset.offset} of {tp} at the source, nothing in the store"
                )
                result.differences.append(text)
            elif there.offset != offset.offset or there.metadata != offset.metadata:
                result.differences.append(
                    f"group {group.group_id} has committed {offset.offset} of {tp} at the source and {there.offset} in "
                    "the store"
                )
            else:
                result.offsets += 1
    known = {group.group_id: group.offsets for group in theirs}
    for group_id, offsets in sorted(ours.items()):
        result.notes += [
            f"group {group_id} has committed {offset.offset} of {tp} in the store, nothing at the source: if it was "
            "deleted there, have it deleted here, too (Admin.delete_group_offsets)"
            for tp, offset in sorted(offsets.items())
            if tp not in known.get(group_id, {})
        ]


async def taken_over(target: SourceCluster, names: Iterable[str]) -> set[str]:
    """The topics that a gateway has taken over: they go on by themselves."""
    described = await target.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in names])
    return {
        resource.name
        for resource, entries in described.items()
        if (entry := entries.get(HTP_MIRROR.name)) is not None and (entry.value or "").startswith(TAKEN_OVER)
    }
