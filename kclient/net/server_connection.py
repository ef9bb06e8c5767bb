"""One connection on the server's side: its requests begin in order, while there is room for them, up to its end.

The replies leave in that order, too: `reply_order` has a place for each. What takes long is done in steps, a slice at a
time in the connection's turns (see `request_steps`), and what takes memory counts against its share of the server's
budget (see `memory_budget`): a connection is read, and requests are begun, while there is room for both.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Protocol

from kclient.concurrency import Supervisor, Timer, loop_clock
from kclient.errors import ProtocolError
from kclient.net.answering import PER_WAITING, Answering
from kclient.net.answers import Answer, Steps
from kclient.net.channel import Channel, TruncatedError
from kclient.net.channel_kinds import open_channel
from kclient.net.closing_reasons import tell_closing
from kclient.net.fair_queue import Flow
from kclient.net.frame_admission import FrameAdmission
from kclient.net.last_answers import LastAnswers
from kclient.net.memory_budget import MemoryBudget, Share, TooMuchMemoryError
from kclient.net.reply_order import ReplyOrder, ReplySlot
from kclient.net.request_steps import RequestSteps
from kclient.net.server_settings import ServerSettings
from kclient.net.streams import ByteStream

__all__ = ["RequestHandler", "ServerConnection"]

logger: logging.Logger = logging.getLogger("kclient.net.server")

_ARRIVED: Final = 16 * 1024
"""Bytes in the stream that show that a client sends: a socket takes so many also while it is not read."""


class RequestHandler(Protocol):
    """Answers requests. None of its methods waits."""

    def begin(self, frame: memoryview, connection: ServerConnection) -> Answer:
        """A request has come; called in arrival order. What takes long does so in `Steps`.

        Args:
            frame: Header and body, without the leading size. The buffer is the handler's own to keep and to change.
            connection: Where it came from.

        Returns:
            The reply, a whole frame with its size, in parts; or None if there is none to be sent; or an awaitable of
            one of these: a `Completion` costs no task (`Later` makes the reply of what completes), others are awaited
            by a task of the server. That task is not cancelled when the client goes away, but when the server's
            closing has used up its time. Or `Steps` that return any of these: the connection's next request begins
            when they have. What awaitables yield may be `Steps` too, of a reply; the requests behind it do not wait
            for those.

        Raises:
            Exception: The connection is closed when the requests before this one have been answered; those behind it
                are not. A `CloseConnectionError`, a `ProtocolError` and the `UnknownRequestError` of `decode_request`
                are put down to the client with a warning, others are logged with their traceback. So is what comes
                out of awaitables and `Steps`.
        """
        ...

    def connected(self, connection: ServerConnection) -> None:
        """A connection begins; the handler may set its `context`."""
        ...

    def disconnected(self, connection: ServerConnection) -> None:
        """A connection has ended."""
        ...


@dataclass(frozen=True, slots=True)
class _Parted:
    """The client has gone, and some of what it had sent has not begun."""

    cause: BaseException | None


class _ChannelTurns:
    """What a channel is told of a connection's turns."""

    __slots__ = ("add", "enter", "garbled", "leave", "progressed", "unasked")

    def __init__(
        self,
        flow: Flow,
        progressed: Callable[[], None],
        unasked: Callable[[int], int],
        garbled: Callable[[ProtocolError], None],
    ) -> None:
        self.enter = flow.enter
        self.leave = flow.leave
        self.add = flow.add
        self.progressed = progressed
        self.unasked = unasked
        self.garbled = garbled


class ServerConnection:
    """A client's connection; made by `Server`."""

    def __init__(
        self,
        stream: ByteStream,
        handler: RequestHandler,
        supervisor: Supervisor,
        settings: ServerSettings,
        label: object,
        flow: Flow,
        budget: MemoryBudget,
        on_pause: Callable[[ServerConnection], object],
    ) -> None:
        self.peer: str = stream.peer
        """The client's address, for logs."""
        self.label = label
        """The listener's label."""
        self.context: Any = None
        """For the handler's own use."""
        self.frame_limit: int = min(settings.frame_limit, budget.most)
        """Largest request that is taken, in bytes; changed by `limit_frames`."""
        self.closed: bool = False
        self._now = loop_clock()
        self._active = self._now()  # when a request came or a reply left, or bytes were found to have moved
        self._moved = 0  # what had moved then
        self.stream = stream
        """What it was made on; it belongs to the connection."""
        self.flow: Flow = flow
        """Its turns on the loop: for what the handler does in slices."""
        self.share: Share = budget.share(self._memory_freed)
        """What it holds of the server's memory: the handler adds what it keeps for the client."""
        self._budget = budget
        self._clock = flow.clock
        self._on_pause = on_pause
        self._handler = handler
        self._supervisor = supervisor
        self._settings = settings
        self._largest = self.frame_limit
        self._channel: Channel | None = None
        self.beginning: ReplySlot | None = None
        """The place of the request that the handler is told to begin."""
        self._order = ReplyOrder(settings, self.share, lambda: self.crowded)
        self._order.mute = self.mute
        self._muted: Timer | None = None
        """When it is read again."""
        self._steps = RequestSteps(flow, self._order)
        self._answering = Answering(
            self._order,
            self._steps,
            supervisor,
            self.peer,
            placed=self._reply_placed,
            room=self._task_ended,
            failed=self._failed,
        )
        self._frame = FrameAdmission(
            self.share,
            self._order,
            moved=lambda: self.moved,
            alone=self._holds_nothing,
            refuse=self._refuse_frame,
            pause=self._pause,
        )
        self._last_answers: LastAnswers | None = None
        """At the end, while the client's system has not got them all."""
        self._backlog: deque[memoryview] = deque()
        self._begins_in_steps = False  # a request: the next one begins after it
        self._begins_soon = False
        self._woken = False
        self._batching = False
        self._draining = False
        self._closing = False
        self._deserted = False  # the client has gone; what it had sent may still begin, and no reply is kept
        self._parted: _Parted | None = None
        self._close_callbacks: list[Callable[[ServerConnection], object]] = []
        self._deserted_callbacks: list[Callable[[], object]] = []

    @property
    def outstanding(self) -> int:
        """Requests that have begun and whose replies have not been handed to the stream."""
        return len(self._order.places)

    @property
    def moved(self) -> int:
        """Bytes that have been received and sent since the beginning: sent is what the client's system has got."""
        channel = self._channel
        if channel is None:
            return 0
        return channel.received_bytes + self._order.written - channel.pending_bytes - channel.in_flight

    def idle_since(self) -> float | None:
        """When something was last received or sent, on the clock of `anyio.current_time`, as far as that was asked for.

        None while it is not the client's turn: a request of it is in work, or waits for memory.
        """
        moved = self.moved
        if moved != self._moved:  # a part of a large request is a sign of life, too
            self._moved, self._active = moved, self._now()
        waits = not self._order.over or self._backlog or self._frame.waits
        return None if waits else max(self._active, self._order.last_sent)

    @property
    def stuck(self) -> int:
        """Bytes that are kept, or waited for, until the client sends the rest of a request or reads replies, or until
        requests end that wait for clients, or for memory, and are before others; 0 if there are none.

        What the server has begun and does not end, as while its disk stalls, is not the client's to hasten: it does not
        count.
        """
        size = self._frame.held + self._frame.waits
        if self.muted and not self.share.small:
            size += sum(map(len, self._backlog))  # for as long as it is muted nothing becomes of these
        if not self._owes:
            return size
        begun = 0 if self._first_waits else self._order.request_bytes + PER_WAITING * self._order.waiting
        return max(size, self.share.held - self.share.kept - begun)

    @property
    def _owes(self) -> bool:
        """Whether it holds more than its allowance, and nothing lets it go on but its client's reading, other clients,
        or memory that it holds itself."""
        return not self.share.small and (self._order.unsent > 0 or (self._first_waits and self.crowded))

    @property
    def _first_waits(self) -> bool:
        """Whether the first request waits for clients, or for memory that comes free only when it has ended."""
        if not self._order.places:
            return False
        first = self._order.places[0]
        return first.parked or self._steps.needs_own(first)

    @property
    def announced(self) -> tuple[float, int] | None:
        """When the request began to come that is being received, and what had `moved` then; None if there is none."""
        return self._frame.announced

    @property
    def waits_to_be_read(self) -> bool:
        """Whether the client has sent on, and it is the server that does not read: asked of the stream."""
        if self._channel is None or self._owes or self.muted:
            return False
        wanted = min(self._channel.missing, _ARRIVED)
        return 0 < wanted <= self._channel.arrived(wanted)

    @property
    def crowded(self) -> bool:
        """Whether something of it waits until the connection itself holds less."""
        share = self.share
        held, most = share.held, share.most
        if self._backlog and held >= most:
            return True
        if self._frame.waits and held + self._frame.waits > most:
            return True
        return self._steps.crowded(held, most)

    @property
    def paused(self) -> bool:
        """Whether it is not read at present."""
        return self._channel is not None and self._channel.paused

    def start(self) -> None:
        """Begin to read."""
        self._handler.connected(self)
        self._channel = self._order.channel = open_channel(
            self.stream,
            self,
            self._supervisor,
            frame_limit=self.frame_limit,
            first_room=self._settings.first_room,
            turns=_ChannelTurns(self.flow, self._order.progressed, self.share.unasked, self._garbled),
            admit=self._frame.admit,
        )

    def limit_frames(self, limit: int | None) -> None:
        """Take requests up to `limit` bytes from now on; None for what the server's settings say."""
        self.frame_limit = self._largest if limit is None else min(limit, self._largest)
        if self._channel is not None:
            self._channel.frame_limit = self.frame_limit

    def on_close(self, callback: Callable[[ServerConnection], object]) -> None:
        """Call `callback(connection)` when the connection has ended; it must not raise."""
        self._close_callbacks.append(callback)

    def on_deserted(self, callback: Callable[[], object]) -> None:
        """Call `callback()` when the client turns out to have gone; it must not raise.

        That may be before the connection has ended: what the client had sent begins nevertheless.
        """
        self._deserted_callbacks.append(callback)

    def look_after(self) -> None:
        """While it is not read: find out whether the client has gone."""
        if self._channel is not None and not self._deserted and self._channel.deserted:
            self._desert()
            self._begin_now_or_soon()
            self._close_if_drained()

    def mute(self, seconds: float) -> None:
        """Begin no more requests for so long, and read nothing; those that have begun are answered.

        If it is muted already the later end counts. It is closed at once if its client goes, and if others wait for
        memory that it keeps.
        """
        until = self._now() + seconds
        if self.closed or not self._supervisor.running:
            return
        if self._muted is not None and (self._muted.when or 0.0) >= until:
            return
        if self._muted is None:
            self._muted = Timer(self._supervisor, self._unmute, name=f"throttle {self.peer}")
        self._order.muted = True
        self._muted.set(until)
        if not self._batching:
            self._regulate()

    @property
    def muted(self) -> bool:
        """Whether it begins nothing for a time."""
        return self._order.muted

    def _unmute(self) -> None:
        self._muted = None
        self._order.muted = False
        if not self.closed:
            self._begin_now_or_soon()

    def close(self) -> None:
        """Close at once; requests that have begun go on, their replies are dropped."""
        self._backlog.clear()  # what has not begun never does
        if self._parted is not None:
            self._end(self._parted.cause)
        elif self._channel is not None:
            self._closing = True
            self._channel.close()

    def abort(self) -> None:
        """Close at once, and cancel the requests that have begun."""
        self.close()
        self._steps.give_up()
        self._answering.cancel()
        if self._last_answers is not None:
            self._last_answers.cancel()

    def drain(self) -> None:
        """Begin no more requests, and close when all that have begun are answered and the answers have arrived."""
        self._draining = True
        self._order.on_empty = self._close_if_drained
        self._forget_backlog()
        if self._parted is not None:
            self._regulate()
            return
        self._pause()
        self._close_if_drained()

    async def wait_closed(self) -> None:
        """Wait until the tasks of a closed connection have ended."""
        await self._answering.wait()
        if self._last_answers is not None:
            await self._last_answers.wait()
        if self._channel is not None:
            await self._channel.wait_closed()

    # What the channel asks and reports.

    def frames_received(self, frames: list[memoryview]) -> None:
        self._active = self._now()
        size = len(frames[0]) if len(frames) == 1 else sum(map(len, frames))
        if self._frame.held and self._channel is not None:
            admitted = self._channel.take_admitted()
            self._frame.received(admitted)
            size -= admitted
        self.share.add(size, size)
        self._backlog.extend(frames)
        if self._draining:
            self._forget_backlog()
        else:
            self._begin_all(self.flow.until)

    def channel_closed(self, cause: BaseException | None) -> None:
        if self._closing or not (self._backlog or self._begins_in_steps):
            self._end(cause)
            return
        # a client may send with `acks=0` and go: what was received whole begins as if it were still there
        if cause is not None:  # without frames, which hold this connection and what could not be sent
            cause = cause.with_traceback(None)
            cause.__context__ = None
        self._parted = _Parted(cause)
        self._frame.drop()
        self._order.detach()
        self._desert()
        self._begin_soon()

    def _desert(self) -> None:
        """The client has gone: nobody waits for its replies, but what it had sent begins."""
        if self._deserted:
            return
        self._deserted = True
        self._order.desert()
        callbacks, self._deserted_callbacks = self._deserted_callbacks, []
        for callback in callbacks:
            callback()
        self._steps.desert()

    def _end(self, cause: BaseException | None) -> None:
        """Nothing of it begins any more."""
        if self.closed:
            return
        self.closed = True
        self._backlog.clear()
        if self._muted is not None:
            self._muted.cancel()
            self._muted = None
        self._order.close()
        self.share.close()
        self._begins_in_steps = False
        self.beginning = None
        self._steps.end()
        self._answering.close()
        self._frame.close()
        # as text: log records that are kept must not keep the connection
        if isinstance(cause, TruncatedError):
            logger.info("%s: %s", self.peer, str(cause))
        elif cause is not None:
            logger.debug("%s: the connection ended: %s", self.peer, str(cause))
        self._deserted_callbacks = []
        callbacks, self._close_callbacks = self._close_callbacks, []
        try:
            self._handler.disconnected(self)
        except Exception:
            logger.exception("%s: the handler failed at the connection's end", self.peer)
        for callback in callbacks:
            callback(self)

    def write_drained(self) -> None:
        self._order.drained()
        if self._backlog or self.paused:
            self._begin_now_or_soon()

    def _pause(self) -> None:
        """Read no further for now: what becomes of the client is looked after meanwhile."""
        if self._channel is not None and not self._channel.paused:
            self._channel.pause()
            self._on_pause(self)

    # Memory.

    def _holds_nothing(self) -> bool:
        """Whether what it keeps is all that it holds, but for a request that is being received."""
        undelivered = self._channel is not None and self._channel.undelivered
        return not (self._order.places or self._backlog or self._order.unsent or undelivered)

    def _refuse_frame(self, error: TooMuchMemoryError) -> None:
        tell_closing(self.peer, error)
        self._take_no_more()

    def _memory_freed(self) -> None:
        if not self._woken and not self.closed:
            self._woken = True
            self.flow.add(self._ask_again)

    def _ask_again(self, until: float) -> bool:
        self._woken = False
        if self.closed:
            return False
        assert self._channel is not None
        if self._frame.waits and self._frame.ask_again():
            self._channel.admit()
        self._order.tell_next()
        self._steps.ask_again()
        self._begin_all(until)
        self.flow.add(self._asked)
        return False

    def _asked(self, _until: float) -> bool:
        if not (self._order.places or self._backlog or self._frame.waits):
            self.share.asked()  # else it may need what it has found no use for yet
        return False

    def _forget_backlog(self) -> None:
        size = sum(map(len, self._backlog))
        self._backlog.clear()
        self.share.add(-size, requests=-size)

    def _garbled(self, error: ProtocolError) -> None:
        logger.warning(
            "%s sent something that is not a Kafka request, the connection is closed: %s", self.peer, str(error)
        )
        self._take_no_more()

    def _take_no_more(self) -> None:
        """What follows cannot be taken: the connection is closed when what came before it has been answered.

        Frames that came in the same piece may not be here yet: it is seen to in a turn of its own.
        """
        self._frame.stop()
        self._pause()
        self._begin_soon()

    # Requests.

    def _begin_all(self, until: float) -> None:
        """Begin what may begin; read on or stop reading, as the bounds say; send what is complete in one piece."""
        if self._batching:
            return
        self._batching = True
        try:
            more = True
            while more and not self.closed:
                more = self._begin_some(until)
                self._order.flush()
                more = more and bool(self._backlog) and self._may_begin() and self._clock() < until
        finally:
            self._batching = False
        self._regulate()

    def _begin_some(self, until: float) -> bool:
        """Begin requests up to the bounds, or to a time; False if the connection was closed for one."""
        backlog = self._backlog
        while backlog and self._may_begin():
            if not self._begin(backlog.popleft(), until):
                return False
            if backlog and self._clock() >= until:
                break
        return True

    def _begin_now_or_soon(self) -> None:
        """Begin what waits: in this callback if the connection may, else in its turn."""
        if not self._backlog:
            self._regulate()
        elif self.flow.enter():
            self._begin_all(self.flow.until)
            self.flow.leave()
        else:
            self._begin_soon()

    def _begin_soon(self) -> None:
        if not self._begins_soon:
            self._begins_soon = True
            self.flow.add(self._begin_in_turn)

    def _begin_in_turn(self, until: float) -> bool:
        self._begins_soon = False
        if not self.closed:
            self._begin_all(until)
        return False

    def _may_begin(self) -> bool:
        """Whether one of the backlog may begin."""
        share = self.share
        if self._begins_in_steps or self._order.full():
            return False
        if share.held <= self._budget.allowance or share.may_begin():
            return True
        return not self._order.places and share.held >= share.most  # nothing comes free before it has begun

    def _regulate(self) -> None:
        channel = self._channel
        if channel is None or self.closed:
            return
        if self._parted is not None:
            if not (self._backlog or self._begins_in_steps):
                self._end(self._parted.cause)
            elif self._may_begin():
                self._begin_soon()
            return
        if self._frame.over and not (self._draining or self._backlog or self._begins_in_steps):
            self.drain()
            return
        blocked = bool(self._backlog or self._draining or self._frame.over or self._frame.waits)
        if self._backlog and not self._draining and self._may_begin():
            self._begin_soon()  # only its time was over
        if blocked or self._begins_in_steps or self._order.full():
            self._pause()
            if self._backlog:
                self._order.hurry()
        elif channel.paused:
            channel.resume()

    def _begin(self, frame: memoryview, until: float) -> bool:
        """Begin one request; False if the connection was closed for it."""
        slot = self.beginning = ReplySlot(self._order, len(frame))
        try:
            answer = self._handler.begin(frame, self)
        except Exception as error:  # noqa: BLE001  (it is logged)
            self._failed(slot, error)
            return False
        if self.closed:
            if isinstance(answer, Coroutine):
                answer.close()  # as if the connection had ended a moment before
            return False
        if type(answer) is list:  # as nearly always
            self._order.place(slot, answer)
        elif answer is None:
            self._order.forget(slot)
        elif isinstance(answer, Steps):
            self._begins_in_steps = True
            self._steps.begin(slot, answer, self._begun_in_steps, self._failed, until)
        else:
            self._answering.follow(slot, answer)
        return not self.closed

    def _begun_in_steps(self, slot: ReplySlot, answer: Answer) -> None:
        self._begins_in_steps = False
        self._answering.follow(slot, answer)
        if not self._batching and not self.closed:
            self._order.flush()
            self._begin_now_or_soon()

    def _reply_placed(self, slot: ReplySlot) -> None:
        if self._batching or self._order.places[0] is not slot:
            return
        self._order.flush()
        self._begin_now_or_soon()

    def _task_ended(self) -> None:
        if not self._batching:
            self._begin_now_or_soon()

    def _failed(self, slot: ReplySlot, error: BaseException) -> None:
        """A request has no answer: the connection is closed when those before it have been answered."""
        if self.closed:
            return
        tell_closing(self.peer, error)
        self._begins_in_steps = False  # nothing follows, whatever is in work
        self._order.end_at(slot)
        self.drain()
        if not (self._batching or self.closed):
            self._order.flush()

    def _close_if_drained(self) -> None:
        channel = self._channel
        if not self._draining or self._last_answers is not None or channel is None:
            return
        if self._deserted:  # what has begun goes on, and nobody waits for its answers
            self.close()
            return
        if not self._order.over or channel.pending_bytes:
            return
        if channel.in_flight and self._supervisor.running:
            patience = self._settings.stall_timeout
            self._last_answers = LastAnswers(channel, self._supervisor, patience, self.close, self.peer)
        else:
            self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "draining" if self._draining else "open"
        return f"<ServerConnection {self.peer} {state}, {self.outstanding} outstanding>"
