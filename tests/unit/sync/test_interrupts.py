"""An exception of a signal handler, as of Ctrl-C, wherever a blocking call may meet it: client and process go on.

CPython looks for signals where a function begins, which is where these tests raise; elsewhere, as in the line after
`with`, it never does.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest

import kclient
from kclient.sync import Consumer, Producer
from kclient.testing import memory_broker
from kclient.types import RecordMetadata, TopicPartition

OURS = str(Path(kclient.__file__).parent)
BEFORE = 20
"""Seconds in which what comes after an interrupt has to succeed."""


class Interrupt(KeyboardInterrupt):
    pass


class At:
    """Raises where the n-th function of ours, or of a lock's, begins in this thread; and so many later again."""

    def __init__(self, *numbers: int) -> None:
        self.left = list(numbers)

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and self.left and frame.f_code.co_filename.startswith((OURS, threading.__file__)):
            self.left[0] -= 1
            if self.left[0] == 0:
                del self.left[0]
                if self.left:
                    sys.settrace(self)  # Python takes away a trace function that raises
                raise Interrupt


def at_every_call(call: Callable[[], object], then: Callable[[], object], first: Callable[[], object]) -> int:
    """Do something, interrupted in its first function, its second, and so on; `first` before and `then` after each."""
    number, interrupted = 0, True
    before = sys.gettrace()
    while interrupted:
        number, interrupted = number + 1, False
        first()
        sys.settrace(At(number))
        try:
            call()
        except Interrupt:
            interrupted = True
        finally:
            sys.settrace(before)
        then()
    return number


@pytest.fixture
def address() -> Iterator[str]:
    with memory_broker() as found:
        with kclient.sync.Admin(bootstrap_servers=found) as admin:
            admin.create_topic("t", partitions=2)
        yield found


@pytest.fixture
def other_thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


@pytest.fixture
def producer(address: str) -> Iterator[Producer]:
    with Producer(bootstrap_servers=address, linger_ms=0, buffer_memory=200_000) as made:
        made.send("t", b"first", partition=0).result(BEFORE)
        yield made


def works(producer: Producer, other_thread: ThreadPoolExecutor) -> Callable[[], None]:
    """From two threads, and no record and no memory is left."""

    def look() -> None:
        there = other_thread.submit(lambda: producer.send("t", b"there", partition=1).result(BEFORE))
        producer.send("t", b"here", partition=0).result(BEFORE)
        there.result(BEFORE)
        producer.flush(BEFORE)
        buffer = producer._life.buffer
        with buffer.lock:
            assert not buffer.active
            assert not buffer._incomplete
            assert buffer.pool.free == 200_000

    return look


def nothing() -> None:
    pass


@pytest.mark.parametrize(
    "call",
    [
        lambda producer: producer.send("t", b"x", partition=0),
        lambda producer: producer.send("t", b"x", b"key", headers=[("h", b"1")], on_delivery=lambda *_: None),
        lambda producer: producer.send_batch("t", [b"x"] * 100),
    ],
    ids=["send", "send with a callback", "send_batch"],
)
def test_a_producer_that_is_interrupted_anywhere(
    call: Callable[[Producer], object], producer: Producer, other_thread: ThreadPoolExecutor
) -> None:
    assert at_every_call(lambda: call(producer), works(producer, other_thread), nothing) > 10


@pytest.mark.parametrize("how", ["flush", "result"])
def test_who_waits_for_records_and_is_interrupted(
    how: str, producer: Producer, other_thread: ThreadPoolExecutor
) -> None:
    """Callbacks are called all the same; one that was about to be called perhaps not."""
    told: list[RecordMetadata] = []
    deliveries: list[Any] = []

    def send() -> None:
        told.clear()
        deliveries[:] = [
            producer.send("t", b"x", partition=0, on_delivery=lambda found, _: told.append(found)) for _ in range(5)
        ]

    def wait() -> None:
        if how == "flush":
            producer.flush(BEFORE)
        else:
            deliveries[-1].result(BEFORE)

    def then() -> None:
        works(producer, other_thread)()
        assert all(delivery.done() for delivery in deliveries)
        offsets = [found.offset for found in told]
        assert offsets == sorted(set(offsets)), "each once, in order"
        assert len(offsets) in {4, 5}

    assert at_every_call(wait, then, send) > 20


def test_a_consumer_that_waits_and_is_interrupted(address: str, producer: Producer) -> None:
    with Consumer(bootstrap_servers=address) as consumer:
        consumer.assign([TopicPartition("t", 0)])

        def first() -> None:
            consumer.seek_to_end()
            consumer.position(("t", 0))

        def then() -> None:
            stored = producer.send("t", b"x", partition=0).result(BEFORE)
            found = [record.offset for record in consumer.poll(BEFORE)]
            assert found == [stored.offset]

        assert at_every_call(lambda: consumer.poll(0.02), then, first) > 20


def fill(producer: Producer, partition: int, count: int) -> None:
    """With records in small batches."""
    for _ in range(count // 10):
        producer.send_batch("t", [b"x" * 100] * 10, partition=partition)
        producer.flush(BEFORE)


class Reader:
    """Reads in one way, and sees to it that each record comes once and in order."""

    def __init__(self, consumer: Consumer, way: str) -> None:
        self.consumer = consumer
        self.way = way
        self.next = dict.fromkeys(consumer.assignment(), 0)

    def begin_again(self) -> None:
        """If it comes to the end."""
        for tp, offset in self.next.items():
            if offset > 1_000:
                self.consumer.seek(tp, 0)
                self.next[tp] = 0

    def read(self) -> None:
        if self.way == "one by one":
            for _ in range(5):
                record = next(self.consumer)
                self.came(record.partition, record.offset)
        elif self.way == "columns":
            batch = self.consumer.poll_arrow(BEFORE)
            for partition, offset in zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True):
                self.came(partition, offset)
        else:
            for record in self.consumer.poll(BEFORE):
                self.came(record.partition, record.offset)

    def came(self, partition: int, offset: int) -> None:
        tp = TopicPartition("t", partition)
        assert offset == self.next[tp]
        self.next[tp] += 1

    def is_where_it_says(self) -> None:
        """Positions are those of what came, and what is read next is fetched within its memory."""
        for tp, offset in self.next.items():
            assert self.consumer.position(tp) == offset
        assert self.consumer._core.fetcher.buffer.size <= 6_000


@pytest.mark.parametrize("way", ["lists", "one by one", "columns"])
def test_a_consumer_that_is_interrupted_amid_records(way: str, address: str, producer: Producer) -> None:
    """None is skipped, and none comes twice."""
    fill(producer, 0, 2_000)
    fill(producer, 1, 2_000)
    with Consumer(bootstrap_servers=address, max_poll_records=20, fetch_max_bytes=4_000) as consumer:
        consumer.assign([("t", 0), ("t", 1)])
        consumer.seek_to_beginning()
        reader = Reader(consumer, way)
        for _ in range(3):
            assert at_every_call(reader.read, reader.is_where_it_says, reader.begin_again) > 20


def test_a_consumer_that_is_interrupted_again_and_again(address: str, producer: Producer) -> None:
    """Also amid what the first interrupt has it do."""
    fill(producer, 0, 2_000)
    random = Random(1)
    with Consumer(bootstrap_servers=address, max_poll_records=20, fetch_max_bytes=4_000) as consumer:
        consumer.assign([("t", 0)])
        consumer.seek_to_beginning()
        reader = Reader(consumer, "lists")
        before = sys.gettrace()
        for _ in range(200):
            reader.begin_again()
            sys.settrace(At(*(random.randrange(1, 60) for _ in range(4))))
            for _ in range(5):
                with contextlib.suppress(Interrupt):
                    reader.read()
            sys.settrace(before)
            reader.is_where_it_says()


def test_who_asks_and_is_interrupted(address: str) -> None:
    with kclient.sync.Admin(bootstrap_servers=address) as admin:
        assert at_every_call(admin.list_topics, lambda: admin.list_topics(timeout=BEFORE), nothing) > 10
