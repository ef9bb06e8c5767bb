"""The connection rates of addresses, which may be given as names of hosts: these are looked up."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import anyio

from kclient.errors import InvalidRequestError
from kclient.net.connection_limits import plain_address

if TYPE_CHECKING:
    from kclient.concurrency import TaskHandle
    from kclient.gateway.quotas.arrivals import Arrivals

__all__ = ["AddressLimits", "addresses_of", "is_address"]

logger: logging.Logger = logging.getLogger("kclient.gateway.quotas")

_LOOK_UP_S: Final = 10.0
_LOOK_UP_AGAIN_S: Final = 30.0
"""After so many seconds a host that was not found is looked up again."""


def is_address(name: str) -> bool:
    """Whether it is the address of a host, and not the name of one."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def addresses_of(name: str) -> list[str]:
    """The addresses of a host, which takes ten seconds at most.

    Raises:
        InvalidRequestError: It has none.
    """
    if is_address(name):
        return [plain_address(name)]
    try:
        with anyio.fail_after(_LOOK_UP_S):
            found = await anyio.getaddrinfo(name, None)
    except (OSError, UnicodeError) as error:  # TimeoutError is one of the former
        raise InvalidRequestError(f"{name} is not a valid IP or resolvable host.") from error
    return list(dict.fromkeys(plain_address(str(item[4][0])) for item in found))


class AddressLimits:
    """Has the rates of addresses in force, those of hosts as soon as they are found.

    Args:
        arrivals: Obeys them.
        spawn: Starts a task of the gateway.
    """

    def __init__(self, arrivals: Arrivals, spawn: Callable[..., TaskHandle]) -> None:
        self._arrivals = arrivals
        self._spawn = spawn
        self._limits: dict[str, dict[str, float]] = {}
        """Of addresses, by the names that were given: of several the last one holds."""
        self._found: dict[str, list[str]] = {}
        self._looking_up: dict[str, tuple[object, TaskHandle]] = {}
        """With what tells the task of one change from that of the next."""

    def put(self, name: str | None, limit: float | None) -> None:
        """Allow so many connections a second from an address, or a host; None where it has no rate of its own.

        Args:
            name: Of it; None is any that has no rate.
            limit: The rate.
        """
        if name is None:
            self._arrivals.default = limit
            return
        looking_up = self._looking_up.pop(name, None)
        if looking_up is not None:
            looking_up[1].cancel()
        for address in self._found.pop(name, ()):
            limits = self._limits[address]
            del limits[name]
            if not limits:
                del self._limits[address]
            self._apply(address)
        if limit is None:
            return
        if is_address(name):
            self._put(name, [plain_address(name)], limit)
        else:
            change = object()
            task = self._spawn(self._look_up, name, limit, change, name=f"look up {name[:100]}")
            self._looking_up[name] = change, task

    def _put(self, name: str, addresses: list[str], limit: float) -> None:
        self._found[name] = addresses
        for address in addresses:
            self._limits.setdefault(address, {})[name] = limit
            self._apply(address)

    def _apply(self, address: str) -> None:
        """Have the rate of one address in force: there may be thousands, and each changes by itself."""
        limits = self._limits.get(address)
        if limits:
            self._arrivals.limits[address] = limits[next(reversed(limits))]
        else:
            self._arrivals.limits.pop(address, None)

    async def _look_up(self, name: str, limit: float, change: object) -> None:
        told = False
        while True:
            try:
                found = await addresses_of(name)
            except InvalidRequestError as error:
                if not told:
                    logger.error("the connection rate of a host is not in force: %s", error)
                told = True
                await anyio.sleep(_LOOK_UP_AGAIN_S)
            else:
                if self._looking_up.get(name, (None,))[0] is change:  # else it was found as the task was cancelled
                    del self._looking_up[name]
                    self._put(name, found, limit)
                return
