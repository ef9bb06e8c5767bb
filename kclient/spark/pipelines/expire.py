"""Old files of an archive deleted: whole files, recorded in a manifest before any of them goes.

It is a run like those that archive: the manifest is the commit, and what it tells to delete is deleted afterwards, by
this run or, where it died, by the next one. Positions stay, so nothing that is gone is ever archived again.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from kclient.arguments import as_names, check_callback, check_topic, shown
from kclient.errors import ConfigError
from kclient.spark.pipelines.archive_view import ArchivedRecords, ArchiveView
from kclient.spark.pipelines.folder import ArchiveFolder
from kclient.spark.pipelines.job import OnProgress
from kclient.spark.pipelines.manifest import ArchivedRange, ArchiveError, Manifest
from kclient.spark.pipelines.places import local_folder
from kclient.spark.pipelines.publishing import publish

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class TopicExpiry:
    """What a run deleted of a topic, or in a dry run would delete.

    Attributes:
        topic: its name.
        topic_id: which topic of that name.
        files: how many files.
        records: how many records were in them.
        size: the files' bytes.
        ranges: by partition, the first offset that is gone and the one behind the last. What lies between may still be
            there in part: times need not grow with offsets.
    """

    topic: str
    topic_id: str
    files: int
    records: int
    size: int
    ranges: Mapping[int, tuple[int, int]]


@dataclass(frozen=True)
class ExpirySummary:
    """What a run deleted, or in a dry run would delete.

    Attributes:
        destination: the archive's folder.
        manifest: the number of the run's manifest; None where nothing was old enough, and in a dry run.
        older_than_ms: records with an earlier timestamp were old; in milliseconds since 1970.
        topics: by topic.
        seconds: the run's wall time.
        dry_run: whether nothing was deleted.
    """

    destination: Path
    manifest: int | None
    older_than_ms: int
    topics: tuple[TopicExpiry, ...]
    seconds: float
    dry_run: bool = False

    @property
    def files(self) -> int:
        """How many files, of all topics."""
        return sum(topic.files for topic in self.topics)

    @property
    def records(self) -> int:
        """How many records, of all topics."""
        return sum(topic.records for topic in self.topics)

    def to_json(self) -> str:
        """As one JSON object."""
        told = {**asdict(self), "destination": str(self.destination), "files": self.files, "records": self.records}
        return json.dumps(told)


def expire_archive(
    destination: str | Path,
    older_than: datetime | timedelta | int,
    *,
    topics: Sequence[str] = (),
    dry_run: bool = False,
    progress: OnProgress | None = None,
) -> ExpirySummary:
    """Deletes the files of an archive whose records are all older than a time. It needs no Spark.

    A file goes only as a whole, and only if its newest record is older. So what is deleted follows the archive's
    folders and runs: with folders by date, about the dates before. Records without a timestamp count as old. Later runs
    of `archive` go on where they were; none archives again what has been deleted.

    Args:
        destination: the archive's folder, as a path or a `file:` URL.
        older_than: a datetime with a time zone, milliseconds since 1970, or a timedelta before now.
        topics: only those of these topics; of all if empty.
        dry_run: only look, and say what would be deleted.
        progress: called with `publish`, how many files are deleted, and how many there are to delete.

    Raises:
        ConfigError: an argument is wrong, or the time is not over yet.
        ArchiveError: the folder holds no archive, is in use or damaged, or does not hold a topic. Nothing was deleted,
            or the next run goes on.
    """
    started = time.monotonic()
    check_callback(progress, "progress")
    moment = _moment(older_than)
    if isinstance(topics, str):
        raise ConfigError(f"expire_archive takes a list of topics, as in topics=[{shown(topics)}]")
    names = as_names(topics, "topics of an archive", empty=True)
    for name in names:
        check_topic(name)
    folder = ArchiveFolder(local_folder(destination, "the archive's folder"))
    run = ExpiryRun(folder, moment, names, progress or (lambda step, done, total: None))
    number, found = run.look() if dry_run else run.run()
    return ExpirySummary(folder.destination, number, moment, found, time.monotonic() - started, dry_run)


class ExpiryRun:
    """One run, a method a step; tests stop it between any two.

    Args:
        folder: The archive's.
        older_than_ms: Records before this time are old.
        topics: Of which topics; of all if empty.
        report: As `progress` of `expire_archive`.
    """

    def __init__(self, folder: ArchiveFolder, older_than_ms: int, topics: Collection[str], report: OnProgress) -> None:
        self._folder = folder
        self._before = older_than_ms * 1000
        self._topics = topics
        self._report = report

    def look(self) -> tuple[None, tuple[TopicExpiry, ...]]:
        """What a run would delete."""
        return None, _by_topic(self.plan(ArchiveView(self._folder.destination)))

    def run(self) -> tuple[int | None, tuple[TopicExpiry, ...]]:
        """The number of the manifest, and what was deleted."""
        self._folder.contents(whole=False)  # a folder that is no archive is not made one
        with self._folder.lock():
            last = self._folder.last()
            assert last is not None, "it was there before"
            publish(self._folder, last)
            self._folder.discard_dead()
            old = self.plan(ArchiveView(self._folder.destination))
            if not old:
                return None, ()
            manifest = self.commit(last, old)
            self.delete(manifest)
        return manifest.number, _by_topic(old)

    def plan(self, view: ArchiveView) -> list[ArchivedRecords]:
        """The files that are old."""
        known = set(view.topics)
        missing = sorted(set(self._topics) - known)
        if missing:
            raise ArchiveError(
                f"the archive {view.folder} holds no topic {', '.join(missing)}; it has {', '.join(sorted(known))}"
            )
        return [file for file in view.files(self._topics or known) if file.last_time < self._before]

    def commit(self, last: Manifest, old: Sequence[ArchivedRecords]) -> Manifest:
        """Write the manifest that tells what is to be deleted: from here on it is gone for readers."""
        gone = {each.key: each for each in last.expired}
        for each in _ranges(old):
            before = gone.get(each.key, each)
            start, end = min(before.start, each.start), max(before.end, each.end)
            gone[each.key] = ArchivedRange(*each.key, start, end)
        number = last.number + 1
        with self._folder.run(number) as staged:
            manifest = Manifest(
                number, staged.run, (), (), last.positions, (), last.incomplete, last.layout,
                expired=tuple(gone[key] for key in sorted(gone)), deleted=tuple(file.path for file in old),
            )  # fmt: skip
            self._folder.commit(manifest)
        return manifest

    def delete(self, manifest: Manifest) -> None:
        """Delete what the manifest tells of."""
        total = len(manifest.deleted)
        self._report("publish", 0, total)
        publish(self._folder, manifest)
        self._report("publish", total, total)


def _moment(older_than: Any) -> int:
    """Milliseconds since 1970."""
    now = time.time_ns() // 1_000_000
    if isinstance(older_than, timedelta):
        found = now - older_than // timedelta(milliseconds=1)
    elif isinstance(older_than, datetime):
        if older_than.tzinfo is None:
            raise ConfigError(f"older_than is a datetime with a time zone, and {shown(older_than)} has none")
        found = (older_than - _EPOCH) // timedelta(milliseconds=1)
    elif isinstance(older_than, int) and not isinstance(older_than, bool):
        found = older_than
    else:
        raise ConfigError(f"older_than is a datetime, a timedelta or milliseconds since 1970, not {shown(older_than)}")
    if not 0 <= found <= now:
        raise ConfigError(f"older_than is a time between 1970 and now, not {shown(older_than)}")
    return found


def _ranges(files: Sequence[ArchivedRecords]) -> Iterator[ArchivedRange]:
    for file in files:
        for partition, (start, end) in file.offsets.items():
            yield ArchivedRange(file.topic, file.topic_id, partition, start, end)


def _by_topic(files: Sequence[ArchivedRecords]) -> tuple[TopicExpiry, ...]:
    found: dict[tuple[str, str], list[ArchivedRecords]] = defaultdict(list)
    for file in files:
        found[file.topic, file.topic_id].append(file)
    return tuple(
        TopicExpiry(
            topic, topic_id, len(own), sum(file.rows for file in own), sum(file.size for file in own), _bounds(own)
        )
        for (topic, topic_id), own in sorted(found.items())
    )


def _bounds(files: Sequence[ArchivedRecords]) -> dict[int, tuple[int, int]]:
    found: dict[int, tuple[int, int]] = {}
    for each in _ranges(files):
        start, end = found.get(each.partition, (each.start, each.end))
        found[each.partition] = min(start, each.start), max(end, each.end)
    return dict(sorted(found.items()))
