"""A callback that any thread can have called in the event loop that a store was opened in."""

from __future__ import annotations

from collections.abc import Callable


class Signal:
    """Runs a callback in the event loop it was made in, soon after `fire`; many fires become one call."""

    __slots__ = ("_callback", "_pending", "_post")

    def __init__(self, callback: Callable[[], object], post: Callable[[Callable[[], object]], object]) -> None:
        self._callback: Callable[[], object] | None = callback
        self._post = post
        self._pending = False

    def fire(self) -> None:
        """Have the callback called; from any thread."""
        if not self._pending:
            try:
                self._pending = True
                self._post(self._run)
            except BaseException:  # a signal handler's: it may not have been posted, and the next fire posts it
                self._pending = False
                raise

    def stop(self) -> None:
        """Never call the callback again (from the loop's thread)."""
        self._callback = None

    def _run(self) -> None:
        self._pending = False  # before the call: what happens during it fires again
        if self._callback is not None:
            self._callback()
