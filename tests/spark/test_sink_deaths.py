"""The exactly-once sink's driver dies at each request, and at random: what is committed then is there once."""

from __future__ import annotations

from typing import Any

import pytest

from kclient.spark.sink_driver import abort_batch, commit_batch
from kclient.spark.sink_records import ExactlyOnceError
from kclient.sync import Admin, Consumer, open_transactions
from kclient.types import TopicPartition
from tests import sink_deaths
from tests.kafka_server import KafkaServer
from tests.spark.archives import create, recreate

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


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


def committed(bootstrap: str, topic: str, partitions: int = 2) -> list[str]:
    """What readers of what is committed see; they would wait for anything that is open."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        listed = admin.list_transactions(states=["Ongoing"])
        assert [row.transactional_id for row in listed if row.transactional_id.startswith(topic)] == []
    found: list[str] = []
    with Consumer(
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    ) as consumer:
        assigned = [TopicPartition(topic, number) for number in range(partitions)]
        consumer.assign(assigned)
        ends = consumer.end_offsets(assigned)
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            found += [record.value.decode() for record in consumer.poll(timeout=1.0)]
    return sorted(found)


@pytest.mark.parametrize(
    "brokers",
    [
        pytest.param("gateway", marks=pytest.mark.long),
        pytest.param("kafka", marks=pytest.mark.kafka),
        pytest.param("kafka3", marks=[pytest.mark.kafka, pytest.mark.long]),
    ],
    indirect=True,
)
def test_at_each_request(brokers: str, topic: str) -> None:
    create(brokers, topic)
    batches = sink_deaths.start(brokers, topic, timeout=500)
    assert batches >= 18, "some requests for each of three tasks, and those of the driver, on both sides"
    assert committed(brokers, topic) == sink_deaths.expected(batches)


@pytest.mark.parametrize("when", ["before the decision", "before the ends", "after the ends"])
def test_a_topic_that_is_created_again(brokers: str, topic: str, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told, and the batch is written as a whole when it is done again."""
    create(brokers, topic)
    options = sink_deaths.options_of(brokers, topic)
    outcomes = [sink_deaths.write(options, index, 0, 0) for index in range(sink_deaths.TASKS)]
    commit_open = open_transactions.commit_open

    def committing(*arguments: Any, **named: Any) -> Any:
        if when == "before the ends":
            recreate(brokers, topic)
        found = commit_open(*arguments, **named)
        if when == "after the ends":
            recreate(brokers, topic)
        return found

    if when == "before the decision":
        recreate(brokers, topic)
    monkeypatch.setattr(open_transactions, "commit_open", committing)
    with pytest.raises(ExactlyOnceError, match=rf"the topic {topic} was deleted and created again"):
        commit_batch(options, 0, outcomes)
    monkeypatch.undo()
    abort_batch(options, options.sink or "", outcomes)
    again = [sink_deaths.write(options, index, 0, 0) for index in range(sink_deaths.TASKS)]
    assert commit_batch(options, 0, again) == len(sink_deaths.expected(1))
    assert committed(brokers, topic) == sink_deaths.expected(1)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_again_and_again(brokers: str, topic: str, seed: int) -> None:
    create(brokers, topic)
    batches = sink_deaths.start(brokers, topic, str(seed), "8", timeout=550)
    assert committed(brokers, topic) == sink_deaths.expected(batches)
