"""One connection on the server's side: requests begin in order, replies leave in order, both bounded."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from kclient.concurrency import Completion, Supervisor, TaskHandle, loop_clock
from kclient.errors import ProtocolError
from kclient.net.channel import Channel, TruncatedError
from kclient.net.channel_kinds import open_channel
from kclient.net.frames import FIRST_ROOM
from kclient.net.streams import ByteStream, buffer_size
from kclient.protocol.errors import UnknownRequestError
from kclient.protocol.framing import DEFAULT_LIMIT
from kclient.types import Buffer

if TYPE_CHECKING:
    from kclient.net.server import RequestHandler

__all__ = ["Reply", "ServerConnection", "ServerSettings"]

logger: logging.Logger = logging.getLogger("kclient.net.server")

Reply: TypeAlias = Sequence[Buffer]
"""A whole frame with its leading size, in parts. The buffers must not change until they have been sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Limits and times of a server; sizes in bytes, times in seconds."""

    frame_limit: int = DEFAULT_LIMIT
    """Largest request (`socket.request.max.bytes`); a connection that announces a larger one is closed."""
    first_room: int = FIRST_ROOM
    """Memory that a connection gets for a request that is announced; more comes as the request's bytes do."""
    max_outstanding: int = 64
    """Requests of one connection that may be unanswered before it is not read any more."""
    max_outstanding_bytes: int = 64 * 1024 * 1024
    """The same, counted in bytes of requests; one request always fits."""
    max_unsent_bytes: int = 16 * 1024 * 1024
    """Bytes of replies that a client may leave unread before it is not read any more."""
    idle_timeout: float | None = 600.0
    """A connection without requests for so long is closed (`connections.max.idle.ms`); None for never."""
    handshake_timeout: float = 10.0
    """A connection that has completed no TLS handshake after so long is closed."""
    send_buffer_bytes: int = -1
    """Of the sockets; -1 leaves it to the system."""
    receive_buffer_bytes: int = -1
    """Of the sockets; -1 leaves it to the system."""
    backlog: int = 1024
    """Connections that wait to be accepted."""


class _Slot:
    """A request's place in the order of replies."""

    __slots__ = ("done", "reply", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.done = False
        self.reply: Reply | None = None


class ServerConnection:
    """A client's connection; made by `Server`."""

    def __init__(
        self,
        stream: ByteStream,
        handler: RequestHandler,
        supervisor: Supervisor,
        settings: ServerSettings,
        label: object,
    ) -> None:
        self.peer: str = stream.peer
        """The client's address, for logs."""
        self.label = label
        """The listener's label."""
        self.context: Any = None
        """For the handler's own use."""
        self.frame_limit: int = settings.frame_limit
        """Largest request that is taken, in bytes; changed by `limit_frames`."""
        self.closed: bool = False
        self._now = loop_clock()
        self.last_active: float = self._now()
        """When the last request came or the last reply left, on the clock of `anyio.current_time`."""
        self.stream = stream
        """What it was made on; it belongs to the connection."""
        self._handler = handler
        self._supervisor = supervisor
        self._settings = settings
        self._channel: Channel | None = None
        self._slots: deque[_Slot] = deque()
        self._slot_bytes = 0
        self._reply_bytes = 0  # of replies that wait for those before them
        self._backlog: deque[memoryview] = deque()
        self._batching = False
        self._draining = False
        self._tasks: set[TaskHandle] = set()
        self._close_callbacks: list[Callable[[ServerConnection], object]] = []

    @property
    def outstanding(self) -> int:
        """Requests that have begun and whose replies have not been handed to the stream."""
        return len(self._slots)

    def start(self) -> None:
        """Begin to read."""
        self._handler.connected(self)
        self._channel = open_channel(
            self.stream,
            self,
            self._supervisor,
            frame_limit=self.frame_limit,
            first_room=self._settings.first_room,
        )

    def limit_frames(self, limit: int | None) -> None:
        """Take requests up to `limit` bytes from now on; None for what the server's settings say."""
        self.frame_limit = self._settings.frame_limit if limit is None else min(limit, self._settings.frame_limit)
        if self._channel is not None:
            self._channel.frame_limit = self.frame_limit

    def on_close(self, callback: Callable[[ServerConnection], object]) -> None:
        """Call `callback(connection)` when the connection has ended; it must not raise."""
        self._close_callbacks.append(callback)

    def close(self) -> None:
        """Close at once; requests that have begun go on, their replies are dropped."""
        if self._channel is not None:
            self._channel.close()

    def abort(self) -> None:
        """Close at once, and cancel the requests that have begun."""
        self.close()
        for task in list(self._tasks):
            task.cancel()

    def drain(self) -> None:
        """Begin no more requests, and close when all that have begun are answered."""
        self._draining = True
        self._backlog.clear()
        if self._channel is not None:
            self._channel.pause()
        self._close_if_drained()

    async def wait_closed(self) -> None:
        """Wait until the tasks of a closed connection have ended."""
        for task in list(self._tasks):
            await task.wait()
        if self._channel is not None:
            await self._channel.wait_closed()

    # What the channel reports.

    def frames_received(self, frames: list[memoryview]) -> None:
        self.last_active = self._now()
        if self._draining:
            return
        self._backlog.extend(frames)
        self._begin_all()

    def channel_closed(self, cause: BaseException | None) -> None:
        self.closed = True
        self._backlog.clear()
        self._slots.clear()
        self._slot_bytes = self._reply_bytes = 0
        # as text: log records that are kept must not keep the connection
        if isinstance(cause, ProtocolError):
            logger.warning("%s sent what is no Kafka request, the connection is closed: %s", self.peer, str(cause))
        elif isinstance(cause, TruncatedError):
            logger.info("%s: %s", self.peer, str(cause))
        elif cause is not None:
            logger.debug("%s: the connection ended: %s", self.peer, str(cause))
        callbacks, self._close_callbacks = self._close_callbacks, []
        try:
            self._handler.disconnected(self)
        except Exception:
            logger.exception("%s: the handler failed at the connection's end", self.peer)
        for callback in callbacks:
            callback(self)

    def write_drained(self) -> None:
        self._begin_all()
        self._close_if_drained()

    # Requests.

    def _begin_all(self) -> None:
        """Begin what may begin; read on or stop reading, as the bounds say; send what is complete in one piece."""
        if self._batching:
            return
        self._batching = True
        try:
            more = True
            while more and not self.closed:
                more = self._begin_some()
                self._flush()
                more = more and bool(self._backlog) and not self._full()
        finally:
            self._batching = False
        self._regulate()

    def _begin_some(self) -> bool:
        """Begin requests up to the bounds; False if the connection was closed for one."""
        while self._backlog and not self._full():
            if not self._begin(self._backlog.popleft()):
                return False
        return True

    def _full(self) -> bool:
        settings = self._settings
        assert self._channel is not None
        return (
            len(self._slots) >= settings.max_outstanding
            or self._slot_bytes >= settings.max_outstanding_bytes
            or self._channel.pending_bytes + self._reply_bytes >= settings.max_unsent_bytes
        )

    def _regulate(self) -> None:
        channel = self._channel
        if channel is None or self.closed:
            return
        blocked = bool(self._backlog) or self._full() or self._draining
        if blocked and not channel.paused:
            channel.pause()
        elif not blocked and channel.paused:
            channel.resume()

    def _begin(self, frame: memoryview) -> bool:
        """Begin one request; False if the connection was closed for it."""
        try:
            answer = self._handler.begin(frame, self)
        except Exception as error:  # noqa: BLE001  (it is logged)
            self._failed(error)
            return False
        if answer is None:
            return not self.closed
        slot = _Slot(len(frame))
        self._slots.append(slot)
        self._slot_bytes += slot.size
        if isinstance(answer, Completion):
            answer.on_done(lambda completion: self._completed(slot, completion))
        elif isinstance(answer, Sequence):
            self._place(slot, answer)
        else:
            self._start_task(slot, answer)
        return not self.closed

    def _start_task(self, slot: _Slot, answer: Awaitable[Reply | None]) -> None:
        try:
            task = self._supervisor.spawn(self._finish, slot, answer, name=f"answer {self.peer}", on_error=self._failed)
        except Exception as error:  # noqa: BLE001  (the server's owner has failed or closed; it is logged)
            if isinstance(answer, Coroutine):
                answer.close()
            self._failed(error)
            return
        self._tasks.add(task)
        task.on_done(self._tasks.discard)

    async def _finish(self, slot: _Slot, answer: Awaitable[Reply | None]) -> None:
        self._answered(slot, await answer)

    def _completed(self, slot: _Slot, completion: Completion[Reply | None]) -> None:
        if completion.error is None:
            self._answered(slot, completion.result())
        elif not self.closed:
            self._failed(completion.error)

    def _answered(self, slot: _Slot, reply: Reply | None) -> None:
        if self.closed:
            return
        self._place(slot, reply)
        if self._batching or self._slots[0] is not slot:
            return
        self._flush()
        self._begin_all()

    def _place(self, slot: _Slot, reply: Reply | None) -> None:
        slot.done, slot.reply = True, reply
        if reply is not None:
            self._reply_bytes += buffer_size(reply)

    def _flush(self) -> None:
        """Send the replies whose turn it is."""
        slots = self._slots
        parts: list[Buffer] = []
        while slots and slots[0].done:
            slot = slots.popleft()
            self._slot_bytes -= slot.size
            if slot.reply is not None:
                parts.extend(slot.reply)
                self._reply_bytes -= buffer_size(slot.reply)
        if parts and self._channel is not None:
            self.last_active = self._now()
            self._channel.write(parts)
        self._close_if_drained()

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, ProtocolError):
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
