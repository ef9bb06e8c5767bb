"""Several tasks or threads that close a producer."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import kclient.sync
from kclient.errors import ClosedError, DeliveryError, KafkaError
from kclient.producer import Producer, ProducerInterceptor
from kclient.sync.portal import get_portal
from tests.fake_kafka import FakeKafka, Fault

pytestmark = pytest.mark.anyio


class Counting(ProducerInterceptor):
    def __init__(self) -> None:
        self.told: list[Any] = []

    def on_acknowledgement(self, metadata: Any, error: Any) -> None:
        self.told.append(error if metadata is None else metadata.offset)

    def close(self) -> None:
        self.told.append("closed")


async def test_two_closes_at_once_send_everything_and_close_plugins_once() -> None:
    counting = Counting()
    async with (
        FakeKafka() as kafka,
        Producer(bootstrap_servers=kafka.bootstrap, linger_ms=60_000, interceptor_classes=[counting]) as producer,
    ):
        for _ in range(3):
            await producer.send("t", b"v")
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for _ in range(2):
                    tasks.start_soon(producer.close)
        assert counting.told == [0, 1, 2, "closed"]
    assert counting.told == [0, 1, 2, "closed"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_close_that_asyncio_cancels_anywhere_tells_everybody() -> None:
    async with FakeKafka() as kafka:
        before = asyncio.all_tasks()
        for turns in range(1, 40):
            counting = Counting()
            told: list[object] = []
            producer = Producer(bootstrap_servers=kafka.bootstrap, linger_ms=0, interceptor_classes=[counting])
            await producer.start()
            for _ in range(3):
                await producer.send("t", b"v", on_delivery=lambda *outcome, told=told: told.append(outcome))
            if turns % 2:
                await producer.flush()
            close = asyncio.get_running_loop().create_task(producer.close())
            for _ in range(turns):
                await asyncio.sleep(0)
            close.cancel()
            await asyncio.wait([close])
            assert len(told) == 3
            assert counting.told[3:] == ["closed"]
            await asyncio.sleep(0)
            clients = {task for task in asyncio.all_tasks() - before if task.get_name().startswith("producer")}
            assert not clients


async def test_who_has_less_time_ends_both() -> None:
    held = anyio.Event()
    async with FakeKafka() as kafka, Producer(bootstrap_servers=kafka.bootstrap, linger_ms=0) as producer:
        kafka.faults.append(Fault(hold=held))
        delivery = await producer.send("t", b"v")
        ended: list[str] = []

        async def close(timeout: float | None) -> None:
            try:
                await producer.close(timeout)
            except DeliveryError:
                ended.append("told")
            else:
                ended.append("ended")

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(close, None)
                await anyio.sleep(0.05)
                await close(0)
        assert sorted(ended) == ["ended", "told"]  # one of them reports what was lost
        with pytest.raises(ClosedError):
            await delivery
        held.set()


CALLS: dict[str, Callable[[Producer], Awaitable[object]]] = {
    "flush": lambda producer: producer.flush(),
    "partitions_for": lambda producer: producer.partitions_for("x"),
    "send": lambda producer: producer.send("x", b"v"),
    "send to a partition that may come": lambda producer: producer.send("t", b"v", partition=7),
    "send where there is no room": lambda producer: producer.send("t", bytes(1500)),
    "send_batch": lambda producer: producer.send_batch("x", [b"v"]),
}


@pytest.mark.parametrize("name", CALLS)
async def test_no_call_outlives_close(name: str) -> None:
    settings = {"linger_ms": 0, "buffer_memory": 2000, "batch_size": 1000, "max_block_ms": 60_000}
    async with FakeKafka() as kafka, Producer(bootstrap_servers=kafka.bootstrap, **settings) as producer:
        await (await producer.send("t", b"v"))
        held = anyio.Event()
        kafka.faults.append(Fault(hold=held))
        delivery = await producer.send("t", bytes(800))
        await anyio.sleep(0.05)
        kafka.brokers[1].pause()
        ended: list[type[Exception] | None] = []

        async def call() -> None:
            try:
                await CALLS[name](producer)
            except KafkaError as error:
                ended.append(type(error))
            else:
                ended.append(None)

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
                for _ in range(20):
                    await anyio.lowlevel.checkpoint()
                with contextlib.suppress(DeliveryError):
                    await producer.close(0.1)
        assert ended == [None if name == "flush" else ClosedError] or ended == [DeliveryError]
        with pytest.raises(ClosedError):
            await delivery
        held.set()


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    kafka = FakeKafka()
    get_portal().call(kafka.start)
    yield kafka
    get_portal().call(kafka.aclose)


def test_threads_that_close_at_once(kafka: FakeKafka) -> None:
    for _ in range(20):
        counting = Counting()
        producer = kclient.sync.Producer(
            bootstrap_servers=kafka.bootstrap, linger_ms=60_000, interceptor_classes=[counting]
        )
        delivery = producer.send("t", b"v")
        closes: list[Callable[[], None]] = [producer.close] * 3
        threads = [threading.Thread(target=close, daemon=True) for close in closes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
        assert counting.told == [delivery.result(0).offset, "closed"]


def test_a_callback_that_closes_leaves_interceptors_open_for_the_others(kafka: FakeKafka) -> None:
    counting = Counting()
    producer = kclient.sync.Producer(
        bootstrap_servers=kafka.bootstrap, linger_ms=60_000, interceptor_classes=[counting]
    )
    for _ in range(3):
        producer.send("t", b"v", on_delivery=lambda metadata, error: producer.close())
    producer.flush()
    assert counting.told == [0, 1, 2, "closed"]
