"""The pipeline `mirror` where something else goes on meanwhile, and where a side does not take what it is given."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kclient import ConfigResource, ConfigResourceType
from kclient.errors import KafkaTimeoutError, UnknownTopicOrPartitionError
from kclient.spark import DataLossError, MirrorError
from kclient.spark.pipelines import mirror_topics, replay_tasks
from kclient.spark.pipelines.mirror import MirrorRun
from kclient.spark.pipelines.mirror_topics import MirrorLook, MirrorTopics
from kclient.spark.pipelines.replay_target import ReplayTarget
from kclient.spark.pipelines.replay_tasks import PartitionReceipt, Replayed, ReplayJob
from kclient.sync import Admin, Consumer, Producer
from kclient.types import OffsetAndMetadata, TopicPartition
from tests.conftest import require_java
from tests.gateway_process import GatewayProcess
from tests.mirror_deaths import MirrorHere, run_here
from tests.spark.test_mirror import command, offsets
from tests.spark.test_replay import latest, make, read

if TYPE_CHECKING:
    from tests.kafka_server import KafkaServer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Another gateway, which gives records the time of their arrival where topics do not say otherwise."""
    config = {"log.message.timestamp.type": "LogAppendTime"}
    process = GatewayProcess(tmp_path_factory.mktemp("other") / "data", config=config)
    process.start()
    try:
        yield process.bootstrap
    finally:
        process.stop()


def fill(broker: str, topic: str, numbers: range, partition: int = 0) -> str:
    with Producer(bootstrap_servers=broker) as producer:
        for number in numbers:
            producer.send(topic, b"%d" % number, partition=partition, timestamp=1000 + number)
    return topic


def names(broker: str) -> set[str]:
    with Admin(bootstrap_servers=broker) as admin:
        return {topic.name for topic in admin.list_topics()}


def before(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, happens: Callable[[], object]) -> None:
    """The first time that a method is called, something happens before it."""
    method, happened = getattr(owner, name), list[bool]()

    def called(self: Any, *arguments: Any, **named: Any) -> Any:
        if not happened:
            happened.append(True)
            happens()
        return method(self, *arguments, **named)

    monkeypatch.setattr(owner, name, called)


def test_groups_are_left_to_the_run_that_goes_on(
    gateway: str, other: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has come to the target meanwhile would seem to lie before a group that is at the former end."""
    fill(gateway, make(gateway, topic, 1), range(10))
    tp = TopicPartition(topic, 0)
    with Admin(bootstrap_servers=gateway) as admin:
        admin.alter_group_offsets(f"g-{topic}", {tp: 10})

    def another() -> None:
        fill(gateway, topic, range(10, 15))
        run_here(gateway, other, topics=[topic])

    run_here(gateway, other, topics=[topic])
    with monkeypatch.context() as patched:
        calls = list[int]()
        translators = MirrorRun._translators

        def last(self: MirrorRun, *arguments: Any) -> Any:
            calls.append(1)
            if len(calls) == 2:  # the first ones see whether others have written
                patched.setattr(MirrorRun, "_translators", translators)
                another()
            return translators(self, *arguments)

        patched.setattr(MirrorRun, "_translators", last)
        with pytest.raises(MirrorError, match="another run goes on with the mirror"):
            run_here(gateway, other, topics=[topic], groups=f"g-{topic}")
    run_here(gateway, other, topics=[topic], groups=f"g-{topic}")
    there = {value: offset for offset, value in offsets(other, topic, 0)}
    with Admin(bootstrap_servers=other) as admin:
        assert admin.list_group_offsets(f"g-{topic}")[tp].offset == there[b"10"]


def test_a_source_that_goes_on_amid_two_runs_was_not_cut_back(
    gateway: str, other: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(gateway, make(gateway, topic, 1), range(10))

    def another() -> None:
        fill(gateway, topic, range(10, 15))
        run_here(gateway, other, topics=[topic])

    before(monkeypatch, MirrorRun, "_looked", another)
    assert run_here(gateway, other, topics=[topic]).records == 0
    assert [value for _, value in offsets(other, topic, 0)] == [b"%d" % number for number in range(15)]


def test_no_group_is_moved_past_records_where_others_have_written(
    gateway: str, other: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    goal = f"m-{topic}"
    fill(gateway, make(gateway, topic, 1), range(10))
    run_here(gateway, other, topics=[topic], prefix="m-", max_offsets=5)
    monkeypatch.setattr(replay_tasks, "_TRANSACTION_S", 0.0)
    carried_out = MirrorHere.carry_out

    def carry_out(
        self: MirrorHere, job: ReplayJob, todo: Sequence[Replayed], look: Callable[[], None]
    ) -> list[PartitionReceipt]:
        fill(other, goal, range(100, 104))
        return carried_out(self, job, todo, look)

    monkeypatch.setattr(MirrorHere, "carry_out", carry_out)
    run_here(gateway, other, topics=[topic], prefix="m-")
    monkeypatch.undo()
    with Admin(bootstrap_servers=gateway) as admin:
        for offset in range(11):
            admin.alter_group_offsets(f"{topic}-{offset}", {TopicPartition(topic, 0): offset})
    told = run_here(gateway, other, topics=[topic], prefix="m-", groups=f"{topic}-.*").groups
    there = {value: offset for offset, value in offsets(other, goal, 0)}
    assert told.early
    with Admin(bootstrap_servers=other) as admin:
        for offset in range(10):
            found = admin.list_group_offsets(f"{topic}-{offset}")[TopicPartition(goal, 0)].offset
            assert found <= there[b"%d" % offset], offset


def test_one_topic_that_cannot_be_mirrored_leaves_no_other_half_done(gateway: str, other: str, topic: str) -> None:
    first, lossy, grown = f"a-{topic}", f"b-{topic}", f"c-{topic}"
    for name in (first, lossy, grown):
        fill(gateway, make(gateway, name, 1), range(3))
    for name in (lossy, grown):
        run_here(gateway, other, topics=[name])
    fill(gateway, lossy, range(3, 9))
    with Admin(bootstrap_servers=gateway) as admin:
        admin.delete_records({TopicPartition(lossy, 0): 5})
        admin.create_partitions({grown: 2})
    with pytest.raises(DataLossError, match=lossy):
        run_here(gateway, other, topics=[first, lossy, grown])
    assert first not in names(other)
    with Admin(bootstrap_servers=other) as admin:
        assert len(admin.describe_topics([grown])[grown].partitions) == 1


def test_a_setting_that_is_refused_is_told_before_any_topic_is_made(
    gateway: str, other: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (make(gateway, f"{letter}-{topic}", 1) for letter in "ab")

    def settings_of(admin: object, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """As of a source whose brokers have a setting that the target's do not know."""
        return {name: {"vendor.only": "1"} if name == second else {} for name in topics}

    monkeypatch.setattr(mirror_topics, "settings_of", settings_of)
    for dry in (True, False):
        run = dry_here if dry else run_here
        with pytest.raises(MirrorError, match=rf"{second} cannot be made with the settings of .*--no-settings"):
            run(gateway, other, topics=[first, second])
        assert not {first, second} & names(other)


@pytest.mark.kafka
def test_a_name_that_the_target_does_not_take(gateway: str, kafka: KafkaServer, topic: str) -> None:
    """Kafka takes names for the same that differ in dots and underscores: so do its metrics."""
    make(kafka.bootstrap, f"{topic}_b", 1)
    clash, fine = (make(gateway, f"{topic}.{letter}", 1) for letter in "ba")
    with pytest.raises(MirrorError, match=rf"{clash} cannot be made for .* collides .*another name by --rename"):
        run_here(gateway, kafka.bootstrap, topics=[fine, clash])
    assert fine not in names(kafka.bootstrap)


def dry_here(source: str, target: str, **given: Any) -> Any:
    from kclient.spark import mirror

    return mirror(None, {"bootstrap.servers": source}, {"bootstrap.servers": target}, dry_run=True, **given)


def test_a_group_that_the_target_refuses_leaves_the_others_their_way(gateway: str, topic: str, tmp_path: Path) -> None:
    fill(gateway, make(gateway, topic, 1), range(5))
    tp = TopicPartition(topic, 0)
    with Admin(bootstrap_servers=gateway) as admin:
        for letter, metadata in (("a", "x"), ("b", "y" * 2000), ("c", "")):
            admin.alter_group_offsets(f"{letter}-{topic}", {tp: OffsetAndMetadata(3, metadata)})
    strict = GatewayProcess(tmp_path / "data", config={"offset.metadata.max.bytes": "1000"})
    strict.start()
    try:
        told = run_here(gateway, strict.bootstrap, topics=[topic], groups=f".-{topic}").groups
        assert (told.moved, len(told.refused)) == (2, 1)
        assert told.refused[0].startswith(f"b-{topic}: ")
        with Admin(bootstrap_servers=strict.bootstrap) as admin:
            assert [bool(admin.list_group_offsets(f"{letter}-{topic}")) for letter in "abc"] == [True, False, True]
    finally:
        strict.stop()


def test_timestamps_stay_whatever_is_the_default_of_the_target(gateway: str, other: str, topic: str) -> None:
    fill(gateway, make(gateway, topic, 1), range(5))
    assert run_here(gateway, other, topics=[topic], copy_settings=False).warnings == ()
    assert read(other, topic) == read(gateway, topic)


def test_what_lies_behind_an_open_transaction_is_told(gateway: str, other: str, topic: str) -> None:
    fill(gateway, make(gateway, topic, 1), range(5))
    with Producer(bootstrap_servers=gateway, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"open").result()
        fill(gateway, topic, range(5, 7))
        done = run_here(gateway, other, topics=[topic])
        assert (done.records, done.waiting) == (5, 3)
        producer.commit_transaction()
    done = run_here(gateway, other, topics=[topic])
    assert (done.records, done.waiting) == (3, 0)


def test_a_run_that_is_broken_off_leaves_no_transaction_open(
    broker: str, other: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers of what is committed would wait for it until it expires."""
    fill(broker, make(broker, topic, 1), range(10))
    flushed = replay_tasks._Partition._note_point

    def interrupted(self: Any) -> None:
        flushed(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(replay_tasks._Partition, "_note_point", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_here(broker, other, topics=[topic])
    monkeypatch.undo()
    tp = TopicPartition(topic, 0)
    with (
        Consumer(bootstrap_servers=other, isolation_level="read_committed") as consumer,
        Admin(bootstrap_servers=other) as admin,
    ):
        deadline = time.monotonic() + 20
        while consumer.end_offsets([tp])[tp] < admin.list_offsets({tp: latest()})[tp].offset:
            assert time.monotonic() < deadline, "a transaction is open"
        assert admin.list_offsets({tp: latest()})[tp].offset > 10, "what was written is there, and aborted"
    assert run_here(broker, other, topics=[topic]).records == 10
    assert [value for _, value in offsets(other, topic, 0)] == [b"%d" % number for number in range(10)]


def test_a_transaction_that_takes_too_long_is_no_other_run(
    gateway: str, other: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(gateway, make(gateway, topic, 1), range(10))
    flushed = replay_tasks._Partition._note_point
    ids = list[str]()

    def aborted(self: Any) -> None:
        flushed(self)
        with Admin(bootstrap_servers=other) as admin:  # as the brokers do after transaction.timeout.ms
            [open_one] = [each for each in admin.list_transactions() if each.transactional_id.endswith(f"{topic}:0")]
            ids.append(open_one.transactional_id)
            admin.fence_producers([open_one.transactional_id])

    monkeypatch.setattr(replay_tasks._Partition, "_note_point", aborted)
    with pytest.raises(KafkaTimeoutError, match=r"took more than 60000 ms .*run again, it goes on"):
        run_here(gateway, other, topics=[topic])
    monkeypatch.undo()
    assert len(ids) == 1
    assert run_here(gateway, other, topics=[topic]).records == 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 0, marks=pytest.mark.long)]
)
def test_the_command_goes_on_until_a_signal(
    gateway: str, other: str, topic: str, sent: signal.Signals, code: int
) -> None:
    require_java()
    fill(gateway, make(gateway, topic, 1), range(5))
    words = command(gateway, other, topic, "--every", 0.2)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as process:
        for first, end in ((5, 8), (8, 20)):
            fill(gateway, topic, range(first, end))
            while topic not in names(other) or len(offsets(other, topic, 0)) < end:
                assert process.poll() is None, process.communicate()
                time.sleep(0.05)
        os.killpg(process.pid, sent)
        out, err = process.communicate(timeout=100)
    assert process.returncode == code
    assert b"kclient" not in err, "a server of PySpark's may miss Java, which the signal has ended too"
    assert [value for _, value in offsets(other, topic, 0)] == [b"%d" % number for number in range(20)]
    assert out.count(f"{topic}\t{topic}\t1\t".encode()) >= 1


def test_a_target_of_another_mirror_is_left_to_it(
    broker: str, other: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, make(broker, topic, 1), range(6))
    tp, refused = TopicPartition(topic, 0), list[str]()

    def another() -> None:
        with pytest.raises(MirrorError, match=f"{topic} is written by first-{topic} already, from {topic}") as told:
            run_here(broker, other, f"second-{topic}", topics=[topic])
        refused.append(str(told.value))

    before(monkeypatch, MirrorHere, "carry_out", another)
    assert run_here(broker, other, f"first-{topic}", topics=[topic]).records == 6
    assert len(refused) == 1
    assert [value for _, value in offsets(other, topic, 0)] == [b"%d" % number for number in range(6)]
    with Admin(bootstrap_servers=other) as admin:
        assert not admin.list_group_offsets(f"second-{topic}:{topic}", [tp])


def test_two_mirrors_that_claim_a_target_at_once_mix_no_records(
    broker: str, other: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither sees the other's claim before its own; both see it then, and withdraw."""
    fill(broker, make(broker, topic, 1), range(6))
    unclaimed, met, failures = ReplayTarget._check_unclaimed, threading.Barrier(2), list[str]()

    def together(self: ReplayTarget, plans: Sequence[Any]) -> None:
        met.wait(60)
        try:
            unclaimed(self, plans)
        finally:
            met.wait(60)

    monkeypatch.setattr(ReplayTarget, "_check_unclaimed", together)

    def run(name: str) -> None:
        try:
            run_here(broker, other, f"{name}-{topic}", topics=[topic])
        except MirrorError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=run, args=(name,)) for name in ("first", "second")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    monkeypatch.undo()
    assert len(failures) == 2, failures
    with Admin(bootstrap_servers=other) as admin:
        assert not [group for group in admin.list_groups() if group.group_id.endswith(f":{topic}")]
    assert offsets(other, topic, 0) == []
    assert run_here(broker, other, f"first-{topic}", topics=[topic]).records == 6


def test_brokers_may_learn_of_a_topic_a_moment_after_it_was_made(
    gateway: str, other: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka's brokers answer CreateTopics before they tell of the topic."""
    fill(gateway, make(gateway, topic, 1), range(5))
    made, listed, looks = MirrorTopics.make, Admin.list_topics, list[int]()
    hidden = set[str]()

    def make_and_hide(self: MirrorTopics, seen: MirrorLook, *, validate_only: bool = False) -> None:
        made(self, seen, validate_only=validate_only)
        if not validate_only:
            hidden.add(topic)

    def describe_topics(self: Admin, wanted: Collection[str], **named: Any) -> Any:
        if hidden & set(wanted):
            looks.append(1)
            if len(looks) == 3:
                hidden.clear()
            raise UnknownTopicOrPartitionError("not yet")
        return described(self, wanted, **named)

    described = Admin.describe_topics
    monkeypatch.setattr(MirrorTopics, "make", make_and_hide)
    monkeypatch.setattr(Admin, "describe_topics", describe_topics)
    monkeypatch.setattr(
        Admin, "list_topics", lambda self, **named: [each for each in listed(self, **named) if each.name not in hidden]
    )
    assert run_here(gateway, other, topics=[topic]).records == 5
    assert len(looks) == 3


@pytest.mark.kafka
def test_timestamps_that_the_target_refuses_are_told_with_what_helps(
    gateway: str, kafka: KafkaServer, topic: str
) -> None:
    make(gateway, topic, 1, **{"message.timestamp.after.max.ms": str(2**63 - 1)})
    with Producer(bootstrap_servers=gateway) as producer:
        producer.send(topic, b"far ahead", timestamp=4_000_000_000_000).result()
    with pytest.raises(
        MirrorError, match=rf"{topic} takes no record with a timestamp .*message.timestamp.after.max.ms"
    ):
        run_here(gateway, kafka.bootstrap, topics=[topic], copy_settings=False)
    assert run_here(gateway, kafka.bootstrap, topics=[topic], prefix="same-").records == 1


@pytest.mark.kafka
def test_settings_that_kafka_4_knows_no_more(kafka3: KafkaServer, kafka: KafkaServer, topic: str) -> None:
    old = {"message.downconversion.enable": "false", "message.format.version": "3.0-IV1", "segment.ms": "7777777"}
    fill(kafka3.bootstrap, make(kafka3.bootstrap, topic, 1, **old), range(5))
    assert run_here(kafka3.bootstrap, kafka.bootstrap, topics=[topic]).records == 5
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    with Admin(bootstrap_servers=kafka.bootstrap) as admin:
        assert admin.describe_configs([resource])[resource]["segment.ms"].value == "7777777"
