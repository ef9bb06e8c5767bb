"""When partitions are opened: at their first use, some at a time, or ahead of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import anyio

if TYPE_CHECKING:
    from kclient.gateway.core import Core
    from kclient.gateway.partitions import Partition

_TOGETHER: Final = 8
"""Partitions that are opened together after the start: the store merges what they have it write."""
_REST: Final = 2.0
"""Between two rounds, so many times as long as the last one took: whoever uses a partition opens it at once."""
_AT_ONCE: Final = 16
"""Partitions that are opened at a time."""


class Openings:
    """Partitions that wait to be opened: the topics in turn, so that a large one does not hold up the others.

    Args:
        spawn: Starts a task.
    """

    def __init__(self, spawn: Callable[..., Any]) -> None:
        self._spawn = spawn
        self._waiting: dict[str, deque[Partition]] = {}
        self._working = 0

    def add(self, partition: Partition) -> None:
        """Have a partition opened, soon."""
        self._waiting.setdefault(partition.name, deque()).append(partition)
        if self._working < _AT_ONCE:
            self._working += 1
            self._spawn(self._work, name="open partitions")

    async def _work(self) -> None:
        try:
            while self._waiting:
                await self._next().open()
        finally:
            self._working -= 1

    def _next(self) -> Partition:
        name, waiting = next(iter(self._waiting.items()))
        del self._waiting[name]
        partition = waiting.popleft()
        if waiting:
            self._waiting[name] = waiting  # behind the other topics
        return partition


class Opener:
    """Opens every partition after the start, a few at a time and in no hurry.

    What a crash left is verified and synced in good time then, not when the first client waits for it.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    async def run(self) -> None:
        """Until every partition that there was at the start has been opened, or has gone."""
        partitions = self._closed()
        while some := list(islice(partitions, _TOGETHER)):
            begun = self._core.now()
            for partition in some:
                partition.open_soon()
            for partition in some:
                await partition.opened()
            await anyio.sleep((self._core.now() - begun) * _REST)

    def _closed(self) -> Iterator[Partition]:
        for record in self._core.topics:
            for index in range(record.partitions):
                partition = self._core.partitions.of(record, index)
                if partition is None:  # the topic was deleted meanwhile
                    break
                yield partition
