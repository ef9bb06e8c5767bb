"""Closing while something else goes on: another `close`, a call that waits, a commit in the background."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import kclient
import kclient.sync
from kclient.consumer import ConsumerInterceptor, RebalanceListener
from kclient.errors import ClosedError, ErrorCode, GroupAuthorizationError, KafkaError, WakeupError
from kclient.protocol.messages import ListOffsetsRequest
from kclient.protocol.registry import ApiKey
from kclient.sync.portal import get_portal
from kclient.types import TopicPartition
from tests.fake_reads import ReadableKafka
from tests.unit.consumer.test_consumer_timeouts import PATIENCE, in_blocking_code, reading

pytestmark = pytest.mark.anyio

T0 = TopicPartition("t", 0)
LONG = 60.0

CALLS: dict[str, Callable[[Any], Any]] = {
    "beginning_offsets": lambda consumer: consumer.beginning_offsets([T0], timeout=LONG),
    "commit": lambda consumer: consumer.commit({T0: 1}, timeout=LONG),
    "committed": lambda consumer: consumer.committed([T0], timeout=LONG),
    "end_offsets": lambda consumer: consumer.end_offsets([T0], timeout=LONG),
    "list_topics": lambda consumer: consumer.list_topics(timeout=LONG),
    "offsets_for_times": lambda consumer: consumer.offsets_for_times({T0: 0}, timeout=LONG),
    "partitions_for": lambda consumer: consumer.partitions_for("x", timeout=LONG),
    "poll": lambda consumer: consumer.poll(LONG),
    "position": lambda consumer: consumer.position(T0, timeout=LONG),
}


async def joined(kafka: ReadableKafka, consumer: kclient.Consumer) -> None:
    """A member, and 5 records are read that nobody has committed."""
    kafka.fill("t", 0, 5)
    consumer.subscribe(["t"])
    with anyio.fail_after(10):
        while not await consumer.poll(0.1):
            pass


def closed_in_good_order(kafka: ReadableKafka) -> bool:
    return kafka.committed == {T0: 5} and (1, ApiKey.LEAVE_GROUP) in kafka.asked


# ------------------------------------------------------------------ another close


@pytest.mark.parametrize("timeouts", [(None, None), (None, 5), (5, None)])
async def test_two_closes_at_once(timeouts: tuple[float | None, float | None]) -> None:
    async with ReadableKafka() as kafka, reading(kafka) as consumer:
        await joined(kafka, consumer)
        found: list[bool] = []

        async def close(timeout: float | None) -> None:
            await consumer.close(timeout)
            found.append(closed_in_good_order(kafka))

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                for timeout in timeouts:
                    tasks.start_soon(close, timeout)
        assert found == [True, True]


async def test_a_wakeup_that_no_call_has_raised_keeps_close_from_nothing() -> None:
    class Committing(RebalanceListener):
        async def on_partitions_revoked(self, partitions: Any) -> None:
            await consumer.commit({T0: 5})

    async with ReadableKafka() as kafka, reading(kafka, enable_auto_commit=False) as consumer:
        await joined(kafka, consumer)
        consumer.subscribe(["t"], Committing())
        consumer.wakeup()
        await consumer.close()
        assert closed_in_good_order(kafka)


async def test_a_wakeup_that_no_call_has_raised_does_not_end_unsubscribe() -> None:
    async with ReadableKafka() as kafka, reading(kafka) as consumer:
        await joined(kafka, consumer)
        consumer.wakeup()
        await consumer.unsubscribe()
        assert (1, ApiKey.LEAVE_GROUP) in kafka.asked
        with pytest.raises(WakeupError):  # it is for the next call that waits
            await consumer.committed([T0])


@pytest.mark.parametrize("how", ["subscribe", "assign", "unsubscribe"])
async def test_who_gave_up_the_subscription_without_waiting_has_left_after_close(how: str) -> None:
    async with ReadableKafka() as kafka, reading(kafka) as consumer:
        await joined(kafka, consumer)
        if how == "subscribe":
            consumer.subscribe([])
        elif how == "assign":
            consumer.assign([])
        else:
            with anyio.move_on_after(0):
                await consumer.unsubscribe()
        await consumer.close()
        assert (1, ApiKey.LEAVE_GROUP) in kafka.asked


async def test_a_close_while_another_task_iterates() -> None:
    async with ReadableKafka() as kafka:
        kafka.fill("t", 0, 5)
        consumer = kclient.Consumer("t", bootstrap_servers=kafka.bootstrap, group_id="g", auto_offset_reset="earliest")
        read = anyio.Event()
        told: list[Exception] = []

        async def iterate() -> None:
            try:
                async with consumer:
                    async for record in consumer:
                        if record.offset == 4:
                            read.set()
            except ClosedError as error:
                told.append(error)

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(iterate)
                await read.wait()
                await consumer.close()
                assert closed_in_good_order(kafka)
        assert len(told) == 1


async def test_who_has_less_time_ends_both() -> None:
    async with ReadableKafka() as kafka, reading(kafka) as consumer:
        await joined(kafka, consumer)
        kafka.hung = {1}
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consumer.close, LONG)
                while (1, ApiKey.OFFSET_COMMIT) not in kafka.asked:
                    await anyio.sleep(0.01)
                await consumer.close(0)


async def test_a_second_close_that_is_cancelled_ends_both() -> None:
    async with ReadableKafka() as kafka, reading(kafka) as consumer:
        await joined(kafka, consumer)
        kafka.hung = {1}
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consumer.close, LONG)
                while (1, ApiKey.OFFSET_COMMIT) not in kafka.asked:
                    await anyio.sleep(0.01)
                with anyio.move_on_after(0.05):
                    await consumer.close(LONG)


@pytest.mark.slow
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize("group", [False, True])
async def test_nobody_waits_for_a_close_that_asyncio_cancelled_anywhere(group: bool, waiting: bool) -> None:
    class Counting(ConsumerInterceptor):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    async with ReadableKafka() as kafka:
        for turns in range(1, 30):
            counting = Counting()
            consumer = kclient.Consumer(
                bootstrap_servers=kafka.bootstrap, group_id="g" if group else None, interceptor_classes=[counting]
            )
            await consumer.start()
            consumer.assign([T0])
            await consumer.poll(0.05)
            first = asyncio.get_running_loop().create_task(consumer.close())
            await asyncio.sleep(0)
            others = [asyncio.get_running_loop().create_task(consumer.close(LONG))] if waiting else []
            for _ in range(turns):
                await asyncio.sleep(0)
            first.cancel()
            with anyio.fail_after(PATIENCE):
                await asyncio.wait([first, *others])
                assert counting.closed == 1
                await consumer.close(LONG)


@pytest.mark.parametrize("how", ["callback", "listener"])
async def test_what_close_calls_may_close(how: str) -> None:
    async with ReadableKafka() as kafka, reading(kafka) as consumer:
        called: list[str] = []

        class Closing(kclient.RebalanceListener):
            async def on_partitions_revoked(self, partitions: Any) -> None:
                await consumer.close()
                called.append("listener")

        async def callback(offsets: Any, error: Any) -> None:
            await consumer.close()
            called.append("callback")

        await joined(kafka, consumer)
        if how == "listener":
            consumer.subscribe(["t"], Closing())
        else:
            consumer.commit_async({T0: 1}, callback)
        with anyio.fail_after(PATIENCE):
            await consumer.close()
        assert called == [how]
        assert closed_in_good_order(kafka)


async def test_a_listener_in_a_poll_is_waited_for() -> None:
    """It is told of each partition once, although another task closes meanwhile."""
    told: list[str] = []
    inside, go_on = anyio.Event(), anyio.Event()

    class Slow(kclient.RebalanceListener):
        async def on_partitions_revoked(self, partitions: Any) -> None:
            told.append("revoked")
            inside.set()
            await go_on.wait()

    async with ReadableKafka() as kafka, reading(kafka) as consumer:
        await joined(kafka, consumer)
        consumer.subscribe(["t"], Slow())
        consumer.enforce_rebalance()

        async def poll() -> None:
            with pytest.raises(ClosedError):
                while True:
                    await consumer.poll(LONG)

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(poll)
                await inside.wait()
                tasks.start_soon(consumer.close)
                for _ in range(20):
                    await anyio.lowlevel.checkpoint()
                go_on.set()
        assert told == ["revoked"]
        assert closed_in_good_order(kafka)


# ------------------------------------------------------------------ calls that wait


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("group", [False, True])
async def test_no_call_outlives_close(name: str, group: bool) -> None:
    async with ReadableKafka() as kafka, reading(kafka) as consumer:
        if group:
            await joined(kafka, consumer)
            if name == "position":
                kafka.silent = {ApiKey.LIST_OFFSETS}
                consumer.seek_to_end()
        else:
            consumer.assign([T0])
        kafka.hung = {1}
        ended: list[Exception] = []

        async def call() -> None:
            try:
                await CALLS[name](consumer)
            except KafkaError as error:
                ended.append(error)

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
                for _ in range(20):
                    await anyio.lowlevel.checkpoint()
                await consumer.close(0.1)
        assert [type(error) for error in ended] == [ClosedError]


async def test_a_bug_in_a_search_reaches_the_user_as_it_is() -> None:
    async with ReadableKafka() as kafka, reading(kafka) as consumer:
        await consumer.end_offsets([T0])
        request = consumer._core.cluster.request

        async def broken(node: Any, message: Any, **options: Any) -> Any:
            if isinstance(message, ListOffsetsRequest):
                raise ZeroDivisionError("a bug")
            return await request(node, message, **options)

        consumer._core.cluster.request = broken  # type: ignore[method-assign,assignment]
        with anyio.fail_after(PATIENCE), pytest.raises(ZeroDivisionError):
            await consumer.end_offsets([T0])


async def test_a_member_that_may_not_use_its_group_is_told_by_commit_too() -> None:
    async with ReadableKafka() as kafka, reading(kafka) as consumer:
        kafka.errors = {ApiKey.FIND_COORDINATOR: int(ErrorCode.GROUP_AUTHORIZATION_FAILED)}
        consumer.subscribe(["t"])
        for call in (consumer.commit, consumer.committed):
            with anyio.fail_after(PATIENCE), pytest.raises(GroupAuthorizationError):
                await call({T0: 1}, timeout=LONG)
        with anyio.fail_after(PATIENCE), pytest.raises(GroupAuthorizationError):
            await consumer.poll(LONG)


# ------------------------------------------------------------------ callbacks of commits


class Remembering(ConsumerInterceptor):
    def __init__(self, told: list[Any]) -> None:
        self.told = told

    def close(self) -> None:
        self.told.append("closed")


@pytest.mark.parametrize("timeout", [0, 0.1])
async def test_callbacks_learn_that_close_gave_up(timeout: float) -> None:
    told: list[Any] = []
    async with ReadableKafka() as kafka, reading(kafka, interceptor_classes=[Remembering(told)]) as consumer:
        await joined(kafka, consumer)
        kafka.hung = {1}
        for _ in range(2):
            consumer.commit_async({T0: 1}, lambda offsets, error: told.append(type(error)))
        with anyio.fail_after(PATIENCE):
            while (1, ApiKey.OFFSET_COMMIT) not in kafka.asked:
                await anyio.sleep(0.01)
            await consumer.close(timeout)
        assert told == [ClosedError, ClosedError, "closed"]
        assert (1, ApiKey.LEAVE_GROUP) in kafka.asked, "leaving waits for the commits no longer than close does"


@pytest.mark.parametrize("hangs", [False, True])
async def test_callbacks_that_commit_again_while_the_consumer_closes(hangs: bool) -> None:
    told: list[Any] = []

    async with ReadableKafka() as kafka, reading(kafka, enable_auto_commit=False) as consumer:

        def again(offsets: Any, error: Any) -> None:
            told.append(error)
            if hangs:
                kafka.hung = {1}
            if len(told) < 5:
                consumer.commit_async({T0: 7}, again)

        await joined(kafka, consumer)
        consumer.commit_async({T0: 6}, again)
        with anyio.fail_after(PATIENCE):
            await consumer.close(0.5)
        assert told[0] is None
        assert len(told) >= 2
        if hangs:
            assert [type(error) for error in told[1:]] == [ClosedError]
        else:
            assert kafka.committed == {T0: 7}


async def test_a_callback_that_raises_keeps_neither_the_others_nor_the_group() -> None:
    told: list[Any] = []

    def raising(offsets: Any, error: Any) -> None:
        told.append(error)
        raise ZeroDivisionError(len(told))

    async with ReadableKafka() as kafka, reading(kafka, interceptor_classes=[Remembering(told)]) as consumer:
        await joined(kafka, consumer)
        for _ in range(3):
            consumer.commit_async({T0: 1}, raising)
        with anyio.fail_after(PATIENCE), pytest.raises(ZeroDivisionError, match="1"):
            await consumer.close()
        assert told == [None, None, None, "closed"]
        assert closed_in_good_order(kafka)


@pytest.mark.parametrize("failing", [False, True])
async def test_a_callback_in_a_poll_that_closes_has_the_others_called(failing: bool) -> None:
    told: list[Any] = []
    async with ReadableKafka() as kafka, reading(kafka, interceptor_classes=[Remembering(told)]) as consumer:

        async def closing(offsets: Any, error: Any) -> None:
            await consumer.close()
            told.append(error)
            if failing:
                raise ZeroDivisionError(len(told))

        await joined(kafka, consumer)
        for _ in range(3):
            consumer.commit_async({T0: 1}, closing)
        with anyio.fail_after(PATIENCE), pytest.raises(ZeroDivisionError if failing else ClosedError):
            while True:
                await consumer.poll(1)
        assert told == [None, None, None, "closed"]
        assert closed_in_good_order(kafka)


async def test_a_commit_behind_the_end_fails_at_once() -> None:
    async with ReadableKafka() as kafka, reading(kafka) as consumer:
        await joined(kafka, consumer)
        await consumer.close()
        with anyio.fail_after(PATIENCE):
            with pytest.raises(ClosedError):
                await consumer.commit({T0: 1})
            with pytest.raises(ClosedError):
                consumer.commit_async({T0: 1})


# ------------------------------------------------------------------ blocking code


@pytest.fixture
def kafka() -> Iterator[ReadableKafka]:
    kafka = ReadableKafka()
    kafka.fill("t", 0, 5)
    get_portal().call(kafka.start)
    yield kafka
    get_portal().call(kafka.aclose)


def member(kafka: ReadableKafka) -> kclient.sync.Consumer:
    consumer = in_blocking_code(kafka)
    consumer.subscribe(["t"])
    while not consumer.poll(0.1):
        pass
    return consumer


def in_threads(*functions: Callable[[], object]) -> None:
    threads = [threading.Thread(target=function, daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.slow
def test_two_threads_close(kafka: ReadableKafka) -> None:
    for _ in range(20):
        kafka.committed.clear()
        kafka.asked.clear()
        consumer = member(kafka)
        found: list[bool] = []

        def close(consumer: kclient.sync.Consumer = consumer, found: list[bool] = found) -> None:
            consumer.close()
            found.append(closed_in_good_order(kafka))

        in_threads(close, close, close)
        assert found == [True, True, True]


def test_another_thread_closes_while_one_iterates(kafka: ReadableKafka) -> None:
    consumer = in_blocking_code(kafka)
    consumer.subscribe(["t"])
    read = threading.Event()
    told: list[Exception] = []

    def iterate() -> None:
        try:
            with consumer:
                for record in consumer:
                    if record.offset == 4:
                        read.set()
        except ClosedError as error:
            told.append(error)

    def close() -> None:
        assert read.wait(10)
        consumer.close()

    in_threads(iterate, close)
    assert closed_in_good_order(kafka)
    assert len(told) == 1


def test_a_hasty_close_in_another_thread_ends_both(kafka: ReadableKafka) -> None:
    consumer = member(kafka)
    kafka.hung = {1}

    def hasty() -> None:
        while (1, ApiKey.OFFSET_COMMIT) not in kafka.asked:
            pass
        consumer.close(0)

    in_threads(partial(consumer.close, LONG), hasty)


def test_an_interrupted_callback_leaves_the_others_to_the_next_close(kafka: ReadableKafka) -> None:
    told: list[Any] = []

    def callback(offsets: Any, error: Any) -> None:
        told.append(error)
        if len(told) == 2:
            raise KeyboardInterrupt

    consumer = member(kafka)
    for _ in range(4):
        consumer.commit_async({T0: 1}, callback)
    with pytest.raises(KeyboardInterrupt):
        consumer.close()
    consumer.close()
    assert told == [None] * 4


def test_callbacks_in_blocking_code_learn_that_close_gave_up(kafka: ReadableKafka) -> None:
    told: list[Any] = []
    consumer = member(kafka)
    kafka.hung = {1}

    def callback(offsets: Any, error: Any) -> None:
        told.append((type(error), threading.get_ident()))
        consumer.close()

    consumer.commit_async({T0: 1}, callback)
    consumer.close(0.1)
    assert told == [(ClosedError, threading.get_ident())]
