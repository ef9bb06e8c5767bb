"""Producing beside the other Python clients: idempotent, `acks=all`, 5 ms linger, everything acknowledged.

100-byte values, no keys, four partitions, real Kafka on the same machine. A run begins with the first record and ends
with the flush; every contender keeps its own defaults for the size of batches. `send_batch` and `raw` show how far
single calls are from what columns and prepared batches reach.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

import aiokafka
import confluent_kafka
import kafka as kafka_python
import psutil

import kclient
from benchmarks.harness import alternating, console, kafka, rate, report
from benchmarks.raw_client import PARTITIONS, RawClient
from kclient import sync

VALUE = b"x" * 100
TOPIC = "bench-produce"
MANY = 10_000


def blocking(bootstrap: str, records: int) -> None:
    with sync.Producer(bootstrap_servers=bootstrap) as producer:
        send = producer.send
        for _ in range(records):
            send(TOPIC, VALUE)


def blocking_batches(bootstrap: str, records: int) -> None:
    values = [VALUE] * MANY
    with sync.Producer(bootstrap_servers=bootstrap) as producer:
        for _ in range(0, records, MANY):
            producer.send_batch(TOPIC, values)


async def asynchronous(bootstrap: str, records: int) -> None:
    async with kclient.Producer(bootstrap_servers=bootstrap) as producer:
        send = producer.send
        for _ in range(records):
            await send(TOPIC, VALUE)


def confluent(bootstrap: str, records: int) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 5, "acks": "all", "enable.idempotence": True}
    )
    produce = producer.produce
    for number in range(records):
        while True:
            try:
                produce(TOPIC, VALUE)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush()


async def with_aiokafka(bootstrap: str, records: int) -> None:
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=bootstrap, linger_ms=5, acks="all", enable_idempotence=True, max_batch_size=262_144
    )
    await producer.start()
    try:
        last = None
        for _ in range(records):
            last = await producer.send(TOPIC, VALUE)
        await producer.flush()
        assert last is None or last.done()
    finally:
        await producer.stop()


def with_kafka_python(bootstrap: str, records: int) -> None:
    producer = kafka_python.KafkaProducer(
        bootstrap_servers=bootstrap, linger_ms=5, acks="all", enable_idempotence=True, batch_size=262_144
    )
    for _ in range(records):
        producer.send(TOPIC, VALUE)
    producer.flush()
    producer.close()


def raw(bootstrap: str, records: int) -> float:
    with contextlib.closing(RawClient(int(bootstrap.rsplit(":", 1)[1]))) as client:
        return client.produce(TOPIC, records)


def main(records: int = 1_000_000) -> None:
    # what was produced is of no use afterwards, and disks are small
    with kafka(log_retention_bytes="268435456", log_segment_bytes="134217728") as server:
        with sync.Admin(bootstrap_servers=server.bootstrap) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS)
        where = (server.bootstrap, records)
        slow = (server.bootstrap, records // 10)
        report(
            f"{records:,} records of 100 bytes into real Kafka",
            alternating(
                {
                    "kclient.sync, send": lambda: rate(records, lambda: blocking(*where)),
                    "kclient.sync, send_batch": lambda: rate(records, lambda: blocking_batches(*where)),
                    "kclient, send": lambda: rate(records, lambda: asyncio.run(asynchronous(*where))),
                    "aiokafka": lambda: rate(slow[1], lambda: asyncio.run(with_aiokafka(*slow))),
                    "kafka-python": lambda: rate(slow[1], lambda: with_kafka_python(*slow)),
                    "raw client, prepared batches": lambda: raw(*where),
                    "confluent-kafka": lambda: rate(records, lambda: confluent(*where)),
                }
            ),
        )
        console.print(f"resident memory of this process: {psutil.Process().memory_info().rss / 1e6:,.0f} MB")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
