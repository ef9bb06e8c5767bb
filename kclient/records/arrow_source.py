"""Arrow tables as records to be built into batches: the columns of Spark's Kafka source and sink."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol

from kclient.errors import MissingExtraError, SerializationError
from kclient.records.arguments import check_limit, integer, milliseconds, shown
from kclient.records.batch_header import CompressionType
from kclient.records.bounds import INT64_MAX
from kclient.records.compression import check_compression, check_level
from kclient.records.contract import BinaryColumn, HeaderColumn, RecordColumns
from kclient.types import Buffer

if TYPE_CHECKING:
    from kclient.records.contract import BatchBuilderType

_IGNORED: Final = frozenset({"topic", "partition", "offset", "timestampType"})
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

    Keys, values and headers are not copied if they are binary or string columns, large or not; other kinds of binary
    are converted first.

    Args:
        data: A pyarrow Table or RecordBatch, or an iterable of RecordBatches, with the columns of Spark's Kafka schema:
            `value`, and where wanted `key`, `timestamp` (a timestamp, or milliseconds as integers) and `headers`
            (lists of structs of key and value, or maps). `topic`, `partition`, `offset` and `timestampType` may be
            there and are left out.
        timestamp: Milliseconds since the epoch for rows without one; -1 for none.

    Raises:
        MissingExtraError: pyarrow is not installed.
        SerializationError: A column is missing, unknown, there twice, or of a type that is not a record's.
        TypeError: The data are none of these, or the timestamp is not an integer.
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
            SerializationError: A column is missing, unknown, there twice, or of a type that is not a record's.
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
    unknown = sorted(set(names) - USED - _IGNORED)
    if unknown:
        raise SerializationError(f"unknown columns {', '.join(unknown)}; a record has {', '.join(sorted(USED))}")
    if "value" not in names:
        raise SerializationError("the column 'value' is missing")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SerializationError(f"there is more than one column {', '.join(map(repr, twice))}")


def _columns(pa: Any, batch: Any, timestamp: int) -> RecordColumns:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    stamps = columns.get("timestamp")
    return RecordColumns(
        rows=batch.num_rows,
        keys=binary_column(columns.get("key"), "key"),
        values=binary_column(columns["value"], "value"),
        timestamps=None if stamps is None else _timestamps(pa, stamps, timestamp),
        timestamp=timestamp,
        headers=header_column(columns.get("headers")),
    )


def binary_column(column: Any, name: str) -> BinaryColumn | None:
    """A column of bytes or text in Arrow's memory layout; None if there is none, or every row is null.

    Binary and string columns are not copied, be their positions of 32 or 64 bits; other kinds of binary are converted.

    Args:
        column: The `pyarrow.Array`, or None.
        name: Name of the column, for the error.

    Raises:
        SerializationError: The column is of another type.
    """
    if column is None or column.null_count == len(column):
        return None
    array = _plain_binary(_pyarrow(), column, name)
    wide = array.type.id in _ids("large_binary", "large_string")
    validity, ends, data = array.buffers()
    return BinaryColumn(array.offset, validity if array.null_count else None, ends, b"" if data is None else data, wide)


def _plain_binary(pa: Any, column: Any, name: str) -> Any:
    """The column as binary or string, large or not."""
    if column.type.id in _ids("dictionary"):
        return _plain_binary(pa, column.dictionary_decode(), name)
    if column.type.id in _ids("binary", "string", "large_binary", "large_string"):
        return column
    try:
        return column.cast(pa.binary())
    except pa.ArrowException as error:  # not only ArrowInvalid: some casts are "not implemented"
        raise SerializationError(f"column {name!r} of type {column.type} cannot be taken as binary: {error}") from error


@cache
def _ids(*names: str) -> frozenset[int]:
    """What the types of these names are called in `pyarrow.DataType.id`."""
    pa = _pyarrow()
    return frozenset(getattr(pa.lib, f"Type_{name.upper()}") for name in names)


def copied_bytes(column: Any) -> int:
    """How many bytes `binary_column` has to copy of this column."""
    kind = column.type
    if kind.id in _ids("fixed_size_binary"):
        return int(kind.byte_width) * len(column)
    if kind.id in _ids("binary_view", "string_view"):
        return _viewed_bytes(column)
    if kind.id in _ids("dictionary") and column.null_count < len(column):
        return _indexed_bytes(column)
    return 0


def _viewed_bytes(column: Any) -> int:
    # a view is 16 bytes, and its length the first four; what a null one holds counts too, which does no harm
    views = memoryview(column.buffers()[1]).cast("B")[column.offset * 16 : (column.offset + len(column)) * 16]
    return sum(views.cast("i")[::4])


def _indexed_bytes(column: Any) -> int:
    import pyarrow.compute as compute

    try:
        lengths = compute.binary_length(_plain_binary(_pyarrow(), column.dictionary, ""))
    except SerializationError:
        return 0  # it is refused later
    return compute.sum(lengths.take(column.indices)).as_py() or 0


def milliseconds_column(column: Any) -> Any:
    """A column of timestamps as a `pyarrow.Array` of int64, milliseconds since the epoch, with its nulls.

    Raises:
        SerializationError: It is neither a timestamp nor an integer, or does not fit.
    """
    pa = _pyarrow()
    kind = column.type
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.int64())
    if not pa.types.is_integer(kind) and not pa.types.is_timestamp(kind):
        raise SerializationError(f"column 'timestamp' of type {kind} is neither a timestamp nor an integer")
    try:
        if pa.types.is_timestamp(kind):
            finer = _FINER.get(kind.unit)
            if finer is not None:
                return _floored(column.view(pa.int64()), finer)
            column = column.cast(pa.timestamp("ms", kind.tz))  # seconds may be too many for milliseconds
        return column.cast(pa.int64())
    except pa.ArrowException as error:
        raise SerializationError(
            f"column 'timestamp' of type {kind} cannot be taken as milliseconds: {error}"
        ) from error


_FINER: Final = {"us": 1000, "ns": 1_000_000}
"""Units of timestamps of which so many are a millisecond."""


def _floored(numbers: Any, divisor: int) -> Any:
    """Numbers divided and rounded down: a moment before the epoch does not become the epoch."""
    import pyarrow.compute as compute

    quotient = compute.divide(numbers, divisor)
    least = compute.min(numbers).as_py()
    if least is None or least >= 0:
        return quotient
    inexact = compute.less(numbers, compute.multiply(quotient, divisor))
    return compute.subtract(quotient, compute.cast(inexact, quotient.type))


def numbers_of(array: Any, size: int) -> Buffer:
    """The memory of an array of numbers without nulls, each of so many bytes."""
    return memoryview(array.buffers()[1]).cast("B")[array.offset * size : (array.offset + len(array)) * size]


def _timestamps(pa: Any, column: Any, timestamp: int) -> Buffer | None:
    if column.null_count == len(column):
        return None
    array = milliseconds_column(column)
    return numbers_of(array.fill_null(timestamp) if array.null_count else array, _INT64_SIZE)


def header_column(column: Any) -> HeaderColumn | None:
    """A column of headers in Arrow's memory layout; None if there is none, or no row has any.

    Args:
        column: The `pyarrow.Array`, lists of structs of key and value or maps; or None.

    Raises:
        SerializationError: The column is of another type, or a key is null or no text.
    """
    if column is None or column.null_count == len(column):
        return None
    pa = _pyarrow()
    column = _plain_list(pa, column)
    wide = pa.types.is_large_list(column.type)
    validity, ends = column.buffers()[:2]
    starts = memoryview(ends).cast("B")[column.offset * (8 if wide else 4) :].cast("q" if wide else "i")
    begin, end = starts[0], starts[len(column)]
    if begin == end:
        return None
    keys, values = (part.slice(begin, end - begin) for part in _key_and_value(pa, column))
    _check_keys(pa, column, keys)
    return HeaderColumn(
        column.offset,
        validity if column.null_count else None,
        ends,
        begin,
        end - begin,
        binary_column(keys, "headers"),
        binary_column(values, "headers"),
        wide,
    )


def _plain_list(pa: Any, column: Any) -> Any:
    """The column as lists or maps whose items lie one behind the other."""
    kind = column.type
    if pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return column
    if not (pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind) or pa.types.is_fixed_size_list(kind)):
        raise SerializationError(f"column 'headers' of type {kind} is not a list of keys and values")
    import pyarrow.compute as compute

    # Arrow's own cast makes wrong lists of views, where some are null
    lengths = compute.list_value_length(column).fill_null(0).cast(pa.int64())
    ends = pa.concat_arrays([pa.array([0], pa.int64()), compute.cumulative_sum(lengths)])
    return pa.LargeListArray.from_arrays(ends, column.flatten())


def _key_and_value(pa: Any, column: Any) -> tuple[Any, Any]:
    """All keys and values of a column of headers, also those that no row has."""
    kind = column.type
    if pa.types.is_map(kind):
        return column.keys, column.items
    items = column.values
    if not pa.types.is_struct(items.type) or items.type.get_field_index("key") < 0:
        raise SerializationError(f"column 'headers' of type {kind} is not a list of keys and values")
    if items.type.get_field_index("value") < 0:
        raise SerializationError(f"column 'headers' of type {kind} is not a list of keys and values")
    return items.field("key"), items.field("value")


def _check_keys(pa: Any, column: Any, keys: Any) -> None:
    kind = column.type
    text = keys.type.value_type if pa.types.is_dictionary(keys.type) else keys.type
    if text.id not in _ids("string", "large_string", "string_view"):
        raise SerializationError(f"column 'headers' of type {kind}: the key of a header is text")
    try:
        keys.validate(full=True)  # whether it is UTF-8, which nobody has looked at so far
    except pa.ArrowException as error:
        raise SerializationError(
            f"column 'headers' of type {kind}: the key of a header is not text: {error}"
        ) from error
    if pa.types.is_map(kind):
        return
    items = column.flatten()  # the items that rows have, without those behind a null row
    if items.null_count or items.field("key").null_count:
        raise SerializationError(f"column 'headers' of type {kind}: a header, or the key of one, is null")
