"""Which gateway serves a store: one at a time, and each under a greater epoch than all before it."""

from __future__ import annotations

import logging
from typing import Final

from kclient.htp.errors import LeaseHeldError
from kclient.htp.port import Lease, Manager
from kclient.htp.rows import GREATEST_EPOCH, parse_number

logger: logging.Logger = logging.getLogger("kclient.gateway")

LEASE: Final = "kafka/gateway"
"""The right to serve the store. Its epoch is the leader epoch of every partition."""
_OLDER: Final = "kafka/gateway/"
"""The first versions had a lease for each node.id, and let the leader epochs go backwards when that was changed."""
EPOCH_KEY: Final = "kafka/leader-epoch"
"""The leader epoch of the last gateway, in case that the lease's row is damaged."""


async def take_store(manager: Manager, node_id: int, ttl: float) -> Lease:
    """Take the store over for a gateway of this number.

    After a crash a gateway of the same number has it back at once, and a second one of the same number fences the
    first.

    Raises:
        LeaseHeldError: If a gateway of another number serves the store.
    """
    above = max([await _recorded_epoch(manager), *(each.epoch for each in await manager.leases(_OLDER))])
    holder = f"node-{node_id}"
    try:
        lease = await manager.acquire(LEASE, holder, ttl, above=above)
    except LeaseHeldError as error:
        raise await _refused(manager, node_id, error) from error
    await manager.commit({EPOCH_KEY: str(lease.epoch).encode()}, lease=lease)
    return lease


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
    found = (await manager.get([EPOCH_KEY])).get(EPOCH_KEY)
    try:
        return 0 if found is None else parse_number(found.value, 0, GREATEST_EPOCH)
    except ValueError:
        logger.error("the recorded leader epoch, %r, is damaged: the lease alone tells it", found)
        return 0
