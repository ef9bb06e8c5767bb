"""Gateways that serve one store together, in virtual time; and what was promised.

Up to three gateways come, leave, crash, and are cut off from the manager while clients still reach them; at times the
manager has no space. Idempotent producers and consumers look for whoever leads, groups commit offsets at whoever
coordinates them, and topics are made and deleted at any gateway. Afterwards the whole is read: nothing acknowledged is
lost, nothing is stored twice, all is in order, what somebody has read is there, epochs only grow, and of each group the
last commit counts.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from unittest import mock

import trio

from kclient.concurrency import first_leaf
from kclient.gateway import cluster_generations
from kclient.gateway.assignment import generations
from kclient.gateway.topics.names import CONSUMER_OFFSETS
from kclient.htp import StorageFullError
from kclient.htp.memory import reset
from kclient.protocol import messages as m
from kclient.records import decode_records, iter_headers
from tests.gateway_wire import Wire, batch_of, produce_request
from tests.simulation.cluster_members import GroupLives
from tests.simulation.cluster_nodes import DELAY_S, Disk, Node, Place
from tests.simulation.cluster_topics import TopicLives
from tests.simulation.inline_threads import START_S, Loop, run
from tests.simulation.promises import answer_of, check_sequence, check_stored, promise

TOPIC = "t"
PARTITIONS = 3
NUMBERS = (1, 2, 3)
EVENTS = (
    "closed", "killed", "killed", "cut off", "cut off", "stopped", "stopped",
    "moved", "moved", "drained", "full", "slow", "clock",
)  # fmt: skip
"""What happens."""
TROUBLES = frozenset({"cut off", "stopped", "full", "slow"})
"""What of it lasts, so that other things happen meanwhile."""
_PATIENCE_S = 10.0
_MOVED_S = 20.0
"""Within so many seconds a partition is led by the gateway that it was moved to by hand, where nothing else happens."""


class World:
    """A store, gateways and clients; the seed decides everything.

    Args:
        seed: The seed.
        backend: `memory` or `embedded`.
        folder: For the directory of the latter.
        events: What may happen.
    """

    def __init__(self, seed: int, backend: str, folder: Path, events: Sequence[str] = EVENTS) -> None:
        self.dice = Random(seed)
        self.events = events
        self.name = f"cluster-{seed}"
        self.place = Place(self.name, backend, folder)
        self.mapping = self.dice.choice(["domain", "domain", "multilevel", "virtual"])
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
        self.disk = Disk(slow=self.dice.random() < 0.3)
        self.troubles = 0
        """So many things last that happen to gateways."""
        self.calm_since = 0.0
        """When the last one ended."""
        self.loop: Loop
        """In which all of it lives."""
        self.working = True
        self.counts: Counter[str] = Counter()
        self.topics = [TopicLives(self, "x")]
        self.groups = [GroupLives(self, "members", 2)]

    # Gateways

    def make(self, number: int, store: Any) -> Node:
        """A gateway, which is not started."""
        return Node(number, store, self.dice, self.disk, mapping=self.mapping)

    async def prepare(self, wire: Wire) -> None:
        """Make what there is to be, at the first gateway."""
        await wire.create(TOPIC, PARTITIONS)

    async def start(self, number: int) -> Node:
        """Start a gateway, again until there is space for it, and wait until it serves."""
        while True:
            store = self.place.open()
            await store.__aenter__()
            node = self.make(number, store)
            self.running.append(node)
            try:
                await node.start()
            except StorageFullError:
                await self.end(node, "failed")
                await trio.sleep(1)
            else:
                self.nodes[number] = node
                return node

    async def end(self, node: Node, kind: str) -> None:
        """Have a gateway closed, or killed."""
        if self.nodes.get(node.number) is node:
            del self.nodes[node.number]
        await node.end(killed=kind != "closed")
        self.running.remove(node)

    async def rule(self, times: int) -> None:
        """Gateways come and go, and whatever else happens to them."""
        node = await self.start(1)
        async with node.connected() as wire:
            with trio.fail_after(60):
                await self.prepare(wire)
        await self.start(2)
        async with trio.open_nursery() as troubles:
            for _ in range(times):
                await trio.sleep(self.dice.random() * self.dice.choice([1, 5, 20]))
                for node in [each for each in self.nodes.values() if each.ended]:
                    await self.end(node, "failed")
                away = [number for number in NUMBERS if number not in self.nodes]
                if len(self.nodes) < 2 or (away and self.dice.random() < 0.3):
                    await self.start(self.dice.choice(away))
                    self.counts["joined"] += 1
                    continue
                kind = self.dice.choice(self.events)
                self.counts[kind] += 1
                node = self.nodes[self.dice.choice(sorted(self.nodes))]
                if kind in TROUBLES:  # other things happen meanwhile
                    troubles.start_soon(self.trouble, kind, node)
                else:
                    await self.happen(kind, node)
        await trio.sleep(5)
        self.working = False

    async def trouble(self, kind: str, node: Node) -> None:
        """Have something happen that lasts."""
        self.troubles += 1
        await self.happen(kind, node)
        self.troubles -= 1
        self.calm_since = trio.current_time()

    async def happen(self, kind: str, node: Node) -> None:
        """Have something happen to a gateway, or to what all have."""
        if kind == "full":
            self.disk.full = True
            await trio.sleep(self.dice.random() * self.dice.choice([2, 60]))
            self.disk.full = False
        elif kind == "slow":
            self.disk.delay_s = self.dice.choice([0.05, 0.5, 3.0])
            await trio.sleep(self.dice.random() * 20)
            self.disk.delay_s = DELAY_S
        elif kind == "clock":
            node.machine.wall_s += self.dice.uniform(-1, 1) * self.dice.choice([1, 60, 7200])
        elif kind == "stopped":
            await node.stop(self.dice.random() * self.dice.choice([2, 20, 80]), clocks=self.dice.random() < 0.3)
        elif kind in ("moved", "drained"):
            await self.move(node, all_of_it=kind == "drained")
        elif kind == "cut off":  # clients still reach it
            node.reach(manager=False)
            await trio.sleep(self.dice.random() * 50)
            if node.gateway.failure is None and self.dice.random() < 0.5:
                node.reach(manager=True)
            await trio.sleep(self.dice.random() * 10)
            if not node.reached.manager.reachable and self.nodes.get(node.number) is node:
                await self.end(node, kind)
        else:
            await self.end(node, kind)

    async def move(self, node: Node, *, all_of_it: bool) -> None:
        """Have partitions move by hand: one to a gateway, or all that it leads to others."""
        others = [each for each in sorted(self.nodes) if each != node.number]
        if all_of_it and not others:
            return  # nobody is there to take them
        moves: dict[int, int] = {}
        coordinators: dict[int, int] = {}
        if all_of_it:
            for partition, leader in enumerate(await self.leaders(TOPIC)):
                if leader == node.number:
                    moves[partition] = self.dice.choice(others)
            for partition, leader in enumerate(await self.leaders(CONSUMER_OFFSETS)):
                if leader == node.number:
                    coordinators[partition] = others[partition % len(others)]
        else:
            moves[self.dice.randrange(PARTITIONS)] = node.number
        if self.mapping == "virtual":  # they move together
            moves = dict.fromkeys(range(PARTITIONS), next(iter(moves.values()))) if moves else {}
        if not (moves or coordinators) or self.dice.random() < 0.1:
            request: Any = m.ElectLeadersRequest(election_type=0, topic_partitions=None)
            async with self.connected() as wire:
                await self.answer(partial(_told, wire, request, 2))
            return
        request = m.AlterPartitionReassignmentsRequest(
            timeout_ms=10_000,
            topics=[
                m.ReassignableTopic(
                    name=name,
                    partitions=[m.ReassignablePartition(partition_index=p, replicas=[to]) for p, to in rows.items()],
                )
                for name, rows in ((TOPIC, moves), (CONSUMER_OFFSETS, coordinators))
                if rows
            ],
        )
        async with self.connected() as wire:
            answer = await self.answer(partial(_told, wire, request, 0))
        if answer is None or answer.error_code or any(r.error_code for t in answer.responses for r in t.partitions):
            return
        self.counts["told to move"] += 1
        self.counts["groups drained"] += bool(coordinators)
        told = trio.current_time()
        with trio.move_on_after(_MOVED_S):
            while any(to in self.nodes and self.nodes[to].leads(TOPIC, p) is False for p, to in moves.items()):
                await trio.sleep(0.1)
            return
        calm = not self.troubles and self.calm_since < told and all(each.knows(told) for each in self.nodes.values())
        promise(not calm, f"{moves} were moved by hand, and {_MOVED_S:.0f} s later are not there")

    # Clients

    @asynccontextmanager
    async def connected(self, number: int | None = None) -> AsyncIterator[Wire | None]:
        """A connection to a gateway, any if it is not told which, for as long as it lasts; None if there is none."""
        node = self.found(number)
        if node is None:
            await trio.sleep(0.2)
            yield None
            return
        async with node.connected() as wire:
            yield wire

    def found(self, number: int | None = None) -> Node | None:
        """The gateway of a number, or else any one; None if there is none."""
        node = self.nodes.get(number) if number is not None else None
        if node is None and self.nodes:
            node = self.nodes[self.dice.choice(sorted(self.nodes))]
        return None if node is None or node.ended else node

    async def answer(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """What a gateway answers; None if it does not."""
        return await answer_of(ask, _PATIENCE_S)

    async def leaders(self, topic: str) -> list[int]:
        """Who leads each partition of a topic, as any gateway says; nobody, if none does."""
        async with self.connected() as wire:
            answer = None if wire is None else await self.answer(partial(wire.metadata, topic))
        return [] if answer is None or not answer.topics else [row.leader_id for row in answer.topics[0].partitions]

    async def leader(self, partition: int) -> int | None:
        """Who leads, as any gateway says."""
        found = await self.leaders(TOPIC)
        return found[partition] if partition < len(found) else None

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
                            await trio.sleep(0.1)
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
                        await trio.sleep(self.dice.random() * 2)
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
            node = self.found(await self.leader(partition))
            if node is None:
                await trio.sleep(0.2)
                continue
            async with node.connected() as wire:
                while self.working:
                    least = max(self.acked[partition], default=-1) + 1
                    row = await self.answer(partial(wire.fetch, TOPIC, offset, partition, max_wait_ms=500))
                    if row is None or row.error_code:
                        await trio.sleep(self.dice.random() * 2)
                        break
                    promise(
                        row.high_watermark >= least or node.may_be_late(),
                        f"partition {partition}: gateway {node.number} told of {row.high_watermark} as the end at "
                        f"{trio.current_time():.2f}, and {least} was",
                    )
                    seen = self.seen[partition]
                    for record in decode_records(row.records or b"", TOPIC, partition, start_offset=offset):
                        before = seen.setdefault(record.offset, record.value or b"")
                        promise(before == record.value, f"offset {record.offset}: {before!r}, then {record.value!r}")
                        self.counts["read"] += 1
                    offset = max(seen, default=-1) + 1
                    if self.dice.random() < 0.1:
                        offset = self.dice.randint(0, offset)  # from anywhere
                    await trio.sleep(self.dice.random() * 4)

    async def coordinator(self, group: str) -> int | None:
        """Who coordinates a group, if a gateway tells that."""
        async with self.connected() as asked:
            request = m.FindCoordinatorRequest(coordinator_keys=[group])
            found = None if asked is None else await self.answer(partial(asked, request, 4))
        if found is None:
            return None  # gateways that listen nowhere are not told as brokers
        nodes = [node for node in self.nodes.values() if not node.ended]
        return next((node.number for node in nodes if node.coordinates(group)), None)

    async def commit(self, group: str) -> None:
        """Commit one offset after the other, and look at times what is committed."""
        number = 0
        while self.working:
            async with self.connected(await self.coordinator(group)) as wire:
                if wire is not None:
                    await self.look_up(wire, group)
                while wire is not None and self.working:
                    self.tried[group] = number
                    code = await self.answer(partial(wire.commit, group, TOPIC, number))
                    if code:
                        self.counts[f"commit {code}"] += 1
                    if code is None or code:
                        await trio.sleep(self.dice.random() * 2)
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

    # What was promised

    async def check(self) -> None:
        """Read everything, after all have gone and one has come again."""
        for node in list(self.running):
            await self.end(node, self.dice.choice(["closed", "killed"]))
        node = await self.start(self.dice.choice(NUMBERS))
        with trio.fail_after(600):
            for partition in range(PARTITIONS):
                self._check(partition, *await self._read_all(partition))
            for topic in self.topics:
                await topic.check(node)
            for group in sorted(self.tried):
                async with node.connected() as wire:
                    while not await self.look_up(wire, group):
                        await trio.sleep(0.5)
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
                for topic in self.topics:
                    nursery.start_soon(topic.live)
                for group in self.groups:
                    nursery.start_soon(group.live)
                for partition in range(PARTITIONS):
                    for each in range(2):
                        nursery.start_soon(self.produce, f"p{partition}.{each}", partition)
                    nursery.start_soon(self.consume, partition)
                for number in range(2):
                    nursery.start_soon(self.commit, f"g{number}")
            await self.check()
        finally:
            with trio.CancelScope(shield=True):
                for node in list(self.running):  # a promise was broken
                    await self.end(node, "killed")


W = TypeVar("W", bound=World)


async def _told(wire: Wire | None, request: Any, version: int) -> Any:
    return None if wire is None else await wire(request, version)


@contextmanager
def few_generations() -> Iterator[None]:
    """Keep so few generations of gateways that they are shortened many times in a world."""
    with ExitStack() as patches:
        for module in (generations, cluster_generations):
            patches.enter_context(mock.patch.object(module, "KEPT", 4))
            patches.enter_context(mock.patch.object(module, "MOST_KEPT", 32))
        yield


def live(
    seed: int,
    times: int = 4,
    backend: str | None = None,
    events: Sequence[str] = EVENTS,
    kind: Callable[[int, str, Path, Sequence[str]], W] = World,  # type: ignore[assignment]
) -> W:
    """A world, and all its promises kept; raises `Violated` if one was broken.

    Args:
        seed: Of the world.
        times: So often something happens.
        backend: `memory` or `embedded`; if None, the seed says which.
        events: What may happen.
        kind: Makes the world.
    """
    backend = backend or ("embedded" if seed % 4 == 3 else "memory")
    ids = Random(f"ids of {seed}")  # who leads a partition follows from its topic's
    with tempfile.TemporaryDirectory(dir=_fast()) as folder:
        world = kind(seed, backend, Path(folder), events)

        async def main(loop: Loop) -> None:
            world.loop = loop
            async with AsyncExitStack() as stack:
                if backend == "memory":
                    await stack.enter_async_context(world.place.open())
                await world.run(times)

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


def _fast() -> str | None:
    """Where directories lie in memory, if there is such a place: what is on disk is not at stake here."""
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


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
