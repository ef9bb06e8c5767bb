"""An exception of a signal handler, as of Ctrl-C, wherever a blocking call may meet it: client and process go on.

CPython looks for signals where a function begins and where a generator goes on, which is where these tests raise (and
behind calls of C functions and at jumps back, which they do not reach); elsewhere, as in the line after `with` or where
something is thrown into a generator, it never does.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from inspect import CO_GENERATOR
from itertools import count, cycle
from opcode import opmap
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, Self

import pytest

import kclient
from kclient import ConsumerInterceptor
from kclient.arguments import check_timeout
from kclient.concurrency import SupervisorState
from kclient.errors import ClosedError, IllegalStateError
from kclient.net import garbage
from kclient.producer.delivery_reports import DeliveryReports
from kclient.sync import Consumer, Producer
from kclient.sync.portal import get_portal
from kclient.testing import memory_broker
from kclient.types import RecordMetadata, TopicPartition
from tests.sweeps import slow

OURS = str(Path(kclient.__file__).parent)
BEFORE = 20
"""Seconds in which what comes after an interrupt has to succeed."""


class Interrupt(KeyboardInterrupt):
    pass


class At:
    """Raises where the n-th function of ours, or of a lock's, begins in this thread; and so many later again.

    CPython takes a trace function away when it raises, whatever that has set meanwhile, and a profile function
    likewise: so they take turns.
    """

    def __init__(self, *numbers: int) -> None:
        self.left = list(numbers)
        self._turns = cycle((sys.setprofile, sys.settrace))

    def __enter__(self) -> Self:
        self._before = sys.gettrace(), sys.getprofile()
        sys.settrace(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before[0])
        sys.setprofile(self._before[1])

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and self.left and self.counts(frame):
            self.left[0] -= 1
            if self.left[0] == 0:
                del self.left[0]
                if self.left:
                    next(self._turns)(self)
                raise Interrupt

    def counts(self, called: FrameType) -> bool:
        """What the interpreter calls amid a collection of garbage is left out: it swallows whatever that raises."""
        file = called.f_code.co_filename
        return file.startswith((OURS, threading.__file__)) and file != garbage.__file__ and looks_for_signals(called)


class AmidCalls(At):
    """Raises where one function begins, the first so many times in this thread."""

    def __init__(self, function: Callable[..., object], times: int) -> None:
        super().__init__(*[1] * times)
        self.code = function.__code__  # type: ignore[attr-defined]

    def counts(self, called: FrameType) -> bool:
        return called.f_code is self.code


def looks_for_signals(called: FrameType) -> bool:
    """Whether it was called, or gone on with; not where it is thrown something, or asks what it yields from."""
    if not called.f_code.co_flags & CO_GENERATOR:
        return True
    operation, argument = called.f_code.co_code[called.f_lasti : called.f_lasti + 2]
    return operation == opmap["RESUME"] and argument < 2


class NextRecord(ConsumerInterceptor):
    """Passes everything on; its consumer shows it each record of an iteration."""


class Handler:
    """A signal handler that does something where the n-th function of ours begins in this thread."""

    def __init__(self, number: int, does: Callable[[], object]) -> None:
        self.left = number
        self.does = does
        self.error: Exception | None = None

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            self.left -= 1
            if self.left == 0:
                try:
                    self.does()
                except Exception as error:  # it is the finding
                    self.error = error


def at_every_call(call: Callable[[], object], then: Callable[[], object], first: Callable[[], object]) -> int:
    """Do something, interrupted in its first function, its second, and so on; `first` before and `then` after each."""
    number, interrupted = 0, True
    while interrupted:
        number, interrupted = number + 1, False
        first()
        with contextlib.suppress(Interrupt), At(number) as interrupt:
            call()
        interrupted = not interrupt.left
        then()
    return number


def with_a_handler(
    does: Callable[[], object],
    call: Callable[[], object],
    *,
    first: Callable[[], object] = lambda: None,
    then: Callable[[], object] = lambda: None,
) -> int:
    """Do something with a handler that comes amid its first function, its second, and so on; how often that was done.

    The handler succeeds, or is told that it is one. `first` is done before each call and `then` after it.
    """
    for number in itertools.count(1):
        first()
        handler, before = Handler(number, does), sys.gettrace()
        sys.settrace(handler)
        try:
            call()
        finally:
            sys.settrace(before)
        if handler.error is not None:
            assert isinstance(handler.error, IllegalStateError)
            assert "signal handler" in str(handler.error)
        if handler.left > 0:
            return number
        then()
    raise AssertionError("there is no end to counting")


def test_an_interrupt_counts_no_locks_of_other_clients(address: str) -> None:
    """Else how often a test below does something would depend on what ran in its process before it."""
    calls = []
    for others in (0, 50):
        clients = [Consumer(bootstrap_servers=address) for _ in range(others)]
        with Consumer(bootstrap_servers=address) as consumer, At(1_000_000) as interrupt:
            consumer.list_topics(BEFORE)
        calls.append(1_000_000 - interrupt.left[0])
        for client in clients:
            client.close()
    assert calls[0] == calls[1]


def test_an_interrupt_comes_as_often_as_it_is_to() -> None:
    came = 0
    with At(1, 2, 1, 1) as interrupt:
        for _ in range(10):
            try:
                check_timeout(1.0, "")
            except Interrupt:
                came += 1
    assert came == 4
    assert not interrupt.left


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


CALLS: dict[str, Callable[[Producer], object]] = {
    "send": lambda producer: producer.send("t", b"x", partition=0),
    "send with a callback": lambda producer: producer.send(
        "t", b"x", b"key", headers=[("h", b"1")], on_delivery=lambda *_: None
    ),
    "send_batch": lambda producer: producer.send_batch("t", [b"x"] * 100),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_producer_that_is_interrupted_anywhere(
    call: Callable[[Producer], object], producer: Producer, other_thread: ThreadPoolExecutor
) -> None:
    assert at_every_call(lambda: call(producer), works(producer, other_thread), nothing) > 10


@pytest.mark.slow
def test_a_producer_that_is_interrupted_twice(producer: Producer, other_thread: ThreadPoolExecutor) -> None:
    """Also amid what makes whole what the first interrupt broke off."""
    then = works(producer, other_thread)
    twice = 0
    for later in range(1, 12):
        for number in count(1):
            with contextlib.suppress(Interrupt), At(number, later) as interrupt:
                producer.send("t", b"x", partition=0, on_delivery=lambda *_: None)
            then()
            twice += not interrupt.left
            if len(interrupt.left) == 2:
                break
    assert twice > 50


# one that comes while a script is thrown away is lost, as CPython does it
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Exception ignored in. <generator:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_producer_that_is_interrupted_again_and_again(
    call: Callable[[Producer], object], producer: Producer, other_thread: ThreadPoolExecutor
) -> None:
    then = works(producer, other_thread)
    random = Random(1)
    for _ in range(150):
        with At(random.randrange(1, 60), *(random.randrange(1, 10) for _ in range(4))):
            for _ in range(3):
                with contextlib.suppress(Interrupt):
                    call(producer)
        then()


@pytest.mark.slow
def test_the_first_send_to_a_topic_that_is_interrupted_anywhere(address: str, other_thread: ThreadPoolExecutor) -> None:
    for number in count(1):
        with Producer(bootstrap_servers=address, linger_ms=0, buffer_memory=200_000) as producer:
            producer.partitions_for("t")
            with contextlib.suppress(Interrupt), At(number) as interrupt:
                producer.send("t", b"x")
            works(producer, other_thread)()
            producer.send("t", b"y").result(BEFORE)
        if interrupt.left:
            break
    assert number > 30


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


@pytest.mark.slow
@pytest.mark.parametrize("outer", ["send", "flush", *slow("send with a callback", "send_batch")])
@pytest.mark.parametrize("inner", ["send", "flush", *slow("flush another", "result", "ask")])
def test_a_handler_that_uses_the_producer_it_came_amid(
    outer: str, inner: str, address: str, producer: Producer, other_thread: ThreadPoolExecutor
) -> None:
    """It may, or is told at once that it may not; it never waits for what it interrupted."""
    with Producer(bootstrap_servers=address) as another, kclient.sync.Admin(bootstrap_servers=address) as admin:
        another.send("t", b"x").result(BEFORE)
        outers: dict[str, Callable[[], object]] = {
            "send": lambda: producer.send("t", b"x"),
            "send with a callback": lambda: producer.send("t", b"x", b"key", on_delivery=lambda *_: None),
            "send_batch": lambda: producer.send_batch("t", [b"x"] * 100),
            "flush": lambda: (producer.send("t", b"x"), producer.flush(BEFORE)),
        }
        inners: dict[str, Callable[[], object]] = {
            "send": lambda: producer.send("t", b"y", partition=0, on_delivery=lambda *_: None),
            "flush": lambda: producer.flush(BEFORE),
            "flush another": lambda: another.flush(BEFORE),
            "result": lambda: producer.send("t", b"y").result(BEFORE),
            "ask": admin.list_topics,
        }
        assert with_a_handler(inners[inner], outers[outer], then=works(producer, other_thread)) > 3


@pytest.mark.slow
@pytest.mark.parametrize("inner", ["flush", "send", *slow("ask", "position")])
def test_a_handler_that_comes_amid_a_poll(inner: str, address: str, producer: Producer) -> None:
    """Perhaps amid what the loop's thread needs as well."""
    fill(producer, 0, 200)
    with (
        Consumer("t", bootstrap_servers=address, group_id="g", max_poll_records=20, fetch_max_wait_ms=5) as consumer,
        kclient.sync.Admin(bootstrap_servers=address) as admin,
    ):
        admin.list_topics()
        while not consumer.assignment():
            consumer.poll(0.1)
        inners: dict[str, Callable[[], object]] = {
            "flush": lambda: (producer.send("t", b"y", partition=1), producer.flush(BEFORE)),
            "ask": admin.list_topics,
            "position": lambda: consumer.position(("t", 0), BEFORE),
            "send": lambda: producer.send("t", b"y", partition=1),
        }

        def begin() -> None:
            consumer.seek_to_beginning([("t", 0)])

        assert with_a_handler(inners[inner], lambda: consumer.poll(BEFORE), first=begin) > 20


def test_a_finalizer_in_the_portals_thread_does_not_wait_for_a_delivery(address: str, producer: Producer) -> None:
    async def ask() -> str:
        with pytest.raises(IllegalStateError, match="thread that serves it") as told:
            producer.send("t", b"x", partition=0).result(BEFORE)
        return str(told.value)

    begun = time.monotonic()
    get_portal().call(ask)
    assert time.monotonic() - begun < BEFORE


def test_a_start_that_was_interrupted_is_waited_for(address: str) -> None:
    for number in range(1, 400):
        producer = Producer(bootstrap_servers=address)
        with contextlib.suppress(Interrupt), At(number) as interrupt:
            producer.start()
        producer.start()
        producer.close(BEFORE)
        if interrupt.left:
            break
    assert number > 10


@pytest.mark.slow
def test_a_handler_that_comes_amid_the_start(address: str) -> None:
    number = 0
    before = sys.gettrace()
    while True:
        number += 1
        producer = Producer(bootstrap_servers=address)
        handler = Handler(number, producer.start)
        sys.settrace(handler)
        try:
            producer.start()
        finally:
            sys.settrace(before)
        assert handler.error is None or "amid the start" in str(handler.error)
        producer.send("t", b"x").result(BEFORE)
        producer.close(BEFORE)
        if handler.left > 0:
            break
    assert number > 5


@pytest.mark.parametrize("where", ["amid a lock", "in the portal's thread"])
def test_who_may_not_wait_does_not_wait_for_a_start_in_another_thread(
    where: str, address: str, producer: Producer, other_thread: ThreadPoolExecutor
) -> None:
    """Which goes through the loop, and that waits for this very thread."""
    begun, told = threading.Event(), threading.Event()

    def start() -> bool:
        with another._beginning._starting:
            begun.set()
            return told.wait(BEFORE / 4)

    async def ask() -> None:
        with pytest.raises(IllegalStateError, match="thread that serves it"):
            another.send("t", b"x")

    another = Producer(bootstrap_servers=address)
    started = other_thread.submit(start)
    begun.wait(BEFORE)
    if where == "amid a lock":
        with producer._life.buffer.lock, pytest.raises(IllegalStateError, match="signal handler"):
            another.send("t", b"x")
    else:
        get_portal().call(ask)
    told.set()
    assert started.result(BEFORE), "it was told before the start was over"
    another.send("t", b"x").result(BEFORE)
    another.close()


def test_a_handler_does_not_wait_for_room_in_another_producer(address: str, producer: Producer) -> None:
    with Producer(bootstrap_servers=address, buffer_memory=100_000, linger_ms=60_000, max_block_ms=2_000) as full:
        full.send("t", b"first", partition=0)
        with producer._life.buffer.lock, pytest.raises(IllegalStateError, match="signal handler"):
            for _ in range(100):
                full.send("t", b"x" * 10_000, partition=0)


def test_code_in_the_portals_thread_does_not_wait_for_room(address: str) -> None:
    """As a finalizer may, wherever the garbage collector runs it: nobody would make room."""

    async def fill() -> str:
        with pytest.raises(IllegalStateError, match="thread that serves it") as told:
            for _ in range(100):
                producer.send("t", b"x" * 10_000, partition=0)
        return str(told.value)

    with Producer(bootstrap_servers=address, buffer_memory=100_000, linger_ms=60_000) as producer:
        producer.send("t", b"first", partition=0)
        producer.flush(BEFORE)
        begun = time.monotonic()
        get_portal().call(fill)
        assert time.monotonic() - begun < BEFORE


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_note_of_an_interrupted_send_arrow(producer: Producer, other_thread: ThreadPoolExecutor) -> None:
    """It does not say less than were appended, unless it says so."""
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"value": [b"x" * 100] * 500})
    exact = 0
    for number in range(1, 10_000):
        begun = producer.metrics().value("record-send-total")
        try:
            with At(number):
                producer.send_arrow("t", table)
        except Interrupt as error:
            notes = getattr(error, "__notes__", [])
        else:
            break
        works(producer, other_thread)()
        sent = producer.metrics().value("record-send-total") - begun - 2
        if notes and "at least" in notes[0]:
            assert int(notes[0].split("at least ")[1].split()[0]) <= sent
        elif notes:
            exact += 1
            assert f"appended the {sent:.0f} rows" in notes[0]
        else:
            assert sent in {0, 500}
    assert exact > 5


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
        self.got: list[Any] = []
        self.next = dict.fromkeys(consumer.assignment(), 0)

    def begin_again(self) -> None:
        """If it comes to the end."""
        for tp, offset in self.next.items():
            if offset > 1_000:
                self.consumer.seek(tp, 0)
                self.next[tp] = 0

    def read(self) -> None:
        if self.way == "one by one":
            for record in self.consumer:
                self.got.append([record])
                if len(self.got) == 5:
                    break
        elif self.way == "columns":
            self.got.append(self.consumer.poll_arrow(BEFORE))
        else:
            self.got.append(self.consumer.poll(BEFORE))

    def look(self) -> None:
        """What came, where nothing interrupts."""
        for records in self.got:
            if self.way == "columns":
                places = zip(records["partition"].to_pylist(), records["offset"].to_pylist(), strict=True)
            else:
                places = ((record.partition, record.offset) for record in records)
            for partition, offset in places:
                tp = TopicPartition("t", partition)
                assert offset == self.next[tp]
                self.next[tp] += 1
        self.got.clear()

    def is_where_it_says(self) -> None:
        """Positions are those of what came, and what is read next is fetched within its memory."""
        self.look()
        for tp, offset in self.next.items():
            assert self.consumer.position(tp) == offset
        assert self.consumer._core.fetcher.buffer.size <= 6_000


@pytest.mark.slow
@pytest.mark.parametrize("interceptors", [(), *slow((NextRecord(),))], ids=["", "intercepted"])
@pytest.mark.parametrize("way", ["lists", "one by one", "columns"])
def test_a_consumer_that_is_interrupted_amid_records(
    way: str, interceptors: tuple[ConsumerInterceptor, ...], address: str, producer: Producer
) -> None:
    """None is skipped, and none comes twice."""
    fill(producer, 0, 2_000)
    fill(producer, 1, 2_000)
    settings = {"interceptor_classes": list(interceptors), "max_poll_records": 20, "fetch_max_bytes": 4_000}
    with Consumer(bootstrap_servers=address, **settings) as consumer:
        consumer.assign([("t", 0), ("t", 1)])
        consumer.seek_to_beginning()
        reader = Reader(consumer, way)
        for _ in range(3):
            assert at_every_call(reader.read, reader.is_where_it_says, reader.begin_again) > 20


@pytest.mark.slow
def test_a_consumer_that_is_interrupted_again_and_again(address: str, producer: Producer) -> None:
    """Also amid what the first interrupt has it do."""
    fill(producer, 0, 2_000)
    random = Random(1)
    with Consumer(bootstrap_servers=address, max_poll_records=20, fetch_max_bytes=4_000) as consumer:
        consumer.assign([("t", 0)])
        consumer.seek_to_beginning()
        reader = Reader(consumer, "lists")
        for _ in range(200):
            reader.begin_again()
            with At(*(random.randrange(1, 60) for _ in range(4))):
                for _ in range(5):
                    with contextlib.suppress(Interrupt):
                        reader.read()
            reader.is_where_it_says()


@pytest.mark.slow
def test_a_consumer_that_is_interrupted_while_it_is_closed(address: str) -> None:
    """It is closed all the same, at the latest by the next call."""
    for number in count(1):
        consumer = Consumer(bootstrap_servers=address)
        consumer.assign([("t", 0)])
        consumer.poll()
        begun = time.monotonic()
        with contextlib.suppress(Interrupt), At(number) as interrupt:
            consumer.close(BEFORE)
        consumer.close(BEFORE)
        assert time.monotonic() - begun < BEFORE
        assert consumer._core.supervisor.state is SupervisorState.CLOSED
        if interrupt.left:
            break
    assert number > 30


@pytest.mark.slow
def test_a_consumer_that_is_interrupted_twice_while_it_is_closed(address: str) -> None:
    """Also amid what the first interrupt has it do: the next call closes it, and does not take itself for nested."""
    twice = 0
    for later in range(1, 5):
        for number in count(1):
            consumer = Consumer(bootstrap_servers=address)
            consumer.assign([("t", 0)])
            consumer.poll()
            begun = time.monotonic()
            with contextlib.suppress(Interrupt), At(number, later) as interrupt:
                consumer.close(BEFORE)
            consumer.close(BEFORE)
            assert time.monotonic() - begun < BEFORE
            assert consumer._core.supervisor.state is SupervisorState.CLOSED
            twice += not interrupt.left
            if len(interrupt.left) == 2:
                break
    assert twice > 100


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["consumer", "producer", "admin"])
def test_a_close_that_is_refused_to_a_handler(kind: str, address: str, producer: Producer) -> None:
    """It has done nothing: the client goes on, and a later call closes it."""
    kinds: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
        "consumer": (
            lambda: Consumer("t", bootstrap_servers=address, group_id="g"),
            lambda client: client.list_topics(BEFORE),
        ),
        "producer": (
            lambda: Producer(bootstrap_servers=address),
            lambda client: client.send("t", b"x").result(BEFORE),
        ),
        "admin": (
            lambda: kclient.sync.Admin(bootstrap_servers=address),
            lambda client: client.list_topics(timeout=BEFORE),
        ),
    }
    make, use = kinds[kind]
    refused = 0
    for number in count(1):
        client = make()
        client.start()
        handler = Handler(number, client.close)
        before = sys.gettrace()
        sys.settrace(handler)
        try:
            producer.send("t", b"x", on_delivery=lambda *_: None)
        finally:
            sys.settrace(before)
        if handler.error is not None:
            refused += 1
            assert isinstance(handler.error, IllegalStateError)
            use(client)
        client.close(BEFORE)
        with pytest.raises(ClosedError):
            use(client)
        if handler.left > 0:
            break
    assert refused > 5


def test_a_consumer_whose_close_was_refused_leaves_its_group(address: str, producer: Producer) -> None:
    fill(producer, 0, 100)
    with kclient.sync.Admin(bootstrap_servers=address) as admin:
        consumer = Consumer("t", bootstrap_servers=address, group_id="g", auto_offset_reset="earliest")
        while not consumer.poll(BEFORE):
            pass
        with consumer._core._lock, pytest.raises(IllegalStateError, match="signal handler"):
            consumer.close()
        assert len(admin.describe_groups(["g"])["g"].members) == 1
        consumer.close(BEFORE)
        assert consumer._core.supervisor.state is SupervisorState.CLOSED
        assert not admin.describe_groups(["g"])["g"].members


def test_who_asks_and_is_interrupted(address: str) -> None:
    with kclient.sync.Admin(bootstrap_servers=address) as admin:
        assert at_every_call(admin.list_topics, lambda: admin.list_topics(timeout=BEFORE), nothing) > 10


@pytest.mark.parametrize("first", ["the same thread", "another thread"])
@pytest.mark.parametrize("times", [1, 2])
def test_interrupts_amid_the_end_of_callbacks(
    times: int, first: str, address: str, other_thread: ThreadPoolExecutor
) -> None:
    """A second one leaves it undone: later callbacks are called all the same, and nobody waits for the thread."""
    called = []
    with Producer(bootstrap_servers=address, linger_ms=60_000) as producer:
        for _ in range(5):
            producer.send("t", b"x", on_delivery=lambda *_: called.append(1))
        with AmidCalls(DeliveryReports._told, times) as interrupt:
            with pytest.raises(Interrupt):
                producer.flush(BEFORE)
            assert not interrupt.left
        if first == "another thread":
            other_thread.submit(producer.flush, BEFORE).result(BEFORE)
            assert len(called) == 5
        for _ in range(5):
            producer.send("t", b"x", on_delivery=lambda *_: called.append(1))
        producer.flush(BEFORE)
        assert len(called) == 10
        begun = time.monotonic()
        other_thread.submit(producer.flush, BEFORE).result(BEFORE)
        other_thread.submit(producer.close, BEFORE).result(BEFORE)
        assert time.monotonic() - begun < BEFORE / 2


def test_a_program_that_ends_loses_nothing_of_a_with_block(address: str) -> None:
    """Unlike Ctrl-C, it says itself that it is through."""
    with pytest.raises(SystemExit), Producer(bootstrap_servers=address, linger_ms=60_000) as made:
        delivery = made.send("t", b"last", partition=1)
        sys.exit(3)
    assert delivery.result(0).offset == 0
    settings = {"bootstrap_servers": address, "group_id": "g", "auto_offset_reset": "earliest"}
    with pytest.raises(SystemExit), Consumer("t", **settings) as consumer:
        assert len(consumer.poll(BEFORE)) == 1
        consumer.poll(0)
        sys.exit()
    with kclient.sync.Admin(bootstrap_servers=address) as admin:
        assert admin.list_group_offsets("g")[TopicPartition("t", 1)].offset == 1
        assert not admin.describe_groups(["g"])["g"].members, "it has left"
