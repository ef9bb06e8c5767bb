"""Records of share groups at a gateway whose store is slow, or fails."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from kclient.errors import ErrorCode
from kclient.gateway import Gateway
from kclient.gateway.groups.configs import GroupConfigs
from kclient.gateway.partition_id import PartitionId
from kclient.gateway.shares import table
from kclient.gateway.shares.led import LedShare
from kclient.gateway.shares.settings import DeliverySettings
from kclient.htp import open_store
from kclient.memory_ledger import LimitedAccount
from kclient.protocol.messages.share import ShareFetchResponse
from tests.gateway_wire import batch_of, connect, names
from tests.share_wire import ACCEPT, RECORDS, Acked, ShareMember, acquired
from tests.slow_store import Gates

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


@asynccontextmanager
async def gated(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Gateway, Gates, ShareMember, ShareMember]]:
    """A gateway with the topic `t`, which has two records, and two members of the group `g` on two connections."""
    monkeypatch.setattr(GroupConfigs, "delivery", lambda *_: DeliverySettings(reset="earliest"))
    async with open_store(f"memory:{next(names)}") as inner:
        gates = Gates(inner)
        async with Gateway(gates.store, listen=None) as gateway:
            members = ShareMember(connect(gateway), member_id="a"), ShareMember(connect(gateway), member_id="b")
            await members[0].wire.create("t")
            await members[0].wire.produce("t", batch_of(b"a", b"b"))
            yield gateway, gates, *members
            gates.open()
            for member in members:
                await member.wire.aclose()


async def test_what_is_not_stored_yet_is_not_said_to_be_done_with(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gated(monkeypatch) as (_, gates, member, other):
        assert acquired(await member.fetch("t")) == [(0, 1, 1)]
        await other.fetch("t")
        said: list[int] = []

        async def accept(who: ShareMember) -> None:
            said.append(await who.acknowledge("t", Acked(0, 1, (ACCEPT,))))

        gate = gates.hold("commit")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(accept, member)
            await gate.reached.wait()
            tasks.start_soon(accept, other)
            for _ in range(200):  # more turns than it takes
                await anyio.lowlevel.checkpoint()
            assert said == []
            gates.failing = "commit"
            gate.open()
        assert said == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
        assert acquired(await other.fetch("t", max_wait_ms=20_000)) == [(0, 1, 1)]


async def test_partitions_that_could_not_be_read_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gated(monkeypatch) as (gateway, gates, member, _):
        request = member.fetch_request(await member.topic("t"))
        gate, gates.failing = gates.hold("get"), "get"
        await member.wire.send(request, 2)
        await gate.reached.wait()
        gate.open()
        response: ShareFetchResponse = await member.wire.read(request, 2)
        assert response.responses[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        member.epoch += 1
        assert await member.acknowledge("t", end=True) == ErrorCode.NONE
        assert len(gateway.parts.shares) == 0


async def test_nobody_acquires_what_another_one_still_compares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start offsets that were moved are noticed by all members, not only by the one that has looked first."""
    async with gated(monkeypatch) as (gateway, gates, member, other):
        assert acquired(await member.fetch("t", max_records=1, mode=RECORDS)) == [(0, 0, 1)]
        topic_id = await member.topic("t")
        share = gateway.parts.shares.get("g", PartitionId(topic_id, 0))
        assert share is not None
        share.doubt()
        request = other.fetch_request(topic_id, max_wait_ms=20_000)
        gate = gates.hold("get")
        await other.wire.send(request, 2)
        await gate.reached.wait()
        assert not share.is_ready
        gate.open()
        response: ShareFetchResponse = await other.wire.read(request, 2)
        assert acquired(response.responses[0].partitions[0]) == [(1, 1, 1)]
        assert share.is_ready


async def test_short_memory_is_looked_for_in_few_partitions_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all of them for each one that is asked for, a request about thousands took half a minute."""
    monkeypatch.setattr(table, "_LOOKED_AT", 8)
    async with gated(monkeypatch) as (gateway, _, member, other):
        await member.wire.create("many", 40)
        await member.send(member.fetch_request(await member.topic("many"), range(40), max_wait_ms=100))
        shares = gateway.parts.shares
        with anyio.fail_after(20):
            while not all(each.is_ready for each in shares._all()):
                await member.topic("many")
        looked: list[LedShare] = []
        is_idle = LedShare.is_idle.fget
        assert is_idle is not None

        def noted(share: LedShare) -> bool:
            looked.append(share)
            return False

        monkeypatch.setattr(LedShare, "is_idle", property(noted))
        short = True
        monkeypatch.setattr(
            LimitedAccount,
            "has_room",
            lambda memory, _: memory is not shares._memory or not (short or len(shares) > 39),
        )
        for _ in range(6):
            assert (await other.fetch("t")).error_code == ErrorCode.KAFKA_STORAGE_ERROR  # type: ignore[union-attr]
        assert len(looked) <= 6 * 8
        assert set(looked) == set(shares._all()), "all are looked at in turn"
        monkeypatch.setattr(LedShare, "is_idle", property(is_idle))
        short = False
        with anyio.fail_after(20):
            while not await other.values("t"):
                pass
