"""Reading message sets of the formats v0 and v1.

A message that is not compressed is joined with those behind it into one run, as long as one header can tell of all of
them; a compressed one is a run by itself. All of this is in Python and written once, for both implementations: they
only make the objects, or the records of a batch v2 that columns are filled from.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple, TypeAlias
from zlib import crc32

from kclient.errors import CorruptRecordError, RecordTooLargeError
from kclient.records.batch_header import CURRENT_MAGIC, MEASURE_SIZE, BatchHeader
from kclient.records.bounds import INT32_MAX, INT64_MAX
from kclient.records.compression import decompress, too_large
from kclient.records.message_header import (
    LOG_APPEND_TIME,
    MESSAGE_HEADER_SIZE,
    MESSAGE_OVERHEAD,
    check_message_crc,
    fields_of,
    message_error,
    read_message_header,
)
from kclient.types import Buffer, TimestampType

RUN_RECORDS: Final = 8192
"""Most messages that are joined."""
DEEPEST: Final = 8
"""How often a message may be compressed within another; Kafka's own writers do it once."""

_FRONT: Final = (Struct(">qiIbBi"), Struct(">qiIbBqi"))
"""A message up to its key, by format: offset, size, checksum, format, attributes, timestamp, length of the key."""
_LENGTH: Final = Struct(">i")
_KNOWN_ATTRIBUTES: Final = (0x07, 0x0F)


class Leaf(NamedTuple):
    """A record out of a message."""

    offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None


MessageRow: TypeAlias = tuple[int, int, bytes | None, bytes | None]
"""Offset, timestamp, key and value of a record."""


class MessageRows(list[MessageRow]):
    """The records of a run, in rising order of their offsets."""


OpenBatch: TypeAlias = "tuple[int, BatchHeader, Buffer | MessageRows | None]"


class _MessageRun:
    """Records that one header can tell of."""

    __slots__ = ("first", "header", "kind", "length", "position", "rows")

    def __init__(self, position: int, header: BatchHeader, first: Leaf) -> None:
        self.position = position
        self.length = header.length
        self.header = header
        self.first = first
        self.kind = first.timestamp_type
        self.rows = MessageRows()
        self.add(first)

    def fits(self, leaf: Leaf) -> bool:
        """Whether the record can be told of by the same header."""
        return (
            self.rows[-1][0] < leaf.offset <= self.first.offset + INT32_MAX
            and leaf.timestamp_type is self.kind
            and (leaf.timestamp == self.first.timestamp or self.kind is not TimestampType.LOG_APPEND_TIME)
        )

    def add(self, leaf: Leaf) -> None:
        self.rows.append((leaf.offset, leaf.timestamp, leaf.key, leaf.value))

    def close(self) -> OpenBatch:
        first = self.first
        header = self.header._replace(
            base_offset=first.offset,
            length=self.length,
            # of the records: a message may be in another format than the one around it
            magic=0 if self.kind is TimestampType.NO_TIMESTAMP else 1,
            attributes=self.header.compression | (LOG_APPEND_TIME if self.kind is TimestampType.LOG_APPEND_TIME else 0),
            last_offset_delta=self.rows[-1][0] - first.offset,
            base_timestamp=first.timestamp,
            max_timestamp=max(row[1] for row in self.rows),
            count=len(self.rows),
        )
        return self.position, header, self.rows


class _Budget:
    """How many bytes may still be decompressed: one for an outer message and all that is within it."""

    __slots__ = ("left",)

    def __init__(self, limit: int) -> None:
        self.left = limit


class MessageRuns:
    """Makes runs of the messages of one buffer.

    Args:
        view: The buffer.
        start: First offset that is wanted.
        end: First offset that is not wanted.
        check_crcs: Whether to compare checksums.
        max_decompressed: Greatest size in bytes of what is in a compressed message, the messages within it and what
            is in those counted together.
    """

    __slots__ = ("_check_crcs", "_data", "_end", "_floor", "_limit", "_run", "_start", "_view", "done", "position")

    def __init__(self, view: memoryview, *, start: int, end: int, check_crcs: bool, max_decompressed: int) -> None:
        self._view = view
        self._data = bytes(view)  # keys and values are cut out of it faster
        self._start = start
        self._end = end
        self._check_crcs = check_crcs
        self._limit = max_decompressed
        self._run: _MessageRun | None = None
        self._floor = start
        """The least offset that the next message can bring."""
        self.done: bool = False
        """Whether the rest of the buffer is behind what is wanted."""
        self.position: int = 0
        """Where to go on behind what was taken."""

    def take(self, position: int, header: BatchHeader) -> list[OpenBatch]:
        """Take the whole message at `position`, and those like it behind it; gives the runs that are complete.

        Raises:
            CorruptRecordError: The message makes no sense.
            RecordTooLargeError: It is larger than the limit when decompressed.
        """
        self.position = position + header.length
        if header.count >= 0:
            if header.base_offset >= self._end:
                self.done = True
                return []
            complete = self._take_plain(position, header)
        else:
            complete = self._take_compressed(position, header)
        self._floor = max(self._floor, header.base_offset + 1)
        self.done = self._floor >= self._end
        return complete

    def _take_plain(self, position: int, header: BatchHeader) -> list[OpenBatch]:
        leaf = _leaf(self._view, position, header, header, self._check_crcs)
        complete: list[OpenBatch] = []
        run = self._run
        if run is None or len(run.rows) >= RUN_RECORDS or not run.fits(leaf):
            complete = self.flush()
            run = self._run = _MessageRun(position, header, leaf)
        else:
            run.add(leaf)
        self._scan(run, header)
        run.length = self.position - run.position
        self._floor = max(self._floor, run.rows[-1][0] + 1)
        return complete

    def _scan(self, run: _MessageRun, header: BatchHeader) -> None:
        """Add the messages that follow, as long as they are like the first; what is odd the careful way looks at."""
        data, view, rows = self._data, self._view, run.rows
        position, stop, magic = self.position, len(data), header.magic
        front, known, attributes = _FRONT[magic], _KNOWN_ATTRIBUTES[magic], header.attributes
        overhead = MESSAGE_OVERHEAD[magic]
        stamp = run.first.timestamp if run.kind is TimestampType.LOG_APPEND_TIME else None
        greatest = min(run.first.offset + INT32_MAX, self._end - 1)
        last, timestamp = rows[-1][0], -1
        while stop - position >= overhead and len(rows) < RUN_RECORDS:
            if magic:
                offset, size, crc, found, bits, timestamp, key_size = front.unpack_from(data, position)
            else:
                offset, size, crc, found, bits, key_size = front.unpack_from(data, position)
            end = position + MEASURE_SIZE + size
            key_at = position + front.size
            value_at = key_at + (key_size if key_size > 0 else 0) + 4
            if (
                found != magic
                or bits & known != attributes
                or size < overhead - MEASURE_SIZE
                or not value_at <= end <= stop
                or key_size < -1
                or not last < offset <= greatest
                or (stamp is not None and stamp != timestamp)
                or (self._check_crcs and crc32(view[position + 16 : end]) != crc)
            ):
                break
            (value_size,) = _LENGTH.unpack_from(data, value_at - 4)
            if value_at + (value_size if value_size > 0 else 0) != end or value_size < -1:
                break
            key = None if key_size < 0 else data[key_at : value_at - 4]
            rows.append((offset, timestamp, key, None if value_size < 0 else data[value_at:end]))
            last, position = offset, end
        self.position = position

    def _take_compressed(self, position: int, header: BatchHeader) -> list[OpenBatch]:
        if header.base_offset < self._start:
            if self._check_crcs:  # a batch v2 with a flipped format may look like this
                check_message_crc(self._view, position, header)
            return [*self.flush(), (position, header, None)]
        try:
            leaves = _open_message(self._view, position, header, self._check_crcs, _Budget(self._limit))
        except CorruptRecordError as error:
            error.offset = self._floor  # the first one that cannot be read
            raise
        except RecordTooLargeError:
            message = too_large(self._limit).message  # the whole limit, not what was left of it
            raise RecordTooLargeError(f"At offset {header.base_offset}: {message}") from None
        runs = [_MessageRun(position, header, leaves[0])]
        for leaf in leaves[1:]:
            if runs[-1].fits(leaf):
                runs[-1].add(leaf)
            else:
                runs.append(_MessageRun(position, header, leaf))
        return [*self.flush(), *(run.close() for run in runs)]

    def flush(self) -> list[OpenBatch]:
        """The run that is not complete yet, if there is one."""
        run, self._run = self._run, None
        return [] if run is None else [run.close()]


def sent_records(view: memoryview, max_decompressed: int) -> Iterator[Leaf]:
    """The records in a message set that a producer of old sends, one by one.

    Whatever offsets they have: producers number them from 0, or not at all, and differ in the offset of an outer
    message. A partial message at the end is left out.

    Args:
        view: The message set.
        max_decompressed: Greatest size in bytes of all that is in compressed messages.

    Raises:
        CorruptRecordError: A message makes no sense, or its checksum is wrong.
        RecordTooLargeError: There is more in compressed messages than that.
    """
    budget = _Budget(max_decompressed)
    for position, header in iter_sent(view):
        if header.count >= 0:
            yield _leaf(view, position, header, header, check_crcs=True)
            continue
        try:
            yield from _sent_inside(view, position, header, budget, 1)
        except RecordTooLargeError:
            raise too_large(max_decompressed) from None


def iter_sent(view: memoryview) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole message of such a set; CorruptRecordError if one makes no sense."""
    position, end = 0, len(view)
    while end - position >= MESSAGE_HEADER_SIZE:
        if view[position + 16] >= CURRENT_MAGIC:
            raise message_error(f"it is of format v{view[position + 16]} among older ones", -1, position)
        header = read_message_header(view, position, any_offset=True)
        if header.length > end - position:
            return
        yield position, header
        position += header.length


def _sent_inside(view: Buffer, position: int, header: BatchHeader, budget: _Budget, depth: int) -> Iterator[Leaf]:
    inside = _inside(view, position, header, budget, depth, check_crcs=True)
    empty = True
    for place, inner in _inner_headers(inside, any_offset=True):
        empty = False
        if inner.count < 0:
            yield from _sent_inside(inside, place, inner, budget, depth + 1)
        else:
            yield _leaf(inside, place, inner, header, check_crcs=True)
    if empty:
        raise message_error("there are no messages inside", header.base_offset, position)


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


def _open_message(
    view: Buffer, position: int, header: BatchHeader, check_crcs: bool, budget: _Budget, depth: int = 1
) -> list[Leaf]:
    """The records in the compressed message at `position`, with their offsets in the log.

    Raises:
        CorruptRecordError: The message, or one inside, makes no sense.
        RecordTooLargeError: There are more bytes inside than are left in the budget.
    """
    inside = _inside(view, position, header, budget, depth, check_crcs=check_crcs)
    try:
        return _leaves(inside, header, check_crcs, budget, depth)
    except CorruptRecordError as error:
        text = f"inside, {error.message}"
        raise message_error(text, header.base_offset, position) from error.__cause__


def _inside(
    view: Buffer, position: int, header: BatchHeader, budget: _Budget, depth: int, *, check_crcs: bool
) -> Buffer:
    """What is in the compressed message at `position`."""
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
            budget.left,
            ignore_lz4_checksum=header.magic == 0,
        )
    except CorruptRecordError as error:
        raise message_error(error.message, header.base_offset, position) from error.__cause__
    budget.left -= len(inside)
    return inside


def _leaves(inside: Buffer, outer: BatchHeader, check_crcs: bool, budget: _Budget, depth: int) -> list[Leaf]:
    leaves: list[Leaf] = []
    headers = list(_inner_headers(inside))
    if not headers:
        raise CorruptRecordError("there are no messages")
    relative = _first_offset(outer, headers[-1][1].base_offset) if outer.magic else 0
    for position, header in headers:
        offset = relative + header.base_offset
        if offset >= INT64_MAX:
            raise CorruptRecordError(f"the offset {header.base_offset} is impossible (byte {position})")
        moved = header._replace(base_offset=offset) if relative else header
        if header.count < 0:
            leaves += _open_message(inside, position, moved, check_crcs, budget, depth + 1)
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


def _inner_headers(inside: Buffer, *, any_offset: bool = False) -> Iterator[tuple[int, BatchHeader]]:
    position, end = 0, len(inside)
    while position < end:
        if end - position < MESSAGE_HEADER_SIZE:
            raise CorruptRecordError(f"a message is truncated (byte {position})")
        if inside[position + 16] >= CURRENT_MAGIC:
            raise CorruptRecordError(f"there is a message of format v{inside[position + 16]} (byte {position})")
        header = read_message_header(inside, position, any_offset=any_offset)
        if header.length > end - position:
            raise CorruptRecordError(
                f"a message of {header.length} bytes is truncated to {end - position} (byte {position})"
            )
        yield position, header
        position += header.length
