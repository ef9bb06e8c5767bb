"""What waits in the gateway for a client's sake: it ends, and its memory is free, when the client is gone."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable

import anyio
import pytest

from kclient.gateway import Gateway
from kclient.gateway.handlers.fetch_reading import Fetch
from kclient.memory_ledger import process_memory
from kclient.net.server_connection import ServerConnection
from kclient.protocol.framing import encode_response
from kclient.protocol.message import ApiMessage
from kclient.protocol.messages.fetch import FetchRequest, FetchRequestPartition, FetchRequestTopic
from kclient.protocol.messages.groups import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from kclient.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.gateway_wire import batch_of, connect, fetch_request, running

pytestmark = pytest.mark.anyio

LONG_MS = 2**31 - 1


async def eventually(true: Callable[[], bool]) -> None:
    with anyio.fail_after(20):
        while not true():
            await anyio.sleep(0.005)


def long_poll(topic: str, count: int = 1, session: int = -1) -> FetchRequest:
    partitions = [FetchRequestPartition(partition=number, fetch_offset=0) for number in range(count)]
    return FetchRequest(
        max_wait_ms=LONG_MS, min_bytes=1, session_id=0, session_epoch=session,
        topics=[FetchRequestTopic(topic=topic, partitions=partitions)],
    )  # fmt: skip


def waiters(gateway: Gateway, topic: str) -> int:
    partition = gateway.parts.partitions.get(topic, 0)
    assert partition is not None
    return len(partition.waiters)


async def test_a_parked_fetch_ends_with_its_client() -> None:
    async with running() as (gateway, wire):
        await wire.create("t")
        for count in (1, 5, 70):  # with the last it is not read any more
            client = connect(gateway)
            for _ in range(count):
                await client.send(long_poll("t"), 11)
            await eventually(lambda: waiters(gateway, "t") > 0)
            await client.aclose()
            await eventually(lambda: waiters(gateway, "t") == 0)
        client = connect(gateway)
        await client.send(long_poll("t"), 11)
        await eventually(lambda: waiters(gateway, "t") == 1)
        assert (await wire.produce("t", batch_of(b"a"))).error_code == 0
        answer = await client.read(long_poll("t"), 11)
        assert answer.responses[0].partitions[0].records, "another client's goes on"
        await client.aclose()


def join(group: str, member: str = "", session_ms: int = 300_000) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group, member_id=member, session_timeout_ms=session_ms, rebalance_timeout_ms=LONG_MS,
        protocol_type="consumer", protocols=[JoinGroupRequestProtocol(name="range", metadata=b"x" * 1000)],
    )  # fmt: skip


async def test_parked_joins_hold_no_memory_of_a_client_that_is_gone() -> None:
    """The member stays until its session is over, as in Kafka; what was received for it does not."""
    async with running(config={"group.initial.rebalance.delay.ms": 60_000}) as (gateway, wire):
        await wire.metadata()
        budget = gateway._running().budget
        before = budget.used
        client = connect(gateway)
        request: ApiMessage = join("g")
        for _ in range(20):
            await client.send(request, 3)
        await eventually(lambda: budget.used >= before + 20 * 1000)
        await client.aclose()
        await eventually(lambda: budget.used <= before)
        began = time.monotonic()
        assert (await wire.metadata()).brokers
        assert time.monotonic() - began < 5


@pytest.mark.slow
async def test_parked_syncs_hold_no_memory_of_a_client_that_is_gone() -> None:
    """The same; and who comes back as the same member replaces what waited, and gets the assignment."""
    async with running(config={"group.initial.rebalance.delay.ms": 1000}) as (gateway, wire):
        await wire.metadata()
        server = gateway._running()
        budget = server.budget
        before = budget.used
        members = []
        for client in (clients := (connect(gateway), connect(gateway))):
            await client.send(join("g"), 3)
        for client in clients:
            members.append((await client.read(join("g"), 3), client))
        (leader, leaders), (follower, other) = sorted(members, key=lambda each: each[0].leader != each[0].member_id)
        assert (leader.generation_id, follower.generation_id) == (1, 1)
        follow = SyncGroupRequest(group_id="g", generation_id=1, member_id=follower.member_id)
        # what it sends with its sync does not matter, it only takes room
        follow.assignments = [SyncGroupRequestAssignment(member_id="x", assignment=bytes(100_000))]
        gone = []
        for _ in range(5):
            client = connect(gateway)
            await client.send(follow, 3)
            await eventually(lambda: any(each.outstanding for each in server.connections))
            gone += [weakref.ref(each) for each in server.connections if each.outstanding]
            await client.aclose()
            await eventually(lambda: budget.used <= before)
        assert len(gone) == 5
        gc.collect()
        assert sum(ref() is not None for ref in gone) <= 1, "each replaced the one before"
        client = connect(gateway)
        await client.send(follow, 3)
        await eventually(lambda: any(each.outstanding for each in server.connections))
        lead = SyncGroupRequest(group_id="g", generation_id=1, member_id=leader.member_id)
        lead.assignments = [
            SyncGroupRequestAssignment(member_id=each.member_id, assignment=each.member_id.encode())
            for each in (leader, follower)
        ]
        assert bytes((await leaders(lead, 3)).assignment).decode() == leader.member_id
        assert bytes((await client.read(follow, 3)).assignment).decode() == follower.member_id
        gc.collect()
        assert not any(ref() is not None for ref in gone)
        for each in (client, leaders, other):
            await each.aclose()


async def test_a_session_holds_memory_until_its_client_is_gone() -> None:
    async with running() as (gateway, wire):
        await wire.create("t", partitions=50)
        client = connect(gateway)
        request = long_poll("t", 50, session=0)
        request.max_wait_ms = 0
        answer = await client(request, 11)
        assert answer.session_id
        budget = gateway._running().budget
        assert budget.used > 0
        await client.aclose()
        await eventually(lambda: budget.used == 0)


@pytest.mark.parametrize("wait_ms", [0, 50])
@pytest.mark.parametrize("count", [10, 100, 500])
async def test_consumers_of_many_partitions_fit_into_the_least_memory(count: int, wait_ms: int) -> None:
    """What was taken to read into is given back before the rows are made, however much the client would take."""
    async with running(config={"connections.max.memory.bytes": 16 << 20}) as (gateway, wire):
        await wire.create("t", partitions=count)
        request = long_poll("t", count)
        request.max_wait_ms, request.max_bytes = wait_ms, 50 << 20
        for _ in range(3):
            answer = await wire(request, 11)
            assert len(answer.responses[0].partitions) == count
        await eventually(lambda: gateway._running().budget.used == 0)


@pytest.mark.slow
@pytest.mark.many_partitions
async def test_a_fetch_that_is_short_of_its_own_memory_is_answered() -> None:
    """Replies that wait behind a long poll hold what the next request needs."""
    async with running(config={"connections.max.memory.bytes": 16 << 20}) as (gateway, wire):
        await wire.create("t")
        await wire.create("big", partitions=2000)
        size = len(await _metadata_frame(gateway))
        client = connect(gateway)
        await client.send(long_poll("t"), 11)
        count = (4 << 20) // size + 1
        wanted = MetadataRequest(topics=[MetadataRequestTopic(name="big")])
        for _ in range(count):
            await client.send(wanted, 12)
        with anyio.fail_after(60):
            answer = await client.read(long_poll("t"), 11)
            assert not answer.responses[0].partitions[0].records
            for _ in range(count):
                assert len((await client.read(wanted, 12)).topics[0].partitions) == 2000
        assert (await wire.produce("t", batch_of(bytes(200_000)))).error_code == 0
        await client.aclose()


async def _metadata_frame(gateway: Gateway) -> bytes:
    wanted = MetadataRequest(topics=[MetadataRequestTopic(name="big")])
    client = connect(gateway)
    answer = await client(wanted, 12)
    await client.aclose()
    return b"".join(encode_response(answer, 12, 1))


async def test_a_fetch_waits_for_memory_rather_than_bring_nothing() -> None:
    """Who asks again would find it used up again."""
    async with running(config={"connections.max.memory.bytes": 16 << 20}) as (gateway, wire):
        await wire.create("t")
        await wire.produce("t", batch_of(bytes(800_000)))
        budget = gateway._running().budget
        await eventually(lambda: not budget.used)
        process_memory().relieve()  # else what caches hold would be given up for the fetch
        hog, much = budget.share(lambda: None), budget.limit
        hog.keep(much)
        assert budget.favours(hog)
        request = long_poll("t")
        request.max_wait_ms = 50
        for count in (1, 100):
            request.topics[0].partitions = request.topics[0].partitions[:1] * count
            client = connect(gateway)
            await client.send(request, 11)
            await eventually(lambda: any(each.outstanding for each in gateway._running().connections))
            await anyio.sleep(0.5)  # longer than it would wait for data
            hog.keep(-much)
            answer = (await client.read(request, 11)).responses[0].partitions[0]
            assert len(answer.records) > 800_000
            await client.aclose()
            await eventually(lambda: not budget.used)
            hog.keep(much)
            assert budget.favours(hog)
        hog.close()


@pytest.mark.slow
async def test_nothing_of_a_fetch_waits_for_the_collector() -> None:
    """It may not run for minutes: what was read would be held long after it counts no more."""

    def fetches() -> int:
        return sum(type(each) is Fetch for each in gc.get_objects())

    async with running() as (gateway, wire):
        await wire.create("t")
        for answered in (True, False):
            client = connect(gateway)
            gc.collect()
            gc.disable()
            try:
                offset = len(await wire.values("t"))
                for _ in range(5):
                    request = long_poll("t")
                    request.topics[0].partitions[0].fetch_offset = offset
                    await client.send(request, 11)
                await eventually(lambda: waiters(gateway, "t") > 0)
                assert fetches() >= 1
                if answered:
                    await wire.produce("t", batch_of(bytes(1000)))
                    for _ in range(5):
                        assert (await client.read(long_poll("t"), 11)).responses[0].partitions[0].records
                await client.aclose()
                await eventually(lambda: waiters(gateway, "t") == 0)
                await anyio.wait_all_tasks_blocked()
                assert fetches() == 0
            finally:
                gc.enable()


@pytest.mark.slow
async def test_nothing_of_a_client_that_goes_unread_waits_for_the_collector() -> None:
    """Neither its connection nor the answer that it did not read, though more of its requests were to begin."""

    def connections() -> int:
        return sum(type(each) is ServerConnection for each in gc.get_objects())

    async with running() as (gateway, wire):
        await wire.create("t", 4)
        request = fetch_request("t", 0, max_wait_ms=100)
        request.topics[0].partitions = [fetch_request("t", 0, number).topics[0].partitions[0] for number in range(4)]
        for partition in range(4):
            for _ in range(4):
                await wire.produce("t", batch_of(bytes(200_000)), partition)
        gc.collect()
        gc.disable()
        try:
            before = connections()
            for _ in range(10):
                client = connect(gateway)
                for _ in range(10):
                    await client.send(request, 11)
                await anyio.wait_all_tasks_blocked()
                await client.aclose()
                await anyio.wait_all_tasks_blocked()
            await eventually(lambda: connections() <= before + 1)  # the last one may be in use
        finally:
            gc.enable()
