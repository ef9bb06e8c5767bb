"""Threads for calls that may hang: nobody waits for one for ever, and they do not pile up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import anyio.to_thread

__all__ = ["AbandonableCalls", "TooManyCallsError"]

T = TypeVar("T")


class TooManyCallsError(Exception):
    """As many calls as are allowed have not come back: none is begun."""


class AbandonableCalls:
    """Runs functions in threads that are left behind when the caller is cancelled.

    A thread that hangs cannot be ended. It counts until its function returns, and with too many of them no new one is
    begun: a source that is asked again and again would take thread after thread.

    Args:
        limit: How many may run or hang.
    """

    def __init__(self, limit: int = 4) -> None:
        self._limit = limit
        self._running = 0
        self._lock = threading.Lock()

    async def run(self, function: Callable[[], T]) -> T:
        """What the function returns.

        Raises:
            TooManyCallsError: If too many earlier calls hang.
        """

        def call() -> T:
            with self._lock:
                self._running += 1
            try:
                return function()
            finally:
                with self._lock:
                    self._running -= 1

        with self._lock:
            if self._running >= self._limit:
                raise TooManyCallsError(f"{self._running} earlier calls have not come back")
        return await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
