"""Channels over sockets on an asyncio loop (uvloop too), by the loop's callbacks; no task is involved."""

from __future__ import annotations

import asyncio

from kclient.net.channel import ChannelOwner, Turns
from kclient.net.frames import FrameAssembler
from kclient.net.socket_io import SocketIO
from kclient.net.streams import SocketStream

__all__ = ["LoopChannel"]


class LoopChannel(SocketIO):
    """A socket on an asyncio loop, by the loop's reader and writer callbacks."""

    def __init__(
        self,
        stream: SocketStream,
        owner: ChannelOwner,
        assembler: FrameAssembler,
        turns: Turns | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(stream, owner, assembler, turns)
        self._loop = loop
        self._fd = stream.socket.fileno()
        self._waiting_to_read = False
        self._waiting_to_write = False
        self._read_on()

    def _write_later(self) -> None:
        self._loop.add_writer(self._fd, self._on_writable)

    def pause(self) -> None:
        if not self.paused and not self.closed and not self._waiting_to_read:
            self._loop.remove_reader(self._fd)
        super().pause()

    def resume(self) -> None:
        if self.paused and not self.closed and not self._waiting_to_read:
            self._read_on()
        super().resume()

    def _read_on(self) -> None:
        self._loop.add_reader(self._fd, self._on_readable)
        if self._stream.unread:
            self._loop.call_soon(self._on_readable)

    def _on_readable(self) -> None:
        if self.closed or self.paused or self._waiting_to_read:
            return
        turns = self._turns
        if turns is None:
            self._read()
        elif turns.enter():
            try:
                self._read()
            finally:
                turns.leave()
        else:
            self._waiting_to_read = True
            self._loop.remove_reader(self._fd)
            turns.add(self._read_in_turn)

    def _read(self) -> None:
        if self._receive_ready() and self._stream.unread:
            self._loop.call_soon(self._on_readable)  # the others have their turn first

    def _read_in_turn(self, until: float) -> bool:
        self._waiting_to_read = False
        if not self.closed and not self.paused:
            self._loop.add_reader(self._fd, self._on_readable)
            self._read()
        return False

    def _on_writable(self) -> None:
        if self.closed or self._waiting_to_write:
            return
        turns = self._turns
        if turns is None:
            self._write_on()
        elif turns.enter():
            try:
                self._write_on()
            finally:
                turns.leave()
        else:
            self._waiting_to_write = True
            self._loop.remove_writer(self._fd)
            turns.add(self._write_in_turn)

    def _write_on(self) -> None:
        if not self._send_ready():
            return
        if self._pending:
            self._progressed()
        else:
            self._writing = False
            self._loop.remove_writer(self._fd)
            self._owner.write_drained()

    def _write_in_turn(self, until: float) -> bool:
        self._waiting_to_write = False
        if not self.closed:
            self._loop.add_writer(self._fd, self._on_writable)
            self._write_on()
        return False

    def _release(self) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
        self._stream.say_end()
        self._stream.socket.close()
