"""Byte streams: what a connector returns and a connection is made on.

A `ByteStream` is all that a connection needs; tests and other transports implement it. A `SocketStream` (TCP, Unix
sockets, socket pairs; with TLS see `kclient.net.tls`) also reads and writes what is ready without waiting, so that
`kclient.net.channel` needs no task where the loop tells when the socket is ready, and no copies.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import anyio

from kclient.errors import IllegalStateError
from kclient.types import Buffer

if sys.platform == "linux":
    import fcntl
    import termios

if TYPE_CHECKING:
    from kclient.net.frames import FrameAssembler

__all__ = [
    "FAIR_FRAMES",
    "FAIR_SHARE",
    "ByteStream",
    "CutOffError",
    "MemoryStream",
    "SocketStream",
    "buffer_size",
    "memory_pair",
    "send_parts",
    "socket_pair",
    "socketpair_streams",
]

RECEIVE_SIZE = 256 * 1024
"""Bytes asked of a stream at once."""

FAIR_SHARE = 4 * 1024 * 1024
"""Bytes read from one connection before the others have their turn."""
FAIR_FRAMES = 512
"""Frames read from one connection before the others have their turn."""

_LARGE_READ = 16 * 1024  # bytes; while so many were copied others came: asking costs less than a turn of the loop
_MAX_PARTS = 512  # buffers per sendmsg; the systems' limit (IOV_MAX) is 1024
_MEMORY_LIMIT = 1024 * 1024


class CutOffError(ConnectionError):
    """The bytes ended, but the other side did not say that this is the end (TLS)."""


@runtime_checkable
class ByteStream(Protocol):
    """An ordered, reliable stream of bytes in both directions, within one event loop."""

    @property
    def peer(self) -> str:
        """The other side, for logs and error messages."""
        ...

    async def receive(self, max_bytes: int = RECEIVE_SIZE) -> Buffer:
        """Some bytes, at least one; empty at the end of the stream.

        Raises:
            OSError: If the stream broke, or was closed by this side.
        """
        ...

    async def send(self, parts: Sequence[Buffer]) -> None:
        """Send all the bytes of all parts, in order; returns when they are on their way.

        After a cancellation or an error it is unknown how much was sent: close the stream.

        Raises:
            OSError: If the stream broke, or was closed by this side.
        """
        ...

    async def aclose(self) -> None:
        """Close at once, without waiting for what is on its way; may be called again."""
        ...


def check_stream(stream: object) -> None:
    """Refuse what is not a byte stream, before a task would stumble over it.

    Raises:
        TypeError: If it has not the members of `ByteStream`.
    """
    if isinstance(stream, ByteStream):
        return
    remedy = "; wrap it: SocketStream(socket)" if isinstance(stream, socket.socket) else ""
    raise TypeError(f"expected a byte stream (peer, receive, send, aclose), got a {type(stream).__name__}{remedy}")


def buffer_size(parts: Sequence[Buffer]) -> int:
    """The number of bytes in all parts."""
    return sum(part.nbytes if isinstance(part, memoryview) else len(part) for part in parts)


def send_parts(sock: socket.socket, parts: deque[Buffer]) -> int:
    """Send what a non-blocking socket takes now, from the left of `parts`; what was sent is removed.

    Returns:
        How many bytes were sent.

    Raises:
        BlockingIOError: If it takes nothing now.
        OSError: If the socket broke.
    """
    if len(parts) == 1:
        count = sock.send(parts[0])
    else:
        count = sock.sendmsg([parts[i] for i in range(min(len(parts), _MAX_PARTS))])
    remove_sent(parts, count)
    return count


def remove_sent(parts: deque[Buffer], count: int) -> None:
    """Remove bytes from the left of `parts`."""
    while parts:
        first = parts[0]
        size = first.nbytes if isinstance(first, memoryview) else len(first)
        if count < size:
            if count:
                parts[0] = memoryview(first).cast("B")[count:]
            return
        count -= size
        parts.popleft()


class SocketStream:
    """A byte stream over a connected stream socket.

    Args:
        sock: The socket; from now on it belongs to the stream and is non-blocking.
        peer: The other side; by default the socket's own idea of it.
    """

    def __init__(self, sock: socket.socket, peer: str | None = None) -> None:
        sock.setblocking(False)
        self.socket = sock
        """The socket. Who reads or writes it directly must not use the stream's methods at the same time."""
        self.peer: str = peer if peer is not None else describe_peer(sock)
        self._closed = False

    @property
    def unread(self) -> bool:
        """Whether received bytes wait in the stream itself: the loop does not tell of them."""
        return False

    @property
    def deserted(self) -> bool:
        """Whether the other side has ended or broken the stream, also where bytes that came before are still unread."""
        try:
            return _is_deserted(self.socket)
        except (OSError, ValueError):  # ValueError: this side has closed it
            return True

    @property
    def in_flight(self) -> int:
        """Bytes that were written and that the other side's system has not got yet, as far as this one tells.

        They may be megabytes, and there is room for more only when a third of them has gone.
        """
        if sys.platform == "linux" and self.socket.family != socket.AF_UNIX:
            with contextlib.suppress(OSError, ValueError):  # ValueError: this side has closed it
                return int.from_bytes(fcntl.ioctl(self.socket, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
        return 0

    def peek(self, most: int) -> int:
        """How many bytes, up to `most`, wait in the socket to be read; encrypted ones with TLS."""
        try:  # the method of the class: that of a TLS socket takes no flags
            return len(socket.socket.recv(self.socket, most, socket.MSG_PEEK))
        except (OSError, ValueError):
            return 0

    def fill(self, assembler: FrameAssembler, share: int = FAIR_SHARE) -> bool:
        """Read all that is ready, up to so many bytes; does not wait.

        Returns:
            True if the other side ended the stream.

        Raises:
            OSError: If the stream broke; `CutOffError` if it ended in a way that the other side did not mean.
            ProtocolError: If what was received is not a frame.
        """
        total = 0
        try:
            while total < share and len(assembler.frames) < FAIR_FRAMES and not assembler.blocked:
                target = assembler.target()
                if len(target) > share - total:
                    target = target[: share - total]
                count = self.socket.recv_into(target)
                if count == 0:
                    return True
                assembler.received(count)
                total += count
                if count < len(target) and count < _LARGE_READ:
                    break  # more may have come since, but then the loop tells
        except BlockingIOError:
            pass
        return False

    def flush(self, parts: deque[Buffer]) -> int:
        """Send what is taken now, from the left of `parts`; what was sent is removed.

        Returns:
            How many bytes were sent; 0 if nothing is taken now.

        Raises:
            OSError: If the stream broke.
        """
        try:
            return send_parts(self.socket, parts)
        except BlockingIOError:
            return 0

    def explain(self, error: OSError) -> Exception:
        """The error to report for one of `fill` or `flush`."""
        return error

    def say_end(self) -> None:
        """Tell the other side that this is the end, where the stream has a way to say so; `close` follows."""

    async def receive(self, max_bytes: int = RECEIVE_SIZE) -> Buffer:
        while True:
            try:
                return self.socket.recv(max_bytes)
            except BlockingIOError:
                await self._wait_readable()

    async def send(self, parts: Sequence[Buffer]) -> None:
        left = deque(parts)
        while left:
            if not self.flush(left) and left:
                await self._wait_writable()

    async def _wait_readable(self) -> None:
        with _closed_while_waiting():
            await anyio.wait_readable(self.socket)

    async def _wait_writable(self) -> None:
        with _closed_while_waiting():
            await anyio.wait_writable(self.socket)

    async def aclose(self) -> None:
        self.close()

    def close(self) -> None:
        """Close at once; tasks that wait for the socket get an `OSError`."""
        if not self._closed:
            self._closed = True
            self.say_end()
            with contextlib.suppress(RuntimeError):  # in a callback of plain asyncio anyio finds no loop
                anyio.notify_closing(self.socket)
            self.socket.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.peer}{' closed' if self._closed else ''}>"


def _is_deserted(sock: socket.socket) -> bool:
    if hasattr(select, "poll"):
        watch = select.poll()
        watch.register(sock, getattr(select, "POLLRDHUP", 0))  # that it broke or hung up is told in any case
        return bool(watch.poll(0))
    try:  # the method of the class: that of a TLS socket takes no flags
        return not socket.socket.recv(sock, 1, socket.MSG_PEEK)
    except BlockingIOError:
        return False


@contextlib.contextmanager
def _closed_while_waiting() -> Iterator[None]:
    try:
        yield
    except anyio.ClosedResourceError as error:
        raise ConnectionAbortedError("the stream was closed") from error


def describe_peer(sock: socket.socket, accepted: Any = None) -> str:
    """The other side of a socket as text: `127.0.0.1:40312`, `[::1]:40312`, or `unix:PATH`.

    Args:
        sock: The socket.
        accepted: The address that `accept` has told. A client that has gone again has no other, and what it has sent
            is read all the same.
    """
    try:
        name = accepted or sock.getpeername()
        if sock.family == socket.AF_UNIX:
            return f"unix:{os.fsdecode(name or sock.getsockname()) or 'pair'}"
    except OSError:
        return "unknown"
    return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"


def socket_pair(buffer_bytes: int = 1024 * 1024) -> tuple[socket.socket, socket.socket]:
    """Two connected sockets, for two event loops of one process.

    Args:
        buffer_bytes: Asked for in each direction.
    """
    pair = socket.socketpair()
    for sock in pair:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    return pair


def socketpair_streams(peer: str = "pair") -> tuple[SocketStream, SocketStream]:
    """Two connected streams over a socket pair."""
    left, right = socket_pair()
    return SocketStream(left, peer), SocketStream(right, peer)


class _Pipe:
    """One direction of a memory pair."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.chunks: deque[bytearray] = deque()
        self.size = 0
        self.ended = False  # by the writer
        self.broken = False  # by the reader
        self.watchers: list[Callable[[], object]] = []
        self._waiting: list[anyio.Event] = []

    def notify(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for event in waiting:
                event.set()
        for watcher in self.watchers:
            watcher()

    async def wait(self) -> None:
        event = anyio.Event()
        self._waiting.append(event)
        await event.wait()


class MemoryStream:
    """One end of a `memory_pair`: a byte stream between two tasks of one event loop, without any system call."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe, peer: str) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._closed = False
        self.peer = peer

    async def receive(self, max_bytes: int = RECEIVE_SIZE) -> Buffer:
        """As `ByteStream.receive`; a chunk that was sent in one piece comes in one piece, whatever `max_bytes`."""
        while (chunk := self.receive_nowait()) is None:
            await self._incoming.wait()
        return chunk

    def receive_nowait(self) -> Buffer | None:
        """What `receive` would return at once; None if it would wait."""
        pipe = self._incoming
        self._check_open()
        if not pipe.chunks:
            return b"" if pipe.ended else None
        chunk = pipe.chunks.popleft()
        pipe.size -= len(chunk)
        pipe.notify()
        return chunk

    @property
    def next_chunk(self) -> bytearray | None:
        """What `receive_nowait` would return, left where it is; None if nothing has come."""
        chunks = self._incoming.chunks
        return chunks[0] if chunks else None

    async def send(self, parts: Sequence[Buffer]) -> None:
        while not self.send_nowait(parts):
            await self._outgoing.wait()

    def send_nowait(self, parts: Sequence[Buffer]) -> bool:
        """Send all parts if there is room: False if `send` would wait."""
        pipe = self._outgoing
        self._check_open()
        if pipe.broken:
            raise BrokenPipeError("the other side closed the stream")
        # what is sent at once always fits into a pipe that is not full, however large: a frame is never torn
        if pipe.size >= pipe.limit:
            return False
        chunk = bytearray().join(parts)
        if chunk:
            pipe.chunks.append(chunk)
            pipe.size += len(chunk)
            pipe.notify()
        return True

    @property
    def deserted(self) -> bool:
        """Whether the other side has closed its end, also where bytes that came before are still unread."""
        return self._incoming.ended

    @property
    def unread_bytes(self) -> int:
        """Bytes that have come and were not received."""
        return self._incoming.size

    def watch(self, changed: Callable[[], object]) -> None:
        """Call `changed()` when something arrived, ended, or made room; it must neither raise nor use the stream."""
        self._incoming.watchers.append(changed)
        self._outgoing.watchers.append(changed)

    async def aclose(self) -> None:
        self.close()

    def close(self) -> None:
        """Close at once: the other side reads what was sent, then the end."""
        if self._closed:
            return
        self._closed = True
        self._outgoing.ended = True
        self._incoming.broken = True
        self._incoming.chunks.clear()
        self._incoming.size = 0
        self._outgoing.notify()
        self._incoming.notify()

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionAbortedError("the stream was closed")

    def __repr__(self) -> str:
        return f"<MemoryStream {self.peer}{' closed' if self._closed else ''}>"


def memory_pair(
    left: str = "memory", right: str = "memory", *, limit: int = _MEMORY_LIMIT
) -> tuple[MemoryStream, MemoryStream]:
    """Two connected streams in memory.

    Args:
        left: The first stream's peer.
        right: The second stream's peer.
        limit: How many bytes may be on their way before `send` waits.
    """
    if limit < 1:
        raise IllegalStateError("a memory pair needs room for one byte at least")
    there, back = _Pipe(limit), _Pipe(limit)
    return MemoryStream(back, there, left), MemoryStream(there, back, right)
