"""The rows of one partition's extents: read when it is opened, written when they change."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kclient.errors import IllegalStateError
from kclient.gateway.extents.chunks import Chunk, Chunks
from kclient.gateway.extents.epochs import EpochStarts
from kclient.gateway.extents.extent import Extent, check
from kclient.gateway.rows.extents import (
    ChunkRow,
    ChunksRow,
    ExtentRow,
    decode_chunks,
    decode_extents,
    decode_starts,
    encode_chunks,
    encode_extents,
)
from kclient.gateway.rows.keys import chunks_key, extents_key
from kclient.htp.errors import StorageError
from kclient.htp.port import Place, Topic

if TYPE_CHECKING:
    from kclient.gateway.ownership import HeldLease
    from kclient.htp.port import Broker, Manager

logger: logging.Logger = logging.getLogger("kclient.gateway.log")


class ExtentRows:
    """Keeps the list of a partition's extents, and where some of its offsets lie.

    Args:
        manager: Keeps the rows.
        broker: Keeps what lies in the extents.
        lease: Under which they are written.
        topic_id: Of the partition's topic.
        partition: Its number.
    """

    def __init__(self, manager: Manager, broker: Broker, lease: HeldLease, topic_id: bytes, partition: int) -> None:
        self._manager = manager
        self._broker = broker
        self._lease = lease
        self._list_key = extents_key(topic_id, partition)
        self._chunks_key = chunks_key(topic_id, partition)
        self._version = 0

    async def read(self, place: Place) -> tuple[list[Extent], EpochStarts]:
        """The extents of a partition, and where epochs start in the last.

        It is one extent, at the partition's own place, unless another list was written.

        Raises:
            StorageError: The list is damaged: nobody else knows where the partition lies.
        """
        rows = await self._manager.get([self._list_key, self._chunks_key])
        found = [Extent(place, 0, None, None, Chunks.starting_at(0, 0))]
        written = rows.get(self._list_key)
        if written is not None:
            self._version = written.version
            try:
                found = [_extent(row) for row in decode_extents(written.value)]
                check(found)
            except (ValueError, IllegalStateError) as error:
                raise StorageError(
                    f"{self._list_key} is damaged, which says where the partition lies; restore it from a backup: "
                    f"{error}"
                ) from error
        chunks = rows.get(self._chunks_key)
        return (found, EpochStarts()) if chunks is None else self._with_chunks(found, chunks.value)

    def _with_chunks(self, extents: list[Extent], row: bytes) -> tuple[list[Extent], EpochStarts]:
        try:
            known = {(each.first, each.incarnation): each for each in decode_chunks(row)}
            starts = EpochStarts(decode_starts(row))
        except ValueError as error:
            logger.error(
                "%s cannot be read. What it said is looked for in the whole log instead; nothing has to be done (%s)",
                self._chunks_key, error,
            )  # fmt: skip
            return extents, EpochStarts()
        found = []
        for extent in extents:
            each = known.get((extent.first, extent.place.incarnation))
            if each is not None and _fits(each, extent):
                extent = replace(extent, chunks=Chunks((Chunk(*chunk) for chunk in each.chunks), each.unit))
            found.append(extent)
        return found, starts

    def chunks(self, extents: Sequence[Extent], starts: EpochStarts) -> dict[str, bytes]:
        """The row of what is known of positions, to be written with others."""
        rows = [
            ChunksRow(
                extent.first, extent.place.incarnation, extent.chunks.unit,
                [ChunkRow(*chunk) for chunk in extent.chunks.all],
            )
            for extent in extents
        ]  # fmt: skip
        return {self._chunks_key: encode_chunks(rows, starts.all)}

    async def write_chunks(self, extents: Sequence[Extent], starts: EpochStarts) -> None:
        """Write what is known of positions."""
        await self._manager.commit(self.chunks(extents, starts), lease=self._lease.current)

    async def write_list(self, extents: Sequence[Extent], starts: EpochStarts) -> None:
        """Write another list of extents.

        Raises:
            ConflictError: Somebody else has written one since this was read.
        """
        self._version = await self._manager.commit(
            {self._list_key: encode_extents(map(_row, extents)), **self.chunks(extents, starts)},
            {self._list_key: self._version},
            lease=self._lease.current,
        )

    async def drop(self, place: Place, epoch: int) -> None:
        """Remove a topic that holds nothing of the partition any more."""
        await self._broker.delete([place], epoch=epoch)
        await self._manager.delete_topics([place.topic], lease=self._lease.current)


def _row(extent: Extent) -> ExtentRow:
    place = extent.place
    return ExtentRow(*place.topic, place.broker, place.incarnation, extent.first, extent.next, extent.start, extent.end)


def _extent(row: ExtentRow) -> Extent:
    place = Place(Topic(row.domain, row.name), row.broker, row.incarnation)
    return Extent(place, row.first, row.next, row.end, Chunks.starting_at(row.first, row.start))


def _fits(row: ChunksRow, extent: Extent) -> bool:
    """Whether all chunks lie in the extent: they may be of one that another has taken the place of since."""
    first, last = row.chunks[0], row.chunks[-1]
    return (
        first.first >= extent.first
        and (extent.next is None or last.first < extent.next)
        and (extent.end is None or last.position <= extent.end)
    )
