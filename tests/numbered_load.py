"""Numbered records, sent and read by a group while a gateway dies, and what has to be true of them afterwards."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Self

from kclient.errors import CommitFailedError, KafkaError, RebalanceInProgressError, RetriableError
from kclient.producer import Delivery
from kclient.sync import Consumer, Producer
from kclient.types import TopicPartition

_PATIENCE_S = 60.0


class NumberedLoad:
    """Sends numbered records from a thread of its own, and knows which of them were acknowledged, and where.

    Args:
        bootstrap: The gateway.
        topic: The topic, which is there.
        partitions: So many are sent to, in turn; `partitions` may rise when there are more.
        size: Bytes of a record, beside its number.
    """

    def __init__(self, bootstrap: str, topic: str, *, partitions: int, size: int) -> None:
        self.partitions = partitions
        self.sent = 0
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.failures: list[KafkaError] = []
        self._written: set[int] = set()
        self._changed = threading.Condition()
        self._stop = False
        self._thread = threading.Thread(target=self._run, args=(bootstrap, topic, size), name="load")
        self._thread.start()

    def _run(self, bootstrap: str, topic: str, size: int) -> None:
        pending: deque[tuple[int, Delivery]] = deque()
        padding = b"." * size
        with Producer(
            bootstrap_servers=bootstrap, acks="all", enable_idempotence=True, delivery_timeout_ms=120_000, linger_ms=1
        ) as producer:
            while not self._stop:
                for _ in range(50):
                    number, self.sent = self.sent, self.sent + 1
                    value = b"%d %s" % (number, padding)
                    pending.append((number, producer.send(topic, value, partition=number % self.partitions)))
                while pending and (pending[0][1].done() or len(pending) > 2000):
                    self._take(*pending.popleft())
            producer.flush()
            while pending:
                self._take(*pending.popleft())

    def _take(self, number: int, delivery: Delivery) -> None:
        try:
            metadata = delivery.result(timeout=120)
        except KafkaError as error:
            self.failures.append(error)
            return
        with self._changed:
            self.acknowledged[number] = (metadata.partition, metadata.offset)
            self._written.add(metadata.partition)
            self._changed.notify_all()

    def wait_for(self, more: int) -> None:
        """Waits until that many more records are acknowledged."""
        with self._changed:
            goal = len(self.acknowledged) + more
            assert self._changed.wait_for(lambda: len(self.acknowledged) >= goal, _PATIENCE_S), "the producer is stuck"

    def wait_for_partition(self, partition: int) -> None:
        """Waits until a record in that partition is acknowledged."""
        with self._changed:
            written = self._changed.wait_for(lambda: partition in self._written, _PATIENCE_S)
        assert written, "the producer does not write to the partition"

    def stop(self) -> None:
        """Sends no more, and waits for what was sent."""
        self._stop = True
        self._thread.join(timeout=120)
        assert not self._thread.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def ends(self) -> dict[int, int]:
        """By partition, the offset behind the last record that was acknowledged."""
        ends: dict[int, int] = {}
        for partition, offset in self.acknowledged.values():
            ends[partition] = max(offset + 1, ends.get(partition, 0))
        return ends

    def check(self, found: Mapping[tuple[int, int], int]) -> None:
        """Whether what was found is what was acknowledged: each record once, in order, where it was said to be."""
        assert not self.failures
        missing = {number: place for number, place in self.acknowledged.items() if found.get(place) != number}
        assert not missing, f"{len(missing)} acknowledged records are not where they were said to be"
        assert len(set(found.values())) == len(found), "a record was stored twice"
        assert len(found) == self.sent, "all were acknowledged, and there are others"
        for partition in range(self.partitions):
            offsets = sorted(offset for number, offset in found if number == partition)
            assert offsets == list(range(len(offsets))), "offsets have gaps"
            numbers = [found[partition, offset] for offset in offsets]
            assert numbers == sorted(numbers), "the order was lost"


class NumberedGroup:
    """A group of one member that reads a topic from a thread of its own and commits what it has read.

    Args:
        bootstrap: The gateway.
        group: Its name.
        topic: The topic.
    """

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self.read: dict[tuple[int, int], int] = {}
        """The number of each record, by its partition and offset."""
        self.committed: dict[int, int] = {}
        """By partition, what was acknowledged as committed."""
        self.begun: dict[int, int] = {}
        """By partition, the greatest offset that was ever to be committed."""
        self.failures: list[BaseException] = []
        self.skipped: list[tuple[int, int, int]] = []
        """Partition, the offset that was due, and the later one that came instead."""
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(bootstrap, group, topic), name="group")
        self._thread.start()

    def _run(self, bootstrap: str, group: str, topic: str) -> None:
        try:
            with Consumer(
                topic,
                bootstrap_servers=bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                metadata_max_age_ms=500,
                default_api_timeout_ms=30_000,
            ) as consumer:
                while not self._stop.is_set():
                    self._take(consumer)
        except BaseException as error:
            self.failures.append(error)
            raise

    def _take(self, consumer: Consumer) -> None:
        reached: dict[int, int] = {}
        for record in consumer.poll(timeout=0.1):
            due = reached.get(record.partition, self.begun.get(record.partition, 0))
            if record.offset > due:
                self.skipped.append((record.partition, due, record.offset))
            reached[record.partition] = record.offset + 1
            self.read[record.partition, record.offset] = int(record.value.split()[0])
        if not reached:
            return
        for partition, offset in reached.items():
            self.begun[partition] = max(offset, self.begun.get(partition, 0))
        try:
            consumer.commit()
        except (CommitFailedError, RebalanceInProgressError, RetriableError):
            return  # it may be committed or not: what comes next is read, or read again, and committed
        with self._changed:
            self.committed.update(reached)
            self._changed.notify_all()

    def wait_until(self, reached: Callable[[Mapping[int, int]], bool]) -> None:
        """Waits until what is committed, by partition, is enough."""
        with self._changed:
            done = self._changed.wait_for(lambda: bool(self.failures) or reached(self.committed), _PATIENCE_S)
        assert done, "the group is stuck"
        assert not self.failures

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Reads no more."""
        self._stop.set()
        self._thread.join(timeout=120)
        assert not self._thread.is_alive()


def read_numbers(bootstrap: str, topic: str, partitions: int) -> dict[tuple[int, int], int]:
    """Every visible record: (partition, offset) → number. Batches are checked by their CRC on the way."""
    every = [TopicPartition(topic, number) for number in range(partitions)]
    found: dict[tuple[int, int], int] = {}
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(every)
        ends = consumer.end_offsets(every)
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            for record in consumer.poll(timeout=5.0):
                found[record.partition, record.offset] = int(record.value.split()[0])
    return found
