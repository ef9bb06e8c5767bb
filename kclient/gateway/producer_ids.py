"""Producer ids: numbers never given twice, taken from the manager in blocks."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import anyio

from kclient.gateway.producer_windows import FOREIGN
from kclient.gateway.rows import numbers
from kclient.gateway.rows.keys import CHECKPOINTS, PRODUCER_IDS
from kclient.gateway.rows.partitions import decode_checkpoint
from kclient.htp.errors import ConflictError
from kclient.htp.rows import scan_pages

if TYPE_CHECKING:
    from kclient.gateway.ownership import HeldLease
    from kclient.gateway.producer_windows import ProducerLimit
    from kclient.htp.port import Manager

logger: logging.Logger = logging.getLogger("kclient.gateway")

_BLOCK: Final = 1000
"""Ids per block: what one commit buys, and the most that a restart wastes."""
_OF_AN_EPOCH: Final = 1 << 24
"""Each gateway begins at its leader epoch times this, so even if the row is lost, ids that were given out before it are
below its own. If it gives out more, they run on into what the next ones have, who heed the row."""
_BEYOND: Final = 1 << 40
"""More ids than a store gives out in its life."""


class ProducerIds:
    """Gives out producer ids.

    Args:
        manager: Counts them.
        lease: Under which it is told how many are taken.
        leader_epoch: The gateway's.
        producers: What the logs remember: none of these ids is given out.
    """

    def __init__(self, manager: Manager, lease: HeldLease, leader_epoch: int, producers: ProducerLimit) -> None:
        self._manager = manager
        self._lease = lease
        self._leader_epoch = leader_epoch
        self._producers = producers
        self._next = self._end = 0
        self._taking = anyio.Lock()

    def take_nowait(self) -> int | None:
        """A producer id that nobody had before, if one is at hand; else None."""
        if self._taking.locked():
            return None
        self._pass_over()
        if self._next >= self._end:
            return None
        self._next += 1
        return self._next - 1

    def _pass_over(self) -> None:
        """Leave out what partitions remember that were opened meanwhile, or of clients that chose ids themselves."""
        self._next = max(self._next, self._producers.greatest + 1)

    async def take(self) -> int:
        """A producer id that nobody had before."""
        async with self._taking:
            self._pass_over()
            if self._next >= self._end:
                await self._take_block()
            self._next += 1
            return self._next - 1

    async def _take_block(self) -> None:
        manager = self._manager
        while True:
            found = (await manager.get([PRODUCER_IDS])).get(PRODUCER_IDS)
            version = found.version if found is not None else 0
            start = max(
                await self._start(None if found is None else found.value),
                self._leader_epoch * _OF_AN_EPOCH,
                self._producers.greatest + 1,
                self._end,
            )
            end = start + _BLOCK
            try:
                row = numbers.PRODUCER_IDS.encode(end)
                await manager.commit({PRODUCER_IDS: row}, {PRODUCER_IDS: version}, lease=self._lease.current)
            except ConflictError:  # another gateway took this block
                continue
            self._next, self._end = start, end
            return

    async def _start(self, row: bytes | None) -> int:
        """The first id that nobody has been given, as far as the manager knows."""
        try:
            if row is not None:
                return numbers.PRODUCER_IDS.decode(row)
            problem = "is not there"
        except ValueError as error:
            problem = f"is damaged ({error})"
        known = await self._known()
        if known is None and row is None:
            return 0  # a new store
        start = ((known or 0) // _BEYOND + 1) * _BEYOND
        logger.error("the row that counts producer ids %s, they go on at %d", problem, start)
        return start

    async def _known(self) -> int | None:
        """The greatest id that the checkpoint of any partition remembers."""
        known: set[int] = set()
        async for page in scan_pages(self._manager, CHECKPOINTS):
            for found in page.values():
                with suppress(ValueError):
                    known.update(decode_checkpoint(found.value).windows)
        return max((each for each in known if each < FOREIGN), default=None)
