"""What a message in HTP is to a partition: a record batch, or one in an envelope that names its partition.

An envelope, in network byte order:

| bytes | what |
|---|---|
| 0–1 | `KE` |
| 2 | version, 1 |
| 3 | kind: 0 is a batch; a reader passes over what it does not know |
| 4–7 | length of what follows the envelope |
| 8–11 | the partition |
| 12–15 | CRC-32C of the bytes before |

The batch has a checksum of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, Protocol

from crc32c import crc32c

from kclient.errors import CorruptRecordError
from kclient.htp.port import Framing, MessageInfo
from kclient.records import HEADER_SIZE, BatchInfo, RecordBatchFraming, iter_headers, read_header
from kclient.types import Buffer


class BatchFields(Protocol):
    """What is known of a batch."""

    @property
    def base_offset(self) -> int: ...

    @property
    def last_offset(self) -> int: ...

    @property
    def length(self) -> int: ...

    @property
    def max_timestamp(self) -> int: ...


Stored = tuple[BatchFields, memoryview]
"""A batch as it lies in what was pulled."""

_ENVELOPE: Final = Struct(">2sBBII")
_CRC: Final = Struct(">I")
_SIZE: Final = _ENVELOPE.size + _CRC.size
_MAGIC: Final = b"KE"
_VERSION: Final = 1
_BATCH: Final = 0


class Encoding(Protocol):
    """How batches become messages, and messages batches."""

    @property
    def framing(self) -> Framing:
        """How a store finds its way in these messages."""
        ...

    def wrap(self, batch: Buffer) -> Buffer:
        """The message that holds a batch."""
        ...

    def batches(self, messages: Buffer) -> Iterator[Stored]:
        """The partition's batches in whole messages, in order."""
        ...

    def joined(self, messages: Buffer, before: Sequence[Stored], batches: Sequence[Stored]) -> Buffer:
        """Batches that follow on one another as one buffer.

        Args:
            messages: What they lie in.
            before: The batches that lie there before them.
            batches: The batches.
        """
        ...


class _Bare:
    """A batch is a message."""

    framing: Framing = RecordBatchFraming()

    def wrap(self, batch: Buffer) -> Buffer:
        """The batch itself."""
        return batch

    def batches(self, messages: Buffer) -> Iterator[Stored]:
        """All batches."""
        view = memoryview(messages)
        for position, header in iter_headers(messages):
            yield header, view[position : position + header.length]

    def joined(self, messages: Buffer, before: Sequence[Stored], batches: Sequence[Stored]) -> Buffer:
        """A part of the buffer: nothing is copied."""
        begin = sum(header.length for header, _ in before)
        return memoryview(messages)[begin : begin + sum(header.length for header, _ in batches)]


BARE: Final[Encoding] = _Bare()


class Enveloped:
    """A batch in an envelope: several partitions may share a topic.

    Args:
        partition: Whose batches these are.
    """

    def __init__(self, partition: int) -> None:
        self.framing: Framing = EnvelopeFraming()
        self._partition = partition

    def wrap(self, batch: Buffer) -> bytes:
        """The batch in its envelope."""
        head = _ENVELOPE.pack(_MAGIC, _VERSION, _BATCH, len(batch), self._partition)
        return b"".join((head, _CRC.pack(crc32c(head)), batch))

    def batches(self, messages: Buffer) -> Iterator[Stored]:
        """Those of the partition."""
        view, position = memoryview(messages), 0
        while position < len(view):
            kind, length, partition = _open(view, position)
            begin = position + _SIZE
            if kind == _BATCH and partition == self._partition:
                header = read_header(view, begin)
                if header.length != length:
                    raise CorruptRecordError(
                        f"the envelope at {position} holds {length} bytes, its batch {header.length}"
                    )
                yield header, view[begin : begin + length]
            position = begin + length

    def joined(self, messages: Buffer, before: Sequence[Stored], batches: Sequence[Stored]) -> bytes:
        """A copy, without envelopes."""
        return b"".join(batch for _, batch in batches)


def batch_in(envelope: Buffer) -> tuple[int, memoryview] | None:
    """The partition and the batch that an envelope holds; None for one of a kind that this version does not know.

    Raises:
        CorruptRecordError: It is damaged, or none.
    """
    kind, length, partition = _open(envelope, 0)
    return (partition, memoryview(envelope)[_SIZE : _SIZE + length]) if kind == _BATCH else None


def _open(buffer: Buffer, position: int) -> tuple[int, int, int]:
    """Kind, length of the content, and partition of the envelope at `position`."""
    if len(buffer) - position < _SIZE:
        raise CorruptRecordError(f"there are {len(buffer) - position} bytes at {position}, an envelope has {_SIZE}")
    magic, version, kind, length, partition = _ENVELOPE.unpack_from(buffer, position)
    (crc,) = _CRC.unpack_from(buffer, position + _ENVELOPE.size)
    if magic != _MAGIC or version != _VERSION:
        raise CorruptRecordError(f"expected an envelope of version {_VERSION} at {position}, got {magic} {version}")
    if crc32c(memoryview(buffer)[position : position + _ENVELOPE.size]) != crc:
        raise CorruptRecordError(f"the envelope at {position} is damaged: its checksum is that of something else")
    return kind, length, partition


class EnvelopeFraming:
    """How a store finds its way among envelopes, of all partitions."""

    name: str = "kclient.envelope.v1"
    prefix: int = _SIZE + HEADER_SIZE

    def __init__(self) -> None:
        self._batches: Framing = RecordBatchFraming()

    def measure(self, buffer: Buffer, position: int = 0, /) -> int:
        """Length of the envelope with its content."""
        try:
            _, length, _ = _open(buffer, position)
        except CorruptRecordError as error:
            raise ValueError(str(error)) from error
        return _SIZE + length

    def inspect(self, buffer: Buffer, position: int = 0, /) -> MessageInfo:
        """What the batch says of itself, and the length of the whole; nothing else of what is no batch."""
        kind, length, _ = _open(buffer, position)
        if kind != _BATCH:
            return BatchInfo(_SIZE + length, 0, 0, -1)
        found = self._batches.inspect(buffer, position + _SIZE)
        return BatchInfo(_SIZE + length, found.first, found.last, found.max_timestamp)

    def verify(self, buffer: Buffer, position: int = 0, /) -> bool:
        """Whether the envelope and the batch in it are whole."""
        try:
            kind, length, _ = _open(buffer, position)
            begin, end = position + _SIZE, position + _SIZE + length
            if end > len(buffer) or kind != _BATCH:
                return end <= len(buffer)
            return self._batches.measure(buffer, begin) == length and self._batches.verify(buffer, begin)
        except (ValueError, CorruptRecordError):
            return False
