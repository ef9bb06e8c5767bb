"""A gateway's part in serving a store: taken at the start, given back at the end, with others where it is shared."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

import anyio

from kclient.gateway.cluster_generations import ClusterGenerations, begin_alone, begin_together
from kclient.gateway.eviction import Eviction
from kclient.gateway.membership import LeaseLooks, Registration
from kclient.gateway.ownership import HeldLease, LeaseKeeper
from kclient.htp.errors import HtpError
from kclient.htp.port import CAP_EXCLUSIVE, CAP_FENCED_SENDS, CAP_SHARED

if TYPE_CHECKING:
    from kclient.concurrency import TaskHandle
    from kclient.gateway.handing_over import HandOver
    from kclient.gateway.rows.gateways import Endpoint
    from kclient.htp.port import Broker, Manager

logger: logging.Logger = logging.getLogger("kclient.gateway")


class SpawnRenewal(Protocol):
    """Starts a task of the gateway that renews a lease for ever; the gateway fails with it."""

    def __call__(self, renew: Callable[[], Awaitable[None]], *, name: str) -> TaskHandle:
        """Start it."""
        ...


class Participation:
    """What a gateway may serve of a store: all of it, alone, or with others what the generations give to each.

    Args:
        manager: The store's.
        broker: The store's; its capabilities tell whether several gateways may serve it.
        rack: Where the gateway stands (`broker.rack`); None if that is not told.
    """

    def __init__(self, manager: Manager, broker: Broker, rack: str | None) -> None:
        capabilities = broker.capabilities
        self.shared: bool = CAP_SHARED in capabilities
        """Whether other gateways may serve the store too."""
        self.looks: LeaseLooks = LeaseLooks(manager)
        """Looks at the leases of the gateways."""
        self._manager = manager
        self._exclusive = CAP_EXCLUSIVE in capabilities
        self._fenced = CAP_FENCED_SENDS in capabilities
        self._registration = Registration(manager, rack, fenced=self._fenced)
        self._lease: LeaseKeeper | None = None
        """Of the store, unless it is shared."""
        self._renewing: list[TaskHandle] = []
        self._generations: ClusterGenerations | None = None

    @property
    def run(self) -> str:
        """Tells this start of the gateway from all others of its number."""
        return self._registration.run

    @property
    def registered(self) -> HeldLease:
        """The lease under which it is registered."""
        return self._registration.held

    async def allot(self) -> int:
        """Get a number that no other gateway has. Raises `HtpError` if the store fails."""
        return await self._registration.allot()

    async def take(self, node_id: int, spawn: SpawnRenewal) -> tuple[HeldLease, ClusterGenerations]:
        """Take the store, or what of it is this gateway's.

        Args:
            node_id: Its number, given or allotted.
            spawn: Starts what renews its leases meanwhile.

        Returns:
            The lease under which it writes, and who leads what.

        Raises:
            LeaseHeldError: A gateway of another number serves the store, which is not shared.
            FencedError: A gateway of the same number has started.
            HtpError: The store failed.
        """
        held, self._generations = await (
            self._take_part(node_id, spawn) if self.shared else self._take_alone(node_id, spawn)
        )
        return held, self._generations

    async def _take_part(self, node_id: int, spawn: SpawnRenewal) -> tuple[HeldLease, ClusterGenerations]:
        registration = self._registration
        await registration.take(node_id)
        self._renewing.append(spawn(registration.renew, name="registration"))
        held = registration.held
        return held, await begin_together(self._manager, node_id, held.current.epoch, held)

    async def _take_alone(self, node_id: int, spawn: SpawnRenewal) -> tuple[HeldLease, ClusterGenerations]:
        registration = self._registration
        lease = self._lease = LeaseKeeper(self._manager, node_id, exclusive=self._exclusive, fenced=self._fenced)
        held = await lease.take()
        # to start may take longer than the leases last
        self._renewing.append(spawn(lease.renew, name="lease"))
        await registration.take(node_id)
        self._renewing.append(spawn(registration.renew, name="registration"))
        await registration.remove_others(held.current)
        return held, await begin_alone(self._manager, node_id, registration.lease.epoch, held.current)

    async def join(
        self,
        endpoints: Mapping[str, Endpoint],
        hand_over: HandOver,
        evicted: Callable[[], Awaitable[object]],
        spawn: Callable[..., TaskHandle],
    ) -> list[TaskHandle]:
        """Have the other gateways tell their clients of this one, and lead with them.

        Args:
            endpoints: Where its clients find it, by the name of the listener.
            hand_over: Of what others lead by now.
            evicted: Finishes what a lost gateway has left half done.
            spawn: Starts a task of the gateway.

        Returns:
            Tasks that go on until it has left.

        Raises:
            FencedError: A gateway of the same number has started.
            HtpError: The store failed.
        """
        generations = self._generations
        assert generations is not None, "the store has been taken"
        await self._registration.publish(endpoints)
        if not self.shared:
            return []
        lease = self._registration.held
        await generations.join(lease)
        eviction = Eviction(self._manager, lease, generations, evicted, self.looks)
        return [spawn(hand_over.run, name="hand over"), spawn(eviction.run, name="evict lost gateways")]

    async def leave(self, hand_over: HandOver, grace: float) -> None:
        """Hand over to the other gateways, while clients are still answered; nothing if there are none.

        One that joins in this moment evicts this one, once the lease is given back.

        Args:
            hand_over: Does so.
            grace: Seconds that it may take.
        """
        generations = self._generations
        if not self.shared or generations is None or grace <= 0 or generations.alone:
            return
        try:
            with anyio.move_on_after(grace):
                await generations.leave(self._registration.held)
                if not generations.serving:
                    await hand_over.done()
                return
        except HtpError as error:
            logger.warning("closing without handing over, the others take over what this gateway leads: %s", error)
            return
        logger.warning("not all was handed over in time, the others take over what is left")

    async def release(self) -> None:
        """Give everything back, once all is written; what the store does not take, `give_back` tries once more."""
        for task in self._renewing:
            task.cancel()
        for task in self._renewing:
            await task.wait()
        with suppress(HtpError):
            await self._registration.leave()
            if self._lease is not None:
                await self._lease.release()

    async def give_back(self, *, failed: bool) -> None:
        """Where `release` has not, or not all.

        Args:
            failed: Whether the gateway has, which may be why the store does not take it.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(self._registration.give_back, failed=failed or not self.shared))
            if self._lease is not None:
                await self._lease.give_back(failed=failed)
