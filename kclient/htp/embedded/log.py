"""The messages of one topic: appending, what is visible, what happens when a sync fails, and trimming.

Only the event loop's thread calls a log. The syncer's thread is given plans (what to sync for everything up to
some ordinal to be durable) and answers with outcomes, which come back to the loop::

    append ──> written, a ticket waits ──> plan ──> [syncer] ──┬─> synced: visible, tickets settled
                                                               └─> failed: cut back to what is synced, tickets fail

Three places in the log, each a segment and a byte in it: *written* (the end of the last segment), *synced*, and
*visible*, which is one of the two, as the durability says. Reading up to there is `LogReader`'s.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from kclient.htp.appending import inspect_all
from kclient.htp.embedded.cutting import cut, discard
from kclient.htp.embedded.ends import LogEnd
from kclient.htp.embedded.log_reader import LogReader
from kclient.htp.embedded.pulling import Cursors
from kclient.htp.embedded.recovery import Recovered, SyncCheckpoint, sweep_set_aside
from kclient.htp.embedded.segment import Segment
from kclient.htp.embedded.services import Covered, LogPlace, Services
from kclient.htp.embedded.space import NO_SPACE
from kclient.htp.embedded.syncer import SyncPlan
from kclient.htp.embedded.tickets import Ticket
from kclient.htp.embedded.unsynced import Unsynced
from kclient.htp.errors import StorageError, StorageFullError
from kclient.htp.port import (
    DURABILITY_SYNCED,
    Framing,
    SegmentInfo,
    TopicSettings,
    TopicStatus,
)

if TYPE_CHECKING:
    from kclient.types import Buffer

logger: logging.Logger = logging.getLogger(__name__)

CHECKPOINT_BYTES: Final = 64 << 20
"""So many bytes, at most, are verified when a topic is opened after a crash, beside what was being written."""


class TopicLog:
    """The messages of one topic.

    Args:
        name: For messages to people.
        directory: Of its segments.
        framing: How messages are read.
        settings: Layout.
        services: What all logs share.
        recovered: What was found in the directory.
        sealed: The checkpoint, which has been sealed for whoever opens the topic.
    """

    def __init__(
        self,
        name: str,
        directory: str,
        framing: Framing,
        settings: TopicSettings,
        services: Services,
        recovered: Recovered,
        sealed: SyncCheckpoint,
    ) -> None:
        self.name = name
        self.fence: int = sealed.fence
        """The epoch that leads the topic: checkpoints keep it."""
        self.key: str | None = None
        """Of the checkpoint in the manager; None while none may be written."""
        self.directory = directory
        self.framing = framing
        self.settings = settings
        self.next: int = recovered.next
        self.paused: bool = False
        """Whether nothing is appended for the moment; who wants to is told of `OpenFiles.room` when that is over."""
        self.checkpoint_due: bool = True
        """Whether there is something that the last checkpoint does not cover."""
        self.services = services
        self._files = services.open_files.files
        self._watermark = services.watermark
        self._liveness = services.liveness
        self._doubted = False
        """Whether what was refused last was so because the disk is not known to answer."""
        self._wait_for_sync = services.durability == DURABILITY_SYNCED
        self._segments = recovered.segments  # always this list: the reader has it, too
        if not recovered.appendable:
            self._begin_segment()
        for segment in self._segments:
            services.indexes.count(segment)
        active = self._segments[-1]
        self._synced = LogPlace(self.next, active, active.size)
        self._gap_from = recovered.end
        self._gap_to = self.next
        """Between these there are no messages, and the visible end is before them while nothing follows."""
        self.unsynced: Unsynced = Unsynced(services.open_files, partial(services.want_sync, self))
        self._limits = dict(sealed.limits)
        self._stale: list[Segment] = []
        """Given up, and their files are still there: at the next opening the name of each would bound what is before
        it, so the log may not grow past one."""
        self._tickets: deque[Ticket] = deque()
        self.trimming: int = 0
        """Where the last trim will leave the start, once it is being recorded: checkpoints tell it from then on."""
        self._since_checkpoint = 0
        self.cursors: Cursors = Cursors()

    def _begin_segment(self) -> None:
        """Have an empty segment for what comes next; one that is there already would share its file with a new one."""
        if self._segments and self._segments[-1].base == self.next:
            return
        segment = Segment.empty(self.directory, self.next, self.settings.index_interval_bytes)
        self._segments.append(segment)
        self.services.indexes.count(segment)

    # --- what there is ---

    def reader(self) -> LogReader:
        """What reads it."""
        return LogReader(self, self._segments)

    @property
    def start(self) -> int:
        """The first position that can be read."""
        return self._segments[0].base

    @property
    def visible(self) -> LogPlace:
        """Up to where messages are given to readers."""
        if self._wait_for_sync:
            return self._synced
        active = self._segments[-1]
        return LogPlace(self.next, active, active.size)

    @property
    def written_end(self) -> LogEnd:
        """Where it ends, with what is not synced yet."""
        active = self._segments[-1]
        return LogEnd(active.base, active.size)

    @property
    def end(self) -> int:
        """The position after the last visible message: who reads up to here waits for nothing that never comes."""
        end = self._synced.ordinal if self._wait_for_sync else self.next
        return end if end != self._gap_to else max(self._gap_from, self._segments[0].base)

    def status(self) -> TopicStatus:
        """Start, end, next ordinal and size."""
        return TopicStatus(self.start, self.end, self.next, sum(segment.size for segment in self._segments))

    def segments(self) -> list[SegmentInfo]:
        """What retention decides upon."""
        active = self._segments[-1]
        following = [*(segment.base for segment in self._segments[1:]), self.next]
        return [
            segment.info(after, active=segment is active)
            for segment, after in zip(self._segments, following, strict=True)
        ]

    def path_of(self, base: int) -> str:
        """The file of the segment that begins with an ordinal."""
        return next(segment.path for segment in self._segments if segment.base == base)

    def segment_of(self, base: int) -> Segment | None:
        """The segment that is named by an ordinal."""
        return next((segment for segment in self._segments if segment.base == base), None)

    def checkpoint(self, *, trusted: bool = True) -> SyncCheckpoint:
        """What is known to be durable now.

        Unless it is to be `trusted`, recovery verifies the last segment from its beginning, and knows only that it has
        to be there.
        """
        kept = {segment.base for segment in self._segments}
        self._limits = {base: size for base, size in self._limits.items() if base in kept}
        place = self._synced
        start = max(self.start, self.trimming)
        position = place.position if trusted else 0
        limits = dict(self._limits)
        return SyncCheckpoint(place.ordinal, place.segment.base, position, start, limits, self.fence, self.framing.name)

    def indexes(self) -> list[tuple[str, bytes]]:
        """Path and content of the index file of the last synced segment, for the next opening to be fast."""
        segment = self._synced.segment
        if not segment.exists or not segment.size:
            return []
        return [(segment.index_path, segment.index.dump(segment.base, self._synced.position, self._synced.ordinal))]

    # --- appending ---

    def append(self, messages: Sequence[Buffer]) -> Ticket | None:
        """Append all or none; the ticket tells when they are synced. None if that has to wait: see `can_append`."""
        now = time.monotonic()
        if self.paused or now > self._liveness.until:
            self._doubted = not self.paused
            return None
        if self._watermark.low:
            raise self._watermark.refusal(self.name)
        infos = inspect_all(self.name, self.framing, messages, self.next, dense=self.settings.dense)
        length = infos[0].length if len(infos) == 1 else sum(info.length for info in infos)
        try:
            if self._stale:
                self._remove_stale(infos[-1].last)
            segment = self._room_for(length, now)
            if segment is None:
                self._doubted = False
                return None
            self._write(segment, messages)
        except OSError as error:
            raise self.storage_error("could not be written", error) from error
        index = segment.index
        for info in infos:
            index.add(info.first, info.last, info.length, info.max_timestamp)
            if info.max_timestamp > segment.max_timestamp:
                segment.max_timestamp = info.max_timestamp
        segment.modified_ms = time.time_ns() // 1_000_000
        self.next = index.next
        self.checkpoint_due = True
        ticket = Ticket(infos[0].first, infos[-1].last)
        if self._wait_for_sync:
            self._tickets.append(ticket)
            self.unsynced.request()
        else:
            ticket.settle()
        return ticket

    async def can_append(self) -> None:
        """Until it is worth trying again what could not be appended: there is room, or the disk has answered."""
        if self._doubted:  # by now it may have answered: then nobody would tell of room
            await self._liveness.answered()
        else:
            await self.services.open_files.room()

    def tell_waiting(self) -> None:
        """Whoever waits to append looks again."""
        self.services.open_files.tell_room()
        self._liveness.tell()

    def _room_for(self, length: int, now: float) -> Segment | None:
        """The active segment, held and ready to be written to; None if it cannot be held yet."""
        active = self._segments[-1]
        if active.size and (
            active.size + length > self.settings.segment_bytes
            or (now - active.created) * 1000 > self.settings.segment_ms
        ):
            self.roll()
            active = self._segments[-1]
        if active.size == 0:
            active.created = now
        return active if self.unsynced.hold(active) else None

    def _write(self, segment: Segment, messages: Sequence[Buffer]) -> None:
        fd = segment.handle.fd
        try:
            self._files.write(fd, messages, segment.size)
        except OSError:
            # whatever was written of it is cut off again; if that fails too, the next append overwrites it, and
            # recovery cuts what remains
            try:
                self._files.truncate(fd, segment.size)
            except OSError as error:
                logger.error("%s: could not be cut back to %d bytes: %s", segment.path, segment.size, error)
            raise

    def _remove_stale(self, last: int) -> None:
        """Remove the files of segments that were given up. Raises `OSError` if that of one up to `last` stays."""
        for segment in list(self._stale):
            try:
                self._files.remove(segment.path)
            except OSError:
                if segment.base <= last:
                    raise
            else:
                self._stale.remove(segment)
                self.unsynced.entry_has_changed()  # it must not come back when what is past it was acknowledged

    def storage_error(self, what: str, error: Exception) -> StorageError:
        """What an error of the operating system means for whoever asked."""
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            return StorageFullError(f"{self.name} {what}: no space left in {self.directory}")
        return StorageError(f"{self.name} {what}: {error}")

    def roll(self) -> None:
        """Close the active segment, unless it is empty, and begin another."""
        sealed = self._segments[-1]
        if not sealed.size:
            return
        self._begin_segment()
        if self.unsynced:
            self.unsynced.request()
        elif self._synced.segment is sealed:
            self._synced = LogPlace(self.next, self._segments[-1], 0)
            self._seal(sealed)
            self.services.checkpoint(self)

    def raise_next(self, next_position: int) -> Callable[[], None]:
        """Give no ordinal below `next_position` from now on; nothing may be unsynced.

        The checkpoint has to be written before the next append: it tells recovery that the gap is no loss.

        Returns:
            What takes it back, as long as nothing was appended.
        """
        self._pass_stale(next_position, "could not begin further on")
        before = list(self._segments), dict(self._limits), self._synced, self._gap_from, self._gap_to, self.next

        def take_back() -> None:
            self.services.indexes.forget(self._segments[-1])
            self._segments[:], self._limits, self._synced, self._gap_from, self._gap_to, self.next = before
            self.services.indexes.count(self._segments[-1])

        self._gap_from, self._gap_to = self.end, next_position
        self.next = next_position
        if not self._segments[-1].exists:  # no file tells the next opening that the log begins, or goes on, there
            self.services.indexes.forget(self._segments.pop())
        if self._segments:
            last = self._segments[-1]
            self._limits[last.base] = last.size  # so recovery knows that nothing of it is lost
        self._begin_segment()
        self._synced = LogPlace(next_position, self._segments[-1], 0)
        self.checkpoint_due = True
        if self.settings.dense and self._gap_from > self.start:
            logger.error(
                "%s ends at %d, and whoever opens it knows that all below %d was given: the messages between are lost",
                self.directory, self._gap_from, next_position,
            )  # fmt: skip
        return take_back

    def _pass_stale(self, last: int, what: str) -> None:
        if self._stale:
            try:
                self._remove_stale(last)
            except OSError as error:
                raise self.storage_error(what, error) from error

    # --- syncing ---

    def plan(self) -> SyncPlan | None:
        """What has to be done for everything to be synced that was written."""
        return self.unsynced.plan(self, self.directory, self._segments[-1], self.next)

    def settled(self, plan: SyncPlan, error: Exception | None) -> None:
        """A plan was carried out."""
        covered = self.unsynced.carried_out(plan)
        if covered is None:
            return
        if error is None:
            self._advance(plan.end, covered)
            self.unsynced.over(covered.number)
        else:
            self._retreat(error)
            self.unsynced.over()

    def _advance(self, end: int, covered: Covered) -> None:
        last = covered.segments[-1]
        before = self._synced
        self._synced = LogPlace(end, last, covered.position)
        active = self._segments[-1]
        for segment in self.unsynced.cover(covered):
            if segment is not active:
                self._seal(segment)
        if last is not active and not self.unsynced and active.size == 0:
            self._synced = LogPlace(self.next, active, 0)
        if self._synced.segment is not before.segment:
            self._since_checkpoint = CHECKPOINT_BYTES
        else:
            self._since_checkpoint += covered.position - before.position
        if self._since_checkpoint >= CHECKPOINT_BYTES:
            self._since_checkpoint = 0
            self._index_synced()
            self.services.indexes.count(active)
            self.services.checkpoint(self)
        elif not before.position:
            self.services.checkpoint(self, trusted=False)
        if self._wait_for_sync:
            tickets = self._tickets
            while tickets and tickets[0].last < end:
                tickets.popleft().settle()

    def _seal(self, segment: Segment) -> None:
        """A segment is whole and durable: write its index."""
        self.services.indexes.count(segment)
        path, index, base = segment.index_path, segment.index, segment.base
        self.services.syncer.chore(lambda: self._files.store(path, index.dump(base)))

    def _index_synced(self) -> None:
        """Write the index of what is synced in the active segment, so that no opening has to read it all."""
        end, segment, position = self._synced
        if position:
            content = segment.index.dump(segment.base, position, end)
            self.services.syncer.chore(partial(self._files.store, segment.index_path, content))

    # --- a sync failed ---

    def _retreat(self, error: Exception) -> None:
        """Cut back to what is synced: what followed is lost, and the file is not trusted any more."""
        logger.error(
            "%s: a sync failed (%s); going back from %d to %d, what is between is lost",
            self.name, error, self.next if self._wait_for_sync else self._synced.ordinal, self._synced.ordinal,
        )  # fmt: skip
        self.unsynced.give_up()
        self.unsynced.let_go()
        if self._wait_for_sync:
            self._cut()
        else:  # readers have seen it, and the page cache still has it: keep it, but never sync that file again
            self._begin_segment()
        self.services.syncer.forgive(self)
        self.cursors.clear()
        self.checkpoint_due = True
        self.services.checkpoint(self)
        tickets, self._tickets = self._tickets, deque()
        failure = str(self.storage_error("could not be synced", error))
        for ticket in tickets:
            ticket.settle(failure)

    def _cut(self) -> None:
        end, segment, position = self._synced
        while self._segments and (self._segments[-1] is not segment or position == 0):
            gone = self._segments.pop()
            self.services.indexes.forget(gone)
            if not discard(gone, self.services.open_files):
                self._stale.append(gone)
            if gone is segment:
                break
        else:
            if segment.size > position:
                self._limits[segment.base] = position
                segment.index.cut(position, end)
                segment.max_timestamp = segment.index.max_timestamp
                self._seal(segment)
                cut(segment, self.framing, self.services.open_files)
        self.next = end
        self._begin_segment()
        self._synced = LogPlace(end, self._segments[-1], 0)
        self.unsynced.entries_are_gone()

    # --- trimming ---

    def prepare_trim(self, before: int) -> int | None:
        """Get ready to drop what lies before a position; what the start will be, None if that cannot be had yet.

        If nothing will be left, a new segment is begun: its name keeps the next ordinal. It has to be synced, and
        the checkpoint written with that start, before `trim`.
        """
        if time.monotonic() > self._liveness.until:
            self._doubted = True
            return None
        if before >= self.next and self._synced.ordinal == self.next:
            self.roll()
        dropped = self._droppable(before)
        if not dropped:
            return self.start
        active = self._segments[-1]
        if len(dropped) == len(self._segments) - 1 and not active.exists:
            self._pass_stale(active.base, "could not be trimmed")
            try:
                if not self.unsynced.hold(active):
                    self._doubted = False
                    return None
            except OSError as error:
                raise self.storage_error("could not be trimmed", error) from error
            self.unsynced.request()
        return self._segments[len(dropped)].base

    def _droppable(self, before: int) -> list[Segment]:
        """Whole segments before a position that are synced."""
        before = min(before, self._synced.ordinal)
        dropped = []
        for segment, following in zip(self._segments, self._segments[1:], strict=False):
            if following.base > before or segment in self.unsynced or segment is self._synced.segment:
                break
            dropped.append(segment)
        return dropped

    def trim(self) -> None:
        """Drop the segments that lie before what `trimming` says, which has been recorded."""
        for segment in self._droppable(self.trimming):
            self._segments.remove(segment)
            self.services.indexes.forget(segment)
            self.services.open_files.remove(segment.handle)
            for path in (segment.path, segment.index_path):
                self.services.syncer.chore(partial(self._files.remove, path))
        self.services.syncer.chore(partial(sweep_set_aside, self._files, self.directory))

    # --- rewriting ---

    def replaceable(self, segment: Segment, size: int = 0) -> bool:
        """Whether a file of so many bytes may take the place of a segment's.

        It is closed and synced then, has not been trimmed, and no limit is in the way: that would cut the other one.
        """
        return (
            segment in self._segments[:-1]
            and segment.size > 0
            and segment not in self.unsynced
            and segment is not self._synced.segment
            and size <= self._limits.get(segment.base, size)
        )

    def replace(self, segment: Segment, other: Segment) -> None:
        """Another segment has taken the place of one, under the same name."""
        self._segments[self._segments.index(segment)] = other
        self.services.indexes.forget(segment)
        self.services.indexes.count(other)
        segment.replaced = True
        self.services.open_files.remove(segment.handle)

    def abandon(self, reason: str) -> None:
        """Whatever waits for a sync hears that there will be none; the log is not used any more."""
        self.unsynced.abandon()
        tickets, self._tickets = self._tickets, deque()
        for ticket in tickets:
            ticket.settle(reason)

    def release(self) -> None:
        """Give up the open files; no sync may be under way."""
        self._remove_stale(-1)  # the last attempt; nothing has grown past those that stay
        self.unsynced.let_go()
        for segment in self._segments:
            self.services.indexes.forget(segment)
            self.services.open_files.remove(segment.handle)
