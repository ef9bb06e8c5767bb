"""Brokers whose metadata cannot be true: clients live through them, and go on when the truth comes; in virtual time.

Nobody sends such answers on purpose, but brokers have had defects, settings are mistyped, and whoever listens at a
port may not be Kafka. Every call ends in time, with a result or a `KafkaError`; no task of a client dies of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st

from kclient.consumer import Consumer
from kclient.errors import ErrorCode, KafkaError, KafkaTimeoutError, UnknownTopicOrPartitionError
from kclient.producer import Delivery
from kclient.protocol.message import ApiMessage
from kclient.protocol.messages import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    ProduceRequest,
)
from kclient.protocol.registry import ApiKey
from kclient.types import TopicPartition
from tests.example_budget import examples
from tests.fake_reads import ReadableKafka
from tests.simulation.trouble import TimedAdmin, TimedConsumer, TimedProducer
from tests.simulation.virtual_time import BACKENDS, run_virtually

LYING = 12.0
"""Seconds before the truth comes."""
AFTER = 3.0
"""Seconds after which it has: the longest delay before another request, and some more."""
DELIVERY = 8.0
TIMES = {"request_timeout_ms": 3000, "retry_backoff_max_ms": 1000, "reconnect_backoff_max_ms": 1000}

Lie = Callable[[ReadableKafka], MetadataResponse]

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def partition(number: int, leader: int = 1, **others: Any) -> MetadataResponsePartition:
    return MetadataResponsePartition(
        partition_index=number, leader_id=leader, leader_epoch=0, replica_nodes=[1], **others
    )


def topic(kafka: ReadableKafka, *partitions: MetadataResponsePartition, **others: Any) -> MetadataResponseTopic:
    found: dict[str, Any] = {"name": "t", "topic_id": kafka.ids["t"], "partitions": list(partitions), **others}
    return MetadataResponseTopic(**found)


def answer(kafka: ReadableKafka, *topics: MetadataResponseTopic, **others: Any) -> MetadataResponse:
    brokers = [MetadataResponseBroker(node_id=n, host=broker.host, port=0) for n, broker in kafka.brokers.items()]
    found: dict[str, Any] = {
        "brokers": brokers,
        "cluster_id": "c",
        "controller_id": 1,
        "topics": list(topics),
        **others,
    }
    return MetadataResponse(**found)


def numbered(*numbers: int) -> Lie:
    return lambda kafka: answer(kafka, topic(kafka, *map(partition, numbers)))


def led_by(leader: int) -> Lie:
    return lambda kafka: answer(kafka, topic(kafka, partition(0, leader), partition(1, leader)))


def at(host: str, port: int = 9092) -> Lie:
    """The only broker is said to be at another address."""
    brokers = [MetadataResponseBroker(node_id=1, host=host, port=port)]
    return lambda kafka: answer(kafka, topic(kafka, partition(0), partition(1)), brokers=brokers)


LIES: dict[str, tuple[Lie, str]] = {
    "a number below 0": (numbered(-1, 0), "not number its partitions"),
    "numbers below 0 only": (numbered(-5), "without partitions"),
    "a huge number": (numbered(0, 2**31 - 1), "not number its partitions"),
    "a number left out": (numbered(0, 2), "not number its partitions"),
    "no topic": (answer, "leave it out"),
    "no name": (lambda kafka: answer(kafka, topic(kafka, partition(0), name=None)), "leave it out"),
    "another topic": (lambda kafka: answer(kafka, topic(kafka, partition(0), name="u")), "leave it out"),
    "no partitions": (lambda kafka: answer(kafka, topic(kafka)), "without partitions"),
    "no brokers": (
        lambda kafka: answer(kafka, topic(kafka, partition(0), partition(1)), brokers=[]),
        "knows of no broker",
    ),
    "a leader that is no broker": (led_by(77), "no leader that is known"),
    "a leader below 0": (led_by(-7), "no leader that is known"),
    "no host": (at(""), "not a host name"),
    "a host that is none": (at("a..b"), "not a host name"),
    "a host with a zero byte": (at("localhost\0x"), "not a host name"),
    "port 0": (at("127.0.0.1", 0), "a port is from 1"),
    "port -1": (at("127.0.0.1", -1), "a port is from 1"),
    "port 70000": (at("127.0.0.1", 70000), "a port is from 1"),
    "an unknown scheme": (at("bogus:x"), "only clients that have bogus:"),
    "a Unix socket": (at("unix:/run/docker.sock"), "only clients that have unix:"),
    "a store of this process": (at("memory:lie"), "only clients that have memory:"),
}


def lie(kafka: ReadableKafka, *lies: Lie) -> Callable[[], None]:
    """Have the metadata lie, with one of the lies after the other; what ends that."""
    turn = iter(range(1 << 30))

    def lying(broker: object, request: object) -> ApiMessage:
        return lies[next(turn) % len(lies)](kafka)

    kafka.scripts[ApiKey.METADATA] = lying
    return kafka.scripts.clear


async def outcome(delivery: Delivery) -> BaseException | None:
    """How a delivery ends, which it does in time."""
    with anyio.fail_after(DELIVERY + 1):
        try:
            await delivery
        except KafkaError as error:
            return error
    return None


async def whatever(call: Callable[[], Awaitable[Any]], seconds: float) -> None:
    """A call that ends in time; the cluster may be to blame that it fails, and then a `KafkaError` says so."""
    with anyio.fail_after(seconds + 0.5), suppress(KafkaError):
        await call()


def producer_of(kafka: ReadableKafka, **others: int) -> TimedProducer:
    times = {"max_block_ms": 2000, "delivery_timeout_ms": int(DELIVERY * 1000), "linger_ms": 0, **TIMES, **others}
    return TimedProducer(bootstrap_servers=kafka.bootstrap, **times)  # type: ignore[arg-type]


async def produces(kafka: ReadableKafka, *lies: Lie) -> list[KafkaError]:
    """A producer lives through lies, then sends to both partitions; the errors that it had before."""
    async with kafka, producer_of(kafka) as producer:
        end = lie(kafka, *lies)
        errors: list[KafkaError] = []
        deliveries: list[Delivery] = []

        async def send_batch() -> None:
            deliveries.extend(await producer.send_batch("t", [b"v"] * 3))

        while anyio.current_time() < LYING:
            for key, number in ((None, None), (b"k", None), (None, 0), (None, 1)):
                with anyio.fail_after(2.5):
                    try:
                        deliveries.append(await producer.send("t", b"v", key=key, partition=number))
                    except KafkaError as error:
                        errors.append(error)
            await whatever(send_batch, 2)
            await whatever(lambda: producer.partitions_for("t"), 2)
            await anyio.sleep(1)
        end()
        for delivery in deliveries:
            error = await outcome(delivery)
            if isinstance(error, KafkaError):
                errors.append(error)
        await anyio.sleep(AFTER)
        for number in (0, 1):
            metadata = await (await producer.send("t", b"true", partition=number))
            assert metadata.partition == number
        assert {await _key_goes_to(producer, key) for key in (b"a", b"b", b"c", b"d", b"e")} == {0, 1}
        with anyio.fail_after(1):
            await producer.close()
    return errors


async def _key_goes_to(producer: TimedProducer, key: bytes) -> int:
    return (await (await producer.send("t", b"v", key=key))).partition


async def reads(kafka: ReadableKafka, *lies: Lie) -> None:
    """A consumer of assigned partitions, and one in a group, live through lies, then read everything."""
    async with kafka:
        for number in (0, 1):
            kafka.fill("t", number, 3)
        end = lie(kafka, *lies)
        settings: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap, "default_api_timeout_ms": 2000, **TIMES}
        settings["auto_offset_reset"] = "earliest"
        both = [TopicPartition("t", 0), TopicPartition("t", 1)]
        async with TimedConsumer(**settings) as assigned, TimedConsumer("t", group_id="g", **settings) as member:
            assigned.assign(both)
            found: dict[Consumer, int] = {assigned: 0, member: 0}

            async def poll(consumer: Consumer) -> None:
                found[consumer] += len(list(await consumer.poll(timeout=0.5)))

            begun = anyio.current_time()
            while anyio.current_time() < begun + LYING:
                await whatever(lambda: poll(assigned), 0.5)
                await whatever(lambda: poll(member), 0.5)
                await whatever(lambda: assigned.end_offsets(both), 2)
                await whatever(lambda: assigned.partitions_for("t"), 2)
                await whatever(assigned.list_topics, 2)
            end()
            with anyio.fail_after(60):
                while min(found.values()) < 6:  # a topic that became another one meanwhile is read again
                    await whatever(lambda: poll(assigned), 0.5)
                    await whatever(lambda: poll(member), 0.5)
            with anyio.fail_after(4):
                await assigned.close()
                await member.close()


async def administers(kafka: ReadableKafka, *lies: Lie) -> None:
    """An admin client asks amid lies, then has the truth."""
    async with kafka:
        settings: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap, "default_api_timeout_ms": 2000, **TIMES}
        end = lie(kafka, *lies)
        async with TimedAdmin(**settings) as admin:
            begun = anyio.current_time()
            while anyio.current_time() < begun + LYING:
                await whatever(admin.list_topics, 2)
                await whatever(lambda: admin.describe_topics(["t"]), 2)
                await whatever(lambda: admin.list_offsets({TopicPartition("t", 1): -1}), 2)
                await whatever(admin.describe_cluster, 2)
                await anyio.sleep(0.5)
            end()
            await anyio.sleep(AFTER)
            assert [each.name for each in await admin.list_topics()] == ["t"]
            assert len((await admin.describe_topics(["t"]))["t"].partitions) == 2
            assert (await admin.list_offsets({TopicPartition("t", 1): -1}))["t", 1].offset == 0
            with anyio.fail_after(1):
                await admin.close()


@pytest.mark.parametrize("name", LIES)
def test_a_producer_says_what_cannot_be_true_and_goes_on(name: str, backend: str) -> None:
    told, text = LIES[name]
    errors = run_virtually(backend, produces, ReadableKafka({"t": 2}), told)
    assert errors
    assert all(isinstance(error, KafkaTimeoutError | UnknownTopicOrPartitionError) for error in errors), errors
    assert any(text in str(error) for error in errors), errors[0]


@pytest.mark.parametrize("name", LIES)
def test_consumers_live_through_it(name: str, backend: str) -> None:
    run_virtually(backend, reads, ReadableKafka({"t": 2}), LIES[name][0])


@pytest.mark.parametrize("name", LIES)
def test_an_admin_client_lives_through_it(name: str, backend: str) -> None:
    run_virtually(backend, administers, ReadableKafka({"t": 2}), LIES[name][0])


def test_leaders_that_are_nobody_are_asked_for_ever_less_often(backend: str) -> None:
    kafka = ReadableKafka({"t": 2})

    async def run() -> int:
        async with kafka, producer_of(kafka) as producer:
            lie(kafka, led_by(77))
            before = len(kafka.requests)
            assert await outcome(await producer.send("t", b"v")) is not None
            return len(kafka.requests) - before

    # every 0.1 s it would be 80 times; the delays double up to one second
    assert run_virtually(backend, run) < 20


def test_brokers_that_want_to_be_left_for_good_are_asked_at_intervals(backend: str) -> None:
    """REBOOTSTRAP_REQUIRED (KIP-1102) has the client begin anew at once, but not again and again without a pause."""
    kafka = ReadableKafka({"t": 2})

    async def run() -> int:
        async with kafka, producer_of(kafka) as producer:
            lie(kafka, lambda kafka: answer(kafka, error_code=ErrorCode.REBOOTSTRAP_REQUIRED))
            with pytest.raises(KafkaError):
                await producer.send("t", b"v")
            await anyio.sleep(5)
            return len(kafka.requests)

    assert run_virtually(backend, run) < 30


def test_what_is_known_of_a_topic_outlives_a_lie(backend: str) -> None:
    """Only the leaders of its partitions are believed."""
    kafka = ReadableKafka({"t": 2})

    async def run() -> None:
        async with kafka, producer_of(kafka, metadata_max_age_ms=500) as producer:
            assert len(await producer.partitions_for("t")) == 2
            lie(kafka, numbered(0, 7), numbered(-3, 1), numbered(1))
            for number in (0, 1):
                before = kafka.count(MetadataRequest)
                await anyio.sleep(5)
                assert kafka.count(MetadataRequest) > before + 2
                assert await outcome(await producer.send("t", b"v", partition=number)) is None
                assert [info.partition for info in await producer.partitions_for("t")] == [0, 1]

    run_virtually(backend, run)


def test_no_store_is_made_because_a_broker_says_so(backend: str, tmp_path: Path) -> None:
    kafka = ReadableKafka({"t": 2})
    run_virtually(backend, produces, kafka, at(f"embedded:{tmp_path / 'lie'}", 0))
    assert not list(tmp_path.iterdir())
    assert kafka.count(ProduceRequest) > 0  # of what was sent when the truth had come


NUMBERS = st.sampled_from([-(2**31), -1, 0, 1, 1, 0, 2, 1000, 2**20, 2**31 - 1])
IDS = st.sampled_from([-(2**31), -1, 0, 1, 1, 2, 77, 2**31 - 1])
CODES = st.sampled_from([0, 0, 0, 0, -1, 3, 5, 6, 9, 17, 29, 72, 77, 103, 9999, 32767])
NAMES = st.sampled_from(["t", "t", "t", None, "", "u", "t" * 300, "a\0b", "é"])
PARTITIONS = st.builds(
    MetadataResponsePartition,
    partition_index=NUMBERS,
    leader_id=IDS,
    leader_epoch=st.sampled_from([-(2**31), -1, 0]),  # a later one would be believed for good, as in Java
    error_code=CODES,
    replica_nodes=st.lists(IDS, max_size=3),
    isr_nodes=st.lists(IDS, max_size=3),
    offline_replicas=st.lists(IDS, max_size=3),
)
IS_IT = st.sampled_from(["t", "t", "t", "nothing", "another"])
PLACES = st.sampled_from(
    [("", 9092), ("a..b", 9092), ("x" * 300, 1), ("127.0.0.1", 0), ("::1", -1), ("127.0.0.1", 2**31 - 1),
     ("memory:lie", 0), ("unix:/x", 0), ("bogus:x", 7), ("a b", 80), ("fake:nobody/9", 0), (None, 0), (None, 0)]
)  # fmt: skip


@st.composite
def lies(draw: st.DrawFn) -> Lie:
    """An answer that is right or wrong in any part of it; a host that is None is the true one's."""
    brokers = draw(st.lists(st.tuples(IDS, PLACES), max_size=3))
    topics = draw(st.lists(st.tuples(NAMES, IS_IT, CODES, st.lists(PARTITIONS, max_size=4)), max_size=3))
    cluster_id = draw(st.sampled_from(["c", None, ""]))
    controller, error = draw(IDS), draw(st.sampled_from([0, 0, 0, 0, -1, 41, 58, 129, 9999]))

    def make(kafka: ReadableKafka) -> MetadataResponse:
        ids = {"t": kafka.ids["t"], "nothing": bytes(16), "another": b"another topic id"}
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=number, host=kafka.brokers[1].host if host is None else host, port=port)
                for number, (host, port) in brokers
            ],
            cluster_id=cluster_id,
            controller_id=controller,
            topics=[
                MetadataResponseTopic(name=name, topic_id=ids[which], error_code=code, partitions=partitions)
                for name, which, code, partitions in topics
            ],
            error_code=error,
        )

    return make


MANY = examples(10, phases=(Phase.explicit, Phase.reuse, Phase.generate))  # shrinking would take hours


@given(told=st.lists(lies(), min_size=1, max_size=3))
@pytest.mark.slow
@MANY
def test_a_producer_lives_through_any_metadata(told: list[Lie], backend: str) -> None:
    run_virtually(backend, produces, ReadableKafka({"t": 2}), *told)


@given(told=st.lists(lies(), min_size=1, max_size=3))
@pytest.mark.slow
@MANY
def test_consumers_live_through_any_metadata(told: list[Lie], backend: str) -> None:
    run_virtually(backend, reads, ReadableKafka({"t": 2}), *told)


@given(told=st.lists(lies(), min_size=1, max_size=3))
@pytest.mark.slow
@MANY
def test_an_admin_client_lives_through_any_metadata(told: list[Lie], backend: str) -> None:
    run_virtually(backend, administers, ReadableKafka({"t": 2}), *told)
