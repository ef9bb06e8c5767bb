"""Waiting for messages: what `pull(wait=...)` does in every backend whose broker can be watched."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kclient.htp.port import DirectTopic, Pulled


async def pull_waiting(topic: DirectTopic, once: Callable[[], Awaitable[Pulled]], wait: float) -> Pulled:
    """What `once` finds; if that is nothing, what it finds when the end has moved, for at most `wait` seconds."""
    pulled = await once()
    if pulled.data or wait <= 0:
        return pulled
    with anyio.move_on_after(wait):
        while not pulled.data:
            moved = anyio.Event()
            stop = topic.watch(partial(_set, moved))
            try:
                pulled = await once()  # what came between the last look and the watch
                if not pulled.data:
                    await moved.wait()
            finally:
                stop()
    return pulled


def _set(event: anyio.Event, _end: int) -> None:
    event.set()
