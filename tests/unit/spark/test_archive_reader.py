"""Reading an archive: whatever days and files records are in, they come once, in the order of their offsets."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kclient.spark.pipelines import ArchiveError
from kclient.spark.pipelines import archive_reader as reading
from kclient.spark.pipelines.archive_reader import PartitionReader
from kclient.spark.pipelines.archive_view import ArchiveView
from tests.spark.made_archives import Row, make_archive

DAY = 86_400_000
COLUMNS = ("key", "value", "headers", "offset", "timestamp")


def read(folder: Path, partition: int, start: int = 0, end: int = 1 << 40) -> list[tuple[int, bytes | None]]:
    found = ArchiveView(folder).partitions(["t"])[partition]
    rows: list[tuple[int, bytes | None]] = []
    for batch in PartitionReader(folder, found, start, end, COLUMNS).batches():
        assert batch.num_rows
        rows += zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True)
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_records_come_in_the_order_of_offsets(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several runs, days that offsets go to and fro between, gaps, and files of several tasks."""
    chance = random.Random(seed)
    monkeypatch.setattr(reading, "_BATCH_ROWS", chance.choice([1, 3, 16_384]))
    expected: dict[int, list[tuple[int, bytes | None]]] = {0: [], 1: [], 2: []}
    reached = dict.fromkeys(expected, 0)
    for _ in range(chance.randrange(1, 4)):
        rows = []
        for partition in expected:
            for _ in range(chance.randrange(60)):
                offset = reached[partition] + chance.choice([0, 0, 0, 5])
                reached[partition] = offset + 1
                value = chance.choice([None, b"%d-%d" % (partition, offset)])
                rows.append(Row(partition, offset, value, timestamp=chance.randrange(4 * DAY)))
                expected[partition].append((offset, value))
        make_archive(tmp_path, "t", rows, ends=dict(reached), files=chance.randrange(1, 4))
    for partition, rows_of in expected.items():
        assert read(tmp_path, partition) == rows_of
        start, end = sorted((chance.randrange(60), chance.randrange(60)))
        assert read(tmp_path, partition, start, end) == [row for row in rows_of if start <= row[0] < end]


def test_partitions_times_and_names(tmp_path: Path) -> None:
    make_archive(tmp_path, "t", [Row(0, 5, b"a", timestamp=DAY), Row(2, 1, b"b", timestamp=9 * DAY)], ends={1: 4, 2: 7})
    view = ArchiveView(tmp_path)
    assert (view.number, view.topics) == (1, ["t"])
    ends = [(each.partition, each.start, each.end) for each in view.partitions(["t"])]
    assert ends == [(0, 5, 6), (1, 4, 4), (2, 1, 7)]
    early = view.partitions(["t"], times=(0, 2 * DAY * 1000))
    assert [len(each.pieces) for each in early] == [1, 0, 0]
    with pytest.raises(ArchiveError, match="holds no topic other; it has t"):
        view.partitions(["other"])


def test_topics_of_one_name(tmp_path: Path) -> None:
    make_archive(tmp_path, "t", [Row(0, 0, b"old")], topic_id="first")
    make_archive(tmp_path, "t", [Row(0, 0, b"new")], topic_id="second")
    view = ArchiveView(tmp_path)
    with pytest.raises(ArchiveError, match=r"2 topics called t, .* --topic-id .*, of first, second"):
        view.partitions(["t"])
    [found] = view.partitions(["t"], ["second"])
    [batch] = PartitionReader(tmp_path, found, 0, 9, COLUMNS).batches()
    assert batch.column("value").to_pylist() == [b"new"]


def test_what_is_no_archive(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="holds no archive: there is no folder"):
        ArchiveView(tmp_path)
    (tmp_path / "_kclient/manifests").mkdir(parents=True)
    with pytest.raises(ArchiveError, match="no run was ever committed"):
        ArchiveView(tmp_path)


def test_a_folder_that_cannot_be_looked_at(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match=r"the archive's folder .* cannot be read: .*too long"):
        ArchiveView(tmp_path / ("x" * 32_767))


def test_files_that_are_gone_or_damaged(tmp_path: Path) -> None:
    make_archive(tmp_path, "t", [Row(0, number, b"x" * 100) for number in range(50)])
    view = ArchiveView(tmp_path)
    [found] = view.partitions(["t"])
    [path] = tmp_path.glob("topic=*/date=*/*.parquet")
    content = bytearray(path.read_bytes())
    content[content.index(b"x" * 100)] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArchiveError, match="cannot be read"):
        list(PartitionReader(tmp_path, found, 0, 50, COLUMNS).batches())
    path.unlink()
    with pytest.raises(ArchiveError, match="driver and workers must share"):
        list(PartitionReader(tmp_path, found, 0, 50, COLUMNS).batches())
    with pytest.raises(ArchiveError, match="1 files that the manifests tell of are not in"):
        ArchiveView(tmp_path)


def test_a_run_at_work_is_left_out(tmp_path: Path) -> None:
    """Its files move to their place before anybody knows whether all of them are there."""
    make_archive(tmp_path, "t", [Row(0, 0, b"a")])
    [path] = tmp_path.glob("topic=*/date=*/*.parquet")
    view = ArchiveView(tmp_path)
    before = view.partitions(["t"])
    make_archive(tmp_path, "t", [Row(0, 1, b"b")])
    assert view.partitions(["t"]) == before
    (tmp_path / "_kclient/manifests/00000002.json").unlink()
    (tmp_path / "_kclient/published").unlink()
    with pytest.raises(ArchiveError, match="gone from"):  # and a lost manifest is not taken for that
        ArchiveView(tmp_path)
    assert path.exists()
