"""How other threads, and other event loops, reach the event loop that a store was opened in."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast


def current_poster() -> Callable[[Callable[[], object]], None]:
    """A function that runs another one soon in the event loop that is current now; callable from any thread.

    It does not wait. Once the loop is gone it does nothing: nobody is left who could be told.
    """
    post = _native_post()

    def poster(function: Callable[[], object]) -> None:
        try:
            post(function)
        except RuntimeError:  # asyncio: the loop is closed; trio.RunFinishedError is a RuntimeError too
            return

    return poster


def _native_post() -> Callable[[Callable[[], object]], object]:
    # `anyio.from_thread` would wait for the loop; both loops can be told without waiting. Neither is imported
    # here: the one that runs is loaded already.
    trio: Any = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        return cast("Callable[[Callable[[], object]], object]", trio.lowlevel.current_trio_token().run_sync_soon)
    asyncio: Any = sys.modules["asyncio"]
    return cast("Callable[[Callable[[], object]], object]", asyncio.get_running_loop().call_soon_threadsafe)


class Signal:
    """Runs a callback in the event loop it was made in, soon after `fire`; many fires become one call."""

    __slots__ = ("_callback", "_pending", "_post")

    def __init__(self, callback: Callable[[], object], post: Callable[[Callable[[], object]], None]) -> None:
        self._callback: Callable[[], object] | None = callback
        self._post = post
        self._pending = False

    def fire(self) -> None:
        """Have the callback called; from any thread."""
        if not self._pending:
            self._pending = True
            self._post(self._run)

    def stop(self) -> None:
        """Never call the callback again (from the loop's thread)."""
        self._callback = None

    def _run(self) -> None:
        self._pending = False  # before the call: what happens during it fires again
        if self._callback is not None:
            self._callback()
