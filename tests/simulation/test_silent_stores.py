"""Stores that do not tell what became of what was sent, in simulated time: how often the gateway tries to find out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from kclient.errors import ErrorCode
from kclient.gateway import Gateway
from kclient.htp import StorageError, memory, open_store
from tests.gateway_wire import Wire, batch_of, connect, fetch_request, produce_request
from tests.simulation.inline_threads import Loop, run
from tests.uncertain_store import Fate, UncertainBroker, UncertainStore


def served(test: Callable[[Gateway, Wire, UncertainBroker], Awaitable[None]]) -> None:
    async def main(loop: Loop) -> None:
        store: Any = UncertainStore(open_store("memory:silent"))
        try:
            async with store, Gateway(store, listen=None) as gateway:
                wire = connect(gateway)
                await wire.create("t", 2)
                for partition in range(2):
                    await wire.produce("t", batch_of(b"first"), partition)
                await test(gateway, wire, store.broker)
                await wire.aclose()
        finally:
            memory.reset("silent")

    run(main, 1)


def test_a_store_that_cannot_be_asked_is_asked_once_a_second() -> None:
    async def test(gateway: Gateway, wire: Wire, broker: UncertainBroker) -> None:
        before = len(broker.epochs)
        broker.failing = StorageError("nobody answers")
        broker.fates.append(Fate.STORED)
        await wire.send(produce_request("t", batch_of(b"second")), 9)
        other, refused = connect(gateway), 0
        for _ in range(200):
            await trio.sleep(0.1)
            row = await other.produce("t", batch_of(b"refused"))
            refused += row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert refused == 200, "at once, and not when it is tried again"
        assert 15 < len(broker.epochs) - before <= 22
        broker.failing = None
        since = trio.current_time()
        response = await wire.read(produce_request("t", b""), 9)
        assert response.responses[0].partition_responses[0].base_offset == 1
        assert trio.current_time() - since < 1.5
        assert await other.values("t") == [b"first", b"second"]
        await other.aclose()

    served(test)


def test_one_that_never_tells_is_not_worn_out() -> None:
    async def test(gateway: Gateway, wire: Wire, broker: UncertainBroker) -> None:
        before, sent = len(broker.epochs), 0
        broker.fate = lambda: Fate.LOST
        until = trio.current_time() + 20
        while trio.current_time() < until:
            row = await wire.produce("t", batch_of(b"lost"))
            assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            sent += 1
            await trio.sleep(0.05)
        assert sent > 15
        assert 15 < len(broker.epochs) - before <= 22
        broker.fate = lambda: Fate.KNOWN
        await trio.sleep(2)
        assert (await wire.produce("t", batch_of(b"second"))).base_offset == 1

    served(test)


def test_who_reads_other_partitions_waits_for_none_of_it() -> None:
    async def test(gateway: Gateway, wire: Wire, broker: UncertainBroker) -> None:
        broker.failing = StorageError("nobody answers")
        broker.fates.append(Fate.LOST)
        await wire.send(produce_request("t", batch_of(b"unknown")), 9)
        await trio.sleep(5)
        other = connect(gateway)
        for offset, wait_ms, most in ((0, 30_000, 0.1), (1, 3_000, 3.5)):
            request = fetch_request("t", 0, max_wait_ms=wait_ms)
            (topic,) = request.topics
            topic.partitions += fetch_request("t", offset, 1).topics[0].partitions
            since = trio.current_time()
            rows = (await other(request, 11)).responses[0].partitions
            assert trio.current_time() - since < most
            assert [(row.error_code, row.high_watermark) for row in rows] == [(0, 1), (0, 1)]
            assert [bool(row.records) for row in rows] == [False, offset == 0]
        broker.failing = None
        await wire.read(produce_request("t", b""), 9)
        assert await other.values("t") == [b"first"]
        await other.aclose()

    served(test)
