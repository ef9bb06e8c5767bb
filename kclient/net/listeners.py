"""Where a server listens: sockets that are bound, and their accepted ones made ready."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
import stat
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from kclient.concurrency import TaskHandle
from kclient.net.address import Address

if TYPE_CHECKING:
    from kclient.net.server_connection import RequestHandler
    from kclient.net.server_settings import ServerSettings

ContextSource: TypeAlias = ssl.SSLContext | Callable[[], Awaitable[ssl.SSLContext]]
"""What a listener encrypts with: a server's context, or what tells the one of each new connection."""

_LAST_PORT = 65535


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
    ssl_context: ContextSource | None = None
    """What connections are encrypted with; None for those in the clear."""
    handler: RequestHandler | None = None
    """Answers their requests; None for the server's."""

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


def bind_all(targets: Sequence[tuple[int, Any]], backlog: int) -> list[socket.socket]:
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
            problem = located(error, f"{target[0]}:{target[1]}")
            if error.errno == errno.EADDRINUSE and target[1] != 0:
                close_all(sockets)
                raise problem from error
            continue
        sockets.append(sock)
        port = sock.getsockname()[1]
    if not sockets:
        raise problem
    return sockets


def check_port(port: int) -> None:
    # the system would take the lower 16 bits of a larger one, and listen on another port
    if not isinstance(port, int):
        raise TypeError(f"a port is an integer, not {port!r}")
    if not 0 <= port <= _LAST_PORT:
        raise ValueError(f"a port is between 0 (any free one) and {_LAST_PORT}, not {port}")


def located(error: OSError, where: str) -> OSError:
    """The same error, with the address that it is about."""
    return type(error)(error.errno, f"{error.strerror}: {where}")


def close_all(sockets: Sequence[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def configure(sock: socket.socket, settings: ServerSettings) -> None:
    sock.setblocking(False)
    if settings.send_buffer_bytes >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.send_buffer_bytes)
    if settings.receive_buffer_bytes >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.receive_buffer_bytes)
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def remove_stale(path: Path) -> None:
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
