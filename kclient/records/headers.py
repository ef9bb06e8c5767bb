"""Reading buffers of batches by their headers, whichever format each is in: the byte at position 16 tells."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

from kclient.errors import CorruptRecordError
from kclient.records.arguments import as_buffer, check_position
from kclient.records.batch_header import (
    CURRENT_MAGIC,
    HEADER_SIZE,
    BatchHeader,
    check_count,
    check_crc,
    read_batch_header,
    truncated,
)
from kclient.records.message_header import (
    MESSAGE_HEADER_SIZE,
    MESSAGE_OVERHEAD,
    check_message_crc,
    fields_of,
    read_message_header,
)
from kclient.types import Buffer

_MAGIC_AT: Final = 16
_OFFSET: Final = Struct(">q")


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header of the batch, or of the message of an old format, at `position`.

    Only the header needs to be there: 61 bytes of a batch, 26 bytes of a message.

    Args:
        buffer: Bytes in which the batch or message is.
        position: Where it begins.

    Raises:
        CorruptRecordError: The header is truncated or makes no sense.
        TypeError: An argument is of a wrong type.
        ValueError: The position is negative.
    """
    return _header_at(as_buffer(buffer), check_position(position))


def _header_at(buffer: Buffer, position: int) -> BatchHeader:
    left = len(buffer) - position
    if left <= _MAGIC_AT:
        raise truncated(buffer, position, HEADER_SIZE)
    magic = buffer[position + _MAGIC_AT]
    if magic == CURRENT_MAGIC:
        if left < HEADER_SIZE:
            raise truncated(buffer, position, HEADER_SIZE)
        return read_batch_header(buffer, position)
    if magic > CURRENT_MAGIC:
        raise _unknown_magic(buffer, position)
    if left < MESSAGE_HEADER_SIZE:
        raise truncated(buffer, position, MESSAGE_OVERHEAD[magic])
    return read_message_header(buffer, position)


def iter_headers(buffer: Buffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole batch from `position` on; a partial batch at the end is left out.

    Formats may be mixed, as a fetch from an upgraded broker's log returns them. Each message of the formats v0 and v1
    counts as a batch, a compressed one with everything inside.

    Args:
        buffer: Record batches and message sets, in any mixture.
        position: Where the first one begins.

    Raises:
        CorruptRecordError: A header makes no sense; raised when it is its turn.
        TypeError: An argument is of a wrong type.
        ValueError: The position is negative.
    """
    return _headers_from(as_buffer(buffer), check_position(position))


def _headers_from(buffer: Buffer, position: int) -> Iterator[tuple[int, BatchHeader]]:
    end = len(buffer)
    while (header := next_header(buffer, position, end)) is not None:
        yield position, header
        position += header.length


def next_header(buffer: Buffer, position: int, end: int) -> BatchHeader | None:
    """Header of the batch at `position`, if it is whole before `end`.

    Raises:
        CorruptRecordError: The header makes no sense.
    """
    if end - position <= _MAGIC_AT:
        return None
    magic = buffer[position + _MAGIC_AT]
    if magic == CURRENT_MAGIC:
        if end - position < HEADER_SIZE:
            return None
        header = read_batch_header(buffer, position)
    elif magic > CURRENT_MAGIC:
        raise _unknown_magic(buffer, position)
    else:
        if end - position < MESSAGE_HEADER_SIZE:
            return None
        header = read_message_header(buffer, position)
    return header if header.length <= end - position else None


def check_batch(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Header of the batch at `position`, once the batch is whole, makes sense and has the right checksum.

    The records themselves are not looked at, nor the messages inside a compressed message of an old format.

    Args:
        buffer: Bytes in which the batch or message is.
        position: Where it begins.

    Raises:
        CorruptRecordError: The batch is truncated, makes no sense, or has a wrong checksum.
        TypeError: An argument is of a wrong type.
        ValueError: The position is negative.
    """
    buffer, position = as_buffer(buffer), check_position(position)
    header = _header_at(buffer, position)
    if header.length > len(buffer) - position:
        raise truncated(buffer, position, header.length)
    if header.magic != CURRENT_MAGIC:
        check_message_crc(buffer, position, header)
        fields_of(buffer, position, header)
        return header
    check_found(buffer, position, header)
    return header


def check_found(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """As `check_batch` of a whole batch v2, whose header was read already; nothing else is looked at.

    Raises:
        CorruptRecordError: It makes no sense, or has a wrong checksum.
    """
    check_crc(buffer, position, header)
    if not header.compression:
        check_count(header, position, header.length - HEADER_SIZE)


def _unknown_magic(buffer: Buffer, position: int) -> CorruptRecordError:
    (offset,) = _OFFSET.unpack_from(buffer, position)
    return CorruptRecordError(
        f"The batch at offset {offset} is corrupt: there is no message format v{buffer[position + _MAGIC_AT]} "
        f"(position {position}).",
        offset=offset,
        position=position,
    )
