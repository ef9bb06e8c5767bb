"""Fetched batches as one Arrow record batch, in the schema of Spark's Kafka source."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kclient.errors import MissingExtraError
from kclient.records.arguments import MAX_BATCH_SIZE, check_max_decompressed, shown
from kclient.records.batch_header import HEADER_SIZE, BatchHeader
from kclient.records.compression import DEFAULT_MAX_DECOMPRESSED
from kclient.records.message_set import MessageRows
from kclient.records.reader import UNOPENED, check_enough, check_wanted, follows, open_batches
from kclient.types import Buffer, TimestampType

if TYPE_CHECKING:
    from kclient.records.contract import Columns, Implementation

COLUMN_NAMES: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
"""In the order of Spark's Kafka source."""
_FARTHEST: Final = 1 << 61
"""Milliseconds beyond what 64 bits of microseconds can tell, so that it makes no difference how far."""
_ROW_BYTES: Final = 16
"""What a row counts of which nothing but the header of its batch is read."""
_MOST_UNOPENED: Final = 1 << 20
"""Records that a batch's header is believed to stand for; where it tells more, they are counted."""
_KEPT_ROWS: Final = 1 << 14
"""How often each of the last topics' names is kept, of at most 249 bytes each."""


class ArrowChunk(NamedTuple):
    """Fetched bytes of one partition."""

    topic: str
    """Topic of the records."""
    partition: int
    """Partition of the records."""
    buffer: Buffer
    """Record batches or message sets; a partial one at the end is left out."""
    start_offset: int = 0
    """First offset wanted."""
    end_offset: int | None = None
    """First offset not wanted, or None for all."""
    aborted: Iterable[tuple[int, int]] | None = None
    """Producer id and first offset of each aborted transaction, or None to read everything."""


class _Wanted:
    """Which columns are wanted, and what that takes.

    Args:
        names: The columns, in their order.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.schema: Any = _pyarrow().schema([_fields()[name] for name in names])
        self.keys: bool = "key" in names
        self.values: bool = "value" in names
        self.headers: bool = "headers" in names
        self.opens: Callable[[BatchHeader], bool] | None = None
        """Whether a batch has to be opened for them; None where each has to be."""
        if not (self.keys or self.values or self.headers):
            self.opens = _opens_for_timestamps if "timestamp" in names else _opens


def _opens(header: BatchHeader) -> bool:
    """Whether the header does not tell which offsets have records."""
    return header.count != header.last_offset_delta + 1 or header.count > _MOST_UNOPENED


def _opens_for_timestamps(header: BatchHeader) -> bool:
    return header.timestamp_type is not TimestampType.LOG_APPEND_TIME or _opens(header)


class _Repeats:
    """A column whose value changes seldom, as values and how often each repeats.

    Args:
        repeat: Makes an array of a value and how often it repeats.
    """

    def __init__(self, repeat: Callable[[Any, int], Any]) -> None:
        self._repeat = repeat
        self._runs: list[tuple[Any, int]] = []

    def append(self, value: Any, count: int) -> None:
        if self._runs and self._runs[-1][0] == value:
            self._runs[-1] = (value, self._runs[-1][1] + count)
        else:
            self._runs.append((value, count))

    def array(self, pa: Any, kind: Any) -> Any:
        if not self._runs:
            return pa.array([], kind)
        arrays = [self._repeat(value, count) for value, count in self._runs]
        return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _repeated_number(value: int, count: int) -> Any:
    """So many times an int32."""
    pa = _pyarrow()
    return pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(array("i", (value,)) * count)])


def _repeated_text(text: str, count: int) -> Any:
    """So many times a string; of those that are kept, as topics come again."""
    if count > _KEPT_ROWS:
        pa = _pyarrow()
        return pa.repeat(pa.scalar(text, pa.string()), count)
    return _kept_texts(text).slice(0, count)


@lru_cache(maxsize=8)
def _kept_texts(text: str) -> Any:
    pa = _pyarrow()
    return pa.repeat(pa.scalar(text, pa.string()), _KEPT_ROWS)


class ArrowDecoder:
    """Makes Arrow record batches of fetched ones.

    Args:
        implementation: Does the part that runs once per record.
    """

    def __init__(self, implementation: Implementation) -> None:
        self._implementation = implementation
        self._columns = implementation.ColumnBuilder

    def decode_arrow(
        self,
        chunks: Iterable[ArrowChunk | tuple[Any, ...]],
        include_headers: bool = False,
        *,
        columns: Iterable[str] | None = None,
        check_crcs: bool = True,
        max_decompressed: int = DEFAULT_MAX_DECOMPRESSED,
    ) -> Any:
        """The records of the chunks as one `pyarrow.RecordBatch`, in the order given.

        The schema is that of Spark's Kafka source: key binary, value binary, topic string, partition int32, offset
        int64, timestamp timestamp[us, UTC], timestampType int32, and with `include_headers` headers
        list<struct<key: string, value: binary>>, null where a record has none. A timestamp beyond what 64 bits of
        microseconds can tell (about the year 294,000) is given as the last that they can.

        Args:
            chunks: What to decode: `ArrowChunk`s, or tuples of their fields.
            include_headers: Whether the column `headers` is wanted beside all others.
            columns: The names of the columns that are wanted, in their order; None for all. What is not wanted is not
                copied, and where only topic, partition, offset and timestampType are (and timestamp, where a broker
                gave it), batches of which no record was compacted away are not even decompressed.
            check_crcs: Whether to compare checksums.
            max_decompressed: Greatest size in bytes of a batch's records after decompression.

        Raises:
            MissingExtraError: pyarrow is not installed.
            CorruptRecordError: A batch or record is damaged or makes no sense.
            RecordTooLargeError: A batch is larger than `max_decompressed`, or all together are larger than 2 GiB.
            TypeError: A chunk, or one of its fields, is of a wrong type.
            ValueError: A number is out of its range, or a column is unknown or named twice.
            ConfigError: `max_decompressed` is not a positive integer.
        """
        return self.decode_arrow_some(
            chunks, None, include_headers, columns=columns, check_crcs=check_crcs, max_decompressed=max_decompressed
        )[0]

    def decode_arrow_some(
        self,
        chunks: Iterable[ArrowChunk | tuple[Any, ...]],
        enough: int | None,
        include_headers: bool = False,
        *,
        columns: Iterable[str] | None = None,
        check_crcs: bool = True,
        max_decompressed: int = DEFAULT_MAX_DECOMPRESSED,
    ) -> tuple[Any, int, int | None]:
        """The records of the chunks up to the batch with which they are `enough` bytes after decompression.

        Args:
            chunks: As for `decode_arrow`, like the arguments below.
            enough: Bytes of records after decompression behind which no further batch is opened; None for all.
            include_headers: As for `decode_arrow`.
            columns: As for `decode_arrow`.
            check_crcs: Whether to compare checksums.
            max_decompressed: Greatest size in bytes of a batch's records after decompression.

        Returns:
            The records, how many chunks they were all of, and the offset to go on at in the chunk behind those; None
            if nothing of it was opened.
        """
        wanted = _wanted(column_names(columns, bool(include_headers)))
        check_max_decompressed(max_decompressed)
        enough = check_enough(enough)
        builder = self._columns(wanted.headers, wanted.keys, wanted.values)
        topics, partitions, types = (
            _Repeats(_repeated_text),
            _Repeats(_repeated_number),
            _Repeats(_repeated_number),
        )
        size = whole = 0
        go_on: int | None = None
        for chunk in _chunks(chunks):
            if enough is not None and size >= enough:
                break
            view, topic, partition, start, end, limit, aborted = check_wanted(
                chunk.buffer,
                chunk.topic,
                chunk.partition,
                chunk.start_offset,
                chunk.end_offset,
                max_decompressed,
                chunk.aborted,
            )
            _check_utf8(topic)
            with view:
                for position, header, payload in open_batches(
                    view, self._implementation, start, end, check_crcs, limit, aborted, opens=wanted.opens
                ):
                    if payload is None:
                        continue
                    if payload is UNOPENED:
                        rows = builder.append_dense(header, start, end)
                        size += rows * _ROW_BYTES
                    else:
                        if isinstance(payload, MessageRows):
                            header, payload = _as_batch(self._implementation, header, payload)
                        rows = builder.append(payload, header, position, start, end)
                        size += len(payload)
                    if rows:
                        topics.append(topic, rows)
                        partitions.append(partition, rows)
                        types.append(int(header.timestamp_type), rows)
                    if enough is not None and size >= enough and follows(view, position, header, end):
                        go_on = header.last_offset + 1
                        break
            if go_on is not None:
                break
            whole += 1
        return _record_batch(wanted.schema, builder.finish(), topics, partitions, types), whole, go_on


def _chunks(chunks: Any) -> Iterator[ArrowChunk]:
    what = "chunks must be a list of ArrowChunks, or of tuples of topic, partition, buffer and so on"
    if isinstance(chunks, ArrowChunk | str | bytes | bytearray | memoryview):
        raise TypeError(f"{what}, not {shown(chunks)}")
    try:
        items = iter(chunks)
    except TypeError:
        raise TypeError(f"{what}, not {shown(chunks)}") from None
    for chunk in items:
        if isinstance(chunk, ArrowChunk):
            yield chunk
        elif isinstance(chunk, tuple | list) and 3 <= len(chunk) <= len(ArrowChunk._fields):
            yield ArrowChunk(*chunk)
        else:
            fields = f" of {len(chunk)} fields" if isinstance(chunk, tuple | list) else ""
            raise TypeError(f"{what}; one of them is {shown(chunk)}{fields}")


def _check_utf8(topic: str) -> None:
    try:
        topic.encode()
    except UnicodeEncodeError:
        raise ValueError(f"topic must be text that UTF-8 can hold, not {topic!a}") from None


def _as_batch(implementation: Implementation, header: BatchHeader, rows: MessageRows) -> tuple[BatchHeader, memoryview]:
    """The rows of a message set as a batch v2 holds them, and the header that goes with it."""
    stamps = [min(max(row[1], -_FARTHEST), _FARTHEST) for row in rows]
    # The builder takes no timestamps before the epoch, but only differences are read of what it writes.
    shift = min(min(stamps) + 1, 0)
    builder = implementation.BatchBuilder(limit=MAX_BATCH_SIZE)
    first = rows[0][0]
    for (offset, _, key, value), stamp in zip(rows, stamps, strict=True):
        builder.append_at(offset - first, stamp - shift, key, value)
    return header._replace(base_timestamp=stamps[0]), memoryview(builder.build())[HEADER_SIZE:]


def _pyarrow() -> Any:
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingExtraError("pyarrow", "arrow", "Decoding to Arrow columns") from None
    return pa


def arrow_schema(include_headers: bool = False, columns: Iterable[str] | None = None) -> Any:
    """The `pyarrow.Schema` of `decode_arrow`.

    Args:
        include_headers: Whether the column `headers` is in it beside all others.
        columns: The columns in it, in their order; None for all.

    Raises:
        MissingExtraError: pyarrow is not installed.
        TypeError: The columns are no names.
        ValueError: A column is unknown or named twice.
    """
    return _wanted(column_names(columns, bool(include_headers))).schema


@cache
def _fields() -> dict[str, Any]:
    pa = _pyarrow()
    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    fields = [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", pa.list_(header)),
    ]
    return {field.name: field for field in fields}


@lru_cache(maxsize=64)
def _wanted(names: tuple[str, ...]) -> _Wanted:
    return _Wanted(names)


def column_names(columns: Any, include_headers: bool) -> tuple[str, ...]:
    """Which columns are meant, checked.

    Raises:
        TypeError: They are no names.
        ValueError: One is unknown or named twice, or there is none, or headers are asked for in both ways.
    """
    known = COLUMN_NAMES
    if columns is None:
        return known if include_headers else known[:-1]
    what = "columns must be a list of names"
    if isinstance(columns, str | bytes | bytearray | memoryview):
        raise TypeError(f"{what}, not {shown(columns)}")
    try:
        names = tuple(columns)
    except TypeError:
        raise TypeError(f"{what}, not {shown(columns)}") from None
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{what}; one of them is {shown(name)}")
        if name not in known:
            raise ValueError(f"there is no column {shown(name)}; the columns are {', '.join(known)}")
        if names.count(name) > 1:
            raise ValueError(f"the column {name} is named twice")
    if not names:
        raise ValueError("columns names none; a record batch without columns could not tell how many records there are")
    if include_headers:
        raise ValueError("include_headers is for all columns; beside columns, name headers among them")
    return names


def _record_batch(schema: Any, columns: Columns, topics: _Repeats, partitions: _Repeats, types: _Repeats) -> Any:
    pa = _pyarrow()
    rows = columns.rows
    make: dict[str, Callable[[], Any]] = {
        "key": lambda: _binary(pa, rows, columns.key_validity, columns.key_ends, columns.key_data),
        "value": lambda: _binary(pa, rows, columns.value_validity, columns.value_ends, columns.value_data),
        "topic": lambda: topics.array(pa, pa.string()),
        "partition": lambda: partitions.array(pa, pa.int32()),
        "offset": lambda: _fixed(pa, pa.int64(), rows, columns.offsets),
        "timestamp": lambda: _fixed(pa, schema.field("timestamp").type, rows, columns.timestamps),
        "timestampType": lambda: types.array(pa, pa.int32()),
        "headers": lambda: pa.array(columns.headers, schema.field("headers").type),
    }
    return pa.RecordBatch.from_arrays([make[name]() for name in schema.names], schema=schema)


def _binary(pa: Any, count: int, validity: Buffer | None, ends: Buffer, data: Buffer) -> Any:
    bitmap = None if validity is None else pa.py_buffer(validity)
    return pa.Array.from_buffers(pa.binary(), count, [bitmap, pa.py_buffer(ends), pa.py_buffer(data)])


def _fixed(pa: Any, kind: Any, count: int, data: Buffer) -> Any:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)])
