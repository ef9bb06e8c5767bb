"""The cluster on both loops: bootstrap, metadata, requests, coordinators, retries."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from kclient.cluster import Cluster
from kclient.concurrency import Supervisor
from kclient.config import AdminConfig
from kclient.errors import (
    BrokerConnectionError,
    ClosedError,
    ErrorCode,
    IllegalStateError,
    KafkaTimeoutError,
    NotLeaderOrFollowerError,
    TopicAuthorizationError,
    UnsupportedVersionError,
)
from kclient.protocol.messages import InitProducerIdRequest, InitProducerIdResponse, MetadataRequest
from kclient.protocol.registry import ApiKey
from kclient.testing.cancellation import Cancelled, at_every_checkpoint
from kclient.types import TopicPartition
from tests.fake_kafka import FakeKafka

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def connected(kafka: FakeKafka, **settings: Any) -> AsyncIterator[Cluster]:
    config = AdminConfig.parse(
        bootstrap_servers=kafka.bootstrap,
        **{
            "retry_backoff_ms": 1,
            "retry_backoff_max_ms": 5,
            "reconnect_backoff_ms": 1,
            "reconnect_backoff_max_ms": 5,
            **settings,
        },
    )
    async with Supervisor("cluster under test") as supervisor:
        cluster = Cluster(config, supervisor)
        await cluster.start()
        try:
            yield cluster
        finally:
            await cluster.aclose()


async def test_refresh_brings_brokers_and_topics() -> None:
    async with FakeKafka({"t": 3}, brokers=3) as kafka, connected(kafka) as cluster:
        snapshot = await cluster.refresh(["t"])
        assert set(snapshot.nodes) == {1, 2, 3}
        assert snapshot.cluster_id == kafka.name
        assert [snapshot.leader_id(TopicPartition("t", n)) for n in range(3)] == [1, 2, 3]
        assert await cluster.refresh(all_topics=True) is cluster.snapshot


async def test_a_dead_bootstrap_server_is_skipped() -> None:
    async with FakeKafka(brokers=3) as kafka:
        kafka.brokers[1].down = kafka.brokers[2].down = True
        async with connected(kafka) as cluster:
            await cluster.refresh(["t"])


async def test_nobody_there_names_every_address() -> None:
    async with FakeKafka(brokers=2) as kafka:
        for broker in kafka.brokers.values():
            broker.down = True
        async with connected(kafka) as cluster:
            with pytest.raises(KafkaTimeoutError) as caught:
                await cluster.refresh(timeout=1.0)
            for broker in kafka.brokers.values():
                assert broker.host in str(caught.value)


async def test_the_bootstrap_connection_serves_as_the_brokers() -> None:
    async with FakeKafka() as kafka, connected(kafka) as cluster:
        await cluster.refresh(["t"])
        await cluster.connection(1)
        assert kafka.brokers[1].connects == 1


async def test_channels_have_connections_of_their_own() -> None:
    async with FakeKafka() as kafka, connected(kafka) as cluster:
        await cluster.refresh(["t"])
        one, other = await cluster.connection(1), await cluster.connection(1, "coordinator")
        assert one is not other
        assert await cluster.connection(1, "coordinator") is other


async def test_requests_use_a_version_that_both_sides_know() -> None:
    versions = {ApiKey.INIT_PRODUCER_ID: (1, 3)}
    async with FakeKafka(versions=versions) as kafka, connected(kafka) as cluster:
        await cluster.refresh()
        request = InitProducerIdRequest(transaction_timeout_ms=1)
        answer = await cluster.request(1, request)
        assert isinstance(answer, InitProducerIdResponse)
        await cluster.request(None, request, max_version=2)
        seen = [version for version, message in kafka.requests if isinstance(message, InitProducerIdRequest)]
        assert seen == [3, 2]
        with pytest.raises(UnsupportedVersionError, match=kafka.name):
            await cluster.request(1, request, max_version=0)


async def test_an_unknown_broker_is_an_error_and_asks_for_metadata() -> None:
    async with FakeKafka() as kafka, connected(kafka) as cluster:
        await cluster.refresh()
        before = kafka.count(MetadataRequest)
        with pytest.raises(BrokerConnectionError, match="id 99"):
            await cluster.connection(99)
        with anyio.fail_after(5):
            while kafka.count(MetadataRequest) == before:
                await anyio.sleep(0.001)


async def test_a_broken_connection_is_replaced() -> None:
    async with FakeKafka() as kafka, connected(kafka) as cluster:
        await cluster.refresh(["t"])
        await cluster.connection(1)
        kafka.brokers[1].hang_up()
        await anyio.wait_all_tasks_blocked()
        answer = await cluster.request(1, InitProducerIdRequest(transaction_timeout_ms=1))
        assert answer.error_code == 0


async def test_a_broker_that_left_is_disconnected() -> None:
    async with FakeKafka(brokers=2) as kafka, connected(kafka) as cluster:
        await cluster.refresh(["t"])
        await cluster.connection(2)
        kafka.brokers[2].down = True
        await cluster.refresh()
        with anyio.fail_after(5):
            while kafka.brokers[2].connections:
                await anyio.sleep(0.001)
        assert cluster.link(2) is None


async def test_all_known_brokers_dead_bootstraps_again() -> None:
    async with FakeKafka(brokers=2) as kafka, connected(kafka) as cluster:
        kafka.brokers[2].down = True
        await cluster.refresh(["t"])
        assert set(cluster.snapshot.nodes) == {1}
        kafka.brokers[1].down, kafka.brokers[2].down = True, False
        kafka.brokers[1].hang_up()
        await anyio.wait_all_tasks_blocked()
        snapshot = await cluster.refresh(timeout=5)
        assert set(snapshot.nodes) == {2}


async def test_without_rebootstrap_the_known_brokers_are_all() -> None:
    async with FakeKafka(brokers=2) as kafka:
        kafka.brokers[2].down = True
        async with connected(kafka, metadata_recovery_strategy="none") as cluster:
            await cluster.refresh(["t"])
            kafka.brokers[1].down, kafka.brokers[2].down = True, False
            kafka.brokers[1].hang_up()
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(KafkaTimeoutError):
                await cluster.refresh(timeout=0.05)


async def test_a_condition_that_raises_ends_the_wait() -> None:
    async with FakeKafka() as kafka, connected(kafka) as cluster:
        kafka.topic_errors["t"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED

        def met(snapshot: Any) -> bool:
            if "t" in snapshot.errors:
                raise TopicAuthorizationError
            return False

        cluster.track(["t"])
        with pytest.raises(TopicAuthorizationError):
            await cluster.wait_until(met, timeout=5)


@pytest.mark.parametrize("newest", [0, 3, 4, 6])
async def test_coordinators_in_every_form(newest: int) -> None:
    async with FakeKafka(versions={ApiKey.FIND_COORDINATOR: (0, newest)}) as kafka, connected(kafka) as cluster:
        node = await cluster.find_coordinator("group")
        assert (node.id, node.host) == (1, kafka.brokers[1].host)


async def test_retrying_until_it_works_or_never_will() -> None:
    async with FakeKafka() as kafka, connected(kafka) as cluster:
        calls = 0

        async def third_time() -> str:
            nonlocal calls
            calls += 1
            if calls < 3:
                raise NotLeaderOrFollowerError
            return "done"

        assert await cluster.retrying(third_time) == "done"
        assert calls == 3

        async def never() -> None:
            raise NotLeaderOrFollowerError("still not")

        with pytest.raises(KafkaTimeoutError, match=r"Counting did not succeed within 0.02 s: still not"):
            await cluster.retrying(never, timeout=0.02, what="Counting")

        async def final() -> None:
            raise TopicAuthorizationError

        with pytest.raises(TopicAuthorizationError):
            await cluster.retrying(final)


async def test_use_before_start_and_after_close_is_clear() -> None:
    async with FakeKafka() as kafka, Supervisor("x") as supervisor:
        cluster = Cluster(AdminConfig.parse(bootstrap_servers=kafka.bootstrap), supervisor)
        with pytest.raises(IllegalStateError, match="not started"):
            await cluster.connection()
        await cluster.start()
        await cluster.start()
        await cluster.aclose()
        with pytest.raises(ClosedError):
            await cluster.refresh()


async def test_closing_ends_those_who_wait() -> None:
    async with FakeKafka() as kafka, connected(kafka) as cluster:
        failed: list[Exception] = []

        async def wait() -> None:
            try:
                await cluster.wait_until(lambda snapshot: False)
            except ClosedError as error:
                failed.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            await cluster.aclose()
        assert failed


async def test_a_cancelled_refresh_leaves_the_cluster_whole() -> None:
    async def scenario(cancelled: Cancelled) -> None:
        async with FakeKafka() as kafka, connected(kafka) as cluster:
            await cancelled(cluster.refresh(["t"]))
            snapshot = await cluster.refresh(["t"])
            assert snapshot.partition_count("t") == 1

    assert await at_every_checkpoint(scenario) >= 1


async def test_a_cancelled_request_leaves_the_connection_usable() -> None:
    async def scenario(cancelled: Cancelled) -> None:
        async with FakeKafka() as kafka, connected(kafka) as cluster:
            await cluster.refresh(["t"])
            await cancelled(cluster.request(1, InitProducerIdRequest(transaction_timeout_ms=1)))
            answer = await cluster.request(1, InitProducerIdRequest(transaction_timeout_ms=1))
            assert answer.producer_id >= 1000
            assert kafka.brokers[1].connects == 1

    assert await at_every_checkpoint(scenario) >= 1
