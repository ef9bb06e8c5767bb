"""The reporters for Prometheus and OpenTelemetry, with the libraries themselves."""

from __future__ import annotations

import sys
from typing import Any

import anyio
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Gauge, InMemoryMetricReader, NumberDataPoint, Sum
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest

from kclient import Consumer, Producer
from kclient.errors import MissingExtraError
from kclient.metrics import OpenTelemetryReporter, PrometheusReporter
from kclient.metrics.resolve import resolve_reporters
from kclient.testing import memory_broker

pytestmark = pytest.mark.anyio


def exposed(registry: CollectorRegistry) -> dict[str, float]:
    lines = generate_latest(registry).decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


async def test_prometheus_collects_several_clients() -> None:
    registry = CollectorRegistry()
    with memory_broker() as address:
        common: dict[str, Any] = {"bootstrap_servers": address}
        async with (
            Producer(client_id="one", metric_reporters=[PrometheusReporter(registry)], **common) as one,
            Producer(client_id="two", metric_reporters=PrometheusReporter(registry), **common) as two,
        ):
            await (await one.send("t", b"1"))
            await (await two.send_batch("t", [b"1", b"2"]))
            found = exposed(registry)
            assert found['kafka_producer_record_send_total{client_id="one"}'] == 1
            assert found['kafka_producer_record_send_total{client_id="two"}'] == 2
            with anyio.fail_after(10):
                while 'kafka_producer_topic_record_send_total{client_id="two",topic="t"}' not in exposed(registry):
                    await anyio.sleep(0.05)
            assert not any("nan" in str(value) for value in exposed(registry).values())
        assert exposed(registry) == {}, "they are closed"


async def test_opentelemetry_observes_several_clients() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    with memory_broker() as address:
        common: dict[str, Any] = {"bootstrap_servers": address}
        async with (
            Producer(client_id="one", metric_reporters=[OpenTelemetryReporter(provider)], **common) as one,
            Consumer(metric_reporters=[OpenTelemetryReporter(provider)], client_id="two", **common),
            Consumer(metric_reporters=[OpenTelemetryReporter(provider)], client_id="three", **common),
        ):
            await (await one.send("t", b"1"))
            data = reader.get_metrics_data()
            assert data is not None
            metrics = {
                metric.name: metric
                for resource in data.resource_metrics
                for scope in resource.scope_metrics
                for metric in scope.metrics
            }
    sent = metrics["org.apache.kafka.producer.record.send.total"].data
    assert isinstance(sent, Sum)
    assert [point.value for point in sent.data_points if isinstance(point, NumberDataPoint)] == [1]
    polls = metrics["org.apache.kafka.consumer.connection.count"].data
    assert {dict(point.attributes or {})["client_id"] for point in polls.data_points} == {"two", "three"}
    assert isinstance(polls, Gauge)
    provider.shutdown()


@pytest.mark.parametrize(("name", "package"), [("prometheus", "prometheus_client"), ("otel", "opentelemetry")])
def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, name: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"htp-kclient\[{name}\]"):
        resolve_reporters([name])


async def test_they_have_short_names() -> None:
    with memory_broker() as address:
        async with Producer(bootstrap_servers=address, metric_reporters="prometheus,otel", client_id="short") as made:
            await (await made.send("t", b"1"))
            assert exposed(REGISTRY)['kafka_producer_record_send_total{client_id="short"}'] == 1
