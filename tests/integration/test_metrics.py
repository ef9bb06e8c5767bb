"""The clients' metrics on real Kafka and on the gateway: their values are what happened."""

from __future__ import annotations

from math import isnan

import pytest

import kclient
import kclient.sync
from kclient.admin import NewTopic
from kclient.metrics import Metrics
from kclient.types import TopicPartition
from tests.kafka_server import KafkaServer

pytestmark = pytest.mark.anyio

COUNT = 1000
VALUE = b"x" * 100


def between(metrics: Metrics, name: str, low: float, high: float, group: str | None = None, **tags: object) -> None:
    assert low <= metrics.value(name, group, **tags) <= high, (name, metrics.value(name, group, **tags))


async def test_a_producer_tells_what_it_sent(broker: str, topic: str) -> None:
    async with kclient.Producer(
        bootstrap_servers=broker, client_id="me", compression_type="gzip", batch_size=10_000
    ) as producer:
        await (await producer.send_batch(topic, [VALUE] * COUNT))
        await producer.flush()
        metrics = producer.metrics()
        assert metrics.value("connection-count") >= 1
    assert metrics.value("connection-count") == 0, "values are those of the moment"
    assert metrics.value("record-send-total") == COUNT
    assert metrics.value("record-send-total", topic=topic) == COUNT
    assert metrics.find("record-send-total", topic=topic).name.tags == {"client-id": "me", "topic": topic}
    assert metrics.value("record-error-total") == 0
    between(metrics, "record-send-rate", COUNT / 60, COUNT / 30)
    size = metrics.value("byte-total", topic=topic)
    assert 0 < size < COUNT * len(VALUE) / 2, "compressed"
    between(metrics, "byte-rate", size / 60, size / 30, topic=topic)
    between(metrics, "compression-rate-avg", 0.001, 0.5)
    between(metrics, "compression-rate", 0.001, 0.5, topic=topic)
    between(metrics, "record-size-avg", len(VALUE), len(VALUE) * 1.3)
    between(metrics, "batch-size-avg", 1, 10_000)
    between(metrics, "records-per-request-avg", 1, COUNT)
    between(metrics, "request-latency-avg", 0.01, 10_000)
    between(metrics, "request-latency-p50", 0.01, metrics.value("request-latency-max"))
    between(metrics, "request-latency-p99", metrics.value("request-latency-p50"), metrics.value("request-latency-max"))
    between(metrics, "outgoing-byte-total", size, size + 10_000)
    assert metrics.value("request-total") == metrics.value("response-total") > 2
    assert metrics.value("network-io-total") == 2 * metrics.value("request-total")
    assert metrics.value("successful-authentication-total") == metrics.value("connection-creation-total") >= 1
    assert metrics.value("flush-time-ns-total") > 0
    between(metrics, "metadata-age", 0, 60)
    nodes = [name.tags["node-id"] for name in metrics if name.name == "request-total" and "node-id" in name.tags]
    assert nodes
    assert all(metrics.value("request-latency-max", node_id=node) > 0 for node in nodes)
    assert sum(metrics.value("request-total", node_id=node) for node in nodes) <= metrics.value("request-total")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_consumer_tells_what_it_read(broker: str, topic: str, protocol: str) -> None:
    async with kclient.Admin(bootstrap_servers=broker) as admin:
        await admin.create_topics([NewTopic(topic, 1, 1)])
    async with kclient.Producer(bootstrap_servers=broker) as producer:
        await (await producer.send_batch(topic, [VALUE] * COUNT))
    async with kclient.Consumer(
        topic,
        bootstrap_servers=broker,
        group_id=topic,
        auto_offset_reset="earliest",
        group_protocol=protocol,
        max_poll_records=100,
    ) as consumer:
        records = await consumer.poll(30)
        assert len(records) == 100
        early = consumer.metrics()
        assert early.value("records-lag", topic=topic, partition=0) == COUNT - 100
        assert early.value("records-lead", topic=topic, partition=0) == 100
        read = 100
        while read < COUNT:
            read += len(await consumer.poll(10))
        await consumer.commit()
        metrics = consumer.metrics()
        assert metrics.value("assigned-partitions") == 1
        partition = [name for name in metrics if name.tags.get("partition")]
        assert len(partition) == 7
        await consumer.unsubscribe()
        assert not [name for name in consumer.metrics() if name.tags.get("partition")]
    assert metrics.value("records-consumed-total") == COUNT
    assert metrics.value("records-consumed-total", topic=topic) == COUNT
    between(metrics, "records-consumed-rate", COUNT / 60, COUNT / 30)
    between(metrics, "bytes-consumed-total", COUNT * len(VALUE), COUNT * len(VALUE) * 1.3)
    between(metrics, "bytes-consumed-total", COUNT * len(VALUE), COUNT * len(VALUE) * 1.3, topic=topic)
    assert metrics.value("records-lag", topic=topic, partition=0) == 0
    assert metrics.value("records-lag-max", topic=topic, partition=0) == COUNT - 100
    assert metrics.value("records-lag-max") == COUNT - 100
    assert metrics.value("records-lead-min") == 100
    assert metrics.value("preferred-read-replica", topic=topic, partition=0) == -1
    between(metrics, "fetch-latency-avg", 0.01, 1500)
    between(metrics, "fetch-size-max", len(VALUE), COUNT * len(VALUE) * 2)
    assert metrics.value("fetch-total") >= 1
    assert metrics.value("fetch-throttle-time-max") == 0
    assert metrics.value("commit-total") >= 1
    between(metrics, "commit-latency-avg", 0.01, 10_000)
    assert metrics.value("commit-sync-time-ns-total") > 0
    assert metrics.value("rebalance-total") == 1
    between(metrics, "rebalance-latency-avg", 0, 60_000)
    between(metrics, "last-rebalance-seconds-ago", 0, 60)
    between(metrics, "last-heartbeat-seconds-ago", -1, 60)
    between(metrics, "poll-idle-ratio-avg", 0, 1)
    assert metrics.value("poll-total") >= COUNT / 100
    if protocol == "classic":
        assert metrics.value("join-total") >= 1
        assert metrics.value("sync-total") == 1
    else:
        assert metrics.value("heartbeat-total") >= 1
        with pytest.raises(LookupError):
            metrics.value("join-total")


async def test_an_admin_client_tells_of_its_requests(broker: str, topic: str) -> None:
    async with kclient.Admin(bootstrap_servers=broker) as admin:
        before = admin.metrics().value("request-total")
        await admin.create_topics([NewTopic(topic, 1, 1)])
        metrics = admin.metrics()
        assert metrics.value("request-total") > before
        assert isinstance(metrics.find("version").value, str)
        assert [name for name in metrics if name.group == "admin-client-node-metrics"]
        assert metrics.value("connection-count") >= 1
    assert admin.metrics().value("connection-count") == 0, "it is closed, and can be asked all the same"


@pytest.mark.kafka
def test_a_share_consumer_tells_what_it_acknowledged(kafka: KafkaServer, topic: str) -> None:
    bootstrap = kafka.bootstrap
    with (
        kclient.sync.Producer(bootstrap_servers=bootstrap) as producer,
        kclient.sync.ShareConsumer(topic, bootstrap_servers=bootstrap, group_id=topic) as consumer,
    ):
        read = 0
        while not read:
            producer.send(topic, VALUE).result()
            read = len(consumer.poll(0.5))
        consumer.commit()
        metrics = consumer.metrics()
        assert metrics.value("records-consumed-total") == metrics.value("acknowledgements-send-total") == read
        assert metrics.value("acknowledgements-error-total") == 0
        between(metrics, "records-per-request-max", 1, read)
        between(metrics, "fetch-latency-max", 0.01, 10_000)
        assert metrics.value("heartbeat-total") >= 1
        assert metrics.value("rebalance-total") >= 1
        between(metrics, "last-poll-seconds-ago", 0, 60)


async def test_blocking_clients_tell_the_same(broker: str, topic: str) -> None:
    with kclient.sync.Producer(bootstrap_servers=broker) as producer:
        producer.send(topic, VALUE, partition=0).result()
        assert producer.metrics().value("record-send-total", topic=topic) == 1
    with kclient.sync.Consumer(bootstrap_servers=broker, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert [record.value for record in consumer.poll(30)] == [VALUE]
        assert consumer.metrics().value("records-consumed-total", topic=topic) == 1
        assert isnan(consumer.metrics().value("reauthentication-latency-avg"))


async def test_with_debug_each_broker_has_percentiles(broker: str, topic: str) -> None:
    async with kclient.Admin(bootstrap_servers=broker, metrics_recording_level="DEBUG") as admin:
        await admin.create_topics([NewTopic(topic, 1, 1)])
        names = {name.name for name in admin.metrics() if name.group == "admin-client-node-metrics"}
    assert {"request-latency-p50", "request-latency-p99"} <= names
