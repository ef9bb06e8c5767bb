"""The pipeline `audit`: topics and archives that are the same, and those that are not, on real brokers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kclient.errors import ConfigError, UnknownTopicOrPartitionError
from kclient.spark import ArchivedTopic, AuditReport, TopicAt, archive, audit, replay
from kclient.sync import Admin, Producer
from tests.spark.archives import create, fill
from tests.spark.conftest import EndedCommand
from tests.spark.made_archives import Row, make_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def make(broker: str, topic: str, partitions: int = 2, **configs: str) -> str:
    with Admin(bootstrap_servers=broker) as admin:
        admin.create_topic(topic, partitions=partitions, configs={"retention.ms": "-1", **configs})
    return topic


def send(broker: str, topic: str, values: list[bytes], partition: int = 0, **more: Any) -> None:
    with Producer(bootstrap_servers=broker) as producer:
        for value in values:
            producer.send(topic, value, partition=partition, **more)


def transact(broker: str, topic: str, commit: bool) -> None:
    with Producer(bootstrap_servers=broker, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"of a transaction", partition=0, timestamp=5)
        producer.flush()
        producer.commit_transaction() if commit else producer.abort_transaction()


def test_a_topic_its_archive_and_its_replay(spark: SparkSession, broker: str, topic: str, tmp_path: Path) -> None:
    create(broker, topic)
    settings = {"bootstrap.servers": broker}
    fill(broker, topic, range(40))
    for commit in (False, True):
        transact(broker, topic, commit)
    fill(broker, topic, range(40, 50))
    archive(spark, tmp_path, settings, topics=[topic])
    source, stored = TopicAt(topic, settings), ArchivedTopic(tmp_path, topic)
    steps: dict[str, tuple[int, int]] = {}

    def progress(step: str, done: int, total: int) -> None:
        steps[step] = done, total

    report = audit(spark, stored, source, range_size=7, progress=progress)
    assert (report.same, report.by) == (True, "offset")
    assert sum(each.left.records for each in report.ranges) == 51
    assert len(report.ranges) > 6
    assert all(each.left_sum == each.right_sum for each in report.ranges)
    assert steps["compare"][0] == steps["compare"][1] >= 51
    gaps = report.partitions[0].right
    assert gaps.missing >= 3  # what was aborted, and two markers
    assert report.partitions[0].left == gaps

    target = TopicAt(make(broker, f"{topic}-again"), settings)
    replay(spark, tmp_path, settings, target=target.topic)
    again = audit(spark, source, target)
    assert (again.same, again.by, again.partings) == (True, "order", [])
    assert audit(spark, stored, target).same

    send(broker, target.topic, [b"more"], 1)
    send(broker, topic, [b"new"], 0)
    report = audit(spark, source, target)
    assert [(each.only_left, each.only_right) for each in report.partitions] == [(1, 0), (0, 1)]
    first, second = report.partings
    assert (first.partition, first.left and first.left.value, first.right) == (0, "'new'", None)
    assert (second.partition, second.left, second.right and second.right.value) == (1, None, "'more'")
    behind = audit(spark, stored, source)
    assert (behind.same, behind.partitions[0].only_right) == (False, 1)
    assert audit(spark, stored, source, overlap=True).same


def test_latency_by_times_of_arrival(spark: SparkSession, broker: str, topic: str) -> None:
    settings = {"bootstrap.servers": broker}
    make(broker, topic, 1)
    late = make(broker, f"{topic}-late", 1, **{"message.timestamp.type": "LogAppendTime"})
    sent = int(time.time() * 1000) - 60_000
    for name in (topic, late):
        send(broker, name, [b"%d" % number for number in range(20)], timestamp=sent)
    report = audit(spark, TopicAt(topic, settings), TopicAt(late, settings))
    assert report.same
    found = report.latency.percentiles()
    assert report.latency.records == 20
    assert 50_000 <= found["p50"] <= found["p99"] < 300_000


def test_notes_and_compaction(spark: SparkSession, gateway: str, topic: str) -> None:
    settings = {"bootstrap.servers": gateway}
    make(gateway, topic, 1, **{"cleanup.policy": "compact"})
    with Producer(bootstrap_servers=gateway) as producer:
        producer.send(topic, b"v", key=b"k")
    report = audit(spark, TopicAt(topic, settings), TopicAt(topic, settings))
    assert report.notes == (f"{topic} is compacted (cleanup.policy=compact): offsets go missing by that",)


def test_partitions_that_one_side_lacks(spark: SparkSession, gateway: str, topic: str, tmp_path: Path) -> None:
    make_archive(tmp_path / "a", topic, [Row(number % 2, number // 2, b"%d" % number) for number in range(10)])
    make_archive(tmp_path / "b", topic, [Row(0, number, b"%d" % (2 * number)) for number in range(5)])
    report = audit(spark, ArchivedTopic(tmp_path / "a", topic), ArchivedTopic(tmp_path / "b", topic))
    assert [(each.matched, each.only_left) for each in report.partitions] == [(5, 0), (0, 5)]
    assert audit(spark, ArchivedTopic(tmp_path / "a", topic), ArchivedTopic(tmp_path / "b", topic), overlap=True).same
    # footers tell of the partitions of a row group together: of the second one nothing is before 100
    rows = [*(Row(0, number, b"x") for number in range(10)), *(Row(1, number, b"x") for number in range(200))]
    make_archive(tmp_path / "d", topic, rows)
    make_archive(tmp_path / "e", topic, [row for row in rows if row.partition == 0 or row.offset >= 100])
    report = audit(spark, ArchivedTopic(tmp_path / "d", topic), ArchivedTopic(tmp_path / "e", topic), overlap=True)
    assert (report.summary(), report.partitions[1].right.start) == ("the same: 110 records, by offset", 100)
    make_archive(tmp_path / "c", topic, [Row(0, number, b"x") for number in (0, 1, 1)], files=2)
    twice = ArchivedTopic(tmp_path / "c", topic)
    report = audit(spark, twice, twice)
    assert (report.same, report.partitions[0].left.again) == (False, 1)


def test_what_cannot_be_compared(spark: SparkSession, gateway: str, topic: str, tmp_path: Path) -> None:
    there = TopicAt(make(gateway, topic), {"bootstrap.servers": gateway})
    with pytest.raises(UnknownTopicOrPartitionError, match="no such topic: nothing"):
        audit(spark, there, TopicAt("nothing", {"bootstrap.servers": gateway}))
    make_archive(tmp_path, topic, [Row(0, 0, b"x")])
    with pytest.raises(ConfigError, match="overlap is for audits by offset"):
        audit(spark, there, ArchivedTopic(tmp_path, topic), overlap=True)
    for side, message in (("t", "is a TopicAt or an ArchivedTopic, not 't'"), (None, "not None")):
        with pytest.raises(ConfigError, match=message):
            audit(spark, there, side)  # type: ignore[arg-type]
    for wrong, message in (
        ({"by": "value"}, "one of auto, offset, order"),
        ({"ignore": ["offset"]}, "key, value, headers, timestamp, not 'offset'"),
        ({"range_size": 0}, "range_size is a number"),
    ):
        with pytest.raises(ConfigError, match=message):
            audit(spark, there, there, **wrong)  # type: ignore[arg-type]


def test_the_page_and_the_pictures(spark: SparkSession, tmp_path: Path) -> None:
    rows = [Row(number % 2, number // 2, b"<b>%d</b>" % number) for number in range(20)]
    make_archive(tmp_path / "a", "t", rows)
    make_archive(tmp_path / "b", "t", [each._replace(value=b"other") if each.offset == 7 else each for each in rows])
    report: AuditReport = audit(
        spark, ArchivedTopic(tmp_path / "a", "t"), ArchivedTopic(tmp_path / "b", "t"), range_size=4
    )
    assert report.summary() == "different, by offset: of 20 records on the left 2 changed"
    report.write_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "&#x27;&lt;b&gt;14&lt;/b&gt;&#x27;" in page
    assert "<b>14" not in page
    assert "data:image/png;base64," in page
    assert "partition 0 parts here" in page
    report.write_png(tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
    told = json.loads(report.to_json())
    assert (told["same"], told["partitions"][0]["parting"]["left"]["offset"]) == (False, 7)
    assert [each["same"] for each in told["ranges"]] == [True, False, True, True, False, True]


def test_the_command(gateway: str, topic: str, tmp_path: Path, pipeline: Callable[..., EndedCommand]) -> None:
    make(gateway, topic)
    other = make(gateway, f"{topic}-other")
    for name in (topic, other):
        send(gateway, name, [b"a", b"b"], timestamp=5)

    words = [sys.executable, "-m", "kclient", "pipeline", "audit", topic, f"{other}@{gateway}", "-b", gateway]
    same = subprocess.run(
        [*words, "--master", "local[2]"], capture_output=True, text=True, timeout=200, check=False
    )  # fmt: skip
    assert (same.returncode, same.stderr) == (0, "")
    assert same.stdout.splitlines()[1].split("\t")[:4] == ["0", "2", "2", "2"]
    make_archive(tmp_path, topic, [Row(0, 0, b"a", timestamp=5), Row(0, 1, b"c", timestamp=5)])
    page = tmp_path / "page.html"
    differs = pipeline("audit", topic, f"{topic}@archive:{tmp_path}", "-b", gateway, "--json", "--html", page)
    assert differs.returncode == 1
    report = json.loads(differs.stdout)
    assert (report["by"], report["partitions"][0]["parting"]["right"]["value"]) == ("order", "'c'")
    assert page.read_text().startswith("<!doctype html>")
    shown = pipeline("audit", topic, f"{topic}@archive:{tmp_path}", "-b", gateway)
    assert (shown.returncode, shown.stderr.splitlines()[0]) == (1, "partition 0 parts here:")
    for wrong, message in (
        ((topic, "nothing"), "no such topic: nothing"),
        ((topic, f"{topic}@"), "a side is TOPIC"),
        ((topic, f"{topic}@archive:nothing"), "holds no archive"),
        ((topic, other, "--by", "value"), "an audit goes by one of"),
        ((topic, other, "--html", tmp_path), "it is a folder"),
    ):
        told = pipeline("audit", *wrong, "-b", gateway)
        assert (told.returncode, told.stderr.count("\n"), told.stdout) == (2, 1, "")
        assert message in told.stderr


def test_arguments_of_the_command_that_would_not_count(
    topic: str, tmp_path: Path, pipeline: Callable[..., EndedCommand]
) -> None:
    make_archive(tmp_path, topic, [Row(0, 0, b"a")])
    make_archive(tmp_path, topic, [Row(0, 0, b"b")], topic_id="a-newer-one")
    archived = f"{topic}@archive:{tmp_path}"
    for arguments, message in (
        ((archived, "t", "--left-config", "client.id=x"), "--left-config is for a topic of a cluster"),
        ((archived, archived, "--config", "client.id=x"), "both sides are archives"),
        (("t", archived, "--left-topic-id", "x"), "--left-topic-id is for an archive"),
        ((archived, archived, "--html", f"{tmp_path}/none/page.html"), f"no folder {tmp_path}/none"),
        ((archived, archived, "--png", str(tmp_path)), "it is a folder"),
        ((archived, archived), "--left-topic-id or --right-topic-id"),
        ((archived, archived, "--left-topic-id", "the-id", "--right-topic-id", "other"), "say which one by"),
    ):
        told = pipeline("audit", *arguments, "-b", "127.0.0.1:1")
        assert (told.returncode, message in told.stderr, told.stderr.count("\n")) == (2, True, 1), told
    done = pipeline(
        "audit", archived, archived, "--left-topic-id", "the-id", "--right-topic-id", "a-newer-one", "--json"
    )  # fmt: skip
    assert (done.returncode, json.loads(done.stdout)["by"]) == (1, "order"), done.stderr
