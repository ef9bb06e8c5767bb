"""The Parquet files that a task writes, one after the other: a new one for each folder, or where one is full."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import crc32c

from kclient.spark.pipelines.columns import in_pieces, stored_schema, tallies_of, unpacked
from kclient.spark.pipelines.folder import StagedRun
from kclient.spark.pipelines.layout import BY_DATE, ArchiveLayout
from kclient.spark.pipelines.parquet_choices import ParquetChoices
from kclient.spark.pipelines.receipts import FileReceipt, Tally
from kclient.syncing import sync_all

if TYPE_CHECKING:
    import pyarrow

_ROW_GROUP_ROWS = 1 << 20
"""A row group has so many rows at most."""
_FULL = 0.9
"""A file of this part of its size is full: another row group would be a small one."""
_LEAST_GROUP = 64 << 10
"""A row group has so many bytes in memory, if records are there, however well they are compressed."""


class ParquetFiles:
    """Records in the order of topics and periods, as files; leave the block to finish the last one.

    Args:
        staged: Where to.
        name: What the task is called in the files' names; no other attempt has it.
        topic_ids: The topics' ids, which are written into the files.
        choices: How they are written.
        layout: Into which folders.
    """

    def __init__(
        self,
        staged: StagedRun,
        name: str,
        topic_ids: Mapping[str, str],
        choices: ParquetChoices,
        layout: ArchiveLayout = BY_DATE,
    ) -> None:
        self.receipts: list[FileReceipt] = []
        """What was written and forced to disk."""
        self._staged = staged
        self._name = name
        self._topic_ids = topic_ids
        self._choices = choices
        self._layout = layout
        self._ratio = 1.0
        """What became of a byte in memory in the last file."""
        self._file: _File | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            if error is None:
                self._finish()
            else:
                self._file.abandon()

    def append(self, topic: str, period: int, records: pyarrow.RecordBatch) -> None:
        """Records of one topic and period."""
        for piece in in_pieces(records, self._choices.piece_size):
            if self._file is None or (self._file.topic, self._file.period) != (topic, period) or self._file.is_full:
                self._finish()
                self._file = self._open(topic, period)
            self._file.append(piece)

    def _open(self, topic: str, period: int) -> _File:
        self._staged.check()  # a run that was given up has no folder any more, and gets none again
        name = f"part-{self._name}-{len(self.receipts)}-{self._staged.name}.parquet"
        about = {
            "kclient.topic": topic, "kclient.topic_id": self._topic_ids.get(topic, ""), "kclient.run": self._staged.run
        }  # fmt: skip
        path = f"{self._layout.folder(topic, period)}/{name}"
        return _File(self._staged.folder, path, topic, period, about, self._choices, self._ratio)

    def _finish(self) -> None:
        if self._file is not None:
            self.receipts.append(self._file.finish())
            self._ratio = self._file.ratio
            self._file = None


class _File:
    """One file; records are gathered until they are worth a row group."""

    def __init__(
        self,
        folder: Path,
        path: str,
        topic: str,
        period: int,
        about: Mapping[str, str],
        choices: ParquetChoices,
        ratio: float,
    ) -> None:
        from pyarrow import parquet

        self.topic = topic
        self.period = period
        self._path = path
        self._target = folder / path
        self._target.parent.mkdir(parents=True, exist_ok=True)
        self._schema = stored_schema()
        self._sink = _Sink(self._target)
        self._writer = parquet.ParquetWriter(
            self._sink, self._schema, compression=choices.codec, compression_level=choices.level, store_schema=False,
            write_page_checksum=True,
        )  # fmt: skip
        self._writer.add_key_value_metadata(dict(about))
        self._choices = choices
        self.ratio = ratio
        """What becomes of a byte in memory, as far as that is known."""
        self._gathered: list[pyarrow.RecordBatch] = []
        self._gathered_bytes = 0
        self._gathered_rows = 0
        self._rows = 0
        self._bytes = 0
        self._tallies: dict[int, Tally] = defaultdict(Tally)

    def append(self, records: pyarrow.RecordBatch) -> None:
        for partition, tally in tallies_of(records):
            self._tallies[partition] += tally
        self._rows += records.num_rows
        self._gathered.append(unpacked(records))
        self._gathered_rows += records.num_rows
        self._gathered_bytes += records.nbytes
        if self._gathered_bytes >= self._enough() or self._gathered_rows >= _ROW_GROUP_ROWS:
            self._write()

    @property
    def is_full(self) -> bool:
        """Whether it has the size that was chosen."""
        return self._choices.file_size is not None and self._sink.size >= _FULL * self._choices.file_size

    def _enough(self) -> float:
        """How many bytes in memory make the next row group: no more than the file will take."""
        if self._choices.file_size is None:
            return self._choices.row_group_size
        left = (self._choices.file_size - self._sink.size) / self.ratio
        return min(self._choices.row_group_size, max(left, _LEAST_GROUP))

    def finish(self) -> FileReceipt:
        """Complete the file and force it to disk."""
        self._write()
        self._writer.close()
        self._sink.finish()
        return FileReceipt(
            self._path, self.topic, self._rows, self._sink.size, self._sink.crc32c, tuple(sorted(self._tallies.items()))
        )

    def abandon(self) -> None:
        """The task failed: the file goes with the staging folder."""
        from pyarrow import ArrowException

        self._gathered.clear()
        with suppress(OSError, ArrowException):
            self._writer.close()
        with suppress(OSError):
            self._sink.close()

    def _write(self) -> None:
        import pyarrow

        if self._gathered:
            table = pyarrow.Table.from_batches(self._gathered, self._schema)
            self._writer.write_table(table, row_group_size=self._gathered_rows)
            self._bytes += self._gathered_bytes
            self.ratio = max(self._sink.size / self._bytes, 0.001)
        self._gathered, self._gathered_bytes, self._gathered_rows = [], 0, 0


class _Sink(io.RawIOBase):
    """A new file that knows what was written into it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.size = 0
        self.crc32c = 0
        self._file = path.open("wb", buffering=0)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        left = memoryview(data)
        size = len(left)
        self.crc32c = crc32c.crc32c(left, self.crc32c)
        self.size += size
        while left:  # a file may take less at a time
            left = left[self._file.write(left) :]
        return size

    def finish(self) -> None:
        """Force the file to disk, and close it."""
        sync_all(self._file.fileno())
        self.close()

    def close(self) -> None:
        self._file.close()
        super().close()


def write_empty(path: Path) -> None:
    """A file of the same columns without a record."""
    from pyarrow import parquet

    parquet.write_table(stored_schema().empty_table(), path, store_schema=False)
