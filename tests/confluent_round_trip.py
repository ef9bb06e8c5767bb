"""A record goes to a topic and comes back, by confluent-kafka."""

from __future__ import annotations

from collections.abc import Mapping

import pytest


def produce_and_consume(settings: Mapping[str, object], topic: str) -> None:
    """Produce a record and consume it as a member of a group that is called as the topic is.

    Args:
        settings: Of librdkafka: where the broker is, and how to get in.
        topic: Of which there is none yet, or that is empty.
    """
    confluent = pytest.importorskip("confluent_kafka")
    producer = confluent.Producer({**settings, "linger.ms": 0})
    producer.produce(topic, b"value")
    assert producer.flush(20) == 0
    consumer = confluent.Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = consumer.poll(20)
    assert message is not None
    assert message.value() == b"value"
    consumer.close()
