"""Message sets v0 and v1 by hand: an oracle for the formats of old requests that shares no code with kclient."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class OldMessage(NamedTuple):
    """One message; `timestamp` is -1 in format v0, which has none."""

    offset: int
    magic: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def write_message_set(magic: int, values: Sequence[tuple[bytes | None, bytes | None]], timestamp: int = -1) -> bytes:
    """Uncompressed messages with the relative offsets 0, 1, …"""
    out = b""
    for offset, (key, value) in enumerate(values):
        body = struct.pack(">bb", magic, 0) + (struct.pack(">q", timestamp) if magic else b"")
        for part in (key, value):
            body += struct.pack(">i", -1 if part is None else len(part)) + (part or b"")
        message = struct.pack(">I", zlib.crc32(body)) + body
        out += struct.pack(">qi", offset, len(message)) + message
    return out


def read_message_set(data: bytes) -> Iterator[OldMessage]:
    """Uncompressed messages, each with its CRC checked; a message that is cut off at the end is left out."""
    position = 0
    while position + 12 <= len(data):
        offset, size = struct.unpack_from(">qi", data, position)
        position += 12
        message = data[position : position + size]
        position += size
        if len(message) < size:
            return
        (crc,) = struct.unpack_from(">I", message)
        assert crc == zlib.crc32(message[4:])
        magic, attributes = struct.unpack_from(">bb", message, 4)
        assert attributes & 0x07 == 0, "compressed"
        timestamp = struct.unpack_from(">q", message, 6)[0] if magic else -1
        rest = message[14 if magic else 6 :]
        key, rest = _part(rest)
        value, rest = _part(rest)
        assert not rest
        yield OldMessage(offset, magic, timestamp, key, value)


def _part(data: bytes) -> tuple[bytes | None, bytes]:
    (size,) = struct.unpack_from(">i", data)
    return (None, data[4:]) if size < 0 else (data[4 : 4 + size], data[4 + size :])
