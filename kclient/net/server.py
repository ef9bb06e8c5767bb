"""The server's side: accepts connections, hands frames to a handler, sends the replies in the order of requests.

Requests of one connection begin in arrival order; those that cannot be answered at once finish later, side by side,
and their replies wait for those before them. What one connection may leave unanswered is bounded: beyond that it is
not read any more. A connection that sends garbage, or whose handler fails, is closed; the others go on.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import anyio

from kclient.concurrency import LoopHandle, Supervisor, TaskHandle, loop_soon, thread_to_the_end
from kclient.descriptors import OUT_OF_DESCRIPTORS, Descriptors, process_descriptors
from kclient.errors import ClosedError
from kclient.memory_ledger import MemoryAccount, MemoryPart, process_memory
from kclient.net.address import Address
from kclient.net.answers import Answer, Later, Reply, Steps
from kclient.net.arguments import check_handler, check_supervisor
from kclient.net.connection_limits import ArrivalRates, ConnectionLimits, Slot
from kclient.net.delayed_closing import DelayedClosing
from kclient.net.fair_queue import FairQueue, Pace
from kclient.net.handshakes import Handshakes
from kclient.net.listeners import (
    ContextSource,
    Listener,
    bind_all,
    check_port,
    close_all,
    configure,
    located,
    remove_stale,
)
from kclient.net.memory_budget import MemoryBudget
from kclient.net.server_connection import RequestHandler, ServerConnection
from kclient.net.server_settings import ServerSettings
from kclient.net.stalls import StallWatch
from kclient.net.streams import ByteStream, SocketStream, check_stream, describe_peer
from kclient.net.tls import TlsStream

__all__ = [
    "Answer",
    "Later",
    "Listener",
    "Reply",
    "RequestHandler",
    "Server",
    "ServerConnection",
    "ServerSettings",
    "Steps",
]

logger: logging.Logger = logging.getLogger("kclient.net.server")

_ACCEPT_AT_ONCE = 16
_LOOK_AFTER = 1.0
"""Seconds after which a connection that is not read is asked whether its client is still there."""
_LOOK_AT_STALLS = 0.5
"""Seconds between two looks at who keeps memory that others wait for."""
_QUIET_LOOKS = 4
"""Looks without anybody who waits, after which there are no more."""
_NAMED = 3
"""Stalled connections that a log record names."""
_PER_CONNECTION, _PER_TLS_CONNECTION = 10_000, 70_000
"""About how many bytes of memory an idle connection takes; OpenSSL's buffers stay as large as they have become."""
_OVERHEAD_SHARE = 2
"""One part in so many of the memory may be taken by that."""
_MUCH_BESIDE = 2
"""What takes more than one part in so many of the memory beside connections is told when these wait."""
_TOLD_AGAIN = 60.0
"""Seconds between two lines of the log that do so."""
_NO_MORE = (*OUT_OF_DESCRIPTORS, errno.ENOBUFS, errno.ENOMEM)


class Server:
    """Serves a handler to any number of listeners and streams.

    Args:
        handler: Answers requests.
        supervisor: Runs the tasks; its owner outlives the server.
        settings: Limits and times.
        queue: Where connections wait for their turns, if others do in the same one.
        descriptors: What the process may have open.
        memory: What the process leaves to the server and to what is behind it; its total stands for
            `ServerSettings.max_memory`. If None, what the process leaves to that.

    Raises:
        TypeError: If an argument is of a wrong type.
    """

    def __init__(
        self,
        handler: RequestHandler,
        supervisor: Supervisor,
        settings: ServerSettings | None = None,
        *,
        queue: FairQueue | None = None,
        descriptors: Descriptors | None = None,
        memory: MemoryPart | None = None,
    ) -> None:
        check_handler(handler)
        check_supervisor(supervisor)
        if settings is not None and not isinstance(settings, ServerSettings):
            raise TypeError(f"settings are ServerSettings or None, not a value of type {type(settings).__name__}")
        self.handler = handler
        self.settings: ServerSettings = settings or ServerSettings()
        self.connections: set[ServerConnection] = set()
        """The open connections."""
        self.listeners: list[Listener] = []
        self.closing: bool = False
        self._memory = memory or process_memory().part(self.settings.max_memory)
        self._owns_memory = memory is None
        self.budget: MemoryBudget = MemoryBudget(self._memory.total, self.settings.max_request_memory, self._memory)
        """What the connections may hold together."""
        self._overhead: MemoryAccount = self._memory.account("connections")
        self.on_memory_short: Callable[[], object] | None = None
        """Called when a connection has to wait for memory: what waits without need may be answered."""
        self.budget.on_short = self._memory_short
        self.limits: ConnectionLimits = ConnectionLimits(
            self.settings.quota,
            (descriptors or process_descriptors()).share(),
            self._memory.total // _OVERHEAD_SHARE // _PER_CONNECTION,
        )
        """Counts the connections that were accepted."""
        self.arrivals: ArrivalRates | None = None
        """How fast they may come; None for as fast as they do."""
        self._refused = DelayedClosing(supervisor)
        self._queue = queue
        self._supervisor = supervisor
        self._guard: TaskHandle | None = None
        self._relief: TaskHandle | None = None
        self._told_beside = float("-inf")
        self._paused: set[ServerConnection] = set()
        self._looking_after: TaskHandle | None = None
        self._emptied: anyio.Event | None = None
        self._handshakes = Handshakes(supervisor, self.settings.handshake_timeout, self._attach)

    async def listen_tcp(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        label: object = None,
        ssl_context: ContextSource | None = None,
        handler: RequestHandler | None = None,
    ) -> Listener:
        """Accept TCP connections on every address that the host name has here.

        Args:
            host: A name or an address; an empty one means all addresses of the machine.
            port: 0 for any free one.
            label: See `Listener`.
            ssl_context: A server's context with its certificate, to encrypt every connection; whether clients must
                show a certificate is its `verify_mode`. Or a function that is awaited for the context of each
                connection, which must not raise. The handler does not learn of connections before the handshake is
                done.
            handler: Answers the requests that come by this listener; None for the server's.

        Raises:
            OSError: If it cannot be bound; the text names the address.
            TypeError: If the port is not an integer.
            ValueError: If the port is out of its range, or the context is a client's.
        """
        check_port(port)
        if isinstance(ssl_context, ssl.SSLContext) and ssl_context.protocol == ssl.PROTOCOL_TLS_CLIENT:
            raise ValueError("ssl_context is a client's; a listener needs ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)")
        try:
            found = await anyio.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
            )
        except OSError as error:
            raise located(error, host) from error
        sockets = bind_all(list(dict.fromkeys((item[0], item[4]) for item in found)), self.settings.backlog)
        address = Address(host or sockets[0].getsockname()[0], sockets[0].getsockname()[1])
        return self._listen(Listener(address, label, sockets, [], ssl_context=ssl_context, handler=handler))

    async def listen_unix(self, path: str | Path, *, mode: int = 0o600, label: object = None) -> Listener:
        """Accept connections on a Unix socket; one that a dead process left behind is replaced.

        Args:
            path: Of the socket.
            mode: Who may connect, as file permissions.
            label: See `Listener`.

        Raises:
            OSError: If it cannot be bound; `EADDRINUSE` if a live process listens on it.
        """
        path = Path(path)
        await thread_to_the_end(remove_stale, path)  # left behind, it might remove the next one's
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(os.fspath(path))
            os.chmod(path, mode)  # noqa: PTH101  (pathlib's would follow a link that was put in its place)
            sock.listen(self.settings.backlog)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
        return self._listen(Listener(Address(os.fspath(path), 0, "unix"), label, [sock], [], path))

    def attach(self, stream: ByteStream, *, label: object = None) -> ServerConnection:
        """Serve one stream, which belongs to the server from now on.

        Args:
            stream: Any byte stream of `kclient.net.streams`, or one of your own.
            label: Given to the connection, so that the handler can tell where it came from.

        Raises:
            TypeError: If the stream is no byte stream; what was given stays the caller's.
            ClosedError: If the server is closing.
        """
        check_stream(stream)
        return self._serve(stream, label, self.handler)

    def _serve(
        self, stream: ByteStream, label: object, handler: RequestHandler, host: str | None = None
    ) -> ServerConnection:
        if self.closing:
            raise ClosedError("the server is closing")
        self._start_guard()
        if self._queue is None:
            self._queue = FairQueue(loop_soon())
        connection = ServerConnection(
            stream, handler, self._supervisor, self.settings, label, self._queue.flow(host), self.budget,
            self._connection_paused,
        )  # fmt: skip
        connection.start()
        if not connection.closed:
            self.connections.add(connection)
            self._overhead.add(_overhead(connection))
            connection.on_close(self._forget)
        return connection

    async def aclose(self, grace: float = 0.0) -> None:
        """Accept nothing more, answer the requests that have begun, then close all connections.

        Args:
            grace: Seconds for the requests that have begun; what is not answered by then is cancelled.
        """
        self.closing = True
        with anyio.CancelScope(shield=True):  # it takes no time, and half of it would leave sockets open
            for listener in self.listeners:
                await listener.aclose()
        self.listeners.clear()
        connections = list(self.connections)
        try:
            if grace > 0 and connections:
                for connection in connections:
                    connection.drain()
                with anyio.move_on_after(grace):
                    await self._wait_empty()
        finally:
            for task in (self._guard, self._looking_after):
                if task is not None:
                    task.cancel()
            self._handshakes.cancel()
            self._refused.close()
            with anyio.CancelScope(shield=True):
                await self._handshakes.wait()
                for connection in connections:
                    connection.abort()
                for connection in connections:
                    await connection.wait_closed()
            self.limits.close()
            if self._owns_memory:
                self._memory.close()

    def abandon(self) -> None:
        """In a forked child: close the descriptors that it inherited, so that clients see it when the parent dies.

        The connections stay the parent's.
        """
        for listener in self.listeners:
            close_all(listener.sockets)
        self._handshakes.abandon()
        self._refused.abandon()
        for connection in self.connections:
            if isinstance(connection.stream, SocketStream):
                connection.stream.socket.close()

    def _listen(self, listener: Listener) -> Listener:
        if self.closing:
            close_all(listener.sockets)
            raise ClosedError("the server is closing")
        self.listeners.append(listener)  # first: `aclose` closes the sockets, whatever comes next
        for sock in listener.sockets:
            task = self._supervisor.spawn(self._accept, sock, listener, name=f"accept {listener.address}")
            listener.tasks.append(task)
        self._start_guard()
        return listener

    async def _accept(self, listening: socket.socket, listener: Listener) -> None:
        try:
            while True:
                await anyio.wait_readable(listening)
                pause = self._accept_some(listening, listener)
                if pause is None:
                    await self.limits.room()  # it stays readable: do not spin
                elif pause > 0:
                    await anyio.sleep(pause)
        finally:
            listening.close()

    def _accept_some(self, listening: socket.socket, listener: Listener) -> float | None:
        """Accept who waits; returns how long no more are to be accepted, or None if there may be no more at present."""
        limits, arrivals = self.limits, self.arrivals
        for _ in range(_ACCEPT_AT_ONCE):
            if not limits.take():
                return None
            try:
                sock, peer = listening.accept()
            except BlockingIOError:
                limits.give_back()
                break
            except OSError as error:
                limits.give_back()
                if error.errno in _NO_MORE and not limits.make_room():
                    logger.error("%s accepts no connection: %s", listener.address, error)
                    return None
                continue  # there is room now, or the client has gone already
            pause = 0.0 if arrivals is None or sock.family == socket.AF_UNIX else arrivals.pause(listener.label)
            slot = limits.admit(None if sock.family == socket.AF_UNIX else peer[0])
            if slot is None:
                sock.close()
            elif arrivals is not None and slot.host and (seconds := arrivals.refused_for(slot.host)) > 0:
                logger.info("a connection from %s is closed in %g s: too many come from there", slot.host, seconds)
                self._refused.add(sock, slot, seconds)
            else:
                self._accepted(sock, describe_peer(sock, peer), listener, slot)
            if pause > 0:
                return pause
        return 0.0

    def _accepted(self, sock: socket.socket, peer: str, listener: Listener, slot: Slot) -> None:
        try:
            configure(sock, self.settings)
            if listener.ssl_context is not None:
                if self.closing:
                    raise ClosedError("the server is closing")
                self._handshakes.begin(sock, peer, listener, listener.ssl_context, slot)
            else:
                self._attach(SocketStream(sock, peer), listener, slot)
            return
        except (OSError, ClosedError):  # the client has gone already, or the server is about to
            pass
        except Exception:
            logger.exception("%s: a connection could not be taken", listener.address)
        sock.close()
        slot.end()

    def _attach(self, stream: ByteStream, listener: Listener, slot: Slot) -> None:
        connection = self._serve(stream, listener.label, listener.handler or self.handler, slot.host)
        slot.attached = True
        if connection.closed:
            slot.end()
        else:
            connection.on_close(slot.end)

    def _start_guard(self) -> None:
        if self._guard is None:
            if self._memory.loop is None:
                self._memory.loop = LoopHandle()
            self._guard = self._supervisor.spawn(self._watch_connections, name="connections")

    async def _watch_connections(self) -> None:
        """Close idle connections; and all of them, if the server's owner fails and cancels its tasks."""
        idle = self.settings.idle_timeout
        try:
            while True:
                await anyio.sleep(30 if idle is None else min(max(idle / 4, 0.01), 30))
                if idle is not None:
                    self._close_idle(anyio.current_time() - idle)
        finally:
            for connection in list(self.connections):
                connection.abort()

    def _close_idle(self, since: float) -> None:
        for connection in list(self.connections):
            last = connection.idle_since()
            if last is not None and last < since:
                logger.debug("%s was idle for %g s: closed", connection.peer, self.settings.idle_timeout)
                connection.close()

    def _connection_paused(self, connection: ServerConnection) -> None:
        """A connection is not read for now: the loop does not tell when its client goes."""
        self._paused.add(connection)
        if self._looking_after is None and self._supervisor.running:
            self._looking_after = self._supervisor.spawn(self._look_after_paused, name="paused connections")

    async def _look_after_paused(self) -> None:
        try:
            while self._paused:
                await anyio.sleep(_LOOK_AFTER)
                for connection in list(self._paused):
                    if connection.closed or not connection.paused:
                        self._paused.discard(connection)
                    else:
                        connection.look_after()
        finally:
            self._looking_after = None

    def _memory_short(self) -> None:
        """Connections have to wait for memory."""
        if self.on_memory_short is not None:
            self.on_memory_short()
        if self._relief is None and self._supervisor.running:
            self._relief = self._supervisor.spawn(self._relieve, name="memory")

    async def _relieve(self) -> None:
        """While connections wait for memory: close those that keep it and stall."""
        assert self._queue is not None
        watch = StallWatch(self.settings.stall_timeout)
        pace = Pace(self._queue.flow())
        quiet = 0
        self._tell_beside(anyio.current_time())
        try:
            while quiet < _QUIET_LOOKS:
                await self._close_stalled(watch, pace)
                self.budget.look_beside()
                await anyio.sleep(min(_LOOK_AT_STALLS, self.settings.stall_timeout / 8))
                quiet = 0 if self.budget.waited_for else quiet + 1
                await pace.turn()
        finally:
            self._relief = None

    def _tell_beside(self, now: float) -> None:
        """Connections wait: tell what else takes memory, if that is much."""
        memory = self._memory
        beside = memory.beside()
        if beside > memory.total // _MUCH_BESIDE and now - self._told_beside >= _TOLD_AGAIN:
            self._told_beside = now
            logger.warning(
                "connections wait for memory: %d of %d bytes (connections.max.memory.bytes) are taken beside them: %s",
                beside, memory.total, memory,
            )  # fmt: skip

    async def _close_stalled(self, watch: StallWatch, pace: Pace) -> None:
        """Look at every connection; all that stall are closed, if anybody waits."""
        waited_for = self.budget.waited_for
        peers: list[str] = []
        times: list[float] = []
        held = 0
        for connection in list(self.connections):
            if pace.over:
                await pace.pause()
            if connection.closed:
                continue
            seconds = watch.stalls_for(connection, anyio.current_time())
            if seconds is not None and waited_for:
                peers.append(connection.peer)
                times.append(seconds)
                held += connection.share.held
                connection.close()
        if peers:
            logger.warning(
                "closed %s: for %s too little was taken and given of %d bytes of memory that others wait for "
                "(connections.max.memory.bytes)",
                _some(peers), _span(times), held,
            )  # fmt: skip

    def _forget(self, connection: ServerConnection) -> None:
        self.connections.discard(connection)
        self._overhead.add(-_overhead(connection))
        self._paused.discard(connection)
        if not self.connections and self._emptied is not None:
            self._emptied.set()

    async def _wait_empty(self) -> None:
        while self.connections:
            self._emptied = anyio.Event()
            await self._emptied.wait()

    def __repr__(self) -> str:
        where = ", ".join(str(listener.address) for listener in self.listeners)
        return f"<Server on {where or 'nothing'}, {len(self.connections)} connections>"


def _overhead(connection: ServerConnection) -> int:
    """About how many bytes of memory a connection takes beside its share."""
    return _PER_TLS_CONNECTION if isinstance(connection.stream, TlsStream) else _PER_CONNECTION


def _some(peers: list[str]) -> str:
    """A few of them by name, for a log record."""
    others = f" and {len(peers) - _NAMED} more" if len(peers) > _NAMED else ""
    return ", ".join(peers[:_NAMED]) + others


def _span(times: list[float]) -> str:
    """The seconds from the shortest to the longest, for a log record."""
    least, most = (f"{seconds:.1f}".removesuffix(".0") for seconds in (min(times), max(times)))
    return f"{most} s" if least == most else f"{least} to {most} s"
