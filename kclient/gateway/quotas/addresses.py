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
        self._limits: dict[str, float] = {}
        """By the names that were given."""
        self._found: dict[str, list[str]] = {}
        self._looking_up: dict[str, TaskHandle] = {}

    def put(self, name: str | None, limit: float | None) -> None:
        """Allow so many connections a second from an address, or a host; None where it has no rate of its own.

        Args:
            name: Of it; None is any that has no rate.
            limit: The rate.
        """
        if name is None:
            self._arrivals.default = limit
            return
        task = self._looking_up.pop(name, None)
        if task is not None:
            task.cancel()
        self._found.pop(name, None)
        self._limits.pop(name, None)
        if limit is not None:
            self._limits[name] = limit
            if is_address(name):
                self._found[name] = [plain_address(name)]
            else:
                self._looking_up[name] = self._spawn(self._look_up, name, name=f"look up {name[:100]}")
        self._apply()

    def _apply(self) -> None:
        self._arrivals.limits = {
            address: self._limits[name] for name, addresses in self._found.items() for address in addresses
        }

    async def _look_up(self, name: str) -> None:
        told = False
        while True:
            try:
                self._found[name] = await addresses_of(name)
            except InvalidRequestError as error:
                if not told:
                    logger.error("the connection rate of a host is not in force: %s", error)
                told = True
                await anyio.sleep(_LOOK_UP_AGAIN_S)
            else:
                self._looking_up.pop(name, None)
                self._apply()
                return
