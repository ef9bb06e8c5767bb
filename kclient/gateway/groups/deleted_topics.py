"""The committed offsets of deleted topics, until the store has them no more."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final

from kclient.errors import ErrorCode, error_for
from kclient.gateway.groups.parts import RemovalParts
from kclient.gateway.groups.writer import MAX_ROWS, GroupWriter, Write
from kclient.net.fair_queue import Flow, Pace

if TYPE_CHECKING:
    from kclient.gateway.groups.offsets import OffsetCommit
    from kclient.memory_ledger import MemoryAccount

__all__ = ["DeletedTopics"]

_PORTION: Final = MAX_ROWS
"""Rows that are handed to the writer at once: others wait for so many."""
_SORTED_AT_ONCE: Final = 4096
_GROUP: Final = 400
"""About how many bytes of memory a group takes here, beside its name."""
_NUMBER: Final = 70
"""About how many bytes of memory the number of a partition takes, in a set."""


class DeletedTopics:
    """Whose offsets are to be removed: of which topics, groups and partitions.

    They go a portion at a time, each group's in the order of its writes, so that the commits of others go in between.

    Args:
        writer: The queue to the manager.
        flow: In whose turns it is worked.
        memory: Where it counts what is left.
    """

    def __init__(self, writer: GroupWriter, flow: Flow, memory: MemoryAccount) -> None:
        self._writer = writer
        self._flow = flow
        self._memory = memory
        self._left: dict[str, dict[str, set[int]]] = {}

    def add(self, topic: str) -> None:
        """A topic is deleted; no other one of its name is made before `remove` has returned."""
        self._left.setdefault(topic, {})

    def __contains__(self, topic: str) -> bool:
        return topic in self._left

    def note(self, topic: str, group_id: str, numbers: Iterable[int]) -> None:
        """The store may have a group's offsets of such a topic."""
        left = self._left[topic]
        if group_id not in left:
            left[group_id] = set()
            self._memory.add(_GROUP + sys.getsizeof(group_id))
        known = left[group_id]
        before = len(known)
        known.update(numbers)
        self._memory.add(_NUMBER * (len(known) - before))

    def note_commit(self, group_id: str, commit: OffsetCommit) -> None:
        """A commit has come to its end: whatever became of it, the store may have what it brought."""
        if self._left:
            for record, offsets in commit.topics.items():
                if record.gone and record.name in self._left:
                    self.note(record.name, group_id, offsets)

    async def remove(self, topic: str) -> None:
        """Remove everything that was noted of a topic.

        Raises:
            KafkaError: If the store fails; what is left is removed when it is called again.
        """
        pace = Pace(self._flow)
        while left := self._left.get(topic):
            names, ordered = iter(list(left)), []
            while some := sorted(islice(names, _SORTED_AT_ONCE)):
                ordered.append(some)
                if pace.over:
                    await pace.pause()
            await self._remove(topic, heapq.merge(*ordered), pace)  # neighbours are cheaper for the store
        self._left.pop(topic, None)

    async def _remove(self, topic: str, group_ids: Iterable[str], pace: Pace) -> None:
        portion: list[tuple[str, list[int], Write]] = []
        rows = 0
        for group_id in group_ids:
            numbers = sorted(self._left[topic][group_id])
            for start in range(0, len(numbers), _PORTION):
                some = numbers[start : start + _PORTION]
                if rows + len(some) > _PORTION:
                    await self._removed(topic, portion)
                    portion, rows = [], 0
                parts = RemovalParts(group_id, topic, some)
                write = self._writer.submit(group_id, parts, lambda _error: (), held=_NUMBER * len(some))
                portion.append((group_id, some, write))
                rows += len(some)
                if pace.over:
                    await pace.pause()
        await self._removed(topic, portion)

    async def _removed(self, topic: str, portion: list[tuple[str, list[int], Write]]) -> None:
        left, error = self._left[topic], ErrorCode.NONE
        for group_id, numbers, write in portion:
            failed = await write.wait()
            if failed:
                error = failed
                continue
            left[group_id].difference_update(numbers)
            self._memory.add(-_NUMBER * len(numbers))
            if not left[group_id]:
                del left[group_id]
                self._memory.add(-_GROUP - sys.getsizeof(group_id))
        if error:
            raise error_for(error, f"the offsets of topic {topic} could not be removed")
