"""What the log of a partition learns from the store when it is opened: the batches behind what it knows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Final

import anyio.lowlevel

from kclient.errors import CorruptRecordError, RecordTooLargeError
from kclient.gateway.aborted import Entries
from kclient.gateway.log import Checkpoint, PartitionLog
from kclient.htp.errors import DamagedError
from kclient.records import iter_headers, read_end_marker

if TYPE_CHECKING:
    from kclient.gateway.aborted import ChunkBounds
    from kclient.htp.port import OpenTopic, TopicStatus
    from kclient.records import BatchHeader, EndMarker
    from kclient.types import Buffer

logger: logging.Logger = logging.getLogger("kclient.gateway.log")

_SCAN_BYTES: Final = 1 << 20
"""How much is read at a time."""
_HEADERS_AT_ONCE: Final = 500
"""Batches that are taken into account in one turn of the loop."""


async def catch_up(log: PartitionLog, opened: OpenTopic, status: TopicStatus, name: str, now_ms: int) -> None:
    """Take into account what the log has not seen of what is stored.

    What lies before damage, and behind the checkpoint, is only missing in what is known of producers: whoever fetches
    it is told of the damage.

    Args:
        log: The log as its checkpoint tells it.
        opened: The partition's topic in HTP.
        status: Where that begins and ends.
        name: Of the partition, for messages.
        now_ms: The time in milliseconds since the epoch: producers that are found have been seen then.

    Raises:
        HtpError: If it cannot be read.
    """
    await read_back(log, opened, status, name, now_ms)
    log.start_offset = max(log.start_offset, status.start)
    log.skip_to(status.next, status.end)


async def read_back(
    log: PartitionLog,
    opened: OpenTopic,
    status: TopicStatus,
    name: str,
    now_ms: int,
    saw: Callable[[BatchHeader], object] | None = None,
) -> None:
    """Take into account what is stored from the log's next offset on; `saw` is called with each batch's header.

    The arguments and errors are those of `catch_up`. If it is broken off, it goes on where it was.
    """
    position = max(log.next_offset, status.start)
    while position < status.end:
        try:
            pulled = await opened.pull(position, max_bytes=_SCAN_BYTES)
        except DamagedError as damage:
            found = await behind_damage(opened, position, status.end)
            logger.error(
                "%s: what is stored from offset %d on is damaged; opening it goes on at %d, and fetches of what is "
                "damaged are refused. Restore the data directory from a backup, or let consumers seek beyond it (%s)",
                name, position, found, damage,
            )  # fmt: skip
            position = found
            continue
        if not pulled.data:
            break
        await _read_again(log, pulled.data, now_ms, saw)
        position = pulled.last + 1


async def behind_damage(opened: OpenTopic, position: int, end: int) -> int:
    """The next position from which on messages can be read, or the end; damage lies at this one."""
    damaged, step = position, 1
    while True:
        found = min(position + step, end - 1)
        if found <= damaged:
            return end
        if await _readable(opened, found):
            break
        damaged, step = found, 2 * step
    while found - damaged > 1:
        middle = (damaged + found) // 2
        if await _readable(opened, middle):
            found = middle
        else:
            damaged = middle
    return found


async def _readable(opened: OpenTopic, position: int) -> bool:
    try:
        await opened.pull(position, max_bytes=1)
    except DamagedError:
        return False
    return True


async def aborted_between(opened: OpenTopic, bounds: ChunkBounds, name: str) -> Entries:
    """The aborted transactions of a chunk, as the log itself tells them.

    Args:
        opened: The partition's topic in HTP.
        bounds: What is known of the chunk.
        name: Of the partition, for messages.

    Raises:
        HtpError: The log cannot be read.
    """
    status = await opened.status()
    begin = max(bounds.first_offset, status.start)
    log = PartitionLog(0, Checkpoint(begin, begin, {}, ()))
    end = min(bounds.last_offset + 1, status.end)
    await catch_up(log, opened, status._replace(end=end, next=end), name, 0)
    found = Entries()
    for chunk in log.transactions.aborted.chunks(begin, end):
        for transaction in chunk.entries or ():
            if bounds.first_end <= transaction.last_offset <= bounds.last_offset:
                found.add(transaction)
    return found


async def _read_again(
    log: PartitionLog, batches: Buffer, now_ms: int, saw: Callable[[BatchHeader], object] | None
) -> None:
    headers = iter_headers(batches)
    while some := list(islice(headers, _HEADERS_AT_ONCE)):
        _take(log, batches, some, now_ms)
        if saw is not None:
            for _, header in some:
                saw(header)
        await anyio.lowlevel.checkpoint()


def _take(log: PartitionLog, batches: Buffer, some: list[tuple[int, BatchHeader]], now_ms: int) -> None:
    data: list[BatchHeader] = []
    for position, header in some:
        if header.is_control:
            log.recovered(data, now_ms)
            data.clear()
            log.recovered_end(header, _marker(memoryview(batches)[position : position + header.length]), now_ms)
        else:
            data.append(header)
    log.recovered(data, now_ms)


def _marker(batch: memoryview) -> EndMarker | None:
    try:
        return read_end_marker(batch)
    except (CorruptRecordError, RecordTooLargeError) as error:
        logger.error("a control batch cannot be read, and counts as none: %s", error)
        return None
