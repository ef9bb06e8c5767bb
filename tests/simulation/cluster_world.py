"""Gateways that serve one store together, in virtual time; and what was promised.

Up to three gateways come, leave, crash, and are cut off from the manager while clients still reach them; at times the
manager has no space. Idempotent producers and consumers look for whoever leads, groups commit offsets at whoever
coordinates them, topics are made and deleted, and partitions moved by hand, at any gateway. Afterwards the whole is
read: nothing acknowledged is lost, nothing is stored twice, all is in order, what somebody has read is there, epochs
only grow, and of each group the last commit counts.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, nullcontext, suppress
from functools import partial
from random import Random
from typing import Any
from unittest import mock

import trio

from kclient.concurrency import first_leaf
from kclient.errors import KafkaError
from kclient.gateway import Gateway, cluster_generations
from kclient.gateway.assignment import generations
from kclient.htp import StorageError, StorageFullError, open_store
from kclient.htp.memory import reset
from kclient.memory_ledger import process_memory
from kclient.protocol import messages as m
from kclient.records import decode_records, iter_headers
from tests.gateway_wire import Wire, batch_of, connect, produce_request
from tests.simulation.inline_threads import START_S, Loop, run
from tests.simulation.promises import Killed, answer_of, check_sequence, check_stored, connection, promise

TOPIC = "t"
PARTITIONS = 3
NUMBERS = (1, 2, 3)
_PATIENCE_S = 10.0
_DELAYS_S = (*[0.0] * 10, *[0.001] * 10, *[0.02] * 10, 0.3, 1.0)
"""How long calls of the manager take."""
_WRITES = frozenset({
    "acquire", "bind", "commit", "create_domain", "create_topic", "delete_domain", "delete_topics", "release", "renew",
})  # fmt: skip
"""Calls of the manager that need space."""


class Disk:
    """What the manager writes to."""

    def __init__(self) -> None:
        self.full = False


class Reached:
    """One gateway's way to the store: its manager may be out of reach, and each of its calls takes a moment.

    Args:
        store: The store, as this gateway has opened it.
        dice: How long calls take.
        disk: That of the manager, which all gateways write to.
    """

    def __init__(self, store: Any, dice: Random, disk: Disk) -> None:
        self.store = store
        self.manager = _Manager(store.manager, dice, disk)
        self.broker = store.broker

    def on_failure(self, callback: Callable[[StorageError], object]) -> Callable[[], None]:
        return self.store.on_failure(callback)


class _Manager:
    def __init__(self, inner: Any, dice: Random, disk: Disk) -> None:
        self._inner = inner
        self._dice = dice
        self._disk = disk
        self.reachable = True

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)

        async def call(*arguments: Any, **options: Any) -> Any:
            if name != "changes":
                await trio.sleep(self._dice.choice(_DELAYS_S))
            self._check()
            if self._disk.full and name in _WRITES:
                raise StorageFullError("database or disk is full")
            result = await found(*arguments, **options)
            self._check()
            return result

        return call

    def _check(self) -> None:
        if not self.reachable:
            raise StorageError("the manager is not reached")


class Node:
    """One run of a gateway."""

    def __init__(self, number: int, reached: Reached) -> None:
        self.number = number
        self.reached = reached
        self.gateway = Gateway(reached, listen=None, config={"node.id": number})  # type: ignore[arg-type]


class World:
    """A store, gateways and clients; the seed decides everything.

    Args:
        seed: The seed.
    """

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.name = f"cluster-{seed}"
        self.nodes: dict[int, Node] = {}
        """The gateways that clients may find, by number."""
        self.running: list[Node] = []
        """All that have not ended."""
        self.acked: dict[int, dict[int, bytes]] = defaultdict(dict)
        self.seen: dict[int, dict[int, bytes]] = defaultdict(dict)
        self.sent: dict[int, Counter[bytes]] = defaultdict(Counter)
        self.committed: dict[str, int] = {}
        """The last offset of each group whose commit was acknowledged."""
        self.tried: dict[str, int] = {}
        """The last one that was sent."""
        self.disk = Disk()
        self.working = True
        self.counts: Counter[str] = Counter()

    # Gateways

    async def start(self, number: int) -> Node:
        """Start a gateway, and wait until it serves."""
        store = open_store(f"memory:{self.name}")
        await store.__aenter__()
        node = Node(number, Reached(store, self.dice, self.disk))
        self.running.append(node)
        with trio.fail_after(120):
            await node.gateway.start()
        self.nodes[number] = node
        return node

    async def end(self, node: Node, kind: str) -> None:
        """Have a gateway closed, or killed."""
        if kind != "closed":
            node.reached.manager.reachable = False
            node.gateway._supervisor.fail(Killed())
        if self.nodes.get(node.number) is node:
            del self.nodes[node.number]
        with suppress(KafkaError, Killed):
            await node.gateway.close(10.0 if kind == "closed" else 0.0)
        self.running.remove(node)
        process_memory.cache_clear()
        await node.reached.store.aclose()

    async def rule(self, times: int) -> None:
        """Gateways come and go."""
        node = await self.start(1)
        wire = connect(node.gateway)
        with trio.fail_after(60):
            await wire.create(TOPIC, PARTITIONS)
        await wire.aclose()
        await self.start(2)
        for _ in range(times):
            await trio.sleep(self.dice.random() * self.dice.choice([1, 5, 40]))
            if self.dice.random() < 0.15:
                self.counts["full"] += 1
                self.disk.full = True
                await trio.sleep(self.dice.random() * self.dice.choice([2, 60]))
                self.disk.full = False
                continue
            away = [number for number in NUMBERS if number not in self.nodes]
            if away and (len(self.nodes) == 1 or self.dice.random() < 0.5):
                await self.start(self.dice.choice(away))
                self.counts["joined"] += 1
                continue
            number = self.dice.choice(sorted(self.nodes))
            kind = self.dice.choice(["closed", "killed", "cut off"])
            self.counts[kind] += 1
            node = self.nodes[number]
            if kind == "cut off":  # clients still reach it
                node.reached.manager.reachable = False
                await trio.sleep(self.dice.random() * 50)
                if self.dice.random() < 0.5 and node.gateway.failure is None:
                    node.reached.manager.reachable = True
                    await trio.sleep(self.dice.random() * 15)
                if node.gateway.failure is None and self.dice.random() < 0.5:
                    continue
            await self.end(node, kind)
        await trio.sleep(5)
        self.working = False

    # Clients

    @asynccontextmanager
    async def connected(self, number: int | None = None) -> AsyncIterator[Wire | None]:
        """A connection to a gateway, any if it is not told which, for as long as it lasts; None if there is none."""
        node = self.nodes.get(number) if number is not None else None
        if node is None and self.nodes:
            node = self.nodes[self.dice.choice(sorted(self.nodes))]
        if node is None or node.gateway.failure is not None:
            await trio.sleep(0.2)
            yield None
            return
        async with connection(node.gateway) as wire:
            yield wire

    async def answer(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """What a gateway answers; None if it does not."""
        return await answer_of(ask, _PATIENCE_S)

    async def leader(self, partition: int) -> int | None:
        """Who leads, as any gateway says."""
        async with self.connected() as wire:
            answer = None if wire is None else await self.answer(partial(wire.metadata, TOPIC))
        if answer is None or not answer.topics or len(answer.topics[0].partitions) <= partition:
            return None
        row = answer.topics[0].partitions[partition]
        return int(row.leader_id)

    async def produce(self, name: str, partition: int) -> None:
        """Produce one batch after the other, each again until it is acknowledged."""
        producer_id, number = -1, 0
        values: list[bytes] = []
        while self.working:
            async with self.connected(await self.leader(partition)) as wire:
                while wire is not None and self.working:
                    if producer_id < 0:
                        producer_id = await self.answer(wire.producer_id) or -1
                        if producer_id < 0:
                            break
                    if not values:
                        values = [f"{name}-{number + each}".encode() for each in range(self.dice.randint(1, 3))]
                        self.sent[partition].update(values)
                    batch = batch_of(
                        *values, timestamp=int((START_S + trio.current_time()) * 1000), producer_id=producer_id,
                        producer_epoch=0, sequence=number,
                    )  # fmt: skip
                    row = await self.answer(partial(self._send, wire, batch, partition))
                    if row is None or row.error_code:
                        self.counts["failed" if row is None else f"error {row.error_code}"] += 1
                        await trio.sleep(self.dice.random() * 0.5)
                        break
                    for offset, value in enumerate(values, row.base_offset):
                        self.acked[partition][offset] = value
                    self.counts["acknowledged"] += 1
                    number += len(values)
                    values = []
                    await trio.sleep(self.dice.random() * 4)

    async def _send(self, wire: Wire, batch: bytearray, partition: int) -> Any:
        request = produce_request(TOPIC, batch, partition)
        await wire.send(request, 9)
        if self.dice.random() < 0.2:  # it has lost patience, and sends it again later
            await trio.sleep(self.dice.random() * 4)
            return None
        return (await wire.read(request, 9)).responses[0].partition_responses[0]

    async def consume(self, partition: int) -> None:
        """Read from wherever the last reading ended."""
        offset = 0
        while self.working:
            async with self.connected(await self.leader(partition)) as wire:
                while wire is not None and self.working:
                    row = await self.answer(partial(wire.fetch, TOPIC, offset, partition, max_wait_ms=500))
                    if row is None or row.error_code:
                        await trio.sleep(self.dice.random() * 0.5)
                        break
                    seen = self.seen[partition]
                    for record in decode_records(row.records or b"", TOPIC, partition, start_offset=offset):
                        before = seen.setdefault(record.offset, record.value or b"")
                        promise(before == record.value, f"offset {record.offset}: {before!r}, then {record.value!r}")
                        self.counts["read"] += 1
                    offset = max(seen, default=-1) + 1
                    if self.dice.random() < 0.1:
                        offset = self.dice.randint(0, offset)  # from anywhere
                    await trio.sleep(self.dice.random() * 4)

    async def commit(self, group: str) -> None:
        """Commit one offset after the other, and look at times what is committed."""
        number = 0
        while self.working:
            async with self.connected() as asked:
                request = m.FindCoordinatorRequest(coordinator_keys=[group])
                found = None if asked is None else await self.answer(partial(asked, request, 4))
            node_id = None
            if found is not None:  # gateways that listen nowhere are not told as brokers
                nodes = [node for node in self.nodes.values() if node.gateway.failure is None]
                node_id = next((n.number for n in nodes if n.gateway.parts.leadership.coordinates(group)), None)
            async with self.connected(node_id) as wire:
                if wire is not None:
                    await self.look_up(wire, group)
                while wire is not None and self.working:
                    self.tried[group] = number
                    code = await self.answer(partial(wire.commit, group, TOPIC, number))
                    if code:
                        self.counts[f"commit {code}"] += 1
                    if code is None or code:
                        await trio.sleep(self.dice.random() * 0.5)
                        break
                    self.committed[group] = number
                    self.counts["committed"] += 1
                    number += 1
                    if self.dice.random() < 0.3:
                        await self.look_up(wire, group)
                    await trio.sleep(self.dice.random() * 4)

    async def look_up(self, wire: Wire, group: str) -> bool:
        """See what is committed, if this gateway tells it."""
        least = self.committed.get(group, -1)
        request = m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(group_id=group, topics=None)])
        found = await self.answer(partial(wire, request, 8))
        if found is None or found.groups[0].error_code:
            return False
        told = max((row.committed_offset for topic in found.groups[0].topics for row in topic.partitions), default=-1)
        most = self.tried.get(group, -1)
        promise(least <= told <= most, f"{group}: {told} is committed, and {least} to {most} was")
        return True

    async def administer(self) -> None:
        """Make topics and delete them, at any gateway."""
        number = 0
        while self.working:
            async with self.connected() as wire:
                if wire is not None:
                    name = f"x{number % 3}"
                    number += 1
                    ask: Callable[[], Awaitable[Any]] = self.dice.choice(
                        [partial(wire.create, name, 2), partial(wire.delete, name)]
                    )
                    if await self.answer(ask) is not None:
                        self.counts["administered"] += 1
            await trio.sleep(self.dice.random() * 6)

    async def move(self) -> None:
        """Move partitions by hand, one or several at a time, at any gateway and to any that may be there or not."""
        while self.working:
            await trio.sleep(self.dice.random() * self.dice.choice([5, 40]))
            async with self.connected() as wire:
                for _ in range(self.dice.choice([1, 1, 1, 8])):
                    if wire is None or not self.working:
                        break
                    rows = [
                        m.ReassignablePartition(partition_index=index, replicas=[self.dice.choice(NUMBERS)])
                        for index in self.dice.sample(range(PARTITIONS), self.dice.randint(1, PARTITIONS))
                    ]
                    topic = m.ReassignableTopic(name=TOPIC, partitions=rows)
                    request = m.AlterPartitionReassignmentsRequest(topics=[topic])
                    found = await self.answer(partial(wire, request, 0))
                    if found is None:
                        break
                    for row in [row for each in found.responses for row in each.partitions]:
                        self.counts[f"move {row.error_code}" if row.error_code else "moved"] += 1

    # What was promised

    async def check(self) -> None:
        """Read everything, after all have gone and one has come again."""
        for node in list(self.running):
            await self.end(node, self.dice.choice(["closed", "killed"]))
        node = await self.start(self.dice.choice(NUMBERS))
        with trio.fail_after(600):
            for partition in range(PARTITIONS):
                self._check(partition, *await self._read_all(partition))
            for group in sorted(self.tried):
                wire = connect(node.gateway)
                while not await self.look_up(wire, group):
                    await trio.sleep(0.5)
                await wire.aclose()
        await self.end(node, "closed")

    async def _read_all(self, partition: int) -> tuple[dict[int, bytes], list[int]]:
        found: dict[int, bytes] = {}
        epochs: list[int] = []
        while True:
            async with self.connected() as wire:
                offset = max(found, default=-1) + 1
                row = None if wire is None else await self.answer(partial(wire.fetch, TOPIC, offset, partition))
                if row is None or row.error_code:
                    await trio.sleep(1)
                    continue
                records = decode_records(row.records or b"", TOPIC, partition, start_offset=offset)
                if not records and offset >= row.high_watermark:
                    return found, epochs
                epochs += [header.partition_leader_epoch for _, header in iter_headers(row.records or b"")]
                found |= {record.offset: record.value or b"" for record in records}

    def _check(self, partition: int, stored: dict[int, bytes], epochs: list[int]) -> None:
        where = f"partition {partition}"
        promise(epochs == sorted(epochs), f"{where}: epochs go back: {epochs}")
        check_stored(where, stored, self.acked[partition], self.seen[partition], self.sent[partition])
        check_sequence(where, stored)

    async def run(self, times: int) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.rule, times)
                nursery.start_soon(self.administer)
                nursery.start_soon(self.move)
                for partition in range(PARTITIONS):
                    for each in range(2):
                        nursery.start_soon(self.produce, f"p{partition}.{each}", partition)
                    nursery.start_soon(self.consume, partition)
                    nursery.start_soon(self.commit, f"g{partition}")
            await self.check()
        finally:
            with trio.CancelScope(shield=True):
                for node in list(self.running):  # a promise was broken
                    await self.end(node, "killed")


@contextmanager
def few_generations() -> Iterator[None]:
    """Keep so few generations of gateways that they are shortened many times in a world."""
    with ExitStack() as patches:
        for module in (generations, cluster_generations):
            patches.enter_context(mock.patch.object(module, "KEPT", 4))
            patches.enter_context(mock.patch.object(module, "MOST_KEPT", 32))
        yield


def live(seed: int, times: int = 8) -> World:
    """A world, and all its promises kept; raises `Violated` if one was broken."""
    world = World(seed)

    async def main(_: Loop) -> None:
        async with open_store(f"memory:{world.name}"):
            await world.run(times)

    ids = Random(f"ids of {seed}")  # who leads a partition follows from its topic's
    try:
        with (
            mock.patch.object(uuid, "uuid4", side_effect=lambda: uuid.UUID(int=ids.getrandbits(128), version=4)),
            few_generations() if seed % 2 else nullcontext(),
        ):
            run(main, seed)
    except BaseExceptionGroup as group:
        raise first_leaf(group) from group
    finally:
        reset(world.name)
    return world


if __name__ == "__main__":
    import logging
    import sys
    import traceback

    logging.disable()
    first, count = int(sys.argv[1]), int(sys.argv[2])
    for seed in range(first, first + count):
        try:
            print(seed, dict(live(seed).counts))
        except BaseException as error:
            traceback.print_exception(error)
            print(f"SEED {seed}: {error!r}")
