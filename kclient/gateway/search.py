"""Searching a partition by time: HTP finds the batch, its records tell the offset.

A batch is looked through as it is decompressed, by the gateway's threads where that takes long; no record is kept.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from kclient.errors import NotYetSupportedError
from kclient.gateway.contents import RecordSearch
from kclient.htp.port import CAP_FIND_BY_TIMESTAMP, CAP_SEGMENTS
from kclient.records import HEADER_SIZE, CompressionType, iter_headers
from kclient.types import TimestampType

if TYPE_CHECKING:
    from kclient.gateway.partition import Partition
    from kclient.gateway.workers import Workers

logger: logging.Logger = logging.getLogger("kclient.gateway.log")

_SCAN_BYTES: Final = 1 << 20
_INLINE: Final = 16 * 1024
"""Bytes of records that are not compressed and are looked through at once."""


class TimestampSearch:
    """Looks for records by their timestamps.

    Args:
        capabilities: What the store can do, see `kclient.htp.port`.
        workers: Threads for decompression.
    """

    def __init__(self, capabilities: frozenset[str], workers: Workers) -> None:
        self._capabilities = capabilities
        self._workers = workers

    async def find(self, partition: Partition, timestamp: int) -> tuple[int, int] | None:
        """Offset and timestamp of the first visible record that is not older than `timestamp`; None without one."""
        if CAP_FIND_BY_TIMESTAMP not in self._capabilities:
            raise NotYetSupportedError("this HTP backend cannot search by time")
        start = partition.log.start_offset
        while True:
            found = await partition.find_by_timestamp(timestamp, start=start)
            if found is None:
                return None
            answer = await self._first_record(partition, found.first, timestamp)
            if answer is not None:
                return answer
            start = found.last + 1  # what made the batch young enough lies below the log start

    async def _first_record(self, partition: Partition, offset: int, timestamp: int) -> tuple[int, int] | None:
        start = max(partition.log.start_offset, offset)  # below it a store gives nothing, also of a batch that holds it
        pulled = await partition.pull(start, max_messages=1)
        for position, header in iter_headers(pulled.data):
            if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
                return max(header.base_offset, start), header.max_timestamp
            payload = memoryview(pulled.data)[position + HEADER_SIZE : position + header.length]
            first = max(start - header.base_offset, 0)
            search = RecordSearch(payload, header, timestamp, first, partition.config.max_decompressed_bytes)
            done = search.step(_INLINE) if header.compression is CompressionType.NONE else False
            while not done:
                done = await self._workers.run(search.step)
            if search.found is not None:
                delta, stamp = search.found
                return header.base_offset + delta, stamp
        return None

    async def greatest(self, partition: Partition) -> tuple[int, int] | None:
        """Offset and timestamp of the first record with the greatest timestamp (KIP-734); None in an empty log."""
        if partition.log.start_offset == partition.log.high_watermark:
            return None
        if CAP_SEGMENTS in self._capabilities and CAP_FIND_BY_TIMESTAMP in self._capabilities:
            segments = await partition.segments()
            newest = max((segment.max_timestamp for segment in segments), default=-1)
            found = await self.find(partition, newest) if newest >= 0 else None
            if found is not None:
                return found
        # The newest segment's greatest may lie above the high watermark or below the log start: look at the batches.
        newest, offset = await _scan(partition)
        return await self._first_record(partition, offset, newest) if newest >= 0 else None


async def _scan(partition: Partition) -> tuple[int, int]:
    newest, at = -1, -1
    position = partition.log.start_offset
    while position < partition.log.high_watermark:
        pulled = await partition.pull(position, max_bytes=_SCAN_BYTES)
        if not pulled.data:
            break
        for _, header in iter_headers(pulled.data):
            if header.max_timestamp > newest:
                newest, at = header.max_timestamp, header.base_offset
        position = pulled.last + 1
    return newest, at
