"""Metrics that clients push (KIP-714): a gateway answers as a broker does that has somebody who receives them."""

from __future__ import annotations

import re
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
import pytest
from prometheus_client.parser import text_string_to_metric_families

import kclient
from kclient.admin import Admin, ConfigResource, ConfigResourceType
from kclient.gateway.telemetry.instances import told_id
from kclient.metrics.otlp import Point, encode_metrics
from kclient.protocol import messages as m
from kclient.records import CompressionType
from kclient.records.compression import compress
from kclient.sync import Admin as BlockingAdmin
from tests.gateway_process import GatewayProcess
from tests.kafka_artifacts import KAFKA_4, kafka_jars
from tests.kafka_server import KafkaServer
from tests.kafka_tools import KafkaTools, kafka_tools
from tests.wire_session import WireSession, until, wire_session

pytestmark = [pytest.mark.anyio, pytest.mark.kafka]

RECEIVER = Path(__file__).parent.parent / "java" / "TelemetryReceiver.java"
ONE_LOOP = pytest.mark.parametrize("anyio_backend", ["asyncio"])
"""What is compared is not the client."""
METRICS = 16
SET, DELETE, APPEND, SUBTRACT = range(4)
Labels = dict[str, str]


class Pushable(NamedTuple):
    """A gateway that serves metrics."""

    bootstrap: str
    metrics: str

    def samples(self, name: str, client_id: str) -> list[tuple[Labels, float]]:
        """The values of a metric that a client has pushed, with their labels."""
        with urllib.request.urlopen(self.metrics, timeout=20) as answer:
            text = answer.read().decode()
        return [
            (sample.labels, sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and sample.labels.get("client_id") == client_id
        ]

    def until(self, name: str, client_id: str, true: Callable[[list[tuple[Labels, float]]], bool]) -> Any:
        deadline = time.monotonic() + 30
        while not true(found := self.samples(name, client_id)):
            assert time.monotonic() < deadline, (name, found)
            time.sleep(0.1)
        return found


@pytest.fixture(scope="module")
def pushable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pushable]:
    process = GatewayProcess(tmp_path_factory.mktemp("pushable") / "data", options=["--metrics", "127.0.0.1:0"])
    process.start()
    try:
        found = re.search(r"metrics at (\S+)", process.startup_line)
        assert found is not None
        with BlockingAdmin(bootstrap_servers=process.bootstrap) as admin:
            wanted = {"interval.ms": "100", "metrics": "*"}
            admin.alter_configs({ConfigResource(ConfigResourceType.CLIENT_METRICS, "all"): wanted})
        yield Pushable(process.bootstrap, found[1])
    finally:
        process.stop()


@pytest.fixture(scope="module")
def jvm(kafka_jars_4: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaTools]:
    with kafka_tools(KAFKA_4, tmp_path_factory.mktemp("tools")) as tools:
        yield tools


@pytest.mark.foreign
@pytest.mark.maven
def test_java_clients_push(pushable: Pushable, jvm: KafkaTools, topic: str) -> None:
    address = ("--bootstrap-server", pushable.bootstrap)
    jvm.run("org.apache.kafka.tools.ProducerPerformance", *address, "--topic", topic, "--num-records", "300",
            "--record-size", "10", "--throughput", "200", "--command-property", f"client.id={topic}-out")  # fmt: skip
    standard = "org_apache_kafka"
    ((labels, _),) = pushable.until(f"{standard}_producer_record_queue_time_max", f"{topic}-out", bool)
    assert len(labels["client_instance_id"]) == 22
    ((_, made),) = pushable.samples(f"{standard}_producer_connection_creation_total", f"{topic}-out")
    assert made >= 1
    ((told, _),) = pushable.samples("kclient_gateway_client_info", f"{topic}-out")
    assert told["client_software_name"] == "apache-kafka-java"
    assert (told["client_software_version"], told["client_source_address"]) == (KAFKA_4, "127.0.0.1")
    jvm.run("org.apache.kafka.tools.consumer.ConsoleConsumer", *address, "--topic", topic, "--from-beginning",
            "--timeout-ms", "3000", "--group", topic, "--command-property", f"client.id={topic}-in")  # fmt: skip
    pushable.until(f"{standard}_consumer_connection_creation_total", f"{topic}-in", bool)
    ((told, _),) = pushable.samples("kclient_gateway_client_info", f"{topic}-in")
    assert told["group_id"] == topic


@pytest.mark.foreign
def test_librdkafka_pushes(pushable: Pushable, topic: str) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    producer = confluent_kafka.Producer({"bootstrap.servers": pushable.bootstrap, "client.id": topic})
    for _ in range(10):
        producer.produce(topic, b"x")
    assert producer.flush(30) == 0
    ((labels, _),) = pushable.until("org_apache_kafka_producer_connection_creation_total", topic, bool)
    assert len(labels["client_instance_id"]) == 22
    ((told, _),) = pushable.samples("kclient_gateway_client_info", topic)
    assert told["client_software_name"] == "confluent-kafka-python"


async def test_ours_push(pushable: Pushable, topic: str) -> None:
    async with kclient.Producer(bootstrap_servers=pushable.bootstrap, client_id=topic) as producer:
        me = await producer.client_instance_id(30)
        await (await producer.send_batch(topic, [b"x"] * 10))
    name = "org_apache_kafka_producer_topic_record_send_total"
    ((labels, sent),) = await anyio.to_thread.run_sync(pushable.until, name, topic, whole)
    assert (labels["topic"], labels["client_instance_id"], sent) == (topic, told_id(me.bytes), 10)
    async with kclient.Consumer(
        topic, bootstrap_servers=pushable.bootstrap, group_id=topic, client_id=topic, auto_offset_reset="earliest"
    ) as consumer:
        await consumer.client_instance_id(30)
        with anyio.fail_after(30):
            while not await consumer.poll(0.1):
                pass
    name = "org_apache_kafka_consumer_connection_creation_total"
    assert await anyio.to_thread.run_sync(pushable.until, name, topic, bool)


def whole(found: list[tuple[Labels, float]]) -> bool:
    """Whether all that was sent has been told: a page is up to a second old."""
    return [value for _, value in found] == [10]


# Beside Kafka


@pytest.fixture(scope="module")
def receiving(tmp_path_factory: pytest.TempPathFactory, kafka_jars_4: Path) -> Iterator[str]:
    """The address of a broker that takes metrics."""
    folder, plugins = tmp_path_factory.mktemp("telemetry"), tmp_path_factory.mktemp("plugins")
    subprocess.run(
        ["javac", "-cp", f"{kafka_jars(KAFKA_4)}/*", "-d", str(plugins), str(RECEIVER)], check=True, timeout=120
    )
    server = KafkaServer(
        KAFKA_4, folder, {"metric.reporters": "TelemetryReceiver", "telemetry.max.bytes": str(1 << 20)},
        system_properties={"telemetry.file": str(folder / "pushes")}, plugins=plugins, heap="512m",
    )  # fmt: skip
    server.format()
    server.start()
    try:
        yield server.bootstrap
    finally:
        server.stop()


class Subscriber(NamedTuple):
    """Speaks to one broker."""

    session: WireSession

    async def alter(self, name: str, *changes: tuple[str, int, str | None]) -> int:
        rows = [
            m.IncrementalAlterConfigsRequestConfig(name=setting, config_operation=operation, value=value)
            for setting, operation, value in changes
        ]
        resource = m.IncrementalAlterConfigsRequestResource(resource_type=METRICS, resource_name=name, configs=rows)
        return int((await self.session(m.IncrementalAlterConfigsRequest(resources=[resource]))).responses[0].error_code)

    async def replace(self, name: str, **settings: str) -> int:
        rows = [m.AlterConfigsRequestConfig(name=key.replace("_", "."), value=value) for key, value in settings.items()]
        resource = m.AlterConfigsRequestResource(resource_type=METRICS, resource_name=name, configs=rows)
        return int((await self.session(m.AlterConfigsRequest(resources=[resource]))).responses[0].error_code)

    async def described(self, name: str) -> Any:
        resource = m.DescribeConfigsResource(resource_type=METRICS, resource_name=name, configuration_keys=None)
        (found,) = (await self.session(m.DescribeConfigsRequest(resources=[resource], include_synonyms=True))).results
        return found.error_code, sorted(
            (
                each.name,
                each.value,
                each.config_source,
                each.config_type,
                each.is_sensitive,
                each.read_only,
                tuple((other.name, other.value, other.source) for other in each.synonyms),
            )
            for each in found.configs
        )

    async def listed(self) -> list[str]:
        found = await self.session(m.ListConfigResourcesRequest(), 0)
        assert found.error_code == 0
        return sorted(each.resource_name for each in found.config_resources)

    async def ask(self, instance_id: bytes) -> Any:
        return await self.session(m.GetTelemetrySubscriptionsRequest(client_instance_id=instance_id))

    async def told(self, instance_id: bytes) -> tuple[Any, ...]:
        """All of an answer, which has an id where it is no error."""
        found = await self.ask(instance_id)
        assert found.client_instance_id == (bytes(16) if found.error_code else instance_id)
        return (
            found.error_code, found.subscription_id, tuple(found.accepted_compression_types), found.push_interval_ms,
            found.telemetry_max_bytes, found.delta_temporality, tuple(found.requested_metrics),
        )  # fmt: skip

    async def push(self, instance_id: bytes, number: int, data: bytes, kind: int = 0, *, last: bool = False) -> int:
        request = m.PushTelemetryRequest(
            client_instance_id=instance_id, subscription_id=number, terminating=last, compression_type=kind,
            metrics=data,
        )  # fmt: skip
        return int((await self.session(request)).error_code)


async def subscriptions(broker: Subscriber, prefix: str) -> list[Any]:
    """What comes of changes to subscriptions."""
    name = f"{prefix}-a"
    found: list[Any] = []

    async def until_set(setting: str, *, there: bool) -> Any:
        return await until(lambda: broker.described(name), lambda seen: has(seen, setting) is there)

    for setting, values in {
        "interval.ms": ("100", "99", "3600000", "3600001", "x", "", " 200 ", "1.5"),
        "metrics": ("a", "a,b", "a, b ,c", "a,,b", "", " ", ",", "a,a", "*"),
        "match": (
            "client_id=a", "client_id", "client_id=", "=a", "client_id=a=b", "client_id=a=", "client_id = a b ", "",
            "client_id=a,client_id=b", "client_id=a,client_id=a", "client_source_port=1.*,client_source_address=127.*",
            "client_id=(", "principal=x", "client_id=[a-c]+?", "CLIENT_ID=a", "client_software_name=(?i)java.*",
        ),
        "retention.ms": ("1",),
    }.items():  # fmt: skip
        for value in values:
            code = await broker.alter(name, (setting, SET, value))
            found.append((setting, value, code))
            if not code:
                found.append(await until_set(setting, there=True))
            found.append(await broker.alter(name, (setting, DELETE, None)))
            await until_set(setting, there=False)
    found.append(await broker.alter("", ("interval.ms", SET, "100")))
    found.append(await broker.described(""))
    found.append(await broker.alter(name, ("metrics", SET, "a,b"), ("interval.ms", SET, "1000")))
    found.append(await broker.alter(name, ("metrics", APPEND, "c,a")))
    found.append(await broker.alter(name, ("metrics", SUBTRACT, "b")))
    found.append(await broker.alter(name, ("interval.ms", APPEND, "1")))
    found.append(await broker.replace(f"{prefix}-b", match="client_id=x"))
    await until(broker.listed, lambda seen: f"{prefix}-b" in seen)
    found += [await broker.described(name), [each for each in await broker.listed() if each.startswith(prefix)]]
    found.append(await broker.replace(name))
    found.append(await broker.replace(f"{prefix}-b"))
    await until(broker.listed, lambda seen: not any(each.startswith(prefix) for each in seen))
    return found


def has(seen: Any, setting: str) -> bool:
    return any(name == setting and source == 7 for name, _, source, *_ in seen[1])


async def conversation(broker: Subscriber, ids: list[bytes]) -> list[Any]:
    """What clients are told, and what becomes of their pushes."""
    found: list[Any] = [await broker.told(ids[0])]
    names = [f"org.apache.kafka.{each}." for each in ("producer", "consumer", "app", "stream", "x1", "x2", "x3")]
    wanted = {
        "one": {"metrics": ",".join(names[:4]), "interval_ms": "7000"},
        "two": {"metrics": ",".join(names[3:]), "interval_ms": "9000", "match": "client_software_name=kcl.*"},
        "three": {"metrics": "never", "match": "client_id=nobody"},
    }
    for name, settings in wanted.items():
        assert await broker.replace(name, **settings) == 0
    await until(lambda: broker.ask(uuid.uuid4().bytes), lambda told: len(told.requested_metrics) == len(names))
    found += [await broker.told(each) for each in ids]
    numbers = {each: (await broker.ask(each)).error_code for each in ids}
    found.append(list(numbers.values()))
    number = {ids[at]: found[1 + at][1] for at in range(len(ids))}
    data = encode_metrics([Point("org.apache.kafka.producer.x", {"topic": "t"}, 1.5, 1)], {"r": "s"})
    found.append([await broker.push(ids[0], number[ids[0]], data) for _ in range(2)])
    found.append(await broker.push(ids[0], number[ids[0]], data, last=True))
    found.append([await broker.push(ids[0], number[ids[0]], data) for _ in range(2)])
    found.append(await broker.push(ids[1], number[ids[1]] + 1, data))
    found.append((await broker.told(ids[1]))[0])
    found.append(await broker.push(ids[2], number[ids[2]], data, 77))
    found.append((await broker.told(ids[2]))[0])
    found.append(await broker.push(ids[3], number[ids[3]], bytes((1 << 20) + 1)))
    found.append((await broker.told(ids[3]))[0])
    for at, kind in enumerate(CompressionType, 4):
        sent = data if kind is CompressionType.NONE else compress(kind, data)
        found.append((kind.name, await broker.push(ids[at], number[ids[at]], sent, kind)))
    found.append(await broker.push(ids[9], number[ids[9]], b"what is not compressed", CompressionType.GZIP))
    found.append(await broker.push(ids[10], number[ids[10]], b""))
    found += [await broker.push(wrong, 0, data) for wrong in (bytes(16), bytes(15) + b"\x01")]
    assert await broker.replace("four", metrics="*", interval_ms="8000") == 0
    await until(lambda: broker.ask(uuid.uuid4().bytes), lambda told: told.requested_metrics == ["*"])
    found.append(await broker.push(ids[4], number[ids[4]], data))
    found += [await broker.told(each) for each in ids[4:6]]
    for name in (*wanted, "four"):
        assert await broker.replace(name) == 0
    return found


@ONE_LOOP
async def test_subscriptions_as_kafka_has_them(receiving: str, pushable: Pushable) -> None:
    answers = []
    for address in (receiving, pushable.bootstrap):
        async with wire_session(address) as session:
            answers.append(await subscriptions(Subscriber(session), "compared"))
    for theirs, ours in zip_longest(*answers):
        assert ours == theirs


@ONE_LOOP
async def test_clients_are_told_what_kafka_tells_them(receiving: str, pushable: Pushable) -> None:
    ids, answers = [uuid.uuid4().bytes for _ in range(11)], []
    async with Admin(bootstrap_servers=pushable.bootstrap) as admin:
        everything = ConfigResource(ConfigResourceType.CLIENT_METRICS, "all")
        await admin.alter_configs({everything: {"interval.ms": None, "metrics": None}})
        try:
            for address in (receiving, pushable.bootstrap):
                async with wire_session(address) as session:
                    answers.append(await conversation(Subscriber(session), ids))
        finally:
            await admin.alter_configs({everything: {"interval.ms": "100", "metrics": "*"}})
    theirs, ours = answers
    assert ours == theirs
