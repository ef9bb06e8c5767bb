"""The clients' metrics beside those of the Java clients: names, groups and tags; what there is not has a reason."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import TypeAlias

import pytest

from kclient.admin import NewTopic
from kclient.metrics import Metrics
from kclient.sync import Admin, Consumer, Producer, ShareConsumer
from tests.kafka_server import KafkaServer

pytestmark = pytest.mark.kafka

ORACLE = Path(__file__).parent.parent / "java" / "MetricsOracle.java"
CLIENTS = ("Admin", "Producer", "Consumer classic", "Consumer consumer", "ShareConsumer")
Told: TypeAlias = tuple[str, str, str]
"""Group, name, and the tags with commas between them."""

_SELECTOR = "The event loop is the user's, and selects for all that runs in it: no client knows what part is its own."
_THREADS = "Java's consumer hands events between the caller's thread and one of its own; kclient has no such queues."
_UNKNOWN_SIZES = "Records are appended by compiled code that adds up bytes and keeps no size of any single record."
LEFT_OUT: Mapping[str, str] = {
    "io-*": _SELECTOR,
    "select-*": _SELECTOR,
    "application-event*": _THREADS,
    "background-event*": _THREADS,
    "time-between-network-thread-poll-*": _THREADS,
    "unsent-requests-queue-*": _THREADS,
    "record-size-max": _UNKNOWN_SIZES,
    "txn-prepare-time-ns-total": "Java has the metric, and no call for it (KIP-939) yet; kclient has neither.",
    "commit-id": "A distribution of kclient has a version, and is built of no single commit that it knows.",
}
"""Names of Java's metrics that there are not, as patterns, and why."""

OURS: Mapping[str, str] = {
    "*-latency-p50": "Percentiles of latencies; Java's clients have none.",
    "*-latency-p95": "Percentiles of latencies; Java's clients have none.",
    "*-latency-p99": "Percentiles of latencies; Java's clients have none.",
    "poll-total": "How often the user polled.",
    "buffered-bytes": "What is fetched and not handed out.",
    "failed-commit-total": "Commits that failed.",
    "assigned-partitions": "Of share consumers, too.",
}
"""Names of metrics that Java has not, as patterns."""


@pytest.fixture(scope="module")
def java(kafka: KafkaServer, kafka_jars_4: Path) -> dict[str, set[Told]]:
    """The metrics of Java's clients."""
    command = ["java", "-cp", f"{kafka_jars_4}/*", str(ORACLE), kafka.bootstrap, "metrics-of-java"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    found: dict[str, set[Told]] = {client: set() for client in CLIENTS}
    for line in result.stdout.splitlines():
        client, group, name, tags = line.split("\t")
        found[client].add((group, name, tags))
    return found


def told(metrics: Metrics) -> set[Told]:
    return {(name.group, name.name, ",".join(sorted(name.tags))) for name in metrics}


@pytest.fixture(scope="module")
def ours(kafka: KafkaServer) -> dict[str, set[Told]]:
    """The metrics of kclient's clients after the same use."""
    return dict(_used(kafka.bootstrap, "metrics-of-kclient"))


def _used(bootstrap: str, topic: str) -> Iterator[tuple[str, set[Told]]]:
    with Admin(bootstrap_servers=bootstrap) as admin, Producer(bootstrap_servers=bootstrap) as producer:
        admin.create_topics([NewTopic(topic, 1, 1)])
        yield "Admin", told(admin.metrics())
        producer.send(topic, b"x" * 10).result()
        yield "Producer", told(producer.metrics())
        for protocol in ("classic", "consumer"):
            with Consumer(
                topic,
                bootstrap_servers=bootstrap,
                group_id=topic + protocol,
                auto_offset_reset="earliest",
                group_protocol=protocol,
            ) as consumer:
                assert consumer.poll(60)
                consumer.commit()
                yield f"Consumer {protocol}", told(consumer.metrics())
        with ShareConsumer(topic, bootstrap_servers=bootstrap, group_id=f"{topic}share") as sharing:
            while not sharing.poll(0.5):
                producer.send(topic, b"x" * 10).result()
            sharing.commit()
            yield "ShareConsumer", told(sharing.metrics())


def left_out(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in LEFT_OUT)


@pytest.mark.parametrize("client", CLIENTS)
def test_every_metric_of_java_is_there_or_has_a_reason(
    client: str, java: dict[str, set[Told]], ours: dict[str, set[Told]]
) -> None:
    assert java[client]
    assert {metric for metric in java[client] - ours[client] if not left_out(metric[1])} == set()


@pytest.mark.parametrize("client", CLIENTS)
def test_what_is_beside_java_is_meant(client: str, java: dict[str, set[Told]], ours: dict[str, set[Told]]) -> None:
    beside = {metric for metric in ours[client] - java[client] if not any(fnmatch(metric[1], name) for name in OURS)}
    assert beside == set()


def test_the_reasons_are_about_what_java_has(java: dict[str, set[Told]], ours: dict[str, set[Told]]) -> None:
    names = {name for metrics in java.values() for _, name, _ in metrics}
    there = {name for metrics in ours.values() for _, name, _ in metrics}
    assert [pattern for pattern in LEFT_OUT if not any(fnmatch(name, pattern) for name in names)] == []
    assert [name for name in there if left_out(name)] == []
