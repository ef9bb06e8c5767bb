"""The pipeline `archive`: whatever happens to a run, the next one leaves no record out and writes none twice."""

from __future__ import annotations

import datetime
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kclient.spark import archive
from kclient.spark.ranges import DataLossError
from kclient.sync import Admin, Producer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

DAY = 86_400_000
# An hour before midnight in New York is already the next day in UTC.
START = int(datetime.datetime(2024, 5, 17, 22, tzinfo=datetime.UTC).timestamp() * 1000)


def create(broker: str, topic: str) -> None:
    with Admin(bootstrap_servers=broker) as admin:
        admin.create_topic(topic, partitions=2, configs={"retention.ms": "-1"})


def fill(broker: str, topic: str, numbers: range) -> None:
    """Every record an hour later than the one before, in turn to both partitions."""
    with Producer(bootstrap_servers=broker) as producer:
        for number in numbers:
            producer.send(topic, str(number).encode(), partition=number % 2, timestamp=START + 3_600_000 * number)


def archived(destination: Path) -> Counter[tuple[str, str, int]]:
    """Every archived record as (topic, date of its folder, number), read without Spark."""
    from pyarrow import parquet

    found: Counter[tuple[str, str, int]] = Counter()
    for path in destination.glob("topic=*/date=*/*.parquet"):
        topic, date = (part.split("=", 1)[1] for part in path.parts[-3:-1])
        table = parquet.ParquetFile(path).read()
        for value in table.column("value").to_pylist():
            found[topic, date, int(value)] += 1
    return found


def expected(topic: str, numbers: range) -> Counter[tuple[str, str, int]]:
    def date(number: int) -> str:
        moment = datetime.datetime.fromtimestamp((START + 3_600_000 * number) / 1000, datetime.UTC)
        return moment.date().isoformat()

    return Counter((topic, date(number), number) for number in numbers)


def test_runs_continue_where_the_last_one_ended(spark: SparkSession, broker: str, topic: str, tmp_path: Path) -> None:
    create(broker, topic)
    settings = {"bootstrap.servers": broker}
    fill(broker, topic, range(50))
    steps: list[str] = []
    summary = archive(
        spark, tmp_path / "out", settings, topics=[topic], progress=lambda step, done, total: steps.append(step)
    )
    assert (summary.manifest, summary.records) == (1, 50)
    assert summary.topics[0].partitions == 2
    assert {"plan", "publish"} <= set(steps)
    assert archived(tmp_path / "out") == expected(topic, range(50))

    assert archive(spark, tmp_path / "out", settings, topics=[topic]).manifest is None
    fill(broker, topic, range(50, 60))
    assert archive(spark, tmp_path / "out", settings, topics=[topic]).records == 10
    assert archived(tmp_path / "out") == expected(topic, range(60))
    assert not list((tmp_path / "out/_kclient/staging").iterdir())


def test_spark_reads_the_archive_by_topic_and_date(
    spark: SparkSession, gateway: str, topic: str, tmp_path: Path
) -> None:
    create(gateway, topic)
    fill(gateway, topic, range(30))
    archive(spark, tmp_path / "out", {"bootstrap.servers": gateway}, topics=[topic])
    frame = spark.read.parquet(str(tmp_path / "out"))
    assert frame.count() == 30
    assert frame.where("date = '2024-05-18'").count() == 24
    assert set(frame.columns) >= {"key", "value", "headers", "topic", "date", "offset", "timestamp"}


def test_a_topic_created_anew_is_archived_from_its_start(
    spark: SparkSession, gateway: str, topic: str, tmp_path: Path
) -> None:
    create(gateway, topic)
    fill(gateway, topic, range(10))
    archive(spark, tmp_path / "out", {"bootstrap.servers": gateway}, topics=[topic])
    with Admin(bootstrap_servers=gateway) as admin:
        admin.delete_topic(topic)
    create(gateway, topic)
    fill(gateway, topic, range(100, 104))
    assert archive(spark, tmp_path / "out", {"bootstrap.servers": gateway}, topics=[topic]).records == 4
    assert archived(tmp_path / "out") == expected(topic, range(10)) + expected(topic, range(100, 104))


def test_records_deleted_before_they_were_archived(
    spark: SparkSession, gateway: str, topic: str, tmp_path: Path
) -> None:
    create(gateway, topic)
    settings = {"bootstrap.servers": gateway}
    fill(gateway, topic, range(10))
    archive(spark, tmp_path / "out", settings, topics=[topic])
    fill(gateway, topic, range(10, 20))
    with Admin(bootstrap_servers=gateway) as admin:
        from kclient.types import TopicPartition

        admin.delete_records({TopicPartition(topic, 0): 7})
    with pytest.raises(DataLossError, match="records were deleted"):
        archive(spark, tmp_path / "out", settings, topics=[topic])
    archive(spark, tmp_path / "out", settings, topics=[topic], fail_on_data_loss=False)
    assert archived(tmp_path / "out") == expected(topic, range(10)) + expected(topic, range(14, 20, 2)) + expected(
        topic, range(11, 20, 2)
    )


_KILLED_RUN = """
import os, signal, sys
from pyspark.sql import SparkSession
from kclient.spark.pipelines import archive
from kclient.spark.pipelines.archive import ArchiveRun
from kclient.spark.pipelines.manifest import ArchiveFolder
import pathlib

bootstrap, topic, destination, step = sys.argv[1:]

def die(*arguments, **named):
    os.kill(os.getpid(), signal.SIGKILL)

def after(owner, name):
    original = getattr(owner, name)
    def wrapped(*arguments, **named):
        original(*arguments, **named)
        die()
    setattr(owner, name, wrapped)

if step == "after planning":
    ArchiveRun.stage = die
elif step == "after staging":
    after(ArchiveRun, "stage")
elif step == "before the manifest's rename":
    original = pathlib.Path.rename
    pathlib.Path.rename = lambda path, target: die() if path.suffix == ".tmp" else original(path, target)
elif step == "after the commit":
    after(ArchiveFolder, "commit")
elif step == "between two moves":
    original_rename = pathlib.Path.rename
    moved = []
    def rename(path, target):
        if path.suffix == ".parquet":
            if moved:
                die()
            moved.append(path)
        return original_rename(path, target)
    pathlib.Path.rename = rename
elif step == "before staging is removed":
    import shutil
    shutil.rmtree = die

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
archive(spark, destination, {"bootstrap.servers": bootstrap}, topics=[topic])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "step",
    [
        "after planning",
        "after staging",
        "before the manifest's rename",
        "after the commit",
        "between two moves",
        "before staging is removed",
    ],
)
def test_killed_at_any_step(spark: SparkSession, gateway: str, topic: str, tmp_path: Path, step: str) -> None:
    create(gateway, topic)
    fill(gateway, topic, range(60))
    destination = tmp_path / "out"
    result = subprocess.run(
        [sys.executable, "-c", _KILLED_RUN, gateway, topic, str(destination), step],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert result.returncode == -signal.SIGKILL, result.stderr
    fill(gateway, topic, range(60, 70))
    archive(spark, destination, {"bootstrap.servers": gateway}, topics=[topic])
    assert archived(destination) == expected(topic, range(70))
