"""Event loops whose time jumps: where nothing is to be done, the next timer is due at once."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio

T = TypeVar("T")

BACKENDS = ("asyncio", "trio")


def run_virtually(backend: str, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """Run an async function in virtual time; hours pass in a moment. It must not wait for threads or real sockets."""
    if backend == "trio":
        from trio.testing import MockClock

        return anyio.run(
            function, *arguments, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)}
        )
    return anyio.run(function, *arguments, backend="asyncio", backend_options={"loop_factory": JumpingLoop})


class JumpingLoop(asyncio.SelectorEventLoop):
    """An asyncio loop that does not wait for its timers."""

    def __init__(self) -> None:
        self.now = 0.0
        self._selector_of_mine = _JumpingSelector(self)
        super().__init__(self._selector_of_mine)

    def time(self) -> float:
        return self.now


class _JumpingSelector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    def __init__(self, loop: JumpingLoop) -> None:
        super().__init__()
        self._jumping = loop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise AssertionError("everything waits, and nothing will ever happen")
        self._jumping.now += timeout
        return []
