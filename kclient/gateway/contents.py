"""What is in a batch: checked record by record when it is produced, made anew where its topic asks for another codec.

A broker that stores what consumers cannot read stops them for good, so every record is looked at, whatever the codec,
as Kafka does: that there are as many as the header says, numbered from 0 on, each ending where its length says. It is
done in steps, in any thread, with next to no memory: decompressed pieces are looked through and thrown away.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kclient.errors import CorruptRecordError, InvalidRecordError, InvalidTimestampError, RecordTooLargeError
from kclient.gateway.config import TopicConfig
from kclient.gateway.validation import check_size
from kclient.records import HEADER_SIZE, IMPLEMENTATION, BatchHeader, CompressionType, RecordScan, read_header
from kclient.records.batch_header import check_count, write_header
from kclient.records.compression import PieceCompressor, compressing_memory, decompressed_pieces, working_memory
from kclient.types import Buffer

__all__ = ["AT_ONCE", "ContentCheck", "Recompression", "RecordSearch", "RejectedRecordsError", "look_through"]

AT_ONCE: Final = 1 << 20 if IMPLEMENTATION == "compiled" else 1 << 14
"""Bytes of records that are looked through in about a millisecond."""
_CODECS: Final = {
    "uncompressed": CompressionType.NONE,
    "gzip": CompressionType.GZIP,
    "snappy": CompressionType.SNAPPY,
    "lz4": CompressionType.LZ4,
    "zstd": CompressionType.ZSTD,
}
_CODEC_BITS: Final = 0x07
_LARGEST_WINDOW: Final = 1 << 27
"""The most memory that Java's consumers give zstd for a frame."""
_EXPANSION: Final = 4
_ONE_BLOCK: Final = 1024
"""What cannot be compressed grows by less than one part in so many, and a block's frame."""
_NAMED: Final = 100
"""Records that are refused one by one and told why; those behind them are told their numbers."""


class RejectedRecordsError(InvalidRecordError):
    """Some records of a batch are refused, and so the batch (KIP-467).

    Args:
        message: What is wrong.
        records: The numbers of those records in the batch, with what is wrong with each where it is said.
    """

    def __init__(self, message: str, records: list[tuple[int, str | None]]) -> None:
        super().__init__(message)
        self.records = records


def look_through(batch: Buffer, header: BatchHeader, config: TopicConfig, now_ms: int, where: object) -> int:
    """What `ContentCheck` does, in one go for a batch that is not compressed; the greatest timestamp in it."""
    scan = RecordScan(header, needs_keys=config.compacts)
    try:
        scan.feed(memoryview(batch)[HEADER_SIZE:])
        scan.finish()
    except CorruptRecordError as error:
        raise _meaningless(error) from error
    return _conclude(scan, config, now_ms, where)


class ContentCheck:
    """Looks through the records of a batch whose header and checksum were checked.

    Args:
        batch: The batch.
        header: Its header.
        config: The topic's settings.
    """

    __slots__ = ("_config", "_header", "_pieces", "_scan", "_window", "done", "size")

    def __init__(self, batch: Buffer, header: BatchHeader, config: TopicConfig) -> None:
        self.size: int = 0
        """Bytes of records that were looked through."""
        self.done: bool = False
        self._header = header
        self._config = config
        payload = memoryview(batch)[HEADER_SIZE : header.length]
        self._scan = RecordScan(header, needs_keys=config.compacts)
        self._pieces = _pieces_of(payload, header, config.max_decompressed_bytes, to_be_stored=True)
        self._window = 0 if header.compression is CompressionType.NONE else working_memory(header.compression, payload)
        if self._window > max(_LARGEST_WINDOW, config.max_decompressed_bytes):
            raise InvalidRecordError(
                f"The batch claims that decompressing it takes {self._window} bytes of memory, more than consumers give"
            )

    @property
    def memory(self) -> int:
        """Bytes of memory that it takes by now."""
        return min(self._window, self.size)

    def step(self, most: int = AT_ONCE) -> bool:
        """Look through about so many bytes of records; whether that was all.

        Raises:
            InvalidRecordError: They cannot be decompressed, or make no sense.
            RecordTooLargeError: They are larger than `message.max.decompressed.bytes` when decompressed.
        """
        try:
            self.done = self._step(self.size + most)
        except CorruptRecordError as error:
            raise _meaningless(error) from error
        return self.done

    def _step(self, end: int) -> bool:
        while self.size < end:
            piece = next(self._pieces, None)
            if piece is None:
                check_count(self._header, 0, self.size)
                self._scan.finish()
                return True
            self.size += len(piece)
            self._scan.feed(piece)
        return False

    def conclude(self, now_ms: int, where: object) -> int:
        """What the records say together; the greatest of their timestamps.

        Args:
            now_ms: Milliseconds since the epoch.
            where: The partition, for messages.

        Raises:
            RejectedRecordsError: There are records without a key, and the topic is compacted.
            InvalidTimestampError: A record's timestamp is too far from now.
        """
        return _conclude(self._scan, self._config, now_ms, where)


class RecordSearch:
    """Looks for a record in a stored batch.

    Args:
        payload: The batch's records as they are stored.
        header: Its header.
        since: The record's timestamp is this at least, in milliseconds since the epoch.
        first_delta: Its offset, less the batch's first one, is this at least.
        limit: Greatest size in bytes of the records after decompression.
    """

    __slots__ = ("_pieces", "_scan")

    def __init__(self, payload: memoryview, header: BatchHeader, since: int, first_delta: int, limit: int) -> None:
        self._scan = RecordScan(header, since=since, first_delta=first_delta)
        self._pieces = _pieces_of(payload, header, limit)

    def step(self, most: int = AT_ONCE) -> bool:
        """Look through about so many bytes of records; whether that was all, or it was found.

        Raises:
            CorruptRecordError: They cannot be decompressed, or make no sense.
            RecordTooLargeError: They are larger than the limit when decompressed.
        """
        done = 0
        while done < most:
            piece = next(self._pieces, None)
            if piece is None:
                return True
            self._scan.feed(piece)
            if self._scan.found is not None:
                return True
            done += len(piece)
        return False

    @property
    def found(self) -> tuple[int, int] | None:
        """The record's offset, less the batch's first one, and its timestamp; None if there is none."""
        return self._scan.found


class Recompression:
    """Makes a batch anew whose topic asks for another codec; its records were looked through before.

    Args:
        batch: The batch.
        header: Its header.
        config: The topic's settings.
        size: Bytes of its records when decompressed.
    """

    __slots__ = ("_codec", "_compressor", "_config", "_header", "_made", "_pieces", "codec_memory", "least", "room")

    def __init__(self, batch: Buffer, header: BatchHeader, config: TopicConfig, size: int) -> None:
        self._config = config
        self._header = header
        self._codec = _CODECS[config.compression_type]
        payload = memoryview(batch)[HEADER_SIZE : header.length]
        self._pieces = _pieces_of(payload, header, config.max_decompressed_bytes)
        self._compressor: PieceCompressor | None = None
        self.least: int = HEADER_SIZE + (size if self._codec is CompressionType.NONE else 0)
        """Bytes that the new batch has at least."""
        self.room: int = self.least
        """Bytes that it may have; there may be memory for less."""
        self.codec_memory: int = 0
        """Bytes of memory that decompressing and compressing take, until the batch is made."""
        if header.compression is not CompressionType.NONE:
            self.codec_memory += min(size, working_memory(header.compression, payload))
        if self._codec is not CompressionType.NONE:
            self._compressor = PieceCompressor(self._codec, config.compression_level, size)
            self.codec_memory += compressing_memory(self._codec, config.compression_level, size)
            self.room = min(HEADER_SIZE + size + size // _EXPANSION + _ONE_BLOCK, config.max_message_bytes)
        self._made = bytearray(HEADER_SIZE)

    @staticmethod
    def asked_for(header: BatchHeader, config: TopicConfig) -> bool:
        """Whether a batch has to be made anew."""
        return config.compression_type != "producer" and _CODECS[config.compression_type] is not header.compression

    def step(self, most: int = AT_ONCE) -> bool:
        """Go on with about so many bytes of records; whether that was all.

        Raises:
            RecordTooLargeError: The batch is larger than `max.message.bytes` in its new codec, or than `room`.
        """
        done = 0
        while done < most:
            piece = next(self._pieces, None)
            if piece is None:
                if self._compressor is not None:
                    self._add(self._compressor.finish())
                return True
            done += len(piece)
            self._add(piece if self._compressor is None else self._compressor.feed(piece))
        return False

    def _add(self, made: Buffer) -> None:
        self._made += made
        check_size(len(self._made), self._config)
        if len(self._made) > self.room:
            raise RecordTooLargeError(
                f"The record batch takes more than {self.room} bytes with the topic's compression.type="
                f"{self._config.compression_type}, and one connection may hold no more beside its request, as it may "
                "hold a quarter of connections.max.memory.bytes."
            )

    def batch(self) -> tuple[bytearray, BatchHeader]:
        """The new batch and its header."""
        header = self._header
        write_header(
            self._made,
            base_offset=header.base_offset,
            partition_leader_epoch=header.partition_leader_epoch,
            attributes=header.attributes & ~_CODEC_BITS | self._codec,
            last_offset_delta=header.last_offset_delta,
            base_timestamp=header.base_timestamp,
            max_timestamp=header.max_timestamp,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            count=header.count,
        )
        return self._made, read_header(self._made)


def _meaningless(error: CorruptRecordError) -> InvalidRecordError:
    """What a producer is told whose batch came as it was sent, and makes no sense: nor would it the next time."""
    return InvalidRecordError(error.message)


def _pieces_of(payload: memoryview, header: BatchHeader, limit: int, *, to_be_stored: bool = False) -> Iterator[Buffer]:
    if header.compression is not CompressionType.NONE:
        yield from decompressed_pieces(header.compression, payload, limit, one_lz4_frame=to_be_stored)
        return
    for position in range(0, len(payload), AT_ONCE):
        yield payload[position : position + AT_ONCE]


def _conclude(scan: RecordScan, config: TopicConfig, now_ms: int, where: object) -> int:
    if scan.keyless:
        raise _keyless(scan.keyless, where)
    greatest = scan.greatest_timestamp
    if not config.log_append_time:
        _check_timestamps(scan.least_timestamp, greatest, config, now_ms)
    return greatest


def _keyless(numbers: list[int], where: object) -> RejectedRecordsError:
    text = f"the topic is compacted, so a record needs a key ({where})"
    first = ", ".join(str(number) for number in numbers[:3])
    more = "" if len(numbers) <= 3 else f" and {len(numbers) - 3} more"
    return RejectedRecordsError(
        f"{text}: record {first}{more} of the batch {'has' if len(numbers) == 1 else 'have'} none",
        [(number, text if place < _NAMED else None) for place, number in enumerate(numbers)],
    )


def _check_timestamps(least: int, greatest: int, config: TopicConfig, now_ms: int) -> None:
    if greatest >= 0 and greatest - now_ms > config.timestamp_after_max_ms:
        raise InvalidTimestampError(
            f"Timestamp {greatest} is more than message.timestamp.after.max.ms="
            f"{config.timestamp_after_max_ms} ahead of now ({now_ms})"
        )
    if least >= 0 and now_ms - least > config.timestamp_before_max_ms:
        raise InvalidTimestampError(
            f"Timestamp {least} is more than message.timestamp.before.max.ms="
            f"{config.timestamp_before_max_ms} behind now ({now_ms})"
        )
