"""The answer to an append: where it stands, and when it is synced."""

from __future__ import annotations

import anyio
import anyio.lowlevel

from kclient.htp.errors import StorageError
from kclient.htp.port import SyncedCallback


class Ticket:
    """Implements `kclient.htp.port.Sent`."""

    __slots__ = ("_callbacks", "_event", "_failure", "done", "first", "last")

    def __init__(self, first: int, last: int) -> None:
        self.first: int = first
        self.last: int = last
        self.done: bool = False
        self._failure: str | None = None
        self._event: anyio.Event | None = None
        self._callbacks: list[SyncedCallback] = []

    def settle(self, failure: str | None = None) -> None:
        """Decide it: synced, or lost for a reason."""
        if self.done:
            return
        self.done = True
        self._failure = failure
        if self._event is not None:
            self._event.set()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self._error())

    def _error(self) -> StorageError | None:
        # one of its own for each who asks: raising an exception changes it
        return None if self._failure is None else StorageError(self._failure)

    async def synced(self) -> None:
        """Wait until it is decided."""
        if self.done:
            await anyio.lowlevel.checkpoint()
        else:
            if self._event is None:
                self._event = anyio.Event()
            await self._event.wait()
        error = self._error()
        if error is not None:
            raise error

    def on_synced(self, callback: SyncedCallback, /) -> None:
        """Call back when it is decided; at once if it is."""
        if self.done:
            callback(self._error())
        else:
            self._callbacks.append(callback)

    def __repr__(self) -> str:
        state = "waiting" if not self.done else self._failure or "synced"
        return f"<Ticket {self.first}..{self.last} {state}>"
