"""A byte stream that misbehaves on purpose: it splits and merges chunks, delays them, and cuts the connection."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, cast

import anyio

from kclient.arguments import shown, whole_number
from kclient.net.streams import RECEIVE_SIZE, ByteStream
from kclient.types import Buffer

__all__ = ["FaultyStream"]


class FaultyStream:
    """Another stream with faults. The bytes stay the same and in order; only their pieces change.

    Args:
        stream: The stream underneath.
        split: Largest chunk that is received at once, in bytes; None leaves chunks as they come.
        delay: Checkpoints that pass before each chunk is received, at most.
        cut_received: Break the connection after so many bytes were received.
        cut_sent: Break the connection after so many bytes were sent.
        seed: Of the random sizes and delays.

    Raises:
        TypeError, ValueError: A number is none, or negative.
    """

    def __init__(
        self,
        stream: ByteStream,
        *,
        split: int | None = None,
        delay: int = 0,
        cut_received: int | None = None,
        cut_sent: int | None = None,
        seed: int = 0,
    ) -> None:
        self.stream = stream
        self._split = None if split is None else _size(split, "split", least=1)
        self._delay = _size(delay, "delay")
        self._cut_received = None if cut_received is None else _size(cut_received, "cut_received")
        self._cut_sent = None if cut_sent is None else _size(cut_sent, "cut_sent")
        self._random = random.Random(whole_number(seed, "the seed"))
        self._rest = b""

    @property
    def peer(self) -> str:
        return self.stream.peer

    async def receive(self, max_bytes: int = RECEIVE_SIZE) -> Buffer:
        for _ in range(self._random.randint(0, self._delay)):
            await anyio.lowlevel.checkpoint()
        if self._cut_received == 0:
            await self._cut()
        if not self._rest:
            self._rest = bytes(await self.stream.receive(max_bytes))
            if self._split is not None and self._random.random() < 0.3:
                self._rest += await self._more(max_bytes)
        size = len(self._rest) if self._split is None else self._random.randint(1, self._split)
        if self._cut_received is not None:
            size = min(size, self._cut_received)
            self._cut_received -= min(size, len(self._rest))
        chunk, self._rest = self._rest[:size], self._rest[size:]
        return chunk

    async def send(self, parts: Sequence[Buffer]) -> None:
        data = b"".join(cast("Sequence[Any]", parts))
        if self._cut_sent is not None:
            if len(data) >= self._cut_sent:
                await self.stream.send([data[: self._cut_sent]])
                self._cut_sent = 0
                await self._cut()
            self._cut_sent -= len(data)
        size = self._split or max(len(data), 1)
        for start in range(0, len(data), size):
            await self.stream.send([data[start : start + size]])

    async def aclose(self) -> None:
        await self.stream.aclose()

    async def _more(self, max_bytes: int) -> bytes:
        """Merge what comes at once with what comes next, if it comes soon."""
        with anyio.move_on_after(0.001):
            return bytes(await self.stream.receive(max_bytes))
        return b""

    async def _cut(self) -> None:
        await self.stream.aclose()
        raise ConnectionResetError("the connection was cut")


def _size(value: int, name: str, least: int = 0) -> int:
    number = whole_number(value, name)
    if number < least:
        raise ValueError(f"{name} is {least} at least, not {shown(value)}")
    return number
