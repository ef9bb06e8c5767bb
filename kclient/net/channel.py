"""Frames in and out of a byte stream, pushed to their owner: what all kinds of channels have in common.

A `Channel` reads all the frames that are ready in one wake and hands them to its owner in one call; writes never
block: what the stream does not take now is kept, in order and uncopied, until it does. `channel_kinds` has the kinds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from kclient.errors import ProtocolError
from kclient.net.frames import FrameAssembler
from kclient.net.streams import ByteStream
from kclient.types import Buffer

__all__ = ["Channel", "ChannelOwner", "TruncatedError", "Turns"]


class TruncatedError(ConnectionError):
    """The stream ended inside of a frame."""


class ChannelOwner(Protocol):
    """What a channel reports to. None of these may raise."""

    def frames_received(self, frames: list[memoryview]) -> None:
        """All frames that were ready, in order, each a writable buffer of its own without the leading size."""
        ...

    def channel_closed(self, cause: BaseException | None) -> None:
        """The channel has ended, told exactly once.

        Args:
            cause: Why: `OSError`, `TruncatedError`, `ProtocolError`; None if the other side ended the stream between
                two frames, or this side closed it.
        """
        ...

    def write_drained(self) -> None:
        """All that was pending has been written."""
        ...


class Turns(Protocol):
    """Shares the loop with other channels; connections of a server do."""

    def enter(self) -> bool:
        """Whether the channel may read or write now; if so, `leave` follows."""
        ...

    def leave(self) -> None:
        """The channel has read or written."""
        ...

    def add(self, job: Callable[[float], bool]) -> None:
        """Have a job done when it is the channel's turn."""
        ...

    def progressed(self) -> None:
        """Some of what was pending has been written, and more is left."""
        ...

    def unasked(self, most: int) -> int:
        """Bytes that may be read at once, `most` of them or less."""
        ...

    def garbled(self, error: ProtocolError) -> None:
        """What comes is not a frame. The owner reads no further, and closes when it has written what it has to."""
        ...


class _Gone:
    """The owner of a channel that has ended."""

    def frames_received(self, frames: list[memoryview]) -> None:
        pass

    def channel_closed(self, cause: BaseException | None) -> None:
        pass

    def write_drained(self) -> None:
        pass


_GONE: Final = _Gone()


class Channel:
    """Frames over a byte stream; see the module. Made by `channel_kinds.open_channel`."""

    def __init__(
        self, stream: ByteStream, owner: ChannelOwner, assembler: FrameAssembler, turns: Turns | None = None
    ) -> None:
        self.stream = stream
        self._owner = owner
        self._assembler = assembler
        self._turns = turns
        self._pending: deque[Buffer] = deque()
        self.pending_bytes: int = 0
        """Bytes that wait to be written."""
        self.paused: bool = False
        """Whether reading is paused."""
        self._corked = False  # while frames are handed out: what is written meanwhile leaves in one piece
        self.closed: bool = False

    @property
    def received_bytes(self) -> int:
        """Bytes received since the beginning."""
        return self._assembler.received_bytes

    @property
    def missing(self) -> int:
        """Bytes that have not been received of the present frame."""
        return self._assembler.missing

    def arrived(self, most: int) -> int:
        """Bytes, up to `most`, that have come and were not taken out of the stream yet."""
        return 0

    @property
    def in_flight(self) -> int:
        """Bytes that were given to the system and that the other side's has not got yet, as far as this one tells."""
        return 0

    @property
    def peer(self) -> str:
        """The other side, for logs and error messages."""
        return self.stream.peer

    @property
    def frame_limit(self) -> int:
        """Largest size of a frame, in bytes; it may be changed between frames."""
        return self._assembler.limit

    @frame_limit.setter
    def frame_limit(self, limit: int) -> None:
        self._assembler.limit = limit

    @property
    def undelivered(self) -> bool:
        """Whether there are whole frames that the owner has not been told of yet."""
        return bool(self._assembler.frames)

    @property
    def deserted(self) -> bool:
        """Whether the other side has ended the stream, as far as that can be told without reading on to its end.

        Of streams that are neither sockets nor in memory that is known when all that came before has been read.
        """
        return False

    def take_admitted(self) -> int:
        """See `FrameAssembler.take_admitted`."""
        return self._assembler.take_admitted()

    def admit(self) -> None:
        """There is memory now for the frame that was blocked; `resume` reads on."""
        self._assembler.blocked = False

    def write(self, parts: Sequence[Buffer]) -> None:
        """Send parts after all that was written before; dropped if the channel is closed.

        The buffers must not be changed until they have been sent.
        """
        raise NotImplementedError

    def pause(self) -> None:
        """Stop reading; frames that have been received already are still reported."""
        self.paused = True

    def resume(self) -> None:
        """Read again."""
        self.paused = False

    def _wait_to_write(self, size: int) -> None:
        """So many bytes more (or less) wait to be written."""
        self.pending_bytes += size

    def poll(self) -> None:
        """Take in what has arrived already, if that can be done without waiting."""

    def close(self, cause: BaseException | None = None) -> None:
        """Close at once; what is pending is dropped. The owner is told the cause."""
        if self._corked:
            self._uncork()  # what was written before has been sent as far as the stream takes it
        if self.closed:
            return
        self.closed = True
        self._pending.clear()
        self.pending_bytes = 0
        self._assembler.drop()  # at once, and not when the garbage collector finds out
        self._release()
        owner, self._owner, self._turns = self._owner, _GONE, None  # so that no cycle keeps what the owner holds
        owner.channel_closed(cause)

    async def wait_closed(self) -> None:
        """Wait until the tasks of a closed channel have ended and the stream is closed."""

    def _release(self) -> None:
        """Free what the channel holds."""
        raise NotImplementedError

    def _deliver(self) -> None:
        if self._assembler.frames:
            self._corked = True
            self._owner.frames_received(self._assembler.take())
            if self._corked:
                self._uncork()

    def _uncork(self) -> None:
        """Write what was kept back while frames were handed out."""
        self._corked = False

    def _garbled(self, error: ProtocolError) -> None:
        """What comes is not a frame; the frames before it are handed out."""
        self._deliver()
        if self._turns is None:
            self.close(error)
        else:
            self._turns.garbled(error)

    def _progressed(self) -> None:
        """Some of what was pending has been written, and more is left."""
        if self._turns is not None:
            self._turns.progressed()

    def _ended(self) -> None:
        """The other side ended the stream."""
        if self._assembler.idle:
            self.close()
        else:
            self.close(TruncatedError(f"the other side closed the connection {self._assembler.pending}"))

    def __repr__(self) -> str:
        state = "closed" if self.closed else "paused" if self.paused else "open"
        return f"<{type(self).__name__} {self.peer} {state}, {self.pending_bytes} bytes pending>"
