"""The gateway beside real Kafka under the raw client: batches in, batches out, with both ways to be durable.

`written` is Kafka's own default on one broker (the page cache); `synced` forces every batch to disk before it is
acknowledged, and is compared with Kafka's `log.flush.interval.messages=1`.
"""

from __future__ import annotations

import contextlib
import itertools
import sys

import psutil

from benchmarks.harness import alternating, console, gateway, kafka, report
from benchmarks.raw_client import PARTITIONS, RECORDS_PER_BATCH, RawClient
from kclient.sync import Admin, Consumer
from kclient.types import TopicPartition

_topics = (f"bench-{number}" for number in itertools.count())


def create(bootstrap: str) -> str:
    topic = next(_topics)
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(topic, partitions=PARTITIONS, configs={"retention.bytes": "-1"})
    # the raw client does not ask again where a partition has no leader yet
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        consumer.end_offsets([TopicPartition(topic, number) for number in range(PARTITIONS)])
    return topic


def drop(bootstrap: str, topic: str) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.delete_topic(topic)


def produced(bootstrap: str, records: int) -> float:
    """The rate into a new topic, which is deleted afterwards."""
    topic = create(bootstrap)
    client = RawClient(int(bootstrap.rsplit(":", 1)[1]))
    with contextlib.closing(client):
        figure = client.produce(topic, records)
    drop(bootstrap, topic)
    return figure


def fetched(bootstrap: str, topic: str, records: int) -> float:
    with contextlib.closing(RawClient(int(bootstrap.rsplit(":", 1)[1]))) as client:
        return client.fetch(topic, records)


def filled(bootstrap: str, records: int) -> str:
    topic = create(bootstrap)
    with contextlib.closing(RawClient(int(bootstrap.rsplit(":", 1)[1]))) as client:
        client.produce(topic, records)
    return topic


def main(records: int = 2_000_000) -> None:
    records -= records % RECORDS_PER_BATCH
    with gateway("written") as ours, kafka() as theirs:
        report(
            f"{records:,} records of 100 bytes in, page cache",
            alternating(
                {
                    "gateway written": lambda: produced(ours.bootstrap, records),
                    "Kafka": lambda: produced(theirs.bootstrap, records),
                }
            ),
        )
        topics = {bootstrap: filled(bootstrap, records) for bootstrap in (ours.bootstrap, theirs.bootstrap)}
        report(
            f"{records:,} records of 100 bytes out",
            alternating(
                {
                    "gateway": lambda: fetched(ours.bootstrap, topics[ours.bootstrap], records),
                    "Kafka": lambda: fetched(theirs.bootstrap, topics[theirs.bootstrap], records),
                }
            ),
        )
        console.print(f"gateway: {psutil.Process(ours.pid).memory_info().rss / 1e6:.0f} MB resident")
    with gateway("synced") as ours, kafka(log_flush_interval_messages="1") as theirs:
        report(
            f"{records:,} records of 100 bytes in, forced to disk",
            alternating(
                {
                    "gateway synced": lambda: produced(ours.bootstrap, records),
                    "Kafka flushing every message": lambda: produced(theirs.bootstrap, records),
                }
            ),
        )
        console.print(f"gateway: accepted connections {ours.startup_seconds:.2f} s after it was started")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
