"""A group of two whose members keep state per partition, and hand it over when partitions move.

Usage: python rebalance_listener.py [BOOTSTRAP]
"""

import contextlib
import sys
import threading
from collections.abc import Collection

from kclient.consumer import RebalanceListener
from kclient.errors import TopicExistsError
from kclient.sync import Admin, Consumer, Producer
from kclient.types import TopicPartition

TOPIC = "clicks"
COUNT = 4000


class Counters(RebalanceListener):
    """What is counted is committed before a partition is given away."""

    def __init__(self, name: str, consumer: Consumer, ready: threading.Event) -> None:
        self.name = name
        self.consumer = consumer
        self.ready = ready

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        # Called inside poll and close, in the thread that called them: committing here is safe.
        self.consumer.commit()
        print(f"{self.name} gives away {', '.join(map(str, sorted(partitions))) or 'nothing'}")

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        print(f"{self.name} takes over {', '.join(map(str, sorted(partitions))) or 'nothing'}")
        if partitions:
            self.ready.set()

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        print(f"{self.name} was thrown out of the group; others own {', '.join(map(str, sorted(partitions)))}")


def work(
    name: str,
    bootstrap: str,
    ready: threading.Event,
    totals: dict[TopicPartition, int],
    lock: threading.Lock,
    leave_after: int,
) -> None:
    try:
        with Consumer(
            group_id="listener-example",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_records=100,
            bootstrap_servers=bootstrap,
        ) as consumer:
            consumer.subscribe([TOPIC], listener=Counters(name, consumer, ready))
            mine = 0
            while True:
                records = consumer.poll(timeout=0.2)
                with lock:
                    for tp in records.partitions():
                        totals[tp] = totals.get(tp, 0) + len(records.records(tp))
                    everything = sum(totals.values())
                mine += len(records)
                if records:
                    consumer.commit()
                if everything >= COUNT or mine >= leave_after:
                    print(f"{name} leaves after {mine} records")
                    return
    finally:
        ready.set()  # nobody waits for a member that failed


def main(bootstrap: str) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin, contextlib.suppress(TopicExistsError):
        admin.create_topic(TOPIC, partitions=4)
    totals: dict[TopicPartition, int] = {}
    lock = threading.Lock()
    members = []
    for name, leave_after in (("anna", COUNT), ("ben", COUNT // 10)):
        ready = threading.Event()
        members.append(threading.Thread(target=work, args=(name, bootstrap, ready, totals, lock, leave_after)))
        members[-1].start()
        ready.wait(timeout=60)  # so that both have partitions before there is work
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(COUNT):
            producer.send(TOPIC, b"click", partition=number % 4)
    for member in members:
        member.join()
    print(f"{sum(totals.values())} clicks counted once each: {dict(sorted((str(tp), n) for tp, n in totals.items()))}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "memory:example")
