"""Async clients in an event loop that is not theirs: an error at once, and no wait that nobody ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import anyio
import pytest

import kclient
from kclient.errors import ClosedError, IllegalStateError
from kclient.sync import Admin as BlockingAdmin
from kclient.sync import Consumer as BlockingConsumer
from kclient.sync import Producer as BlockingProducer
from kclient.testing import memory_broker

T0 = ("t", 0)
Clients = tuple[kclient.Producer, kclient.Consumer, kclient.Admin]
CALLS: dict[str, Callable[[kclient.Producer, kclient.Consumer, kclient.Admin], Awaitable[object]]] = {
    "flush": lambda producer, consumer, admin: producer.flush(),
    "send": lambda producer, consumer, admin: producer.send("t", b"x", on_delivery=lambda metadata, error: None),
    "send to a new topic": lambda producer, consumer, admin: producer.send("u", b"x"),
    "send_batch": lambda producer, consumer, admin: producer.send_batch("t", [b"x"]),
    "client_instance_id": lambda producer, consumer, admin: producer.client_instance_id(),
    "client_instance_id of a consumer": lambda producer, consumer, admin: consumer.client_instance_id(),
    "client_instance_id of an admin client": lambda producer, consumer, admin: admin.client_instance_id(),
    "partitions_for": lambda producer, consumer, admin: producer.partitions_for("t"),
    "close of a producer": lambda producer, consumer, admin: producer.close(),
    "poll": lambda producer, consumer, admin: consumer.poll(1),
    "joined": lambda producer, consumer, admin: consumer.joined(),
    "iteration": lambda producer, consumer, admin: anext(consumer),
    "commit": lambda producer, consumer, admin: consumer.commit({T0: 1}),
    "committed": lambda producer, consumer, admin: consumer.committed([T0]),
    "position": lambda producer, consumer, admin: consumer.position(T0),
    "end_offsets": lambda producer, consumer, admin: consumer.end_offsets([T0]),
    "list_topics": lambda producer, consumer, admin: consumer.list_topics(),
    "unsubscribe": lambda producer, consumer, admin: consumer.unsubscribe(),
    "close of a consumer": lambda producer, consumer, admin: consumer.close(),
    "administration": lambda producer, consumer, admin: admin.list_topics(),
    "groups": lambda producer, consumer, admin: admin.describe_groups(["g"]),
    "close of an admin client": lambda producer, consumer, admin: admin.close(),
}


@pytest.fixture
def address() -> Iterator[str]:
    with memory_broker() as found:
        yield found


async def started(address: str) -> Clients:
    producer = kclient.Producer(bootstrap_servers=address)
    consumer = kclient.Consumer(bootstrap_servers=address, group_id="g")
    admin = kclient.Admin(bootstrap_servers=address)
    for client in (producer, consumer, admin):
        await client.start()
    await admin.create_topic("t")
    consumer.assign([T0])
    await (await producer.send("t", b"x"))
    return producer, consumer, admin


async def close(clients: Clients) -> None:
    for client in clients:
        await client.close()


async def refused(clients: Clients) -> dict[str, str]:
    """What each call raises that does not raise what it should."""
    wrong: dict[str, str] = {}
    for name, call in CALLS.items():
        try:
            with anyio.fail_after(10):
                await call(*clients)
        except IllegalStateError as error:
            if "another event loop" not in str(error) or "kclient.sync" not in str(error):
                wrong[name] = str(error)
        except Exception as error:  # it is the finding
            wrong[name] = repr(error)
        else:
            wrong[name] = "went on"
    return wrong


def test_in_a_second_loop_while_the_first_stands_still(address: str) -> None:
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    try:
        clients = first.run_until_complete(started(address))
        assert second.run_until_complete(refused(clients)) == {}
        assert first.run_until_complete(clients[2].list_topics())
        first.run_until_complete(close(clients))
    finally:
        first.close()
        second.close()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_in_the_loop_of_another_thread(address: str, backend: str) -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        clients = asyncio.run_coroutine_threadsafe(started(address), loop).result(20)
        assert anyio.run(partial(refused, clients), backend=backend) == {}
        asyncio.run_coroutine_threadsafe(close(clients), loop).result(20)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_a_delivery_is_awaited_in_its_own_loop(address: str) -> None:
    async def wait(delivery: Any) -> None:
        with pytest.raises(IllegalStateError, match="another event loop"), anyio.fail_after(10):
            await delivery

    async def lingering() -> tuple[kclient.Producer, Any]:
        producer = kclient.Producer(bootstrap_servers=address, linger_ms=60_000)
        await producer.start()
        return producer, await producer.send("t", b"x")

    first = asyncio.new_event_loop()
    try:
        producer, delivery = first.run_until_complete(lingering())
        anyio.run(wait, delivery)
        first.run_until_complete(producer.close())
        assert delivery.exception() is None
    finally:
        first.close()


def test_a_blocking_producers_delivery_is_not_awaited(address: str) -> None:
    async def wait(delivery: Any) -> None:
        with pytest.raises(IllegalStateError, match="another event loop"), anyio.fail_after(10):
            await delivery

    with BlockingProducer(bootstrap_servers=address, linger_ms=60_000) as producer:
        anyio.run(wait, producer.send("t", b"x"))


@pytest.mark.parametrize("first", ["asyncio", "trio"])
@pytest.mark.parametrize("second", ["asyncio", "trio"])
def test_after_its_loop_has_ended_a_client_says_so_and_closes(first: str, second: str, address: str) -> None:
    clients = anyio.run(started, address, backend=first)
    begun = time.monotonic()

    async def later() -> None:
        producer, consumer, admin = clients
        with pytest.raises(ClosedError, match=r"loop ended|cancelled from outside"):
            await producer.flush()
        with pytest.raises(ClosedError, match=r"loop ended|cancelled from outside"):
            await consumer.poll(1)
        with pytest.raises(ClosedError, match=r"loop ended|cancelled from outside"):
            await admin.list_topics()
        await close(clients)

    anyio.run(later, backend=second)
    assert time.monotonic() - begun < 20


def test_blocking_clients_that_a_task_of_trio_makes(address: str) -> None:
    async def main() -> None:
        with BlockingAdmin(bootstrap_servers=address) as admin:
            assert admin.describe_cluster().nodes
            admin.create_topic("t")
        settings = {"bootstrap.servers": address, "group.id": "g", "auto.offset.reset": "earliest"}
        with (
            BlockingProducer(bootstrap_servers=address) as producer,
            BlockingConsumer("t", config=settings) as consumer,
        ):
            producer.send("t", b"x").result(10)
            deadline = time.monotonic() + 20
            while not (records := consumer.poll(1.0)) and time.monotonic() < deadline:
                pass
            assert [record.value for record in records] == [b"x"]

    anyio.run(main, backend="trio")
