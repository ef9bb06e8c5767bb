"""A timeout given to a call bounds the whole call, whatever the brokers do; and `wakeup` ends each call that waits."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import kclient
import kclient.sync
from kclient.consumer import RebalanceListener
from kclient.errors import ErrorCode, IllegalStateError, KafkaError, KafkaTimeoutError, WakeupError
from kclient.protocol.messages import OffsetCommitRequest
from kclient.protocol.registry import ApiKey
from kclient.sync.portal import get_portal
from kclient.types import TopicPartition
from tests.fake_reads import ReadableKafka

pytestmark = pytest.mark.anyio

T0 = TopicPartition("t", 0)
TIMEOUT = 0.3
PATIENCE = 4.0
"""Far below what the settings would allow: 30 s for a request, 60 s for a call."""
LOADING = int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

CALLS: dict[str, Callable[[Any], Any]] = {
    "beginning_offsets": lambda consumer: consumer.beginning_offsets([T0], timeout=TIMEOUT),
    "commit": lambda consumer: consumer.commit({T0: 1}, timeout=TIMEOUT),
    "committed": lambda consumer: consumer.committed([T0], timeout=TIMEOUT),
    "end_offsets": lambda consumer: consumer.end_offsets([T0], timeout=TIMEOUT),
    "list_topics": lambda consumer: consumer.list_topics(timeout=TIMEOUT),
    "offsets_for_times": lambda consumer: consumer.offsets_for_times({T0: 0}, timeout=TIMEOUT),
    "partitions_for": lambda consumer: consumer.partitions_for("t", timeout=TIMEOUT),
    "position": lambda consumer: consumer.position(T0, timeout=TIMEOUT),
}
POLLS: dict[str, Callable[[Any], Any]] = {
    "poll": lambda consumer: consumer.poll(TIMEOUT),
    "poll_arrow": lambda consumer: consumer.poll_arrow(TIMEOUT),
}


@asynccontextmanager
async def reading(kafka: ReadableKafka | str, **settings: Any) -> AsyncIterator[kclient.Consumer]:
    address = kafka if isinstance(kafka, str) else kafka.bootstrap
    defaults = {"group_id": "g", "auto_offset_reset": "earliest", "heartbeat_interval_ms": 20, "fetch_max_wait_ms": 20}
    consumer = kclient.Consumer(bootstrap_servers=address, **{**defaults, **settings})  # type: ignore[arg-type]
    async with consumer:
        try:
            yield consumer
        finally:
            with anyio.fail_after(PATIENCE):
                await consumer.close(timeout=TIMEOUT)


async def late(call: Callable[[Any], Any], consumer: kclient.Consumer) -> str:
    """The text with which the call says that its time is over."""
    with anyio.fail_after(PATIENCE), pytest.raises(KafkaTimeoutError) as told:
        await call(consumer)
    return str(told.value)


@pytest.mark.parametrize("name", CALLS)
async def test_with_nobody_there(name: str) -> None:
    async with reading("127.0.0.1:1") as consumer:
        consumer.assign([T0])
        assert "Connection refused" in await late(CALLS[name], consumer)


@pytest.mark.parametrize("name", CALLS)
async def test_with_a_broker_that_accepts_and_never_answers(name: str) -> None:
    async with ReadableKafka() as kafka, reading(kafka) as consumer:
        kafka.hung = {1}
        consumer.assign([T0])
        text = await late(CALLS[name], consumer)
        assert "0.3 s" in text
        assert_named(kafka, text)


def assert_named(kafka: ReadableKafka, text: str) -> None:
    """The text names the broker that does not answer, and does not blame the topic."""
    assert f"{kafka.brokers[1].host}: no answer" in text
    assert "No leader" not in text


@pytest.mark.parametrize("name", CALLS)
async def test_with_a_broker_that_hangs_later(name: str) -> None:
    async with ReadableKafka() as kafka, reading(kafka) as consumer:
        consumer.assign([T0])
        await consumer.committed([T0])
        consumer.assign([])
        kafka.hung = {1}
        consumer.assign([T0])
        if name == "partitions_for":  # which it knows
            assert len(await consumer.partitions_for("t")) == 1
        else:
            text = await late(CALLS[name], consumer)
            assert "0.3 s" in text
            assert_named(kafka, text)


@pytest.mark.parametrize("name", ["end_offsets", "position"])
async def test_of_several_leaders_the_one_that_hangs_is_named(name: str) -> None:
    async with ReadableKafka({"t": 2}, brokers=2) as kafka, reading(kafka, group_id=None) as consumer:
        kafka.move("t", 0, 2)
        kafka.silent_at = {(2, ApiKey.LIST_OFFSETS)}
        consumer.assign([T0])
        assert len(await consumer.partitions_for("t", timeout=PATIENCE)) == 2  # the metadata are there
        text = await late(CALLS[name], consumer)
        assert f"node 2 at {kafka.brokers[2].host}: no answer" in text
        assert "No leader" not in text


async def test_what_kept_a_position_from_being_found_is_forgotten_with_it() -> None:
    async with ReadableKafka() as kafka, reading(kafka, group_id=None) as consumer:
        kafka.errors = {ApiKey.LIST_OFFSETS: int(ErrorCode.LEADER_NOT_AVAILABLE)}
        consumer.assign([T0])
        assert "LEADER_NOT_AVAILABLE" in await late(CALLS["position"], consumer)
        kafka.errors = {}
        assert await consumer.position(T0, timeout=PATIENCE) == 0
        kafka.hung = {1}
        assert "LEADER_NOT_AVAILABLE" not in await late(CALLS["list_topics"], consumer)


@pytest.mark.parametrize("name", ["commit", "committed", "position"])
async def test_with_a_coordinator_that_is_loading_for_ever(name: str) -> None:
    async with ReadableKafka() as kafka, reading(kafka) as consumer:
        kafka.errors = {ApiKey.OFFSET_FETCH: LOADING, ApiKey.OFFSET_COMMIT: LOADING}
        consumer.assign([T0])
        assert "loading" in await late(CALLS[name], consumer)


@pytest.mark.parametrize(
    "name", ["beginning_offsets", "end_offsets", "offsets_for_times", "partitions_for", "position"]
)
async def test_with_a_topic_that_was_deleted(name: str) -> None:
    async with ReadableKafka() as kafka, reading(kafka) as consumer:
        kafka.delete("t")
        consumer.assign([T0])
        await late(CALLS[name], consumer)


@pytest.mark.parametrize("name", POLLS)
@pytest.mark.parametrize("hung", [False, True])
async def test_polls_with_nobody_there(name: str, hung: bool) -> None:
    async with ReadableKafka() as kafka, reading(kafka if hung else "127.0.0.1:1") as consumer:
        kafka.hung = {1}
        consumer.subscribe(["t"])
        with anyio.fail_after(PATIENCE):
            assert not len(await POLLS[name](consumer))
            await consumer.unsubscribe()


@pytest.mark.parametrize("key", [ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.FIND_COORDINATOR])
@pytest.mark.parametrize("silent", [False, True])
async def test_polls_in_a_group_that_never_comes_about(key: ApiKey, silent: bool) -> None:
    async with ReadableKafka() as kafka, reading(kafka) as consumer:
        kafka.silent = {key} if silent else set()
        kafka.errors = {} if silent else {key: LOADING}
        consumer.subscribe(["t"])
        for _ in range(3):
            with anyio.fail_after(PATIENCE):
                assert not await consumer.poll(TIMEOUT)
        with anyio.fail_after(PATIENCE):
            await consumer.close(timeout=TIMEOUT)


async def settled(kafka: ReadableKafka, consumer: kclient.Consumer, listener: Any = None) -> None:
    """Joined, and everything read."""
    kafka.fill("t", 0, 5)
    consumer.subscribe(["t", "u"], listener)
    with anyio.fail_after(10):
        while not await consumer.poll(TIMEOUT):
            pass


class Told(RebalanceListener):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def on_partitions_revoked(self, partitions: Any) -> None:
        self.told.append("revoked")

    def on_partitions_lost(self, partitions: Any) -> None:
        self.told.append("lost")


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["silent", "loading", "hung"])
async def test_a_commit_before_a_rebalance_keeps_to_the_time_of_the_poll(trouble: str) -> None:
    """Polls return empty-handed until it is through, or the group need not wait longer."""
    listener = Told()
    async with ReadableKafka({"t": 1, "u": 1}) as kafka, reading(kafka, max_poll_interval_ms=4000) as consumer:
        await settled(kafka, consumer, listener)
        if trouble == "silent":
            kafka.silent = {ApiKey.OFFSET_COMMIT}
        elif trouble == "loading":
            kafka.errors = {ApiKey.OFFSET_COMMIT: LOADING}
        else:
            kafka.hung = {1}
        consumer.enforce_rebalance()
        for timeout in (0.0, TIMEOUT, TIMEOUT):
            with anyio.fail_after(PATIENCE):
                await consumer.poll(timeout)
            assert listener.told == []
        with anyio.fail_after(10):  # half of max.poll.interval.ms
            while not listener.told:
                await consumer.poll(TIMEOUT)
        assert listener.told == ["revoked"]
        with anyio.fail_after(PATIENCE):
            await consumer.close(timeout=TIMEOUT)


async def test_a_commit_before_a_rebalance_goes_on_in_the_next_poll() -> None:
    async with ReadableKafka({"t": 1, "u": 1}) as kafka, reading(kafka) as consumer:
        await settled(kafka, consumer)
        generation = kafka.generation
        kafka.errors = {ApiKey.OFFSET_COMMIT: LOADING}
        consumer.enforce_rebalance()
        assert not await consumer.poll(TIMEOUT)
        assert not await consumer.poll(TIMEOUT)
        kafka.errors = {}
        with anyio.fail_after(10):
            while kafka.generation == generation:
                await consumer.poll(TIMEOUT)
        assert kafka.committed == {T0: 5, TopicPartition("u", 0): 0}


async def test_a_commit_before_a_rebalance_holds_up_no_later_subscription() -> None:
    async with ReadableKafka({"t": 1, "u": 1}) as kafka, reading(kafka) as consumer:
        await settled(kafka, consumer)
        generation = kafka.generation
        kafka.errors = {ApiKey.OFFSET_COMMIT: LOADING}
        consumer.enforce_rebalance()
        assert not await consumer.poll(TIMEOUT)
        await consumer.unsubscribe()
        consumer.subscribe(["t"])
        with anyio.fail_after(PATIENCE):
            while kafka.generation == generation:
                await consumer.poll(TIMEOUT)


@pytest.mark.slow
async def test_a_deleted_topic_holds_up_neither_a_rebalance_nor_close() -> None:
    async with ReadableKafka({"t": 1, "u": 1}) as kafka, reading(kafka) as consumer:
        await settled(kafka, consumer)
        generation = kafka.generation
        kafka.delete("u")
        kafka.rebalance = True
        with anyio.fail_after(PATIENCE):
            while kafka.generation == generation:
                await consumer.poll(1)
        assert kafka.committed[T0] == 5
        kafka.fill("t", 0, 2)
        with anyio.fail_after(PATIENCE):
            while not await consumer.poll(1):
                pass
        with anyio.fail_after(PATIENCE):
            await consumer.close(timeout=30)
        assert kafka.committed[T0] == 7


async def test_a_commit_of_the_users_says_that_the_topic_is_gone() -> None:
    async with ReadableKafka({"t": 1, "u": 1}) as kafka, reading(kafka) as consumer:
        consumer.assign([T0, ("u", 0)])
        kafka.delete("u")
        assert "u-0" in await late(lambda c: c.commit({T0: 3, ("u", 0): 1}, timeout=TIMEOUT), consumer)
        assert kafka.committed == {T0: 3}


async def test_close_with_everything_hung() -> None:
    async with ReadableKafka({"t": 1, "u": 1}) as kafka, reading(kafka) as consumer:
        await settled(kafka, consumer)
        kafka.hung = {1}
        with anyio.fail_after(PATIENCE):
            await consumer.close(timeout=TIMEOUT)


async def test_unsubscribe_does_not_wait_long_for_a_coordinator_that_hangs() -> None:
    async with ReadableKafka({"t": 1, "u": 1}) as kafka, reading(kafka) as consumer:
        await settled(kafka, consumer)
        kafka.hung = {1}
        with anyio.fail_after(PATIENCE):
            await consumer.unsubscribe()


# ------------------------------------------------------------------ wakeup


@pytest.mark.parametrize("name", [*CALLS, "poll", "poll_arrow", "iteration"])
async def test_wakeup_ends_every_call_that_waits(name: str) -> None:
    calls: dict[str, Callable[[Any], Any]] = {
        "beginning_offsets": lambda consumer: consumer.beginning_offsets([T0]),
        "commit": lambda consumer: consumer.commit({T0: 1}),
        "committed": lambda consumer: consumer.committed([T0]),
        "end_offsets": lambda consumer: consumer.end_offsets([T0]),
        "list_topics": lambda consumer: consumer.list_topics(),
        "offsets_for_times": lambda consumer: consumer.offsets_for_times({T0: 0}),
        "partitions_for": lambda consumer: consumer.partitions_for("t"),
        "position": lambda consumer: consumer.position(T0),
        "poll": lambda consumer: consumer.poll(60),
        "poll_arrow": lambda consumer: consumer.poll_arrow(60),
        "iteration": lambda consumer: anext(consumer),
    }
    async with ReadableKafka() as kafka, reading(kafka) as consumer:
        kafka.hung = {1}
        consumer.assign([T0])
        for before in (False, True):
            if before:
                consumer.wakeup()
            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as tasks:
                    if not before:
                        tasks.start_soon(_wake_soon, consumer)
                    with pytest.raises(WakeupError):
                        await calls[name](consumer)
        # taken once: nothing of it is left
        kafka.hung = set()


async def _wake_soon(consumer: kclient.Consumer) -> None:
    for _ in range(20):
        await anyio.lowlevel.checkpoint()
    consumer.wakeup()


async def test_wakeup_while_a_rebalance_waits_for_its_commit() -> None:
    listener = Told()
    async with ReadableKafka({"t": 1, "u": 1}) as kafka, reading(kafka) as consumer:
        await settled(kafka, consumer, listener)
        kafka.silent = {ApiKey.OFFSET_COMMIT}
        consumer.enforce_rebalance()
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_wake_soon, consumer)
                with pytest.raises(WakeupError):
                    await consumer.poll(60)
        assert listener.told == []
        assert not await consumer.poll(0)


# ------------------------------------------------------------------ blocking


@pytest.fixture
def kafka_of_the_portal() -> Any:
    kafka = ReadableKafka({"t": 1, "u": 1})
    get_portal().call(kafka.start)
    yield kafka
    get_portal().call(kafka.aclose)


def in_blocking_code(kafka: ReadableKafka, **settings: Any) -> kclient.sync.Consumer:
    return kclient.sync.Consumer(
        bootstrap_servers=kafka.bootstrap,
        group_id="g",
        auto_offset_reset="earliest",
        heartbeat_interval_ms=20,
        **settings,
    )


def within(seconds: float, call: Callable[[], Any]) -> Any:
    started = time.monotonic()
    try:
        return call()
    finally:
        assert time.monotonic() - started < seconds


@pytest.mark.parametrize("name", CALLS)
def test_calls_in_blocking_code(name: str, kafka_of_the_portal: ReadableKafka) -> None:
    kafka_of_the_portal.hung = {1}
    consumer = in_blocking_code(kafka_of_the_portal)
    consumer.assign([T0])
    with pytest.raises(KafkaTimeoutError):
        within(PATIENCE, lambda: CALLS[name](consumer))
    consumer.wakeup()
    with pytest.raises(WakeupError):
        within(PATIENCE, lambda: CALLS[name](consumer))
    within(PATIENCE, lambda: consumer.close(timeout=TIMEOUT))


def test_a_deleted_topic_in_blocking_code(kafka_of_the_portal: ReadableKafka) -> None:
    kafka = kafka_of_the_portal
    kafka.fill("t", 0, 5)
    consumer = in_blocking_code(kafka)
    consumer.subscribe(["t", "u"])
    while not consumer.poll(TIMEOUT):
        pass
    generation = kafka.generation
    kafka.delete("u")
    kafka.rebalance = True
    within(PATIENCE, lambda: consumer.poll(1))
    while kafka.generation == generation:
        within(PATIENCE, lambda: consumer.poll(TIMEOUT))
    within(PATIENCE, consumer.close)
    assert kafka.committed[T0] == 5


def test_a_failure_of_the_committing_task_fails_who_waits(kafka_of_the_portal: ReadableKafka) -> None:
    consumer = in_blocking_code(kafka_of_the_portal)
    consumer.start()
    request = consumer._core.cluster.request

    async def broken(node: Any, message: Any, **options: Any) -> Any:
        if isinstance(message, OffsetCommitRequest):
            raise ZeroDivisionError("a bug")
        return await request(node, message, **options)

    consumer._core.cluster.request = broken  # type: ignore[method-assign]
    with pytest.raises(KafkaError, match=r"background task .* ZeroDivisionError\('a bug'\)"):
        within(PATIENCE, lambda: consumer.commit({T0: 1}))
    with pytest.raises(KafkaError, match="a bug"):
        consumer.commit({T0: 1})
    within(PATIENCE, consumer.close)


async def test_a_commit_does_not_wait_behind_a_join_that_is_parked() -> None:
    """Brokers answer a connection in order, and a group may take minutes to gather."""
    async with (
        ReadableKafka({"t": 1, "u": 1}) as kafka,
        reading(kafka, partition_assignment_strategy="cooperative-sticky") as consumer,
    ):
        await settled(kafka, consumer)
        kafka.silent = {ApiKey.JOIN_GROUP}
        kafka.rebalance = True
        with anyio.fail_after(PATIENCE):
            while kafka.asked.count((1, ApiKey.JOIN_GROUP)) < 2:
                await consumer.poll(TIMEOUT)
            kafka.fill("t", 0, 3)
            while not await consumer.poll(TIMEOUT):
                pass  # reading goes on
            await consumer.commit()
        assert kafka.committed[T0] == 8
        with anyio.fail_after(PATIENCE):
            await consumer.unsubscribe()


async def test_a_position_is_waited_for_through_a_rebalance() -> None:
    """As in aiokafka: the partition may come back."""
    async with ReadableKafka({"t": 1, "u": 1}) as kafka, reading(kafka) as consumer:
        await settled(kafka, consumer)
        generation = kafka.generation
        kafka.errors = {ApiKey.LIST_OFFSETS: int(ErrorCode.LEADER_NOT_AVAILABLE)}
        consumer.seek_to_end([T0])
        found: list[int] = []

        async def ask() -> None:
            found.append(await consumer.position(T0, timeout=30.0))

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                await anyio.wait_all_tasks_blocked()
                kafka.errors = {}
                consumer.enforce_rebalance()
                while kafka.generation == generation or not found:
                    await consumer.poll(0.1)
        assert found
        consumer.subscribe(["u"])
        while consumer.assignment() != {TopicPartition("u", 0)}:
            await consumer.poll(0.1)
        with anyio.fail_after(5), pytest.raises(IllegalStateError, match="t-0"):
            await consumer.position(T0, timeout=30.0)
