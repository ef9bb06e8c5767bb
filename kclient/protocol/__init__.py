"""The Kafka wire protocol: bytes into messages and back, nothing else.

- `kclient.protocol.messages`: every message, declared once for all its versions.
- `ApiKey`, `request_class`, `response_class`, `negotiate`: which APIs there are, and which version two sides speak.
- `kclient.protocol.framing`: requests and responses with their headers and lengths.
- `Schema`, `Struct`: any message as a generic struct, for tools that print whatever comes.
"""

from __future__ import annotations

from kclient.protocol import framing
from kclient.protocol.errors import EncodeError, UnknownRequestError
from kclient.protocol.message import ApiMessage, Message
from kclient.protocol.primitives import RawTaggedField
from kclient.protocol.registry import (
    ApiKey,
    negotiate,
    request_class,
    request_schema,
    response_class,
    response_schema,
)
from kclient.protocol.schema import Field
from kclient.protocol.structs import Schema, Struct, schema_of
from kclient.protocol.types import ZERO_UUID
from kclient.protocol.versions import Versions

__all__ = [
    "ZERO_UUID",
    "ApiKey",
    "ApiMessage",
    "EncodeError",
    "Field",
    "Message",
    "RawTaggedField",
    "Schema",
    "Struct",
    "UnknownRequestError",
    "Versions",
    "framing",
    "negotiate",
    "request_class",
    "request_schema",
    "response_class",
    "response_schema",
    "schema_of",
]
