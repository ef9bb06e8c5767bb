"""The server's side: accepts connections, hands frames to a handler, sends the replies in the order of requests.

Requests of one connection begin in arrival order; those that cannot be answered at once finish later, side by side,
and their replies wait for those before them. What one connection may leave unanswered is bounded: beyond that it is
not read any more. A connection that sends garbage, or whose handler fails, is closed; the others go on.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import ssl
import stat
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import anyio

from kclient.concurrency import Supervisor, TaskHandle
from kclient.errors import ClosedError
from kclient.net.address import Address
from kclient.net.arguments import check_handler, check_supervisor
from kclient.net.server_connection import Reply, ServerConnection, ServerSettings
from kclient.net.streams import ByteStream, SocketStream, check_stream, describe_peer
from kclient.net.tls import accept_tls

__all__ = ["Listener", "Reply", "RequestHandler", "Server", "ServerConnection", "ServerSettings"]

logger: logging.Logger = logging.getLogger("kclient.net.server")

_ACCEPT_AT_ONCE = 64
_LAST_PORT = 65535
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class RequestHandler(Protocol):
    """Answers requests. None of its methods waits."""

    def begin(self, frame: memoryview, connection: ServerConnection) -> Reply | Awaitable[Reply | None] | None:
        """A request has come; called in arrival order.

        Args:
            frame: Header and body, without the leading size. The buffer is the handler's own to keep and to change.
            connection: Where it came from.

        Returns:
            The reply, a whole frame with its size, in parts; or None if there is none to be sent; or an awaitable of
            one of these: a `Completion` costs no task, others are awaited by a task of the server. That task is not
            cancelled when the client goes away, but when the server's closing has used up its time.

        Raises:
            Exception: The connection is closed; a `ProtocolError`, and the `UnknownRequestError` of `decode_request`,
                are put down to the client with a warning, others are logged with their traceback.
        """
        ...

    def connected(self, connection: ServerConnection) -> None:
        """A connection begins; the handler may set its `context`."""
        ...

    def disconnected(self, connection: ServerConnection) -> None:
        """A connection has ended."""
        ...


@dataclass(slots=True)
class Listener:
    """Where a server accepts connections; made by the server's `listen_` methods."""

    address: Address
    """The address that clients connect to; with the port that was chosen for port 0."""
    label: object
    """Given to the connections, so that the handler can tell listeners apart."""
    sockets: list[socket.socket]
    tasks: list[TaskHandle]
    path: Path | None = None
    ssl_context: ssl.SSLContext | None = None
    """What connections are encrypted with; None for those in the clear."""

    async def aclose(self) -> None:
        """Accept no more connections; those that are there go on."""
        for task in self.tasks:
            task.cancel()
        for task in self.tasks:
            await task.wait()
        for sock in self.sockets:
            sock.close()
        self.sockets.clear()
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()


class Server:
    """Serves a handler to any number of listeners and streams.

    Args:
        handler: Answers requests.
        supervisor: Runs the tasks; its owner outlives the server.
        settings: Limits and times.

    Raises:
        TypeError: If an argument is of a wrong type.
    """

    def __init__(self, handler: RequestHandler, supervisor: Supervisor, settings: ServerSettings | None = None) -> None:
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
        self._supervisor = supervisor
        self._guard: TaskHandle | None = None
        self._emptied: anyio.Event | None = None
        self._handshakes: dict[TaskHandle, socket.socket] = {}

    async def listen_tcp(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        label: object = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> Listener:
        """Accept TCP connections on every address that the host name has here.

        Args:
            host: A name or an address; an empty one means all addresses of the machine.
            port: 0 for any free one.
            label: See `Listener`.
            ssl_context: A server's context with its certificate, to encrypt every connection; whether clients must
                show a certificate is its `verify_mode`. The handler does not learn of connections before the
                handshake is done.

        Raises:
            OSError: If it cannot be bound; the text names the address.
            TypeError: If the port is no integer.
            ValueError: If the port is out of its range, or the context is a client's.
        """
        _check_port(port)
        if ssl_context is not None and ssl_context.protocol == ssl.PROTOCOL_TLS_CLIENT:
            raise ValueError("ssl_context is a client's; a listener needs ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)")
        try:
            found = await anyio.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
            )
        except OSError as error:
            raise _at(error, host) from error
        sockets = _bind_all(list(dict.fromkeys((item[0], item[4]) for item in found)), self.settings.backlog)
        address = Address(host or sockets[0].getsockname()[0], sockets[0].getsockname()[1])
        return self._listen(Listener(address, label, sockets, [], ssl_context=ssl_context))

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
        await anyio.to_thread.run_sync(_remove_stale, path)
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
        if self.closing:
            raise ClosedError("the server is closing")
        self._start_guard()
        connection = ServerConnection(stream, self.handler, self._supervisor, self.settings, label)
        connection.start()
        if not connection.closed:
            self.connections.add(connection)
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
            if self._guard is not None:
                self._guard.cancel()
            handshakes = list(self._handshakes)
            for task in handshakes:
                task.cancel()
            with anyio.CancelScope(shield=True):
                for task in handshakes:
                    await task.wait()
                for connection in connections:
                    connection.abort()
                for connection in connections:
                    await connection.wait_closed()

    def abandon(self) -> None:
        """In a forked child: close the descriptors that it inherited, so that clients see it when the parent dies.

        The connections stay the parent's.
        """
        for listener in self.listeners:
            _close_all(listener.sockets)
        _close_all(list(self._handshakes.values()))
        for connection in self.connections:
            if isinstance(connection.stream, SocketStream):
                connection.stream.socket.close()

    def _listen(self, listener: Listener) -> Listener:
        if self.closing:
            _close_all(listener.sockets)
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
                if not self._accept_some(listening, listener):
                    await anyio.sleep(0.1)  # no descriptors are left, and it stays readable: do not spin
        finally:
            listening.close()

    def _accept_some(self, listening: socket.socket, listener: Listener) -> bool:
        """Accept who waits; False if the machine can take no more at present."""
        for _ in range(_ACCEPT_AT_ONCE):
            try:
                sock = listening.accept()[0]
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in _OUT_OF_DESCRIPTORS:
                    logger.error("%s accepts no connection: %s", listener.address, error)
                    return False
                continue  # the client has gone already
            self._accepted(sock, listener)
        return True

    def _accepted(self, sock: socket.socket, listener: Listener) -> None:
        try:
            _configure(sock, self.settings)
            if listener.ssl_context is not None:
                self._begin_handshake(sock, listener, listener.ssl_context)
            else:
                self.attach(SocketStream(sock), label=listener.label)
        except (OSError, ClosedError):  # the client has gone already, or the server is about to
            sock.close()
        except Exception:
            logger.exception("%s: a connection could not be taken", listener.address)
            sock.close()

    def _begin_handshake(self, sock: socket.socket, listener: Listener, context: ssl.SSLContext) -> None:
        if self.closing:
            raise ClosedError("the server is closing")
        peer = describe_peer(sock)
        task = self._supervisor.spawn(self._shake_hands, sock, listener, context, peer, name=f"TLS handshake {peer}")
        self._handshakes[task] = sock
        # nobody else would close it if the task is cancelled before it begins
        task.on_done(lambda done: self._handshakes.pop(done).close())

    async def _shake_hands(self, sock: socket.socket, listener: Listener, context: ssl.SSLContext, peer: str) -> None:
        stream = None
        seconds = self.settings.handshake_timeout
        try:
            with anyio.fail_after(seconds):
                stream = await accept_tls(sock, context, peer)
            self.attach(stream, label=listener.label)
        except TimeoutError:
            logger.warning("%s completed no TLS handshake within %g s: closed", peer, seconds)
        except OSError as error:
            level = logging.DEBUG if isinstance(error, ConnectionResetError) else logging.WARNING
            logger.log(level, "%s: %s", peer, str(error))
        except ClosedError:
            if stream is not None:
                stream.close()
        except Exception:
            logger.exception("%s: a connection could not be taken", listener.address)
            if stream is not None:
                stream.close()

    def _start_guard(self) -> None:
        if self._guard is None:
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
            if connection.outstanding == 0 and connection.last_active < since:
                logger.debug("%s was idle for %g s: closed", connection.peer, self.settings.idle_timeout)
                connection.close()

    def _forget(self, connection: ServerConnection) -> None:
        self.connections.discard(connection)
        if not self.connections and self._emptied is not None:
            self._emptied.set()

    async def _wait_empty(self) -> None:
        while self.connections:
            self._emptied = anyio.Event()
            await self._emptied.wait()

    def __repr__(self) -> str:
        where = ", ".join(str(listener.address) for listener in self.listeners)
        return f"<Server on {where or 'nothing'}, {len(self.connections)} connections>"


def _bind_all(targets: Sequence[tuple[int, Any]], backlog: int) -> list[socket.socket]:
    """Bind every address, all to one port; those that the machine does not have are left out."""
    sockets: list[socket.socket] = []
    problem = OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    port: int | None = None
    for family, target in targets:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(target if port is None else (target[0], port, *target[2:]))
            sock.listen(backlog)
            sock.setblocking(False)
        except OSError as error:
            sock.close()
            problem = _at(error, f"{target[0]}:{target[1]}")
            if error.errno == errno.EADDRINUSE and target[1] != 0:
                _close_all(sockets)
                raise problem from error
            continue
        sockets.append(sock)
        port = sock.getsockname()[1]
    if not sockets:
        raise problem
    return sockets


def _check_port(port: int) -> None:
    # the system would take the lower 16 bits of a larger one, and listen on another port
    if not isinstance(port, int):
        raise TypeError(f"a port is an integer, not {port!r}")
    if not 0 <= port <= _LAST_PORT:
        raise ValueError(f"a port is between 0 (any free one) and {_LAST_PORT}, not {port}")


def _at(error: OSError, where: str) -> OSError:
    """The same error, with the address that it is about."""
    return type(error)(error.errno, f"{error.strerror}: {where}")


def _close_all(sockets: Sequence[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def _configure(sock: socket.socket, settings: ServerSettings) -> None:
    sock.setblocking(False)
    if settings.send_buffer_bytes >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.send_buffer_bytes)
    if settings.receive_buffer_bytes >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.receive_buffer_bytes)
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _remove_stale(path: Path) -> None:
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return
    except OSError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError:
            return
