"""Batches from one message format into another, as a broker converts them for clients of old and for its log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from kclient.arguments import index_of
from kclient.errors import CorruptRecordError, InvalidTimestampError, UnsupportedCompressionTypeError
from kclient.records.arguments import (
    MAX_BATCH_SIZE,
    as_view,
    check_max_decompressed,
    integer,
    setting,
    shown,
)
from kclient.records.batch_header import CURRENT_MAGIC, BatchHeader, CompressionType
from kclient.records.bounds import INT64_MAX
from kclient.records.compression import DEFAULT_MAX_DECOMPRESSED, LEVELS
from kclient.records.headers import iter_headers
from kclient.records.message_builder import MessageSetBuilder
from kclient.records.message_set import MessageRow, MessageRows, iter_sent, sent_records
from kclient.records.reader import END_OF_OFFSETS, open_batches
from kclient.records.restamping import restamp
from kclient.types import Buffer, TimestampType

if TYPE_CHECKING:
    from kclient.records.contract import Implementation

Magic: TypeAlias = Literal[0, 1, 2]
"""A message format."""


_LEVELS: Final = min(least for least, _, _ in LEVELS.values()), max(greatest for _, greatest, _ in LEVELS.values())


class RecordConverter:
    """Converts batches between formats.

    Args:
        implementation: Does the part that runs once per record.
    """

    def __init__(self, implementation: Implementation) -> None:
        self._implementation = implementation

    def down_convert(
        self,
        buffer: Buffer,
        magic: Magic,
        *,
        first_offset: int = 0,
        level: int | None = None,
        check_crcs: bool = True,
        max_decompressed: int = DEFAULT_MAX_DECOMPRESSED,
    ) -> bytes:
        """The batches of a buffer in no newer message format than `magic`, as a broker answers a fetch of old.

        Batches that are old enough are copied as they are, the others are built anew. Each keeps the offsets of its
        records (gaps included), its compression, and its timestamps with their type. Record headers, producer ids and
        leader epochs are lost, control batches are left out, and format v0 has no timestamps. A partial batch at the
        end is left out.

        Args:
            buffer: Record batches and message sets, in any mixture.
            magic: The newest format that is wanted: 0, 1 or 2.
            first_offset: The offset that the fetch asked for. Records before it are left out of batches that are built
                anew and not compressed, as Kafka's broker does, since clients of old do not look for them there.
            level: Compression level, or None for Kafka's default.
            check_crcs: Whether to compare checksums of what is converted.
            max_decompressed: Greatest size in bytes of a batch's records after decompression.

        Raises:
            TypeError: An argument is of a wrong type.
            ValueError: There is no such format, or a number is out of its range.
            UnsupportedCompressionTypeError: A batch is compressed with zstd, which the old formats do not know.
            CorruptRecordError: A batch or record is damaged or makes no sense.
            RecordTooLargeError: A batch is larger than `max_decompressed`.
            InvalidTimestampError: A record's timestamp is before the epoch and not -1.
            ConfigError: A batch's compression does not have that level, or `max_decompressed` is not a positive
                integer.
        """
        return self._converted(buffer, magic, int.__ge__, first_offset, level, check_crcs, max_decompressed)

    def up_convert(
        self,
        buffer: Buffer,
        magic: Magic,
        *,
        level: int | None = None,
        check_crcs: bool = True,
        max_decompressed: int = DEFAULT_MAX_DECOMPRESSED,
    ) -> bytes:
        """The batches of a buffer in no older message format than `magic`, as a broker keeps what clients of old send.

        Batches that are new enough are copied as they are, the others are built anew. Each keeps the offsets of its
        records (gaps included), its compression, and its timestamps with their type; records out of format v0 have the
        timestamp -1. Messages that are not compressed come several to a batch v2. A partial batch at the end is left
        out.

        Args:
            buffer: Record batches and message sets, in any mixture.
            magic: The oldest format that is wanted: 0, 1 or 2.
            level: Compression level, or None for Kafka's default.
            check_crcs: Whether to compare checksums of what is converted.
            max_decompressed: Greatest size in bytes of a batch's records after decompression.

        Raises:
            TypeError: An argument is of a wrong type.
            ValueError: There is no such format, or a number is out of its range.
            CorruptRecordError: A batch or record is damaged or makes no sense.
            RecordTooLargeError: A batch is larger than `max_decompressed`.
            InvalidTimestampError: A record's timestamp is before the epoch and not -1.
            ConfigError: A batch's compression does not have that level, or `max_decompressed` is not a positive
                integer.
        """
        return self._converted(buffer, magic, int.__le__, 0, level, check_crcs, max_decompressed)

    def batch_of_sent(
        self, buffer: Buffer, *, level: int | None = None, max_decompressed: int = DEFAULT_MAX_DECOMPRESSED
    ) -> bytearray | None:
        """The one batch v2 that a broker makes of the message set in a Produce request of old (versions 0 to 2).

        Its records are numbered from 0 on in the order in which they come: producers of old number them in several
        ways. They keep their timestamps; out of format v0 they have the timestamp -1. The batch has the compression of
        the last compressed message. A partial message at the end is left out.

        Args:
            buffer: Messages of the formats v0 and v1.
            level: Compression level, or None for Kafka's default.
            max_decompressed: Greatest size in bytes of all that is in compressed messages.

        Returns:
            The batch, or None if there is no whole message.

        Raises:
            TypeError: An argument is of a wrong type.
            CorruptRecordError: A message is damaged or makes no sense.
            RecordTooLargeError: There is more in compressed messages than `max_decompressed`.
            InvalidTimestampError: A record's timestamp is before the epoch and not -1.
            ConfigError: The compression does not have that level, or `max_decompressed` is not a positive integer.
        """
        if level is not None:
            level = setting("level", level, *_LEVELS)
        max_decompressed = check_max_decompressed(max_decompressed)
        with as_view(buffer) as view:
            codecs = bytes(header.compression for _, header in iter_sent(view))
            if not codecs:
                return None
            compression = CompressionType(next(filter(None, reversed(codecs)), 0))
            builder = self._implementation.BatchBuilder(
                limit=MAX_BATCH_SIZE, compression=compression, level=level if compression else None
            )
            for number, leaf in enumerate(sent_records(view, max_decompressed)):
                if leaf.timestamp < -1:
                    raise InvalidTimestampError(f"the record number {number} has the timestamp {leaf.timestamp}")
                builder.append_at(number, leaf.timestamp, leaf.key, leaf.value)
        return builder.build(0)

    def _converted(
        self,
        buffer: Buffer,
        magic: Magic,
        fits: Callable[[int, int], bool],
        first_offset: int,
        level: int | None,
        check_crcs: bool,
        max_decompressed: int,
    ) -> bytes:
        magic = _format(magic)
        first_offset = integer("first_offset", first_offset, 0, INT64_MAX)
        if level is not None:
            level = setting("level", level, *_LEVELS)
        max_decompressed = check_max_decompressed(max_decompressed)
        converted = bytearray()
        with as_view(buffer) as view:
            for begin, end, found in _stretches(view):
                if fits(magic, found):
                    converted += view[begin:end]
                    continue
                with view[:end] as stretch:
                    for position, header, payload in open_batches(
                        stretch, self._implementation, 0, END_OF_OFFSETS, check_crcs, max_decompressed, None, begin
                    ):
                        if payload is not None:
                            converted += self._convert(position, header, payload, magic, first_offset, level)
        return bytes(converted)

    def _convert(
        self,
        position: int,
        header: BatchHeader,
        payload: Buffer | MessageRows,
        magic: Magic,
        first_offset: int,
        level: int | None,
    ) -> bytes | bytearray:
        compression = header.compression
        if magic != CURRENT_MAGIC and compression is CompressionType.ZSTD:
            raise UnsupportedCompressionTypeError(
                f"the batch at offset {header.base_offset} is compressed with zstd, which message format v{magic} "
                "does not know"
            )
        start = first_offset if compression is CompressionType.NONE else 0
        rows = [row for row in self._rows(position, header, payload) if row[0] >= start]
        if not rows:
            return b""
        _check_rows(rows, header, position)
        # Of what is left of a batch without compression, each message has its offset to itself.
        base = rows[0][0] if compression is CompressionType.NONE else header.base_offset
        if magic == CURRENT_MAGIC:
            return self._batch(header, rows, base, level)
        return _message_set(magic, header, rows, base, level)

    def _rows(self, position: int, header: BatchHeader, payload: Buffer | MessageRows) -> list[MessageRow]:
        if isinstance(payload, MessageRows):
            return payload
        records: list[Any] = []
        self._implementation.parse_records(payload, header, position, "", -1, 0, END_OF_OFFSETS, None, None, records)
        return [(record.offset, record.timestamp, record.key, record.value) for record in records]

    def _batch(self, header: BatchHeader, rows: list[MessageRow], base: int, level: int | None) -> bytearray:
        builder = self._implementation.BatchBuilder(
            limit=MAX_BATCH_SIZE, compression=header.compression, level=_level(header, level)
        )
        for offset, timestamp, key, value in rows:
            builder.append_at(offset - base, timestamp, key, value)
        batch = builder.build(base)
        if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
            restamp(batch, base_offset=base, partition_leader_epoch=-1, log_append_time=header.max_timestamp)
        return batch


def _format(magic: Any) -> Magic:
    number = index_of(magic)
    if number is None:
        raise TypeError(f"magic must be 0, 1 or 2, not {shown(magic)}")
    if number not in (0, 1, 2):
        raise ValueError(f"there is no message format v{shown(number)}: magic must be 0, 1 or 2")
    return number  # type: ignore[return-value]  # one of the three


def _message_set(
    magic: Literal[0, 1], header: BatchHeader, rows: list[MessageRow], base: int, level: int | None
) -> bytearray:
    appended = magic and header.timestamp_type is TimestampType.LOG_APPEND_TIME
    builder = MessageSetBuilder(
        magic=magic,
        limit=MAX_BATCH_SIZE,
        compression=header.compression,
        level=_level(header, level),
        log_append_time=header.max_timestamp if appended else None,
    )
    for offset, timestamp, key, value in rows:
        builder.append_at(offset - base, timestamp, key, value)
    return builder.build(base)


def _check_rows(rows: list[MessageRow], header: BatchHeader, position: int) -> None:
    """Refuse what no writer takes, though a reader gets by with it."""
    before = -1
    for offset, timestamp, _, _ in rows:
        if offset <= before:
            raise CorruptRecordError(
                f"The batch at offset {header.base_offset} is corrupt: the offset {offset} follows {before} "
                f"(position {position}).",
                offset=header.base_offset,
                position=position,
            )
        if timestamp < -1:
            raise InvalidTimestampError(
                f"the record at offset {offset} cannot be converted: its timestamp is {timestamp}"
            )
        before = offset


def _level(header: BatchHeader, level: int | None) -> int | None:
    """The level, for a batch that is compressed at all."""
    return None if header.compression is CompressionType.NONE else level


def _stretches(view: memoryview) -> Iterator[tuple[int, int, int]]:
    """Where batches of one format follow each other: begin, end and format."""
    begin = end = 0
    format_ = -1
    for position, header in iter_headers(view):
        if header.magic != format_:
            if end > begin:
                yield begin, end, format_
            begin, format_ = position, header.magic
        end = position + header.length
    if end > begin:
        yield begin, end, format_
