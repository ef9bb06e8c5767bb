"""One connection on the server's side: requests begin in order, replies leave in order, both bounded.

What takes long is done in steps, a slice at a time in the connection's turns (see `fair_queue`), and what takes memory
counts against its share of the server's budget (see `memory_budget`): a connection is read, and requests are begun,
while there is room for both.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kclient.concurrency import Completion, Supervisor, TaskHandle, loop_clock
from kclient.errors import ProtocolError
from kclient.net.channel import Channel, TruncatedError
from kclient.net.channel_kinds import open_channel
from kclient.net.connection_limits import ConnectionQuota
from kclient.net.fair_queue import Flow
from kclient.net.garbage import LARGE, HoldOff
from kclient.net.memory_budget import DEFAULT_TOTAL, MemoryBudget, Share, TooMuchMemoryError
from kclient.net.streams import ByteStream
from kclient.protocol.errors import UnknownRequestError
from kclient.protocol.framing import DEFAULT_LIMIT
from kclient.types import Buffer

if TYPE_CHECKING:
    from kclient.net.server import RequestHandler

__all__ = ["FRAME_READ", "Answer", "Place", "Reply", "ServerConnection", "ServerSettings", "Steps", "Work"]

logger: logging.Logger = logging.getLogger("kclient.net.server")

Reply: TypeAlias = Sequence[Buffer]
"""A whole frame with its leading size, in parts. The buffers must not change until they have been sent."""


_MOST_TASKS: Final = 64
"""Requests of one connection that tasks work on or wait with. Each is dozens of objects, and the collector looks at all
of them at once while nothing else happens."""
_PER_TASK: Final = 4096
"""About how many bytes of memory a task takes."""
_ARRIVED: Final = 16 * 1024
"""Bytes in the stream that show that a client sends: a socket takes so many also while it is not read."""


class FrameRead(Enum):
    """That what came with a request has been read: its bytes are not needed while it waits."""

    READ = "read"


FRAME_READ: Final = FrameRead.READ

Work: TypeAlias = "Generator[int | Completion[Any] | FrameRead | None, None, Any]"
"""What is done in steps: each `yield` is a place to pause. It yields the bytes of memory that it has taken (below 0:
given back) since the last one, or a `Completion` to go on after, or `FRAME_READ`, or None."""


@dataclass(frozen=True, slots=True)
class Steps:
    """An answer that is worked out in steps, because it would hold up the others."""

    work: Work
    """Returns what `RequestHandler.begin` may return; the next request of the connection begins after that."""
    lasting: bool = False
    """Whether it goes on when the client has gone; else it is closed."""


Answer: TypeAlias = "Reply | Awaitable[Reply | Steps | None] | Steps | None"
"""What a request handler returns for a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Limits and times of a server; sizes in bytes, times in seconds."""

    frame_limit: int = DEFAULT_LIMIT
    """Largest request (`socket.request.max.bytes`); a connection that announces a larger one is closed. Where it
    is more than a quarter of `max_memory`, that quarter is the limit."""
    first_room: int = 16 * 1024
    """Memory that a connection gets for a request that is announced; more comes as the request's bytes do."""
    max_outstanding: int = 64
    """Requests of one connection that may be unanswered before it is not read any more."""
    max_outstanding_bytes: int = 64 * 1024 * 1024
    """The same, counted in bytes of requests; one request always fits."""
    max_unsent_bytes: int = 16 * 1024 * 1024
    """Bytes of replies that a client may leave unread before it is not read any more."""
    max_memory: int = DEFAULT_TOTAL
    """What all connections may hold together: requests, what is made of them, replies; see `MemoryBudget`."""
    max_request_memory: int | None = None
    """Of that, requests that were received and not answered (`queued.max.request.bytes`); None for no such limit."""
    stall_timeout: float = 10.0
    """A connection that keeps memory, and takes and gives too little for so long, is closed while others wait for
    memory; see `stalls`."""
    quota: ConnectionQuota = field(default_factory=ConnectionQuota)
    """How many connections there may be, at first."""
    idle_timeout: float | None = 600.0
    """A connection over which nothing has come or gone for so long is closed (`connections.max.idle.ms`), unless an
    answer is owed to it; None for never."""
    handshake_timeout: float = 10.0
    """A connection that has completed no TLS handshake after so long is closed."""
    send_buffer_bytes: int = -1
    """Of the sockets; -1 leaves it to the system."""
    receive_buffer_bytes: int = -1
    """Of the sockets; -1 leaves it to the system."""
    backlog: int = 1024
    """Connections that wait to be accepted."""


class Place:
    """A request's place in the order of replies, and the memory that is held for it."""

    __slots__ = ("_connection", "_on_next", "_wanted", "_whole", "done", "frame", "held", "reply", "taken")

    def __init__(self, connection: ServerConnection, frame: int) -> None:
        self.frame: int = frame
        """Bytes of the request, while they are needed."""
        self.held: int = frame
        """Bytes of memory: the request's, what was made of it, then the reply's."""
        self.done: bool = False
        self.reply: Reply | None = None
        self._connection = connection
        self.taken: int = 0
        """Of `held`, what `take` was asked for and is not given back."""
        self._wanted = 0  # what it was asked for in vain
        self._whole = False  # and whether that cannot be had in parts
        self._on_next: Callable[[], object] | None = None

    @property
    def is_next(self) -> bool:
        """Whether the reply can leave as soon as it is there: those before it have left."""
        return self._connection.is_next(self)

    @property
    def hurried(self) -> bool:
        """Whether the connection goes on only when it holds less: what waits for the client's sake is answered now."""
        return self._connection.crowded

    def when_next(self, callback: Callable[[], object]) -> None:
        """Call `callback` when `is_next` or `hurried` may have become true, or there may be memory to `take`."""
        self._on_next = callback

    def told_next(self) -> None:
        """It is the connection's first place now, or there may be memory. Called by the connection."""
        if self._wanted:
            self.take(self._wanted, whole=self._whole)  # now: whoever is told asks later than the others
        if self._on_next is not None:
            self._on_next()

    def take(self, size: int, *, whole: bool = False) -> bool:
        """Hold memory for the reply; False if it has to be waited for. It is given back when the reply is there.

        What has to be waited for is held as soon as it can be had; then `taken` tells, and the callback is called.

        Args:
            size: Bytes.
            whole: Whether they are of one thing, that may be larger than the connection's part (see `Share.take`).
        """
        connection = self._connection
        if not connection.share.take(size, over=connection.is_first(self), whole=whole):
            self._wanted, self._whole = size, whole
            return False
        self._wanted = 0
        self.held += size
        self.taken += size
        return True

    def give_back(self, but: int = 0) -> None:
        """Give back what was taken, but so many bytes of it."""
        self._wanted = 0
        if self.taken > but:
            self._connection.share.add(but - self.taken)
            self.held -= self.taken - but
            self.taken = but


class _Course:
    """The steps of one request on their way."""

    __slots__ = ("hold_off", "lasting", "owed", "slot", "then", "work")

    def __init__(self, slot: Place, steps: Steps, then: Callable[[Place, Any], object]) -> None:
        self.slot = slot
        self.work = steps.work
        self.lasting = steps.lasting
        self.then = then
        self.owed = 0
        """Bytes that it needs before it goes on."""
        self.hold_off = HoldOff()


@dataclass(frozen=True, slots=True)
class _Parted:
    """The client has gone, and some of what it had sent has not begun."""

    cause: BaseException | None


class _Turns:
    """What a channel is told of a connection's turns."""

    __slots__ = ("add", "enter", "leave", "progressed", "unasked")

    def __init__(self, flow: Flow, progressed: Callable[[], None], unasked: Callable[[int], int]) -> None:
        self.enter = flow.enter
        self.leave = flow.leave
        self.add = flow.add
        self.progressed = progressed
        self.unasked = unasked


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
        self.beginning: Place | None = None
        """The place of the request that the handler is told to begin."""
        self._slots: deque[Place] = deque()
        self._slot_bytes = 0
        self._undone = 0  # slots whose reply is not there
        self._reply_bytes = 0  # of replies that wait for those before them
        self._unsent = 0  # of those that were handed to the channel and have not been sent
        self._written = 0
        self._backlog: deque[memoryview] = deque()
        self._begun: _Course | None = None  # the request that begins in steps: the next one begins after it
        self._courses: set[_Course] = set()
        self._running: _Course | None = None
        self._hungry: list[_Course] = []  # those that wait for memory
        self._frame_held = 0  # bytes that are held for the frame that is being received
        self._frame_waits = 0  # and those that it waits for
        self._announced = 0.0  # when its first bytes came
        self._announced_moved = 0  # what had moved then
        self._begins_soon = False
        self._woken = False
        self._batching = False
        self._draining = False
        self._closing = False
        self._deserted = False  # the client has gone; what it had sent may still begin, and no reply is kept
        self._parted: _Parted | None = None
        self._tasks: set[TaskHandle] = set()
        self._working = 0  # of these, those that have not answered
        self._close_callbacks: list[Callable[[ServerConnection], object]] = []
        self._deserted_callbacks: list[Callable[[], object]] = []

    @property
    def outstanding(self) -> int:
        """Requests that have begun and whose replies have not been handed to the stream."""
        return len(self._slots)

    @property
    def moved(self) -> int:
        """Bytes that have been received and sent since the beginning: sent is what the client's system has got."""
        channel = self._channel
        if channel is None:
            return 0
        return channel.received_bytes + self._written - channel.pending_bytes - channel.in_flight

    def idle_since(self) -> float | None:
        """When something was last received or sent, on the clock of `anyio.current_time`, as far as that was asked for.

        None while it is not the client's turn: a request of it is in work, or waits for memory.
        """
        moved = self.moved
        if moved != self._moved:  # a part of a large request is a sign of life, too
            self._moved, self._active = moved, self._now()
        waits = self._slots or self._backlog or self._frame_waits
        return None if waits else self._active

    @property
    def stuck(self) -> int:
        """Bytes that are kept, or waited for, until the client sends the rest of a request or reads replies, or until
        requests end that wait for something and are before one that needs memory; 0 if there are none."""
        size = self._frame_held + self._frame_waits
        return max(size, self.share.held - self.share.kept) if self._owes else size

    @property
    def _owes(self) -> bool:
        """Whether it holds more than its allowance, and nothing else than its client's reading, or what it waits for,
        lets it go on."""
        return not self.share.small and (self._unsent > 0 or self.crowded)

    @property
    def announced(self) -> tuple[float, int] | None:
        """When the request began to come that is being received, and what had `moved` then; None if there is none."""
        return (self._announced, self._announced_moved) if self._frame_held else None

    @property
    def waits_to_be_read(self) -> bool:
        """Whether the client has sent on, and it is the server that does not read: asked of the stream."""
        if self._channel is None or self._owes:
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
        if self._frame_waits and held + self._frame_waits > most:
            return True
        return any(held + course.owed > most for course in self._hungry)

    @property
    def paused(self) -> bool:
        """Whether it is not read at present."""
        return self._channel is not None and self._channel.paused

    def start(self) -> None:
        """Begin to read."""
        self._handler.connected(self)
        self._channel = open_channel(
            self.stream,
            self,
            self._supervisor,
            frame_limit=self.frame_limit,
            first_room=self._settings.first_room,
            turns=_Turns(self.flow, self._progressed, self.share.unasked),
            admit=self._admit,
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
        for course in list(self._courses):
            self._give_up(course)
        for task in list(self._tasks):
            task.cancel()

    def drain(self) -> None:
        """Begin no more requests, and close when all that have begun are answered."""
        self._draining = True
        self._forget_backlog()
        if self._parted is not None:
            self._regulate()
            return
        self._pause()
        self._close_if_drained()

    async def wait_closed(self) -> None:
        """Wait until the tasks of a closed connection have ended."""
        for task in list(self._tasks):
            await task.wait()
        if self._channel is not None:
            await self._channel.wait_closed()

    # What the channel asks and reports.

    def frames_received(self, frames: list[memoryview]) -> None:
        self._active = self._now()
        size = len(frames[0]) if len(frames) == 1 else sum(map(len, frames))
        if self._frame_held and self._channel is not None:
            admitted = self._channel.take_admitted()
            self._frame_held -= admitted
            size -= admitted
        self.share.add(size, size)
        self._backlog.extend(frames)
        if self._draining:
            self._forget_backlog()
        else:
            self._begin_all(self.flow.until)

    def channel_closed(self, cause: BaseException | None) -> None:
        if self._closing or not (self._backlog or self._begun is not None):
            self._end(cause)
            return
        # a client may send with `acks=0` and go: what was received whole begins as if it were still there
        self._parted = _Parted(cause)
        self.share.go_on()
        self.share.add(-self._unsent - self._frame_held, requests=-self._frame_held)
        self._frame_held = self._frame_waits = 0
        self._unsent = 0
        self._desert()
        self._begin_soon()

    def _desert(self) -> None:
        """The client has gone: nobody waits for its replies, but what it had sent begins."""
        if self._deserted:
            return
        self._deserted = True
        for slot in self._slots:
            if slot.done:
                self._reply_bytes -= slot.held
                self.share.add(-slot.held)
                slot.reply, slot.held = None, 0
        callbacks, self._deserted_callbacks = self._deserted_callbacks, []
        for callback in callbacks:
            callback()
        for course in list(self._courses):
            if not course.lasting and course is not self._running and course in self._courses:
                self._give_up(course)
                course.then(course.slot, None)

    def _end(self, cause: BaseException | None) -> None:
        """Nothing of it begins any more."""
        if self.closed:
            return
        self.closed = True
        self._backlog.clear()
        self._slots.clear()
        hungry, self._hungry = self._hungry, []
        self._slot_bytes = self._reply_bytes = self._unsent = self._undone = 0
        self.share.close()
        self._begun = self.beginning = None
        for course in list(self._courses):
            if not course.lasting:
                self._give_up(course)
        for course in hungry:
            if course.lasting:
                self.flow.add(partial(self._go_on, course))  # a closed share gives what is asked for
        # as text: log records that are kept must not keep the connection
        if isinstance(cause, ProtocolError):
            logger.warning("%s sent what is no Kafka request, the connection is closed: %s", self.peer, str(cause))
        elif isinstance(cause, TruncatedError):
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
        self._count_unsent()
        if self._slots:
            self._tell_next()
        elif self._draining:
            self._close_if_drained()
        if self._backlog or self.paused:
            self._begin_now_or_soon()

    def _progressed(self) -> None:
        """Some of what was pending has been written, and more is left."""
        self._count_unsent()
        self._tell_next()

    def _pause(self) -> None:
        """Read no further for now: what becomes of the client is looked after meanwhile."""
        if self._channel is not None and not self._channel.paused:
            self._channel.pause()
            self._on_pause(self)

    # Memory.

    def _admit(self, size: int, here: int) -> bool:
        """Whether a request may be received now of which `here` bytes have come: they are held in any case."""
        self._announced, self._announced_moved = self._now(), self.moved
        if self._take_for_frame(size):
            return True
        if not self.closed:
            self.share.begin_request(here)
            self._frame_held += here
            self._frame_waits = size - here
            self._pause()
            self._hurry()
        return False

    def _take_for_frame(self, size: int) -> bool:
        # without any of these, what it keeps is all that it holds
        alone = not (self._slots or self._backlog or self._unsent or self._undelivered)
        try:
            taken = self.share.take(size, request=True, last=alone)
        except TooMuchMemoryError as error:
            self._failed(error)
            return False
        if taken:
            self._frame_held += size
        return taken

    @property
    def _undelivered(self) -> bool:
        return self._channel is not None and self._channel.undelivered

    def _hurry(self) -> None:
        """Something waits for memory: the first answer may be all that it waits for."""
        if self.crowded:
            self._tell_next()

    def _memory_freed(self) -> None:
        if not self._woken and not self.closed:
            self._woken = True
            self.flow.add(self._ask_again)

    def _ask_again(self, until: float) -> bool:
        self._woken = False
        if self.closed:
            return False
        assert self._channel is not None
        if self._frame_waits:
            if self._take_for_frame(self._frame_waits):
                self._frame_waits = 0
                self.share.go_on()
                self._channel.admit()
            else:
                self._hurry()
        self._tell_next()
        hungry, self._hungry = self._hungry, []
        for course in hungry:
            self.flow.add(partial(self._go_on, course))
        self._begin_all(until)
        self.flow.add(self._asked)
        return False

    def _asked(self, _until: float) -> bool:
        if not (self._slots or self._backlog or self._frame_waits):  # else it may need what it has found no use for yet
            self.share.asked()
        return False

    def _count_unsent(self) -> None:
        assert self._channel is not None
        if self._parted is not None:
            return
        unsent = self._channel.pending_bytes
        if unsent != self._unsent:
            self.share.add(unsent - self._unsent)
            self._unsent = unsent

    def _forget_backlog(self) -> None:
        size = sum(map(len, self._backlog))
        self._backlog.clear()
        self.share.add(-size, requests=-size)

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
                self._flush()
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
        if self._full():
            return False
        if share.held <= self._budget.allowance or share.may_begin():
            return True
        return not self._slots and share.held >= share.most  # nothing comes free before it has begun

    def _full(self) -> bool:
        settings = self._settings
        assert self._channel is not None
        if self._parted is not None:
            return self._begun is not None
        if self._deserted:
            return self._begun is not None or self._working >= _MOST_TASKS
        return (
            self._begun is not None
            or self._working >= _MOST_TASKS
            or len(self._slots) >= settings.max_outstanding
            or self._slot_bytes >= settings.max_outstanding_bytes
            or self._channel.pending_bytes + self._reply_bytes >= settings.max_unsent_bytes
        )

    def _regulate(self) -> None:
        channel = self._channel
        if channel is None or self.closed:
            return
        if self._parted is not None:
            if not self._backlog and self._begun is None:
                self._end(self._parted.cause)
            elif self._may_begin():
                self._begin_soon()
            return
        blocked = bool(self._backlog or self._draining or self._frame_waits)
        if self._backlog and not self._draining and self._may_begin():
            self._begin_soon()  # only its time was over
        if blocked or self._full():
            self._pause()
            if self._backlog:
                self._hurry()
        elif channel.paused:
            channel.resume()

    def _begin(self, frame: memoryview, until: float) -> bool:
        """Begin one request; False if the connection was closed for it."""
        size = len(frame)
        slot = self.beginning = Place(self, size)
        self._slots.append(slot)
        self._slot_bytes += size
        self._undone += 1
        try:
            answer = self._handler.begin(frame, self)
        except Exception as error:  # noqa: BLE001  (it is logged)
            self._failed(error)
            return False
        if self.closed:
            if isinstance(answer, Coroutine):
                answer.close()  # as if the connection had ended a moment before
            return False
        if type(answer) is list:  # as nearly always
            self._place(slot, answer)
        elif answer is None:
            self._forget(slot)
        elif isinstance(answer, Steps):
            self._begun = course = _Course(slot, answer, self._begun_in_steps)
            self._courses.add(course)
            if self._go_on(course, until):
                self.flow.add(partial(self._go_on, course))
        else:
            self._follow(slot, answer)
        return not self.closed

    def _forget(self, slot: Place) -> None:
        """The request that has just begun needs no reply: it has no place."""
        assert self._slots[-1] is slot
        self._slots.pop()
        self._slot_bytes -= slot.frame
        self._undone -= 1
        self.share.add(-slot.held, requests=-slot.frame)

    def _begun_in_steps(self, slot: Place, answer: Answer) -> None:
        self._begun = None
        self._follow(slot, answer)
        if not self._batching and not self.closed:
            self._flush()
            self._begin_now_or_soon()

    def _follow(self, slot: Place, answer: Answer) -> None:
        """See to it that the answer of a request that has begun gets into its place."""
        if isinstance(answer, Completion):
            answer.on_done(lambda completion: self._completed(slot, completion))
        elif answer is None or isinstance(answer, Sequence):
            self._place(slot, answer)
        elif isinstance(answer, Steps):
            self._answer_in_steps(slot, answer)
        else:
            self._start_task(slot, answer)

    def _start_task(self, slot: Place, answer: Awaitable[Reply | Steps | None]) -> None:
        try:
            task = self._supervisor.spawn(self._finish, slot, answer, name=f"answer {self.peer}", on_error=self._failed)
        except Exception as error:  # noqa: BLE001  (the server's owner has failed or closed; it is logged)
            if isinstance(answer, Coroutine):
                answer.close()
            self._failed(error)
            return
        self._working += 1
        slot.held += _PER_TASK
        self.share.add(_PER_TASK)
        self._tasks.add(task)
        task.on_done(self._tasks.discard)

    async def _finish(self, slot: Place, answer: Awaitable[Reply | Steps | None]) -> None:
        reply = await answer
        full = self._working >= _MOST_TASKS
        self._working -= 1
        self._answered(slot, reply)
        if full and not self.closed and not self._batching:
            self._begin_now_or_soon()

    def _completed(self, slot: Place, completion: Completion[Reply | Steps | None]) -> None:
        if completion.error is None:
            self._answered(slot, completion.result())
        elif not self.closed:
            self._failed(completion.error)

    def _answered(self, slot: Place, reply: Reply | Steps | None) -> None:
        if self.closed:
            return
        if isinstance(reply, Steps):
            self._answer_in_steps(slot, reply)
            return
        self._place(slot, reply)
        if self._batching or self._slots[0] is not slot:
            return
        self._flush()
        self._begin_now_or_soon()

    def _answer_in_steps(self, slot: Place, steps: Steps) -> None:
        course = _Course(slot, steps, self._answered)
        self._courses.add(course)
        self.flow.add(partial(self._go_on, course))

    def _place(self, slot: Place, reply: Reply | None) -> None:
        if self._deserted:
            reply = None
        slot.done, slot.reply = True, reply
        self._undone -= 1
        size = 0 if reply is None else sum(map(len, reply))
        frame = slot.frame
        self._reply_bytes += size
        self._slot_bytes -= frame
        self.share.add(size - slot.held, -frame)
        slot.frame, slot.held = 0, size

    def _release_frame(self, slot: Place) -> None:
        self._slot_bytes -= slot.frame
        self.share.add(-slot.frame, requests=-slot.frame)
        slot.held -= slot.frame
        slot.frame = 0

    def _flush(self) -> None:
        """Send the replies whose turn it is."""
        slots = self._slots
        if slots and slots[0].done:
            parts: list[Buffer] = []
            size = 0
            while slots and slots[0].done:
                slot = slots.popleft()
                if slot.reply is not None:
                    parts.extend(slot.reply)
                    size += slot.held
            if parts and self._channel is not None:
                self._active = self._now()
                self._reply_bytes -= size
                self._unsent += size
                self._written += size
                self._channel.write(parts)
                if not self.closed:
                    self._count_unsent()
        if slots:
            slots[0].told_next()
        elif self._draining:
            self._close_if_drained()

    def is_next(self, slot: Place) -> bool:
        """See `Place.is_next`."""
        if self.closed or slot.done:
            return False
        before = 0 if self._channel is None else self._channel.pending_bytes
        if self._slots[0] is not slot:
            if self._undone > 1:
                return False
            before += self._reply_bytes
        return before < self._settings.max_unsent_bytes

    def is_first(self, slot: Place) -> bool:
        """Whether the replies behind this request wait for its own."""
        return bool(self._slots) and self._slots[0] is slot

    def _tell_next(self) -> None:
        if self._slots and not self._slots[0].done:
            self._slots[0].told_next()

    # Steps.

    def _go_on(self, course: _Course, until: float) -> bool:
        """Do steps of a request up to a time; whether there is more to do in the next turn."""
        if course.slot.held > LARGE:
            course.hold_off.begin()
        more = self._step(course, until)
        if not more:
            course.hold_off.end()
        return more

    def _step(self, course: _Course, until: float) -> bool:
        work = course.work
        while course in self._courses:
            try:
                if course.owed:
                    if not self._may_take(course):
                        self._hungry.append(course)
                        self._hurry()
                        return False
                    course.slot.held += course.owed
                    course.owed = 0
                self._running = course
                step = next(work)
            except StopIteration as end:
                self._courses.discard(course)
                course.then(course.slot, end.value)
                return False
            except Exception as error:  # noqa: BLE001  (it is logged)
                self._courses.discard(course)
                self._failed(error)
                return False
            finally:
                self._running = None
            if isinstance(step, int):
                if step < 0:
                    course.slot.held += step
                    self.share.add(step)
                else:
                    course.owed = step
            elif step is FRAME_READ:
                self._release_frame(course.slot)
            elif step is not None and not step.done:
                step.on_done(lambda _: self.flow.add(partial(self._go_on, course)))
                return False
            if self._clock() >= until:
                return course in self._courses
        work.close()  # it closed its own connection
        return False

    def _may_take(self, course: _Course) -> bool:
        slot = course.slot
        if slot.taken > self.share.most:  # one thing larger than its part: what goes with that cannot wait for it
            self.share.add(course.owed)
            return True
        alone = slot.held + course.owed > self.share.most  # whatever else comes free
        return self.share.take(course.owed, last=alone, over=self.is_first(slot))

    def _give_up(self, course: _Course) -> None:
        """Nobody waits for these steps any more."""
        self._courses.discard(course)
        if course in self._hungry:
            self._hungry.remove(course)
        course.hold_off.end()
        if course is not self._running:  # else it sees it itself
            course.work.close()

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, TooMuchMemoryError):
            logger.warning("%s asks for too much, the connection is closed: %s", self.peer, str(error))
        elif isinstance(error, ProtocolError):
            logger.warning("%s sent a malformed request, the connection is closed: %s", self.peer, str(error))
        elif isinstance(error, UnknownRequestError):
            logger.warning("%s sent an unknown request, the connection is closed: %s", self.peer, str(error))
        else:
            logger.error("%s: a request failed, the connection is closed", self.peer, exc_info=error)
        self.close()

    def _close_if_drained(self) -> None:
        channel = self._channel
        if self._draining and channel is not None and not self._slots and not channel.pending_bytes:
            self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "draining" if self._draining else "open"
        return f"<ServerConnection {self.peer} {state}, {len(self._slots)} outstanding>"
