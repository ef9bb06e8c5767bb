"""Reading and writing a socket without waiting: what channels over sockets have in common, on any loop."""

from __future__ import annotations

from collections.abc import Sequence

from kclient.errors import ProtocolError
from kclient.net.channel import Channel, ChannelOwner, TruncatedError, Turns
from kclient.net.frames import FrameAssembler
from kclient.net.streams import FAIR_SHARE, CutOffError, SocketStream
from kclient.types import Buffer

__all__ = ["SocketIO"]

_WRITE_SHARE = 1024 * 1024
"""Bytes written to one connection before the others have their turn, where they take turns."""
READ_SHARE = 1024 * 1024
"""Bytes read from one connection before the others have their turn, where they take turns: a millisecond's worth."""


class SocketIO(Channel):
    """A channel over a socket, with TLS or without; when it is read and written is up to its kind."""

    pending_bytes: int

    def __init__(
        self, stream: SocketStream, owner: ChannelOwner, assembler: FrameAssembler, turns: Turns | None
    ) -> None:
        super().__init__(stream, owner, assembler, turns)
        self._stream = stream
        self._writing = False  # more of what is pending when the socket takes it

    def write(self, parts: Sequence[Buffer]) -> None:
        if self.closed:
            return
        self._pending.extend(parts)
        self._wait_to_write(sum(map(len, parts)))
        if not self._corked:
            self._push()

    def _push(self) -> None:
        if not self._writing and self._send_ready() and self._pending:
            self._writing = True
            self._write_later()

    def _write_later(self) -> None:
        """Write the rest when the socket takes more."""
        raise NotImplementedError

    def _uncork(self) -> None:
        self._corked = False
        if self._pending and not self._writing:
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
            self._receive_ready()

    def _receive_ready(self) -> bool:
        """Read all that is ready, up to a fair share; False if the channel ended with it."""
        turns = self._turns
        share = FAIR_SHARE if turns is None else turns.unasked(READ_SHARE)
        if share < READ_SHARE:
            share = min(share + self._assembler.missing, READ_SHARE)
        try:
            ended = self._stream.fill(self._assembler, share)
        except CutOffError as error:
            self._deliver()
            self.close(error if self._assembler.idle else TruncatedError(f"{error}, {self._assembler.pending}"))
            return False
        except OSError as error:
            self._deliver()
            self.close(self._stream.explain(error))
            return False
        except ProtocolError as error:
            self._garbled(error)
            return False
        self._deliver()
        if ended:
            self._ended()
        return not self.closed

    def _send_ready(self) -> bool:
        """Write what the stream takes now, with turns up to a share; False if the channel broke."""
        left = _WRITE_SHARE if self._turns is not None else self.pending_bytes
        try:
            while self._pending and left > 0 and (count := self._stream.flush(self._pending)):
                self.pending_bytes -= count
                left -= count
        except OSError as error:
            self.close(self._stream.explain(error))
            return False
        return True
