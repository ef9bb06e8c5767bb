"""Variables in settings, `${provider:path:key}`, and the providers that know what they stand for (KIP-297, KIP-421).

So that passwords need not stand in a properties file: they come from the environment, from other files, or from
whatever a provider of the application's own asks. They may stand in the texts of a list, too. Where a setting is
refused, the error shows the variable and not what it stands for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from kclient.arguments import brief, shown
from kclient.config.properties import parse_properties
from kclient.errors import ConfigError

__all__ = ["ConfigProvider", "is_of_provider", "resolved"]

_PROVIDERS: Final = "config.providers"
_OF_PROVIDER = re.compile(r"config\.providers\.[^.]+\.(class|param\..+)")
_VARIABLE = re.compile(r"\$\{([^}:]*):(?:([^}:]*):)?([^}]*)\}")


@runtime_checkable
class ConfigProvider(Protocol):
    """Knows what variables stand for; a class of the application's own is given as `config.providers.NAME.class`.

    A class is called without arguments, or with the parameters (`config.providers.NAME.param.…`) as a mapping where
    there are some.
    """

    def get(self, path: str, keys: Iterable[str]) -> Mapping[str, str]:
        """The values of keys.

        Args:
            path: What stands between the provider's name and the key; empty where nothing does.
            keys: Which.

        Returns:
            Those that there are.

        Raises:
            Exception: They cannot be looked up; the client's `ConfigError` names it, and has it as its cause.
        """
        ...


class EnvironmentProvider:
    """`${env:NAME}`: variables of the environment; with the parameter `allowlist.pattern` only those that match it."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        parameters = dict(parameters)
        pattern = parameters.pop("allowlist.pattern", None)
        _check_no_others(parameters)
        try:
            self._allowed = None if pattern is None else re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"allowlist.pattern is not a regular expression: {error}") from None

    def get(self, path: str, keys: Iterable[str]) -> Mapping[str, str]:
        if path:
            raise ConfigError("variables of the environment have no path, as in ${env:NAME}")
        return {
            key: os.environ[key]
            for key in keys
            if key in os.environ and (self._allowed is None or self._allowed.fullmatch(key))
        }


class _Paths:
    """The folders and files that a provider may read (`allowed.paths`, with commas); all, if none are named."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        parameters = dict(parameters)
        allowed = parameters.pop("allowed.paths", "")
        _check_no_others(parameters)
        self._allowed = [Path(part.strip()).resolve() for part in allowed.split(",") if part.strip()]

    def check(self, path: str) -> Path:
        """A path that may be read. Raises `ConfigError` if it may not."""
        if not path:
            raise ConfigError("the path is missing, as in ${file:/run/secrets/kafka.properties:password}")
        try:
            found = Path(path).resolve()  # symbolic links lead nowhere else
        except (OSError, ValueError, RuntimeError) as error:  # too long; a zero byte; links that lead in a circle
            raise _unreadable(path, error) from None
        if self._allowed and not any(found == each or each in found.parents for each in self._allowed):
            raise ConfigError(f"{brief(path)} is not below what allowed.paths names")
        return found


class FileProvider:
    """`${file:PATH:KEY}`: the values of a properties file."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self._paths = _Paths(parameters)

    def get(self, path: str, keys: Iterable[str]) -> Mapping[str, str]:
        found = parse_properties(_read(self._paths.check(path), path))
        return {key: found[key] for key in keys if key in found}


class DirectoryProvider:
    """`${directory:PATH:FILE}`: the text of a file in a folder, as orchestrators mount secrets."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self._paths = _Paths(parameters)

    def get(self, path: str, keys: Iterable[str]) -> Mapping[str, str]:
        folder = self._paths.check(path)
        found = {}
        for key in keys:
            if not key or Path(key).name != key:
                raise ConfigError(f"{brief(key)} is not the name of a file")
            if _is_file(folder / key):
                found[key] = _read(self._paths.check(str(folder / key)), str(folder / key))
        return found


_BUILT_IN: Final[dict[str, Callable[[Mapping[str, str]], ConfigProvider]]] = {
    "env": EnvironmentProvider,
    "org.apache.kafka.common.config.provider.EnvVarConfigProvider": EnvironmentProvider,
    "file": FileProvider,
    "org.apache.kafka.common.config.provider.FileConfigProvider": FileProvider,
    "directory": DirectoryProvider,
    "org.apache.kafka.common.config.provider.DirectoryConfigProvider": DirectoryProvider,
}


def is_of_provider(name: str) -> bool:
    """Whether this is a setting of a provider: its class, or one of its parameters."""
    return _OF_PROVIDER.fullmatch(name) is not None


class Resolved(NamedTuple):
    """Settings with what their variables stand for.

    Attributes:
        values: The settings, without those of providers.
        written: Of those that had variables, how they were written, which may be shown.
        stands_for: By setting and variable, or text with variables, what that stands for, which may not.
    """

    values: dict[str, Any]
    written: dict[str, Any]
    stands_for: dict[str, dict[str, str]]


def resolved(given: Mapping[str, Any]) -> Resolved:
    """Settings with what their variables stand for.

    Args:
        given: The settings by Kafka's names, with those of providers among them.

    Raises:
        ConfigError: A provider is none, a variable's provider is not named, or does not know it.
    """
    values = {name: value for name, value in given.items() if name != _PROVIDERS and not is_of_provider(name)}
    names = _names(given.get(_PROVIDERS))
    own = {name for name in given if is_of_provider(name)}
    if strays := sorted(name for name in own if name.split(".")[2] not in names):
        raise ConfigError(f"{brief(strays[0])} is of a provider that {_PROVIDERS} does not name")
    if not names:
        return Resolved(values, {}, {})
    providers = {name: _provider(name, given) for name in names}
    written = {name: value for name, value in values.items() if any(map(_VARIABLE.search, _texts(value)))}
    stands_for: dict[str, dict[str, str]] = {name: {} for name in written}
    looked_up = {
        name: _looked_up(value, partial(_lookup, providers, name, stands_for[name])) for name, value in written.items()
    }
    for name, value in written.items():
        for text, found in zip(_texts(value), _texts(looked_up[name]), strict=True):
            stands_for[name] |= {text: found, **dict(zip(text.split(","), found.split(","), strict=False))}
    return Resolved({**values, **looked_up}, written, stands_for)


def without_values(error: ConfigError, stands_for: Mapping[str, Mapping[str, str]]) -> ConfigError:
    """An error that shows variables, and not what they stand for.

    Args:
        error: Why a setting was refused.
        stands_for: As in `Resolved`.
    """
    text = str(error)
    for name, values in stands_for.items():
        for variable, value in sorted(values.items(), key=lambda each: -len(each[1])) if name in text else ():
            if value.strip() and value != variable:
                told = variable.replace("\\", r"\\")
                for form in (value, value.strip(), shown(value), brief(value)):
                    text = re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", told, text)
    return error if text == str(error) else type(error)(text)


def _texts(value: Any) -> list[str]:
    """A text, or those of a list."""
    return [each for each in (value if isinstance(value, list | tuple) else [value]) if isinstance(each, str)]


def _looked_up(value: Any, lookup: Callable[[re.Match[str]], str]) -> Any:
    """A text with what its variables stand for, or a list of texts."""
    if isinstance(value, list | tuple):
        return [_looked_up(each, lookup) if isinstance(each, str) else each for each in value]
    return _VARIABLE.sub(lookup, value)


def _names(value: Any) -> list[str]:
    if value is None:
        return []
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ConfigError(f"{_PROVIDERS} = {shown(value)}: expected a list of names, or text with commas")
    return [part.strip() for part in parts if part.strip()]


def _provider(name: str, given: Mapping[str, Any]) -> ConfigProvider:
    start, told = f"{_PROVIDERS}.{name}.", f"{_PROVIDERS}.{brief(name)}."
    kind = given.get(f"{start}class", name)
    parameters = {key[len(start) + 6 :]: value for key, value in given.items() if key.startswith(f"{start}param.")}
    if isinstance(kind, str):
        if kind not in _BUILT_IN:
            short = ", ".join(each for each in _BUILT_IN if "." not in each)
            raise ConfigError(
                f"{told}class = {shown(kind)}: expected a ConfigProvider or its class, or one of {short} (or the Java "
                "class)"
            )
        try:
            return _BUILT_IN[kind]({key: str(value) for key, value in parameters.items()})
        except ConfigError as error:
            raise ConfigError(f"{told}param.{error}") from None
    made = kind
    if isinstance(kind, type):
        try:
            made = kind(parameters) if parameters else kind()
        except Exception as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{told}class: {kind.__name__} could not be made: {_raised(error)}") from error
    if not isinstance(made, ConfigProvider):
        raise ConfigError(f"{told}class: expected a ConfigProvider, which has a method get; got {shown(made)}")
    return made


def _lookup(
    providers: Mapping[str, ConfigProvider], setting: str, stands_for: dict[str, str], found: re.Match[str]
) -> str:
    name, path, key = found[1], found[2] or "", found[3]
    start = f"{setting}: the variable {brief(found[0])}"
    if name not in providers:
        raise ConfigError(
            f"{start} is of a provider that {_PROVIDERS} does not name: it names {brief(', '.join(providers))}"
        )
    try:
        values = providers[name].get(path, [key])
        if not isinstance(values, Mapping):
            raise ConfigError(f"its provider gave no mapping, but a {type(values).__name__}")
        value = values.get(key)
    except ConfigError as error:
        raise ConfigError(f"{start} cannot be looked up: {error}") from error
    except Exception as error:
        raise ConfigError(f"{start} cannot be looked up: {_raised(error)}") from error
    if value is None:
        raise ConfigError(f"{start} is not there")
    if not isinstance(value, str):
        raise ConfigError(f"{start} is text, and its provider gave a value of type {type(value).__name__}")
    stands_for[found[0]] = value
    return value


def _check_no_others(parameters: Mapping[str, str]) -> None:
    if parameters:
        raise ConfigError(f"{brief(sorted(parameters)[0])} is not a parameter of this provider")


def _read(path: Path, given: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise _unreadable(given, error) from None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # no file has such a name
        return False


def _unreadable(given: str, error: Exception) -> ConfigError:
    reason = getattr(error, "strerror", None) or error
    return ConfigError(f"{brief(given)} cannot be read: {brief(str(reason))}")


def _raised(error: Exception) -> str:
    """What a provider of the application's own has raised; its text, which may hold secrets, is in the cause alone."""
    return f"{type(error).__name__} was raised, which the traceback shows"
