"""The gateways that clients in this process share: one host per address, each a task in the portal's loop."""

from __future__ import annotations

import os
import threading
from typing import Final

import anyio

from kclient.concurrency import Wakeup
from kclient.gateway import Gateway
from kclient.gateway.local import claims_on_memory, drop_claims
from kclient.htp import memory
from kclient.net.address import Address
from kclient.state_tables import PlainEnum, StateTable, next_state
from kclient.sync.portal import before_stop, get_portal

LINGER_S: Final = 1.0
"""How long a gateway that no client is connected to goes on, in seconds."""
_POLL_S: Final = 0.25
_STOP_S: Final = 10.0

CONFIG: Final = {"group.initial.rebalance.delay.ms": 0}
"""Broker settings that differ from Kafka's defaults: in a process, members do not trickle in for seconds."""


class HostState(PlainEnum):
    """The life of a host."""

    STARTING = "starting"
    """The gateway opens its store."""
    RUNNING = "running"
    """Clients may connect."""
    CLOSING = "closing"
    """The gateway closes, and gives its directory back."""
    ENDED = "ended"
    """Nothing is left of it; `Host.error` says why, if it failed."""


class HostEvent(PlainEnum):
    """What happens to a host; the values are the labels of the diagram in the docs."""

    RECOVERED = "recovered"
    NOT_STARTED = "the store cannot be opened"
    UNWANTED = "no client for a second, close_all, or failure"
    CLOSED = "closed"


HOST_TABLE: StateTable[HostState, HostEvent] = {
    HostState.STARTING: {HostEvent.RECOVERED: HostState.RUNNING, HostEvent.NOT_STARTED: HostState.ENDED},
    HostState.RUNNING: {HostEvent.UNWANTED: HostState.CLOSING},
    HostState.CLOSING: {HostEvent.CLOSED: HostState.ENDED},
    HostState.ENDED: {},
}


class Host:
    """Runs a gateway in the portal's loop for as long as clients want it.

    Args:
        address: `memory:` or `embedded:`.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.state: HostState = HostState.STARTING
        self.error: BaseException | None = None
        """Why the gateway did not start, or what made it fail."""
        self._lock = threading.Lock()
        self._claims = 0
        self._waiting: list[Wakeup] = []
        self._stop = Wakeup()

    def claim(self) -> None:
        """Somebody is about to connect: do not close for want of clients, until `release`."""
        with self._lock:
            self._claims += 1

    def release(self) -> None:
        """Whoever claimed it has connected, or given up."""
        with self._lock:
            self._claims -= 1

    async def wait_while(self, state: HostState, timeout: float) -> None:
        """Wait, in any event loop, until it is no longer in a state, or the time is over."""
        changed = Wakeup()
        with self._lock:
            if self.state is not state:
                return
            self._waiting.append(changed)
        await changed.wait(timeout)

    def stop(self) -> None:
        """Have it close now, whoever is connected; from any thread."""
        self._stop.set()

    async def run(self) -> None:
        """Start the gateway, and close it when it is not wanted any more; a task of the portal."""
        try:
            gateway = Gateway(str(self.address), listen=None, config=CONFIG)
            await gateway.start()
            try:
                self._go(HostEvent.RECOVERED)
                while not await self._unwanted(gateway):
                    pass
            finally:
                self._go(HostEvent.UNWANTED)
                await gateway.aclose()
            self.error = gateway.failure
        except BaseException as error:
            self.error = error
            if not isinstance(error, Exception):
                raise
        finally:
            _forget(self)
            self._go(HostEvent.CLOSED if self.state is HostState.CLOSING else HostEvent.NOT_STARTED)

    async def _unwanted(self, gateway: Gateway) -> bool:
        """Whether it is time to close: told so, failed, or without clients for a while."""
        deadline = anyio.current_time() + LINGER_S
        while True:
            used = self._claims > 0 or gateway.connections > 0
            if gateway.failure is not None or (not used and anyio.current_time() >= deadline):
                return True
            if await self._stop.wait(min(_POLL_S, LINGER_S)):
                return True
            if used:
                return False

    def _go(self, event: HostEvent) -> None:
        with self._lock:
            self.state = next_state(HOST_TABLE, self.state, event, self.address)
            waiting, self._waiting = self._waiting, []
        for wakeup in waiting:
            wakeup.set()


_hosts: dict[Address, Host] = {}
_lock = threading.Lock()


def host_of(address: Address) -> Host | None:
    """The host of an address, if there is one."""
    with _lock:
        return _hosts.get(address)


def start_host(address: Address) -> Host:
    """The host of an address, started if there is none.

    Raises:
        IllegalStateError: In a forked child, for a `memory:` address that its parent used.
    """
    if address.scheme == "memory":
        memory.check_own(address.host)
    with _lock:
        host = _hosts.get(address)
        if host is not None:
            return host
        host = _hosts[address] = Host(address)
    get_portal().spawn(host.run)
    return host


def _forget(host: Host) -> None:
    with _lock:
        if _hosts.get(host.address) is host:
            del _hosts[host.address]


def close_all(address: Address | None = None) -> None:
    """Close the gateways in the portal thread, or the one of an address, and wait until they are closed; blocks."""
    with _lock:
        hosts = [host for host in _hosts.values() if address is None or host.address == address]
    if hosts:
        get_portal().call(_close, hosts)


async def _close(hosts: list[Host]) -> None:
    with anyio.move_on_after(_STOP_S):
        for host in hosts:
            host.stop()
        for host in hosts:
            while host.state is not HostState.ENDED:
                await host.wait_while(host.state, _STOP_S)


def reset(name: str | None = None) -> None:
    """Forget what is stored under `memory:NAME`, or (without a name) under all names; blocks.

    Clients that are connected lose their connections, and a `Gateway` that serves it fails.
    """
    with _lock:
        names = {address.host for address in _hosts if address.scheme == "memory"}
    for each in names if name is None else {name}:
        close_all(Address(each, 0, "memory"))
    claims = claims_on_memory(name)
    memory.reset(name)
    drop_claims(claims)


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    memory.disown(address.host for address in _hosts if address.scheme == "memory")  # they may not be open yet
    _hosts.clear()


before_stop(close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
