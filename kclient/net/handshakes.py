"""TLS handshakes of a server: each in a task, bounded in number and in time, and not in the way of the event loop.

What a handshake costs is the arithmetic of its certificates (`docs/internals/connection.md` has figures), and a client
that is about to hang up can ask for it as well as any. So OpenSSL does it in threads, few at a time, while the loop
goes on.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import anyio

from kclient.errors import ClosedError
from kclient.net.listeners import close_all
from kclient.net.streams import ByteStream
from kclient.net.tls_accepting import accept_tls

if TYPE_CHECKING:
    import socket

    from kclient.concurrency import Supervisor, TaskHandle
    from kclient.net.connection_limits import Slot
    from kclient.net.listeners import ContextSource, Listener

logger: logging.Logger = logging.getLogger("kclient.net.server")

MOST: Final = 500
"""Handshakes that are under way at a time. For each one more one is given up: the oldest of the host that has most."""
_THREADS: Final = 2
"""They are worked at in so many threads at a time."""
_TOLD_AGAIN: Final = 60.0
"""Seconds between two lines of the log about handshakes that were given up."""


class Handshakes:
    """The TLS handshakes of a server's clients.

    Args:
        supervisor: Runs the tasks.
        timeout: Seconds that a client has for its handshake.
        attach: Called with the stream, the listener and the slot of a client whose handshake is done, to serve it. What
            raises has not taken the stream.
    """

    def __init__(
        self, supervisor: Supervisor, timeout: float, attach: Callable[[ByteStream, Listener, Slot], object]
    ) -> None:
        self._supervisor = supervisor
        self._timeout = timeout
        self._attach = attach
        self._under_way: dict[TaskHandle, socket.socket] = {}
        self._waiting: dict[str | None, dict[TaskHandle, str]] = {}
        """Those of them that were not given up by hosts, the oldest first, with the names of their clients."""
        self._waiting_count = 0
        self._threads: anyio.CapacityLimiter | None = None
        self._told = float("-inf")
        self._given_up = 0
        """So many were, since that was told."""

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, sock: socket.socket, peer: str, listener: Listener, source: ContextSource, slot: Slot) -> None:
        """Shake hands with a client; the socket is closed and the slot given back if that fails.

        Args:
            sock: The client's, just accepted.
            peer: The client's address.
            listener: By which it came.
            source: Tells the context to use.
            slot: Counts the connection.
        """
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(_THREADS)
        while self._waiting_count >= MOST:
            self._give_up_one()
        task = self._supervisor.spawn(
            self._shake_hands, sock, listener, source, peer, slot, name=f"TLS handshake {peer}"
        )
        self._under_way[task] = sock
        self._waiting.setdefault(slot.host, {})[task] = peer
        self._waiting_count += 1

        def done(task: TaskHandle) -> None:
            self._forget(slot.host, task)
            del self._under_way[task]
            if not slot.attached:
                sock.close()  # nobody else would if the task is cancelled before it begins
                slot.end()

        task.on_done(done)

    def cancel(self) -> None:
        """End them all; `wait` waits for that."""
        for task in list(self._under_way):
            task.cancel()

    async def wait(self) -> None:
        """Wait until all have ended."""
        for task in list(self._under_way):
            await task.wait()

    def abandon(self) -> None:
        """In a forked child: close the descriptors that it inherited."""
        close_all(list(self._under_way.values()))

    def _forget(self, host: str | None, task: TaskHandle) -> None:
        """It does not count any more."""
        tasks = self._waiting.get(host, {})
        if tasks.pop(task, None) is not None:
            self._waiting_count -= 1
            if not tasks:
                del self._waiting[host]

    def _give_up_one(self) -> None:
        host = max(self._waiting, key=lambda host: len(self._waiting[host]))  # of several the first
        task, peer = next(iter(self._waiting[host].items()))
        self._forget(host, task)
        task.cancel()
        self._given_up += 1
        now = anyio.current_time()
        if now - self._told >= _TOLD_AGAIN:
            logger.warning(
                "%d TLS handshakes are under way, as many as may be: for each new one the oldest of the host that has "
                "most is given up, %d so far, the last one of %s", MOST, self._given_up, peer,
            )  # fmt: skip
            self._told, self._given_up = now, 0

    async def _shake_hands(
        self, sock: socket.socket, listener: Listener, source: ContextSource, peer: str, slot: Slot
    ) -> None:
        stream = None
        try:
            with anyio.fail_after(self._timeout):
                context = source if isinstance(source, ssl.SSLContext) else await source()
                stream = await accept_tls(sock, context, peer, threads=self._threads)
            self._attach(stream, listener, slot)
        except TimeoutError:
            logger.warning("%s completed no TLS handshake within %g s: closed", peer, self._timeout)
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
