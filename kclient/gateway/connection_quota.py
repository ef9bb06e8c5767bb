"""The limits of connections as the broker settings give them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import anyio

from kclient.errors import ConfigError
from kclient.gateway.settings import connection_overrides
from kclient.net.connection_limits import ConnectionQuota, plain_address

if TYPE_CHECKING:
    from kclient.gateway.config import BrokerConfig

logger: logging.Logger = logging.getLogger("kclient.gateway.config")

SETTINGS: Final = frozenset({"max.connections", "max.connections.per.ip", "max.connections.per.ip.overrides"})


def connection_limits(config: BrokerConfig) -> tuple[object, ...]:
    """What the settings of the limits say: another quota has to be made when that has changed."""
    return tuple(config.get(name) for name in sorted(SETTINGS))


async def connection_quota(config: BrokerConfig, *, strict: bool = True) -> ConnectionQuota:
    """The limits of `max.connections` and of `max.connections.per.ip` with its overrides, whose names are looked up.

    Args:
        config: The settings.
        strict: Whether what is wrong raises an error. If not, it is logged, and the rest is in force: a name that was
            found when it was set may not be found when a gateway starts.

    Raises:
        ConfigError: A name of the overrides cannot be found, or nobody could connect.
    """
    most, each = config.get_int("max.connections"), config.get_int("max.connections.per.ip")
    text = str(config.get("max.connections.per.ip.overrides") or "")
    overrides: dict[str, int] = {}
    wrong: list[ConfigError] = []
    for host, limit in connection_overrides(text).items():
        try:
            overrides |= dict.fromkeys(await _addresses(host), limit)
        except ConfigError as error:
            wrong.append(error)
    if each == 0 and not overrides:
        wrong.append(ConfigError("max.connections.per.ip may be 0 only with max.connections.per.ip.overrides"))
    if wrong and strict:
        raise wrong[0]
    for flaw in wrong:
        logger.error("the limits of connections are in force without this: %s", flaw)
    return ConnectionQuota(most, each, overrides)


async def _addresses(host: str) -> list[str]:
    try:
        found = await anyio.getaddrinfo(host, None)
    except (OSError, UnicodeError) as error:  # the latter where it is no name that could be asked for
        raise ConfigError(f"max.connections.per.ip.overrides: {host} cannot be found: {error}") from error
    return [plain_address(item[4][0]) for item in found]
