"""What an archive's folders are made of: each record lies in that of its time in UTC, and readers take them all."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.errors import ConfigError
from kclient.spark import ArchiveError
from kclient.spark.pipelines.archive import ArchiveRun
from kclient.spark.pipelines.archive_reader import PartitionReader
from kclient.spark.pipelines.archive_view import ArchiveView
from kclient.spark.pipelines.folder import ArchiveFolder
from kclient.spark.pipelines.layout import ArchiveLayout, layout_of
from kclient.spark.pipelines.manifest import Manifest
from tests.spark.made_archives import Row, make_archive

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAYOUTS = {
    "topic": "topic=t",
    "topic,date": "topic=t/date={0:%Y}-{0:%m}-{0:%d}",
    "topic,date,hour": "topic=t/date={0:%Y}-{0:%m}-{0:%d}/hour={0:%H}",
    "topic,year": "topic=t/year={0:%Y}",
    "topic,year,month": "topic=t/year={0:%Y}/month={0:%m}",
    "topic,year,month,day": "topic=t/year={0:%Y}/month={0:%m}/day={0:%d}",
    "topic,year,month,day,hour": "topic=t/year={0:%Y}/month={0:%m}/day={0:%d}/hour={0:%H}",
}


def folders(layout: ArchiveLayout, times: list[int]) -> list[str]:
    return [layout.folder("t", each) for each in layout.periods(pyarrow.array(times, pyarrow.int64())).to_pylist()]


@pytest.mark.parametrize("names", LAYOUTS)
@given(st.lists(st.datetimes(datetime(1000, 1, 1), datetime(9999, 12, 31, 23, 59, 59)), max_size=5))  # noqa: DTZ001
def test_a_record_lies_in_the_folder_of_its_time(names: str, moments: list[datetime]) -> None:
    moments = [each.replace(tzinfo=UTC) for each in moments]
    times = [(each - EPOCH) // timedelta(microseconds=1) for each in moments]
    assert folders(layout_of(names), times) == [LAYOUTS[names].format(each) for each in moments]


@pytest.mark.parametrize("names", LAYOUTS)
def test_periods_grow_with_times_and_the_last_ones_take_the_rest(names: str) -> None:
    times = [-(1 << 63), -62_135_596_800_000_000, -1000, 0, 253_402_300_799_999_999, (1 << 63) - 1]
    layout = layout_of(names)
    periods = layout.periods(pyarrow.array(times, pyarrow.int64())).to_pylist()
    assert periods == sorted(periods)
    found = folders(layout, times)
    assert (found[0], found[-1]) == (found[1], found[-2])
    if "year" in names or "date" in names:
        assert "=0001" in found[0]
        assert "=1969" in found[2]
        assert "=9999" in found[-1]


@pytest.mark.parametrize(
    "given", ["", "date", "topic,hour", "topic,date,topic", "topic, date", ["topic", 5], 5, "topic,"]
)
def test_layouts_that_are_none(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"partition_by is one of topic; topic,date; .* not "):
        layout_of(given)


@pytest.mark.parametrize("names", LAYOUTS)
def test_readers_go_by_any_layout(tmp_path: Path, names: str) -> None:
    """Records of a partition come in the order of offsets, whichever folders they are in; runs know each other's."""
    rows = [Row(0, offset, b"%d" % offset, timestamp=(offset * 7_919 % 90) * 3_600_000) for offset in range(60)]
    layout = layout_of(names)
    for first in (0, 30):
        make_archive(tmp_path, "t", rows[first : first + 30], layout=layout, files=2)
    (found,) = ArchiveView(tmp_path).partitions(["t"])
    batches = list(PartitionReader(tmp_path, found, 0, 99, ("offset", "value")).batches())
    assert [value for batch in batches for value in batch.column("value").to_pylist()] == [row.value for row in rows]
    depth = len(layout.names)
    assert {len(path.relative_to(tmp_path).parts) for path in tmp_path.rglob("part-*.parquet")} == {depth + 1}
    last = sorted(tmp_path.glob("_kclient/manifests/*.json"))[-1]
    last.unlink()
    with pytest.raises(ArchiveError, match=r"the manifest 00000002\.json .* is gone"):
        ArchiveFolder(tmp_path).last()


def test_an_archive_keeps_its_layout(tmp_path: Path) -> None:
    make_archive(tmp_path, "t", [Row(0, 0, b"x")], layout=layout_of("topic,year"))
    last = ArchiveFolder(tmp_path).last()
    assert last is not None
    run = ArchiveRun(
        None, tmp_path, {"bootstrap.servers": "127.0.0.1:1"}, ["t"], None, True, False, None,
        layout=layout_of(["topic", "date"]),
    )  # fmt: skip
    with pytest.raises(ArchiveError, match=r"is laid out by topic,year, .* go on with --partition-by topic,year"):
        run.plan(last)


def test_a_layout_that_is_not_known_is_of_a_newer_release() -> None:
    text = Manifest(1, "r", (), (), (), layout=("topic", "moon")).to_json().encode()
    with pytest.raises(ArchiveError, match="is not a manifest of an archive"):
        Manifest.from_json(text, Path("1.json"))
