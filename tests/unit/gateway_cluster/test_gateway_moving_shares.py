"""What share groups have read of partitions moves with them between gateways of one store (KIP-932)."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from kclient.errors import ErrorCode
from kclient.gateway import Gateway
from kclient.gateway.groups.configs import GroupConfigs
from kclient.gateway.partition_id import PartitionId
from kclient.gateway.shares.settings import DeliverySettings
from kclient.htp import open_store
from kclient.protocol.messages import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.gateway_wire import Wire, batch_of, connect
from tests.share_wire import ACCEPT, REJECT, RELEASE, Acked, ShareMember, acquired
from tests.unit.gateway_cluster.together import joined
from tests.unit.gateway_cluster.two_gateways import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

Gateways = dict[int, tuple[Gateway, Wire]]
WAIT_MS = 20_000


@asynccontextmanager
async def two(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Any, Gateways]]:
    """Two gateways on a store, with the topic `t`; share groups begin where that does."""
    monkeypatch.setattr(GroupConfigs, "delivery", lambda *_: DeliverySettings(reset="earliest", deliveries=1_000))
    async with open_store(url) as store, joined(store, 1) as one, joined(store, 2) as other:
        found = {1: one, 2: other}
        await until(lambda: all(len(each.parts.generations.current.newest.members) == 2 for each, _ in found.values()))
        assert not (await one[1].create("t", 1)).error_code
        await until(lambda: all(each.parts.topics.get("t") is not None for each, _ in found.values()))
        yield store, found


async def leader_of(gateways: Gateways) -> int:
    return int((await gateways[1][1].metadata("t")).topics[0].partitions[0].leader_id)


async def move(gateways: Gateways, target: int) -> None:
    """Move the partition to a gateway, until both know."""
    row = ReassignablePartition(partition_index=0, replicas=[target])
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=[row])])
    response = await gateways[1][1](request, 0)
    assert not response.error_code
    records = [each.parts.topics.get("t") for each, _ in gateways.values()]
    await until(
        lambda: all(
            record is not None and each.parts.leadership.leader(record, 0).node_id == target
            for (each, _), record in zip(gateways.values(), records, strict=True)
        )
    )


async def fetched(member: ShareMember) -> Any:
    """What a member fetches of the leader, as soon as that has taken the partition over."""
    with anyio.fail_after(30):
        while True:
            row = await member.fetch("t", max_wait_ms=100)
            if row is not None and row.error_code not in (
                ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ):  # fmt: skip
                return row


async def test_whoever_asks_the_wrong_gateway_is_told_the_right_one(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with two(url, monkeypatch) as (_, gateways):
        leader = await leader_of(gateways)
        member = ShareMember(gateways[3 - leader][1])
        response = await member.send(member.fetch_request(await member.topic("t")))
        row = response.responses[0].partitions[0]
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert row.current_leader.leader_id == leader
        assert row.current_leader.leader_epoch > 0
        assert await member.acknowledge("t", Acked(0, 0, (ACCEPT,))) == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_what_was_acknowledged_is_known_where_the_partition_moves_to(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(url, monkeypatch) as (_, gateways):
        before = await leader_of(gateways)
        member, other = (ShareMember(gateways[each][1], member_id=f"m{each}") for each in (before, 3 - before))
        await gateways[before][1].produce("t", batch_of(*map(bytes, zip(range(6)))))
        assert acquired(await fetched(member)) == [(0, 5, 1)]
        assert await member.acknowledge("t", Acked(0, 2, (ACCEPT, RELEASE, REJECT))) == ErrorCode.NONE
        await move(gateways, 3 - before)
        assert await member.acknowledge("t", Acked(3, 3, (ACCEPT,))) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert acquired(await fetched(other)) == [(1, 1, 2), (3, 5, 1)]
        assert await other.acknowledge("t", Acked(1, 1, (ACCEPT,)), Acked(3, 5, (ACCEPT,))) == ErrorCode.NONE
        await move(gateways, before)
        assert await member.values("t", max_wait_ms=200) == []
        assert len(gateways[3 - before][0].parts.shares) == 0


async def test_a_waiting_fetch_is_told_that_its_partition_has_moved(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with two(url, monkeypatch) as (_, gateways):
        before = await leader_of(gateways)
        member = ShareMember(connect(gateways[before][0]))
        await member.fetch("t")
        request = member.fetch_request(await member.topic("t"), max_wait_ms=WAIT_MS)
        await member.wire.send(request, 2)
        await move(gateways, 3 - before)
        response = await member.wire.read(request, 2)
        row = response.responses[0].partitions[0]
        assert (row.error_code, row.current_leader.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 3 - before)
        await member.wire.aclose()


async def test_a_start_offset_that_another_gateway_moves_is_noticed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with two(url, monkeypatch) as (_, gateways):
        leader = await leader_of(gateways)
        member = ShareMember(gateways[leader][1])
        await gateways[leader][1].produce("t", batch_of(b"a", b"b"))
        assert acquired(await fetched(member)) == [(0, 1, 1)]
        partition = PartitionId(await member.topic("t"), 0)
        coordinator = next(
            each for each, _ in gateways.values() if each.parts.share_offsets._claims.of("g") is not None
        )
        await coordinator.parts.share_offsets.alter("g", {partition: 1})
        assert await member.acknowledge("t", Acked(0, 1, (ACCEPT,))) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert acquired(await fetched(member)) == [(1, 1, 1)]


@pytest.mark.slow
async def test_nothing_that_was_accepted_is_delivered_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members acknowledge while the partition moves; each record is accepted in the end, and none afterwards."""
    count, chance = 300, random.Random(7)
    async with two(url, monkeypatch) as (_, gateways):
        accepted: set[int] = set()
        for first in range(0, count, 10):
            leader = await leader_of(gateways)
            await gateways[leader][1].produce("t", batch_of(*(b"%d" % each for each in range(first, first + 10))))

        async def read(node_id: int, number: int) -> None:
            member = ShareMember(connect(gateways[node_id][0]), member_id=f"{node_id}-{number}")
            while len(accepted) < count:
                row = await member.fetch("t", max_wait_ms=20, max_records=20)
                found = [] if row is None or row.error_code else acquired(row)
                for first, last, _ in found:
                    assert not accepted.intersection(range(first, last + 1))
                for first, last, _ in found:
                    kinds = tuple(chance.choice((ACCEPT, ACCEPT, RELEASE)) for _ in range(first, last + 1))
                    if await member.acknowledge("t", Acked(first, last, kinds)) == ErrorCode.NONE:
                        accepted.update(at for at, kind in enumerate(kinds, first) if kind == ACCEPT)
            await member.wire.aclose()

        with anyio.fail_after(50):
            async with anyio.create_task_group() as tasks:
                for node_id in (1, 2):
                    for number in range(2):
                        tasks.start_soon(read, node_id, number)
                for _ in range(6):
                    await move(gateways, 3 - await leader_of(gateways))
                    await anyio.sleep(0.05)
        (row,) = (await gateways[1][0].parts.share_offsets.describe("g")).values()
        assert getattr(row, "start", row) == count
