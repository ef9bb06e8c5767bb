"""Transactions of an unmodified confluent-kafka client at the gateway."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kclient.sync import Gateway
from tests.integration.test_gateway_foreign import CONFIG, PATIENCE_S, consumer, new_topic, read, send

confluent = pytest.importorskip("confluent_kafka")

pytestmark = pytest.mark.foreign


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Gateway(f"embedded:{tmp_path_factory.mktemp('gateway')}", "127.0.0.1:0", config=CONFIG) as gateway:
        yield gateway.bootstrap


def producer_of(bootstrap: str, name: str, **config: Any) -> Any:
    producer = confluent.Producer({"bootstrap.servers": bootstrap, "transactional.id": name, **config})
    producer.init_transactions(PATIENCE_S)
    return producer


def seen(bootstrap: str, topic: str, count: int, level: str = "read_committed") -> list[bytes]:
    """The first records that a reader of a topic sees, sorted, and whether there are more."""
    client = consumer(bootstrap, f"reader-{topic}-{level}", **{"isolation.level": level})
    client.subscribe([topic])
    found = [message.value() for message in read(client, count)]
    found += [message.value() for message in read(client, 1, seconds=0.5)]
    client.close()
    return sorted(found)


def test_what_is_committed_is_seen_and_what_is_aborted_is_not(served: str, topic: str) -> None:
    new_topic(served, topic)
    producer = producer_of(served, topic)
    expected = []
    for number in range(10):
        producer.begin_transaction()
        values = [b"%d-%d" % (number, each) for each in range(20)]
        for value in values:
            producer.produce(topic, value, key=value)
        if number % 3:
            producer.commit_transaction(PATIENCE_S)
            expected += values
        else:
            producer.flush(PATIENCE_S)
            producer.abort_transaction(PATIENCE_S)
    assert seen(served, topic, len(expected)) == sorted(expected)
    assert len(seen(served, topic, 200, "read_uncommitted")) == 200


def test_a_second_producer_fences_the_first(served: str, topic: str) -> None:
    new_topic(served, topic)
    first = producer_of(served, topic)
    first.begin_transaction()
    first.produce(topic, b"zombie")
    first.flush(PATIENCE_S)
    second = producer_of(served, topic)
    with pytest.raises(confluent.KafkaException) as fenced:
        first.commit_transaction(PATIENCE_S)
    assert fenced.value.args[0].code() in {confluent.KafkaError._FENCED, confluent.KafkaError.PRODUCER_FENCED}
    assert fenced.value.args[0].fatal()
    second.begin_transaction()
    second.produce(topic, b"second")
    second.commit_transaction(PATIENCE_S)
    assert seen(served, topic, 1) == [b"second"]


def test_consume_transform_produce(served: str, topic: str) -> None:
    """Each half ends amid a transaction, and the other goes on where the last commit was."""
    target, count = f"{topic}-target", 60
    new_topic(served, topic)
    new_topic(served, target)
    send(served, topic, [b"%d" % number for number in range(count)])
    done = 0
    for attempt in range(3):
        producer = producer_of(served, topic)
        client = consumer(served, topic, **{"isolation.level": "read_committed"})
        client.subscribe([topic])
        while done < count:
            messages = read(client, min(10, count - done))
            assert messages
            producer.begin_transaction()
            for message in messages:
                producer.produce(target, message.value())
            positions = client.position(client.assignment())
            producer.send_offsets_to_transaction(positions, client.consumer_group_metadata(), PATIENCE_S)
            if done >= 20 * (attempt + 1):
                producer.flush(PATIENCE_S)
                break
            producer.commit_transaction(PATIENCE_S)
            done += len(messages)
        client.close()
    assert done == count
    assert sorted(map(int, seen(served, target, count))) == list(range(count))
    client = consumer(served, topic)
    committed = client.committed([confluent.TopicPartition(topic, number) for number in range(4)], PATIENCE_S)
    client.close()
    assert sum(each.offset for each in committed if each.offset > 0) == count
