"""What creations and deletions of topics have left is removed: at once where that can be, else again and again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING, Final

import anyio

from kclient.concurrency import side_by_side
from kclient.errors import KafkaError

if TYPE_CHECKING:
    from kclient.gateway.shields import Shields
    from kclient.gateway.topics.record import Intent
    from kclient.gateway.topics.refresh import TopicRefresher
    from kclient.gateway.topics.remains import TopicRemains
    from kclient.gateway.topics.table import TopicTable

logger: logging.Logger = logging.getLogger("kclient.gateway.topics")

_SWEEP_S: Final = 10.0
"""After so many seconds it is tried again to remove what deleted topics left."""
_SWEPT_AT_ONCE: Final = 16
"""Topics of which something is removed at a time, but for those that take long."""
_LONG_S: Final = 1.0
"""Seconds after which that takes long: their broker may hang."""


class TopicSweeper:
    """Sweeps up, one topic at a time and several side by side.

    Args:
        topics: Tells of which topics something is left, or may be.
        remains: Removes it.
        rows: Finds out what a commit has done whose outcome is not known.
        alone: Keeps others from changing a topic. Raises `RequestTimedOutError` if they take long.
        shields: Keep what is begun from being left half done.
        spawn: Starts a task of the gateway.
    """

    def __init__(
        self,
        topics: TopicTable,
        remains: TopicRemains,
        rows: TopicRefresher,
        alone: Callable[[str], AbstractAsyncContextManager[None]],
        *,
        shields: Shields,
        spawn: Callable[..., object],
    ) -> None:
        self._topics = topics
        self._remains = remains
        self._rows = rows
        self._alone = alone
        self._shields = shields
        self._spawn = spawn
        self._sweeping = False
        """Whether it is going to be tried again."""
        self._sweeping_up: set[str] = set()
        """Topics of which something is being removed by `sweep`."""

    async def sweep(self) -> None:
        """Remove whatever creations and deletions have left; what cannot be is tried again later.

        What takes longer than a second goes on beside whoever called.
        """
        async with side_by_side(_SWEPT_AT_ONCE) as begin:
            for name in [
                *self._topics.unsure,
                *(name for name in self._topics.left if name not in self._topics.unsure),
            ]:
                if name not in self._sweeping_up:
                    await begin(self.sweep_one, name)
        if self._topics.left:
            self.sweep_soon()

    def sweep_beside(self) -> None:
        """Begin to remove what deletions have left, and do not wait for it."""
        self._spawn(self.sweep, name="remove what deleted topics left")

    async def sweep_one(self, name: str, deleted: Intent | None = None, patience: float = 0.0) -> None:
        """Until it is swept, but not for ever: where its broker hangs, nobody else waits for that.

        Args:
            name: Of the topic.
            deleted: An intent of a deletion which has been made.
            patience: Seconds to wait; a moment at least.
        """
        over = anyio.Event()
        self._sweeping_up.add(name)
        self._spawn(self._sweep_up, name, over, deleted, name="remove what a deleted topic left")
        with anyio.move_on_after(max(patience, _LONG_S)):
            await over.wait()

    async def _sweep_up(self, name: str, over: anyio.Event, deleted: Intent | None) -> None:
        try:
            async with self._alone(name):
                with self._shields.shield():
                    with suppress(KafkaError):  # the log tells of it
                        await self._rows.find_out(name)
                    if name not in self._topics.unsure:  # else it may have been created
                        certain = deleted is not None and self._topics.left.get(name) is deleted
                        await self._remains.remove(name, certain=certain)
        except (KafkaError, OSError) as error:
            logger.error("what is left of topic %s could not be removed, it is tried again: %s", name, error)
        finally:
            self._sweeping_up.discard(name)
            over.set()

    def sweep_soon(self) -> None:
        """Try again in some seconds."""
        if not self._sweeping:
            self._sweeping = True
            self._spawn(self._sweep_later, name="remove what deleted topics left")

    async def _sweep_later(self) -> None:
        try:
            await anyio.sleep(_SWEEP_S)
        finally:
            self._sweeping = False
        await self.sweep()
