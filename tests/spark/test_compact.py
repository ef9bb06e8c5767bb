"""The pipeline `compact`: the table is what a plain dict of the records is, run after run, also where runs die."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from kclient.errors import ConfigError
from kclient.spark import ArchivedTopic, CompactError, DataLossError, TopicAt, archive, compact, compacted_table
from kclient.spark.pipelines.compact import CompactRun
from kclient.spark.pipelines.compact_folder import CompactFolder
from kclient.sync import Admin, Producer
from kclient.types import TopicPartition
from tests.spark.archives import START, create, recreate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


class Sent(NamedTuple):
    key: bytes | None
    value: bytes | None
    partition: int
    timestamp: int


def send(broker: str, topic: str, records: list[Sent]) -> list[tuple[Sent, int]]:
    """The records with their offsets."""
    with Producer(bootstrap_servers=broker) as producer:
        sent = [
            (each, producer.send(topic, each.value, key=each.key, partition=each.partition, timestamp=each.timestamp,
                                 headers=[("by", b"test")] if each.partition else None))
            for each in records
        ]  # fmt: skip
        producer.flush()
        return [(each, delivery.result().offset) for each, delivery in sent]


def some(numbers: range) -> list[Sent]:
    """Keys that have tombstones among their records; each lives in one partition."""
    return [
        Sent(b"k%d" % (number % 17), None if number % 5 == 0 else b"v%d" % number, number % 17 % 2, START + number)
        for number in numbers
    ]


def expected(sent: list[tuple[Sent, int]]) -> dict[bytes, tuple[bytes | None, int, int, int]]:
    """By key, the value, partition, offset and timestamp of the latest record."""
    by_partition: dict[tuple[bytes, int], tuple[Sent, int]] = {}
    for each, offset in sent:
        if each.key is not None:
            before = by_partition.get((each.key, each.partition))
            if before is None or before[1] < offset:
                by_partition[each.key, each.partition] = each, offset
    found: dict[bytes, tuple[int, int, int, bytes | None]] = {}
    for (key, partition), (each, offset) in by_partition.items():
        rank = (each.timestamp, partition, offset, each.value)
        if key not in found or found[key][:3] < rank[:3]:
            found[key] = rank
    return {key: (value, partition, offset, stamp) for key, (stamp, partition, offset, value) in found.items()}


def table(destination: Path) -> dict[bytes, tuple[bytes | None, int, int, int]]:
    """The same of the table, as pyarrow reads it."""
    from pyarrow import dataset

    rows = dataset.dataset(compacted_table(destination)).to_table()
    columns = {name: rows.column(name).to_pylist() for name in ("key", "value", "partition", "offset")}
    stamps = rows.column("timestamp").cast("int64").to_pylist()
    found = {
        key: (value, partition, offset, stamp // 1000)
        for key, value, partition, offset, stamp in zip(*columns.values(), stamps, strict=True)
    }
    assert len(found) == rows.num_rows, "a key is there twice"
    return found


def living(rows: Mapping[bytes, Any]) -> dict[bytes, Any]:
    return {key: row for key, row in rows.items() if row[0] is not None}


def test_run_after_run(spark: SparkSession, broker: str, topic: str, tmp_path: Path) -> None:
    create(broker, topic)
    source, steps = TopicAt(topic, {"bootstrap.servers": broker}), dict[str, tuple[int, int]]()
    sent = send(broker, topic, [*some(range(200)), Sent(None, b"no key", 0, START)])
    first = compact(spark, source, tmp_path, progress=lambda step, done, all_of: steps.update({step: (done, all_of)}))
    assert table(tmp_path) == living(expected(sent))
    assert (first.number, first.records, first.null_keys, first.split_keys) == (1, 201, 1, 0)
    assert (first.rows, first.tombstones) == (len(living(expected(sent))), 17 - len(living(expected(sent))))
    assert (steps["plan"], steps["read"]) == ((1, 1), (201, 201))

    assert compact(spark, source, tmp_path).number == 1, "nothing is new"
    sent += send(broker, topic, some(range(200, 213)))
    dry = compact(None, source, tmp_path, dry_run=True)
    assert (dry.offsets, dry.partitions, dry.number, dry.dry_run) == (13, 2, 1, True)
    second = compact(spark, source, tmp_path)
    assert (second.records, second.null_keys, second.number) == (13, 0, 2)
    assert table(tmp_path) == living(expected(sent))
    assert json.loads(second.to_json())["table"] == str(compacted_table(tmp_path))

    kept = compact(spark, source, tmp_path, keep_tombstones=True)
    assert table(tmp_path) == expected(sent)
    assert (kept.rows, kept.records) == (17, 0)
    assert len(list((tmp_path / "tables").iterdir())) == 2, "the table before it is left for those who read it"
    assert spark.read.parquet(str(tmp_path / "current")).count() == 17


def test_keys_in_several_partitions(spark: SparkSession, gateway: str, topic: str, tmp_path: Path) -> None:
    """Run after run or at once it is the same, also where the latest of a partition is an older one by its time."""
    create(gateway, topic)
    source = TopicAt(topic, {"bootstrap.servers": gateway})
    sent: list[tuple[Sent, int]] = []
    steps = [
        [Sent(b"a", b"0", 0, START + 100), Sent(b"a", b"1", 1, START + 200), Sent(b"b", b"2", 0, START)],
        [Sent(b"a", b"3", 1, START + 50)],  # now the one in partition 0 is the latest
        [Sent(b"b", None, 1, START + 9), Sent(b"a", b"4", 1, START + 100)],  # equal times: the greater partition
        [Sent(b"b", b"5", 0, START + 8)],  # older than the tombstone of the other partition
    ]
    for number, records in enumerate(steps):
        sent += send(gateway, topic, records)
        found = compact(spark, source, tmp_path / "each")
        compact(spark, source, tmp_path / f"once-{number}")
        assert table(tmp_path / "each") == table(tmp_path / f"once-{number}") == living(expected(sent))
    assert found.split_keys == 2


def test_headers_and_an_archive(spark: SparkSession, gateway: str, topic: str, tmp_path: Path) -> None:
    """A run goes on in the archive where the last one has ended in the topic."""
    create(gateway, topic)
    settings = {"bootstrap.servers": gateway}
    sent = send(gateway, topic, some(range(50)))
    compact(spark, TopicAt(topic, settings), tmp_path / "table", headers=True)
    sent += send(gateway, topic, some(range(50, 80)))
    archive(spark, tmp_path / "archive", settings, topics=[topic])
    found = compact(spark, ArchivedTopic(tmp_path / "archive", topic), tmp_path / "table", headers=True)
    assert found.records == 30
    assert table(tmp_path / "table") == living(expected(sent))
    rows = spark.read.parquet(str(compacted_table(tmp_path / "table"))).collect()
    headers = {row.partition: [(each.key, bytes(each.value)) for each in row.headers or []] for row in rows}
    assert headers == {0: [], 1: [("by", b"test")]}
    with pytest.raises(CompactError, match="was begun with headers: go on by --headers"):
        compact(spark, TopicAt(topic, settings), tmp_path / "table")


def test_no_records(spark: SparkSession, gateway: str, topic: str, tmp_path: Path) -> None:
    create(gateway, topic)
    found = compact(spark, TopicAt(topic, {"bootstrap.servers": gateway}), tmp_path)
    assert (found.rows, found.number) == (0, 1)
    assert spark.read.parquet(str(tmp_path / "current")).columns == [
        "key", "value", "topic", "partition", "offset", "timestamp"
    ]  # fmt: skip
    with pytest.raises(CompactError, match="holds no compacted topic: run kclient pipeline compact first"):
        compacted_table(tmp_path / "other")


def test_a_run_that_dies_leaves_the_former_table(
    spark: SparkSession, gateway: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(gateway, topic)
    source = TopicAt(topic, {"bootstrap.servers": gateway})
    sent = send(gateway, topic, some(range(50)))
    compact(spark, source, tmp_path)
    former = table(tmp_path)
    sent += send(gateway, topic, some(range(50, 60)))

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    for owner, name in ((CompactRun, "_table"), (CompactFolder, "commit"), (Path, "symlink_to")):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(owner, name, die)
            compact(spark, source, tmp_path)
        assert table(tmp_path) == former
    compact(spark, source, tmp_path)
    assert table(tmp_path) == living(expected(sent))
    assert len(list((tmp_path / "tables").iterdir())) == 2
    assert list((tmp_path / "_kclient/staging").iterdir()) == []


def test_one_run_at_a_time(spark: SparkSession, gateway: str, topic: str, tmp_path: Path) -> None:
    create(gateway, topic)
    with CompactFolder(tmp_path).lock(), pytest.raises(CompactError, match="another run compacts into"):
        compact(spark, TopicAt(topic, {"bootstrap.servers": gateway}), tmp_path)


def test_created_again(spark: SparkSession, broker: str, topic: str, tmp_path: Path) -> None:
    create(broker, topic)
    source = TopicAt(topic, {"bootstrap.servers": broker})
    send(broker, topic, some(range(50)))
    compact(spark, source, tmp_path)
    former = table(tmp_path)
    recreate(broker, topic)
    sent = send(broker, topic, [Sent(b"new", b"x", 0, START)])
    with pytest.raises(CompactError, match=r"was deleted and created again since .* --restart-recreated"):
        compact(spark, source, tmp_path)
    assert table(tmp_path) == former
    assert compact(spark, source, tmp_path, restart_recreated=True).rows == 1
    assert table(tmp_path) == expected(sent)
    create(broker, f"{topic}-other")
    with pytest.raises(CompactError, match="each topic has a folder of its own"):
        compact(spark, TopicAt(f"{topic}-other", source.settings), tmp_path)


@pytest.mark.parametrize("emptied", [True, False])
def test_records_that_are_gone(spark: SparkSession, broker: str, topic: str, tmp_path: Path, emptied: bool) -> None:
    create(broker, topic)
    source = TopicAt(topic, {"bootstrap.servers": broker})
    sent = send(broker, topic, [Sent(b"k", b"%d" % number, 0, START) for number in range(10)])
    compact(spark, source, tmp_path)
    send(broker, topic, [Sent(b"k", b"lost", 0, START), Sent(b"k", b"lost", 0, START)])
    with Admin(bootstrap_servers=broker) as admin:
        admin.delete_records({TopicPartition(topic, 0): 12})
    if not emptied:
        sent += send(broker, topic, [Sent(b"n", b"new", 0, START)])
    with pytest.raises(DataLossError, match=rf"of {topic}-0 from 10 to before 12, .* --allow-data-loss"):
        compact(spark, source, tmp_path)
    assert compact(spark, source, tmp_path, fail_on_data_loss=False).lost == 2
    assert table(tmp_path) == expected(sent)
    assert compact(spark, source, tmp_path).lost == 0


def test_null_keys_are_refused(spark: SparkSession, gateway: str, topic: str, tmp_path: Path) -> None:
    create(gateway, topic)
    source = TopicAt(topic, {"bootstrap.servers": gateway})
    send(gateway, topic, [Sent(b"k", b"v", 0, START), Sent(None, b"v", 1, START)])
    with pytest.raises(CompactError, match=r"1 new records of .* have no key"):
        compact(spark, source, tmp_path, refuse_null_keys=True)
    assert not (tmp_path / "current").exists()
    assert compact(spark, source, tmp_path).rows == 1


def test_the_command(gateway: str, topic: str, tmp_path: Path) -> None:
    create(gateway, topic)
    sent = send(gateway, topic, some(range(30)))

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kclient", "pipeline", "compact", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    place = ["--to", str(tmp_path), "--bootstrap", gateway]
    done = run(topic, *place, "--json", "--dry-run")
    assert (done.returncode, json.loads(done.stdout)["offsets"]) == (0, 30), done.stderr
    done = run(topic, *place, "--json", "--master", "local[2]")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["rows"] == len(living(expected(sent)))
    assert table(tmp_path) == living(expected(sent))
    done = run(topic, *place, "--headers", "--dry-run")
    assert (done.returncode, "was begun without headers" in done.stderr) == (1, True)
    assert run("missing", *place, "--dry-run").returncode == 1


def test_arguments(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="what is read is a TopicAt or an ArchivedTopic"):
        compact(None, "flights", tmp_path, dry_run=True)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="compact needs a Spark session of its own process"):
        compact(None, TopicAt("t", {"bootstrap.servers": "127.0.0.1:1"}), tmp_path)
