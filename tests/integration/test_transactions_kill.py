"""kill -9 of the gateway amid transactions: what is committed is there once, with its offsets, and nothing else is."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio
import pytest

import kclient
from kclient.admin import Admin, NewTopic
from kclient.types import ConsumerGroupMetadata, TopicPartition
from tests.gateway_process import GatewayProcess

pytestmark = pytest.mark.anyio

PARTITIONS = 3


async def seen(bootstrap: str, topic: str, count: int) -> list[list[bytes]]:
    """What a reader of committed records sees, by partition, once it is so many; and whether there is more."""
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    found: list[list[bytes]] = [[] for _ in partitions]
    async with kclient.Consumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign(partitions)
        with anyio.fail_after(60):
            while True:
                ends = await consumer.end_offsets(partitions)
                for record in await consumer.poll(timeout=0.1):
                    found[record.partition].append(record.value)
                positions = {tp: await consumer.position(tp) for tp in partitions}
                if positions == ends and sum(map(len, found)) >= count:
                    return found


@pytest.mark.timeout(240)
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_nothing_is_half_visible(tmp_path: Path) -> None:
    """Killed when all has been sent, when it is told to commit or to abort, and when it has answered."""
    gateway = GatewayProcess(tmp_path / "data")
    await anyio.to_thread.run_sync(gateway.start)

    async def kill() -> None:
        await anyio.to_thread.run_sync(partial(gateway.stop, kill=True))
        await anyio.to_thread.run_sync(gateway.start)

    tp, group = TopicPartition("t", 0), ConsumerGroupMetadata("group")
    expected: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    count = 0
    try:
        async with Admin(bootstrap_servers=gateway.bootstrap) as admin:
            await admin.create_topics([NewTopic("t", PARTITIONS, 1)])
        async with kclient.Producer(bootstrap_servers=gateway.bootstrap, transactional_id="x") as producer:
            await producer.init_transactions()
            for number, (moment, commits) in enumerate(
                [("sent", True), ("ending", True), ("ending", False), ("ended", True)]
            ):
                await producer.begin_transaction()
                for partition in range(PARTITIONS):
                    for each in range(10):
                        value = f"{number}-{each}".encode()
                        await producer.send("t", value, partition=partition)
                await producer.send_offsets_to_transaction({tp: 100 + number}, group)
                await producer.flush()
                if moment == "sent":
                    await kill()
                    assert await seen(gateway.bootstrap, "t", count) == expected
                end = producer.commit_transaction if commits else producer.abort_transaction
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(end)
                    if moment == "ending":
                        await kill()
                if moment == "ended":
                    await kill()
                if commits:
                    count += 10 * PARTITIONS
                    for values in expected:
                        values += [f"{number}-{each}".encode() for each in range(10)]
                assert await seen(gateway.bootstrap, "t", count) == expected
        async with kclient.Consumer(bootstrap_servers=gateway.bootstrap, group_id=group.group_id) as consumer:
            committed = (await consumer.committed([tp]))[tp]
        assert committed is not None
        assert committed.offset == 103
    finally:
        await anyio.to_thread.run_sync(gateway.stop)
