"""The pipeline `archive`: whatever happens to a run, the next one leaves no record out and writes none twice."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kclient.spark import ArchiveError, DataLossError, archive
from kclient.spark.pipelines.archive import ArchiveRun
from kclient.spark.pipelines.folder import ArchiveFolder
from kclient.spark.pipelines.receipts import ReadReceipt
from kclient.sync import Admin, Producer
from kclient.types import TopicPartition
from tests.spark.archives import archived, create, expected, fill, recreate, staged
from tests.sweeps import long

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_runs_continue_where_the_last_one_ended(spark: SparkSession, broker: str, topic: str, tmp_path: Path) -> None:
    create(broker, topic)
    settings = {"bootstrap.servers": broker}
    fill(broker, topic, range(50))
    steps: dict[str, tuple[int, int]] = {}

    def progress(step: str, done: int, total: int) -> None:
        steps[step] = done, total

    summary = archive(spark, tmp_path / "out", settings, topics=[topic], progress=progress)
    assert (summary.manifest, summary.records) == (1, 50)
    assert summary.topics[0].partitions == 2
    files = summary.topics[0].files
    assert steps == {"plan": (1, 1), "read": (50, 50), "write": (50, 50), "publish": (files, files)}
    assert archived(tmp_path / "out") == expected(topic, range(50))

    assert archive(spark, tmp_path / "out", settings, topics=[topic]).manifest is None
    fill(broker, topic, range(50, 60))
    assert archive(spark, tmp_path / "out", settings, topics=[topic]).records == 10
    assert archived(tmp_path / "out") == expected(topic, range(60))
    assert staged(tmp_path / "out") == []


def test_runs_that_take_so_many_each_end_with_all(spark: SparkSession, broker: str, topic: str, tmp_path: Path) -> None:
    create(broker, topic)
    settings = {"bootstrap.servers": broker}
    fill(broker, topic, range(50))
    steps: list[tuple[str, int, int]] = []
    looked = archive(None, tmp_path / "out", settings, topics=[topic], max_offsets=20, dry_run=True)
    assert (looked.dry_run, looked.manifest, looked.remaining) == (True, None, 30)
    assert [(each.topic, each.partitions, each.offsets, each.records) for each in looked.topics] == [(topic, 2, 20, 0)]
    assert not (tmp_path / "out").exists()
    for number, remaining in ((1, 30), (2, 10), (3, 0)):
        done = archive(
            spark, tmp_path / "out", settings, topics=[topic], max_offsets=20, min_partitions=5,
            progress=lambda *step: steps.append(step),
        )  # fmt: skip
        assert (done.manifest, done.remaining, done.records) == (number, remaining, 20 if remaining else 10)
        assert sum(each.offsets for each in done.topics) == done.records
    assert archived(tmp_path / "out") == expected(topic, range(50))
    assert ("read", 20, 20) in steps
    assert archive(None, tmp_path / "out", settings, topics=[topic], dry_run=True).topics == ()
    told = json.loads(looked.to_json())
    assert (told["destination"], told["remaining"], told["records"]) == (str(tmp_path / "out"), 30, 0)


def test_large_partitions_are_read_by_several_tasks(
    spark: SparkSession, broker: str, topic: str, tmp_path: Path
) -> None:
    create(broker, topic)
    fill(broker, topic, range(40))
    read: list[list[str]] = []

    class Watched(ArchiveRun):
        def commit(self, number: Any, staged: Any, todo: Any, receipts: Any, last: Any) -> Any:
            read.append([str(each.wanted) for each in receipts if isinstance(each, ReadReceipt)])
            return super().commit(number, staged, todo, receipts, last)

    settings = {"bootstrap.servers": broker}
    Watched(spark, tmp_path / "out", settings, [topic], None, True, False, None, min_partitions=8).run()
    assert len(set(read[0])) == len(read[0]) == 8
    assert archived(tmp_path / "out") == expected(topic, range(40))


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


def test_a_topic_created_again_is_no_continuation(spark: SparkSession, broker: str, topic: str, tmp_path: Path) -> None:
    create(broker, topic)
    settings = {"bootstrap.servers": broker}
    fill(broker, topic, range(10))
    archive(spark, tmp_path / "out", settings, topics=[topic])
    recreate(broker, topic)
    fill(broker, topic, range(100, 104))
    with pytest.raises(ArchiveError, match=f"created again since it was archived: {topic}; .*--restart-recreated"):
        archive(spark, tmp_path / "out", settings, topics=[topic])
    assert archived(tmp_path / "out") == expected(topic, range(10))
    again = archive(spark, tmp_path / "out", settings, topics=[topic], restart_recreated=True)
    assert again.records == 4
    assert archived(tmp_path / "out") == expected(topic, range(10)) + expected(topic, range(100, 104))
    assert archive(spark, tmp_path / "out", settings, topics=[topic]).manifest is None
    ids = {file["topic_id"] for path in manifests(tmp_path / "out") for file in json.loads(path.read_text())["files"]}
    assert len(ids) == 2


def manifests(destination: Path) -> list[Path]:
    return sorted((destination / "_kclient/manifests").glob("*.json"))


@pytest.mark.parametrize("again", [True, False])
def test_a_topic_that_goes_between_planning_and_reading(
    spark: SparkSession, broker: str, topic: str, tmp_path: Path, again: bool
) -> None:
    create(broker, topic)
    fill(broker, topic, range(10))

    def run(fail_on_data_loss: bool) -> ArchiveRun:
        settings = {"bootstrap.servers": broker}
        return ArchiveRun(spark, tmp_path / "out", settings, [topic], None, fail_on_data_loss, False, None)

    strict, lenient = run(True), run(False)
    folder = ArchiveFolder(tmp_path / "out")
    with folder.lock():
        todo = strict.plan(None)
        if again:
            recreate(broker, topic)
            fill(broker, topic, range(500, 540))
        else:
            with Admin(bootstrap_servers=broker) as admin:
                admin.delete_topic(topic)
        started = time.monotonic()
        what = "deleted and created again" if again else "deleted"
        gone = (
            rf"{topic}-[01]: the topic was {what}, and the records .* by --allow-data-loss \(fail_on_data_loss=False\)"
        )
        with pytest.raises(DataLossError, match=gone), folder.run(1) as run_folder:
            strict.stage(run_folder, todo.ranges)
        assert time.monotonic() - started < 60  # and not the two minutes of a poll's timeout
        with folder.run(1) as run_folder:
            receipts = lenient.stage(run_folder, todo.ranges)
            made = lenient.commit(1, run_folder, todo, receipts, None)
    assert made.files == ()
    assert sum(each.end - each.start for each in made.lost) == 10
    assert archived(tmp_path / "out") == Counter()


def delete_before(broker: str, offsets: dict[TopicPartition, int]) -> None:
    with Admin(bootstrap_servers=broker) as admin:
        admin.delete_records(offsets)


def test_records_deleted_before_they_were_archived(
    spark: SparkSession, gateway: str, topic: str, tmp_path: Path
) -> None:
    create(gateway, topic)
    settings = {"bootstrap.servers": gateway}
    fill(gateway, topic, range(10))
    archive(spark, tmp_path / "out", settings, topics=[topic])
    fill(gateway, topic, range(10, 20))
    delete_before(gateway, {TopicPartition(topic, 0): 7})
    with pytest.raises(DataLossError, match=f"{topic}-0 from 5 to before 7; .*--allow-data-loss"):
        archive(spark, tmp_path / "out", settings, topics=[topic])
    summary = archive(spark, tmp_path / "out", settings, topics=[topic], fail_on_data_loss=False)
    assert summary.topics[0].lost == 2
    assert archived(tmp_path / "out") == expected(topic, range(10)) + expected(topic, range(14, 20, 2)) + expected(
        topic, range(11, 20, 2)
    )


def test_records_that_expired_from_a_partition_that_is_empty_now(
    spark: SparkSession, broker: str, topic: str, tmp_path: Path
) -> None:
    create(broker, topic)
    settings = {"bootstrap.servers": broker}
    fill(broker, topic, range(1, 10, 2))  # partition 0 stays empty, and is remembered nonetheless
    archive(spark, tmp_path / "out", settings, topics=[topic])
    fill(broker, topic, range(10))
    delete_before(broker, {TopicPartition(topic, 0): 5, TopicPartition(topic, 1): 10})
    with pytest.raises(DataLossError, match=f"{topic}-0 from 0 to before 5, {topic}-1 from 5 to before 10"):
        archive(spark, tmp_path / "out", settings, topics=[topic])
    summary = archive(spark, tmp_path / "out", settings, topics=[topic], fail_on_data_loss=False)
    assert (summary.records, summary.topics[0].lost) == (0, 10)
    assert archive(spark, tmp_path / "out", settings, topics=[topic]).manifest is None


def test_an_archive_of_the_first_format_is_gone_on_with_topic_by_topic(
    spark: SparkSession, gateway: str, topic: str, tmp_path: Path
) -> None:
    """It did not remember a partition whose records had expired before, also not once other topics were archived."""
    other, out = f"{topic}-other", tmp_path / "out"
    settings = {"bootstrap.servers": gateway}
    positions = []
    for name in (topic, other):
        create(gateway, name)
        fill(gateway, name, range(10))
        with Admin(bootstrap_servers=gateway) as admin:
            described = admin.describe_topics([name])[name]
        positions.append({"topic": name, "topic_id": described.topic_id, "partition": 1, "start": 0, "end": 5})
    delete_before(gateway, {TopicPartition(topic, 0): 5})
    first = {"format": 1, "number": 1, "ranges": [], "files": [], "positions": positions}
    (out / "_kclient/manifests").mkdir(parents=True)
    (out / "_kclient/manifests/00000001.json").write_text(json.dumps(first))

    assert archive(spark, out, settings, topics=[other]).records == 5  # of the partition that was unknown
    assert archive(spark, out, settings, topics=[topic]).manifest is not None  # nothing is new, and nothing is lost
    assert archive(spark, out, settings, topics=[topic, other]).manifest is None
    with Admin(bootstrap_servers=gateway) as admin:
        admin.create_partitions(dict.fromkeys((topic, other), 3))
    with Producer(bootstrap_servers=gateway) as producer:
        for name in (topic, other):
            producer.send_batch(name, [b"11"] * 4, partition=2)
    delete_before(gateway, {TopicPartition(name, 2): 3 for name in (topic, other)})
    for name in (topic, other):  # from now on partitions that come are known to begin at 0
        with pytest.raises(DataLossError, match=f"{name}-2 from 0 to before 3"):
            archive(spark, out, settings, topics=[name])


_KILLED_RUN = """
import os, signal, sys
from pyspark.sql import SparkSession
from kclient.spark.pipelines import archive
from kclient.spark.pipelines.archive import ArchiveRun
from kclient.spark.pipelines.folder import ArchiveFolder
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
elif step == "after the commit":
    after(ArchiveFolder, "commit")
elif step == "before the manifest's link":
    os.link = die
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
elif step == "while tasks write":
    module = sys.modules["kclient.spark.pipelines.archive"]
    module.progress_of = lambda staged, kind: die() if list(staged.folder.rglob("*.parquet")) else 0

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
archive(spark, destination, {"bootstrap.servers": bootstrap}, topics=[topic])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "step",
    [
        "between two moves",
        *long(
            "while tasks write",
            "before the manifest's link",
            "after planning",
            "after staging",
            "after the commit",
            "before staging is removed",
        ),
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


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_killed_at_any_time(spark: SparkSession, gateway: str, topic: str, tmp_path: Path) -> None:
    """The driver is killed after random times, twenty times over; in the end every record is there once."""
    create(gateway, topic)
    destination, count = tmp_path / "out", 0
    chance = random.Random(7)
    for _ in range(20):
        fill(gateway, topic, range(count, count + 200))
        count += 200
        with subprocess.Popen(
            [sys.executable, "-c", _KILLED_RUN, gateway, topic, str(destination), "at some time"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        ) as process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=chance.uniform(3, 12))
            process.kill()
    archive(spark, destination, {"bootstrap.servers": gateway}, topics=[topic])
    assert archived(destination) == expected(topic, range(count))
