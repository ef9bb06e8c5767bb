"""An archive as its readers see it: which partitions it holds, and in which pieces of which files.

A file holds records of one topic and day, sorted by partition and offset. Times may jump, so a partition's offsets go
to and fro between days: its files have to be merged (`archive_reader`). Here footers are read, no records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kclient.spark.pipelines.folder import ArchiveFolder
from kclient.spark.pipelines.layout import topic_of
from kclient.spark.pipelines.manifest import ArchiveError, Manifest

_NOTED = 5
"""So many partitions are told of in notes; the others are counted."""
_READERS = 8
"""Threads that read footers."""
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
"""The bounds where a footer tells none."""


@dataclass(frozen=True)
class ArchivedPiece:
    """Row groups of one file that may hold records of a partition.

    Attributes:
        path: below the archive's folder.
        groups: their numbers in the file.
        first: no offset in them is lower.
        last: no offset in them is greater.
        rows: how many records they hold, of all partitions.
        row_bytes: how many bytes a row has, uncompressed, on average.
        exact: whether `first` is the partition's own; else it may be that of another one in the same row group.
    """

    path: str
    groups: tuple[int, ...]
    first: int
    last: int
    rows: int
    row_bytes: int
    exact: bool


@dataclass(frozen=True)
class ArchivedPartition:
    """What an archive holds of one partition.

    Attributes:
        topic: its name.
        topic_id: which topic of that name.
        partition: its number.
        start: no offset is lower.
        end: the offset where archiving goes on: no offset is as great.
        pieces: where its records are, in the order of their first offsets.
        covered: from this offset on to `end` all was archived that was in the topic; there may be no record of it.
        expired: from which offset to before which one records were deleted from the archive; others may be there. None
            where none was.
    """

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    pieces: tuple[ArchivedPiece, ...]
    covered: int = 0
    expired: tuple[int, int] | None = None

    @property
    def rows(self) -> int:
        """How many records there are at most: row groups may hold other partitions, too."""
        return sum(piece.rows for piece in self.pieces)


@dataclass(frozen=True)
class ArchivedRecords:
    """What a file of an archive holds.

    Attributes:
        path: below the archive's folder.
        topic: whose records they are.
        topic_id: which topic of that name.
        rows: how many.
        size: the file's bytes.
        last_time: no record's timestamp is later, in microseconds; the greatest number where the file does not tell.
        offsets: by partition, the first one and the one behind the last.
    """

    path: str
    topic: str
    topic_id: str
    rows: int
    size: int
    last_time: int
    offsets: Mapping[int, tuple[int, int]]


@dataclass(frozen=True)
class _Bounds:
    """Least and greatest value of a column in a row group."""

    least: int
    most: int

    def meets(self, start: int, end: int) -> bool:
        """Whether a value from `start` to before `end` may be among them."""
        return self.least < end and self.most >= start


@dataclass(frozen=True)
class _Group:
    rows: int
    size: int
    partitions: _Bounds
    offsets: _Bounds
    times: _Bounds


@dataclass(frozen=True)
class _File:
    path: str
    topic_id: str
    groups: tuple[_Group, ...]


class ArchiveView:
    """An archive at one moment; the lock is not needed, since runs only add files.

    Raises:
        ArchiveError: it is no archive, or files are missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._manifest, self._paths, self._begins = ArchiveFolder(folder).contents()
        self._expired = {each.key: (each.start, each.end) for each in self._manifest.expired}

    @property
    def number(self) -> int:
        """The number of its newest manifest."""
        return self._manifest.number

    @property
    def topics(self) -> list[str]:
        """The topics that were ever archived, also those that were empty."""
        return sorted({each.topic for each in self._manifest.positions})

    def partitions(
        self, topics: Collection[str], topic_ids: Collection[str] = (), times: tuple[int, int] = (_LEAST, _MOST)
    ) -> list[ArchivedPartition]:
        """What it holds of topics.

        Args:
            topics: Their names.
            topic_ids: Which topic of a name, where there are several that were created one after the other.
            times: From when to before when, in microseconds; row groups of other times are left out.

        Raises:
            ArchiveError: a topic is not there, or under its name there are several and no id says which; or an id is
                of none of these topics.
        """
        found = list[ArchivedPartition]()
        ids = {topic: self._id_of(topic, topic_ids) for topic in sorted(topics)}
        self._check_ids(topics, topic_ids)
        for topic, topic_id in ids.items():
            with ThreadPoolExecutor(_READERS) as pool:
                prefix = f"topic={topic}/"
                paths = [path for path in self._paths if path.startswith(prefix)]
                files = [file for file in pool.map(self._look, paths) if file.topic_id in ("", topic_id)]
            for each in _partitions_of(topic, topic_id, self._manifest, files, times):
                begin = self._begins.get((topic, topic_id, each.partition), each.start)
                gone = self._expired.get((topic, topic_id, each.partition))
                found.append(replace(each, covered=min(begin, each.start), expired=gone))
        return found

    def notes(self, topics: Collection[str]) -> tuple[str, ...]:
        """What is to be known of topics by those who take the archive for all of them."""
        gone = [each for each in self._manifest.expired if each.topic in topics]
        return tuple(
            f"old records of {each.topic}-{each.partition} were deleted from the archive {self.folder}, within the"
            f" offsets {each.start} to before {each.end}"
            for each in gone[:_NOTED]
        ) + ((f"and so were those of {len(gone) - _NOTED} other partitions",) if len(gone) > _NOTED else ())

    def files(self, topics: Collection[str]) -> Iterator[ArchivedRecords]:
        """The files of topics, whichever topics of these names.

        Raises:
            ArchiveError: one cannot be read.
        """
        paths = [path for path in self._paths if topic_of(path) in topics]
        with ThreadPoolExecutor(_READERS) as pool:
            yield from pool.map(self._records, paths)

    def _records(self, path: str) -> ArchivedRecords:
        file = self._look(path)
        offsets: dict[int, tuple[int, int]] = {}
        for number, group in enumerate(file.groups):
            partitions = group.partitions
            exact = partitions.least == partitions.most and _LEAST not in (group.offsets.least, partitions.least)
            found = {partitions.least: (group.offsets.least, group.offsets.most)} if exact else self._read(path, number)
            for partition, (first, last) in found.items():
                start, end = offsets.get(partition, (first, last + 1))
                offsets[partition] = min(start, first), max(end, last + 1)
        rows = sum(group.rows for group in file.groups)
        last_time = max((group.times.most for group in file.groups), default=_LEAST)
        size = (self.folder / path).stat().st_size
        return ArchivedRecords(path, topic_of(path), file.topic_id, rows, size, last_time, offsets)

    def _read(self, path: str, group: int) -> dict[int, tuple[int, int]]:
        """By partition, the first and the last offset in a row group, of the records themselves."""
        from pyarrow import ArrowException, parquet

        try:
            with parquet.ParquetFile(self.folder / path) as file:
                table = file.read_row_group(group, columns=["partition", "offset"], use_threads=False)
        except (OSError, ArrowException) as error:
            raise ArchiveError(f"{self.folder / path} cannot be read: {error}") from error
        found = table.group_by("partition").aggregate([("offset", "min"), ("offset", "max")])
        columns = (found.column(name).to_pylist() for name in ("partition", "offset_min", "offset_max"))
        return {partition: (first, last) for partition, first, last in zip(*columns, strict=True)}

    def _id_of(self, topic: str, chosen: Collection[str]) -> str:
        ids = sorted({each.topic_id for each in self._manifest.positions if each.topic == topic})
        if not ids:
            raise ArchiveError(f"the archive {self.folder} holds no topic {topic}; it has {', '.join(self.topics)}")
        wanted = [each for each in ids if each in chosen] if len(ids) > 1 else ids
        if len(wanted) != 1:
            raise ArchiveError(
                f"the archive {self.folder} holds {len(ids)} topics called {topic}, which were created one after the"
                f" other: say which one by --topic-id (topic_ids=[…]; in an audit --left-topic-id or --right-topic-id,"
                f" or ArchivedTopic's topic_id), of {', '.join(ids)}"
            )
        return wanted[0]

    def _check_ids(self, topics: Collection[str], chosen: Collection[str]) -> None:
        """An id that is of no topic would be passed over, and another topic taken for the one that is meant."""
        known = {each.topic_id: each.topic for each in self._manifest.positions if each.topic in topics}
        strange = sorted(set(chosen) - known.keys())
        if strange:
            there = ", ".join(f"{topic_id} ({topic})" for topic_id, topic in sorted(known.items()))
            raise ArchiveError(
                f"the archive {self.folder} holds no such topic with the id {', '.join(strange)}; it has {there}"
            )

    def _look(self, path: str) -> _File:
        from pyarrow import ArrowException, parquet

        try:
            footer = parquet.read_metadata(self.folder / path)
        except (OSError, ArrowException) as error:
            raise ArchiveError(f"{self.folder / path} cannot be read as Parquet: {error}") from error
        about: Mapping[bytes, bytes] = footer.metadata or {}
        columns = {footer.schema.column(number).path: number for number in range(footer.num_columns)}
        groups = [_group_of(footer.row_group(number), columns) for number in range(footer.num_row_groups)]
        return _File(path, about.get(b"kclient.topic_id", b"").decode(), tuple(groups))


def _group_of(group: Any, columns: Mapping[str, int]) -> _Group:
    def bounds(name: str) -> _Bounds:
        statistics = group.column(columns[name]).statistics if name in columns else None
        if statistics is None or not statistics.has_min_max:
            return _Bounds(_LEAST, _MOST)
        return _Bounds(statistics.min_raw, statistics.max_raw)

    return _Group(
        group.num_rows, group.total_byte_size, bounds("partition"), bounds("offset"), bounds("timestamp")
    )  # fmt: skip


def _partitions_of(
    topic: str, topic_id: str, manifest: Manifest, files: Sequence[_File], times: tuple[int, int]
) -> Iterator[ArchivedPartition]:
    ends: dict[int, int] = {}
    for position in manifest.positions:
        if (position.topic, position.topic_id) == (topic, topic_id):
            ends[position.partition] = position.end
    pieces: dict[int, list[ArchivedPiece]] = defaultdict(list)
    for file in files:
        for number in ends:
            piece = _piece_of(file, number, times)
            if piece is not None:
                pieces[number].append(piece)
    for number, end in sorted(ends.items()):
        own = tuple(sorted(pieces[number], key=lambda piece: (piece.first, piece.path)))
        start = min((piece.first for piece in own), default=end)
        yield ArchivedPartition(topic, topic_id, number, min(max(start, 0), end), end, own)


def _piece_of(file: _File, partition: int, times: tuple[int, int]) -> ArchivedPiece | None:
    chosen = [
        (number, group)
        for number, group in enumerate(file.groups)
        if group.partitions.meets(partition, partition + 1) and group.times.meets(*times)
    ]
    if not chosen:
        return None
    groups = [group for _, group in chosen]
    rows = sum(group.rows for group in groups)
    lowest = min(groups, key=lambda group: group.offsets.least)
    return ArchivedPiece(
        file.path,
        tuple(number for number, _ in chosen),
        lowest.offsets.least,
        max(group.offsets.most for group in groups),
        rows,
        max(1, sum(group.size for group in groups) // max(rows, 1)),
        lowest.partitions.least == lowest.partitions.most and lowest.offsets.least != _LEAST,
    )
