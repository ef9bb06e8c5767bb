"""Evicts gateways that are lost: fences all that they still write, and begins a generation without them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio

from kclient.gateway.membership import LeaseLooks, evicting, lease_looks
from kclient.gateway.ownership import LEASE_S
from kclient.gateway.rows.assignment import ReleasedRow
from kclient.gateway.rows.gateways import GatewayRow
from kclient.gateway.rows.keys import GATEWAYS, gateway_key, released_key
from kclient.htp.errors import ConflictError, FencedError, HtpError, LeaseHeldError
from kclient.htp.leases import LeaseWatch

if TYPE_CHECKING:
    from kclient.gateway.cluster_generations import ClusterGenerations
    from kclient.gateway.ownership import HeldLease
    from kclient.htp.port import LeaseInfo, Manager, Versioned

logger: logging.Logger = logging.getLogger("kclient.gateway")


class Eviction:
    """Watches the leases of the gateways that the newest generation names.

    Args:
        manager: The store's.
        lease: Of this gateway.
        generations: Say who serves.
        evicted: Called when one was evicted: finishes what that has left half done. It may raise `HtpError`, and is
            called again then.
        looks: Looks at leases, perhaps for others too; if None, for this alone.
    """

    def __init__(
        self,
        manager: Manager,
        lease: HeldLease,
        generations: ClusterGenerations,
        evicted: Callable[[], Awaitable[object]],
        looks: LeaseLooks | None = None,
    ) -> None:
        self._manager = manager
        self._lease = lease
        self._generations = generations
        self._evicted = evicted
        self._owes = False
        """Whether `evicted` is to be called."""
        self._looks = looks or LeaseLooks(manager)
        self._watches: dict[tuple[int, int], LeaseWatch] = {}
        self._news = anyio.Event()
        generations.on_change(self._tell)

    def _tell(self) -> None:
        news, self._news = self._news, anyio.Event()
        news.set()

    async def run(self) -> None:
        """For ever, until this gateway is fenced itself."""
        failed = False
        while True:
            news = self._news
            if len(self._generations.current.newest.members) == 1 and not self._owes:
                await news.wait()
                continue
            try:
                await self.look()
                failed = False
            except FencedError as error:
                logger.error("this gateway evicts nobody any more: %s", error)
                return
            except HtpError as error:
                if not failed:
                    logger.warning("whether other gateways live cannot be found out now: %s", error)
                failed = True
            with anyio.move_on_after(lease_looks.LOOK_S):
                await news.wait()

    async def look(self) -> None:
        """Look at the leases once, and evict who has lost its own. Raises `HtpError` if the store fails.

        While the store has no space nobody can renew a lease, nor acquire one: then all are watched anew afterwards.
        """
        if self._lease.short_of_space:
            self._watches.clear()
            return
        generations = self._generations
        others = {each for each in generations.current.newest.members.items() if each[0] != generations.node_id}
        found, at = await self._looks.look()
        leases = {each.name: each for each in found}
        self._watches = {each: self._watches.get(each) or LeaseWatch() for each in others}
        for node_id, run in sorted(others):
            lease = leases.get(gateway_key(node_id))
            if lease is not None and lease.epoch == run and self._watches[node_id, run].see(lease, at):
                continue
            try:
                await self._evict(node_id, run, lease)
            except LeaseHeldError:  # it was renewed, or another gateway is faster
                continue
        if self._owes:
            await self._evicted()
            self._owes = False

    async def _evict(self, node_id: int, run: int, lease: LeaseInfo | None) -> None:
        taken = None
        if lease is not None and lease.epoch == run:  # nothing is written under it any more
            holder = evicting(self._generations.node_id, self._lease.current.epoch)
            taken = await self._manager.acquire(lease.name, holder, LEASE_S, over=lease)
        try:
            logger.warning("the gateway with node.id=%d is lost: what it led is led by others from now on", node_id)
            self._owes = True  # before: a commit may be made and fail all the same, and then nobody finds it again
            while True:
                try:
                    await self._generations.evict(node_id, run, self._lease, await self._rows(node_id, run))
                except ConflictError:  # another run of it has just written one
                    continue
                return
        finally:
            if taken is not None:
                await self._manager.release(taken)

    async def _rows(self, node_id: int, run: int) -> dict[str, int]:
        """The rows that a run of a gateway has left, and their versions."""
        keys = [gateway_key(node_id), released_key(node_id)]
        rows = await self._manager.get(keys)
        return {key: row.version for key, row in rows.items() if _run(key, row) in (run, None)}


def _run(key: str, row: Versioned) -> int | None:
    """Which run of a gateway a row is of; None if it is damaged."""
    try:
        if key.startswith(GATEWAYS):
            return GatewayRow.decode(row.value).epoch
        return ReleasedRow.decode(row.value).run
    except ValueError:
        return None
