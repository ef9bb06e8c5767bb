"""Finds the serializer that a setting names."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any, cast

from kclient.arguments import shown
from kclient.errors import ConfigError
from kclient.serialization import json, primitives
from kclient.serialization.interfaces import Deserializer, Serializer
from kclient.types import Buffer, Headers

__all__ = ["DESERIALIZER_NAMES", "SERIALIZER_NAMES", "resolve_deserializer", "resolve_serializer"]

_KINDS: dict[str, tuple[type[Any], type[Any]]] = {
    "bytes": (primitives.BytesSerializer, primitives.BytesDeserializer),
    "string": (primitives.StringSerializer, primitives.StringDeserializer),
    "json": (json.JsonSerializer, json.JsonDeserializer),
    "integer": (primitives.IntegerSerializer, primitives.IntegerDeserializer),
    "long": (primitives.LongSerializer, primitives.LongDeserializer),
    "short": (primitives.ShortSerializer, primitives.ShortDeserializer),
    "double": (primitives.DoubleSerializer, primitives.DoubleDeserializer),
    "float": (primitives.FloatSerializer, primitives.FloatDeserializer),
    "boolean": (primitives.BooleanSerializer, primitives.BooleanDeserializer),
    "uuid": (primitives.UUIDSerializer, primitives.UUIDDeserializer),
    "void": (primitives.VoidSerializer, primitives.VoidDeserializer),
}
_ALIASES = {"str": "string", "text": "string", "int": "integer", "bool": "boolean", "bytearray": "bytes"}
_ALIASES |= {"bytebuffer": "bytes"}
_TYPES: dict[Any, str] = {bytes: "bytes", bytearray: "bytes", memoryview: "bytes", str: "string", bool: "boolean"}
# `int` and `float` are left out: how many bytes is for the user to say

SERIALIZER_NAMES = {name: kind[0] for name, kind in _KINDS.items()}
"""The built-in serializers by short name."""

DESERIALIZER_NAMES = {name: kind[1] for name, kind in _KINDS.items()}
"""The built-in deserializers by short name."""


def resolve_serializer(value: Any, setting: str = "serializer") -> Serializer[Any] | None:
    """The serializer that a setting means.

    Args:
        value: A serializer, its class, a function from a value to bytes, a short name (`string`, `json`, `long` …),
            a Java class name, `bytes` or `str`; None for bytes as they are.
        setting: Name of the setting, for error messages.

    Returns:
        The serializer; None if keys or values are bytes already and nothing is to be called.

    Raises:
        ConfigError: If it is none of these.
    """
    found = _resolve(value, setting, SERIALIZER_NAMES, "serialize", _CallableSerializer)
    return None if isinstance(found, primitives.BytesSerializer) else cast("Serializer[Any] | None", found)


def resolve_deserializer(value: Any, setting: str = "deserializer") -> Deserializer[Any] | None:
    """The deserializer that a setting means.

    Args:
        value: A deserializer, its class, a function from bytes to a value, a short name (`string`, `json`, `long` …),
            a Java class name, `bytes` or `str`; None for bytes as they are.
        setting: Name of the setting, for error messages.

    Returns:
        The deserializer; None if keys or values stay bytes and nothing is to be called.

    Raises:
        ConfigError: If it is none of these.
    """
    found = _resolve(value, setting, DESERIALIZER_NAMES, "deserialize", _CallableDeserializer)
    return None if isinstance(found, primitives.BytesDeserializer) else cast("Deserializer[Any] | None", found)


def _resolve(
    value: Any, setting: str, names: dict[str, type[Any]], method: str, wrap: Callable[[Callable[..., Any]], Any]
) -> Any:
    if value is None:
        return None
    if isinstance(value, str):
        return _by_name(value, setting, names)()
    if value is int or value is float:
        sizes = "'double' or 'float'" if value is float else "'long', 'integer' or 'short'"
        raise ConfigError(f"{setting}: say how many bytes a number has: {sizes}")
    if isinstance(value, type):
        if value in _TYPES:
            return names[_TYPES[value]]()
        return _instance(value, setting, method)
    if callable(getattr(value, method, None)):
        return value
    if callable(value):
        return wrap(value)
    raise ConfigError(f"{setting}: {shown(value)} has no method {method}(topic, …, headers) and is not a function")


def _instance(cls: type[Any], setting: str, method: str) -> Any:
    if not callable(getattr(cls, method, None)):
        raise ConfigError(f"{setting}: the class {cls.__name__} has no method {method}")
    try:
        return cls()
    except TypeError as error:
        raise ConfigError(
            f"{setting}: {cls.__name__} cannot be made without arguments; pass an instance: {error}"
        ) from error


def _by_name(name: str, setting: str, names: dict[str, type[Any]]) -> type[Any]:
    short = name.strip().rsplit(".", 1)[-1]
    for suffix in ("Serializer", "Deserializer"):
        short = short.removesuffix(suffix)
    short = short.lower()
    short = "bytes" if short == "bytearray" else _ALIASES.get(short, short)
    if short in names:
        return names[short]
    near = difflib.get_close_matches(short, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}; others are passed as objects"
    raise ConfigError(f"{setting}: no serializer is named {shown(name)}; {hint}")


def _takes_topic(function: Callable[..., Any]) -> bool:
    """Whether a function wants (topic, value, headers), as the interfaces have it, or the value only."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False  # built-in functions such as str.encode
    needed = [
        item
        for item in parameters
        if item.default is item.empty and item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)
    ]
    return len(needed) >= 3


class _CallableSerializer:
    """A function as a serializer; it is not asked about nulls unless it takes (topic, value, headers)."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._full = _takes_topic(function)

    def serialize(self, topic: str, value: Any, headers: Headers = ()) -> Buffer | None:
        if self._full:
            return cast("Buffer | None", self.function(topic, value, headers))
        return None if value is None else cast("Buffer | None", self.function(value))


class _CallableDeserializer:
    """A function as a deserializer; it is not asked about nulls unless it takes (topic, data, headers)."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._full = _takes_topic(function)

    def deserialize(self, topic: str, data: Buffer | None, headers: Headers = ()) -> Any:
        if self._full:
            return self.function(topic, data, headers)
        return None if data is None else self.function(data)
