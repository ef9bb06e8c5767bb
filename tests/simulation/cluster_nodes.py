"""Gateways of a simulated cluster: each on a machine of its own, with a way to the common store that may fail."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import trio

from kclient.errors import KafkaError
from kclient.gateway import Gateway
from kclient.gateway.coordination import CoordinatorType
from kclient.gateway.ownership import LEASE_S
from kclient.gateway.rows.keys import RELEASED, gateway_key, parse_released_key
from kclient.htp import HtpError, StorageError, StorageFullError, open_store
from kclient.htp.port import CAP_NOWAIT
from kclient.memory_ledger import process_memory
from tests.gateway_wire import Wire
from tests.simulation.machines import Machine
from tests.simulation.promises import Killed, connection
from tests.slow_store import SlowStore

_DELAYS_S = (*[0.0] * 10, *[0.001] * 10, *[0.02] * 10, 0.3, 1.0)
"""How long calls of the manager take."""
_WRITES = frozenset({
    "acquire", "bind", "commit", "create_domain", "create_topic", "delete_domain", "delete_topics", "release", "renew",
})  # fmt: skip
"""Calls of the manager that need space."""
_CONFIRMED_S = 3.0
"""So long a gateway goes on that has seen that its lease is its own still, and that there is no space to renew it."""

DELAY_S = 0.05
"""Seconds that a call of a slow broker takes at most, where nothing is said."""
_NEWS_S = 5.0
"""So late a gateway hears what others have changed, where each call of the manager takes a second."""


class Disk:
    """What the gateways write to.

    Args:
        slow: Whether calls of brokers take a while, too.
    """

    def __init__(self, *, slow: bool) -> None:
        self.full = False
        self.slow = slow
        self.delay_s = DELAY_S
        """Seconds that a call of a broker takes at most, if it is slow."""
        self.claimed: set[int] = set()
        """Gateways that have not handed over in time: others lead what was theirs, though their leases last."""


class Place:
    """Where the store of a cluster is.

    Args:
        name: Of the world.
        backend: `memory` or `embedded`.
        folder: For the directory of the latter.
    """

    def __init__(self, name: str, backend: str, folder: Path) -> None:
        self._name = name
        self._backend = backend
        self._folder = folder

    def open(self) -> Any:
        """An opening of its own for each process."""
        if self._backend == "memory":
            return open_store(f"memory:{self._name}")
        return open_store(f"embedded:{self._folder}/data", together=True)


class Reached:
    """One gateway's way to the store: its manager may be out of reach, and each of its calls takes a moment.

    Args:
        store: The store, as this gateway has opened it.
        dice: How long calls take.
        disk: That of the manager and the brokers, which all gateways write to.
        number: Of the gateway.
    """

    def __init__(self, store: Any, dice: Random, disk: Disk, number: int) -> None:
        self.store = store
        self.manager = _Manager(store.manager, dice, disk, number)
        self.broker = store.broker
        self._dice = dice
        self._disk = disk
        if disk.slow:
            self.broker = SlowStore(store, self._slowly).broker
            self.broker.capabilities = store.broker.capabilities - {CAP_NOWAIT}

    @asynccontextmanager
    async def _slowly(self, _: str) -> AsyncIterator[None]:
        await trio.sleep(self._dice.random() * self._disk.delay_s)
        yield
        await trio.sleep(self._dice.random() * self._disk.delay_s)

    def on_failure(self, callback: Callable[[StorageError], object]) -> Callable[[], None]:
        return self.store.on_failure(callback)


class _Lent(Reached):
    """Of a store that lends what others open."""

    async def lend(self) -> None:
        await self.store.lend()


class _Manager:
    def __init__(self, inner: Any, dice: Random, disk: Disk, number: int) -> None:
        self._inner = inner
        self._dice = dice
        self._disk = disk
        self._number = number
        self.reachable = True
        self.lease_ends = 0.0
        """When the gateway's lease is over, on a clock that stands still for nobody."""
        self.seam: Callable[[bool, Mapping[str, bytes | None]], object] | None = None
        """Is told of each commit, before it is made (False) and when it was, and may make the manager unreachable."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)

        async def call(*arguments: Any, **options: Any) -> Any:
            asked = trio.current_time()
            if name != "changes":
                await trio.sleep(self._dice.choice(_DELAYS_S))
            self._check()
            if self._disk.full:
                self.lease_ends = max(self.lease_ends, asked + _CONFIRMED_S)
                if name in _WRITES:
                    raise StorageFullError("database or disk is full")
            self._at_seam(False, name, arguments)
            result = await found(*arguments, **options)
            if name in ("acquire", "renew") and result.name == gateway_key(self._number):
                self.lease_ends = max(self.lease_ends, asked + LEASE_S)
            elif name == "commit":
                self._committed(arguments[0])
            self._at_seam(True, name, arguments)
            self._check()
            return result

        return call

    def _at_seam(self, made: bool, name: str, arguments: Any) -> None:
        if self.seam is not None and name == "commit":
            self.seam(made, arguments[0])
            self._check()

    def _committed(self, writes: Any) -> None:
        for key, value in writes.items():
            if key.startswith(RELEASED) and value is not None and parse_released_key(key) != self._number:
                self._disk.claimed.add(parse_released_key(key))

    def _check(self) -> None:
        if not self.reachable:
            raise StorageError("the manager is not reached")


class Node:
    """One run of a gateway.

    Args:
        number: Of the gateway.
        store: An opening of the store, which is closed with it.
        dice: How long calls of the store take.
        disk: That of the store.
        listen: Where it listens, if that is anywhere.
        options: Of the gateway.
    """

    def __init__(
        self, number: int, store: Any, dice: Random, disk: Disk, *, listen: str | None = None, **options: Any
    ) -> None:
        self.number = number
        self.store = store
        self.machine = Machine()
        self.reached = (_Lent if hasattr(store, "lend") else Reached)(store, dice, disk, number)
        self._disk = disk
        self._well_since = 0.0
        self.gateway = Gateway(
            self.reached, listen=listen, config={"node.id": number}, **options  # type: ignore[arg-type]
        )  # fmt: skip

    @property
    def ended(self) -> bool:
        """Whether it has failed, and clients know that."""
        return self.gateway.failure is not None and not self.machine.stopped

    async def start(self) -> None:
        """Start it, and wait until it serves."""
        self._disk.claimed.discard(self.number)
        with trio.fail_after(120), self.machine.here():
            await self.gateway.start()

    async def end(self, *, killed: bool) -> None:
        """Have it closed, or killed."""
        self.machine.go_on()
        with self.machine.here():
            if killed:
                self.reached.manager.reachable = False
                self.gateway._supervisor.fail(Killed())
            with suppress(KafkaError, HtpError, Killed):
                await self.gateway.close(0.0 if killed else 10.0)
            process_memory.cache_clear()
            await self.store.aclose()

    async def stop(self, seconds: float, *, clocks: bool) -> None:
        """Stop it for a while, with or without its monotonic clock."""
        self.machine.stop()
        self._well_since = math.inf
        await trio.sleep(seconds)
        self._well_since = trio.current_time()
        if clocks:
            self.machine.behind_s += seconds
            self.reached.manager.lease_ends += seconds
        self.machine.go_on()

    def reach(self, *, manager: bool) -> None:
        """Have it reach the manager from now on, or not; clients reach it all the same."""
        self.reached.manager.reachable = manager
        self._well_since = trio.current_time() if manager else math.inf

    def knows(self, since: float) -> bool:
        """Whether it has to know of everything that has happened up to a time: it was well, and had time enough."""
        return trio.current_time() > max(since, self._well_since) + _NEWS_S

    def leads(self, topic: str, partition: int) -> bool | None:
        """Whether it leads a partition, as it sees it; None if it does not know the topic."""
        parts = self.gateway.parts
        record = parts.topics.get(topic)
        return None if record is None else parts.leadership.leads(record, partition)

    def coordinates(self, group: str) -> bool:
        """Whether it coordinates a group, as it sees it."""
        return self.gateway.parts.leadership.coordinates(CoordinatorType.GROUP, group)

    def may_be_late(self) -> bool:
        """Whether it may answer from its past: others lead what it had, and its lease is not over."""
        moved = self.number in self._disk.claimed or self.machine.behind_s > 0
        return moved and trio.current_time() < self.reached.manager.lease_ends

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Wire]:
        """A connection to it."""
        with self.machine.here():
            connecting = connection(self.gateway)
            wire = await connecting.__aenter__()
        try:
            yield wire
        finally:
            with trio.CancelScope(shield=True):
                await connecting.__aexit__(None, None, None)
