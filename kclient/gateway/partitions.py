"""Partitions at work: each joins the log's state machine to its topic in HTP.

An append is restamped in place and handed to HTP in the caller's turn (`append` never awaits); HTP tells when it
is synced, and only then does the high watermark move, do waiting fetches wake and are `acks=all` producers
answered. A partition is opened when it is first used; appends that come before it is open wait in their order.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from enum import Enum, IntEnum
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

import anyio
import anyio.lowlevel

from kclient.errors import (
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollowerError,
    UnknownTopicOrPartitionError,
)
from kclient.gateway.checkpoints import decode_checkpoint, encode_checkpoint, encoded_in_steps
from kclient.gateway.config import TopicConfig
from kclient.gateway.keys import LOG_PREFIX
from kclient.gateway.log import Append, AppendState, Checkpoint, Duplicate, PartitionLog
from kclient.gateway.opening import Openings
from kclient.htp.errors import DamagedError, FencedError, HtpError, StorageFullError, UnknownTopicError
from kclient.htp.port import (
    CAP_NOWAIT,
    CAP_ORDINAL_POSITIONS,
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
from kclient.htp.rows import parse_number
from kclient.records import BatchHeader, RecordBatchFraming, iter_headers, restamp
from kclient.records.restamping import place_batch
from kclient.types import Buffer

if TYPE_CHECKING:
    from kclient.gateway.core import Core
    from kclient.gateway.topics import TopicRecord

logger: logging.Logger = logging.getLogger("kclient.gateway.log")

_SCAN_BYTES: Final = 1 << 20
"""How much recovery reads at a time."""
_HEADERS_AT_ONCE: Final = 500
"""Batches that recovery takes into account in one turn of the loop."""
_REFUSAL_S: Final = 1.0
"""Seconds until a partition that could not be opened is tried again."""
_TURN_S: Final = 0.002
"""Seconds of one turn of the loop for appends that have waited for the partition."""
_FEW_PIECES: Final = 4
"""Pieces of a checkpoint that are encoded in one turn of the loop."""
CHECKPOINT_BYTES: Final = 64 << 20
"""A checkpoint is written after so many bytes: the most that opening a partition has to read."""
CHECKPOINT_BATCHES: Final = 50_000


class Level(IntEnum):
    """How far an append has come; `acks` says which level answers the producer."""

    WAITING = 0
    STORED = 1
    DURABLE = 2
    FAILED = 3


class Ticket:
    """What a produce request holds of one batch: the answer, once the batch has come far enough."""

    __slots__ = ("_watcher", "base_offset", "error", "level", "timestamp", "wanted")

    def __init__(self) -> None:
        self.level: Level = Level.WAITING
        self.base_offset: int = -1
        self.timestamp: int = -1
        self.error: KafkaError | None = None
        self.wanted: Level = Level.DURABLE
        self._watcher: Callable[[], object] | None = None

    def settled(self, wanted: Level) -> bool:
        """Whether the answer is known for a producer that asks for this level."""
        return self.level >= wanted

    def watch(self, wanted: Level, watcher: Callable[[], object]) -> None:
        """Have `watcher` called once when `wanted` is reached, or the append failed."""
        self.wanted = wanted
        self._watcher = watcher

    def reach(self, level: Level, error: KafkaError | None = None) -> None:
        """Go on to a level."""
        self.level = level
        self.error = error
        if level >= self.wanted and self._watcher is not None:
            watcher, self._watcher = self._watcher, None
            watcher()


class Waiter:
    """A fetch that waits for bytes in any of several partitions."""

    __slots__ = ("_event", "_missing", "_partitions")

    def __init__(self, missing: int) -> None:
        self._missing = missing
        self._event = anyio.Event()
        self._partitions: list[Partition] = []

    def add(self, partition: Partition) -> None:
        """Wait for what arrives in this partition too."""
        self._partitions.append(partition)
        partition.waiters.add(self)

    def arrived(self, size: int) -> None:
        """So many bytes became visible."""
        self._missing -= size
        if self._missing <= 0:
            self._event.set()

    def wake(self) -> None:
        """Something else happened that the fetch has to look at."""
        self._event.set()

    async def wait(self) -> None:
        """Until enough has arrived."""
        await self._event.wait()

    def close(self) -> None:
        """Stop waiting."""
        for partition in self._partitions:
            partition.waiters.discard(self)


class State(Enum):
    """The life of a partition."""

    CLOSED = "closed"
    """Known, not opened yet."""
    OPENING = "opening"
    OPEN = "open"
    GONE = "gone"
    """Its topic was deleted, or the gateway has closed."""


class Partition:
    """One partition: its log, its topic in HTP, and who waits for it."""

    __slots__ = (
        "_appends", "_batches", "_bytes", "_checkpointing", "_core", "_full_at", "_idle", "_key", "_opened", "_queue",
        "_refusal", "_sending", "_start_key", "_stored_in", "_unsent", "config", "direct", "dirty", "index",
        "log", "name", "place", "saving", "state", "waiters",
    )  # fmt: skip

    def __init__(self, core: Core, record: TopicRecord, index: int) -> None:
        self.name: str = record.name
        self.index: int = index
        self.config: TopicConfig = record.config
        self.place: Place = record.places[index]
        self.direct: DirectTopic | None = None
        """Its topic in HTP where that has calls without a switch of tasks; None while the partition is not open."""
        self.log: PartitionLog = PartitionLog(core.leader_epoch)
        self.state: State = State.CLOSED
        self.waiters: set[Waiter] = set()
        self.dirty: bool = False
        """Whether there is more to say than the last checkpoint says."""
        self._core = core
        self._stored_in: OpenTopic | None = None
        self._key, self._start_key = record.log_key(index), record.start_key(index)
        self._opened: anyio.Event | None = None
        self._queue: deque[tuple[Buffer, BatchHeader, Ticket]] = deque()
        self._unsent: deque[tuple[Append, Buffer]] = deque()
        self._sending = False
        self._appends: dict[Append, list[Ticket]] = {}
        self._bytes = self._batches = 0
        self._checkpointing = False
        self.saving: anyio.Lock = anyio.Lock(fast_acquire=True)
        """Held while a checkpoint is written: what was encoded later is written later."""
        self._idle: anyio.Event | None = None
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
            self._core.partitions.openings.add(self)

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
        for _, _, ticket in queued:
            ticket.reach(Level.FAILED, error)
        self.wake()

    async def _try_to_recover(self) -> KafkaError | None:
        until, reason = self._refusal
        if self._core.now() < until:  # clients ask ten times a second: one try a second will do
            return KafkaStorageError(reason)
        try:
            await self._recover()
        except (KafkaError, ValueError, OSError) as failure:
            if self.state is State.OPENING:
                logger.error("%s cannot be opened: %s", self, failure, exc_info=not isinstance(failure, HtpError))
            reason = f"{self} cannot be opened: {failure}"
            self._refusal = self._core.now() + _REFUSAL_S, reason
            return KafkaStorageError(reason)
        return None

    async def _take_queued(self) -> None:
        """Append what has come before the partition was open; what comes meanwhile follows it."""
        until = time.perf_counter() + _TURN_S
        while self._queue:
            self._append(*self._queue.popleft())
            if time.perf_counter() >= until:
                await anyio.lowlevel.checkpoint()
                until = time.perf_counter() + _TURN_S

    async def _recover(self) -> None:
        checkpoint, damaged = await self._read_checkpoint()
        log = PartitionLog(self._core.leader_epoch, checkpoint, self._core.producers)
        try:
            await self._recover_log(log)
            if self.state is State.GONE:
                raise UnknownTopicOrPartitionError(f"{self} is gone")
        except BaseException:
            log.close()
            if self.state is State.GONE:
                self._stored_in = self.direct = None
            raise
        self.log = log
        self.dirty = damaged or log.next_offset > (checkpoint.next_offset if checkpoint else 0)

    async def _recover_log(self, log: PartitionLog) -> None:
        """Open the topic in HTP, and take into account what the log has not seen of it."""
        config = self.config
        opened = await self._core.broker.open(
            self.place,
            FRAMING,
            epoch=self._core.leader_epoch,
            settings=layout(config),
            next_position=log.next_offset,
        )
        self._stored_in = opened
        status = await opened.status()
        position = max(log.next_offset, status.start)
        while position < status.end:
            try:
                pulled = await opened.pull(position, max_bytes=_SCAN_BYTES)
            except DamagedError as damage:
                position = await self._behind_damage(opened, position, status.end, damage)
                continue
            if not pulled.data:
                break
            await self._read_again(log, pulled.data)
            position = pulled.last + 1
        log.start_offset = max(log.start_offset, status.start)
        log.skip_to(status.next, status.end)
        if layout(self.config) != layout(config):  # changed meanwhile
            await opened.configure(layout(self.config))
        self.direct = opened if CAP_NOWAIT in self._core.broker.capabilities else None  # type: ignore[assignment]

    async def _behind_damage(self, opened: OpenTopic, position: int, end: int, damage: DamagedError) -> int:
        """The next offset from which on the log can be read. What lies before it is only missing in what is known of
        producers: whoever fetches it is told of the damage."""
        step, found = 1, end
        while position + step < end:
            try:
                await opened.pull(position + step, max_bytes=1)
            except DamagedError:
                step *= 2
            else:
                found = position + step
                break
        logger.error(
            "%s: what is stored from offset %d on is damaged; opening it goes on at %d, and fetches of what is "
            "damaged are refused. Restore the data directory from a backup, or let consumers seek beyond it (%s)",
            self, position, found, damage,
        )  # fmt: skip
        return found

    async def _read_checkpoint(self) -> tuple[Checkpoint | None, bool]:
        """The partition's checkpoint, and whether it is damaged: then the whole log has to tell what it can."""
        row = await self._core.partitions.read_checkpoint(self._key)
        if row is None:
            return None, False
        try:
            return decode_checkpoint(row), False
        except ValueError as error:
            start = await self._core.partitions.read_start(self._start_key)
            logger.error(
                "%s: its checkpoint cannot be read. The whole log is read instead, from offset %d on; nothing has to "
                "be done (%s)",
                self, start, error,
            )  # fmt: skip
            return Checkpoint(start, start, {}, ()), True

    async def _read_again(self, log: PartitionLog, batches: Buffer) -> None:
        """Take into account what the checkpoint does not cover."""
        headers = (header for _, header in iter_headers(batches))
        now_ms = self._core.wall_ms()
        while some := list(islice(headers, _HEADERS_AT_ONCE)):
            log.recovered(some, now_ms)
            await anyio.lowlevel.checkpoint()

    async def configure(self, config: TopicConfig) -> None:
        """Take over changed settings of the topic."""
        relayout = layout(config) != layout(self.config)
        self.config = config
        if relayout and self.state is State.OPEN:
            await self.stored_in.configure(layout(config))

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
        if CAP_SEGMENTS not in self._core.broker.capabilities:
            return []
        with self._told():
            return await self.stored_in.segments()

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

    def append(self, batch: Buffer, header: BatchHeader) -> Ticket:
        """Append one checked batch, in the order of the calls; `batch` is stamped in place where it can be."""
        ticket = Ticket()
        if self.state is State.OPEN:
            self._append(batch, header, ticket)
        elif self.state is State.GONE:
            ticket.reach(Level.FAILED, NotLeaderOrFollowerError(f"{self} is gone"))
        else:
            self._queue.append((batch, header, ticket))
            self.open_soon()
        return ticket

    def _append(self, batch: Buffer, header: BatchHeader, ticket: Ticket) -> None:
        now_ms = self._core.wall_ms()
        try:
            found = self.log.prepare(header, now_ms, now_ms if self.config.log_append_time else -1)
        except KafkaError as error:
            ticket.reach(Level.FAILED, error)
            return
        ticket.base_offset, ticket.timestamp = found.base_offset, found.timestamp
        if isinstance(found, Duplicate):
            self._repeat(found, ticket)
            return
        self._appends[found] = [ticket]
        batch = writable(batch)
        epoch = self.log.leader_epoch
        if found.timestamp < 0:
            place_batch(batch, found.base_offset, epoch)
        else:
            restamp(batch, base_offset=found.base_offset, partition_leader_epoch=epoch, log_append_time=found.timestamp)
        if self.direct is None or self._sending:
            self._send_later(found, batch)
            return
        try:
            sent = self.direct.send_nowait((batch,))
        except HtpError as error:
            self._fail(found, error)
            return
        if sent is None:
            self._send_later(found, batch)
        else:
            self._stored(found, sent)

    def _send_later(self, append: Append, batch: Buffer) -> None:
        self._unsent.append((append, batch))
        if not self._sending:
            self._sending = True
            self._core.spawn(self._send_all, name=f"append to {self}")

    def _repeat(self, found: Duplicate, ticket: Ticket) -> None:
        first = found.pending
        if first is None:
            ticket.reach(Level.DURABLE)
            return
        self._appends[first].append(ticket)
        if first.state is AppendState.STORED:
            ticket.reach(Level.STORED)

    async def _send_all(self) -> None:
        """What the broker cannot take at once: one append after the other, in order."""
        try:
            while self._unsent:
                append, batch = self._unsent.popleft()
                try:
                    sent = await self.stored_in.send((batch,))
                except KafkaError as error:
                    if append.state is AppendState.FAILED:  # the partition has ended, and told who waited
                        continue
                    self._unsent.clear()
                    self._fail(append, error)
                    await self._resume_at_end()
                else:
                    if append.state is AppendState.PREPARED:  # not if the partition has gone meanwhile
                        self._stored(append, sent)
        finally:
            self._sending = False

    async def _resume_at_end(self) -> None:
        """After a failure: go on where the store ends."""
        try:
            status = await self.stored_in.status()
        except KafkaError as error:
            logger.error("%s: its end is not known: %s", self, error)
            return
        if not self.log.pending:
            self.log.skip_to(status.next)

    def _stored(self, append: Append, sent: Sent) -> None:
        self.log.stored(append)
        for ticket in self._appends[append]:
            ticket.reach(Level.STORED)
        sent.on_synced(partial(self._synced, append))

    def _synced(self, append: Append, error: BaseException | None) -> None:
        if append.state is not AppendState.STORED:
            return
        if error is not None:
            self._fail(append, error)
            return
        done, size = self.log.durable(append.next_offset)
        for appended in done:
            for ticket in self._appends.pop(appended):
                ticket.reach(Level.DURABLE)
        for waiter in list(self.waiters):
            waiter.arrived(size)
        self._settle()
        self.dirty = True
        self._bytes += size
        self._batches += len(done)
        if (self._bytes > CHECKPOINT_BYTES or self._batches > CHECKPOINT_BATCHES) and not self._checkpointing:
            self._checkpointing = True
            self._core.spawn(self._checkpoint, name=f"checkpoint {self}")

    def _settle(self) -> None:
        if self._idle is not None and not self._unsettled:
            self._idle.set()
            self._idle = None

    @property
    def _unsettled(self) -> bool:
        return bool(self.log.pending) and self.state is not State.GONE  # by then they have failed

    async def settled(self) -> None:
        """Until no append is on its way: each is durable, or has failed."""
        while self._unsettled:
            self._idle = self._idle or anyio.Event()
            await self._idle.wait()

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
        for undone in self.log.failed(append, error):
            for ticket in self._appends.pop(undone):
                ticket.reach(Level.FAILED, failure)
        self._settle()
        if not self.log.pending and self.direct is not None:
            # The store has cut back; the offsets it has given once it does not give again.
            with suppress(HtpError):  # nor does one that takes nothing any more
                self.log.skip_to(self.direct.status_nowait().next)

    # Checkpoints, trimming, closing

    def checkpoint_row(self) -> tuple[str, bytes | None]:
        """The key and the value of a checkpoint of what is durable now."""
        return self._key, encode_checkpoint(self.log.checkpoint())

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
        try:
            rows = {self._key: await self._encoded(checkpoint)}
            if trimmed:
                rows[self._start_key] = str(checkpoint.start_offset).encode()
            await self._core.manager.commit(rows, lease=self._core.lease)
        except BaseException:
            self.dirty = True
            raise

    @staticmethod
    async def _encoded(checkpoint: Checkpoint) -> bytes:
        pieces = []
        for piece in encoded_in_steps(checkpoint):
            pieces.append(piece)
            if len(pieces) > _FEW_PIECES:
                await anyio.lowlevel.checkpoint()
        return b"".join(pieces)

    async def trim(self, before: int) -> None:
        """Move the log start up; what lies wholly below it is dropped when HTP sees fit.

        Raises:
            UnknownTopicOrPartitionError: If the partition has gone.
            HtpError: If the new start could not be stored; then it has not moved.
        """
        with self._core.shields.shield():
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
        for _, _, ticket in queued:
            ticket.reach(Level.FAILED, error)
        self.log.close()
        self._settle()
        pending, self._appends = self._appends, {}
        for append, tickets in pending.items():
            append.state = AppendState.FAILED
            for ticket in tickets:
                ticket.reach(Level.FAILED, error)
        self.wake()


class PartitionTable:
    """The partitions in use, by topic and number."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._preread: dict[str, bytes] | None = None
        self.openings: Openings = Openings(core.spawn)

    async def load(self) -> None:
        """Read all checkpoints at once: opening a thousand partitions asks the manager once."""
        found = await self._core.manager.scan(LOG_PREFIX)
        self._preread = {key: value.value for key, value in found.items()}

    async def read_checkpoint(self, key: str) -> bytes | None:
        """The row of a partition's checkpoint, if it has one."""
        if self._preread is not None and key in self._preread:
            return self._preread.pop(key)  # once: from then on the partition writes new ones
        found = (await self._core.manager.get([key])).get(key)
        return found.value if found is not None else None

    async def read_start(self, key: str) -> int:
        """The log start of a partition as it was trimmed last; 0 if it never was, or that cannot be read either."""
        found = (await self._core.manager.get([key])).get(key)
        try:
            return 0 if found is None else parse_number(found.value)
        except ValueError as error:
            logger.error("%s is damaged too, records that were deleted may be seen again: %s", key, error)
            return 0

    def get(self, name: str, index: int) -> Partition | None:
        """The partition, or None where the topic or the number is unknown."""
        record = self._core.topics.get(name)
        return self.of(record, index) if record is not None else None

    def of(self, record: TopicRecord, index: int) -> Partition | None:
        """A topic's partition of this number; None where there is none, also because the topic has gone."""
        found = record.logs.get(index)
        if found is None and 0 <= index < record.partitions and not record.gone:
            found = record.logs[index] = Partition(self._core, record, index)
        return found

    def opened(self) -> list[Partition]:
        """Every partition that is open."""
        return [
            partition
            for record in self._core.topics
            for partition in list(record.logs.values())
            if partition.state is State.OPEN
        ]

    async def checkpoint(self) -> None:
        """Write the checkpoints of all partitions that have news, in one commit."""
        changed = [partition for partition in self.opened() if partition.dirty or partition.busy]
        async with AsyncExitStack() as saving:
            for partition in changed:
                await saving.enter_async_context(partition.saving)
            rows = dict(partition.checkpoint_row() for partition in changed if partition.state is State.OPEN)
            if rows:
                await self._core.manager.commit(rows, lease=self._core.lease)

    def close(self) -> None:
        """End every partition; appends still on their way were waited for before."""
        for record in self._core.topics:
            for partition in record.logs.values():
                partition.close()


FRAMING: Final = RecordBatchFraming()


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


def require_capabilities(capabilities: frozenset[str]) -> None:
    """Refuse a broker that cannot do what partitions need."""
    if CAP_ORDINAL_POSITIONS not in capabilities:
        raise KafkaError("this HTP backend has no ordinal positions, which the gateway needs as Kafka's offsets")
