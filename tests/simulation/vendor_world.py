"""Gateways on a simulated vendor's store that take it over from one another, in virtual time; and what was promised.

Two gateways, of which one leads at a time: it is closed, it crashes, it is stopped until another one leads and goes on
then, or it is cut off from the name server and goes on until its lease ends, with what it has sent on its way; at times
its wall clock jumps. Producers send to whichever they find, consumers read meanwhile, and a group has members that
join, share out and commit.
Nobody is told of an end before what was acknowledged. Afterwards the whole is read: nothing acknowledged is lost,
nothing is stored twice, all is in order, and what somebody has read is there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from random import Random
from typing import Any

import trio

from kclient.concurrency import first_leaf
from kclient.errors import KafkaError
from kclient.gateway import Gateway
from kclient.htp import HtpError
from kclient.htp.testing import SendFate, SimulatedOptions, SimulatedStore, open_simulated, reset
from kclient.memory_ledger import process_memory
from kclient.protocol import messages as m
from kclient.records import decode_records
from tests.gateway_wire import Wire, batch_of, connect, produce_request
from tests.simulation.cluster_members import GroupLives
from tests.simulation.inline_threads import START_S, Loop, run
from tests.simulation.machines import Machine
from tests.simulation.promises import Killed, answer_of, check_sequence, check_stored, connection, promise

TOPIC = "t"
PARTITIONS = 2
KINDS = ("closed", "killed", "cut off", "cut off", "stopped", "stopped")
"""How a gateway ends."""
_PATIENCE_S = 20.0


class Node:
    """One run of a gateway, with the client of the store that it has."""

    def __init__(self, store: SimulatedStore, gateway: Gateway, machine: Machine) -> None:
        self.store = store
        self.gateway = gateway
        self.machine = machine


class World:
    """An installation, gateways, producers and consumers; the seed decides everything.

    Args:
        seed: The seed.
        mapping: Of the gateways.
    """

    def __init__(self, seed: int, mapping: str) -> None:
        self.seed = seed
        self.mapping = mapping
        self.dice = Random(seed)
        self.name = f"vendor-{seed}-{mapping}"
        self.options = SimulatedOptions(
            brokers=max(self.dice.choice([1, 3]), PARTITIONS if mapping == "broker" else 1),
            seed=seed,
            latency_ms=self.dice.choice([2.0, 20.0, 200.0]),
            silent=self.dice.choice([0.02, 0.1, 0.4]),
            silent_reads=self.dice.choice([0.0, 0.02, 0.05]),
            timeout_ms=self.dice.choice([500.0, 3000.0]),
            late_ms=self.dice.choice([0.0, 2_000.0, 10_000.0, 40_000.0]),
        )
        self.nodes: list[Node] = []
        """The gateways that clients may find; the last one leads, or is about to."""
        self.running: list[Node] = []
        """All that have not ended."""
        self.acked: dict[int, dict[int, bytes]] = defaultdict(dict)
        """What was acknowledged at which offset of each partition."""
        self.seen: dict[int, dict[int, bytes]] = defaultdict(dict)
        """What consumers have read."""
        self.sent: dict[int, Counter[bytes]] = defaultdict(Counter)
        """How often each value may be stored, but for what an idempotent producer repeats."""
        self.working = True
        self.counts: Counter[str] = Counter()
        """What has happened: a world in which nothing does complains of nothing."""
        self.groups = [GroupLives(self, "members", 2)]
        self.committed: dict[str, int] = {}
        """The last offset of each group whose commit was acknowledged."""
        self.tried: dict[str, int] = {}
        """The last one that was sent."""

    # Gateways

    async def start(self, number: int) -> Node:
        """Start a gateway; waits until the store is its own."""
        machine = Machine()
        with machine.here():
            return await self._start_on(machine, number)

    async def _start_on(self, machine: Machine, number: int) -> Node:
        store = open_simulated(self.name, options=self.options)
        await store.__aenter__()
        with trio.fail_after(120):
            while True:
                gateway = Gateway(store, listen=None, mapping=self.mapping, config={"node.id": number})
                node = Node(store, gateway, machine)
                self.running.append(node)
                try:
                    await node.gateway.start()
                except KafkaError:  # the one before has renewed it in the last moment
                    self.running.remove(node)
                    await trio.sleep(1)
                else:
                    self.nodes.append(node)
                    return node

    async def end(self, node: Node, *, killed: bool = False) -> None:
        """Have a gateway closed, or killed."""
        node.machine.go_on()
        if killed:
            node.store.manager.reachable = False
            node.store.broker.shut()
            node.gateway._supervisor.fail(Killed())
        if node in self.nodes:
            self.nodes.remove(node)
        with suppress(KafkaError, HtpError, Killed):
            await node.gateway.close(0.0 if killed else 5.0)
        self.running.remove(node)
        process_memory.cache_clear()
        await node.store.aclose()

    async def lead(self, times: int) -> None:
        """Gateways take the store over from one another."""
        node = await self.start(1)
        wire = connect(node.gateway)
        with trio.fail_after(60):
            await wire.create(TOPIC, PARTITIONS)
        await wire.aclose()
        for _ in range(times):
            await trio.sleep(self.dice.random() * self.dice.choice([1, 10, 40]))
            number, kind = self.dice.choice([1, 2]), self.dice.choice(KINDS)
            self.counts[kind] += 1
            if self.dice.random() < 0.2:
                self.counts["clock"] += 1
                node.machine.wall_s += self.dice.uniform(-3600, 3600)
            if kind == "cut off":
                node.store.manager.reachable = False  # and its brokers are not
                old, node = node, await self.start(3 - number)
                await trio.sleep(self.dice.random() * 20)
                await self.end(old, killed=True)
            elif kind == "stopped":
                node.machine.stop()
                old, node = node, await self.start(3 - number)
                await trio.sleep(self.dice.random() * self.dice.choice([0.1, 10]))
                old.machine.go_on()
                await trio.sleep(self.dice.random() * 5)
                await self.end(old, killed=True)
            else:
                await self.end(node, killed=kind == "killed")
                node = await self.start(number)
            self.counts["taken over"] += 1
        await trio.sleep(5)
        self.working = False

    # Clients

    @asynccontextmanager
    async def connected(self, _number: int | None = None) -> AsyncIterator[Wire | None]:
        """A connection to any gateway, for as long as it lasts; None if there is none now."""
        found = [node for node in self.nodes if node.gateway.failure is None]
        if not found:
            await trio.sleep(0.2)
            yield None
            return
        node = self.dice.choice(found)
        with node.machine.here():
            connecting = connection(node.gateway)
            wire = await connecting.__aenter__()
        try:
            yield wire
        finally:
            await connecting.__aexit__(None, None, None)

    async def answer(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """What a gateway answers; None if it does not."""
        return await answer_of(ask, _PATIENCE_S)

    async def produce(self, name: str, partition: int, *, idempotent: bool) -> None:
        """Produce one batch after the other, until the gateways have taken over often enough."""
        producer_id, number, sequence = -1, 0, 0
        values: list[bytes] = []
        while self.working:
            async with self.connected() as wire:
                while wire is not None and self.working:
                    if idempotent and producer_id < 0:
                        producer_id = await self.answer(wire.producer_id) or -1
                        if producer_id < 0:
                            await trio.sleep(0.1)
                            break
                    if not values:
                        values = [f"{name}-{number + each}".encode() for each in range(self.dice.randint(1, 3))]
                        number += len(values)
                        self.sent[partition].update(values)
                    batch = batch_of(
                        *values,
                        timestamp=int((START_S + trio.current_time()) * 1000),
                        producer_id=producer_id,
                        producer_epoch=0 if idempotent else -1,
                        sequence=sequence if idempotent else -1,
                    )
                    row = await self.answer(partial(self._send, wire, batch, partition))
                    if row is not None and not row.error_code:
                        for offset, value in enumerate(values, row.base_offset):
                            self.acked[partition][offset] = value
                        self.counts["acknowledged"] += 1
                        sequence += len(values)
                        values = []
                    else:
                        self.counts["failed"] += 1
                        if not idempotent:  # it is not sent again
                            values = []
                        await trio.sleep(self.dice.random())
                        break
                    await trio.sleep(self.dice.random() * 2)

    async def _send(self, wire: Wire, batch: bytearray, partition: int) -> Any:
        request = produce_request(TOPIC, batch, partition)
        await wire.send(request, 9)
        return (await wire.read(request, 9)).responses[0].partition_responses[0]

    async def consume(self, partition: int) -> None:
        """Read from wherever the last reading ended."""
        offset = 0
        while self.working:
            async with self.connected() as wire:
                while wire is not None and self.working:
                    least = max(self.acked[partition], default=-1) + 1
                    row = await self.answer(partial(wire.fetch, TOPIC, offset, partition, max_wait_ms=500))
                    if row is None or row.error_code:
                        await trio.sleep(self.dice.random())
                        break
                    end = row.high_watermark
                    promise(end >= least, f"partition {partition}: {end} was told as the end, and {least} was")
                    self.saw(partition, offset, row.records)
                    if self.seen[partition]:
                        offset = max(self.seen[partition]) + 1
                    if self.dice.random() < 0.1:
                        offset = self.dice.randint(0, offset)  # from anywhere
                    await trio.sleep(self.dice.random())

    def saw(self, partition: int, offset: int, records: Any) -> None:
        seen = self.seen[partition]
        for record in decode_records(records or b"", TOPIC, partition, start_offset=offset):
            before = seen.setdefault(record.offset, record.value)
            promise(before == record.value, f"offset {record.offset} was {before!r}, and is {record.value!r}")
            self.counts["read"] += 1

    async def coordinator(self, _group: str) -> int | None:
        """Whoever leads does; which one that is, clients have to find out."""
        return None

    async def commit(self, group: str) -> None:
        """Commit one offset after the other, and look at times what is committed."""
        number = 0
        while self.working:
            async with self.connected() as wire:
                while wire is not None and self.working:
                    self.tried[group] = number
                    code = await self.answer(partial(wire.commit, group, TOPIC, number))
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
        """Read everything, with a gateway that has just taken over."""
        for node in list(self.nodes):
            await self.end(node)
        node = await self.start(1)
        for partition in range(PARTITIONS):
            stored = await self._read_all(partition)
            self._check(partition, stored)
        with trio.fail_after(600):
            for group in sorted(self.tried):
                found = False
                while not found:
                    async with self.connected() as wire:
                        found = wire is not None and await self.look_up(wire, group)
                    await trio.sleep(0.5)
        await self.end(node)

    async def _read_all(self, partition: int) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        with trio.fail_after(600):
            while True:
                async with self.connected() as wire:
                    assert wire is not None
                    offset = max(found, default=-1) + 1
                    row = await self.answer(partial(wire.fetch, TOPIC, offset, partition))
                    if row is None or row.error_code:
                        await trio.sleep(1)
                        continue
                    records = decode_records(row.records or b"", TOPIC, partition, start_offset=offset)
                    if not records and offset >= row.high_watermark:
                        return found
                    found |= {record.offset: record.value for record in records}

    def _check(self, partition: int, stored: dict[int, bytes]) -> None:
        where = f"partition {partition}"
        check_stored(where, stored, self.acked[partition], self.seen[partition], self.sent[partition])
        check_sequence(where, stored, "idempotent")
        acked = [self.acked[partition][offset] for offset in sorted(self.acked[partition])]
        for name in {value.decode().rpartition("-")[0] for value in acked}:
            numbers = [int(value.decode().rpartition("-")[2]) for value in acked if value.startswith(name.encode())]
            promise(numbers == sorted(numbers), f"{where}: what {name} sent is out of order: {numbers}")

    async def run(self, takeovers: int) -> None:
        try:
            await self._go_on(takeovers)
            await self.check()
        finally:
            with trio.CancelScope(shield=True):
                for node in list(self.running):  # a promise was broken
                    await self.end(node, killed=True)

    async def _go_on(self, takeovers: int) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.lead, takeovers)
            for partition in range(PARTITIONS):
                for kind in ("idempotent", "plain"):
                    name = f"{kind}{partition}"
                    nursery.start_soon(partial(self.produce, name, partition, idempotent=kind == "idempotent"))
                nursery.start_soon(self.consume, partition)
            for group in self.groups:
                nursery.start_soon(group.live)
            nursery.start_soon(self.commit, "g")


def live(seed: int, mapping: str, takeovers: int = 4) -> World:
    """A world, and all its promises kept; raises `Violated` if one was broken."""
    world = World(seed, mapping)

    async def main(_: Loop) -> None:
        async with open_simulated(world.name, options=world.options) as store:
            place = store.installation
            await world.run(takeovers)
            for fate in SendFate:
                world.counts[fate.name] = place.met.count(fate)

    try:
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
    broken = []
    for tried in range(int(sys.argv[1]), int(sys.argv[2])):
        for mapping in sys.argv[3:] or ["domain", "multilevel"]:
            try:
                print(tried, mapping, dict(live(tried, mapping).counts))
            except Exception:
                traceback.print_exc()
                broken.append((tried, mapping))
    print("broken:", broken)
