"""Who is closed while others wait for memory: not who waits for the gateway, as while its disk stalls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from kclient.gateway import Gateway, starting
from kclient.htp.embedded.files import Files
from kclient.protocol.messages.groups import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from kclient.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.gateway_wire import Wire, batch_of, connect, produce_request, running

pytestmark = pytest.mark.anyio

MEMORY = {"connections.max.memory.bytes": 16 << 20}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds are long for a test."""
    made = starting._server_settings
    monkeypatch.setattr(
        starting, "_server_settings", lambda config, quota: replace(made(config, quota), stall_timeout=0.2)
    )


async def until(true: Callable[[], object]) -> None:
    with anyio.fail_after(20):
        while not true():
            await anyio.sleep(0.005)


async def hang_amid_a_request(gateway: Gateway) -> None:
    """And be closed for it."""
    wire = connect(gateway)
    await wire.stream.send([(900_000).to_bytes(4, "big"), bytes(1000)])
    with anyio.fail_after(20):
        assert await wire.frame() is None
    await wire.aclose()


@pytest.mark.slow
async def test_producers_are_not_closed_while_the_disk_stalls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much of their pipelined requests waits for it, and whoever waits for that: they would send it twice."""
    goes_on = threading.Event()
    goes_on.set()
    sync = Files.sync

    def stalling(self: Files, *args: Any) -> Any:
        goes_on.wait()
        return sync(self, *args)

    monkeypatch.setattr(Files, "sync", stalling)
    offsets: list[int] = []

    async def produce(wire: Wire) -> None:
        request = produce_request("t", batch_of(bytes(900_000)))
        async with anyio.create_task_group() as sending:
            for _ in range(5):
                sending.start_soon(wire.send, request, 9)
        for _ in range(5):
            answer = (await wire.read(request, 9)).responses[0].partition_responses[0]
            assert not answer.error_code
            offsets.append(answer.base_offset)

    async with running(f"embedded:{tmp_path}", config=MEMORY) as (gateway, wire):
        await wire.create("t")
        await wire.produce("t", batch_of(b"first"))
        wires = [connect(gateway) for _ in range(6)]
        goes_on.clear()
        try:
            async with anyio.create_task_group() as producing:
                for each in wires:
                    producing.start_soon(produce, each)
                await until(lambda: gateway._running().budget.waiting)
                connected = len(gateway._running().connections)
                await hang_amid_a_request(gateway)
                await anyio.sleep(1)
                assert len(gateway._running().connections) == connected
                goes_on.set()
        finally:
            goes_on.set()
        assert sorted(offsets) == list(range(1, 31))
        assert (await wire.offset("t", -1)).offset == 31
        for each in wires:
            await each.aclose()


@pytest.mark.slow
@pytest.mark.many_partitions
async def test_who_holds_memory_behind_a_parked_join_is_closed() -> None:
    """Nothing but other clients lets it go on."""
    join = JoinGroupRequest(
        group_id="g", member_id="", session_timeout_ms=300_000, rebalance_timeout_ms=300_000,
        protocol_type="consumer", protocols=[JoinGroupRequestProtocol(name="range", metadata=b"x")],
    )  # fmt: skip
    config = {**MEMORY, "group.initial.rebalance.delay.ms": 300_000}
    async with running(config=config) as (gateway, wire):
        await wire.create("big", partitions=10_000)
        wanted = MetadataRequest(topics=[MetadataRequestTopic(name="big")])
        hogs = [connect(gateway) for _ in range(5)]
        for hog in hogs:
            await hog.send(join, 3)
            for _ in range(60):
                await hog.send(wanted, 12)
        with anyio.fail_after(60):
            for hog in hogs:
                while await hog.frame() is not None:
                    pass
                await hog.aclose()
        await until(lambda: not gateway._running().budget.used)
        await wire.create("t")
        assert (await wire.produce("t", batch_of(bytes(900_000)))).error_code == 0


def joining(group: str) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=1_800_000,
        rebalance_timeout_ms=2**31 - 1,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"x")],
    )


async def test_who_waits_for_a_leader_keeps_no_large_request() -> None:
    """The leader may never come, and nobody could close the others for that."""
    async with running(config={**MEMORY, "group.initial.rebalance.delay.ms": 300}) as (gateway, wire):
        await wire.create("t")
        others: list[Wire] = []
        for number in range(5):
            pair = [connect(gateway), connect(gateway)]
            others += pair
            for member in pair:
                await member.send(joining(f"g{number}"), 3)
            joined = [await member.read(joining(""), 3) for member in pair]
            follower = next(each for each in zip(pair, joined, strict=True) if each[1].leader != each[1].member_id)
            assignments = [SyncGroupRequestAssignment(member_id="x" * 32_000, assignment=b"") for _ in range(120)]
            request = SyncGroupRequest(
                group_id=f"g{number}",
                generation_id=follower[1].generation_id,
                member_id=follower[1].member_id,
                assignments=assignments,
            )
            with anyio.fail_after(20):
                await follower[0].send(request, 3)
        with anyio.fail_after(20):
            assert (await wire.produce("t", batch_of(bytes(900_000)))).error_code == 0
        for each in others:
            await each.aclose()
