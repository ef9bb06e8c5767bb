"""In which order partitions are opened that are waited for, and how many at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

_AT_ONCE: Final = 16
"""Partitions that are opened at a time."""


class Openable(Protocol):
    """A partition, as far as it is opened."""

    name: str
    """Of its topic."""

    async def open(self) -> None:
        """Open it; what goes wrong it keeps."""
        ...


class Openings:
    """Partitions that wait to be opened: the topics in turn, so that a large one does not hold up the others.

    Args:
        spawn: Starts a task.
    """

    def __init__(self, spawn: Callable[..., Any]) -> None:
        self._spawn = spawn
        self._waiting: dict[str, deque[Openable]] = {}
        self._working = 0

    def add(self, partition: Openable) -> None:
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

    def _next(self) -> Openable:
        name, waiting = next(iter(self._waiting.items()))
        del self._waiting[name]
        partition = waiting.popleft()
        if waiting:
            self._waiting[name] = waiting  # behind the other topics
        return partition
