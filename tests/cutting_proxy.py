"""Passes TCP connections on to a server, and cuts them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class CuttingProxy:
    """Clients connect to `address`, and are passed on to the port `target` of this machine, which may change."""

    def __init__(self) -> None:
        self.address = ""
        self.target = 0
        self.cuts: list[int] = []
        """When connections were cut, in nanoseconds of the monotonic clock."""
        self._connections: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Listen."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        try:
            yield
        finally:
            server.close()
            tasks = list(self._connections)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def cut(self, chance: random.Random) -> None:
        """Break some of the connections, on both sides at once."""
        self.cuts.append(time.monotonic_ns())
        for writers in self._connections.values():
            if chance.random() < 0.5:
                for writer in writers:
                    writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        writers = self._connections[task] = [writer]
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                there, back = await asyncio.open_connection("127.0.0.1", self.target)
                writers.append(back)
                await asyncio.wait(
                    [asyncio.ensure_future(_pass_on(*way)) for way in ((reader, back), (there, writer))],
                    return_when=asyncio.FIRST_COMPLETED,
                )
        finally:
            for each in writers:
                each.transport.abort()
            del self._connections[task]


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
