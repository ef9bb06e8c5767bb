"""The pipeline `archive` with choices of how its files are written."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kclient.spark import ArchivedTopic, TopicAt, archive, audit
from kclient.sync import Admin, Producer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def fill_at_random(broker: str, topic: str, count: int) -> None:
    """Values of 10,000 bytes that no compression makes smaller, in one partition."""
    with Admin(bootstrap_servers=broker) as admin:
        admin.create_topic(topic, partitions=1)
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


def test_the_command_takes_choices(gateway: str, topic: str, tmp_path: Path) -> None:
    from pyarrow import parquet

    fill_at_random(gateway, topic, 100)
    command = [sys.executable, "-m", "kclient", "pipeline", "archive", topic, "-b", gateway, "--to", str(tmp_path)]
    choices = ["--compression", "zstd", "--compression-level", "9", "--file-size", "200000", "--row-group-size", "100000"]
    done = subprocess.run(
        [*command, *choices, "--master", "local[2]", "--json"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["records"] == 100
    assert len(files(tmp_path)) >= 5
    assert parquet.read_metadata(files(tmp_path)[0]).row_group(0).column(1).compression == "ZSTD"
    assert max(path.stat().st_size for path in files(tmp_path)) < 300_000
