"""The producer through random trouble: acknowledged records are stored once, in order, where they were said to be."""

from __future__ import annotations

from random import Random
from typing import Any

import anyio
import pytest

from kclient.errors import DeliveryError, ErrorCode, KafkaError
from kclient.producer import Producer
from kclient.types import TopicPartition
from tests.fake_kafka import FakeKafka, Fault

pytestmark = pytest.mark.anyio

PARTITIONS = 3
RETRIABLE = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
)
FINAL = (ErrorCode.INVALID_RECORD, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def trouble(random: Random, final: bool) -> Fault | None:
    """What happens to the next request."""
    draw = random.random()
    if draw < 0.5:
        return None
    if draw < 0.6:
        return Fault(drop=True, append=False)
    if draw < 0.7:
        return Fault(drop=True, append=True)
    if draw < 0.9 or not final:
        return Fault(random.choice(RETRIABLE), partition=random.choice([None, *range(PARTITIONS)]))
    return Fault(random.choice(FINAL), partition=random.randrange(PARTITIONS), once=bool(random.getrandbits(1)))


async def run(seed: int, *, final: bool) -> None:
    random = Random(seed)
    sent: dict[int, list[tuple[int, Any]]] = {number: [] for number in range(PARTITIONS)}
    async with FakeKafka({"t": PARTITIONS}, brokers=2) as kafka:
        kafka.announce_leaders = bool(random.getrandbits(1))
        kafka.max_message_bytes = random.choice([0, 250])
        kafka.faults.extend(trouble(random, final) for _ in range(60))
        producer = Producer(
            bootstrap_servers=kafka.bootstrap,
            linger_ms=random.choice([0, 1]),
            batch_size=random.choice([100, 300, 1000]),
            buffer_memory=20_000,
            retry_backoff_ms=1,
            retry_backoff_max_ms=3,
            reconnect_backoff_ms=1,
            reconnect_backoff_max_ms=3,
            request_timeout_ms=20_000,
            delivery_timeout_ms=30_000,  # what never succeeds is told before the test's time is over
            max_in_flight_requests_per_connection=random.choice([1, 2, 5]),
        )
        async with producer:
            for number in range(400):
                partition = random.randrange(PARTITIONS)
                sent[partition].append((number, await producer.send("t", b"%d" % number, partition=partition)))
                if random.random() < 0.05:
                    await anyio.sleep(random.choice([0, 0, 0.002]))
                if random.random() < 0.01:
                    kafka.move("t", random.randrange(PARTITIONS), random.choice([1, 2]))
                if random.random() < 0.01:
                    kafka.brokers[random.choice([1, 2])].hang_up()
            try:
                await producer.flush(timeout=20)
            except DeliveryError:
                assert final
        for partition, deliveries in sent.items():
            await check(kafka, partition, deliveries, final)


async def check(kafka: FakeKafka, partition: int, deliveries: list[tuple[int, Any]], final: bool) -> None:
    stored = [int(value) for value in kafka.values("t", partition)]
    assert stored == sorted(set(stored)), "each once, in order"
    assert kafka.partitions[TopicPartition("t", partition)].end == len(stored)
    for number, delivery in deliveries:
        try:
            offset = (await delivery).offset
        except KafkaError:
            assert final
            continue
        assert number in stored
        if offset >= 0:
            assert stored[offset] == number
    if not final:
        assert stored == [number for number, _ in deliveries]


@pytest.mark.parametrize("seed", range(25))
async def test_trouble_that_passes_loses_and_duplicates_nothing(seed: int) -> None:
    await run(seed, final=False)


@pytest.mark.parametrize("seed", range(25))
async def test_refused_batches_leave_no_duplicates_and_no_disorder(seed: int) -> None:
    await run(1000 + seed, final=True)
