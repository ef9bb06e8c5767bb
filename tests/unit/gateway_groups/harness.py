"""A group coordinator on a memory store, driven by requests as they come from the wire."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from types import GeneratorType
from typing import Any, cast

from kclient.concurrency import Completion, Supervisor, loop_soon
from kclient.errors import ErrorCode, KafkaError
from kclient.gateway.access import Access
from kclient.gateway.clock import Clock
from kclient.gateway.config import BrokerConfig
from kclient.gateway.contexts import Advertised, ConnectionContext, RequestContext
from kclient.gateway.coordination import CoordinatorType
from kclient.gateway.dynamic_config import DynamicConfig
from kclient.gateway.features import SUPPORTED, Features
from kclient.gateway.groups import GroupCoordinator, group_settings
from kclient.gateway.groups.group import GroupKind
from kclient.gateway.groups.kinds import KINDS
from kclient.gateway.groups.moving import CoordinatorClaims
from kclient.gateway.groups.offsets import OffsetCommit
from kclient.gateway.groups.sharing.administration import ShareGroupAdministration
from kclient.gateway.groups.streaming.creating import StreamsTopics
from kclient.gateway.groups.writer import Claims, Write
from kclient.gateway.handlers.table import HandlerTable
from kclient.gateway.handlers_of_groups import group_handlers, share_group_handlers, streams_group_handlers
from kclient.gateway.identity import Identity
from kclient.gateway.leadership import AssignedLeadership
from kclient.gateway.living_topics import LivingTopics
from kclient.gateway.membership import Members
from kclient.gateway.ownership import HeldLease
from kclient.gateway.partition_id import PartitionId
from kclient.gateway.rows.groups import CommittedOffset
from kclient.gateway.shares.offsets import ShareGroupOffsets
from kclient.gateway.shields import Shields
from kclient.gateway.topics.record import TopicRecord
from kclient.gateway.topics.table import TopicTable
from kclient.gateway.unit_epochs import UnitEpochs
from kclient.gateway.workers import Workers
from kclient.htp import open_store
from kclient.htp.memory import reset
from kclient.htp.port import Manager
from kclient.memory_ledger import MemoryLedger
from kclient.net.fair_queue import FairQueue
from kclient.net.memory_budget import MemoryBudget
from kclient.net.reply_order import ReplyOrder, ReplySlot
from kclient.net.server_settings import ServerSettings
from kclient.protocol.message import ApiMessage
from kclient.protocol.messages import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from kclient.protocol.registry import response_class
from kclient.types import TopicPartition
from tests.all_rows import scan_all
from tests.sole_writer import alone


@dataclass(eq=False)
class FakeTopic:
    """Of a topic's record only what groups look at."""

    name: str
    topic_id: bytes
    partitions: int = 10
    gone: bool = False


@dataclass
class FakeTopics:
    """A catalogue of the topics `a` to `e`."""

    by_name: dict[str, FakeTopic] = field(
        default_factory=lambda: {name: FakeTopic(name, name.encode() * 16) for name in "abcde"}
    )
    changed: list[str] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)
    left: set[tuple[str, bytes]] = field(default_factory=set)
    refused: dict[str, KafkaError] = field(default_factory=dict)
    """Topics that are not made, and why."""
    made: dict[str, tuple[int, dict[str, str | None]]] = field(default_factory=dict)

    def get(self, name: str) -> FakeTopic | None:
        return self.by_name.get(name)

    def __iter__(self) -> Iterator[FakeTopic]:
        return iter(list(self.by_name.values()))

    @property
    def changes(self) -> int:
        return len(self.changed)

    def changed_since(self, changes: int) -> set[str]:
        return set(self.changed[changes:])

    def put(self, name: str, topic_id: bytes, partitions: int = 1) -> None:
        self.by_name[name] = FakeTopic(name, topic_id, partitions)
        self.changed.append(name)

    async def create(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        overrides: Mapping[str, str | None] | None = None,
    ) -> None:
        if name in self.refused:
            raise self.refused[name]
        self.made[name] = partitions, dict(overrides or {})
        self.put(name, name.encode()[:16].ljust(16), partitions)

    def internal(self, name: str) -> None:
        return None

    def internal_by_id(self, topic_id: bytes) -> None:
        return None

    def check_not_internal(self, name: str) -> None:
        pass

    def deleted(self, name: str, topic_id: bytes) -> bool:
        return (name, topic_id) in self.left

    def by_id(self, topic_id: bytes) -> FakeTopic | None:
        return next((topic for topic in self.by_name.values() if topic.topic_id == topic_id), None)


class FakeEnds:
    """Every partition has a hundred records."""

    async def ends(self, partitions: Collection[PartitionId]) -> Mapping[PartitionId, int]:
        return dict.fromkeys(partitions, 100)


class Harness:
    """Sends requests through the handlers, every message through its codec at the version asked for."""

    def __init__(
        self,
        manager: Manager,
        lease: HeldLease,
        config: BrokerConfig,
        clock: Clock,
        spawn: Any,
        kinds: Mapping[str, GroupKind] = KINDS,
        claims: Claims | None = None,
    ) -> None:
        self.kinds = kinds
        self.claims = claims
        self.manager = manager
        self.lease = lease
        self.config = config
        self.clock = clock
        self.spawn = spawn
        self.queue = FairQueue(loop_soon(), lambda: 0.0)  # however slow the machine is, no slice is over early
        self.topics = FakeTopics()
        self.dynamic = DynamicConfig(config, manager, lease, Shields())
        self.memory = MemoryLedger().part(config.get_int("connections.max.memory.bytes"))
        self.renew()
        share = MemoryBudget().share(lambda: None)
        self.connection = ConnectionContext(
            "127.0.0.1:1", "/127.0.0.1", Advertised("gateway", 9092), self.queue.flow(), share
        )
        self.client_id: str | None = "client"

    def renew(self) -> None:
        """Another coordinator over the same store, not started yet, and handlers that ask it."""
        identity = Identity(1, "cluster", self.lease.current.epoch, "run")
        generations = alone(self.manager)
        epochs = UnitEpochs(self.manager, self.lease, generations)
        leadership = AssignedLeadership(identity, None, generations, epochs, Members(1), {})
        topics = cast("TopicTable", self.topics)
        self.groups = GroupCoordinator(
            topics,
            partial(group_settings, self.config),
            leadership,
            unreadable=lambda: self.dynamic.unreadable,
            manager=self.manager,
            lease=self.lease,
            identity=identity,
            queue=self.queue,
            clock=self.clock,
            memory=self.memory,
            spawn=self.spawn,
            workers=Workers(),
            kinds=self.kinds,
            claims=self.claims,
        )
        access = Access(topics, leadership)
        claims = CoordinatorClaims(leadership, generations, CoordinatorType.GROUP)
        living = LivingTopics(self.manager, topics.by_id, generations)
        self.share_offsets = ShareGroupOffsets(self.manager, self.lease, claims, living)
        shares = ShareGroupAdministration(
            self.groups.table, self.groups.sharing, self.groups.deletion, self.share_offsets
        )
        features = Features(SUPPORTED)
        self.table = HandlerTable(
            [
                *group_handlers(leadership, access, self.groups, shares, self.clock, features, topics),
                *share_group_handlers(access, self.groups, shares, features, topics, FakeEnds()),
                *streams_group_handlers(
                    access, self.groups, StreamsTopics(self.topics, self.spawn, self.clock), features
                ),
            ]
        )

    def begin(self, request: ApiMessage, version: int | None = None) -> Callable[[], Awaitable[Any]]:
        """Send a request; returns what waits for the answer."""
        key = cast("int", type(request).API_KEY)
        version = self.table.versions[key][1] if version is None else version
        low, high = self.table.versions[key]
        assert low <= version <= high
        place = ReplySlot(ReplyOrder(ServerSettings(), self.connection.share, lambda: False), 0)
        context = RequestContext(key, version, 7, self.client_id, self.connection, place)
        received = type(request).decode(request.encode(version), version)
        begun = until_it_waits(self.table.handlers[key].begin(received, context))

        async def finish() -> Any:
            response = await finished(begun)
            assert response is not None
            return response_class(key).decode(response.encode(version), version)

        return finish

    def store_offsets(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> Write:
        """Commit offsets of topics that there are, past the handlers."""
        commit = OffsetCommit()
        for partition, committed in offsets.items():
            record = self.topics.get(partition.topic)
            assert record is not None
            commit.add(cast("TopicRecord", record), partition.partition, committed)
        return self.groups.committed.commit(group, commit)

    async def ask(self, request: ApiMessage, version: int | None = None) -> Any:
        """Send a request and wait for the answer."""
        return await self.begin(request, version)()

    async def join(self, group: str = "g", member_id: str = "", version: int = 3, **fields: Any) -> JoinGroupResponse:
        values: dict[str, Any] = {
            "group_id": group,
            "member_id": member_id,
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 30_000,
            "protocol_type": "consumer",
            "protocols": [JoinGroupRequestProtocol(name="range", metadata=subscription("a"))],
        }
        return cast("JoinGroupResponse", await self.ask(JoinGroupRequest(**(values | fields)), version))

    async def sync(self, joined: JoinGroupResponse, group: str = "g", assignment: bytes = b"mine") -> SyncGroupResponse:
        leads = joined.leader == joined.member_id
        ids = [member.member_id for member in joined.members] if leads else []
        request = SyncGroupRequest(
            group_id=group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[SyncGroupRequestAssignment(member_id=each, assignment=assignment) for each in ids],
        )
        return cast("SyncGroupResponse", await self.ask(request, 3))

    async def member(self, group: str = "g") -> JoinGroupResponse:
        """Bring one member into a stable generation."""
        joined = await self.join(group)
        assert joined.error_code == 0
        assert (await self.sync(joined, group)).error_code == 0
        return joined


def topics_of(box: Harness, group: str = "g") -> list[str]:
    """The topics of which offsets are committed."""
    offsets = box.groups.committed.of(group)
    return sorted(offsets.topics()) if offsets is not None else []


async def stored(box: Harness) -> list[str]:
    return [key.removeprefix("group-offset/") for key in await scan_all(box.manager, "group-offset/")]


async def committed(box: Harness, group: str, **offsets: int) -> None:
    now = box.clock.wall_ms()
    values = {TopicPartition(topic, 0): CommittedOffset(at, commit_ms=now) for topic, at in offsets.items()}
    assert await box.store_offsets(group, values).wait() is ErrorCode.NONE


def until_it_waits(begun: Any) -> Any:
    """What a handler began, as far as it comes without waiting: its answer, or work and what that waits for."""
    while isinstance(begun, GeneratorType):
        work = begun
        try:
            while not isinstance(step := next(work), Completion) or step.done:
                pass
        except StopIteration as end:
            begun = end.value
        else:
            return work, step
    return begun


async def finished(begun: Any) -> Any:
    """The answer that a handler comes to."""
    while isinstance(begun := until_it_waits(begun), tuple):
        begun, waited_for = begun
        await waited_for.wait()
    if isinstance(begun, Completion):
        return await begun.wait()
    return await begun() if callable(begun) else begun


def subscription(*topics: str) -> bytes:
    """A consumer's metadata, version 0."""
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\x00\x00" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


@asynccontextmanager
async def coordinator(
    store: str,
    clock: Clock | None = None,
    *,
    kinds: Mapping[str, GroupKind] = KINDS,
    claims: Claims | None = None,
    **settings: Any,
) -> AsyncIterator[Harness]:
    """A coordinator over the memory store of that name, started and closed."""
    config = BrokerConfig({"group_initial_rebalance_delay_ms": 0, **settings})
    async with open_store(f"memory:{store}") as opened, Supervisor("test") as supervisor:
        lease = await opened.manager.acquire("gateway", str(uuid.uuid4()), 30.0)
        box = Harness(opened.manager, HeldLease(lease), config, clock or Clock(), supervisor.spawn, kinds, claims)
        await box.groups.start()
        try:
            yield box
        finally:
            await box.groups.aclose()
            await opened.manager.release(lease)
        supervisor.check()


def fresh_name() -> str:
    """The name of a memory store that nobody else uses."""
    return f"groups-{uuid.uuid4()}"


__all__ = [
    "FakeTopic",
    "Harness",
    "committed",
    "coordinator",
    "finished",
    "fresh_name",
    "reset",
    "stored",
    "subscription",
    "topics_of",
    "until_it_waits",
]
