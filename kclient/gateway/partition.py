"""A partition at work: it joins the log's state machine to its topic in HTP.

An append is restamped in place and handed to HTP in the caller's turn (`append` never awaits); HTP tells when it
is synced, and only then does the high watermark move, do waiting fetches wake and are `acks=all` producers
answered. A partition is opened when it is first used; appends that come before it is open wait in their order.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import anyio.lowlevel

from kclient.errors import (
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollowerError,
    UnknownTopicOrPartitionError,
)
from kclient.gateway.aborted import AbortedTransaction, ChunkBounds, Entries, overlapping
from kclient.gateway.append import Append, AppendState
from kclient.gateway.checkpoints import Checkpoints, encoded
from kclient.gateway.config import TopicConfig
from kclient.gateway.log import Checkpoint, Duplicate, PartitionLog
from kclient.gateway.recovery import aborted_between, catch_up
from kclient.gateway.rows.aborted import encode_chunk
from kclient.gateway.rows.keys import aborted_key, checkpoint_key, log_start_key
from kclient.gateway.rows.numbers import LOG_START
from kclient.gateway.rows.partitions import encode_checkpoint
from kclient.htp.errors import FencedError, HtpError, StorageError, StorageFullError, UnknownTopicError
from kclient.htp.port import (
    CAP_NOWAIT,
    CAP_SEGMENTS,
    DirectTopic,
    Found,
    OpenTopic,
    Place,
    Pulled,
    SegmentInfo,
    Sent,
    TopicSettings,
)
from kclient.records import BatchBuilder, BatchHeader, EndMarker, encode_end_marker, read_header, restamp
from kclient.records.restamping import place_batch
from kclient.types import Buffer

if TYPE_CHECKING:
    from kclient.gateway.aborted_rows import AbortedRows
    from kclient.gateway.clock import Clock
    from kclient.gateway.extents import PartitionStore
    from kclient.gateway.log_transactions import Verification
    from kclient.gateway.opening import Openings
    from kclient.gateway.producer_windows import ProducerLimit
    from kclient.gateway.shields import Shields
    from kclient.gateway.waiters import Waiter

logger: logging.Logger = logging.getLogger("kclient.gateway.log")

_REFUSAL_S: Final = 1.0
"""Seconds until a partition that could not be opened is tried again."""
_TURN_S: Final = 0.002
"""Seconds of one turn of the loop for appends that have waited for the partition."""
_MARKER_LIMIT: Final = 1024
CHECKPOINT_BYTES: Final = 64 << 20
"""A checkpoint is written after so many bytes: the most that opening a partition has to read."""
CHECKPOINT_BATCHES: Final = 50_000


class State(Enum):
    """The life of a partition."""

    CLOSED = "closed"
    """Known, not opened yet."""
    OPENING = "opening"
    OPEN = "open"
    GONE = "gone"
    """Its topic was deleted, or the gateway has closed."""


@dataclass(slots=True, frozen=True)
class Surroundings:
    """What all partitions of a gateway work with."""

    store: PartitionStore
    clock: Clock
    producers: ProducerLimit
    """How many producers the logs may remember."""
    checkpoints: Checkpoints
    aborted: AbortedRows
    openings: Openings
    shields: Shields
    spawn: Callable[..., object]
    """Starts a task of the gateway."""


class Partition:
    """One partition: its log, its topic in HTP, and who waits for it."""

    __slots__ = (
        "_around", "_batches", "_bytes", "_checkpointing", "_end_unknown", "_full_at", "_key", "_opened", "_queue",
        "_refusal", "_sending", "_start_key", "_stored_in", "_topic_id", "_unsent", "_wall_ms", "config", "direct",
        "dirty", "index", "log", "name", "place", "saving", "state", "waiters",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        topic_id: bytes,
        index: int,
        config: TopicConfig,
        place: Place,
        leader_epoch: int,
        around: Surroundings,
    ) -> None:
        self.name: str = name
        """Of its topic."""
        self.index: int = index
        self.config: TopicConfig = config
        self.place: Place = place
        self.direct: DirectTopic | None = None
        """Its topic in HTP where that has calls without a switch of tasks; None while the partition is not open."""
        self.log: PartitionLog = PartitionLog(leader_epoch, producers=around.producers)
        self.state: State = State.CLOSED
        self.waiters: set[Waiter] = set()
        self.dirty: bool = False
        """Whether there is more to say than the last checkpoint says."""
        self._around = around
        self._wall_ms = around.clock.wall_ms
        self._stored_in: OpenTopic | None = None
        self._topic_id = topic_id
        self._key, self._start_key = checkpoint_key(topic_id, index), log_start_key(topic_id, index)
        self._opened: anyio.Event | None = None
        self._queue: deque[tuple[Buffer, BatchHeader, Append]] = deque()
        self._unsent: deque[tuple[Append, Buffer]] = deque()
        self._sending = False
        self._end_unknown = False
        """Whether an append has failed since the store was last asked where it ends."""
        self._bytes = self._batches = 0
        self._checkpointing = False
        self.saving: anyio.Lock = anyio.Lock(fast_acquire=True)
        """Held while a checkpoint is written: what was encoded later is written later."""
        self._refusal: tuple[float, str] = 0.0, ""
        """Until when it is not opened again, since that has failed, and why."""
        self._full_at: int | None = None
        """Where the log ended when it was last told that there is no space."""

    def __str__(self) -> str:
        return f"{self.name}-{self.index}"

    # Opening

    def open_soon(self) -> None:
        """Begin to open the partition, unless that has begun."""
        if self.state is State.CLOSED:
            self.state = State.OPENING
            self._opened = anyio.Event()
            self._around.openings.add(self)

    async def ready(self) -> None:
        """Until the partition is open. Raises `KafkaStorageError` or `UnknownTopicOrPartitionError`."""
        while self.state is not State.OPEN:
            if self.state is State.GONE:
                raise UnknownTopicOrPartitionError(f"{self} is gone")
            self.open_soon()
            assert self._opened is not None
            await self._opened.wait()
            if self.state is State.CLOSED:
                raise KafkaStorageError(f"{self} cannot be opened: see the gateway's log")

    async def opened(self) -> None:
        """Until opening has succeeded or failed."""
        if self._opened is not None:
            await self._opened.wait()

    def wake(self) -> None:
        """Have waiting fetches look again."""
        for waiter in list(self.waiters):
            waiter.wake()

    async def open(self) -> None:
        """Open the partition, when its turn has come."""
        if self.state is not State.OPENING:  # it has gone meanwhile
            return
        error: KafkaError | None = None
        opened = False
        try:
            error = await self._try_to_recover()
            if error is None:
                await self._take_queued()
                opened = True
        finally:
            if self.state is State.OPENING:
                self.state = State.OPEN if opened else State.CLOSED
            assert self._opened is not None
            self._opened.set()
        queued, self._queue = self._queue, deque()
        for _, header, append in queued:
            assert error is not None
            self.log.refuse(header, self._wall_ms())
            append.fail(error)
            append.tell()
        self.wake()

    async def _try_to_recover(self) -> KafkaError | None:
        until, reason = self._refusal
        if self._around.clock.now() < until:  # clients ask ten times a second: one try a second will do
            return KafkaStorageError(reason)
        try:
            await self._recover()
        except (KafkaError, ValueError, OSError) as failure:
            if self.state is State.OPENING:
                logger.error("%s cannot be opened: %s", self, failure, exc_info=not isinstance(failure, HtpError))
            reason = f"{self} cannot be opened: {failure}"
            self._refusal = self._around.clock.now() + _REFUSAL_S, reason
            return KafkaStorageError(reason)
        return None

    async def _take_queued(self) -> None:
        """Append what has come before the partition was open; what comes meanwhile follows it."""
        until = time.perf_counter() + _TURN_S
        while self._queue:
            batch, header, append = self._queue.popleft()
            try:
                self._append(batch, header, append)
            except KafkaError as error:
                append.fail(error)
                append.tell()
            if time.perf_counter() >= until:
                await anyio.lowlevel.checkpoint()
                until = time.perf_counter() + _TURN_S

    async def _recover(self) -> None:
        checkpoint, damaged = await self._around.checkpoints.read(self._key, self._start_key, str(self))
        log = PartitionLog(self.log.leader_epoch, checkpoint, self._around.producers)
        try:
            await self._recover_log(log)
            if self.state is State.GONE:
                raise UnknownTopicOrPartitionError(f"{self} is gone")
        except BaseException:  # cancelled too: the producers that it remembers count no longer
            log.close()
            if self.state is State.GONE:
                self._stored_in = self.direct = None
            raise
        log.follow(self.log)
        self.log = log
        self.dirty = damaged or log.next_offset > (checkpoint.next_offset if checkpoint else 0)

    async def _recover_log(self, log: PartitionLog) -> None:
        """Open the topic in HTP, and take into account what the log has not seen of it."""
        config = self.config
        opened = await self._around.store.open(
            self.place,
            self._topic_id,
            self.index,
            epoch=log.leader_epoch,
            settings=layout(config),
            next_offset=log.next_offset,
        )
        self._stored_in = opened
        status = await opened.status()
        goes_on = log.transactions.aborted.open
        if goes_on is not None:
            key = self._aborted_key(goes_on.bounds.number)
            found = await self._around.aborted.read(key, goes_on.bounds, self._aborted_from_log)
            goes_on.entries = found.copy(goes_on.bounds.transactions)
        await catch_up(log, opened, status, str(self), self._wall_ms())
        if layout(self.config) != layout(config):  # changed meanwhile
            await opened.configure(layout(self.config))
        self.direct = opened if CAP_NOWAIT in self._around.store.capabilities else None  # type: ignore[assignment]

    async def configure(self, config: TopicConfig) -> None:
        """Take over changed settings of the topic."""
        relayout = layout(config) != layout(self.config)
        self.config = config
        # also while it is being opened: what recovery compares with may be behind it already
        if relayout and self.state in (State.OPEN, State.OPENING) and self._stored_in is not None:
            await self._stored_in.configure(layout(config))

    # Reading what is stored: only of an open partition

    @property
    def stored_in(self) -> OpenTopic:
        """The partition's topic in HTP. Raises `UnknownTopicOrPartitionError` when the partition has gone."""
        if self.state is State.GONE or self._stored_in is None:
            raise UnknownTopicOrPartitionError(f"{self} is gone")
        return self._stored_in

    async def pull(self, offset: int, *, max_bytes: int = 1 << 20, max_messages: int | None = None) -> Pulled:
        """The visible batches from an offset on, as `OpenTopic.pull` gives them."""
        with self._told():
            return await self.stored_in.pull(offset, max_bytes=max_bytes, max_messages=max_messages)

    async def find_by_timestamp(self, timestamp: int, *, start: int) -> Found | None:
        """The first visible batch that is not older than a time, as `OpenTopic.find_by_timestamp` gives it."""
        with self._told():
            return await self.stored_in.find_by_timestamp(timestamp, start=start)

    async def segments(self) -> list[SegmentInfo]:
        """The segments that hold the partition; none where HTP has no such thing."""
        if CAP_SEGMENTS not in self._around.store.capabilities:
            return []
        with self._told():
            return await self.stored_in.segments()

    def aborted_nowait(self, first: int, until: int) -> list[AbortedTransaction] | None:
        """The aborted transactions with records from an offset to another; None if `aborted` has to read them."""
        found: list[AbortedTransaction] = []
        for chunk in self.log.transactions.aborted.chunks(first, until):
            entries = chunk.entries or self._around.aborted.known(self._aborted_key(chunk.bounds.number), chunk.bounds)
            if entries is None:
                return None
            found += overlapping(entries, first, until)
        return found

    async def aborted(self, first: int, until: int) -> list[AbortedTransaction]:
        """The same."""
        found: list[AbortedTransaction] = []
        for chunk in self.log.transactions.aborted.chunks(first, until):
            key, bounds = self._aborted_key(chunk.bounds.number), chunk.bounds
            entries = chunk.entries or await self._around.aborted.read(key, bounds, self._aborted_from_log)
            found += overlapping(entries, first, until)
        return found

    def _aborted_key(self, number: int) -> str:
        return aborted_key(self._topic_id, self.index, number)

    async def _aborted_from_log(self, bounds: ChunkBounds) -> Entries:
        with self._told():
            return await aborted_between(self.stored_in, bounds, str(self))

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Errors of HTP about who may use the topic, in Kafka's terms."""
        try:
            yield
        except UnknownTopicError as error:
            raise UnknownTopicOrPartitionError(f"{self} is gone: {error}") from error
        except FencedError as error:
            raise NotLeaderOrFollowerError(f"{self} is led by a newer gateway: {error}") from error

    # Appending

    def append(self, batch: Buffer, header: BatchHeader, verified: Verification | None = None) -> Append:
        """Append one checked batch, in the order of the calls; `batch` is stamped in place where it can be.

        Args:
            batch: The batch.
            header: Its header.
            verified: Stands for its coordinator's word, if it may begin a transaction (`PartitionLog.verify`).

        Returns:
            What becomes of it; that of the first one if it is repeated while that is on its way.

        Raises:
            KafkaError: It is refused: the partition has gone, the producer is fenced or has left a sequence out.
        """
        if self.state is State.OPEN:
            return self._append(batch, header, verified=verified)
        if self.state is State.GONE:
            raise NotLeaderOrFollowerError(f"{self} is gone")
        append = Append()
        self._queue.append((batch, header, append))
        self.open_soon()
        return append

    def append_end(self, producer_id: int, producer_epoch: int, marker: EndMarker) -> Append:
        """Append the control record that ends a transaction; only to an open partition.

        Raises:
            KafkaError: The partition is not open, or the producer or the coordinator is not the newest.
        """
        if self.state is not State.OPEN:
            raise NotLeaderOrFollowerError(f"{self} is not open")
        now_ms = self._wall_ms()
        batch = end_of_transaction(producer_id, producer_epoch, marker, now_ms)
        append = self.log.prepare_end(read_header(batch), marker, now_ms)
        place_batch(batch, append.base_offset, self.log.leader_epoch)
        self._send(append, batch)
        return append

    def _append(
        self, batch: Buffer, header: BatchHeader, queued: Append | None = None, verified: Verification | None = None
    ) -> Append:
        now_ms = self._wall_ms()
        found = self.log.prepare(header, now_ms, now_ms if self.config.log_append_time else -1, queued, verified)
        if isinstance(found, Duplicate):
            first = found.append()
            if queued is None:
                return first
            queued.follow(first)
            return queued
        batch = writable(batch)
        epoch = self.log.leader_epoch
        if found.timestamp < 0:
            place_batch(batch, found.base_offset, epoch)
        else:
            restamp(batch, base_offset=found.base_offset, partition_leader_epoch=epoch, log_append_time=found.timestamp)
        self._send(found, batch)
        return found

    def _send(self, append: Append, batch: Buffer) -> None:
        if self.direct is None or self._sending:
            self._send_later(append, batch)
            return
        try:
            sent = self.direct.send_nowait((batch,))
        except HtpError as error:
            self._fail(append, error)
            return
        if sent is None:
            self._send_later(append, batch)
        else:
            self._stored(append, sent)

    def _send_later(self, append: Append, batch: Buffer) -> None:
        self._unsent.append((append, batch))
        self._begin_sending()

    def _begin_sending(self) -> None:
        if not self._sending:
            self._sending = True
            self._around.spawn(self._send_all, name=f"append to {self}")

    async def _send_all(self) -> None:
        """What the broker cannot take at once: one append after the other, in order."""
        try:
            while self._unsent or self._end_unknown:
                if self._end_unknown:
                    await self._find_end()
                    continue
                append, batch = self._unsent.popleft()
                try:
                    sent = await self.stored_in.send((batch,))
                except KafkaError as error:
                    if append.state is AppendState.FAILED:  # the partition has ended, and told who waited
                        continue
                    self._fail(append, error)
                else:
                    if append.state is AppendState.PREPARED:
                        self._stored(append, sent)
                    elif self.state is not State.GONE:  # it was undone with an earlier one, and is there all the same
                        self._end_unknown = True
        finally:
            self._sending = False

    async def _find_end(self) -> None:
        """After a failure: ask the store where it ends."""
        self._end_unknown = False
        try:
            status = await self.stored_in.status()
        except KafkaError as error:
            if self.state is not State.GONE:
                logger.error("%s: its end is not known: %s", self, error)
            return
        if self._unsent and status.next > (first := self._unsent[0][0]).base_offset:  # they came meanwhile
            self._fail(first, StorageError(f"the store goes on at offset {status.next}"))
        self.log.skip_to(status.next)

    def _stored(self, append: Append, sent: Sent) -> None:
        self.log.stored(append)
        append.tell()
        sent.on_synced(partial(self._synced, append))

    def _synced(self, append: Append, error: BaseException | None) -> None:
        if append.state is not AppendState.STORED:
            return
        if error is not None:
            self._fail(append, error)
            return
        done, size, stable = self.log.durable(append.next_offset)
        for appended in done:
            appended.tell()
        for waiter in list(self.waiters):
            waiter.arrived(size, stable)
        self.dirty = True
        self._bytes += size
        self._batches += len(done)
        if (self._bytes > CHECKPOINT_BYTES or self._batches > CHECKPOINT_BATCHES) and not self._checkpointing:
            self._checkpointing = True
            self._around.spawn(self._checkpoint, name=f"checkpoint {self}")

    async def settled(self) -> None:
        """Until no append is on its way of those that are now: each is durable, or has failed.

        Appends that come meanwhile are not waited for: a partition may be written without a pause.
        """
        if self.log.pending and self.state is not State.GONE:  # by then they have failed
            ended = anyio.Event()
            self.log.pending[-1].watch(AppendState.DURABLE, ended.set)
            await ended.wait()

    def _fail(self, append: Append, error: BaseException) -> None:
        if isinstance(error, StorageFullError):
            if append.base_offset != self._full_at:  # once, not with every append that is tried again
                self._full_at = append.base_offset
                logger.error("%s: no space left, appends are refused until there is: %s", self, error)
        else:
            logger.error("%s: appending at offset %d failed: %s", self, append.base_offset, error)
        failure: KafkaError = KafkaStorageError(f"{self} could not be written: {error}")
        if isinstance(error, FencedError):
            failure = NotLeaderOrFollowerError(f"{self} is led by a newer gateway: {error}")
        elif isinstance(error, UnknownTopicError | UnknownTopicOrPartitionError):
            failure = UnknownTopicOrPartitionError(f"{self} is gone: {error}")
        for undone in self.log.failed(append, failure):
            undone.tell()
        while self._unsent and self._unsent[-1][0].state is AppendState.FAILED:
            self._unsent.pop()
        # The store has cut back; the offsets it has given once it does not give again.
        if self.direct is not None:
            with suppress(HtpError):  # nor does one that takes nothing any more
                self.log.skip_to(self.direct.status_nowait().next)
        elif self.state is not State.GONE:
            self._end_unknown = True
            self._begin_sending()

    # Checkpoints, trimming, closing

    def checkpoint_rows(self) -> dict[str, bytes]:
        """The rows of a checkpoint of what is durable now."""
        return {
            self._key: encode_checkpoint(self.log.checkpoint()),
            **self._aborted_rows(self.log.transactions.aborted.unsaved()),
            **self._around.store.rows(self.stored_in),
        }

    def _aborted_rows(self, chunks: Mapping[int, Entries]) -> dict[str, bytes]:
        return {self._aborted_key(number): encode_chunk(entries) for number, entries in chunks.items()}

    async def _checkpoint(self) -> None:
        try:
            await self.checkpoint()
        except KafkaError as error:
            if self.state is not State.GONE:
                logger.warning("%s: its checkpoint could not be written, the next one will be: %s", self, error)
        finally:
            self._checkpointing = False

    async def checkpoint(self) -> None:
        """Write a checkpoint: opening the partition again will read on from here."""
        async with self.saving:
            await self._save(self.log.checkpoint())

    async def _save(self, checkpoint: Checkpoint, *, trimmed: bool = False) -> None:
        if self.state is State.GONE:  # its rows are being removed
            raise UnknownTopicOrPartitionError(f"{self} is gone")
        self._bytes = self._batches = 0
        self.dirty = False
        aborted = self.log.transactions.aborted
        chunks = aborted.unsaved()
        counts = {number: len(entries) for number, entries in chunks.items()}
        rows: dict[str, bytes | None] = dict(self._aborted_rows(chunks))
        gone = {each.number for each in aborted.bounds} - {each.number for each in checkpoint.aborted}
        rows.update((self._aborted_key(number), None) for number in gone)
        try:
            rows |= {self._key: await encoded(checkpoint), **self._around.store.rows(self.stored_in)}
            if trimmed:
                rows[self._start_key] = LOG_START.encode(checkpoint.start_offset)
            await self._around.checkpoints.write(rows)
            aborted.saved(counts)
        except BaseException:  # cancelled too: it may not have been written
            self.dirty = True
            raise

    async def trim(self, before: int) -> None:
        """Move the log start up; what lies wholly below it is dropped when HTP sees fit.

        Raises:
            UnknownTopicOrPartitionError: If the partition has gone.
            HtpError: If the new start could not be stored; then it has not moved.
        """
        with self._around.shields.shield():
            async with self.saving:
                stored_in = self.stored_in
                before = min(before, self.log.high_watermark)
                if before <= self.log.start_offset:
                    return
                # durable first: after a crash nothing below it comes back
                await self._save(self.log.checkpoint(start_offset=before), trimmed=True)
                self.log.trim(before)
                with self._told():
                    await stored_in.trim(before)

    @property
    def busy(self) -> bool:
        """Whether it is being opened, or its checkpoint written."""
        return self.saving.locked() or (self._opened is not None and not self._opened.is_set())

    async def left(self) -> None:
        """Until nothing is under way any more of a partition that has gone: its rows and places may be removed."""
        if self._opened is not None:
            await self._opened.wait()
        async with self.saving:
            return

    def drop(self) -> None:
        """The topic is deleted: whoever waits is told."""
        self._end(UnknownTopicOrPartitionError(f"{self} is gone"))

    def close(self) -> None:
        """The gateway closes; the checkpoint was written before."""
        self._end(NotLeaderOrFollowerError(f"{self}: the gateway is closing"))

    def _end(self, error: KafkaError) -> None:
        self.state = State.GONE
        self._stored_in = self.direct = None  # whoever deletes the place, or closes the store, ends it
        self._unsent.clear()
        if self._opened is not None:
            self._opened.set()
        queued, self._queue = self._queue, deque()
        self.log.close()
        for append in (*(each for _, _, each in queued), *self.log.pending):
            append.fail(error)
            append.tell()
        self.wake()


def end_of_transaction(producer_id: int, producer_epoch: int, marker: EndMarker, now_ms: int) -> bytearray:
    """The control batch that ends a transaction."""
    builder = BatchBuilder(limit=_MARKER_LIMIT, is_transactional=True, is_control=True)
    builder.append(now_ms, *encode_end_marker(commit=marker.committed, coordinator_epoch=marker.coordinator_epoch))
    return builder.build(producer_id=producer_id, producer_epoch=producer_epoch)


def layout(config: TopicConfig) -> TopicSettings:
    """The topic's settings as HTP takes them."""
    return TopicSettings(segment_bytes=config.segment_bytes, segment_ms=config.segment_ms, dense=True)


def writable(batch: Buffer) -> bytearray | memoryview:
    """The batch itself where it may be changed in place, else a copy."""
    if isinstance(batch, bytearray):
        return batch
    if isinstance(batch, memoryview) and not batch.readonly:
        return batch
    return bytearray(batch)
