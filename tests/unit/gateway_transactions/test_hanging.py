"""Transactions that nobody ends: who has them is told (KIP-664), and an administrator ends them."""

from __future__ import annotations

import time

import pytest

from kclient.errors import ErrorCode as E
from kclient.protocol import messages as m
from tests.gateway_wire import Wire, batch_of, running
from tests.unit.gateway_transactions.transacting import ByHand, committed_values, decided

pytestmark = pytest.mark.anyio


async def producers(wire: Wire, topic: str, *numbers: int) -> list[m.DescribeProducersResponsePartition]:
    wanted = m.DescribeProducersRequestTopicRequest(name=topic, partition_indexes=list(numbers))
    (answer,) = (await wire(m.DescribeProducersRequest(topics=[wanted]), 0)).topics
    return list(answer.partitions)


async def test_producers_are_described() -> None:
    before = int(time.time() * 1000)
    async with running() as (_, wire):
        await wire.create("t", 2)
        producer = ByHand(wire, "x")
        await producer.init()
        idempotent = batch_of(b"a", b"b", producer_id=1 << 40, producer_epoch=3, sequence=7)
        assert (await wire.produce("t", idempotent)).error_code == 0
        await producer.send("t", b"c", b"d")
        epoch = producer.epoch
        first, second, unknown = await producers(wire, "t", 0, 1, 2)
        assert (second.error_code, second.active_producers) == (0, [])
        assert (unknown.error_code, unknown.active_producers) == (E.UNKNOWN_TOPIC_OR_PARTITION, [])
        other, mine = first.active_producers
        assert (other.producer_id, other.producer_epoch, other.last_sequence) == (1 << 40, 3, 8)
        assert (other.current_txn_start_offset, other.coordinator_epoch) == (-1, -1)
        assert (mine.producer_id, mine.producer_epoch, mine.last_sequence) == (producer.producer_id, epoch, 1)
        assert mine.current_txn_start_offset == 2
        assert before <= mine.last_timestamp <= time.time() * 1000
        assert await producer.end() == 0
        await decided(wire, "t")
        (ended,) = [row for row in (await producers(wire, "t", 0))[0].active_producers if row.producer_id < 1 << 40]
        assert (ended.producer_epoch, ended.current_txn_start_offset) == (epoch + 1, -1)
        assert ended.coordinator_epoch >= 0
        (row,) = await producers(wire, "u", 0)
        assert row.error_code == E.UNKNOWN_TOPIC_OR_PARTITION


async def test_an_administrator_ends_a_transaction_that_hangs() -> None:
    """As `kafka-transactions abort` does."""
    async with running() as (_, wire):
        await wire.create("t")
        producer = ByHand(wire, "x")
        await producer.init()
        await producer.send("t", b"a")
        assert (await wire.produce("t", batch_of(b"b"))).error_code == 0
        assert await committed_values(wire, "t") == []
        (found,) = (await producers(wire, "t", 0))[0].active_producers
        marker = m.WritableTxnMarker(
            producer_id=found.producer_id, producer_epoch=found.producer_epoch, transaction_result=False,
            topics=[m.WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
            coordinator_epoch=found.coordinator_epoch,
        )  # fmt: skip
        (result,) = (await wire(m.WriteTxnMarkersRequest(markers=[marker]), 1)).markers
        assert result.topics[0].partitions[0].error_code == 0
        assert await committed_values(wire, "t") == [b"b"]


@pytest.mark.parametrize(
    "wrong",
    [{"producer_id": -1}, {"producer_epoch": -1}, {"coordinator_epoch": -2}, {"coordinator_epoch": -(2**31)}],
    ids=str,
)
async def test_ends_that_no_log_can_hold_are_refused(wrong: dict[str, int]) -> None:
    async with running() as (_, wire):
        await wire.create("t")
        numbers = {"producer_id": 1, "producer_epoch": 0, "coordinator_epoch": 0, **wrong}
        topics = [m.WritableTxnMarkerTopic(name="t", partition_indexes=[0])]
        for version in (1, 2):
            request = m.WriteTxnMarkersRequest(markers=[m.WritableTxnMarker(topics=topics, **numbers)])
            (result,) = (await wire(request, version)).markers
            assert result.topics[0].partitions[0].error_code == E.INVALID_REQUEST
        assert (await wire.fetch("t", 0)).high_watermark == 0
