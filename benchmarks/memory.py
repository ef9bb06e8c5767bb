"""What things take that a gateway keeps for its clients, in bytes of resident memory beside what it counts for them.

Each kind is made in a process of its own: some thousands first, since the first ones take more, then as many as are
asked for. `python -m benchmarks.memory [COUNT [WORD …]]`: all kinds, or those whose names contain one of the words.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count as numbers
from itertools import islice
from typing import Any, Final, TypeAlias

import anyio
import psutil
from rich.table import Table

from benchmarks.harness import console, machine
from kclient.gateway import Gateway
from kclient.htp.embedded import open_embedded
from kclient.htp.embedded.files import Files
from kclient.protocol.messages import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.gateway_wire import Wire, batch_of, connect, produce_request

WARM: Final = 2_000
_CONNECTIONS: Final = 9_000
"""A process has so many sockets in most places."""
_BESIDE: Final = ("read buffers", "checkpoints")
_WIDE: Final = 1_000
"""Partitions of the topics that many are made of."""
_UNANSWERED: Final = 60
_PIPELINED: Final = 400
_WITHOUT_ID: Final = 3
"""The last version of JoinGroup in which a member comes without an id."""

Make: TypeAlias = "Callable[[Gateway, Wire, Iterator[int], int], Awaitable[None]]"
KINDS: dict[str, Make] = {}


def kind(name: str) -> Callable[[Make], Make]:
    """Register what makes so many of a kind; the numbers that it takes are given once."""

    def register(make: Make) -> Make:
        KINDS[name] = make
        return make

    return register


_kept: list[Any] = []


class HangingFiles(Files):
    """A disk whose syncs hang when it is told so."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def sync(self, fd: int, point: Any) -> None:
        self.goes_on.wait()
        super().sync(fd, point)

    def sync_everything(self, fd: int, point: Any) -> None:
        self.goes_on.wait()
        super().sync_everything(fd, point)


FILES: Final = HangingFiles()


_CONNECTS: Final = """
import socket, sys
host, port, many = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
kept = [socket.create_connection((host, port)) for _ in range(many)]
sys.stdin.read()
"""


@kind("connection")
async def connections(gateway: Gateway, _wire: Wire, _numbers: Iterator[int], many: int) -> None:
    host, port = gateway.bootstrap.rsplit(":", 1)
    before = gateway.connections
    _kept.append(await anyio.open_process([sys.executable, "-c", _CONNECTS, host, port, str(many)]))
    while gateway.connections < before + many:  # noqa: ASYNC110
        await anyio.sleep(0.05)


@kind("partition of a fetch session")
async def session_partitions(gateway: Gateway, wire: Wire, _numbers: Iterator[int], many: int) -> None:
    await wire.create("wide", _WIDE)
    for _ in range(many // _WIDE):
        rows = [FetchRequestPartition(partition=number, fetch_offset=0) for number in range(_WIDE)]
        request = FetchRequest(
            session_id=0,
            session_epoch=0,
            max_wait_ms=0,
            min_bytes=0,
            topics=[FetchRequestTopic(topic="wide", partitions=rows)],
        )
        client = connect(gateway)
        _kept.append(client)
        assert (await client(request, 11)).session_id


@kind("member of a group")
async def members(gateway: Gateway, _wire: Wire, numbers: Iterator[int], many: int) -> None:
    await _join(gateway, (f"g{next(numbers) // 1000}" for _ in range(many)), _WITHOUT_ID)


@kind("group of one member")
async def groups(gateway: Gateway, _wire: Wire, numbers: Iterator[int], many: int) -> None:
    await _join(gateway, (f"g{next(numbers)}" for _ in range(many)), _WITHOUT_ID)


@kind("id that waits for its member")
async def pending(gateway: Gateway, _wire: Wire, numbers: Iterator[int], many: int) -> None:
    await _join(gateway, (f"g{next(numbers) // 1000}" for _ in range(many)), _WITHOUT_ID + 1)


async def _join(gateway: Gateway, names: Iterator[str], version: int) -> None:
    """Parked on connections of their own, which leave so many unanswered."""
    wanted = _joined(gateway)
    protocols = [JoinGroupRequestProtocol(name="range", metadata=bytes(100))]
    while some := list(islice(names, _UNANSWERED)):
        client = connect(gateway)
        _kept.append(client)
        for name in some:
            request = JoinGroupRequest(
                group_id=name,
                session_timeout_ms=1_800_000,
                rebalance_timeout_ms=1_800_000,
                protocol_type="consumer",
                protocols=protocols,
            )
            await client.send(request, version)
            if version > _WITHOUT_ID:
                await client.read(request, version)
        wanted += len(some)
        while _joined(gateway) < wanted:  # noqa: ASYNC110
            await anyio.sleep(0.01)


def _joined(gateway: Gateway) -> int:
    rosters = [each.group.members for each in gateway.parts.groups.groups.values()]
    return sum(len(members) + len(members.pending_joins) for members in rosters)


@kind("committed offset")
async def offsets(_gateway: Gateway, wire: Wire, numbers: Iterator[int], many: int) -> None:
    await wire.create("wide", _WIDE)
    for _ in range(many // _WIDE):
        await _commit(wire, f"g{next(numbers)}", range(_WIDE))


@kind("group of one committed offset")
async def offset_groups(_gateway: Gateway, wire: Wire, numbers: Iterator[int], many: int) -> None:
    await wire.create("wide", _WIDE)
    for _ in range(many):
        await _commit(wire, f"g{next(numbers)}", range(1))


async def _commit(wire: Wire, group: str, partitions: range) -> None:
    rows = [OffsetCommitRequestPartition(partition_index=number, committed_offset=1) for number in partitions]
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name="wide", partitions=rows)],
    )
    await wire(request, 8)


@kind("producer that a log knows")
async def producers(_gateway: Gateway, wire: Wire, numbers: Iterator[int], many: int) -> None:
    await wire.create("wide", _WIDE)
    for _ in range(many):
        number = next(numbers)
        for sequence in range(5):
            batch = batch_of(b"x", producer_id=number, producer_epoch=0, sequence=sequence)
            await wire.produce("wide", batch, number % 100, acks=1)


@kind("topic")
async def topics(_gateway: Gateway, wire: Wire, numbers: Iterator[int], many: int) -> None:
    for _ in range(many):
        await wire.create(f"topic-{next(numbers)}")


@kind("partition that was never used")
async def partitions(_gateway: Gateway, wire: Wire, numbers: Iterator[int], many: int) -> None:
    for _ in range(many // _WIDE):
        await wire.create(f"topic-{next(numbers)}", _WIDE)


@kind("partition that is open")
async def opened(gateway: Gateway, wire: Wire, numbers: Iterator[int], many: int) -> None:
    for _ in range(many // _WIDE):
        name = f"topic-{next(numbers)}"
        await wire.create(name, _WIDE)
        for number in range(_WIDE):
            partition = gateway.parts.partitions.get(name, number)
            assert partition is not None
            await partition.ready()


@kind("partition that was written to")
async def written(_gateway: Gateway, wire: Wire, numbers: Iterator[int], many: int) -> None:
    for _ in range(many // _WIDE):
        name = f"topic-{next(numbers)}"
        await wire.create(name, _WIDE)
        for number in range(_WIDE):
            await wire.produce(name, batch_of(b"x"), number)


@kind("append that waits for its sync")
async def appends(_gateway: Gateway, wire: Wire, _numbers: Iterator[int], many: int) -> None:
    await wire.create("t")
    await wire.produce("t", batch_of(b"x"))
    FILES.goes_on.clear()
    for _ in range(many):
        await wire.produce("t", batch_of(b"x"), acks=1)


@kind("request that waits for a sync")
async def outstanding(gateway: Gateway, wire: Wire, numbers: Iterator[int], many: int) -> None:
    """Beside its append, and what its client keeps."""
    await wire.create("t")
    if FILES.goes_on.is_set():
        await wire.produce("t", batch_of(b"x"))
        FILES.goes_on.clear()
    left = many
    while left > 0:
        if next(numbers) % _PIPELINED == 0:
            _kept.append(connect(gateway))
        await _kept[-1].send(produce_request("t", batch_of(b"x")), 9)
        left -= 1
    await anyio.sleep(2)


@asynccontextmanager
async def running() -> AsyncIterator[tuple[Gateway, Wire]]:
    config = {
        "connections.max.memory.bytes": 8 << 30,
        "group.initial.rebalance.delay.ms": 1_000_000,
        "max.incremental.fetch.session.cache.slots": 100_000,
        "producer.id.cache.size": 10_000_000,
    }
    with tempfile.TemporaryDirectory() as folder:
        async with (
            open_embedded(f"{folder}/data", files=FILES) as store,
            Gateway(store, listen="127.0.0.1:0", config=config) as gateway,
        ):
            try:
                yield gateway, connect(gateway)
            finally:
                FILES.goes_on.set()


def _resident() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def _counted(gateway: Gateway) -> int:
    budget = gateway._running().budget
    return budget.used + sum(account.held for account in budget.ledger.accounts() if account.name not in _BESIDE)


async def measure(name: str, many: int) -> None:
    """In this process, which ends then without closing anything."""
    async with running() as (gateway, wire):
        supply = numbers()
        await KINDS[name](gateway, wire, supply, WARM)
        before = _resident(), _counted(gateway)
        await KINDS[name](gateway, wire, supply, many)
        await anyio.sleep(0.5)
        after = _resident(), _counted(gateway)
        print(json.dumps({"resident": after[0] - before[0], "counted": after[1] - before[1]}), flush=True)
        os._exit(0)


def main(many: int = 100_000, words: tuple[str, ...] = ()) -> None:
    table = Table(title="bytes of memory that a gateway keeps for each", caption=f"{many:,} of each · {machine()}")
    table.add_column("kind")
    for heading in ("resident", "counted"):
        table.add_column(heading, justify="right")
    for name in KINDS:
        if words and not any(word in name for word in words):
            continue
        count = min(many, _CONNECTIONS) if name == "connection" else many
        command = [sys.executable, "-m", "benchmarks.memory", "measure", name, str(count)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        row = [f"{found[each] / count:,.0f}" for each in ("resident", "counted")]
        console.print(f"[dim]{name}: {' | '.join(row)}[/dim]", highlight=False)
        table.add_row(name, *row)
    console.print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        anyio.run(measure, sys.argv[2], int(sys.argv[3]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000, tuple(sys.argv[2:]))
