"""The limits of connections as the broker settings give them, and kept in force as those change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio

from kclient.errors import ConfigError
from kclient.gateway.setting import connection_overrides
from kclient.net.connection_limits import ConnectionQuota, plain_address

if TYPE_CHECKING:
    from kclient.concurrency import TaskHandle
    from kclient.gateway.config import BrokerConfig, Live

logger: logging.Logger = logging.getLogger("kclient.gateway")

_EACH: Final = "max.connections.per.ip"
_OVERRIDES: Final = "max.connections.per.ip.overrides"
SETTINGS: Final = frozenset({"max.connections", _EACH, _OVERRIDES})

_LOOK_UP_S: Final = 10.0
"""Seconds in which all names have to be found."""
_LOOK_UP_AGAIN_S: Final = 30.0
"""After so many seconds a host that was not found is looked up again."""


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """What the settings of the limits say; they name hosts as the user did."""

    most: int
    """`max.connections`."""
    each: int
    """`max.connections.per.ip`."""
    overrides: str
    """`max.connections.per.ip.overrides`."""

    @classmethod
    def of(cls, config: BrokerConfig) -> LimitSettings:
        """What these settings say."""
        return cls(config.get_int("max.connections"), config.get_int(_EACH), str(config.get(_OVERRIDES) or ""))


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


async def connection_quota(wanted: LimitSettings) -> FoundQuota:
    """The quota that keeps these limits: the hosts that they name are looked up, which takes ten seconds at most."""
    limits = connection_overrides(wanted.overrides)
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
    nobody = wanted.each == 0 and not overrides
    closed = ConfigError(f"{_EACH} may be 0 only with {_OVERRIDES}") if nobody else None
    return FoundQuota(ConnectionQuota(wanted.most, wanted.each, overrides), unknown, closed)


class QuotaKeeper:
    """Keeps the limits of connections in force: those that the settings say now, with hosts as far as they are found.

    Args:
        wanted: What they said when the quota was looked up that is in force.
        limits: What they say now.
        apply: Called with another quota, puts it in force.
        spawn: Starts a task of the gateway.
    """

    def __init__(
        self,
        wanted: LimitSettings,
        *,
        limits: Live[LimitSettings],
        apply: Callable[[ConnectionQuota], object],
        spawn: Callable[..., TaskHandle],
    ) -> None:
        self._wanted = wanted
        """What is in force, or is being looked up."""
        self._limits = limits
        self._apply = apply
        self._spawn = spawn
        self._looking_up: TaskHandle | None = None

    def complete(self, found: FoundQuota) -> None:
        """Look up again what was not found for the quota that is in force."""
        if found.flaws:
            self._look_up(_tell_flaws(found, set()))

    def settings_changed(self) -> None:
        """Settings have changed, perhaps these."""
        if self._limits() != self._wanted:
            self._look_up(set())

    def _look_up(self, told: set[str]) -> None:
        if self._looking_up is not None:
            self._looking_up.cancel()  # it is about older settings
        self._wanted = self._limits()
        self._looking_up = self._spawn(self._put_in_force, told, name="connection limits")

    async def _put_in_force(self, told: set[str]) -> None:
        """Hosts that are not found are looked up again until they are."""
        while True:
            found = await connection_quota(self._wanted)
            self._apply(found.quota)
            told = _tell_flaws(found, told)
            if not found.unknown:
                return
            await anyio.sleep(_LOOK_UP_AGAIN_S)


def _tell_flaws(found: FoundQuota, told: set[str]) -> set[str]:
    """Log what is wrong with the limits of connections, but for what was told before; returns all of it."""
    flaws = {str(flaw) for flaw in found.flaws}
    for flaw in sorted(flaws - told):
        logger.error("the limits of connections are in force without this: %s", flaw)
    return flaws
