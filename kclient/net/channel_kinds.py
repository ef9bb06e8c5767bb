"""The kinds of channels, by what they read from, and `open_channel`, which chooses.

- `LoopChannel`: a socket on asyncio (uvloop too), with TLS or without, by the loop's reader and writer callbacks; no
  task is involved.
- `SocketChannel`: the same on trio, by one reading task and, while writes are pending, one writing task.
- `MemoryChannel`: a memory stream, in the turn of the loop after a change; no task is involved.
- `StreamChannel`: any other `ByteStream`, by two tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

import anyio

from kclient.concurrency import Supervisor, TaskHandle, current_backend, loop_soon
from kclient.errors import ProtocolError
from kclient.net.channel import Channel, ChannelOwner, Turns
from kclient.net.frames import FIRST_ROOM, FrameAssembler
from kclient.net.streams import FAIR_FRAMES, ByteStream, MemoryStream, SocketStream, buffer_size
from kclient.protocol.framing import DEFAULT_LIMIT
from kclient.types import Buffer

__all__ = ["LoopChannel", "MemoryChannel", "SocketChannel", "StreamChannel", "open_channel"]


class LoopChannel(Channel):
    """A socket on an asyncio loop, by the loop's reader and writer callbacks."""

    def __init__(
        self,
        stream: SocketStream,
        owner: ChannelOwner,
        assembler: FrameAssembler,
        turns: Turns | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(stream, owner, assembler, turns)
        self._loop = loop
        self._stream = stream
        self._fd = stream.socket.fileno()
        self._writing = False
        self._waiting_to_read = False
        self._waiting_to_write = False
        self._read_on()

    def write(self, parts: Sequence[Buffer]) -> None:
        if self.closed:
            return
        self._pending.extend(parts)
        self._wait_to_write(sum(map(len, parts)))
        if not self._corked:
            self._push()

    def _push(self) -> None:
        if not self._writing and self._send_ready(self._stream) and self._pending:
            self._writing = True
            self._loop.add_writer(self._fd, self._on_writable)

    def _uncork(self) -> None:
        self._corked = False
        if self._pending and not self._writing:
            self._push()
            if not self._pending and not self.closed:
                self._owner.write_drained()

    def pause(self) -> None:
        if not self.paused and not self.closed and not self._waiting_to_read:
            self._loop.remove_reader(self._fd)
        super().pause()

    def resume(self) -> None:
        if self.paused and not self.closed and not self._waiting_to_read:
            self._read_on()
        super().resume()

    @property
    def deserted(self) -> bool:
        return self._stream.deserted

    def arrived(self, most: int) -> int:
        return self._stream.peek(most)

    @property
    def in_flight(self) -> int:
        return self._stream.in_flight

    def poll(self) -> None:
        if not self.closed and not self.paused:
            self._receive_ready(self._stream)

    def _read_on(self) -> None:
        self._loop.add_reader(self._fd, self._on_readable)
        if self._stream.unread:
            self._loop.call_soon(self._on_readable)

    def _on_readable(self) -> None:
        if self.closed or self.paused or self._waiting_to_read:
            return
        turns = self._turns
        if turns is None:
            self._read()
        elif turns.enter():
            try:
                self._read()
            finally:
                turns.leave()
        else:
            self._waiting_to_read = True
            self._loop.remove_reader(self._fd)
            turns.add(self._read_in_turn)

    def _read(self) -> None:
        if self._receive_ready(self._stream) and self._stream.unread:
            self._loop.call_soon(self._on_readable)  # the others have their turn first

    def _read_in_turn(self, until: float) -> bool:
        self._waiting_to_read = False
        if not self.closed and not self.paused:
            self._loop.add_reader(self._fd, self._on_readable)
            self._read()
        return False

    def _on_writable(self) -> None:
        if self.closed or self._waiting_to_write:
            return
        turns = self._turns
        if turns is None:
            self._write_on()
        elif turns.enter():
            try:
                self._write_on()
            finally:
                turns.leave()
        else:
            self._waiting_to_write = True
            self._loop.remove_writer(self._fd)
            turns.add(self._write_in_turn)

    def _write_on(self) -> None:
        if not self._send_ready(self._stream):
            return
        if self._pending:
            self._progressed()
        else:
            self._writing = False
            self._loop.remove_writer(self._fd)
            self._owner.write_drained()

    def _write_in_turn(self, until: float) -> bool:
        self._waiting_to_write = False
        if not self.closed:
            self._loop.add_writer(self._fd, self._on_writable)
            self._write_on()
        return False

    def _release(self) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
        self._stream.say_end()
        self._stream.socket.close()


class MemoryChannel(Channel):
    """A memory stream on any backend: what has changed is looked at in the loop's next turn; without a task."""

    def __init__(
        self, stream: MemoryStream, owner: ChannelOwner, assembler: FrameAssembler, turns: Turns | None
    ) -> None:
        super().__init__(stream, owner, assembler, turns)
        self._memory = stream
        # each write by itself: a frame that comes in one piece is not copied again
        self._writes: deque[Sequence[Buffer]] = deque()
        self._soon = loop_soon()
        self._scheduled = False
        stream.watch(self._changed)
        self._changed()

    def write(self, parts: Sequence[Buffer]) -> None:
        if self.closed:
            return
        try:
            if not self._writes and self._memory.send_nowait(parts):
                return
        except OSError as error:
            self.close(error)
            return
        self._writes.append(parts)
        self._wait_to_write(sum(map(len, parts)))

    def resume(self) -> None:
        super().resume()
        self._changed()

    @property
    def deserted(self) -> bool:
        return self._memory.deserted

    def arrived(self, most: int) -> int:
        return min(self._memory.unread_bytes, most)

    def poll(self) -> None:
        if not self.closed and not self.paused:
            self._read()

    def _changed(self) -> None:
        if not self._scheduled and not self.closed:
            self._scheduled = True
            self._soon(self._run)

    def _run(self) -> None:
        turns = self._turns
        if turns is None:
            self._scheduled = False
            self._work()
        elif turns.enter():
            self._scheduled = False
            try:
                self._work()
            finally:
                turns.leave()
        else:
            turns.add(self._work_in_turn)

    def _work_in_turn(self, until: float) -> bool:
        self._scheduled = False
        self._work()
        return False

    def _work(self) -> None:
        if self._writes and not self.closed:
            self._write()
        self.poll()

    def _read(self) -> None:
        data: Buffer | None = None
        try:
            assembler = self._assembler
            while (
                len(assembler.frames) < FAIR_FRAMES
                and not assembler.blocked
                and (data := self._memory.receive_nowait())
            ):
                assembler.feed(data)
        except OSError as error:
            self._deliver()
            self.close(error)
            return
        except ProtocolError as error:
            self._garbled(error)
            return
        self._deliver()
        if data is None:
            return
        if data:
            self._changed()  # the others have their turn first
        else:
            self._ended()

    def _write(self) -> None:
        try:
            while self._writes and self._memory.send_nowait(self._writes[0]):
                self._wait_to_write(-buffer_size(self._writes.popleft()))
        except OSError as error:
            self.close(error)
            return
        if self._writes:
            self._progressed()
        else:
            self._owner.write_drained()

    def _release(self) -> None:
        self._writes.clear()
        self._memory.close()


class _TaskChannel(Channel):
    """What channels by tasks have in common."""

    def __init__(
        self,
        stream: ByteStream,
        owner: ChannelOwner,
        assembler: FrameAssembler,
        turns: Turns | None,
        supervisor: Supervisor,
    ) -> None:
        super().__init__(stream, owner, assembler, turns)
        self._supervisor = supervisor
        self._resumed: anyio.Event | None = None
        self._writer: TaskHandle | None = None
        self._reader = supervisor.spawn(self._read, name=f"read {stream.peer}", on_error=self.close)

    def resume(self) -> None:
        super().resume()
        if self._resumed is not None:
            self._resumed.set()

    async def _wait_resumed(self) -> None:
        while self.paused:
            self._resumed = anyio.Event()
            await self._resumed.wait()

    async def wait_closed(self) -> None:
        await self._reader.wait()

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Work as long as it takes, when it is the channel's turn."""
        turns = self._turns
        if turns is None:
            yield
            return
        if not turns.enter():
            granted = anyio.Event()
            turns.add(partial(_grant, granted))
            await granted.wait()
        try:
            yield
        finally:
            turns.leave()

    def _start_writer(self) -> None:
        if self._writer is None and not self.closed:
            self._writer = self._supervisor.spawn(self._write, name=f"write {self.peer}", on_error=self.close)

    def _release(self) -> None:
        self._reader.cancel()
        if self._writer is not None:
            self._writer.cancel()

    async def _read(self) -> None:
        cause: BaseException = ConnectionAbortedError("the task that reads was cancelled")
        try:
            await self._read_all()
        except Exception as error:
            cause = error
            raise
        finally:
            # not before the tasks have let go of it; and never left open, even if nobody called `close`
            try:
                with anyio.CancelScope(shield=True):
                    await self.stream.aclose()
            finally:
                self.close(cause)

    async def _read_all(self) -> None:
        raise NotImplementedError

    async def _write(self) -> None:
        raise NotImplementedError


def _grant(event: anyio.Event, until: float) -> bool:
    event.set()
    return False


class SocketChannel(_TaskChannel):
    """A socket on any backend, by a task that waits until it can be read."""

    def __init__(
        self,
        stream: SocketStream,
        owner: ChannelOwner,
        assembler: FrameAssembler,
        turns: Turns | None,
        supervisor: Supervisor,
    ) -> None:
        self._stream = stream
        super().__init__(stream, owner, assembler, turns, supervisor)

    def write(self, parts: Sequence[Buffer]) -> None:
        if self.closed:
            return
        self._pending.extend(parts)
        self._wait_to_write(sum(map(len, parts)))
        if not self._corked:
            self._push()

    def _push(self) -> None:
        if self._writer is None and self._send_ready(self._stream) and self._pending:
            self._start_writer()

    def _uncork(self) -> None:
        self._corked = False
        if self._pending and self._writer is None:
            self._push()
            if not self._pending and not self.closed:
                self._owner.write_drained()

    @property
    def deserted(self) -> bool:
        return self._stream.deserted

    def arrived(self, most: int) -> int:
        return self._stream.peek(most)

    @property
    def in_flight(self) -> int:
        return self._stream.in_flight

    def poll(self) -> None:
        if not self.closed and not self.paused:
            self._receive_ready(self._stream)

    def _release(self) -> None:
        # the other side learns it now; the descriptor is closed when the tasks have let go of it
        self._stream.say_end()
        with contextlib.suppress(OSError):
            self._stream.socket.shutdown(socket.SHUT_RDWR)
        super()._release()

    async def _read_all(self) -> None:
        while not self.closed:
            await self._wait_resumed()
            if self._stream.unread:
                await anyio.lowlevel.checkpoint()  # the others have their turn first
            else:
                await anyio.wait_readable(self._stream.socket)
            async with self._turn():
                if not self.paused and not self.closed:
                    self._receive_ready(self._stream)

    async def _write(self) -> None:
        while self._pending:
            await anyio.wait_writable(self._stream.socket)
            async with self._turn():
                if self.closed or not self._send_ready(self._stream):
                    return
            if self._pending:
                self._progressed()
        self._writer = None
        self._owner.write_drained()


class StreamChannel(_TaskChannel):
    """Any byte stream, by a task for each direction."""

    def __init__(
        self,
        stream: ByteStream,
        owner: ChannelOwner,
        assembler: FrameAssembler,
        turns: Turns | None,
        supervisor: Supervisor,
    ) -> None:
        self._writes: deque[Sequence[Buffer]] = deque()
        self._ahead = False  # whether a piece was received and waits to be fed
        super().__init__(stream, owner, assembler, turns, supervisor)

    def write(self, parts: Sequence[Buffer]) -> None:
        if self.closed:
            return
        self._writes.append(parts)
        self._wait_to_write(sum(map(len, parts)))
        self._start_writer()

    def arrived(self, most: int) -> int:
        return most if self._ahead else 0  # nobody knows how much more there is

    def _release(self) -> None:
        self._writes.clear()
        super()._release()

    async def _read_all(self) -> None:
        while not self.closed:
            data = await self.stream.receive()
            if not data:
                self._ended()
                return
            self._ahead = True
            await self._wait_resumed()  # one piece ahead, so that an end is seen
            async with self._turn():
                self._ahead = False
                try:
                    self._assembler.feed(data)
                except ProtocolError as error:
                    self._garbled(error)
                else:
                    self._deliver()

    async def _write(self) -> None:
        while self._writes:
            parts = self._writes.popleft()
            await self.stream.send(parts)
            self._wait_to_write(-buffer_size(parts))
            self._progressed()
        self._writer = None
        self._owner.write_drained()


def open_channel(
    stream: ByteStream,
    owner: ChannelOwner,
    supervisor: Supervisor,
    *,
    frame_limit: int = DEFAULT_LIMIT,
    first_room: int = FIRST_ROOM,
    turns: Turns | None = None,
    admit: Callable[[int, int], bool] | None = None,
) -> Channel:
    """Start to read a stream; from now on it belongs to the channel, which closes it.

    Args:
        stream: A connected byte stream.
        owner: Is told of frames and of the end.
        supervisor: Runs the tasks, where tasks are needed.
        frame_limit: Largest size of a frame, in bytes.
        first_room: See `FrameAssembler`.
        turns: Shares the loop with other channels; None for a channel that reads and writes whenever it can.
        admit: See `FrameAssembler`.
    """
    assembler = FrameAssembler(frame_limit, first_room=first_room, admit=admit)
    if isinstance(stream, MemoryStream):
        return MemoryChannel(stream, owner, assembler, turns)
    if not isinstance(stream, SocketStream):
        return StreamChannel(stream, owner, assembler, turns, supervisor)
    try:
        if current_backend() == "asyncio":
            # loops without readers (Windows' proactor) take the way of the tasks
            with contextlib.suppress(NotImplementedError):
                return LoopChannel(stream, owner, assembler, turns, asyncio.get_running_loop())
        return SocketChannel(stream, owner, assembler, turns, supervisor)
    except BaseException:
        stream.close()
        raise
