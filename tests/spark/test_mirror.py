"""The pipeline `mirror`: topics come to another cluster as they are, each record once, and groups with them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from kclient import ConfigResource, ConfigResourceType
from kclient.spark import DataLossError, MirrorError, mirror
from kclient.spark.pipelines import replay_tasks
from kclient.spark.pipelines.replay_records import Position
from kclient.sync import Admin, Consumer, Producer
from kclient.types import OffsetAndMetadata, TopicPartition
from tests import mirror_deaths
from tests.conftest import require_java
from tests.mirror_deaths import run_here
from tests.spark.archives import recreate
from tests.spark.conftest import EndedCommand
from tests.spark.test_replay import make, read, send_all_kinds, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.kafka_server import KafkaServer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Another gateway."""
    from tests.gateway_process import GatewayProcess

    process = GatewayProcess(tmp_path_factory.mktemp("other") / "data")
    process.start()
    try:
        yield process.bootstrap
    finally:
        process.stop()


def fill_with_gaps(broker: str, topic: str, first: int, count: int) -> None:
    """Transactions of few records, one in three of which is aborted: offsets have gaps everywhere."""
    with Producer(bootstrap_servers=broker, transactional_id=f"fill-{topic}") as producer:
        producer.init_transactions()
        for number in range(first, first + count):
            producer.begin_transaction()
            for piece in range(1 + number % 3):
                producer.send(topic, b"%d.%d" % (number, piece), partition=number % 2)
            producer.flush()
            producer.abort_transaction() if number % 3 == 2 else producer.commit_transaction()


def offsets(broker: str, topic: str, partition: int) -> list[tuple[int, bytes | None]]:
    """Offsets and values of what is committed."""
    tp, found = TopicPartition(topic, partition), []
    with Consumer(bootstrap_servers=broker, isolation_level="read_committed") as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        end = consumer.end_offsets([tp])[tp]
        while consumer.position(tp) < end:
            found += [(record.offset, record.value) for record in consumer.poll(timeout=1.0)]
    return found


def check_translation(source: str, target: str, topic: str, goal: str) -> None:
    """Each offset of the source, as a group's, comes out at the first record at or behind it."""
    for partition in (0, 1):
        there, here = offsets(target, goal, partition), offsets(source, topic, partition)
        assert [value for _, value in there] == [value for _, value in here]
        with Consumer(bootstrap_servers=target, isolation_level="read_committed") as consumer:
            end = consumer.end_offsets([(goal, partition)])[TopicPartition(goal, partition)]
        with Admin(bootstrap_servers=source) as admin:
            groups = {f"at-{uuid.uuid4().hex[:8]}-{offset}": offset for offset in range(here[0][0], here[-1][0] + 1)}
            for group, offset in groups.items():
                admin.alter_group_offsets(group, {TopicPartition(topic, partition): OffsetAndMetadata(offset, "m")})
        told = run_here(source, target, topics=[topic], prefix="m-", groups="|".join(groups)).groups
        assert (told.moved, told.early, told.later) == (len(groups), 0, 0)
        with Admin(bootstrap_servers=target) as admin:
            for group, offset in groups.items():
                expected = next((mine for (mine, _), (its, _) in zip(there, here, strict=True) if its >= offset), end)
                found = admin.list_group_offsets(group)[TopicPartition(goal, partition)]
                assert (found.offset, found.metadata) == (expected, "m"), (group, there, here)


def test_records_come_as_they_are(spark: SparkSession, broker: str, other: str, topic: str) -> None:
    make(broker, topic, **{"max.message.bytes": "1234567"})
    send_all_kinds(broker, topic, range(60))
    source, target = {"bootstrap.servers": broker}, {"bootstrap.servers": other}
    look = mirror(None, source, target, topics=[topic], dry_run=True)
    assert (look.topics[0].created, look.topics[0].offsets, look.records, look.dry_run) == (True, 60, 0, True)
    with Admin(bootstrap_servers=other) as admin:
        assert topic not in {each.name for each in admin.list_topics()}
    steps: dict[str, tuple[int, int]] = {}

    def progress(step: str, done: int, total: int) -> None:
        steps[step] = done, total

    summary = mirror(spark, source, target, topics=[topic], progress=progress)
    assert (summary.records, summary.topics[0].created, summary.groups) == (60, True, None)
    assert steps == {"plan": (1, 1), "mirror": (60, 60)}
    assert read(other, topic) == read(broker, topic)
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    with Admin(bootstrap_servers=other) as admin:
        entries = admin.describe_configs([resource])[resource]
    assert [entries[name].value for name in ("max.message.bytes", "retention.ms")] == ["1234567", "-1"]

    with Admin(bootstrap_servers=broker) as admin:
        admin.create_partitions({topic: 3})
    with Producer(bootstrap_servers=broker) as producer:
        producer.send(topic, b"new", partition=2)
    look = mirror(None, source, target, topics=[topic], dry_run=True)
    assert (look.topics[0].created, look.topics[0].offsets, look.topics[0].total) == (False, 1, 60)
    more = mirror(spark, source, target, topics=[topic])
    assert (more.records, more.topics[0].total, more.id) == (1, 61, summary.id)
    assert read(other, topic) == read(broker, topic)
    assert mirror(spark, source, target, topics=[topic]).records == 0


@pytest.mark.kafka
def test_to_kafka_and_back(gateway: str, kafka: KafkaServer, topic: str) -> None:
    make(gateway, topic)
    send_all_kinds(gateway, topic, range(20))
    assert run_here(gateway, kafka.bootstrap, topics=[topic]).records == 20
    assert read(kafka.bootstrap, topic) == read(gateway, topic)
    with pytest.raises(MirrorError, match="go round without an end"):
        run_here(kafka.bootstrap, gateway, topics=[topic], prefix="back-")


def test_offsets_of_groups_are_exact(broker: str, other: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make(broker, topic)
    monkeypatch.setattr(replay_tasks, "_TRANSACTION_S", 0.0)
    for turn in range(3):
        fill_with_gaps(broker, topic, 12 * turn, 12)
        run_here(broker, other, topics=[topic], prefix="m-")
    check_translation(broker, other, topic, f"m-{topic}")


def test_points_that_were_thinned_out(gateway: str, other: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from kclient.spark.pipelines import offset_points

    make(gateway, topic)
    monkeypatch.setattr(replay_tasks, "_TRANSACTION_S", 0.0)
    monkeypatch.setattr(offset_points, "MOST_TEXT", 40)
    for turn in range(8):
        fill_with_gaps(gateway, topic, 6 * turn, 6)
        summary = run_here(gateway, other, topics=[topic], prefix="m-")
    with Admin(bootstrap_servers=other) as admin:
        noted = admin.list_group_offsets(f"{summary.id}:{topic}:0")
    group, offset = f"{summary.id}:{topic}:0", noted[TopicPartition(f"m-{topic}", 0)]
    assert 1 < len(Position.read(group, offset).points) < 8
    check_translation(gateway, other, topic, f"m-{topic}")


def test_offsets_of_what_the_source_has_lost(gateway: str, other: str, topic: str) -> None:
    """Retention leaves exact what lies behind it; below it no record of the target is passed over."""
    make(gateway, topic)
    fill_with_gaps(gateway, topic, 0, 24)
    goal, tp = f"m-{topic}", TopicPartition(topic, 0)
    run_here(gateway, other, topics=[topic], prefix="m-")
    before, there = offsets(gateway, topic, 0), offsets(other, goal, 0)
    start = before[8][0]
    with Admin(bootstrap_servers=gateway) as admin:
        admin.delete_records({tp: start})
        for offset in range(before[-1][0] + 1):
            admin.alter_group_offsets(f"{topic}-{offset}", {tp: offset})
    told = run_here(gateway, other, topics=[topic], prefix="m-", groups=f"{topic}-.*").groups
    assert (told.moved, told.early) == (before[-1][0] + 1, start - 1 - before[0][0])
    with Admin(bootstrap_servers=other) as admin:
        for offset in range(before[-1][0] + 1):
            found = admin.list_group_offsets(f"{topic}-{offset}")[TopicPartition(goal, 0)].offset
            exact = next(mine for (mine, _), (its, _) in zip(there, before, strict=True) if its >= offset)
            assert found == exact if offset >= start else found <= exact


def test_groups_that_are_left_as_they_are(gateway: str, other: str, topic: str) -> None:
    make(gateway, topic)
    send_all_kinds(gateway, topic, range(20))
    tp = TopicPartition(topic, 0)
    idle, active, beyond = (f"{name}-{topic}" for name in ("idle", "active", "beyond"))
    with Admin(bootstrap_servers=gateway) as admin:
        for group in (idle, active):
            admin.alter_group_offsets(group, {tp: 4})
        admin.alter_group_offsets(beyond, {tp: 10})
    run_here(gateway, other, topics=[topic], max_offsets=10)
    with Consumer(topic, bootstrap_servers=other, group_id=active) as consumer:
        while not consumer.assignment():
            consumer.poll(timeout=0.1)
        told = run_here(gateway, other, topics=[topic], max_offsets=2, groups=f".*-{topic}").groups
    assert (told.moved, told.later, told.active) == (1, 1, (active,))
    with Admin(bootstrap_servers=other) as admin:
        assert admin.list_group_offsets(idle)[tp].offset == 4
        admin.alter_group_offsets(idle, {tp: 5})
    told = run_here(gateway, other, topics=[topic], groups=f"(idle|beyond)-{topic}").groups
    assert (told.moved, told.same, told.later) == (1, 1, 0), "no group is moved back"
    with Admin(bootstrap_servers=other) as admin:
        assert admin.list_group_offsets(idle)[tp].offset == 5


def test_it_does_not_go_round(gateway: str, other: str, topic: str) -> None:
    make(gateway, topic)
    send_all_kinds(gateway, topic, range(10))
    run_here(gateway, other, topics=[topic], prefix="a-")
    own = make(other, f"x-{topic}")
    summary = run_here(other, gateway, pattern=f"(a-|x-){topic}", prefix="b-")
    assert ([each.topic for each in summary.topics], summary.left_out) == ([own], (f"a-{topic}",))
    with pytest.raises(MirrorError, match="was mirrored from the target's own cluster"):
        run_here(other, gateway, topics=[f"a-{topic}"], prefix="b-")
    for _ in range(2):  # in one cluster, too
        summary = run_here(gateway, gateway, pattern=f"(again-)*{topic}", prefix="again-", mirror_id=f"self-{topic}")
        assert [each.topic for each in summary.topics] == [topic]


def test_topics_that_are_created_again(gateway: str, other: str, topic: str) -> None:
    make(gateway, topic)
    send_all_kinds(gateway, topic, range(10))
    run_here(gateway, other, topics=[topic])
    recreate(gateway, topic)
    send_all_kinds(gateway, topic, range(10, 14))
    with pytest.raises(MirrorError, match=r"begun with another topic called .*--restart-recreated"):
        run_here(gateway, other, topics=[topic])
    assert run_here(gateway, other, topics=[topic], restart_recreated=True).records == 4
    assert run_here(gateway, other, topics=[topic]).records == 0
    assert [len(own) for _, own in sorted(read(other, topic).items())] == [7, 7]
    tp = TopicPartition(topic, 0)
    with Admin(bootstrap_servers=gateway) as admin:
        admin.alter_group_offsets(f"g-{topic}", {tp: 1})
    run_here(gateway, other, topics=[topic], groups=f"g-{topic}")
    with Admin(bootstrap_servers=other) as admin:
        found = admin.list_group_offsets(f"g-{topic}")[tp].offset
    there = offsets(other, topic, 0)
    assert [offset for offset, _ in there].index(found) == 6


def test_targets_that_do_not_fit(gateway: str, other: str, topic: str) -> None:
    make(gateway, topic)
    send_all_kinds(gateway, topic, range(10))
    make(other, topic, 1)
    with Producer(bootstrap_servers=other) as producer:
        producer.send(topic, b"mine").result()
    with pytest.raises(MirrorError, match=r"has records that the mirror .* has not written"):
        run_here(gateway, other, topics=[topic])
    goal = f"m-{topic}"
    run_here(gateway, other, topics=[topic], prefix="m-")
    with pytest.raises(MirrorError, match=f"has written {topic} to {goal} before"):
        run_here(gateway, other, _id_of(other, topic), topics=[topic], prefix="n-")
    with Producer(bootstrap_servers=other) as producer:
        producer.send(goal, b"mine", partition=0).result()
        producer.send(goal, b"mine", partition=0).result()
    with pytest.raises(MirrorError, match=f"{goal}-0 has records that the mirror of {topic}-0 has not written"):
        run_here(gateway, other, topics=[topic], prefix="m-")


def _id_of(broker: str, topic: str) -> str:
    with Admin(bootstrap_servers=broker) as admin:
        [group] = [each.group_id for each in admin.list_groups() if each.group_id.endswith(f":{topic}")]
    return group.partition(":")[0]


def test_a_target_that_was_created_again(gateway: str, other: str, topic: str) -> None:
    make(gateway, topic)
    send_all_kinds(gateway, topic, range(10))
    first = run_here(gateway, other, topics=[topic])
    with Admin(bootstrap_servers=other) as admin:
        claim = admin.list_group_offsets(f"{first.id}:{topic}")
    recreate(other, topic)
    with Admin(bootstrap_servers=other) as admin:  # as a backup of committed offsets would bring it back
        admin.alter_group_offsets(f"{first.id}:{topic}", claim)
    with pytest.raises(MirrorError, match=f"{topic} was deleted and created again since the mirror"):
        run_here(gateway, other, topics=[topic])


def test_records_that_are_lost(gateway: str, other: str, topic: str) -> None:
    make(gateway, topic)
    send_all_kinds(gateway, topic, range(10))
    run_here(gateway, other, topics=[topic], max_offsets=2)
    with Admin(bootstrap_servers=gateway) as admin:
        admin.delete_records({TopicPartition(topic, 0): 3})
    with pytest.raises(DataLossError, match=f"{topic}-0: the records from offset 1 to before 3 are gone"):
        run_here(gateway, other, topics=[topic])
    summary = run_here(gateway, other, topics=[topic], fail_on_data_loss=False)
    assert (summary.records, summary.topics[0].lost, summary.topics[0].total) == (6, 2, 8)


def test_settings_that_the_target_does_not_take(broker: str, other: str, topic: str) -> None:
    make(broker, topic, **{"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"})
    run_here(broker, other, topics=[topic], prefix="a-")
    run_here(broker, other, topics=[topic], prefix="b-", copy_settings=False)
    names = [ConfigResource(ConfigResourceType.TOPIC, f"{prefix}-{topic}") for prefix in "ab"]
    with Admin(bootstrap_servers=other) as admin:
        found = admin.describe_configs(names)
    assert [found[name]["cleanup.policy"].value for name in names] == ["compact", "delete"]
    assert [found[name]["message.timestamp.type"].value for name in names] == ["CreateTime", "CreateTime"]


def numbered(broker: str, topic: str, count: int) -> dict[int, list[bytes | None]]:
    make(broker, topic)
    with Producer(bootstrap_servers=broker) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=number % 2)
    return {part: [b"%d" % number for number in range(part, count, 2)] for part in (0, 1)}


@pytest.mark.long
@pytest.mark.parametrize("broker", ["gateway", pytest.param("kafka", marks=pytest.mark.kafka)], indirect=True)
def test_it_dies_at_each_request(broker: str, other: str, topic: str) -> None:
    expected = numbered(broker, topic, 1600)
    died = mirror_deaths.start(broker, other, topic, timeout=280)
    assert died > 20
    assert values(other, f"m-{topic}") == expected


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(5))
def test_it_dies_at_random(broker: str, other: str, topic: str, seed: int) -> None:
    expected = numbered(broker, topic, 4000)
    assert mirror_deaths.start(broker, other, topic, str(seed), timeout=800) >= 8
    assert values(other, f"m-{topic}") == expected


def command(source: str, target: str, *arguments: object) -> list[str]:
    words = [sys.executable, "-m", "kclient", "pipeline", "mirror", *map(str, arguments)]
    return [*words, "--from", source, "--to", target, "--master", "local[2]"]


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, pytest.param(12, marks=[pytest.mark.long, pytest.mark.timeout(1200)])])
def test_spark_and_all_are_killed(gateway: str, other: str, topic: str, kills: int) -> None:
    require_java()
    expected = numbered(gateway, topic, 12_000 * kills)
    chance = random.Random(kills)
    for _ in range(kills):
        with subprocess.Popen(
            command(gateway, other, topic, "--rate", 1000), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:  # fmt: skip
            before, more = _committed(other, topic), chance.randrange(1, 2000)
            while _committed(other, topic) < before + more:
                assert process.poll() is None, "it was to be killed before it is through"
                time.sleep(0.05)
            os.killpg(process.pid, signal.SIGKILL)
    done = subprocess.run(command(gateway, other, topic), capture_output=True, text=True, timeout=250, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert values(other, topic) == expected


def _committed(broker: str, topic: str) -> int:
    with Admin(bootstrap_servers=broker) as admin:
        if topic not in {each.name for each in admin.list_topics()}:
            return 0
    with Consumer(bootstrap_servers=broker, isolation_level="read_committed") as consumer:
        return sum(consumer.end_offsets([(topic, 0), (topic, 1)]).values())


def test_the_command(gateway: str, other: str, topic: str, pipeline: Callable[..., EndedCommand]) -> None:
    numbered(gateway, topic, 10)
    with Admin(bootstrap_servers=gateway) as admin:
        admin.alter_group_offsets(f"g-{topic}", {TopicPartition(topic, 0): 3})

    def run(*arguments: object) -> EndedCommand:
        return pipeline("mirror", *arguments, "--from", gateway, "--to", other)

    planned = run(topic, "--prefix", "dr-", "--dry-run")
    assert (planned.returncode, planned.stderr) == (0, "")
    assert planned.stdout.splitlines()[1].split("\t") == [topic, f"dr-{topic}", "2", "10", "0", "yes"]
    done = run(topic, "--prefix", "dr-", "--json", "--groups", f"g-{topic}")
    assert (done.returncode, done.stderr) == (0, "")
    told: dict[str, Any] = json.loads(done.stdout)
    assert (told["records"], told["topics"][0]["total"], told["dry_run"], told["groups"]["moved"]) == (10, 10, False, 1)
    wrong = run()
    assert (wrong.returncode, "say what to mirror" in wrong.stderr) == (2, True)
