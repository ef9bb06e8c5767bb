"""Records of share groups at a gateway, as members acquire and acknowledge them by messages (KIP-932)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from kclient.errors import ErrorCode, KafkaStorageError
from kclient.gateway import Gateway
from kclient.gateway.groups.configs import GroupConfigs
from kclient.gateway.handlers import share_fetch
from kclient.gateway.partition_id import PartitionId
from kclient.gateway.rows.keys import SHARED_TOPICS, SHARES
from kclient.gateway.shares.offsets import ShareGroupOffsets, ShareOffset
from kclient.gateway.shares.settings import DeliverySettings
from tests.all_rows import scan_all
from tests.gateway_wire import Wire, batch_of, connect, names, running
from tests.share_wire import (
    ACCEPT,
    GAP,
    RECORDS,
    REJECT,
    RELEASE,
    RENEW,
    Acked,
    ShareMember,
    acquired,
)
from tests.small_transactions import Transactor, coordinated, local_peers

pytestmark = pytest.mark.anyio

WAIT_MS = 20_000
"""Longer than anything that is waited for takes."""


def delivered_with(monkeypatch: pytest.MonkeyPatch, settings: DeliverySettings) -> None:
    """Have all groups use these settings."""
    monkeypatch.setattr(GroupConfigs, "delivery", lambda *_: settings)


def offsets_of(gateway: Gateway) -> ShareGroupOffsets:
    return gateway.parts.share_offsets


@asynccontextmanager
async def shared(
    monkeypatch: pytest.MonkeyPatch, htp: str | None = None, **settings: object
) -> AsyncIterator[tuple[Gateway, Wire, ShareMember]]:
    """A gateway with the topic `t`, and a member of the group `g`, which begins where the topic does."""
    delivered_with(monkeypatch, DeliverySettings(**{"reset": "earliest", **settings}))  # type: ignore[arg-type]
    async with running(htp) as (gateway, wire):
        await wire.create("t")
        yield gateway, wire, ShareMember(wire)


async def test_records_are_delivered_once_and_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shared(monkeypatch) as (gateway, wire, member):
        await wire.produce("t", batch_of(b"a", b"b", b"c"))
        row = await member.fetch("t")
        assert acquired(row) == [(0, 2, 1)]
        assert member.lock_ms == 30_000
        other = ShareMember(connect(gateway), member_id="b")
        assert await other.values("t") == []
        await wire.produce("t", batch_of(b"d"))
        assert await other.values("t") == [b"d"]
        assert await member.acknowledge("t", Acked(0, 0, (ACCEPT,)), Acked(1, 2, (RELEASE, REJECT))) == ErrorCode.NONE
        assert acquired(await other.fetch("t")) == [(1, 1, 2)]
        assert await other.acknowledge("t", Acked(1, 1, (ACCEPT,)), Acked(3, 3, (ACCEPT,))) == ErrorCode.NONE
        found = await offsets_of(gateway).describe("g")
        assert list(found.values()) == [ShareOffset(4, found[next(iter(found))].leader_epoch, 0)]  # type: ignore[union-attr]
        await other.wire.aclose()


async def test_a_fetch_acknowledges_what_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shared(monkeypatch) as (_, wire, member):
        await wire.produce("t", batch_of(b"a", b"b"))
        assert acquired(await member.fetch("t")) == [(0, 1, 1)]
        row = await member.fetch("t", acks=[Acked(0, 1, (RELEASE,))])  # type: ignore[arg-type]
        assert acquired(row) == [(0, 1, 2)]
        row = await member.fetch("t", acks=[Acked(0, 1, (ACCEPT,)), Acked(1, 1, (ACCEPT,))])  # type: ignore[arg-type]
        assert row is not None
        assert row.acknowledge_error_code == ErrorCode.INVALID_REQUEST
        assert "not behind those before" in str(row.acknowledge_error_message)


async def test_a_waiting_fetch_is_told_of_records(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shared(monkeypatch) as (gateway, wire, member):
        await member.fetch("t")
        topic_id = await member.topic("t")
        request = member.fetch_request(topic_id, max_wait_ms=WAIT_MS)
        async with connected(gateway, "b") as other:
            await member.wire.send(request, 2)
            await other.wire.produce("t", batch_of(b"a"))
            response = await wire.read(request, 2)
            assert acquired(response.responses[0].partitions[0]) == [(0, 0, 1)]
            member.epoch += 1
            waiting = other.fetch_request(topic_id, max_wait_ms=WAIT_MS)  # for what the member gives back
            await other.wire.send(waiting, 2)
            assert await member.acknowledge("t", Acked(0, 0, (RELEASE,))) == ErrorCode.NONE
            response = await other.wire.read(waiting, 2)
            assert acquired(response.responses[0].partitions[0]) == [(0, 0, 2)]


@asynccontextmanager
async def connected(gateway: Gateway, member_id: str) -> AsyncIterator[ShareMember]:
    member = ShareMember(connect(gateway), member_id=member_id)
    try:
        yield member
    finally:
        await member.wire.aclose()


async def test_least_bytes_are_waited_for_and_acquired_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shared(monkeypatch) as (gateway, wire, member):
        await wire.produce("t", batch_of(b"a"))
        topic_id = await member.topic("t")
        async with connected(gateway, "b") as other:
            request = member.fetch_request(topic_id, max_wait_ms=WAIT_MS, min_bytes=1 << 19)
            await wire.send(request, 2)
            await other.fetch("t", max_wait_ms=100)  # nothing is acquired by who waits
            await other.wire.produce("t", batch_of(bytes(1 << 19)))
            response = await wire.read(request, 2)
            assert [part.first_offset for part in response.responses[0].partitions[0].acquired_records] == [1]


async def test_no_more_records_are_acquired_than_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shared(monkeypatch, locks=6) as (_, wire, member):
        for _ in range(4):
            await wire.produce("t", batch_of(b"a", b"b", b"c"))
        assert acquired(await member.fetch("t", max_records=2, mode=RECORDS)) == [(0, 1, 1)]
        assert acquired(await member.fetch("t", max_records=2)) == [(2, 5, 1)]
        assert await member.values("t") == []  # so many are in flight
        assert await member.acknowledge("t", Acked(0, 0, (ACCEPT,))) == ErrorCode.NONE
        assert acquired(await member.fetch("t", max_records=5, mode=RECORDS)) == [(6, 6, 1)]


async def test_records_are_acquired_of_several_partitions_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shared(monkeypatch) as (_, wire, member):
        await wire.create("many", 3)
        for number in range(3):
            await wire.produce("many", batch_of(b"a", b"b"), number)
        topic_id = await member.topic("many")
        seen = []
        for _ in range(3):
            response = await member.send(member.fetch_request(topic_id, range(3), max_records=2))
            seen += [row.partition_index for topic in response.responses for row in topic.partitions]
        assert sorted(seen) == [0, 1, 2]


async def test_too_many_deliveries_archive_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shared(monkeypatch, deliveries=2) as (_, wire, member):
        await wire.produce("t", batch_of(b"poison"))
        for deliveries in (1, 2):
            assert acquired(await member.fetch("t")) == [(0, 0, deliveries)]
            assert await member.acknowledge("t", Acked(0, 0, (RELEASE,))) == ErrorCode.NONE
        assert await member.values("t") == []


async def test_locks_end_and_are_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shared(monkeypatch, lock_ms=400) as (gateway, wire, member):
        await wire.produce("t", batch_of(b"a", b"b"))
        assert acquired(await member.fetch("t", max_records=1, mode=RECORDS)) == [(0, 0, 1)]
        async with connected(gateway, "b") as other:
            assert acquired(await other.fetch("t", max_records=1, mode=RECORDS)) == [(1, 1, 1)]
            request = other.fetch_request(await other.topic("t"), max_wait_ms=WAIT_MS)
            await other.wire.send(request, 2)
            response = await other.wire.read(request, 2)  # of a lock that is over
            assert acquired(response.responses[0].partitions[0])[0][2] == 2
        assert await member.acknowledge("t", Acked(0, 0, (ACCEPT,))) == ErrorCode.INVALID_RECORD_STATE


async def test_a_renewed_lock_is_not_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shared(monkeypatch, lock_ms=2_000) as (_, wire, member):
        await wire.produce("t", batch_of(b"a"))
        assert await member.values("t") == [b"a"]
        begin = anyio.current_time()
        while anyio.current_time() - begin < 3.0:
            assert await member.acknowledge("t", Acked(0, 0, (RENEW,)), renew=True) == ErrorCode.NONE
            await member.fetch("t", max_wait_ms=200)
        assert await member.acknowledge("t", Acked(0, 0, (ACCEPT,))) == ErrorCode.NONE


async def test_what_a_request_may_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shared(monkeypatch) as (_, wire, member):
        await wire.produce("t", batch_of(b"a", b"b", b"c"))
        topic_id = await member.topic("t")
        refused = await member.send(member.fetch_request(topic_id, acks=[Acked(0, 0, (ACCEPT,))]))
        assert refused.error_code == ErrorCode.INVALID_REQUEST  # it begins its session
        assert await member.values("t") == [b"a", b"b", b"c"]
        for said in (Acked(0, 0, (RENEW,)), Acked(0, 2, (ACCEPT, ACCEPT)), Acked(0, 0, (5,)), Acked(1, 0, (ACCEPT,))):
            assert await member.acknowledge("t", said) == ErrorCode.INVALID_REQUEST
        assert await member.acknowledge("t", Acked(2, 3, (ACCEPT,))) == ErrorCode.INVALID_REQUEST
        renewing = member.fetch_request(topic_id, is_renew_ack=True)
        assert (await member.send(renewing)).error_code == ErrorCode.INVALID_REQUEST
        renewing = member.fetch_request(
            topic_id, acks=[Acked(0, 2, (RENEW,))], is_renew_ack=True, max_records=0, min_bytes=0, max_bytes=0
        )
        response = await member.send(renewing)
        row = response.responses[0].partitions[0]
        assert (response.error_code, row.acknowledge_error_code, row.acquired_records) == (0, 0, [])
        refused = await member.send(member.fetch_request(topic_id, mode=7))
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        for group, name in (("", "a"), ("g", ""), ("g", "a" * 37)):
            other = ShareMember(wire, group, name)
            assert (await other.send(other.fetch_request(topic_id))).error_code == ErrorCode.INVALID_REQUEST


async def test_locks_are_renewed_only_where_the_group_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shared(monkeypatch, renewing=False) as (_, wire, member):
        await wire.produce("t", batch_of(b"a"))
        assert await member.values("t") == [b"a"]
        assert await member.acknowledge("t", Acked(0, 0, (RENEW,)), renew=True) == ErrorCode.INVALID_RECORD_STATE


async def test_sessions_go_through_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shared(monkeypatch) as (gateway, wire, member):
        await wire.produce("t", batch_of(b"a"))
        assert await member.acknowledge("t") == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        member.epoch = 1
        topic_id = await member.topic("t")
        refused = await member.send(member.fetch_request(topic_id))
        assert refused.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        member.epoch = 0
        assert await member.values("t") == [b"a"]
        member.epoch = 7
        refused = await member.send(member.fetch_request(topic_id))
        assert refused.error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        member.epoch = 1
        assert await member.acknowledge("t", end=True) == ErrorCode.NONE  # what it has is given back
        async with connected(gateway, "b") as other:
            assert acquired(await other.fetch("t")) == [(0, 0, 2)]
        async with connected(gateway, "c") as other:  # and when a connection ends
            assert acquired(await other.fetch("t", max_wait_ms=WAIT_MS)) == [(0, 0, 3)]


async def test_forgotten_partitions_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shared(monkeypatch) as (_, wire, member):
        topic_id = await member.topic("t")
        await member.send(member.fetch_request(topic_id))
        await wire.produce("t", batch_of(b"a"))
        response = await member.send(member.fetch_request(topic_id, (), forget=[0]))
        assert (response.error_code, response.responses) == (0, [])
        assert await member.values("t") == [b"a"]


async def test_partitions_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shared(monkeypatch) as (_, _wire, member):
        response = await member.send(member.fetch_request(bytes(range(16))))
        assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        response = await member.send(member.fetch_request(await member.topic("t"), [5]))
        codes = {row.partition_index: row.error_code for topic in response.responses for row in topic.partitions}
        assert codes[5] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(("reset", "found"), [("earliest", [b"a", b"b"]), ("latest", [])])
async def test_a_group_begins_where_its_setting_says(
    monkeypatch: pytest.MonkeyPatch, reset: str, found: list[bytes]
) -> None:
    async with shared(monkeypatch, reset=reset) as (_, wire, member):
        await wire.produce("t", batch_of(b"a", b"b"))
        assert await member.values("t") == found
        await wire.produce("t", batch_of(b"c"))
        assert await member.values("t") == [b"c"]


async def test_a_group_begins_some_time_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shared(monkeypatch, reset="by_duration:PT1H", reset_ms=3_600_000) as (_, wire, member):
        await wire.produce("t", batch_of(b"old", timestamp=1_000_000))
        await wire.produce("t", batch_of(b"new"))
        assert await member.values("t") == [b"new"]


async def test_everything_is_there_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    store = f"memory:{next(names)}"
    async with shared(monkeypatch, store) as (_, wire, member):
        await wire.produce("t", batch_of(*map(bytes, zip(range(8)))))
        await member.fetch("t")
        said = (ACCEPT, RELEASE, REJECT, GAP, ACCEPT)
        assert await member.acknowledge("t", Acked(0, 4, said)) == ErrorCode.NONE
    async with running(store) as (gateway, wire):
        found = await offsets_of(gateway).describe("g")
        assert [each[::2] for each in found.values()] == [(1, 3)]  # type: ignore[index]
        # 5 to 7 were given back when the connection ended
        assert acquired(await ShareMember(wire).fetch("t")) == [(1, 1, 2), (5, 7, 2)]


async def test_deleted_records_are_not_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shared(monkeypatch) as (gateway, wire, member):
        for _ in range(3):
            await wire.produce("t", batch_of(b"a", b"b"))
        assert acquired(await member.fetch("t", max_records=1)) == [(0, 1, 1)]
        await wire.delete_records("t", 3)
        assert acquired(await member.fetch("t")) == [(3, 5, 1)]
        assert await member.acknowledge("t", Acked(0, 1, (ACCEPT,))) == ErrorCode.NONE  # they are done with
        assert await member.acknowledge("t", Acked(3, 5, (ACCEPT,))) == ErrorCode.NONE
        assert [each.start for each in (await offsets_of(gateway).describe("g")).values()] == [6]  # type: ignore[union-attr]


async def test_a_deleted_topic_takes_what_was_delivered_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shared(monkeypatch) as (gateway, wire, member):
        await wire.produce("t", batch_of(b"a"))
        assert await member.values("t") == [b"a"]
        manager = gateway.parts.manager
        assert len(await scan_all(manager, SHARES)) == 1
        await wire.delete("t")
        assert await scan_all(manager, SHARES) == {}
        topic_id = PartitionId(bytes(16), 0).topic_id
        response = await member.send(member.fetch_request(topic_id, ()))
        assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        await wire.create("t")
        await wire.produce("t", batch_of(b"b"))
        assert await ShareMember(wire).values("t") == [b"b"]
        assert len(await offsets_of(gateway).topics("g")) == 2
        await offsets_of(gateway).delete_group("g")
        assert await scan_all(manager, SHARED_TOPICS) == await scan_all(manager, SHARES) == {}


async def test_a_moved_start_offset_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shared(monkeypatch) as (gateway, wire, member):
        await wire.produce("t", batch_of(b"a", b"b", b"c"))
        assert await member.values("t") == [b"a", b"b", b"c"]
        assert await member.acknowledge("t", Acked(0, 1, (ACCEPT,))) == ErrorCode.NONE
        partition = PartitionId(await member.topic("t"), 0)
        await offsets_of(gateway).alter("g", {partition: 1})
        assert await offsets_of(gateway).describe("g", [partition]) == {partition: ShareOffset(1, 0, 0)}
        assert await member.acknowledge("t", Acked(2, 2, (ACCEPT,))) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await member.values("t") == [b"b", b"c"]
        await offsets_of(gateway).alter("g", {partition: 0})
        code = ErrorCode.NONE
        while code != ErrorCode.NOT_LEADER_OR_FOLLOWER:  # a fetch notices it too, as soon as it is told
            row = await member.fetch("t", max_wait_ms=WAIT_MS)
            assert row is not None
            code = ErrorCode(row.error_code)
        assert await member.values("t") == [b"a", b"b", b"c"]
        await offsets_of(gateway).delete("g", [partition.topic_id])
        assert await offsets_of(gateway).describe("g") == {}
        assert await member.acknowledge("t", Acked(2, 2, (ACCEPT,))) == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_control_records_and_aborted_ones_are_not_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = coordinated(monkeypatch)
    async with shared(monkeypatch, committed=True) as (gateway, wire, member):
        transactor = Transactor(wire, coordinator, local_peers(gateway, coordinator), "x")
        for committed in (False, True, False):
            transactor.begin()
            await transactor.send("t", b"a", b"b")
            await transactor.end(committed=committed)
        transactor.begin()
        await transactor.send("t", b"open")
        assert acquired(await member.fetch("t")) == [(3, 4, 1)]
        assert await member.values("t") == []
        assert await member.acknowledge("t", Acked(3, 4, (ACCEPT,))) == ErrorCode.NONE
        request = member.fetch_request(await member.topic("t"), max_wait_ms=WAIT_MS)
        await wire.send(request, 2)
        await transactor.end(committed=True)
        response = await wire.read(request, 2)
        assert acquired(response.responses[0].partitions[0]) == [(9, 9, 1)]
        assert [each.start for each in (await offsets_of(gateway).describe("g")).values()] == [9]  # type: ignore[union-attr]


async def test_many_aborted_batches_are_passed_over_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_fetch, "_AT_ONCE", 3)
    coordinator = coordinated(monkeypatch)
    async with shared(monkeypatch, committed=True) as (gateway, wire, member):
        transactor = Transactor(wire, coordinator, local_peers(gateway, coordinator), "x")
        transactor.begin()
        for _ in range(10):
            await transactor.send("t", b"a")
        await transactor.end(committed=False)
        for value in (b"b", b"c", b"d", b"e"):
            await wire.produce("t", batch_of(value))
        assert acquired(await member.fetch("t", max_wait_ms=WAIT_MS)) == [(11, 11, 1)]
        assert acquired(await member.fetch("t")) == [(12, 14, 1)]


async def test_all_but_control_records_are_delivered_uncommitted(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = coordinated(monkeypatch)
    async with shared(monkeypatch) as (gateway, wire, member):
        transactor = Transactor(wire, coordinator, local_peers(gateway, coordinator), "x")
        transactor.begin()
        await transactor.send("t", b"a")
        await transactor.end(committed=False)
        await wire.produce("t", batch_of(b"b"))
        assert acquired(await member.fetch("t")) == [(0, 0, 1), (2, 2, 1)]


async def test_no_more_sessions_than_are_allowed() -> None:
    async with running(config={"group.share.max.share.sessions": 1}) as (gateway, wire):
        await wire.create("t")
        member = ShareMember(wire)
        await member.fetch("t")
        async with connected(gateway, "b") as other:
            request = other.fetch_request(await other.topic("t"))
            assert (await other.send(request)).error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
            assert await member.acknowledge("t", end=True) == ErrorCode.NONE
            assert (await other.send(request)).error_code == ErrorCode.NONE


async def test_sessions_take_no_more_memory_than_there_is() -> None:
    async with running(config={"connections.max.memory.bytes": 16 << 20}) as (_, wire):
        await wire.create("t")
        member = ShareMember(wire)
        topic_id = await member.topic("t")
        response = await member.send(member.fetch_request(topic_id, range(20_000)))
        assert response.error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
        assert not (await member.send(member.fetch_request(topic_id))).error_code
        response = await member.send(member.fetch_request(topic_id, range(20_000)))
        assert response.error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
        assert (await member.send(member.fetch_request(topic_id))).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


async def test_share_groups_that_are_switched_off() -> None:
    async with running() as (gateway, wire):
        await wire.create("t")
        gateway.parts.features._features.take_over({"share.version": 0}, 5)
        member = ShareMember(wire)
        response = await member.send(member.fetch_request(await member.topic("t")))
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert await member.acknowledge("t", Acked(0, 0, (ACCEPT,))) == ErrorCode.UNSUPPORTED_VERSION


async def test_a_damaged_row_is_mended_by_setting_a_start_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shared(monkeypatch) as (gateway, wire, member):
        await wire.produce("t", batch_of(b"a", b"b"))
        assert await member.values("t") == [b"a", b"b"]
        assert await member.acknowledge("t", end=True) == ErrorCode.NONE
        partition = PartitionId(await member.topic("t"), 0)
        manager = gateway.parts.manager
        (key,) = await scan_all(manager, SHARES)
        await manager.commit({key: b"{"})
        with anyio.fail_after(20):
            while len(gateway.parts.shares):  # what was known is given up with the last session
                await member.topic("t")
        row = await member.fetch("t")
        while row is None or row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            row = await member.fetch("t")
        assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        found = await offsets_of(gateway).describe("g")
        assert isinstance(found[partition], KafkaStorageError)
        await offsets_of(gateway).alter("g", {partition: 1})
        row = await member.fetch("t")
        while row is not None and row.error_code:
            row = await member.fetch("t")
        assert acquired(row) == [(1, 1, 1)]


async def test_partitions_that_nobody_reads_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shared(monkeypatch) as (gateway, wire, member):
        await wire.produce("t", batch_of(b"a"))
        assert await member.values("t") == [b"a"]
        assert len(gateway.parts.shares) == 1
        assert await member.acknowledge("t", end=True) == ErrorCode.NONE
        with anyio.fail_after(20):
            while len(gateway.parts.shares):
                await member.topic("t")
