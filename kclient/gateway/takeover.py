"""Taking a partition over: its place is opened under an epoch, and its log learns what is stored there.

The first time the log comes from its checkpoint. Later, when the outcome of an append was not known, the epoch is
raised before: opening under it seals the old one, so what was sent under that is there then, or never counts. On a
store that cannot fence (without capability `fenced_sends`) the partition store sees to it (`extents`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kclient.gateway.log import PartitionLog
from kclient.gateway.recovery import aborted_between, catch_up, read_back
from kclient.gateway.rows.keys import aborted_key, checkpoint_key, log_start_key
from kclient.htp.errors import FencedError
from kclient.htp.port import OpenTopic, Place, TopicSettings

if TYPE_CHECKING:
    from kclient.gateway.aborted import ChunkBounds, Entries
    from kclient.gateway.aborted_rows import AbortedRows
    from kclient.gateway.checkpoints import Checkpoints
    from kclient.gateway.extents import PartitionStore
    from kclient.gateway.producer_windows import ProducerLimit
    from kclient.gateway.undecided import Undecided

logger: logging.Logger = logging.getLogger("kclient.gateway.log")


class Site(NamedTuple):
    """What is to be taken over."""

    name: str
    """Of the partition, for messages."""
    place: Place
    topic_id: bytes
    partition: int
    """Its number."""
    settings: TopicSettings
    raise_epoch: Callable[[int], Awaitable[int]]
    """Gives the partition an epoch above this one, and above all that it had; durable when it returns. Raises if
    another gateway leads the partition, or it has gone."""
    stalled: Callable[[BaseException], object]
    """Called if it has to be opened anew because of another partition that shares its topic in HTP."""


class Taken(NamedTuple):
    """A partition that was taken over."""

    log: PartitionLog
    topic: OpenTopic
    dirty: bool
    """Whether there is more to say than its last checkpoint says."""


async def _aborted_between(opened: OpenTopic, name: str, bounds: ChunkBounds) -> Entries:
    return await aborted_between(opened, bounds, name)


class Takeover:
    """Takes partitions over.

    Args:
        store: Keeps their batches.
        checkpoints: Tell what is known of them.
        aborted: Tell which transactions were aborted.
        producers: How many producers the logs may remember.
        wall_ms: The time in milliseconds since the epoch.
    """

    def __init__(
        self,
        store: PartitionStore,
        checkpoints: Checkpoints,
        aborted: AbortedRows,
        producers: ProducerLimit,
        wall_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._checkpoints = checkpoints
        self._aborted = aborted
        self._producers = producers
        self._wall_ms = wall_ms

    async def first(self, site: Site, epoch: int) -> Taken:
        """Open a partition under an epoch; its log is made of its checkpoint and what is stored behind it."""
        keys = checkpoint_key(site.topic_id, site.partition), log_start_key(site.topic_id, site.partition)
        checkpoint, damaged = await self._checkpoints.read(*keys, site.name)
        log = PartitionLog(epoch, checkpoint, self._producers)
        opened: OpenTopic | None = None
        try:
            opened = await self._open(site, log)
            status = await opened.status()
            goes_on = log.transactions.aborted.open
            if goes_on is not None:
                bounds = goes_on.bounds
                key = aborted_key(site.topic_id, site.partition, bounds.number)
                found = await self._aborted.read(key, bounds, partial(_aborted_between, opened, site.name))
                goes_on.entries = found.copy(bounds.transactions)
            await catch_up(log, opened, status, site.name, self._wall_ms())
        except BaseException:  # cancelled too: the producers that it remembers count no longer
            log.close()
            if opened is not None:
                self._store.release(opened)
            raise
        return Taken(log, opened, damaged or log.next_offset > (checkpoint.next_offset if checkpoint else 0))

    async def again(self, site: Site, log: PartitionLog, undecided: Undecided) -> OpenTopic:
        """Open a partition under a raised epoch, and have its log and `undecided` see what of these is stored.

        If it fails, it may be called again with what it was given.
        """
        if log.leader_epoch == undecided.epoch:  # else it was raised before, and nothing was sent since
            log.lead(await site.raise_epoch(log.leader_epoch))
        opened = await self._open(site, log)
        try:
            status = await opened.status()
            await read_back(log, opened, status, site.name, self._wall_ms(), undecided.saw)
        except BaseException:  # cancelled too
            self._store.release(opened)
            raise
        if status.end < log.high_watermark:
            logger.error(
                "%s: the store ends at offset %d; what it had told to be durable up to %d is lost",
                site.name, status.end, log.high_watermark,
            )  # fmt: skip
        log.skip_to(status.next)
        return opened

    async def _open(self, site: Site, log: PartitionLog) -> OpenTopic:
        try:
            return await self._open_under(site, log)
        except FencedError as error:
            if error.epoch is None:
                raise
            # Either another gateway leads, and then no epoch can be raised; or the rows that told which epochs were
            # given have been damaged, and the store remembers one.
            log.lead(await site.raise_epoch(error.epoch))
            return await self._open_under(site, log)

    async def _open_under(self, site: Site, log: PartitionLog) -> OpenTopic:
        return await self._store.open(
            site.place,
            site.topic_id,
            site.partition,
            epoch=log.leader_epoch,
            settings=site.settings,
            next_offset=log.next_offset,
            start_offset=log.start_offset,
            stalled=site.stalled,
        )
