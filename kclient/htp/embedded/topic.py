"""A topic of the embedded backend, as somebody holds it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import anyio.lowlevel

from kclient.htp.embedded.pulling import SegmentReplacedError
from kclient.htp.embedded.rewriting import SegmentRewriting
from kclient.htp.errors import PositionError
from kclient.htp.port import Found, Place, Pulled, SegmentInfo, TopicSettings, TopicStatus

if TYPE_CHECKING:
    from kclient.errors import KafkaError
    from kclient.htp.embedded.files import Files
    from kclient.htp.embedded.log import TopicLog
    from kclient.htp.embedded.log_reader import LogReader
    from kclient.htp.embedded.pulling import PullRequest, SearchRequest
    from kclient.htp.embedded.threads import DiskThreads
    from kclient.htp.embedded.tickets import Ticket
    from kclient.types import Buffer


class EmbeddedTopic:
    """Implements `kclient.htp.port.DirectTopic`.

    Args:
        place: The topic.
        epoch: That it was opened under.
        log: The topic's.
        files: The file system.
        threads: Wait for the disk.
        closing: Closes this; the broker's.
        trimming: Trims the log of this; the broker's.
        replacing: Has a segment of it replaced; the broker's.
    """

    __slots__ = (
        "_closing",
        "_files",
        "_log",
        "_reader",
        "_refusal",
        "_replacing",
        "_threads",
        "_trimming",
        "epoch",
        "place",
    )

    def __init__(
        self,
        place: Place,
        epoch: int,
        log: TopicLog,
        files: Files,
        threads: DiskThreads,
        closing: Callable[[EmbeddedTopic], Awaitable[None]],
        trimming: Callable[[EmbeddedTopic, int], Awaitable[int]],
        replacing: Callable[[EmbeddedTopic, SegmentRewriting], Coroutine[Any, Any, None]],
    ) -> None:
        self.place: Place = place
        self.epoch: int = epoch
        self._log: TopicLog | None = log
        self._reader: LogReader | None = log.reader()
        self._refusal: Callable[[], KafkaError] | None = None
        self._files = files
        self._threads = threads
        self._closing = closing
        self._trimming = trimming
        self._replacing = replacing

    def use(self) -> TopicLog:
        """The log. Raises why it may not be used any more."""
        return self._log or self._refuse()

    def _refuse(self) -> NoReturn:
        assert self._refusal is not None
        raise self._refusal()  # one of its own for each call: raising an exception changes it

    def give_up(self, refusal: Callable[[], KafkaError]) -> TopicLog | None:
        """Refuse every further call with what `refusal` makes; the log, if there was one."""
        log, self._log, self._reader = self._log, None, None
        if log is None:
            return None
        self._refusal = refusal
        log.tell_waiting()
        return log

    async def close(self) -> None:
        """Sync the topic and give up what is held for it."""
        await self._closing(self)

    async def configure(self, settings: TopicSettings) -> None:
        """Change the layout."""
        await anyio.lowlevel.checkpoint()
        self.use().settings = settings

    # --- messages ---

    def send_nowait(self, messages: Sequence[Buffer]) -> Ticket | None:
        """Append whole messages, all or none; None if that has to wait."""
        return (self._log or self._refuse()).append(messages)

    async def send(self, messages: Sequence[Buffer]) -> Ticket:
        """Append whole messages, all or none."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        while (ticket := self.send_nowait(messages)) is None:
            await self.use().can_append()
        await anyio.lowlevel.cancel_shielded_checkpoint()
        return ticket

    def pull_nowait(self, position: int, *, max_bytes: int = 1 << 20, max_messages: int | None = None) -> Pulled | None:
        """The messages from a position on; None if the disk has to be asked."""
        return (self._reader or self._refuse()).pull_cached(position, max_bytes, max_messages)

    async def pull(self, position: int, *, max_bytes: int = 1 << 20, max_messages: int | None = None) -> Pulled:
        """The messages from a position on."""
        await anyio.lowlevel.checkpoint()
        reader = self._reader or self._refuse()
        pulled = reader.pull_cached(position, max_bytes, max_messages)
        if pulled is not None:
            return pulled
        while True:
            with suppress(SegmentReplacedError):
                for request in reader.requests(position, max_bytes, max_messages):
                    await self._at_hand(request)
                    with request:
                        pulled = await self._threads.run(request.run, self._files.read)
                    self.use()  # it may have ended meanwhile
                    if pulled is not None:
                        return pulled
                return Pulled(b"", position, position - 1)

    async def find_by_timestamp(self, timestamp: int, *, start: int = 0) -> Found | None:
        """The first visible message with a timestamp not below the given one."""
        await anyio.lowlevel.checkpoint()
        reader = self._reader or self._refuse()
        while True:
            with suppress(SegmentReplacedError):
                for request in reader.searches(timestamp, start):
                    await self._at_hand(request)
                    with request:
                        found = await self._threads.run(request.run, self._files.read)
                    self.use()
                    if found is not None:
                        return found
                return None

    async def _at_hand(self, request: PullRequest | SearchRequest) -> None:
        """Until a request may be entered, which opens its file in the event loop."""
        while not request.at_hand:
            await request.disk_answered()
            self.use()

    # --- status and retention ---

    def status_nowait(self) -> TopicStatus:
        """Start, end, next ordinal and size."""
        return self.use().status()

    async def status(self) -> TopicStatus:
        """Start, end, next ordinal and size."""
        await anyio.lowlevel.checkpoint()
        return self.status_nowait()

    async def segments(self) -> list[SegmentInfo]:
        """The segments of the topic in order."""
        await anyio.lowlevel.checkpoint()
        return self.use().segments()

    async def roll(self) -> None:
        """Begin another segment, unless the active one is empty."""
        await anyio.lowlevel.checkpoint()
        self.use().roll()

    async def trim(self, before: int) -> int:
        """Drop whole segments that lie before a position."""
        return await self._trimming(self, before)

    async def rewrite(self, first: int) -> SegmentRewriting:
        """Have other messages take the place of those of a closed segment."""
        await anyio.lowlevel.checkpoint()
        log = self.use()
        segment = log.segment_of(first)
        if segment is None or not log.replaceable(segment):
            raise PositionError(
                f"{log.name} has no segment at {first} that is closed and synced", start=log.start, end=log.end
            )
        return SegmentRewriting(self.use, segment, self._files, self._threads, partial(self._replacing, self))
