"""An exception of a signal handler, as of Ctrl-C, wherever a blocking call may meet it: client and process go on.

CPython looks for signals where a function begins, which is where these tests raise; elsewhere, as in the line after
`with`, it never does.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
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
    """Raises where the n-th function of ours, or of a lock's, begins in this thread."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith((OURS, threading.__file__)):
            self.left -= 1
            if self.left == 0:
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


def test_who_asks_and_is_interrupted(address: str) -> None:
    with kclient.sync.Admin(bootstrap_servers=address) as admin:
        assert at_every_call(admin.list_topics, lambda: admin.list_topics(timeout=BEFORE), nothing) > 10
