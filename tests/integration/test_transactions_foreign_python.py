"""Transactions of unmodified kafka-python and aiokafka producers at the gateway, read as committed by every client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kclient.sync import Admin, Consumer
from kclient.types import TopicPartition
from tests.kafka_artifacts import KAFKA_4
from tests.kafka_server import JavaTools

aiokafka = pytest.importorskip("aiokafka")
confluent = pytest.importorskip("confluent_kafka")

pytestmark = [
    pytest.mark.foreign,
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # kafka-python's
]

PARTITIONS = 3
PATIENCE_S = 60.0
TRANSACTIONS = [(number, number % 3 != 0) for number in range(8)]
"""Each by its number, and whether it is committed."""
Values = list[list[bytes]]
"""By partition."""


def values(number: int) -> list[tuple[int, bytes]]:
    """What a transaction writes, and to which partitions."""
    return [(each % PARTITIONS, b"%d-%d" % (number, each)) for each in range(12)]


COMMITTED: Values = [
    [value for number, commit in TRANSACTIONS if commit for partition, value in values(number) if partition == wanted]
    for wanted in range(PARTITIONS)
]
ALL = sum(len(values(number)) for number, _ in TRANSACTIONS)


@pytest.fixture
def made(gateway: str, topic: str) -> str:
    with Admin(bootstrap_servers=gateway) as admin:
        admin.create_topic(topic, partitions=PARTITIONS)
    return topic


# Producers


class Python:
    """Transactions by kafka-python."""

    def __init__(self, kafka: Any, bootstrap: str, transactional_id: str) -> None:
        self._producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
        self._kafka = kafka
        self._producer.init_transactions()
        self.fenced = kafka.errors.ProducerFencedError

    async def begin(self) -> None:
        self._producer.begin_transaction()

    async def send(self, topic: str, partition: int, value: bytes) -> None:
        self._producer.send(topic, value, partition=partition).get(PATIENCE_S)

    async def offsets(self, topic: str, partition: int, offset: int, group: str) -> None:
        structs = self._kafka.structs
        of = {structs.TopicPartition(topic, partition): structs.OffsetAndMetadata(offset, "", -1)}
        self._producer.send_offsets_to_transaction(of, structs.ConsumerGroupMetadata(group, -1, "", None))

    async def end(self, commit: bool) -> None:
        (self._producer.commit_transaction if commit else self._producer.abort_transaction)()

    async def close(self) -> None:
        self._producer.close(timeout=5)


class Aio:
    """Transactions by aiokafka."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self.fenced = aiokafka.errors.ProducerFenced

    async def begin(self) -> None:
        await self._producer.begin_transaction()

    async def send(self, topic: str, partition: int, value: bytes) -> None:
        await self._producer.send_and_wait(topic, value, partition=partition)

    async def offsets(self, topic: str, partition: int, offset: int, group: str) -> None:
        of = {aiokafka.TopicPartition(topic, partition): offset}
        await self._producer.send_offsets_to_transaction(of, group)

    async def end(self, commit: bool) -> None:
        await (self._producer.commit_transaction() if commit else self._producer.abort_transaction())

    async def close(self) -> None:
        await self._producer.stop()


Maker = Callable[[str, str], Awaitable[Any]]


@pytest.fixture(params=["kafka-python", "aiokafka"])
def producer_of(request: pytest.FixtureRequest) -> Maker:
    """Makes a producer of brokers with a `transactional.id`."""
    if request.param == "kafka-python":
        kafka = request.getfixturevalue("kafka_python")

        async def python(bootstrap: str, transactional_id: str) -> Python:
            return Python(kafka, bootstrap, transactional_id)

        return python

    async def aio(bootstrap: str, transactional_id: str) -> Aio:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
        await producer.start()
        return Aio(producer)

    return aio


def run(work: Awaitable[Any]) -> Any:
    async def within() -> Any:
        return await asyncio.wait_for(work, PATIENCE_S)

    return asyncio.run(within())


# Consumers: each reads the first so many records of a topic, and then what follows within half a second


def ours(bootstrap: str, topic: str, level: str, count: int) -> Values:
    found: Values = [[] for _ in range(PARTITIONS)]
    with Consumer(bootstrap_servers=bootstrap, isolation_level=level, auto_offset_reset="earliest") as client:
        client.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
        for wait in waits(found, count):
            for record in client.poll(timeout=wait):
                found[record.partition].append(bytes(record.value))
    return found


def columns(bootstrap: str, topic: str, level: str, count: int) -> Values:
    pytest.importorskip("pyarrow")
    found: Values = [[] for _ in range(PARTITIONS)]
    with Consumer(bootstrap_servers=bootstrap, isolation_level=level, auto_offset_reset="earliest") as client:
        client.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
        for wait in waits(found, count):
            for row in client.poll_arrow(timeout=wait).to_pylist():
                found[row["partition"]].append(row["value"])
    return found


def librdkafka(bootstrap: str, topic: str, level: str, count: int) -> Values:
    found: Values = [[] for _ in range(PARTITIONS)]
    settings = {"bootstrap.servers": bootstrap, "group.id": topic, "isolation.level": level}
    client = confluent.Consumer({**settings, "enable.auto.commit": False})
    client.assign([confluent.TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    for wait in waits(found, count):
        for message in client.consume(100, wait):
            assert message.error() is None, message.error()
            found[message.partition()].append(message.value())
    client.close()
    return found


def kafka_pythons(bootstrap: str, topic: str, level: str, count: int) -> Values:
    kafka = pytest.importorskip("kafka")
    found: Values = [[] for _ in range(PARTITIONS)]
    client = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level=level, auto_offset_reset="earliest", group_id=None
    )
    client.assign([kafka.TopicPartition(topic, number) for number in range(PARTITIONS)])
    for wait in waits(found, count):
        for place, records in client.poll(timeout_ms=int(wait * 1000)).items():
            found[place.partition] += [record.value for record in records]
    client.close()
    return found


def aiokafkas(bootstrap: str, topic: str, level: str, count: int) -> Values:
    async def reading() -> Values:
        found: Values = [[] for _ in range(PARTITIONS)]
        client = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, isolation_level=level, auto_offset_reset="earliest"
        )
        await client.start()
        client.assign([aiokafka.TopicPartition(topic, number) for number in range(PARTITIONS)])
        for wait in waits(found, count):
            for place, records in (await client.getmany(timeout_ms=int(wait * 1000))).items():
                found[place.partition] += [record.value for record in records]
        await client.stop()
        return found

    found: Values = run(reading())
    return found


def waits(found: Values, count: int) -> Any:
    """How long each poll waits: until so many were found, and once more."""
    until = time.monotonic() + PATIENCE_S
    while sum(map(len, found)) < count:
        assert time.monotonic() < until, found
        yield 0.5
    yield 0.5


READERS = [ours, columns, librdkafka, kafka_pythons, aiokafkas]


def javas(bootstrap: str, topic: str, level: str, count: int, folder: Path) -> Values:
    printed = JavaTools(KAFKA_4, folder).run(
        "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", bootstrap, "--topic", topic,
        "--from-beginning", "--max-messages", str(count + 1), "--isolation-level", level, "--timeout-ms", "3000",
        "--formatter-property", "print.partition=true", check=False,
    )  # fmt: skip
    found: Values = [[] for _ in range(PARTITIONS)]
    for line in printed.splitlines():
        place, _, value = line.partition("\t")
        found[int(place.removeprefix("Partition:"))].append(value.encode())
    return found


# What is true of them


async def write(producer_of: Maker, bootstrap: str, topic: str) -> None:
    producer = await producer_of(bootstrap, topic)
    for number, commit in TRANSACTIONS:
        await producer.begin()
        for partition, value in values(number):
            await producer.send(topic, partition, value)
        await producer.end(commit)
    await producer.close()


@pytest.mark.maven
def test_what_is_committed_is_seen_by_every_client(
    gateway: str, made: str, producer_of: Maker, kafka_jars_4: Path, tmp_path: Path
) -> None:
    run(write(producer_of, gateway, made))
    count = sum(map(len, COMMITTED))
    for reader in READERS:
        assert reader(gateway, made, "read_committed", count) == COMMITTED, reader.__name__
    assert javas(gateway, made, "read_committed", count, tmp_path) == COMMITTED
    assert sum(map(len, ours(gateway, made, "read_uncommitted", ALL))) == ALL


def test_a_second_producer_fences_the_first(gateway: str, made: str, producer_of: Maker) -> None:
    async def fence() -> None:
        first = await producer_of(gateway, made)
        await first.begin()
        await first.send(made, 0, b"zombie")
        second = await producer_of(gateway, made)
        with pytest.raises(first.fenced):
            await first.end(True)
        await second.begin()
        await second.send(made, 0, b"second")
        await second.end(True)
        await second.close()
        await first.close()

    run(fence())
    assert ours(gateway, made, "read_committed", 1) == [[b"second"], [], []]


def test_offsets_are_committed_with_the_records(gateway: str, made: str, producer_of: Maker) -> None:
    place = TopicPartition(made, 1)

    async def commit() -> list[int]:
        seen = []
        producer = await producer_of(gateway, made)
        with Consumer(bootstrap_servers=gateway, group_id=made) as group:
            for offset, commits in (5, True), (7, False), (6, True):
                await producer.begin()
                await producer.send(made, 0, b"%d" % offset)
                await producer.offsets(made, 1, offset, made)
                await producer.end(commits)
                found = (await asyncio.to_thread(group.committed, [place]))[place]
                assert found is not None
                seen.append(found.offset)
        await producer.close()
        return seen

    assert run(commit()) == [5, 5, 6]
    assert ours(gateway, made, "read_committed", 2) == [[b"5", b"6"], [], []]
