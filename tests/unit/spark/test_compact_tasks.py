"""What tasks of a compacted topic do, without Spark: run after run it is what a plain dict of all records is."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from kclient.spark.pipelines.compact import checked
from kclient.spark.pipelines.compact_folder import CompactedFile, CompactedTable, StagedTable, is_seen
from kclient.spark.pipelines.compact_tasks import (
    SORTED_BY,
    FormerFile,
    NewRange,
    TableReading,
    TableReadReceipt,
    TableWriting,
    WriteReceipt,
    receipt_of,
)
from kclient.spark.pipelines.failures import CompactError

PARTITIONS = 3


class Sent(NamedTuple):
    key: bytes | None
    value: bytes | None
    partition: int
    timestamp: int


class Logs:
    """A topic: the records of its partitions."""

    topic_id = "id"
    notes = ()

    def __init__(self) -> None:
        self.records: list[list[Sent]] = [[] for _ in range(PARTITIONS)]

    @property
    def bounds(self) -> Mapping[int, tuple[int, int]]:
        return {number: (0, len(records)) for number, records in enumerate(self.records)}

    def ends_below(self, partition: int, place: int) -> bool:
        return False

    def batches(
        self, partition: int, start: int, end: int, lost: list[tuple[int, int]] | None = None
    ) -> Iterator[pa.RecordBatch]:
        header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        for first in range(start, end, 3):
            offsets = range(first, min(first + 3, end))
            rows = [self.records[partition][offset] for offset in offsets]
            yield pa.record_batch(
                {
                    "key": pa.array([row.key for row in rows], pa.binary()),
                    "value": pa.array([row.value for row in rows], pa.binary()),
                    "headers": pa.array([[("p", b"%d" % partition)] for _ in rows], header),
                    "offset": pa.array(offsets, pa.int64()),
                    "timestamp": pa.array([row.timestamp for row in rows], pa.timestamp("us", "UTC")),
                }
            )


def latest(logs: Logs) -> dict[bytes, tuple[int, int, int, bytes | None]]:
    """By key: timestamp, partition, offset and value of the latest."""
    found: dict[bytes, tuple[int, int, int, bytes | None]] = {}
    for partition, records in enumerate(logs.records):
        own = {
            row.key: (row.timestamp, partition, offset, row.value)
            for offset, row in enumerate(records) if row.key is not None
        }  # fmt: skip
        for key, row in own.items():
            if key not in found or found[key][:3] < row[:3]:
                found[key] = row
    return found


def run(
    folder: Path, side: Logs, sources: Sequence[NewRange | FormerFile], tasks: int, keep: bool
) -> tuple[list[TableReadReceipt], list[WriteReceipt]]:
    """A run whose keys are shared out to so many tasks; a batch between them has two records."""
    (folder / "_state").mkdir(parents=True)
    numbers = pa.record_batch([pa.array(range(len(sources)), pa.int64())], ["id"])
    read = pa.Table.from_batches(list(TableReading(side, sources, headers=True).run(iter([numbers]))))
    rows = read.sort_by([(name, "ascending") for name in SORTED_BY])
    shares = [hash(key) % tasks for key in rows.column("key").to_pylist()]
    receipts = []
    for task in range(tasks):
        own = rows.filter(pa.array([share == task for share in shares]))
        writing = TableWriting(
            StagedTable(folder, "run"), "t", headers=True, keep_tombstones=keep, compression="snappy"
        )
        told = writing.write(f"part-{task}.parquet", iter(own.to_batches(max_chunksize=2)))
        receipts += [receipt_of(text) for batch in told for text in batch.column(0).to_pylist()]
    return checked(receipts, len(sources))


SENT = st.builds(
    Sent,
    st.sampled_from([None, b"", b"a", b"b", b"c", b"d"]),
    st.sampled_from([None, b"x", b"y"]),
    st.integers(0, PARTITIONS - 1),
    st.integers(-1, 5),
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.lists(SENT, max_size=25), st.integers(1, 3), st.booleans()), min_size=1, max_size=4))
def test_run_after_run_it_is_a_dict(runs: list[tuple[list[Sent], int, bool]]) -> None:
    logs, positions, former = Logs(), [0] * PARTITIONS, list[FormerFile]()
    with tempfile.TemporaryDirectory() as place:
        for number, (sent, tasks, keep) in enumerate(runs):
            for each in sent:
                logs.records[each.partition].append(each)
            ranges = [
                NewRange(partition, positions[partition], len(records))
                for partition, records in enumerate(logs.records)
            ]
            positions = [each.end for each in ranges]
            folder = Path(place) / str(number)
            reads, writes = run(folder, logs, [*ranges, *former], tasks, keep)
            files = [file for each in writes for file in each.files]
            former = [FormerFile(folder / each.path, each.rows) for each in files]
            found = [
                row for file in files if is_seen(file) for row in parquet.read_table(folder / file.path).to_pylist()
            ]
            wanted = latest(logs)
            told = {row["key"]: (row["partition"], row["offset"], row["value"]) for row in found}
            assert len(told) == len(found)
            assert told == {key: row[1:] for key, row in wanted.items() if keep or row[3] is not None}
            assert all(row["headers"] == [{"key": "p", "value": b"%d" % row["partition"]}] for row in found)
            assert sum(each.tombstones for each in writes) == sum(row[3] is None for row in wanted.values())
            assert sum(each.keys for each in writes) == sum(row[3] is not None for row in wanted.values())
            spread = Counter(
                key for records in logs.records for key in {each.key for each in records} if key is not None
            )
            assert sum(each.split_keys for each in writes) == sum(count > 1 for count in spread.values())
            assert sum(each.null_keys for each in reads) == sum(each.key is None for each in sent)


def test_what_comes_behind_a_log_that_was_cut_back_is_the_latest(tmp_path: Path) -> None:
    """It has lower offsets than what the table has of the part that is gone."""
    logs = Logs()
    logs.records[0] += [Sent(b"a", b"0", 0, 1), Sent(b"b", b"1", 0, 1), Sent(b"a", b"gone", 0, 1)]
    _, writes = run(tmp_path / "table", logs, [NewRange(0, 0, 3)], 1, keep=False)
    (file,) = writes[0].files
    logs.records[0][1:] = [Sent(b"a", b"new", 0, 1)]
    former = FormerFile(tmp_path / "table" / file.path, file.rows)
    _, writes = run(tmp_path / "next", logs, [NewRange(0, 1, 2), former], 1, keep=False)
    (file,) = writes[0].files
    rows = parquet.read_table(tmp_path / "next" / file.path).to_pylist()
    assert {row["key"]: (row["offset"], row["value"]) for row in rows} == {b"a": (1, b"new"), b"b": (1, b"1")}


def test_what_is_missing_is_told() -> None:
    reads, write = [TableReadReceipt(0, 5, 4, 1), TableReadReceipt(1, 2, 2, 0)], WriteReceipt(6, 6, 0, 0, ())
    assert checked([*reads, write], 2) == (reads, [write])
    for receipts in ([*reads, replace(write, taken=5)], [reads[0], write], [*reads, reads[0], write]):
        with pytest.raises(CompactError, match="the former table is left, run again"):
            checked(receipts, 2)


def test_a_former_file_that_is_damaged(tmp_path: Path) -> None:
    logs = Logs()
    logs.records[0] += [Sent(b"a", b"x", 0, 1), Sent(b"b", b"x", 0, 1)]
    _, writes = run(tmp_path / "table", logs, [NewRange(0, 0, 2)], 1, keep=False)
    (file,) = writes[0].files
    with pytest.raises(CompactError, match="has 2 rows, and 3 were written: restore it"):
        run(tmp_path / "next", logs, [FormerFile(tmp_path / "table" / file.path, 3)], 1, keep=False)
    with pytest.raises(CompactError, match="the former table cannot be read"):
        run(tmp_path / "third", logs, [FormerFile(tmp_path / "gone.parquet", 3)], 1, keep=False)


def test_a_table_tells_of_itself(tmp_path: Path) -> None:
    files = (CompactedFile("part-0.parquet", 3, 100), CompactedFile("_state/part-0.parquet", 1, 7))
    table = CompactedTable(2, "abc", "t", "id", True, False, {0: 5, 1: 0}, files, 3, 1, 0, 4)
    path = tmp_path / "_compacted.json"
    path.write_text(table.to_json(), "utf-8")
    assert CompactedTable.read(path) == table
    assert (table.size, table.name) == (100, "00000002-abc")
    for text in ("", "[]", "{}", '{"format": "x"}', '{"format": 1, "positions": {}, "files": []}'):
        path.write_text(text, "utf-8")
        with pytest.raises(CompactError, match="does not tell what the table is"):
            CompactedTable.read(path)
    path.write_text('{"format": 2}', "utf-8")
    with pytest.raises(CompactError, match="written by a newer kclient"):
        CompactedTable.read(path)


@pytest.mark.slow
def test_large_rows_of_the_former_table_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    logs = Logs()
    logs.records[0] += [Sent(b"%d" % number, bytes([number]) * 1_000_000, 0, 1) for number in range(40)]
    _, writes = run(tmp_path / "table", logs, [NewRange(0, 0, 40)], 1, keep=False)
    (file,) = writes[0].files
    reading = TableReading(logs, [FormerFile(tmp_path / "table" / file.path, file.rows)], headers=False)
    batches = list(reading.run(iter([pa.record_batch([pa.array([0], pa.int64())], ["id"])])))
    assert sum(batch.num_rows for batch in batches) == 40 + 1
    assert max(batch.nbytes for batch in batches) < 6_000_000
