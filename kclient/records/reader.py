"""Reading what a fetch returned: batch after batch, checked, decompressed and filtered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kclient.errors import CorruptRecordError, RecordTooLargeError
from kclient.records.arguments import as_view, check_callable, check_max_decompressed, check_topic, integer
from kclient.records.batch_header import (
    CURRENT_MAGIC,
    HEADER_SIZE,
    BatchHeader,
    CompressionType,
    check_count,
    check_crc,
)
from kclient.records.bounds import INT32_MAX, INT64_MAX
from kclient.records.compression import DEFAULT_MAX_DECOMPRESSED, decompress
from kclient.records.control import AbortedFilter, EndMarker, check_aborted, decode_control_type, decode_end_marker
from kclient.records.corruption import deserialization_error
from kclient.records.headers import check_batch, next_header
from kclient.records.message_set import MessageRows, MessageRuns, OpenBatch
from kclient.types import Buffer

if TYPE_CHECKING:
    from kclient.records.contract import Deserialize, Implementation

END_OF_OFFSETS = INT64_MAX
UNOPENED: Final = memoryview(b"")
"""The payload of a batch that was not to be opened."""


def read_payload(
    view: memoryview,
    position: int,
    header: BatchHeader,
    max_decompressed: int = DEFAULT_MAX_DECOMPRESSED,
) -> Buffer:
    """The records of the whole batch at `position`, decompressed; a view where they are not compressed.

    The checksum is the caller's to compare.

    Raises:
        CorruptRecordError: The data cannot be decompressed, or the number of records is impossible.
        RecordTooLargeError: The records are larger than `max_decompressed` when decompressed.
    """
    payload: Buffer = view[position + HEADER_SIZE : position + header.length]
    compression = header.compression
    if compression is not CompressionType.NONE:
        try:
            payload = decompress(compression, payload, max_decompressed)
        except CorruptRecordError as error:
            raise _locate(error, header, position) from error.__cause__
        except RecordTooLargeError as error:
            raise RecordTooLargeError(f"At offset {header.base_offset}: {error.message}") from None
    check_count(header, position, len(payload))
    return payload


def _locate(error: CorruptRecordError, header: BatchHeader, position: int) -> CorruptRecordError:
    return CorruptRecordError(
        f"The batch at offset {header.base_offset} is corrupt: {error.message} (position {position}).",
        offset=header.base_offset,
        position=position,
    )


_WantedRecords: TypeAlias = tuple[memoryview, str, int, int, int, int, "list[tuple[int, int]] | None"]
"""View, topic, partition, first offset, end of offsets, limit of decompression and aborted transactions."""


def check_wanted(
    buffer: Any, topic: Any, partition: Any, start_offset: Any, end_offset: Any, max_decompressed: Any, aborted: Any
) -> _WantedRecords:
    """The arguments that all readers take.

    Raises:
        TypeError: One is of a wrong type.
        ValueError: A number is out of its range.
        ConfigError: `max_decompressed` is not a positive integer.
    """
    if type(topic) is not str:
        topic = check_topic(topic)
    if type(partition) is not int or not 0 <= partition <= INT32_MAX:
        partition = integer("partition", partition, -1, INT32_MAX)
    if type(start_offset) is not int or not 0 <= start_offset <= INT64_MAX:
        start_offset = integer("start_offset", start_offset, 0, INT64_MAX)
    if end_offset is None:
        end_offset = END_OF_OFFSETS
    elif type(end_offset) is not int or not 0 <= end_offset <= INT64_MAX:
        end_offset = integer("end_offset", end_offset, 0, INT64_MAX)
    if type(max_decompressed) is not int or not 0 < max_decompressed <= INT64_MAX:
        max_decompressed = check_max_decompressed(max_decompressed)
    if aborted is not None:
        aborted = check_aborted(aborted)
    return as_view(buffer), topic, partition, start_offset, end_offset, max_decompressed, aborted


def _check_deserializers(key_deserializer: Any, value_deserializer: Any) -> None:
    check_callable("key_deserializer", key_deserializer)
    check_callable("value_deserializer", value_deserializer)


class RecordReader:
    """Makes objects of fetched batches.

    Args:
        implementation: Does the part that runs once per record.
    """

    def __init__(self, implementation: Implementation) -> None:
        self._implementation = implementation
        self._parse: Any = implementation.parse_records
        self._make: Any = partial(_make_records, implementation.made_record)

    def iter_batches(
        self,
        buffer: Buffer,
        topic: str,
        partition: int,
        *,
        start_offset: int = 0,
        end_offset: int | None = None,
        check_crcs: bool = True,
        key_deserializer: Deserialize | None = None,
        value_deserializer: Deserialize | None = None,
        max_decompressed: int = DEFAULT_MAX_DECOMPRESSED,
        aborted: Iterable[tuple[int, int]] | None = None,
    ) -> Iterator[tuple[BatchHeader, list[Any]]]:
        """Header and records of each whole batch, decoded one batch at a time.

        A control batch, a batch of an aborted transaction and one that lies before `start_offset` come with no
        records, so that the reader's position moves on (`header.next_offset`). Reading stops behind the batch that
        reaches `end_offset`. A partial batch at the end of the buffer is left out.

        Formats may be mixed. Messages of the formats v0 and v1 that are not compressed come several to a batch, a
        compressed one comes as one, and the header tells of what is inside.

        Args:
            buffer: Record batches or message sets, as a fetch returned them.
            topic: Topic of the records.
            partition: Partition of the records.
            start_offset: First offset wanted; a fetch returns whole batches and so may start earlier.
            end_offset: First offset not wanted, or None for all.
            check_crcs: Whether to compare checksums (the consumer's `check.crcs`), also those of batches that come
                with no records.
            key_deserializer: Called with topic, headers and the key's bytes; None leaves bytes.
            value_deserializer: The same for the value.
            max_decompressed: Greatest size in bytes of a batch's records after decompression.
            aborted: Producer id and first offset of each aborted transaction, as the response lists them, for
                readers of committed records; None to read everything.

        Raises:
            CorruptRecordError: A batch or record is damaged or makes no sense.
            RecordTooLargeError: A batch is larger than `max_decompressed`.
            RecordDeserializationError: A deserializer failed.
            TypeError: An argument is of a wrong type; raised by the call itself, as the two below are.
            ValueError: A number is out of its range.
            ConfigError: `max_decompressed` is not a positive integer.
        """
        if key_deserializer is not None or value_deserializer is not None:
            _check_deserializers(key_deserializer, value_deserializer)
        wanted = check_wanted(buffer, topic, partition, start_offset, end_offset, max_decompressed, aborted)
        return self._iterate(wanted, check_crcs, key_deserializer, value_deserializer)

    def _iterate(
        self,
        wanted: _WantedRecords,
        check_crcs: bool,
        key_deserializer: Deserialize | None,
        value_deserializer: Deserialize | None,
    ) -> Iterator[tuple[BatchHeader, list[Any]]]:
        view, topic, partition, start, end, max_decompressed, aborted = wanted
        with view:
            for position, header, payload in open_batches(
                view, self._implementation, start, end, check_crcs, max_decompressed, aborted
            ):
                records: list[Any] = []
                if payload is not None:
                    parse = self._make if isinstance(payload, MessageRows) else self._parse
                    parse(
                        payload, header, position, topic, partition, start, end,
                        key_deserializer, value_deserializer, records,
                    )  # fmt: skip
                yield header, records

    def decode_records(
        self,
        buffer: Buffer,
        topic: str,
        partition: int,
        *,
        start_offset: int = 0,
        end_offset: int | None = None,
        check_crcs: bool = True,
        key_deserializer: Deserialize | None = None,
        value_deserializer: Deserialize | None = None,
        max_decompressed: int = DEFAULT_MAX_DECOMPRESSED,
        aborted: Iterable[tuple[int, int]] | None = None,
    ) -> list[Any]:
        """All records of a fetched buffer as one list; arguments and errors are those of `iter_batches`."""
        return self.decode_some(
            buffer, topic, partition, None, start_offset=start_offset, end_offset=end_offset, check_crcs=check_crcs,
            key_deserializer=key_deserializer, value_deserializer=value_deserializer,
            max_decompressed=max_decompressed, aborted=aborted,
        )[0]  # fmt: skip

    def decode_some(
        self,
        buffer: Buffer,
        topic: str,
        partition: int,
        enough: int | None,
        *,
        start_offset: int = 0,
        end_offset: int | None = None,
        check_crcs: bool = True,
        key_deserializer: Deserialize | None = None,
        value_deserializer: Deserialize | None = None,
        max_decompressed: int = DEFAULT_MAX_DECOMPRESSED,
        aborted: Iterable[tuple[int, int]] | None = None,
    ) -> tuple[list[Any], int | None, int]:
        """The records of a fetched buffer up to the batch with which they are `enough` bytes after decompression.

        Args:
            buffer: As for `iter_batches`, like all other arguments.
            topic: Topic of the records.
            partition: Partition of the records.
            enough: Bytes of records after decompression behind which no further batch is opened; None for all.
            start_offset: First offset wanted.
            end_offset: First offset not wanted, or None for all.
            check_crcs: Whether to compare checksums.
            key_deserializer: Called with topic, headers and the key's bytes.
            value_deserializer: The same for the value.
            max_decompressed: Greatest size in bytes of a batch's records after decompression.
            aborted: The aborted transactions.

        Returns:
            The records; the offset to go on at, None if there is no batch behind them; and the bytes that were opened.
        """
        if key_deserializer is not None or value_deserializer is not None:
            _check_deserializers(key_deserializer, value_deserializer)
        enough = check_enough(enough)
        view, topic, partition, start, end, max_decompressed, aborted = check_wanted(
            buffer, topic, partition, start_offset, end_offset, max_decompressed, aborted
        )
        records: list[Any] = []
        size = 0
        with view:
            for position, header, payload in open_batches(
                view, self._implementation, start, end, check_crcs, max_decompressed, aborted
            ):
                if payload is None:
                    continue
                parse = self._make if isinstance(payload, MessageRows) else self._parse
                parse(
                    payload, header, position, topic, partition, start, end,
                    key_deserializer, value_deserializer, records,
                )  # fmt: skip
                size += _size_of_payload(payload)
                if enough is not None and size >= enough and follows(view, position, header, end):
                    return records, header.last_offset + 1, size
        return records, None, size

    def read_end_marker(self, batch: Buffer, max_decompressed: int = DEFAULT_MAX_DECOMPRESSED) -> EndMarker | None:
        """How the transaction ended that a control batch is of; None for any other batch.

        Args:
            batch: One whole batch.
            max_decompressed: Greatest size in bytes of its record after decompression.

        Raises:
            CorruptRecordError: It is damaged.
            RecordTooLargeError: It is larger than `max_decompressed` when decompressed.
            TypeError: The batch holds no bytes.
            ConfigError: The size is of a wrong type, or not positive.
        """
        max_decompressed = check_max_decompressed(max_decompressed)
        with as_view(batch, "batch") as view:
            header = check_batch(view)
            if not header.is_control:
                return None
            payload = read_payload(view, 0, header, max_decompressed)
            records = read_control_records(payload, header, 0, self._implementation)
        return decode_end_marker(records[0].key, records[0].value) if records else None


def check_enough(enough: Any) -> int | None:
    """Raises TypeError or ValueError where it is neither None nor an integer above 0."""
    return None if enough is None else integer("enough", enough, 1, INT64_MAX)


def _size_of_payload(payload: Buffer | MessageRows) -> int:
    """The bytes of a batch's records after decompression; of rows those of keys and values."""
    if isinstance(payload, MessageRows):
        return sum(len(key or b"") + len(value or b"") for _, _, key, value in payload)
    return len(payload)


def follows(view: memoryview, position: int, header: BatchHeader, end: int) -> bool:
    """Whether there may be more behind a batch that is wanted."""
    return header.last_offset + 1 < end and position + header.length < len(view)


def _make_records(
    new: Callable[..., Any],
    rows: MessageRows,
    header: BatchHeader,
    position: int,
    topic: str,
    partition: int,
    start: int,
    end: int,
    key_deserializer: Deserialize | None,
    value_deserializer: Deserialize | None,
    records: list[Any],
) -> None:
    """What `ParseRecords` does, for the rows of a message set.

    Raises:
        RecordDeserializationError: A deserializer failed.
    """
    kind = header.timestamp_type
    add = records.append
    for offset, timestamp, raw_key, raw_value in rows:
        if not start <= offset < end:
            continue
        key: Any = raw_key
        value: Any = raw_value
        if key is not None and key_deserializer is not None:
            key = _deserialize(key_deserializer, key, "key", topic, partition, offset)
        if value is not None and value_deserializer is not None:
            value = _deserialize(value_deserializer, value, "value", topic, partition, offset)
        add(new(topic, partition, offset, timestamp, kind, key, value, (), None))


def _deserialize(deserializer: Deserialize, data: bytes, what: str, topic: str, partition: int, offset: int) -> Any:
    try:
        return deserializer(topic, (), data)
    except Exception as error:
        raise deserialization_error(what, topic, partition, offset) from error


def open_batches(
    view: memoryview,
    implementation: Implementation,
    start: int,
    end: int,
    check_crcs: bool,
    max_decompressed: int,
    aborted: Iterable[tuple[int, int]] | None,
    begin: int = 0,
    opens: Callable[[BatchHeader], bool] | None = None,
) -> Iterator[OpenBatch]:
    """Position, header and payload of each batch up to offset `end`, from position `begin` on.

    The payload is the records of a batch v2 as they are written, and those of an old format as rows; None where the
    batch holds no wanted data, and `UNOPENED` for a batch v2 of which `opens` says that its header is enough.
    """
    hidden = None if aborted is None else AbortedFilter(aborted)
    runs: MessageRuns | None = None
    position, length = begin, len(view)
    try:
        while (header := next_header(view, position, length)) is not None:
            if header.magic != CURRENT_MAGIC:
                if runs is None:
                    runs = MessageRuns(
                        view, start=start, end=end, check_crcs=check_crcs, max_decompressed=max_decompressed
                    )
                yield from runs.take(position, header)
                position = runs.position
                if runs.done:
                    break
                continue
            if runs is not None:
                yield from runs.flush()
            if header.base_offset >= end:
                break
            if check_crcs:  # first of all: a flipped bit in the header must not make the batch one to pass over
                check_crc(view, position, header)
            if header.is_control:
                if hidden is not None:
                    payload = read_payload(view, position, header, max_decompressed)
                    hidden.end(header, _control_type(payload, header, position, implementation))
                yield position, header, None
            elif (hidden is not None and hidden.hides(header)) or header.last_offset < start:
                yield position, header, None
            elif opens is not None and not opens(header):
                yield position, header, UNOPENED
            else:
                yield position, header, read_payload(view, position, header, max_decompressed)
            if header.last_offset >= end - 1:
                break
            position += header.length
    except CorruptRecordError:
        if runs is not None:
            yield from runs.flush()  # what comes before the damage is fine
        raise
    if runs is not None:
        yield from runs.flush()


def _control_type(payload: Buffer, header: BatchHeader, position: int, implementation: Implementation) -> int:
    records = read_control_records(payload, header, position, implementation)
    if not records:
        return -1  # compaction removed the marker and left the batch
    return decode_control_type(records[0].key)


def read_control_records(
    payload: Buffer, header: BatchHeader, position: int, implementation: Implementation
) -> list[Any]:
    records: list[Any] = []
    implementation.parse_records(payload, header, position, "", -1, 0, END_OF_OFFSETS, None, None, records)
    return records
