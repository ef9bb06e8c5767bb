"""The columns that travel between the tasks of an archive."""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from kclient.spark.pipelines.layout import BY_DATE, ArchiveLayout
from kclient.spark.pipelines.receipts import Tally

if TYPE_CHECKING:
    import pyarrow

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp long, timestampType int,"
    " headers binary, period int, receipt string"
)
"""What is read and sorted: records, and between them receipts. Times are in microseconds, a period is what the
layout makes of them, and headers are packed: as nested columns they cost Spark more than all the others."""
RECEIPTS = "receipt string"
"""What comes out of writing."""

_ADDED = ("topic", "period", "receipt")
"""What is not in the files: topic and time are in the folders' names."""


def packed(batch: pyarrow.RecordBatch, layout: ArchiveLayout = BY_DATE) -> pyarrow.RecordBatch:
    """What was consumed, in the columns of `SCHEMA`."""
    import pyarrow

    times = batch.column("timestamp").view(pyarrow.int64())
    columns = {
        **{name: batch.column(name) for name in ("key", "value", "topic", "partition", "offset", "timestampType")},
        "timestamp": times,
        "headers": packed_headers(batch.column("headers")),
        "period": layout.periods(times),
        "receipt": pyarrow.nulls(batch.num_rows, pyarrow.string()),
    }
    schema = _schema()
    return pyarrow.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def unpacked(records: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    """Records as files have them, in the columns of `stored_schema`."""
    import pyarrow

    schema = stored_schema()
    columns: list[Any] = []
    for field in schema:
        column = records.column(field.name)
        if field.name == "headers":
            column = unpacked_headers(column, field.type)
        elif field.name == "timestamp":
            column = column.view(field.type)
        columns.append(column)
    return pyarrow.RecordBatch.from_arrays(columns, schema=schema)


def packed_headers(column: Any) -> Any:
    """A list of pairs as bytes, for each record that has headers; few have."""
    import pyarrow

    if column.null_count == len(column):
        return pyarrow.nulls(len(column), pyarrow.binary())
    pairs = column.flatten()
    keys, values = pairs.field("key").to_pylist(), pairs.field("value").to_pylist()
    texts: list[bytes | None] = []
    place = 0
    for length in column.value_lengths().to_pylist():
        if length is None:
            texts.append(None)
            continue
        texts.append(marshal.dumps((keys[place : place + length], values[place : place + length])))
        place += length
    return pyarrow.array(texts, pyarrow.binary())


def unpacked_headers(column: Any, kind: Any) -> Any:
    import pyarrow

    if column.null_count == len(column):
        return pyarrow.nulls(len(column), kind)
    keys, values, ends = list[str](), list[bytes | None](), [0]
    for text in column.to_pylist():
        if text is not None:
            more_keys, more_values = marshal.loads(text)  # noqa: S302  (a task of the same job wrote it)
            keys += more_keys
            values += more_values
        ends.append(len(keys))
    fields = [pyarrow.array(keys, pyarrow.string()), pyarrow.array(values, pyarrow.binary())]
    pairs = pyarrow.StructArray.from_arrays(fields, fields=list(kind.value_type))
    offsets = pyarrow.array(ends, pyarrow.int32())
    return pyarrow.ListArray.from_arrays(offsets, pairs, type=kind, mask=column.is_null())


def receipt_row(topic: str, text: str) -> pyarrow.RecordBatch:
    """A receipt on its way through the shuffle."""
    import pyarrow

    return pyarrow.RecordBatch.from_pylist([{"topic": topic, "receipt": text}], schema=_schema())


def split_receipts(batch: pyarrow.RecordBatch) -> tuple[pyarrow.RecordBatch, list[str]]:
    """The records, and the receipts between them."""
    column = batch.column("receipt")
    if column.null_count == len(column):
        return batch, []
    return batch.filter(column.is_null()), column.drop_null().to_pylist()


def stretches(batch: pyarrow.RecordBatch) -> Iterator[tuple[str, int, pyarrow.RecordBatch]]:
    """The batch in pieces of one topic and period each; it is sorted by them."""
    ends = sorted({*_ends(batch.column("topic")), *_ends(batch.column("period"))})
    start = 0
    for end in ends:
        part = batch.slice(start, end - start)
        yield part.column("topic")[0].as_py(), part.column("period")[0].as_py(), part
        start = end


def in_pieces(records: pyarrow.RecordBatch, size: int) -> Iterator[pyarrow.RecordBatch]:
    """The records in pieces of about so many bytes at most."""
    if records.nbytes <= size or records.num_rows < 2:
        yield records
        return
    rows = max(1, records.num_rows * size // records.nbytes)
    for start in range(0, records.num_rows, rows):
        yield records.slice(start, rows)


def tallies_of(batch: pyarrow.RecordBatch) -> Iterator[tuple[int, Tally]]:
    """The records counted by partition; they are sorted by it."""
    partitions, offsets = batch.column("partition"), batch.column("offset")
    start = 0
    for end in _ends(partitions):
        yield partitions[start].as_py(), tally_of(offsets.slice(start, end - start))
        start = end


def tally_of(offsets: Any) -> Tally:
    """A column of offsets, counted and added up."""
    from pyarrow import compute

    if not len(offsets):
        return Tally()
    bounds = compute.min_max(offsets)
    return Tally() + Tally(len(offsets), bounds["min"].as_py(), bounds["max"].as_py(), compute.sum(offsets).as_py())


def _ends(column: Any) -> list[int]:
    """Where stretches of equal values end."""
    from pyarrow import compute

    return compute.run_end_encode(column).run_ends.to_pylist() if len(column) else []


@cache
def stored_schema() -> pyarrow.Schema:
    """The columns of the files: those of Spark's `kafka` source, with times as microseconds in 64 bits."""
    import pyarrow

    header = pyarrow.struct([pyarrow.field("key", pyarrow.string()), pyarrow.field("value", pyarrow.binary())])
    stored = {"timestamp": pyarrow.timestamp("us", "UTC"), "headers": pyarrow.list_(header)}
    fields = [field for field in _schema() if field.name not in _ADDED]
    return pyarrow.schema([pyarrow.field(field.name, stored.get(field.name, field.type)) for field in fields])


@cache
def _schema() -> pyarrow.Schema:
    import pyarrow

    return pyarrow.schema(
        [
            ("key", pyarrow.binary()),
            ("value", pyarrow.binary()),
            ("topic", pyarrow.string()),
            ("partition", pyarrow.int32()),
            ("offset", pyarrow.int64()),
            ("timestamp", pyarrow.int64()),
            ("timestampType", pyarrow.int32()),
            ("headers", pyarrow.binary()),
            ("period", pyarrow.int32()),
            ("receipt", pyarrow.string()),
        ]
    )
