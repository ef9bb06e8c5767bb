"""What a partition writes of itself, so that opening it again only reads what came afterwards.

A checkpoint is a row with what the log knows where it ends (`gateway/log.py`), and with it, in one commit, chunks of
aborted transactions that are complete and the rows of the store below.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

import anyio

from kclient.errors import KafkaError
from kclient.gateway.aborted import Entries
from kclient.gateway.checkpoints import encoded
from kclient.gateway.log import Checkpoint, PartitionLog
from kclient.gateway.partition_states import PartitionPhase
from kclient.gateway.rows.aborted import encode_chunk
from kclient.gateway.rows.keys import aborted_key, checkpoint_key, log_start_key
from kclient.gateway.rows.numbers import LOG_START
from kclient.gateway.rows.partitions import encode_checkpoint

if TYPE_CHECKING:
    from kclient.gateway.checkpoints import Checkpoints
    from kclient.gateway.extents import CommitRows, PartitionStore
    from kclient.gateway.unit import Unit
    from kclient.htp.port import OpenTopic

logger: logging.Logger = logging.getLogger("kclient.gateway.log")

CHECKPOINT_BYTES: Final = 64 << 20
"""A checkpoint is written after so many bytes: the most that opening a partition has to read."""
_CHECKPOINT_BATCHES: Final = 50_000
_OVER: Final = frozenset({PartitionPhase.GONE, PartitionPhase.LEAVING})


class CheckpointedPartition(Protocol):
    """What is known of the partition."""

    log: PartitionLog
    state: PartitionPhase
    unit: Unit

    @property
    def stored_in(self) -> OpenTopic:
        """Its topic in HTP. Raises `UnknownTopicOrPartitionError` when the partition has gone."""
        ...

    def count_open(self) -> None:
        """Count the memory that it takes now."""
        ...

    def gone(self) -> KafkaError:
        """Why it is not here any more."""
        ...


class CheckpointSurroundings(Protocol):
    """What checkpoints need of what all partitions of a gateway work with."""

    @property
    def store(self) -> PartitionStore:
        """Where partitions lie."""
        ...

    @property
    def checkpoints(self) -> Checkpoints:
        """Of all partitions."""
        ...

    @property
    def spawn(self) -> Callable[..., object]:
        """Starts a task of the gateway."""
        ...


class PartitionCheckpoints:
    """Writes those of one partition: after so much was appended or aborted, when the gateway closes, with each trim.

    Args:
        partition: Of which they are.
        topic_id: Of its topic.
        index: Its number.
        around: What it works with.
    """

    __slots__ = (
        "_around", "_batches", "_bytes", "_index", "_partition", "_topic_id", "_writing", "dirty", "saving",
    )  # fmt: skip

    def __init__(
        self, partition: CheckpointedPartition, topic_id: bytes, index: int, around: CheckpointSurroundings
    ) -> None:
        self.dirty: bool = False
        """Whether there is more to say than the last checkpoint says."""
        self.saving: anyio.Lock = anyio.Lock(fast_acquire=True)
        """Held while one is written: what was encoded later is written later."""
        self._partition = partition
        self._topic_id = topic_id
        self._index = index
        self._around = around
        self._bytes = self._batches = 0
        """Appended since the last one."""
        self._writing = False
        """Whether one is written, or about to be, because so much was appended."""

    def behind_by(self, batches: int, size: int) -> None:
        """So many more batches, with so many bytes, are durable."""
        self.dirty = True
        self._bytes += size
        self._batches += batches
        if not self._writing and self._is_due():
            self._writing = True
            self._around.spawn(self._catch_up, name=f"checkpoint {self._partition}")

    def _is_due(self) -> bool:
        if self._bytes > CHECKPOINT_BYTES or self._batches > _CHECKPOINT_BATCHES:
            return True
        return self._partition.log.transactions.aborted.holds_full  # else memory grows by what is aborted

    def rows(self) -> dict[str, bytes]:
        """The rows of one of what is durable now."""
        log = self._partition.log
        return {
            checkpoint_key(self._topic_id, self._index): encode_checkpoint(log.checkpoint()),
            **self._aborted_rows(log.transactions.aborted.unsaved()),
            **self._around.store.rows(self._partition.stored_in),
        }

    async def hand_over_positions(self, commit: CommitRows) -> None:
        """Write what the store below keeps beside `rows`, for the last time; the caller holds `saving`.

        Args:
            commit: Writes rows, all or none. What it raises, this does.
        """
        await self._around.store.hand_over(self._partition.stored_in, commit)

    async def _catch_up(self) -> None:
        try:
            while self._is_due():  # and where so much has come meanwhile
                await self.write()
        except KafkaError as error:
            if self._partition.state not in _OVER:
                logger.warning(
                    "%s: its checkpoint could not be written, the next one will be: %s", self._partition, error
                )
        finally:
            self._writing = False

    async def write(self) -> None:
        """Write one of what is durable now: opening the partition again will read on from here.

        Raises:
            UnknownTopicOrPartitionError: The partition has gone.
            HtpError: It could not be written.
        """
        async with self.saving:
            await self.save(self._partition.log.checkpoint())

    async def save(self, checkpoint: Checkpoint, *, trimmed: bool = False) -> None:
        """Write one; the caller holds `saving`.

        Args:
            checkpoint: What the log knows.
            trimmed: Whether it tells a new log start, which is made durable with it; more is written afterwards.

        Raises:
            UnknownTopicOrPartitionError: The partition has gone.
            NotLeaderOrFollowerError: Another gateway leads it now.
            HtpError: It could not be written.
        """
        partition = self._partition
        if partition.state in _OVER:  # its rows are being removed, or the last one is written with the hand-over
            raise partition.gone()
        self._bytes = self._batches = 0
        self.dirty = False
        aborted = partition.log.transactions.aborted
        chunks = aborted.unsaved()
        counts = {number: len(entries) for number, entries in chunks.items()}
        rows: dict[str, bytes | None] = dict(self._aborted_rows(chunks))
        gone = {each.number for each in aborted.bounds} - {each.number for each in checkpoint.aborted}
        rows.update((self._aborted_key(number), None) for number in gone)
        try:
            partition.count_open()
            key = checkpoint_key(self._topic_id, self._index)
            rows |= {key: await encoded(checkpoint), **self._around.store.rows(partition.stored_in)}
            if trimmed:
                rows[log_start_key(self._topic_id, self._index)] = LOG_START.encode(checkpoint.start_offset)
            await self._around.checkpoints.write(rows, (partition.unit,))
            aborted.saved(counts)
            if not trimmed:
                await self._around.store.save((partition.stored_in,))
        except BaseException:  # cancelled too: it may not have been written
            self.dirty = True
            raise

    def _aborted_rows(self, chunks: Mapping[int, Entries]) -> dict[str, bytes]:
        return {self._aborted_key(number): encode_chunk(entries) for number, entries in chunks.items()}

    def _aborted_key(self, number: int) -> str:
        return aborted_key(self._topic_id, self._index, number)
