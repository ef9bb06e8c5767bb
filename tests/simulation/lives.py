"""Races of life and death: clients make, delete, make again, grow, configure, trim, fill, read and commit topics, all
at the same time, while time and retention pass and the gateway is restarted or its power is cut; and a model of what
was acknowledged, by which the whole is judged.

Each client has a connection of its own and does one thing after the other; what several do overlaps at every await, in
an order that the seed decides (`inline_threads`), over a store whose calls take their time (`tests.slow_store`) and
fail at times. Each topic name is made and deleted by one client, so that it is known whether it is there; all clients
use it.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import trio

from kclient.concurrency import first_leaf
from kclient.errors import ErrorCode
from kclient.gateway import Gateway
from kclient.gateway.virtual import topic as shared_topic
from kclient.htp import Place, StorageError, memory, open_store
from kclient.htp.port import CAP_NOWAIT, CAP_SHARED
from kclient.memory_ledger import process_memory
from kclient.records import decode_records, iter_headers
from tests.gateway_wire import connect
from tests.simulation.inline_threads import START_S, Loop, run
from tests.simulation.lives_client import EARLIEST, LATEST, OFFSETS_KEPT_S, Client
from tests.simulation.lives_model import NAMES, Incarnation, Model, promise
from tests.slow_store import Gate, SlowStore
from tests.uncertain_store import UNKNOWN, Fate, UncertainStore
from tests.unit.htp.disks import PowerCutFiles

_OPENING_S = 20
"""Seconds after the start in which opening a partition may be slow."""
_HELD_S = 20
"""Seconds for which a call is held at most."""


class Fallible(SlowStore):
    """A store whose calls take a while, and fail at times before they do anything."""

    FAILING = frozenset(
        {"commit", "open", "trim", "delete", "create_topic", "delete_domain", "roll", "get", "scan", "send"}
    )

    def __init__(self, store: Any, world: World) -> None:
        super().__init__(store, self._slowly)
        self.world = world

    @property
    def broker(self) -> Any:
        broker = super().broker
        lacking = {CAP_SHARED} if self.world.at_once else {CAP_NOWAIT, CAP_SHARED}
        broker.capabilities = broker.capabilities - lacking
        opening = broker.open

        async def open_slowly(place: Place, *args: Any, **options: Any) -> Any:
            world = self.world
            if world.opens_slowly and trio.current_time() < world.started + _OPENING_S:
                await trio.sleep(world.dice.random() * world.dice.choice([0.3, 3.0]))
            topic = await opening(place, *args, **options)
            topic._around = partial(self._slowly, topic={*place.topic})
            return topic

        broker.open = open_slowly
        return broker

    @asynccontextmanager
    async def _slowly(self, name: str, topic: Collection[str] = ()) -> AsyncIterator[None]:
        world = self.world
        await self._pause()
        if world.running and name in self.FAILING and world.dice.random() < world.faults:
            raise StorageError(f"{name} fails in this simulation")
        yield
        if name == "segments":
            for gate in [gate for held, gate in world.gates.items() if held in topic]:
                with trio.move_on_after(_HELD_S):
                    await gate.wait()
        await self._pause()

    async def _pause(self) -> None:
        world = self.world
        for _ in range(world.dice.randrange(world.turns + 1)):
            await trio.lowlevel.checkpoint()
        if world.dice.random() < world.slowness:
            await trio.sleep(world.dice.random() * world.dice.choice([0.01, 0.3, 3.0]))


class World:
    """The lives of one store.

    Args:
        seed: Decides everything.
        backend: `memory` or `embedded`.
        folder: For the disks of the embedded one.
        loop: Where HTP does its work.
        mapping: Of the gateway.
        compacting: Whether most topics are compacted.
    """

    def __init__(
        self, seed: int, backend: str, folder: Path, loop: Loop, mapping: str = "domain", *, compacting: bool = False
    ) -> None:
        self.seed = seed
        self.compacting = compacting
        self.mapping = mapping
        self.backend = backend
        self.folder = folder
        self.loop = loop
        self.dice = Random(seed)
        self.clients = self.dice.choice([2, 3, 4, 5])
        self.turns = self.dice.choice([0, 2, 6])
        self.slowness = self.dice.choice([0.02, 0.2, 0.5])
        self.faults = self.dice.choice([0.0, 0.0, 0.0, 0.03])
        self.uncertain = self.dice.choice([0.05, 0.3]) if seed % 4 in (1, 2) else 0.0
        """How often the store does not tell what became of a send: in half of the lives of each backend never."""
        self.at_once = self.dice.choice([True, False])
        """Whether the store takes appends at once; else they take their time, as any other call."""
        loop.sync_s = self.dice.choice([0.05, 0.05, 2.0])
        self.gates: dict[str, Gate] = {}
        """What holds passes of retention, by the name of the topic that they are at."""
        self.opens_slowly = False
        """Whether opening a partition takes its time after the start, so that topics go before their turn has come."""
        self.started = 0.0
        """When this life began."""
        self.model = Model()
        self.gateway: Gateway
        self.epoch = -1
        """The gateway's."""
        self.store: Any
        self.running = False
        self.due: trio.Event = trio.Event()
        """The power goes off."""
        self.answers = 0
        """So many acknowledgements are heard before it does, at most; none if it is below 0."""
        self.repeats = False
        """Whether only those of what was sent more than once count."""
        self.cut = False
        """The power is off: what is answered from now on was not heard by anybody."""
        self.lives = 0
        self.disk: PowerCutFiles | None = None
        self.members = [Client(self, number) for number in range(self.clients)]
        self.log: list[str] = []

    async def run(self) -> None:
        if self.backend == "embedded":
            self.disk = PowerCutFiles.found(self._base())
        memory.reset(self._name())
        try:
            for _ in range(self.dice.choice([2, 3, 4])):
                await self.live()
            await self.live(final=True)
        finally:
            memory.reset(self._name())

    def _name(self) -> str:
        return f"lives-{self.seed}"

    def _base(self) -> Path:
        return self.folder / f"life-{self.lives}"

    def _open_store(self) -> Any:
        if self.disk is None:
            return open_store(f"memory:{self._name()}")
        sync = self.dice.choice(["each", "auto", "filesystem"])
        return open_store(f"embedded:{self.disk.base}/data", files=self.disk, group_sync=sync)

    def _uncertain(self, inner: Any) -> UncertainStore:
        """The store, that does not tell what became of some sends."""
        store = UncertainStore(inner)
        broker = store.broker

        def fate() -> Fate:
            happens = self.running and self.dice.random() < self.uncertain
            return self.dice.choice(UNKNOWN) if happens else Fate.KNOWN

        async def arrive() -> None:
            if not self.cut:
                await broker.arrive()

        broker.fate = fate
        broker.soon = lambda decide: self.loop.later(decide, 2.0)
        broker.on_late = lambda: self.loop.later(lambda: self.loop.nursery.start_soon(arrive), 2.0)
        return store

    async def live(self, *, final: bool = False) -> None:
        """One life: start, work, and close in good order, or have the power cut."""
        self.cut = False
        process_memory.cache_clear()  # it is another process: what the last one held has gone with it
        inner = self._open_store()
        await inner.__aenter__()
        try:
            self.store = Fallible(self._uncertain(inner), self)
            await self._start()
            try:
                with trio.CancelScope() as scope:
                    if self.lives:
                        early = self.opens_slowly or self.dice.random() < 0.5
                        if not early or final:
                            await self.check()
                    if final:
                        return
                    self.running = True
                    await self._work(scope)
                    self.running = False
                    await trio.sleep(10)  # what was written is synced
                    await self.check()
            finally:
                self.running = False
                if self.cut and self.disk is None:
                    self.gateway._supervisor.fail(Killed())
                await self.gateway.close(0.0)
        finally:
            await inner.aclose()
        self.after()

    async def _start(self) -> None:
        """Start the gateway, under another number now and then: that one may have to watch the old one's lease."""
        number = self.dice.choice([1, 1, 1, 2])
        self.opens_slowly = self.dice.random() < 0.4
        self.gates.clear()
        config = {
            "node.id": number,
            "log.retention.check.interval.ms": self.dice.choice([1000, 20_000, 300_000]),
            "offsets.retention.minutes": OFFSETS_KEPT_S // 60,
            "offsets.retention.check.interval.ms": 60_000,
            "connections.max.idle.ms": -1,
        }
        if self.compacting:
            config["log.cleaner.backoff.ms"] = self.dice.choice([100, 10_000])
        gateway = Gateway(self.store, listen=None, mapping=self.mapping, config=config)
        with trio.fail_after(120):  # half a minute for the lease, and calls that take seconds
            await gateway.start()
        self.started = trio.current_time()
        self.gateway, self.epoch = gateway, gateway.parts.identity.leader_epoch
        promise(self.epoch > max(self.model.epochs.values(), default=-1), "the gateway's epoch is one of the past")

    async def _work(self, scope: trio.CancelScope) -> None:
        crash = self.dice.random() < 0.5
        async with trio.open_nursery() as nursery:
            for client in self.members:
                nursery.start_soon(client.live, self.dice.choice([5, 15, 30]))
            if crash:
                self.due = trio.Event()
                self.answers = self.dice.choice([-1, -1, 1, 5, 20])
                self.repeats = self.dice.random() < 0.5
                nursery.start_soon(self._crash_after, self.dice.random() * self.dice.choice([0.3, 3, 60]), scope)
                # whoever has ended before is not waited for
                nursery.start_soon(trio.sleep, 100)

    async def _crash_after(self, delay: float, scope: trio.CancelScope) -> None:
        with trio.move_on_after(delay if self.answers < 0 else 60):
            await self.due.wait()
        self.running = False
        self.cut = True
        self.lives += 1
        if self.disk is not None:
            target = self.folder / f"life-{self.lives}"
            self.disk.cut(target, self.dice if self.dice.random() < 0.7 else None)
        self.model.unsure.update(NAMES)
        for topic in self.model.all.values():
            topic.jumps = True
        for sent in self.model.sent.values():
            if sent.acks == 1:
                sent.sure = False  # it was written, and perhaps not synced
        scope.cancel()

    def hold(self, name: str) -> Gate:
        """Have passes of retention held once they have looked at a topic of this name, until that is let go on."""
        gate = self.gates[name] = Gate()
        return gate

    def heard(self, *, again: bool) -> None:
        """Something was acknowledged: `again` if it had been sent before."""
        if again or not self.repeats:
            self.answers -= 1
            if self.answers == 0:
                self.due.set()

    def after(self) -> None:
        """What the next life finds."""
        if not self.cut:
            self.lives += 1
            return
        if self.disk is not None:
            self.disk = PowerCutFiles.found(self._base())

    # --- the promises ---

    def check_records(self, topic: Incarnation, partition: int, row: Any, *, at_least: int) -> list[tuple[int, int]]:
        """What was read belongs there; offsets and serial numbers."""
        where = f"{topic.name}-{partition}"
        found: list[tuple[int, int]] = []
        for record in decode_records(row.records or b"", topic.name, partition, start_offset=at_least):
            serial = int(record.value)
            sent = self.model.sent.get(serial)
            promise(sent is not None, f"{where}: {serial} at {record.offset} was sent by nobody")
            assert sent is not None
            promise((sent.name, sent.partition) == (topic.name, partition), f"{where}: {sent} at {record.offset}")
            promise(
                sent.topic_id in (None, topic.topic_id),
                f"{where}: {sent} at {record.offset} belongs to another topic of that name",
            )
            promise(not found or record.offset > found[-1][0], f"{where}: offset {record.offset} after {found[-1:]}")
            found.append((record.offset, serial))
        return found

    async def check(self) -> None:
        """Everything that was acknowledged is there, when all is quiet."""
        checker = Client(self, 99)
        checker.wire = connect(self.gateway)
        for name in NAMES:
            await checker.find_out(name)
        await checker.look()
        for topic in list(self.model.live.values()):
            for partition in range(topic.partitions):
                await self._check_partition(checker, topic, partition)
        for client in self.members:
            client.wire = checker.wire
            await client.check_own()
        await checker.wire.aclose()

    async def _check_partition(self, checker: Client, topic: Incarnation, partition: int) -> None:
        where = f"{topic.name}-{partition}"
        start = await checker.offset(topic.name, EARLIEST, partition)
        end = await checker.offset(topic.name, LATEST, partition)
        promise(start is not None and end is not None, f"{where} has no offsets")
        assert start is not None
        assert end is not None
        promise(start >= topic.starts[partition], f"{where}: the start fell from {topic.starts[partition]} to {start}")
        promise(end >= topic.ends[partition], f"{where}: the end fell from {topic.ends[partition]} to {end}")
        found: list[tuple[int, int]] = []
        offset = start
        while True:
            row = await checker.fetch_at(topic, partition, offset)
            if row is not None and row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                moved = await checker.offset(topic.name, EARLIEST, partition)
                if moved is not None and moved > offset:  # by retention
                    offset, found = moved, []
                    continue
            promise(row is not None and not row.error_code, f"{where}: a fetch at {offset} of {start} to {end}: {row}")
            more = self.check_records(topic, partition, row, at_least=offset)
            ends = [header.next_offset for _, header in iter_headers(bytes(row.records or b""))]
            if not ends:
                break
            found += more
            offset = ends[-1]  # of a batch nothing may be left
        now = await checker.offset(topic.name, EARLIEST, partition)
        assert now is not None
        topic.starts[partition] = now
        topic.ends[partition] = end
        self._check_found(topic, partition, found, now, end)

    def _check_found(
        self, topic: Incarnation, partition: int, found: list[tuple[int, int]], start: int, end: int
    ) -> None:
        where = f"{topic.name}-{partition}"
        there: dict[int, list[int]] = defaultdict(list)
        last: dict[int, tuple[int, int]] = {}
        for offset, serial in found:
            there[serial].append(offset)
            sent = self.model.sent[serial]
            most = 1 if sent.once else sent.attempts
            promise(len(there[serial]) <= most, f"{where}: {sent} is there more than {most} times: {there[serial]}")
            if sent.once or sent.attempts == 1:
                before = last.get(sent.line, (0, 0))
                promise(before[0] < serial, f"{where}: {sent} at {offset} comes after {before} of the same line")
                last[sent.line] = serial, offset
        if not topic.jumps and not self.faults and not topic.compacted:
            offsets = [offset for offset, _ in found]
            expected = list(range(min([start, *offsets[:1]]), end))
            promise(offsets == expected, f"{where}: {offsets}, expected {expected}")
        # a power cut may take what came first and leave what came later, of what was not synced
        limit = max(topic.trimmed[partition], start if topic.retention_ms >= 0 or topic.jumps else 0)
        promise(start <= limit, f"{where} begins at {start}, and nothing was deleted but what is below {limit}")
        for sent in self.model.sent.values():
            if sent.topic_id != topic.topic_id or sent.partition != partition or not sent.sure:
                continue
            if sent.offset >= start:
                if topic.compacted and any(
                    offset > sent.offset and self.model.sent[serial].key == sent.key for offset, serial in found
                ):
                    continue
                promise(
                    sent.offset in there[sent.serial],
                    f"{where}: {sent} is {f'at {there[sent.serial]}' if there[sent.serial] else 'lost'}; "
                    f"the log begins at {start}",
                )
            elif sent.offset >= topic.trimmed[partition]:
                now_ms = int((START_S + trio.current_time()) * 1000)
                age_ms = now_ms - sent.stamp_ms
                promise(
                    0 <= topic.retention_ms < age_ms
                    or (topic.compacted and self.model.superseded_by_outlived(sent, topic, now_ms)),
                    f"{where}: {sent} was removed at an age of {age_ms} ms by retention.ms={topic.retention_ms}",
                )


class Killed(Exception):
    """The gateway is killed."""


def live(seed: int, backend: str | None = None, mapping: str = "domain", *, compacting: bool = False) -> World:
    """The lives that a seed decides; raises `Violated` where a promise is broken.

    Args:
        seed: Of the lives.
        backend: `memory` or `embedded`; if None, the seed says which.
        mapping: Of the gateway. With `virtual` the index is written after a few messages.
        compacting: Whether most topics are compacted, as often as they can be.
    """
    chosen = backend or ("memory" if seed % 2 else "embedded")

    async def main(loop: Loop) -> World:
        with tempfile.TemporaryDirectory() as folder:
            world = World(seed, chosen, Path(folder), loop, mapping, compacting=compacting)
            await world.run()
        return world

    with mock.patch.object(shared_topic, "_SAVED_MESSAGES", 4):
        return run(main, seed)


def main() -> None:
    """`python -m tests.simulation.lives FIRST LAST [memory|embedded]`: which of these seeds break a promise."""
    logging.disable()
    first, last, *backends = sys.argv[1:]
    failed = 0
    for seed in range(int(first), int(last)):
        for backend in backends or [None]:
            try:
                live(seed, backend)
            except Exception as error:
                failed += 1
                print(f"seed {seed} {backend or ''}: {first_leaf(error)!r}", flush=True)
    print(f"{failed} of {int(last) - int(first)} seeds broke a promise")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
