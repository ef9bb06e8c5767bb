"""Transactions go on though their coordinators and the leaders of their partitions are other gateways from now on.

The gateways ask one another over TCP.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import anyio
import pytest

from kclient.errors import ErrorCode as E
from kclient.gateway import Gateway
from kclient.gateway.coordination import CoordinatorType
from kclient.htp import open_store
from kclient.protocol import messages as m
from tests.gateway_wire import Wire, names
from tests.unit.gateway_cluster.together import joined
from tests.unit.gateway_transactions.transacting import ByHand, committed_values

pytestmark = pytest.mark.anyio

PARTITIONS = 4
LISTEN = "127.0.0.1:0"
PASSING = {
    E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE, E.COORDINATOR_LOAD_IN_PROGRESS, E.NOT_LEADER_OR_FOLLOWER,
    E.NOT_ENOUGH_REPLICAS, E.KAFKA_STORAGE_ERROR, E.CONCURRENT_TRANSACTIONS, E.UNKNOWN_TOPIC_OR_PARTITION,
    E.REQUEST_TIMED_OUT, E.UNSTABLE_OFFSET_COMMIT,
}  # fmt: skip


class Cluster:
    """Gateways that reach one another."""

    def __init__(self) -> None:
        self.gateways: list[tuple[Gateway, Wire]] = []

    def coordinator(self, name: str, kind: CoordinatorType = CoordinatorType.TRANSACTION) -> Wire:
        for gateway, wire in self.gateways:
            if gateway.parts.leadership.coordinates(kind, name):
                return wire
        return self.gateways[0][1]

    def leader(self, topic: str, partition: int) -> Wire:
        for gateway, wire in self.gateways:
            record = gateway.parts.topics.get(topic)
            if record is not None and gateway.parts.leadership.leads(record, partition):
                return wire
        return self.gateways[0][1]

    async def persist(self, producer: ByHand, find: Callable[[], Wire], ask: Callable[[], Awaitable[int]]) -> int:
        """Ask whoever it is by now, until that one answers for good."""
        with anyio.fail_after(30):
            while True:
                producer.wire = find()
                code = await ask()
                if code not in PASSING:
                    return code
                await anyio.sleep(0.01)

    async def transact(self, producer: ByHand, number: int, *, commit: bool) -> None:
        def coordinator() -> Wire:
            return self.coordinator(producer.name)

        for partition in range(PARTITIONS):
            code = await self.persist(
                producer,
                lambda partition=partition: self.leader("t", partition),  # type: ignore[misc]
                lambda partition=partition: producer.send("t", self.value(producer, number), partition=partition),  # type: ignore[misc]
            )
            assert code == 0
        group = self.group(producer)

        async def offsets() -> int:
            return await producer.offsets(group, {("t", 0): number})

        assert await self.persist(producer, lambda: self.coordinator(group, CoordinatorType.GROUP), offsets) == 0
        assert await self.persist(producer, coordinator, lambda: producer.end(commit)) == 0

    async def committed(self, producer: ByHand) -> int:
        """The offset of a producer's group, once it is stable."""
        group, found = self.group(producer), -1

        async def ask() -> int:
            nonlocal found
            wanted = m.OffsetFetchRequestTopics(name="t", partition_indexes=[0])
            request = m.OffsetFetchRequest(
                groups=[m.OffsetFetchRequestGroup(group_id=group, topics=[wanted])], require_stable=True
            )
            (answer,) = (await self.coordinator(group, CoordinatorType.GROUP)(request, 8)).groups
            if answer.error_code:
                return int(answer.error_code)
            (row,) = answer.topics[0].partitions
            found = row.committed_offset
            return int(row.error_code)

        assert await self.persist(producer, lambda: self.coordinator(group, CoordinatorType.GROUP), ask) == 0
        return found

    @staticmethod
    def group(producer: ByHand) -> str:
        """The group whose offsets a producer commits; mostly coordinated by another gateway than its transactions."""
        return f"group-of-{producer.name}"

    @staticmethod
    def value(producer: ByHand, number: int) -> bytes:
        return f"{producer.name}-{number}".encode()


@pytest.mark.slow
@pytest.mark.parametrize("grace", [5.0, 0.0], ids=["handed over", "taken over"])
async def test_transactions_go_on_while_gateways_come_and_go(grace: float) -> None:
    cluster = Cluster()
    async with open_store(f"memory:{next(names)}") as store, AsyncExitStack() as stack:
        for node_id in (1, 2):
            cluster.gateways.append(await stack.enter_async_context(joined(store, node_id, listen=LISTEN)))
        await cluster.gateways[0][1].create("t", PARTITIONS)
        with anyio.fail_after(20):
            while any(gateway.parts.topics.get("t") is None for gateway, _ in cluster.gateways):
                await anyio.sleep(0.01)
        at: dict[int, list[str]] = {}
        for name in map("x{}".format, range(100)):
            at.setdefault(id(cluster.coordinator(name)), []).append(name)
        producers = [ByHand(cluster.gateways[0][1], name) for names_of in at.values() for name in names_of[:3]]
        for producer in producers:
            name = producer.name
            assert await cluster.persist(producer, lambda name=name: cluster.coordinator(name), producer.init) == 0  # type: ignore[misc]
        assert len({id(cluster.coordinator(producer.name)) for producer in producers}) == 2

        async def round_of(number: int) -> None:
            for producer in producers:
                await cluster.transact(producer, number, commit=number % 2 == 0)
            for producer in producers:
                assert await cluster.committed(producer) == number - number % 2

        await round_of(0)
        cluster.gateways.append(await stack.enter_async_context(joined(store, 3, listen=LISTEN)))
        await round_of(1)
        await round_of(2)
        gone, _ = cluster.gateways.pop(0)
        await gone.close(grace)
        await round_of(3)
        await round_of(4)
        expected = {cluster.value(producer, number) for producer in producers for number in (0, 2, 4)}
        for partition in range(PARTITIONS):
            found: list[bytes] = []
            with anyio.fail_after(30):
                while set(found) != expected:
                    found = await committed_values(cluster.leader("t", partition), "t", partition)
            assert len(found) == len(expected), "each is there once"
