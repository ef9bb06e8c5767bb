"""Old files of an archive: they go as a whole, wherever a run dies, and nothing else goes with them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kclient.errors import ConfigError
from kclient.spark import ArchivedTopic, ArchiveError, DataLossError, compact, expire_archive
from kclient.spark.pipelines import folder as folders
from kclient.spark.pipelines.archive_reader import PartitionReader
from kclient.spark.pipelines.archive_view import ArchiveView
from kclient.spark.pipelines.audit_sides import opened
from kclient.spark.pipelines.compact_folder import CompactedTable, CompactFolder
from kclient.spark.pipelines.folder import ArchiveFolder
from kclient.spark.pipelines.layout import layout_of
from kclient.spark.pipelines.publishing import publish
from tests.disk_deaths import DiskDeaths, Killed
from tests.spark.made_archives import Row, make_archive

DAY = 86_400_000
FIFTH = datetime(1970, 1, 5, tzinfo=UTC)
"""Four days after the beginning of time."""


def rows(numbers: range, partition: int = 0, step: int = DAY // 2) -> list[Row]:
    """Two a day."""
    return [Row(partition, number, b"%d" % number, timestamp=number * step) for number in numbers]


def offsets(folder: Path, partition: int = 0, topic: str = "t") -> list[int]:
    found = ArchiveView(folder).partitions([topic])[partition]
    return [
        offset
        for batch in PartitionReader(folder, found, 0, 1 << 40, ("offset",)).batches()
        for offset in batch.column("offset").to_pylist()
    ]


def data(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.glob("topic=*/**/*.parquet")}


def test_days_that_are_over_go(tmp_path: Path) -> None:
    make_archive(tmp_path, "t", [*rows(range(10)), *rows(range(10), 1)])
    make_archive(tmp_path, "other", rows(range(10)))
    before, positions = data(tmp_path), ArchiveView(tmp_path).partitions(["t"])
    look = expire_archive(tmp_path, FIFTH, topics=["t"], dry_run=True)
    assert data(tmp_path) == before
    steps: list[tuple[str, int, int]] = []
    found = expire_archive(tmp_path, FIFTH, topics=["t"], progress=lambda *step: steps.append(step))
    assert (look.files, look.records, look.manifest, look.dry_run) == (4, 16, None, True)
    assert (found.files, found.records, found.manifest, steps[-1]) == (4, 16, 3, ("publish", 4, 4))
    assert look.topics == found.topics
    assert found.topics[0].ranges == {0: (0, 8), 1: (0, 8)}
    assert json.loads(found.to_json())["older_than_ms"] == 4 * DAY
    assert offsets(tmp_path) == offsets(tmp_path, 1) == [8, 9]
    assert offsets(tmp_path, topic="other") == list(range(10))
    assert not (tmp_path / "topic=t/date=1970-01-04").exists(), "an empty folder is left"
    assert [each.end for each in ArchiveView(tmp_path).partitions(["t"])] == [each.end for each in positions]
    again = expire_archive(tmp_path, 4 * DAY, topics=["t"])
    assert (again.files, again.manifest) == (0, None)
    make_archive(tmp_path, "t", rows(range(10, 14)))
    assert offsets(tmp_path) == list(range(8, 14))
    assert expire_archive(tmp_path, 5 * DAY).files == 6
    assert offsets(tmp_path) == list(range(10, 14))
    notes = ArchiveView(tmp_path).notes(["t"])
    assert "old records of t-0 were deleted" in notes[0]
    assert "within the offsets 0 to before 10" in notes[0]


def test_a_file_with_one_new_record_stays(tmp_path: Path) -> None:
    """A year's folder goes when the year is over; partitions that share a row group are told apart."""
    layout = layout_of("topic,year")
    late = Row(0, 40, b"late", timestamp=int(datetime(1971, 2, 1, tzinfo=UTC).timestamp() * 1000))
    make_archive(tmp_path, "t", [*rows(range(5)), *rows(range(20, 30), 1), late], layout=layout)
    assert expire_archive(tmp_path, FIFTH).files == 0
    found = expire_archive(tmp_path, datetime(1971, 1, 1, tzinfo=UTC))
    assert (found.files, found.topics[0].ranges) == (1, {0: (0, 5), 1: (20, 30)})
    assert offsets(tmp_path) == [40]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[DiskDeaths]:
    methods = ("rename", "mkdir", "write_text", "unlink", "rmdir")
    deaths = DiskDeaths(monkeypatch, methods, ((os, "link"), (folders, "sync"), (folders.shutil, "rmtree")))
    yield deaths
    deaths(None)


@pytest.mark.slow
@pytest.mark.parametrize("goes_on", ["expire", "archive"])
def test_killed_before_any_change_of_the_disk(tmp_path: Path, steps: DiskDeaths, goes_on: str) -> None:
    """Readers see all or none of what is to go; the next run, of whichever kind, ends what was begun."""
    make_archive(tmp_path / "whole", "t", rows(range(8)))
    steps(None)
    expire_archive(tmp_path / "whole", FIFTH - timedelta(days=2))
    changes = steps(None)
    seen = set()
    for step in range(changes):
        folder = tmp_path / str(step)
        make_archive(folder, "t", rows(range(8)))
        steps(step)
        with pytest.raises(Killed):
            expire_archive(folder, FIFTH - timedelta(days=2))
        steps(None)
        found = tuple(offsets(folder))
        seen.add(found)
        if goes_on == "expire":
            expire_archive(folder, FIFTH - timedelta(days=2))
        else:
            place = ArchiveFolder(folder)
            with place.lock():
                last = place.last()
                assert last is not None
                publish(place, last)
                place.discard_dead()
            make_archive(folder, "t", rows(range(8, 10)))
        gone = found == (4, 5, 6, 7)
        wanted = range(4 if gone or goes_on == "expire" else 0, 8 if goes_on == "expire" else 10)
        assert offsets(folder) == list(wanted)
        assert len(data(folder)) == len(wanted) // 2
        assert list((folder / "_kclient/staging").iterdir()) == []
    assert seen == {tuple(range(8)), (4, 5, 6, 7)}


def test_a_reader_that_looks_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the manifests and the files that it looks at, some go: it looks again."""
    make_archive(tmp_path, "t", rows(range(10)))
    listed = folders._data_files

    def late(destination: Path) -> Any:
        monkeypatch.setattr(folders, "_data_files", listed)
        expire_archive(tmp_path, FIFTH)
        return listed(destination)

    view = ArchiveFolder(tmp_path)
    monkeypatch.setattr(
        ArchiveFolder, "last", last_once(ArchiveFolder.last, lambda: monkeypatch.setattr(folders, "_data_files", late))
    )
    assert len(view.contents()[1]) == 1


def last_once(last: Any, then: Callable[[], None]) -> Any:
    calls = []

    def wrapped(self: ArchiveFolder) -> Any:
        found = last(self)
        if not calls:
            calls.append(1)
            then()
        return found

    return wrapped


def test_what_reads_the_archive_says_what_is_gone(tmp_path: Path) -> None:
    make_archive(tmp_path / "archive", "t", rows(range(10)))
    source = ArchivedTopic(tmp_path / "archive", "t")
    for name, position in (("before", 3), ("behind", 8)):
        folder = CompactFolder(tmp_path / name)
        with folder.lock(), folder.run() as staged:
            table = CompactedTable(1, staged.run, "t", "the-id", False, False, {0: position}, (), 0, 0, 0, 0)
            folder.commit(staged, table)
    expire_archive(tmp_path / "archive", FIFTH)
    assert "old records of t-0 were deleted from the archive" in opened(source).notes[0]
    with pytest.raises(DataLossError, match="of t-0 from 3 to before 8"):
        compact(None, source, tmp_path / "before", dry_run=True)
    assert compact(None, source, tmp_path / "behind", dry_run=True).offsets == 2
    assert compact(None, source, tmp_path / "new", dry_run=True).lost == 0


def test_folders_that_are_no_archive_or_in_use(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="holds no archive"):
        expire_archive(tmp_path, 0)
    assert list(tmp_path.iterdir()) == []
    make_archive(tmp_path, "t", rows(range(4)))
    with ArchiveFolder(tmp_path).lock(), pytest.raises(ArchiveError, match="another run archives into"):
        expire_archive(tmp_path, FIFTH)
    with pytest.raises(ArchiveError, match="holds no topic u; it has t"):
        expire_archive(tmp_path, FIFTH, topics=["u"])
    assert offsets(tmp_path) == [0, 1, 2, 3]


def test_a_manifest_of_an_expiry_that_is_lost_is_noticed(tmp_path: Path) -> None:
    make_archive(tmp_path, "t", rows(range(10)))
    expire_archive(tmp_path, FIFTH)
    (tmp_path / "_kclient/manifests/00000002.json").unlink()
    with pytest.raises(ArchiveError, match=r"the manifest 00000002\.json .* is gone"):
        ArchiveView(tmp_path)


@pytest.mark.parametrize(
    ("older_than", "message"),
    [
        (datetime(2020, 1, 1), "a datetime with a time zone"),  # noqa: DTZ001
        (timedelta(days=-1), "a time between 1970 and now"),
        (1 << 60, "a time between 1970 and now"),
        (timedelta(days=99_999), "a time between 1970 and now"),
        ("90d", "a datetime, a timedelta or milliseconds"),
        (True, "a datetime, a timedelta or milliseconds"),
    ],
)
def test_times_that_are_none(tmp_path: Path, older_than: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        expire_archive(tmp_path, older_than)
