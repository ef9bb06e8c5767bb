"""Groups whose partitions the broker assigns (KIP-848), in simulated time.

The members' machines against a coordinator that keeps to the protocol, over a network that loses requests and answers.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from kclient.cluster import Backoff
from kclient.consumer.group.model import Complete, GroupRequest, MemberSettings, Prepare, RequestKind
from kclient.consumer.group.remote_member import RemoteMember
from kclient.errors import BrokerConnectionError, ErrorCode
from kclient.protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseAssignment,
    ConsumerGroupHeartbeatResponseTopicPartitions,
    FindCoordinatorResponse,
)
from kclient.types import TopicPartition

TOPIC = b"t" * 16
PARTITIONS = frozenset(range(6))
STEP = 0.25
SESSION = 45.0


@dataclass
class KnownMember:
    """What the coordinator knows of one."""

    epoch: int
    heard: float
    assigned: frozenset[int] = frozenset()
    """What it may read."""
    revoking: frozenset[int] = frozenset()
    """What it may still read until it says that it does not."""


@dataclass
class RemoteCoordinator:
    """Assigns in turn; gives nobody what another may still read. Time is whole when it is asked."""

    epoch: int = 0
    members: dict[str, KnownMember] = field(default_factory=dict)

    def target(self, member_id: str) -> frozenset[int]:
        ids = sorted(self.members)
        return frozenset(number for number in PARTITIONS if ids[number % len(ids)] == member_id)

    def expire(self, now: float) -> None:
        gone = [each for each, known in self.members.items() if now - known.heard > SESSION]
        for member_id in gone:
            self.remove(member_id)

    def remove(self, member_id: str) -> None:
        if self.members.pop(member_id, None) is not None:
            self.epoch += 1

    def hear(self, request: ConsumerGroupHeartbeatRequest, now: float) -> ConsumerGroupHeartbeatResponse:
        self.expire(now)
        member_id, epoch = request.member_id, request.member_epoch
        if epoch < 0:
            self.remove(member_id)
            return ConsumerGroupHeartbeatResponse(member_id=member_id, member_epoch=epoch)
        known = self.members.get(member_id)
        if epoch == 0:
            assert request.topic_partitions == []
            assert request.subscribed_topic_names == ["t"]
            assert request.rebalance_timeout_ms > 0
            self.epoch += 1
            known = self.members[member_id] = KnownMember(self.epoch, now)
        elif known is None:
            return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        elif epoch > known.epoch:
            return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.FENCED_MEMBER_EPOCH)
        known.heard = now
        before = known.assigned
        if request.topic_partitions is not None:
            owned = {number for topic in request.topic_partitions for number in topic.partitions}
            assert owned <= before | known.revoking, "it reads what it was never given"
            known.revoking &= owned
        self._advance(member_id, known)
        full = request.rebalance_timeout_ms != -1
        assignment = None
        if full or known.assigned != before:
            topics = []
            if known.assigned:
                topics = [
                    ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=TOPIC, partitions=sorted(known.assigned))
                ]
            assignment = ConsumerGroupHeartbeatResponseAssignment(topic_partitions=topics)
        return ConsumerGroupHeartbeatResponse(
            member_id=member_id, member_epoch=known.epoch, heartbeat_interval_ms=5000, assignment=assignment
        )

    def _advance(self, member_id: str, known: KnownMember) -> None:
        target = self.target(member_id)
        known.revoking |= known.assigned - target
        known.assigned &= target
        if known.revoking:
            return
        known.epoch = self.epoch
        others = [other for each, other in self.members.items() if each != member_id]
        taken = frozenset(number for other in others for number in other.assigned | other.revoking)
        known.assigned |= target - taken


class RemoteReader:
    """A consumer without I/O: polls, and carries steps out."""

    def __init__(self, number: int) -> None:
        settings = MemberSettings("g", retry_backoff=Backoff(100, 1000, jitter=0), max_poll_interval=300)
        self.machine = RemoteMember(settings, f"m{number}")
        self.machine.subscribe(["t"])
        self.reads: frozenset[int] = frozenset()

    def poll(self, now: float) -> None:
        self.machine.polled(now)
        while (step := self.machine.step()) is not None:
            if isinstance(step, Prepare):
                self.reads = frozenset() if step.lost else self.reads
                self.machine.prepared(step, [TopicPartition("t", number) for number in self.reads], now)
            else:
                self._complete(step)

    def _complete(self, step: Complete) -> None:
        self.reads = frozenset(tp.partition for tp in step.assigned)
        self.machine.took_over(step)
        self.machine.completed(step, gave_up=False)


class RemoteWorld:
    """Readers, their coordinator, the network and the time."""

    def __init__(self, seed: int, readers: int, loss: float) -> None:
        self.random = random.Random(seed)
        self.loss = loss
        self.now = 100.0
        self.coordinator = RemoteCoordinator()
        self.readers = [RemoteReader(number) for number in range(readers)]
        self.under_way: list[tuple[float, RemoteReader, GroupRequest, Any]] = []

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += STEP
            self.step()

    def step(self) -> None:
        arrived = [each for each in self.under_way if each[0] <= self.now]
        self.under_way = [each for each in self.under_way if each[0] > self.now]
        for _, reader, request, response in arrived:
            if response is None:
                reader.machine.failed(request, BrokerConnectionError("it broke"), self.now)
            else:
                reader.machine.received(request, response, self.now)
        for reader in self.readers:
            if self.random.random() < 0.7:
                reader.poll(self.now)
            todo = reader.machine.next(self.now)
            if todo.resolve:
                reader.machine.resolved({TOPIC: "t"} if self.random.random() > self.loss else {}, self.now)
            for request in todo.requests:
                self.send(reader, request)

    def send(self, reader: RemoteReader, request: GroupRequest) -> None:
        response: Any = FindCoordinatorResponse(node_id=1)
        if request.kind is not RequestKind.FIND_COORDINATOR:
            message: Any = request.build(1)
            lost = self.random.random() < self.loss
            response = None if lost else self.coordinator.hear(message, self.now)
            if self.random.random() < self.loss:
                response = None
        self.under_way.append((self.now + self.random.choice([0.0, STEP, 4 * STEP]), reader, request, response))

    def check_apart(self) -> None:
        """Nobody reads what another reads, of those that the coordinator counts on."""
        present = [each for each in self.readers if each.machine._id in self.coordinator.members]
        read = [number for each in present for number in each.reads]
        assert len(read) == len(set(read)), [(each.machine._id, sorted(each.reads)) for each in present]


def check_shared(world: RemoteWorld) -> None:
    assert sorted(number for each in world.readers for number in each.reads) == sorted(PARTITIONS)
    for each in world.readers:
        assert each.machine.stable
        assert each.reads == world.coordinator.target(each.machine._id)


def test_a_group_grows_and_shrinks() -> None:
    world = RemoteWorld(1, 1, 0.0)
    for _ in range(3):
        world.run(30)
        check_shared(world)
        world.readers.append(RemoteReader(len(world.readers)))
    world.run(30)
    check_shared(world)
    epoch = world.coordinator.epoch
    world.run(100)
    assert world.coordinator.epoch == epoch  # a quiet group stays as it is
    gone = world.readers.pop(0)
    gone.machine.leave("it has enough")
    for request in gone.machine.next(world.now).requests:
        world.send(gone, request)
    world.run(30)
    check_shared(world)


@pytest.mark.parametrize("seed", range(25))
def test_whatever_is_lost_nothing_is_read_twice(seed: int) -> None:
    world = RemoteWorld(seed, 3, 0.15)
    for _ in range(400):
        world.now += STEP
        world.step()
        world.check_apart()
        if world.random.random() < 0.01:
            world.coordinator.remove(world.random.choice(["m0", "m1", "m2"]))
            world.run(10)  # it has to learn of that first
    world.loss = 0.0
    world.run(120)
    check_shared(world)
