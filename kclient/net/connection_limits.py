"""How many connections a server takes: together (`max.connections`), and from one address (KIP-402, KIP-612)."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import anyio

if TYPE_CHECKING:
    from kclient.descriptors import DescriptorShare

logger: logging.Logger = logging.getLogger("kclient.net.server")

_TELL_S: Final = 60.0
_LOOK_AGAIN_S: Final = 0.25
"""How often it is looked whether others have closed what they had open."""


@dataclass(frozen=True, slots=True)
class ConnectionQuota:
    """How many connections there may be at a time."""

    total: int = 2**31 - 1
    """Together (`max.connections`); more wait until one ends."""
    per_address: int = 2**31 - 1
    """From one address (`max.connections.per.ip`); more are closed at once."""
    overrides: Mapping[str, int] = field(default_factory=dict)
    """Limits of single addresses in place of that (`max.connections.per.ip.overrides`)."""


class ArrivalRates(Protocol):
    """Tells how fast connections may come (KIP-612). It is told of each, and must not wait."""

    def pause(self, label: object) -> float:
        """A connection has come by a listener with this label: seconds in which it takes no more."""
        ...

    def refused_for(self, address: str) -> float:
        """A connection has come from an address: seconds after which it is closed; 0.0 if it is served."""
        ...


class Slot:
    """One connection that is counted, until it `end`s."""

    __slots__ = ("_limits", "attached", "host")

    def __init__(self, limits: ConnectionLimits, host: str | None) -> None:
        self._limits: ConnectionLimits | None = limits
        self.host: str | None = host
        self.attached: bool = False
        """Whether it is served; before, its handshake may be under way."""

    def end(self, _: object = None) -> None:
        """The connection is closed; saying so twice is no error."""
        limits, self._limits = self._limits, None
        if limits is not None:
            limits.ended(self)


class ConnectionLimits:
    """Counts the accepted connections of one server.

    Args:
        quota: Its limits at first.
        descriptors: What the process leaves to connections.
        most: So many there may be in any case, since each takes memory.
    """

    def __init__(self, quota: ConnectionQuota, descriptors: DescriptorShare, most: int = 2**31 - 1) -> None:
        self.quota: ConnectionQuota = quota
        """What holds for connections from now on; those that are there stay."""
        self._descriptors = descriptors
        self._most = most
        self._by_host: dict[str, int] = {}
        self._ended: anyio.Event | None = None
        self._told = float("-inf")
        """When it was told that connections wait."""
        self.open: int = 0
        """So many there are."""

    def take(self) -> bool:
        """Count one more that will be accepted; False if there may be none at present."""
        if self.open < self.quota.total and self.open < self._most and self._descriptors.take():
            self.open += 1
            return True
        return False

    def give_back(self) -> None:
        """What was taken is not there, or not any more."""
        self.open -= 1
        self._descriptors.give_back()
        if self._ended is not None:
            self._ended.set()
            self._ended = None

    def make_room(self) -> bool:
        """Close a file that is not needed at the moment; False if there is none."""
        return self._descriptors.make_room()

    async def room(self) -> None:
        """Until a connection has ended, or some time has passed."""
        now = anyio.current_time()
        if now - self._told > _TELL_S:
            self._told = now
            logger.warning(
                "%d connections are open, more have to wait until one ends (max.connections is %d, there is memory for "
                "%d in connections.max.memory.bytes, and the process may have so many files open)",
                self.open, self.quota.total, self._most,
            )  # fmt: skip
        if self._ended is None:
            self._ended = anyio.Event()
        with anyio.move_on_after(_LOOK_AGAIN_S):
            await self._ended.wait()

    def admit(self, host: str | None) -> Slot | None:
        """Count a connection that was taken for its address; None, and it is given back, if that has enough.

        Args:
            host: The address it comes from; None if it comes from no network.
        """
        if host is not None:
            host = plain_address(host)
            most = self.quota.overrides.get(host, self.quota.per_address)
            count = self._by_host.get(host, 0)
            if count >= most:
                logger.info("a connection from %s is refused: there are %d already, as many as may be", host, count)
                self.give_back()
                return None
            self._by_host[host] = count + 1
        return Slot(self, host)

    def ended(self, slot: Slot) -> None:
        """A connection is not there any more."""
        host = slot.host
        if host is not None:
            left = self._by_host[host] - 1
            if left:
                self._by_host[host] = left
            else:
                del self._by_host[host]
        self.give_back()

    def close(self) -> None:
        """The server takes no more."""
        self._descriptors.close()


def plain_address(host: str) -> str:
    """An address in the form in which addresses are compared: `::ffff:10.0.0.1` is `10.0.0.1`."""
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)
