"""The records of one partition out of an archive's files, in the order of their offsets.

A record's file is that of its day, and times need not grow with offsets. So files whose offsets overlap are read side
by side and merged, a batch of each in memory; those that begin later are opened later.
"""

from __future__ import annotations

import socket
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kclient.spark.pipelines.archive_view import ArchivedPartition, ArchivedPiece
from kclient.spark.pipelines.manifest import ArchiveError

if TYPE_CHECKING:
    import pyarrow

_BATCH_ROWS = 16_384
_BATCH_BYTES = 4 << 20
"""A batch of one file has so many rows, or about so many bytes."""
_BUFFER = 1 << 20
"""How much of a column is read ahead: many files may be open at once."""


class PartitionReader:
    """Reads one partition; iterate over `batches`.

    Args:
        folder: The archive's.
        partition: What it holds of the partition.
        start: The first offset.
        end: The offset behind the last one.
        columns: Which columns of the files; `offset` is among them.
    """

    def __init__(
        self, folder: Path, partition: ArchivedPartition, start: int, end: int, columns: Sequence[str]
    ) -> None:
        self._folder = folder
        self._partition = partition.partition
        self._pieces = [piece for piece in partition.pieces if piece.last >= start and piece.first < end]
        self._start = start
        self._end = end
        self._columns = tuple(columns)

    def batches(self) -> Iterator[pyarrow.RecordBatch]:
        """The records; equal offsets, which no archive should have, come one after the other.

        Raises:
            ArchiveError: a file is gone, damaged, or not sorted as archives are.
        """
        waiting = sorted(self._pieces, key=lambda piece: piece.first, reverse=True)
        open_files = list[_Cursor]()
        while waiting or open_files:
            if not open_files:
                self._open(open_files, waiting.pop())
                continue
            bound = min(cursor.last for cursor in open_files)
            if waiting and waiting[-1].first <= bound:
                self._open(open_files, waiting.pop())
                continue
            parts = [part for cursor in open_files if (part := cursor.take(bound)) is not None]
            open_files = [cursor for cursor in open_files if cursor.advance()]
            yield from _merged(parts)

    def _open(self, open_files: list[_Cursor], piece: ArchivedPiece) -> None:
        cursor = _Cursor(self._read(piece), self._folder / piece.path)
        if cursor.advance():
            open_files.append(cursor)

    def _read(self, piece: ArchivedPiece) -> Iterator[pyarrow.RecordBatch]:
        """A file's records of the partition and the range."""
        from pyarrow import ArrowException, parquet

        path = self._folder / piece.path
        rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // piece.row_bytes))
        try:
            with parquet.ParquetFile(
                path, buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True
            ) as file:
                wanted = [*self._columns, "partition"]
                for batch in file.iter_batches(rows, row_groups=list(piece.groups), columns=wanted, use_threads=False):
                    kept = self._kept(batch)
                    if kept.num_rows:
                        yield kept
        except FileNotFoundError as error:
            raise ArchiveError(
                f"{path} is not there for a worker on {socket.gethostname()}: driver and workers must share the"
                " archive's folder, under one path, and nobody may delete files while they are read"
            ) from error
        except (OSError, ArrowException) as error:
            raise ArchiveError(f"{path} cannot be read: {error}") from error

    def _kept(self, batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        from pyarrow import compute

        partitions = compute.min_max(batch.column("partition"))
        if partitions["min"].as_py() != self._partition or partitions["max"].as_py() != self._partition:
            batch = batch.filter(compute.equal(batch.column("partition"), self._partition))
        batch = batch.select(self._columns)
        if batch.num_rows:
            bounds = compute.min_max(batch.column("offset"))
            if bounds["min"].as_py() < self._start or bounds["max"].as_py() >= self._end:
                offsets = batch.column("offset")
                batch = batch.filter(
                    compute.and_(compute.greater_equal(offsets, self._start), compute.less(offsets, self._end))
                )
        return batch


class _Cursor:
    """A file that is being read, at its next batch."""

    def __init__(self, batches: Iterator[pyarrow.RecordBatch], path: Path) -> None:
        self._batches = batches
        self._path = path
        self._batch: pyarrow.RecordBatch | None = None
        self._offsets: Sequence[int] = ()
        self._reached = -1

    @property
    def last(self) -> int:
        """The last offset of its batch."""
        return self._offsets[-1]

    def take(self, bound: int) -> pyarrow.RecordBatch | None:
        """The records up to this offset, which are out of the batch then."""
        assert self._batch is not None
        count = bisect_right(self._offsets, bound)
        if not count:
            return None
        taken, rest = self._batch.slice(0, count), self._batch.slice(count)
        self._batch, self._offsets = rest, self._offsets[count:]
        return taken

    def advance(self) -> bool:
        """Get the next batch where this one is through; False where there is none."""
        while not self._offsets:
            self._batch = next(self._batches, None)
            if self._batch is None:
                return False
            self._offsets = offsets_of(self._batch)
            if not is_sorted(self._batch.column("offset")) or self._offsets[0] < self._reached:
                raise ArchiveError(f"{self._path} is not sorted by partition and offset, as an archive's are")
            self._reached = self._offsets[-1]
        return True


def offsets_of(batch: pyarrow.RecordBatch) -> memoryview:
    """The offsets of a batch, without copying them."""
    column = batch.column("offset")
    if not len(column):
        return memoryview(b"").cast("q")
    return memoryview(column.buffers()[1]).cast("q")[column.offset : column.offset + len(column)]


def is_sorted(column: Any) -> bool:
    """Whether a column of offsets nowhere falls."""
    from pyarrow import compute

    if len(column) < 2:
        return True
    return bool(compute.all(compute.less_equal(column.slice(0, len(column) - 1), column.slice(1))).as_py())


def _merged(parts: Sequence[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow

    if len(parts) < 2:
        yield from parts
        return
    table = pyarrow.Table.from_batches(parts).combine_chunks()
    yield from table.take(_order(table.column("offset"))).combine_chunks().to_batches()


def _order(column: Any) -> Any:
    from pyarrow import compute

    return compute.sort_indices(column)
