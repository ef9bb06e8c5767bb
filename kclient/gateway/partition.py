"""A partition at work: it joins the log's state machine to its topic in HTP.

An append is restamped in place and handed to HTP in the caller's turn (`append` never awaits); HTP tells when it
is synced, and only then does the high watermark move, do waiting fetches wake and are `acks=all` producers
answered. A partition is opened when it is first used; appends that come before it is open wait in their order. Where
HTP cannot tell whether it has stored something, it is opened anew, and finds out (`takeover.py`).
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from kclient.errors import (
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollowerError,
    PolicyViolationError,
    UnknownTopicOrPartitionError,
)
from kclient.gateway.append import Append, AppendState
from kclient.gateway.config import TopicConfig
from kclient.gateway.log import Duplicate, PartitionLog
from kclient.gateway.mirrored_appends import Prepared, prepare_hole, prepare_mirrored
from kclient.gateway.mirroring import mirrored
from kclient.gateway.partition_checkpoints import PartitionCheckpoints
from kclient.gateway.partition_life import moved
from kclient.gateway.partition_reading import StoredPartition
from kclient.gateway.partition_states import PartitionEvent, PartitionPhase
from kclient.gateway.takeover import Site
from kclient.gateway.undecided import Undecided
from kclient.htp.errors import (
    FencedError,
    HtpError,
    OutcomeUnknownError,
    StorageError,
    StorageFullError,
    UnknownTopicError,
)
from kclient.htp.port import CAP_NOWAIT, DirectTopic, OpenTopic, Place, Sent, TopicSettings
from kclient.records import BatchBuilder, BatchHeader, EndMarker, encode_end_marker, read_header, restamp
from kclient.records.restamping import place_batch, writable
from kclient.types import Buffer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kclient.gateway.append_memory import BrokerAppends
    from kclient.gateway.log_transactions import Verification
    from kclient.gateway.surroundings import Surroundings
    from kclient.gateway.topic_traffic import TopicTraffic
    from kclient.gateway.unit import Unit

logger: logging.Logger = logging.getLogger("kclient.gateway.log")

_MARKER_LIMIT: Final = 1024
_CLOSED, _OPEN = 4_300, 7_700
"""About how many bytes of memory a partition takes, before and after it was opened, with its log in the store,
but for segments."""
_APPEND: Final = 700
"""And one of its appends, while that waits for its sync."""
_COUNTED_AT_ONCE: Final = 64
_STALLS: Final = frozenset({PartitionPhase.RESUMING, PartitionPhase.OPEN})


class Partition(StoredPartition["Surroundings"]):
    """One partition: its log, its topic in HTP, and who waits for it."""

    __slots__ = (
        "_end_unknown", "_full_at", "_held", "_laid_out", "_passed_by", "_pending", "_sending", "_undecided", "_unsent",
        "_wall_ms", "appends", "checkpoints", "config", "direct", "place", "traffic", "unit",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        topic_id: bytes,
        index: int,
        config: TopicConfig,
        place: Place,
        unit: Unit,
        leader_epoch: int,
        around: Surroundings,
        traffic: TopicTraffic,
    ) -> None:
        super().__init__(name, topic_id, index, PartitionLog(leader_epoch, producers=around.producers), around)
        self.config: TopicConfig = config
        self.traffic: TopicTraffic = traffic
        """What has gone into its topic and out of it."""
        self.place: Place = place
        self.appends: BrokerAppends = around.appends.of(place.broker)
        """What those take that wait for syncs of its broker."""
        self.direct: DirectTopic | None = None
        """Its topic in HTP where that has calls without a switch of tasks; None while the partition is not open."""
        self._wall_ms = around.clock.wall_ms
        self._laid_out: TopicSettings | None = None
        """The settings that this has taken last."""
        self.unit: Unit = unit
        """As which it is led."""
        self._unsent: deque[tuple[Append, Buffer]] = deque()
        self._sending = False
        self._end_unknown = False
        """Whether an append has failed since the store was last asked where it ends."""
        self._passed_by = False
        """Whether it has to be opened anew once more, since it began to be opened."""
        self._undecided: Undecided | None = None
        """What was on its way when the outcome of an append was not known, until it has been read back."""
        self.checkpoints: PartitionCheckpoints = PartitionCheckpoints(self, topic_id, index, around)
        self._full_at: int | None = None
        """Where the log ended when it was last told that there is no space."""
        self._held = self._pending = 0
        """Bytes of memory, and appends, that were counted last."""
        self._count(_CLOSED)

    @property
    def undecided(self) -> bool:
        """Whether it is not known what is stored at its end: it is being opened anew, or will be."""
        return self._undecided is not None

    # Memory

    def _count(self, size: int) -> None:
        self._around.memory.add(size - self._held)
        self._held = size

    def _count_appends(self, pending: int) -> None:
        """So many of its appends wait for syncs."""
        self.appends.add(_APPEND * (pending - self._pending))
        self._pending = pending

    def _count_more(self) -> None:
        """There is one more, which is not counted at once."""
        if len(self.log.pending) - self._pending >= _COUNTED_AT_ONCE:
            self._count_appends(len(self.log.pending))

    # Opening

    async def _recover(self) -> PartitionLog:
        """Open it for the first time."""
        site = self._site()
        self._passed_by = False
        await self._around.releases.ready(self.unit)
        self.log.lead(max(self.log.leader_epoch, self._around.epochs.epoch(self.unit)))
        log, topic, dirty = await self._around.takeover.first(site, self.log.leader_epoch)
        try:
            await self._hold(topic, site.settings)
        except BaseException:  # cancelled too: the producers that it remembers count no longer
            log.close()
            raise
        log.follow(self.log)
        self.checkpoints.dirty = dirty
        return log

    async def _find_out(self) -> None:
        """Open it anew under a raised epoch, and tell whoever waits what is stored."""
        undecided, site = self._undecided, self._site()
        assert undecided is not None
        self._passed_by = False
        try:
            await self._hold(await self._around.takeover.again(site, self.log, undecided), site.settings)
        finally:
            if self.state is PartitionPhase.GONE:
                self.log.close()  # it may have seen producers since it was closed
        self._undecided, self.checkpoints.dirty = None, True
        decided = undecided.decide(self.log, self._not_stored)
        stored = sum(append.state is AppendState.DURABLE for append in decided)
        logger.log(
            logging.WARNING if decided else logging.INFO,
            "%s was opened anew under leader epoch %d: of %d appends whose outcome was not known %d are stored",
            self, self.log.leader_epoch, len(decided), stored,
        )  # fmt: skip
        self._count_appends(len(self.log.pending))
        for append in decided:
            append.tell()

    def _not_stored(self, append: Append) -> KafkaError:
        return KafkaStorageError(f"{self}: the store did not take what was appended at offset {append.base_offset}")

    def _site(self) -> Site:
        return Site(
            str(self),
            self.place,
            self._topic_id,
            self.index,
            layout(self.config),
            self._raise_epoch,
            self._neighbour_stopped,
        )

    async def _raise_epoch(self, above: int) -> int:
        async with self.checkpoints.saving:  # who removes the rows of a topic waits for this: no row comes afterwards
            self._check_here()
            return await self._around.epochs.raise_epoch(self.unit, above, since=self.log.leader_epoch)

    async def _hold(self, topic: OpenTopic, settings: TopicSettings) -> None:
        """Use a topic that was opened with these settings from now on."""
        if self.state is PartitionPhase.GONE:
            self._around.store.release(topic)
        self._check_here()
        self._stored_in, self._laid_out = topic, settings
        while (changed := layout(self.config)) != self._laid_out:  # meanwhile
            await topic.configure(changed)
            self._laid_out = changed
        self._check_here()
        if self._passed_by:
            raise StorageError(f"{self}: it has to be opened once more, since something has changed meanwhile")
        self.direct = topic if CAP_NOWAIT in self._around.store.capabilities else None  # type: ignore[assignment]
        self._count(_OPEN)

    def _stop(self, append: Append, error: BaseException) -> None:
        """Whether an append is stored is not known: nothing is appended before the partition was opened anew."""
        if self._undecided is not None or self.state is PartitionPhase.GONE:
            return
        if self.state is PartitionPhase.LEAVING:
            self._end(moved(self))  # whoever leads it now finds out
            return
        reason = f"{self}: whether what was appended at offset {append.base_offset} is stored is not known: {error}"
        logger.error("%s", reason)
        self._stop_for(reason)

    def _neighbour_stopped(self, error: BaseException) -> None:
        """What became of an append of another partition that shares the topic in HTP is not known."""
        self.open_anew(f"the topic that it shares has to be opened anew: {error}")

    def open_anew(self, reason: str) -> None:
        """Open it anew, and find out what is stored of what is on its way; if it is being opened, do it again."""
        if self.state is PartitionPhase.LEAVING:
            self._end(moved(self))
        elif self.state in _STALLS:
            if self._undecided is None:
                self._stop_for(f"{self}: {reason}")
        else:
            self._passed_by = True

    def _stop_for(self, reason: str) -> None:
        self._undecided = Undecided(self.log)
        self._unsent, self._sending, self._end_unknown = deque(), False, False
        self._stall(reason)

    async def configure(self, config: TopicConfig) -> None:
        """Take over changed settings of the topic. Raises `HtpError` if the store does not: then call it again."""
        self.config = config
        topic, settings = self._stored_in, layout(config)
        # also while it is being opened: what `_hold` compares with may be behind it already
        if settings != self._laid_out and topic is not None and not self.undecided:
            try:
                await topic.configure(settings)
            except HtpError:
                if topic is self._stored_in and not self.undecided:  # else it has gone, or is opened anew with these
                    raise
            else:
                self._laid_out = settings

    # Appending

    @property
    def queues(self) -> bool:
        """Whether what is appended now is not stored at once."""
        return self.state is not PartitionPhase.OPEN or self.direct is None or bool(self._unsent)

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
        if self.config.mirrored:
            self.check_own()
        if self.state is PartitionPhase.OPEN:
            return self._append(batch, header, verified=verified)
        return self._wait_for(batch, header, verified)

    def check_own(self) -> None:
        """See to it that the partition mirrors none of another cluster. Raises `PolicyViolationError` if it does."""
        if self.config.mirrored:
            raise PolicyViolationError(f"{mirrored(self.name)}, and is written and trimmed at its source")

    def append_mirrored(self, batches: Sequence[tuple[Buffer, BatchHeader]]) -> Append:
        """Append batches of the partition that this one mirrors, at the offsets that they have there; all or none.

        They are written at once. Offsets between them, and before the first, that nothing has are taken by batches
        without records. They keep their timestamps, codecs and producers; their leader epoch becomes this log's.

        Args:
            batches: One at least, in order, each with its header; their checksums were compared. They are stamped in
                place where they can be, and copied if they have to wait.

        Returns:
            What becomes of the last one: it is durable when all are, and fails if one does.

        Raises:
            KafkaError: The partition is not open, or its topic mirrors none (any more).
            OutOfOrderSequenceError: Something is there already at a batch's first offset; none was appended.
        """
        self._check_mirrors()
        prepared = prepare_mirrored(self.log, batches, self._wall_ms(), str(self))
        self._send_together(prepared.appends, prepared.messages)
        return prepared.appends[-1]

    def skip_mirrored(self, end: int) -> Append | None:
        """Take all offsets before this one, which have no record at the source; None if they are taken.

        Raises:
            KafkaError: The partition is not open, or its topic mirrors none (any more).
        """
        self._check_mirrors()
        prepared = Prepared([], [])
        prepare_hole(self.log, end, self._wall_ms(), prepared)
        if not prepared.appends:
            return None
        self._send_together(prepared.appends, prepared.messages)
        return prepared.appends[-1]

    def _check_mirrors(self) -> None:
        if self.state is not PartitionPhase.OPEN:
            raise NotLeaderOrFollowerError(f"{self} is not open")
        if not self.config.mirrored:
            raise PolicyViolationError(f"{self} mirrors no partition of another cluster (any more)")

    def _send_together(self, appends: list[Append], messages: list[bytearray | memoryview]) -> None:
        """Send what was prepared in one call of the store, or, where it has to wait, a copy one after the other.

        What is sent may be part of much larger a buffer, which is not to be kept for it.
        """
        sent = None
        if self.direct is not None and not self._sending:
            try:
                sent = self.direct.send_nowait(messages)
            except OutcomeUnknownError as error:
                self._stop(appends[0], error)
                return
            except HtpError as error:
                self._fail(appends[0], error)
                return
        if sent is None:
            for append, message in zip(appends, messages, strict=True):
                self._send_later(append, bytearray(message))
            return
        for append in appends:
            self.log.stored(append)
            append.tell()
        sent.on_synced(partial(self._synced_together, appends[0], appends[-1]))
        self._count_more()

    def _synced_together(self, first: Append, last: Append, error: BaseException | None) -> None:
        self._synced(last if error is None else first, error)

    def append_end(self, producer_id: int, producer_epoch: int, marker: EndMarker, *, bumped: bool = False) -> Append:
        """Append the control record that ends a transaction; only to an open partition.

        Args:
            producer_id: Of the producer.
            producer_epoch: Under which it ends.
            marker: How.
            bumped: Whether that epoch is greater than that of the transaction.

        Raises:
            KafkaError: The partition is not open, or the producer or the coordinator is not the newest.
        """
        if self.state is not PartitionPhase.OPEN:
            raise NotLeaderOrFollowerError(f"{self} is not open")
        self.check_own()
        now_ms = self._wall_ms()
        batch = _end_of_transaction(producer_id, producer_epoch, marker, now_ms)
        header = read_header(batch)
        append = self.log.prepare_end(header, marker, now_ms, bumped=bumped)
        append.crc = header.crc
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
            found.crc = header.crc
        else:
            restamp(batch, base_offset=found.base_offset, partition_leader_epoch=epoch, log_append_time=found.timestamp)
            found.crc = read_header(batch).crc
        traffic = self.traffic
        traffic.records_in += header.count
        traffic.bytes_in += len(batch)
        self._send(found, batch)
        return found

    def _send(self, append: Append, batch: Buffer) -> None:
        if self.direct is None or self._sending:
            self._send_later(append, batch)
            return
        try:
            sent = self.direct.send_nowait((batch,))
        except OutcomeUnknownError as error:
            self._stop(append, error)
            return
        except HtpError as error:
            self._fail(append, error)
            return
        if sent is None:
            self._send_later(append, batch)
        else:
            self._stored(append, sent)

    def _send_later(self, append: Append, batch: Buffer) -> None:
        self._unsent.append((append, batch))
        self._count_more()
        self._begin_sending()

    def _begin_sending(self) -> None:
        if not self._sending:
            self._sending = True
            self._around.spawn(self._send_all, self._unsent, name=f"append to {self}")

    async def _send_all(self, unsent: deque[tuple[Append, Buffer]]) -> None:
        """What the broker cannot take at once: one append after the other, in order.

        Where the partition is opened anew, another deque has taken this one's place: what comes back is no news then.
        """
        try:
            while self._unsent is unsent and (unsent or self._end_unknown):
                if self._end_unknown:
                    await self._find_end()
                    continue
                append, batch = unsent.popleft()
                try:
                    sent = await self.stored_in.send((batch,))
                except OutcomeUnknownError as error:
                    if self._unsent is unsent:
                        self._stop(append, error)
                except KafkaError as error:
                    if append.state is AppendState.FAILED:  # the partition has ended, and told who waited
                        continue
                    if self._unsent is unsent:
                        self._fail(append, error)
                else:
                    if self._unsent is not unsent:
                        continue
                    if append.state is AppendState.PREPARED:
                        self._stored(append, sent)
                    elif self.state is not PartitionPhase.GONE:
                        self._end_unknown = True  # it was undone with an earlier one, and is there all the same
        finally:
            if self._unsent is unsent:
                self._sending = False

    async def _find_end(self) -> None:
        """After a failure: ask the store where it ends."""
        self._end_unknown = False
        unsent = self._unsent
        try:
            status = await self.stored_in.status()
        except KafkaError as error:
            if self.state is not PartitionPhase.GONE:
                logger.error("%s: its end is not known: %s", self, error)
            return
        if self._unsent is not unsent:
            return
        if unsent and status.next > (first := unsent[0][0]).base_offset:  # they came meanwhile
            self._fail(first, StorageError(f"the store goes on at offset {status.next}"))
        self.log.skip_to(status.next)

    def _stored(self, append: Append, sent: Sent) -> None:
        self.log.stored(append)
        append.tell()
        sent.on_synced(partial(self._synced, append))
        self._count_more()

    def _synced(self, append: Append, error: BaseException | None) -> None:
        if append.state is not AppendState.STORED or self._undecided is not None:
            return
        if error is not None:
            if isinstance(error, OutcomeUnknownError):
                self._stop(append, error)
            else:
                self._fail(append, error)
            return
        done, size, stable = self.log.durable(append.next_offset)
        if self._pending:
            self._count_appends(len(self.log.pending))
        for appended in done:
            appended.tell()
        for waiter in list(self.waiters):
            waiter.arrived(size, stable)
        self.checkpoints.behind_by(len(done), size)

    async def settled(self) -> None:
        """Until no append is on its way of those that are now: each is durable, or has failed.

        Appends that come meanwhile are not waited for: a partition may be written without a pause. Nor is more than one
        try to find out what became of those whose outcome is not known.
        """
        if self._undecided is not None:
            await self.opened()
        if self.log.pending and self.state is not PartitionPhase.GONE:  # by then they have failed
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
        self._count_appends(len(self.log.pending))
        while self._unsent and self._unsent[-1][0].state is AppendState.FAILED:
            self._unsent.pop()
        # The store has cut back. Whether offsets of what failed are given again it decides: it tells its next one.
        if self.direct is not None:
            with suppress(HtpError):  # nor does one that takes nothing any more
                self.log.skip_to(self.direct.status_nowait().next)
        elif self.state is not PartitionPhase.GONE:
            self._end_unknown = True
            self._begin_sending()

    # Trimming, closing

    def count_open(self) -> None:
        """Count the memory that it takes now."""
        self._count(_OPEN + self._around.store.memory_of(self.stored_in))

    async def trim(self, before: int) -> None:
        """Move the log start up; what lies wholly below it is dropped when HTP sees fit.

        Raises:
            UnknownTopicOrPartitionError: If the partition has gone.
            HtpError: If the new start could not be stored; then it has not moved.
        """
        with self._around.shields.shield():
            async with self.checkpoints.saving:
                stored_in = self.stored_in
                before = min(before, self.log.high_watermark)
                if before <= self.log.start_offset:
                    return
                # durable first: after a crash nothing below it comes back
                await self.checkpoints.save(self.log.checkpoint(start_offset=before), trimmed=True)
                self.log.trim(before)
                with self._told():
                    await stored_in.trim(before)
                await self._around.store.save((stored_in,))

    @property
    def busy(self) -> bool:
        """Whether it is being opened, or its checkpoint written; of one that has gone, also what its store writes."""
        if self.checkpoints.saving.locked() or self._opening is not None:
            return True
        return self.state is PartitionPhase.GONE and self._around.store.busy(self.place)

    async def left(self) -> None:
        """Until nothing is under way any more of a partition that has gone: its rows and places may be removed."""
        if self._opening is not None:  # who waited for it to be open was told before
            await self._opening.wait()
        async with self.checkpoints.saving:
            await self._around.store.left(self.place)

    def drop(self) -> None:
        """The topic is deleted: whoever waits is told."""
        self._end(UnknownTopicOrPartitionError(f"{self} is gone"))

    def move(self) -> None:
        """Another gateway leads it from now on: it takes nothing any more, and waiting fetches look again.

        What is on its way can be waited for (`settled`) if it was open; `leave` ends it then.
        """
        self._moved = True
        if self.state is PartitionPhase.OPEN:
            self._move(PartitionEvent.MOVED)
            self.wake()
        else:
            self._end(moved(self))

    def leave(self) -> None:
        """It has been handed over; what is still on its way is the other gateway's to find out."""
        self._end(moved(self))

    def close(self) -> None:
        """The gateway closes; the checkpoint was written before."""
        self._end(NotLeaderOrFollowerError(f"{self}: the gateway is closing"))

    def _end(self, error: KafkaError) -> None:
        if self.state is PartitionPhase.GONE:
            return
        self._count(0)
        self._count_appends(0)
        if self._stored_in is not None:
            self._around.store.release(self._stored_in)
        self._stored_in = self.direct = None  # whoever deletes the place, or closes the store, ends it
        self._unsent.clear()
        self.log.close()
        self._end_life(error)
        if self._undecided is not None:
            self._undecided.give_up(error)
        for append in self.log.pending:
            append.fail(error)
            append.tell()
        self.wake()


def _end_of_transaction(producer_id: int, producer_epoch: int, marker: EndMarker, now_ms: int) -> bytearray:
    """The control batch that ends a transaction."""
    builder = BatchBuilder(limit=_MARKER_LIMIT, is_transactional=True, is_control=True)
    builder.append(now_ms, *encode_end_marker(commit=marker.committed, coordinator_epoch=marker.coordinator_epoch))
    return builder.build(producer_id=producer_id, producer_epoch=producer_epoch)


def layout(config: TopicConfig) -> TopicSettings:
    """The topic's settings as HTP takes them."""
    segment_ms = config.segment_ms
    if config.compacts:  # what is written to is not compacted
        segment_ms = min(segment_ms, config.max_compaction_lag_ms)
    return TopicSettings(segment_bytes=config.segment_bytes, segment_ms=segment_ms, dense=True)
