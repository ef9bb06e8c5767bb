"""The limits of connections as the broker settings give them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from kclient.errors import ConfigError
from kclient.gateway.settings import connection_overrides
from kclient.net.connection_limits import ConnectionQuota, plain_address

if TYPE_CHECKING:
    from kclient.gateway.config import BrokerConfig


async def connection_quota(config: BrokerConfig) -> ConnectionQuota:
    """The limits of `max.connections` and of `max.connections.per.ip` with its overrides, whose names are looked up.

    Raises:
        ConfigError: A name of the overrides cannot be found, or nobody could connect.
    """
    each = config.get_int("max.connections.per.ip")
    text = str(config.get("max.connections.per.ip.overrides") or "")
    overrides: dict[str, int] = {}
    for host, most in connection_overrides(text).items():
        for address in await _addresses(host):
            overrides[address] = most
    if each == 0 and not overrides:
        raise ConfigError("max.connections.per.ip may be 0 only with max.connections.per.ip.overrides")
    return ConnectionQuota(config.get_int("max.connections"), each, overrides)


async def _addresses(host: str) -> list[str]:
    try:
        found = await anyio.getaddrinfo(host, None)
    except OSError as error:
        raise ConfigError(f"max.connections.per.ip.overrides: {host} cannot be found: {error}") from error
    return [plain_address(item[4][0]) for item in found]
