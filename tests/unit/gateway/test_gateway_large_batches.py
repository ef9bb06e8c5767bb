"""Batches that are larger than what one connection may hold: they are fetched, or refused when they are produced."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from kclient.errors import ErrorCode
from kclient.gateway import Gateway
from kclient.protocol.messages.fetch import FetchRequest, FetchRequestPartition, FetchRequestTopic, FetchResponse
from kclient.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from kclient.records import CompressionType
from tests.gateway_wire import Wire, batch_of, connect, names, produce_request, running

pytestmark = pytest.mark.anyio

MIB = 1 << 20
LEAST = {"connections.max.memory.bytes": 16 * MIB}
"""One connection may hold 4 MiB."""
SETTING = "connections.max.memory.bytes"


@pytest.fixture(params=["memory", "embedded"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory:{next(names)}" if request.param == "memory" else f"embedded:{tmp_path / 'data'}"


def both(*, session: int = -1, max_wait_ms: int = 0) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=50 * MIB, session_id=0, session_epoch=session,
        topics=[
            FetchRequestTopic(topic=name, partitions=[FetchRequestPartition(partition=0, partition_max_bytes=MIB)])
            for name in ("big", "small")
        ],
    )  # fmt: skip


async def fill(store: str, size: int) -> None:
    """A batch of so many bytes, stored while there was more memory, and a small one elsewhere."""
    async with running(store) as (_, wire):
        await wire.create("big", max_message_bytes=str(64 * MIB))
        await wire.create("small")
        assert (await wire.produce("big", batch_of(os.urandom(size)))).error_code == 0
        assert (await wire.produce("big", batch_of(b"behind"))).error_code == 0
        assert (await wire.produce("small", batch_of(b"a"))).error_code == 0


def sizes(answer: FetchResponse) -> dict[str, int]:
    assert not answer.error_code
    return {topic.topic: len(topic.partitions[0].records or b"") for topic in answer.responses}


@pytest.mark.slow
async def test_a_batch_larger_than_a_connection_may_hold_is_fetched(store: str) -> None:
    await fill(store, 10 * MIB)
    async with running(store, config=LEAST) as (gateway, wire):
        for session in (-1, 0):
            for wait_ms in (0, 100):
                assert sizes(await wire(both(session=session, max_wait_ms=wait_ms), 11))["big"] > 10 * MIB
        assert (await wire.fetch("big", 1)).records, "and what is behind it"
        assert (await wire.fetch("small", 0)).records
        clients = [connect(gateway) for _ in range(6)]
        for client in clients:
            await client.send(both(max_wait_ms=100), 11)
        budget, most = gateway._running().budget, 0

        async def read(client: Wire) -> None:
            nonlocal most
            most = max(most, budget.used)
            assert sizes(await client.read(both(), 11))["big"] > 10 * MIB
            await client.aclose()

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for client in clients:
                    tasks.start_soon(read, client)
        assert most <= budget.total + 10 * MIB, "one at a time beyond what there is"


@pytest.mark.slow
async def test_a_batch_that_never_fits_fails_its_own_partition(store: str, caplog: pytest.LogCaptureFixture) -> None:
    await fill(store, 20 * MIB)
    async with running(store, config=LEAST) as (_, wire):
        for session in (-1, 0, -1):
            answer = await wire(both(session=session), 11)
            assert sizes(answer)["small"] > 0, "the other partition is served"
            assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert (await wire.fetch("big", 1)).records, "who seeks beyond it reads on"
    told = [line for line in caplog.messages if SETTING in line]
    assert len(told) == 1
    assert told[0].startswith("big-0: the batch at offset 0 takes 2097")


def zeros(size: int) -> bytearray:
    return batch_of(bytes(size), compression=CompressionType.GZIP)


async def test_what_could_not_be_fetched_is_not_taken() -> None:
    async with running(config=LEAST) as (_, wire):
        await wire.create("t", compression_type="uncompressed", max_message_bytes=str(64 * MIB))
        refused = await wire.produce("t", zeros(5 * MIB))
        assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert SETTING in (refused.error_message or "")
        assert (await wire.produce("t", zeros(3 * MIB))).error_code == 0
        assert len((await wire.fetch("t", 0)).records or b"") > 3 * MIB


@pytest.mark.slow
async def test_what_is_compressed_may_hold_more() -> None:
    """What counts is what is stored; what there is no room for is noticed while it is made."""
    async with running(config=LEAST) as (_, wire):
        await wire.create("t", compression_type="lz4", max_message_bytes=str(64 * MIB))
        assert (await wire.produce("t", zeros(8 * MIB))).error_code == 0
        digits = batch_of(os.urandom(3 * MIB).hex().encode(), compression=CompressionType.GZIP)
        assert len(digits) < 4 * MIB, "lz4 makes more of them"
        refused = await wire.produce("t", digits)
        assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert SETTING in (refused.error_message or "")
        incompressible = batch_of(os.urandom(500_000), compression=CompressionType.GZIP)
        assert (await wire.produce("t", incompressible)).error_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("acks", [-1, 0])
async def test_batches_of_one_request_are_made_anew_one_after_the_other(acks: int) -> None:
    """Together they take more than one connection may hold: those that are stored make room."""
    async with running(config=LEAST) as (gateway, wire):
        await wire.create("t", 8, compression_type="uncompressed", max_message_bytes=str(64 * MIB))
        request = ProduceRequest(
            acks=acks, timeout_ms=30_000,
            topic_data=[
                TopicProduceData(
                    name="t", partition_data=[PartitionProduceData(index=i, records=zeros(3 * MIB)) for i in range(8)]
                )
            ],
        )  # fmt: skip
        with anyio.fail_after(60):
            if acks:
                answer: ProduceResponse = await wire(request, 9)
                assert [row.error_code for row in answer.responses[0].partition_responses] == [0] * 8
            else:
                await wire.send(request, 9)
            for partition in range(8):
                assert len((await wire.fetch("t", 0, partition, max_wait_ms=10_000)).records or b"") > 3 * MIB
            await _until_free(gateway)


async def _until_free(gateway: Gateway) -> None:
    while gateway._running().budget.used:
        await anyio.lowlevel.checkpoint()


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["uncompressed", "zstd"])
async def test_making_a_batch_anew_counts(codec: str) -> None:
    async with running(config={SETTING: 64 * MIB}) as (gateway, wire):
        await wire.create("t", compression_type=codec, max_message_bytes=str(64 * MIB))
        batch, budget = zeros(12 * MIB), gateway._running().budget
        clients = [connect(gateway) for _ in range(8)]
        most, left = 0, len(clients)

        async def produce(client: Wire) -> None:
            nonlocal left
            assert (await client(produce_request("t", batch), 9)).responses[0].partition_responses[0].error_code == 0
            left -= 1

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for client in clients:
                    tasks.start_soon(produce, client)
                for _ in count():
                    most = max(most, budget.used)
                    if not left:
                        break
                    await anyio.lowlevel.checkpoint()
            await _until_free(gateway)
        assert 12 * MIB < most <= 64 * MIB
        for client in clients:
            await client.aclose()
