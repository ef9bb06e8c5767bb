"""Offsets of groups in transactions: visible with the records of the transaction, or never."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest

from kclient.acls import AclOperation, ResourceType
from kclient.errors import ErrorCode as E
from kclient.gateway import Gateway
from kclient.gateway.groups.transactional import TransactionalOffsets
from kclient.gateway.rows.groups import decode_offset
from kclient.gateway.rows.keys import OFFSETS, PENDING, pending_key
from kclient.htp import StorageError, open_store
from kclient.protocol import messages as m
from tests.all_rows import scan_all
from tests.gateway_wire import Wire, connect, names, running
from tests.slow_store import SlowStore
from tests.unit.gateway_transactions.test_coordinator import Forgetful, Rights, Stuck
from tests.unit.gateway_transactions.transacting import ByHand, committed_values, decided

pytestmark = pytest.mark.anyio
UNSTABLE = -2


async def stable(wire: Wire, group: str, topic: str = "t", partition: int = 0) -> int:
    """The offset that a group goes on from; `UNSTABLE` while a transaction is to commit one."""
    wanted = m.OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])
    request = m.OffsetFetchRequest(
        groups=[m.OffsetFetchRequestGroup(group_id=group, topics=[wanted])], require_stable=True
    )
    row = (await wire(request, 8)).groups[0].topics[0].partitions[0]
    if row.error_code == E.UNSTABLE_OFFSET_COMMIT:
        assert row.committed_offset == -1
        return UNSTABLE
    assert not row.error_code
    return int(row.committed_offset)


async def settled(wire: Wire, group: str, topic: str = "t", partition: int = 0) -> int:
    """The same, once it is decided."""
    with anyio.fail_after(20):
        while (offset := await stable(wire, group, topic, partition)) == UNSTABLE:
            await anyio.sleep(0.005)
    return offset


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("commit", [True, False])
async def test_offsets_are_committed_with_the_records(version: int, commit: bool) -> None:
    async with running() as (gateway, wire):
        await wire.create("t", 2)
        assert await wire.commit("g", "t", 3) == 0
        producer = ByHand(wire, "x", version)
        await producer.init()
        if version == 1:
            assert await producer.add("t", 1) == 0
            assert await producer.add_group("g") == 0
        await producer.send("t", b"a", partition=1)
        assert await producer.offsets("g", {("t", 0): 7}) == 0
        assert await stable(wire, "g") == UNSTABLE
        assert await wire.committed("g", "t") == 3
        assert await producer.offsets("g", {("t", 0): 8, ("t", 1): 1}) == 0
        assert await stable(wire, "g", "t", 1) == UNSTABLE
        assert await producer.end(commit) == 0
        assert await settled(wire, "g") == await wire.committed("g", "t") == (8 if commit else 3)
        assert await settled(wire, "g", "t", 1) == (1 if commit else -1)
        await decided(wire, "t", 1)
        assert await committed_values(wire, "t", 1) == ([b"a"] if commit else [])
        assert not await scan_all(gateway.parts.manager, PENDING)


@pytest.mark.parametrize("version", [1, 2])
async def test_one_transaction_after_the_other(version: int) -> None:
    async with running() as (_, wire):
        await wire.create("t")
        producer = ByHand(wire, "x", version)
        await producer.init()
        for offset in range(20):
            if version == 1:
                with anyio.fail_after(20):
                    while (code := await producer.add_group("g")) == E.CONCURRENT_TRANSACTIONS:
                        await anyio.sleep(0.005)
                assert code == 0
            assert await producer.offsets("g", {("t", 0): offset}) == 0
            assert await producer.end(commit=offset % 3 != 2) == 0
        assert await settled(wire, "g") == 19


async def test_the_end_of_one_is_noticed_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the gateway of the group has not found it out by itself."""
    found = TransactionalOffsets._look

    async def look(_: TransactionalOffsets) -> bool:
        return False

    monkeypatch.setattr(TransactionalOffsets, "_look", look)
    async with running() as (_, wire):
        await wire.create("t", 2)
        producer = ByHand(wire, "x")
        await producer.init()
        for partition in range(2):
            assert await producer.offsets("g", {("t", partition): 7}) == 0
            assert await producer.end() == 0
            assert await producer.init() == 0, "it is completed"
        assert await producer.offsets("other", {("t", 0): 1}) == 0
        assert await stable(wire, "g", "t", 0) == 7
        assert await stable(wire, "g", "t", 1) == UNSTABLE
        monkeypatch.setattr(TransactionalOffsets, "_look", found)
        assert await settled(wire, "g", "t", 1) == 7


class Held:
    """What reads rows, whose answer about a transaction that is decided arrives late."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.asked = 0
        self.reached = anyio.Event()
        self.let_go = anyio.Event()

    async def get(self, keys: Iterable[str]) -> Any:
        wanted = list(keys)
        found = await self._inner.get(wanted)
        if all(key.startswith(PENDING) for key in wanted):
            self.asked += 1
            if not found and not self.let_go.is_set():
                self.reached.set()
                await self.let_go.wait()
        return found


async def test_the_next_is_not_taken_for_the_one_that_is_decided() -> None:
    async with running() as (gateway, wire):
        transactional = gateway.parts.groups.transactional
        held = Held(transactional._manager)
        transactional._manager = held  # type: ignore[assignment]
        await wire.create("t")
        producer = ByHand(wire, "x")
        await producer.init()
        assert await producer.offsets("g", {("t", 0): 1}) == 0
        assert await producer.end() == 0
        with anyio.fail_after(20):
            await held.reached.wait()
            assert await producer.offsets("g", {("t", 0): 2}) == 0
            held.let_go.set()
            asked = held.asked
            while held.asked < asked + 2:
                await anyio.sleep(0.005)
        assert await stable(wire, "g") == UNSTABLE
        assert await producer.end() == 0
        assert await settled(wire, "g") == 2


async def test_what_is_being_written_is_not_taken_for_decided() -> None:
    """Its row is looked for before it is there, and the answer arrives afterwards."""
    held: Held | None = None

    @asynccontextmanager
    async def around(name: str) -> AsyncIterator[None]:
        if held is not None and name == "commit" and joined.is_set():
            await held.reached.wait()
        yield

    joined = anyio.Event()
    async with SlowStore(open_store(f"memory:{next(names)}"), around) as store, running(store) as (gateway, wire):
        transactional = gateway.parts.groups.transactional
        await wire.create("t")
        producer = ByHand(wire, "x", version=1)
        await producer.init()
        assert await producer.add_group("g") == 0
        held = Held(transactional._manager)
        transactional._manager = held  # type: ignore[assignment]
        joined.set()
        with anyio.fail_after(20):
            assert await producer.offsets("g", {("t", 0): 1}) == 0
            asked = held.asked
            held.let_go.set()
            while held.asked < asked + 2:
                await anyio.sleep(0.005)
        assert await stable(wire, "g") == UNSTABLE
        assert await producer.end() == 0
        assert await settled(wire, "g") == 1


async def test_who_has_not_joined_or_is_a_zombie_is_refused() -> None:
    async with running() as (gateway, wire):
        await wire.create("t")
        producer = ByHand(wire, "x")
        await producer.init()
        offsets = {("t", 0): 1}
        assert await producer.offsets("g", offsets, request=4) == E.TRANSACTION_ABORTABLE
        assert await producer.offsets("g", offsets, request=3) == E.INVALID_TXN_STATE
        assert await producer.add_group("other") == 0
        assert await producer.offsets("g", offsets, request=4) == E.TRANSACTION_ABORTABLE
        stranger = ByHand(wire, "none", 2, 5, 0)
        for request in (4, 5):
            assert await stranger.offsets("g", offsets, request=request) == E.INVALID_PRODUCER_ID_MAPPING
        zombie = ByHand(wire, "x", 2, producer.producer_id, producer.epoch)
        assert await producer.init() == 0
        for request in (3, 4, 5):
            assert await zombie.offsets("g", offsets, request=request) == E.INVALID_PRODUCER_EPOCH
        assert await zombie.add_group("g") == E.PRODUCER_FENCED
        assert await zombie.add_group("g", request=1) == E.INVALID_PRODUCER_EPOCH
        assert await producer.offsets("g", {("t", 1): 1}) == E.UNKNOWN_TOPIC_OR_PARTITION
        assert await producer.offsets("g", {("none", 0): 1}) == E.UNKNOWN_TOPIC_OR_PARTITION
        assert await producer.offsets("g", offsets, metadata="x" * 4097) == E.OFFSET_METADATA_TOO_LARGE
        access = gateway.parts.access
        o, r = AclOperation, ResourceType
        for right, code in (
            ((o.WRITE, r.TRANSACTIONAL_ID), E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
            ((o.READ, r.GROUP), E.GROUP_AUTHORIZATION_FAILED),
        ):
            access.authorizer = Rights(right)
            assert await producer.offsets("g", offsets) == await producer.add_group("g") == code
        access.authorizer = Rights((o.READ, r.TOPIC))
        assert await producer.offsets("g", offsets) == E.TOPIC_AUTHORIZATION_FAILED
        access.authorizer = None
        assert not await scan_all(gateway.parts.manager, PENDING)
        assert await stable(wire, "g") == -1


async def test_a_member_of_an_older_generation_is_fenced() -> None:
    async with running(config={"group.initial.rebalance.delay.ms": 0}) as (_, wire):
        await wire.create("t")
        producer = ByHand(wire, "x")
        await producer.init()
        offsets = {("t", 0): 1}
        assert await producer.offsets("g", offsets, member=("m", None, 4)) == E.ILLEGAL_GENERATION, "no group"
        join = m.JoinGroupRequest(
            group_id="g", session_timeout_ms=60_000, rebalance_timeout_ms=60_000, member_id="",
            protocol_type="consumer", group_instance_id="i",
            protocols=[m.JoinGroupRequestProtocol(name="range", metadata=b"m")],
        )  # fmt: skip
        joined = await wire(join, 7)
        assert not joined.error_code
        me, generation = joined.member_id, joined.generation_id
        assert await producer.offsets("g", offsets, member=(me, "i", generation)) == 0, "amid a rebalance"
        assert await producer.offsets("g", offsets) == 0, "an old producer names no member"
        assert await producer.offsets("g", offsets, member=(me, "i", generation + 1)) == E.ILLEGAL_GENERATION
        assert await producer.offsets("g", offsets, member=("nobody", None, generation)) == E.UNKNOWN_MEMBER_ID
        assert await producer.offsets("g", offsets, member=("nobody", "i", generation)) == E.FENCED_INSTANCE_ID
        assert await producer.end() == 0
        assert await settled(wire, "g") == 1


@pytest.mark.parametrize("commit", [True, False])
async def test_what_is_decided_is_applied_after_a_restart(monkeypatch: pytest.MonkeyPatch, commit: bool) -> None:
    stuck = Stuck(monkeypatch)
    async with open_store(f"memory:{next(names)}") as store:
        async with Gateway(store, listen=None) as gateway:
            wire = connect(gateway)
            await wire.create("t", 2)
            await wire.commit("g", "t", 3)
            producer = ByHand(wire, "x")
            await producer.init()
            await producer.send("t", b"a", partition=1)
            await producer.offsets("g", {("t", 0): 7})
            await wire.aclose()
        async with Gateway(store, listen=None) as gateway:
            producer.wire = wire = connect(gateway)
            assert await stable(wire, "g") == UNSTABLE
            assert await producer.end(commit) == 0
            assert await stable(wire, "g") == UNSTABLE, "its ends are not durable"
            await wire.aclose()
        async with Gateway(store, listen=None) as gateway:
            wire = connect(gateway)
            assert await stable(wire, "g") == UNSTABLE
            stuck.held = False
            assert await settled(wire, "g") == (7 if commit else 3)
            await wire.aclose()
        async with Gateway(store, listen=None) as gateway:
            wire = connect(gateway)
            assert await stable(wire, "g") == (7 if commit else 3)
            await wire.aclose()


async def test_what_the_time_out_aborts_is_stable_again() -> None:
    async with running() as (_, wire):
        await wire.create("t")
        producer = ByHand(wire, "x")
        await producer.init(timeout_ms=50)
        assert await producer.offsets("g", {("t", 0): 7}) == 0
        assert await settled(wire, "g") == -1
        groups = (await wire(m.ListGroupsRequest(), 4)).groups
        assert groups == [], "nothing is left of it"


async def test_of_a_mix_the_last_commit_counts() -> None:
    async with running() as (gateway, wire):
        await wire.create("t", 2)
        producer = ByHand(wire, "x")
        await producer.init()
        now, clock = 1_000, gateway.parts.clock
        clock.wall_ms = lambda: now
        assert await producer.offsets("g", {("t", 0): 7, ("t", 1): 7}) == 0
        now += 1
        assert await wire.commit("g", "t", 5, 1) == 0
        assert await producer.end() == 0
        assert (await settled(wire, "g"), await settled(wire, "g", "t", 1)) == (7, 5)
        rows = await scan_all(gateway.parts.manager, OFFSETS)
        assert [decode_offset(row.value)[0].offset for row in rows.values()] == [7, 5]


async def test_the_last_counts_though_the_clock_went_back() -> None:
    async with running() as (gateway, wire):
        await wire.create("t")
        one, other = ByHand(wire, "x"), ByHand(wire, "y")
        now, clock = 9_000, gateway.parts.clock
        clock.wall_ms = lambda: now
        for producer in (one, other):
            await producer.init()
        assert await wire.commit("g", "t", 5) == 0
        now -= 1000
        assert await one.offsets("g", {("t", 0): 6}) == 0
        assert await one.end() == 0
        assert await settled(wire, "g") == 6
        now -= 1000
        assert await one.offsets("g", {("t", 0): 7}) == 0
        now -= 1000
        assert await other.offsets("g", {("t", 0): 8}) == 0
        assert await one.end() == 0
        assert await other.end() == 0
        assert await settled(wire, "g") == 8


async def test_deletions_meanwhile() -> None:
    async with running() as (gateway, wire):
        await wire.create("t")
        await wire.create("u")
        producer = ByHand(wire, "x")
        await producer.init()
        for group in ("kept", "gone"):
            assert await producer.offsets(group, {("t", 0): 1, ("u", 0): 1}) == 0
        request = m.OffsetDeleteRequest(
            group_id="kept",
            topics=[
                m.OffsetDeleteRequestTopic(name="t", partitions=[m.OffsetDeleteRequestPartition(partition_index=0)])
            ],
        )
        (row,) = (await wire(request, 0)).topics[0].partitions
        assert row.error_code == E.UNSTABLE_OFFSET_COMMIT
        (deleted,) = (await wire(m.DeleteGroupsRequest(groups_names=["gone"]), 2)).results
        assert deleted.error_code == 0
        assert await wire.delete("u") == 0
        await wire.create("u")
        assert await stable(wire, "kept", "u") == -1
        assert await producer.end() == 0
        assert await settled(wire, "kept") == 1
        assert await stable(wire, "kept", "u") == -1
        assert await stable(wire, "gone") == -1
        assert len(await scan_all(gateway.parts.manager, OFFSETS)) == 1
        (row,) = (await wire(request, 0)).topics[0].partitions
        assert row.error_code == 0


@pytest.mark.parametrize("made", [True, False])
async def test_a_commit_of_which_nobody_knows_is_looked_up(made: bool) -> None:
    trouble = Forgetful()
    store = SlowStore(open_store(f"memory:{next(names)}"), trouble.around)
    async with store, Gateway(store, listen=None) as gateway:
        wire = connect(gateway)
        await wire.create("t")
        producer = ByHand(wire, "x")
        await producer.init()
        assert await producer.add_group("g") == 0
        trouble.after, trouble.before = (1, 0) if made else (0, 1)
        assert await producer.offsets("g", {("t", 0): 7}) == E.COORDINATOR_NOT_AVAILABLE
        if made:
            assert await stable(wire, "g") == UNSTABLE
        else:
            assert await settled(wire, "g") == -1
        assert await producer.offsets("g", {("t", 0): 7}) == 0
        assert await producer.end() == 0
        trouble.after, trouble.before = (1, 0) if made else (0, 1)  # the one that completes it, mostly
        assert await settled(wire, "g") == 7
        await wire.aclose()


class Cut:
    """Cuts the store off at one of the commits to come, before or after it is made."""

    def __init__(self) -> None:
        self.left, self.made, self.cut = 0, False, False

    @asynccontextmanager
    async def around(self, name: str) -> AsyncIterator[None]:
        if self.cut:
            raise StorageError("it is cut off")
        self.left -= name.endswith("commit")
        last = name.endswith("commit") and self.left == 0
        self.cut = last and not self.made
        if self.cut:
            raise StorageError("it is not made")
        yield
        self.cut = self.cut or last
        if last:
            raise StorageError("nobody is told")


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("step", range(1, 8))
async def test_a_crash_at_each_commit_leaves_all_or_nothing(step: int, made: bool) -> None:
    """Records and offsets are seen together, or neither, after the next start."""
    cut = Cut()
    store = SlowStore(open_store(f"memory:{next(names)}"), cut.around)
    async with store:
        with suppress(StorageError):
            async with Gateway(store, listen=None) as gateway:
                wire = connect(gateway)
                await wire.create("t", 2)
                await wire.commit("g", "t", 3)
                producer = ByHand(wire, "x")
                await producer.init()
                cut.left, cut.made = step, made
                steps = [
                    producer.send("t", b"a", partition=1),
                    producer.offsets("g", {("t", 0): 7}),
                    producer.end(),
                    settled(wire, "g"),
                ]
                with anyio.move_on_after(0.5):
                    codes = [await each for each in steps[:3] if not cut.cut]
                    if not any(codes):
                        await steps[3]
                for each in steps:
                    each.close()
                if cut.cut:
                    gateway.parts.lease.give_up()
                await wire.aclose()
        cut.left, cut.cut = 0, False
        async with Gateway(store, listen=None) as gateway:
            wire = connect(gateway)
            assert await ByHand(wire, "x").init() == 0, "what was open is aborted, what was decided is completed"
            await decided(wire, "t", 1)
            offset = await settled(wire, "g")
            assert (await committed_values(wire, "t", 1), offset) in [([b"a"], 7), ([], 3)]
            assert not await scan_all(gateway.parts.manager, PENDING)
            await wire.aclose()


async def test_a_row_that_cannot_be_read_holds_up_no_end(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as (gateway, wire):
        await wire.create("t")
        producer = ByHand(wire, "x")
        await producer.init()
        assert await producer.offsets("g", {("t", 0): 7}) == 0
        await gateway.parts.manager.commit({pending_key("g", "x"): b"garbage"})
        assert await producer.end() == 0
        assert await settled(wire, "g") == -1
        assert "cannot be read" in caplog.text


async def test_commits_and_joins_at_the_same_time() -> None:
    """Each changes the row that the others expect."""
    count = 10
    async with running() as (gateway, wire):
        await wire.create("t", count)
        producer = ByHand(wire, "x")
        await producer.init()
        wires = [connect(gateway) for _ in range(3 * count)]
        mine = [ByHand(each, "x", 2, producer.producer_id, producer.epoch) for each in wires]
        codes: list[int] = []

        async def take(each: ByHand, group: str, number: int) -> None:
            codes.append(await each.offsets(group, {("t", number): number}))

        async def send(each: ByHand, number: int) -> None:
            codes.append(await each.send("t", b"a", partition=number))

        async with anyio.create_task_group() as tasks:
            for number in range(count):
                tasks.start_soon(take, mine[number], "g", number)
                tasks.start_soon(take, mine[count + number], f"g{number}", number)
                tasks.start_soon(send, mine[2 * count + number], number)
        assert codes == [0] * 3 * count
        assert await producer.end() == 0
        for number in range(count):
            assert await settled(wire, "g", "t", number) == await settled(wire, f"g{number}", "t", number) == number
        for each in wires:
            await each.aclose()


async def test_who_gives_up_waiting_leaves_nothing_half_done() -> None:
    held = anyio.Event()
    held.set()

    @asynccontextmanager
    async def around(name: str) -> AsyncIterator[None]:
        if name == "commit":
            await held.wait()
        yield

    store = SlowStore(open_store(f"memory:{next(names)}"), around)
    async with store, Gateway(store, listen=None) as gateway:
        wire = connect(gateway)
        await wire.create("t", 2)
        producer = ByHand(wire, "x")
        await producer.init()
        assert await producer.add_group("g") == 0
        held = anyio.Event()
        gone = connect(gateway)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ByHand(gone, "x", 2, producer.producer_id, producer.epoch).offsets, "g", {("t", 0): 1})
            with anyio.fail_after(20):
                while await stable(wire, "g") != UNSTABLE:  # from then on it is on its way
                    await anyio.sleep(0.005)
            tasks.cancel_scope.cancel()
        await gone.aclose()
        held.set()
        assert await producer.offsets("g", {("t", 1): 2}) == 0
        assert await producer.end() == 0
        assert (await settled(wire, "g"), await settled(wire, "g", "t", 1)) == (1, 2)
        await wire.aclose()


async def test_their_memory_is_given_back() -> None:
    async with running() as (gateway, wire):
        await wire.create("t", 300)
        ledger = gateway.parts.groups._memory
        producer = ByHand(wire, "x")
        await producer.init()
        before = ledger.offsets.held
        assert await producer.offsets("g", {("t", number): 1 for number in range(300)}, metadata="m" * 100) == 0
        assert ledger.offsets.held > before + 300 * 300
        assert await producer.end(commit=False) == 0
        assert await settled(wire, "g") == -1
        assert (ledger.offsets.held, ledger.writes.held) == (before, 0)


async def test_offsets_do_not_expire_while_others_are_pending() -> None:
    async with running(config={"offsets.retention.minutes": 1}) as (gateway, wire):
        await wire.create("t", 2)
        clock = gateway.parts.clock
        now = clock.wall_ms()
        clock.wall_ms = lambda: now
        assert await wire.commit("g", "t", 1) == await wire.commit("g", "t", 1, 1) == 0
        producer = ByHand(wire, "x")
        await producer.init()
        assert await producer.offsets("g", {("t", 0): 2}) == 0
        now += 120_000
        gateway.parts.groups.expiry.expire()
        with anyio.fail_after(10):
            while await wire.committed("g", "t", 1) != -1:
                await anyio.sleep(0.005)
        assert await wire.committed("g", "t") == 1
        assert await producer.end() == 0
        assert await settled(wire, "g") == 2


async def test_a_deletion_that_fails_leaves_them() -> None:
    trouble = Forgetful()
    store = SlowStore(open_store(f"memory:{next(names)}"), trouble.around)
    async with store, Gateway(store, listen=None) as gateway:
        wire = connect(gateway)
        await wire.create("t")
        producer = ByHand(wire, "x")
        await producer.init()
        assert await producer.offsets("g", {("t", 0): 7}) == 0
        trouble.before = 1
        (row,) = (await wire(m.DeleteGroupsRequest(groups_names=["g"]), 2)).results
        assert row.error_code == E.COORDINATOR_NOT_AVAILABLE
        assert await stable(wire, "g") == UNSTABLE
        assert await producer.end() == 0
        assert await settled(wire, "g") == 7
        await wire.aclose()


@pytest.mark.parametrize("version", [1, 2])
async def test_nothing_is_added_once_the_end_is_prepared(version: int) -> None:
    held = anyio.Event()
    held.set()

    @asynccontextmanager
    async def around(name: str) -> AsyncIterator[None]:
        yield
        if name == "get":
            await held.wait()

    store = SlowStore(open_store(f"memory:{next(names)}"), around)
    async with store, Gateway(store, listen=None) as gateway:
        wire = connect(gateway)
        await wire.create("t")
        producer = ByHand(wire, "x", version)
        await producer.init()
        assert await producer.add_group("g") == 0
        held = anyio.Event()
        late = connect(gateway)
        codes: list[int] = []

        async def take() -> None:
            each = ByHand(late, "x", version, *identity)
            codes.append(await each.offsets("g", {("t", 0): 1}, request=4))

        identity = producer.producer_id, producer.epoch
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            await anyio.wait_all_tasks_blocked()
            assert await producer.end() == 0
            held.set()
        assert codes in [[E.INVALID_PRODUCER_EPOCH], [E.CONCURRENT_TRANSACTIONS], [E.TRANSACTION_ABORTABLE]]
        assert await settled(wire, "g") == -1
        assert not await scan_all(gateway.parts.manager, PENDING)
        await late.aclose()
        await wire.aclose()


async def test_a_clock_that_goes_back_loses_no_offsets() -> None:
    """What is committed later counts, whatever time it was by the clock."""
    async with running() as (gateway, wire):
        await wire.create("t")
        clock = gateway.parts.clock
        now = clock.wall_ms()
        producer = ByHand(wire, "x")
        await producer.init()
        for offset in range(1, 4):
            clock.wall_ms = lambda ms=now - offset * 60_000: ms  # type: ignore[misc]
            assert await producer.offsets("g", {("t", 0): offset}) == 0
            assert await producer.end() == 0
            assert await settled(wire, "g") == offset
        clock.wall_ms = lambda: now - 1_000_000
        assert await producer.offsets("g", {("t", 0): 4}) == 0
        assert await wire.commit("g", "t", 5) == 0
        assert await producer.end() == 0
        assert await settled(wire, "g") == 5
        (row,) = (await scan_all(gateway.parts.manager, OFFSETS)).values()
        assert decode_offset(row.value)[0].offset == 5
