"""A store whose calls take as long as a test likes, so that whatever can come in between does."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from random import Random
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.lowlevel

from kclient.htp.errors import StorageError

Around = Callable[[str], AbstractAsyncContextManager[None]]


class SlowStore:
    """A store with something around each of its calls that wait.

    Args:
        store: The store, opened and closed by this.
        around: Entered with the call's name before the work is done, and left afterwards.
    """

    def __init__(self, store: Any, around: Around) -> None:
        self._store = store
        self._around = around

    @property
    def manager(self) -> Any:
        return _Slow(self._store.manager, self._around)

    @property
    def broker(self) -> Any:
        return _Slow(self._store.broker, self._around)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def __aenter__(self) -> Self:
        await self._store.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._store.__aexit__(kind, error, trace)


class _Slow:
    """What a store gives: its calls that wait are slow, and so is what they give."""

    def __init__(self, inner: Any, around: Around) -> None:
        self._inner = inner
        self._around = around

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(value):
            return value

        @wraps(value)
        async def slow(*args: Any, **options: Any) -> Any:
            async with self._around(name):
                result = await value(*args, **options)
            return _Slow(result, self._around) if hasattr(result, "pull") else result

        return slow


def dawdling(store: Any, dice: Random, *, most: int = 4, seconds: float = 0.0) -> SlowStore:
    """A store each of whose calls takes up to so many turns of the event loop, and at times some seconds."""

    async def pause() -> None:
        for _ in range(dice.randrange(most + 1)):
            await anyio.lowlevel.checkpoint()
        if seconds and dice.random() < 0.3:
            await anyio.sleep(dice.random() * seconds)

    @asynccontextmanager
    async def around(_name: str) -> AsyncIterator[None]:
        await pause()
        yield
        await pause()

    return SlowStore(store, around)


class Gate:
    """Holds one call of a store."""

    def __init__(self) -> None:
        self.reached: anyio.Event = anyio.Event()
        """The call has come; its work is not done."""
        self.passed: anyio.Event = anyio.Event()
        """It was let go on, and has returned."""
        self._open = anyio.Event()

    def open(self) -> None:
        """Let it go on."""
        self._open.set()

    async def wait(self) -> None:
        """Wait here, as the call."""
        self.reached.set()
        await self._open.wait()


class Gates:
    """A store with gates, put up while it is in use."""

    def __init__(self, store: Any) -> None:
        self._gates: dict[tuple[str, int], Gate] = {}
        self._calls: dict[str, int] = {}
        self._made: list[Gate] = []
        self.failing: str | None = None
        """Calls of this name that were held fail when they are let go on."""
        self.store = SlowStore(store, self._around)

    def hold(self, name: str, count: int = 1) -> Gate:
        """Hold the `count`-th call of this name from now on."""
        gate = self._gates[name, self._calls.get(name, 0) + count] = Gate()
        self._made.append(gate)
        return gate

    def open(self) -> None:
        """Let everything go on."""
        for gate in self._made:
            gate.open()

    @asynccontextmanager
    async def _around(self, name: str) -> AsyncIterator[None]:
        number = self._calls[name] = self._calls.get(name, 0) + 1
        gate = self._gates.pop((name, number), None)
        if gate is None:
            yield
            return
        await gate.wait()
        try:
            if self.failing == name:
                raise StorageError(f"{name} fails in this test")
            yield
        finally:
            gate.passed.set()
