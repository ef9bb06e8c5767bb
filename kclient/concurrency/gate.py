"""What one task waits for until it is opened, at little cost where the loop is asyncio's."""

from __future__ import annotations

import asyncio

import anyio

from kclient.concurrency.backend import current_backend

__all__ = ["Gate"]


class Gate:
    """Opened once, in the event loop that it was made in; for one task, which waits once.

    On asyncio it is a plain future, and a time limit is a timer: an `anyio.Event` in `anyio.move_on_after` costs ten
    times as much, which shows where each message waits.
    """

    __slots__ = ("_event", "_future")

    def __init__(self) -> None:
        self._event: anyio.Event | None = None
        self._future: asyncio.Future[None] | None = None
        if current_backend() == "trio":
            self._event = anyio.Event()
        else:
            self._future = asyncio.get_running_loop().create_future()

    def open(self) -> None:
        """Let the task go on."""
        if self._event is not None:
            self._event.set()
        elif self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, timeout: float | None = None) -> None:
        """Wait until it is open.

        Args:
            timeout: At most this many seconds.
        """
        if self._event is not None:
            with anyio.move_on_after(timeout):
                await self._event.wait()
        elif self._future is not None:
            if timeout is None:
                await self._future
                return
            timer = self._future.get_loop().call_later(timeout, self.open)
            try:
                await self._future
            finally:
                timer.cancel()
