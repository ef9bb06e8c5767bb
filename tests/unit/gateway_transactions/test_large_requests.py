"""Requests about transactions that name very much: others have their turn meanwhile, and the memory is bounded."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from kclient.errors import ErrorCode as E
from kclient.gateway.groups import transactional
from kclient.gateway.rows.groups import CommittedOffset
from kclient.gateway.rows.pending import PendingOffset, PendingOffsets, decode_pending, encode_pending_steps
from kclient.protocol import messages as m
from kclient.protocol.message import ApiMessage
from kclient.types import TopicPartition
from tests.gateway_wire import connect, running
from tests.unit.gateway_transactions.test_group_offsets import settled
from tests.unit.gateway_transactions.transacting import ByHand

pytestmark = pytest.mark.anyio

MANY = 50_000


def partitions_of_client(count: int) -> ApiMessage:
    topic = m.AddPartitionsToTxnTopic(name="t", partitions=list(range(1, count)))
    return m.AddPartitionsToTxnRequest(v3_and_below_transactional_id="x", v3_and_below_topics=[topic])


def partitions_of_broker(count: int) -> ApiMessage:
    topic = m.AddPartitionsToTxnTopic(name="t", partitions=list(range(1, count)))
    asked = m.AddPartitionsToTxnTransaction(transactional_id="x", topics=[topic])
    return m.AddPartitionsToTxnRequest(transactions=[asked])


def transactions_of_broker(count: int) -> ApiMessage:
    topic = m.AddPartitionsToTxnTopic(name="t", partitions=[0])
    asked = m.AddPartitionsToTxnTransaction(transactional_id="x", topics=[topic])
    return m.AddPartitionsToTxnRequest(transactions=[asked] * (count // 50))


def ends(count: int) -> ApiMessage:
    topic = m.WritableTxnMarkerTopic(name="t", partition_indexes=list(range(1, count)))
    return m.WriteTxnMarkersRequest(markers=[m.WritableTxnMarker(producer_id=1, topics=[topic])])


REQUESTS = [(partitions_of_client, 3), (partitions_of_broker, 5), (transactions_of_broker, 5), (ends, 1)]


@pytest.mark.slow
@pytest.mark.parametrize(("make", "version"), REQUESTS)
async def test_others_have_their_turn(make: Callable[[int], ApiMessage], version: int) -> None:
    async with running() as (gateway, wire):
        await wire.create("t")
        other = connect(gateway)
        answered = anyio.Event()

        async def ask() -> None:
            await wire.send(make(MANY), version)
            assert await wire.frame() is not None
            answered.set()

        longest, begun = 0.0, time.perf_counter()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            with anyio.fail_after(60):
                while not answered.is_set():
                    asked = time.perf_counter()
                    await other.metadata("t")
                    longest = max(longest, time.perf_counter() - asked)
        assert longest < (time.perf_counter() - begun) / 2
        await other.aclose()


@pytest.mark.parametrize(("make", "version"), [(partitions_of_client, 3), (partitions_of_broker, 5), (ends, 1)])
async def test_who_asks_for_too_much_is_cut_off(make: Callable[[int], ApiMessage], version: int) -> None:
    async with running(config={"connections.max.memory.bytes": 16 << 20}) as (_, wire):
        await wire.create("t")
        await wire.send(make(MANY), version)
        with anyio.fail_after(60):
            assert await wire.frame() is None


async def test_ids_that_are_named_often_are_described_once() -> None:
    async with running() as (_, wire):
        await wire.create("t", 3)
        producer = ByHand(wire, "x", 1)
        await producer.init()
        assert await producer.add("t", 0, 1, 2) == 0
        request = m.DescribeTransactionsRequest(transactional_ids=["x", "none", "x", "x"])
        first, second = (await wire(request, 0)).transaction_states
        assert (first.transactional_id, first.error_code) == ("x", 0)
        assert first.topics[0].partitions == [0, 1, 2]
        assert (second.transactional_id, second.error_code) == ("none", E.TRANSACTIONAL_ID_NOT_FOUND)


async def test_only_so_many_groups_join_one_transaction() -> None:
    """All of them are written anew whenever one joins."""
    async with running() as (_, wire):
        await wire.create("t")
        producer = ByHand(wire, "x")
        await producer.init()
        fit, long = 0, "g" * 32_000
        while not (code := await producer.add_group(f"{fit}{long}")):
            fit += 1
        assert (fit, code) == (32, E.TRANSACTION_ABORTABLE)
        assert await producer.add_group(f"{fit}{long}", request=3) == E.INVALID_TXN_STATE
        assert await producer.offsets(f"{fit}{long}", {("t", 0): 7}) == E.TRANSACTION_ABORTABLE
        assert await producer.add_group(f"0{long}") == 0, "it is in it"
        assert await producer.offsets(f"0{long}", {("t", 0): 7}) == 0
        assert await producer.end() == 0
        assert await settled(wire, f"0{long}") == 7
        assert await producer.offsets(f"{fit}{long}", {("t", 0): 7}) == 0


def test_the_row_of_many_offsets_is_made_in_steps() -> None:
    offset = PendingOffset(CommittedOffset(7, 3, 'as "JSON"', 5), bytes(range(16)))
    places = [TopicPartition(topic, number) for topic in ("t", "u") for number in range(5_000)]
    pending = PendingOffsets("g", "x", dict.fromkeys(places, offset))
    steps = encode_pending_steps(pending)
    count = 0
    try:
        while True:
            next(steps)
            count += 1
    except StopIteration as end:
        found = decode_pending(end.value, "g", "x")
    assert found.offsets == pending.offsets
    assert count > 50


@pytest.mark.slow
async def test_a_few_offsets_cost_little_beside_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has been taken before is not read again for each request."""
    count, read = 2_000, 0

    def decode(*arguments: Any) -> PendingOffsets:
        nonlocal read
        read += 1
        return decode_pending(*arguments)

    monkeypatch.setattr(transactional, "decode_pending", decode)
    async with running() as (_, wire):
        await wire.create("t", count)
        producer = ByHand(wire, "x")
        await producer.init()
        assert await producer.offsets("g", {("t", number): 1 for number in range(count)}) == 0
        for number in range(5):
            assert await producer.offsets("g", {("t", number): 2}) == 0
        assert read == 0
        assert await producer.end() == 0
        assert [await settled(wire, "g", "t", number) for number in (0, 4, 5, count - 1)] == [2, 2, 1, 1]
