"""Reads the aborted transactions of partitions again that are not in memory any more."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from kclient.gateway.rows.aborted import decode_chunk

if TYPE_CHECKING:
    from kclient.gateway.aborted import ChunkBounds, Entries
    from kclient.htp.port import Manager

logger: logging.Logger = logging.getLogger("kclient.gateway.log")

_KEPT: Final = 64
"""Chunks of all partitions that were read last; one has 16 KiB."""


class AbortedRows:
    """The chunks of aborted transactions that were written, for all partitions.

    Args:
        manager: Keeps them.
    """

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._read: OrderedDict[str, tuple[ChunkBounds, Entries]] = OrderedDict()

    def known(self, key: str, bounds: ChunkBounds) -> Entries | None:
        """The transactions of a chunk, if it was read lately."""
        found = self._read.get(key)
        if found is None or found[0] != bounds:  # a damaged log was read anew, and counted them anew
            return None
        self._read.move_to_end(key)
        return found[1]

    async def read(
        self, key: str, bounds: ChunkBounds, from_log: Callable[[ChunkBounds], Awaitable[Entries]]
    ) -> Entries:
        """The transactions of a chunk.

        Args:
            key: Of its row.
            bounds: What is known of it.
            from_log: Finds out from the log what the row does not tell, if it is damaged.

        Raises:
            HtpError: It could not be read.
        """
        known = self.known(key, bounds)
        if known is not None:
            return known
        row = (await self._manager.get([key])).get(key)
        try:
            if row is None:
                raise ValueError("it is not there")
            entries = decode_chunk(row.value)
            if len(entries) < bounds.transactions:
                raise ValueError(f"it tells {len(entries)} transactions, the checkpoint says {bounds.transactions}")
        except ValueError as error:
            logger.error(
                "%s cannot be read. What it said is read from the log instead; nothing has to be done (%s)", key, error
            )
            entries = await from_log(bounds)
        self._read[key] = bounds, entries
        if len(self._read) > _KEPT:
            self._read.popitem(last=False)
        return entries
