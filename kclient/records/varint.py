"""Integers of variable length (zigzag, seven bits a byte), as records use them, in Python."""

from __future__ import annotations

from typing import Final


def encode_varint(value: int) -> bytes:
    """The bytes of a signed integer of at most 64 bits."""
    if -_CACHED <= value < _CACHED:
        return _ENCODED[value]
    return _encode((value << 1) ^ (value >> 63))


def size_of_varint(value: int) -> int:
    """How many bytes `encode_varint` makes of a signed integer of at most 64 bits."""
    return (((value << 1) ^ (value >> 63)).bit_length() + 6) // 7 or 1


def _encode(rest: int) -> bytes:
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


_CACHED: Final = 2048
# Indexed from -2048 to 2047: a negative index counts from the list's end, where the negative values stand.
_ENCODED: Final = [_encode(n << 1) for n in range(_CACHED)] + [
    _encode((n << 1) ^ (n >> 63)) for n in range(-_CACHED, 0)
]
