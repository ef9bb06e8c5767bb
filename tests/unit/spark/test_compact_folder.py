"""The folder of a compacted topic: one table or the other is there, wherever a run dies, and what is others' stays."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import parquet

from kclient.spark.pipelines import compact_folder as folders
from kclient.spark.pipelines.compact_folder import CompactedFile, CompactedTable, CompactFolder, compacted_table
from kclient.spark.pipelines.compact_tasks import stored_schema
from kclient.spark.pipelines.failures import CompactError
from tests.disk_deaths import DiskDeaths, Killed


def table(number: int, run: str, *files: CompactedFile) -> CompactedTable:
    return CompactedTable(number, run, "t", "id", False, False, {0: number}, files, 0, 0, 0, 0)


def make(folder: CompactFolder) -> CompactedTable:
    """A run from its beginning to its end, with the lock."""
    last = folder.recover()
    with folder.run() as staged:
        files = []
        for name in ("part-0.parquet", "part-1.parquet", "_state/part-0.parquet"):
            parquet.write_table(stored_schema(headers=False).empty_table(), staged.folder / name)
            files.append(CompactedFile(name, 0, (staged.folder / name).stat().st_size))
        made = table(last.number + 1 if last else 1, staged.run, *files)
        folder.commit(staged, made)
    folder.discard_dead(made)
    return made


def names(folder: CompactFolder) -> list[str]:
    return sorted(each.name for each in (folder.destination / "tables").iterdir())


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[DiskDeaths]:
    methods = ("rename", "mkdir", "write_text", "symlink_to", "unlink")
    deaths = DiskDeaths(monkeypatch, methods, ((folders, "sync"), (shutil, "rmtree")))
    yield deaths
    deaths(None)


def living(place: Path, runs: int) -> CompactFolder:
    folder = CompactFolder(place)
    with folder.lock():
        for _ in range(runs):
            make(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("before", [0, 1, 3])
def test_killed_before_any_change_of_the_disk(tmp_path: Path, steps: DiskDeaths, before: int) -> None:
    """Readers see the former table or the new one, whole; the next run goes on and leaves the last two."""
    whole = living(tmp_path / "whole", before)
    steps(None)
    with whole.lock():
        make(whole)
    changes = steps(None)
    assert changes > 15
    seen = set()
    for step in range(changes):
        folder = living(tmp_path / str(step), before)
        steps(step)
        with pytest.raises(Killed), folder.lock():
            make(folder)
        steps(None)
        found = folder.last()
        number = 0 if found is None else found.number
        seen.add(number)
        assert number in (before, before + 1)
        if found is not None and (before or folder.is_linked()):
            assert compacted_table(folder.destination).name == found.name
        with folder.lock():
            made = make(folder)
        assert made.number == number + 1
        assert compacted_table(folder.destination).name == made.name
        assert len(names(folder)) == min(made.number, 2)
        assert list((folder.destination / "_kclient/staging").iterdir()) == []
    assert seen == {before, before + 1}


def test_what_is_others_is_left_alone(tmp_path: Path) -> None:
    """A folder `tables` is nothing rare; that of a first run, and of a later one."""
    kept = ["tables/orders", "tables/2024-backup", "tables/00000001-mine", "_kclient/staging/notes"]
    for name in kept:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "data.parquet").write_text("precious")
    (tmp_path / "tables/readme").write_text("precious")
    folder = CompactFolder(tmp_path)
    for _ in range(3):
        with folder.lock():
            make(folder)
        assert all((tmp_path / name / "data.parquet").read_text() == "precious" for name in kept)
    assert (tmp_path / "tables/readme").read_text() == "precious"


def test_an_archives_folder_is_refused(tmp_path: Path) -> None:
    """Its staging may hold files of a run that was committed, and not moved yet."""
    from kclient.spark.pipelines.folder import ArchiveFolder

    with ArchiveFolder(tmp_path).lock():
        pass
    staged = tmp_path / "_kclient/staging/00000001-0123456789abcdef"
    staged.mkdir()
    folder = CompactFolder(tmp_path)
    for look in (folder.check, folder.last, lambda: folder.lock().__enter__()):
        with pytest.raises(CompactError, match="is an archive's folder: a table takes one of its own"):
            look()
    assert staged.is_dir()


@pytest.mark.parametrize("runs", [1, 2, 3])
def test_a_link_that_is_lost_loses_no_table(tmp_path: Path, runs: int) -> None:
    """Copies and backups leave links out at times; what has expired since stands in the table alone."""
    folder = CompactFolder(tmp_path)
    with folder.lock():
        for _ in range(runs):
            made = make(folder)
    (tmp_path / "current").unlink()
    assert folder.last() == made
    with folder.lock():
        assert folder.recover() == made
    assert compacted_table(tmp_path).name == made.name


def test_tables_that_are_damaged_are_not_deleted(tmp_path: Path) -> None:
    folder = CompactFolder(tmp_path)
    with folder.lock():
        for _ in range(2):
            make(folder)
    (tmp_path / "current").unlink()
    for about in tmp_path.glob("tables/*/_compacted.json"):
        about.write_text("{")
    left = names(folder)
    with folder.lock(), pytest.raises(CompactError, match=r"names no table, and of those in .*tables none is whole"):
        folder.recover()
    assert names(folder) == left


def test_a_table_with_files_missing_is_told(tmp_path: Path) -> None:
    folder = CompactFolder(tmp_path)
    with folder.lock():
        made = make(folder)
    gone = folder.table_of(made) / "part-1.parquet"
    gone.unlink()
    with pytest.raises(CompactError, match=f"{re.escape(str(gone))} .*restore it, or compact into an empty folder"):
        folder.last()


def test_a_link_to_nothing(tmp_path: Path) -> None:
    folder = CompactFolder(tmp_path)
    with folder.lock():
        made = make(folder)
    shutil.rmtree(folder.table_of(made))
    with pytest.raises(CompactError, match="names a table that is gone"):
        compacted_table(tmp_path)


def test_a_folder_that_cannot_be_written_is_told_before(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CompactError, match="file is not a folder"):
        CompactFolder(tmp_path / "file/table").check()
    CompactFolder(tmp_path / "new/table").check()
    assert not (tmp_path / "new").exists()


def test_a_lock_file_that_is_removed_lets_no_second_run_in_unseen(tmp_path: Path) -> None:
    """A run that waits at a file that was replaced meanwhile takes the one that is there."""
    folder = CompactFolder(tmp_path)
    with folder.lock():
        with pytest.raises(CompactError, match=rf"another run compacts into .* \(process {os.getpid()}\)"):
            folder.lock().__enter__()
        (tmp_path / "_kclient/lock").unlink()
        with folder.lock():
            found: list[BaseException] = []

            def third() -> None:
                try:
                    folder.lock().__enter__()
                except CompactError as error:
                    found.append(error)

            thread = threading.Thread(target=third)
            thread.start()
            thread.join()
            assert len(found) == 1
