"""Messages inside messages: a version in two bytes, then the message in that version.

Consumers tell each other their subscriptions and assignments this way, in fields that are opaque to the broker.
"""

from __future__ import annotations

import struct
from typing import TypeVar

from kclient.errors import ProtocolError
from kclient.protocol.message import ApiMessage
from kclient.types import Buffer

_VERSION = struct.Struct(">h")

Embedded = TypeVar("Embedded", bound=ApiMessage)


def encode_embedded(message: ApiMessage, version: int | None = None) -> bytes:
    """The version and the message; without a version, the highest.

    Raises:
        UnsupportedVersionError: If the version is not known, or lacks a field that has a value.
        EncodeError: If a value does not fit its field.
    """
    chosen = message.VERSIONS.high if version is None else version
    encoded = message.encode(chosen)
    return _VERSION.pack(chosen) + encoded


def decode_embedded(cls: type[Embedded], buffer: Buffer) -> Embedded:
    """Read version and message.

    A version above the known ones is read as the highest known one: such messages only grow at their end, so bytes
    behind the message are no error.

    Raises:
        ProtocolError: If the bytes are not a valid message.
    """
    if len(buffer) < _VERSION.size:
        raise ProtocolError(f"{cls.__name__}: cut off before its version", position=len(buffer))
    (version,) = _VERSION.unpack_from(buffer)
    if version < cls.VERSIONS.low:
        raise ProtocolError(f"{cls.__name__} has the impossible version {version}", position=0)
    message, _ = cls.decode_from(buffer, _VERSION.size, min(version, cls.VERSIONS.high))
    return message
