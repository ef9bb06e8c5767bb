"""Which clients a subscription to metrics is about."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from functools import lru_cache
from typing import Final

from kclient.errors import ConfigError, InvalidConfigurationError, InvalidRegularExpressionError
from kclient.gateway.patterns import LinearPattern
from kclient.gateway.security.java_patterns import IGNORES_CASE, java_pattern, like_java, linear_text

ATTRIBUTES: Final = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
"""What of a client can be looked at."""
LONGEST: Final = 4_096
"""Characters that the setting `match` may have: to read so many takes some 30 ms at worst."""
SHORT: Final = 200
"""So many take no more than a millisecond or two."""
_STATE: Final = 600
"""About how many bytes of memory a state of a pattern takes, with what is remembered of texts that were matched."""


class ClientPattern:
    """A regular expression of Java that has to match the whole of a value, in time that is linear in it.

    Args:
        text: The pattern.

    Raises:
        ConfigError: It is none, or has what cannot be matched in such time (references to groups, looking around).
    """

    def __init__(self, text: str) -> None:
        java_pattern(text)
        self._folds = text.startswith(IGNORES_CASE)
        try:
            self._pattern = LinearPattern(linear_text(text))
        except InvalidRegularExpressionError as error:
            raise ConfigError(f"the pattern {text[:100]!r} cannot be matched in linear time: {error}") from error

    @property
    def size(self) -> int:
        """About how many bytes of memory it takes."""
        return _STATE * self._pattern.size

    def steps(self, value: str) -> Generator[None, None, bool]:
        """Whether it matches, in steps: each `yield` is a place where others may have their turn."""
        return self._pattern.steps(like_java(value) if self._folds else value)


def read_patterns(items: tuple[str, ...]) -> Mapping[str, ClientPattern]:
    """The patterns of the setting `match`, by attribute; of an attribute that comes twice the last one counts.

    Raises:
        InvalidConfigurationError: One is no `ATTRIBUTE=PATTERN`, or all together are longer than `LONGEST`.
    """
    found = patterns_or_error(items)
    if isinstance(found, str):
        raise InvalidConfigurationError(found)
    return found


@lru_cache(4)
def patterns_or_error(items: tuple[str, ...]) -> Mapping[str, ClientPattern] | str:
    """The same, or why they are none; of the last few it is remembered, so that it can be called in a thread before."""
    try:
        return _read(items)
    except InvalidConfigurationError as error:
        return str(error)


def _read(items: tuple[str, ...]) -> Mapping[str, ClientPattern]:
    size = sum(map(len, items))
    if size > LONGEST:
        raise InvalidConfigurationError(f"match has {size} characters, and may have {LONGEST}: shorten it")
    found: dict[str, ClientPattern] = {}
    for item in items:
        name, separator, text = item.rstrip("=").partition("=")
        name, text = name.strip(), text.strip()
        if not separator or "=" in text or name not in ATTRIBUTES:
            raise InvalidConfigurationError(f"Illegal client matching pattern: {item}")
        try:
            found[name] = ClientPattern(text)
        except ConfigError as error:
            raise InvalidConfigurationError(f"Illegal client matching pattern: {item} ({error})") from error
    return found


def matches(patterns: Mapping[str, ClientPattern], values: Mapping[str, str | None]) -> Generator[None, None, bool]:
    """Whether all of the patterns match a client's values, in steps."""
    for name, pattern in patterns.items():
        value = values.get(name)
        if value is None or not (yield from pattern.steps(value)):
            return False
    return True
