"""Our producer and consumers in transactions at several gateways, of which one leaves and another comes."""

from __future__ import annotations

from contextlib import AsyncExitStack

import anyio
import pytest

import kclient
from kclient.gateway import Gateway
from kclient.htp import open_store
from kclient.types import ConsumerGroupMetadata, TopicPartition
from tests.gateway_wire import names
from tests.unit.gateway_cluster.together import joined

pytestmark = pytest.mark.anyio

PARTITIONS = 6
PRODUCERS = 3
LISTEN = "127.0.0.1:0"


async def seen(bootstrap: str, count: int) -> list[bytes]:
    """What a reader of committed records sees, sorted, once it is so many."""
    found: list[bytes] = []
    partitions = [TopicPartition("t", number) for number in range(PARTITIONS)]
    async with kclient.Consumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign(partitions)
        with anyio.fail_after(60):
            while True:
                found += [record.value for record in await consumer.poll(timeout=0.1)]
                ends = await consumer.end_offsets(partitions)
                if len(found) >= count and all([await consumer.position(tp) == ends[tp] for tp in partitions]):
                    return sorted(found)


@pytest.mark.slow
@pytest.mark.parametrize("grace", [5.0, 0.0], ids=["handed over", "taken over"])
async def test_all_that_is_committed_is_seen_and_nothing_else(grace: float) -> None:
    gateways: list[Gateway] = []
    rounds = [0] * PRODUCERS
    committed: list[bytes] = []
    stop = anyio.Event()

    async def transact(number: int) -> None:
        group = ConsumerGroupMetadata(f"group-{number}")
        async with kclient.Producer(
            bootstrap_servers=",".join(gateway.bootstrap for gateway in gateways), transactional_id=f"x-{number}"
        ) as producer:
            await producer.init_transactions()
            while not stop.is_set():
                count = rounds[number]
                await producer.begin_transaction()
                values = [f"{number}-{count}-{partition}".encode() for partition in range(PARTITIONS)]
                for partition, value in enumerate(values):
                    await producer.send("t", value, partition=partition)
                await producer.send_offsets_to_transaction({TopicPartition("t", 0): count}, group)
                if count % 3 == 2:
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()
                    committed.extend(values)
                rounds[number] += 1

    async def more(count: int) -> None:
        wanted = [each + count for each in rounds]
        with anyio.fail_after(60):
            while any(each < least for each, least in zip(rounds, wanted, strict=True)):
                await anyio.sleep(0.01)

    async with open_store(f"memory:{next(names)}") as store, AsyncExitStack() as stack:
        for node_id in (1, 2):
            gateway, wire = await stack.enter_async_context(joined(store, node_id, listen=LISTEN))
            gateways.append(gateway)
        await wire.create("t", PARTITIONS)
        async with anyio.create_task_group() as tasks:
            for number in range(PRODUCERS):
                tasks.start_soon(transact, number)
            await more(3)
            gateways.append((await stack.enter_async_context(joined(store, 3, listen=LISTEN)))[0])
            await more(3)
            await gateways.pop(0).close(grace)
            await more(3)
            stop.set()
        assert await seen(gateways[0].bootstrap, len(committed)) == sorted(committed)
        for number, count in enumerate(rounds):
            async with kclient.Consumer(
                bootstrap_servers=gateways[0].bootstrap, group_id=f"group-{number}"
            ) as consumer:
                found = (await consumer.committed([TopicPartition("t", 0)]))[TopicPartition("t", 0)]
            assert found is not None
            assert found.offset == max(each for each in range(count) if each % 3 != 2)
