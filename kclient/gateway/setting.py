"""What a setting of the gateway or of its topics is: a name, a kind, a default, and what stands in for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

from kclient.config.nearest import nearest
from kclient.config.secret import Secret
from kclient.config.setting import Boolean, Decimal, Kind, List, Number, Password
from kclient.errors import ConfigError

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1

_STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
ACLS: Final = "acls"
"""The same, as gateways call it."""

Value = bool | int | float | str | tuple[str, ...] | None


class SettingType(IntEnum):
    """The types of settings, numbered as DescribeConfigs numbers them (`ConfigEntry.ConfigType`)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


_TYPES: Final[Mapping[type[Kind], SettingType]] = {
    Boolean: SettingType.BOOLEAN,
    Decimal: SettingType.DOUBLE,
    List: SettingType.LIST,
    Password: SettingType.PASSWORD,
}


@dataclass(frozen=True, slots=True)
class BrokerSetting:
    """A setting of the gateway or of its topics, kept as text: its kind, its default, and what it falls back on."""

    name: str
    kind: Kind
    default: str | None
    doc: str
    synonyms: tuple[tuple[str, int], ...] = ()
    """Broker settings that stand in, in order, each with the factor to this setting's unit."""
    below: int | None = None
    """What everything below it stands for in those broker settings: `log.retention.hours=-5` is -1, for ever."""

    @property
    def type(self) -> SettingType:
        """The type that DescribeConfigs tells."""
        if isinstance(self.kind, Number):
            return SettingType.LONG if self.kind.high > INT_MAX else SettingType.INT
        return _TYPES.get(type(self.kind), SettingType.STRING)

    def parse(self, text: str | None) -> Value:
        """The value of `text`; `ConfigError` when it is not a value of this setting."""
        if text is None:
            return None
        try:
            value: Value = self.kind.parse(text)
        except ValueError as error:
            raise ConfigError(f"Invalid value {text!r} for configuration {self.name}: expected {error}") from None
        return value

    def from_synonym(self, text: str | None, factor: int) -> str | None:
        """The text of a broker setting that stands in for this one, in this one's unit."""
        if text is None or (factor == 1 and self.below is None):
            return text
        value = int(text) * factor
        return str(value if self.below is None else max(value, self.below))


@dataclass(frozen=True)
class RetentionTime(Number):
    """A time that records are kept for; below 0 for ever. As in Kafka 0 is none: it would delete everything."""

    @property
    def text(self) -> str:
        return "whole number other than 0"

    def parse(self, value: Any) -> int:
        number = super().parse(value)
        if not number:
            raise ValueError(self.text)
        return number


@dataclass(frozen=True)
class GzipLevel(Number):
    """A level of gzip, or -1 for its default."""

    low: int = -1
    high: int = 9

    @property
    def text(self) -> str:
        return "1 to 9, or -1"

    def parse(self, value: Any) -> int:
        number = super().parse(value)
        if not number:
            raise ValueError(self.text)
        return number


@dataclass(frozen=True)
class AuthorizerClass(Kind):
    """Who decides what clients may do: nobody, or access control lists, by either of their names."""

    @property
    def text(self) -> str:
        return f"`{ACLS}`, `{_STANDARD_AUTHORIZER}`, or nothing"

    def parse(self, value: Any) -> str:
        if value.strip() not in ("", ACLS, _STANDARD_AUTHORIZER):
            raise ValueError(f"{self.text}: gateways load no classes of Java's")
        return str(value).strip()


@dataclass(frozen=True)
class Principals(Kind):
    """Principals with semicolons between them: `User:admin;User:CN=a,OU=b`."""

    @property
    def text(self) -> str:
        return "principals with semicolons between them, as User:admin"

    def parse(self, value: Any) -> str:
        for each in filter(None, map(str.strip, value.split(";"))):
            kind, colon, _ = each.partition(":")
            if not (kind and colon):
                raise ValueError(self.text)
        return str(value)


@dataclass(frozen=True)
class HostLimits(Kind):
    """Numbers for some hosts: `host:count,127.0.0.1:count`."""

    @property
    def text(self) -> str:
        return "list of host:count"

    def parse(self, value: Any) -> str:
        try:
            connection_overrides(value)
        except ValueError:
            raise ValueError(self.text) from None
        return str(value)


def as_list(text: str) -> tuple[str, ...]:
    """The items of a list, without blanks around them."""
    return List().parse(text)


def connection_overrides(text: str) -> dict[str, int]:
    """The hosts of `max.connections.per.ip.overrides` and their limits. Raises `ValueError`."""
    found = {}
    for item in as_list(text):
        host, colon, most = item.rpartition(":")
        if not (host and colon):
            raise ValueError(item)
        found[host.strip().strip("[]")] = Number(0).parse(most)
    return found


def secret_of_listener(value: object) -> Secret:
    """The value of a setting of a listener as it is kept. Raises `ConfigError`, which does not show it."""
    if isinstance(value, Secret):
        return value
    if isinstance(value, Path):
        return Secret(str(value))
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return Secret(",".join(value))
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise ConfigError("settings of listeners are text, numbers or paths")
    return Secret(str(value))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error message that suggests the setting most like `name`; empty without one."""
    close = nearest(name, tuple(known))
    return f"; did you mean {close}?" if close else ""


def settings_by_name(*settings: BrokerSetting) -> dict[str, BrokerSetting]:
    """A table of settings."""
    return {setting.name: setting for setting in settings}
