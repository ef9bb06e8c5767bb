"""What a gateway keeps beside connections counts, what has no room is refused, and nothing is left of what has gone."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from kclient.errors import ErrorCode, PolicyViolationError
from kclient.gateway import Gateway, starting
from kclient.gateway.checkpoints import Checkpoints
from kclient.htp import StorageError, open_store
from kclient.htp.embedded.files import Files, SyncPoint
from kclient.htp.memory.manager import MemoryManager
from kclient.memory_ledger import CacheAccount, MemoryPart
from kclient.net.memory_budget import ALLOWANCE, Share
from kclient.protocol.framing import encode_request
from kclient.protocol.messages import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DeleteGroupsRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupRequestMember,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from kclient.protocol.messages.produce import ProduceRequest
from tests.gateway_wire import Wire, batch_of, connect, names, produce_request, running
from tests.slow_store import Gates

pytestmark = pytest.mark.anyio

MB = 1 << 20
LEAST = {"connections.max.memory.bytes": 16 * MB}
SETTING = "connections.max.memory.bytes"


async def until(true: Callable[[], object]) -> None:
    with anyio.fail_after(20):
        while not true():
            await anyio.sleep(0.005)


def memory_of(gateway: Gateway) -> MemoryPart:
    return gateway._running().budget.part


def held(gateway: Gateway, *names: str) -> int:
    """Bytes on accounts, by their names."""
    memory = memory_of(gateway)
    found = {each.name: each.held for each in memory.ledger.accounts() if each.part is memory}
    return sum(found[name] for name in names or found)


def commit(group: str, numbers: range, metadata: str = "") -> OffsetCommitRequest:
    rows = [
        OffsetCommitRequestPartition(partition_index=number, committed_offset=1, committed_metadata=metadata)
        for number in numbers
    ]
    topics = [OffsetCommitRequestTopic(name="wide", partitions=rows)]
    return OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, topics=topics)


async def codes(wire: Wire, request: OffsetCommitRequest) -> set[int]:
    answer = await wire(request, 8)
    return {row.error_code for row in answer.topics[0].partitions}


@pytest.mark.slow
@pytest.mark.many_partitions
async def test_offsets_beyond_their_part_are_refused_and_those_there_are_stay(caplog: pytest.LogCaptureFixture) -> None:
    async with running(config=LEAST) as (gateway, wire):
        await wire.create("wide", 1000)
        long = "m" * 4000
        assert await codes(wire, commit("first", range(10), long)) == {0}
        with caplog.at_level(logging.WARNING, "kclient.gateway.groups"):
            for number in range(100):
                found = await codes(wire, commit(f"g{number}", range(500), "m" * 100))
                if found != {0}:
                    break
        assert found == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
        assert 3 * MB < held(gateway, "committed offsets") <= 4 * MB
        assert len([line for line in caplog.messages if SETTING in line and "offsets" in line]) == 1
        assert await codes(wire, commit("first", range(10), long)) == {0}, "it has those already"
        assert await codes(wire, commit("first", range(900, 1000), long)) == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
        assert await wire.committed("g0", "wide", 7) == 1
        await wire(DeleteGroupsRequest(groups_names=[f"g{each}" for each in range(number)]), 2)
        assert await codes(wire, commit("first", range(900, 1000), long)) == {0}
        await wire.delete("wide")
        assert held(gateway, "committed offsets") <= 4000, "the group is there yet"


@pytest.mark.slow
@pytest.mark.many_partitions
async def test_metadata_of_offsets_that_are_there_does_not_grow_without_limit() -> None:
    async with running(config=LEAST) as (gateway, wire):
        await wire.create("wide", 1000)
        for start in range(0, 1000, 250):
            assert await codes(wire, commit("g", range(start, start + 250), "position 9")) == {0}
        for taken in range(0, 1000, 50):
            found = await codes(wire, commit("g", range(taken, taken + 50), "\N{ROCKET}" * 4000))
            if found != {0}:
                break
        assert found == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
        assert 3 * MB < held(gateway, "committed offsets") <= 4 * MB
        assert await codes(wire, commit("g", range(500), "position 10")) == {0}
        assert await codes(wire, commit("g", range(taken), "\N{ROCKET}" * 4000)) == {0}, "there is room again"


async def test_groups_and_offsets_count_until_they_are_deleted() -> None:
    async with running(config=LEAST) as (gateway, wire):
        await wire.create("wide", 100)
        assert held(gateway, "groups", "committed offsets") == 0
        assert await codes(wire, commit("a", range(100))) == {0}
        counted = held(gateway, "committed offsets")
        assert 100 * 200 < counted < 100 * 400
        assert await codes(wire, commit("a", range(100))) == {0}
        assert held(gateway, "committed offsets") == counted
        request = JoinGroupRequest(
            group_id="b", session_timeout_ms=60_000, protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=bytes(5000))],
        )  # fmt: skip
        wire_of_member = connect(gateway)
        joined = await wire_of_member(request, 3)
        assert held(gateway, "groups") > 5000
        sync = SyncGroupRequest(
            group_id="b", generation_id=joined.generation_id, member_id=joined.member_id,
            assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=bytes(30_000))],
        )  # fmt: skip
        before = held(gateway, "groups")
        assert not (await wire_of_member(sync, 3)).error_code
        assert held(gateway, "groups") == before + 30_000
        await wire_of_member.aclose()
        member = LeaveGroupRequestMember(member_id=joined.member_id)
        await wire(LeaveGroupRequest(group_id="b", members=[member]), 4)
        assert 0 < held(gateway, "groups") <= 4000, "the group is there yet"
        await wire(DeleteGroupsRequest(groups_names=["a", "b"]), 2)
        assert held(gateway, "groups", "committed offsets") == 0


async def test_a_group_that_only_refused_joins_made_is_none() -> None:
    async with running(config=LEAST) as (gateway, wire):
        for number in range(3):
            request = join(f"{number}" + "g" * 32_000, b"")
            request.protocols = []
            assert (await wire(request, 5)).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert not (await wire(ListGroupsRequest(), 4)).groups
        assert held(gateway, "groups", "committed offsets") == 0


async def test_a_group_that_only_an_id_without_owner_was_for_is_none() -> None:
    async with running(config=LEAST) as (gateway, wire):
        assert (await wire(join("left", b""), 5)).error_code == ErrorCode.MEMBER_ID_REQUIRED
        given = await wire(join("left", b""), 5)
        request = join("expires", b"")
        request.session_timeout_ms = 10
        assert (await wire(request, 5)).error_code == ErrorCode.INVALID_SESSION_TIMEOUT
        assert await wire.alter(4, "1", ("group.min.session.timeout.ms", 0, "10")) == 0
        assert (await wire(request, 5)).error_code == ErrorCode.MEMBER_ID_REQUIRED
        await until(lambda: "expires" not in gateway.parts.groups.table.groups)
        assert held(gateway, "groups") > 0
        member = LeaveGroupRequestMember(member_id=given.member_id)
        await wire(LeaveGroupRequest(group_id="left", members=[member]), 4)
        assert [group.group_id for group in (await wire(ListGroupsRequest(), 4)).groups] == ["left"]
        assert held(gateway, "committed offsets") == 0


async def test_groups_that_members_come_to_and_leave_take_nothing_from_offsets() -> None:
    """Nobody was asked whether there is room for them there; a group counts there once it commits, which is asked."""
    async with running(config={**LEAST, "group.initial.rebalance.delay.ms": 0}) as (gateway, wire):
        await wire.create("wide", 10)
        for number in range(100):
            group = f"{number:04}" + "g" * 30_000
            joined = await wire(join(group, b""), 3)
            if joined.error_code:
                break
            member = LeaveGroupRequestMember(member_id=joined.member_id)
            await wire(LeaveGroupRequest(group_id=group, members=[member]), 3)
        assert joined.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert held(gateway, "committed offsets") == 0
        assert held(gateway, "groups") <= 4 * MB
        before = held(gateway, "groups")
        for count in range(10):
            assert await codes(wire, commit(f"{count:04}" + "g" * 30_000, range(1))) == {0}
        assert held(gateway, "groups") * number == before * (number - 10)
        for count in range(100):
            found = await codes(wire, commit(f"{count:04}" + "h" * 30_000, range(1)))
            if found != {0}:
                break
        assert found == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
        assert held(gateway, "committed offsets") <= 4 * MB


async def test_assignments_without_room_have_the_members_join_again() -> None:
    async with running(config={**LEAST, "group.initial.rebalance.delay.ms": 0}) as (gateway, wire):
        found = []
        for number in range(4):
            request = JoinGroupRequest(
                group_id=f"g{number}", session_timeout_ms=60_000, protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
            )  # fmt: skip
            joined = await wire(request, 3)
            assignment = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=bytes(3 * MB // 2))
            sync = SyncGroupRequest(
                group_id=f"g{number}", generation_id=joined.generation_id, member_id=joined.member_id,
                assignments=[assignment],
            )  # fmt: skip
            found.append((await wire(sync, 3)).error_code)
        assert found == [0, 0, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE]
        assert held(gateway, "groups") < 4 * MB


@pytest.mark.slow
@pytest.mark.many_partitions
async def test_topics_beyond_their_part_are_refused() -> None:
    async with running(config=LEAST) as (gateway, wire):
        assert not (await wire.create("wide", 10_000)).error_code
        refused = await wire.create("wider", 10_000)
        assert refused.error_code == ErrorCode.POLICY_VIOLATION
        assert SETTING in (refused.error_message or "")
        assert not (await wire.create("grows")).error_code
        more = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="grows", count=10_000, assignments=None)])
        answer = (await wire(more, 3)).results[0]
        assert answer.error_code == ErrorCode.POLICY_VIOLATION
        assert SETTING in answer.error_message
        long = "0:1," * 8_000 + "0:1"
        assert not (await wire.create("small")).error_code
        for number in range(40):
            refused = await wire.create(f"long-{number}", leader_replication_throttled_replicas=long)
            if refused.error_code:
                break
        assert refused.error_code == ErrorCode.POLICY_VIOLATION
        change = ("leader.replication.throttled.replicas", 0, long)
        assert await wire.alter(2, "small", change) == ErrorCode.POLICY_VIOLATION
        assert await wire.alter(2, "small", ("retention.ms", 0, "1000")) == 0
        assert await wire.delete("wide") == 0
        assert await wire.alter(2, "small", change) == 0
        assert not (await wire.create("wider", 2_000)).error_code
        assert await wire.delete("wider", "small", "grows", *(f"long-{each}" for each in range(number))) == 0
        assert held(gateway, "topics", "partitions") == 0


@pytest.mark.many_partitions
@pytest.mark.parametrize("how", ["create", "grow", "alter"])
async def test_memory_for_topics_is_kept_from_others_while_they_are_made(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    reached, go_on, failed = anyio.Event(), anyio.Event(), anyio.Event()

    async def failing_late(*_args: Any, **_options: Any) -> None:
        reached.set()
        await go_on.wait()
        raise StorageError("it has hung, and fails")

    async with running(config=LEAST) as (gateway, wire), anyio.create_task_group() as group:
        await wire.create("t")
        before, catalogue = held(gateway, "topics"), gateway.parts.catalogue
        long = {"leader.replication.throttled.replicas": "0:1," * 700_000}
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "create": partial(catalogue.create, "u", 8_000),
            "grow": partial(catalogue.grow, "t", 8_000),
            "alter": partial(catalogue.alter, "t", lambda _: long),
        }

        async def fail() -> None:
            with pytest.raises(StorageError, match="it has hung, and fails"):
                await calls[how]()
            failed.set()

        with monkeypatch.context() as patch:
            patch.setattr(MemoryManager, "commit", failing_late)
            patch.setattr(MemoryManager, "create_domain", failing_late)
            group.start_soon(fail)
            with anyio.fail_after(20):
                await reached.wait()
                try:
                    with pytest.raises(PolicyViolationError, match=SETTING):
                        catalogue.check_creation("v", 8_000, {})
                finally:
                    go_on.set()
                await failed.wait()
        assert held(gateway, "topics") == before
        assert catalogue.check_creation("v", 8_000, {}) == (8_000, {})


async def test_partitions_count_from_when_they_are_used() -> None:
    async with running() as (gateway, wire):
        await wire.create("t", 10)
        assert held(gateway, "partitions") == 0
        for number in range(10):
            await wire.produce("t", batch_of(b"x", producer_id=5, producer_epoch=0, sequence=0), number)
        assert 10 * 4000 < held(gateway, "partitions") < 10 * 20_000
        assert 10 * 300 < held(gateway, "producers") < 10 * 2000
        await wire.delete("t")
        assert held(gateway, "partitions", "producers") == 0


async def test_two_gateways_in_one_process_share_its_memory() -> None:
    """The one waits for what a client of the other holds, and goes on when that has gone."""
    async with running(config=LEAST) as (one, _), running(config=LEAST) as (two, wire):
        assert memory_of(one).ledger is memory_of(two).ledger
        await wire.create("t")
        budget = one._running().budget
        hogs = [budget.share(lambda: None) for _ in range(3)]
        budget.refresh()
        hogs[0].keep(budget.limit - budget.used)
        assert budget.favours(hogs[0])
        with anyio.move_on_after(0.3) as waited:
            await wire.produce("t", batch_of(bytes(900_000)))
        assert waited.cancelled_caught
        assert two._running().budget.waiting
        assert budget.used + two._running().budget.used < 16 * MB
        for hog in hogs:
            hog.close()
        request = produce_request("t", b"")
        with anyio.fail_after(20):
            assert not (await wire.read(request, 9)).responses[0].partition_responses[0].error_code


async def test_who_stalls_is_closed_for_those_who_wait_at_another_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    made = starting._server_settings
    monkeypatch.setattr(
        starting, "_server_settings", lambda config, quota: replace(made(config, quota), stall_timeout=0.2)
    )
    async with running(config=LEAST) as (one, _), running(config=LEAST) as (_, wire):
        await wire.create("t")
        hogs = [connect(one) for _ in range(4)]
        for hog in hogs:
            await hog.stream.send([(3_900_000).to_bytes(4, "big"), bytes(1000)])
        await until(lambda: one._running().budget.used > 7 * MB)
        with anyio.fail_after(20):
            for _ in range(5):
                assert not (await wire.produce("t", batch_of(bytes(900_000)))).error_code
        for hog in hogs:
            await hog.aclose()
        await until(lambda: not one._running().budget.used)


async def test_a_gateway_that_has_closed_leaves_nothing_in_the_process() -> None:
    async with running(config=LEAST) as (gateway, wire):
        await wire.create("wide", 100)
        assert await codes(wire, commit("a", range(100))) == {0}
        await wire.produce("wide", batch_of(b"x"))
        ledger, memory = memory_of(gateway).ledger, memory_of(gateway)
        assert memory in ledger.parts()
    assert memory not in ledger.parts()
    assert not [each for each in ledger.accounts() if each.part is memory]


@asynccontextmanager
async def hung() -> AsyncIterator[tuple[Gateway, Wire, Gates]]:
    """A gateway where the group `known` has offsets of `wide`, and whose store hangs from the next commit on."""
    gates = Gates(open_store(f"memory:{next(names)}"))
    async with (
        gates.store,
        running(gates.store, config=LEAST | {"group.initial.rebalance.delay.ms": 0}) as (
            gateway,
            wire,
        ),
    ):
        await wire.create("wide", 100)
        assert await codes(wire, commit("known", range(60))) == {0}
        gates.hold("commit")
        try:
            yield gateway, wire, gates
        finally:
            gates.open()


async def fill(gateway: Gateway) -> None:
    """Clients commit until no more may wait for the store, and go."""
    clients = [connect(gateway) for _ in range(10)]
    for client in clients:
        for _ in range(20):
            await client.send(commit("known", range(60)), 8)
    await until(lambda: held(gateway, "group writes") >= 2 * MB)
    for client in clients:
        await client.aclose()


async def test_commits_that_wait_for_the_store_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """Also those of partitions that the group has offsets of, which are taken however short memory is."""
    async with hung() as (gateway, wire, gates):
        with caplog.at_level(logging.WARNING, "kclient.gateway.groups"):
            await fill(gateway)
            assert await codes(wire, commit("known", range(60))) == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
        assert held(gateway, "group writes") < 3 * MB
        assert [line for line in caplog.messages if SETTING in line and "store" in line]
        gates.open()
        await until(lambda: not held(gateway, "group writes"))
        assert await codes(wire, commit("known", range(60))) == {0}


async def test_nothing_else_of_groups_gathers_while_the_store_hangs() -> None:
    async with hung() as (gateway, wire, gates):
        await fill(gateway)
        before = held(gateway)
        wanted = [OffsetDeleteRequestPartition(partition_index=number) for number in range(60)]
        deletion = OffsetDeleteRequest(
            group_id="known", topics=[OffsetDeleteRequestTopic(name="wide", partitions=wanted)]
        )
        assert (await wire(deletion, 0)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        groups = (await wire(DeleteGroupsRequest(groups_names=["known"]), 2)).results
        assert groups[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        joined = await wire(join("new", b""), 3)
        assert joined.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert held(gateway) <= before
        gates.open()
        await until(lambda: not held(gateway, "group writes"))
        assert not (await wire(DeleteGroupsRequest(groups_names=["known"]), 2)).results[0].error_code
        assert held(gateway, "groups", "committed offsets", "group writes") == 0


async def test_generations_that_wait_for_the_store_are_bounded() -> None:
    """Each of them keeps what is to be stored of it, which is no longer the group's."""
    async with hung() as (gateway, wire, gates):
        member, generations, refused = "", 0, 0
        for number in range(10):
            client = connect(gateway)
            joined = await client(join("large", bytes([number]) + bytes(200_000), member), 3)
            member, refused = joined.member_id, joined.error_code
            if refused:
                break
            generations += 1
            before = held(gateway, "group writes")
            await client.send(sync("large", joined, bytes([number]) + bytes(200_000)), 3)
            await until(lambda before=before: held(gateway, "group writes") > before + 400_000)
            await client.aclose()
        assert refused == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert 3 <= generations <= 6
        assert held(gateway, "group writes") < 3 * MB
        gates.open()
        await until(lambda: not held(gateway, "group writes"))
        joined = await wire(join("large", bytes(200_000), member), 3)
        assert not joined.error_code
        assert not (await wire(sync("large", joined, b"all"), 3)).error_code


async def test_an_assignment_is_refused_while_too_much_waits_for_the_store() -> None:
    async with hung() as (gateway, wire, gates):
        joined = await wire(join("g", b""), 3)
        await fill(gateway)
        assert (await wire(sync("g", joined, b"all"), 3)).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        gates.open()
        await until(lambda: not held(gateway, "group writes"))
        assert not (await wire(sync("g", joined, b"all"), 3)).error_code


def join(group: str, metadata: bytes, member_id: str = "", **fields: Any) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group, member_id=member_id, session_timeout_ms=60_000, protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)], **fields,
    )  # fmt: skip


def sync(group: str, joined: JoinGroupResponse, assignment: bytes, **fields: Any) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=group, generation_id=joined.generation_id, member_id=joined.member_id,
        assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=assignment)], **fields,
    )  # fmt: skip


async def test_a_static_member_that_restarts_has_room_in_its_own_place() -> None:
    settings = {**LEAST, "group.initial.rebalance.delay.ms": 0, "group.max.metadata.bytes": 100_000}
    async with running(config=settings) as (gateway, wire):

        async def restarts(metadata: bytes) -> int:
            return int((await wire(join("g", metadata, group_instance_id="i"), 5)).error_code)

        joined = await wire(join("g", bytes(60_000), group_instance_id="i"), 5)
        assert not (await wire(sync("g", joined, b"all", group_instance_id="i"), 3)).error_code
        assert await restarts(bytes(60_000)) == 0
        assert await restarts(bytes(100_001)) == ErrorCode.GROUP_MAX_SIZE_REACHED
        others = 0
        for size in (90_000, 9_000, 900, 0):  # to the brim
            while not (await wire(join(f"other-{others}", bytes(size)), 3)).error_code:
                others += 1
        assert await restarts(bytes(60_000)) == 0
        assert await restarts(bytes(70_000)) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        request = join("g", bytes(60_000), group_instance_id="i")
        await wire.stream.send(encode_request(request, 5, 1, "c" * 30_000))
        assert (await wire.read(request, 5)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert held(gateway, "groups") <= 4 * MB


class Disk(Files):
    """Its syncs hang when it is told so: of one broker, or of all."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.of: str = ""
        self._paths: dict[int, str] = {}

    def open(self, path: str, *, create: bool = False) -> int:
        fd = super().open(path, create=create)
        self._paths[fd] = path
        return fd

    def open_directory(self, path: str) -> int:
        fd = super().open_directory(path)
        self._paths[fd] = path
        return fd

    def _wait(self, fd: int) -> None:
        if self.of in self._paths[fd]:
            self.goes_on.wait()

    def sync(self, fd: int, point: SyncPoint) -> None:
        self._wait(fd)
        super().sync(fd, point)

    def sync_everything(self, fd: int, point: SyncPoint) -> None:
        self._wait(fd)
        super().sync_everything(fd, point)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr("kclient.htp.embedded.Files", lambda: made)
    return made


async def sent_until_refused(gateway: Gateway, request: ProduceRequest) -> None:
    """Clients send it again and again, and go, until one is told that there is no memory."""
    for _ in range(100):
        client = connect(gateway)
        for _ in range(100):
            await client.send(request, 9)
        error = 0
        with anyio.move_on_after(0.05):
            while not error:
                row = (await client.read(request, 9)).responses[0].partition_responses[0]
                error = row.error_code
        await client.aclose()
        if error:
            assert error == ErrorCode.KAFKA_STORAGE_ERROR
            assert SETTING in row.error_message
            return
    pytest.fail("no request was refused")


@pytest.mark.slow
@pytest.mark.domains  # each broker may have its even part
async def test_appends_that_wait_for_a_disk_are_bounded(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `acks=1` their answers wait as well; beyond that, those of clients that have gone, they are refused."""
    monkeypatch.setattr("kclient.htp.embedded.liveness.PATIENCE_S", 60.0)
    async with running(f"embedded:{tmp_path}/data", config=LEAST) as (gateway, wire):
        await wire.create("t")
        await wire.create("u")
        await wire.produce("t", batch_of(b"x"))
        numbered = [bytes(batch_of(b"x", producer_id=7, producer_epoch=0, sequence=number)) for number in range(2)]
        disk.goes_on.clear()
        try:
            request = produce_request("t", batch_of(b"x"), acks=1)
            answered = 0
            with anyio.move_on_after(20):
                while held(gateway, "appends") < MB:
                    await wire(request, 9)
                    answered += 1
            assert 1000 < answered < 3000
            with anyio.move_on_after(0.2) as waited:
                await wire(request, 9)
            assert waited.cancelled_caught, "it is answered when it is synced"
            await sent_until_refused(gateway, request)
            assert held(gateway, "appends") < 3 * MB
            client = connect(gateway)
            first = await client.produce("u", bytearray(numbered[0]))
            assert first.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert SETTING in first.error_message
            await client.send(produce_request("u", bytearray(numbered[0]), acks=0), 9)
            assert await client.frame() is None, "nothing else tells of it"
            await client.aclose()
        finally:
            disk.goes_on.set()
        await until(lambda: not held(gateway, "appends"))
        assert not (await wire.read(request, 9)).responses[0].partition_responses[0].error_code
        assert not (await wire.produce("t", batch_of(b"x"))).error_code
        early = await wire.produce("u", bytearray(numbered[1]))
        assert early.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "the one before it has to come again"
        for each in numbered:
            assert not (await wire.produce("u", bytearray(each))).error_code


@pytest.mark.slow
async def test_appends_that_wait_for_a_disk_to_answer_are_bounded(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a sync takes long nothing is written any more: what waits for that counts, too."""
    monkeypatch.setattr("kclient.htp.embedded.liveness.PATIENCE_S", 0.02)
    async with running(f"embedded:{tmp_path}/data", config=LEAST) as (gateway, wire):
        await wire.create("t")
        await wire.produce("t", batch_of(b"x"))
        request = produce_request("t", batch_of(b"x"), acks=1)
        disk.goes_on.clear()
        try:
            await sent_until_refused(gateway, request)
            assert MB <= held(gateway, "appends") < 3 * MB
        finally:
            disk.goes_on.set()
        await until(lambda: not held(gateway, "appends"))
        assert not (await wire.produce("t", batch_of(b"x"))).error_code


@pytest.mark.slow
async def test_appends_to_one_disk_leave_room_for_those_to_the_others(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `acks=1` they are answered before their sync, however much waits for the other disk."""
    monkeypatch.setattr("kclient.htp.embedded.liveness.PATIENCE_S", 60.0)
    async with running(f"embedded:{tmp_path}/data", config=LEAST, mapping="broker", brokers=2) as (gateway, wire):
        await wire.create("t", 2)
        record = gateway.parts.topics.get("t")
        assert record is not None
        disk.of = f"/{record.places[0].broker}/"
        for partition in range(2):
            assert not (await wire.produce("t", batch_of(b"x"), partition)).error_code
        disk.goes_on.clear()
        try:
            await sent_until_refused(gateway, produce_request("t", batch_of(b"x"), acks=1))
            wanted = record.logs[1].log.next_offset
            with anyio.fail_after(20):
                for acks in (-1, 1):
                    for _ in range(100):
                        request = produce_request("t", batch_of(b"x"), 1, acks=acks)
                        row = (await wire(request, 9)).responses[0].partition_responses[0]
                        assert (row.error_code, row.base_offset) == (0, wanted), row.error_message
                        wanted += 1
            assert held(gateway, "appends") < 3 * MB
        finally:
            disk.goes_on.set()
        await until(lambda: not held(gateway, "appends"))


async def test_batches_that_outlive_their_requests_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for their partition to open: their clients have gone, or were told that their time is over."""
    from kclient.gateway.partition import Partition

    opens = anyio.Event()
    opened = Partition._try_to_open

    async def slowly(self: Partition) -> Any:
        if self.name == "t":
            await opens.wait()
        return await opened(self)

    monkeypatch.setattr(Partition, "_try_to_open", slowly)
    async with running(config=LEAST) as (gateway, wire):
        await wire.create("t")
        await wire.create("another")
        batch = batch_of(bytes(700_000))
        clients = [connect(gateway) for _ in range(2)]
        await clients[0].send(produce_request("t", batch, acks=0), 9)
        await clients[1].send(produce_request("t", batch, acks=-1), 9)
        budget = gateway._running().budget
        await until(lambda: budget.used > 2 * 700_000)
        assert held(gateway, "batches") == 0, "it is the connections' so far"
        for client in clients:
            await client.aclose()
        await until(lambda: held(gateway, "batches") >= 2 * 700_000)
        await until(lambda: not budget.used)
        request = replace_timeout(produce_request("t", batch), 1)
        answer = await wire(request, 9)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        assert held(gateway, "batches") >= 3 * 700_000
        refused = (await wire(request, 9)).responses[0].partition_responses[0]
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert SETTING in refused.error_message
        numbered = [bytes(batch_of(b"x", producer_id=7, producer_epoch=0, sequence=number)) for number in range(2)]
        assert (await wire.produce("t", bytearray(numbered[0]))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        with anyio.fail_after(20):  # it is opened by the first, which is refused
            while (await wire.produce("another", batch_of(b"x"))).error_code:
                await anyio.sleep(0.005)
        opens.set()
        await until(lambda: not held(gateway, "batches"))
        assert (await wire.offset("t", -1)).offset == 3, "all that were taken are there"
        early = await wire.produce("t", bytearray(numbered[1]))
        assert early.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "the one before it has to come again"
        for each in numbered:
            assert not (await wire.produce("t", bytearray(each))).error_code


async def test_large_requests_of_connections_in_the_process_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come whole, but are taken only when there is memory for them."""
    count, peak = Share.add, 0

    def counted(share: Share, size: int, requests: int = 0) -> None:
        nonlocal peak
        count(share, size, requests)
        peak = max(peak, budget.used)

    monkeypatch.setattr(Share, "add", counted)
    async with running(config=LEAST) as (gateway, wire):
        budget = gateway._running().budget
        await wire.create("t", max_message_bytes="3900000")
        request = produce_request("t", batch_of(bytes(3_000_000)))
        clients = [connect(gateway) for _ in range(8)]
        for client in clients:
            await client.send(request, 9)
        for client in clients:
            assert not (await client.read(request, 9)).responses[0].partition_responses[0].error_code
            await client.aclose()
        assert 6_000_000 < peak < 16 * MB
        await until(lambda: not budget.used)


def replace_timeout(request: Any, timeout_ms: int) -> Any:
    request.timeout_ms = timeout_ms
    return request


@pytest.mark.slow
@pytest.mark.many_partitions
async def test_checkpoints_are_read_ahead_as_far_as_there_is_room(tmp_path: Path) -> None:
    store = f"embedded:{tmp_path}/data"
    async with running(store, config=LEAST) as (_, wire):
        await wire.create("t", 200)
        for number in range(200):
            await wire.produce("t", batch_of(b"x"), number)
    async with running(store, config=LEAST) as (gateway, wire):
        checkpoints = gateway.parts.partitions._checkpoints
        assert held(gateway, "checkpoints") == checkpoints._memory.held
        if held(gateway, "checkpoints"):  # else all of them are open by now
            memory_of(gateway).ledger.relieve()
        assert held(gateway, "checkpoints") == 0
        for number in range(200):
            assert await wire.values("t", 0, number) == [b"x"]
            assert (await wire.offset("t", -1, number)).offset == 1


@pytest.mark.slow
@pytest.mark.many_partitions
@pytest.mark.parametrize("elsewhere", [True, False])
async def test_what_a_starting_gateway_reads_ahead_is_given_up_in_its_own_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    """Whoever is short of memory at that moment: another thread, or another server of the same loop."""
    store = f"embedded:{tmp_path}/data"
    async with running(store) as (_, wire):
        await wire.create("t", 50)
        for number in range(50):
            await wire.produce("t", batch_of(b"x"), number)
    given_up: list[int] = []
    counted: list[int] = []
    count, give_up = CacheAccount.add, Checkpoints._give_up

    def short_then(account: CacheAccount, size: int) -> None:
        count(account, size)
        if account.name == "checkpoints" and size > 0 and not counted:
            counted.append(size)
            if elsewhere:
                thread = threading.Thread(target=account.ledger.relieve)
                thread.start()
                thread.join()
            else:
                account.ledger.relieve()

    def given_up_here(checkpoints: Checkpoints) -> None:
        given_up.append(threading.get_ident())
        give_up(checkpoints)

    monkeypatch.setattr(CacheAccount, "add", short_then)
    monkeypatch.setattr(Checkpoints, "_give_up", given_up_here)
    async with running(store) as (gateway, wire):
        assert counted
        for number in range(50):
            assert (await wire.offset("t", -1, number)).offset == 1
        assert given_up == [threading.get_ident()]
        assert held(gateway, "checkpoints") == 0


async def test_connections_get_less_when_much_is_kept_beside_them(caplog: pytest.LogCaptureFixture) -> None:
    async with running(config=LEAST) as (gateway, wire):
        await wire.create("t")
        memory = memory_of(gateway)
        logs = memory.account("logs")
        logs.add(30 * MB)
        budget = gateway._running().budget
        assert budget.limit == 5 * MB
        clients = [connect(gateway) for _ in range(15)]
        with caplog.at_level(logging.WARNING, "kclient.net.server"), anyio.fail_after(30):
            async with anyio.create_task_group() as producing:
                for client in clients:
                    producing.start_soon(client.produce, "t", batch_of(bytes(900_000)))
        assert (await wire.offset("t", -1)).offset == 15
        told = [line for line in caplog.messages if SETTING in line and "logs 31457280" in line]
        assert len(told) <= 1
        for client in clients:
            await client.aclose()
        await until(lambda: budget.used <= ALLOWANCE)
