"""The threads that wait for the disk of one broker: its own, so that a disk that hangs keeps none from the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar, TypeVarTuple

import anyio
import anyio.to_thread

from kclient.concurrency import to_the_end

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_THREADS: Final = 40
"""Of all brokers of a store together; an event loop's own are as many, and whatever else it does needs those."""
_LEAST: Final = 8
"""Of one broker, however many there are."""


class DiskThreads:
    """Calls functions in threads, so many at a time; made in the event loop of the store.

    Args:
        brokers: How many brokers the store has, each with threads of its own.
    """

    def __init__(self, brokers: int = 1) -> None:
        self._limiter = anyio.CapacityLimiter(max(_THREADS // brokers, _LEAST))

    async def run(self, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Call a function; where asyncio cancels the task meanwhile, the thread goes on alone."""
        return await anyio.to_thread.run_sync(function, *arguments, limiter=self._limiter)

    async def run_to_the_end(self, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Call a function; a cancellation meanwhile is raised when it has returned."""
        return await to_the_end(self.run, function, *arguments)
