"""This gateway as the others see it: its number, its lease and its row, from the start to the end."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Final

import anyio

from kclient.concurrency import to_the_end
from kclient.gateway import ownership
from kclient.gateway.features import SUPPORTED
from kclient.gateway.membership.members import leases_by_number
from kclient.gateway.ownership import HeldLease
from kclient.gateway.rows.gateways import Endpoint, FeatureRange, GatewayRow
from kclient.gateway.rows.keys import GATEWAYS, gateway_key, released_key
from kclient.htp.errors import FencedError, HtpError, LeaseHeldError, StorageFullError, StoreClosedError
from kclient.htp.port import Lease, LeaseInfo, Manager
from kclient.htp.rows import scan_pages
from kclient.records.bounds import INT32_MAX

logger: logging.Logger = logging.getLogger("kclient.gateway")

_FIRST_NUMBER: Final = 1
"""Of the first gateway that is allotted one."""
_CONFIRMED_S: Final = 3.0
"""Seconds that a lease goes on which cannot be renewed for want of space, from when it was looked at last."""
_AGAIN_S: Final = 1.0
"""Seconds until a lease is to be renewed again, where the store has failed."""
_EVICTS: Final = "/evicts/"
"""What the name of a holder contains that has a lease for as long as it evicts its gateway."""
_EVICTED_S: Final = 0.05
"""Seconds until it is looked again whether that has come to an end."""
_GIVE_BACK_S: Final = 1.0
"""Seconds that a store has to take a lease back."""


def evicting(node_id: int, epoch: int) -> str:
    """The name under which a gateway holds the lease of one that it evicts.

    Args:
        node_id: Its own number.
        epoch: Of its own lease.
    """
    return f"node-{node_id}{_EVICTS}{epoch}"


class Registration:
    """Registers a gateway: `allot` or `take`, then `publish`, with `renew` meanwhile; `leave` at the end.

    Args:
        manager: The store's.
        rack: Where the gateway stands (`broker.rack`); None if that is not told.
        fenced: Whether the store refuses what is sent under an older epoch. If not, the lease alone tells how long the
            gateway may serve, and ends though the store has no space to renew it.
    """

    def __init__(self, manager: Manager, rack: str | None, *, fenced: bool = True) -> None:
        self._manager = manager
        self._rack = rack
        self._extended = fenced
        """Whether the lease goes on for as long as the store has no space to renew it."""
        self.run: str = secrets.token_hex(8)
        """Tells this start of the gateway from all others of its number."""
        self._node_id = -1
        self._held: HeldLease | None = None
        """Until it is given back."""

    @property
    def held(self) -> HeldLease:
        """The lease under which it is registered."""
        assert self._held is not None
        return self._held

    @property
    def lease(self) -> Lease:
        """The same, as it was renewed last."""
        return self.held.current

    async def allot(self) -> int:
        """Get a number that no other gateway has: the smallest that one has had and that is free, else a new one.

        New is what is greater than all others, and where there is none, the smallest that nobody has had.

        Returns:
            The number; it is kept from others until `leave`.

        Raises:
            HtpError: The store failed.
        """
        known = leases_by_number(await self._manager.leases(GATEWAYS))
        free = sorted(number for number, lease in known.items() if not lease.held)
        new = range(max(known, default=_FIRST_NUMBER - 1) + 1, INT32_MAX + 1)
        gaps = (number for number in range(_FIRST_NUMBER, INT32_MAX) if number not in known)
        for node_id in chain(free, new, gaps):
            with suppress(LeaseHeldError):  # else another one was faster
                await self._acquire(node_id)
                return node_id
        raise AssertionError("numbers do not end")

    async def take(self, node_id: int) -> None:
        """Register under a number that was given, over whoever had it: the store is this gateway's.

        Raises:
            LeaseHeldError: Another process, which is there, has it.
            HtpError: The store failed.
        """
        if self._held is not None:
            return  # it was allotted
        over: LeaseInfo | None = None
        until = anyio.current_time() + ownership.LEASE_S
        while True:
            try:
                await self._acquire(node_id, over)
            except LeaseHeldError as error:
                if error.process is not None:
                    if _EVICTS in error.holder:  # what this number had before is being given to others
                        if anyio.current_time() < until:
                            await anyio.sleep(_EVICTED_S)
                            continue
                        raise LeaseHeldError(
                            f"process {error.process} evicts an earlier gateway with node.id={node_id}, and has not "
                            f"come to an end within {ownership.LEASE_S:.0f} s: it hangs, or was stopped. Have it go "
                            "on, or kill it",
                            holder=error.holder,
                            process=error.process,
                        ) from None
                    raise LeaseHeldError(
                        f"a gateway with node.id={node_id} in process {error.process} serves the store: give this one "
                        "another node.id, or stop that one",
                        holder=error.holder,
                        process=error.process,
                    ) from None
                over = leases_by_number(await self._manager.leases(gateway_key(node_id))).get(node_id)
            else:
                return

    async def _acquire(self, node_id: int, over: LeaseInfo | None = None) -> None:
        key = gateway_key(node_id)
        above = 0  # the row's, in case that the lease is damaged
        found = (await self._manager.get([key])).get(key)
        if found is not None:
            with suppress(ValueError):
                above = GatewayRow.decode(found.value).epoch
        holder, ttl = f"node-{node_id}/{self.run}", ownership.LEASE_S
        self._held = HeldLease(await self._manager.acquire(key, holder, ttl, above=above, over=over))
        self._node_id = node_id

    async def remove_others(self, store_lease: Lease) -> None:
        """Remove the rows of all other gateways: they have ended, because this one has the store.

        Args:
            store_lease: That says so.

        Raises:
            FencedError: Another gateway has taken the store since.
            HtpError: The store failed.
        """
        own = gateway_key(self._node_id)
        async for page in scan_pages(self._manager, GATEWAYS):
            gone: dict[str, bytes | None] = dict.fromkeys(key for key in page if key != own)
            if gone:
                await self._manager.commit(gone, lease=store_lease)

    async def publish(self, endpoints: Mapping[str, Endpoint]) -> None:
        """Write the row: from now on the others know this gateway.

        Args:
            endpoints: Where its clients find it, by the name of the listener.

        Raises:
            FencedError: A gateway of the same number has started.
            HtpError: The store failed.
        """
        features = {each.name: FeatureRange(each.lowest, each.highest) for each in SUPPORTED}
        row = GatewayRow(self._node_id, self.run, self.lease.epoch, endpoints, self._rack, features)
        await self._manager.commit({gateway_key(self._node_id): row.encode()}, lease=self.lease)

    async def renew(self) -> None:
        """Renew the lease for ever.

        Where the store has no space for that, it has none for anybody who would acquire the lease. Then it is looked at
        often, and goes on for a moment each time that it is still this gateway's, so that what is stored can be read.

        Raises:
            FencedError: A gateway of the same number has started, or others have taken this one for lost.
        """
        pause = ownership.LEASE_S / 3
        while True:
            await anyio.sleep(pause)
            pause = ownership.LEASE_S / 3
            try:
                self.held.current = await self._manager.renew(self.lease)
                self.held.short_of_space = False
            except FencedError:
                self._fenced()
                raise
            except StorageFullError as error:
                await self._confirm(error)
                pause = min(pause, _CONFIRMED_S / 3)
            except HtpError as error:
                self.held.short_of_space = False
                logger.warning("other gateways may take this one for lost, its lease could not be renewed: %s", error)
                pause = min(pause, _AGAIN_S)

    async def _confirm(self, full: StorageFullError) -> None:
        """The lease cannot be renewed for want of space: it goes on for a moment if nobody has acquired it."""
        if not self.held.short_of_space:
            logger.error("no space is left, only reading goes on until there is: %s", full)
        self.held.short_of_space = True
        asked, key = time.monotonic(), gateway_key(self._node_id)
        try:
            found = leases_by_number(await self._manager.leases(key)).get(self._node_id)
        except HtpError as error:
            logger.warning("whether this gateway still has its lease cannot be found out now: %s", error)
            return
        if found is None or found.epoch != self.lease.epoch:
            self._fenced()
            raise FencedError(f"{key!r} was acquired by another gateway", epoch=None if found is None else found.epoch)
        if self._extended:
            expires = max(self.lease.expires, asked + _CONFIRMED_S)
            self.held.current = replace(self.lease, expires=expires)

    def _fenced(self) -> None:
        logger.error(
            "another gateway with node.id=%d has started, or the others have taken this one for lost: it stops",
            self._node_id,
        )

    async def leave(self) -> None:
        """Remove the row, and give the lease and the number back; `renew` has ended.

        Raises:
            HtpError: The store does not take it; `give_back` tries once more.
        """
        held = self._held
        if held is None:
            return
        lease = held.current
        held.give_up()
        await self._remove_rows(lease)
        await self._manager.release(lease)
        self._held = None

    async def _remove_rows(self, lease: Lease) -> None:
        rows = dict.fromkeys([gateway_key(self._node_id), released_key(self._node_id)])
        with suppress(FencedError):  # the number is another one's, and so are the rows
            await self._manager.commit(rows, lease=lease)

    async def give_back(self, *, failed: bool) -> None:
        """Where `leave` has not: the lease first, for by it the others know, who remove the row if this does not.

        Args:
            failed: Whether the gateway has, which may be why the store does not take it.
        """
        held, self._held = self._held, None
        if held is None:
            return
        held.give_up()

        async def release() -> bool:
            given = False
            with anyio.move_on_after(_GIVE_BACK_S), suppress(HtpError):
                await self._manager.release(held.current)
                given = True
                await self._remove_rows(held.current)
            return given

        with suppress(StoreClosedError):  # by whoever opened it
            if await to_the_end(release) or failed:
                return
        logger.warning(
            "the store did not take the lease back: whoever is to lead what this gateway led has to wait for up to "
            "%.0f s", held.current.ttl,
        )  # fmt: skip
