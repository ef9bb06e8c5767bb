"""Consuming from the log's start beside the other Python clients: records as objects, and as Arrow columns.

100-byte values, no keys, four partitions, real Kafka on the same machine; each contender reads every partition
without a group and counts what it was handed. The clock starts when the first records have been handed out, because
making a client and finding the offsets takes the peers up to two seconds, which says nothing of how fast they read.
Only the decoding differs, so the topic is written once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import aiokafka
import confluent_kafka
import kafka as kafka_python
import psutil

import kclient
from benchmarks.harness import alternating, console, kafka, report
from kclient import sync
from kclient.types import TopicPartition

PARTITIONS = 4
VALUE = b"x" * 100

_groups = (f"bench-{number}" for number in itertools.count())


def fill(bootstrap: str, topic: str, records: int) -> None:
    """Write the records with confluent-kafka, whose batches are what consumers usually meet."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "acks": "all"})
    for number in range(records):
        while True:
            try:
                producer.produce(topic, VALUE, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush()


class Meter:
    """Counts what a consumer hands out, from its first records on.

    Args:
        records: How many there are.
    """

    def __init__(self, records: int) -> None:
        self._records = records
        self._first = 0
        self._count = 0
        self._started = self._ended = 0.0

    def add(self, count: int) -> bool:
        """Take a count; whether more are to come."""
        now = time.perf_counter()
        if not self._count:
            self._first, self._started = count, now
        self._count += count
        self._ended = now
        return self._count < self._records

    @property
    def rate(self) -> float:
        """Records per second after the first records."""
        return (self._count - self._first) / (self._ended - self._started)


def blocking(bootstrap: str, topic: str, meter: Meter) -> None:
    with _blocking(bootstrap, topic) as consumer:
        while meter.add(len(consumer.poll(5.0))):
            pass


def iterating(bootstrap: str, topic: str, meter: Meter) -> None:
    with _blocking(bootstrap, topic) as consumer:
        while meter.add(sum(1 for _ in itertools.islice(consumer, 10_000))):
            pass


def columns(bootstrap: str, topic: str, meter: Meter) -> None:
    with _blocking(bootstrap, topic) as consumer:
        while meter.add(consumer.poll_arrow(5.0).num_rows):
            pass


@contextlib.contextmanager
def _blocking(bootstrap: str, topic: str) -> Iterator[sync.Consumer]:
    with sync.Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", max_poll_records=10_000) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
        yield consumer


@contextlib.asynccontextmanager
async def _asynchronous(bootstrap: str, topic: str) -> AsyncIterator[kclient.Consumer]:
    async with kclient.Consumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", max_poll_records=10_000
    ) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
        yield consumer


async def asynchronous(bootstrap: str, topic: str, meter: Meter) -> None:
    async with _asynchronous(bootstrap, topic) as consumer:
        while meter.add(len(await consumer.poll(5.0))):
            pass


async def asynchronous_columns(bootstrap: str, topic: str, meter: Meter) -> None:
    async with _asynchronous(bootstrap, topic) as consumer:
        while meter.add((await consumer.poll_arrow(5.0)).num_rows):
            pass


def confluent(bootstrap: str, topic: str, meter: Meter) -> None:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": next(_groups), "enable.auto.commit": False}
    )
    with contextlib.closing(consumer):
        begin = confluent_kafka.OFFSET_BEGINNING
        consumer.assign([confluent_kafka.TopicPartition(topic, number, begin) for number in range(PARTITIONS)])
        while meter.add(len(consumer.consume(10_000, timeout=5.0))):
            pass


async def with_aiokafka(bootstrap: str, topic: str, meter: Meter) -> None:
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([aiokafka.TopicPartition(topic, number) for number in range(PARTITIONS)])
        more = True
        while more:
            found = await consumer.getmany(timeout_ms=5000, max_records=10_000)
            more = meter.add(sum(map(len, found.values())))
    finally:
        await consumer.stop()


def with_kafka_python(bootstrap: str, topic: str, meter: Meter) -> None:
    consumer = kafka_python.KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    with contextlib.closing(consumer):
        consumer.assign([kafka_python.TopicPartition(topic, number) for number in range(PARTITIONS)])
        while meter.add(sum(map(len, consumer.poll(timeout_ms=5000, max_records=10_000).values()))):
            pass


def main(records: int = 1_000_000) -> None:
    with kafka() as server:
        topic = "bench-consume"
        fill(server.bootstrap, topic, records)

        def measured(work: Callable[[str, str, Meter], Awaitable[None] | None], count: int = records) -> float:
            meter = Meter(count)
            running = work(server.bootstrap, topic, meter)
            if running is not None:
                asyncio.run(_awaited(running))
            return meter.rate

        report(
            f"{records:,} records of 100 bytes out of real Kafka",
            alternating(
                {
                    "kclient.sync, poll": lambda: measured(blocking),
                    "kclient.sync, iteration": lambda: measured(iterating),
                    "kclient.sync, poll_arrow": lambda: measured(columns),
                    "kclient, poll": lambda: measured(asynchronous),
                    "kclient, poll_arrow": lambda: measured(asynchronous_columns),
                    "aiokafka": lambda: measured(with_aiokafka),
                    "kafka-python": lambda: measured(with_kafka_python, records // 4),
                    "confluent-kafka": lambda: measured(confluent),
                }
            ),
        )
        resident = psutil.Process().memory_info().rss / 1e6
        console.print(f"this process, with all the clients in it: {resident:.0f} MB resident")


async def _awaited(running: Awaitable[None]) -> None:
    await running


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
