"""Clean-up that is done whole, however the task that does it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVarTuple

import anyio

from kclient.concurrency.backend import current_backend

__all__ = ["to_the_end"]

Ts = TypeVarTuple("Ts")


async def to_the_end(function: Callable[[*Ts], Awaitable[object]], *arguments: *Ts) -> None:
    """Await `function(*arguments)`; a cancellation meanwhile is raised after it, and breaks nothing off.

    A shielded scope keeps off cancelled scopes only: asyncio's own `task.cancel()` goes through it, wherever the task
    waits. So on asyncio a task of its own does the work. It must take no longer than anybody may have to wait.

    Raises:
        BaseException: What the function raised; the cancellation goes first.
    """
    with anyio.CancelScope(shield=True):
        if current_backend() == "trio":
            await function(*arguments)
            return

        async def work() -> None:
            await function(*arguments)

        task = asyncio.get_running_loop().create_task(work(), name="clean-up")
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            if not task.cancelled():
                task.exception()  # has been looked at, so asyncio does not complain of it
            raise cancelled
        task.result()
