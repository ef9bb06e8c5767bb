"""The subscriptions to metrics of clients: configuration resources of the type CLIENT_METRICS (KIP-714)."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from kclient.errors import ConfigError, InvalidConfigurationError, InvalidRequestError
from kclient.gateway.config import SOURCE_DEFAULT, Origin
from kclient.gateway.named_settings import NamedSettings
from kclient.gateway.rows.keys import CLIENT_METRICS
from kclient.gateway.setting import SettingType, as_list
from kclient.gateway.settings_of_telemetry import CLIENT_METRICS_SETTINGS, DEFAULT_INTERVAL_MS
from kclient.gateway.telemetry.java_order import java_order
from kclient.gateway.telemetry.matching import ClientPattern, matches, read_patterns

if TYPE_CHECKING:
    from kclient.gateway.ownership import HeldLease
    from kclient.gateway.shields import Shields
    from kclient.htp.port import Manager
    from kclient.memory_ledger import LimitedAccount

SOURCE_CLIENT_METRICS: Final = 7
"""What DescribeConfigs calls a setting of a subscription (`ConfigEntry.ConfigSource`)."""
ALL: Final = "*"
"""In place of beginnings of names: all metrics."""
_SHORTEST_MS, _LONGEST_MS = 100, 3_600_000
_REMEMBERED: Final = 1_024


class WantedMetrics(NamedTuple):
    """What the subscriptions want of a client."""

    metrics: tuple[str, ...]
    """Beginnings of names, in the order in which Kafka has them; `*` alone for all, none if nothing is wanted."""
    interval_ms: int
    version: int
    """Of the subscriptions; see `ClientMetricsConfigs.version`."""


class _Subscription(NamedTuple):
    metrics: tuple[str, ...]
    interval_ms: int
    patterns: Mapping[str, ClientPattern]


class ClientMetricsConfigs(NamedSettings):
    """The subscriptions, by name.

    Args:
        manager: Keeps them.
        lease: Under which they are kept.
        shields: Keep a change from being left half done.
        memory: Where they count.
    """

    def __init__(self, manager: Manager, lease: HeldLease, shields: Shields, memory: LimitedAccount) -> None:
        super().__init__(CLIENT_METRICS, "subscription", manager, lease, shields, memory)
        self.version: int = 0
        """Grows with each change: what is wanted of a client may be something else then."""
        self._subscriptions: dict[str, _Subscription] = {}
        self._wanted: dict[tuple[str, ...], WantedMetrics] = {}
        """By the names of the subscriptions that are about a client."""
        self.on_change(self._changed)

    def _size(self, name: str, values: Mapping[str, str]) -> int:
        patterns = read_patterns(as_list(values.get("match", "")))
        return super()._size(name, values) + sum(each.size for each in patterns.values())

    def _changed(self, name: str) -> None:
        self.version += 1
        self._wanted.clear()
        values = self.of(name)
        if not values:
            self._subscriptions.pop(name, None)
            return
        metrics = as_list(values.get("metrics", ""))
        self._subscriptions[name] = _Subscription(
            tuple(java_order(metrics, len(metrics))),
            int(values.get("interval.ms", DEFAULT_INTERVAL_MS)),
            read_patterns(as_list(values.get("match", ""))),
        )

    def wanted(self, values: Mapping[str, str | None]) -> Generator[None, None, WantedMetrics]:
        """What is wanted of a client, in steps.

        Args:
            values: What `match` looks at, by attribute; None for what is not known.
        """
        while True:
            version, found = self.version, []
            for name, subscription in list(self._subscriptions.items()):
                if (yield from matches(subscription.patterns, values)):
                    found.append(name)
            if version == self.version:
                return self._together(tuple(found))

    def _together(self, names: tuple[str, ...]) -> WantedMetrics:
        known = self._wanted.get(names)
        if known is not None:
            return known
        chosen = [self._subscriptions[name] for name in java_order(names)]
        union = [metric for each in chosen for metric in each.metrics]
        metrics = (ALL,) if ALL in union else tuple(java_order(union))
        interval_ms = min([DEFAULT_INTERVAL_MS, *(each.interval_ms for each in chosen)])
        if len(self._wanted) >= _REMEMBERED:
            self._wanted.clear()
        wanted = self._wanted[names] = WantedMetrics(metrics, interval_ms, self.version)
        return wanted

    def origins(self, name: str, setting: str) -> Iterator[Origin]:
        """Where the value of a setting of a subscription comes from, the one in force first; defaults come last."""
        text = self.of(name).get(setting)
        known = CLIENT_METRICS_SETTINGS[setting]
        if text is not None:
            told = ",".join(dict.fromkeys(as_list(text))) if known.type is SettingType.LIST else text.strip()
            yield Origin(setting, told, SOURCE_CLIENT_METRICS)
        else:  # as Kafka, which tells no default beside a value
            yield Origin(setting, known.default, SOURCE_DEFAULT)

    def _check(self, values: Mapping[str, str]) -> None:
        for name, text in values.items():
            setting = CLIENT_METRICS_SETTINGS.get(name)
            if setting is None:
                raise InvalidRequestError(f"Unknown client metrics configuration: {name}")
            try:
                parsed = setting.parse(text)
            except ConfigError as error:
                raise InvalidConfigurationError(str(error)) from error
            if isinstance(parsed, int) and not _SHORTEST_MS <= parsed <= _LONGEST_MS:
                raise InvalidRequestError(
                    f"Invalid value {text} for {name}, interval must be between 100 and 3600000 (1 hour)"
                )
            if isinstance(parsed, tuple) and text.strip() and len(parsed) <= text.count(","):
                raise InvalidConfigurationError(f"Configuration '{name}' values must not be empty.")
        read_patterns(as_list(values.get("match", "")))
