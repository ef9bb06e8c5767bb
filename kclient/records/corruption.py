"""What can be wrong inside the records of a batch, and the exceptions for it.

Both implementations look at the same things in the same order and report a corruption by its number and place, so
that their errors are equal to the letter.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from kclient.errors import CorruptRecordError, RecordDeserializationError

if TYPE_CHECKING:
    from kclient.records.batch_header import BatchHeader


class Corruption(IntEnum):
    """A reason why records cannot be read."""

    TRUNCATED = 1
    VARINT = 2
    RECORD_LENGTH = 3
    TIMESTAMP = 4
    OFFSET_DELTA = 5
    KEY_LENGTH = 6
    VALUE_LENGTH = 7
    HEADER_COUNT = 8
    HEADER_KEY_LENGTH = 9
    HEADER_VALUE_LENGTH = 10
    RECORD_REMAINDER = 11
    BATCH_REMAINDER = 12


_TEXTS = {
    Corruption.TRUNCATED: "it ends within a field",
    Corruption.VARINT: "a number of variable length is too long",
    Corruption.RECORD_LENGTH: "its length is impossible",
    Corruption.TIMESTAMP: "its timestamp is out of range",
    Corruption.OFFSET_DELTA: "its offset is not within the batch",
    Corruption.KEY_LENGTH: "the length of its key is impossible",
    Corruption.VALUE_LENGTH: "the length of its value is impossible",
    Corruption.HEADER_COUNT: "its number of headers is impossible",
    Corruption.HEADER_KEY_LENGTH: "the length of a header's key is impossible",
    Corruption.HEADER_VALUE_LENGTH: "the length of a header's value is impossible",
    Corruption.RECORD_REMAINDER: "it goes on behind its last field",
    Corruption.BATCH_REMAINDER: "data follow the last record",
}


def record_error(corruption: int, header: BatchHeader, position: int, index: int, byte: int) -> CorruptRecordError:
    """The exception for a corruption in a batch's records.

    Args:
        corruption: A `Corruption`.
        header: The batch's header.
        position: Where the batch begins in the buffer that was read.
        index: Which record of the batch, counted from 0.
        byte: Where the faulty field begins, counted from the start of the (decompressed) records.
    """
    return CorruptRecordError(
        f"Record {index} of the batch at offset {header.base_offset} is corrupt: {_TEXTS[Corruption(corruption)]} "
        f"(byte {byte} of the records, batch at position {position}).",
        offset=header.base_offset,
        position=position,
    )


def deserialization_error(what: str, topic: str, partition: int, offset: int) -> RecordDeserializationError:
    """The exception for a key or value that the user's deserializer refused; raise it from the cause."""
    return RecordDeserializationError(
        f"The {what} of the record at offset {offset} of {topic}-{partition} cannot be deserialized; seek to offset "
        f"{offset + 1} to go on without it.",
        topic=topic,
        partition=partition,
        offset=offset,
    )
