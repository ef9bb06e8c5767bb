"""Kafka's own command line tools and verifiable clients against the gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kclient.sync import Consumer, Gateway, Producer
from kclient.types import TopicPartition
from tests.kafka_artifacts import KAFKA_4
from tests.kafka_server import JavaTools

pytestmark = [pytest.mark.foreign, pytest.mark.maven]

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    config = {"group.initial.rebalance.delay.ms": 0, "num.partitions": 4}
    with Gateway(f"embedded:{tmp_path_factory.mktemp('gateway')}", "127.0.0.1:0", config=config) as gateway:
        yield gateway.bootstrap


@pytest.fixture(scope="module")
def tools(kafka_jars_4: Path, tmp_path_factory: pytest.TempPathFactory) -> JavaTools:
    return JavaTools(KAFKA_4, tmp_path_factory.mktemp("tools"))


def events(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def test_topics(served: str, tools: JavaTools, topic: str) -> None:
    def run(*arguments: str) -> str:
        return tools.run(TOPICS, "--bootstrap-server", served, *arguments)

    created = run("--create", "--topic", topic, "--partitions", "3", "--replication-factor", "2",
                  "--config", "retention.ms=60000")  # fmt: skip
    assert f"Created topic {topic}" in created
    assert topic in run("--list").split()
    described = run("--describe", "--topic", topic)
    assert "PartitionCount: 3" in described
    assert "retention.ms=60000" in described
    run("--alter", "--topic", topic, "--partitions", "5")
    assert "PartitionCount: 5" in run("--describe", "--topic", topic)
    run("--delete", "--topic", topic)
    assert topic not in run("--list").split()


def test_configs(served: str, tools: JavaTools, topic: str) -> None:
    tools.run(TOPICS, "--bootstrap-server", served, "--create", "--topic", topic)

    def run(*arguments: str) -> str:
        return tools.run(
            CONFIGS, "--bootstrap-server", served, "--entity-type", "topics", "--entity-name", topic, *arguments
        )

    run("--alter", "--add-config", "retention.ms=1234,cleanup.policy=[compact,delete]")
    described = run("--describe")
    assert "retention.ms=1234" in described
    assert "cleanup.policy=compact,delete" in described
    run("--alter", "--delete-config", "retention.ms")
    assert "retention.ms" not in run("--describe")


def test_produce_consume_groups_and_offsets(served: str, tools: JavaTools, topic: str) -> None:
    tools.run(TOPICS, "--bootstrap-server", served, "--create", "--topic", topic, "--partitions", "3")
    produced = events(
        tools.run(PRODUCER, "--bootstrap-server", served, "--topic", topic, "--max-messages", "3000", "--acks", "-1")
    )
    sent = {(event["partition"], event["offset"]) for event in produced if event["name"] == "producer_send_success"}
    assert len(sent) == 3000
    summary = [event for event in produced if event["name"] == "tool_data"]
    assert (summary[0]["sent"], summary[0]["acked"]) == (3000, 3000)

    consumed = events(
        tools.run(
            CONSUMER, "--bootstrap-server", served, "--topic", topic, "--group-id", f"g-{topic}",
            "--max-messages", "3000", "--reset-policy", "earliest", "--verbose",
        )
    )  # fmt: skip
    read = {(event["partition"], event["offset"]) for event in consumed if event["name"] == "record_data"}
    assert read == sent
    committed = [event for event in consumed if event["name"] == "offsets_committed"]
    assert committed
    assert all(event["success"] for event in committed)

    ends = tools.run(OFFSETS, "--bootstrap-server", served, "--topic", topic)
    assert sum(int(line.rpartition(":")[2]) for line in ends.split()) == 3000

    def run(*arguments: str) -> str:
        return tools.run(GROUPS, "--bootstrap-server", served, *arguments)

    assert f"g-{topic}" in run("--list").split()
    described = run("--describe", "--group", f"g-{topic}")
    rows = [line.split() for line in described.splitlines() if line.startswith(f"g-{topic}")]
    assert {int(row[2]) for row in rows} == {partition for partition, _ in sent}
    assert sum(int(row[3]) for row in rows) == 3000
    assert all(row[5] == "0" for row in rows)
    run("--reset-offsets", "--group", f"g-{topic}", "--topic", topic, "--to-earliest", "--execute")
    described = run("--describe", "--group", f"g-{topic}")
    rows = [line.split() for line in described.splitlines() if line.startswith(f"g-{topic}")]
    assert [row[3] for row in rows] == ["0"] * 3
    run("--delete", "--group", f"g-{topic}")
    assert f"g-{topic}" not in run("--list").split()


def test_transactions(served: str, tools: JavaTools, topic: str) -> None:
    """Kafka's own system test for exactly once: it copies in transactions, and aborts some of them at random."""
    target = f"{topic}-target"
    for name in (topic, target):
        tools.run(TOPICS, "--bootstrap-server", served, "--create", "--topic", name, "--partitions", "1")
    tools.run(PRODUCER, "--bootstrap-server", served, "--topic", topic, "--max-messages", "500", "--acks", "-1")
    copied = events(
        tools.run(
            COPIER, "--broker-list", served, "--transactional-id", topic, "--consumer-group", topic,
            "--input-topic", topic, "--input-partition", "0", "--output-topic", target,
            "--max-messages", "500", "--transaction-size", "50", "--enable-random-aborts",
        )
    )  # fmt: skip
    assert copied[-1]["consumed"] == 500
    assert copied[-1]["remaining"] == 0
    read = tools.run(
        CONSOLE, "--bootstrap-server", served, "--topic", target, "--from-beginning", "--max-messages", "500",
        "--isolation-level", "read_committed", "--timeout-ms", "20000",
    )  # fmt: skip
    assert [int(line) for line in read.split()] == list(range(500))

    def run(*arguments: str) -> list[dict[str, str]]:
        head, *rows = tools.run(TRANSACTIONS, "--bootstrap-server", served, *arguments).splitlines()
        return [dict(zip(head.split(), row.split(), strict=False)) for row in rows]

    (listed,) = [row for row in run("list") if row["TransactionalId"] == topic]
    assert listed["TransactionState"] in {"CompleteCommit", "CompleteAbort"}
    (described,) = run("describe", "--transactional-id", topic)
    assert described["ProducerId"] == listed["ProducerId"]
    (writes,) = run("describe-producers", "--topic", target, "--partition", "0")
    assert (writes["ProducerId"], writes["CurrentTransactionStartOffset"]) == (listed["ProducerId"], "None")


def test_a_transaction_that_hangs_is_aborted(served: str, tools: JavaTools, topic: str) -> None:
    def run(*arguments: str) -> str:
        return tools.run(TRANSACTIONS, "--bootstrap-server", served, *arguments)

    with Producer(bootstrap_servers=served, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        stored = producer.send(topic, b"hangs", partition=0).result()
        assert run("find-hanging", "--topic", topic).splitlines()[1:] == [], "its coordinator knows of it"
        run("abort", "--topic", topic, "--partition", "0", "--start-offset", str(stored.offset))
        with Consumer(bootstrap_servers=served, isolation_level="read_committed") as consumer:
            place = TopicPartition(topic, 0)
            assert consumer.end_offsets([place]) == {place: stored.offset + 2}


def test_a_producer_commits_as_time_goes_by(served: str, tools: JavaTools, topic: str) -> None:
    tools.run(TOPICS, "--bootstrap-server", served, "--create", "--topic", topic, "--partitions", "3")
    tools.run(
        "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", "2000", "--record-size", "10",
        "--throughput", "4000", "--transactional-id", topic, "--transaction-duration-ms", "100",
        "--producer-props", f"bootstrap.servers={served}",
    )  # fmt: skip
    read = tools.run(
        CONSOLE, "--bootstrap-server", served, "--topic", topic, "--from-beginning", "--max-messages", "2000",
        "--isolation-level", "read_committed", "--timeout-ms", "20000",
    )  # fmt: skip
    assert len(read.split()) == 2000
