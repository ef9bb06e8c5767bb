"""The main job on real input: every flight that left New York in 2013, through every door of the house.

A gateway keeps the messages in embedded HTP. Our producer streams 336,776 flights into it as JSON, keyed by tail
number. Two members of a consumer group work out the delays by carrier, and one of them leaves half-way. A
confluent-kafka consumer, which knows nothing of us, reads everything again: only its broker address was changed. A
streaming query of Spark writes what arrived when to a second topic, exactly once, and our consumer reads that. Spark
archives the first topic as Parquet, computes the same statistics in SQL, and audits the archive against the topic. In
the end all must agree with the input.

Run it with `make demo`; it takes a minute or two and leaves its files in `out/demo`. With a number as argument it takes
only that many flights.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
from flights.delays import Statistics, merged, statistics_of
from flights.input import airlines, milliseconds, read_flights
from flights.on_spark import StreamedTopic, archive_topic, audit_archive, spark_session, statistics_of_archive
from flights.shown import Rates, console, draw, print_results, progress_bar

from kclient import TopicPartition
from kclient.sync import Admin, Consumer, Producer

TOPIC = "flights"
ARRIVALS = "arrivals"
PARTITIONS = 4
OUT = Path("out/demo")


def main(limit: int | None = None) -> int:
    flights = read_flights(limit)
    total = len(flights)
    rates = Rates()
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    results = {"input": statistics_of(flights)}
    with running_gateway(OUT / "data") as bootstrap:
        create_topics(bootstrap)
        with rates.measured("produce (kclient)", total):
            produce(bootstrap, flights)
        with rates.measured("consumer group (kclient)", total):
            results["group of two"] = consume_in_a_group(bootstrap, total)
        with rates.measured("consume (confluent-kafka)", total):
            results["confluent-kafka"] = consume_with_confluent(bootstrap, total)
        with spark_session(OUT) as spark:
            with rates.measured("streaming query (Spark)", total):
                StreamedTopic(spark, bootstrap, OUT / "checkpoint").run(TOPIC, ARRIVALS, total)
            results["streamed"] = consume_what_was_streamed(bootstrap)
            with rates.measured("archive to Parquet (Spark)", total):
                archive_topic(spark, bootstrap, TOPIC, OUT / "archive")
            with rates.measured("Spark SQL over Parquet", total):
                results["archived"] = statistics_of_archive(spark, OUT / "archive", TOPIC)
            with rates.measured("audit (Spark)", total):
                same = audit_archive(spark, bootstrap, TOPIC, OUT / "archive", OUT / "audit.html")
    print_results(results, rates)
    draw(results["input"], airlines(), rates, OUT / "flights.png")
    console.print(f"chart: {OUT / 'flights.png'}   audit: {OUT / 'audit.html'}   archive: {OUT / 'archive'}")
    return 0 if same and all(result == results["input"] for result in results.values()) else 1


# The gateway ---------------------------------------------------------------------------------------------------


@contextmanager
def running_gateway(data: Path) -> Iterator[str]:
    """A gateway of its own process, as it would run in earnest; yields its address."""
    command = [sys.executable, "-m", "kclient", "gateway", "--data", str(data), "--listen", "127.0.0.1:0"]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    address = re.search(r"127\.0\.0\.1:\d+", line)
    if address is None:
        raise SystemExit(f"the gateway did not start: {line!r}")
    console.print(f"{line.strip()} [dim](up in {time.perf_counter() - started:.2f} s)[/]", soft_wrap=True)
    try:
        yield address.group()
    finally:
        process.terminate()
        process.wait(timeout=30)


def create_topics(bootstrap: str) -> None:
    # The flights carry timestamps of 2013, which a retention of the usual seven days would delete at once.
    with Admin(bootstrap_servers=bootstrap) as admin:
        for topic in (TOPIC, ARRIVALS):
            admin.create_topic(topic, partitions=PARTITIONS, configs={"retention.ms": "-1"})


# Our producer and our consumers --------------------------------------------------------------------------------


def produce(bootstrap: str, flights: list[dict[str, Any]]) -> None:
    hours = {hour: milliseconds(hour) for hour in {flight["time_hour"] for flight in flights}}
    with (
        progress_bar() as bar,
        Producer(bootstrap_servers=bootstrap, compression_type="zstd", linger_ms=20) as producer,
    ):
        task = bar.add_task("produce", total=len(flights))
        for number, flight in enumerate(flights, 1):
            tail = flight["tailnum"]
            producer.send(
                TOPIC,
                json.dumps(flight).encode(),
                key=tail.encode() if tail else None,
                timestamp=hours[flight["time_hour"]],
            )
            if number % 5000 == 0:
                bar.update(task, completed=number)
        producer.flush()
        bar.update(task, completed=len(flights))


class Member(threading.Thread):
    """A member of the group: reads until everybody together has read `total` records, or leaves at `leave_after`."""

    def __init__(
        self, name: str, bootstrap: str, seen: Callable[[int], int], total: int, leave_after: int | None
    ) -> None:
        super().__init__(name=name)
        self.statistics = Statistics()
        self.records = 0
        self.failure: BaseException | None = None
        self._address = bootstrap
        self._seen = seen
        self._total = total
        self._leave_after = leave_after

    def run(self) -> None:
        try:
            self._read()
        except BaseException as failure:  # noqa: BLE001  (raised again by the thread that waits for this one)
            self.failure = failure

    def _read(self) -> None:
        settings: dict[str, Any] = {
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "max_poll_records": 5000,
        }
        with Consumer(TOPIC, group_id="delays", bootstrap_servers=self._address, **settings) as consumer:
            while self._seen(0) < self._total:
                records = consumer.poll(timeout=0.2)
                for record in records:
                    self.statistics.add_json(record.value)
                # Committed before the next poll: whoever takes a partition over begins where this member stopped.
                if records:
                    consumer.commit()
                    self.records += len(records)
                    self._seen(len(records))
                if self._leave_after is not None and self.records >= self._leave_after:
                    return


def consume_in_a_group(bootstrap: str, total: int) -> Statistics:
    lock = threading.Lock()
    count = 0

    def seen(more: int) -> int:
        nonlocal count
        with lock:
            count += more
            return count

    stays = Member("stays", bootstrap, seen, total, leave_after=None)
    leaves = Member("leaves", bootstrap, seen, total, leave_after=total // 4)
    members = [stays, leaves]
    with progress_bar() as bar:
        task = bar.add_task("consumer group", total=total)
        for member in members:
            member.start()
        while any(member.is_alive() for member in members):
            bar.update(task, completed=seen(0))
            members[0].join(timeout=0.1)
            if any(member.failure for member in members):
                break
        bar.update(task, completed=seen(0))
    for member in members:
        member.join()
        if member.failure is not None:
            raise member.failure
    console.print(f"  one member read {leaves.records:,} records and left; the other read {stays.records:,}")
    return merged(member.statistics for member in members)


def consume_what_was_streamed(bootstrap: str) -> Statistics:
    """Reads what is committed, from the beginning to the end that there is now."""
    statistics = Statistics()
    settings: dict[str, Any] = {"isolation_level": "read_committed", "max_poll_records": 5000}
    with Consumer(bootstrap_servers=bootstrap, **settings) as consumer:
        partitions = [TopicPartition(ARRIVALS, number) for number in range(PARTITIONS)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            for record in consumer.poll(timeout=1.0):
                statistics.add_json(record.value)
    return statistics


# A client that knows nothing of us -----------------------------------------------------------------------------


def consume_with_confluent(bootstrap: str, total: int) -> Statistics:
    """Plain confluent-kafka: the broker address is the only thing that tells it where the messages are."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "foreign", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([TOPIC])
    statistics = Statistics()
    count = 0
    with progress_bar() as bar:
        task = bar.add_task("confluent-kafka", total=total)
        while count < total:
            for message in consumer.consume(10_000, timeout=1.0):
                if message.error():
                    raise confluent_kafka.KafkaException(message.error())
                statistics.add_json(message.value())
                count += 1
            bar.update(task, completed=count)
    consumer.close()
    return statistics


if __name__ == "__main__":
    try:
        sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else None))
    except KeyboardInterrupt:
        sys.exit(130)
