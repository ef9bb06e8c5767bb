"""Metrics that clients push to real Kafka (KIP-714), read as OpenTelemetry's own package reads them."""

from __future__ import annotations

import base64
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import anyio
import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

import kclient
import kclient.sync
from kclient.admin import Admin, ConfigResource, ConfigResourceType, NewTopic
from kclient.errors import IllegalStateError, UnsupportedVersionError
from kclient.metrics import Metric, MetricKind, MetricName
from tests.kafka_artifacts import KAFKA_3, KAFKA_4, kafka_jars
from tests.kafka_server import KafkaServer

pytestmark = [pytest.mark.kafka, pytest.mark.anyio]

RECEIVER = Path(__file__).parent.parent / "java" / "TelemetryReceiver.java"
DELTA = 1


class Push(NamedTuple):
    client: UUID
    last: bool
    resource: dict[str, str]
    metrics: dict[str, Any]


class Receiving:
    """A broker that takes metrics, and what it got."""

    def __init__(self, server: KafkaServer, file: Path) -> None:
        self.server = server
        self.bootstrap = server.bootstrap
        self.file = file

    def pushes(self, client: UUID) -> list[Push]:
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return [push for push in map(read, lines) if push.client == client]

    async def until(self, client: UUID, enough: Callable[[list[Push]], bool]) -> list[Push]:
        deadline = time.monotonic() + 30
        while not enough(found := self.pushes(client)):
            assert time.monotonic() < deadline, found
            await anyio.sleep(0.05)
        return found


def read(line: str) -> Push:
    numbers, last, data = line.split("\t")
    high, low = (int(number) & (2**64 - 1) for number in numbers.split(","))
    decoded = MetricsData.FromString(base64.b64decode(data))
    resource: dict[str, str] = {}
    metrics: dict[str, Any] = {}
    for described in decoded.resource_metrics:
        resource |= {each.key: each.value.string_value for each in described.resource.attributes}
        for scope in described.scope_metrics:
            metrics |= {metric.name: metric for metric in scope.metrics}
    return Push(UUID(int=high << 64 | low), last == "true", resource, metrics)


@pytest.fixture(scope="module", params=[KAFKA_4, KAFKA_3])
def receiving(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiving]:
    request.getfixturevalue("kafka_jars_4")  # skips where there is no Java
    folder, plugins = tmp_path_factory.mktemp("telemetry"), tmp_path_factory.mktemp("plugins")
    file = folder / "pushes"
    subprocess.run(
        ["javac", "-cp", f"{kafka_jars(request.param)}/*", "-d", str(plugins), str(RECEIVER)], check=True, timeout=120
    )
    server = KafkaServer(
        request.param,
        folder,
        {"metric.reporters": "TelemetryReceiver"},
        system_properties={"telemetry.file": str(file)},
        plugins=plugins,
        heap="512m",
    )
    server.format()
    server.start()
    try:
        with kclient.sync.Admin(bootstrap_servers=server.bootstrap) as admin:
            prefixes = ",".join(f"org.apache.kafka.{room}" for room in ("producer", "consumer", "app."))
            wanted = {"interval.ms": "200", "metrics": prefixes}
            admin.alter_configs({ConfigResource(ConfigResourceType.CLIENT_METRICS, "all"): wanted})
        yield Receiving(server, file)
    finally:
        server.stop()


async def test_a_producer_pushes_and_says_farewell(receiving: Receiving, topic: str) -> None:
    async with Admin(bootstrap_servers=receiving.bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, 1, 1)])
    async with kclient.Producer(bootstrap_servers=receiving.bootstrap, client_id="pushing") as producer:
        me = await producer.client_instance_id(30)
        assert await producer.client_instance_id() == me
        own = Metric(MetricName("orders", "app-metrics", tags={"shop": "1"}), lambda: 5.0, MetricKind.GAUGE)
        producer.register_metric_for_subscription(own)
        await (await producer.send_batch(topic, [b"x"] * 10))
        (push,) = [
            push
            for push in await receiving.until(me, lambda found: any(_sent(push, topic) for push in found))
            if _sent(push, topic)
        ][:1]
        record_send = push.metrics["org.apache.kafka.producer.topic.record.send.total"].sum
        assert record_send.aggregation_temporality == DELTA
        assert record_send.is_monotonic
        (point,) = record_send.data_points
        assert point.as_double == 10
        assert 0 < point.start_time_unix_nano < point.time_unix_nano
        assert {each.key: each.value.string_value for each in point.attributes} == {"topic": topic}
        assert push.metrics["org.apache.kafka.app.orders"].gauge.data_points[0].as_double == 5
        assert "org.apache.kafka.producer.connection.count" in push.metrics
        producer.unregister_metric_from_subscription(own)
        await producer.send_batch(topic, [b"x"] * 3)
    found = await receiving.until(me, lambda found: found[-1].last)
    assert "org.apache.kafka.app.orders" not in found[-1].metrics
    assert sum(_sent(push, topic) for push in found) == 13, "the deltas add up"
    assert [push.last for push in found].count(True) == 1


def _sent(push: Push, topic: str) -> float:
    metric = push.metrics.get("org.apache.kafka.producer.topic.record.send.total")
    return 0.0 if metric is None else float(metric.sum.data_points[0].as_double)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_consumer_tells_its_group(receiving: Receiving, topic: str, protocol: str) -> None:
    if protocol == "consumer" and receiving.server.version == KAFKA_3:
        pytest.skip("Kafka 3.9 has no such groups")
    async with Admin(bootstrap_servers=receiving.bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, 1, 1)])
    async with kclient.Consumer(
        topic, bootstrap_servers=receiving.bootstrap, group_id=topic, client_rack="r1", group_protocol=protocol
    ) as consumer:
        me = await consumer.client_instance_id(30)
        with anyio.fail_after(30):
            while not consumer.assignment():
                await consumer.poll(0.1)
        found = await receiving.until(me, lambda found: any("group_member_id" in push.resource for push in found))
        member = consumer.group_metadata().member_id
    told = next(push for push in found if "group_member_id" in push.resource)
    assert told.resource == {"client_rack": "r1", "group_id": topic, "group_member_id": member}
    assert "org.apache.kafka.consumer.coordinator.assigned.partitions" in told.metrics
    assert "org.apache.kafka.consumer.coordinator.heartbeat.total" in told.metrics


def test_blocking_clients_push_too(receiving: Receiving, topic: str) -> None:
    with kclient.sync.Producer(bootstrap_servers=receiving.bootstrap) as producer:
        me = producer.client_instance_id(30)
        producer.send(topic, b"1").result()
    with kclient.sync.Consumer(bootstrap_servers=receiving.bootstrap) as consumer:
        assert consumer.client_instance_id() != me
    with kclient.sync.ShareConsumer(topic, bootstrap_servers=receiving.bootstrap, group_id=topic) as sharing:
        assert sharing.client_instance_id(30) not in {me, UUID(int=0)}
    with (
        kclient.sync.Admin(bootstrap_servers=receiving.bootstrap) as admin,
        pytest.raises(IllegalStateError, match=r"enable\.metrics\.push"),
    ):
        admin.client_instance_id()
    with kclient.sync.Admin(bootstrap_servers=receiving.bootstrap, enable_metrics_push=True) as admin:
        assert admin.client_instance_id(30) not in {me, UUID(int=0)}


async def test_who_does_not_want_to_push_does_not(receiving: Receiving) -> None:
    async with kclient.Producer(bootstrap_servers=receiving.bootstrap, enable_metrics_push=False) as producer:
        await producer.partitions_for("t")
        with pytest.raises(IllegalStateError, match=r"enable\.metrics\.push"):
            await producer.client_instance_id()


async def test_a_broker_without_a_receiver_says_so(broker: str) -> None:
    async with kclient.Consumer(bootstrap_servers=broker) as consumer:
        with pytest.raises(UnsupportedVersionError, match="takes no metrics of clients"):
            await consumer.client_instance_id()
