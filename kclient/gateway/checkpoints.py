"""The checkpoints of partitions in the manager: read when they are opened, written while they are used."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

import anyio.lowlevel

from kclient.gateway.living_topics import TopicGoneError
from kclient.gateway.log import Checkpoint
from kclient.gateway.rows.keys import CHECKPOINTS
from kclient.gateway.rows.numbers import LOG_START
from kclient.gateway.rows.partitions import decode_checkpoint, encoded_in_steps
from kclient.htp.rows import scan_pages

if TYPE_CHECKING:
    from kclient.gateway.fenced_writer import FencedWriter
    from kclient.gateway.unit import Unit
    from kclient.htp.port import Manager
    from kclient.memory_ledger import CacheAccount, MemoryPart

logger: logging.Logger = logging.getLogger("kclient.gateway.log")

_FEW_PIECES: Final = 4
"""Pieces of a checkpoint that are encoded in one turn of the loop."""
_AHEAD_SHARE: Final = 16
"""One part in so many of the memory may be taken by checkpoints that were read ahead."""
_ROW: Final = 250
"""About how many bytes of memory a row takes beside what is in it."""


class Checkpoints:
    """Reads and writes the rows of partitions.

    Args:
        manager: Keeps them.
        writer: Writes them.
        memory: What the gateway holds.
    """

    def __init__(self, manager: Manager, writer: FencedWriter, memory: MemoryPart) -> None:
        self._manager = manager
        self._writer = writer
        self._memory: CacheAccount = memory.cache("checkpoints", _AHEAD_SHARE, self._give_up)
        self._read_ahead: dict[str, bytes] = {}
        self._forgotten = 0
        """How often that was forgotten because it may be out of date."""

    async def load(self) -> None:
        """Read checkpoints ahead, as many as there is room for.

        So opening a thousand partitions does not ask the manager a thousand times.
        """
        began = self._forgotten
        async for page in scan_pages(self._manager, CHECKPOINTS):
            size = sum(_ROW + len(found.value) for found in page.values())
            if not self._memory.has_room(size) or self._forgotten != began:
                return
            # first: counting them may have others go on, who want it all given up
            self._read_ahead.update((key, found.value) for key, found in page.items())
            self._memory.add(size)

    def forget_ahead(self) -> None:
        """Forget what was read ahead: it may not be the newest any more."""
        self._forgotten += 1
        self._give_up()

    def _give_up(self) -> None:
        self._read_ahead.clear()
        self._memory.add(-self._memory.held)

    async def read(self, key: str, start_key: str, name: str) -> tuple[Checkpoint | None, bool]:
        """The checkpoint of a partition, and whether it is damaged: then the whole log has to tell what it can.

        Args:
            key: Of its checkpoint.
            start_key: Of its log start.
            name: Of the partition, for messages.
        """
        row = self._read_ahead.pop(key, None)  # once: from then on the partition writes new ones
        if row is None:
            row = await self._get(key)
        else:
            self._memory.add(-_ROW - len(row))
        if row is None:
            return None, False
        try:
            return decode_checkpoint(row), False
        except ValueError as error:
            start = await self._start(start_key)
            logger.error(
                "%s: its checkpoint cannot be read. The whole log is read instead, from offset %d on; nothing has to "
                "be done (%s)",
                name, start, error,
            )  # fmt: skip
            return Checkpoint(start, start, {}, ()), True

    async def _start(self, key: str) -> int:
        """The log start of a partition as it was trimmed last; 0 if it never was, or that cannot be read either."""
        row = await self._get(key)
        try:
            return 0 if row is None else LOG_START.decode(row)
        except ValueError as error:
            logger.error("%s is damaged too, records that were deleted may be seen again: %s", key, error)
            return 0

    async def _get(self, key: str) -> bytes | None:
        found = (await self._manager.get([key])).get(key)
        return None if found is None else found.value

    async def write(self, rows: Mapping[str, bytes | None], units: Collection[Unit]) -> None:
        """Write rows of partitions, all or none; None removes one.

        Args:
            rows: They.
            units: That the partitions belong to.

        Raises:
            FencedError: Another gateway leads one of them.
            TopicGoneError: The topic of one was deleted.
            HtpError: The store failed.
        """
        await self._writer.commit(rows, units)

    async def write_all(self, rows: Mapping[Unit, Mapping[str, bytes]]) -> None:
        """Write rows of partitions in one commit, but for those whose topics have gone.

        Args:
            rows: Those of each unit.

        Raises:
            FencedError: Another gateway leads one of the units.
            HtpError: The store failed.
        """
        left = dict(rows)
        while left:
            try:
                await self.write({key: row for some in left.values() for key, row in some.items()}, left)
            except TopicGoneError as gone:
                left = {unit: some for unit, some in left.items() if unit.topic_id != gone.topic_id}
            else:
                return


async def encoded(checkpoint: Checkpoint) -> bytes:
    """The row of a checkpoint; others have their turns while a large one is made."""
    pieces = []
    for piece in encoded_in_steps(checkpoint):
        pieces.append(piece)
        if len(pieces) > _FEW_PIECES:
            await anyio.lowlevel.checkpoint()
    return b"".join(pieces)
