"""The messages that the contract's tests send: length, ordinals, a timestamp, a CRC, a payload; nothing of Kafka."""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from kclient.types import Buffer

__all__ = ["FRAMING", "OTHER_FRAMING", "OVERHEAD", "ContractFraming", "ContractInfo", "message", "payloads", "split"]

_HEAD: Final = Struct(">IqqqI")  # length of the whole message, first, last, timestamp, CRC of all else


class ContractInfo(NamedTuple):
    """What a message says of itself."""

    length: int
    first: int
    last: int
    max_timestamp: int


class ContractFraming:
    """The length comes first, so four bytes measure a message."""

    name: str = "kclient.contract.v1"
    prefix: int = 4

    def measure(self, buffer: Buffer, position: int = 0, /) -> int:
        """Length of the message at `position`."""
        length = int.from_bytes(memoryview(buffer)[position : position + 4], "big")
        if length < _HEAD.size:
            raise ValueError(f"a message of {length} bytes")
        return length

    def inspect(self, buffer: Buffer, position: int = 0, /) -> ContractInfo:
        """What the message at `position` says of itself."""
        length = self.measure(buffer, position)
        if len(buffer) - position < _HEAD.size:
            raise ValueError(f"{len(buffer) - position} bytes are not a message")
        _, first, last, timestamp, _ = _HEAD.unpack_from(buffer, position)
        return ContractInfo(length, first, last, timestamp)

    def verify(self, buffer: Buffer, position: int = 0, /) -> bool:
        """Whether the message at `position` is whole and its CRC right."""
        if len(buffer) - position < _HEAD.size:
            return False
        length, first, last, timestamp, crc = _HEAD.unpack_from(buffer, position)
        if not _HEAD.size <= length <= len(buffer) - position:
            return False
        payload = bytes(memoryview(buffer)[position + _HEAD.size : position + length])
        return bool(crc == _crc(length, first, last, timestamp, payload))


class _OtherFraming(ContractFraming):
    name = "kclient.contract.other"


FRAMING: Final = ContractFraming()
OTHER_FRAMING: Final[ContractFraming] = _OtherFraming()
"""Reads the same, and has another name: a topic that was opened with one of them is not opened with the other."""
OVERHEAD: Final[int] = _HEAD.size
"""Bytes of a message beside its payload."""


def message(first: int, payload: bytes = b"", *, count: int = 1, timestamp: int = -1) -> bytes:
    """A message of `count` ordinals from `first` on; `timestamp` in milliseconds."""
    length = _HEAD.size + len(payload)
    last = first + count - 1
    return _HEAD.pack(length, first, last, timestamp, _crc(length, first, last, timestamp, payload)) + payload


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
