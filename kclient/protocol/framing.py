"""Requests and responses on a connection: a length, a header, a message.

Every frame begins with its length in four bytes. A request's header names API, version, correlation id and client;
a response's header repeats the correlation id. Which version a header has follows from the version of the message
(KIP-482): flexible messages have a header with tagged fields, except that the response to ApiVersions never has one.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeVar

from kclient.errors import ProtocolError, UnsupportedVersionError
from kclient.protocol.message import ApiMessage
from kclient.protocol.primitives import MAX_STRING, read_unknown_tags
from kclient.protocol.registry import ApiKey, request_class
from kclient.types import Buffer

DEFAULT_LIMIT = 104_857_600
"""The largest frame that is accepted if nothing else is said: 100 MiB, as in Kafka (`socket.request.max.bytes`)."""

_LENGTH = struct.Struct(">i")
_REQUEST = struct.Struct(">xxxxhhih")
_REQUEST_HEADER = struct.Struct(">hhih")
_RESPONSE = struct.Struct(">xxxxi")

Response = TypeVar("Response", bound=ApiMessage)


class RequestHeader(NamedTuple):
    """What stands before a request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def encode_request(message: ApiMessage, version: int, correlation_id: int, client_id: str | None) -> list[Buffer]:
    """The whole frame of a request, in pieces: record batches are pieces of their own and are not copied.

    Raises:
        UnsupportedVersionError: If the version is not known, or lacks a field that has a value.
        ValueError: If a value does not fit its field, or the client's id takes more than 32767 bytes.
    """
    if message.API_KEY is None:
        raise ValueError(f"{type(message).__name__} is not a request")
    name = None if client_id is None else client_id.encode()
    if name is not None and len(name) > MAX_STRING:
        raise ValueError(f"a client id of {len(name)} bytes is longer than the allowed {MAX_STRING}")
    out = bytearray(_REQUEST.pack(message.API_KEY, version, correlation_id, -1 if name is None else len(name)))
    out += name or b""
    if message.is_flexible(version):
        out.append(0)
    return _frame(message, version, out)


def encode_response(message: ApiMessage, version: int, correlation_id: int) -> list[Buffer]:
    """The whole frame of a response, in pieces: record batches are pieces of their own and are not copied.

    Raises:
        UnsupportedVersionError: If the version is not known, or lacks a field that has a value.
        ValueError: If a value does not fit its field.
    """
    out = bytearray(_RESPONSE.pack(correlation_id))
    if has_flexible_response_header(message.API_KEY, message.is_flexible(version)):
        out.append(0)
    return _frame(message, version, out)


def _frame(message: ApiMessage, version: int, out: bytearray) -> list[Buffer]:
    parts: list[Buffer] = []
    parts.append(message.encode_into(out, parts, version))
    # the first piece is `out` itself: records only ever split off what follows
    _LENGTH.pack_into(out, 0, sum(map(len, parts)) - 4)
    return parts


def has_flexible_response_header(api_key: int | None, flexible: bool) -> bool:
    """Whether the header of a response has tagged fields: as the message, but never for ApiVersions (KIP-511)."""
    return flexible and api_key != ApiKey.API_VERSIONS


def decode_request_header(frame: Buffer) -> tuple[RequestHeader, int]:
    """Read the header of a request frame without its length; gives it and the position of the message.

    The header can be read even if API or version are not known: its beginning never changes.

    Raises:
        ProtocolError: If the bytes are not a valid header.
    """
    try:
        api_key, api_version, correlation_id, length = _REQUEST_HEADER.unpack_from(frame)
        position = _REQUEST_HEADER.size
        client_id = None
        if length >= 0:
            client_id = str(frame[position : position + length], "utf-8")
            position += length
        elif length < -1:
            raise ProtocolError(f"a client id claims {length} bytes", position=position)
        if _has_tags(api_key, api_version):
            _, position = read_unknown_tags(frame, position + 1, frame[position])
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(f"a request header is cut off or malformed: {error}") from error
    if position > len(frame):
        raise ProtocolError("a request ends inside its header", position=position)
    return RequestHeader(api_key, api_version, correlation_id, client_id), position


def _has_tags(api_key: int, api_version: int) -> bool:
    try:
        return request_class(api_key).is_flexible(api_version)
    except UnsupportedVersionError:
        return False


def decode_request(frame: Buffer) -> tuple[RequestHeader, ApiMessage]:
    """Read a whole request frame without its length.

    Raises:
        ProtocolError: If the bytes are not a valid request.
        UnsupportedVersionError: If API or version are not known.
    """
    header, position = decode_request_header(frame)
    message, end = request_class(header.api_key).decode_from(frame, position, header.api_version)
    if end != len(frame):
        raise ProtocolError(f"{len(frame) - end} bytes follow a {type(message).__name__}", position=end)
    return header, message


def decode_response_header(frame: Buffer, flexible: bool) -> tuple[int, int]:
    """Read the header of a response frame; gives the correlation id and the position of the message.

    Args:
        frame: The frame without its length.
        flexible: Whether the header has tagged fields, see `has_flexible_response_header`.

    Raises:
        ProtocolError: If the bytes are not a valid header.
    """
    try:
        (correlation_id,) = _LENGTH.unpack_from(frame)
        position = 4
        if flexible:
            _, position = read_unknown_tags(frame, 5, frame[4])
    except (struct.error, IndexError) as error:
        raise ProtocolError(f"a response header is cut off: {error}") from error
    if position > len(frame):
        raise ProtocolError("a response ends inside its header", position=position)
    return correlation_id, position


def decode_response(cls: type[Response], frame: Buffer, version: int) -> tuple[int, Response]:
    """Read a whole response frame without its length; gives correlation id and message.

    An answer of UNSUPPORTED_VERSION to ApiVersions comes in the format of v0; read it as that.

    Raises:
        ProtocolError: If the bytes are not a valid response of this class and version.
    """
    flexible = has_flexible_response_header(cls.API_KEY, cls.is_flexible(version))
    correlation_id, position = decode_response_header(frame, flexible)
    message, end = cls.decode_from(frame, position, version)
    if end != len(frame):
        raise ProtocolError(f"{len(frame) - end} bytes follow {cls.__name__} v{version}", position=end)
    return correlation_id, message


_LOOKALIKES = {b"HTTP": "HTTP", b"GET ": "HTTP", b"POST": "HTTP", b"PUT ": "HTTP", b"SSH-": "SSH"}


def frame_size_error(size: int, limit: int) -> ProtocolError:
    """The error for a frame that announces an impossible size, with a guess at what the peer really speaks."""
    head = _LENGTH.pack(size)
    text = f"a frame announces {size} bytes, the limit is {limit}"
    if head in _LOOKALIKES:
        return ProtocolError(f"{text}: the peer speaks {_LOOKALIKES[head]}, not Kafka's protocol")
    if head[0] in {0x15, 0x16} and head[1] == 3:
        return ProtocolError(f"{text}: the peer speaks TLS; see `security.protocol`")
    return ProtocolError(text)
