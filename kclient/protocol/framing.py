"""Requests and responses on a connection: a length, a header, a message.

Every frame begins with its length in four bytes. A request's header names API, version, correlation id and client;
a response's header repeats the correlation id. Which version a header has follows from the version of the message
(KIP-482): flexible messages have a header with tagged fields, except that the response to ApiVersions never has one.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import NamedTuple, TypeVar

from kclient.errors import ProtocolError, UnsupportedVersionError
from kclient.protocol.errors import EncodeError, UnknownRequestError, shortened, title_of
from kclient.protocol.message import ApiMessage
from kclient.protocol.primitives import check_bytes, cut_off, left_over, skip_unknown_tags
from kclient.protocol.registry import ApiKey, request_class
from kclient.protocol.types import INT32, INT32_MAX, STRING
from kclient.types import Buffer

DEFAULT_LIMIT = 104_857_600
"""The largest frame that is accepted if nothing else is said: 100 MiB, as in Kafka (`socket.request.max.bytes`)."""

MOST_TAGS = 1024
"""Tagged fields of a header that are accepted. No version has any; each is looked at before the message is."""

_LENGTH = struct.Struct(">i")
_REQUEST = struct.Struct(">xxxxhhih")
_REQUEST_HEADER = struct.Struct(">hhih")
_RESPONSE = struct.Struct(">xxxxi")

Response = TypeVar("Response", bound=ApiMessage)


class FrameHeader(NamedTuple):
    """What stands before a request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def encode_request(message: ApiMessage, version: int, correlation_id: int, client_id: str | None) -> list[Buffer]:
    """The whole frame of a request, in pieces: record batches are pieces of their own and are not copied.

    Args:
        message: The request.
        version: Its version.
        correlation_id: What its response repeats: an int32.
        client_id: The client's name for the broker's log, at most 32767 bytes of UTF-8; None if it has none.

    Raises:
        UnsupportedVersionError: If the version is not known, lacks a field that has a value, or does not allow a null.
        EncodeError: If a value does not fit its field, also one of the header's, if the message is not a request, or if
            the frame would be larger than 2 GiB.
    """
    if isinstance(message, ApiMessage) and not message.IS_REQUEST:
        raise EncodeError(f"{type(message).__name__} is not a request", version=version)
    try:
        name = b"" if client_id is None else client_id.encode()
        size = -1 if client_id is None else len(name)
        out = bytearray(_REQUEST.pack(message.API_KEY, version, correlation_id, size))
    except (AttributeError, TypeError, ValueError, struct.error) as error:
        raise _header_error(message, version, correlation_id, client_id, str(error)) from None
    out += name
    if message.is_flexible(version):
        out.append(0)
    return _frame(message, version, out)


def encode_response(message: ApiMessage, version: int, correlation_id: int) -> list[Buffer]:
    """The whole frame of a response, in pieces: record batches are pieces of their own and are not copied.

    Args:
        message: The response.
        version: Its version, that of the request.
        correlation_id: The correlation id of the request.

    Raises:
        UnsupportedVersionError: If the version is not known, lacks a field that has a value, or does not allow a null.
        EncodeError: If a value does not fit its field, also one of the header's, if the message is not a response, or
            if the frame would be larger than 2 GiB.
    """
    out = _begin_response(message, version, correlation_id)
    parts: list[Buffer] = []
    parts.append(message.encode_into(out, parts, version))
    return _with_length(message, version, parts)


def encode_response_steps(message: ApiMessage, version: int, correlation_id: int) -> Generator[int, None, list[Buffer]]:
    """As `encode_response`, for large responses: a generator that pauses now and then; see `ApiMessage.encode_steps`.

    Yields:
        How many bytes were written since the last pause.
    """
    out = _begin_response(message, version, correlation_id)
    parts: list[Buffer] = []
    parts.append((yield from message.encode_steps(out, parts, version)))
    return _with_length(message, version, parts)


def _begin_response(message: ApiMessage, version: int, correlation_id: int) -> bytearray:
    try:
        if message.IS_REQUEST or message.API_KEY is None:
            raise EncodeError(f"{type(message).__name__} is not a response", version=version)
        out = bytearray(_RESPONSE.pack(correlation_id))
    except (AttributeError, struct.error) as error:
        raise _header_error(message, version, correlation_id, None, str(error)) from None
    if has_flexible_response_header(message.API_KEY, message.is_flexible(version)):
        out.append(0)
    return out


def _frame(message: ApiMessage, version: int, out: bytearray) -> list[Buffer]:
    parts: list[Buffer] = []
    parts.append(message.encode_into(out, parts, version))
    return _with_length(message, version, parts)


def _with_length(message: ApiMessage, version: int, parts: list[Buffer]) -> list[Buffer]:
    size = sum(map(len, parts)) - 4
    if size > INT32_MAX:
        title = title_of(type(message).__name__, version)
        raise EncodeError(f"{title}: a frame of {size} bytes is larger than {INT32_MAX}", version=version)
    # the first piece is the one that was begun with: only what follows is ever split off
    _LENGTH.pack_into(parts[0], 0, size)
    return parts


def _header_error(
    message: object, version: int, correlation_id: int, client_id: str | None, text: str
) -> EncodeError | UnsupportedVersionError:
    """What is wrong with the fields of a header that could not be written."""
    if not isinstance(message, ApiMessage):
        return EncodeError(f"expected a message, got {shortened(message)}")
    name = type(message).__name__
    if version not in message.VERSIONS:
        return UnsupportedVersionError(
            f"kclient knows {name} in versions {message.VERSIONS}, not in version {version!r}"
        )
    title = title_of(name, version)
    path = ""
    try:
        path = "correlation_id"
        INT32.write(bytearray(), correlation_id, flexible=False, nullable=False)
        path = "client_id"
        STRING.write(bytearray(), client_id, flexible=False, nullable=True)
    except (TypeError, ValueError) as error:
        text = str(error)
    return EncodeError(f"{title}: header: {path}: {text}", path=path, version=version)


def has_flexible_response_header(api_key: int | None, flexible: bool) -> bool:
    """Whether the header of a response has tagged fields: as the message, but never for ApiVersions (KIP-511)."""
    return flexible and api_key != ApiKey.API_VERSIONS


def decode_request_header(frame: Buffer) -> tuple[FrameHeader, int]:
    """Read the header of a request frame without its length; gives it and the position of the message.

    The header can be read even if API or version are not known: its beginning never changes.

    Raises:
        ProtocolError: If the bytes are not a valid header.
        TypeError: If it is not bytes.
    """
    position = _REQUEST_HEADER.size
    try:
        api_key, api_version, correlation_id, length = _REQUEST_HEADER.unpack_from(frame)
    except (struct.error, TypeError):
        check_bytes(frame)
        raise _in_header("a request", cut_off("the beginning", position, frame, 0)) from None
    client_id = None
    if length >= 0:
        if position + length > len(frame):
            raise _in_header("a request", cut_off("the client id", length, frame, position))
        try:
            client_id = str(frame[position : position + length], "utf-8")
        except UnicodeDecodeError as error:
            at = position + error.start
            raise _in_header("a request", ProtocolError("the client id is not valid UTF-8", position=at)) from None
        position += length
    elif length < -1:
        raise _in_header("a request", ProtocolError(f"the client id claims {length} bytes", position=position))
    if _has_tags(api_key, api_version):
        if position < len(frame) and not frame[position]:
            position += 1  # none, as nearly always
        else:
            position = _skip_tags("a request", frame, position)
    return FrameHeader(api_key, api_version, correlation_id, client_id), position


def _skip_tags(what: str, frame: Buffer, position: int) -> int:
    """The end of a header's tagged fields, which begin at a position."""
    end: int | None
    try:
        end = skip_unknown_tags(frame, position + 1, frame[position], MOST_TAGS)
    except IndexError:
        end = None
    except ProtocolError as error:
        raise _in_header(what, error) from None
    if end is None or end > len(frame):
        raise _in_header(what, ProtocolError("cut off inside of its tagged fields", position=len(frame)))
    return end


def _in_header(what: str, error: ProtocolError) -> ProtocolError:
    return ProtocolError(f"the header of {what}: {error.message} (at byte {error.position})", position=error.position)


def _has_tags(api_key: int, api_version: int) -> bool:
    try:
        low, high = request_class(api_key).FLEXIBLE
    except UnsupportedVersionError:
        return False
    return low <= api_version <= high


def decode_request(frame: Buffer) -> tuple[FrameHeader, ApiMessage]:
    """Read a whole request frame without its length.

    Raises:
        ProtocolError: If the bytes are not a valid request.
        UnknownRequestError: If API or version are not known; an `UnsupportedVersionError`.
        TypeError: If it is not bytes.
    """
    header, position = decode_request_header(frame)
    try:
        message, end = request_class(header.api_key).decode_from(frame, position, header.api_version)
    except UnsupportedVersionError as error:
        raise UnknownRequestError(error.message) from None
    if end != len(frame):
        raise left_over(title_of(type(message).__name__, header.api_version), frame, end)
    return header, message


def decode_response_header(frame: Buffer, flexible: bool) -> tuple[int, int]:
    """Read the header of a response frame; gives the correlation id and the position of the message.

    Args:
        frame: The frame without its length.
        flexible: Whether the header has tagged fields, see `has_flexible_response_header`.

    Raises:
        ProtocolError: If the bytes are not a valid header.
        TypeError: If it is not bytes.
    """
    position = _LENGTH.size
    try:
        (correlation_id,) = _LENGTH.unpack_from(frame)
    except (struct.error, TypeError):
        check_bytes(frame)
        raise _in_header("a response", cut_off("the correlation id", position, frame, 0)) from None
    return correlation_id, _skip_tags("a response", frame, position) if flexible else position


def decode_response(cls: type[Response], frame: Buffer, version: int) -> tuple[int, Response]:
    """Read a whole response frame without its length; gives correlation id and message.

    An answer of UNSUPPORTED_VERSION to ApiVersions comes in the format of v0; read it as that.

    Raises:
        ProtocolError: If the bytes are not a valid response of this class and version.
        TypeError: If it is not bytes.
    """
    flexible = has_flexible_response_header(cls.API_KEY, cls.is_flexible(version))
    correlation_id, position = decode_response_header(frame, flexible)
    message, end = cls.decode_from(frame, position, version)
    if end != len(frame):
        raise left_over(title_of(cls.__name__, version), frame, end)
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
