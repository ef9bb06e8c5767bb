"""Who waits for bytes of partitions: a fetch that has not found enough."""

from __future__ import annotations

from typing import Protocol

import anyio


class WatchedPartition(Protocol):
    """A partition, as far as it is waited for."""

    waiters: set[Waiter]
    """Those that are to be told when there is more."""


class Waiter:
    """A fetch that waits for bytes in any of several partitions, visible ones, or `committed` ones that are stable."""

    __slots__ = ("_committed", "_event", "_missing", "_partitions")

    def __init__(self, missing: int, *, committed: bool = False) -> None:
        self._missing = missing
        self._committed = committed
        self._event = anyio.Event()
        self._partitions: list[WatchedPartition] = []

    def add(self, partition: WatchedPartition) -> None:
        """Wait for what arrives in this partition too."""
        self._partitions.append(partition)
        partition.waiters.add(self)

    def arrived(self, size: int, stable: int) -> None:
        """So many bytes became visible, and so many stable."""
        self._missing -= stable if self._committed else size
        if self._missing <= 0:
            self._event.set()

    def wake(self) -> None:
        """Something else happened that the fetch has to look at."""
        self._event.set()

    async def wait(self) -> None:
        """Until enough has arrived."""
        await self._event.wait()

    def close(self) -> None:
        """Stop waiting."""
        for partition in self._partitions:
            partition.waiters.discard(self)
