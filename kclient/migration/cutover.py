"""The cut-over: producers have stopped, everything has been moved, and the store's topics take records of their own.

The order is what keeps anything from being lost or repeated: nothing is taken over before both sides were compared, and
the ends of the source are looked at again afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import anyio

from kclient.arguments import in_seconds
from kclient.errors import KafkaError
from kclient.migration.comparison import PartitionComparison
from kclient.migration.errors import MigrationError
from kclient.migration.mirror import Mirror
from kclient.migration.offsets import GroupCommits, OffsetsMoved, committed, move_offsets
from kclient.migration.source import SourceCluster
from kclient.migration.states import MirroredTopic
from kclient.migration.target import Target
from kclient.migration.verifying import ComparedSides, verify
from kclient.records.bounds import INT64_MAX
from kclient.types import TopicPartition

_LOOK_S: Final = 0.5
_LEAST_S: Final = 0.02


@dataclass(slots=True)
class CutOver:
    """What a cut-over has done."""

    topics: list[str]
    """Those that take producers' records now."""
    offsets: OffsetsMoved
    verification: ComparedSides
    late: list[str] = field(default_factory=list)
    """What producers have written at the source since: it was not moved."""
    unknown: str | None = None
    """Why the source could not be asked for that; None if it was."""


class CutOverRun:
    """One cut-over.

    Args:
        source: The source.
        target: The store.
        clients: An admin client of the store's gateway that reads batches, too.
        mirror: Runs meanwhile; it is stopped by this.
        quiet: Seconds that the ends of the source must not move.
        timeout: Seconds to wait for that, and for the groups.
        active_groups: Whether it goes on though groups have members at the source: what these commit later is not
            moved.
        records: Whether all records are compared before; else only where partitions begin and end.
        note: Is told in a sentence what it is doing.
        progress: Is told of each partition that was compared.
    """

    def __init__(
        self,
        source: SourceCluster,
        target: Target,
        clients: SourceCluster,
        mirror: Mirror,
        *,
        quiet: float,
        timeout: float,
        active_groups: bool = False,
        records: bool = True,
        note: Callable[[str], object] = lambda _: None,
        progress: Callable[[PartitionComparison], object] = lambda _: None,
    ) -> None:
        self._source = source
        self._target = target
        self._clients = clients
        self._mirror = mirror
        self._quiet = quiet
        self._timeout = timeout
        self._active_groups = active_groups
        self._records = records
        self._note = note
        self._progress = progress
        self._waits_for = "nothing was heard of the source yet"
        self._ends: dict[TopicPartition, int] = {}
        """Where partitions ended when it was looked last."""

    async def run(self) -> CutOver:
        """Wait until producers and consumers have stopped, move the rest, compare, and take the topics over.

        Raises:
            MigrationError: They have not stopped in time, or the two sides differ: nothing was taken over. Or the store
                could not take all topics over: the text names those that it has.
            KafkaError: A side cannot be asked: nothing was taken over.
        """
        ends = await self._settled()
        self._mirror.stop()
        topics = list(self._mirror.topics.values())
        names = [topic.name for topic in topics]
        # all of them: the store has every record, and an offset beyond is beyond at the source, too
        everywhere = dict.fromkeys(ends, INT64_MAX)
        offsets = await move_offsets(self._source, self._clients, self._partitions, everywhere.get, {})
        if offsets.active:
            raise MigrationError(
                f"the groups {', '.join(offsets.active)} have members in the store already: stop those, they read what "
                "is only a mirror, and cut over again"
            )
        self._note("comparing both sides")
        verification = await verify(
            self._source, self._clients, [topic.source for topic in topics],
            records=self._records, offsets=not self._active_groups, progress=self._progress,
        )  # fmt: skip
        if verification.failures:
            told = "\n".join(verification.failures[:20])
            raise MigrationError(f"both sides differ, and nothing was taken over:\n{told}")
        if late := await self._late(ends):
            told = "\n".join(late)
            raise MigrationError(f"producers have not stopped, and nothing was taken over:\n{told}")
        self._note("taking the topics over")
        await self._take_over(topics)
        done = CutOver(sorted(names), offsets, verification)
        try:
            done.late = await self._late(ends)
        except KafkaError as error:  # the store has taken over all the same
            done.unknown = str(error)
        return done

    async def _take_over(self, topics: list[MirroredTopic]) -> None:
        try:
            await self._target.take_over([topic.record for topic in topics])
        except KafkaError as error:
            taken = sorted(topic.name for topic in topics if not topic.record.mirrored)
            told = f"only {', '.join(taken)} were" if taken else "nothing was"
            raise MigrationError(
                f"the store could not take the topics over, and {told} taken over: {error} Cut over again"
            ) from error

    async def _settled(self) -> dict[TopicPartition, int]:
        """Where all partitions end, once nobody writes any more and everything is in the store."""
        begun = still_since = anyio.current_time()
        told = ""
        while True:
            self._check_mirror()
            if not await self._look():
                still_since = anyio.current_time()
            elif anyio.current_time() - still_since >= self._quiet:
                waits = await self._active()
                if waits:
                    self._waits_for = waits
                elif self._ends.keys() == {state.tp for state in self._mirror.states()}:
                    return self._ends  # else some have come meanwhile
            now = anyio.current_time()
            if self._waits_for != told:
                told = self._waits_for
                self._note(f"waiting: {told}")
            if now - begun > self._timeout:
                raise MigrationError(f"not cut over within {in_seconds(self._timeout)}: {self._waits_for}")
            await anyio.sleep(min(_LOOK_S, max(self._quiet / 4, _LEAST_S)))

    @property
    def _partitions(self) -> dict[str, int]:
        """The topics, and how many partitions each has."""
        return {name: topic.source.partitions for name, topic in self._mirror.topics.items()}

    def _check_mirror(self) -> None:
        if problems := self._mirror.problems:
            told = "\n".join(problems)
            raise MigrationError(f"not everything can be moved, and nothing was taken over:\n{told}")

    async def _look(self) -> bool:
        """Whether all partitions end where they did when it was looked last, and the store has everything."""
        states = list(self._mirror.states())
        try:
            bounds = await self._source.bounds([state.tp for state in states])
        except KafkaError as error:
            if not error.retriable:
                raise
            self._waits_for = f"the source cannot be asked where its partitions end: {error}"
            return False
        ends = {tp: each.end for tp, each in bounds.items()}
        moved = [tp for tp, end in ends.items() if self._ends.get(tp, end) != end]
        known, self._ends = ends.keys() == self._ends.keys(), ends
        behind = [state.tp for state in states if state.partition.log.high_watermark < ends[state.tp]]
        unstable = [tp for tp, each in bounds.items() if each.stable < each.end]
        if moved:
            self._waits_for = f"producers still write to {_named(moved)}: stop them"
        elif behind:
            self._waits_for = f"the store is behind in {_named(behind)}"
        elif unstable:
            self._waits_for = (
                f"transactions are open in {_named(unstable)}: end their producers, or abort them "
                "(kafka-transactions find-hanging, abort)"
            )
        else:
            self._waits_for = f"nobody may have written for {in_seconds(self._quiet)}"
            return known
        return False

    async def _active(self) -> str:
        """Which groups have to be waited for; empty for none."""
        if self._active_groups:
            return ""
        try:
            groups = await committed(self._source, self._partitions)
        except KafkaError as error:
            if not error.retriable:
                raise
            return f"the source cannot be asked for its groups: {error}"
        active: list[GroupCommits] = [group for group in groups if group.active]
        if not active:
            return ""
        return (
            f"the groups {', '.join(group.group_id for group in active[:10])} have members at the source: stop them "
            "(or give --allow-active-groups: what they commit from now on is not moved)"
        )

    async def _late(self, ends: dict[TopicPartition, int]) -> list[str]:
        """What has come at the source since its ends were looked at."""
        bounds = await self._source.bounds(list(ends))
        late = [
            f"{tp}: the source has gone on from offset {ends[tp]} to {each.end}"
            for tp, each in bounds.items()
            if each.end > ends[tp]
        ]
        topics = await self._source.topics()
        for name, known in sorted(Counter(tp.topic for tp in ends).items()):
            now = topics.get(name)
            if now is not None and now.partitions > known:
                late.append(f"{name} has {now.partitions} partitions at the source now, and had {known}")
        return late + [f"topic {name} was made at the source meanwhile" for name in self._mirror.missing(topics)]


def _named(partitions: list[TopicPartition]) -> str:
    told = ", ".join(map(str, partitions[:5]))
    return told if len(partitions) <= 5 else f"{told} and {len(partitions) - 5} more partitions"
