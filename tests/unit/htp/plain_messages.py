"""A framing of messages that has nothing to do with Kafka: length, ordinals, a timestamp, a CRC, a payload."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple
from zlib import crc32

from kclient.htp import Topic
from kclient.types import Buffer

_HEAD = Struct(">IqqqI")  # length of the whole message, first, last, timestamp, CRC of all else


class Info(NamedTuple):
    length: int
    first: int
    last: int
    max_timestamp: int


class PlainFraming:
    """The length comes first, so four bytes measure a message."""

    name = "tests.plain"
    prefix = 4

    def measure(self, buffer: Buffer, position: int = 0, /) -> int:
        length = int.from_bytes(memoryview(buffer)[position : position + 4], "big")
        if length < _HEAD.size:
            raise ValueError(f"a message of {length} bytes")
        return length

    def inspect(self, buffer: Buffer, position: int = 0, /) -> Info:
        length, first, last, timestamp, _ = _HEAD.unpack_from(buffer, position)
        return Info(length, first, last, timestamp)

    def verify(self, buffer: Buffer, position: int = 0, /) -> bool:
        if len(buffer) - position < _HEAD.size:
            return False
        length, first, last, timestamp, crc = _HEAD.unpack_from(buffer, position)
        if not _HEAD.size <= length <= len(buffer) - position:
            return False
        payload = bytes(memoryview(buffer)[position + _HEAD.size : position + length])
        return crc == _crc(length, first, last, timestamp, payload)


FRAMING = PlainFraming()
OVERHEAD = _HEAD.size


def message(first: int, payload: bytes = b"", *, count: int = 1, timestamp: int = -1) -> bytes:
    """A message of `count` ordinals."""
    length = _HEAD.size + len(payload)
    last = first + count - 1
    crc = _crc(length, first, last, timestamp, payload)
    return _HEAD.pack(length, first, last, timestamp, crc) + payload


def _crc(length: int, first: int, last: int, timestamp: int, payload: bytes) -> int:
    return crc32(_HEAD.pack(length, first, last, timestamp, 0) + payload)


def split(data: Buffer) -> list[tuple[int, int, bytes]]:
    """First and last ordinal and payload of each message in a buffer; asserts that all are whole."""
    found = []
    position = 0
    while position < len(data):
        assert FRAMING.verify(data, position), f"torn at {position} of {len(data)}"
        info = FRAMING.inspect(data, position)
        payload = bytes(memoryview(data)[position + _HEAD.size : position + info.length])
        found.append((info.first, info.last, payload))
        position += info.length
    assert position == len(data)
    return found


def payloads(data: Buffer) -> list[bytes]:
    """The payloads in a buffer."""
    return [payload for _, _, payload in split(data)]


TOPIC = Topic("domain", "some/topic")
OTHER = Topic("domain", "other")
