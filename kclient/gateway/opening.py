"""In which order partitions are opened that are waited for, and how many at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

import anyio

_AT_ONCE: Final = 16
"""Partitions that are opened at a time, but for those that take long."""
_LONG_S: Final = 1.0
"""Seconds after which opening a partition takes long: its store may hang, and others are opened in its place."""
_LEAST_S: Final = 0.01
"""Seconds between two looks at them, at least."""


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
        self._begun: dict[object, float] = {}
        """When each of those began that are being opened and do not take long yet, in order."""
        self._watching = False

    def add(self, partition: Openable) -> None:
        """Have a partition opened, soon."""
        self._waiting.setdefault(partition.name, deque()).append(partition)
        if self._working < _AT_ONCE:
            self._begin()
        elif not self._watching:
            self._watching = True
            self._spawn(self._watch, name="watch partitions being opened")

    def _begin(self) -> None:
        self._working += 1
        self._spawn(self._work, name="open partitions")

    async def _work(self) -> None:
        counts = True
        try:
            while self._waiting and counts:
                place = object()
                self._begun[place] = anyio.current_time()
                try:
                    await self._next().open()
                finally:
                    counts = self._begun.pop(place, None) is not None
        finally:
            if counts:
                self._working -= 1

    async def _watch(self) -> None:
        """Have others opened in the place of those that take long, while some wait."""
        try:
            while self._waiting:
                now = anyio.current_time()
                oldest = next(iter(self._begun.values()), now)
                await anyio.sleep(max(oldest + _LONG_S - now, _LEAST_S))
                self._pass_by(anyio.current_time() - _LONG_S)
        finally:
            self._watching = False

    def _pass_by(self, since: float) -> None:
        """Those that began by then do not count any more."""
        for place in [place for place, begun in self._begun.items() if begun <= since]:
            del self._begun[place]
            self._working -= 1
            if self._waiting:
                self._begin()

    def _next(self) -> Openable:
        name, waiting = next(iter(self._waiting.items()))
        del self._waiting[name]
        partition = waiting.popleft()
        if waiting:
            self._waiting[name] = waiting  # behind the other topics
        return partition
