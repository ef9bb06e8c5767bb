"""A callback at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio
import anyio.lowlevel

from kclient.concurrency.backend import current_backend
from kclient.concurrency.supervisor import Supervisor, TaskHandle

__all__ = ["Timer"]


class Timer:
    """Calls back at a time, which may be moved; on asyncio without a task.

    Args:
        supervisor: Runs the task that trio needs; takes exceptions of the callback as its failure.
        callback: Called in the event loop. It may set the timer again.
        name: Of the task on trio.
    """

    __slots__ = ("_callback", "_handle", "_loop", "_name", "_scope", "_supervisor", "when")

    def __init__(self, supervisor: Supervisor, callback: Callable[[], object], *, name: str = "timer") -> None:
        self._supervisor = supervisor
        self._callback = callback
        self._name = name
        self._loop = None if current_backend() == "trio" else asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | TaskHandle | None = None
        self._scope: anyio.CancelScope | None = None
        self.when: float | None = None
        """When it will fire, on the clock of `anyio.current_time`; None while it is not set."""

    def set(self, when: float) -> None:
        """Fire at `when` (seconds on the clock of `anyio.current_time`), and no more at the time set before."""
        self.when = when
        if self._loop is not None:
            if self._handle is not None:
                self._handle.cancel()
            self._handle = self._loop.call_at(when, self._fire)
        elif self._handle is None:
            self._handle = self._supervisor.spawn(self._sleep, name=self._name)
        elif self._scope is not None:
            self._scope.cancel()  # the task looks at `when` again

    def cancel(self) -> None:
        """Do not fire."""
        self.when = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        self.when = None
        try:
            self._callback()
        except Exception as error:  # noqa: BLE001  (it is stored)
            self._supervisor.fail(error)

    async def _sleep(self) -> None:
        await anyio.lowlevel.checkpoint_if_cancelled()  # before its first step: the handle is its successor's
        mine = self._handle
        while self.when is not None and self._handle is mine:
            when = self.when
            with anyio.CancelScope() as self._scope:
                await anyio.sleep_until(when)
                if self.when == when and self._handle is mine:
                    break
        self._scope = None
        if self._handle is mine and self.when is not None:
            self._fire()
