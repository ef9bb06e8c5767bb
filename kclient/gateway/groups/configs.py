"""Settings of single groups, in place of the broker's: kept by the manager, the same at all gateways of a store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from kclient.errors import ConfigError, InvalidConfigurationError
from kclient.gateway.config import SOURCE_DEFAULT, Origin
from kclient.gateway.named_settings import NamedSettings
from kclient.gateway.rows.keys import GROUP_SETTINGS as ROWS
from kclient.gateway.settings_of_groups import GROUP_SETTINGS, GROUP_TYPES_WITH_SETTINGS, bounds_of
from kclient.gateway.settings_of_shares import LATEST, READ_COMMITTED, back_ms
from kclient.gateway.shares.settings import DeliverySettings

if TYPE_CHECKING:
    from kclient.gateway.config import BrokerConfig
    from kclient.gateway.groups.events import GroupSettings
    from kclient.gateway.ownership import HeldLease
    from kclient.gateway.shields import Shields
    from kclient.htp.port import Manager
    from kclient.memory_ledger import LimitedAccount

_SOURCE_GROUP: Final = 8
"""What DescribeConfigs calls a setting of a group (`ConfigEntry.ConfigSource`)."""
_OF_COORDINATOR: Final = {
    f"{kind}.{name}": f"group_{kind}_{name.replace('.', '_')}"
    for kind in GROUP_TYPES_WITH_SETTINGS
    for name in ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms")
} | {
    "streams.num.standby.replicas": "group_streams_num_standby_replicas",
    "streams.initial.rebalance.delay.ms": "group_streams_initial_rebalance_delay_ms",
}
"""The fields of `GroupSettings` of settings of a group."""


class GroupConfigs(NamedSettings):
    """The settings that AlterConfigs has set for groups, whether they are there or not.

    Args:
        config: The settings of the broker.
        manager: Keeps what was set.
        lease: Under which it is kept.
        shields: Keep a change from being left half done.
        memory: Where they count.
    """

    def __init__(
        self, config: BrokerConfig, manager: Manager, lease: HeldLease, shields: Shields, memory: LimitedAccount
    ) -> None:
        super().__init__(ROWS, "group", manager, lease, shields, memory)
        self._config = config

    def apply_to(self, group_id: str, settings: GroupSettings) -> GroupSettings:
        """The settings of the broker for groups, with those of a group in place of them."""
        found = self._set.get(group_id)
        if not found:
            return settings
        values: dict[str, Any] = {field: int(found[name]) for name, field in _OF_COORDINATOR.items() if name in found}
        return replace(settings, **values)

    def delivery(self, group_id: str) -> DeliverySettings:
        """How records are delivered to a share group: its settings, and else those of the broker."""
        found = self.of(group_id)

        def number(name: str) -> int:
            text = found.get(name)
            return self._config.get_int(f"group.{name}") if text is None else int(text)

        reset = found.get("share.auto.offset.reset", LATEST)
        return DeliverySettings(
            lock_ms=number("share.record.lock.duration.ms"),
            deliveries=number("share.delivery.count.limit"),
            locks=number("share.partition.max.record.locks"),
            reset=reset,
            reset_ms=back_ms(reset),
            renewing=found.get("share.renew.acknowledge.enable", "true").lower() == "true",
            committed=found.get("share.isolation.level") == READ_COMMITTED,
        )

    def origins(self, group_id: str, name: str) -> Iterator[Origin]:
        """Where the value of a setting of a group comes from, the one in force first."""
        text = self.of(group_id).get(name)
        if text is not None:
            yield Origin(name, text, _SOURCE_GROUP)
        setting = GROUP_SETTINGS[name]
        for synonym, _ in setting.synonyms:
            yield from self._config.origins(synonym)
        if setting.default is not None:
            yield Origin(name, setting.default, SOURCE_DEFAULT)

    def _check_stored(self, values: Mapping[str, str]) -> None:
        self._check(values, bounds=False)

    def _check(self, values: Mapping[str, str], *, bounds: bool = True) -> None:
        """Whether settings of a group are such, lie in the broker's bounds and go together."""
        numbers: dict[str, int] = {}
        for name, text in values.items():
            setting = GROUP_SETTINGS.get(name)
            if setting is None:
                raise InvalidConfigurationError(f"Unknown group config name: {name}")
            try:
                setting.parse(text)
            except ConfigError as error:
                raise InvalidConfigurationError(str(error)) from error
            if not setting.synonyms:
                continue
            numbers[name] = int(text)
            if not bounds:
                continue
            low, high = bounds_of(f"group.{name}")
            if low is not None and numbers[name] < self._config.get_int(low):
                raise InvalidConfigurationError(f"{name}={text} is less than {low}={self._config.get_int(low)}")
            if high is not None and numbers[name] > self._config.get_int(high):
                raise InvalidConfigurationError(f"{name}={text} is more than {high}={self._config.get_int(high)}")
        for kind in GROUP_TYPES_WITH_SETTINGS if bounds else ():
            longest, often = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
            if longest not in numbers and often not in numbers:
                continue
            session = numbers.get(longest, self._config.get_int(f"group.{longest}"))
            heartbeat = numbers.get(often, self._config.get_int(f"group.{often}"))
            if session <= heartbeat:
                raise InvalidConfigurationError(f"{longest}={session} has to be more than {often}={heartbeat}")
