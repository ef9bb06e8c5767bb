"""A task of the data source whose topic changes between planning and reading, against real Kafka and the gateway."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from kclient.errors import KafkaTimeoutError, OffsetOutOfRangeError
from kclient.spark.cluster import LiveCluster
from kclient.spark.options import ReadOptions, parse_read_options
from kclient.spark.ranges import DataLossError, OffsetRange, resolve_ranges
from kclient.spark.reading import RangeReader
from kclient.sync import Admin, Consumer
from kclient.types import TopicPartition
from tests.spark.archives import create, fill, fill_many, recreate

QUICK_S = 30
"""Far below the two minutes of `kafkaConsumer.pollTimeoutMs`; it takes two or three seconds."""


@pytest.fixture(autouse=True)
def in_no_time() -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < QUICK_S


def options_for(broker: str, topic: str, **more: str) -> ReadOptions:
    return parse_read_options({"kafka.bootstrap.servers": broker, "subscribe": topic, **more})


def planned(broker: str, topic: str) -> OffsetRange:
    """The range of partition 0."""
    options = options_for(broker, topic)
    with LiveCluster(options.settings) as cluster:
        return resolve_ranges(cluster, options)[0]


def values(reader: RangeReader) -> list[int]:
    return [int(value) for batch in reader.batches() for value in batch.column("value").to_pylist()]


def refused(broker: str, topic: str, wanted: OffsetRange, what: str) -> None:
    """With the default it is an error that names the topic and the remedy; with failOnDataLoss=false it goes on."""
    with pytest.raises(DataLossError, match=rf"{topic}-0: .*{what}.* by failOnDataLoss=false"):
        values(RangeReader(options_for(broker, topic), wanted))


def test_a_topic_that_was_deleted(broker: str, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    create(broker, topic)
    fill(broker, topic, range(10))
    wanted = planned(broker, topic)
    with Admin(bootstrap_servers=broker) as admin:
        admin.delete_topic(topic)
    refused(broker, topic, wanted, "the topic was deleted, and the records from offset 0 to before 5 are gone")
    with caplog.at_level(logging.WARNING, "kclient.spark"):
        reader = RangeReader(options_for(broker, topic, failOnDataLoss="false"), wanted)
        assert values(reader) == []
    assert reader.lost == [(0, 5)]
    assert f"{topic}-0: the topic was deleted" in caplog.text
    assert "going on, because of failOnDataLoss=false" in caplog.text


@pytest.mark.parametrize("length", [4, 400], ids=["shorter", "longer"])
def test_a_topic_that_was_created_again(broker: str, topic: str, length: int) -> None:
    create(broker, topic)
    fill(broker, topic, range(100))
    wanted = planned(broker, topic)
    recreate(broker, topic)
    fill(broker, topic, range(1000, 1000 + length))
    refused(broker, topic, wanted, "the topic was deleted and created again")
    assert values(RangeReader(options_for(broker, topic, failOnDataLoss="false"), wanted)) == []


@pytest.mark.parametrize("lenient", ["true", "false"])
def test_a_topic_that_is_created_again_while_it_is_read(broker: str, topic: str, lenient: str) -> None:
    create(broker, topic)
    fill_many(broker, topic, 200_000)
    wanted = planned(broker, topic)
    options = options_for(
        broker, topic, failOnDataLoss="false" if lenient == "true" else "true",
        **{"kafka.max.partition.fetch.bytes": "100000", "kafka.fetch.max.bytes": "100000"},
    )  # fmt: skip
    reader = RangeReader(options, wanted)
    batches = reader.batches()
    read = next(batches).num_rows
    recreate(broker, topic)
    fill(broker, topic, range(10))
    found = read
    if lenient == "true":
        for batch in batches:
            assert len(batch.column("value")[0].as_py()) == 100  # and none of the new topic
            found += batch.num_rows
        assert reader.lost[-1][1] == wanted.end
        assert 0 < found < 100_000
    else:
        with pytest.raises(DataLossError, match="created again"):
            for batch in batches:
                found += batch.num_rows


@pytest.mark.parametrize("lenient", ["true", "false"])
def test_a_topic_that_is_created_again_between_a_batch_and_its_position(
    broker: str, topic: str, lenient: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(broker, topic)
    fill_many(broker, topic, 200_000)
    wanted = planned(broker, topic)
    small = {"kafka.max.partition.fetch.bytes": "100000", "kafka.fetch.max.bytes": "100000"}
    reader = RangeReader(
        options_for(broker, topic, failOnDataLoss="false" if lenient == "true" else "true", **small), wanted
    )
    find, found = Consumer.position, 0
    problems: list[OffsetOutOfRangeError] = []

    def meanwhile(consumer: Consumer, partition: TopicPartition) -> int:
        if found and not problems:
            recreate(broker, topic)
            while not problems:  # until the consumer has noticed; the test has its own limit
                try:
                    consumer.poll_arrow(timeout=0.1)  # nothing is fetched while the buffer is full
                    find(consumer, partition)
                except OffsetOutOfRangeError as error:
                    problems.append(error)
                    raise
        return find(consumer, partition)

    monkeypatch.setattr(Consumer, "position", meanwhile)
    with nullcontext() if lenient == "true" else pytest.raises(DataLossError, match="created again"):
        for batch in reader.batches():
            found += batch.num_rows
    assert problems
    assert 0 < found < 100_000
    if lenient == "true":
        assert reader.lost == [(found, wanted.end)]


def test_records_that_were_deleted_since(broker: str, topic: str) -> None:
    create(broker, topic)
    fill(broker, topic, range(20))
    wanted = planned(broker, topic)
    with Admin(bootstrap_servers=broker) as admin:
        admin.delete_records({TopicPartition(topic, 0): 7})
    refused(broker, topic, wanted, "the log begins at 7 now, and the records from offset 0 to before 7")
    lenient = options_for(broker, topic, failOnDataLoss="false")
    assert values(RangeReader(lenient, wanted)) == [14, 16, 18]
    with Admin(bootstrap_servers=broker) as admin:
        admin.delete_records({TopicPartition(topic, 0): 10})
    assert values(RangeReader(lenient, wanted)) == []


def test_a_log_that_ends_before_the_range(broker: str, topic: str) -> None:
    """As after an unclean election of a leader that had less."""
    create(broker, topic)
    fill(broker, topic, range(10))
    whole = planned(broker, topic)
    wanted = OffsetRange(whole.topic, whole.partition, 0, 50, whole.topic_id)
    refused(broker, topic, wanted, "the log was cut back and ends at 5 now, and the records from offset 5 to before 50")
    assert values(RangeReader(options_for(broker, topic, failOnDataLoss="false"), wanted)) == [0, 2, 4, 6, 8]


def test_the_progress_of_a_range(gateway: str, topic: str) -> None:
    create(gateway, topic)
    fill_many(gateway, topic, 10_000)
    reached: list[int] = []
    wanted = planned(gateway, topic)
    rows = values(RangeReader(options_for(gateway, topic), wanted, reached.append))
    assert len(rows) == 5000
    assert reached == sorted(reached)
    assert reached[-1] == 5000


def test_only_a_broker_that_is_silent_is_waited_for(gateway: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the topic is what it was and nothing comes, the timeout counts, and the text says so."""
    from kclient.sync import Consumer

    create(gateway, topic)
    fill(gateway, topic, range(10))
    wanted = planned(gateway, topic)
    options = options_for(gateway, topic, **{"kafkaConsumer.pollTimeoutMs": "700"})
    original = Consumer.poll_arrow

    def nothing(consumer: Consumer, timeout: float, **options: Any) -> object:
        consumer.pause(consumer.assignment())
        return original(consumer, timeout, **options)

    monkeypatch.setattr(Consumer, "poll_arrow", nothing)
    with pytest.raises(KafkaTimeoutError, match="nothing arrived for 700 ms at offset 0 of 5; the topic is there"):
        values(RangeReader(options, wanted))
