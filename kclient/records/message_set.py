"""Reading message sets of the formats v0 and v1: made into the records of batches v2, which both implementations read.

A message that is not compressed is joined with those behind it into one run, as long as one header can tell of all of
them; a compressed one is a run by itself. What is checked here is checked once, for both implementations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kclient.errors import CorruptRecordError, RecordTooLargeError
from kclient.records.arguments import MAX_BATCH_SIZE
from kclient.records.batch_header import CURRENT_MAGIC, HEADER_SIZE, BatchHeader
from kclient.records.compression import decompress
from kclient.records.message_header import (
    LOG_APPEND_TIME,
    MESSAGE_HEADER_SIZE,
    check_message_crc,
    fields_of,
    message_error,
    read_message_header,
)
from kclient.types import Buffer, TimestampType

if TYPE_CHECKING:
    from kclient.records.contract import Implementation

RUN_RECORDS: Final = 8192
"""Most messages that are joined; more would be in memory twice."""
RUN_BYTES: Final = 1 << 20
DEEPEST: Final = 8
"""How often a message may be compressed within another; Kafka's own writers do it once."""

_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1

OpenBatch = tuple[int, BatchHeader, Buffer | None]


class Leaf(NamedTuple):
    """A record out of a message."""

    offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: Buffer | None
    value: Buffer | None


class _Run:
    """Records that one header can tell of, as the records of a batch v2."""

    __slots__ = ("_base_timestamp", "_builder", "_first", "_header", "_last", "_length", "_position", "_shift", "_type")

    def __init__(self, builder: Any, position: int, header: BatchHeader, first: Leaf) -> None:
        self._builder = builder
        self._position = position
        self._length = 0
        self._header = header
        self._first = first.offset
        self._last = first.offset - 1
        self._type = first.timestamp_type
        self._base_timestamp = first.timestamp
        # The builder takes no timestamps before the epoch, but only differences are read of what it writes.
        self._shift = first.timestamp if first.timestamp < -1 else 0

    def fits(self, leaf: Leaf) -> bool:
        """Whether the record can be told of by the same header."""
        return (
            self._last < leaf.offset <= self._first + _INT32_MAX
            and leaf.timestamp_type is self._type
            and -1 <= leaf.timestamp - self._shift <= _INT64_MAX
            and (leaf.timestamp == self._base_timestamp or self._type is not TimestampType.LOG_APPEND_TIME)
        )

    def has_room(self) -> bool:
        """Whether another message may join."""
        return bool(self._builder.count < RUN_RECORDS and self._length < RUN_BYTES)

    def add(self, leaf: Leaf) -> None:
        self._builder.append_at(leaf.offset - self._first, leaf.timestamp - self._shift, leaf.key, leaf.value)
        self._last = leaf.offset

    def cover(self, end: int) -> None:
        """Let the run reach to `end` in the buffer."""
        self._length = end - self._position

    def close(self) -> OpenBatch:
        builder = self._builder
        header = self._header._replace(
            base_offset=self._first,
            length=self._length,
            # of the records: a message may be in another format than the one around it
            magic=0 if self._type is TimestampType.NO_TIMESTAMP else 1,
            attributes=self._header.compression
            | (LOG_APPEND_TIME if self._type is TimestampType.LOG_APPEND_TIME else 0),
            last_offset_delta=self._last - self._first,
            base_timestamp=self._base_timestamp,
            max_timestamp=builder.max_timestamp + self._shift,
            count=builder.count,
        )
        return self._position, header, memoryview(builder.build())[HEADER_SIZE:]


class MessageRuns:
    """Makes runs of the messages of one buffer, which are given one by one.

    Args:
        implementation: Whose batches the runs are made of.
        view: The buffer.
        start: First offset that is wanted.
        end: First offset that is not wanted.
        check_crcs: Whether to compare checksums.
        max_decompressed: Greatest size in bytes of what is in a compressed message.
    """

    __slots__ = ("_builder", "_check_crcs", "_end", "_floor", "_limit", "_run", "_start", "_view", "done")

    def __init__(
        self,
        implementation: Implementation,
        view: memoryview,
        *,
        start: int,
        end: int,
        check_crcs: bool,
        max_decompressed: int,
    ) -> None:
        self._builder = implementation.BatchBuilder
        self._view = view
        self._start = start
        self._end = end
        self._check_crcs = check_crcs
        self._limit = max_decompressed
        self._run: _Run | None = None
        self._floor = start
        """The least offset that the next message can bring."""
        self.done = False
        """Whether the rest of the buffer is behind what is wanted."""

    def take(self, position: int, header: BatchHeader) -> Iterator[OpenBatch]:
        """Take the whole message at `position`; gives the runs that are complete.

        Raises:
            CorruptRecordError: The message makes no sense.
            RecordTooLargeError: It is larger than the limit when decompressed.
        """
        if header.count >= 0 and header.base_offset >= self._end:
            self.done = True
        elif header.count >= 0:
            yield from self._take_plain(position, header)
        else:
            yield from self.flush()
            yield from self._take_compressed(position, header)
        self._floor = max(self._floor, header.base_offset + 1)
        self.done = self.done or self._floor >= self._end

    def _take_plain(self, position: int, header: BatchHeader) -> Iterator[OpenBatch]:
        try:
            leaf = _leaf(self._view, position, header, header, self._check_crcs)
        except CorruptRecordError:
            yield from self.flush()  # what came before it is fine
            raise
        if self._run is None or not self._run.has_room() or not self._run.fits(leaf):
            yield from self.flush()
            self._run = self._new_run(position, header, leaf)
        self._run.add(leaf)
        self._run.cover(position + header.length)

    def _take_compressed(self, position: int, header: BatchHeader) -> Iterator[OpenBatch]:
        if header.base_offset < self._start:
            yield position, header, None
            return
        try:
            leaves = open_message(self._view, position, header, self._check_crcs, self._limit)
        except CorruptRecordError as error:
            error.offset = self._floor  # the first one that cannot be read
            raise
        except RecordTooLargeError as error:
            raise RecordTooLargeError(f"At offset {header.base_offset}: {error.message}") from None
        run = None
        for leaf in leaves:
            if run is None or not run.fits(leaf):
                if run is not None:
                    yield run.close()
                run = self._new_run(position, header, leaf)
                run.cover(position + header.length)
            run.add(leaf)
        assert run is not None
        yield run.close()

    def flush(self) -> Iterator[OpenBatch]:
        """The run that is not complete yet, if there is one."""
        if self._run is not None:
            run, self._run = self._run, None
            yield run.close()

    def _new_run(self, position: int, header: BatchHeader, first: Leaf) -> _Run:
        return _Run(self._builder(limit=MAX_BATCH_SIZE), position, header, first)


def _leaf(view: Buffer, position: int, header: BatchHeader, stamp: BatchHeader, check_crcs: bool) -> Leaf:
    """The record in the message at `position`, whose offset is as written and whose type of timestamp is `stamp`'s."""
    if check_crcs:
        check_message_crc(view, position, header)
    key_at, key_size, value_at, value_size = fields_of(view, position, header)
    timestamp, kind = header.base_timestamp, header.timestamp_type
    if header.magic:
        kind = stamp.timestamp_type
        if kind is TimestampType.LOG_APPEND_TIME:
            timestamp = stamp.base_timestamp
    return Leaf(
        header.base_offset,
        timestamp,
        kind,
        None if key_size < 0 else bytes(view[key_at : key_at + key_size]),
        None if value_size < 0 else bytes(view[value_at : value_at + value_size]),
    )


def open_message(
    view: Buffer, position: int, header: BatchHeader, check_crcs: bool, limit: int, depth: int = 1
) -> list[Leaf]:
    """The records in the compressed message at `position`, with their offsets in the log.

    Raises:
        CorruptRecordError: The message, or one inside, makes no sense.
        RecordTooLargeError: There are more than `limit` bytes inside.
    """
    if check_crcs:
        check_message_crc(view, position, header)
    _, _, value_at, value_size = fields_of(view, position, header)
    if value_size < 0:
        raise message_error("it is compressed and has no value", header.base_offset, position)
    if depth > DEEPEST:
        raise message_error(f"it is compressed more than {DEEPEST} times", header.base_offset, position)
    try:
        inside = decompress(
            header.compression,
            memoryview(view)[value_at : value_at + value_size],
            limit,
            ignore_lz4_checksum=header.magic == 0,
        )
    except CorruptRecordError as error:
        raise message_error(error.message, header.base_offset, position) from error.__cause__
    try:
        return _leaves(inside, header, check_crcs, limit - len(inside), depth)
    except CorruptRecordError as error:
        flaw = f"inside, {error.message}"
        raise message_error(flaw, header.base_offset, position) from error.__cause__


def _leaves(inside: bytes, outer: BatchHeader, check_crcs: bool, limit: int, depth: int) -> list[Leaf]:
    leaves: list[Leaf] = []
    headers = list(_inner_headers(inside))
    if not headers:
        raise CorruptRecordError("there are no messages")
    relative = _first_offset(outer, headers[-1][1].base_offset) if outer.magic else 0
    for position, header in headers:
        offset = relative + header.base_offset
        if offset >= _INT64_MAX:
            raise CorruptRecordError(f"the offset {header.base_offset} is impossible (byte {position})")
        moved = header._replace(base_offset=offset) if relative else header
        if header.count < 0:
            leaves += open_message(inside, position, moved, check_crcs, limit, depth + 1)
        else:
            leaves.append(_leaf(inside, position, moved, outer, check_crcs))
    return leaves


def _first_offset(outer: BatchHeader, last: int) -> int:
    """What the offsets inside a message of format v1 are counted from."""
    if outer.base_offset == 0:
        return 0  # as early releases of librdkafka produced them
    if outer.base_offset < last:
        raise CorruptRecordError(f"the last message has the offset {last}, which is behind that of the outer one")
    return outer.base_offset - last


def _inner_headers(inside: bytes) -> Iterator[tuple[int, BatchHeader]]:
    position, end = 0, len(inside)
    while position < end:
        if end - position < MESSAGE_HEADER_SIZE:
            raise CorruptRecordError(f"a message is truncated (byte {position})")
        if inside[position + 16] >= CURRENT_MAGIC:
            raise CorruptRecordError(f"there is a message of format v{inside[position + 16]} (byte {position})")
        header = read_message_header(inside, position)
        if header.length > end - position:
            raise CorruptRecordError(
                f"a message of {header.length} bytes is truncated to {end - position} (byte {position})"
            )
        yield position, header
        position += header.length
