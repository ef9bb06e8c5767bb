"""Locks by name, which exist while somebody holds them or waits for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable, Iterable
from contextlib import asynccontextmanager
from typing import Final, Generic, TypeVar

import anyio
import anyio.lowlevel

__all__ = ["NamedLocks"]

K = TypeVar("K", bound=Hashable)

_AT_ONCE: Final = 256
"""Locks that are taken in one turn of the event loop."""


class NamedLocks(Generic[K]):
    """Lets one task at a time work on what a name stands for. Tasks of one event loop only."""

    def __init__(self) -> None:
        self._locks: dict[K, anyio.Lock] = {}
        self._all_free: anyio.Event | None = None

    @asynccontextmanager
    async def hold(self, *names: K) -> AsyncIterator[None]:
        """Hold the locks of all these names; whoever wants several names them in the order that all use."""
        held: list[K] = []
        try:
            for name in names:
                await self._acquire(name)
                held.append(name)
                if len(held) % _AT_ONCE == 0:
                    await anyio.lowlevel.checkpoint()
            yield
        finally:
            self._release(held)

    async def _acquire(self, name: K) -> None:
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = anyio.Lock(fast_acquire=True)
        try:
            await lock.acquire()
        except BaseException:
            self._forget(name, lock)
            raise

    def _release(self, names: Iterable[K]) -> None:
        for name in names:
            lock = self._locks[name]
            lock.release()
            self._forget(name, lock)

    def _forget(self, name: K, lock: anyio.Lock) -> None:
        if not lock.locked():  # whoever waited would have been given it
            self._locks.pop(name, None)
            if not self._locks and self._all_free is not None:
                self._all_free.set()
                self._all_free = None

    async def all_free(self) -> None:
        """Wait until nobody holds any of the locks, nor waits for one; others may come at any time."""
        while self._locks:
            if self._all_free is None:
                self._all_free = anyio.Event()
            await self._all_free.wait()
