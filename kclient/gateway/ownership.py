"""Which gateway serves a store: one at a time, and each under a greater epoch than all before it."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final

import anyio

from kclient.concurrency import to_the_end
from kclient.gateway.rows import numbers
from kclient.gateway.rows.keys import FIRST_LEASES, LEADER_EPOCH, LEASE
from kclient.htp.errors import HtpError, LeaseHeldError
from kclient.htp.port import Lease, Manager

logger: logging.Logger = logging.getLogger("kclient.gateway")

_GIVE_BACK_S: Final = 1.0
"""Seconds that a store has to take a lease back."""


class HeldLease:
    """The lease under which a gateway serves its store; its epoch fences every write."""

    __slots__ = ("current",)

    def __init__(self, taken: Lease) -> None:
        self.current: Lease = taken
        """As it was taken, or renewed last."""


async def take_store(manager: Manager, node_id: int, ttl: float) -> Lease:
    """Take the store over for a gateway of this number.

    After a crash a gateway of the same number has it back at once, and a second one of the same number fences the
    first. If this fails or is cancelled, the lease is given back.

    Raises:
        LeaseHeldError: If a gateway of another number serves the store.
    """
    above = max([await _recorded_epoch(manager), *(each.epoch for each in await manager.leases(FIRST_LEASES))])
    holder = f"node-{node_id}"
    try:
        lease = await manager.acquire(LEASE, holder, ttl, above=above)
    except LeaseHeldError as error:
        raise await _refused(manager, node_id, error) from error
    try:
        await manager.commit({LEADER_EPOCH: numbers.LEADER_EPOCH.encode(lease.epoch)}, lease=lease)
    except BaseException:
        await give_store_back(manager, lease)
        raise
    return lease


async def give_store_back(manager: Manager, lease: Lease) -> bool:
    """Let a gateway of any number take the store over at once; waits a moment, whatever is cancelled.

    Returns:
        Whether the store has done it.
    """

    async def release() -> bool:
        with anyio.move_on_after(_GIVE_BACK_S), suppress(HtpError):
            await manager.release(lease)
            return True
        return False

    return await to_the_end(release)


async def _refused(manager: Manager, node_id: int, error: LeaseHeldError) -> LeaseHeldError:
    remaining = max((each.remaining for each in await manager.leases(LEASE) if each.name == LEASE), default=0.0)
    other = error.holder.removeprefix("node-")
    return LeaseHeldError(
        f"the gateway with node.id={other} serves this store: stop it first. If it crashed, its lease ends in "
        f"{remaining:.0f} s; a gateway with node.id={other} (this one has {node_id}) may start at once. "
        "Several gateways on one store are not there yet",
        holder=error.holder,
    )


async def _recorded_epoch(manager: Manager) -> int:
    found = (await manager.get([LEADER_EPOCH])).get(LEADER_EPOCH)
    try:
        return 0 if found is None else numbers.LEADER_EPOCH.decode(found.value)
    except ValueError:
        logger.error("the recorded leader epoch, %r, is damaged: the lease alone tells it", found)
        return 0
