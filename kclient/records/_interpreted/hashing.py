"""The hashes that give a key its partition."""

from __future__ import annotations

from struct import Struct

from kclient.records.arguments import as_bytes, check_partitions
from kclient.records.bounds import INT32_MAX
from kclient.types import Buffer

_WORD = Struct("<I")
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: Buffer) -> int:
    """The 32-bit hash of Java's `Utils.murmur2`, signed.

    Raises:
        TypeError: The data are not bytes, bytearray or memoryview.
    """
    data = as_bytes(data, "key", nullable=False)
    length = len(data)
    value = (0x9747B28C ^ length) & _MASK
    whole = length & ~3
    for (k,) in _WORD.iter_unpack(data[:whole]):
        k = k * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        value = (value * _M & _MASK) ^ k
    if whole < length:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    value = (value ^ value >> 13) * _M & _MASK
    value ^= value >> 15
    return value - (1 << 32) if value > INT32_MAX else value


def fnv1a(data: Buffer) -> int:
    """FNV-1a with 32 bits; its absolute value where that is negative as a signed number, as Sarama has it.

    Raises:
        TypeError: The data are not bytes, bytearray or memoryview.
    """
    value = 0x811C9DC5
    for byte in memoryview(as_bytes(data, "key", nullable=False)).cast("B"):
        value = (value ^ byte) * 0x01000193 & _MASK
    return (1 << 32) - value if value > INT32_MAX else value


def partition_for_key(key: Buffer, partitions: int) -> int:
    """The partition that Java's default partitioner gives a record with this (serialized) key.

    Raises:
        TypeError: The key is not bytes, bytearray or memoryview, or `partitions` no integer.
        ValueError: `partitions` is not positive, or beyond 31 bits.
    """
    partitions = check_partitions(partitions)
    return (murmur2(key) & 0x7FFFFFFF) % partitions
