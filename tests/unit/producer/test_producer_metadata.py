"""What the producer knows of topics: waited for, refreshed while they are in use, forgotten when they are not."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anyio
import pytest

from kclient.cluster import PartitionMetadata
from kclient.config import ProducerConfig
from kclient.errors import (
    ErrorCode,
    InvalidTopicError,
    KafkaTimeoutError,
    TopicAuthorizationError,
    UnknownTopicOrPartitionError,
)
from kclient.producer import Producer
from kclient.producer.lifecycle import ProducerLifecycle
from kclient.protocol.messages import MetadataRequest, ProduceRequest
from tests.fake_kafka import FakeKafka
from tests.unit.producer.parts import FAST, producing

pytestmark = pytest.mark.anyio


class Clock:
    """The time that a producer goes by: `ahead` seconds later than it is."""

    ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


class TimedProducer(Producer):
    """A producer with a clock of its own."""

    def __init__(self, kafka: FakeKafka, clock: Clock, **given: Any) -> None:
        self.clock = clock
        super().__init__(**{**FAST, "bootstrap_servers": kafka.bootstrap, **given})

    def _make(self, config: ProducerConfig, clock: Callable[[], float]) -> ProducerLifecycle:
        return super()._make(config, self.clock)


def asked(kafka: FakeKafka) -> list[str]:
    """The topics of the last request for metadata."""
    (request,) = [message for _, message in kafka.requests if isinstance(message, MetadataRequest)][-1:]
    return [topic.name or "" for topic in request.topics or ()]


async def test_a_topic_is_created_when_asked_for() -> None:
    async with FakeKafka({}) as kafka, producing(kafka) as producer:
        kafka.auto_create = 2
        assert len(await producer.partitions_for("new")) == 2
        await (await producer.send("newer", b"a"))


@pytest.mark.slow
async def test_an_unknown_topic_times_out_and_says_why() -> None:
    async with FakeKafka() as kafka, producing(kafka, max_block_ms=1000) as producer:
        with pytest.raises(KafkaTimeoutError, match=r"'nowhere'.*UNKNOWN_TOPIC_OR_PARTITION"):
            await producer.send("nowhere", b"a")


async def test_an_invalid_topic_fails_at_once() -> None:
    async with FakeKafka() as kafka, producing(kafka) as producer:
        kafka.topic_errors["no good"] = ErrorCode.INVALID_TOPIC_EXCEPTION
        with pytest.raises(InvalidTopicError, match="no good"):
            await producer.send("no good", b"a")


async def test_nobody_there_is_told_with_every_address() -> None:
    async with FakeKafka(brokers=2) as kafka:
        for broker in kafka.brokers.values():
            broker.down = True
        async with producing(kafka, max_block_ms=1000) as producer:
            with pytest.raises(KafkaTimeoutError) as caught:
                await producer.send("t", b"a")
        for broker in kafka.brokers.values():
            assert f"nobody listens at {broker.host}" in str(caught.value)


async def test_metadata_are_asked_for_once_for_many_waiters() -> None:
    async with FakeKafka() as kafka, producing(kafka) as producer:
        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(producer.send, "t", b"a")
        await producer.flush()
        assert kafka.count(MetadataRequest) <= 3
        assert len(kafka.values()) == 10


async def test_a_topic_that_was_refused_is_asked_for_again_by_the_next_send() -> None:
    """Access may have been granted: it was refused until `metadata.max.age.ms` was over."""
    async with FakeKafka({"t": 1, "u": 1}) as kafka, producing(kafka) as producer:
        await (await producer.send("t", b"a"))
        kafka.topic_errors["u"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        for _ in range(2):
            with pytest.raises(TopicAuthorizationError, match="'u'"):
                await producer.send("u", b"a")
        del kafka.topic_errors["u"]
        assert (await (await producer.send("u", b"a"))).offset == 0


async def test_missing_topics_in_a_row_do_not_hide_that_a_leader_moved() -> None:
    """Each put the refresh of the others off, so that a producer to many topics missed every move."""
    delays = {"retry_backoff_ms": 100, "retry_backoff_max_ms": 400}
    async with FakeKafka(brokers=2) as kafka, producing(kafka, **delays) as producer:
        await (await producer.send("t", b"a"))

        async def keep_missing() -> None:
            for number in itertools.count():
                producer._life.cluster.track([f"missing-{number}"])
                await anyio.sleep(0.01)

        async with anyio.create_task_group() as group:
            group.start_soon(keep_missing)
            while "missing-5" not in asked(kafka):
                await anyio.sleep(0.001)
            kafka.move("t", 0, 2)
            with anyio.fail_after(5):
                assert (await (await producer.send("t", b"b"))).offset == 1
            group.cancel_scope.cancel()


async def test_a_new_topic_costs_nothing_per_topic_that_is_known() -> None:
    """The first records of a producer to thousands of topics took a time that grew with their square."""

    class Looked(dict[int, PartitionMetadata]):
        times = 0

        def __getitem__(self, key: int) -> PartitionMetadata:
            self.times += 1
            return super().__getitem__(key)

        def get(self, key: int, default: Any = None) -> Any:
            self.times += 1
            return super().get(key, default)

    async with FakeKafka({"t": 1, "u": 1}) as kafka, producing(kafka) as producer:
        await (await producer.send("t", b"a"))
        cache = producer._life.cluster.metadata
        looked = Looked(cache.snapshot.topics["t"].partitions)
        topics = {"t": replace(cache.snapshot.topics["t"], partitions=looked)}
        cache.snapshot = replace(cache.snapshot, topics=topics)
        producer._life.buffer.update(cache.snapshot)
        assert looked.times
        looked.times = 0
        await (await producer.send("u", b"a"))
        assert looked.times == 0
        kafka.move("t", 0, 1)
        await producer._life.cluster.refresh()
        await (await producer.send("t", b"b"))
        assert kafka.values("t") == [b"a", b"b"]


# --------------------------------------------------------------------------- partitions that are new


async def test_a_partition_that_the_topic_has_got_meanwhile_is_waited_for() -> None:
    async with FakeKafka({"t": 2}, brokers=2) as kafka, producing(kafka) as producer:
        await (await producer.send("t", b"a", partition=1))
        kafka.grow("t", 3)
        assert (await (await producer.send("t", b"b", partition=2))).partition == 2, "it is there already"

        async def soon() -> None:
            await anyio.sleep(0.05)
            kafka.grow("t", 5)

        async with anyio.create_task_group() as group:
            group.start_soon(soon)
            deliveries = await producer.send_batch("t", [b"c", b"d"], partition=4)
        assert [metadata.partition for metadata in await deliveries] == [4, 4]


async def test_a_partition_that_never_comes_is_told_after_max_block_ms() -> None:
    async with FakeKafka({"t": 2}) as kafka, producing(kafka, max_block_ms=100) as producer:
        begun = anyio.current_time()
        for send in (lambda: producer.send("t", b"x", partition=2), lambda: producer.send_batch("t", [b"x"], None, 2)):
            with pytest.raises(UnknownTopicOrPartitionError, match=r"partition 2 of topic 't'.*0\.1 s.*2 partitions"):
                await send()
        assert anyio.current_time() - begun >= 0.2
        assert kafka.count(MetadataRequest) < 100, "ever less often"
        for send in (
            lambda: producer.send("t", b"x", partition=-1),
            lambda: producer.send_batch("t", [b"x"], None, -1),
        ):
            with pytest.raises(ValueError, match="from 0 to"):
                await send()


# --------------------------------------------------------------------------- topics that nobody uses


async def test_an_idle_producer_sends_again_after_the_leader_moved() -> None:
    clock = Clock()
    async with FakeKafka({"t": 1, "u": 1}, brokers=2) as kafka, TimedProducer(kafka, clock) as producer:
        await (await producer.send("t", b"a"))
        await (await producer.send("u", b"a"))
        cluster = producer._life.cluster
        clock.ahead += 290
        await (await producer.send("u", b"b"))
        clock.ahead += 20
        await cluster.refresh()
        assert asked(kafka) == ["u"]
        assert set(cluster.snapshot.topics) == {"u"}, "what is not refreshed leaves the snapshot too"
        kafka.move("t", 0, 2)
        with anyio.fail_after(10):
            assert (await (await producer.send("t", b"b"))).offset == 1
        assert kafka.count(ProduceRequest) == 4, "at once to the new leader"


async def test_records_that_wait_keep_their_topic_in_use() -> None:
    clock = Clock()
    async with FakeKafka({"t": 1}, brokers=2) as kafka, TimedProducer(kafka, clock, linger_ms=400_000) as producer:
        delivery = await producer.send("t", b"a")
        clock.ahead += 301
        await producer._life.cluster.refresh()
        assert asked(kafka) == ["t"]
        kafka.move("t", 0, 2)
        await producer.flush(timeout=10)
        assert (await delivery).offset == 0


async def test_what_is_forgotten_takes_no_memory() -> None:
    clock = Clock()
    names = [f"t{number}" for number in range(20)]
    async with FakeKafka(dict.fromkeys(names, 1)) as kafka, TimedProducer(kafka, clock) as producer:
        for name in names:
            await (await producer.send(name, b"a"))
        clock.ahead += 301
        await producer._life.cluster.refresh()
        buffer = producer._life.buffer
        assert (buffer._topics, buffer.appender.topics) == ({}, {})
        await (await producer.send("t0", b"b"))
        assert kafka.values("t0") == [b"a", b"b"]


# --------------------------------------------------------------------------- topics that are deleted


async def test_a_deleted_topic_is_not_created_again_by_the_refresh_but_by_the_next_send() -> None:
    async with FakeKafka({"other": 1}) as kafka, producing(kafka) as producer:
        kafka.auto_create = 2
        await (await producer.send("t", b"a"))
        kafka.delete("t")
        for _ in range(3):
            await producer._life.cluster.refresh()
        await producer.partitions_for("another")
        assert "t" not in kafka.ids
        await (await producer.send("t", b"b", partition=0))
        assert kafka.values("t") == [b"b"]


async def test_who_waited_in_vain_creates_nothing_later() -> None:
    async with FakeKafka({"other": 1}) as kafka, producing(kafka, max_block_ms=50) as producer:
        with pytest.raises(KafkaTimeoutError):
            await producer.send("t", b"a")
        await producer._life.cluster.refresh()  # what was asked while it waited has been answered
        kafka.auto_create = 1
        await producer._life.cluster.refresh()
        assert "t" not in kafka.ids
