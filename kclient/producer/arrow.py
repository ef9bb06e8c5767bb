"""Arrow tables as records to send: the columns of Spark's Kafka sink."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from kclient.arguments import shown
from kclient.errors import MissingExtraError, SerializationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kclient.types import Headers

COLUMNS = ("key", "value", "headers", "topic", "partition", "timestamp")


class Rows(NamedTuple):
    """Some rows as lists, one per column; None for a column that is not there."""

    values: list[bytes | None]
    keys: list[bytes | None] | None
    headers: list[Headers] | None
    topics: list[str] | None
    partitions: list[int | None] | None
    timestamps: list[int | None] | None

    @property
    def uniform(self) -> bool:
        """Whether only keys and values differ, so that the rows can be sent as one batch."""
        return self.headers is None and self.topics is None and self.partitions is None and self.timestamps is None

    def rest(self, position: int) -> dict[str, Any]:
        """What the row has beside topic, value and key, as arguments of `send`."""
        return {
            "partition": None if self.partitions is None else self.partitions[position],
            "timestamp": None if self.timestamps is None else self.timestamps[position],
            "headers": () if self.headers is None else self.headers[position],
        }


def rows_of(topic: str | None, data: Any, size: int = 10_000) -> Iterator[Rows]:
    """The rows of Arrow data, in pieces of at most `size`.

    Args:
        topic: Topic of all rows; None takes the column `topic`.
        data: A Table, a RecordBatch, or an iterable of RecordBatches.
        size: Rows per piece.

    Raises:
        MissingExtraError: pyarrow is not installed.
        SerializationError: A column is missing, unknown, or of a type that is no record's.
        TypeError: It is no Arrow data.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise MissingExtraError("pyarrow", "arrow", "send_arrow") from error
    batches: Iterable[Any]
    if isinstance(data, pyarrow.RecordBatch):
        batches = [data]
    elif isinstance(data, pyarrow.Table):
        batches = data.to_batches()
    elif isinstance(data, Iterable):
        batches = data
    else:
        raise TypeError(f"send_arrow takes a pyarrow Table or RecordBatch, or RecordBatches; not {shown(data)}")
    for batch in batches:
        if not isinstance(batch, pyarrow.RecordBatch):
            raise TypeError(f"send_arrow takes a pyarrow Table or RecordBatch, or RecordBatches; not {shown(batch)}")
        _check(topic, batch.schema.names)
        for start in range(0, batch.num_rows, size):
            yield _rows(pyarrow, topic, batch.slice(start, size))


def _check(topic: str | None, names: list[str]) -> None:
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        raise SerializationError(f"send_arrow: unknown columns {', '.join(unknown)}; there are {', '.join(COLUMNS)}")
    if "value" not in names:
        raise SerializationError("send_arrow: the column 'value' is missing")
    if topic is None and "topic" not in names:
        raise SerializationError("send_arrow: there is neither a topic nor a column 'topic'")


def _rows(pyarrow: Any, topic: str | None, batch: Any) -> Rows:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))

    def cast(name: str, kind: Any, *, safe: bool = True) -> Any:
        try:
            return columns[name].cast(kind, safe=safe)
        except pyarrow.ArrowException as error:  # not only ArrowInvalid: some casts are "not implemented"
            raise SerializationError(f"send_arrow: column {name!r} of type {columns[name].type}: {error}") from error

    def column(name: str, kind: Any) -> list[Any] | None:
        return list(cast(name, kind).to_pylist()) if name in columns else None

    if "timestamp" in columns and not pyarrow.types.is_integer(columns["timestamp"].type):
        columns["timestamp"] = cast("timestamp", pyarrow.timestamp("ms", "UTC"), safe=False)
    values = column("value", pyarrow.binary())
    assert values is not None
    return Rows(
        values,
        column("key", pyarrow.binary()),
        _headers(columns.get("headers")),
        column("topic", pyarrow.string()) if topic is None else None,
        column("partition", pyarrow.int32()),
        column("timestamp", pyarrow.int64()),
    )


def _headers(column: Any) -> list[Headers] | None:
    if column is None:
        return None
    try:
        return [[(header["key"], header["value"]) for header in row or ()] for row in column.to_pylist()]
    except (KeyError, TypeError):
        raise SerializationError(
            f"send_arrow: column 'headers' of type {column.type}: each row is a list of structs of key and value"
        ) from None
