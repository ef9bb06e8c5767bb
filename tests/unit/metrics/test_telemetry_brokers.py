"""Metrics that are pushed to brokers that refuse, hang and answer oddly (KIP-714)."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from kclient import Consumer, Producer
from kclient.errors import ClosedError, ErrorCode, KafkaTimeoutError, UnsupportedVersionError
from kclient.metrics import Metric, MetricName
from kclient.protocol.messages import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from kclient.protocol.registry import ApiKey
from tests.fake_kafka import FakeKafka

pytestmark = pytest.mark.anyio

VERSIONS = {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: (0, 0), ApiKey.PUSH_TELEMETRY: (0, 0)}
ID = bytes(range(16))


def subscription(**fields: Any) -> GetTelemetrySubscriptionsResponse:
    usual: dict[str, Any] = {
        "client_instance_id": ID,
        "subscription_id": 1,
        "push_interval_ms": 20,
        "telemetry_max_bytes": 1_000_000,
        "delta_temporality": True,
        "requested_metrics": ["*"],
    }
    return GetTelemetrySubscriptionsResponse(**{**usual, **fields})


@asynccontextmanager
async def cluster(
    subscribed: Callable[..., Any] = lambda *_: subscription(),
    pushed: Callable[..., Any] = lambda *_: PushTelemetryResponse(),
) -> AsyncIterator[FakeKafka]:
    async with FakeKafka(versions=VERSIONS) as kafka:
        kafka.scripts[ApiKey.GET_TELEMETRY_SUBSCRIPTIONS] = subscribed
        kafka.scripts[ApiKey.PUSH_TELEMETRY] = pushed
        yield kafka


async def until(true: Callable[[], bool]) -> None:
    with anyio.fail_after(10):
        while not true():
            await anyio.sleep(0.005)


async def test_a_client_that_was_refused_for_good_says_so_at_once() -> None:
    async with (
        cluster(lambda *_: subscription(error_code=ErrorCode.UNSUPPORTED_VERSION)) as kafka,
        Producer(bootstrap_servers=kafka.bootstrap) as producer,
    ):
        with anyio.fail_after(10), pytest.raises(UnsupportedVersionError, match="does not name this client"):
            await producer.client_instance_id(60.0)
        await (await producer.send("t", b"1"))


async def test_a_refusal_for_now_is_told_when_the_time_is_over() -> None:
    async with (
        cluster(lambda *_: subscription(error_code=ErrorCode.THROTTLING_QUOTA_EXCEEDED)) as kafka,
        Producer(bootstrap_servers=kafka.bootstrap) as producer,
    ):
        await (await producer.send("t", b"1"))
        await until(lambda: kafka.count(GetTelemetrySubscriptionsRequest) > 0)
        with pytest.raises(KafkaTimeoutError, match="does not name this client"):
            await producer.client_instance_id(0.2)


async def test_an_id_that_is_known_takes_no_time() -> None:
    async with cluster() as kafka, Producer(bootstrap_servers=kafka.bootstrap) as producer:
        found = await producer.client_instance_id()
        assert found.bytes == ID
        assert await producer.client_instance_id(0) == found


async def test_who_waits_for_an_id_learns_that_the_client_closes() -> None:
    refused: list[BaseException] = []

    async def wait(producer: Producer) -> None:
        try:
            await producer.client_instance_id(60.0)
        except ClosedError as error:
            refused.append(error)

    async with cluster(lambda *_: subscription(error_code=ErrorCode.UNKNOWN_SUBSCRIPTION_ID)) as kafka:
        producer = Producer(bootstrap_servers=kafka.bootstrap)
        await producer.start()
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(wait, producer)
                await until(lambda: kafka.count(GetTelemetrySubscriptionsRequest) > 0)
                await producer.close()
        assert len(refused) == 1


@pytest.mark.parametrize("made", [Producer, Consumer])
async def test_closing_takes_no_time_that_it_has_not(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a broker that does not answer a push takes it, nor a metric of the application that blocks."""
    monkeypatch.setattr("kclient.cluster.telemetry._LAST_PUSH_S", 30.0)
    blocked, let_go = threading.Event(), threading.Event()

    def measure() -> float:
        blocked.set()
        let_go.wait(60)
        return 1.0

    async with cluster() as kafka:
        client = made(bootstrap_servers=kafka.bootstrap)
        await client.start()
        try:
            client.register_metric_for_subscription(Metric(MetricName("m", "app"), measure))
            await client.client_instance_id()
            await until(blocked.is_set)
            began = time.monotonic()
            await client.close(timeout=0)
            assert time.monotonic() - began < 10
        finally:
            let_go.set()


async def test_a_metric_that_exits_is_left_out() -> None:
    def measure() -> float:
        raise SystemExit(3)

    async with cluster() as kafka, Producer(bootstrap_servers=kafka.bootstrap) as producer:
        producer.register_metric_for_subscription(Metric(MetricName("m", "app"), measure))
        await producer.client_instance_id()
        await until(lambda: kafka.count(PushTelemetryRequest) > 1)
        await (await producer.send("t", b"1"))


@pytest.mark.parametrize("interval", [0, -1, -(2**31), 2**31 - 1])
@pytest.mark.parametrize("most", [-1, 0, 1, 2**31 - 1])
async def test_odd_subscriptions(interval: int, most: int) -> None:
    odd = subscription(push_interval_ms=interval, telemetry_max_bytes=most, accepted_compression_types=[99, -1, 4])
    async with cluster(lambda *_: odd) as kafka, Producer(bootstrap_servers=kafka.bootstrap) as producer:
        await producer.client_instance_id()
        await (await producer.send("t", b"1"))
    assert kafka.count(PushTelemetryRequest) == (1 if most in {0, 2**31 - 1} else 0), "as it closed"


@pytest.mark.parametrize("code", [-1, 29, 31, 35, 42, 76, 87, 89, 116, 117, 118, 9999])
async def test_a_push_that_is_refused_hurts_nobody(code: int) -> None:
    async with (
        cluster(pushed=lambda *_: PushTelemetryResponse(error_code=code)) as kafka,
        Producer(bootstrap_servers=kafka.bootstrap) as producer,
    ):
        await producer.client_instance_id()
        await until(lambda: kafka.count(PushTelemetryRequest) > 0)
        await (await producer.send("t", b"1"))


async def test_nothing_is_pushed_where_that_is_off() -> None:
    async with cluster() as kafka, Producer(bootstrap_servers=kafka.bootstrap, enable_metrics_push=False) as producer:
        await (await producer.send("t", b"1"))
    assert kafka.count(GetTelemetrySubscriptionsRequest) == kafka.count(PushTelemetryRequest) == 0
