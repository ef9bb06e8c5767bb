"""kill -9 at any moment: nothing acknowledged with acks=all is lost, nothing is doubled or half-visible."""

from __future__ import annotations

import random
import threading
from collections import deque
from pathlib import Path

import pytest

from kclient.errors import KafkaError
from kclient.producer import Delivery
from kclient.sync import Admin, Consumer, Producer
from kclient.types import TopicPartition
from tests.gateway_process import GatewayProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PARTITIONS = 8


class Load:
    """Sends numbered records from a thread of its own, and knows which of them were acknowledged, and where."""

    def __init__(self, bootstrap: str, topic: str, size: int) -> None:
        self.sent = 0
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.failures: list[KafkaError] = []
        self._changed = threading.Condition()
        self._stop = False
        self._thread = threading.Thread(target=self._run, args=(bootstrap, topic, size), name="load")
        self._thread.start()

    def _run(self, bootstrap: str, topic: str, size: int) -> None:
        pending: deque[tuple[int, Delivery]] = deque()
        padding = b"." * size
        with Producer(bootstrap_servers=bootstrap, delivery_timeout_ms=120_000, linger_ms=1) as producer:
            while not self._stop:
                for _ in range(50):
                    number, self.sent = self.sent, self.sent + 1
                    value = b"%d %s" % (number, padding)
                    pending.append((number, producer.send(topic, value, partition=number % PARTITIONS)))
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
            self._changed.notify_all()

    def wait_for(self, more: int) -> None:
        """Waits until that many more records are acknowledged."""
        with self._changed:
            goal = len(self.acknowledged) + more
            assert self._changed.wait_for(lambda: len(self.acknowledged) >= goal, timeout=60), "the producer is stuck"

    def stop(self) -> None:
        self._stop = True
        self._thread.join(timeout=120)
        assert not self._thread.is_alive()


def read_all(bootstrap: str, topic: str) -> dict[tuple[int, int], int]:
    """Every visible record: (partition, offset) → number. Batches are checked by their CRC on the way."""
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    found: dict[tuple[int, int], int] = {}
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            for record in consumer.poll(timeout=5.0):
                found[record.partition, record.offset] = int(record.value.split()[0])
    return found


def check(load: Load, found: dict[tuple[int, int], int]) -> None:
    assert not load.failures
    missing = {number: place for number, place in load.acknowledged.items() if found.get(place) != number}
    assert not missing, f"{len(missing)} acknowledged records are not where they were said to be"
    assert len(set(found.values())) == len(found), "a record was stored twice"
    for partition in range(PARTITIONS):
        offsets = sorted(offset for number, offset in found if number == partition)
        assert offsets == list(range(len(offsets))), "offsets have gaps"
        numbers = [found[partition, offset] for offset in offsets]
        assert numbers == sorted(numbers), "the order was lost"


@pytest.mark.parametrize("size", [10, 5000])
def test_kill_at_random_moments(tmp_path: Path, pytestconfig: pytest.Config, size: int) -> None:
    kills = max(1, pytestconfig.getoption("kills") // 2)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    gateway = GatewayProcess(tmp_path / "data")
    gateway.start()
    try:
        with Admin(bootstrap_servers=gateway.bootstrap) as admin:
            admin.create_topic("t", partitions=PARTITIONS)
        load = Load(gateway.bootstrap, "t", size)
        try:
            for _ in range(kills):
                load.wait_for(chance.randrange(1, 2000))
                gateway.stop(kill=True)
                gateway.start()
            load.wait_for(100)
        finally:
            load.stop()
        check(load, read_all(gateway.bootstrap, "t"))
        gateway.stop()
        gateway.start()
        check(load, read_all(gateway.bootstrap, "t"))
    finally:
        gateway.stop()
