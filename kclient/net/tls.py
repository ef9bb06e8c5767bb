"""TLS over TCP sockets: a `SocketStream` whose bytes OpenSSL encrypts. That of servers is in `tls_accepting`.

OpenSSL reads and writes the non-blocking socket itself (`ssl.SSLSocket`), so a frame is decrypted straight into its
buffer, and the channels of plain sockets serve these too. `docs/internals/connection.md` has the figures.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections import deque
from typing import TYPE_CHECKING, Final

import anyio

from kclient.errors import SslAuthenticationError
from kclient.net.streams import FAIR_FRAMES, FAIR_SHARE, RECEIVE_SIZE, CutOffError, SocketStream, remove_sent
from kclient.net.tls_errors import explain_client
from kclient.types import Buffer

if TYPE_CHECKING:
    from kclient.net.frames import FrameAssembler

__all__ = ["SocketTlsStream", "TlsStream", "connect_tls"]

RECORD: Final = 16 * 1024  # the most that TLS encrypts in one piece
LEAST: Final = 1024
"""Bytes of its share that a read takes, however short its record is: OpenSSL takes some microseconds for each."""
CUT_OFF: Final = "the other side closed the connection without ending TLS (close_notify)"
RENEGOTIATES: Final = "the other side renegotiates TLS, which is not supported"


class TlsStream(SocketStream):
    """A byte stream that is encrypted; made by `connect_tls` and `accept_tls`.

    Args:
        sock: The socket; from now on it belongs to the stream.
        session: What OpenSSL knows of the connection.
        peer: The other side.
    """

    def __init__(self, sock: socket.socket, session: ssl.SSLSocket | ssl.SSLObject, peer: str | None = None) -> None:
        super().__init__(sock, peer)
        self._session = session

    @property
    def version(self) -> str:
        """The version of TLS, as `TLSv1.3`."""
        return self._session.version() or "none"

    @property
    def peer_certificate(self) -> bytes | None:
        """The certificate that the other side has shown, as DER; None for none, or none that was asked for.

        It was checked in the handshake, where the context says so.
        """
        return self._session.getpeercert(binary_form=True)

    @property
    def unread(self) -> bool:
        return self._session.pending() > 0

    def peek(self, most: int) -> int:
        return min(super().peek(most) + self._session.pending(), most)


class SocketTlsStream(TlsStream):
    """A client's, over a TLS socket whose handshake is done: OpenSSL reads and writes the socket.

    Args:
        sock: The socket; from now on it belongs to the stream.
        peer: The other side.
    """

    def __init__(self, sock: ssl.SSLSocket, peer: str | None = None) -> None:
        super().__init__(sock, sock, peer)
        self._tls = sock

    def fill(self, assembler: FrameAssembler, share: int = FAIR_SHARE) -> bool:
        total = 0
        try:
            # to the very end, whatever a read gives: it never gives more than one record
            while total < share and len(assembler.frames) < FAIR_FRAMES and not assembler.blocked:
                count = self._tls.recv_into(assembler.target())
                if count == 0:
                    return True
                assembler.received(count)
                total += max(count, LEAST)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLWantWriteError as error:
            raise ConnectionAbortedError(RENEGOTIATES) from error
        except ssl.SSLEOFError as error:
            raise CutOffError(CUT_OFF) from error
        return False

    def flush(self, parts: deque[Buffer]) -> int:
        """As `SocketStream.flush`; small parts are gathered into records, since each is encrypted by itself."""
        if len(parts) > 1:
            gather(parts)
        try:
            count = self._tls.send(parts[0])
        except ssl.SSLWantWriteError:
            return 0
        except ssl.SSLWantReadError as error:
            raise ConnectionAbortedError(RENEGOTIATES) from error
        remove_sent(parts, count)
        return count

    def explain(self, error: OSError) -> Exception:
        """What failed, and the setting to change; TLS 1.3 tells some refusals only after the handshake."""
        problem = explain_client(error)
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
                return self._tls.recv(min(max_bytes, RECORD))
            except ssl.SSLWantReadError:
                await self._wait_readable()
            except ssl.SSLWantWriteError as error:
                raise ConnectionAbortedError(RENEGOTIATES) from error
            except ssl.SSLEOFError as error:
                raise CutOffError(CUT_OFF) from error


async def connect_tls(sock: socket.socket, context: ssl.SSLContext, host: str, peer: str) -> SocketTlsStream:
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
    with contextlib.ExitStack() as undo:
        undo.callback(sock.close)
        sock.setblocking(False)
        try:
            tls = context.wrap_socket(
                sock,
                server_hostname=name or None,
                do_handshake_on_connect=False,
                suppress_ragged_eofs=False,
            )
            undo.callback(tls.close)
            await _shake_hands(tls)
        except OSError as error:
            problem = explain_client(error, handshake=True)
            if problem is error:
                raise
            raise problem from error
        except ValueError as error:  # no name to look for, or one that cannot be encoded
            raise OSError(f"the host name {name!r} cannot be used with TLS: {error}") from error
        stream = SocketTlsStream(tls, peer)
        undo.pop_all()
        return stream


async def _shake_hands(tls: ssl.SSLSocket) -> None:
    """Shake hands in steps, of which each goes as far as the bytes that have come."""
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            await anyio.wait_readable(tls)
        except ssl.SSLWantWriteError:
            await anyio.wait_writable(tls)
        else:
            return


def gather(parts: deque[Buffer]) -> None:
    """Join parts from the left until they fill one record; the rest of the last one stays as it is."""
    first = parts[0]
    if (first.nbytes if isinstance(first, memoryview) else len(first)) >= RECORD:
        return
    record = bytearray()
    while parts and len(record) < RECORD:
        view = memoryview(parts.popleft()).cast("B")
        room = RECORD - len(record)
        record += view[:room]
        if len(view) > room:
            parts.appendleft(view[room:])
    parts.appendleft(record)
