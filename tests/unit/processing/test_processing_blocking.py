"""The blocking processor: what the asynchronous one does, in the caller's thread, and what Ctrl-C leaves."""

from __future__ import annotations

import inspect
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import anyio
import pytest

from kclient import ConsumerRecord, ProducerRecord, TopicPartition
from kclient.errors import ConfigError
from kclient.processing import (
    BlockingProcessor,
    DeadLetter,
    Processor,
    Retry,
    Skip,
    process,
    process_blocking,
)
from kclient.sync import Admin, Consumer, Producer
from kclient.testing import memory_broker
from tests.unit.processing import parts
from tests.unit.processing.parts import IN, PARTITIONS, copied, expected

COUNT = 60


class Place:
    """A broker with records, and two clients of it."""

    def __init__(self, address: str, stack: ExitStack) -> None:
        self.address = address
        self.producer = stack.enter_context(Producer(bootstrap_servers=address, **parts.WRITING))
        self.consumer = stack.enter_context(Consumer("in", bootstrap_servers=address, **parts.READING))

    def numbers(self, topic: str = "out") -> list[list[int]]:
        return anyio.run(partial(parts.numbers, self.address, topic))

    def committed(self) -> dict[TopicPartition, int]:
        return anyio.run(parts.committed, self.address)


@pytest.fixture
def place() -> Iterator[Place]:
    with memory_broker() as address, ExitStack() as stack:
        with Admin(bootstrap_servers=address) as admin:
            for name in ("in", "out", "dead"):
                admin.create_topic(name, partitions=PARTITIONS)
        with Producer(bootstrap_servers=address) as producer:
            for number in range(COUNT):
                producer.send("in", b"%d" % number, partition=number % PARTITIONS)
        yield Place(address, stack)


def stopping(count: int, function: Any = copied) -> tuple[Any, list[BlockingProcessor]]:
    """A function that stops its processor with the record of that number."""
    processors: list[BlockingProcessor] = []
    seen: set[int] = set()

    def wrapped(record: ConsumerRecord) -> Any:
        seen.add(int(record.value))
        if len(seen) == count:
            processors[0].stop()
        return function(record)

    return wrapped, processors


def run(place: Place, count: int, function: Any = copied, **settings: Any) -> BlockingProcessor:
    wrapped, processors = stopping(count, function)
    processor = BlockingProcessor(place.consumer, place.producer, wrapped, **settings)
    processors.append(processor)
    processor.run()
    return processor


@pytest.mark.parametrize("interval", [0, 0.001, 30])
def test_exactly_once(place: Place, interval: float) -> None:
    processor = run(place, COUNT, commit_interval=interval)
    assert processor.progress.records_in == processor.progress.records_out == COUNT
    assert place.numbers() == expected(COUNT)
    assert place.committed() == dict.fromkeys(IN, COUNT // PARTITIONS)


def test_generators_and_batches(place: Place) -> None:
    def function(records: Any) -> Iterator[ProducerRecord]:
        for record in records:
            yield copied(record)
            if len(done) == COUNT - 1:
                processor.stop()
            done.add(record.value)

    done: set[bytes] = set()
    processor = BlockingProcessor(place.consumer, place.producer, function, batch=True)
    assert processor.run().records_out == COUNT
    assert place.numbers() == expected(COUNT)


def test_stop_from_another_thread_while_it_waits_for_records(place: Place) -> None:
    processor = BlockingProcessor(place.consumer, place.producer, copied)
    thread = threading.Thread(target=processor.run)
    thread.start()
    anyio.run(parts.until, lambda: processor.progress.records_in == COUNT)
    processor.stop()
    thread.join(20)
    assert not thread.is_alive()
    assert place.consumer.poll(0.01).is_empty, "and no wakeup is left"


def test_failures(place: Place) -> None:
    attempts: list[int] = []

    def picky(record: ConsumerRecord) -> ProducerRecord:
        number = int(record.value)
        if number == 13 or (number == 14 and len(attempts) < 2):
            attempts.extend([number] * (number == 14))
            raise ValueError(number)
        return copied(record)

    def on_error(failure: Any) -> Any:
        return DeadLetter("dead") if failure.records[0].value == b"13" else Retry(0.01)

    processor = BlockingProcessor(place.consumer, place.producer, picky, on_error=on_error)
    thread = threading.Thread(target=processor.run)
    thread.start()
    anyio.run(parts.until, lambda: processor.progress.records_in == COUNT)
    processor.stop()
    thread.join(20)
    assert place.numbers("dead")[0] + place.numbers("dead")[1] + place.numbers("dead")[2] == [13]
    assert place.numbers() == [[n for n in part if n != 13] for part in expected(COUNT)]


def test_by_default_the_error_is_raised(place: Place) -> None:
    def function(record: ConsumerRecord) -> ProducerRecord:
        raise LookupError("x")

    with pytest.raises(LookupError, match="x"):
        process_blocking(place.consumer, place.producer, function)
    assert run(place, COUNT).progress.records_in == COUNT
    assert place.numbers() == expected(COUNT)


@pytest.mark.parametrize("at", [1, 7, COUNT])
def test_an_interrupt_in_the_function(place: Place, at: int) -> None:
    seen: list[bytes] = []

    def function(record: ConsumerRecord) -> ProducerRecord:
        seen.append(record.value)
        if len(seen) == at:
            signal.raise_signal(signal.SIGINT)
        return copied(record)

    with pytest.raises(KeyboardInterrupt):
        process_blocking(place.consumer, place.producer, function, commit_interval=30)
    assert place.numbers() == [[]] * PARTITIONS
    assert run(place, COUNT).progress.records_in == COUNT
    assert place.numbers() == expected(COUNT)


def test_an_interrupt_while_it_waits_for_records(place: Place) -> None:
    processor = BlockingProcessor(place.consumer, place.producer, copied)
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        anyio.run(parts.until, lambda: processor.progress.records_in == COUNT)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        processor.run()
    thread.join(20)
    assert place.numbers() == expected(COUNT)


def test_interrupts_at_any_time(place: Place) -> None:
    """A signal every few milliseconds, wherever that comes: each run begins where the one before has committed."""
    main = threading.main_thread().ident
    assert main is not None
    runs = 0
    done = False
    while not done:
        runs += 1
        seen_before = sum(place.committed().values())
        interrupted = threading.Timer(0.002 * runs, signal.pthread_kill, (main, signal.SIGINT))
        processor = BlockingProcessor(place.consumer, place.producer, copied, commit_interval=0.002)
        try:
            try:
                interrupted.start()
                if seen_before == COUNT:
                    processor.stop()
                    done = True
                processor.run()
            finally:
                interrupted.cancel()
                interrupted.join()
        except KeyboardInterrupt:
            done = False
    assert runs > 1
    assert place.numbers() == expected(COUNT)


def test_what_is_refused(place: Place) -> None:
    async def coroutine(record: ConsumerRecord) -> None: ...

    with pytest.raises(TypeError, match="coroutine function needs the async clients"):
        BlockingProcessor(place.consumer, place.producer, coroutine)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="would have to be awaited"):
        process_blocking(place.consumer, place.producer, lambda record: coroutine(record))  # type: ignore[arg-type, return-value]
    other: Any = place.consumer
    with pytest.raises(TypeError, match="BlockingProcessor"):
        Processor(other, other, copied)
    with pytest.raises(TypeError, match=r"kclient\.sync\.Consumer"):
        BlockingProcessor(other, other, copied)
    with (
        Consumer("in", bootstrap_servers=place.address, group_id="g") as consumer,
        pytest.raises(ConfigError, match=r"enable\.auto\.commit"),
    ):
        BlockingProcessor(consumer, place.producer, copied)


def test_both_faces_take_the_same_arguments() -> None:
    def arguments(function: Any) -> dict[str, Any]:
        return {name: found.default for name, found in inspect.signature(function).parameters.items()}

    asynchronous = arguments(Processor.__init__)
    assert asynchronous.pop("concurrency") == 1
    assert arguments(BlockingProcessor.__init__) == asynchronous
    assert arguments(process) == {k: v for k, v in arguments(Processor.__init__).items() if k != "self"}
    assert arguments(process_blocking) == {k: v for k, v in asynchronous.items() if k != "self"}
    assert Skip() == Skip()
