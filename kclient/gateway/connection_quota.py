"""The limits of connections as the broker settings give them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio

from kclient.errors import ConfigError
from kclient.gateway.settings import connection_overrides
from kclient.net.connection_limits import ConnectionQuota, plain_address

if TYPE_CHECKING:
    from kclient.gateway.config import BrokerConfig

_EACH: Final = "max.connections.per.ip"
_OVERRIDES: Final = "max.connections.per.ip.overrides"
SETTINGS: Final = frozenset({"max.connections", _EACH, _OVERRIDES})

_LOOK_UP_S: Final = 10.0
"""Seconds in which all names have to be found."""


@dataclass(frozen=True, slots=True)
class FoundQuota:
    """Limits, as far as the hosts in them could be found."""

    quota: ConnectionQuota
    unknown: list[ConfigError]
    """Hosts that were not found: they have no limits of their own."""
    closed: ConfigError | None
    """That nobody could connect."""

    @property
    def flaws(self) -> list[ConfigError]:
        """All that is wrong."""
        return self.unknown if self.closed is None else [*self.unknown, self.closed]

    def check(self, but: Mapping[str, object]) -> None:
        """Raise what is wrong with other settings than these."""
        if self.unknown and _OVERRIDES not in but:
            raise self.unknown[0]
        if self.closed is not None and _OVERRIDES not in but and _EACH not in but:
            raise self.closed


def connection_limits(config: BrokerConfig) -> tuple[object, ...]:
    """What the settings of the limits say: another quota has to be made when that has changed."""
    return tuple(config.get(name) for name in sorted(SETTINGS))


async def connection_quota(config: BrokerConfig) -> FoundQuota:
    """The limits of `max.connections` and of `max.connections.per.ip` with its overrides, whose names are looked up.

    That takes ten seconds at most.
    """
    most, each = config.get_int("max.connections"), config.get_int(_EACH)
    limits = connection_overrides(str(config.get(_OVERRIDES) or ""))
    found: dict[str, list[str]] = {}
    failed: dict[str, str] = dict.fromkeys(limits, f"no answer within {_LOOK_UP_S:g} s")

    async def look_up(host: str) -> None:
        try:
            items = await anyio.getaddrinfo(host, None)
        except (OSError, UnicodeError) as error:  # the latter where it is not a name that could be asked for
            failed[host] = str(error)
        else:
            found[host] = [plain_address(item[4][0]) for item in items]

    with anyio.move_on_after(_LOOK_UP_S):
        async with anyio.create_task_group() as lookups:
            for host in limits:
                lookups.start_soon(look_up, host)
    overrides = {address: limit for host, limit in limits.items() for address in found.get(host, ())}
    unknown = [
        ConfigError(f"{_OVERRIDES}: {host} cannot be found: {failed[host]}") for host in limits if host not in found
    ]
    nobody = each == 0 and not overrides
    closed = ConfigError(f"{_EACH} may be 0 only with {_OVERRIDES}") if nobody else None
    return FoundQuota(ConnectionQuota(most, each, overrides), unknown, closed)
