"""What a message in HTP is to a partition: a record batch, or one in an envelope that names its partition.

An envelope, in network byte order:

| bytes | what |
|---|---|
| 0–1 | `KE` |
| 2 | version, 3: the second is that of `gateway/virtual/`, which is for several partitions |
| 3 | kind: 0 is a batch, 1 the start of an epoch; a reader passes over what it does not know |
| 4–7 | length of what follows the envelope |
| 8–11 | the partition |
| 12–15 | the leader epoch of whoever sent it |
| 16–23 | the first half of the topic's id: a topic of the same name that was deleted has another one |
| 24–27 | CRC-32C of the bytes before |

A batch has a checksum of its own. What follows the envelope of an epoch's start is the time when it was written, eight
bytes, in milliseconds since the epoch; no reader needs it.

Behind the start of an epoch, and behind a batch of it, what was sent under an older one is passed over: a store that
cannot fence has kept it though its sender led no longer, or was told that it is not stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple, Protocol

from crc32c import crc32c

from kclient.errors import CorruptRecordError, IllegalStateError
from kclient.htp.port import Framing, MessageInfo
from kclient.records import BatchInfo, RecordBatchFraming, iter_headers
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

_ENVELOPE: Final = Struct(">2sBBIII8s")
_CRC: Final = Struct(">I")
_TIME: Final = Struct(">q")
_SIZE: Final = _ENVELOPE.size + _CRC.size
_MAGIC: Final = b"KE"
_VERSION: Final = 3
_BATCH: Final = 0
_EPOCH_START: Final = 1
_ID_BYTES: Final = 8


class _Envelope(NamedTuple):
    """What an envelope says."""

    kind: int
    length: int
    """Of what follows it."""
    partition: int
    epoch: int
    topic: bytes
    """The first half of the topic's id."""


class Encoding(Protocol):
    """How batches become messages, and messages batches."""

    @property
    def framing(self) -> Framing:
        """How a store finds its way in these messages."""
        ...

    def wrap(self, batch: Buffer) -> Buffer:
        """The message that holds a batch."""
        ...

    def room(self, batches: int) -> int:
        """So many bytes of messages hold so many bytes of batches, or a little more."""
        ...

    def batches(self, messages: Buffer, epoch: int = 0) -> Iterator[Stored]:
        """The partition's batches in whole messages, in order.

        Args:
            messages: As they were pulled.
            epoch: The newest that has started before them, where epochs are told: older batches are passed over.
        """
        ...

    def joined(self, messages: Buffer, before: Sequence[Stored], batches: Sequence[Stored]) -> Buffer:
        """Batches that follow on one another as one buffer.

        Args:
            messages: What they lie in.
            before: The batches that lie there before them.
            batches: The batches.
        """
        ...

    def epoch_start(self, now_ms: int) -> Buffer:
        """The message that starts the sender's epoch. Raises `IllegalStateError` where messages tell no epochs.

        Args:
            now_ms: The time in milliseconds since the epoch.
        """
        ...

    def newest_start(self, messages: Buffer) -> int:
        """The newest epoch of the partition that starts in whole messages; -1 if none does."""
        ...

    def overtaken(self, messages: Buffer, epoch: int) -> Iterable[int]:
        """The epochs of the partition behind whose start, or batches, something older lies in whole messages.

        Args:
            messages: As they were pulled.
            epoch: The newest that has started before them.
        """
        ...


class _Bare:
    """A batch is a message."""

    framing: Framing = RecordBatchFraming()

    def wrap(self, batch: Buffer) -> Buffer:
        """The batch itself."""
        return batch

    def room(self, batches: int) -> int:
        """As many."""
        return batches

    def batches(self, messages: Buffer, epoch: int = 0) -> Iterator[Stored]:
        """All batches."""
        view = memoryview(messages)
        for position, header in iter_headers(messages):
            yield header, view[position : position + header.length]

    def joined(self, messages: Buffer, before: Sequence[Stored], batches: Sequence[Stored]) -> Buffer:
        """A part of the buffer: nothing is copied."""
        begin = sum(header.length for header, _ in before)
        return memoryview(messages)[begin : begin + sum(header.length for header, _ in batches)]

    def epoch_start(self, now_ms: int) -> Buffer:
        """There is no such message."""
        raise IllegalStateError("a batch without an envelope starts no epoch")

    def newest_start(self, messages: Buffer) -> int:
        """None does."""
        return -1

    def overtaken(self, messages: Buffer, epoch: int) -> Iterable[int]:
        """There are none."""
        return ()


BARE: Final[Encoding] = _Bare()


class Enveloped:
    """A batch in an envelope: several partitions may share a topic, and what is of no use any more is known as such.

    Args:
        topic_id: Of the partition's topic.
        partition: Whose batches these are.
        epoch: The leader's, which sends them.
        content: What is in the envelopes; batches if None.
        framing: Of envelopes with such content.
    """

    def __init__(
        self,
        topic_id: bytes,
        partition: int,
        epoch: int,
        content: Encoding | None = None,
        framing: Framing | None = None,
    ) -> None:
        self.framing: Framing = framing or EnvelopeFraming()
        self._content = content or BARE
        self._topic = topic_id[:_ID_BYTES]
        self._partition = partition
        self._epoch = epoch

    def _message(self, kind: int, content: Buffer) -> bytes:
        head = _ENVELOPE.pack(_MAGIC, _VERSION, kind, len(content), self._partition, self._epoch, self._topic)
        return b"".join((head, _CRC.pack(crc32c(head)), content))

    def room(self, batches: int) -> int:
        """Some more, as batches of usual sizes need."""
        return batches + batches // 16 + 4 * _SIZE

    def wrap(self, batch: Buffer) -> bytes:
        """The batch in its envelope."""
        return self._message(_BATCH, batch)

    def epoch_start(self, now_ms: int) -> bytes:
        """The message that starts the epoch."""
        return self._message(_EPOCH_START, _TIME.pack(now_ms))

    def _envelopes(self, messages: Buffer) -> Iterator[tuple[int, _Envelope]]:
        """Those of the partition, each with the place of its content."""
        position, end = 0, len(messages)
        while position < end:
            found = _open(messages, position)
            position += _SIZE
            if found.partition == self._partition and found.topic == self._topic:
                yield position, found
            position += found.length

    def batches(self, messages: Buffer, epoch: int = 0) -> Iterator[Stored]:
        """Those of the partition that count."""
        view = memoryview(messages)
        for begin, found in self._envelopes(messages):
            if found.epoch < epoch:
                continue
            if found.kind == _BATCH:
                inside = view[begin : begin + found.length]
                for stored in self._content.batches(inside):
                    if stored[0].length != found.length:
                        raise CorruptRecordError(
                            f"the envelope before {begin} holds {found.length} bytes, its batch {stored[0].length}"
                        )
                    yield stored
            elif found.kind != _EPOCH_START:
                continue
            epoch = found.epoch

    def newest_start(self, messages: Buffer) -> int:
        """The newest epoch of the partition that starts here."""
        return max((found.epoch for _, found in self._envelopes(messages) if found.kind == _EPOCH_START), default=-1)

    def overtaken(self, messages: Buffer, epoch: int) -> Iterable[int]:
        """The epochs behind which something older lies."""
        older = set()
        for _, found in self._envelopes(messages):
            if found.epoch < epoch:
                older.add(epoch)
            elif found.kind in (_BATCH, _EPOCH_START):
                epoch = found.epoch
        return older

    def joined(self, messages: Buffer, before: Sequence[Stored], batches: Sequence[Stored]) -> bytes:
        """A copy, without envelopes."""
        return b"".join(batch for _, batch in batches)


def batch_in(envelope: Buffer) -> tuple[int, memoryview] | None:
    """The partition and the batch that an envelope holds; None for one of another kind.

    Raises:
        CorruptRecordError: It is damaged, or none.
    """
    found = _open(envelope, 0)
    return (found.partition, memoryview(envelope)[_SIZE : _SIZE + found.length]) if found.kind == _BATCH else None


def _open(buffer: Buffer, position: int) -> _Envelope:
    """The envelope at `position`."""
    if len(buffer) - position < _SIZE:
        raise CorruptRecordError(f"there are {len(buffer) - position} bytes at {position}, an envelope has {_SIZE}")
    magic, version, *fields = _ENVELOPE.unpack_from(buffer, position)
    (crc,) = _CRC.unpack_from(buffer, position + _ENVELOPE.size)
    if magic != _MAGIC or version != _VERSION:
        raise CorruptRecordError(f"expected an envelope of version {_VERSION} at {position}, got {magic} {version}")
    if crc32c(memoryview(buffer)[position : position + _ENVELOPE.size]) != crc:
        raise CorruptRecordError(f"the envelope at {position} is damaged: its checksum is that of something else")
    return _Envelope(*fields)


class EnvelopeFraming:
    """How a store finds its way among envelopes, of all partitions."""

    name: str = "kclient.envelope.v3"
    prefix: int = _SIZE

    def __init__(self) -> None:
        self._batches: Framing = RecordBatchFraming()

    def measure(self, buffer: Buffer, position: int = 0, /) -> int:
        """Length of the envelope with its content."""
        try:
            return _SIZE + _open(buffer, position).length
        except CorruptRecordError as error:
            raise ValueError(str(error)) from error

    def inspect(self, buffer: Buffer, position: int = 0, /) -> MessageInfo:
        """What the batch says of itself, and the length of the whole; nothing else of what is no batch."""
        kind, length, *_ = _open(buffer, position)
        if kind != _BATCH:
            return BatchInfo(_SIZE + length, 0, 0, -1)
        found = self._batches.inspect(buffer, position + _SIZE)
        return BatchInfo(_SIZE + length, found.first, found.last, found.max_timestamp)

    def verify(self, buffer: Buffer, position: int = 0, /) -> bool:
        """Whether the envelope and the batch in it are whole."""
        try:
            kind, length, *_ = _open(buffer, position)
            begin, end = position + _SIZE, position + _SIZE + length
            if end > len(buffer) or kind != _BATCH:
                return end <= len(buffer)
            return self._batches.measure(buffer, begin) == length and self._batches.verify(buffer, begin)
        except (ValueError, CorruptRecordError):
            return False
