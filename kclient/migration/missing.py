"""Offsets that a source does not send: of compaction, of retention, or since it cannot read them at the moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio

from kclient.errors import KafkaError
from kclient.migration.source import Bounds, Fetched, SourceCluster
from kclient.migration.states import MirroredPartition
from kclient.migration.target import Appended, Target

SURE: Final = 3
"""So often a broker must have nothing before that counts, or send what is damaged."""
_LOOKING_UP_S: Final = 2.0
"""Others of the broker wait meanwhile."""


class MissingOffsets:
    """Finds out what is behind offsets that a source does not send, and has their places taken where that is right.

    While something of a partition is not durable nothing is done: if it fails, the partition ends before it again, and
    what was taken for a hole would have had records.

    Args:
        source: The cluster.
        target: Where to.
        tell: Is told what keeps something from being moved, and what that is about; the same only once.
        note: Is told in a sentence what people should know.
        again: Seconds after which it is asked again what could not be found out.
    """

    def __init__(
        self,
        source: SourceCluster,
        target: Target,
        tell: Callable[[str, str], object],
        note: Callable[[str], object],
        again: float,
    ) -> None:
        self._source = source
        self._target = target
        self._tell = tell
        self._note = note
        self._refresh = again

    async def found_nothing(self, state: MirroredPartition, answer: Fetched, *, remote: bool) -> Appended | None:
        """A broker sends nothing though the partition's end is further on: what was there may be compacted away.

        Args:
            state: The partition.
            answer: What the broker has sent.
            remote: Whether the source keeps some of its records in remote storage.

        Returns:
            What was appended in place of a hole; None where that is not proven, and it is to be asked again.
        """
        if state.settling:  # if that fails the partition ends before it again
            return None
        state.empty += 1
        if state.empty <= SURE or len(answer.records):
            return None
        state.empty = 0
        if remote:
            why = "its remote storage does not answer"
        else:
            place = state.position
            try:
                if await self._is_hole(state, answer.start):
                    if state.position != place or state.settling:
                        return None
                    return self._target.skip(state.partition, answer.end)
                why = "it does not show that it can read the partition"
            except KafkaError as error:
                why = str(error)
        state.retry_at = anyio.current_time() + self._refresh
        self._tell(
            str(state.tp),
            f"{state.tp}: the source sends nothing from offset {state.position} on, though it goes up to {answer.end}: "
            f"{why}. It is tried again",
        )
        return None

    async def _is_hole(self, state: MirroredPartition, start: int) -> bool:
        """Whether a broker that sends nothing of a partition can read it: else there may be records all the same.

        A gateway's store may not answer at the moment, or there is no memory to read into.
        """
        if start < state.position and await self._reads(state, start):
            return not await self._reads(state, state.position) and await self._reads(state, start)
        # nothing at all is known to be there: looking up the first timestamp means reading, too
        return (await self._source.list_offsets({state.tp: 0}, timeout=_LOOKING_UP_S))[state.tp] is None

    async def _reads(self, state: MirroredPartition, offset: int) -> bool:
        """Whether there is a batch from an offset on."""
        leader = self._source.snapshot.leader_id(state.tp)
        if leader is None:
            return False
        asked = await self._source.fetch(
            leader, {state.tp: offset}, {state.tp.topic: state.topic_id},
            lane=state.lane, response_bytes=1, partition_bytes=1,
        )  # fmt: skip
        answer = asked[state.tp]
        if answer.error is not None:
            raise answer.error
        return len(answer.records) > 0

    async def out_of_range(self, state: MirroredPartition) -> tuple[Appended, Bounds] | None:
        """The source has nothing (any more) at the offset that is next.

        Returns:
            What was appended instead, if that is right, and what the source has.

        Raises:
            KafkaError: Where the partition begins the source cannot tell.
        """
        bounds = (await self._source.bounds([state.tp]))[state.tp]
        if state.settling:  # if that fails the partition ends before it again
            return None
        there = state.partition.log.next_offset
        if bounds.end < there:
            state.problem = (
                f"{state.tp} ends at offset {bounds.end} at the source, and the store has it up to {there}: the source "
                "has lost records (an unclean leader election), or the topic was made anew. Delete the topic in the "
                "store to mirror it from its beginning"
            )
            self._tell(str(state.tp), state.problem)
        elif bounds.start > there:
            if there > 0:
                self._note(
                    f"{state.tp}: the source has deleted the offsets {there} to {bounds.start - 1} before they were "
                    "moved (retention, or a deletion of records): they are not in the store either"
                )
            state.begin, state.retry_at = bounds.start, 0.0
            if bounds.start >= bounds.end:
                return self._target.skip(state.partition, bounds.start), bounds
        return None
