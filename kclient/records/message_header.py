"""One message of the formats v0 and v1: reading, checking and writing its fields.

Layout (big-endian; v0 was Kafka's until 0.9, v1 came with 0.10 and KIP-32):

    byte  0  offset           int64    assigned by the broker, outside the checksum
    byte  8  size             int32    bytes that follow this field
    byte 12  CRC-32           uint32   of byte 16 to the message's end
    byte 16  magic            int8     0 or 1
    byte 17  attributes       int8     bits 0-2 compression, 3 timestamp type (v1)
    byte 18  timestamp        int64    v1 only: milliseconds, or -1
    then     key length       int32    -1: null
             key
             value length     int32    -1: null
             value                     of a compressed message: the messages inside, one behind another
"""

from __future__ import annotations

from struct import Struct
from typing import Final
from zlib import crc32

from kclient.errors import CorruptRecordError
from kclient.records.batch_header import (
    MEASURE_SIZE,
    BatchHeader,
    CompressionType,
    absurd_length,
)
from kclient.records.bounds import INT64_MAX
from kclient.types import Buffer

MESSAGE_HEADER_SIZE: Final = 26
"""Bytes in front of a message's key at most, and what the smallest message has."""
MESSAGE_OVERHEAD: Final = (26, 34)
"""Bytes of a message without those of its key and value, by format."""
_GREATEST_MESSAGE_COMPRESSION: Final = CompressionType.LZ4
"""zstd came with record batches (KIP-110)."""
LOG_APPEND_TIME: Final = 0x08

_FIELDS: Final = (Struct(">qiIbb"), Struct(">qiIbbq"))
_KEYS_AT: Final = (18, 26)
_KNOWN_ATTRIBUTES: Final = (0x07, 0x0F)
_BODY: Final = (Struct(">bbi"), Struct(">bbqi"))
_FRONT: Final = Struct(">qiI")
_LENGTH: Final = Struct(">i")
_CRC_SIZE: Final = 4
_CHECKED_AT: Final = 16
_COMPRESSION_MASK: Final = 0x07
_NULL: Final = _LENGTH.pack(-1)
# Skips the named arguments of a NamedTuple's constructor, as a header is made for every message.
_new_header: Final = tuple.__new__


def read_message_header(buffer: Buffer, position: int, *, any_offset: bool = False) -> BatchHeader:
    """The header of the message at `position`, of which 26 bytes are known to be there, in format v0 or v1.

    Args:
        buffer: Where it is.
        position: Of its first byte.
        any_offset: Whether its offset means nothing, as in what a producer sends.

    Raises:
        CorruptRecordError: The header makes no sense.
    """
    magic = buffer[position + _CHECKED_AT]
    offset, size, crc, _, attributes, *stamp = _FIELDS[magic].unpack_from(buffer, position)
    length = size + MEASURE_SIZE
    if length < MESSAGE_OVERHEAD[magic]:
        raise absurd_length(offset, size, position)
    attributes &= _KNOWN_ATTRIBUTES[magic]
    codec = attributes & _COMPRESSION_MASK
    if codec > _GREATEST_MESSAGE_COMPRESSION or not (any_offset or 0 <= offset < INT64_MAX):
        raise message_error(f"its header is invalid (attributes {attributes:#04x})", offset, position)
    timestamp = stamp[0] if stamp else -1
    fields = (offset, length, -1, magic, crc, attributes, 0, timestamp, timestamp, -1, -1, -1, -1 if codec else 1)
    return _new_header(BatchHeader, fields)


def check_message_crc(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Compare the checksum of the whole message at `position` with that in its header.

    Raises:
        CorruptRecordError: They differ.
    """
    computed = crc32(memoryview(buffer)[position + _CHECKED_AT : position + header.length])
    if computed != header.crc:
        text = f"its checksum is {computed:#010x} and should be {header.crc:#010x}"
        raise message_error(text, header.base_offset, position)


def fields_of(buffer: Buffer, position: int, header: BatchHeader) -> tuple[int, int, int, int]:
    """Start and length of key and value of the whole message at `position`; the length of what is null is -1.

    Raises:
        CorruptRecordError: They do not fill the message.
    """
    end = position + header.length
    key_at = position + _KEYS_AT[header.magic] + _LENGTH.size
    (key_size,) = _LENGTH.unpack_from(buffer, key_at - _LENGTH.size)
    if not -1 <= key_size <= end - key_at - _LENGTH.size:
        raise message_error("the length of its key is impossible", header.base_offset, position)
    value_at = key_at + max(key_size, 0) + _LENGTH.size
    (value_size,) = _LENGTH.unpack_from(buffer, value_at - _LENGTH.size)
    if value_size < -1 or value_at + max(value_size, 0) != end:
        raise message_error("the length of its value is impossible", header.base_offset, position)
    return key_at, key_size, value_at, value_size


def encode_message(
    magic: int, offset: int, timestamp: int, attributes: int, key: Buffer | None, value: Buffer | None
) -> bytes:
    """A message; format v0 has no room for the timestamp."""
    length = -1 if key is None else len(key)
    front = _BODY[1].pack(1, attributes, timestamp, length) if magic else _BODY[0].pack(0, attributes, length)
    body = b"".join((front, key or b"", _NULL if value is None else _LENGTH.pack(len(value)), value or b""))
    return _FRONT.pack(offset, len(body) + _CRC_SIZE, crc32(body)) + body


def message_error(text: str, offset: int, position: int) -> CorruptRecordError:
    """The exception for a message that makes no sense."""
    return CorruptRecordError(
        f"The message at offset {offset} is corrupt: {text} (position {position}).", offset=offset, position=position
    )
