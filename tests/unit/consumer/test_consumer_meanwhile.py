"""What another task does while a poll awaits, and what a cancelled call leaves behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import kclient
from kclient.consumer import RebalanceListener
from kclient.consumer.group import driver
from kclient.errors import BrokerConnectionError, ClosedError, CommitFailedError, KafkaError
from kclient.protocol.messages import LeaveGroupRequest, LeaveGroupRequestMember, OffsetCommitRequest
from kclient.testing import memory_broker
from kclient.types import OffsetAndMetadata, TopicPartition
from tests.unit.consumer.membership import present_member

pytestmark = pytest.mark.anyio

T = [TopicPartition("t", number) for number in range(2)]
ASSIGNORS = ["range", "cooperative-sticky"]


@asynccontextmanager
async def members(assignor: str, **more: Any) -> AsyncIterator[tuple[kclient.Consumer, kclient.Consumer]]:
    """Two consumers of one group, of which the first has both partitions, and two records."""
    with memory_broker() as address:
        async with kclient.Admin(bootstrap_servers=address) as admin:
            await admin.create_topic("t", 2)
        async with kclient.Producer(bootstrap_servers=address) as producer:
            for tp in T:
                await producer.send("t", b"%d" % tp.partition, partition=tp.partition)
        settings: dict[str, Any] = {"group_id": "g", "auto_offset_reset": "earliest", "heartbeat_interval_ms": 50}
        settings |= {"bootstrap_servers": address, "partition_assignment_strategy": assignor, **more}
        async with kclient.Consumer(**settings) as one, kclient.Consumer(**settings) as other:
            yield one, other


class Slow(RebalanceListener):
    """Says when it is told of partitions that go, and takes its time."""

    def __init__(self) -> None:
        self.inside, self.go_on = anyio.Event(), anyio.Event()

    async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        if not self.inside.is_set():
            self.inside.set()
            await self.go_on.wait()


class Told(RebalanceListener):
    """What one is told, and what is done amid that."""

    def __init__(self, revoked: Callable[[], Awaitable[None]]) -> None:
        self.events: list[tuple[str, list[TopicPartition]]] = []
        self.revoked = revoked

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self.events.append(("assigned", sorted(partitions)))

    async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self.events.append(("revoked", sorted(partitions)))
        await self.revoked()

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self.events.append(("lost", sorted(partitions)))


async def expel(consumer: kclient.Consumer) -> None:
    """End its membership, and wait until it knows."""
    core, member = consumer._core, present_member(consumer)
    request = LeaveGroupRequest(group_id="g", members=[LeaveGroupRequestMember(member_id=member)])
    await core.cluster.request(core.group().member.coordinator, request)
    with anyio.fail_after(10):
        while present_member(consumer) == member:
            await anyio.sleep(0.01)


class HeldCommit:
    """Holds the first commit of a consumer up, which then fails on the way."""

    def __init__(self, consumer: kclient.Consumer) -> None:
        self.asked, self.go_on = anyio.Event(), anyio.Event()
        cluster = consumer._core.cluster
        self._request = cluster.request
        cluster.request = self.request  # type: ignore[method-assign]

    async def request(self, node: int | None, message: Any, **options: Any) -> Any:
        if isinstance(message, OffsetCommitRequest) and not self.asked.is_set():
            self.asked.set()
            await self.go_on.wait()
            raise BrokerConnectionError("the wire was cut")
        return await self._request(node, message, **options)


async def unsubscribe(consumer: kclient.Consumer) -> None:
    await consumer.unsubscribe()


async def subscribe_to_nothing(consumer: kclient.Consumer) -> None:
    consumer.subscribe([])


async def assign_nothing(consumer: kclient.Consumer) -> None:
    consumer.assign([])


LEAVINGS = [unsubscribe, subscribe_to_nothing, assign_nothing]


@pytest.mark.parametrize("leave", LEAVINGS)
@pytest.mark.parametrize("assignor", ASSIGNORS)
async def test_who_unsubscribes_and_assigns_amid_a_rebalance_keeps_what_is_assigned(
    assignor: str, leave: Callable[[kclient.Consumer], Awaitable[None]]
) -> None:
    async with members(assignor) as (one, other):
        slow = Slow()
        one.subscribe(["t"], slow)
        while len(one.assignment()) < 2:
            await one.poll(0.05)
        values = list[bytes]()

        async def poll(consumer: kclient.Consumer, until: anyio.Event) -> None:
            while not until.is_set():
                records = await consumer.poll(0.05)
                if consumer is one:
                    values.extend(record.value for record in records)

        done = anyio.Event()
        other.subscribe(["t"])
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(poll, one, done)
                tasks.start_soon(poll, other, done)
                await slow.inside.wait()
                await leave(one)
                one.assign(T)
                one.seek_to_beginning()
                values.clear()
                slow.go_on.set()
                while len(values) < 2:
                    await anyio.sleep(0.01)
                while len(other.assignment()) < 2:
                    await anyio.sleep(0.01)
                done.set()
        assert sorted(values) == [b"0", b"1"]
        assert one.assignment() == set(T)
        assert one.subscription() == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("assignor", "amid", "told"),
    [
        ("range", "commit 1", [("lost", T)]),
        ("cooperative-sticky", "commit 1", [("lost", T)]),
        ("cooperative-sticky", "commit 2", [("lost", T)]),
        ("range", "listener", [("revoked", T)]),
        ("cooperative-sticky", "listener", [("revoked", [T[1]]), ("lost", [T[0]])]),
    ],
)
async def test_who_is_expelled_amid_a_rebalance_has_lost_what_it_kept(
    monkeypatch: pytest.MonkeyPatch, assignor: str, amid: str, told: list[tuple[str, list[TopicPartition]]]
) -> None:
    """While it commits before it joins, or before it gives up what the group gave to others, or while it tells so."""
    async with members(assignor, auto_commit_interval_ms=100_000) as (one, other):
        happens: list[str] = []

        async def reached(what: str) -> None:
            happens.append(what)
            if happens.count(amid) == 1 and what == amid:
                await expel(one)

        listener = Told(lambda: reached("listener"))
        one.subscribe(["t"], listener)
        read = 0
        while read < 2:
            read += len(await one.poll(0.05))
        committer = one._core.group().committer
        attempt = committer._attempt
        commits: list[object] = []

        async def late(commit: Any) -> None:
            commits.append(commit)
            await reached(f"commit {len(commits)}")
            await attempt(commit)

        monkeypatch.setattr(committer, "_attempt", late)
        listener.events.clear()
        other.subscribe(["t"])
        done = anyio.Event()

        async def poll(consumer: kclient.Consumer, seconds: float) -> None:
            while not done.is_set():
                await consumer.poll(seconds)

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(poll, one, 1.0)  # it is the same poll that waits until it is expelled, and goes on
                tasks.start_soon(poll, other, 0.05)
                while amid not in happens or len(one.assignment()) != 1 or len(other.assignment()) != 1:
                    await anyio.sleep(0.01)
                done.set()
        count = len(told)
        assert listener.events[:count] == told
        assert [what for what, partitions in listener.events[count:] if partitions and what != "assigned"] == []
        assert one.assignment() | other.assignment() == set(T)


@pytest.mark.parametrize("assignor", ASSIGNORS)
async def test_a_poll_that_meets_a_close_amid_a_rebalance_is_told_so(assignor: str) -> None:
    async with members(assignor) as (one, other):
        slow = Slow()
        one.subscribe(["t"], slow)
        while len(one.assignment()) < 2:
            await one.poll(0.05)
        raised: list[BaseException] = []

        async def poll() -> None:
            try:
                while True:
                    await one.poll(0.05)
            except BaseException as error:
                raised.append(error)

        async def poll_other() -> None:
            while not raised:
                await other.poll(0.05)

        other.subscribe(["t"])
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(poll)
                tasks.start_soon(poll_other)
                await slow.inside.wait()
                await one.close(0.1)
                slow.go_on.set()
        assert [type(error) for error in raised] == [ClosedError]


@pytest.mark.parametrize("assignor", ASSIGNORS)
async def test_a_cancelled_unsubscribe_has_unsubscribed(assignor: str) -> None:
    """Or has done nothing; it is never out of the group and subscribed."""
    async with members(assignor) as (one, _):
        one.subscribe(["t"])
        while len(one.assignment()) < 2:
            await one.poll(0.05)
        with anyio.move_on_after(0):
            await one.unsubscribe()
        assert (one.subscription(), one.assignment()) == (set(), set())
        one.assign(T)
        one.seek_to_beginning()
        assert len(await one.poll(5)) + len(await one.poll(0.5)) == 2
        one.assign([])
        one.subscribe(["t"])
        with anyio.fail_after(20):
            while len(one.assignment()) < 2:
                await one.poll(0.05)


async def test_assigning_nothing_is_unsubscribing() -> None:
    """As in the Java client."""
    with memory_broker() as address:
        async with kclient.Admin(bootstrap_servers=address) as admin:
            await admin.create_topic("t", 2)
        async with kclient.Consumer(bootstrap_servers=address, group_id="g") as consumer:
            consumer.subscribe(["t"])
            while not consumer.assignment():
                await consumer.poll(0.05)
            consumer.assign([])
            assert (consumer.subscription(), consumer.assignment()) == (set(), set())
            consumer.assign(T)
            consumer.assign([])
            consumer.subscribe(["t"])
            assert consumer.subscription() == {"t"}
        async with kclient.Consumer(bootstrap_servers=address) as alone:
            alone.assign(T)
            alone.assign([])
            assert alone.assignment() == set()


@pytest.mark.slow
@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("waits", [False, True])
async def test_a_commit_is_never_made_in_a_later_membership_than_it_was_asked_for_in(
    waits: bool, leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that waits behind another, or is tried again; others may have committed since."""
    monkeypatch.setattr(driver, "_COMMITS_FIRST", 0)
    async with members("range", enable_auto_commit=False) as (one, _):
        one.subscribe(["t"])
        outcomes: list[Exception | None] = []

        async def commit() -> None:
            try:
                await one.commit({T[0]: 1})
            except KafkaError as error:
                outcomes.append(error)
            else:
                outcomes.append(None)

        with anyio.fail_after(20):
            while not one.assignment():
                await one.poll(0.05)
            held = HeldCommit(one)
            async with anyio.create_task_group() as tasks:
                if waits:
                    tasks.start_soon(commit)
                else:
                    for _ in range(2):
                        one.commit_async({T[0]: 1}, lambda offsets, error: outcomes.append(error))
                await held.asked.wait()
                if leaves:
                    one.subscribe([])
                    while one._core.group().member.leaving:
                        await anyio.sleep(0.01)
                else:
                    await expel(one)
                    while one.group_metadata().generation_id < 0 or not one.assignment():
                        await one.poll(0.05)
                held.go_on.set()
                while len(outcomes) < (1 if waits else 2):
                    await one.commit({})  # which has the callbacks called
                    await anyio.sleep(0.01)
            assert isinstance(outcomes[-1], CommitFailedError)
            assert await one.committed(T[:1]) == {T[0]: None}


@pytest.mark.parametrize("leave", LEAVINGS)
async def test_what_is_committed_just_before_leaving_is_committed(
    leave: Callable[[kclient.Consumer], Awaitable[None]],
) -> None:
    async with members("range", enable_auto_commit=False) as (one, other):
        one.subscribe(["t"])
        told: list[Exception | None] = []
        with anyio.fail_after(20):
            while not one.assignment():
                await one.poll(0.05)
            for offset in range(3):
                one.commit_async({T[0]: offset}, lambda offsets, error: told.append(error))
            await leave(one)
            while len(told) < 3:
                await one.commit({})  # which has the callbacks called
                await anyio.sleep(0.01)
        assert told == [None] * 3
        assert await other.committed(T[:1]) == {T[0]: OffsetAndMetadata(2)}
