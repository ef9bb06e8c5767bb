"""Arrow tables as records to send: the columns of Spark's Kafka sink.

The rows go to the open batches of their partitions as columns, in the compiled code (`Appender.append_rows`), in their
order, up to the first one that has no room there or is odd in another way. That one goes the way of every other record
(`RecordAppender.append`): it opens a batch, lets one grow, finds out that something has to be waited for, or says what
is wrong with it. So it is the same as a `send` for each row; and that is what happens where a partitioner or
interceptors of the user's look at each record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio

from kclient.arguments import check_topic, shown
from kclient.errors import (
    KafkaError,
    MissingExtraError,
    SerializationError,
)
from kclient.producer.arrow_headers import with_headers
from kclient.producer.delivery import Deliveries
from kclient.records import Destinations, RecordColumns, RecordSource
from kclient.records.arrow_source import (
    binary_column,
    copied_bytes,
    header_column,
    milliseconds_column,
    numbers_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kclient.types import Header

COLUMNS: Final = ("key", "value", "headers", "topic", "partition", "timestamp")

_PIECE_ROWS: Final = 16384
"""Rows that are looked at together."""
PIECE_BYTES: Final = 8 * 1024 * 1024
"""Bytes of them that may be copied: columns of some types have to be converted."""

_ROW_BYTES: Final = 8
"""What a record has, in about, beside its columns."""

_NO_TIME: Final = -1
_NO_PARTITION: Final = -1
_NO_TOPIC: Final = -1
_ODD: Final = -2
"""A negative number that the user gave: `append_rows` stops there, and the row is complained about."""


class SendRow(NamedTuple):
    """One row, as arguments of `send`; key and value are bytes."""

    topic: str
    value: bytes | None
    key: bytes | None
    partition: int | None
    timestamp: int | None
    headers: list[Header]


class Piece:
    """Some rows of a RecordBatch, as columns and one by one.

    Args:
        pyarrow: The package.
        topic: Topic of all rows; None takes the column `topic`.
        batch: The rows.
        first: The number of the first one among all that the user gave.

    Raises:
        SerializationError: A column is of a type that is not a record's.
    """

    def __init__(self, pyarrow: Any, topic: str | None, batch: Any, first: int) -> None:
        self.rows: int = batch.num_rows
        self._topic = topic
        self._first = first
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        self._keys, self._values, self._headers = columns.get("key"), columns["value"], columns.get("headers")
        self._stamps = None if "timestamp" not in columns else milliseconds_column(columns["timestamp"])
        self._partitions = _cast(pyarrow, columns.get("partition"), "partition", pyarrow.int32())
        self._topics = None if topic is not None else _cast(pyarrow, columns["topic"], "topic", pyarrow.string())
        self._bytes = batch.nbytes + _ROW_BYTES * self.rows
        self.source: RecordSource = RecordSource(self._columns(), self._destinations())
        """The rows as columns."""

    def _columns(self) -> RecordColumns:
        return RecordColumns(
            self.rows,
            binary_column(self._keys, "key"),
            binary_column(self._values, "value"),
            None if self._stamps is None else numbers_of(_with_odd(self._stamps, _NO_TIME), 8),
            _NO_TIME,
            header_column(self._headers),
        )

    def _destinations(self) -> Destinations:
        partitions = None if self._partitions is None else numbers_of(_with_odd(self._partitions, _NO_PARTITION), 4)
        if self._topic is not None:
            return Destinations([self._topic], None, partitions)
        return Destinations(*_numbered(self._topics), partitions)

    def bytes_from(self, position: int) -> int:
        """About how many bytes the rows from here on have."""
        return int(self._bytes * (self.rows - position) // self.rows)

    def row(self, position: int) -> SendRow:
        """A row by itself.

        Raises:
            SerializationError: It has no topic.
        """
        topic = self._topic if self._topics is None else self._topics[position].as_py()
        if topic is None:
            raise SerializationError(f"send_arrow: row {self._first + position} has no topic")
        return SendRow(
            topic,
            _bytes_at(self._values, position),
            _bytes_at(self._keys, position),
            None if self._partitions is None else self._partitions[position].as_py(),
            None if self._stamps is None else self._stamps[position].as_py(),
            _headers_at(self._headers, position),
        )


def pieces_of(topic: str | None, data: Any, headers: Mapping[str, bytes] | None = None) -> Iterator[Piece]:
    """The rows of Arrow data, in pieces.

    Args:
        topic: Topic of all rows; None takes the column `topic`.
        data: A Table, a RecordBatch, an iterable of RecordBatches, or what offers a stream of them.
        headers: What each row gets beside its own headers; those of the same names it loses.

    Raises:
        MissingExtraError: pyarrow is not installed.
        SerializationError: A column is missing, unknown, there twice, or of a type that is not a record's.
        TypeError: It is not Arrow data, or the topic is not text.
        InvalidTopicError: The topic's name is empty.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise MissingExtraError("pyarrow", "arrow", "send_arrow") from error
    if topic is not None:
        check_topic(topic)
    first = 0
    for batch in _batches(pyarrow, topic, data):
        if not isinstance(batch, pyarrow.RecordBatch):
            raise _no_arrow_data(batch)
        _check_names(topic, batch.schema.names)
        for part in _parts(batch):
            try:
                piece = Piece(pyarrow, topic, with_headers(pyarrow, part, headers) if headers else part, first)
            except SerializationError as error:
                raise SerializationError(f"send_arrow: {error.message}") from error.__cause__
            yield piece
            first += part.num_rows


@contextmanager
def telling_rows(appended: Deliveries) -> Iterator[None]:
    """Whatever ends the call gets a note that says how many rows were appended before, cancellation too.

    What a signal handler raises may come while rows are appended that are not counted yet.
    """
    try:
        yield
    except BaseException as error:
        before = f"the {len(appended)} rows before it, and none behind it"
        if appended._unsure and not isinstance(error, KafkaError | TypeError | ValueError | _cancellation()):
            before = f"at least {len(appended)} rows, perhaps the next ones too, and none behind those"
        error.add_note(f"kclient: send_arrow appended {before}")
        raise


def _cancellation() -> type[BaseException]:
    try:
        return anyio.get_cancelled_exc_class()
    except RuntimeError:  # blocking code
        return asyncio.CancelledError


def _batches(pyarrow: Any, topic: str | None, data: Any) -> Iterable[Any]:
    if isinstance(data, pyarrow.RecordBatch):
        return [data]
    if isinstance(data, pyarrow.Table):
        _check_names(topic, data.schema.names)  # also of a table without rows
        return list(data.to_batches())
    if hasattr(data, "__arrow_c_stream__") and not isinstance(data, pyarrow.RecordBatchReader):
        reader: Iterable[Any] = pyarrow.RecordBatchReader.from_stream(data)
        return reader
    if isinstance(data, Iterable) and not isinstance(data, Mapping | str | bytes | bytearray | memoryview):
        return data
    raise _no_arrow_data(data)


def _no_arrow_data(data: Any) -> TypeError:
    return TypeError(f"send_arrow takes a pyarrow Table or RecordBatch, or RecordBatches; not {shown(data)}")


def _check_names(topic: str | None, names: list[str]) -> None:
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        raise SerializationError(f"send_arrow: unknown columns {', '.join(unknown)}; there are {', '.join(COLUMNS)}")
    if "value" not in names:
        raise SerializationError("send_arrow: the column 'value' is missing")
    if topic is None and "topic" not in names:
        raise SerializationError("send_arrow: there is neither a topic nor a column 'topic'")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SerializationError(f"send_arrow: there is more than one column {', '.join(map(repr, twice))}")


def _parts(batch: Any) -> Iterator[Any]:
    """The rows of a RecordBatch, so many at a time that converting them copies no more than `PIECE_BYTES`."""
    for start in range(0, batch.num_rows, _PIECE_ROWS):
        waiting = [batch.slice(start, _PIECE_ROWS)]
        while waiting:
            part = waiting.pop()
            half = part.num_rows // 2
            if half and _copied(part) > PIECE_BYTES:
                waiting += (part.slice(half), part.slice(0, half))
            else:
                yield part


def _copied(part: Any) -> int:
    columns = zip(part.schema.names, part.columns, strict=True)
    return sum(copied_bytes(column) for name, column in columns if name in ("key", "value"))


def _cast(pyarrow: Any, column: Any, name: str, kind: Any) -> Any:
    if column is None or column.type == kind:
        return column
    try:
        return column.cast(kind)
    except pyarrow.ArrowException as error:  # not only ArrowInvalid: some casts are "not implemented"
        raise SerializationError(f"column {name!r} of type {column.type}: {error}") from error


def _with_odd(numbers: Any, null: int) -> Any:
    """Numbers with another one for null, and a third for all that are negative."""
    import pyarrow.compute as compute

    least = compute.min(numbers).as_py()
    if least is not None and least < 0:
        odd = compute.cast(_ODD, numbers.type)
        numbers = compute.if_else(compute.less(numbers, 0), odd, numbers)
    return numbers.fill_null(null) if numbers.null_count else numbers


def _numbered(topics: Any) -> tuple[list[str], Any]:
    """The names of topics, and the number of each row's."""
    encoded = topics.dictionary_encode()
    numbers = encoded.indices
    try:
        names = encoded.dictionary.to_pylist()
    except UnicodeDecodeError as error:
        raise SerializationError(f"column 'topic': {error}") from error
    return names, numbers_of(numbers.fill_null(_NO_TOPIC) if numbers.null_count else numbers, 4)


def _bytes_at(column: Any, position: int) -> bytes | None:
    if column is None or not column[position].is_valid:
        return None
    scalar = column[position]
    while hasattr(scalar, "value"):  # of a dictionary, or an extension
        scalar = scalar.value
    return scalar.as_buffer().to_pybytes() if scalar.is_valid else None


def _headers_at(column: Any, position: int) -> list[Header]:
    items = [] if column is None else column[position].as_py() or []
    pairs = [(item["key"], item["value"]) if isinstance(item, dict) else item for item in items]
    return [(key, value.encode() if isinstance(value, str) else value) for key, value in pairs]
