"""The server's side of TLS: OpenSSL is handed what the socket has, a piece at a time.

Over a socket of its own it would read on as long as bytes come: a client that does nothing but change its key (the
KeyUpdate of TLS 1.3), at two megabytes a second, would hold the loop for as long as it likes, without a login.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import anyio
import anyio.to_thread

from kclient.concurrency import to_the_end
from kclient.net.streams import FAIR_FRAMES, FAIR_SHARE, RECEIVE_SIZE, CutOffError, remove_sent
from kclient.net.tls import CUT_OFF, LEAST, RECORD, RENEGOTIATES, TlsStream, gather
from kclient.net.tls_errors import explain_server
from kclient.types import Buffer

if TYPE_CHECKING:
    from kclient.net.frames import FrameAssembler

__all__ = ["FedTlsStream", "accept_tls"]

_STEPS_AT_ONCE = 16
"""Of a handshake in threads: it takes two or three, or some more where certificates are long. Later ones wait a little,
each longer than the one before, so that more bytes come together."""
_PAUSE = 0.001
"""Seconds by which that becomes longer."""
_PIECE: Final = RECORD + 256
"""Bytes that OpenSSL gets at once, while something comes out of them."""
_SMALL_PIECE: Final = 2048
"""And after a piece of which nothing came out: some 70 changes of keys, of about 20 µs each."""
_LONGEST_HANDSHAKE: Final = 32 * 1024
"""Bytes of a client's handshake, which are those of its certificates. What OpenSSL makes of them takes more than ten
times as much memory for as long as the connection lasts. Java takes no longer ones."""
_UNANSWERED: Final = 64 * 1024
"""Bytes of OpenSSL's own answers that may wait for a client to read them."""


class FedTlsStream(TlsStream):
    """A server's, made by `accept_tls`.

    Args:
        sock: The socket; from now on it belongs to the stream.
        context: A server's.
        peer: See `SocketStream`.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, peer: str | None = None) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        super().__init__(sock, self._tls, peer)
        self._unsent: memoryview = memoryview(b"")
        """Encrypted, and not taken by the socket."""
        self._fed = 0
        """Bytes that OpenSSL was given."""
        self._owed = 0
        """Bytes at the left of the parts that were encrypted, and have not left whole."""
        self._fruitful = True
        """Whether something came out of the last piece."""

    async def shake_hands(self, threads: anyio.CapacityLimiter | None) -> None:
        """Shake hands, in steps of which each goes as far as the bytes that have come.

        Args:
            threads: See `accept_tls`.

        Raises:
            OSError: As OpenSSL or the socket has it.
        """
        for number in itertools.count():
            if number >= _STEPS_AT_ONCE:  # who sends single bytes is not worth a thread for each
                await anyio.sleep((number - _STEPS_AT_ONCE) * _PAUSE)
            if self._fed > _LONGEST_HANDSHAKE:
                raise OSError(
                    f"the client's handshake has more than {_LONGEST_HANDSHAKE} bytes: it shows too many certificates"
                )
            while not self._feed(_PIECE):  # who says nothing takes no thread
                await self._wait_readable()
            try:
                await self._step(threads)
            except ssl.SSLWantReadError:
                await self._push_all()
            else:
                await self._push_all()
                return

    async def _step(self, threads: anyio.CapacityLimiter | None) -> None:
        """One step; who is given up before its turn has come leaves the queue, and is not worked for."""
        if threads is None:
            self._tls.do_handshake()
            return
        async with threads:
            alone = anyio.CapacityLimiter(1)  # there is no second queue behind that one
            await to_the_end(partial(anyio.to_thread.run_sync, self._tls.do_handshake, limiter=alone))

    def check_not_expired(self) -> None:
        """Who resumes a session shows no certificate, and OpenSSL does not look again at the one it has shown before.

        Each TLS 1.3 session that is resumed makes a new ticket, so it could come in like that for ever.

        Raises:
            ConnectionAbortedError: The certificate has expired, or cannot be read.
        """
        if not self._tls.session_reused:
            return
        try:
            certificate = self._tls.getpeercert()
            expired = certificate and ssl.cert_time_to_seconds(str(certificate["notAfter"])) < time.time()
        except ValueError as error:  # text that is no UTF-8
            raise ConnectionAbortedError(f"the client's certificate cannot be read: {error}") from error
        if expired:
            raise ConnectionAbortedError("the client's certificate is refused: it has expired since it was shown")

    @property
    def unread(self) -> bool:
        return self._incoming.pending > 0 or super().unread

    def peek(self, most: int) -> int:
        return min(super().peek(most) + self._incoming.pending, most)

    def fill(self, assembler: FrameAssembler, share: int = FAIR_SHARE) -> bool:
        total = 0
        while total < share and len(assembler.frames) < FAIR_FRAMES and not assembler.blocked:
            if not self.unread and not self._feed_on():
                break
            target = assembler.target()
            try:
                count = cast("int", self._tls.read(len(target), target))  # into a buffer: the number of bytes
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLWantWriteError as error:
                raise ConnectionAbortedError(RENEGOTIATES) from error
            except ssl.SSLEOFError as error:
                raise CutOffError(CUT_OFF) from error
            if count == 0:
                return True
            self._fruitful = True
            assembler.received(count)
            total += max(count, LEAST)
        return False

    def _feed_on(self) -> bool:
        """Give OpenSSL the next piece, after all before; False if nothing has come, or others have their turn first."""
        self._answer()
        if not self._feed(_PIECE if self._fruitful else _SMALL_PIECE):
            return False
        fruitful, self._fruitful = self._fruitful, False
        return fruitful or self._incoming.eof

    def _feed(self, most: int) -> bool:
        """Give OpenSSL what the socket has, and be it the end; False if nothing has come."""
        try:
            piece = self.socket.recv(most)
        except BlockingIOError:
            return False
        if piece:
            self._fed += self._incoming.write(piece)
        else:
            self._incoming.write_eof()
        return True

    def _answer(self) -> None:
        """Send what OpenSSL answers by itself."""
        if not (self._outgoing.pending or self._unsent) or self._push():
            return
        if self._outgoing.pending > _UNANSWERED:
            raise ConnectionAbortedError("the client asks for more changes of keys than it takes answers to")

    def flush(self, parts: deque[Buffer]) -> int:
        """As `SocketStream.flush`, a record at a time; small parts are gathered, since each is encrypted by itself."""
        if not self._owed:
            if len(parts) > 1:
                gather(parts)
            try:
                self._owed = self._tls.write(memoryview(parts[0]).cast("B")[:RECORD])
            except ssl.SSLWantReadError as error:
                raise ConnectionAbortedError(RENEGOTIATES) from error
        if not self._push():
            return 0
        count, self._owed = self._owed, 0
        remove_sent(parts, count)
        return count

    def _push(self) -> bool:
        """Send what is encrypted; whether all of it is gone."""
        while self._unsent or self._outgoing.pending:
            if not self._unsent:
                self._unsent = memoryview(self._outgoing.read())
            try:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
            except BlockingIOError:
                return False
        return True

    async def _push_all(self) -> None:
        while not self._push():
            await self._wait_writable()

    def explain(self, error: OSError) -> Exception:
        """What failed, for the log."""
        return explain_server(error)

    def say_end(self) -> None:
        # a single try: what does not fit into the socket's buffer now is not waited for
        with contextlib.suppress(OSError, ValueError):
            if not self._remembered:
                self._tls.unwrap()
        with contextlib.suppress(OSError, ValueError):  # after a failure, too: it has an alert for the client
            self._push()

    @property
    def _remembered(self) -> bool:
        """Whether OpenSSL remembers the session, with all that the client has shown, in case that it comes again.

        It does so for clients of TLS 1.2 that take no tickets, 20,000 of them for two hours, and forgets those that are
        not told of the end. With certificates of clients each may take hundreds of KiB.
        """
        if self.version != "TLSv1.2" or self.peer_certificate is None:
            return False
        session = self._tls.session
        return session is not None and bool(session.id)

    async def receive(self, max_bytes: int = RECEIVE_SIZE) -> Buffer:
        while True:
            try:
                return self._tls.read(min(max_bytes, RECORD))
            except ssl.SSLWantReadError:
                self._answer()
                while not self._feed(_PIECE):
                    await self._wait_readable()
            except ssl.SSLWantWriteError as error:
                raise ConnectionAbortedError(RENEGOTIATES) from error
            except ssl.SSLEOFError as error:
                raise CutOffError(CUT_OFF) from error


async def accept_tls(
    sock: socket.socket,
    context: ssl.SSLContext,
    peer: str | None = None,
    *,
    threads: anyio.CapacityLimiter | None = None,
) -> FedTlsStream:
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
    with contextlib.ExitStack() as undo:
        undo.callback(sock.close)
        stream = FedTlsStream(sock, context, peer)
        undo.callback(stream.close)
        try:
            await stream.shake_hands(threads)
        except OSError as error:
            problem = explain_server(error, handshake=True)
            if problem is error:
                raise
            raise problem from error
        stream.check_not_expired()
        undo.pop_all()
        return stream
