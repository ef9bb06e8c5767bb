"""How a gateway comes to its end in order, within a time: what has begun is answered, and what has to be is stored."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import anyio

from kclient.concurrency import thread_to_the_end, to_the_end
from kclient.htp.errors import HtpError

if TYPE_CHECKING:
    from kclient.concurrency import Supervisor, TaskHandle
    from kclient.gateway.assembly import Assembly
    from kclient.gateway.participation import Participation
    from kclient.net.server import Server

logger: logging.Logger = logging.getLogger("kclient.gateway")

LEAST_S: Final = 1.0
"""Seconds that the store has at least to take what has to be stored at the end."""


class Draining:
    """The end of a gateway, before its tasks and its store end.

    Args:
        parts: What it is made of.
        server: Its connections; None where it did not come to listen.
        participation: In serving the store.
        supervisor: Runs its tasks.
        background: Those of them that use partitions of their own accord: they end before the partitions do.
    """

    def __init__(
        self,
        parts: Assembly,
        server: Server | None,
        participation: Participation,
        supervisor: Supervisor,
        background: Sequence[TaskHandle],
    ) -> None:
        self._parts = parts
        self._server = server
        self._participation = participation
        self._supervisor = supervisor
        self._background = background

    async def run(self, grace: float) -> None:
        """Do all of it.

        Args:
            grace: Seconds that it may take; a little more for what has to be stored.
        """
        parts, server = self._parts, self._server
        end = anyio.current_time() + grace
        if self._supervisor.failure is None:
            await self._participation.leave(parts.hand_over, grace)
        parts.requests.drain()
        parts.transactions.close()
        parts.peers.close()
        healthy = self._supervisor.failure is None
        left = max(end - anyio.current_time(), LEAST_S)
        if healthy:
            self._supervisor.spawn(self._give_up, left, name="end of closing")
        else:
            parts.shields.give_up()
        if healthy:
            with anyio.move_on_after(left) as storing:
                await parts.groups.aclose()
            if storing.cancelled_caught:
                logger.warning("the store does not answer: what groups have committed last is given up")
        if server is not None:
            await server.aclose(max(end - anyio.current_time(), 0.0))
        await thread_to_the_end(parts.workers.close)
        if not healthy:
            return
        for task in self._background:
            task.cancel()
        for task in self._background:
            await task.wait()
        with anyio.move_on_after(max(end - anyio.current_time(), LEAST_S)) as saving:
            await self._save()
        if saving.cancelled_caught:
            logger.warning("the store does not answer: closing without checkpoints, the next start reads more")
            parts.hand_over.close()
            parts.partitions.close()

    async def cut_off(self) -> None:
        """End at once what `run` was waiting for; the sockets are closed nevertheless."""
        self._parts.shields.give_up()
        if self._server is not None:
            await to_the_end(self._server.aclose, 0.0)

    async def _give_up(self, grace: float) -> None:
        """Once closing has taken so long: end what only the store could."""
        await anyio.sleep(grace)
        if given_up := self._parts.shields.give_up():
            logger.warning("the store does not answer: %d changes are given up, they may have been made", given_up)

    async def _save(self) -> None:
        parts = self._parts
        for partition in parts.partitions.opened():
            await partition.settled()
        try:
            await parts.partitions.checkpoint()
        except HtpError as error:
            logger.warning("closing without checkpoints, the next start reads more: %s", error)
        parts.hand_over.close()
        parts.partitions.close()
        await self._participation.release()
