"""TLS over TCP sockets, client and server side: a `SocketStream` whose bytes OpenSSL encrypts.

OpenSSL reads and writes the non-blocking socket itself (`ssl.SSLSocket`), so a frame is decrypted straight into its
buffer, and the channels of plain sockets serve these too. `docs/internals/connection.md` has the figures.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from kclient.concurrency import to_the_end
from kclient.errors import SslAuthenticationError
from kclient.net.streams import FAIR_FRAMES, FAIR_SHARE, RECEIVE_SIZE, CutOffError, SocketStream, remove_sent
from kclient.net.tls_errors import explain_client, explain_server
from kclient.types import Buffer

if TYPE_CHECKING:
    from kclient.net.frames import FrameAssembler

__all__ = ["TlsStream", "accept_tls", "connect_tls"]

_RECORD = 16 * 1024  # the most that TLS encrypts in one piece
_LEAST = 1024
"""Bytes of its share that a read takes, however short its record is: OpenSSL takes some microseconds for each."""
_STEPS_AT_ONCE = 16
"""Of a handshake in threads: it takes two or three, or some more where certificates are long. Later ones wait a little,
each longer than the one before, so that more bytes come together."""
_PAUSE = 0.001
"""Seconds by which that becomes longer."""
_CUT_OFF = "the other side closed the connection without ending TLS (close_notify)"
_RENEGOTIATES = "the other side renegotiates TLS, which is not supported"


class TlsStream(SocketStream):
    """A byte stream over a TLS socket whose handshake is done; made by `connect_tls` and `accept_tls`.

    Args:
        sock: The socket; from now on it belongs to the stream.
        peer: The other side.
        server: Whether this is the server's side; what errors say depends on it.
    """

    def __init__(self, sock: ssl.SSLSocket, peer: str | None = None, *, server: bool = False) -> None:
        super().__init__(sock, peer)
        self._tls = sock
        self._server = server

    @property
    def version(self) -> str:
        """The version of TLS, as `TLSv1.3`."""
        return self._tls.version() or "none"

    @property
    def peer_certificate(self) -> bytes | None:
        """The certificate that the other side has shown, as DER; None for none, or none that was asked for.

        It was checked in the handshake, where the context says so.
        """
        return self._tls.getpeercert(binary_form=True)

    @property
    def unread(self) -> bool:
        return self._tls.pending() > 0

    def peek(self, most: int) -> int:
        return min(super().peek(most) + self._tls.pending(), most)

    def fill(self, assembler: FrameAssembler, share: int = FAIR_SHARE) -> bool:
        total = 0
        try:
            # to the very end, whatever a read gives: it never gives more than one record
            while total < share and len(assembler.frames) < FAIR_FRAMES and not assembler.blocked:
                count = self._tls.recv_into(assembler.target())
                if count == 0:
                    return True
                assembler.received(count)
                total += max(count, _LEAST)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLWantWriteError as error:
            raise ConnectionAbortedError(_RENEGOTIATES) from error
        except ssl.SSLEOFError as error:
            raise CutOffError(_CUT_OFF) from error
        return False

    def flush(self, parts: deque[Buffer]) -> int:
        """As `SocketStream.flush`; small parts are gathered into records, since each is encrypted by itself."""
        if len(parts) > 1:
            _gather(parts)
        try:
            count = self._tls.send(parts[0])
        except ssl.SSLWantWriteError:
            return 0
        except ssl.SSLWantReadError as error:
            raise ConnectionAbortedError(_RENEGOTIATES) from error
        remove_sent(parts, count)
        return count

    def explain(self, error: OSError) -> Exception:
        """What failed, and the setting to change; TLS 1.3 tells some refusals only after the handshake."""
        problem = (explain_server if self._server else explain_client)(error)
        if isinstance(problem, SslAuthenticationError):
            return SslAuthenticationError(f"{self.peer}: {problem.message}")
        return problem

    def say_end(self) -> None:
        # a single try: what does not fit into the socket's buffer now is not waited for
        with contextlib.suppress(OSError, ValueError):
            self._tls.unwrap()

    async def receive(self, max_bytes: int = RECEIVE_SIZE) -> Buffer:
        while True:
            try:
                return self._tls.recv(min(max_bytes, _RECORD))
            except ssl.SSLWantReadError:
                await self._wait_readable()
            except ssl.SSLWantWriteError as error:
                raise ConnectionAbortedError(_RENEGOTIATES) from error
            except ssl.SSLEOFError as error:
                raise CutOffError(_CUT_OFF) from error


async def connect_tls(sock: socket.socket, context: ssl.SSLContext, host: str, peer: str) -> TlsStream:
    """Make a connected socket a client's TLS stream.

    Args:
        sock: Connected; it is closed if the handshake fails or is cancelled.
        context: A client's.
        host: The broker's name or address as it was asked for: told to the broker (SNI), and looked for in its
            certificate if the context checks host names.
        peer: See `SocketStream`.

    Raises:
        SslAuthenticationError: If broker and client do not trust each other, or have no version or cipher in common.
        OSError: If the connection ended first.
    """
    name = host.partition("%")[0].rstrip(".")
    return await _handshake(sock, context, name, peer)


async def accept_tls(
    sock: socket.socket,
    context: ssl.SSLContext,
    peer: str | None = None,
    *,
    threads: anyio.CapacityLimiter | None = None,
) -> TlsStream:
    """Make an accepted socket a server's TLS stream.

    Args:
        sock: Connected; it is closed if the handshake fails or is cancelled.
        context: A server's, with its certificate.
        peer: See `SocketStream`.
        threads: Limits the threads in which OpenSSL works at handshakes, a step at a time: each takes some milliseconds
            of arithmetic. If None, it works on the event loop.

    Raises:
        OSError: If there was no handshake; the text says why.
    """
    return await _handshake(sock, context, None, peer, threads)


async def _handshake(
    sock: socket.socket,
    context: ssl.SSLContext,
    name: str | None,
    peer: str | None,
    threads: anyio.CapacityLimiter | None = None,
) -> TlsStream:
    server = name is None
    explain = explain_server if server else explain_client
    with contextlib.ExitStack() as undo:
        undo.callback(sock.close)
        sock.setblocking(False)
        try:
            tls = context.wrap_socket(
                sock,
                server_side=server,
                server_hostname=name or None,
                do_handshake_on_connect=False,
                suppress_ragged_eofs=False,
            )
            undo.callback(tls.close)
            if threads is None:
                await _shake_hands(tls)
            else:
                await anyio.wait_readable(tls)  # who says nothing takes no thread
                await _shake_hands(tls, partial(_step_in_a_thread, tls, threads))
        except OSError as error:
            problem = explain(error, handshake=True)
            if problem is error:
                raise
            raise problem from error
        except ValueError as error:  # no name to look for, or one that cannot be encoded
            raise OSError(f"the host name {name!r} cannot be used with TLS: {error}") from error
        if server and tls.session_reused:
            _check_not_expired(tls)
        stream = TlsStream(tls, peer, server=server)
        undo.pop_all()
        return stream


async def _step_in_a_thread(tls: ssl.SSLSocket, threads: anyio.CapacityLimiter) -> None:
    """One step of a handshake; who is given up before its turn has come leaves the queue, and is not worked for."""
    async with threads:
        alone = anyio.CapacityLimiter(1)  # there is no second queue behind that one
        await to_the_end(partial(anyio.to_thread.run_sync, tls.do_handshake, limiter=alone))


def _check_not_expired(tls: ssl.SSLSocket) -> None:
    """A client that resumes a session shows no certificate, and OpenSSL does not look again at the one it has shown.

    Each TLS 1.3 session that is resumed makes a new ticket, so it could come in like that for ever.
    """
    try:
        certificate = tls.getpeercert()
        expired = certificate and ssl.cert_time_to_seconds(str(certificate["notAfter"])) < time.time()
    except ValueError as error:  # text that is no UTF-8
        raise ConnectionAbortedError(f"the client's certificate cannot be read: {error}") from error
    if expired:
        raise ConnectionAbortedError("the client's certificate is refused: it has expired since it was shown")


async def _shake_hands(tls: ssl.SSLSocket, step: Callable[[], Awaitable[object]] | None = None) -> None:
    """Shake hands in steps, of which each goes as far as the bytes that have come."""
    for number in itertools.count():
        try:
            if step is None:
                tls.do_handshake()
            else:
                if number >= _STEPS_AT_ONCE:  # who sends single bytes is not worth a thread for each
                    await anyio.sleep((number - _STEPS_AT_ONCE) * _PAUSE)
                await step()
        except ssl.SSLWantReadError:
            await anyio.wait_readable(tls)
        except ssl.SSLWantWriteError:
            await anyio.wait_writable(tls)
        else:
            return


def _gather(parts: deque[Buffer]) -> None:
    """Join parts from the left until they fill one record; the rest of the last one stays as it is."""
    first = parts[0]
    if (first.nbytes if isinstance(first, memoryview) else len(first)) >= _RECORD:
        return
    record = bytearray()
    while parts and len(record) < _RECORD:
        view = memoryview(parts.popleft()).cast("B")
        room = _RECORD - len(record)
        record += view[:room]
        if len(view) > room:
            parts.appendleft(view[room:])
    parts.appendleft(record)
