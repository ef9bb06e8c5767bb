"""The configuration of a gateway and of its topics, resolved from what was set over Kafka's defaults."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from kclient.arguments import shown
from kclient.config.providers import resolved, without_values
from kclient.config.secret import Secret
from kclient.config.setting import Password
from kclient.errors import ConfigError
from kclient.gateway.setting import LONG_MAX, BrokerSetting, SettingType, Value, did_you_mean, secret_of_listener
from kclient.gateway.settings import BROKER_SETTINGS
from kclient.gateway.settings_of_brokers import ONLY_INSIDE, PLUGINS, REFUSED, WITHOUT_EFFECT, is_of_plugin
from kclient.gateway.settings_of_groups import GROUP_SETTINGS, GROUP_TYPES_WITH_SETTINGS, bounds_of
from kclient.gateway.settings_of_topics import TOPIC_SETTINGS
from kclient.gateway.settings_told import HTP_MAPPING, HTP_MIRROR
from kclient.net.memory_budget import most_of_one

logger: logging.Logger = logging.getLogger("kclient.gateway.config")

_MOST_TOLD: Final = 20
"""Unknown names that are told, with what each may have meant."""

T = TypeVar("T")

Live: TypeAlias = Callable[[], T]
"""A setting that may change while the gateway runs, as the part gets it that obeys it: called, it tells the present
value. What only a restart changes is given as a value."""

# The sources of a value, numbered as DescribeConfigs numbers them (`DescribeConfigsResponse.ConfigSource`).
_SOURCE_TOPIC: Final = 1
SOURCE_DYNAMIC_BROKER: Final = 2
SOURCE_DYNAMIC_DEFAULT_BROKER: Final = 3
SOURCE_STATIC_BROKER: Final = 4
SOURCE_DEFAULT: Final = 5


class Origin(NamedTuple):
    """One of the places a value may come from: the setting's name there, its text, and the source's number."""

    name: str
    text: str | None
    source: int


class SettingOrigins(Protocol):
    """Tells where the values of settings come from."""

    def origins(self, name: str) -> Iterator[Origin]:
        """Where a broker setting's value comes from, the one in force first."""
        ...

    def topic_origins(self, name: str, overrides: Mapping[str, str]) -> Iterator[Origin]:
        """Where a topic setting's value comes from, the one in force first, in the topic's unit."""
        ...


class BrokerConfig:
    """The broker settings of one gateway: what was given at its start, then what AlterConfigs changed."""

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        self._static: dict[str, str] = {}
        self.of_listeners: dict[str, Secret] = {}
        """Settings of single listeners (`listener.name.`), by their whole names; some are passwords."""
        self.secrets: dict[str, Secret] = {}
        """Those that are passwords or keys."""
        self._without_effect: dict[str, str] = {}
        """What was given and changes nothing, and why."""
        self._unknown: list[str] = []
        self._allotted = False
        """Whether its number was not given."""
        self._dynamic: dict[str, str] = {}
        self._values: dict[str, Value] = {}
        if given is not None and not isinstance(given, Mapping):
            raise ConfigError(f"broker settings are a mapping from their names, not {shown(given)}")
        for name in given or {}:
            if not isinstance(name, str):
                raise ConfigError(f"the name of a broker setting is text, not {shown(name)}")
        found = resolved(given or {})
        try:
            for name, value in found.values.items():
                self._take(name, value)
        except ConfigError as error:
            raise without_values(error, found.stands_for) from None
        if self._unknown:
            raise ConfigError(_of_unknown(self._unknown))
        self._defaults: dict[str, str] = {}
        """Defaults that depend on what was given."""
        self._resolve()
        self._limit_requests()
        self._check_session_timeouts()
        self._check_groups()
        self._check_topics()

    def _limit_requests(self) -> None:
        """No request may be larger than what one connection may hold: only the default gives way."""
        name, memory = "socket.request.max.bytes", "connections.max.memory.bytes"
        longest, total = self.get_int(name), self.get_int(memory)
        most = most_of_one(total)
        if longest <= most:
            return
        if name in self._static:
            raise ConfigError(
                f"{name}={longest} is more than one connection may hold, {most} bytes, a quarter of "
                f"{memory}={total}: set {name} to {most} or less, or {memory} to {4 * longest} or more"
            )
        self._defaults[name] = str(most)
        self._resolve()

    def _check_session_timeouts(self) -> None:
        least, most = "group.min.session.timeout.ms", "group.max.session.timeout.ms"
        if self.get_int(least) > self.get_int(most):
            raise ConfigError(
                f"{least}={self.get_int(least)} is more than {most}={self.get_int(most)}: nobody could join a group"
            )

    def _check_groups(self) -> None:
        """As on Kafka the settings for groups of a type lie in the bounds of those of single groups."""
        for setting in GROUP_SETTINGS.values():
            for name, _ in setting.synonyms:
                value, (low, high) = self.get_int(name), bounds_of(name)
                if low is not None and value < self.get_int(low):
                    raise ConfigError(f"{name}={value} is less than {low}={self.get_int(low)}: set that, too")
                if high is not None and value > self.get_int(high):
                    raise ConfigError(f"{name}={value} is more than {high}={self.get_int(high)}: set that, too")
        for kind in GROUP_TYPES_WITH_SETTINGS:
            heartbeat, session = f"group.{kind}.heartbeat.interval.ms", f"group.{kind}.session.timeout.ms"
            if self.get_int(heartbeat) >= self.get_int(session):
                raise ConfigError(
                    f"{heartbeat}={self.get_int(heartbeat)} has to be less than {session}={self.get_int(session)}: "
                    "members would be removed that are there"
                )

    def _check_topics(self) -> None:
        """No topic may be without settings because of the broker's."""
        for name, setting in TOPIC_SETTINGS.items():
            for origin in self.topic_origins(name, {}):
                try:
                    setting.parse(origin.text)
                except ConfigError as error:
                    raise ConfigError(f"{origin.name} makes no value of the topics' {name}: {error}") from error

    def _default(self, setting: BrokerSetting) -> str | None:
        return self._defaults.get(setting.name, setting.default)

    def given(self, name: str) -> str | None:
        """What was given for a setting at the start; None if nothing was."""
        return self._static.get(name)

    def _take(self, name: str, value: Any) -> None:
        if name.startswith("listener.name."):
            self.of_listeners[name] = secret_of_listener(value)
            return
        if name not in BROKER_SETTINGS and "_" in name:
            name = name.replace("_", ".")
        if name in REFUSED:
            refusal = REFUSED[name]
            if not refusal.harmless(_as_text(value) or ""):
                raise ConfigError(f"the broker setting {name} is not taken here: {refusal.reason}")
            return
        setting = BROKER_SETTINGS.get(name)
        if setting is None:
            if name in WITHOUT_EFFECT:
                self._without_effect[name] = WITHOUT_EFFECT[name]
            elif is_of_plugin(name):
                self._without_effect[name] = PLUGINS
            else:
                self._unknown.append(name)
            return
        if isinstance(setting.kind, Password):
            self._take_secret(name, setting.kind, value)
            return
        text = _as_text(value)
        setting.parse(text)
        if text is not None:
            self._static[name] = text
            if name == "broker.id" and text != "-1":  # its name before KRaft
                self._static.setdefault("node.id", text)

    def has_no_effect(self, name: str, reason: str) -> None:
        """A setting was given, as of one listener, that changes nothing, for this reason."""
        self._without_effect[name] = reason

    def tell_without_effect(self) -> None:
        """Tell the log of what was given and changes nothing: in a line for each level, reasons with the names."""
        for level, reasons in ((logging.WARNING, False), (logging.INFO, True)):
            told: dict[str, list[str]] = {}
            for name, reason in self._without_effect.items():
                if (reason in ONLY_INSIDE) is reasons:
                    told.setdefault(reason, []).append(name)
            if told:
                text = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in told.items())
                logger.log(level, "broker settings without effect on a gateway: %s", text)

    def _take_secret(self, name: str, kind: Password, value: Any) -> None:
        """Keep it apart from what is shown; no error shows it either."""
        if value is None:
            return
        try:
            self.secrets[name] = kind.parse(value)
        except ValueError:
            raise ConfigError(f"the broker setting {name} is text, or a kclient Secret") from None

    def _resolve(self) -> None:
        for name, setting in BROKER_SETTINGS.items():
            self._values[name] = setting.parse(self._dynamic.get(name, self._static.get(name, self._default(setting))))

    def allotted(self, node_id: int) -> None:
        """The gateway has got this number, because none was given."""
        self._allotted = True
        self._static["node.id"] = str(node_id)
        self._resolve()

    @property
    def dynamic(self) -> Mapping[str, str]:
        """What AlterConfigs has set, by name."""
        return self._dynamic

    def set_dynamic(self, values: Mapping[str, str]) -> None:
        """Replace what AlterConfigs has set; the values were checked before."""
        self._dynamic = dict(values)
        self._resolve()

    def differences(self, other: BrokerConfig) -> list[str]:
        """The names of settings for which something else was given there, passwords and those of listeners too."""
        mine, theirs = self._all_given(), other._all_given()
        return sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))

    def _all_given(self) -> dict[str, str]:
        secrets = {**self.secrets, **self.of_listeners}
        found = {**self._static, **{name: secret.reveal() for name, secret in secrets.items()}}
        if self._allotted:
            found["node.id"] = "-1"
        return found

    def given_anew(self, values: Mapping[str, str | None]) -> BrokerConfig:
        """The settings as they would be if these had been given at the start; None for what had not.

        Raises:
            ConfigError: They do not go together.
        """
        other = copy(self)
        other._values = dict(self._values)
        other._static = dict(self._static)
        other.take_given(values)
        other._check_session_timeouts()
        other._check_groups()
        other._check_topics()
        return other

    def take_given(self, values: Mapping[str, str | None]) -> None:
        """Have these given in place of what was given at the start; they were checked before."""
        for name, text in values.items():
            if text is None:
                self._static.pop(name, None)
            else:
                self._static[name] = text
        self._resolve()

    def altered(self, values: Mapping[str, str]) -> BrokerConfig:
        """The settings as they would be if AlterConfigs had set these, each of which was checked before.

        Raises:
            ConfigError: They do not go together.
        """
        other = copy(self)
        other._values = dict(self._values)
        other.set_dynamic(values)
        other._check_session_timeouts()
        other._check_groups()
        other._check_topics()
        return other

    def get(self, name: str) -> Value:
        """The value of a broker setting, typed; KeyError for a name that is none."""
        return self._values[name]

    def get_int(self, name: str) -> int:
        """The value of an integer setting."""
        value = self._values[name]
        assert isinstance(value, int)
        return value

    def get_text(self, name: str) -> str:
        """The value of a setting that is text."""
        value = self._values[name]
        assert isinstance(value, str)
        return value

    def get_list(self, name: str) -> tuple[str, ...]:
        """The value of a setting that is a list."""
        value = self._values[name]
        assert isinstance(value, tuple)
        return value

    def get_bool(self, name: str) -> bool:
        """The value of a boolean setting."""
        return bool(self._values[name])

    def live_int(self, name: str) -> Live[int]:
        """An integer setting, for a part that obeys it as it is at the time."""
        self.get_int(name)
        return partial(self.get_int, name)

    def get_float(self, name: str) -> float:
        """The value of a setting that is a number with a fraction."""
        value = self._values[name]
        assert isinstance(value, float)
        return value

    def live_float(self, name: str) -> Live[float]:
        """A setting with a fraction, for a part that obeys it as it is at the time."""
        self.get_float(name)
        return partial(self.get_float, name)

    def live_bool(self, name: str) -> Live[bool]:
        """A boolean setting, for a part that obeys it as it is at the time."""
        self.get_bool(name)
        return partial(self.get_bool, name)

    def origins(self, name: str) -> Iterator[Origin]:
        """Where a broker setting's value comes from, the one in force first."""
        if name in self._dynamic:
            yield Origin(name, self._dynamic[name], SOURCE_DYNAMIC_BROKER)
        if name in self._static:
            yield Origin(name, self._static[name], SOURCE_STATIC_BROKER)
        elif name in self.secrets:  # that there is one is no secret
            yield Origin(name, None, SOURCE_STATIC_BROKER)
        default = self._default(BROKER_SETTINGS[name])
        if default is not None:
            yield Origin(name, default, SOURCE_DEFAULT)

    def topic_origins(self, name: str, overrides: Mapping[str, str]) -> Iterator[Origin]:
        """Where a topic setting's value comes from, the one in force first, in the topic's unit."""
        setting = TOPIC_SETTINGS[name]
        if name in overrides:
            yield Origin(name, overrides[name], _SOURCE_TOPIC)
        for synonym, factor in setting.synonyms:
            for origin in self.origins(synonym):
                yield Origin(synonym, setting.from_synonym(origin.text, factor), origin.source)
        if not setting.synonyms:
            yield Origin(name, setting.default, SOURCE_DEFAULT)

    def topic_value(self, name: str, overrides: Mapping[str, str]) -> Value:
        """The value of a topic setting under a topic's own overrides."""
        for origin in self.topic_origins(name, overrides):
            return TOPIC_SETTINGS[name].parse(origin.text)
        return TOPIC_SETTINGS[name].parse(TOPIC_SETTINGS[name].default)


def _of_unknown(names: Sequence[str]) -> str:
    """What is told of names that nobody knows: of many, as where it is the wrong file, only the first."""
    known = (*BROKER_SETTINGS, *WITHOUT_EFFECT, *REFUSED)
    told = [f"unknown broker setting {shown(name)}{did_you_mean(name, known)}" for name in names[:_MOST_TOLD]]
    if len(names) > _MOST_TOLD:
        told.append(f"and {len(names) - _MOST_TOLD} more that are unknown")
    return "; ".join(told)


def _as_text(value: Any) -> str | None:
    """A Python value as the text of a setting: booleans in lower case, sequences joined by commas."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    return str(value)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic's settings in force, as the append, fetch and retention paths read them."""

    max_message_bytes: int = 1048588
    max_decompressed_bytes: int = 256 << 20
    log_append_time: bool = False
    timestamp_before_max_ms: int = LONG_MAX
    timestamp_after_max_ms: int = 3_600_000
    compression_type: str = "producer"
    compression_level: int | None = None
    retention_ms: int = 604_800_000
    retention_bytes: int = -1
    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    deletes: bool = True
    compacts: bool = False
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    delete_retention_ms: int = 86_400_000
    mirrored: bool = False
    """Whether the topic follows one of another cluster, its log start too, and takes records from there only."""

    @classmethod
    def resolve(cls, broker: BrokerConfig, overrides: Mapping[str, str]) -> TopicConfig:
        """The settings in force of a topic with these overrides."""

        def value(name: str) -> Any:
            return broker.topic_value(name, overrides)

        codec = value("compression.type")
        policy = value("cleanup.policy")
        return cls(
            max_message_bytes=value("max.message.bytes"),
            max_decompressed_bytes=broker.get_int("message.max.decompressed.bytes"),
            log_append_time=value("message.timestamp.type") == "LogAppendTime",
            timestamp_before_max_ms=value("message.timestamp.before.max.ms"),
            timestamp_after_max_ms=value("message.timestamp.after.max.ms"),
            compression_type=codec,
            compression_level=value(f"compression.{codec}.level") if codec in ("gzip", "lz4", "zstd") else None,
            retention_ms=value("retention.ms"),
            retention_bytes=value("retention.bytes"),
            segment_bytes=value("segment.bytes"),
            segment_ms=value("segment.ms"),
            deletes="delete" in policy,
            compacts="compact" in policy,
            min_cleanable_dirty_ratio=value("min.cleanable.dirty.ratio"),
            min_compaction_lag_ms=value("min.compaction.lag.ms"),
            max_compaction_lag_ms=value("max.compaction.lag.ms"),
            delete_retention_ms=value("delete.retention.ms"),
        )


def check_topic_overrides(overrides: Mapping[str, str | None]) -> dict[str, str]:
    """The overrides of a topic as given, checked; `ConfigError` names the first that is wrong."""
    checked: dict[str, str] = {}
    for name, text in overrides.items():
        setting = TOPIC_SETTINGS.get(name)
        if name == HTP_MAPPING.name:
            raise ConfigError(f"{name} cannot be set: new topics get it from the gateway's option mapping (--mapping)")
        if name == HTP_MIRROR.name:
            raise ConfigError(f"{name} cannot be set: kclient migrate makes mirrors, and takes them over")
        if setting is None:
            raise ConfigError(f"Unknown topic config name: {name}{did_you_mean(name, TOPIC_SETTINGS)}")
        if text is None:
            raise ConfigError(f"Null value not supported for topic configs: {name}")
        setting.parse(text)
        checked[name] = text
    return checked


def is_list(setting: BrokerSetting) -> bool:
    """Whether values may be appended to and subtracted from (IncrementalAlterConfigs)."""
    return setting.type is SettingType.LIST
