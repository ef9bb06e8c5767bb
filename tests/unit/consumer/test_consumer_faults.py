"""What brokers, networks and slow users do to a consumer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

import kclient
from kclient.consumer import RebalanceListener
from kclient.errors import (
    BrokerConnectionError,
    CommitFailedError,
    CorruptRecordError,
    ErrorCode,
    FencedInstanceIdError,
    GroupAuthorizationError,
    KafkaError,
    KafkaTimeoutError,
    RetriableCommitFailedError,
    TopicAuthorizationError,
)
from kclient.protocol.messages import LeaveGroupRequest, LeaveGroupRequestMember, OffsetCommitRequest
from kclient.protocol.registry import ApiKey
from kclient.records import iter_headers
from kclient.testing import memory_broker
from kclient.types import OffsetAndMetadata, TopicPartition
from tests.fake_reads import ReadableKafka
from tests.unit.consumer.membership import present_member

pytestmark = pytest.mark.anyio

T0 = TopicPartition("t", 0)


@pytest.fixture
def address() -> Any:
    with memory_broker() as found:
        yield found


async def fill(address: str, first: int, count: int) -> None:
    """One batch of records with the values `first` and following."""
    async with kclient.Producer(bootstrap_servers=address) as producer:
        await producer.send_batch("t", [b"%d" % number for number in range(first, first + count)])


def reader(address: str, *topics: str, **settings: Any) -> kclient.Consumer:
    defaults = {"bootstrap_servers": address, "group_id": "g", "auto_offset_reset": "earliest"}
    return kclient.Consumer(*topics, **{**defaults, "enable_auto_commit": False, **settings})


async def values(consumer: kclient.Consumer, count: int) -> list[int]:
    found: list[int] = []
    with anyio.fail_after(20):
        while len(found) < count:
            found += [int(record.value) for record in await consumer.poll(1.0)]
    return found


# ------------------------------------------------------------------ commits


class FailingCommits:
    """Makes the first commits fail on the way."""

    def __init__(self, consumer: kclient.Consumer, failures: int) -> None:
        self.left = failures
        self.attempts = 0
        cluster = consumer._core.cluster
        self._request = cluster.request
        cluster.request = self.request  # type: ignore[method-assign]

    async def request(self, node: int | None, message: Any, **options: Any) -> Any:
        if isinstance(message, OffsetCommitRequest):
            self.attempts += 1
            if self.left:
                self.left -= 1
                raise BrokerConnectionError("the wire was cut")
        return await self._request(node, message, **options)


async def test_a_commit_is_tried_again(address: str) -> None:
    await fill(address, 0, 5)
    async with reader(address) as consumer:
        consumer.assign([T0])
        failing = FailingCommits(consumer, 2)
        await consumer.commit({T0: 3})
        assert failing.attempts == 3
        assert await consumer.committed([T0]) == {T0: OffsetAndMetadata(3)}


async def test_a_commit_that_never_succeeds_says_why(address: str) -> None:
    await fill(address, 0, 5)
    async with reader(address) as consumer:
        consumer.assign([T0])
        FailingCommits(consumer, 10**6)
        with pytest.raises((KafkaTimeoutError, BrokerConnectionError)):
            await consumer.commit({T0: 3}, timeout=0.5)


async def test_a_commit_that_nobody_waits_for_any_more_holds_nobody_up() -> None:
    """The coordinator cannot be found; a cancelled commit is given up, and `close` does not wait for it."""
    async with kclient.Consumer(bootstrap_servers="127.0.0.1:1", group_id="g") as consumer:
        for _ in range(2):
            with anyio.move_on_after(0.1) as cancelled:
                await consumer.commit({("t", 0): 1})
            assert cancelled.cancelled_caught
        with anyio.fail_after(5):  # it is 30 s for a commit that somebody waits for
            await consumer.close()


async def test_an_asynchronous_commit_is_not_tried_again_and_says_that_it_may_be(address: str) -> None:
    await fill(address, 0, 5)
    told: list[Any] = []
    async with reader(address) as consumer:
        consumer.assign([T0])
        failing = FailingCommits(consumer, 1)
        consumer.commit_async({T0: 3}, lambda offsets, error: told.append(error))
        await consumer.commit({T0: 4})
        assert failing.attempts == 2
        assert isinstance(told[0], RetriableCommitFailedError)
        assert "the wire was cut" in str(told[0])
        assert consumer.metrics().value("failed-commit-total") == 1


async def test_a_failing_auto_commit_is_logged_and_made_up_for(address: str, caplog: pytest.LogCaptureFixture) -> None:
    await fill(address, 0, 5)
    settings = {"enable_auto_commit": True, "auto_commit_interval_ms": 1, "retry_backoff_ms": 10}
    async with reader(address, **settings) as consumer:
        consumer.assign([T0])
        failing = FailingCommits(consumer, 1)
        await values(consumer, 5)
        with anyio.fail_after(10):
            while await consumer.committed([T0]) == {T0: None}:
                await consumer.poll(0.02)
        assert failing.attempts >= 2
    assert "auto commit of 1 partitions failed" in caplog.text


async def test_offsets_of_a_topic_that_must_not_be_committed(address: str) -> None:
    await fill(address, 0, 5)
    async with reader(address) as consumer:
        consumer.assign([T0])
        consumer._core.group().committer._attempt = _denied  # type: ignore[method-assign]
        with pytest.raises(TopicAuthorizationError):
            await consumer.commit({T0: 1})


async def _denied(*_: object) -> None:
    raise TopicAuthorizationError("no")


# ------------------------------------------------------------------ slow users


class Lost(RebalanceListener):
    def __init__(self) -> None:
        self.events: list[str] = []

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.events.append("assigned")

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.events.append("revoked")

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self.events.append("lost")


async def test_who_polls_too_seldom_loses_the_partitions_and_is_told_the_setting(address: str) -> None:
    await fill(address, 0, 5)
    listener = Lost()
    async with reader(address, max_poll_interval_ms=200, heartbeat_interval_ms=50) as consumer:
        consumer.subscribe(["t"], listener)
        await values(consumer, 5)
        member = present_member(consumer)
        with anyio.fail_after(10):
            while present_member(consumer) == member:
                await anyio.sleep(0.01)
        with pytest.raises(CommitFailedError, match=r"max\.poll\.interval\.ms is 200") as caught:
            await consumer.commit()
        assert "max.poll.records" in str(caught.value)
        assert await values(consumer, 5) == [0, 1, 2, 3, 4]  # nothing was committed
        assert listener.events[:3] == ["assigned", "lost", "assigned"]


@pytest.mark.slow
async def test_who_polls_in_time_stays_a_member_also_where_no_poll_has_to_wait(address: str) -> None:
    await fill(address, 0, 1000)
    settings = {"max_poll_interval_ms": 600, "heartbeat_interval_ms": 50, "max_poll_records": 1}
    async with reader(address, "t", **settings) as consumer:
        await values(consumer, 1)
        member = consumer.group_metadata()
        ends = time.monotonic() + 1
        while time.monotonic() < ends:
            assert await consumer.poll(0)
            await anyio.sleep(0.01)
        assert consumer.group_metadata() == member


class Hung(Lost):
    """Its first `on_partitions_assigned` does not end by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = anyio.Event()

    async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:  # type: ignore[override]
        if not self.begun.is_set():
            self.begun.set()
            await anyio.sleep_forever()
        self.events.append("assigned")


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
async def test_who_is_cancelled_in_the_listener_and_then_too_slow_has_lost_what_was_taken_over(
    assignor: str, address: str
) -> None:
    await fill(address, 0, 5)
    listener = Hung()
    settings = {"max_poll_interval_ms": 300, "heartbeat_interval_ms": 50, "partition_assignment_strategy": [assignor]}
    async with reader(address, **settings) as consumer:
        consumer.subscribe(["t"], listener)
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:

                async def poll() -> None:
                    while True:
                        await consumer.poll(1.0)

                tasks.start_soon(poll)
                await listener.begun.wait()
                tasks.cancel_scope.cancel()
            member = present_member(consumer)
            assert member
            assert consumer.assignment() == {T0}
            while present_member(consumer) == member:
                await anyio.sleep(0.01)
        assert await values(consumer, 5) == [0, 1, 2, 3, 4]
        assert listener.events == ["lost", "assigned"]


class Slow(Lost):
    """Its first `on_partitions_assigned` takes until the membership has ended, and records are there."""

    def __init__(self, consumer: kclient.Consumer) -> None:
        super().__init__()
        self.core = consumer._core

    async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:  # type: ignore[override]
        if not self.events:
            member = self.core.group().member
            while member.metadata.generation_id >= 0 or not self.core.fetcher.buffer.has_ready:
                await anyio.sleep(0.01)
        self.events.append("assigned")


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
async def test_who_is_too_slow_in_the_listener_is_given_nothing_of_what_is_lost(assignor: str, address: str) -> None:
    await fill(address, 0, 5)
    settings = {"max_poll_interval_ms": 300, "heartbeat_interval_ms": 50, "partition_assignment_strategy": [assignor]}
    async with reader(address, **settings) as consumer:
        listener = Slow(consumer)
        consumer.subscribe(["t"], listener)
        with anyio.fail_after(20):
            while not await consumer.poll(1.0):
                pass
        assert listener.events[:3] == ["assigned", "lost", "assigned"]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, GroupAuthorizationError),
        (ErrorCode.FENCED_INSTANCE_ID, FencedInstanceIdError),
    ],
)
async def test_who_is_refused_amid_the_listener_is_told_so_and_given_nothing(
    code: ErrorCode, error: type[KafkaError]
) -> None:
    async with ReadableKafka() as kafka, reader(kafka.bootstrap, heartbeat_interval_ms=20) as consumer:
        kafka.fill("t", 0, 5)
        kafka.errors[ApiKey.HEARTBEAT] = code
        consumer.subscribe(["t"], Slow(consumer))
        with anyio.fail_after(20), pytest.raises(error):
            while not await consumer.poll(1.0):
                pass


async def test_a_membership_that_the_broker_forgot(address: str) -> None:
    await fill(address, 0, 5)
    listener = Lost()
    async with reader(address, heartbeat_interval_ms=50) as consumer:
        consumer.subscribe(["t"], listener)
        await values(consumer, 5)
        member = present_member(consumer)
        request = LeaveGroupRequest(group_id="g", members=[LeaveGroupRequestMember(member_id=member)])
        await consumer._core.cluster.request(consumer._core.group().member.coordinator, request)
        with anyio.fail_after(10):
            while present_member(consumer):
                await anyio.sleep(0.01)
        with pytest.raises(CommitFailedError, match="not a member of group 'g'"):
            await consumer.commit()
        assert await values(consumer, 5) == [0, 1, 2, 3, 4]
        assert listener.events == ["assigned", "lost", "assigned"]


# ------------------------------------------------------------------ broken wires and data


async def test_reading_goes_on_when_connections_break(address: str) -> None:
    await fill(address, 0, 5)
    async with reader(address, "t", reconnect_backoff_ms=10) as consumer:
        found = await values(consumer, 5)
        for number in range(1, 4):
            for link in consumer._core.cluster._links:
                if link.usable is not None:
                    link.usable.close()
            await fill(address, 5 * number, 5)
            found += await values(consumer, 5)
        assert found == list(range(20))
        await consumer.commit()


def corrupt(consumer: kclient.Consumer, batch: int) -> None:
    """Damage one batch of whatever is fetched."""
    fetcher = consumer._core.fetcher
    received = fetcher.received

    def damaged(plan: Any, response: Any, now: float) -> Any:
        for topic in response.responses:
            for data in topic.partitions:
                if data.records is not None and len(data.records):
                    copy = bytearray(data.records)
                    for number, (position, header) in enumerate(iter_headers(bytes(copy))):
                        if number == batch and header.base_offset < 15:
                            copy[position + header.length - 1] ^= 0xFF
                    data.records = bytes(copy)
        return received(plan, response, now)

    fetcher.received = damaged  # type: ignore[method-assign]


async def three_batches(address: str) -> None:
    for first in (0, 10, 20):
        await fill(address, first, 10)


async def test_a_corrupt_batch_is_reported_behind_what_comes_before_it(address: str) -> None:
    await three_batches(address)
    async with reader(address) as consumer:
        corrupt(consumer, 1)
        consumer.assign([T0])
        assert await values(consumer, 10) == list(range(10))
        corrupt(consumer, 0)
        for _ in range(2):
            with anyio.fail_after(10), pytest.raises(CorruptRecordError, match="checksum"):
                while True:
                    await consumer.poll(1.0)
        assert await consumer.position(T0) == 10
        consumer.seek(T0, 20)
        assert await values(consumer, 10) == list(range(20, 30))


async def test_a_corrupt_batch_among_columns(address: str) -> None:
    await three_batches(address)
    async with reader(address) as consumer:
        corrupt(consumer, 1)
        consumer.assign([T0])
        batch = await consumer.poll_arrow(10.0)
        assert batch.column("offset").to_pylist() == list(range(10))
        corrupt(consumer, 0)
        with anyio.fail_after(10), pytest.raises(CorruptRecordError):
            while True:
                await consumer.poll_arrow(1.0)
        consumer.seek(T0, 20)
        assert (await consumer.poll_arrow(10.0)).num_rows == 10


async def test_a_topic_that_must_not_be_read(address: str) -> None:
    await fill(address, 0, 5)
    async with reader(address) as consumer:
        fetcher = consumer._core.fetcher
        received = fetcher.received
        deny = True

        def denied(plan: Any, response: Any, now: float) -> Any:
            for topic in response.responses:
                for data in topic.partitions:
                    if deny:
                        data.error_code, data.records = ErrorCode.TOPIC_AUTHORIZATION_FAILED, None
            return received(plan, response, now)

        fetcher.received = denied  # type: ignore[method-assign]
        consumer.assign([T0])
        with pytest.raises(TopicAuthorizationError, match="'t'"):
            await consumer.poll(10.0)
        with pytest.raises(TopicAuthorizationError, match="'t'"):
            await consumer.poll_arrow(10.0)
        deny = False
        assert await values(consumer, 5) == list(range(5))
