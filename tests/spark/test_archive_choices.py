"""The pipeline `archive` with choices of how its files are written."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kclient.spark import ArchivedTopic, ArchiveError, TopicAt, archive, audit
from kclient.sync import Admin, Producer
from tests.spark.archives import START, archived, create, expected, fill
from tests.spark.conftest import EndedCommand

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def fill_at_random(broker: str, topic: str, count: int) -> None:
    """Values of 10,000 bytes that no compression makes smaller, in one partition."""
    with Admin(bootstrap_servers=broker) as admin:
        admin.create_topic(topic, partitions=1, configs={"retention.ms": "-1"})
    chance = random.Random(3)
    with Producer(bootstrap_servers=broker) as producer:
        for _ in range(count):
            producer.send(topic, chance.randbytes(10_000), timestamp=1_700_000_000_000)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("topic=*/date=*/*.parquet"))


def test_files_of_a_size(spark: SparkSession, gateway: str, topic: str, tmp_path: Path) -> None:
    """Smaller and larger ones than the parts that Spark makes; readers take them all."""
    from pyarrow import parquet

    fill_at_random(gateway, topic, 800)
    settings = {"bootstrap.servers": gateway}
    before = spark.conf.get("spark.sql.adaptive.advisoryPartitionSizeInBytes")
    spark.conf.set("spark.sql.adaptive.advisoryPartitionSizeInBytes", "1MB")
    try:
        for size in (500_000, 4_000_000):
            folder = tmp_path / str(size)
            assert archive(
                spark, folder, settings, topics=[topic], compression="gzip", compression_level=1, file_size=size,
                row_group_size=200_000,
            ).records == 800  # fmt: skip
            sizes = Counter(round(path.stat().st_size / size, 1) for path in files(folder))
            assert max(sizes) <= 1.2
            assert sum(count for part, count in sizes.items() if part >= 0.8) >= (12 if size == 500_000 else 1)
            about = parquet.read_metadata(files(folder)[0])
            assert about.row_group(0).column(1).compression == "GZIP"
            assert about.row_group(0).total_byte_size < 300_000
            assert audit(spark, TopicAt(topic, settings), ArchivedTopic(folder, topic)).same
        assert spark.conf.get("spark.sql.adaptive.advisoryPartitionSizeInBytes") == "1MB"
    finally:
        spark.conf.set("spark.sql.adaptive.advisoryPartitionSizeInBytes", before)


def test_the_command_takes_choices(
    gateway: str, topic: str, tmp_path: Path, pipeline: Callable[..., EndedCommand]
) -> None:
    from pyarrow import parquet

    fill_at_random(gateway, topic, 100)
    choices = [
        "--compression",
        "zstd",
        "--compression-level",
        "9",
        "--file-size",
        "200000",
        "--row-group-size",
        "100000",
    ]
    done = pipeline("archive", topic, "-b", gateway, "--to", tmp_path, *choices, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["records"] == 100
    assert len(files(tmp_path)) >= 5
    assert parquet.read_metadata(files(tmp_path)[0]).row_group(0).column(1).compression == "ZSTD"
    assert max(path.stat().st_size for path in files(tmp_path)) < 300_000


def test_folders_by_hour(spark: SparkSession, gateway: str, topic: str, tmp_path: Path) -> None:
    """Spark, pyarrow and polars make the same columns of them; a later run keeps the layout, and refuses another."""
    import polars
    from pyarrow import dataset

    create(gateway, topic)
    settings = {"bootstrap.servers": gateway}
    fill(gateway, topic, range(40))
    archive(spark, tmp_path, settings, topics=[topic], partition_by="topic,date,hour")
    fill(gateway, topic, range(40, 50))
    assert archive(spark, tmp_path, settings, topics=[topic]).records == 10
    for again in (None, spark):
        with pytest.raises(ArchiveError, match=r"is laid out by topic,date,hour, and was to go on by topic,year"):
            archive(again, tmp_path, settings, topics=[topic], partition_by=["topic", "year"], dry_run=again is None)
    moments = [datetime.fromtimestamp(START / 1000, UTC) + timedelta(hours=number) for number in range(50)]
    wanted = sorted((b"%d" % number, topic, at.date(), at.hour) for number, at in enumerate(moments))
    names = ["value", "topic", "date", "hour"]
    rows = spark.read.parquet(str(tmp_path)).select(names).collect()
    assert sorted((bytes(row.value), row.topic, row.date, row.hour) for row in rows) == wanted
    table = dataset.dataset(tmp_path, partitioning="hive").to_table(columns=names).to_pylist()
    found = sorted((row["value"], row["topic"], date.fromisoformat(row["date"]), row["hour"]) for row in table)
    assert found == wanted
    frame = polars.read_parquet(f"{tmp_path}/topic=*/**/*.parquet", hive_partitioning=True).select(names)
    assert sorted(frame.rows()) == wanted
    assert audit(spark, TopicAt(topic, settings), ArchivedTopic(tmp_path, topic)).same


@pytest.mark.parametrize("names", ["topic", "topic,year,month"])
def test_names_of_topics_stay_texts_in_any_layout(
    spark: SparkSession, gateway: str, tmp_path: Path, names: str
) -> None:
    topic = str(random.Random().randrange(10**9, 10**10))
    create(gateway, topic)
    fill(gateway, topic, range(3))
    archive(spark, tmp_path, {"bootstrap.servers": gateway}, topics=[topic], partition_by=names)
    assert {row.topic for row in spark.read.parquet(str(tmp_path)).collect()} == {topic}


def test_the_command_deletes_what_is_old(
    spark: SparkSession, gateway: str, topic: str, tmp_path: Path, pipeline: Callable[..., EndedCommand]
) -> None:
    """The next run archives what is new and nothing again; a replay says what is gone."""
    create(gateway, topic)
    create(gateway, f"{topic}-again")
    settings = {"bootstrap.servers": gateway}
    fill(gateway, topic, range(40))  # from 22 o'clock on, an hour each: the first two are of the day before
    archive(spark, tmp_path, settings, topics=[topic])

    done = pipeline("expire", topic, "--from", str(tmp_path), "--older-than", "2024-05-18", "--dry-run", "--json")
    assert (done.returncode, json.loads(done.stdout)["records"]) == (0, 2), done.stderr
    assert archived(tmp_path) == expected(topic, range(40))
    done = pipeline("expire", "--from", str(tmp_path), "--older-than", "2024-05-18")
    assert (done.returncode, "0: 0 to before 1; 1: 0 to before 1" in done.stdout) == (0, True), done.stderr
    assert archived(tmp_path) == expected(topic, range(2, 40))
    fill(gateway, topic, range(40, 44))
    assert archive(spark, tmp_path, settings, topics=[topic]).records == 4
    assert archived(tmp_path) == expected(topic, range(2, 44))
    arguments = ["--from", str(tmp_path), "--bootstrap", gateway, "--rename", f"{topic}={topic}-again"]
    done = pipeline("replay", topic, *arguments, "--json")
    assert (done.returncode, json.loads(done.stdout)["records"]) == (0, 42), done.stderr
    assert f"old records of {topic}-0 were deleted" in done.stderr.replace("\n", " ")
    assert audit(spark, ArchivedTopic(tmp_path, topic), TopicAt(f"{topic}-again", settings), by="order").same
    for wrong in ("3x", "2999-01-01", "-1d"):
        assert pipeline("expire", "--from", str(tmp_path), "--older-than", wrong).returncode == 2
