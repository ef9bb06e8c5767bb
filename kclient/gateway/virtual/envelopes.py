"""Messages of a topic that partitions share: a record batch in an envelope that tells whose it is, and its ordinal.

An envelope, in network byte order:

| bytes | what |
|---|---|
| 0–1 | `KE` |
| 2 | version, 2 |
| 3 | kind: 0 is a batch; a reader passes over what it does not know |
| 4–7 | length of what follows the envelope |
| 8–11 | the partition |
| 12–19 | the ordinal: messages of the topic are numbered, whatever partition they belong to |
| 20–23 | CRC-32C of the bytes before |

The batch has a checksum of its own. Version 3, without an ordinal, is that of `gateway/extents/encoding.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from kclient.errors import CorruptRecordError, IllegalStateError
from kclient.gateway.extents.encoding import Encoding, Enveloped, EnvelopeFraming, Stored
from kclient.htp.port import Framing, MessageInfo
from kclient.large_buffers import SMALLEST
from kclient.records import HEADER_SIZE, BatchInfo, EnvelopeLayout, RecordBatchFraming
from kclient.types import Buffer

__all__ = [
    "LAYOUT", "ORDINALS", "SIZE", "FoundBatch", "OrdinalFraming", "OrdinalsInEnvelopes", "batch_with_ordinal",
    "found_as", "found_in", "last_offset_at", "ordinals_with_epochs", "wrap",
]  # fmt: skip

_HEAD: Final = Struct(">IIIQ")
_CRC: Final = Struct(">I")
SIZE: Final = _HEAD.size + _CRC.size
"""Bytes of an envelope."""
_BATCH: Final = int.from_bytes(b"KE\x02\x00")
"""Magic, version and kind of an envelope with a batch."""
_KINDS: Final = 0xFF
_START: Final = Struct(">II")
_LOOK: Final = Struct(">IIIQIqi4xb6xi8xq")
"""An envelope; and base offset, length, magic, last offset delta and greatest timestamp of the batch in it."""
LAYOUT: Final = EnvelopeLayout(SIZE, _BATCH, _KINDS, length_at=4, key_at=8, number_at=12)
"""What an envelope looks like: partitions are keys, ordinals numbers."""
_REST: Final = 12
"""Bytes of a batch that its length does not count."""
_LOOK_BARE: Final = Struct(">qi4xb6xi8xq")
"""The same of a batch without an envelope."""
_DELTA: Final = Struct(">q15xi")
_MAGIC: Final = 2


def wrap(
    partition: int, ordinal: int, batch: Buffer, take: Callable[[int], bytearray | memoryview] = bytearray
) -> Buffer:
    """The message that holds a partition's batch.

    Args:
        partition: Its number.
        ordinal: Of the message.
        batch: The batch.
        take: Gives a buffer of a size for a large one.
    """
    head = _HEAD.pack(_BATCH, len(batch), partition, ordinal)
    if len(batch) < SMALLEST:
        return b"".join((head, _CRC.pack(crc32c(head)), batch))
    message = take(SIZE + len(batch))
    message[: len(head)] = head
    message[len(head) : SIZE] = _CRC.pack(crc32c(head))
    message[SIZE:] = batch
    return message


def last_offset_at(buffer: Buffer, place: int) -> int:
    """The last offset of the batch at a place."""
    offset, delta = _DELTA.unpack_from(buffer, place)
    return int(offset + delta)


class FoundBatch(NamedTuple):
    """A batch among the messages of a topic."""

    partition: int
    ordinal: int
    offset: int
    last_offset: int
    size: int
    max_timestamp: int


def found_as(partition: int, batch: Buffer) -> FoundBatch:
    """What a batch is that is to be sent, and has no ordinal yet.

    Raises:
        ValueError: It is none, or not the whole buffer.
    """
    if len(batch) < HEADER_SIZE:
        raise ValueError(f"{len(batch)} bytes are not a batch")
    offset, inner, magic, delta, stamp = _LOOK_BARE.unpack_from(batch)
    length = inner + _REST
    if length != len(batch) or magic != _MAGIC:
        raise ValueError(f"a batch of {length} bytes and format {magic} was sent in a buffer of {len(batch)}")
    return FoundBatch(partition, 0, offset, offset + delta, length, stamp)


def found_in(messages: Buffer, ordinal: int) -> Iterator[FoundBatch]:
    """The batches among whole messages; envelopes are checked.

    Args:
        messages: As a store gives them.
        ordinal: Of the first.

    Raises:
        CorruptRecordError: One is damaged, or not the one that is due.
    """
    place, size = 0, len(messages)
    while place < size:
        found, length = _look(messages, place, ordinal)
        place += length
        if place > size:
            raise CorruptRecordError(f"message {ordinal} is cut off")
        if found is not None:
            yield found
        ordinal += 1


def batch_with_ordinal(message: Buffer) -> tuple[int, memoryview] | None:
    """The partition and the batch that a message holds; None for one of another kind.

    Raises:
        CorruptRecordError: It is damaged, or none.
    """
    found, length = _look(message, 0)
    return None if found is None else (found.partition, memoryview(message)[SIZE:length])


def _look(buffer: Buffer, place: int, ordinal: int | None = None) -> tuple[FoundBatch | None, int]:
    """What is in an envelope, None for another kind than a batch; and its length with that."""
    if len(buffer) - place < SIZE + HEADER_SIZE:
        raise CorruptRecordError(f"{len(buffer) - place} bytes at {place} are not an envelope with a batch")
    word, length, partition, at, crc, offset, inner, magic, delta, stamp = _LOOK.unpack_from(buffer, place)
    if crc32c(memoryview(buffer)[place : place + _HEAD.size]) != crc or word ^ _BATCH > _KINDS:
        raise CorruptRecordError(f"the envelope at {place} is damaged, or none")
    if ordinal is not None and at != ordinal:
        raise CorruptRecordError(f"the message at {place} is number {at}, and {ordinal} is due")
    if word != _BATCH:
        return None, SIZE + length
    if inner + _REST != length or magic != _MAGIC:
        raise CorruptRecordError(f"the envelope at {place} holds {length} bytes, its batch says {inner + _REST}")
    return FoundBatch(partition, at, offset, offset + delta, length, stamp), SIZE + length


class OrdinalFraming:
    """How a store finds its way among these messages: their ordinals are in the envelopes."""

    name: str = "kclient.envelope.v2"
    prefix: int = SIZE + HEADER_SIZE

    def __init__(self) -> None:
        self._batches: Framing = RecordBatchFraming()

    def measure(self, buffer: Buffer, position: int = 0, /) -> int:
        """Length of the envelope with its content."""
        if len(buffer) - position < SIZE:
            raise ValueError(f"{len(buffer) - position} bytes at {position} are not an envelope")
        word, length = _START.unpack_from(buffer, position)
        if word ^ _BATCH > _KINDS or length < HEADER_SIZE:
            raise ValueError(f"no envelope of version 2 begins at {position}")
        return SIZE + int(length)

    def inspect(self, buffer: Buffer, position: int = 0, /) -> MessageInfo:
        """The ordinal, the length of the whole, and the greatest timestamp of the batch."""
        if len(buffer) - position < SIZE + HEADER_SIZE:
            raise ValueError(f"{len(buffer) - position} bytes at {position} are not an envelope with a batch")
        word, length, _, ordinal, _, _, inner, magic, _, stamp = _LOOK.unpack_from(buffer, position)
        if word != _BATCH:
            return BatchInfo(self.measure(buffer, position), ordinal, ordinal, -1)
        if inner + _REST != length or magic != _MAGIC:
            raise ValueError(f"the envelope at {position} holds {length} bytes, its batch says {inner + _REST}")
        return BatchInfo(SIZE + length, ordinal, ordinal, stamp)

    def verify(self, buffer: Buffer, position: int = 0, /) -> bool:
        """Whether the envelope and the batch in it are whole."""
        try:
            found, length = _look(buffer, position)
            if position + length > len(buffer):
                return False
            return found is None or self._batches.verify(buffer, position + SIZE)
        except (ValueError, CorruptRecordError):
            return False


class _Ordinal(NamedTuple):
    """A message as what is kept in extents: its ordinal is its offset."""

    base_offset: int
    last_offset: int
    length: int
    max_timestamp: int


class _Ordinals:
    """Messages in envelopes as what is kept in extents, where a store has positions of its own."""

    framing: Framing = OrdinalFraming()

    def wrap(self, batch: Buffer) -> Buffer:
        """The message itself."""
        return batch

    def room(self, batches: int) -> int:
        """As many."""
        return batches

    def batches(self, messages: Buffer, epoch: int = 0) -> Iterator[Stored]:
        """All messages."""
        view, place, inspect = memoryview(messages), 0, self.framing.inspect
        while place < len(view):
            info = inspect(view, place)
            length = info.length
            yield _Ordinal(info.first, info.last, length, info.max_timestamp), view[place : place + length]
            place += length

    def joined(self, messages: Buffer, before: Sequence[Stored], batches: Sequence[Stored]) -> Buffer:
        """A part of the buffer: nothing is copied."""
        begin = sum(header.length for header, _ in before)
        return memoryview(messages)[begin : begin + sum(header.length for header, _ in batches)]

    def epoch_start(self, now_ms: int) -> Buffer:
        """There is no such message."""
        raise IllegalStateError("an envelope with an ordinal starts no epoch")

    def newest_start(self, messages: Buffer) -> int:
        """None does."""
        return -1

    def overtaken(self, messages: Buffer, epoch: int) -> Iterable[int]:
        """There are none."""
        return ()


ORDINALS: Final[Encoding] = _Ordinals()
"""Encodes nothing: the messages have their envelopes already."""


class OrdinalsInEnvelopes(EnvelopeFraming):
    """How a store that cannot fence finds its way among these messages, each in an envelope that tells its epoch."""

    name: str = "kclient.envelope.v3.ordinals"

    def __init__(self) -> None:
        self._batches: Framing = OrdinalFraming()


def ordinals_with_epochs(topic_id: bytes, partition: int, epoch: int) -> Encoding:
    """What a message is to a store that cannot fence."""
    return Enveloped(topic_id, partition, epoch, ORDINALS, OrdinalsInEnvelopes())
