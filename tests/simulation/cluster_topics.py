"""A topic of a simulated cluster that comes and goes under one name, and is written and read by its ids meanwhile."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from kclient.errors import ErrorCode
from kclient.protocol import messages as m
from kclient.records import decode_records
from tests.gateway_wire import Wire, batch_of
from tests.simulation.cluster_nodes import Node
from tests.simulation.inline_threads import START_S
from tests.simulation.promises import promise

if TYPE_CHECKING:
    from tests.simulation.cluster_world import World

_MOST = 4
"""Partitions."""


class TopicLives:
    """Makes, grows and deletes topics of a name at any gateway, one after the other; writes and reads them.

    Args:
        world: Where.
        name: The name, which nobody else uses.
    """

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._dice = world.dice
        self.name = name
        self._id: bytes | None = None
        """Of the topic that is there; None if there is none, or that is not known."""
        self._known = True
        """Whether it is known if there is one: nothing that was asked for is without its answer."""
        self._gone: dict[bytes, float] = {}
        """Topics whose deletion was acknowledged, and when."""
        self._partitions = 0
        """So many it has at least."""
        self._acked: dict[tuple[bytes, int], dict[int, bytes]] = defaultdict(dict)
        self._number = 0

    async def live(self) -> None:
        """Do all that until the world has ended."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._administer)
            nursery.start_soon(self._use)

    async def _administer(self) -> None:
        while self._world.working:
            async with self._world.connected() as wire:
                if wire is not None:
                    kind = self._dice.choice(["made", "made", "grown", "deleted"])
                    if await getattr(self, f"_{kind}")(wire):
                        self._world.counts[kind] += 1
            await trio.sleep(self._dice.random() * 8)

    async def _made(self, wire: Wire) -> bool:
        known, self._known = self._known, False
        row = await self._world.answer(partial(wire.create, self.name, 1))
        if row is None or row.error_code == ErrorCode.REQUEST_TIMED_OUT:
            return False
        if row.error_code:
            there = row.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
            self._known = known and (there or self._id is None)
            return False
        promise(not known or self._id is None, f"{self.name} was made, and there was one of that name")
        promise(row.topic_id not in self._acked_ids() and row.topic_id not in self._gone, f"{row} is an old topic")
        self._id, self._known, self._partitions = row.topic_id, True, 1
        return True

    def _acked_ids(self) -> set[bytes]:
        return {topic_id for topic_id, _ in self._acked}

    async def _deleted(self, wire: Wire) -> bool:
        known, self._known = self._known, False
        code = await self._world.answer(partial(wire.delete, self.name))
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._known, self._id = known and self._id is None, None
        if code != 0:
            return False
        if self._id is not None:
            self._gone[self._id] = trio.current_time()
        self._known, self._id = True, None
        return True

    async def _grown(self, wire: Wire) -> bool:
        wanted = self._partitions + 1
        if self._id is None or not self._known or wanted > _MOST:
            return False
        code = await self._world.answer(partial(wire.grow, self.name, wanted))
        if code == 0:
            self._partitions = wanted
        return bool(code == 0)

    async def _use(self) -> None:
        """Write and read the topic of which a gateway tells."""
        while self._world.working:
            node = self._world.found()
            if node is None:
                await trio.sleep(0.2)
                continue
            async with node.connected() as wire:
                told = await self._world.answer(partial(wire.metadata, self.name))
            if told is not None and told.topics and not told.topics[0].error_code:
                topic = told.topics[0]
                row = self._dice.choice(topic.partitions)
                leader = self._world.found(row.leader_id)
                if leader is not None:
                    await self._use_partition(leader, topic.topic_id, row.partition_index)
            await trio.sleep(self._dice.random() * 3)

    async def _use_partition(self, node: Node, topic_id: bytes, partition: int) -> None:
        gone = self._gone.get(topic_id)
        served = gone is None or not node.knows(gone)
        values = [f"{topic_id.hex()}-{self._number + each}".encode() for each in range(2)]
        self._number += len(values)
        batch = batch_of(*values, timestamp=int((START_S + trio.current_time()) * 1000))
        async with node.connected() as wire:
            row = await self._world.answer(partial(_produce, wire, topic_id, partition, batch))
            if row is not None and not row.error_code:
                promise(served, f"{self.name}: {values} was stored at {node.number}, and was deleted at {gone}")
                self._acked[topic_id, partition].update(enumerate(values, row.base_offset))
                self._world.counts["used"] += 1
            if self._dice.random() < 0.5:
                await self._read(wire, topic_id, partition, 0)

    async def _read(self, wire: Wire, topic_id: bytes, partition: int, offset: int) -> dict[int, bytes] | None:
        """What is there from an offset on; None if that was not told."""
        row = await self._world.answer(partial(_fetch, wire, topic_id, partition, offset))
        if row is None or row.error_code:
            return None
        found = {
            record.offset: record.value or b""
            for record in decode_records(row.records or b"", self.name, partition, start_offset=offset)
        }
        for at, value in found.items():
            promise(value.startswith(topic_id.hex().encode()), f"{value!r} at {at} of {self.name} {topic_id.hex()}")
        return found

    async def check(self, node: Node) -> None:
        """See whether the last topic of the name is there, if that is known, with all that was acknowledged."""
        async with node.connected() as wire:
            while True:
                told = await self._world.answer(partial(wire.metadata, self.name))
                if told is not None:
                    break
                await trio.sleep(0.5)
            topic = told.topics[0]
            there = topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            promise(not there or topic.topic_id not in self._gone, f"{self.name} was deleted, and is there")
            if not self._known:
                return
            promise(there == (self._id is not None), f"{self.name}: {self._id!r} should be there, and {topic} is")
            if self._id is None:
                return
            promise(topic.topic_id == self._id, f"{self.name} has the id {topic.topic_id!r}, and not {self._id!r}")
            count = len(topic.partitions)
            promise(count >= self._partitions, f"{self.name} has {count} partitions, and not {self._partitions}")
            for partition in range(count):
                await self._check_stored(wire, self._id, partition)

    async def _check_stored(self, wire: Wire, topic_id: bytes, partition: int) -> None:
        acked = self._acked[topic_id, partition]
        stored: dict[int, bytes] = {}
        while acked.keys() - stored.keys():
            found = await self._read(wire, topic_id, partition, max(stored, default=-1) + 1)
            if found is None:
                await trio.sleep(0.5)
                continue
            promise(bool(found), f"{self.name}-{partition}: {acked} was acknowledged, and {stored} is there")
            stored |= found
        promise(acked.items() <= stored.items(), f"{self.name}-{partition}: {acked} was acknowledged, not {stored}")


async def _produce(wire: Wire, topic_id: bytes, partition: int, batch: bytearray) -> Any:
    data = m.PartitionProduceData(index=partition, records=batch)
    request = m.ProduceRequest(
        transactional_id=None, acks=-1, timeout_ms=10_000,
        topic_data=[m.TopicProduceData(topic_id=topic_id, partition_data=[data])],
    )  # fmt: skip
    return (await wire(request, 13)).responses[0].partition_responses[0]


async def _fetch(wire: Wire, topic_id: bytes, partition: int, offset: int) -> Any:
    wanted = m.FetchRequestPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = m.FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=1 << 20,
        topics=[m.FetchRequestTopic(topic_id=topic_id, partitions=[wanted])],
    )  # fmt: skip
    return (await wire(request, 16)).responses[0].partitions[0]
