"""The same values through kclient and through kio, an independent implementation: same bytes, same values."""

from __future__ import annotations

import dataclasses
import datetime
import io
import re
import uuid
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer

from kclient.protocol import ApiMessage, Message, schema_of
from kclient.protocol.schema import ArrayType, Field, StructType
from kclient.protocol.structs import Schema
from tests.protocol_values import TOP_LEVEL, fitted, messages, versions_of

KIO_ERRORS = {int(code) for code in KioErrorCode}
MILLISECOND = datetime.timedelta(milliseconds=1)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
LATEST = 253_402_300_799  # the year 9999, where datetime ends, in seconds
LONGEST = 10**12  # a duration that timedelta holds exactly


def kio_class(message: type[ApiMessage], version: int) -> Any | None:
    """The class of kio, or None if it does not know the message in that version."""
    name, module = message.__name__, "data"
    for kind in ("Request", "Response"):
        if name.endswith(kind):
            name, module = name.removesuffix(kind), kind.lower()
    if name.endswith("Header"):
        module = "header"
    folder = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    try:
        found = import_module(f"kio.schema.{folder}.v{version}.{module}")
    except ModuleNotFoundError:
        return None
    return getattr(found, message.__name__)


@cache
def known() -> dict[type[ApiMessage], list[int]]:
    """The versions that both know, for each message."""
    return {
        message: [version for version in versions_of(message) if kio_class(message, version) is not None]
        for message in TOP_LEVEL
    }


# --- values in the form that kio has -------------------------------------------------------------------------


def in_bounds(value: Any, schema: Schema, kio: Any) -> Any:
    """A copy whose numbers kio's types can hold: error codes it knows, times that datetime reaches."""
    values = {item.name: getattr(value, item.name) for item in value.FIELDS}
    for item, kio_field in zip(schema.fields, dataclasses.fields(kio), strict=True):
        values[item.name] = _bounded(item, kio_field, values[item.name], schema)
    return type(value)(**values)


def _bounded(item: Field, kio_field: Any, value: Any, schema: Schema) -> Any:
    inner = _nested(item, schema)
    if inner is not None:
        nested_kio = _entity(kio_field.type)
        if isinstance(value, list):
            return [in_bounds(one, inner, nested_kio) for one in value]
        return value if value is None else in_bounds(value, inner, nested_kio)
    bound = BOUNDS.get(kio_field.metadata["kafka_type"])
    if bound is None:
        return value
    return [bound(one) for one in value] if isinstance(value, list) else bound(value)


BOUNDS: dict[str, Callable[[int], int]] = {
    "error_code": lambda value: value if value in KIO_ERRORS else 0,
    "datetime_i64": lambda value: abs(value) % LATEST * 1000,  # kio reads fractions of seconds as floats
    "timedelta_i64": lambda value: value % LONGEST,
}


def to_kio(value: Any, schema: Schema, kio: Any) -> Any:
    """The same value as an entity of kio; fields correspond by their order."""
    converted = {}
    for item, kio_field in zip(schema.fields, dataclasses.fields(kio), strict=True):
        ours = getattr(value, item.name)
        inner = _nested(item, schema)
        if inner is None:
            convert = TO_KIO.get(kio_field.metadata["kafka_type"], lambda plain: plain)
        else:
            convert = partial(_struct_to_kio, inner, _entity(kio_field.type))
        converted[kio_field.name] = tuple(map(convert, ours)) if isinstance(ours, list) else convert(ours)
    return kio(**converted)


def _struct_to_kio(schema: Schema, kio: Any, value: Any) -> Any:
    return None if value is None else to_kio(value, schema, kio)


TO_KIO: dict[str, Callable[[Any], Any]] = {
    "error_code": KioErrorCode,
    "datetime_i64": lambda value: EPOCH + value * MILLISECOND,
    "timedelta_i32": lambda value: value * MILLISECOND,
    "timedelta_i64": lambda value: value * MILLISECOND,
    "uuid": lambda value: uuid.UUID(bytes=value) if any(value) else None,
}


def _nested(item: Field, schema: Schema) -> Schema | None:
    kind = item.type.element if isinstance(item.type, ArrayType) else item.type
    if not isinstance(kind, StructType):
        return None
    return schema_of(kind.message, schema.version, flexible=schema.flexible)


def _entity(annotation: Any) -> Any:
    """The dataclass in `tuple[X, ...] | None`."""
    if dataclasses.is_dataclass(annotation):
        return annotation
    return next(found for part in annotation.__args__ if (found := _entity_or_none(part)) is not None)


def _entity_or_none(annotation: Any) -> Any:
    if dataclasses.is_dataclass(annotation):
        return annotation
    return _entity(annotation) if hasattr(annotation, "__args__") else None


# --- the proof -----------------------------------------------------------------------------------------------


def test_kio_knows_every_message() -> None:
    """kio has the versions of Kafka 4: what it lacks are versions below those, which have round trips only."""
    for message, versions in known().items():
        assert versions, message
        assert versions == list(range(versions[0], message.VERSIONS.high + 1))
    assert sum(map(len, known().values())) > 550


@pytest.mark.parametrize("message", TOP_LEVEL, ids=lambda cls: cls.__name__)
@settings(max_examples=12)
@given(data=st.data())
def test_same_bytes_and_same_values(message: type[ApiMessage], data: st.DataObject) -> None:
    drawn: Message = data.draw(messages(message))
    for version in known()[message]:
        kio = kio_class(message, version)
        schema = schema_of(message, version)
        value = in_bounds(fitted(drawn, version), schema, kio)
        entity = to_kio(value, schema, kio)
        written = io.BytesIO()
        entity_writer(kio)(written, entity)
        encoded = value.encode(version)
        assert encoded == written.getvalue()
        read, size = entity_reader(kio)(encoded, 0)
        assert size == len(encoded)
        assert to_kio(message.decode(encoded, version), schema, kio) == read == entity
