"""Producer ids: numbers never given twice, taken from the manager in blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from kclient.htp.errors import ConflictError

if TYPE_CHECKING:
    from kclient.gateway.core import Core

KEY: Final = "kafka/producer-ids"
BLOCK: Final = 1000
"""Ids per block: what one commit buys, and the most that a restart wastes."""


class ProducerIds:
    """Gives out producer ids."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._next = self._end = 0
        self._taking = anyio.Lock()

    async def take(self) -> int:
        """A producer id that nobody had before."""
        async with self._taking:
            if self._next >= self._end:
                await self._take_block()
            self._next += 1
            return self._next - 1

    async def _take_block(self) -> None:
        manager = self._core.manager
        while True:
            found = (await manager.get([KEY])).get(KEY)
            start, version = (int(found.value), found.version) if found is not None else (0, 0)
            end = start + BLOCK
            try:
                await manager.commit({KEY: str(end).encode()}, {KEY: version}, lease=self._core.lease)
            except ConflictError:  # another gateway took this block
                continue
            self._next, self._end = start, end
            return
