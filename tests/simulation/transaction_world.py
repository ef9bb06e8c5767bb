"""Transactions over gateways that serve one store together, in virtual time; and what the checker says of them.

Our producers append to several partitions, and copy as members of a group, by the transactions of Kafka 4 and of 3.9;
coordinators, leaders and the group's owner are gateways that come, go and crash, most often at a step of a transaction
that the seed chooses. Clients stand still for longer than their transactions may be open, connections break, and
requests arrive after their client has given them up. All of it is recorded, and judged at the end.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import trio

from kclient.consumer.base import ConsumerBase
from kclient.producer import base as producer_base
from kclient.producer import lifecycle as producer_lifecycle
from kclient.producer.transaction_coordinator import CoordinatorRequests
from kclient.producer.transactions import V1
from kclient.records import decode_records, iter_headers
from kclient.types import TopicPartition
from tests.gateway_wire import Wire
from tests.simulation.cluster_nodes import Node
from tests.simulation.cluster_world import NUMBERS, PARTITIONS, World, live
from tests.simulation.inline_threads import SimulatedTime
from tests.simulation.machines import current
from tests.simulation.network import Network
from tests.simulation.promises import promise
from tests.simulation.transaction_clients import (
    COPY,
    GROUP,
    INPUT,
    CommittedReader,
    TransactionalClient,
    append,
    committed_offsets,
    copy,
    watch_offsets,
)
from tests.simulation.transaction_seams import SEAMS, Seam, Seams
from tests.transaction_checker import check
from tests.transaction_histories import History, Poll

TRANSACTION_EVENTS = (
    "seam", "seam", "seam", "seam", "seam", "seam", "closed", "killed", "cut off", "stopped", "moved", "drained",
    "slow", "clock",
)  # fmt: skip
"""What happens."""
_DECIDED_S = 120.0
"""By so many seconds after the last trouble every transaction is decided."""


class TransactionWorld(World):
    """A world of transactions. Takes what `World` takes, and more.

    Args:
        seed: Of the world.
        backend: `memory` or `embedded`.
        folder: For the directory of the latter.
        events: What may happen.
        seams: Where gateways may crash, if anywhere.
        patience_s: Within so many seconds another run of each client takes over from the one that is there.
    """

    def __init__(
        self,
        seed: int,
        backend: str,
        folder: Path,
        events: Sequence[str] = TRANSACTION_EVENTS,
        *,
        seams: Sequence[Seam] = SEAMS,
        patience_s: float = 60.0,
    ) -> None:
        super().__init__(seed, backend, folder, events)
        self.seed = seed
        self.partitions = PARTITIONS
        self.timeout_ms = self.dice.choice([3000, 10_000])
        """How long transactions may be open."""
        self.network = Network(self.dice, self.dice.choice([0.0, 0.01, 0.04]))
        self.history = History()
        self.seams = Seams(self.strike)
        self.ready = trio.Event()
        """There are topics."""
        self._moments = 0
        self.patience_s = patience_s
        self._crashed: set[Node] = set()
        self._ended: set[Node] = set()
        self._seams = seams
        self._begun = trio.Event()
        """The first gateway has crashed at its seam, or none has come there."""
        self._seam = seed
        """The next seam at which a gateway crashes; seeds that follow one another begin with another one each."""
        self._clients = [
            TransactionalClient(self, f"{kind}{number}", work, old=self.dice.random() < 0.4)
            for kind, work in (("append", append), ("copy", copy))
            for number in range(2)
        ]

    def now(self) -> float:
        """The moment: what is recorded later is later, also in the same instant of virtual time."""
        self._moments += 1
        return float(self._moments)

    # Gateways

    def make(self, number: int, store: Any) -> Node:
        node = Node(
            number, store, self.dice, self.disk, listen=f"127.0.0.{number}:9092", mapping=self.mapping
        )  # fmt: skip
        self.seams.watch(node)
        return node

    async def prepare(self, wire: Wire) -> None:
        for topic in (INPUT, COPY):
            await wire.create(topic, PARTITIONS)
        self.ready.set()

    async def start(self, number: int) -> Node:
        """Start a gateway, once the process that had its number before is gone."""
        while any(node.number == number for node in self.running):
            await trio.sleep(0.1)
        return await super().start(number)

    def strike(self, node: Node) -> None:
        """A gateway has come to a seam where it is to crash, and does so in this moment."""
        self.crash(node)

    def crash(self, node: Node) -> None:
        """Have a gateway crash in this moment: nobody hears of it any more, and it does not reach the store."""
        if node in self._crashed:
            return
        self._crashed.add(node)
        node.reached.manager.reachable = False
        self.network.down(f"127.0.0.{node.number}")
        if self.nodes.get(node.number) is node:
            del self.nodes[node.number]

    async def end(self, node: Node, kind: str) -> None:
        if kind != "closed":
            self.crash(node)
        if node not in self._ended:  # one that is being closed may crash meanwhile
            self._ended.add(node)
            await super().end(node, kind)

    async def happen(self, kind: str, node: Node) -> None:
        await self._begun.wait()
        if kind == "seam":
            await self._strike(15)
        else:
            await super().happen(kind, node)

    async def begin(self) -> None:
        """Have the first crash of the world happen, at the seam that the seed says."""
        await self._strike(30)
        self._begun.set()

    async def _strike(self, seconds: float) -> None:
        struck = await self.next_seam(seconds)
        if struck is not None:
            await self.end(struck, "killed")

    async def next_seam(self, seconds: float) -> Node | None:
        """Have whoever comes to the next seam crash there; None if nobody does within so many seconds."""
        if not self._seams:
            return None
        seam = self._seams[self._seam % len(self._seams)]
        self._seam += self.dice.randrange(1, len(SEAMS))
        struck = await self.seams.strike(seam, self.dice.choice([1, 1, 2]), seconds)
        if struck is not None:
            self.counts[str(seam)] += 1
        return struck

    # What is there in the end

    async def check(self) -> None:
        for node in list(self.running):
            await self.end(node, self.dice.choice(["closed", "killed"]))
        self.network.trouble = 0.0
        await self.start(self.dice.choice(NUMBERS))
        history = self.history
        with trio.fail_after(600):
            until = trio.current_time() + _DECIDED_S
            for topic in (INPUT, COPY):
                for partition in range(PARTITIONS):
                    await self._read_log(TopicPartition(topic, partition), until)
            while len(history.committed) < PARTITIONS:
                history.committed |= await committed_offsets(self)
                promise(trio.current_time() < until, f"the offsets of {GROUP} are not stable: {history.committed}")
                await trio.sleep(0.5)
        for node in list(self.running):
            await self.end(node, "closed")
        for client in self._clients:
            client.risk(self.network.late_markers)
        anomalies = check(history)
        promise(not anomalies, "\n".join(map(str, anomalies[:10])))

    async def _read_log(self, tp: TopicPartition, until: float) -> None:
        """Read a partition once all transactions of it are decided: what is there, and what of it is committed."""
        log: list[tuple[int, bytes]] = []
        committed: list[tuple[int, bytes]] = []
        offset = 0
        while True:
            async with self.connected(None) as wire:
                row = None
                if wire is not None:
                    row = await self.answer(partial(wire.fetch, tp.topic, offset, tp.partition, isolation_level=1))
            if row is None or row.error_code or row.last_stable_offset < row.high_watermark:
                promise(trio.current_time() < until, f"{tp} is not decided: {row}")
                await trio.sleep(0.5)
                continue
            if offset >= row.high_watermark:
                break
            data = row.records or b""
            hidden = [(each.producer_id, each.first_offset) for each in row.aborted_transactions or ()]
            for found, records in (
                (log, decode_records(data, *tp, start_offset=offset)),
                (committed, decode_records(data, *tp, start_offset=offset, aborted=hidden)),
            ):
                found += [(each.offset, bytes(each.value or b"")) for each in records]
            offset = max(header.next_offset for _, header in iter_headers(data))
        self.history.log[tp] = log
        self.history.polls.append(Poll("the last one", self.now(), tp, committed))

    async def run(self, times: int) -> None:
        try:
            with self.network.installed(), self.seams.installed(), _clients_by_seed(self.seed):
                async with trio.open_nursery() as late:
                    self.network.later = late.start_soon
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self.rule, times)
                        await self.ready.wait()
                        nursery.start_soon(self.begin)
                        nursery.start_soon(CommittedReader(self).live)
                        nursery.start_soon(watch_offsets, self)
                        for client in self._clients:
                            nursery.start_soon(client.live)
                    await self.check()
                    late.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                for node in list(self.running):  # a promise was broken
                    await self.end(node, "killed")


@contextmanager
def _clients_by_seed(seed: int) -> Iterator[None]:
    """Our clients take virtual time for the time, and what they leave to chance is decided by the seed."""
    sown = Random.seed
    dice = Random(seed)
    note = CoordinatorRequests._note

    def sow(self: Random, a: Any = None, *arguments: Any) -> None:
        frame = sys._getframe(2)  # who makes it: modules that are imported only once do not count
        if frame.f_code.co_filename == "<string>" and frame.f_back is not None:  # a dataclass
            frame = frame.f_back
        ours = a is None and "kclient" in Path(frame.f_code.co_filename).parts
        sown(self, dice.getrandbits(64) if ours else a, *arguments)

    def noted(self: CoordinatorRequests, *arguments: Any) -> None:
        note(self, *arguments)
        if getattr(current(), "old", False):
            self.version = V1

    state = random.getstate()
    with ExitStack() as stack:
        for module in (producer_base, producer_lifecycle):
            stack.enter_context(mock.patch.object(module, "time", SimulatedTime()))
        stack.enter_context(mock.patch.object(ConsumerBase, "_clock", staticmethod(SimulatedTime.monotonic)))
        stack.enter_context(mock.patch.object(Random, "seed", sow))
        stack.enter_context(mock.patch.object(CoordinatorRequests, "_note", noted))
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(state)


def transact(seed: int, times: int = 2, backend: str | None = None, **options: Any) -> TransactionWorld:
    """A world of transactions, judged; see `live`."""
    return live(seed, times, backend, **{"events": TRANSACTION_EVENTS, "kind": TransactionWorld, **options})


if __name__ == "__main__":
    import logging
    import traceback

    logging.disable()
    first, count = int(sys.argv[1]), int(sys.argv[2])
    for number in range(first, first + count):
        try:
            world = transact(number)
            print(number, hashlib.sha256(repr(world.history).encode()).hexdigest()[:8], dict(world.counts), flush=True)
        except BaseException as error:
            traceback.print_exception(error)
            print(f"SEED {number}: {error!r}", flush=True)
