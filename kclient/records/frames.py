"""What lz4 and zstd tell of their frames themselves: whether Java reads an lz4 frame, whether zstd's last one ends."""

from __future__ import annotations

from struct import Struct, error
from typing import Final

from kclient.types import Buffer

_UINT32: Final = Struct("<I")

_LZ4_MAGIC: Final = 0x184D2204
_LZ4_FLAGS_AT: Final = 4
_LZ4_INDEPENDENT: Final = 0x20
_LZ4_DICTIONARY: Final = 0x01

_SKIPPABLE: Final = 0x184D2A50
_SKIPPABLE_MASK: Final = 0xFFFFFFF0
_ZSTD_DICTIONARY_BYTES: Final = (0, 1, 2, 4)
_ZSTD_SIZE_BYTES: Final = (0, 2, 4, 8)
_ZSTD_ONE_SEGMENT: Final = 0x20
_ZSTD_CHECKSUM: Final = 0x04
_RLE_BLOCK: Final = 1


def check_lz4_frame(data: Buffer) -> None:
    """Refuse an lz4 frame that Java cannot read: one that may be skipped, or whose blocks depend on each other.

    Raises:
        EOFError: It is such a one, or none.
    """
    if len(data) <= _LZ4_FLAGS_AT or _UINT32.unpack_from(data)[0] != _LZ4_MAGIC:
        raise EOFError("the data do not begin with an lz4 frame")
    flags = data[_LZ4_FLAGS_AT]
    if flags & _LZ4_DICTIONARY or not flags & _LZ4_INDEPENDENT:
        what = "needs a dictionary" if flags & _LZ4_DICTIONARY else "has blocks that depend on each other"
        raise EOFError(f"the frame {what}, which Java's clients cannot read")


def check_zstd_end(data: Buffer) -> None:
    """Refuse zstd frames whose last one is not whole, once all that they hold was decompressed.

    Raises:
        EOFError: It is not.
    """
    position = 0
    try:
        while position < len(data):
            position = _zstd_frame_end(data, position)
    except (error, IndexError):
        position = len(data) + 1
    if position > len(data):
        raise EOFError("the data end too early")


def _zstd_frame_end(data: Buffer, position: int) -> int:
    (magic,) = _UINT32.unpack_from(data, position)
    if magic & _SKIPPABLE_MASK == _SKIPPABLE:
        (size,) = _UINT32.unpack_from(data, position + 4)
        return position + 8 + int(size)
    position += 4
    descriptor = data[position]
    one_segment = descriptor & _ZSTD_ONE_SEGMENT
    size_bytes = _ZSTD_SIZE_BYTES[descriptor >> 6] or (1 if one_segment else 0)
    position += 1 + (0 if one_segment else 1) + _ZSTD_DICTIONARY_BYTES[descriptor & 3] + size_bytes
    last = 0
    while not last:
        head = data[position] | data[position + 1] << 8 | data[position + 2] << 16
        last = head & 1
        position += 3 + (1 if head >> 1 & 3 == _RLE_BLOCK else head >> 3)
    return position + (4 if descriptor & _ZSTD_CHECKSUM else 0)
