"""What is done whole, however the task that does it is cancelled: clean-up, and threads that take something."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar, TypeVarTuple

import anyio
import anyio.to_thread

from kclient.concurrency.backend import current_backend

__all__ = ["thread_to_the_end", "to_the_end"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


async def to_the_end(function: Callable[[*Ts], Awaitable[T]], *arguments: *Ts) -> T:
    """Await `function(*arguments)`; a cancellation meanwhile is raised after it, and breaks nothing off.

    A shielded scope keeps off cancelled scopes only: asyncio's own `task.cancel()` goes through it, wherever the task
    waits. So on asyncio a task of its own does the work. It must take no longer than anybody may have to wait.

    Returns:
        What the function returned.

    Raises:
        BaseException: What the function raised; the cancellation goes first.
    """
    with anyio.CancelScope(shield=True):
        if current_backend() == "trio":
            result = await function(*arguments)
        else:
            result = await _in_a_task(function, *arguments)
    return result


async def _in_a_task(function: Callable[[*Ts], Awaitable[T]], *arguments: *Ts) -> T:
    async def work() -> T:
        return await function(*arguments)

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
    return task.result()


async def thread_to_the_end(function: Callable[[*Ts], T], *arguments: *Ts) -> T:
    """Call `function(*arguments)` in a thread; a cancellation meanwhile is raised when it has returned.

    `anyio.to_thread.run_sync` waits for the thread where a scope is cancelled, but not where asyncio cancels the task:
    then the thread goes on alone, with what the caller has put away by then, and takes what nobody gives back.
    """
    return await to_the_end(partial(anyio.to_thread.run_sync, function, *arguments))
