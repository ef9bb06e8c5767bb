"""Consuming from the log's start beside the other Python clients: records as objects, and as Arrow columns.

100-byte values, no keys, four partitions, real Kafka on the same machine; each contender reads every partition
without a group and counts what it was handed. Only the decoding differs, so the topic is written once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import Iterator

import aiokafka
import confluent_kafka
import kafka as kafka_python
import psutil

import kclient
from benchmarks.harness import alternating, console, kafka, rate, report
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


def blocking(bootstrap: str, topic: str, records: int) -> None:
    with _blocking(bootstrap, topic) as consumer:
        count = 0
        while count < records:
            count += len(consumer.poll(5.0))


def iterating(bootstrap: str, topic: str, records: int) -> None:
    with _blocking(bootstrap, topic) as consumer:
        for _ in itertools.islice(consumer, records):
            pass


def columns(bootstrap: str, topic: str, records: int) -> None:
    with _blocking(bootstrap, topic) as consumer:
        count = 0
        while count < records:
            count += consumer.poll_arrow(5.0).num_rows


@contextlib.contextmanager
def _blocking(bootstrap: str, topic: str) -> Iterator[sync.Consumer]:
    with sync.Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", max_poll_records=10_000) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
        yield consumer


async def asynchronous(bootstrap: str, topic: str, records: int) -> None:
    async with kclient.Consumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", max_poll_records=10_000
    ) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
        count = 0
        while count < records:
            count += len(await consumer.poll(5.0))


async def asynchronous_columns(bootstrap: str, topic: str, records: int) -> None:
    async with kclient.Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
        count = 0
        while count < records:
            count += (await consumer.poll_arrow(5.0)).num_rows


def confluent(bootstrap: str, topic: str, records: int) -> None:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": next(_groups), "enable.auto.commit": False}
    )
    with contextlib.closing(consumer):
        begin = confluent_kafka.OFFSET_BEGINNING
        consumer.assign([confluent_kafka.TopicPartition(topic, number, begin) for number in range(PARTITIONS)])
        count = 0
        while count < records:
            count += len(consumer.consume(10_000, timeout=5.0))


async def with_aiokafka(bootstrap: str, topic: str, records: int) -> None:
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([aiokafka.TopicPartition(topic, number) for number in range(PARTITIONS)])
        count = 0
        while count < records:
            found = await consumer.getmany(timeout_ms=5000, max_records=10_000)
            count += sum(map(len, found.values()))
    finally:
        await consumer.stop()


def with_kafka_python(bootstrap: str, topic: str, records: int) -> None:
    consumer = kafka_python.KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    with contextlib.closing(consumer):
        consumer.assign([kafka_python.TopicPartition(topic, number) for number in range(PARTITIONS)])
        count = 0
        while count < records:
            count += sum(map(len, consumer.poll(timeout_ms=5000, max_records=10_000).values()))


def main(records: int = 1_000_000) -> None:
    with kafka() as server:
        where = (server.bootstrap, "bench-consume", records)
        fill(*where)
        report(
            f"{records:,} records of 100 bytes out of real Kafka",
            alternating(
                {
                    "kclient.sync, poll": lambda: rate(records, lambda: blocking(*where)),
                    "kclient.sync, iteration": lambda: rate(records, lambda: iterating(*where)),
                    "kclient.sync, poll_arrow": lambda: rate(records, lambda: columns(*where)),
                    "kclient, poll": lambda: rate(records, lambda: asyncio.run(asynchronous(*where))),
                    "kclient, poll_arrow": lambda: rate(records, lambda: asyncio.run(asynchronous_columns(*where))),
                    "aiokafka": lambda: rate(records, lambda: asyncio.run(with_aiokafka(*where))),
                    "kafka-python": lambda: rate(records // 4, lambda: with_kafka_python(*where[:2], records // 4)),
                    "confluent-kafka": lambda: rate(records, lambda: confluent(*where)),
                }
            ),
        )
        console.print(f"this process: {psutil.Process().memory_info().rss / 1e6:.0f} MB resident")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
