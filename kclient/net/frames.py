"""Cuts a stream of bytes into Kafka's frames: a size of four bytes, then that many bytes.

No I/O: whoever reads asks `FrameAssembler.target` where to put the next bytes and then tells how many came. A large
frame is received straight into its own buffer (see `receive_buffers`), so its bytes are copied nowhere; small ones
come many at a time through a buffer that all connections of a thread share, and are copied once into buffers of their
own.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from struct import Struct
from typing import Final

from kclient.net.receive_buffers import receive_buffers
from kclient.protocol.framing import DEFAULT_LIMIT, frame_size_error
from kclient.types import Buffer

__all__ = ["FIRST_ROOM", "FrameAssembler"]

FIRST_ROOM = 64 * 1024
"""Room for an announced frame whose sender is not trusted, in bytes."""
_SCRATCH_SIZE = 256 * 1024
_SIZE: Final = Struct(">i")
_SHARED = 32 * 1024
"""Bytes that are received at once where connections take turns: tiny frames are a thousand then."""
_GROWTH = 4  # with what one read brings at most, a frame of 1 MiB has its room
_ASKED_GROWTH = 16  # the same, where a read brings less
_MAPPED = 8 * 1024 * 1024
"""Frames that were asked for and are larger, in bytes, get memory that the system provides as it is filled: no buffer
has to grow, and none is filled with zeros in one go."""


class _Scratch(threading.local):
    """One receive buffer per thread. Nothing stays in it: what was received is cut up before the next read."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_SCRATCH_SIZE))
        self.first = self.view[:_SHARED]


_scratch = _Scratch()


class FrameAssembler:
    """Collects the frames of one connection.

    Args:
        limit: Largest size of a frame, in bytes; a larger one is taken for garbage.
        first_room: Room made for an announced frame at once, in bytes. Beyond it the room is never more than four times
            what has arrived, so this is what a peer can take by announcing large frames only. Who trusts its peer may
            make it large, which saves copying from smaller rooms to larger ones.
        admit: Is asked when a frame does not come whole: `admit(size, here)` says whether there is memory for all of it
            now, of which `here` bytes have come. If not, `blocked` is set, and whoever reads stops until it is unset.
    """

    __slots__ = (
        "_admit",
        "_admitted",
        "_filled",
        "_first_room",
        "_head",
        "_room",
        "_size",
        "blocked",
        "frames",
        "limit",
        "received_bytes",
    )

    def __init__(
        self,
        limit: int = DEFAULT_LIMIT,
        *,
        first_room: int = FIRST_ROOM,
        admit: Callable[[int, int], bool] | None = None,
    ) -> None:
        self.limit: int = limit
        self.blocked: bool = False
        """Whether the frame that is being received has to wait for memory."""
        self.received_bytes: int = 0
        """Bytes since the beginning."""
        self._first_room = max(first_room, 1)
        self._admit = admit
        self._admitted = 0  # bytes of complete frames that were asked for
        self.frames: list[memoryview] = []
        """Complete frames, without their sizes, writable; the owner takes them with `take`."""
        self._head = b""  # of the next frame's size, 0 to 3 bytes
        self._room: memoryview | None = None  # for the frame that is being received, all of it or the beginning
        self._filled = 0
        self._size = 0

    @property
    def idle(self) -> bool:
        """Whether the stream stands between two frames: where it may end."""
        return self._room is None and not self._head

    @property
    def missing(self) -> int:
        """Bytes that have not come of the frame that is being received."""
        return 0 if self._room is None else self._size - self._filled

    @property
    def pending(self) -> str:
        """Where the stream stands, for error messages."""
        if self._room is not None:
            return f"after {self._filled} of the {self._size} bytes of a frame"
        return f"after {len(self._head)} of the 4 bytes of a frame's size" if self._head else "between two frames"

    def take(self) -> list[memoryview]:
        """The complete frames; they are handed out once."""
        frames, self.frames = self.frames, []
        return frames

    def take_admitted(self) -> int:
        """Bytes of complete frames that `admit` was asked for since the last call."""
        admitted, self._admitted = self._admitted, 0
        return admitted

    def drop(self) -> None:
        """Give up what has been received: nothing will follow."""
        self.frames = []
        self._room = None
        self._head = b""
        self._admit = None

    def target(self) -> memoryview:
        """Where the next bytes go; valid until the next call of any assembler in this thread."""
        if self._room is not None:
            return self._free_room()
        return _scratch.view if self._admit is None else _scratch.first

    def received(self, count: int) -> None:
        """`count` bytes were put into the last `target`.

        Raises:
            ProtocolError: If a frame is larger than the limit, or its size negative.
        """
        self.received_bytes += count
        if self._room is not None:
            self._filled += count
            if self._filled == self._size:
                self._complete()
        else:
            receive_buffers().not_needed()
            self._cut(_scratch.view[:count], 0)

    def feed(self, data: Buffer) -> None:
        """Take bytes that were received elsewhere.

        A bytearray that is exactly one frame is adopted, not copied: its owner must not use it any more.

        Raises:
            ProtocolError: As `received`.
        """
        view = memoryview(data)
        if self.idle and isinstance(data, bytearray) and len(data) >= 4:
            size = self._check(int.from_bytes(data[:4], "big", signed=True))
            if size + 4 == len(data):
                self.received_bytes += len(data)
                self.frames.append(view[4:])
                return
        start = 0
        # what is here already is taken even if it has to wait: it takes no more memory than it did
        while self._room is not None and start < len(view):
            room = self._free_room()
            count = min(len(room), len(view) - start)
            room[:count] = view[start : start + count]
            start += count
            self.received(count)
        if start < len(view):
            self.received_bytes += len(view) - start
            self._cut(view, start)

    def adopt(self, data: bytearray, fed: int) -> bool:
        """If `data` is the frame that is being received, of which `fed` bytes were fed: take the rest, uncopied.

        Its owner must not use it any more.
        """
        if self._room is None or self._size + 4 != len(data) or self._filled + 4 != fed:
            return False
        self.received_bytes += len(data) - fed
        self._room = memoryview(data)[4:]
        self._complete()
        return True

    def _cut(self, view: memoryview, start: int) -> None:
        """Cut up bytes that begin at a frame's size, or inside of it."""
        end = len(view)
        if self._head:
            needed = 4 - len(self._head)
            head = self._head + bytes(view[start : start + needed])
            if len(head) < 4:
                self._head = head
                return
            self._head = b""
            start = self._body(view, start + needed, end, self._check(int.from_bytes(head, "big", signed=True)))
        limit, frames = self.limit, self.frames
        while end - start >= 4:
            (size,) = _SIZE.unpack_from(view, start)
            stop = start + 4 + size
            if 0 <= size <= limit and stop <= end:
                frames.append(memoryview(bytearray(view[start + 4 : stop])))
                start = stop
            else:
                start = self._body(view, start + 4, end, self._check(size))
        if start < end:
            self._head = bytes(view[start:end])

    def _body(self, view: memoryview, start: int, end: int, size: int) -> int:
        """A frame's bytes begin at `start`; returns where the next frame begins."""
        stop = start + size
        if stop <= end:
            self.frames.append(memoryview(bytearray(view[start:stop])))
            return stop
        count = end - start
        self._size = size
        self._filled = count
        if self._admit is not None:
            self.blocked = not self._admit(size, count)
        self._room = self._make_room(count)
        self._room[:count] = view[start:end]
        return end

    def _make_room(self, count: int) -> memoryview:
        """Room for the present frame, of which `count` bytes have come."""
        if self._admit is None:
            return receive_buffers().take(min(self._size, max(self._first_room, _GROWTH * count)))
        if self.blocked:
            return memoryview(bytearray(max(count, 1)))
        if self._size > _MAPPED:
            return memoryview(mmap.mmap(-1, self._size))
        # there is memory for all of it; but what is not filled need not be there
        return receive_buffers().take(min(self._size, max(self._first_room, _ASKED_GROWTH * count)))

    def _free_room(self) -> memoryview:
        room = self._room
        assert room is not None
        if self._filled == len(room):
            grown = self._make_room(self._filled)
            grown[: self._filled] = room
            self._room = room = grown
        return room[self._filled :]

    def _complete(self) -> None:
        assert self._room is not None
        self.frames.append(self._room)
        self._room = None
        if self._admit is not None:
            self._admitted += self._size

    def _check(self, size: int) -> int:
        if 0 <= size <= self.limit:
            return size
        raise frame_size_error(size, self.limit)
