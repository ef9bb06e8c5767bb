"""Which gateway serves a store: one at a time, and each under a greater epoch than all before it.

One that finds the lease in another's hands neither serves half nor is refused at once: whether the other one lives can
only be found out by watching it (`kclient.htp.leases`).
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

import anyio

from kclient.concurrency import to_the_end
from kclient.gateway.rows import numbers
from kclient.gateway.rows.keys import FIRST_LEASES, LEADER_EPOCH, LEASE
from kclient.htp.errors import FencedError, HtpError, LeaseHeldError, StorageFullError, StoreClosedError
from kclient.htp.leases import acquire_when_over
from kclient.htp.port import Lease, LeaseInfo, Manager

logger: logging.Logger = logging.getLogger("kclient.gateway")

LEASE_S: Final = 30.0
"""Seconds that a lease lasts; it is renewed three times in them."""
_HOLDER: Final = "node-"
"""What the name of a holder begins with; the gateway's number follows."""
_RUN: Final = "/"
"""What comes before the name of one run of a gateway, where each has a lease of its own."""
_GIVE_BACK_S: Final = 1.0
"""Seconds that a store has to take a lease back."""


class HeldLease:
    """The lease under which a gateway serves its store; its epoch fences every write."""

    __slots__ = ("current", "short_of_space")

    def __init__(self, taken: Lease) -> None:
        self.current: Lease = taken
        """As it was taken, or renewed last."""
        self.short_of_space: bool = False
        """Whether it cannot be renewed because the store has no space: then nobody can renew one, so that others do not
        says nothing of them."""

    def give_up(self) -> None:
        """It counts no more, before somebody else may have it."""
        self.current = replace(self.current, expires=-math.inf)


class LeaseKeeper:
    """A gateway's lease of its store: taken at the start, renewed meanwhile, given back at the end.

    Args:
        manager: The store's.
        node_id: The gateway's number.
        exclusive: Whether the store keeps other processes out by itself.
        fenced: Whether the store refuses what is sent under an older epoch.
    """

    def __init__(self, manager: Manager, node_id: int, *, exclusive: bool, fenced: bool = True) -> None:
        self._manager = manager
        self._node_id = node_id
        self._exclusive = exclusive
        self._fenced = fenced
        self._held: HeldLease | None = None
        """Until it is given back."""

    async def take(self) -> HeldLease:
        """Take the store over, see `take_store`; `renew` has to run from then on."""
        self._held = HeldLease(await take_store(self._manager, self._node_id, LEASE_S, fenced=self._fenced))
        return self._held

    async def renew(self) -> None:
        """Renew it for ever.

        Raises:
            FencedError: Another gateway has taken the store over.
        """
        held = self._held
        assert held is not None
        while True:
            await anyio.sleep(LEASE_S / 3)
            try:
                held.current = await self._manager.renew(held.current)
            except FencedError:
                logger.error("another gateway with node.id=%d has taken over: this one stops", self._node_id)
                raise
            except StorageFullError as error:
                if self._exclusive:
                    # nothing can be written, by anybody; what can be read may be
                    held.current = replace(held.current, expires=time.monotonic() + LEASE_S)
                    logger.error("no space is left, only reading goes on until there is: %s", error)
                else:
                    _tell_not_renewed(error)
            except HtpError as error:
                _tell_not_renewed(error)

    async def release(self) -> None:
        """Give it back when all is written; `renew` has ended.

        Raises:
            HtpError: The store does not take it; `give_back` tries once more.
        """
        if self._held is not None:
            self._held.give_up()
            await self._manager.release(self._held.current)
            self._held = None

    async def give_back(self, *, failed: bool) -> None:
        """Where `release` has not: else no gateway of another number could start before it has run out.

        Args:
            failed: Whether the gateway has, which may be why the store does not take it.
        """
        held, self._held = self._held, None
        if held is None:
            return
        held.give_up()
        with suppress(StoreClosedError):  # by whoever opened it
            if await _give_store_back(self._manager, held.current) or failed:
                return
        logger.warning(
            "the store did not take the lease back: a gateway of another node.id has to wait for up to %.0f s", LEASE_S
        )


def _tell_not_renewed(error: HtpError) -> None:
    logger.error("the lease could not be renewed, requests are refused when it ends: %s", error)


async def take_store(manager: Manager, node_id: int, ttl: float, *, fenced: bool = True) -> Lease:
    """Take the store over for a gateway of this number.

    After a crash a gateway of the same number has it back at once, and a second one of the same number fences the
    first. One of another number waits: it has the store once the first has given it back, or has not renewed its lease
    for so long that it has stopped; it is refused as soon as the first renews it. If this fails or is cancelled, the
    lease is given back.

    A store that cannot fence keeps what the first one of the same number sends, so it is waited for as any other: an
    older lease has ended, or was given back, before anything is done under the new one.

    Raises:
        LeaseHeldError: If a gateway of another number serves the store.
    """
    above = max([await _recorded_epoch(manager), *(each.epoch for each in await manager.leases(FIRST_LEASES))])
    holder = f"{_HOLDER}{node_id}"
    if not fenced:
        holder += f"{_RUN}{secrets.token_hex(8)}"  # a lease of its own, so that even its namesake waits
    waiting = partial(_waiting, node_id, fenced=fenced)
    try:
        lease = await acquire_when_over(manager, LEASE, holder, ttl, above=above, waiting=waiting)
    except LeaseHeldError as error:
        raise _refused(node_id, error) from error
    try:
        above = await _recorded_epoch(manager)
        if above >= lease.epoch:  # the gateway before has given more meanwhile; now it gives none
            lease = await manager.acquire(LEASE, holder, ttl, above=above)
        await manager.commit({LEADER_EPOCH: numbers.LEADER_EPOCH.encode(lease.epoch)}, lease=lease)
    except BaseException:
        await _give_store_back(manager, lease)
        raise
    return lease


async def _give_store_back(manager: Manager, lease: Lease) -> bool:
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


def _waiting(node_id: int, lease: LeaseInfo, seconds: float, *, fenced: bool) -> None:
    number = _number(lease.holder)
    logger.warning(
        "the gateway with node.id=%s serves this store, or has crashed: this one (node.id=%d) has it if that one does "
        "not renew its lease within %.0f s. %s",
        number, node_id, seconds,
        f"One with node.id={number} may start at once" if fenced else "The store cannot fence, so every gateway waits",
    )  # fmt: skip


def _refused(node_id: int, error: LeaseHeldError) -> LeaseHeldError:
    return LeaseHeldError(
        f"the gateway with node.id={_number(error.holder)} serves this store: stop it first. It has renewed its lease "
        f"while this one (node.id={node_id}) waited, so it has not crashed. Several gateways on one store are not "
        "there yet",
        holder=error.holder,
    )


def _number(holder: str) -> str:
    return holder.removeprefix(_HOLDER).partition(_RUN)[0]


async def _recorded_epoch(manager: Manager) -> int:
    found = (await manager.get([LEADER_EPOCH])).get(LEADER_EPOCH)
    try:
        return 0 if found is None else numbers.LEADER_EPOCH.decode(found.value)
    except ValueError:
        logger.error("the recorded leader epoch, %r, is damaged: the lease alone tells it", found)
        return 0
