"""Calls that are made side by side, of which one that fails or takes long keeps no other from its end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio

__all__ = ["side_by_side"]


@asynccontextmanager
async def side_by_side(most: int | None = None) -> AsyncIterator[Callable[..., Awaitable[None]]]:
    """Yields `begin(call, *args)`, which begins a call; all of them are over at the block's end.

    Args:
        most: So many are under way at once: `begin` waits for one of them to end. Any number if None.

    Raises:
        Exception: What the first one raised that failed, or the block, which is not waited for them then; as it is,
            without a group around it.
    """
    slots = None if most is None else anyio.Semaphore(most)
    failures: list[Exception] = []

    async def run(call: Callable[..., Awaitable[object]], args: tuple[object, ...]) -> None:
        try:
            await call(*args)
        except Exception as error:  # noqa: BLE001  (raised below)
            failures.append(error)
        finally:
            if slots is not None:
                slots.release()

    async def begin(call: Callable[..., Awaitable[object]], *args: object) -> None:
        if slots is not None:
            await slots.acquire()
        tasks.start_soon(run, call, args)

    async with anyio.create_task_group() as tasks:
        try:
            yield begin
        except Exception as error:  # noqa: BLE001  (raised below)
            failures.insert(0, error)
            tasks.cancel_scope.cancel()
    if failures:
        raise failures[0]
