"""The lz4 frames of message format v0, whose header checksum is wrong.

Java's first writer counted the frame's magic number in, and whoever reads format v0 has to put up with it (KIP-57).
"""

from __future__ import annotations

from typing import Final

from kclient.types import Buffer

_MAGIC: Final = b"\x04\x22\x4d\x18"
_FLAGS_AT: Final = 4
_SIZE_FLAG: Final = 0x08
_DICTIONARY_FLAG: Final = 0x01

_MASK: Final = 0xFFFFFFFF
_P1: Final = 2654435761
_P2: Final = 2246822519
_P3: Final = 3266489917
_P4: Final = 668265263
_P5: Final = 374761393


def break_checksum(frame: Buffer) -> bytes:
    """The frame with the checksum that format v0 has in its header."""
    at = _checksum_at(frame)
    return _with_checksum(frame, at, bytes(frame[:at]))


def mended_front(frame: Buffer) -> bytes:
    """The frame's header with the right checksum; empty if it is not a frame, or right already."""
    if bytes(frame[:_FLAGS_AT]) != _MAGIC or len(frame) <= _FLAGS_AT:
        return b""
    at = _checksum_at(frame)
    if len(frame) <= at:
        return b""
    descriptor = bytes(frame[_FLAGS_AT:at])
    return b"" if frame[at] == _checksum(descriptor) else _with_checksum(frame[: at + 1], at, descriptor)


def _checksum_at(frame: Buffer) -> int:
    flags = frame[_FLAGS_AT]
    return _FLAGS_AT + 2 + (8 if flags & _SIZE_FLAG else 0) + (4 if flags & _DICTIONARY_FLAG else 0)


def _with_checksum(frame: Buffer, at: int, checked: bytes) -> bytes:
    return b"".join((frame[:at], bytes([_checksum(checked)]), frame[at + 1 :]))


def _checksum(data: bytes) -> int:
    return xxh32(data) >> 8 & 0xFF


def xxh32(data: bytes) -> int:
    """The xxHash of fewer than 16 bytes, with seed 0."""
    value = _P5 + len(data)
    whole = len(data) & ~3
    for start in range(0, whole, 4):
        value = value + int.from_bytes(data[start : start + 4], "little") * _P3 & _MASK
        value = _rotated(value, 17) * _P4 & _MASK
    for byte in data[whole:]:
        value = value + byte * _P5 & _MASK
        value = _rotated(value, 11) * _P1 & _MASK
    value = (value ^ value >> 15) * _P2 & _MASK
    value = (value ^ value >> 13) * _P3 & _MASK
    return value ^ value >> 16


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _MASK
