"""What tasks do for a compacted topic: some read new records and the former table, others keep the latest of each key.

Between the two Spark brings the records of a key together and sorts them (`SORTED_BY`), on disk where memory does not
suffice. So the latest of a key and partition is the last one of its stretch, and a task holds a batch, the latest of
one key, and a row group.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kclient.spark.pipelines.audit_sides import ReadableSide
from kclient.spark.pipelines.columns import in_pieces, packed_headers, unpacked_headers
from kclient.spark.pipelines.compact_folder import STATE, CompactedFile, StagedTable
from kclient.spark.pipelines.failures import CompactError
from kclient.spark.pipelines.folder import sync

if TYPE_CHECKING:
    import pyarrow

SCHEMA = (
    "key binary, value binary, headers binary, partition int, fresh boolean, offset long, timestamp long,"
    " receipt string"
)
"""What travels: records, times in microseconds, headers packed; and receipts, which have no key."""
SORTED_BY = ("key", "partition", "fresh", "offset")
"""New records come behind those of the former table: where a log was cut back they may have lower offsets."""
RECEIPTS = "receipt string"
_ROW_GROUP_BYTES = 64 << 20
_ROW_GROUP_ROWS = 1 << 20
_PIECE_BYTES = 8 << 20
"""So much is looked at at a time."""
_READ_ROWS = 16_384
_READ_BYTES = 4 << 20
"""A batch of the former table has so many rows, or about so many bytes."""
_BUFFER = 1 << 20
"""How much of a column is read ahead."""


@dataclass(frozen=True)
class NewRange:
    """Records that no run has read: of a partition, from an offset to before another."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class FormerFile:
    """A file of the former table, with the rows that it has to have."""

    path: Path
    rows: int


@dataclass(frozen=True)
class TableReadReceipt:
    """What a task has read, and what it has given on of that.

    Attributes:
        task: which range or file, by its place among them.
        records: how many records it has read.
        given: how many of them it has given on: the last of each key in a batch.
        null_keys: how many had no key.
        lost: how many offsets were gone when their turn came.
    """

    task: int
    records: int
    given: int
    null_keys: int
    lost: int = 0


@dataclass(frozen=True)
class WriteReceipt:
    """What a task has written.

    Attributes:
        taken: how many records it was given.
        keys: how many keys have a value.
        tombstones: how many have none.
        split_keys: how many have records in several partitions.
        files: what it wrote.
    """

    taken: int
    keys: int
    tombstones: int
    split_keys: int
    files: tuple[CompactedFile, ...]


def receipt_of(text: str) -> TableReadReceipt | WriteReceipt:
    """A receipt, as it travels."""
    told = json.loads(text)
    if "files" not in told:
        return TableReadReceipt(**told)
    return WriteReceipt(**{**told, "files": tuple(CompactedFile(**each) for each in told["files"])})


class TableReading:
    """The tasks that read: each gets the number of a range or file.

    Args:
        side: What new records are read from.
        sources: Ranges of it, and files of the former table.
        headers: Whether headers are kept.
    """

    def __init__(self, side: ReadableSide, sources: Sequence[NewRange | FormerFile], headers: bool) -> None:
        self._side = side
        self._sources = tuple(sources)
        self._headers = headers

    def run(self, numbers: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """The function for `mapInArrow`: from `id long` to `SCHEMA`."""
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from self._read(number)

    def _read(self, number: int) -> Iterator[pyarrow.RecordBatch]:
        source = self._sources[number]
        records = given = null_keys = 0
        lost = list[tuple[int, int]]()
        batches = self._former(source) if isinstance(source, FormerFile) else self._new(source, lost)
        for batch in batches:
            records += batch.num_rows
            null_keys += batch.column("key").null_count
            latest = _last_of_keys(batch)
            given += latest.num_rows
            if latest.num_rows:
                yield latest
        if isinstance(source, FormerFile) and records != source.rows:
            raise CompactError(f"{source.path} has {records} rows, and {source.rows} were written: restore it")
        gone = sum(end - start for start, end in lost)
        yield _receipt_row(json.dumps(asdict(TableReadReceipt(number, records, given, null_keys, gone))))

    def _new(self, wanted: NewRange, lost: list[tuple[int, int]]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        schema = _schema()
        for batch in self._side.batches(wanted.partition, wanted.start, wanted.end, lost):
            columns = {
                "key": batch.column("key"),
                "value": batch.column("value"),
                "headers": self._packed(batch.column("headers")),
                "partition": pyarrow.repeat(pyarrow.scalar(wanted.partition, pyarrow.int32()), batch.num_rows),
                "fresh": pyarrow.repeat(True, batch.num_rows),
                "offset": batch.column("offset"),
                "timestamp": batch.column("timestamp").view(pyarrow.int64()),
                "receipt": pyarrow.nulls(batch.num_rows, pyarrow.string()),
            }
            yield pyarrow.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _former(self, file: FormerFile) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow
        from pyarrow import ArrowException, parquet

        schema = _schema()
        try:
            with parquet.ParquetFile(
                file.path, buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True
            ) as opened:
                for batch in opened.iter_batches(_rows_of_batch(opened.metadata), use_threads=False):
                    columns = {name: batch.column(name) for name in ("key", "value", "partition", "offset")}
                    headers = batch.column("headers") if self._headers else pyarrow.nulls(batch.num_rows)
                    columns |= {
                        "fresh": pyarrow.repeat(False, batch.num_rows),
                        "headers": self._packed(headers),
                        "timestamp": batch.column("timestamp").view(pyarrow.int64()),
                        "receipt": pyarrow.nulls(batch.num_rows, pyarrow.string()),
                    }
                    yield pyarrow.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
        except (OSError, ArrowException) as error:
            raise CompactError(
                f"the former table cannot be read: {file.path}: {error}; restore it, or compact into an empty folder"
            ) from error

    def _packed(self, headers: Any) -> Any:
        import pyarrow

        return packed_headers(headers) if self._headers else pyarrow.nulls(len(headers), pyarrow.binary())


def _rows_of_batch(about: Any) -> int:
    """How many rows of a file make a batch, going by its largest rows on average of a row group."""
    groups = (about.row_group(number) for number in range(about.num_row_groups))
    largest = max((group.total_byte_size // max(group.num_rows, 1) for group in groups), default=0)
    return max(1, min(_READ_ROWS, _READ_BYTES // max(largest, 1)))


def _last_of_keys(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    """Of a batch in the order of offsets, the last record of each key; those without a key are left out.

    Of the former table's state a key may have rows of several partitions, of which each is kept.
    """
    import pyarrow

    if not batch.num_rows:
        return batch
    table = pyarrow.table(
        {
            "key": batch.column("key"),
            "partition": batch.column("partition"),
            "place": pyarrow.array(range(batch.num_rows), pyarrow.int32()),
        }
    )
    places = table.group_by(["key", "partition"], use_threads=False).aggregate([("place", "max")]).column("place_max")
    taken = batch.take(places.combine_chunks())
    return taken.filter(taken.column("key").is_valid())


class LatestOfKeys:
    """Records in the order of `SORTED_BY`; out come the latest of each key, and what has to be remembered.

    The latest of a partition is that with the greatest offset. A key has records in one partition as a rule. Where it
    has them in several, the latest of these count by timestamp, then by partition and offset. Others than the first
    are remembered: with newer records of their partition it may look different.
    """

    def __init__(self) -> None:
        self.keys: int = 0
        """With a value."""
        self.tombstones: int = 0
        self.split_keys: int = 0
        self._held: pyarrow.RecordBatch | None = None
        """The latest, by partition, of the last key so far."""

    def add(self, batch: pyarrow.RecordBatch) -> tuple[pyarrow.RecordBatch, pyarrow.RecordBatch]:
        """The next records; returns the latest records of keys that are through, and the others of several partitions.

        Args:
            batch: Without records that have no key.
        """
        import pyarrow

        if self._held is not None and self._held.num_rows:
            batch = pyarrow.Table.from_batches([self._held, batch]).combine_chunks().to_batches()[0]
        latest = batch.filter(_last_of_stretch(batch, ("key", "partition")))
        keys = latest.column("key")
        first = latest.num_rows
        last = keys[first - 1]
        while first and keys[first - 1] == last:
            first -= 1
        self._held = latest.slice(first)
        return self._chosen(latest.slice(0, first))

    def rest(self) -> tuple[pyarrow.RecordBatch, pyarrow.RecordBatch] | None:
        """The same of the last key; None where there was none."""
        held, self._held = self._held, None
        return None if held is None else self._chosen(held)

    def _chosen(self, latest: pyarrow.RecordBatch) -> tuple[pyarrow.RecordBatch, pyarrow.RecordBatch]:
        import pyarrow
        from pyarrow import compute

        ends = _last_of_stretch(latest, ("key",))
        if compute.sum(ends).as_py() == latest.num_rows or not latest.num_rows:
            winners, others = latest, latest.slice(0, 0)
        else:
            chosen = [False] * latest.num_rows
            ranks = list(
                zip(*(latest.column(name).to_pylist() for name in ("timestamp", "partition", "offset")), strict=True)
            )
            begin = 0
            for place, ended in enumerate(ends.to_pylist()):
                if ended:
                    chosen[max(range(begin, place + 1), key=ranks.__getitem__)] = True
                    self.split_keys += place > begin
                    begin = place + 1
            mask = pyarrow.array(chosen)
            winners, others = latest.filter(mask), latest.filter(compute.invert(mask))
        self.tombstones += winners.column("value").null_count
        self.keys += winners.num_rows - winners.column("value").null_count
        return winners, others


def _last_of_stretch(batch: pyarrow.RecordBatch, names: Sequence[str]) -> Any:
    """For each row whether the next one differs in one of these columns; the last one has none after it."""
    import pyarrow
    from pyarrow import compute

    count = batch.num_rows
    if count < 2:
        return pyarrow.array([True] * count, pyarrow.bool_())
    differs: Any = None
    for name in names:
        column = batch.column(name)
        found = compute.not_equal(column.slice(0, count - 1), column.slice(1))
        differs = found if differs is None else compute.or_(differs, found)
    return pyarrow.concat_arrays([differs, pyarrow.array([True])])


class TableWriting:
    """The tasks that write, each its share of the keys.

    Args:
        staged: Where to.
        topic: The topic, which is a column.
        headers: Whether headers are one.
        keep_tombstones: Whether keys whose latest record has no value are in the table.
        compression: As pyarrow calls it.
    """

    def __init__(self, staged: StagedTable, topic: str, headers: bool, keep_tombstones: bool, compression: str) -> None:
        self._staged = staged
        self._topic = topic
        self._headers = headers
        self._keep_tombstones = keep_tombstones
        self._compression = compression

    def run(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """The function for `mapInArrow`: from `SCHEMA`, sorted, to `RECEIPTS`."""
        from pyspark import TaskContext

        self._staged.check()
        context = TaskContext.get()
        assert context is not None, "it runs in tasks"
        name = f"part-{context.partitionId():05d}-{context.taskAttemptId()}-{self._staged.run}.parquet"
        yield from self.write(name, batches)

    def write(self, name: str, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """The same, into files of this name."""
        import pyarrow

        texts: list[str] = []
        taken = 0
        latest = LatestOfKeys()
        table = _File(self._staged.folder, name, self._topic, self._headers, self._compression)
        state = _File(self._staged.folder, f"{STATE}/{name}", self._topic, self._headers, self._compression)
        for batch in batches:
            texts += batch.column("receipt").drop_null().to_pylist()
            records = batch.filter(batch.column("key").is_valid())
            taken += records.num_rows
            for piece in in_pieces(records, _PIECE_BYTES):  # Spark's batches may be of 64 MB
                if piece.num_rows:
                    self._keep(table, state, *latest.add(piece))
        found = latest.rest()
        if found is not None:
            self._keep(table, state, *found)
        files = tuple(file for each in (table, state) if (file := each.finish()) is not None)
        texts.append(json.dumps(asdict(WriteReceipt(taken, latest.keys, latest.tombstones, latest.split_keys, files))))
        yield pyarrow.RecordBatch.from_arrays([pyarrow.array(texts, pyarrow.string())], names=["receipt"])

    def _keep(self, table: _File, state: _File, winners: pyarrow.RecordBatch, others: pyarrow.RecordBatch) -> None:
        from pyarrow import compute

        if not self._keep_tombstones and winners.column("value").null_count:
            valid = winners.column("value").is_valid()
            state.append(winners.filter(compute.invert(valid)))
            winners = winners.filter(valid)
        table.append(winners)
        state.append(others)


class _File:
    """A file that is there once it has rows."""

    def __init__(self, folder: Path, path: str, topic: str, headers: bool, compression: str) -> None:
        self._target = folder / path
        self._path = path
        self._topic = topic
        self._headers = headers
        self._compression = compression
        self._schema = stored_schema(headers)
        self._writer: Any = None
        self._gathered: list[pyarrow.RecordBatch] = []
        self._bytes = 0
        self._rows = 0
        self._written = 0

    def append(self, records: pyarrow.RecordBatch) -> None:
        if not records.num_rows:
            return
        self._gathered.append(self._stored(records))
        self._rows += records.num_rows
        self._bytes += records.nbytes
        if self._bytes >= _ROW_GROUP_BYTES or self._rows >= _ROW_GROUP_ROWS:
            self._write()

    def finish(self) -> CompactedFile | None:
        """Force it to disk."""
        self._write()
        if self._writer is None:
            return None
        self._writer.close()
        sync(self._target)
        return CompactedFile(self._path, self._written, self._target.stat().st_size)

    def _stored(self, records: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        import pyarrow

        columns: dict[str, Any] = {name: records.column(name) for name in ("key", "value", "partition", "offset")}
        columns["timestamp"] = records.column("timestamp").view(self._schema.field("timestamp").type)
        columns["topic"] = pyarrow.repeat(pyarrow.scalar(self._topic), records.num_rows)
        if self._headers:
            columns["headers"] = unpacked_headers(records.column("headers"), self._schema.field("headers").type)
        return pyarrow.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)

    def _write(self) -> None:
        import pyarrow
        from pyarrow import parquet

        if not self._gathered:
            return
        if self._writer is None:
            self._writer = parquet.ParquetWriter(
                self._target, self._schema, compression=self._compression, store_schema=False, write_page_checksum=True
            )
        self._writer.write_table(pyarrow.Table.from_batches(self._gathered, self._schema), row_group_size=self._rows)
        self._written += self._rows
        self._gathered, self._bytes, self._rows = [], 0, 0


def write_empty(staged: StagedTable, headers: bool) -> CompactedFile:
    """A file of the table's columns without a row."""
    from pyarrow import parquet

    path = staged.folder / f"part-empty-{staged.run}.parquet"
    parquet.write_table(stored_schema(headers).empty_table(), path, store_schema=False)
    sync(path)
    return CompactedFile(path.name, 0, path.stat().st_size)


@cache
def stored_schema(headers: bool) -> pyarrow.Schema:
    """The columns of the table."""
    import pyarrow

    fields = [("key", pyarrow.binary()), ("value", pyarrow.binary())]
    if headers:
        header = pyarrow.struct([pyarrow.field("key", pyarrow.string()), pyarrow.field("value", pyarrow.binary())])
        fields.append(("headers", pyarrow.list_(header)))
    return pyarrow.schema(
        [
            *fields,
            ("topic", pyarrow.string()),
            ("partition", pyarrow.int32()),
            ("offset", pyarrow.int64()),
            ("timestamp", pyarrow.timestamp("us", "UTC")),
        ]
    )


@cache
def _schema() -> pyarrow.Schema:
    import pyarrow

    return pyarrow.schema(
        [
            ("key", pyarrow.binary()),
            ("value", pyarrow.binary()),
            ("headers", pyarrow.binary()),
            ("partition", pyarrow.int32()),
            ("fresh", pyarrow.bool_()),
            ("offset", pyarrow.int64()),
            ("timestamp", pyarrow.int64()),
            ("receipt", pyarrow.string()),
        ]
    )


def _receipt_row(text: str) -> pyarrow.RecordBatch:
    import pyarrow

    return pyarrow.RecordBatch.from_pylist([{"receipt": text}], schema=_schema())
