"""Consumers with `group.protocol=consumer` (KIP-848), before a coordinator that says what a test wants."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import kclient
from kclient.consumer import RebalanceListener, SubscriptionPattern
from kclient.errors import (
    CommitFailedError,
    ErrorCode,
    IllegalStateError,
    InvalidGroupIdError,
    KafkaError,
    RetriableCommitFailedError,
    WakeupError,
)
from kclient.net.server import ServerConnection
from kclient.protocol.message import ApiMessage
from kclient.protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseAssignment,
    ConsumerGroupHeartbeatResponseTopicPartitions,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from kclient.protocol.registry import ApiKey
from kclient.types import TopicPartition
from tests.fake_kafka import FakeBroker
from tests.fake_reads import ReadableKafka

pytestmark = pytest.mark.anyio

T = [TopicPartition("t", number) for number in range(3)]
PATIENCE = 10.0


class AssigningKafka(ReadableKafka):
    """Its coordinator takes one member, and assigns what it is told to."""

    def __init__(self) -> None:
        super().__init__({"t": 3, "u": 1})
        self.versions |= {ApiKey.CONSUMER_GROUP_HEARTBEAT: (0, 1), ApiKey.OFFSET_FETCH: (8, 10)}
        self.epoch = 1
        self.assigned: list[int] = [0, 1, 2]
        self.heartbeats: list[ConsumerGroupHeartbeatRequest] = []
        self.commits: list[OffsetCommitRequest] = []
        self.questions: list[tuple[int, OffsetFetchRequest]] = []
        self.hold: anyio.Event | None = None
        """Commits are answered only when this is set."""
        self.stale = False
        """Whether it takes every epoch in commits for an old one."""
        self._told: list[int] | None = None

    def assign(self, *numbers: int) -> None:
        """With a new epoch, which the member learns by its next heartbeat."""
        self.epoch += 1
        self.assigned = list(numbers)

    def answer(
        self, broker: FakeBroker, key: ApiKey, version: int, request: Any, connection: ServerConnection
    ) -> ApiMessage | Awaitable[ApiMessage | None] | None:
        match key:
            case ApiKey.CONSUMER_GROUP_HEARTBEAT:
                self.heartbeats.append(request)
                return self._hear(request)
            case ApiKey.OFFSET_COMMIT:
                self.commits.append(request)
                stale = self.stale or request.generation_id_or_member_epoch != self.epoch
                self.errors[key] = ErrorCode.STALE_MEMBER_EPOCH if stale else 0
                if self.hold is not None:
                    return self._held(self.hold, request)
            case ApiKey.OFFSET_FETCH:
                self.questions.append((version, request))
                stale = request.groups[0].member_epoch not in {-1, self.epoch}
                self.errors[key] = ErrorCode.STALE_MEMBER_EPOCH if stale else 0
        return super().answer(broker, key, version, request, connection)

    async def _held(self, hold: anyio.Event, request: Any) -> ApiMessage:
        await hold.wait()
        return self._commit(request)

    def _hear(self, request: Any) -> ConsumerGroupHeartbeatResponse:
        code = self._code(ApiKey.CONSUMER_GROUP_HEARTBEAT)
        if code or request.member_epoch < 0:
            return ConsumerGroupHeartbeatResponse(error_code=code, member_epoch=request.member_epoch)
        assignment = None
        if request.rebalance_timeout_ms != -1 or self._told != self.assigned:
            self._told = self.assigned
            topic = ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=self.ids["t"], partitions=self.assigned)
            assignment = ConsumerGroupHeartbeatResponseAssignment(topic_partitions=[topic] if self.assigned else [])
        return ConsumerGroupHeartbeatResponse(
            member_id=request.member_id,
            member_epoch=self.epoch,
            heartbeat_interval_ms=100,
            assignment=assignment,
        )


@asynccontextmanager
async def reading(kafka: AssigningKafka, **settings: Any) -> AsyncIterator[kclient.Consumer]:
    defaults = {
        "group_id": "g",
        "group_protocol": "consumer",
        "auto_offset_reset": "earliest",
        "fetch_max_wait_ms": 20,
        "retry_backoff_ms": 10,
        "retry_backoff_max_ms": 50,
    }
    async with kclient.Consumer(bootstrap_servers=kafka.bootstrap, **{**defaults, **settings}) as consumer:
        with anyio.fail_after(PATIENCE):
            yield consumer


async def until_assigned(consumer: kclient.Consumer, *numbers: int) -> None:
    while {tp.partition for tp in consumer.assignment()} != set(numbers):
        await consumer.poll(timeout=0.02)


class Order(RebalanceListener):
    """Notes what came when, beside what the coordinator was sent."""

    def __init__(self, kafka: AssigningKafka) -> None:
        self.calls: list[tuple[str, list[int], int]] = []
        self._kafka = kafka

    def _note(self, what: str, partitions: Sequence[TopicPartition]) -> None:
        self.calls.append((what, [tp.partition for tp in partitions], len(self._kafka.commits)))

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        self._note("revoked", partitions)
        return None

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._note("assigned", partitions)

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._note("lost", partitions)


async def test_a_commit_goes_on_with_the_epoch_of_now() -> None:
    """The coordinator has a new epoch, which the member does not know yet: refused, and tried again."""
    async with AssigningKafka() as kafka, reading(kafka, enable_auto_commit=False) as consumer:
        consumer.subscribe(["t"])
        await consumer.joined()
        kafka.assign(0, 1)
        await consumer.commit({T[0]: 5})
        assert kafka.committed == {T[0]: 5}
        epochs = [commit.generation_id_or_member_epoch for commit in kafka.commits]
        assert epochs[0] == 1
        assert epochs[-1] == 2
        assert {commit.member_id for commit in kafka.commits} == {consumer.group_metadata().member_id}


async def test_a_commit_of_what_was_given_up_is_refused() -> None:
    async with AssigningKafka() as kafka, reading(kafka, enable_auto_commit=False) as consumer:
        consumer.subscribe(["t"])
        await consumer.joined()
        kafka.stale = True
        told: list[Exception] = []

        async def commit() -> None:
            try:
                await consumer.commit({T[2]: 5})
            except KafkaError as error:
                told.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(commit)
            while len(kafka.commits) < 2:
                await consumer.poll(timeout=0.02)
            assert told == []
            kafka.assign(0, 1)
            await until_assigned(consumer, 0, 1)
        assert isinstance(told[0], CommitFailedError)
        assert kafka.committed == {}


async def test_an_asynchronous_commit_is_not_tried_again() -> None:
    async with AssigningKafka() as kafka, reading(kafka, enable_auto_commit=False) as consumer:
        consumer.subscribe(["t"])
        await consumer.joined()
        kafka.hold = anyio.Event()
        told: list[Any] = []
        consumer.commit_async({T[0]: 5}, lambda offsets, error: told.append(error))
        while not kafka.commits:
            await consumer.poll(timeout=0.02)
        kafka.errors[ApiKey.OFFSET_COMMIT] = ErrorCode.STALE_MEMBER_EPOCH
        kafka.hold.set()
        while not told:
            await consumer.poll(timeout=0.02)
        assert isinstance(told[0], RetriableCommitFailedError)
        assert len(kafka.commits) == 1


async def test_committed_offsets_are_fetched_as_the_member() -> None:
    """By the topics' ids; who has an old epoch asks again."""
    async with AssigningKafka() as kafka, reading(kafka, enable_auto_commit=False) as consumer:
        kafka.fill("t", 0, 5)
        kafka.committed = {T[0]: 3}
        consumer.subscribe(["t"])
        await consumer.joined()
        assert await consumer.position(T[0]) == 3
        version, request = kafka.questions[0]
        (group,) = request.groups
        assert version == 10
        assert (group.member_id, group.member_epoch) == (consumer.group_metadata().member_id, 1)
        assert [topic.topic_id for topic in group.topics or ()] == [kafka.ids["t"]]
        kafka.epoch += 1
        found = await consumer.committed(T[:1])
        assert found[T[0]] is not None
        assert [question.groups[0].member_epoch for _, question in kafka.questions][-1] == 2
        await consumer.committed([TopicPartition("nowhere", 0)])
        assert kafka.questions[-1][0] == 9  # it has no id


async def test_what_is_revoked_is_committed_first() -> None:
    """Then the listener is told, and then the coordinator; a poll that is cancelled meanwhile loses nothing."""
    async with AssigningKafka() as kafka, reading(kafka) as consumer:
        kafka.fill("t", 2, 5)
        told = Order(kafka)
        consumer.subscribe(["t"], told)
        while not await consumer.poll(timeout=0.02):
            pass
        kafka.hold = anyio.Event()
        kafka.assign(0, 1)
        before = len(kafka.heartbeats)
        with anyio.move_on_after(0.5) as scope:
            await until_assigned(consumer, 0, 1)
        assert scope.cancelled_caught
        assert [call[0] for call in told.calls] == ["assigned"]
        assert not any(beat.topic_partitions is not None for beat in kafka.heartbeats[before:])
        kafka.hold.set()
        kafka.hold = None
        await until_assigned(consumer, 0, 1)
        assert told.calls[1:] == [("revoked", [2], 1), ("assigned", [], 1)]
        assert kafka.committed[T[2]] == 5
        while not any(beat.topic_partitions is not None for beat in kafka.heartbeats[before:]):
            await consumer.poll(timeout=0.02)
        acknowledged = [beat.topic_partitions for beat in kafka.heartbeats[before:] if beat.topic_partitions]
        assert [topic.partitions for topic in acknowledged[0]] == [[0, 1]]
    assert told.calls[-1][:2] == ("revoked", [0, 1])


async def gives_up_in_vain(kafka: AssigningKafka, consumer: kclient.Consumer) -> None:
    """Polls that do not wait for the commit of what goes, which is refused until `stale` is over."""
    kafka.stale = True
    kafka.assign(0, 1)
    while not kafka.commits:
        await consumer.poll(timeout=0)
        await anyio.sleep(0.01)


async def hears(kafka: AssigningKafka) -> None:
    """Without a poll."""
    known = len(kafka.heartbeats)
    while len(kafka.heartbeats) < known + 3:
        await anyio.sleep(0.02)


async def test_more_is_revoked_while_a_commit_is_waited_for() -> None:
    """All of it is committed, not only what was to go at first."""
    async with AssigningKafka() as kafka, reading(kafka) as consumer:
        for tp in T:
            kafka.fill("t", tp.partition, 5)
        consumer.subscribe(["t"])
        got = 0
        while got < 15:
            got += len(await consumer.poll(timeout=0.02))
        await gives_up_in_vain(kafka, consumer)
        kafka.assign(0)
        await hears(kafka)
        kafka.stale = False
        await until_assigned(consumer, 0)
        assert (kafka.committed[T[1]], kafka.committed[T[2]]) == (5, 5)


async def test_what_is_read_since_a_revocation_that_came_to_nothing_is_committed_by_the_next() -> None:
    async with AssigningKafka() as kafka, reading(kafka) as consumer:
        kafka.fill("t", 2, 5)
        consumer.subscribe(["t"])
        while not await consumer.poll(timeout=0.02):
            pass
        await gives_up_in_vain(kafka, consumer)
        kafka.assign(0, 1, 2)
        await hears(kafka)
        kafka.stale = False
        kafka.fill("t", 2, 5)
        while not await consumer.poll(timeout=0.02):
            pass
        kafka.assign(0, 1)
        await until_assigned(consumer, 0, 1)
        assert kafka.committed[T[2]] == 10


async def test_an_assignment_that_comes_back_while_it_is_given_up() -> None:
    """The listener takes its time; what it was told to be revoked is taken over again, and told."""

    class Slow(Order):
        async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
            self._note("revoked", partitions)
            if partitions == [T[2]]:
                kafka.assign(0, 1, 2)
                known = len(kafka.heartbeats)
                while len(kafka.heartbeats) < known + 3:
                    await anyio.sleep(0.02)

    async with AssigningKafka() as kafka, reading(kafka, enable_auto_commit=False) as consumer:
        told = Slow(kafka)
        consumer.subscribe(["t"], told)
        await consumer.joined()
        kafka.assign(0, 1)
        while len(told.calls) < 4:
            await consumer.poll(timeout=0.02)
        assert [call[:2] for call in told.calls] == [
            ("assigned", [0, 1, 2]),
            ("revoked", [2]),
            ("assigned", []),
            ("assigned", [2]),
        ]
        assert consumer.assignment() == set(T)


@pytest.mark.parametrize(
    ("instance", "leave_group", "epochs"),
    [(None, None, [-1]), (None, False, []), ("one", None, [-2]), ("one", False, [-2]), ("one", True, [-1])],
)
async def test_closing(instance: str | None, leave_group: bool | None, epochs: list[int]) -> None:
    async with AssigningKafka() as kafka, reading(kafka, group_instance_id=instance) as consumer:
        consumer.subscribe(["t"])
        await consumer.joined()
        await consumer.close(leave_group=leave_group)
        assert [beat.member_epoch for beat in kafka.heartbeats if beat.member_epoch < 0] == epochs


async def test_who_is_fenced_loses_everything_and_comes_back() -> None:
    async with AssigningKafka() as kafka, reading(kafka) as consumer:
        told = Order(kafka)
        consumer.subscribe(["t"], told)
        await consumer.joined()
        kafka.errors[ApiKey.CONSUMER_GROUP_HEARTBEAT] = ErrorCode.FENCED_MEMBER_EPOCH
        while told.calls[-1][0] != "lost":
            await consumer.poll(timeout=0.02)
        assert consumer.assignment() == set()
        kafka.errors.clear()
        await consumer.joined()
        assert {beat.member_id for beat in kafka.heartbeats} == {consumer.group_metadata().member_id}
        assert [call[:2] for call in told.calls] == [
            ("assigned", [0, 1, 2]),
            ("lost", [0, 1, 2]),
            ("assigned", [0, 1, 2]),
        ]


async def test_a_wakeup_ends_the_wait_for_the_group() -> None:
    async with AssigningKafka() as kafka, reading(kafka) as consumer:
        kafka.silent = {ApiKey.CONSUMER_GROUP_HEARTBEAT}
        consumer.subscribe(["t"])
        consumer.wakeup()
        with pytest.raises(WakeupError):
            await consumer.poll(timeout=5)
        assert not await consumer.poll(timeout=0.05)


async def test_a_listener_that_unsubscribes() -> None:
    class Unsubscribing(RebalanceListener):
        async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
            await consumer.unsubscribe()

    async with AssigningKafka() as kafka, reading(kafka) as consumer:
        consumer.subscribe(["t"], Unsubscribing())
        with pytest.raises(IllegalStateError, match="Nothing to poll"):
            while True:
                await consumer.poll(timeout=0.05)
        assert consumer.assignment() == set()
        assert [beat.member_epoch for beat in kafka.heartbeats][-1] == -1
        consumer.subscribe(["t"])
        assert await consumer.joined() == set(T)


async def test_the_group_does_not_rebalance_for_a_member(caplog: pytest.LogCaptureFixture) -> None:
    async with AssigningKafka() as kafka, reading(kafka) as consumer:
        consumer.subscribe(["t"])
        await consumer.joined()
        with caplog.at_level(logging.WARNING):
            consumer.enforce_rebalance("because")
        assert "the broker decides when it rebalances" in caplog.text
        assert await consumer.joined() == set(T)


async def test_patterns_of_the_broker() -> None:
    async with AssigningKafka() as kafka, reading(kafka) as consumer:
        consumer.subscribe(SubscriptionPattern("[t-u]"))
        assert await consumer.joined() == set(T)
        assert kafka.heartbeats[0].subscribed_topic_regex == "[t-u]"
        assert consumer.subscription() == {"t"}
        consumer.subscribe(SubscriptionPattern("t"))
        while not any(beat.subscribed_topic_regex == "t" for beat in kafka.heartbeats):
            await consumer.poll(timeout=0.02)
        assert consumer.assignment() == set(T)
        with pytest.raises(IllegalStateError, match="unsubscribe first"):
            consumer.subscribe(re.compile("t"))


async def test_patterns_that_cannot_be() -> None:
    for wrong, kind in [("", ValueError), (5, TypeError), ("\ud800", ValueError)]:
        with pytest.raises(kind, match="SubscriptionPattern"):
            SubscriptionPattern(wrong)  # type: ignore[arg-type]
    async with AssigningKafka() as kafka:
        async with reading(kafka, group_protocol="classic") as consumer:
            with pytest.raises(IllegalStateError, match=r"needs group\.protocol=consumer.*re\.compile"):
                consumer.subscribe(SubscriptionPattern("t"))
            assert consumer.subscription() == set()
        async with reading(kafka, group_id=None) as consumer:
            with pytest.raises(InvalidGroupIdError, match=r"group\.id"):
                consumer.subscribe(SubscriptionPattern("t"))
    with pytest.raises(TypeError, match="a pattern is given to subscribe"):
        kclient.Consumer(SubscriptionPattern("t"))  # type: ignore[arg-type]
