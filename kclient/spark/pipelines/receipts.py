"""What tasks say they read and wrote, and the check that nothing is missing before a run is committed.

A task that reads sends a receipt through the shuffle, beside the records; a task that writes passes it on to the driver
with a receipt of its own for each file. The driver compares three things: the ranges that were planned, the records
that were read, and the files as it sees them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import crc32c

from kclient.spark.pipelines.manifest import ArchivedFile, ArchivedRange, ArchiveError
from kclient.spark.ranges import OffsetRange
from kclient.types import TopicPartition

_WRAP = 1 << 64
_READERS = 4
"""Threads that read what was staged; other systems' disks answer late rather than slowly."""
_PIECE = 1 << 20


@dataclass(frozen=True)
class Tally:
    """Records of one partition, counted and added up, so that one left out or given twice shows."""

    rows: int = 0
    first: int | None = None
    last: int | None = None
    offsets: int = 0
    """The sum of the offsets, in 64 bits."""

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.rows + other.rows,
            min((each for each in (self.first, other.first) if each is not None), default=None),
            max((each for each in (self.last, other.last) if each is not None), default=None),
            (self.offsets + other.offsets) % _WRAP,
        )

    def __str__(self) -> str:
        return f"{self.rows} records" + ("" if self.first is None else f" ({self.first} to {self.last})")


@dataclass(frozen=True)
class ReadReceipt:
    """A task read one range to its end."""

    wanted: OffsetRange
    tally: Tally
    lost: tuple[tuple[int, int], ...] = ()
    """Offsets, from and to before, that were gone."""


@dataclass(frozen=True)
class FileReceipt:
    """A task wrote one file, and forced it to disk."""

    path: str
    topic: str
    rows: int
    size: int
    crc32c: int
    """Of its bytes, as they were written."""
    tallies: tuple[tuple[int, Tally], ...]
    """By partition."""


Receipt = ReadReceipt | FileReceipt


def to_text(receipt: Receipt) -> str:
    """A receipt as it travels."""
    return json.dumps({"kind": type(receipt).__name__, **asdict(receipt)})


def from_text(text: str) -> Receipt:
    """The receipt that `to_text` wrote."""
    data = json.loads(text)
    if data.pop("kind") == ReadReceipt.__name__:
        lost = tuple((start, end) for start, end in data["lost"])
        return ReadReceipt(OffsetRange(**data["wanted"]), Tally(**data["tally"]), lost)
    tallies = tuple((partition, Tally(**tally)) for partition, tally in data.pop("tallies"))
    return FileReceipt(**data, tallies=tallies)


def verified_files(
    planned: Sequence[ArchivedRange], receipts: Iterable[Receipt], folder: Path
) -> tuple[ArchivedFile, ...]:
    """The files that were staged in `folder`, once it is sure that they hold what was planned.

    Raises:
        ArchiveError: a range was not read or read twice, records were not written or written twice, or a file is
            missing, cut short or another one.
    """
    reads, files = list[ReadReceipt](), list[FileReceipt]()
    for receipt in receipts:
        if isinstance(receipt, ReadReceipt):
            reads.append(receipt)
        else:
            files.append(receipt)
    _check_ranges(planned, reads)
    _check_records(planned, reads, files)
    _check_files(files, folder)
    ids = {each.topic: each.topic_id for each in planned}
    return tuple(ArchivedFile(file.path, file.rows, file.size, ids[file.topic]) for file in files)


def _check_ranges(planned: Sequence[ArchivedRange], reads: Iterable[ReadReceipt]) -> None:
    """Each planned range was read from its start to its end, once."""
    pieces: dict[tuple[str, str, int], list[OffsetRange]] = defaultdict(list)
    for read in reads:
        pieces[read.wanted.topic, read.wanted.topic_id, read.wanted.partition].append(read.wanted)
    for whole in planned:
        found = sorted(pieces.pop((whole.topic, whole.topic_id, whole.partition), []), key=lambda each: each.start)
        starts, ends = [each.start for each in found], [each.end for each in found]
        if [*starts, whole.end] != [whole.start, *ends]:
            partition = TopicPartition(whole.topic, whole.partition)
            done = ", ".join(f"{each.start} to {each.end}" for each in found) or "nothing"
            raise _refused(f"{partition} was to be read from {whole.start} to {whole.end}, and tasks read {done}")
    if pieces:
        raise _refused(f"tasks read what nobody planned: {sorted(pieces)[0]}")


def _check_records(
    planned: Sequence[ArchivedRange], reads: Iterable[ReadReceipt], files: Iterable[FileReceipt]
) -> None:
    """Every record that was read was written, once."""
    read: dict[TopicPartition, Tally] = defaultdict(Tally)
    written: dict[TopicPartition, Tally] = defaultdict(Tally)
    for receipt in reads:
        read[receipt.wanted.topic_partition] += receipt.tally
    for file in files:
        for number, tally in file.tallies:
            written[TopicPartition(file.topic, number)] += tally
        if sum(tally.rows for _, tally in file.tallies) != file.rows:
            raise _refused(f"{file.path} has other records than were counted into it")
    bounds = {TopicPartition(each.topic, each.partition): each for each in planned}
    for partition in sorted(read.keys() | written.keys()):
        if read[partition] != written[partition]:
            raise _refused(f"of {partition} {read[partition]} were read, and {written[partition]} were written")
        first, last, whole = read[partition].first, read[partition].last, bounds[partition]
        if first is not None and last is not None and not whole.start <= first <= last < whole.end:
            raise _refused(f"{partition} was to be read from {whole.start} to {whole.end}, not {first} to {last}")


def _check_files(files: Sequence[FileReceipt], folder: Path) -> None:
    """Every file is where this process sees it, whole."""
    missing = [file for file in files if not (folder / file.path).is_file()]
    if missing:
        raise ArchiveError(
            f"the workers wrote {len(files)} files with {sum(file.rows for file in files)} records, and"
            f" {len(missing)} of them are not in {folder} as this process sees it, such as {missing[0].path}:"
            " driver and workers must share the archive's folder; nothing was archived"
        )
    with ThreadPoolExecutor(_READERS) as pool:
        for _ in pool.map(lambda file: _check_file(file, folder / file.path), files):
            pass


def _check_file(file: FileReceipt, path: Path) -> None:
    from pyarrow import ArrowException, parquet

    size = path.stat().st_size
    if size != file.size:
        raise _refused(f"{path} has {size} bytes, and {file.size} were written")
    try:
        rows = parquet.read_metadata(path).num_rows
        checksum = _checksum_of(path)
    except (ArrowException, OSError) as error:
        raise _refused(f"{path} is not a Parquet file: {error}") from error
    if rows != file.rows:
        raise _refused(f"{path} has {rows} records, and {file.rows} were written")
    if checksum != file.crc32c:
        raise _refused(
            f"{path} holds other bytes than were written (its CRC-32C is {checksum:08x}, not {file.crc32c:08x})"
        )


def _checksum_of(path: Path) -> int:
    checksum = 0
    with path.open("rb", buffering=0) as opened:
        while piece := opened.read(_PIECE):
            checksum = crc32c.crc32c(piece, checksum)
    return checksum


def _refused(why: str) -> ArchiveError:
    return ArchiveError(f"what was staged is not what was to be archived: {why}; nothing was archived, run again")
