"""Channels by tasks: over sockets where there are no callbacks (trio), and over any other byte stream."""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import AsyncIterator, Sequence
from functools import partial

import anyio

from kclient.concurrency import Supervisor, TaskHandle
from kclient.errors import ProtocolError
from kclient.net.channel import Channel, ChannelOwner, Turns
from kclient.net.frames import FrameAssembler
from kclient.net.socket_io import SocketIO
from kclient.net.streams import ByteStream, buffer_size
from kclient.types import Buffer

__all__ = ["SocketChannel", "StreamChannel"]


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


class SocketChannel(_TaskChannel, SocketIO):
    """A socket on any backend, by a task that waits until it can be read."""

    def _write_later(self) -> None:
        self._start_writer()

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
                    self._receive_ready()

    async def _write(self) -> None:
        while self._pending:
            await anyio.wait_writable(self._stream.socket)
            async with self._turn():
                if self.closed or not self._send_ready():
                    return
            if self._pending:
                self._progressed()
        self._writing = False
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
