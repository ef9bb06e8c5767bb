"""Groups of unmodified clients on the gateway: confluent-kafka, aiokafka, kafka-python, and Kafka's own tool."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kclient.sync import Consumer
from tests.kafka_artifacts import KAFKA_4

confluent = pytest.importorskip("confluent_kafka")
admin = pytest.importorskip("confluent_kafka.admin")
aiokafka = pytest.importorskip("aiokafka")

pytestmark = pytest.mark.foreign

PATIENCE_S = 40.0
VALUES = [b"%d" % number for number in range(200)]


def produce(bootstrap: str, topic: str) -> None:
    producer = confluent.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for value in VALUES:
        producer.produce(topic, value, key=value)
    assert producer.flush(PATIENCE_S) == 0


def make_topic(bootstrap: str, topic: str) -> None:
    client = admin.AdminClient({"bootstrap.servers": bootstrap})
    client.create_topics([admin.NewTopic(topic, 4, 1)])[topic].result(PATIENCE_S)


@contextlib.contextmanager
def consumer(bootstrap: str, group: str, topic: str, **config: Any) -> Iterator[Any]:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 10_000,
        "heartbeat.interval.ms": 300,
    }
    config = {key if key.endswith("_cb") else key.replace("_", "."): value for key, value in config.items()}
    client = confluent.Consumer({**settings, **config})
    client.subscribe([topic])
    try:
        yield client
    finally:
        client.close()


def until(condition: Callable[[], bool], *clients: Any) -> None:
    """Poll the clients until something holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, [client.assignment() for client in clients]
        for client in clients:
            client.poll(0.05)


def partitions(client: Any) -> list[int]:
    return sorted(each.partition for each in client.assignment())


# ---- confluent-kafka ----------------------------------------------------------------------------------------


def test_cooperative_members_keep_what_they_have(gateway: str, topic: str) -> None:
    make_topic(gateway, topic)
    lost: list[int] = []

    def on_revoke(client: Any, revoked: list[Any]) -> None:
        lost.extend(each.partition for each in revoked)
        client.incremental_unassign(revoked)

    strategy = {"partition_assignment_strategy": "cooperative-sticky"}
    with consumer(gateway, topic, topic, **strategy) as first:
        first.unsubscribe()
        first.subscribe([topic], on_revoke=on_revoke)
        until(lambda: len(partitions(first)) == 4, first)
        with consumer(gateway, topic, topic, **strategy) as second:
            until(lambda: len(partitions(first)) == len(partitions(second)) == 2, first, second)
            assert sorted(partitions(first) + partitions(second)) == [0, 1, 2, 3]
            assert sorted(lost) == partitions(second)


def test_static_member_restarts_without_a_rebalance(gateway: str, topic: str) -> None:
    make_topic(gateway, topic)
    rebalanced: list[Any] = []
    with consumer(gateway, topic, topic, group_instance_id="one") as first:
        first.unsubscribe()
        first.subscribe([topic], on_assign=lambda _, given: rebalanced.append(given))
        with consumer(gateway, topic, topic, group_instance_id="two") as second:
            until(lambda: len(partitions(first)) == len(partitions(second)) == 2, first, second)
            before = partitions(second)
        assert rebalanced
        rebalanced.clear()
        with consumer(gateway, topic, topic, group_instance_id="two") as second:
            until(lambda: len(partitions(second)) == 2, first, second)
            assert partitions(second) == before
            assert len(partitions(first)) == 2
        assert not rebalanced


def test_second_user_of_an_instance_id_fences_the_first(gateway: str, topic: str) -> None:
    make_topic(gateway, topic)
    errors: list[Any] = []
    with consumer(gateway, topic, topic, group_instance_id="one") as first:
        until(lambda: len(partitions(first)) == 4, first)
        with consumer(gateway, topic, topic, group_instance_id="one") as second:
            deadline = time.monotonic() + PATIENCE_S
            while not errors or len(partitions(second)) != 4:
                assert time.monotonic() < deadline
                second.poll(0.05)
                message = first.poll(0.05)
                if message is not None and message.error() is not None:
                    errors.append(message.error())
    assert errors[0].code() in (confluent.KafkaError._FATAL, confluent.KafkaError.FENCED_INSTANCE_ID)


def test_administration_of_groups(gateway: str, topic: str) -> None:
    make_topic(gateway, topic)
    produce(gateway, topic)
    client = admin.AdminClient({"bootstrap.servers": gateway})
    group = f"{topic}-group"
    with consumer(gateway, group, topic, client_id="me") as member:
        until(lambda: len(partitions(member)) == 4, member)
        described = client.describe_consumer_groups([group])[group].result(PATIENCE_S)
        assert described.state.name == "STABLE"
        assert described.partition_assignor == "range"
        assert described.members[0].client_id == "me"
        assert len(described.members[0].assignment.topic_partitions) == 4
        assert described.coordinator.port == int(gateway.rpartition(":")[2])
        member.commit(offsets=[confluent.TopicPartition(topic, 0, 7, metadata="note")], asynchronous=False)
        with pytest.raises(confluent.KafkaException) as caught:
            client.delete_consumer_groups([group])[group].result(PATIENCE_S)
        assert caught.value.args[0].code() == confluent.KafkaError.NON_EMPTY_GROUP
    listed = client.list_consumer_groups(states={confluent.ConsumerGroupState.EMPTY}).result(PATIENCE_S)
    assert group in {found.group_id for found in listed.valid}
    wanted = confluent.ConsumerGroupTopicPartitions(group)
    found = client.list_consumer_group_offsets([wanted])[group].result(PATIENCE_S)
    assert [(each.partition, each.offset, each.metadata) for each in found.topic_partitions] == [(0, 7, "note")]
    places = [confluent.TopicPartition(topic, number, 3) for number in range(4)]
    changed = confluent.ConsumerGroupTopicPartitions(group, places)
    client.alter_consumer_group_offsets([changed])[group].result(PATIENCE_S)
    found = client.list_consumer_group_offsets([wanted])[group].result(PATIENCE_S)
    assert [each.offset for each in found.topic_partitions] == [3, 3, 3, 3]
    client.delete_consumer_groups([group])[group].result(PATIENCE_S)
    with pytest.raises(confluent.KafkaException) as caught:
        client.delete_consumer_groups([group])[group].result(PATIENCE_S)
    assert caught.value.args[0].code() == confluent.KafkaError.GROUP_ID_NOT_FOUND


# ---- pure Python clients -------------------------------------------------------------------------------------


def test_two_members_of_aiokafka(gateway: str, topic: str) -> None:
    make_topic(gateway, topic)
    produce(gateway, topic)

    async def member() -> Any:
        client = aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=gateway, group_id=topic, auto_offset_reset="earliest",
            enable_auto_commit=False, heartbeat_interval_ms=300,
        )  # fmt: skip
        await client.start()
        return client

    async def run() -> None:
        first, second = await asyncio.gather(member(), member())
        seen: list[bytes] = []
        while len(first.assignment()) != 2 or len(second.assignment()) != 2:
            for client in (first, second):
                for records in (await client.getmany(timeout_ms=100)).values():
                    seen += [record.value for record in records]
        while len(set(seen)) < len(VALUES):
            for client in (first, second):
                for records in (await client.getmany(timeout_ms=100)).values():
                    seen += [record.value for record in records]
        await first.commit()
        await second.commit()
        await first.stop()
        await second.stop()

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_kafka_python_goes_on_where_it_stopped(gateway: str, topic: str, kafka_python: Any) -> None:
    make_topic(gateway, topic)
    produce(gateway, topic)

    def read(count: int) -> set[bytes]:
        client = kafka_python.KafkaConsumer(
            topic, bootstrap_servers=gateway, group_id=topic, auto_offset_reset="earliest", enable_auto_commit=False
        )
        seen: set[bytes] = set()
        deadline = time.monotonic() + PATIENCE_S
        while len(seen) < count and time.monotonic() < deadline:
            for records in client.poll(timeout_ms=500, max_records=count - len(seen)).values():
                seen.update(record.value for record in records)
        client.commit()
        client.close()
        return seen

    first = read(50)
    second = read(len(VALUES) - len(first))
    assert not first & second
    assert first | second == set(VALUES)


# ---- Kafka's own tool -------------------------------------------------------------------------------------------


@pytest.mark.maven
def test_consumer_group_command(gateway: str, topic: str, kafka_jars_4: object, tmp_path: Any) -> None:
    from tests.kafka_server import JavaTools

    make_topic(gateway, topic)
    produce(gateway, topic)
    tools = JavaTools(KAFKA_4, tmp_path)

    def command(*arguments: str) -> str:
        tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
        return tools.run(tool, "--bootstrap-server", gateway, "--group", topic, *arguments)

    with consumer(gateway, topic, topic, client_id="me") as member:
        until(lambda: len(partitions(member)) == 4, member)
        shown = command("--describe")
        assert shown.count(topic) >= 8, shown
        assert "me" in shown
        assert "Stable" in command("--describe", "--state")
    reset = command("--reset-offsets", "--to-offset", "5", "--topic", topic, "--execute")
    assert reset.count(topic) >= 4, reset
    rows = [line.split() for line in command("--describe").splitlines() if line.startswith(topic)]
    assert {row[3] for row in rows} == {"5"}
    ends = sum(int(row[4]) for row in rows)
    lags = sum(int(row[5]) for row in rows)
    assert (ends, lags) == (len(VALUES), len(VALUES) - 20)
    deleted = command("--delete-offsets", "--topic", topic)
    assert "Successful" in deleted, deleted
    assert "deletion" in command("--delete").lower()


# ---- and our own beside them --------------------------------------------------------------------------------------


def test_our_member_and_a_foreign_one_share_a_group(gateway: str, topic: str) -> None:
    make_topic(gateway, topic)
    produce(gateway, topic)
    seen: set[bytes] = set()
    deadline = time.monotonic() + PATIENCE_S
    with (
        Consumer(topic, group_id=topic, bootstrap_servers=gateway, auto_offset_reset="earliest") as ours,
        consumer(gateway, topic, topic) as foreign,
    ):
        while len(seen) < len(VALUES) or (len(ours.assignment()), len(partitions(foreign))) != (2, 2):
            assert time.monotonic() < deadline, (ours.assignment(), foreign.assignment())
            seen.update(record.value for record in ours.poll(timeout=0.1))
            seen.update(message.value() for message in foreign.consume(100, 0.1))
