"""What `stats` counts, against a count of plain values."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.spark.pipelines.histogram import Histogram
from kclient.spark.pipelines.stats import CountedRange, Counting
from kclient.spark.pipelines.stats_counting import RangeCounter, by_key, header_lengths
from kclient.spark.pipelines.stats_report import StatsReport
from kclient.spark.pipelines.stats_results import (
    KeyShare,
    KeyStats,
    PartitionStats,
    by_partition,
    keys_from_text,
    keys_to_text,
    largest,
    range_from_text,
    range_to_text,
)
from tests.example_budget import examples

HOUR = 3_600_000


class Row(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    timestamp: int

    @property
    def size(self) -> int:
        headers = sum(len(name.encode()) + len(value or b"") for name, value in self.headers or ())
        return len(self.key or b"") + len(self.value or b"") + headers


HEADERS = pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]))
contents = st.none() | st.binary(max_size=40)
rows = st.lists(
    st.builds(
        Row,
        st.none() | st.sampled_from([b"", b"a", b"b", b"\xff"]),
        contents,
        st.none() | st.lists(st.tuples(st.text(max_size=3), contents), max_size=3),
        st.integers(-2, 3) | st.integers(0, 10 * HOUR),
    ),
    max_size=30,
)


def batch_of(given_rows: Sequence[Row]) -> pyarrow.RecordBatch:
    headers = [
        None if row.headers is None else [{"key": name, "value": value} for name, value in row.headers]
        for row in given_rows
    ]
    times = pyarrow.array([1000 * row.timestamp for row in given_rows], pyarrow.int64())
    return pyarrow.RecordBatch.from_arrays(
        [
            pyarrow.array([row.key for row in given_rows], pyarrow.binary()),
            pyarrow.array([row.value for row in given_rows], pyarrow.binary()),
            pyarrow.array(headers, HEADERS),
            pyarrow.array(range(len(given_rows)), pyarrow.int64()),
            times.cast(pyarrow.timestamp("us", "UTC")),
        ],
        names=["key", "value", "headers", "offset", "timestamp"],
    )


class MadeSide:
    """A side whose partitions are lists of rows."""

    def __init__(self, partitions: dict[int, list[Row]], batch: int) -> None:
        self._partitions = partitions
        self._batch = batch
        self.topic_id = "made"
        self.bounds = {number: (0, len(found)) for number, found in partitions.items()}
        self.notes = ()

    def batches(self, partition: int, start: int, end: int):  # type: ignore[no-untyped-def]
        whole = batch_of(self._partitions[partition])
        for first in range(start, end, self._batch):
            yield whole.slice(first, min(self._batch, end - first))


@given(rows, st.integers(1, 7))
@examples(150)
def test_sums_of_a_range(given_rows: list[Row], size: int) -> None:
    counter = RangeCounter(3, 0, len(given_rows), HOUR)
    sizes: list[int] = []
    whole = batch_of(given_rows)
    for first in range(0, len(given_rows), size):
        sizes += counter.add(whole.slice(first, size)).to_pylist()
    found = range_from_text(range_to_text(counter.found()))
    assert found == counter.found()
    assert sizes == [row.size for row in given_rows]
    timed = [row for row in given_rows if row.timestamp >= 0]
    assert (found.records, found.size) == (len(given_rows), sum(sizes))
    assert found.null_keys == sum(row.key is None for row in given_rows)
    assert found.null_values == sum(row.value is None for row in given_rows)
    assert found.untimed == len(given_rows) - len(timed)
    assert found.first_timestamp == min((row.timestamp for row in timed), default=None)
    assert found.last_timestamp == max((row.timestamp for row in timed), default=None)
    assert found.sizes.records == len(given_rows)
    assert found.spans == {
        span: (
            sum(row.timestamp // HOUR == span for row in timed),
            sum(row.size for row in timed if row.timestamp // HOUR == span),
        )
        for span in {row.timestamp // HOUR for row in timed}
    }
    assert (
        found.sizes.percentiles().get("p100", 0)
        <= max(sizes, default=0)
        <= found.sizes.percentiles().get("p100", 0) * 17 / 16
    )


@given(st.lists(rows, min_size=1, max_size=4), st.integers(1, 5), st.integers(1, 3))
@examples(60)
def test_keys_as_tasks_count_them(partitions: list[list[Row]], batch: int, top: int) -> None:
    """Without Spark: what lies between the two kinds of tasks is a sum by key, in any number of parts."""
    made = dict(enumerate(partitions))
    ranges = [CountedRange(number, 0, len(found)) for number, found in made.items()]
    counting = Counting(MadeSide(made, batch), ranges, HOUR, top)  # type: ignore[arg-type]
    numbers = pyarrow.RecordBatch.from_arrays([pyarrow.array(range(len(ranges)), pyarrow.int64())], names=["id"])
    read = pyarrow.Table.from_batches(list(counting.read(iter([numbers]))))
    sums = read.group_by(["result", "key"]).aggregate([("records", "sum"), ("size", "sum")])
    sums = sums.rename_columns(["result", "key", "records", "size"])
    told = [
        row
        for part in sums.to_batches(max_chunksize=3)
        for each in counting.tell(iter([part]))
        for row in each.to_pylist()
    ]
    keys = reduce(
        lambda one, other: one.joined(other, top),
        (keys_from_text(row["keys"]) for row in told if row["result"] is None),
        KeyStats(0, ()),
    )
    records: Counter[bytes] = Counter()
    sizes: Counter[bytes] = Counter()
    for found in partitions:
        for row in found:
            if row.key is not None:
                records[row.key] += 1
                sizes[row.key] += row.size
    assert keys.distinct == len(records)
    assert keys.top == largest((KeyShare(key, records[key], sizes[key]) for key in records), top)
    assert keys_from_text(keys_to_text(keys)) == keys
    parts = by_partition(range_from_text(row["result"]) for row in told if row["result"] is not None)
    assert [each.records for each in parts] == [len(found) for found in partitions]
    report = StatsReport("made", "hour", parts, keys, (), 0.1)
    assert report.records == sum(map(len, partitions))
    assert sum(count for count, _ in report.spans.values()) + sum(each.untimed for each in parts) == report.records
    assert report.as_json()["size"] == report.size


def test_headers_of_a_slice() -> None:
    whole = pyarrow.array([[{"key": "ab", "value": b"1"}], None, [], [{"key": "c", "value": None}] * 2], HEADERS)
    assert header_lengths(whole).to_pylist() == [3, 0, 0, 2]
    assert header_lengths(whole[1:]).to_pylist() == [0, 0, 2]
    assert header_lengths(whole[1:3]).to_pylist() == [0, 0]


def test_records_without_keys_have_none() -> None:
    batch = batch_of([Row(None, b"x", None, 0), Row(b"", None, None, 0)])
    found = by_key(batch, pyarrow.array([1, 0], pyarrow.int64()))
    assert found.to_pylist() == [{"key": b"", "records": 1, "size": 0}]


@pytest.mark.slow
def test_a_topic_without_records() -> None:
    report = StatsReport("t", "day", (PartitionStats(0, 5, 5),), KeyStats(0, ()), (), 0.0)
    assert (report.skew, report.spans, report.key_rows()) == (0.0, {}, [])
    assert "0 records" in report.summary()
    assert report.partition_rows()[0][3] == 0
    assert "<h2>Partitions</h2>" in report.to_html()


@pytest.mark.slow
def test_what_keys_and_times_look_like() -> None:
    keys = KeyStats(2, (KeyShare(b"<b>$x$", 2, 20), KeyShare(b"\xff\x00", 1, 10)))
    parts = (
        PartitionStats(0, 0, 3, records=3, key_bytes=30, first_timestamp=0, last_timestamp=2**62, spans={0: (3, 30)}),
    )
    report = StatsReport("t", "hour", parts, keys, ("a note",), 0.0)
    page = report.to_html()
    assert "&lt;b&gt;$x$" in page
    assert "<b>$x$" not in page
    assert [row[0] for row in report.key_rows()] == ["<b>$x$", "'\\xff\\x00'"]
    assert report.partition_rows()[0][-2:] == ("1970-01-01T00:00:00.000Z", f"{2**62} ms")
    assert report.key_rows()[0][2] == "66.67"


@pytest.mark.slow
def test_a_page_of_times_up_to_the_last_that_there_are() -> None:
    """matplotlib draws none behind the year 9999, nor near its end."""
    for last in (221_845_391_999_999, 253_402_300_799_999, 2**62):
        parts = (PartitionStats(0, 0, 2, 2, spans={0: (1, 10), last // HOUR: (1, 10)}, sizes=Histogram({10: 2})),)
        assert "data:image/png" in StatsReport("t", "hour", parts, None, (), 0.0).to_html()
        alone = (PartitionStats(0, 0, 1, 1, spans={last // HOUR: (1, 10)}, sizes=Histogram({10: 1})),)
        assert "data:image/png" in StatsReport("t", "hour", alone, None, (), 0.0).to_html()


@pytest.mark.slow
def test_keys_in_letters_that_the_font_of_pictures_lacks_give_no_warning() -> None:
    keys = KeyStats(2, (KeyShare("日本語".encode(), 2, 20), KeyShare(b"a$b\\$", 1, 10)))
    report = StatsReport("t", "hour", (PartitionStats(0, 0, 3, 3, sizes=Histogram({10: 3})),), keys, (), 0.0)
    with warnings.catch_warnings(action="error"):
        assert "<td>日本語</td>" in report.to_html()
