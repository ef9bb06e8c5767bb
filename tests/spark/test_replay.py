"""The pipeline `replay`: an archive's records come back as they were, each once, whatever happens to a run."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from kclient import ConfigResource, ConfigResourceType
from kclient.errors import RecordTooLargeError, UnknownTopicOrPartitionError
from kclient.spark import ReplayError, archive, replay
from kclient.spark.pipelines import archive_reader, replay_tasks
from kclient.spark.pipelines.replay import checked_settings
from kclient.spark.pipelines.replay_planning import ReplaySelection
from kclient.sync import Admin, Consumer, Producer
from kclient.types import TopicPartition
from tests import replay_deaths
from tests.conftest import require_java
from tests.kafka_server import KafkaServer
from tests.spark.archives import create, fill
from tests.spark.conftest import EndedCommand
from tests.spark.made_archives import Row, make_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

DAY = 86_400_000


class Seen(NamedTuple):
    """A record as a consumer sees it, without its offset."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int


def read(broker: str, topic: str) -> dict[int, list[Seen]]:
    """All that is committed, by partition; it would wait for anything that is open."""
    found: dict[int, list[Seen]] = defaultdict(list)
    with Consumer(
        bootstrap_servers=broker, auto_offset_reset="earliest", enable_auto_commit=False,
        isolation_level="read_committed",
    ) as consumer:  # fmt: skip
        partitions = [TopicPartition(topic, info.partition) for info in consumer.partitions_for(topic)]
        consumer.assign(partitions)
        with Admin(bootstrap_servers=broker) as admin:
            ends = {tp: place.offset for tp, place in admin.list_offsets(dict.fromkeys(partitions, latest())).items()}
        deadline = time.monotonic() + 60
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            assert time.monotonic() < deadline, "a transaction is open"
            for record in consumer.poll(timeout=0.5):
                headers = tuple((name, value) for name, value in record.headers)
                found[record.partition].append(Seen(record.key, record.value, headers, record.timestamp))
    return found


def latest() -> Any:
    from kclient import OffsetSpec

    return OffsetSpec.LATEST


def make(broker: str, topic: str, partitions: int = 2, **configs: str) -> str:
    with Admin(bootstrap_servers=broker) as admin:
        admin.create_topic(topic, partitions=partitions, configs={"retention.ms": "-1", **configs})
    return topic


def send_all_kinds(broker: str, topic: str, numbers: range) -> None:
    """Keys, tombstones, headers and times that jump between days."""
    with Producer(bootstrap_servers=broker) as producer:
        for number in numbers:
            producer.send(
                topic,
                None if number % 7 == 3 else b"v%d" % number,
                key=None if number % 3 == 0 else b"k%d" % (number % 5),
                partition=number % 2,
                timestamp=DAY * (10 + (number * 7) % 4) + number,
                headers=[("trace", b"%d" % number), ("empty", None), ("trace", b"again")] if number % 4 == 0 else None,
            )


def test_records_come_back_as_they_were(spark: SparkSession, broker: str, topic: str, tmp_path: Path) -> None:
    create(broker, topic)
    settings, target = {"bootstrap.servers": broker}, make(broker, f"{topic}-again", 3)
    send_all_kinds(broker, topic, range(60))
    with Producer(bootstrap_servers=broker, transactional_id=topic) as producer:  # gaps between offsets
        producer.init_transactions()
        for commit in (False, True):
            producer.begin_transaction()
            producer.send(topic, b"committed %d" % commit, partition=0, timestamp=DAY)
            producer.flush()
            producer.commit_transaction() if commit else producer.abort_transaction()
    archive(spark, tmp_path, settings, topics=[topic])
    steps: dict[str, tuple[int, int]] = {}

    def progress(step: str, done: int, total: int) -> None:
        steps[step] = done, total

    summary = replay(spark, tmp_path, settings, rename={topic: target}, progress=progress)
    assert (summary.records, summary.topics[0].target, summary.dry_run) == (61, target, False)
    assert steps["plan"] == (1, 1)
    assert steps["replay"][0] == steps["replay"][1] >= 61
    assert read(broker, target) == read(broker, topic)
    with Admin(bootstrap_servers=broker) as admin:
        positions = admin.list_group_offsets(f"{summary.id}:{topic}:0")
    assert positions[TopicPartition(target, 1)].offset == 30

    assert replay(spark, tmp_path, settings, rename={topic: target}).records == 0
    send_all_kinds(broker, topic, range(60, 70))
    archive(spark, tmp_path, settings, topics=[topic])
    more = replay(spark, tmp_path, settings, rename={topic: target})
    assert (more.records, more.topics[0].total, more.id, more.manifest) == (10, 71, summary.id, 2)
    assert read(broker, target) == read(broker, topic)


def test_a_dry_run_writes_nothing(gateway: str, topic: str, tmp_path: Path) -> None:
    make_archive(tmp_path, topic, [Row(number % 2, number // 2, b"x") for number in range(10)])
    target = make(gateway, f"{topic}-x", **{"message.timestamp.type": "LogAppendTime", "retention.ms": "86400000"})
    summary = replay(None, tmp_path, {"bootstrap.servers": gateway}, target=target, dry_run=True)
    assert (summary.records, summary.topics[0].offsets, summary.dry_run) == (0, 10, True)
    assert [warning.split(" ", 1)[1][:20] for warning in summary.warnings] == [
        "gives records the ti",
        "deletes records that",
    ]
    assert "are older than 1 days" in summary.warnings[1]
    few = make(gateway, f"{topic}-y", **{"cleanup.policy": "compact,delete", "retention.bytes": "1000"})
    warnings = replay(None, tmp_path, {"bootstrap.servers": gateway}, target=few, dry_run=True).warnings
    assert len(warnings) == 2, warnings
    assert "more than 1000 bytes (retention.bytes)" in warnings[0]
    assert "is compacted (cleanup.policy=compact,delete)" in warnings[1]
    assert read(gateway, target) == {}
    with Admin(bootstrap_servers=gateway) as admin:
        assert not [group for group in admin.list_groups() if group.group_id.startswith(summary.id)]


def test_targets_that_do_not_fit(spark: SparkSession, gateway: str, topic: str, tmp_path: Path) -> None:
    rows = [Row(number % 3, number // 3, b"%d" % number, key=b"%d" % (number % 4)) for number in range(30)]
    make_archive(tmp_path, topic, rows)
    settings = {"bootstrap.servers": gateway}
    with pytest.raises(UnknownTopicOrPartitionError, match=f"kclient topics create {topic} --partitions 3"):
        replay(spark, tmp_path, settings)
    make(gateway, topic, 2)
    with pytest.raises(
        ReplayError, match=f"{topic} has 2 partitions, and the archive has 3 of {topic}: .*--repartition"
    ):
        replay(spark, tmp_path, settings)
    assert replay(spark, tmp_path, settings, keep_partitions=False).records == 30
    assert replay(spark, tmp_path, settings, keep_partitions=False).records == 0  # several positions in a partition
    found = read(gateway, topic)
    assert sorted(int(each.value or b"") for own in found.values() for each in own) == list(range(30))
    homes = {each.key: number for number, own in found.items() for each in own}
    assert all(homes[each.key] == number for number, own in found.items() for each in own)
    for own in found.values():  # in order of each source partition
        for source in range(3):
            numbers = [number for each in own if (number := int(each.value or b"")) % 3 == source]
            assert numbers == sorted(numbers)
    make(gateway, f"{topic}-3", 3)
    with pytest.raises(ReplayError, match=f"has written {topic} to {topic} before, not to {topic}-3"):
        replay(spark, tmp_path, settings, target=f"{topic}-3", replay_id=_id_in(gateway, topic))


def _id_in(gateway: str, topic: str) -> str:
    with Admin(bootstrap_servers=gateway) as admin:
        [group] = [each.group_id for each in admin.list_groups() if each.group_id.endswith(f":{topic}")]
    return group.partition(":")[0]


def test_records_of_others_are_in_the_way(spark: SparkSession, broker: str, topic: str, tmp_path: Path) -> None:
    make_archive(tmp_path, topic, [Row(0, number, b"%d" % number) for number in range(5)])
    settings = {"bootstrap.servers": broker}
    make(broker, topic, 1)
    with Producer(bootstrap_servers=broker, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"aborted")
        producer.flush()
        with pytest.raises(ReplayError, match=f"{topic} has records that the replay"):
            replay(None, tmp_path, settings, dry_run=True)
        producer.abort_transaction()
    assert replay(spark, tmp_path, settings).records == 5  # what was aborted is in nobody's way
    other = make(broker, f"{topic}-other", 1)
    with Producer(bootstrap_servers=broker) as producer:
        producer.send(other, b"mine")
    with pytest.raises(ReplayError, match=r"--append \(append=True\).* would write records twice"):
        replay(spark, tmp_path, settings, target=other)
    assert replay(spark, tmp_path, settings, target=other, append=True).records == 5
    assert [each.value for each in read(broker, other)[0]] == [b"mine", *(b"%d" % number for number in range(5))]


def test_times_offsets_and_a_rate(spark: SparkSession, gateway: str, topic: str, tmp_path: Path) -> None:
    rows = [Row(number % 2, number // 2, b"%d" % number, timestamp=DAY * (number % 3)) for number in range(90)]
    make_archive(tmp_path, topic, rows)
    settings, target = {"bootstrap.servers": gateway}, make(gateway, f"{topic}-x")
    began = time.monotonic()
    summary = replay(
        spark, tmp_path, settings, target=target, since=DAY, until=2 * DAY, offsets={(topic, 1): (10, 40)},
        records_per_second=8,
    )  # fmt: skip
    expected = [each.value for each in rows if each.partition == 1 and 10 <= each.offset < 40 and each.timestamp == DAY]
    assert summary.records == len(expected) == 10
    assert time.monotonic() - began > 0.9  # ten records, eight a second, two at a time
    assert {number: [each.value for each in own] for number, own in read(gateway, target).items()} == {1: expected}
    with pytest.raises(ReplayError, match="has begun with other times"):
        replay(spark, tmp_path, settings, target=target, replay_id=summary.id)


def test_a_range_that_the_archive_has_not_reached(
    spark: SparkSession, gateway: str, topic: str, tmp_path: Path
) -> None:
    make_archive(tmp_path, topic, [Row(0, number, b"%d" % number) for number in range(5)])
    settings, target = {"bootstrap.servers": gateway}, make(gateway, f"{topic}-x", 1)

    def again() -> int:
        return replay(spark, tmp_path, settings, target=target, offsets={(topic, 0): (8, 12)}).records

    assert again() == 0
    make_archive(tmp_path, topic, [Row(0, number, b"%d" % number) for number in range(5, 10)])
    assert again() == 2
    make_archive(tmp_path, topic, [Row(0, number, b"%d" % number) for number in range(10, 15)])
    assert again() == 2
    assert [record.value for record in read(gateway, target)[0]] == [b"8", b"9", b"10", b"11"]


def test_bytes_are_those_of_the_records(spark: SparkSession, gateway: str, topic: str, tmp_path: Path) -> None:
    headers: list[tuple[str, bytes | None]] = [("h", b"12"), ("h", None)]
    rows = [Row(0, 0, b"abc", key=b"k", headers=headers), Row(0, 1, None), Row(0, 2, b"")]
    make_archive(tmp_path, topic, rows)
    summary = replay(spark, tmp_path, {"bootstrap.servers": gateway}, target=make(gateway, topic, 1))
    assert summary.topics[0].size == len("abckh12h")


def test_an_archive_that_holds_an_offset_twice(spark: SparkSession, gateway: str, topic: str, tmp_path: Path) -> None:
    from kclient.spark import ArchiveError

    make_archive(tmp_path, topic, [Row(0, number, b"x") for number in (0, 1, 2, 2, 3)], files=2)
    make(gateway, topic, 1)
    with pytest.raises(ArchiveError, match=f"holds offsets of {topic}-0 twice"):
        replay(spark, tmp_path, {"bootstrap.servers": gateway})
    assert read(gateway, topic) == {}


def test_positions_that_have_expired(spark: SparkSession, gateway: str, topic: str, tmp_path: Path) -> None:
    make_archive(tmp_path, topic, [Row(0, number, b"x") for number in range(5)])
    make(gateway, topic, 1)
    settings = {"bootstrap.servers": gateway}
    replay(spark, tmp_path, settings, replay_id="r1-" + topic)
    with Admin(bootstrap_servers=gateway) as admin:
        admin.delete_groups([f"r1-{topic}:{topic}:0"])
    with pytest.raises(ReplayError, match=f"position of {topic}-0 .* is gone: committed offsets expire"):
        replay(spark, tmp_path, settings, replay_id="r1-" + topic)
    with Admin(bootstrap_servers=gateway) as admin:
        admin.delete_groups([f"r1-{topic}:{topic}"])
    with pytest.raises(ReplayError, match="its committed offsets have expired"):
        replay(spark, tmp_path, settings, replay_id="r1-" + topic)
    assert len(read(gateway, topic)[0]) == 5


@pytest.fixture(
    params=[
        pytest.param("gateway"),
        pytest.param("kafka", marks=pytest.mark.kafka),
        pytest.param("kafka3", marks=pytest.mark.kafka),
    ]
)
def brokers(request: pytest.FixtureRequest) -> str:
    """The gateway, and Kafka of both generations of transactions."""
    found: KafkaServer | str = request.getfixturevalue(request.param)
    return found if isinstance(found, str) else found.bootstrap


def archived_numbers(folder: Path, topic: str, count: int) -> dict[int, list[bytes]]:
    """An archive of two partitions, whose records jump between two days; and what is to be in the target."""
    rows = [Row(number % 2, number // 2, b"%d" % number, timestamp=DAY * (number // 6 % 2)) for number in range(count)]
    make_archive(folder, topic, rows)
    return {number: [row.value or b"" for row in rows if row.partition == number] for number in (0, 1)}


def values(broker: str, topic: str) -> dict[int, list[bytes | None]]:
    return {number: [each.value for each in own] for number, own in read(broker, topic).items()}


@pytest.mark.long
@pytest.mark.parametrize(
    "brokers",
    ["gateway", pytest.param("kafka", marks=pytest.mark.kafka), pytest.param("kafka3", marks=pytest.mark.kafka)],
    indirect=True,
)
def test_it_dies_at_each_request(brokers: str, topic: str, tmp_path: Path) -> None:
    expected = archived_numbers(tmp_path, topic, 1600)
    make(brokers, topic)
    died = replay_deaths.start(brokers, tmp_path, topic, topic, timeout=280)
    assert died == 42, "each run has more requests than it was let live for"
    assert values(brokers, topic) == expected


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(5))
def test_it_dies_at_random(brokers: str, topic: str, tmp_path: Path, seed: int) -> None:
    expected = archived_numbers(tmp_path, topic, 4000)
    make(brokers, topic)
    assert replay_deaths.start(brokers, tmp_path, topic, topic, str(seed), timeout=800) > 10
    assert values(brokers, topic) == expected


def kill_amid(words: list[str], target: str, gateway: str, more: int) -> None:
    """Run a command, and kill its processes, Spark's too, once it has committed some records more."""
    partitions = [TopicPartition(target, number) for number in (0, 1)]
    with Consumer(bootstrap_servers=gateway, isolation_level="read_committed") as consumer:
        before = sum(consumer.end_offsets(partitions).values())
        with subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        ) as process:
            while sum(consumer.end_offsets(partitions).values()) < before + more:
                assert process.poll() is None, "it was to be killed before it is through"
                time.sleep(0.01)
            os.killpg(process.pid, signal.SIGKILL)


def command(*arguments: object, gateway: str) -> list[str]:
    words = [sys.executable, "-m", "kclient", "pipeline", "replay", *map(str, arguments)]
    return [*words, "--bootstrap", gateway, "--master", "local[2]"]


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kills", [1, 12])
def test_spark_and_all_are_killed(gateway: str, topic: str, tmp_path: Path, kills: int) -> None:
    require_java()
    expected = archived_numbers(tmp_path, topic, 12_000 * kills)
    make(gateway, topic)
    chance = random.Random(kills)
    words = command(topic, "--from", tmp_path, "--rate", 1000, gateway=gateway)
    for _ in range(kills):
        kill_amid(words, topic, gateway, chance.randrange(1, 2000))
    done = subprocess.run(
        command(topic, "--from", tmp_path, gateway=gateway), capture_output=True, text=True, timeout=250, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert values(gateway, topic) == expected


def test_the_command(gateway: str, topic: str, tmp_path: Path, pipeline: Callable[..., EndedCommand]) -> None:
    import json

    create(gateway, topic)
    fill(gateway, topic, range(10))
    make_archive(tmp_path, topic, [Row(0, number, b"%d" % number) for number in range(10)])

    def run(*arguments: object) -> EndedCommand:
        return pipeline("replay", topic, "--from", tmp_path, *arguments, "--bootstrap", gateway)

    refused = run()
    assert refused.returncode == 1
    assert "has records that the replay" in refused.stderr
    assert refused.stderr.count("\n") == 1
    missing = run("--prefix", "dr-")
    assert f"kclient topics create dr-{topic} --partitions 1" in missing.stderr
    make(gateway, f"dr-{topic}", 1)
    planned = run("--prefix", "dr-", "--dry-run")
    assert (planned.returncode, planned.stderr) == (0, "")
    assert planned.stdout.splitlines()[1].split("\t") == [topic, f"dr-{topic}", "1", "10", "0"]
    done = run("--prefix", "dr-", "--offsets", f"{topic}:0=2..9", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert (told["records"], told["topics"][0]["total"], told["dry_run"]) == (7, 7, False)
    wrong = run("--offsets", "t=5")
    assert (wrong.returncode, "--offsets takes TOPIC:PARTITION=FIRST..END" in wrong.stderr) == (2, True)


class AtTheSameTime(replay_deaths.ReplayHere):
    """A run amid which another one is made."""

    other: Any = None

    def carry_out(self, *arguments: Any) -> Any:
        self.other()
        return super().carry_out(*arguments)


def run_here(kind: type[replay_deaths.ReplayHere], broker: str, folder: Path, topic: str) -> replay_deaths.ReplayHere:
    settings, asking = checked_settings({"bootstrap.servers": broker})
    selection = ReplaySelection(topics=(topic,))
    return kind(None, folder, settings, asking, selection, topic, False, None)


def test_a_target_that_is_created_again_amid_a_run(brokers: str, topic: str, tmp_path: Path) -> None:
    make_archive(tmp_path, topic, [Row(0, number, b"%d" % number) for number in range(10)])
    make(brokers, topic, 1)

    run = run_here(AtTheSameTime, brokers, tmp_path, topic)
    run.other = lambda: make_again(brokers, topic)  # type: ignore[attr-defined]
    with pytest.raises(ReplayError, match=f"{topic} was deleted (or|and) created again"):
        run.run()
    assert read(brokers, topic) == {}
    assert run_here(replay_deaths.ReplayHere, brokers, tmp_path, topic).run().records == 10


def test_brokers_that_keep_the_positions_of_a_former_target(gateway: str, topic: str, tmp_path: Path) -> None:
    """Kafka's remove them some time after the topic."""
    make_archive(tmp_path, topic, [Row(0, number, b"%d" % number) for number in range(10)])
    make(gateway, topic, 1)
    run = run_here(AtTheSameTime, gateway, tmp_path, topic)

    def other() -> None:
        with Admin(bootstrap_servers=gateway) as admin:
            groups = [group.group_id for group in admin.list_groups() if f":{topic}" in group.group_id]
            kept = {group: admin.list_group_offsets(group) for group in groups}
            make_again(gateway, topic)
            for group, offsets in kept.items():
                admin.alter_group_offsets(group, offsets)

    run.other = other
    with pytest.raises(ReplayError, match=f"{topic} was deleted and created again"):
        run.run()
    assert read(gateway, topic) == {}


def make_again(broker: str, topic: str) -> None:
    """Delete it, and create it once more."""
    with Admin(bootstrap_servers=broker) as admin:
        admin.delete_topic(topic)
        deadline = time.monotonic() + 60
        while topic in {each.name for each in admin.list_topics()}:
            assert time.monotonic() < deadline
    make(broker, topic, 1)


class Afterwards(replay_deaths.ReplayHere):
    """A run after whose tasks something happens."""

    other: Any = None

    def carry_out(self, *arguments: Any) -> Any:
        found = super().carry_out(*arguments)
        self.other()
        return found


@pytest.mark.parametrize("when", ["before the last commit", "after the tasks"])
def test_a_target_that_is_created_again_late(
    brokers: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """All records are there, and go with the topic; what is left to do is a commit without records, or nothing."""
    make_archive(tmp_path, topic, [Row(0, number, b"%d" % number) for number in range(10)])
    make(brokers, topic, 1)
    run = run_here(Afterwards, brokers, tmp_path, topic)
    ends = []
    commit = Producer.send_offsets_to_transaction

    def committing(producer: Producer, offsets: Any, group: Any) -> None:
        ends.extend(each.offset for each in offsets.values() if each.offset == 10)
        if len(ends) == 2:
            ends.append(0)
            make_again(brokers, topic)
        commit(producer, offsets, group)

    run.other = lambda: None  # type: ignore[attr-defined]
    if when == "after the tasks":
        run.other = lambda: make_again(brokers, topic)  # type: ignore[attr-defined]
    else:
        monkeypatch.setattr(replay_tasks, "_TRANSACTION_S", 0.0)
        monkeypatch.setattr(Producer, "send_offsets_to_transaction", committing)
    with pytest.raises(ReplayError, match=rf"the topic {topic} was deleted and created again .* while the replay"):
        run.run()
    monkeypatch.undo()
    assert read(brokers, topic) == {}
    assert run_here(replay_deaths.ReplayHere, brokers, tmp_path, topic).run().records == 10


@pytest.mark.parametrize("amid", ["before its tasks", "amid a transaction", "between transactions"])
def test_two_runs_at_once(brokers: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, amid: str) -> None:
    """The older one ends, and says why; whatever it had written is there once."""
    expected = archived_numbers(tmp_path, topic, 60)
    make(brokers, topic)
    monkeypatch.setattr(archive_reader, "_BATCH_ROWS", 4)
    monkeypatch.setattr(replay_tasks, "_TRANSACTION_S", 0.0 if amid == "between transactions" else 100.0)
    older, newer = (run_here(kind, brokers, tmp_path, topic) for kind in (AtTheSameTime, replay_deaths.ReplayHere))
    ran = []

    def other() -> None:
        if not ran:
            ran.append(1)
            assert newer.run().records == (
                50 if amid == "between transactions" else 60
            )  # 10 were committed by the older

    within, calls = replay_tasks._within, []

    def in_the_middle(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            other()
        return within(*arguments)

    if amid == "before its tasks":
        older.other = other  # type: ignore[attr-defined]
    else:
        monkeypatch.setattr(replay_tasks, "_within", in_the_middle)
        older.other = lambda: None  # type: ignore[attr-defined]
    with pytest.raises(ReplayError, match=r"another (run|attempt)"):
        older.run()
    assert ran
    assert values(brokers, topic) == expected


@pytest.mark.parametrize(
    ("size", "config", "message"),
    [
        (2_000_000, {}, "more than max.request.size"),
        (500_000, {"max.message.bytes": "100000"}, r"\(max.message.bytes\)"),
    ],
)
def test_records_that_are_too_large(
    gateway: str, topic: str, tmp_path: Path, size: int, config: dict[str, str], message: str
) -> None:
    make_archive(tmp_path, topic, [Row(0, 0, b"small"), Row(0, 1, b"x" * size)])
    make(gateway, topic, 1, **config)
    with pytest.raises(RecordTooLargeError, match=message):
        run_here(replay_deaths.ReplayHere, gateway, tmp_path, topic).run()
    assert read(gateway, topic) == {}
    if config:
        with Admin(bootstrap_servers=gateway) as admin:
            resource = ConfigResource(ConfigResourceType.TOPIC, topic)
            admin.alter_configs({resource: {"max.message.bytes": "1000000"}})
        assert run_here(replay_deaths.ReplayHere, gateway, tmp_path, topic).run().records == 2
