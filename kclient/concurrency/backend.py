"""Which event loop runs, told where anyio cannot tell, and reached from other threads."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sys
from collections.abc import Callable, Generator
from typing import Literal

__all__ = ["LoopHandle", "current_backend", "loop_clock", "loop_soon", "named_backend"]

try:  # anyio asks sniffio where it is installed, which asks this variable before it looks for a task
    from sniffio import current_async_library_cvar
except ModuleNotFoundError:
    _library: contextvars.ContextVar[str | None] | None = None
else:
    _library = current_async_library_cvar


def current_backend() -> Literal["asyncio", "trio"]:
    """The event loop this code runs under; `RuntimeError` outside of any."""
    # another thread may be importing it: half of a module runs nothing
    in_trio_run = getattr(sys.modules.get("trio.lowlevel"), "in_trio_run", None)
    if in_trio_run is not None and in_trio_run():
        return "trio"
    asyncio.get_running_loop()
    return "asyncio"


def loop_clock() -> Callable[[], float]:
    """The clock of `anyio.current_time`, to be read in callbacks of the loop too.

    Under plain `asyncio.run`, anyio does not know in a callback which loop it is in.
    """
    if current_backend() == "trio":
        import trio

        return trio.current_time
    return asyncio.get_running_loop().time


def loop_soon() -> Callable[[Callable[[], object]], object]:
    """What runs a function in the next turn of this loop; to be called in this loop's thread only."""
    if current_backend() == "trio":
        import trio

        return trio.lowlevel.current_trio_token().run_sync_soon
    return asyncio.get_running_loop().call_soon


class LoopHandle:
    """The running event loop, for code in other threads."""

    __slots__ = ("_loop", "_post")

    def __init__(self) -> None:
        self._loop, self._post = _running_loop()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this loop."""
        if asyncio._get_running_loop() is self._loop:
            return True
        try:
            return self._loop is _running_loop()[0]
        except RuntimeError:
            return False

    @property
    def ended(self) -> bool:
        """Whether nothing will run in this loop any more."""
        return not self.post(_nothing)

    def post(self, function: Callable[[], object]) -> bool:
        """Run a function soon in the loop; from any thread. False if the loop has ended."""
        try:
            self._post(function)
        except RuntimeError:  # asyncio: the loop is closed; trio.RunFinishedError is a RuntimeError too
            return False
        return True


def _nothing() -> None:
    """Posted to see whether a loop takes anything."""


def _running_loop() -> tuple[object, Callable[[Callable[[], object]], object]]:
    if current_backend() == "trio":
        import trio

        token = trio.lowlevel.current_trio_token()
        return token, token.run_sync_soon
    loop = asyncio.get_running_loop()

    def post(function: Callable[[], object]) -> None:
        # in a context of its own: the caller's may say that it runs in trio
        loop.call_soon_threadsafe(function, context=contextvars.Context())

    return loop, post


@contextlib.contextmanager
def named_backend() -> Generator[None, None, None]:
    """Let anyio know the loop where it cannot tell: in a callback of asyncio there is no current task to ask."""
    if _library is None or current_backend() == "trio":
        yield
        return
    token = _library.set("asyncio")
    try:
        yield
    finally:
        _library.reset(token)
