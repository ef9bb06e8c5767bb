"""What travels between an archive's tasks, and what they write, keeps every value that Kafka may carry."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import crc32c
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from kclient.errors import ConfigError
from kclient.records.arrow import arrow_schema
from kclient.spark.pipelines.columns import packed, receipt_row, split_receipts, stretches, unpacked
from kclient.spark.pipelines.folder import ArchiveFolder
from kclient.spark.pipelines.parquet_choices import ParquetChoices, parquet_choices
from kclient.spark.pipelines.parquet_files import ParquetFiles
from kclient.spark.pipelines.receipts import Tally

LEAST, GREATEST = -(2**63), 2**63 - 1
DAY = 86_400_000_000
CHOICES = ("compression", "compression_level", "file_size", "row_group_size")


def consumed(*rows: dict[str, Any]) -> pyarrow.RecordBatch:
    """A batch as the consumer gives it; times are microseconds."""
    defaults = {"key": None, "value": b"v", "topic": "t", "partition": 0, "timestampType": 0, "headers": None}
    full = [{**defaults, "offset": number, "timestamp": 0, **row} for number, row in enumerate(rows)]
    schema = arrow_schema(include_headers=True)
    columns = [
        pyarrow.array([row["timestamp"] for row in full], pyarrow.int64()).view(field.type)
        if field.name == "timestamp"
        else pyarrow.array([row[field.name] for row in full], field.type)
        for field in schema
    ]
    return pyarrow.RecordBatch.from_arrays(columns, schema=schema)


headers = st.none() | st.lists(
    st.fixed_dictionaries({"key": st.text(max_size=5), "value": st.none() | st.binary(max_size=5)}), max_size=3
)


@pytest.mark.slow
@given(st.lists(headers, max_size=8), st.integers(0, 3))
def test_headers_travel_unchanged(every: list[list[dict[str, Any]] | None], skipped: int) -> None:
    batch = consumed(*({"headers": each} for each in every)).slice(min(skipped, len(every)))
    there = unpacked(packed(batch))
    assert there.column("headers").to_pylist() == every[skipped:]
    there.validate(full=True)


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (0, date(1970, 1, 1)),
        (-1000, date(1969, 12, 31)),  # a record without a time
        (DAY - 1, date(1970, 1, 1)),
        (DAY, date(1970, 1, 2)),
        (-DAY, date(1969, 12, 31)),
        (-DAY - 1, date(1969, 12, 30)),
        (253_402_300_799_999_999, date(9999, 12, 31)),
        (253_402_300_800_000_000, date(9999, 12, 31)),  # the year 10000
        (GREATEST, date(9999, 12, 31)),
        (-62_135_596_800_000_000, date(1, 1, 1)),
        (LEAST, date(1, 1, 1)),
    ],
)
def test_every_time_has_a_date_that_readers_know(timestamp: int, expected: date) -> None:
    batch = packed(consumed({"timestamp": timestamp}))
    assert date(1970, 1, 1) + timedelta(days=batch.column("period")[0].as_py()) == expected
    assert batch.column("timestamp").to_pylist() == [timestamp]


def test_receipts_are_taken_out_from_between_the_records() -> None:
    records = packed(consumed({}, {}))
    mixed = pyarrow.Table.from_batches([records, receipt_row("t", "one"), records]).combine_chunks().to_batches()[0]
    rest, receipts = split_receipts(mixed)
    assert (rest.num_rows, receipts) == (4, ["one"])
    assert split_receipts(records) == (records, [])


def test_stretches_of_a_topic_and_day() -> None:
    rows = [("a", 0), ("a", 0), ("a", DAY), ("b", DAY), ("b", DAY)]
    batch = packed(consumed(*({"topic": topic, "timestamp": timestamp} for topic, timestamp in rows)))
    assert [(topic, day, part.num_rows) for topic, day, part in stretches(batch)] == [
        ("a", 0, 2),
        ("a", 1, 1),
        ("b", 1, 2),
    ]


def test_files_hold_what_was_read_and_the_receipts_say_so(tmp_path: Path) -> None:
    rows = [
        {"offset": 7, "timestamp": -1000, "key": b"k", "headers": [{"key": "h", "value": None}]},
        {"offset": 9, "timestamp": 0, "value": None, "timestampType": 1},
        {"offset": 3, "timestamp": 5, "partition": 4},
        {"offset": 4, "timestamp": GREATEST, "partition": 4},
    ]
    batch = packed(consumed(*rows))
    archive = ArchiveFolder(tmp_path)
    with archive.lock(), archive.run(1) as staged:
        with ParquetFiles(staged, "00000-0", {"t": "the id"}, ParquetChoices("zstd")) as files:
            for topic, day, part in stretches(batch):
                files.append(topic, day, part)
        assert [(receipt.path.split("/")[1], receipt.rows) for receipt in files.receipts] == [
            ("date=1969-12-31", 1),
            ("date=1970-01-01", 2),
            ("date=9999-12-31", 1),
        ]
        assert files.receipts[1].tallies == ((0, Tally(1, 9, 9, 9)), (4, Tally(1, 3, 3, 3)))
        paths = [staged.folder / receipt.path for receipt in files.receipts]
        assert [receipt.size for receipt in files.receipts] == [path.stat().st_size for path in paths]
        assert [receipt.crc32c for receipt in files.receipts] == [crc32c.crc32c(path.read_bytes()) for path in paths]
        found = pyarrow.concat_tables(parquet.read_table(path, partitioning=None) for path in paths)
        metadata = parquet.read_metadata(paths[0])
    assert found.column("offset").to_pylist() == [7, 9, 3, 4]
    assert found.column("timestamp").cast("int64").to_pylist() == [-1000, 0, 5, GREATEST]
    assert found.column("headers").to_pylist() == [[{"key": "h", "value": None}], None, None, None]
    column = metadata.schema.column(metadata.schema.names.index("timestamp"))
    assert column.physical_type == "INT64"
    assert str(column.logical_type).startswith("Timestamp(isAdjustedToUTC=true, timeUnit=microseconds")
    assert metadata.metadata[b"kclient.topic_id"] == b"the id"
    assert metadata.row_group(0).column(0).compression == "ZSTD"


def test_a_task_that_fails_leaves_its_file_to_the_run(tmp_path: Path) -> None:
    archive = ArchiveFolder(tmp_path)
    batch = packed(consumed({}, {}))
    with (
        pytest.raises(RuntimeError),
        archive.lock(),
        archive.run(1) as staged,
        ParquetFiles(staged, "00000-0", {}, ParquetChoices()) as files,
    ):
        files.append("t", 0, batch)
        raise RuntimeError
    assert files.receipts == []
    assert list((tmp_path / "_kclient/staging").iterdir()) == []


def test_times_are_read_as_they_were(tmp_path: Path) -> None:
    archive = ArchiveFolder(tmp_path)
    year_9000 = datetime(9000, 1, 2, 3, 4, 5, 678_000, UTC)
    microseconds = (year_9000 - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    with archive.lock(), archive.run(1) as staged:
        with ParquetFiles(staged, "00000-0", {}, ParquetChoices()) as files:
            files.append("t", 0, packed(consumed({"timestamp": microseconds})))
        (receipt,) = files.receipts
        table = parquet.read_table(staged.folder / receipt.path, partitioning=None)
    assert table.column("timestamp").to_pylist() == [year_9000]


def written(folder: Path, choices: ParquetChoices, *batches: pyarrow.RecordBatch) -> list[Path]:
    """The files of one task, in their order."""
    place = ArchiveFolder(folder)
    with place.lock(), place.run(1) as staged:
        with ParquetFiles(staged, "00000-0", {}, choices) as files:
            for batch in batches:
                for topic, day, part in stretches(packed(batch)):
                    files.append(topic, day, part)
        found = [folder / f"{number}.parquet" for number in range(len(files.receipts))]
        for receipt, target in zip(files.receipts, found, strict=True):
            (staged.folder / receipt.path).rename(target)
            assert (receipt.size, receipt.rows) == (target.stat().st_size, parquet.read_metadata(target).num_rows)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("size", [100, 30_000, 300_000])
def test_files_end_at_the_size_that_was_chosen(tmp_path: Path, codec: str, size: int) -> None:
    """However well they are compressed, and however large a record is."""
    wanted, count = 256 << 10, 6_000_000 // size
    values = [random.Random(each).randbytes(size // 4) * 4 for each in range(count)]  # zstd makes a quarter of it
    rows = [{"offset": offset, "value": value} for offset, value in enumerate(values)]
    batches = [consumed(*rows[first : first + 100]) for first in range(0, count, 100)]
    choices = ParquetChoices(codec, file_size=wanted, row_group_size=128 << 10)
    files = written(tmp_path, choices, *batches)
    sizes = [path.stat().st_size for path in files]
    assert all(0.85 * wanted < each < 1.3 * wanted + size for each in sizes[:-1]), sizes
    assert len(files) > 2
    tables = [parquet.read_table(path) for path in files]
    assert [offset for table in tables for offset in table.column("offset").to_pylist()] == list(range(count))
    for path in files:
        about = parquet.read_metadata(path)
        groups = [about.row_group(number) for number in range(about.num_row_groups)]
        assert all(group.total_byte_size < (128 << 10) * 1.3 + size for group in groups)
        assert groups[0].column(1).compression == {"none": "UNCOMPRESSED", "zstd": "ZSTD"}[codec]


@pytest.mark.slow
def test_the_level_is_the_compressions(tmp_path: Path) -> None:
    texts = [b" ".join(b"%d" % (number * number % 977) for number in range(first, first + 50)) for first in range(2000)]
    sizes = []
    for level in (1, 19):
        (tmp_path / str(level)).mkdir()
        choices = ParquetChoices("zstd", level)
        (file,) = written(tmp_path / str(level), choices, consumed(*({"value": text} for text in texts)))
        sizes.append(file.stat().st_size)
    assert sizes[1] < 0.9 * sizes[0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"compression": "lzo"}, "compression is one of brotli, .* zstd, not 'lzo'"),
        ({"compression_level": 3}, "compression_level is one of a compression: name that, too"),
        ({"compression": "snappy", "compression_level": 3}, "snappy has no levels"),
        ({"compression": "none", "compression_level": 3}, "without compression there is no level"),
        ({"compression": "gzip", "compression_level": 10}, "compression_level of gzip is from 1 to 9, not 10"),
        ({"file_size": 10}, "file_size is in bytes, 65536 at least, not 10"),
        ({"row_group_size": -1}, "row_group_size is in bytes, 65536 at least"),
    ],
)
def test_choices_that_are_none(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parquet_choices(None, **{name: given.get(name) for name in CHOICES})
