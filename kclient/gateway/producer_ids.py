"""Producer ids: numbers never given twice, taken from the manager in blocks."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import anyio

from kclient.gateway.checkpoints import decode_checkpoint
from kclient.gateway.keys import LOG_PREFIX
from kclient.htp.errors import ConflictError

if TYPE_CHECKING:
    from kclient.gateway.core import Core

logger: logging.Logger = logging.getLogger("kclient.gateway")

KEY: Final = "kafka/producer-ids"
BLOCK: Final = 1000
"""Ids per block: what one commit buys, and the most that a restart wastes."""
_BEYOND: Final = 1 << 40
"""More ids than a store gives out in its life."""


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
            version = found.version if found is not None else 0
            start = await self._start(found.value) if found is not None else 0
            end = start + BLOCK
            try:
                await manager.commit({KEY: str(end).encode()}, {KEY: version}, lease=self._core.lease)
            except ConflictError:  # another gateway took this block
                continue
            self._next, self._end = start, end
            return

    async def _start(self, row: bytes) -> int:
        """The first id that nobody has been given."""
        try:
            return int(row)
        except ValueError as error:
            start = await self._far_beyond()
            logger.error("the row that counts producer ids is damaged, they go on at %d: %s", start, error)
            return start

    async def _far_beyond(self) -> int:
        """An id far beyond all that any partition remembers: there was a row before this one could be damaged."""
        known = 0
        for found in (await self._core.manager.scan(LOG_PREFIX)).values():
            with suppress(ValueError):
                known = max([known, *decode_checkpoint(found.value).windows])
        return (known // _BEYOND + 1) * _BEYOND
