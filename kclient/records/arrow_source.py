"""Arrow tables as records to be built into batches: the columns of Spark's Kafka source and sink."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from kclient.errors import MissingExtraError, SerializationError
from kclient.records.arguments import check_limit, integer, milliseconds, shown
from kclient.records.batch_header import CompressionType
from kclient.records.bounds import INT64_MAX
from kclient.records.compression import check_compression, check_level
from kclient.records.contract import BinaryColumn, RecordColumns
from kclient.types import Buffer, Headers

if TYPE_CHECKING:
    from kclient.records.contract import BatchBuilderType

IGNORED: Final = frozenset({"topic", "partition", "offset", "timestampType"})
"""Columns of Spark's Kafka schema that say where a record is to go, or was; not what it holds."""
USED: Final = frozenset({"key", "value", "timestamp", "headers"})

_INT64_SIZE: Final = 8


_DATA: Final = "data must be a pyarrow.Table, a pyarrow.RecordBatch or an iterable of RecordBatches"


class BuilderFactory(Protocol):
    """Makes builders of batches."""

    def __call__(
        self, *, limit: int, compression: CompressionType, level: int | None, is_transactional: bool
    ) -> BatchBuilderType: ...


def record_columns(data: Any, *, timestamp: int = -1) -> Iterator[RecordColumns]:
    """The rows of Arrow data as columns for `BatchBuilder.append_columns`, one piece for each chunk of memory.

    Keys and values are not copied if they are binary or string columns with 32-bit positions; other kinds of binary
    are converted first. Headers are made Python objects of.

    Args:
        data: A pyarrow Table or RecordBatch, or an iterable of RecordBatches, with the columns of Spark's Kafka schema:
            `value`, and where wanted `key`, `timestamp` (a timestamp, or milliseconds as integers) and `headers`
            (lists of key and value). `topic`, `partition`, `offset` and `timestampType` may be there and are left out.
        timestamp: Milliseconds since the epoch for rows without one; -1 for none.

    Raises:
        MissingExtraError: pyarrow is not installed.
        SerializationError: A column is missing, unknown, there twice, or of a type that is no record's.
        TypeError: The data are no such thing, or the timestamp is no integer.
        ValueError: The timestamp is before the epoch, or beyond 64 bits.
    """
    pa = _pyarrow()
    timestamp = milliseconds(timestamp)
    if isinstance(data, pa.RecordBatch):
        return _pieces(pa, [data], timestamp)
    if isinstance(data, pa.Table):
        _check_names(data.schema.names)  # also of a table without rows
        return _pieces(pa, data.to_batches(), timestamp)
    try:
        batches = None if isinstance(data, Mapping | str | bytes | bytearray | memoryview) else iter(data)
    except TypeError:
        batches = None
    if batches is None:
        hint = "; use pyarrow.table(data)" if isinstance(data, dict) else ""
        raise TypeError(f"{_DATA}, not {shown(data)}{hint}")
    return _pieces(pa, batches, timestamp)


def _pieces(pa: Any, batches: Iterable[Any], timestamp: int) -> Iterator[RecordColumns]:
    for batch in batches:
        if not isinstance(batch, pa.RecordBatch):
            raise TypeError(f"{_DATA}; what is iterated over gave {shown(batch)}")
        _check_names(batch.schema.names)
        if batch.num_rows:
            yield _columns(pa, batch, timestamp)


class ArrowEncoder:
    """Makes record batches of Arrow data.

    Args:
        builder: Makes the builders.
    """

    def __init__(self, builder: BuilderFactory) -> None:
        self._builder = builder

    def encode_arrow(
        self,
        data: Any,
        *,
        limit: int,
        timestamp: int = -1,
        compression: CompressionType = CompressionType.NONE,
        level: int | None = None,
        is_transactional: bool = False,
        base_offset: int = 0,
    ) -> Iterator[bytearray]:
        """The rows of Arrow data as record batches v2, one after the other.

        Args:
            data: As for `record_columns`.
            limit: Greatest size in bytes of a batch before compression; a row that is larger gets one for itself.
            timestamp: Milliseconds since the epoch for rows without one; -1 for none.
            compression: How the batches are compressed.
            level: Compression level, or None for Kafka's default.
            is_transactional: Whether the batches belong to a transaction.
            base_offset: Offset of the first row; the others follow without gaps.

        Raises:
            MissingExtraError: pyarrow is not installed.
            SerializationError: A column is missing, unknown, there twice, or of a type that is no record's.
            TypeError: The data or an argument are of a wrong type.
            ValueError: A timestamp is before the epoch, or a number out of its range.
            RecordTooLargeError: A row fits into no batch.
            ConfigError: The limit, the compression or the level is impossible.
        """
        check_limit(limit)
        compression = check_compression(compression)
        check_level(compression, level)
        base_offset = integer("base_offset", base_offset, 0, INT64_MAX - 1)
        columns = record_columns(data, timestamp=timestamp)
        return self._encode(columns, limit, compression, level, is_transactional, base_offset)

    def _encode(
        self,
        pieces: Iterable[RecordColumns],
        limit: int,
        compression: CompressionType,
        level: int | None,
        is_transactional: bool,
        base_offset: int,
    ) -> Iterator[bytearray]:
        builder = None
        for columns in pieces:
            start = 0
            while start < columns.rows:
                if builder is None:
                    builder = self._builder(
                        limit=limit, compression=compression, level=level, is_transactional=is_transactional
                    )
                start += builder.append_columns(columns, start)
                if start < columns.rows:
                    yield builder.build(base_offset)
                    base_offset += builder.count
                    builder = None
        if builder is not None:
            yield builder.build(base_offset)


def _pyarrow() -> Any:
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingExtraError("pyarrow", "arrow", "Building batches of Arrow columns") from None
    return pa


def _check_names(names: list[str]) -> None:
    unknown = sorted(set(names) - USED - IGNORED)
    if unknown:
        raise SerializationError(f"unknown columns {', '.join(unknown)}; a record has {', '.join(sorted(USED))}")
    if "value" not in names:
        raise SerializationError("the column 'value' is missing")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SerializationError(f"there is more than one column {', '.join(map(repr, twice))}")


def _columns(pa: Any, batch: Any, timestamp: int) -> RecordColumns:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    return RecordColumns(
        rows=batch.num_rows,
        keys=_binary(pa, "key", columns.get("key")),
        values=_binary(pa, "value", columns["value"]),
        timestamps=_milliseconds(pa, columns.get("timestamp"), timestamp),
        timestamp=timestamp,
        headers=_headers(pa, columns.get("headers")),
    )


def _binary(pa: Any, name: str, column: Any) -> BinaryColumn | None:
    if column is None or column.null_count == len(column):
        return None
    try:
        array = column.cast(pa.binary())  # copies nothing of binary and string columns
    except pa.ArrowException as error:
        raise SerializationError(f"column {name!r} of type {column.type} cannot be taken as binary: {error}") from error
    validity, ends, data = array.buffers()
    return BinaryColumn(array.offset, validity if array.null_count else None, ends, b"" if data is None else data)


def _milliseconds(pa: Any, column: Any, timestamp: int) -> Buffer | None:
    if column is None or column.null_count == len(column):
        return None
    if not pa.types.is_integer(column.type) and not pa.types.is_timestamp(column.type):
        raise SerializationError(f"column 'timestamp' of type {column.type} is neither a timestamp nor an integer")
    try:
        if pa.types.is_timestamp(column.type):
            coarser = column.type.unit == "s"  # may be too many for milliseconds; the finer ones are cut off
            column = column.cast(pa.timestamp("ms", column.type.tz), safe=coarser)
        array = column.cast(pa.int64())
    except pa.ArrowException as error:
        raise SerializationError(
            f"column 'timestamp' of type {column.type} cannot be taken as milliseconds: {error}"
        ) from error
    if array.null_count:
        array = array.fill_null(timestamp)
    stamps = memoryview(array.buffers()[1]).cast("B")
    return stamps[array.offset * _INT64_SIZE : (array.offset + len(array)) * _INT64_SIZE]


def _headers(pa: Any, column: Any) -> list[Headers] | None:
    if column is None or column.null_count == len(column):
        return None
    kind = column.type
    if pa.types.is_map(kind):
        return [row or () for row in column.to_pylist()]
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        raise SerializationError(f"column 'headers' of type {kind} is no list of keys and values")
    try:
        return [[(header["key"], header["value"]) for header in row or ()] for row in column.to_pylist()]
    except (KeyError, TypeError) as error:
        raise SerializationError(f"column 'headers' of type {kind} is no list of keys and values") from error
