"""Producing from Arrow columns beside lists and other clients: to batches alone, into real Kafka, and into the gateway.

100-byte values, four partitions, calls of 100,000 rows; idempotent, `acks=all`, 5 ms linger, everything acknowledged
when a run ends. `raw` is what the server takes of prepared batches.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pyarrow as pa

import kclient
from benchmarks.harness import alternating, gateway, kafka, rate, report
from benchmarks.raw_client import PARTITIONS, RawClient
from kclient import sync
from kclient.cluster import ClusterSnapshot, PartitionMetadata, TopicMetadata
from kclient.config import ProducerConfig
from kclient.producer.delivery import Deliveries
from kclient.producer.drain import BatchDrain
from kclient.producer.lifecycle import ProducerLifecycle
from kclient.producer.sending import LetOthersRun, Script
from kclient.producer.settings import ProducerSettings
from kclient.types import Node

TOPIC = "bench-columns"
ROWS = 100_000
VALUES = [b"%0100d" % number for number in range(ROWS)]
KEYS = [b"key-%d" % random.Random(1).randrange(10_000) for _ in range(ROWS)]
STAMPS = [1_700_000_000_000 + number // 100 for number in range(ROWS)]

TABLE = pa.table({"value": pa.array(VALUES, pa.binary())})
KEYED = pa.table({"value": pa.array(VALUES, pa.binary()), "key": pa.array(KEYS, pa.binary())})
WIDE = KEYED.append_column("timestamp", pa.array(STAMPS, pa.timestamp("ms", "UTC"))).append_column(
    "headers", pa.array([[{"key": "source", "value": b"bench"}]] * ROWS)
)
ROUTED = TABLE.append_column("partition", pa.array([number % PARTITIONS for number in range(ROWS)], pa.int32()))

Work = Callable[[str, int], object]


def arrow(table: Any) -> Work:
    """Columns by the blocking producer."""

    def work(bootstrap: str, records: int) -> None:
        with sync.Producer(bootstrap_servers=bootstrap) as producer:
            for _ in range(0, records, ROWS):
                producer.send_arrow(TOPIC, table)

    return work


def lists(keys: list[bytes] | None) -> Work:
    """Lists of bytes by the blocking producer."""

    def work(bootstrap: str, records: int) -> None:
        with sync.Producer(bootstrap_servers=bootstrap) as producer:
            for _ in range(0, records, ROWS):
                producer.send_batch(TOPIC, VALUES, keys)

    return work


def objects(bootstrap: str, records: int) -> None:
    """Lists that are made of the columns first."""
    with sync.Producer(bootstrap_servers=bootstrap) as producer:
        for _ in range(0, records, ROWS):
            producer.send_batch(TOPIC, KEYED["value"].to_pylist(), KEYED["key"].to_pylist())


def asynchronous(table: Any) -> Work:
    """Columns by the async producer."""

    async def send(bootstrap: str, records: int) -> None:
        async with kclient.Producer(bootstrap_servers=bootstrap) as producer:
            for _ in range(0, records, ROWS):
                await producer.send_arrow(TOPIC, table)

    return lambda bootstrap, records: asyncio.run(send(bootstrap, records))


def confluent(bootstrap: str, records: int) -> None:
    """What users of confluent-kafka write: objects of the columns, one call for each row."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 5, "acks": "all", "enable.idempotence": True}
    )
    for _ in range(0, records, ROWS):
        for number, value in enumerate(TABLE["value"].to_pylist()):
            while True:
                try:
                    producer.produce(TOPIC, value)
                    break
                except BufferError:
                    producer.poll(0.01)
            if number % 1000 == 0:
                producer.poll(0)
    producer.flush()


def raw(bootstrap: str, records: int) -> float:
    """Prepared batches on a plain socket."""
    with contextlib.closing(RawClient(int(bootstrap.rsplit(":", 1)[1]))) as client:
        return client.produce(TOPIC, records)


def to_batches(table: Any, records: int) -> float:
    """Records a second from columns to encoded batches, without a network."""
    config = ProducerConfig.parse(bootstrap_servers="nowhere:1", buffer_memory=1 << 30)
    life = ProducerLifecycle(config, time.monotonic)
    partitions = {number: PartitionMetadata(TOPIC, number, 1, 0) for number in range(PARTITIONS)}
    snapshot = ClusterSnapshot(
        nodes={1: Node(1, "nowhere", 1)}, topics={TOPIC: TopicMetadata(TOPIC, b"t" * 16, False, partitions)}, names={}
    )
    life.buffer.update(snapshot)
    life._topics.update(snapshot)
    drain = BatchDrain(life.buffer, ProducerSettings.of(config).accumulator, None)
    appended = 0

    def work() -> None:
        nonlocal appended
        for _ in range(0, records, ROWS):
            appended += len(_result(life.sending.send_arrow(TOPIC, table)))
            while (drained := drain.drain(snapshot, [1], time.monotonic() + 1)).batches:
                for batch in drained.batches[1]:
                    batch.encode()
                    life.buffer.finished(batch)

    figure = rate(records, work)
    assert appended == records
    return figure


def _result(script: Script[Deliveries]) -> Deliveries:
    """What a script returns that has nothing to wait for."""
    while True:
        try:
            wait = next(script)
        except StopIteration as end:
            result: Deliveries = end.value
            return result
        assert wait == LetOthersRun()


CONTENDERS: dict[str, Work] = {
    "kclient.sync, send_arrow": arrow(TABLE),
    "kclient.sync, send_arrow with keys": arrow(KEYED),
    "kclient.sync, send_arrow with keys, timestamps and headers": arrow(WIDE),
    "kclient.sync, send_arrow with a column of partitions": arrow(ROUTED),
    "kclient, send_arrow": asynchronous(TABLE),
    "kclient.sync, send_batch of columns made lists, with keys": objects,
    "kclient.sync, send_batch with keys": lists(KEYS),
    "kclient.sync, send_batch": lists(None),
}


def compare(title: str, bootstrap: str, records: int, *, foreign: bool = True) -> None:
    """All of them into one server."""
    with sync.Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(TOPIC, partitions=PARTITIONS, configs={"retention.bytes": "268435456"})

    def measured(work: Work, count: int) -> Callable[[], float]:
        return lambda: rate(count, lambda: work(bootstrap, count))

    contenders = {name: measured(work, records) for name, work in CONTENDERS.items()}
    if foreign:
        contenders["confluent-kafka"] = measured(confluent, records // 4)
        contenders["raw client, prepared batches"] = lambda: raw(bootstrap, records)
    report(title, alternating(contenders), baseline="kclient.sync, send_batch")


def main(records: int = 1_000_000) -> None:
    """Print the tables."""
    tables = {"values": TABLE, "keys": KEYED, "keys, timestamps, headers": WIDE, "partitions": ROUTED}
    report(
        "Arrow columns to batches, no network",
        alternating({name: lambda table=table: to_batches(table, records) for name, table in tables.items()}),  # type: ignore[misc]
        baseline="values",
    )
    with kafka(log_retention_bytes="268435456", log_segment_bytes="134217728") as server:
        compare(f"{records:,} rows of 100 bytes into real Kafka", server.bootstrap, records)
    for durability in ("written", "synced"):
        with gateway(durability) as process:
            compare(f"the same into the gateway, {durability}", process.bootstrap, records)
    compare("the same into a gateway in memory, in this process", "memory:bench-columns", records, foreign=False)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
