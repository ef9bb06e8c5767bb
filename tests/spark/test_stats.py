"""The pipeline `stats`: what it tells of topics on real brokers, and of archives, is what was sent."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kclient.errors import ConfigError, UnknownTopicOrPartitionError
from kclient.spark import ArchivedTopic, DataLossError, KeyShare, TopicAt, archive, stats
from kclient.spark.pipelines.audit_sides import opened
from kclient.spark.pipelines.stats import Counting
from kclient.sync import Admin, Producer
from tests.conftest import require_java
from tests.spark.archives import START, create, fill
from tests.spark.conftest import EndedCommand
from tests.spark.made_archives import Row, make_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
HOUR = 3_600_000


def fill_with_keys(broker: str, topic: str, count: int) -> Counter[bytes]:
    """Records of two hours; a third of them has one key, others one of ten, or none."""
    keys: Counter[bytes] = Counter()
    with Producer(bootstrap_servers=broker) as producer:
        for number in range(count):
            key = b"hot" if number % 3 == 0 else b"%d" % (number % 10) if number % 3 == 1 else None
            if key is not None:
                keys[key] += 1
            producer.send(
                topic, None if number % 7 == 0 else bytes(number % 100), key=key, partition=number % 2,
                timestamp=START + HOUR * (number % 2), headers=[("trace", b"1234")],
            )  # fmt: skip
    return keys


def test_a_topic_and_its_archive(spark: SparkSession, broker: str, topic: str, tmp_path: Path) -> None:
    create(broker, topic)
    keys = fill_with_keys(broker, topic, 300)
    settings = {"bootstrap.servers": broker}
    steps: dict[str, tuple[int, int]] = {}
    found = stats(
        spark, TopicAt(topic, settings), top=3, progress=lambda step, done, total: steps.update({step: (done, total)})
    )
    values = sum(number % 100 for number in range(300) if number % 7)
    assert found.records == 300
    assert [each.records for each in found.partitions] == [150, 150]
    assert sum(each.value_bytes for each in found.partitions) == values
    assert sum(each.header_bytes for each in found.partitions) == 300 * 9
    assert sum(each.null_values for each in found.partitions) == len(range(0, 300, 7))
    assert sum(each.null_keys for each in found.partitions) == 100
    assert {start: records for start, (records, _) in found.spans.items()} == {START: 150, START + HOUR: 150}
    assert found.skew == 1.0
    assert found.keys is not None
    assert found.keys.distinct == len(keys) == 11
    assert (found.keys.top[0].key, found.keys.top[0].records) == (b"hot", 100)
    assert [each.records for each in found.keys.top] == [count for _, count in keys.most_common(3)]
    assert steps["count"] == (300, 300)

    archive(spark, tmp_path, settings, topics=[topic])
    again = stats(spark, ArchivedTopic(tmp_path, topic), top=3)
    assert again.partitions == found.partitions
    assert again.keys == found.keys
    told = json.loads(again.to_json())
    assert (told["records"], told["keys"]["top"][0]["key"]) == (300, "'hot'")
    again.write_html(tmp_path / "page.html")
    assert "data:image/png;base64," in (tmp_path / "page.html").read_text("utf-8")


def test_keys_across_ranges_and_tasks_are_added_up(
    spark: SparkSession, gateway: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(gateway, topic)
    keys = fill_with_keys(gateway, topic, 200)
    monkeypatch.setattr(sys.modules[Counting.__module__], "_RANGE", 7)
    told: list[int] = []

    def progress(step: str, done: int, total: int) -> None:
        if step == "count":
            told.append(done)

    found = stats(spark, TopicAt(topic, {"bootstrap.servers": gateway}), top=100, progress=progress)
    assert told == sorted(told), "what was done is never taken back, though a shuffle follows"
    assert found.keys is not None
    assert {each.key: each.records for each in found.keys.top} == dict(keys)
    assert isinstance(found.keys.top[0], KeyShare)
    assert (found.records, [(each.start, each.end) for each in found.partitions]) == (200, [(0, 100), (0, 100)])


def test_a_partition_of_an_archive_begins_at_its_first_record(spark: SparkSession, topic: str, tmp_path: Path) -> None:
    """Footers tell of the partitions of a row group together."""
    rows = [*(Row(0, number, b"x") for number in range(10)), *(Row(1, number, b"x") for number in range(100, 200))]
    make_archive(tmp_path, topic, rows)
    found = stats(spark, ArchivedTopic(tmp_path, topic))
    assert [(each.start, each.end, each.records) for each in found.partitions] == [(0, 10, 10), (100, 200, 100)]


def test_a_topic_without_records_and_keys_that_are_not_counted(spark: SparkSession, gateway: str, topic: str) -> None:
    create(gateway, topic)
    source = TopicAt(topic, {"bootstrap.servers": gateway})
    found = stats(spark, source)
    assert (found.records, found.size, len(found.partitions), found.skew) == (0, 0, 2, 0.0)
    fill(gateway, topic, range(10))
    found = stats(spark, source, keys=False, per="day")
    assert (found.records, found.keys) == (10, None)
    assert len(found.spans) == 2


def test_what_was_deleted_is_not_counted(spark: SparkSession, broker: str, topic: str, tmp_path: Path) -> None:
    create(broker, topic)
    fill(broker, topic, range(20))
    with Admin(bootstrap_servers=broker) as admin:
        admin.delete_records({(topic, 0): 4})
    found = stats(spark, TopicAt(topic, {"bootstrap.servers": broker}))
    assert [(each.start, each.records) for each in found.partitions] == [(4, 6), (0, 10)]
    archive(spark, tmp_path, {"bootstrap.servers": broker}, topics=[topic])
    assert stats(spark, ArchivedTopic(tmp_path, topic)).partitions == found.partitions


def test_what_is_deleted_while_it_is_read_is_an_error(
    spark: SparkSession, gateway: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(gateway, topic)
    fill(gateway, topic, range(20))
    pipeline = sys.modules[Counting.__module__]

    def opened_before(source: TopicAt) -> object:
        side = opened(source)
        with Admin(bootstrap_servers=gateway) as admin:
            admin.delete_records({(topic, 0): 4})
        return side

    monkeypatch.setattr(pipeline, "opened", opened_before)
    with pytest.raises(DataLossError, match=r"from offset 0 to before 4 are gone; .* by running this again$"):
        stats(spark, TopicAt(topic, {"bootstrap.servers": gateway}))


def test_what_is_wrong_is_said(spark: SparkSession, gateway: str, topic: str, tmp_path: Path) -> None:
    source = TopicAt(topic, {"bootstrap.servers": gateway})
    with pytest.raises(UnknownTopicOrPartitionError):
        stats(spark, source)
    with pytest.raises(ConfigError, match="by minute, hour, day, not by 'week'"):
        stats(spark, source, per="week")
    with pytest.raises(ValueError, match="top is a number from 1 on"):
        stats(spark, source, top=0)
    with pytest.raises(ConfigError, match="what is read is a TopicAt or an ArchivedTopic"):
        stats(spark, topic)  # type: ignore[arg-type]


def run(*arguments: object, gateway: str) -> subprocess.CompletedProcess[str]:
    require_java()
    words = [sys.executable, "-m", "kclient", "pipeline", "stats", *map(str, arguments)]
    return subprocess.run(
        [*words, "--bootstrap", gateway, "--master", "local[2]"],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip


def test_the_command(gateway: str, topic: str, tmp_path: Path, pipeline: Callable[..., EndedCommand]) -> None:
    create(gateway, topic)
    fill_with_keys(gateway, topic, 60)
    done = run(topic, "--json", "--html", tmp_path / "page.html", "--png", tmp_path / "p.png", gateway=gateway)
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert (told["records"], told["keys"]["top"][0]["records"]) == (60, 20)
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert topic in (tmp_path / "page.html").read_text("utf-8")
    counted = pipeline("stats", topic, "--no-keys", "--bootstrap", gateway)
    assert (counted.returncode, counted.stderr) == (0, "")
    header, *rows = (line.split("\t") for line in counted.stdout.splitlines())
    assert header[:3] == ["partition", "records", "bytes"]
    assert [row[:2] for row in rows] == [["0", "30"], ["1", "30"]]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("--per", "week"), 2, "rates are told by minute, hour, day"),
        ((), 1, "no such topic: there-is-none"),
        (
            ("--html", "/there/is/none.html"),
            2,
            "--html /there/is/none.html cannot be written: there is no folder /there/is",
        ),
        (("--png", "/"), 2, "it is a folder; name a file in it"),
        (("--topic-id", "x"), 2, "--topic-id is for an archive"),
    ],
)
def test_errors_are_one_sentence(gateway: str, arguments: tuple[str, ...], code: int, told: str) -> None:
    done = run("there-is-none", *arguments, gateway=gateway)
    assert (done.returncode, done.stdout) == (code, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_settings_of_an_archive_are_refused(gateway: str, tmp_path: Path) -> None:
    done = run(f"t@archive:{tmp_path}", "-c", "client.id=x", gateway=gateway)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--config is for a topic of a cluster" in done.stderr
