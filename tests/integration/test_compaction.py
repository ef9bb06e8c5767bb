"""The same input into a compacted topic of Kafka 4.3.1 and of the gateway: the same records survive."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import anyio.to_thread
import confluent_kafka
import pytest

import kclient
from kclient.admin import Admin, ConfigResource, ConfigResourceType, NewTopic
from kclient.types import TopicPartition
from tests.gateway_process import GatewayProcess
from tests.kafka_server import KafkaServer
from tests.wire_session import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]

Found: TypeAlias = list[tuple[int, int, bytes | None, bytes | None]]
ALL_BROKERS = ConfigResource(ConfigResourceType.BROKER, "")
KEYS = [b"a", b"b", b"c", b"d", b"e"]
END = b"end"


@pytest.fixture(scope="module")
def cleaning_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a gateway that looks often what is dirty."""
    process = GatewayProcess(tmp_path_factory.mktemp("gateway") / "data", config={"log.cleaner.backoff.ms": "50"})
    process.start()
    try:
        yield process.bootstrap
    finally:
        process.stop()


@pytest.fixture
async def cleaning_kafka(kafka: KafkaServer) -> AsyncIterator[str]:
    """The address of Kafka 4.3.1, which does so for the length of a test."""
    async with Admin(bootstrap_servers=kafka.bootstrap) as admin:
        await admin.alter_configs({ALL_BROKERS: {"log.cleaner.backoff.ms": "50"}})
        try:
            yield kafka.bootstrap
        finally:
            await admin.alter_configs({ALL_BROKERS: {"log.cleaner.backoff.ms": None}})


class Input:
    """What is sent to a server: each batch into a segment of its own, by timestamps that are a second apart."""

    def __init__(self, bootstrap: str, topic: str, retention_ms: int, stamp: int) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.retention_ms = retention_ms
        self.stamp = stamp
        self.end = 0
        """Where the log ends."""

    async def create(self) -> None:
        configs = {
            "cleanup.policy": "compact",
            "segment.ms": "1",
            "min.cleanable.dirty.ratio": "0",
            "delete.retention.ms": str(self.retention_ms),
        }
        async with Admin(bootstrap_servers=self.bootstrap) as admin:
            await admin.create_topics([NewTopic(self.topic, 1, 1, configs)])

    async def batch(self, producer: kclient.Producer, rows: list[tuple[bytes, bytes | None]]) -> None:
        self.stamp += 1_000
        for key, value in rows:
            await producer.send(self.topic, value, key, partition=0, timestamp=self.stamp)
        await producer.flush()
        self.end += len(rows)

    async def marked(self) -> None:
        """Until the end of a transaction is there, which is written after its producer was answered."""
        self.end += 1
        partition = TopicPartition(self.topic, 0)
        async with kclient.Consumer(bootstrap_servers=self.bootstrap) as consumer:
            await until(lambda: consumer.end_offsets([partition]), lambda found: found == {partition: self.end})

    async def plain(self, *batches: list[tuple[bytes, bytes | None]]) -> None:
        async with kclient.Producer(bootstrap_servers=self.bootstrap, linger_ms=10_000) as producer:
            for rows in batches:
                await self.batch(producer, rows)

    async def mixed(self, dice: random.Random) -> None:
        """Some batches, in transactions and not, with and without values."""
        number = 0

        def rows() -> list[tuple[bytes, bytes | None]]:
            nonlocal number
            number += 1
            count = dice.randint(1, 3)
            return [(dice.choice(KEYS), None if dice.random() < 0.2 else b"%d" % number) for _ in range(count)]

        settings: dict[str, Any] = {"bootstrap_servers": self.bootstrap, "linger_ms": 10_000}
        async with (
            kclient.Producer(**settings) as plain,
            kclient.Producer(**settings, transactional_id=f"{self.topic}-1") as first,
            kclient.Producer(**settings, transactional_id=f"{self.topic}-2") as second,
        ):
            for each in (first, second):
                await each.init_transactions()
            for _ in range(12):
                kind = dice.randrange(4)
                if kind == 0:
                    await self.batch(plain, rows())
                    continue
                producer = dice.choice([first, second])
                await producer.begin_transaction()
                for _ in range(dice.randint(1, 2)):
                    await self.batch(producer, rows())
                if kind == 1:
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()
                await self.marked()

    async def found(self, isolation_level: str = "read_uncommitted") -> Found:
        """What is there."""
        partition = TopicPartition(self.topic, 0)
        settings: dict[str, Any] = {"isolation_level": isolation_level, "auto_offset_reset": "earliest"}
        found: Found = []
        async with kclient.Consumer(bootstrap_servers=self.bootstrap, **settings) as consumer:
            consumer.assign([partition])
            end = (await consumer.end_offsets([partition]))[partition]
            while await consumer.position(partition) < end:
                for record in await consumer.poll(timeout=0.2):
                    found.append((record.offset, record.timestamp, record.key, record.value))
        return found


async def compared(inputs: list[Input]) -> Found:
    """What both have, once it is the same, and of each key the last record only."""

    async def both() -> list[Found]:
        return [await each.found() for each in inputs]

    def is_clean(found: list[Found]) -> bool:
        keys = [row[2] for row in found[0][:-1]]
        return found[0] == found[1] and len(set(keys)) == len(keys)

    return (await until(both, is_clean, 60))[0]


@pytest.mark.kafka
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("retention_ms", [0, 3_600_000])
async def test_the_same_records_survive(
    cleaning_kafka: str, cleaning_gateway: str, topic: str, seed: int, retention_ms: int
) -> None:
    now = time.time_ns() // 1_000_000
    inputs = [Input(bootstrap, topic, retention_ms, now) for bootstrap in (cleaning_kafka, cleaning_gateway)]
    for each in inputs:
        await each.create()
        await each.mixed(random.Random(seed))
        await each.plain([(END, b"0")])
    found = await compared(inputs)
    assert found[-1][2] == END
    for number in range(1, 4):  # whatever waits for another compaction
        for each in inputs:
            await each.plain([(KEYS[0], b"last")], [(END, b"%d" % number)])
        found = await compared(inputs)
    committed = [await each.found("read_committed") for each in inputs]
    assert committed[0] == committed[1] == found


async def test_nothing_is_lost_or_comes_back_where_the_gateway_is_killed_amid_it(tmp_path: Path) -> None:
    """Again and again: of each key the last value that was acknowledged is there, and nothing that was deleted."""
    dice = random.Random(1)
    process = GatewayProcess(tmp_path / "data", config={"log.cleaner.backoff.ms": "0"})
    process.start()
    source = Input(process.bootstrap, "killed", 0, time.time_ns() // 1_000_000)
    await source.create()
    last: dict[bytes, int | None] = {}
    number = 0
    try:
        for _ in range(4):
            async with kclient.Producer(bootstrap_servers=process.bootstrap) as producer:
                for _ in range(dice.randint(30, 60)):
                    number += 1
                    key = dice.choice(KEYS)
                    value = None if dice.random() < 0.2 else number
                    await (await producer.send("killed", value and b"%d" % value, key, partition=0))
                    last[key] = value
            process.stop(kill=True)
            process.start()
            found: dict[bytes, int | None] = {}
            places: list[int] = []
            for offset, _, key, value in await source.found():
                assert key is not None
                found[key] = None if value is None else int(value)
                places.append(offset)
            assert places == sorted(set(places))
            assert {key: value for key, value in found.items() if value is not None} == {
                key: value for key, value in last.items() if value is not None
            }
    finally:
        process.stop()


def read_by_librdkafka(bootstrap: str, topic: str) -> tuple[list[bytes | None], list[str]]:
    """The values that its consumer finds, and the errors that it tells."""
    values: list[bytes | None] = []
    errors: list[str] = []
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": topic, "enable.partition.eof": True, "enable.auto.commit": False}
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        until_s = time.monotonic() + 60
        while time.monotonic() < until_s:
            message = consumer.poll(1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                values.append(message.value())
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                break
            else:
                errors.append(error.str())
    finally:
        consumer.close()
    return values, errors


async def test_librdkafka_passes_over_what_has_gone(cleaning_gateway: str, topic: str) -> None:
    """Segments of which nothing is left are no answers to it: it would take them for records that are too large."""
    source = Input(cleaning_gateway, topic, 0, time.time_ns() // 1_000_000)
    await source.create()
    superseded: list[list[tuple[bytes, bytes | None]]] = [[(KEYS[0], b"%d" % number)] for number in range(40)]
    await source.plain(*superseded, [(END, b"0")])
    await until(source.found, lambda found: len(found) == 2, 60)
    assert await anyio.to_thread.run_sync(read_by_librdkafka, cleaning_gateway, topic) == ([b"39", b"0"], [])
