"""Random values for every declared message, made by hypothesis and fitted to any of its versions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from hypothesis import strategies as st

from kclient.protocol import ApiKey, ApiMessage, Message, request_class, response_class
from kclient.protocol.messages import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    RequestHeader,
    ResponseHeader,
)
from kclient.protocol.schema import ArrayType, Field, StructType
from kclient.protocol.types import BOOL, BYTES, FLOAT64, RECORDS, STRING, UUID, FixedType, Type

TOP_LEVEL: list[type[ApiMessage]] = [
    *(make(key) for key in ApiKey for make in (request_class, response_class)),
    ConsumerProtocolSubscription,
    ConsumerProtocolAssignment,
    RequestHeader,
    ResponseHeader,
]
"""Every message that stands by itself."""


def versions_of(message: type[ApiMessage]) -> range:
    return range(message.VERSIONS.low, message.VERSIONS.high + 1)


def every_version() -> Iterator[tuple[type[ApiMessage], int]]:
    for message in TOP_LEVEL:
        for version in versions_of(message):
            yield message, version


@cache
def messages(message: type[Message]) -> st.SearchStrategy[Any]:
    """Instances with values in all fields, of whatever version; `fitted` takes out what a version lacks."""
    return st.builds(message, **{item.name: _field(item) for item in message.FIELDS})


def _field(item: Field) -> st.SearchStrategy[Any]:
    values = _values(item.type, item.name)
    if item.nullable:
        values = st.none() | values
    return values if item.tag is None else st.builds(item.new_default) | values


_TEXT = st.text(max_size=12) | st.text("aé€", min_size=120, max_size=140)
_BYTES = st.binary(max_size=12) | st.binary(min_size=120, max_size=140)


@cache
def _values(kind: Type[Any], name: str) -> st.SearchStrategy[Any]:
    if isinstance(kind, ArrayType):
        element = _values(kind.element, name)
        if isinstance(kind.element, FixedType):
            return st.lists(element, max_size=4) | st.lists(element, min_size=30, max_size=40)
        return st.lists(element, max_size=2)
    if isinstance(kind, StructType):
        return messages(kind.message)
    if kind is BOOL:
        return st.booleans()
    if kind is FLOAT64:
        return st.floats(allow_nan=False)
    if kind is STRING:
        return _TEXT
    if kind in {BYTES, RECORDS}:
        return _BYTES
    if kind is UUID:
        return st.binary(min_size=16, max_size=16)
    assert isinstance(kind, FixedType)
    return _integers(kind, name)


def _integers(kind: FixedType[Any], name: str) -> st.SearchStrategy[int]:
    if name == "error_code" or name.endswith("_error_code"):
        return st.integers(-1, 120)  # kio turns these into an enum
    bits = kind.size * 8
    if kind.code.isupper():
        return st.integers(0, 2**bits - 1)
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def fitted(message: Any, version: int) -> Any:
    """A copy that a version can carry: fields it lacks have their defaults, nulls it cannot write are replaced."""
    values = {}
    for item in message.FIELDS:
        value = getattr(message, item.name)
        if version not in item.versions:
            value = item.new_default()
        elif value is None and version not in item.nullable:
            value = _not_null(item.type)
        values[item.name] = _fitted_value(value, version)
    return type(message)(**values)


def _fitted_value(value: Any, version: int) -> Any:
    if isinstance(value, Message):
        return fitted(value, version)
    if isinstance(value, list):
        return [_fitted_value(item, version) for item in value]
    return value


def _not_null(kind: Type[Any]) -> Any:
    if isinstance(kind, ArrayType):
        return []
    return kind.message() if isinstance(kind, StructType) else kind.default
