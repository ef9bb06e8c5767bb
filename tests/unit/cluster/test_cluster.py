"""The cluster on both loops: bootstrap, metadata, requests, coordinators, retries."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from kclient.cluster import Cluster
from kclient.cluster.advertised import check_advertised
from kclient.cluster.cluster import PATIENCE
from kclient.cluster.connections import SILENCE
from kclient.concurrency import Supervisor
from kclient.config import AdminConfig
from kclient.errors import (
    BrokerConnectionError,
    ClosedError,
    ErrorCode,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    TopicAuthorizationError,
    UnsupportedVersionError,
)
from kclient.net.address import Address
from kclient.protocol.messages import InitProducerIdRequest, InitProducerIdResponse, MetadataRequest
from kclient.protocol.registry import ApiKey
from kclient.testing.cancellation import Cancelled, at_every_checkpoint
from kclient.types import TopicPartition
from tests.fake_kafka import FakeKafka

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def connected(kafka: FakeKafka, *, creates: bool = True, **settings: Any) -> AsyncIterator[Cluster]:
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
        cluster = Cluster(config, supervisor, allow_auto_topic_creation=creates)
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


async def test_a_broker_that_leaves_while_we_connect_to_it_is_no_failure() -> None:
    async with FakeKafka(brokers=2) as kafka, connected(kafka) as cluster:
        await cluster.refresh()
        kafka.brokers[2].pause()
        errors: list[KafkaError] = []

        async def use() -> None:
            try:
                await cluster.connection(2, "another")
            except KafkaError as error:
                errors.append(error)

        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                group.start_soon(use)
                await anyio.wait_all_tasks_blocked()
                kafka.brokers[2].listed = False
                await cluster.refresh()
        (error,) = errors
        assert error.retriable
        assert "Broker 2" in str(error)
        assert "left the cluster" in str(error)
        kafka.brokers[2].resume()
        await anyio.wait_all_tasks_blocked()
        assert not kafka.brokers[2].connections, "no socket stays open"
        await cluster.refresh()


async def test_a_hung_broker_delays_the_metadata_by_a_moment_only() -> None:
    async with FakeKafka(brokers=2) as kafka:
        kafka.brokers[1].pause()
        async with connected(kafka) as cluster:
            with anyio.fail_after(PATIENCE + 5):
                for _ in range(5):
                    await cluster.refresh()
                await cluster.request(None, InitProducerIdRequest(transaction_timeout_ms=1))
                await cluster.find_coordinator("group")


async def test_a_broker_that_owes_answers_is_asked_last() -> None:
    async with FakeKafka(brokers=3) as kafka, connected(kafka) as cluster:
        await cluster.refresh()
        for node in kafka.brokers:
            await cluster.connection(node)
        kafka.brokers[1].pause()
        async with anyio.create_task_group() as group:
            group.start_soon(cluster.request, 1, InitProducerIdRequest(transaction_timeout_ms=1))
            await anyio.sleep(SILENCE + 0.1)
            asked = [await cluster.connection() for _ in range(20)]
            likely = [await cluster.connection(2), await cluster.connection(3)]
            assert set(asked) == set(likely)
            group.cancel_scope.cancel()


async def test_a_black_hole_among_the_bootstrap_servers_is_passed_over() -> None:
    async with FakeKafka(brokers=2) as kafka:
        kafka.brokers[1].black_hole = True
        async with connected(kafka) as cluster:
            with anyio.fail_after(PATIENCE + 5):
                assert set((await cluster.refresh()).nodes) == {1, 2}


async def test_a_connection_that_is_lost_asks_for_metadata() -> None:
    async with FakeKafka(brokers=2) as kafka, connected(kafka) as cluster:
        await cluster.refresh()
        await cluster.connection(2, "another")
        before = kafka.count(MetadataRequest)
        kafka.brokers[2].hang_up()
        with anyio.fail_after(5):
            while kafka.count(MetadataRequest) == before:
                await anyio.sleep(0.001)


async def test_a_refresh_is_not_content_with_the_answer_to_an_older_question() -> None:
    async with FakeKafka() as kafka, connected(kafka) as cluster:
        await cluster.refresh()
        kafka.brokers[1].pause()
        async with anyio.create_task_group() as group:
            group.start_soon(cluster.refresh)
            await anyio.wait_all_tasks_blocked()  # the question without the topic is on its way

            async def look() -> None:
                snapshot = await cluster.refresh(["t"])
                assert snapshot.partition_count("t") == 1

            group.start_soon(look)
            await anyio.wait_all_tasks_blocked()
            kafka.brokers[1].resume()


async def test_what_a_call_looked_at_is_not_asked_for_again() -> None:
    async with FakeKafka({"t": 1, "u": 1}) as kafka, connected(kafka) as cluster:
        cluster.track(["u"])
        assert set((await cluster.refresh(["t"])).topics) == {"t", "u"}
        assert set(cluster.snapshot.topics) == {"u"}
        await cluster.refresh()
        (request,) = [message for _, message in kafka.requests if isinstance(message, MetadataRequest)][-1:]
        assert [topic.name for topic in request.topics or ()] == ["u"]


async def test_a_deleted_topic_is_not_created_again_by_the_refresh() -> None:
    async with FakeKafka({"other": 1}) as kafka, connected(kafka) as cluster:
        kafka.auto_create = 2
        cluster.track(["t"])
        await cluster.wait_until(lambda snapshot: snapshot.partition_count("t") == 2)
        kafka.delete("t")
        for _ in range(3):
            await cluster.refresh()
        assert "t" not in cluster.snapshot.topics
        assert "t" not in kafka.ids
        cluster.track(["u"])
        await cluster.wait_until(lambda snapshot: snapshot.partition_count("u") == 2)
        assert "t" not in kafka.ids, "not beside another topic either"


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


@pytest.mark.parametrize(
    "host", ["kafka_1", "b.svc.cluster.local.", "fe80::1%eth0", "::ffff:10.0.0.1", "bücher.example", "1.2.3.4", "B-1"]
)
def test_addresses_that_brokers_are_advertised_at(host: str) -> None:
    check_advertised(Address.of_broker(host, 1), ())
    check_advertised(Address.of_broker(host, 65535), ())
