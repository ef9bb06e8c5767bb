"""Transactions beside the other clients, and the gateway's beside Kafka's.

Four tables: records a second of producers that commit every 100 ms, on real Kafka and on the gateway; commits a second
of one record to each of some partitions, forced to disk; reading what was committed beside reading everything; and
reading past aborted transactions, with what the gateway's memory did while they were written.

    python -m benchmarks.transactions [SECONDS [ABORTED [PARTITIONS]]]

ABORTED transactions write to each of PARTITIONS partitions: 10,000 to 100 by default, a million to be told to readers.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import psutil

from benchmarks.harness import alternating, console, gateway, kafka, report
from kclient.sync import Admin, Consumer, Producer
from kclient.types import TopicPartition
from tests.gateway_process import GatewayProcess
from tests.kafka_artifacts import KAFKA_4, kafka_jars
from tests.kafka_server import KafkaServer

VALUE = b"x" * 100
PARTITIONS = 4
INTERVAL_S = 0.1
"""From one commit to the next."""
WARM_UP_S = 1.0
AT_ONCE = 100
"""Records that are sent between two looks at the clock."""
BLOCK_S = 60.0
JAVA = Path(__file__).with_name("TransactionalProducer.java")

_names = (f"transactions-{number}" for number in itertools.count())


def create(bootstrap: str, partitions: int = PARTITIONS) -> str:
    """A new topic."""
    name = next(_names)
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(name, partitions)
    return name


def paced(seconds: float, begin: Callable[[], None], send: Callable[[], None], end: Callable[[], None]) -> float:
    """Records a second of transactions that are committed every so often, after a warm-up."""

    def run(length: float) -> int:
        sent, over = 0, time.perf_counter() + length
        while (now := time.perf_counter()) < over:
            commit_at = min(over, now + INTERVAL_S)
            begin()
            while time.perf_counter() < commit_at:
                for _ in range(AT_ONCE):
                    send()
                sent += AT_ONCE
            end()
        return sent

    run(WARM_UP_S)
    started = time.perf_counter()
    return run(seconds) / (time.perf_counter() - started)


def ours(bootstrap: str, topic: str, seconds: float) -> float:
    with Producer(bootstrap_servers=bootstrap, transactional_id=next(_names)) as producer:
        producer.init_transactions()
        send = producer.send
        return paced(seconds, producer.begin_transaction, lambda: send(topic, VALUE), producer.commit_transaction)


def plain(bootstrap: str, topic: str, seconds: float) -> float:
    """Idempotent only: it is flushed where the others commit."""
    with Producer(bootstrap_servers=bootstrap) as producer:
        send = producer.send
        return paced(seconds, lambda: None, lambda: send(topic, VALUE), producer.flush)


def confluent(bootstrap: str, topic: str, seconds: float) -> float:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 5, "transactional.id": next(_names)}
    )
    producer.init_transactions(BLOCK_S)

    def send() -> None:
        while True:
            try:
                producer.produce(topic, VALUE)
                return
            except BufferError:
                producer.poll(0.01)

    return paced(seconds, producer.begin_transaction, send, lambda: producer.commit_transaction(BLOCK_S))


def java(bootstrap: str, topic: str, seconds: float, interval_s: float = INTERVAL_S) -> float:
    classes = f"{kafka_jars(KAFKA_4)}/*"
    arguments = [bootstrap, topic, str(3 * WARM_UP_S), str(seconds), str(round(interval_s * 1000))]
    command = ["java", "-cp", classes, str(JAVA), *arguments]
    found = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return float(found.stdout.split()[0])


def commits(bootstrap: str, seconds: float, partitions: int) -> float:
    """Transactions a second of a record to each partition, one after the other."""
    topic = create(bootstrap, partitions)
    with Producer(bootstrap_servers=bootstrap, transactional_id=next(_names)) as producer:
        producer.init_transactions()

        def run(length: float) -> int:
            done, over = 0, time.perf_counter() + length
            while time.perf_counter() < over:
                producer.begin_transaction()
                for partition in range(partitions):
                    producer.send(topic, VALUE, partition=partition)
                producer.commit_transaction()
                done += 1
            return done

        run(WARM_UP_S)
        started = time.perf_counter()
        figure = run(seconds) / (time.perf_counter() - started)
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.delete_topic(topic)
    return figure


def fill(bootstrap: str, records: int, partitions: int = PARTITIONS, *, each: int = 10_000) -> str:
    """A topic with records that were committed, so many in each transaction."""
    topic = create(bootstrap, partitions)
    with Producer(bootstrap_servers=bootstrap, transactional_id=next(_names)) as producer:
        producer.init_transactions()
        for _ in range(0, records, each):
            with producer.transaction():
                producer.send_batch(topic, [VALUE] * each)
    return topic


def abort(bootstrap: str, topic: str, transactions: int, partitions: int) -> None:
    """Aborted transactions of one small record in each partition, and one that is committed behind them."""
    with Producer(bootstrap_servers=bootstrap, transactional_id=next(_names)) as producer:
        producer.init_transactions()
        for number in range(transactions + 1):
            producer.begin_transaction()
            for partition in range(partitions):
                producer.send(topic, b"x", partition=partition)
            if number < transactions:
                producer.flush()  # else nothing is written that could be aborted
                producer.abort_transaction()
            else:
                producer.commit_transaction()


def read(bootstrap: str, topic: str, partitions: int, level: str) -> float:
    """Offsets a second from the first record to the last, as Arrow."""
    with Consumer(bootstrap_servers=bootstrap, isolation_level=level, enable_auto_commit=False) as consumer:
        assigned = [TopicPartition(topic, number) for number in range(partitions)]
        consumer.assign(assigned)
        consumer.seek_to_beginning(assigned)
        ends = consumer.end_offsets(assigned)
        started = time.perf_counter()
        left = set(assigned)
        while left:
            consumer.poll_arrow(timeout=1.0)
            left = {tp for tp in left if consumer.position(tp) < ends[tp]}
        return sum(ends.values()) / (time.perf_counter() - started)


def producing(name: str, bootstrap: str, seconds: float) -> None:
    """The table of producers."""
    topic = create(bootstrap)
    where = (bootstrap, topic, seconds)
    report(
        f"records of 100 bytes into {name}, a commit every {INTERVAL_S * 1000:.0f} ms",
        alternating(
            {
                "kclient.sync": lambda: ours(*where),
                "kclient.sync, idempotent only": lambda: plain(*where),
                "Java, idempotent only": lambda: java(*where, interval_s=0),
                "confluent-kafka": lambda: confluent(*where),
                "Java": lambda: java(*where),
            }
        ),
    )


def committing(ours: GatewayProcess, theirs: KafkaServer, seconds: float) -> None:
    """The tables of commits."""
    for partitions in (1, 50):
        report(
            f"commits a second, a record to each of {partitions} partitions, forced to disk",
            alternating(
                {
                    "gateway synced": lambda partitions=partitions: commits(ours.bootstrap, seconds, partitions),
                    "Kafka flushing every message": lambda partitions=partitions: commits(
                        theirs.bootstrap, seconds, partitions
                    ),
                }
            ),
            unit="commits/s",
        )


def reading(title: str, bootstrap: str, topic: str, partitions: int) -> None:
    """The table of one topic's readers."""
    report(
        title,
        alternating(
            {
                "read_committed": lambda: read(bootstrap, topic, partitions, "read_committed"),
                "read_uncommitted": lambda: read(bootstrap, topic, partitions, "read_uncommitted"),
            }
        ),
        unit="offsets/s",
    )


def main(seconds: float = 5.0, aborted: int = 10_000, partitions: int = 100) -> None:
    with kafka(log_retention_bytes="268435456", log_segment_bytes="134217728") as server:
        producing("real Kafka", server.bootstrap, seconds)
    with gateway("written") as server:
        producing("the gateway", server.bootstrap, seconds)
        topic = fill(server.bootstrap, 2_000_000)
        reading("2,000,000 committed records of the gateway's", server.bootstrap, topic, PARTITIONS)
        process = psutil.Process(server.pid)
        topic = create(server.bootstrap, partitions)
        abort(server.bootstrap, topic, aborted // 100, partitions)
        before = process.memory_info().rss
        abort(server.bootstrap, topic, aborted, partitions)
        grown = (process.memory_info().rss - before) / 1e6
        console.print(
            f"{aborted * partitions:,} aborted transactions of {partitions} partitions: the gateway's resident memory"
            f" {before / 1e6:,.0f} MB before, {grown:+,.1f} MB after"
        )
        reading("past them", server.bootstrap, topic, partitions)
    with gateway("synced") as synced, kafka(log_flush_interval_messages="1") as flushing:
        committing(synced, flushing, seconds)


if __name__ == "__main__":
    main(*(kind(text) for kind, text in zip((float, int, int), sys.argv[1:], strict=False)))
