"""Channels over memory streams, on any backend; no task is involved."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from kclient.concurrency import loop_soon
from kclient.errors import ProtocolError
from kclient.net.channel import Channel, ChannelOwner, Turns
from kclient.net.frames import FrameAssembler
from kclient.net.socket_io import READ_SHARE
from kclient.net.streams import FAIR_FRAMES, MemoryStream, buffer_size
from kclient.types import Buffer

__all__ = ["MemoryChannel"]


class MemoryChannel(Channel):
    """A memory stream on any backend: what has changed is looked at in the loop's next turn; without a task."""

    def __init__(
        self, stream: MemoryStream, owner: ChannelOwner, assembler: FrameAssembler, turns: Turns | None
    ) -> None:
        super().__init__(stream, owner, assembler, turns)
        self._memory = stream
        # each write by itself: a frame that comes in one piece is not copied again
        self._writes: deque[Sequence[Buffer]] = deque()
        self._soon = loop_soon()
        self._scheduled = False
        self._fed = 0  # bytes of the stream's next chunk that have been taken in already
        stream.watch(self._changed)
        self._changed()

    def write(self, parts: Sequence[Buffer]) -> None:
        if self.closed:
            return
        try:
            if not self._writes and self._memory.send_nowait(parts):
                return
        except OSError as error:
            self.close(error)
            return
        self._writes.append(parts)
        self._wait_to_write(sum(map(len, parts)))

    def resume(self) -> None:
        super().resume()
        self._changed()

    @property
    def deserted(self) -> bool:
        return self._memory.deserted

    def arrived(self, most: int) -> int:
        return min(self._memory.unread_bytes - self._fed, most)

    def poll(self) -> None:
        if not self.closed and not self.paused:
            self._read()

    def _changed(self) -> None:
        if not self._scheduled and not self.closed:
            self._scheduled = True
            self._soon(self._run)

    def _run(self) -> None:
        turns = self._turns
        if turns is None:
            self._scheduled = False
            self._work()
        elif turns.enter():
            self._scheduled = False
            try:
                self._work()
            finally:
                turns.leave()
        else:
            turns.add(self._work_in_turn)

    def _work_in_turn(self, until: float) -> bool:
        self._scheduled = False
        self._work()
        return False

    def _work(self) -> None:
        if self._writes and not self.closed:
            self._write()
        self.poll()

    def _read(self) -> None:
        data: Buffer | None = None
        turns, memory = self._turns, self._memory
        left = None if turns is None else turns.unasked(READ_SHARE)
        try:
            assembler = self._assembler
            while len(assembler.frames) < FAIR_FRAMES and not assembler.blocked:
                if left is not None and (chunk := memory.next_chunk):
                    if self._fed or len(chunk) > left:
                        data = chunk
                        if not assembler.frames:  # else they count first
                            self._feed_some(chunk, left)
                        break
                    left -= len(chunk)
                data = memory.receive_nowait()
                if not data:
                    break
                assembler.feed(data)
        except OSError as error:
            self._deliver()
            self.close(error)
            return
        except ProtocolError as error:
            self._garbled(error)
            return
        self._deliver()
        if data is None:
            return
        if data:
            self._changed()  # the others have their turn first
        else:
            self._ended()

    def _feed_some(self, chunk: bytearray, unasked: int) -> None:
        """Take in so many bytes of a chunk that is larger: its next frame is asked for before the rest comes.

        Until all of it is taken in it stays in the stream, where it keeps the other side from sending more.
        """
        assembler, start = self._assembler, self._fed
        if not assembler.adopt(chunk, start):
            if not start and assembler.idle and int.from_bytes(chunk[:4], "big") == len(chunk) - 4:
                end = 5  # enough to ask for all of it, which need not be copied then
            else:
                end = min(start + max(unasked, min(assembler.missing, READ_SHARE)), len(chunk))
            assembler.feed(memoryview(chunk)[start:end])
            self._fed = end
            if end < len(chunk) and (assembler.blocked or not assembler.adopt(chunk, end)):
                return
        self._memory.receive_nowait()
        self._fed = 0

    def _write(self) -> None:
        try:
            while self._writes and self._memory.send_nowait(self._writes[0]):
                self._wait_to_write(-buffer_size(self._writes.popleft()))
        except OSError as error:
            self.close(error)
            return
        if self._writes:
            self._progressed()
        else:
            self._owner.write_drained()

    def _release(self) -> None:
        self._writes.clear()
        self._memory.close()
