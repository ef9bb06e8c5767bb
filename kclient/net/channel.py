"""Frames in and out of a byte stream, pushed to their owner: what all kinds of channels have in common.

A `Channel` reads all the frames that are ready in one wake and hands them to its owner in one call; writes never
block: what the stream does not take now is kept, in order and uncopied, until it does. `channel_kinds` has the kinds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from kclient.errors import ProtocolError
from kclient.net.frames import FrameAssembler
from kclient.net.streams import ByteStream, CutOffError, SocketStream
from kclient.types import Buffer

__all__ = ["Channel", "ChannelOwner", "TruncatedError"]


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


class Channel:
    """Frames over a byte stream; see the module. Made by `channel_kinds.open_channel`."""

    def __init__(self, stream: ByteStream, owner: ChannelOwner, assembler: FrameAssembler) -> None:
        self.stream = stream
        self._owner = owner
        self._assembler = assembler
        self._pending: deque[Buffer] = deque()
        self._pending_bytes = 0
        self._paused = False
        self._corked = False  # while frames are handed out: what is written meanwhile leaves in one piece
        self.closed: bool = False

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait to be written."""
        return self._pending_bytes

    @property
    def paused(self) -> bool:
        """Whether reading is paused."""
        return self._paused

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

    def write(self, parts: Sequence[Buffer]) -> None:
        """Send parts after all that was written before; dropped if the channel is closed.

        The buffers must not be changed until they have been sent.
        """
        raise NotImplementedError

    def pause(self) -> None:
        """Stop reading; frames that have been received already are still reported."""
        self._paused = True

    def resume(self) -> None:
        """Read again."""
        self._paused = False

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
        self._pending_bytes = 0
        self._release()
        self._owner.channel_closed(cause)

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

    def _ended(self) -> None:
        """The other side ended the stream."""
        if self._assembler.idle:
            self.close()
        else:
            self.close(TruncatedError(f"the other side closed the connection {self._assembler.pending}"))

    def _receive_ready(self, stream: SocketStream) -> bool:
        """Read all that is ready, up to a fair share; False if the channel ended with it."""
        try:
            ended = stream.fill(self._assembler)
        except CutOffError as error:
            self._deliver()
            self.close(error if self._assembler.idle else TruncatedError(f"{error}, {self._assembler.pending}"))
            return False
        except (OSError, ProtocolError) as error:
            self._deliver()
            self.close(stream.explain(error) if isinstance(error, OSError) else error)
            return False
        self._deliver()
        if ended:
            self._ended()
        return not self.closed

    def _send_ready(self, stream: SocketStream) -> bool:
        """Write what the stream takes now; False if the channel broke."""
        try:
            while self._pending and (count := stream.flush(self._pending)):
                self._pending_bytes -= count
        except OSError as error:
            self.close(stream.explain(error))
            return False
        return True

    def __repr__(self) -> str:
        state = "closed" if self.closed else "paused" if self._paused else "open"
        return f"<{type(self).__name__} {self.peer} {state}, {self._pending_bytes} bytes pending>"
