"""The consumer against real Kafka and the gateway, beside an unmodified client in the same group."""

from __future__ import annotations

import re
import threading
import time
from typing import Any

import anyio
import confluent_kafka
import pytest

import kclient
from kclient import sync
from kclient.types import OffsetAndMetadata, TopicPartition
from tests.kafka_server import KafkaServer

RECORDS = 400


def make(broker: str, topic: str, partitions: int = 4) -> list[TopicPartition]:
    with sync.Admin(bootstrap_servers=broker) as admin:
        admin.create_topic(topic, partitions=partitions)
    return [TopicPartition(topic, number) for number in range(partitions)]


def fill(broker: str, topic: str, count: int = RECORDS, start: int = 0, **settings: Any) -> None:
    with sync.Producer(bootstrap_servers=broker, **settings) as producer:
        for number in range(start, start + count):
            producer.send(topic, b"%d" % number, partition=number % 4)


def settings(broker: str, group: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap_servers": broker,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "heartbeat_interval_ms": 200,
        **more,
    }


@pytest.mark.anyio
@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_read_as_records_and_columns(broker: str, topic: str, compression: str) -> None:
    await anyio.to_thread.run_sync(lambda: (make(broker, topic), fill(broker, topic, compression_type=compression)))
    async with kclient.Consumer(topic, **settings(broker, topic)) as consumer:
        values: list[int] = []
        with anyio.fail_after(30):
            while len(values) < RECORDS:
                values += [int(record.value) for record in await consumer.poll(1.0)]
            assert sorted(values) == list(range(RECORDS))
            consumer.seek_to_beginning()
            columns: list[int] = []
            while len(columns) < RECORDS:
                batch = await consumer.poll_arrow(1.0)
                columns += [int(value) for value in batch.column("value").to_pylist()]
        assert sorted(columns) == list(range(RECORDS))
        await consumer.commit()
        committed = await consumer.committed(consumer.assignment())
        assert sum(found.offset for found in committed.values() if found is not None) == RECORDS


def test_commits_seek_and_offsets(broker: str, topic: str) -> None:
    partitions = make(broker, topic)
    fill(broker, topic)
    with sync.Consumer(**settings(broker, topic)) as consumer:
        consumer.assign(partitions)
        assert consumer.end_offsets(partitions) == dict.fromkeys(partitions, 100)
        assert consumer.beginning_offsets(partitions) == dict.fromkeys(partitions, 0)
        consumer.seek(partitions[0], 42)
        assert consumer.position(partitions[0]) == 42
        consumer.pause(partitions[1:])
        found: list[Any] = []
        while not found:
            found = list(consumer.poll(1.0))
        assert (found[0].partition, found[0].offset) == (0, 42)
        now = found[0].timestamp
        times = consumer.offsets_for_times({partitions[1]: 0, partitions[2]: now + 10**7})
        assert times[partitions[1]] is not None
        assert times[partitions[1]].offset == 0
        assert times[partitions[2]] is None
        consumer.commit({partitions[3]: OffsetAndMetadata(7, "seven")})
        assert consumer.committed([partitions[3]])[partitions[3]].metadata == "seven"  # type: ignore[union-attr]
        assert topic in consumer.list_topics()


class Member(threading.Thread):
    """A blocking consumer in a thread, which counts what it reads until told to leave."""

    def __init__(self, broker: str, topic: str, **more: Any) -> None:
        super().__init__()
        self.values: list[int] = []
        self.partitions: set[TopicPartition] = set()
        self.leave = threading.Event()
        self.failure: BaseException | None = None
        self._topic = topic
        self._settings = settings(broker, topic, max_poll_records=20, **more)

    def run(self) -> None:
        try:
            with sync.Consumer(self._topic, **self._settings) as consumer:
                while not self.leave.is_set():
                    self.values += [int(record.value) for record in consumer.poll(0.05)]
                    self.partitions = consumer.assignment()
        except BaseException as error:
            self.failure = error


def until(met: Any, *members: Member, timeout: float = 45.0) -> None:
    deadline = time.monotonic() + timeout
    while not met():
        for member in members:
            if member.failure is not None:
                raise member.failure
        assert time.monotonic() < deadline, [(member.partitions, len(member.values)) for member in members]
        time.sleep(0.01)


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_a_group_shares_hands_over_and_takes_over(broker: str, topic: str, strategy: str) -> None:
    make(broker, topic)
    fill(broker, topic)
    first = Member(broker, topic, partition_assignment_strategy=strategy)
    second = Member(broker, topic, partition_assignment_strategy=strategy)
    first.start()
    until(lambda: len(first.partitions) == 4, first)
    second.start()
    until(lambda: len(first.partitions) == len(second.partitions) == 2, first, second)
    fill(broker, topic, start=RECORDS)
    until(lambda: len(first.values) + len(second.values) >= 2 * RECORDS, first, second)
    assert second.values
    first.leave.set()
    first.join()
    until(lambda: len(second.partitions) == 4, second)
    fill(broker, topic, start=2 * RECORDS)
    until(lambda: len(first.values) + len(second.values) >= 3 * RECORDS, second)
    second.leave.set()
    second.join()
    assert first.failure is second.failure is None
    assert sorted(first.values + second.values) == list(range(3 * RECORDS))  # commits before each handover


@pytest.mark.foreign
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_group_with_an_unmodified_client(broker: str, topic: str, strategy: str) -> None:
    make(broker, topic)
    fill(broker, topic)
    ours = Member(broker, topic, partition_assignment_strategy=strategy)
    ours.start()
    until(lambda: len(ours.partitions) == 4, ours)
    theirs = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker,
            "group.id": topic,
            "partition.assignment.strategy": strategy,
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": 200,
        }
    )
    theirs.subscribe([topic])
    values: list[int] = []

    def poll() -> None:
        message = theirs.poll(0.02)
        if message is not None and message.error() is None:
            values.append(int(message.value() or b""))

    def shared() -> bool:
        poll()
        return len(ours.partitions) == len(theirs.assignment()) == 2

    until(shared, ours)
    assert ours.partitions.isdisjoint({(found.topic, found.partition) for found in theirs.assignment()})
    fill(broker, topic, start=RECORDS)

    def all_read() -> bool:
        poll()
        return set(values) | set(ours.values) == set(range(2 * RECORDS))

    until(all_read, ours)
    theirs.close()
    until(lambda: len(ours.partitions) == 4, ours)
    ours.leave.set()
    ours.join()
    assert ours.failure is None


def test_a_static_member_keeps_its_partitions_over_a_restart(broker: str, topic: str) -> None:
    make(broker, topic)
    fill(broker, topic)

    def partitions(name: str) -> set[TopicPartition]:
        more = {"group_instance_id": name, "session_timeout_ms": 20_000}
        with sync.Consumer(topic, **settings(broker, topic, **more)) as consumer:
            while not consumer.assignment():
                consumer.poll(0.1)
            generations.append(consumer.group_metadata().generation_id)
            return consumer.assignment()

    generations: list[int] = []
    assert partitions("one") == partitions("one")
    assert generations[0] == generations[1]  # no rebalance


def test_a_consumer_goes_on_when_the_group_is_idle_for_a_while(broker: str, topic: str) -> None:
    make(broker, topic)
    with sync.Consumer(topic, **settings(broker, topic, session_timeout_ms=6000)) as consumer:
        end = time.monotonic() + 2.0
        while time.monotonic() < end:
            assert not consumer.poll(0.5)
        fill(broker, topic, 4)
        values: list[int] = []
        while len(values) < 4:
            values += [int(record.value) for record in consumer.poll(1.0)]
        assert sorted(values) == [0, 1, 2, 3]


@pytest.mark.kafka
def test_committed_reads_leave_out_aborted_transactions(kafka: KafkaServer, topic: str) -> None:
    make(kafka.bootstrap, topic)
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    expected = []
    for number in range(6):
        producer.begin_transaction()
        for partition in range(4):
            producer.produce(topic, b"%d" % (10 * number + partition), partition=partition)
        producer.flush(30)  # or an abort would drop what was not sent yet
        if number % 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
            expected += [10 * number + partition for partition in range(4)]
    with sync.Consumer(topic, **settings(kafka.bootstrap, topic, isolation_level="read_committed")) as consumer:
        values: list[int] = []
        end = time.monotonic() + 30
        while time.monotonic() < end and sum(consumer.position(tp) for tp in consumer.assignment()) < 48:
            values += [int(record.value) for record in consumer.poll(0.2)]
        assert sorted(values) == sorted(expected)
        consumer.seek_to_beginning()
        columns: list[int] = []
        while len(columns) < len(expected):
            batch = consumer.poll_arrow(5.0)
            columns += [int(value) for value in batch.column("value").to_pylist()]
        assert sorted(columns) == sorted(expected)
    with sync.Consumer(**settings(kafka.bootstrap, topic)) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        assert len(consumer.poll(10.0)) == 6  # read_uncommitted sees them all


@pytest.mark.kafka
def test_what_kafkas_own_tool_says_of_the_group(kafka: KafkaServer, topic: str) -> None:
    make(kafka.bootstrap, topic)
    fill(kafka.bootstrap, topic)
    with sync.Consumer(topic, **settings(kafka.bootstrap, topic, client_id="mine")) as consumer:
        count = 0
        while count < RECORDS:
            count += len(consumer.poll(1.0))
        consumer.commit()
        tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
        told = kafka.run_tool(tool, "--bootstrap-server", kafka.bootstrap, "--describe", "--group", topic)
        lines = [line.split() for line in told.splitlines() if topic in line]
        assert len(lines) == 4
        assert all(line[3:6] == ["100", "100", "0"] and "mine" in line[-1] for line in lines)


def test_a_new_topic_that_matches_a_pattern_rebalances_the_group_once(broker: str, topic: str) -> None:
    """Each of three members finds it by itself, sooner or later; what counts is the first."""
    make(broker, f"{topic}-a")
    pattern = re.compile(f"{topic}-.*")
    members = [sync.Consumer(**settings(broker, topic, metadata_max_age_ms=age)) for age in (300, 1500, 2000)]
    try:
        for member in members:
            member.subscribe(pattern)

        def settled(partitions: int) -> bool:
            for member in members:
                member.poll(0.05)
            generations = {member.group_metadata().generation_id for member in members}
            assigned = [tp for member in members for tp in member.assignment()]
            return len(generations) == 1 and len(assigned) == len(set(assigned)) == partitions

        def settle(partitions: int) -> int:
            deadline = time.monotonic() + 60
            while not settled(partitions):
                assert time.monotonic() < deadline
            quiet = time.monotonic() + 3  # everybody's metadata are refreshed
            while time.monotonic() < quiet:
                settled(partitions)
            assert settled(partitions)
            return members[0].group_metadata().generation_id

        before = settle(4)
        make(broker, f"{topic}-b")
        assert settle(8) == before + 1
    finally:
        for member in members:
            member.close()
