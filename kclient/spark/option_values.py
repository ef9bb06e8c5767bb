"""Typed values out of the options that Spark hands over as text, naming the option in each error."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from kclient.arguments import brief, check_topic, shown
from kclient.errors import ConfigError, InvalidTopicError
from kclient.types import TopicPartition

_GREATEST = 2**63 - 1
_GREATEST_PARTITION = 2**31 - 1
_GREATEST_DURATION = 2**31 - 1
"""In milliseconds, some 24 days: as of the clients' own settings. What waits takes no more than the platform can."""

_UNITS_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def texts_of(options: Mapping[str, str]) -> dict[str, str]:
    """The options by their names in lower case. Spark makes text of them all; other callers may not."""
    if not isinstance(options, Mapping):
        raise ConfigError(f"options are a mapping of names to text, not {shown(options)}")
    lowered = {}
    for name, value in options.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ConfigError(f"options are text, not {shown(name)}: {shown(value)}")
        lowered[name.lower()] = value
    return lowered


class OptionReader:
    """Takes typed values out of lower-cased options, naming the option in each error."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

    def text(self, name: str) -> str | None:
        value = self._given.get(name.lower())
        return value.strip() if value is not None else None

    def boolean(self, name: str, *, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise ConfigError(f"the option {name} takes true or false, not {shown(value)}")
        return value.lower() == "true"

    def positive(self, name: str) -> int | None:
        value = self.text(name)
        return None if value is None else whole_number(name, value, least=1)

    def duration(self, name: str, *, default: int, least: int = 0) -> int:
        value = self.text(name)
        return default if value is None else whole_number(name, value, least, _GREATEST_DURATION)

    def timestamp(self, name: str) -> int | None:
        value = self.text(name)
        return None if value is None else whole_number(name, value, least=0)

    def per_partition(self, name: str) -> dict[TopicPartition, int] | None:
        value = self.text(name)
        return None if value is None else per_partition(name, value)


def whole_number(name: str, value: str, least: int, most: int = _GREATEST) -> int:
    try:
        number = int(value)
    except ValueError:
        raise ConfigError(f"the option {name} takes a whole number, not {shown(value)}") from None
    if number < least:
        raise ConfigError(f"the option {name} must be at least {least}, not {shown(number)}")
    if number > most:
        raise ConfigError(f"the option {name} must be at most {most}, not {shown(number)}")
    return number


def time_span(name: str, value: str) -> int:
    """Milliseconds of a time as Spark writes it: `15m`, `90s`, `500ms`; a bare number is milliseconds."""
    found = re.fullmatch(r"(\d+) ?([a-z]*)", value.strip().lower(), re.ASCII)
    if found is None or found[2] not in _UNITS_MS:
        raise ConfigError(
            f"the option {name} takes a time such as 15m or 90s (ms, s, m or min, h, d), not {shown(value)}"
        )
    return whole_number(name, str(int(found[1][:20]) * _UNITS_MS[found[2]]), 0, _GREATEST_DURATION)


def parsed_json(name: str, value: str, example: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        told = brief(str(error))
        raise ConfigError(f"the option {name} takes JSON such as {example}, not {shown(value)}: {told}") from error


def per_partition(name: str, value: str) -> dict[TopicPartition, int]:
    example = '{"topic":{"0":23,"1":-2}}'
    parsed = parsed_json(name, value, example)
    result: dict[TopicPartition, int] = {}
    if not isinstance(parsed, dict) or not all(isinstance(by, dict) for by in parsed.values()):
        raise ConfigError(f"the option {name} takes JSON such as {example}, not {shown(value)}")
    for topic, by_partition in parsed.items():
        for partition, number in by_partition.items():
            if not partition.isdecimal() or type(number) is not int:
                raise ConfigError(f"the option {name} takes JSON such as {example}, not {shown(value)}")
            if number > _GREATEST:
                raise ConfigError(f"the option {name} holds {shown(number)}; the greatest is {_GREATEST}")
            result[partition_of(name, topic, whole_number(name, partition, least=0))] = number
    if not result:
        raise ConfigError(
            f"the option {name} must name exactly the partitions that are read; it names none: {shown(value)}"
        )
    return result


def partition_of(name: str, topic: str, number: int) -> TopicPartition:
    if number > _GREATEST_PARTITION:
        raise ConfigError(f"the option {name} names partition {shown(number)}; the greatest is {_GREATEST_PARTITION}")
    return TopicPartition(checked_topic(name, topic), number)


def checked_topic(name: str, topic: str) -> str:
    try:
        check_topic(topic)
    except InvalidTopicError as error:
        raise ConfigError(f"the option {name}: {error.message}") from error
    return topic
