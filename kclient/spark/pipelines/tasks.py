"""What tasks do for an archive: some read ranges, others write what they read as Parquet into the staging folder.

Between the two Spark brings the records of one topic and period together. Both ends are ours, so that each task can say
what it did (see `receipts`), and so that values go into Parquet as they came: Spark only sorts them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from kclient.spark.options import ReadOptions
from kclient.spark.pipelines.columns import packed, receipt_row, split_receipts, stretches, tally_of
from kclient.spark.pipelines.folder import StagedRun
from kclient.spark.pipelines.layout import ArchiveLayout
from kclient.spark.pipelines.parquet_choices import ParquetChoices
from kclient.spark.pipelines.parquet_files import ParquetFiles
from kclient.spark.pipelines.receipts import ReadReceipt, Tally, to_text
from kclient.spark.ranges import DataLossError, OffsetRange
from kclient.spark.reading import Fate, RangeReader

if TYPE_CHECKING:
    import pyarrow

PROGRESS = "progress"
"""The folder, beside the staged files, where tasks tell how far they are."""
READ, WRITE = "read", "write"
_REPORT_S = 0.5


class Reading:
    """The tasks that read: each gets the number of its piece and gives records, and in the end a receipt."""

    def __init__(
        self, options: ReadOptions, pieces: Sequence[OffsetRange], staged: StagedRun, layout: ArchiveLayout
    ) -> None:
        self._options = options
        self._pieces = tuple(pieces)
        self._staged = staged
        self._layout = layout

    def run(self, numbers: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """The function for `mapInArrow`: from `id long` to `columns.SCHEMA`."""
        self._staged.check()
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from self._read(number, self._pieces[number])

    def _read(self, number: int, piece: OffsetRange) -> Iterator[pyarrow.RecordBatch]:
        progress = Progress(self._staged, f"{READ}-{number}")
        reader = RangeReader(self._options, piece, lambda position: progress.reached(position - piece.start))
        tally = Tally()
        for batch in reader.batches():
            tally += tally_of(batch.column("offset"))
            yield packed(batch, self._layout)
        if reader.fate is not Fate.THERE and not reader.lost:
            raise DataLossError(f"{piece.topic_partition}: the topic was {reader.fate.value} while it was archived")
        progress.close()
        yield receipt_row(piece.topic, to_text(ReadReceipt(piece, tally, tuple(reader.lost))))


class Writing:
    """The tasks that write: each gets records in the order of topics and periods, and gives receipts."""

    def __init__(
        self, staged: StagedRun, topic_ids: Mapping[str, str], choices: ParquetChoices, layout: ArchiveLayout
    ) -> None:
        self._staged = staged
        self._topic_ids = dict(topic_ids)
        self._choices = choices
        self._layout = layout

    def run(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """The function for `mapInArrow`: from `columns.SCHEMA` to `columns.RECEIPTS`."""
        import pyarrow
        from pyspark import TaskContext

        self._staged.check()
        context = TaskContext.get()
        assert context is not None, "it runs in tasks"
        number = context.partitionId()
        progress = Progress(self._staged, f"{WRITE}-{number}")
        texts: list[str] = []
        rows = 0
        name = f"{number:05d}-{context.taskAttemptId()}"
        with ParquetFiles(self._staged, name, self._topic_ids, self._choices, self._layout) as files:
            for batch in batches:
                records, receipts = split_receipts(batch)
                texts += receipts
                for topic, period, part in stretches(records):
                    files.append(topic, period, part)
                rows += records.num_rows
                progress.reached(rows)
        progress.close()
        texts += (to_text(receipt) for receipt in files.receipts)
        yield pyarrow.RecordBatch.from_arrays([pyarrow.array(texts, pyarrow.string())], names=["receipt"])


class Progress:
    """How far a task is, as a small file that the driver looks at; an attempt that begins again begins it again."""

    def __init__(self, staged: StagedRun, name: str) -> None:
        self._path = staged.folder / PROGRESS / name
        self._done = 0
        self._told = 0.0

    def reached(self, done: int) -> None:
        """So much is done; told at times."""
        self._done = done
        if time.monotonic() - self._told >= _REPORT_S:
            self.close()

    def close(self) -> None:
        """Tell it now."""
        self._told = time.monotonic()
        self._path.write_text(str(self._done), "ascii")


def progress_of(staged: StagedRun, kind: str) -> int:
    """What all tasks of a kind have done so far; reckoned in the driver."""
    total = 0
    try:
        with os.scandir(staged.folder / PROGRESS) as entries:
            names = [entry.path for entry in entries if entry.name.startswith(kind)]
    except FileNotFoundError:
        return 0
    for name in names:
        try:
            with open(name, encoding="ascii") as file:  # noqa: PTH123  (by the thousand, several times a second)
                total += int(file.read() or 0)
        except (OSError, ValueError):
            continue  # written just now
    return total
