"""The subscriptions to metrics of clients: configuration resources of the type CLIENT_METRICS (KIP-714)."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from kclient.errors import ConfigError, InvalidConfigurationError, InvalidRequestError
from kclient.gateway.config import SOURCE_DEFAULT, Origin
from kclient.gateway.named_settings import NamedSettings
from kclient.gateway.rows.keys import CLIENT_METRICS
from kclient.gateway.setting import SettingType, as_list
from kclient.gateway.settings_of_telemetry import CLIENT_METRICS_SETTINGS, DEFAULT_INTERVAL_MS
from kclient.gateway.telemetry.java_order import java_order, java_order_in_steps
from kclient.gateway.telemetry.matching import SHORT, ClientPattern, matches, patterns_or_error, read_patterns

if TYPE_CHECKING:
    from kclient.gateway.ownership import HeldLease
    from kclient.gateway.shields import Shields
    from kclient.gateway.workers import Workers
    from kclient.htp.port import Manager
    from kclient.memory_ledger import LimitedAccount

_SOURCE_CLIENT_METRICS: Final = 7
"""What DescribeConfigs calls a setting of a subscription (`ConfigEntry.ConfigSource`)."""
ALL: Final = "*"
"""In place of beginnings of names: all metrics."""
_SHORTEST_MS, _LONGEST_MS = 100, 3_600_000
_REMEMBERED: Final = 65_536
"""Names of subscriptions, and of the metrics that they want together, that are remembered."""
_TEXT: Final = 100
"""About how many bytes of memory a text of a list takes, beside its characters."""
_AT_ONCE: Final = 64
"""Subscriptions that are looked at before others may have their turn, where nothing has to match."""
_PATTERN: Final = 16
"""A pattern takes as long as so many of them."""


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
        workers: Threads in which long patterns are read.
    """

    def __init__(
        self, manager: Manager, lease: HeldLease, shields: Shields, memory: LimitedAccount, workers: Workers
    ) -> None:
        super().__init__(CLIENT_METRICS, "subscription", manager, lease, shields, memory)
        self._workers = workers
        self.version: int = 0
        """Grows with each change: what is wanted of a client may be something else then."""
        self._subscriptions: dict[str, _Subscription] = {}
        self._wanted: dict[tuple[str, ...], WantedMetrics] = {}
        """By the names of the subscriptions that are about a client."""
        self._remembered = 0
        self.on_change(self._changed)

    async def _prepare(self, values: Mapping[str, str]) -> None:
        items = as_list(values.get("match", ""))
        if sum(map(len, items)) > SHORT:
            await self._workers.run(partial(patterns_or_error, items)).wait()

    def _size(self, name: str, values: Mapping[str, str]) -> int:
        patterns = read_patterns(as_list(values.get("match", "")))
        texts = _TEXT * sum(text.count(",") for text in values.values())
        return super()._size(name, values) + texts + sum(each.size for each in patterns.values())

    def _changed(self, name: str) -> None:
        self.version += 1
        self._forget()
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
        """What is wanted of a client, in steps: as the subscriptions are at its beginning.

        Whoever is told looks at `version` again the next time: it may have grown meanwhile.

        Args:
            values: What `match` looks at, by attribute; None for what is not known.
        """
        version, chosen, work = self.version, {}, 0
        for name, subscription in list(self._subscriptions.items()):
            if (yield from matches(subscription.patterns, values)):
                chosen[name] = subscription
            work += 1 + _PATTERN * len(subscription.patterns)
            if work >= _AT_ONCE:
                work = 0
                yield
        return (yield from self._together(chosen, version))

    def _together(self, chosen: Mapping[str, _Subscription], version: int) -> Generator[None, None, WantedMetrics]:
        names = tuple(chosen)
        known = self._wanted.get(names)
        if known is not None and known.version == version:
            return known
        ordered = yield from java_order_in_steps(names)
        if any(ALL in each.metrics for each in chosen.values()):
            metrics: tuple[str, ...] = (ALL,)
        else:
            union = (metric for name in ordered for metric in chosen[name].metrics)
            metrics = tuple((yield from java_order_in_steps(union)))
        interval_ms = min([DEFAULT_INTERVAL_MS, *(each.interval_ms for each in chosen.values())])
        wanted = WantedMetrics(metrics, interval_ms, version)
        if version == self.version:
            size = len(names) + len(metrics)
            if self._remembered + size > _REMEMBERED:
                self._forget()
            self._remembered += size
            self._wanted[names] = wanted
        return wanted

    def _forget(self) -> None:
        self._wanted.clear()
        self._remembered = 0

    def origins(self, name: str, setting: str) -> Iterator[Origin]:
        """Where the value of a setting of a subscription comes from, the one in force first; defaults come last."""
        text = self.of(name).get(setting)
        known = CLIENT_METRICS_SETTINGS[setting]
        if text is not None:
            told = ",".join(dict.fromkeys(as_list(text))) if known.type is SettingType.LIST else text.strip()
            yield Origin(setting, told, _SOURCE_CLIENT_METRICS)
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
