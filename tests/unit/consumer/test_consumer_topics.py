"""Which topics a consumer asks for, creates and complains of; and subscribing to nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest

import kclient
import kclient.sync
from kclient.consumer import RebalanceListener
from kclient.errors import ErrorCode, IllegalStateError, InvalidTopicError, KafkaTimeoutError, TopicAuthorizationError
from kclient.protocol.messages import MetadataRequest
from kclient.sync.portal import get_portal
from kclient.testing import memory_broker
from kclient.types import TopicPartition
from tests.fake_reads import ReadableKafka

T0 = TopicPartition("t", 0)
U0 = TopicPartition("u", 0)


@asynccontextmanager
async def reading(kafka: ReadableKafka, **settings: Any) -> AsyncIterator[kclient.Consumer]:
    defaults = {
        "group_id": "g",
        "auto_offset_reset": "earliest",
        "heartbeat_interval_ms": 20,
        "fetch_max_wait_ms": 20,
        "metadata_max_age_ms": 50,
        "retry_backoff_ms": 10,
        "retry_backoff_max_ms": 50,
    }
    async with kclient.Consumer(bootstrap_servers=kafka.bootstrap, **{**defaults, **settings}) as consumer:  # type: ignore[arg-type]
        yield consumer


async def next_topics(kafka: ReadableKafka) -> set[str]:
    """What the next refresh of the metadata asks for."""
    before = len(kafka.requests)
    with anyio.fail_after(10):
        while True:
            for _, request in kafka.requests[before + 1 :]:  # one may have been on its way
                if isinstance(request, MetadataRequest):
                    return {topic.name or "" for topic in request.topics or ()}
            await anyio.sleep(0.01)


async def asked_for(kafka: ReadableKafka) -> set[str]:
    await next_topics(kafka)
    return await next_topics(kafka)


@pytest.mark.anyio
async def test_a_leader_asks_for_the_topics_of_the_others_at_once() -> None:
    together = {"group.initial.rebalance.delay.ms": 500}
    async with kclient.Gateway("memory:", "127.0.0.1:0", config=together) as gateway:
        settings = {"bootstrap_servers": gateway.bootstrap, "group_id": "g"}
        async with kclient.Producer(bootstrap_servers=gateway.bootstrap) as producer:
            await producer.send("t", b"1")
            await producer.send("u", b"1")
        async with kclient.Consumer("t", **settings) as one, kclient.Consumer("u", **settings) as other:  # type: ignore[arg-type]

            async def join(consumer: kclient.Consumer) -> None:
                while not consumer.assignment():
                    await consumer.poll(0.1)

            with anyio.fail_after(20):  # metadata.max.age.ms is five minutes
                async with anyio.create_task_group() as joining:
                    joining.start_soon(join, one)
                    joining.start_soon(join, other)
            assert (one.assignment(), other.assignment()) == ({T0}, {U0})


@pytest.mark.anyio
async def test_what_is_not_read_any_more_is_not_asked_for_any_more() -> None:
    async with ReadableKafka({"t": 1, "u": 1}) as kafka, reading(kafka) as consumer:
        consumer.assign([T0, U0])
        await consumer.position(T0)
        assert await asked_for(kafka) == {"t", "u"}
        consumer.assign([T0])
        assert await asked_for(kafka) == {"t"}
        await consumer.unsubscribe()
        assert await asked_for(kafka) == set()
        consumer.subscribe(["u"])
        assert await asked_for(kafka) == {"u"}


@pytest.mark.anyio
async def test_what_a_call_looked_at_is_not_asked_for_any_more() -> None:
    async with ReadableKafka({"t": 1, "u": 1}) as kafka, reading(kafka) as consumer:
        assert await consumer.end_offsets([T0]) == {T0: 0}
        assert len(await consumer.partitions_for("u")) == 1
        assert (await consumer.offsets_for_times({U0: 0}))[U0] is not None
        with pytest.raises(KafkaTimeoutError):
            await consumer.beginning_offsets([("none", 0)], timeout=0.1)
        assert await asked_for(kafka) == set()


@pytest.mark.anyio
async def test_a_deleted_topic_is_not_created_again_by_who_still_reads_it() -> None:
    async with ReadableKafka({"t": 1}) as kafka, reading(kafka) as consumer:
        kafka.auto_create = 1
        consumer.assign([T0, U0])
        await consumer.position(U0)  # it did not exist: this creates it
        assert "u" in kafka.ids
        kafka.delete("u")
        for _ in range(3):
            await asked_for(kafka)
        assert "u" not in kafka.ids
        with pytest.raises(KafkaTimeoutError):
            await consumer.end_offsets([U0], timeout=0.1)
        assert "u" not in kafka.ids


@pytest.mark.anyio
async def test_nothing_is_created_against_the_users_will() -> None:
    async with ReadableKafka({"t": 1}) as kafka, reading(kafka, allow_auto_create_topics=False) as consumer:
        kafka.auto_create = 1
        consumer.subscribe(["typo"])
        assert not await consumer.poll(0.2)
        assert set(kafka.ids) == {"t"}


@pytest.mark.anyio
async def test_who_asks_for_the_partitions_of_a_topic_is_told_at_once_that_it_must_not_be_read() -> None:
    async with ReadableKafka({"t": 1}) as kafka, reading(kafka) as consumer:
        kafka.topic_errors["secret"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        with anyio.fail_after(5), pytest.raises(TopicAuthorizationError, match="secret"):
            await consumer.partitions_for("secret")


@pytest.mark.anyio
async def test_a_topic_that_was_refused_is_asked_for_again_by_the_next_call() -> None:
    """Access may have been granted since: calls repeated what was said before, up to `metadata.max.age.ms`."""
    async with ReadableKafka({"t": 1, "u": 1}) as kafka, reading(kafka, metadata_max_age_ms=300_000) as consumer:
        kafka.topic_errors["u"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        consumer.assign([U0])  # so that it stays of interest
        calls = (consumer.partitions_for, lambda topic: consumer.end_offsets([(topic, 0)]))
        with anyio.fail_after(30):
            for call in calls:
                with pytest.raises(TopicAuthorizationError, match="'u'"):
                    await call("u")
                with pytest.raises(TopicAuthorizationError, match="'u'"):
                    await call("u")
            del kafka.topic_errors["u"]
            assert await consumer.end_offsets([U0]) == {U0: 0}
            assert len(await consumer.partitions_for("u")) == 1


@pytest.mark.anyio
async def test_a_topic_that_was_refused_is_read_once_access_is_granted() -> None:
    """Each poll raised what was said at first, up to `metadata.max.age.ms`, and nobody asked a broker again."""
    async with ReadableKafka({"u": 1}) as kafka, reading(kafka, metadata_max_age_ms=300_000) as consumer:
        kafka.fill("u", 0, 2)
        kafka.topic_errors["u"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        consumer.assign([U0])
        with anyio.fail_after(30):
            for _ in range(2):
                with pytest.raises(TopicAuthorizationError, match="'u'"):
                    await consumer.poll(10)
            del kafka.topic_errors["u"]
            records = 0
            while not records:
                with suppress(TopicAuthorizationError):  # one that was on its way
                    records = len(await consumer.poll(10))


@pytest.mark.anyio
async def test_a_topic_that_does_not_exist_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with ReadableKafka({"t": 1}) as kafka, reading(kafka) as consumer:

        def told() -> list[str]:
            return [record.message for record in caplog.records if "does not exist" in record.message]

        consumer.subscribe(["typo", "t"])
        for _ in range(3):
            assert not await consumer.poll(0.05)
            await asked_for(kafka)
        assert told() == ["topic 'typo' does not exist, so nothing of it is read until it does: is this its name?"]
        kafka.create("typo", 1)
        kafka.fill("typo", 0, 1)
        with anyio.fail_after(10):
            while not await consumer.poll(0.05):
                pass
        kafka.delete("typo")
        with anyio.fail_after(10):
            while len(told()) == 1:
                await consumer.poll(0.05)
        assert len(told()) == 2


# ------------------------------------------------------------------ subscribing to nothing


class Told(RebalanceListener):
    def __init__(self) -> None:
        self.told: list[Any] = []

    def on_partitions_revoked(self, partitions: Any) -> None:
        self.told.append(list(partitions))


class ToldLater(Told):
    async def on_partitions_revoked(self, partitions: Any) -> None:  # type: ignore[override]
        self.told.append(list(partitions))


async def joined(consumer: kclient.Consumer) -> None:
    with anyio.fail_after(10):
        while not consumer.assignment():
            await consumer.poll(0.1)


@pytest.mark.anyio
@pytest.mark.parametrize("listener", [Told, ToldLater])
async def test_subscribing_to_nothing_unsubscribes(listener: type[Told]) -> None:
    with memory_broker() as address:
        async with (
            kclient.Admin(bootstrap_servers=address) as admin,
            kclient.Consumer(bootstrap_servers=address, group_id="g") as consumer,
        ):
            await admin.create_topic("t")
            mine = listener()
            consumer.subscribe(["t"], mine)
            await joined(consumer)
            consumer.subscribe([])
            assert (consumer.subscription(), consumer.assignment()) == (set(), set())
            with pytest.raises(IllegalStateError, match="Nothing to poll"):
                await consumer.poll()
            with anyio.fail_after(5):  # the session timeout is 45 s
                while (await admin.describe_groups(["g"]))["g"].members:
                    await anyio.sleep(0.01)
            consumer.assign([T0])  # which a subscription would forbid
            await consumer.poll()
            assert mine.told == [[T0]]


@pytest.mark.anyio
@pytest.mark.parametrize("topics", [[""], ["t", ""], "", ["t", 5], [None], b"t", [b"t"], 5, ["\ud800"], ["x" * 40_000]])
async def test_subscribing_to_what_cannot_be_a_topic_changes_nothing(topics: Any) -> None:
    async with ReadableKafka({"t": 1}) as kafka, reading(kafka) as consumer:
        consumer.subscribe(["t"])
        await joined(consumer)
        with pytest.raises((TypeError, ValueError, InvalidTopicError)):
            consumer.subscribe(topics)
        assert consumer.subscription() == {"t"}
        assert consumer.assignment() == {T0}


def test_subscribing_to_nothing_in_blocking_code() -> None:
    kafka = ReadableKafka({"t": 1})
    get_portal().call(kafka.start)
    try:
        with kclient.sync.Consumer(bootstrap_servers=kafka.bootstrap, group_id="g") as consumer:
            mine = Told()
            consumer.subscribe(["t"], mine)
            while not consumer.assignment():
                consumer.poll(0.1)
            consumer.subscribe([])
            assert mine.told == [[T0]]
            with pytest.raises(IllegalStateError, match="Nothing to poll"):
                consumer.poll()
    finally:
        get_portal().call(kafka.aclose)


def test_subscribing_to_nothing_before_anything_has_started() -> None:
    consumer = kclient.sync.Consumer(bootstrap_servers="memory:unused", group_id="g")
    consumer.subscribe(["t"])
    consumer.subscribe([])
    assert consumer.subscription() == set()
