"""An unmodified confluent-kafka client against the gateway: only the broker's address is ours."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kclient.sync import Gateway

confluent = pytest.importorskip("confluent_kafka")
admin = pytest.importorskip("confluent_kafka.admin")

pytestmark = pytest.mark.foreign

CONFIG = {"group.initial.rebalance.delay.ms": 0, "num.partitions": 4, "group.min.session.timeout.ms": 1000}
PATIENCE_S = 30.0


def serve(data: Path, port: int = 0) -> Gateway:
    gateway = Gateway(f"embedded:{data}", f"127.0.0.1:{port}", config=CONFIG)
    gateway.start()
    return gateway


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway for all tests of this module that do not stop it."""
    gateway = serve(tmp_path_factory.mktemp("gateway"))
    yield gateway.bootstrap
    gateway.close()


def new_topic(bootstrap: str, name: str, partitions: int = 4, **config: str) -> None:
    client = admin.AdminClient({"bootstrap.servers": bootstrap})
    settings = {key.replace("_", "."): value for key, value in config.items()}
    client.create_topics([admin.NewTopic(name, partitions, 3, config=settings)])[name].result(PATIENCE_S)


def send(bootstrap: str, topic: str, values: list[bytes], **config: Any) -> list[Any]:
    """Produce, one by one; the delivered messages."""
    delivered: list[Any] = []
    failed: list[Any] = []
    producer = confluent.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **config})

    def report(error: Any, message: Any) -> None:
        (failed if error else delivered).append(error or message)

    for number, value in enumerate(values):
        producer.produce(topic, value, key=str(number), headers={"n": str(number)}, on_delivery=report)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    assert not failed
    return delivered


def consumer(bootstrap: str, group: str, **config: Any) -> Any:
    return confluent.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 500,
            **config,
        }
    )


def read(client: Any, count: int, *, seconds: float = PATIENCE_S) -> list[Any]:
    """So many messages, or what came in time."""
    found: list[Any] = []
    deadline = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < deadline:
        for message in client.consume(count - len(found), 0.5):
            assert message.error() is None, message.error()
            found.append(message)
    return found


VALUES = [b"value %d " % number + b"x" * 50 for number in range(1000)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [False, True])
def test_what_is_produced_is_consumed(served: str, topic: str, codec: str, idempotent: bool) -> None:
    new_topic(served, topic)
    settings = {"enable.idempotence": idempotent, "compression.type": codec}
    delivered = send(served, topic, VALUES, **settings)
    assert len({(message.partition(), message.offset()) for message in delivered}) == len(VALUES)
    client = consumer(served, topic)
    client.subscribe([topic])
    found = read(client, len(VALUES))
    client.close()
    assert sorted(message.value() for message in found) == sorted(VALUES)
    for message in found:
        assert message.headers() == [("n", message.key())]
        assert message.value() == VALUES[int(message.key())]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(served: str, topic: str, acks: str) -> None:
    new_topic(served, topic, 1)
    send(served, topic, VALUES[:100], acks=acks)
    client = consumer(served, topic)
    client.assign([confluent.TopicPartition(topic, 0, 0)])
    assert [message.value() for message in read(client, 100)] == VALUES[:100]
    client.close()


def test_a_topic_is_made_by_producing_to_it(served: str, topic: str) -> None:
    send(served, topic, VALUES[:10])
    found = admin.AdminClient({"bootstrap.servers": served}).list_topics(topic, timeout=PATIENCE_S)
    assert len(found.topics[topic].partitions) == CONFIG["num.partitions"]


def test_a_group_of_two_shares_and_takes_over(served: str, topic: str) -> None:
    new_topic(served, topic)
    first, second = consumer(served, topic), consumer(served, topic)
    first.subscribe([topic])
    while not first.assignment():
        first.poll(0.1)
    assert len(first.assignment()) == 4
    second.subscribe([topic])
    deadline = time.monotonic() + PATIENCE_S
    while (len(first.assignment()), len(second.assignment())) != (2, 2):
        assert time.monotonic() < deadline, (first.assignment(), second.assignment())
        first.poll(0.1)
        second.poll(0.1)
    send(served, topic, VALUES)
    found: list[Any] = []
    while len(found) < len(VALUES) and time.monotonic() < deadline:
        found += read(first, len(VALUES), seconds=0.2) + read(second, len(VALUES), seconds=0.2)
    assert sorted(message.value() for message in found) == sorted(VALUES)
    first.commit(asynchronous=False)
    second.commit(asynchronous=False)
    first.close()
    send(served, topic, VALUES)
    taken_over = read(second, len(VALUES))
    assert sorted(message.value() for message in taken_over) == sorted(VALUES)
    assert len(second.assignment()) == 4
    second.close()


def test_commits_and_records_outlive_the_gateway(tmp_path: Path, topic: str) -> None:
    gateway = serve(tmp_path / "data")
    bootstrap = gateway.bootstrap
    try:
        new_topic(bootstrap, topic, 1)
        send(bootstrap, topic, VALUES[:100], **{"enable.idempotence": True})
        client = consumer(bootstrap, "group")
        client.subscribe([topic])
        half = read(client, 50)
        client.commit(message=half[-1], asynchronous=False)
        client.close()
    finally:
        gateway.close()
    gateway = serve(tmp_path / "data", int(bootstrap.rpartition(":")[2]))
    try:
        client = consumer(bootstrap, "group")
        committed = client.committed([confluent.TopicPartition(topic, 0)], PATIENCE_S)
        assert [item.offset for item in committed] == [50]
        client.subscribe([topic])
        assert [message.value() for message in read(client, 50)] == VALUES[50:100]
        client.close()
    finally:
        gateway.close()


def test_clients_go_on_by_themselves_when_the_gateway_restarts(tmp_path: Path, topic: str) -> None:
    gateway = serve(tmp_path / "data")
    bootstrap = gateway.bootstrap
    new_topic(bootstrap, topic, 1)
    delivered: list[Any] = []
    producer = confluent.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "reconnect.backoff.max.ms": 200}
    )
    client = consumer(bootstrap, "group", **{"reconnect.backoff.max.ms": 200, "log_level": 0})
    try:
        client.subscribe([topic])
        for number, value in enumerate(VALUES):
            producer.produce(topic, value, on_delivery=lambda error, message: delivered.append(error or message))
            producer.poll(0)
            if number == 500:
                gateway.close()
                gateway = serve(tmp_path / "data", int(bootstrap.rpartition(":")[2]))
        assert producer.flush(PATIENCE_S) == 0
        assert [message.offset() for message in delivered] == list(range(len(VALUES)))
        found: list[bytes] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < len(VALUES) and time.monotonic() < deadline:
            found += [message.value() for message in client.consume(1000, 0.5) if message.error() is None]
        assert found == VALUES  # nothing lost, nothing twice, in order
    finally:
        client.close()
        gateway.close()


def test_seeking_by_time(served: str, topic: str) -> None:
    new_topic(served, topic, 1)
    producer = confluent.Producer({"bootstrap.servers": served})
    start = int(time.time() * 1000) - 1_000_000
    for number in range(100):
        producer.produce(topic, b"%d" % number, timestamp=start + 1000 * number)
        if number % 10 == 9:
            producer.flush(PATIENCE_S)
    client = consumer(served, topic)
    asked = [confluent.TopicPartition(topic, 0, start + moment) for moment in (0, 44_500, 99_000)]
    found = [client.offsets_for_times([item], PATIENCE_S)[0].offset for item in asked]
    assert found == [0, 45, 99]
    assert client.offsets_for_times([confluent.TopicPartition(topic, 0, start + 10**6)], PATIENCE_S)[0].offset == -1
    assert client.get_watermark_offsets(confluent.TopicPartition(topic, 0), PATIENCE_S) == (0, 100)
    client.assign([confluent.TopicPartition(topic, 0, 45)])
    assert read(client, 1)[0].value() == b"45"
    client.seek(confluent.TopicPartition(topic, 0, 99))
    assert read(client, 1)[0].value() == b"99"
    client.close()


def test_administration(served: str, topic: str) -> None:
    client = admin.AdminClient({"bootstrap.servers": served})
    new_topic(served, topic, 2, retention_ms="60000")
    resource = admin.ConfigResource(admin.ResourceType.TOPIC, topic)
    config = client.describe_configs([resource])[resource].result(PATIENCE_S)
    assert (config["retention.ms"].value, config["retention.ms"].is_default) == ("60000", False)
    assert config["max.message.bytes"].is_default
    changed = admin.ConfigResource(
        admin.ResourceType.TOPIC,
        topic,
        incremental_configs=[
            admin.ConfigEntry("retention.ms", "5", incremental_operation=admin.AlterConfigOpType.SET),
        ],
    )
    client.incremental_alter_configs([changed])[changed].result(PATIENCE_S)
    config = client.describe_configs([resource])[resource].result(PATIENCE_S)
    assert config["retention.ms"].value == "5"
    client.create_partitions([admin.NewPartitions(topic, 5)])[topic].result(PATIENCE_S)
    assert len(client.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions) == 5
    described = client.describe_topics(confluent.TopicCollection([topic]))[topic].result(PATIENCE_S)
    assert len(described.partitions) == 5
    cluster = client.describe_cluster().result(PATIENCE_S)
    assert [node.id for node in cluster.nodes] == [1]
    client.delete_topics([topic])[topic].result(PATIENCE_S)
    assert topic not in client.list_topics(timeout=PATIENCE_S).topics
    with pytest.raises(confluent.KafkaException) as caught:
        client.delete_topics([topic])[topic].result(PATIENCE_S)
    assert caught.value.args[0].code() == confluent.KafkaError.UNKNOWN_TOPIC_OR_PART


def test_deleting_records(served: str, topic: str) -> None:
    new_topic(served, topic, 1)
    send(served, topic, VALUES[:100])
    client = admin.AdminClient({"bootstrap.servers": served})
    place = confluent.TopicPartition(topic, 0, 60)
    assert client.delete_records([place])[place].result(PATIENCE_S).low_watermark == 60
    reader = consumer(served, topic)
    reader.subscribe([topic])
    assert [message.value() for message in read(reader, 40)] == VALUES[60:100]
    reader.close()


def test_a_message_that_is_too_large(served: str, topic: str) -> None:
    new_topic(served, topic, 1, max_message_bytes="1000")
    errors: list[Any] = []
    producer = confluent.Producer({"bootstrap.servers": served})
    producer.produce(topic, b"x" * 2000, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert errors[0].code() == confluent.KafkaError.MSG_SIZE_TOO_LARGE
