"""Requests, responses and embedded messages in every version, decoded by the compiled codecs and by the schemas."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

from kclient.errors import ProtocolError
from kclient.protocol import ApiMessage, EncodeError, Message, schema_of
from kclient.protocol.structs import Schema
from tests.protocol_values import every_version

MESSAGES = list(every_version())


def check(data: bytes) -> None:
    """The first two bytes choose message and version, the rest is the message."""
    if len(data) < 2:
        return
    message_class, version = MESSAGES[int.from_bytes(data[:2], "big") % len(MESSAGES)]
    body = data[2:]
    schema = schema_of(message_class, version)
    message = _decoded(message_class, body, version)
    assert (message is None) == (_interpreted(schema, body) is None)
    if message is None:
        return
    assert _plain_message(message, schema) == _interpreted(schema, body)
    view = message_class.decode(memoryview(body), version)
    repr(message)
    if not can_be_written(message):
        assert "tags must rise" in _refusal(message, version)
        return
    encoded = message.encode(version)
    assert view.encode(version) == encoded
    assert message_class.decode(encoded, version).encode(version) == encoded


def can_be_written(value: Any) -> bool:
    """Whether the tags of unknown tagged fields rise everywhere: as Kafka, we read others and do not write them."""
    if isinstance(value, list):
        return all(map(can_be_written, value))
    if not isinstance(value, Message):
        return True
    tags = [tag for tag, _ in value.unknown_tagged_fields or ()]
    rising = all(before < after for before, after in pairwise(tags))
    return rising and all(can_be_written(getattr(value, item.name)) for item in value.FIELDS)


def _refusal(message: ApiMessage, version: int) -> str:
    """What encoding says instead of giving bytes."""
    try:
        message.encode(version)
    except EncodeError as error:
        return str(error)
    return ""


def _decoded(message_class: type[ApiMessage], body: bytes, version: int) -> ApiMessage | None:
    try:
        return message_class.decode(body, version)
    except ProtocolError:
        return None


def _interpreted(schema: Schema, body: bytes) -> dict[str, Any] | None:
    try:
        return {name: _plain(value) for name, value in schema.decode(body).as_dict().items()}
    except ProtocolError:
        return None


def _plain_message(message: Message, schema: Schema) -> dict[str, Any]:
    return {item.name: _plain(getattr(message, item.name), schema) for item in schema.fields}


def _plain(value: Any, schema: Schema | None = None) -> Any:
    """A value in a form that can be compared."""
    if isinstance(value, Message):
        assert schema is not None
        return _plain_message(value, schema_of(type(value), schema.version, flexible=schema.flexible))
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, schema) for item in value]
    if isinstance(value, float):
        return struct.pack(">d", value)  # NaN is not equal to itself
    return bytes(value) if isinstance(value, memoryview) else value


def seeds() -> list[bytes]:
    """Every message in every version: with its defaults, and with one element in each array."""
    return [
        index.to_bytes(2, "big") + message.encode(version)
        for index, (message_class, version) in enumerate(MESSAGES)
        for message in (message_class(), filled(message_class, version))
    ]


def filled(message_class: type[Any], version: int) -> Any:
    """A message with something in every field that the version has."""
    from kclient.protocol.schema import ArrayType, StructType
    from kclient.protocol.types import BOOL, BYTES, RECORDS, STRING, UUID

    def value(kind: Any) -> Any:
        if isinstance(kind, ArrayType):
            return [value(kind.element)]
        if isinstance(kind, StructType):
            return filled(kind.message, version)
        return {BOOL: True, STRING: "text", BYTES: b"bytes", RECORDS: b"records", UUID: bytes(range(16))}.get(kind, 1)

    return message_class(**{item.name: value(item.type) for item in message_class.FIELDS if version in item.versions})
