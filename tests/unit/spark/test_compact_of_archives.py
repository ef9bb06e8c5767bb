"""What a compacted topic makes of an archive, seen by dry runs: these need no Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from kclient.spark import ArchivedTopic, DataLossError, compact
from kclient.spark.pipelines.compact_folder import CompactedTable, CompactFolder
from tests.spark.made_archives import Row, make_archive


def test_where_records_were_aborted_none_are_lost(tmp_path: Path) -> None:
    """An archive without records between where the last run has ended and its first one has taken all there was."""
    archived = tmp_path / "archive"
    make_archive(archived, "t", [Row(0, 8, b"x", key=b"k")], ends={1: 5})
    folder = CompactFolder(tmp_path / "table")
    with folder.lock(), folder.run() as staged:
        folder.commit(
            staged, CompactedTable(1, staged.run, "t", "the-id", False, False, {0: 4, 1: 0}, (), 0, 0, 0, 0)
        )  # fmt: skip
    found = compact(None, ArchivedTopic(archived, "t"), tmp_path / "table", dry_run=True)
    assert (found.offsets, found.lost) == (5 + 5, 0)


def test_what_an_archive_never_had_is_lost(tmp_path: Path) -> None:
    archived = tmp_path / "archive"
    make_archive(archived, "t", [Row(0, 8, b"x", key=b"k")], begins={0: 6})
    folder = CompactFolder(tmp_path / "table")
    with folder.lock(), folder.run() as staged:
        folder.commit(staged, CompactedTable(1, staged.run, "t", "the-id", False, False, {0: 4}, (), 0, 0, 0, 0))
    with pytest.raises(DataLossError, match="of t-0 from 4 to before 6"):
        compact(None, ArchivedTopic(archived, "t"), tmp_path / "table", dry_run=True)
