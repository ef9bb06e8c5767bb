"""Deliveries as asyncio's `wait` takes them: callbacks in the event loop, once a record's fate is known."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from typing import Any

import anyio
import pytest

from kclient.errors import DeliveryError, ErrorCode, IllegalStateError, TopicAuthorizationError
from kclient.producer import Delivery
from kclient.producer import Producer as AsyncProducer
from kclient.sync import Admin
from kclient.sync.portal import get_portal
from kclient.sync.producer import Producer
from kclient.testing import memory_broker
from tests.fake_kafka import FakeKafka, Fault
from tests.unit.producer.parts import producing

ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])
pytestmark = pytest.mark.anyio


@ASYNCIO
async def test_asyncio_waits_for_deliveries() -> None:
    async with FakeKafka({"t": 1}) as kafka, producing(kafka) as producer:
        await (await producer.send("t", b"before"))
        answer = anyio.Event()
        kafka.faults.append(Fault(hold=answer))
        held = [await producer.send("t", b"%d" % n) for n in range(3)]
        done, pending = await asyncio.wait(held, timeout=0.01)
        assert (done, pending) == (set(), set(held))
        assert held[0].batch.done_callbacks == {}  # those who gave up are forgotten
        answer.set()
        done, pending = await asyncio.wait(held)
        assert (done, pending) == (set(held), set())
        assert [delivery.result().offset for delivery in held] == [1, 2, 3]
        done, pending = await asyncio.wait(held, timeout=0.0)  # known beforehand
        assert (done, pending) == (set(held), set())


@ASYNCIO
async def test_the_first_that_is_known() -> None:
    async with FakeKafka({"t": 2}) as kafka, producing(kafka, max_in_flight_requests_per_connection=1) as producer:
        await producer.partitions_for("t")
        answer = anyio.Event()
        kafka.faults += [Fault(), Fault(hold=answer)]
        first = await producer.send("t", b"a", partition=0)
        await first
        second = await producer.send("t", b"b", partition=1)
        done, pending = await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
        assert (done, pending) == ({first}, {second})
        answer.set()


@ASYNCIO
async def test_the_first_that_fails_is_seen_and_not_told_again() -> None:
    async with FakeKafka({"t": 1}) as kafka, producing(kafka) as producer:
        await producer.partitions_for("t")
        kafka.faults.append(Fault(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        refused = await producer.send("t", b"a")
        done, _ = await asyncio.wait([refused], return_when=asyncio.FIRST_EXCEPTION)
        assert done == {refused}
        assert isinstance(refused.exception(), TopicAuthorizationError)
        await producer.flush()


@ASYNCIO
async def test_a_wait_alone_does_not_say_that_a_failure_was_seen() -> None:
    async with FakeKafka({"t": 1}) as kafka, producing(kafka) as producer:
        await producer.partitions_for("t")
        kafka.faults.append(Fault(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        await asyncio.wait([await producer.send("t", b"a")])
        with pytest.raises(DeliveryError):
            await producer.flush()


@ASYNCIO
async def test_records_whose_batch_is_split() -> None:
    async with FakeKafka() as kafka, producing(kafka, batch_size=500, linger_ms=50) as producer:
        await producer.partitions_for("t")
        kafka.faults.append(Fault(ErrorCode.MESSAGE_TOO_LARGE))
        deliveries = list(await producer.send_batch("t", [b"%03d" % n * 20 for n in range(100)]))
        called: list[Delivery] = []
        for delivery in deliveries:
            delivery.add_done_callback(called.append)
        await asyncio.wait(deliveries)
        await asyncio.sleep(0)
        assert producer.metrics().value("batch-split-total") == 1
        assert sorted(map(id, called)) == sorted(map(id, deliveries)), "each once"
        assert [delivery.result().offset for delivery in deliveries] == list(range(100))


@ASYNCIO
async def test_callbacks_are_those_of_a_future() -> None:
    """Called later, with the delivery, in a context; those that are taken back are not called."""
    name = contextvars.ContextVar("name", default="none")
    async with FakeKafka({"t": 1}) as kafka, producing(kafka) as producer:
        await (await producer.send("t", b"before"))
        answer = anyio.Event()
        kafka.faults.append(Fault(hold=answer))
        delivery = await producer.send("t", b"a")
        other = await producer.send("t", b"b")
        called: list[tuple[Any, str, int]] = []

        def note(given: Delivery) -> None:
            called.append((given, name.get(), threading.get_ident()))

        def not_this(given: Delivery) -> None:
            raise AssertionError

        context = contextvars.copy_context()
        context.run(name.set, "mine")
        delivery.add_done_callback(note, context=context)
        name.set("the caller's")
        delivery.add_done_callback(note)
        delivery.add_done_callback(not_this)
        delivery.add_done_callback(not_this)
        assert other.remove_done_callback(not_this) == 0, "it is another record's"
        assert delivery.remove_done_callback(not_this) == 2
        assert delivery.remove_done_callback(not_this) == 0
        assert not delivery.cancelled()
        answer.set()
        await delivery
        await asyncio.sleep(0)
        me = threading.get_ident()
        assert called == [(delivery, "mine", me), (delivery, "the caller's", me)]
        delivery.add_done_callback(note)
        assert len(called) == 2, "not at once"
        await asyncio.sleep(0)
        assert len(called) == 3


@ASYNCIO
async def test_a_context_without_variables_is_a_context() -> None:
    name = contextvars.ContextVar("name", default="none")
    async with FakeKafka({"t": 1}) as kafka, producing(kafka) as producer:
        delivery = await producer.send("t", b"a")
        name.set("the caller's")
        called: list[str] = []
        delivery.add_done_callback(lambda _: called.append(name.get()), context=contextvars.Context())
        await delivery
        await asyncio.sleep(0)
        assert called == ["none"]


def test_a_closed_loop_of_the_producers_thread_is_left_alone() -> None:
    async def send(producer: AsyncProducer) -> list[Delivery]:
        return [await producer.send("t", b"%d" % n) for n in range(2)]

    async def wait(deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            delivery.add_done_callback(print)

    with memory_broker() as address, asyncio.Runner() as runner:
        with Admin(bootstrap_servers=address) as admin:
            admin.create_topic("t", 1)
        producer = AsyncProducer(bootstrap_servers=address, linger_ms=10_000)
        runner.run(producer.start())
        deliveries = runner.run(send(producer))
        with asyncio.Runner() as another:
            another.run(wait(deliveries))
        runner.run(producer.flush())
        deliveries += runner.run(send(producer))
        runner.run(producer.close())
        assert [delivery.result().offset for delivery in deliveries] == [0, 1, 2, 3]


@ASYNCIO
async def test_to_give_up_costs_the_same_however_many_wait() -> None:
    """`asyncio.wait` removes its callbacks one by one, while the loop and the producer wait."""

    async with FakeKafka({"t": 1}) as kafka, producing(kafka, linger_ms=10_000, batch_size=100_000) as producer:
        held = list(await producer.send_batch("t", [b""] * 5000))
        assert held[0].batch is held[-1].batch
        start = time.process_time()
        await asyncio.wait(held, timeout=0.0)
        assert time.process_time() - start < 2.0


@ASYNCIO
async def test_a_blocking_producers_deliveries() -> None:
    """They are completed in another thread; the loop is woken."""
    kafka = FakeKafka({"t": 1})
    await asyncio.to_thread(get_portal().call, kafka.start)
    try:
        with Producer(bootstrap_servers=kafka.bootstrap, linger_ms=20) as producer:
            deliveries = [producer.send("t", b"%d" % n) for n in range(10)]
            done, pending = await asyncio.wait(deliveries, timeout=30)
            assert (len(done), len(pending)) == (10, 0)
    finally:
        await asyncio.to_thread(get_portal().call, kafka.aclose)


def test_a_loop_that_is_closed_meanwhile_is_left_alone() -> None:
    kafka = FakeKafka({"t": 1})
    get_portal().call(kafka.start)
    try:
        with Producer(bootstrap_servers=kafka.bootstrap, linger_ms=10_000) as producer:

            async def send() -> Delivery:
                delivery = producer.send("t", b"a")
                delivery.add_done_callback(print)
                return delivery

            delivery = asyncio.run(send())
            producer.flush()
            assert delivery.result().offset == 0
    finally:
        get_portal().call(kafka.aclose)


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_other_loops_have_no_such_callbacks() -> None:
    async with FakeKafka({"t": 1}) as kafka, producing(kafka) as producer:
        delivery = await producer.send("t", b"a")
        with pytest.raises(IllegalStateError, match="await the delivery"):
            delivery.add_done_callback(print)
        assert delivery.remove_done_callback(print) == 0
        await delivery


@ASYNCIO
async def test_a_producer_of_another_loop() -> None:
    async with FakeKafka({"t": 1}) as kafka, producing(kafka) as producer:
        delivery = await producer.send("t", b"a")

        async def elsewhere() -> set[Delivery]:
            done, _ = await asyncio.wait([delivery], timeout=30)
            return done

        assert await asyncio.to_thread(asyncio.run, elsewhere()) == {delivery}


@ASYNCIO
async def test_what_cannot_be_called_is_refused() -> None:
    async def later(delivery: Delivery) -> None: ...

    async with FakeKafka({"t": 1}) as kafka, producing(kafka) as producer:
        delivery = await producer.send("t", b"a")
        for wrong in (None, "print", later):
            with pytest.raises(TypeError, match="function"):
                delivery.add_done_callback(wrong)  # type: ignore[arg-type]
        await delivery
