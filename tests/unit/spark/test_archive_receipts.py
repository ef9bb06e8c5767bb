"""A run is committed only if what was planned was read, what was read was written, and the files are there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import crc32c
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from kclient.spark.pipelines.manifest import ArchivedRange, ArchiveError
from kclient.spark.pipelines.receipts import (
    FileReceipt,
    ReadReceipt,
    Receipt,
    Tally,
    from_text,
    to_text,
    verified_files,
)
from kclient.spark.ranges import OffsetRange

PLANNED = [ArchivedRange("t", "id", 0, 10, 30), ArchivedRange("t", "id", 1, 0, 5)]


def tally(*offsets: int) -> Tally:
    return Tally(len(offsets), min(offsets), max(offsets), sum(offsets)) if offsets else Tally()


def read(partition: int, start: int, end: int, *offsets: int) -> ReadReceipt:
    return ReadReceipt(OffsetRange("t", partition, start, end, "id"), tally(*offsets))


def staged(folder: Path) -> list[Receipt]:
    """Partition 0 in two pieces, with gaps as transactions leave them; two files, one of both partitions."""
    receipts: list[Receipt] = [read(0, 20, 30, 25), read(0, 10, 20, 10, 12, 19), read(1, 0, 5, 0, 1, 2, 3, 4)]
    for name, tallies in (
        ("topic=t/date=2024-01-01/a.parquet", ((0, tally(10, 12, 25)), (1, tally(0, 1, 2)))),
        ("topic=t/date=2024-01-02/b.parquet", ((0, tally(19)), (1, tally(3, 4)))),
    ):
        rows = sum(each.rows for _, each in tallies)
        path = folder / name
        path.parent.mkdir(parents=True)
        parquet.write_table(pyarrow.table({"offset": range(rows)}), path)
        receipts.append(FileReceipt(name, "t", rows, path.stat().st_size, crc32c.crc32c(path.read_bytes()), tallies))
    return receipts


def test_what_fits_is_committed(tmp_path: Path) -> None:
    files = verified_files(PLANNED, staged(tmp_path), tmp_path)
    assert [(file.path[-9:], file.rows, file.topic_id) for file in files] == [
        ("a.parquet", 6, "id"),
        ("b.parquet", 3, "id"),
    ]


def a_range_is_missing(receipts: list[Receipt]) -> None:
    del receipts[0]


def a_range_came_twice(receipts: list[Receipt]) -> None:
    receipts.append(receipts[0])


def a_task_counted_twice(receipts: list[Receipt]) -> None:
    receipts += receipts[:]


def a_range_of_another_topic_came(receipts: list[Receipt]) -> None:
    receipts[0] = ReadReceipt(OffsetRange("t", 0, 20, 30, "another"), tally(25))


def a_file_is_missing(receipts: list[Receipt]) -> None:
    receipts.pop()


def a_file_came_twice(receipts: list[Receipt]) -> None:
    receipts.append(receipts[-1])


def a_record_is_another(receipts: list[Receipt]) -> None:
    file = receipts[-1]
    assert isinstance(file, FileReceipt)
    receipts[-1] = dataclasses.replace(file, tallies=((0, tally(18)), (1, tally(3, 4))))


def a_record_lies_outside(receipts: list[Receipt]) -> None:
    file = receipts[-1]
    assert isinstance(file, FileReceipt)
    receipts[0] = read(0, 20, 30, 31)
    receipts[-2] = dataclasses.replace(receipts[-2], tallies=((0, tally(10, 12, 31)), (1, tally(0, 1, 2))))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (a_range_is_missing, "t-0 was to be read from 10 to 30, and tasks read 10 to 20;"),
        (a_range_came_twice, "and tasks read 10 to 20, 20 to 30, 20 to 30"),
        (a_task_counted_twice, "and tasks read 10 to 20, 10 to 20, 20 to 30, 20 to 30"),
        (a_range_of_another_topic_came, "t-0 was to be read from 10 to 30"),
        (a_file_is_missing, r"of t-0 4 records \(10 to 25\) were read, and 3 records \(10 to 25\) were written"),
        (a_file_came_twice, "were read, and .* were written"),
        (a_record_is_another, "of t-0 4 records"),
        (a_record_lies_outside, "not 10 to 31"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, change: Callable[[list[Receipt]], None], message: str) -> None:
    receipts = staged(tmp_path)
    change(receipts)
    with pytest.raises(ArchiveError, match=message):
        verified_files(PLANNED, receipts, tmp_path)


def test_files_that_this_process_does_not_see_are_told_with_the_remedy(tmp_path: Path) -> None:
    receipts = staged(tmp_path / "of the workers")
    with pytest.raises(ArchiveError, match=r"wrote 2 files with 9 records, and 2 of them .* must share") as raised:
        verified_files(PLANNED, receipts, tmp_path / "of the driver")
    assert "nothing was archived" in str(raised.value)


def test_a_file_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    receipts = staged(tmp_path)
    path = tmp_path / "topic=t/date=2024-01-01/a.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    with pytest.raises(ArchiveError, match=f"has {len(whole) - 10} bytes, and {len(whole)} were written"):
        verified_files(PLANNED, receipts, tmp_path)
    path.write_bytes(whole[:-10] + bytes(10))
    with pytest.raises(ArchiveError, match="is not a Parquet file"):
        verified_files(PLANNED, receipts, tmp_path)


def test_a_file_of_other_bytes_is_refused(tmp_path: Path) -> None:
    """Neither its size nor its footer tells."""
    receipts = staged(tmp_path)
    path = tmp_path / "topic=t/date=2024-01-02/b.parquet"
    content = bytearray(path.read_bytes())
    content[20] ^= 1  # in the first page
    path.write_bytes(content)
    with pytest.raises(ArchiveError, match=r"b\.parquet holds other bytes than were written .* run again"):
        verified_files(PLANNED, receipts, tmp_path)


def test_a_file_of_other_rows_is_refused(tmp_path: Path) -> None:
    receipts = staged(tmp_path)
    path = tmp_path / "topic=t/date=2024-01-01/a.parquet"
    parquet.write_table(pyarrow.table({"offset": range(100)}), path)
    receipts[-2] = dataclasses.replace(receipts[-2], size=path.stat().st_size)
    with pytest.raises(ArchiveError, match="has 100 records, and 6 were written"):
        verified_files(PLANNED, receipts, tmp_path)


tallies = st.lists(st.integers(0, 2**63 - 1), unique=True).map(lambda offsets: tally(*offsets))


@given(tallies, tallies)
def test_receipts_travel_unchanged(first: Tally, second: Tally) -> None:
    total = first + second
    for receipt in (
        ReadReceipt(OffsetRange("t", 3, 5, 7, "id"), total, ((5, 6), (6, 7))),
        FileReceipt("a/b", "t", total.rows, 17, 0xFFFFFFFF, ((0, first), (1, second), (2, total))),
    ):
        assert from_text(to_text(receipt)) == receipt
