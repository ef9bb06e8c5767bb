"""The kinds of channels, by what they read from, and `open_channel`, which chooses.

- `LoopChannel`: a socket on asyncio (uvloop too), with TLS or without, by the loop's reader and writer callbacks; no
  task is involved.
- `SocketChannel`: the same on trio, by one reading task and, while writes are pending, one writing task.
- `MemoryChannel`: a memory stream, in the turn of the loop after a change; no task is involved.
- `StreamChannel`: any other `ByteStream`, by two tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from kclient.concurrency import Supervisor, current_backend
from kclient.net.channel import Channel, ChannelOwner, Turns
from kclient.net.frames import FIRST_ROOM, FrameAssembler
from kclient.net.loop_channel import LoopChannel
from kclient.net.memory_channel import MemoryChannel
from kclient.net.streams import ByteStream, MemoryStream, SocketStream
from kclient.net.task_channels import SocketChannel, StreamChannel
from kclient.protocol.framing import DEFAULT_LIMIT

__all__ = ["open_channel"]


def open_channel(
    stream: ByteStream,
    owner: ChannelOwner,
    supervisor: Supervisor,
    *,
    frame_limit: int = DEFAULT_LIMIT,
    first_room: int = FIRST_ROOM,
    turns: Turns | None = None,
    admit: Callable[[int, int], bool] | None = None,
) -> Channel:
    """Start to read a stream; from now on it belongs to the channel, which closes it.

    Args:
        stream: A connected byte stream.
        owner: Is told of frames and of the end.
        supervisor: Runs the tasks, where tasks are needed.
        frame_limit: Largest size of a frame, in bytes.
        first_room: See `FrameAssembler`.
        turns: Shares the loop with other channels; None for a channel that reads and writes whenever it can.
        admit: See `FrameAssembler`.
    """
    assembler = FrameAssembler(frame_limit, first_room=first_room, admit=admit)
    if isinstance(stream, MemoryStream):
        return MemoryChannel(stream, owner, assembler, turns)
    if not isinstance(stream, SocketStream):
        return StreamChannel(stream, owner, assembler, turns, supervisor)
    try:
        if current_backend() == "asyncio":
            # loops without readers (Windows' proactor) take the way of the tasks
            with contextlib.suppress(NotImplementedError):
                return LoopChannel(stream, owner, assembler, turns, asyncio.get_running_loop())
        return SocketChannel(stream, owner, assembler, turns, supervisor)
    except BaseException:
        stream.close()
        raise
