"""Reading, processing and writing exactly once: what comes out, in which order, and what is committed with it."""

from __future__ import annotations

import signal
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import pytest

import kclient
from kclient import ConsumerRecord, ConsumerRecords, ProducerRecord
from kclient.errors import ConfigError, IllegalStateError, ProducerFencedError
from kclient.processing import Processor, process
from tests.unit.processing.parts import (
    IN,
    PARTITIONS,
    broker,
    clients,
    committed,
    copied,
    expected,
    fill,
    numbers,
    running,
    until,
)

pytestmark = pytest.mark.anyio

COUNT = 60


async def coroutine(record: ConsumerRecord) -> ProducerRecord:
    await anyio.sleep(0)
    return copied(record)


def several(record: ConsumerRecord) -> list[ProducerRecord]:
    return [copied(record)]


def generator(record: ConsumerRecord) -> Iterator[ProducerRecord]:
    yield copied(record)


async def asynchronous_generator(record: ConsumerRecord) -> AsyncIterator[ProducerRecord]:
    await anyio.sleep(0)
    yield copied(record)


async def one_of_its_own(record: ConsumerRecord) -> AsyncIterator[ProducerRecord]:
    """A coroutine whose result is iterated over."""
    return asynchronous_generator(record)


FUNCTIONS = [copied, coroutine, several, generator, asynchronous_generator, one_of_its_own]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda found: found.__name__)
@pytest.mark.parametrize("concurrency", [1, 2])
async def test_every_kind_of_function(function: Any, concurrency: int) -> None:
    async with broker(COUNT) as address, clients(address) as (consumer, producer):
        processor = Processor(consumer, producer, function, concurrency=concurrency)
        async with running(processor):
            await until(lambda: processor.progress.records_in == COUNT)
        assert processor.progress.records_out == COUNT
        assert processor.progress.aborts == 0
        assert processor.progress.lag == 0
        assert await numbers(address) == expected(COUNT)
        assert await committed(address) == dict.fromkeys(IN, COUNT // PARTITIONS)


async def test_nothing_and_much_may_come_of_a_record() -> None:
    def even_ones_twice(record: ConsumerRecord) -> list[ProducerRecord] | None:
        return [copied(record)] * 2 if int(record.value) % 2 == 0 else None

    async with broker(COUNT) as address, clients(address) as (consumer, producer):
        processor = Processor(consumer, producer, even_ones_twice, commit_interval=0)
        async with running(processor):
            await until(lambda: processor.progress.records_in == COUNT)
        found = await numbers(address)
        assert sorted(n for part in found for n in part) == sorted([*range(0, COUNT, 2), *range(0, COUNT, 2)])
        assert await committed(address) == dict.fromkeys(IN, COUNT // PARTITIONS)


async def test_where_nothing_comes_of_any_record_offsets_are_committed_all_the_same() -> None:
    async with broker(COUNT) as address, clients(address) as (consumer, producer):
        processor = Processor(consumer, producer, lambda record: None)
        async with running(processor):
            await until(lambda: processor.progress.records_in == COUNT)
        assert await committed(address) == dict.fromkeys(IN, COUNT // PARTITIONS)


async def test_batches_are_of_one_partition_each() -> None:
    sizes: list[int] = []

    def function(records: ConsumerRecords) -> list[ProducerRecord]:
        (tp,) = records.partitions()
        assert records.next_offsets[tp].offset == records[-1].offset + 1
        sizes.append(len(records))
        return [copied(record) for record in records]

    async with broker(COUNT) as address, clients(address) as (consumer, producer):
        processor = Processor(consumer, producer, function, batch=True)
        async with running(processor):
            await until(lambda: processor.progress.records_in == COUNT)
        assert sum(sizes) == COUNT
        assert max(sizes) > 1
        assert await numbers(address) == expected(COUNT)


@pytest.mark.slow
async def test_partitions_are_processed_side_by_side_and_their_records_in_order() -> None:
    """Each waits for the others: with less at a time it would wait for ever."""
    running_now: set[int] = set()
    together = anyio.Event()

    async def function(record: ConsumerRecord) -> ProducerRecord:
        assert record.partition not in running_now, "one record of a partition at a time"
        running_now.add(record.partition)
        if len(running_now) == PARTITIONS:
            together.set()
        with anyio.fail_after(20):
            await together.wait()
        running_now.discard(record.partition)
        return copied(record)

    async with broker(COUNT) as address, clients(address) as (consumer, producer):
        while {tp for tp in consumer.assignment() if tp in IN} != set(IN):
            await consumer.poll(0.1)
        consumer.seek_to_beginning()
        consumer.pause(IN)
        processor = Processor(consumer, producer, function, concurrency=PARTITIONS)
        async with running(processor):
            consumer.resume(IN)
            await until(lambda: processor.progress.records_in == COUNT)
        assert await numbers(address) == expected(COUNT)


@pytest.mark.slow
async def test_it_commits_amid_what_a_poll_returned_when_the_interval_is_over() -> None:
    commits: list[int] = []

    async def function(record: ConsumerRecord) -> ProducerRecord:
        commits.append(processor.progress.commits)
        await anyio.sleep(0.01)
        return copied(record)

    async with broker(COUNT) as address, clients(address) as (consumer, producer):
        processor = Processor(consumer, producer, function, commit_interval=0.02)
        async with running(processor):
            await until(lambda: processor.progress.records_in == COUNT)
        assert max(commits) > 5
        assert processor.progress.aborts == 0
        assert await numbers(address) == expected(COUNT)


@pytest.mark.slow
async def test_a_transaction_is_committed_before_its_time_is_over() -> None:
    """Half a second for all; each record takes a tenth of that, and all come with one poll."""

    async def function(record: ConsumerRecord) -> ProducerRecord:
        await anyio.sleep(0.05)
        return copied(record)

    async with broker(30) as address, clients(address, transaction_timeout_ms=500) as (consumer, producer):
        processor = Processor(consumer, producer, function, commit_interval=0)
        async with running(processor):
            await until(lambda: processor.progress.records_in == 30)
        assert processor.progress.aborts == 0
        assert processor.progress.commits > 3
        assert await numbers(address) == expected(30)


async def test_stop_ends_it_after_the_record_and_the_next_one_goes_on_there() -> None:
    seen: list[int] = []

    def function(record: ConsumerRecord) -> ProducerRecord:
        seen.append(int(record.value))
        if len(seen) == 7:
            processor.stop()
        return copied(record)

    async with broker(COUNT) as address, clients(address) as (consumer, producer):
        processor = Processor(consumer, producer, function)
        with anyio.fail_after(20):
            progress = await processor.run()
        assert progress.records_in == progress.records_out == 7
        assert sum((await committed(address)).values()) == 7
        with pytest.raises(IllegalStateError, match="runs once"):
            await processor.run()
        following = Processor(consumer, producer, function)
        async with running(following):
            await until(lambda: following.progress.records_in == COUNT - 7)
        assert await numbers(address) == expected(COUNT)


async def test_stop_ends_the_wait_for_records_and_leaves_no_wakeup() -> None:
    async with broker(3) as address, clients(address) as (consumer, producer):
        processor = Processor(consumer, producer, copied)
        async with running(processor):
            await until(lambda: processor.progress.records_in == 3)
        await fill(address, [3, 4, 5])
        found = 0
        with anyio.fail_after(20):
            while found < 3:
                found += len(await consumer.poll(0.5))


@pytest.mark.slow
async def test_a_stop_that_wakes_the_consumer_late_leaves_no_wakeup() -> None:
    """Another thread found the processor polling, and woke the consumer when the poll was over."""
    async with broker(3) as address, clients(address) as (consumer, producer):
        processor = Processor(consumer, producer, copied)
        wakeup, about_to, returned = consumer.wakeup, threading.Event(), threading.Event()

        def late() -> None:
            about_to.set()
            returned.wait(1)  # a run that does not wait for it returns long before
            wakeup()

        async def end_the_poll() -> None:
            await until(about_to.is_set)
            await fill(address, [3, 4, 5])

        consumer.wakeup = late  # type: ignore[method-assign]

        async def stop() -> None:
            await until(lambda: processor.progress.records_in == 3)
            await anyio.to_thread.run_sync(processor.stop)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop)
            tasks.start_soon(end_the_poll)
            await processor.run()
            returned.set()
        await fill(address, [6])
        with anyio.fail_after(20):
            while not await consumer.poll(1):
                pass


async def test_stop_before_it_runs_needs_no_broker() -> None:
    async with clients("127.0.0.1:1", max_block_ms=60_000) as (consumer, producer):
        processor = Processor(consumer, producer, copied)
        processor.stop()
        with anyio.fail_after(20):
            assert (await processor.run()).records_in == 0


@pytest.mark.parametrize("concurrency", [1, PARTITIONS])
def test_an_interrupt_in_trio_comes_without_a_group(concurrency: int) -> None:
    """It is raised in the main task, which waits for those that run the function. (asyncio cancels the main task.)"""
    main = threading.main_thread().ident
    assert main is not None

    async def interrupted() -> None:
        begun: list[ConsumerRecord] = []

        async def function(record: ConsumerRecord) -> None:
            begun.append(record)
            if len(begun) == 1:
                threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT)).start()
            await anyio.sleep_forever()

        async with broker(COUNT) as address, clients(address) as (consumer, producer):
            with anyio.fail_after(20):
                await Processor(consumer, producer, function, concurrency=concurrency).run()

    with pytest.raises(KeyboardInterrupt):
        anyio.run(interrupted, backend="trio")


async def test_stop_before_it_runs() -> None:
    async with broker(3) as address, clients(address) as (consumer, producer):
        processor = Processor(consumer, producer, copied)
        processor.stop()
        with anyio.fail_after(20):
            assert (await processor.run()).records_in == 0


async def test_the_call_is_ended_by_a_cancellation() -> None:
    async with broker(COUNT) as address, clients(address) as (consumer, producer):
        with anyio.CancelScope() as scope:

            async def function(record: ConsumerRecord) -> ProducerRecord:
                if int(record.value) == 20:
                    scope.cancel()
                return copied(record)

            await process(consumer, producer, function)
        assert scope.cancelled_caught
        before = await numbers(address)
        assert {tp: len(before[tp.partition]) for tp in IN} == await committed(address)
        # the clients are as they were: both go on
        processor = Processor(consumer, producer, copied)
        async with running(processor):
            await until(lambda: processor.progress.records_in == COUNT - sum(map(len, before)))
        assert await numbers(address) == expected(COUNT)


async def test_partitions_that_are_assigned_by_hand() -> None:
    async with broker(COUNT) as address, clients(address) as (consumer, producer):
        await consumer.unsubscribe()
        consumer.assign(IN[:2])
        processor = Processor(consumer, producer, copied)
        async with running(processor):
            await until(lambda: processor.progress.records_in == COUNT * 2 // 3)
        assert await numbers(address) == [*expected(COUNT)[:2], []]
        assert (await committed(address))[IN[1]] == COUNT // 3


@pytest.mark.slow
async def test_a_newer_instance_with_the_same_id_fences_this_one() -> None:
    async with broker(COUNT) as address, clients(address) as (consumer, producer):
        processor = Processor(consumer, producer, copied)
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:

                async def run() -> None:
                    with pytest.raises(ProducerFencedError):
                        await processor.run()
                    tasks.cancel_scope.cancel()

                tasks.start_soon(run)
                await until(lambda: processor.progress.records_in == COUNT)
                async with kclient.Producer(bootstrap_servers=address, transactional_id="p") as newer:
                    await newer.init_transactions()
                    await fill(address, range(COUNT, 2 * COUNT))
                    await anyio.sleep_forever()
        assert await numbers(address) == expected(COUNT)
        assert await committed(address) == dict.fromkeys(IN, COUNT // PARTITIONS)


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("reading", "writing", "remedy"),
    [
        ({"enable_auto_commit": True}, {}, r"enable\.auto\.commit=false"),
        ({"isolation_level": "read_uncommitted"}, {}, r"isolation\.level=read_committed"),
        ({}, {"transactional_id": None}, r"set transactional\.id"),
    ],
)
async def test_settings_that_contradict_it(reading: dict[str, Any], writing: dict[str, Any], remedy: str) -> None:
    async with broker(0) as address, clients(address, reading=reading, **writing) as (consumer, producer):
        with pytest.raises(ConfigError, match=remedy):
            Processor(consumer, producer, copied)


async def test_a_consumer_without_a_group() -> None:
    async with broker(0) as address, clients(address) as (_, producer):
        consumer = kclient.Consumer(
            bootstrap_servers=address, enable_auto_commit=False, isolation_level="read_committed"
        )
        with pytest.raises(ConfigError, match=r"set group\.id"):
            Processor(consumer, producer, copied)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"commit_interval": 60}, ValueError, "transaction.timeout.ms"),
        ({"commit_interval": -1}, ValueError, "commit_interval"),
        ({"commit_interval": "1"}, TypeError, "commit_interval"),
        ({"concurrency": 0}, ValueError, "concurrency"),
        ({"max_retries": -1}, ValueError, "max_retries"),
        ({"retry_timeout": float("nan")}, ValueError, "retry_timeout"),
        ({"batch": 1}, TypeError, "batch"),
        ({"on_error": "skip"}, TypeError, "on_error"),
    ],
)
async def test_wrong_arguments(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    async with broker(0) as address, clients(address) as (consumer, producer):
        with pytest.raises(error, match=text):
            Processor(consumer, producer, copied, **arguments)


async def test_other_things_in_the_place_of_clients_and_function() -> None:
    async with broker(0) as address, clients(address) as (consumer, producer):
        wrong: Any = producer
        with pytest.raises(TypeError, match=r"takes a kclient\.Consumer"):
            Processor(wrong, producer, copied)
        nothing: Any = None
        with pytest.raises(TypeError, match="function"):
            Processor(consumer, producer, nothing)


async def test_a_transaction_that_is_open_is_left_alone() -> None:
    async with broker(3) as address, clients(address) as (consumer, producer):
        await producer.init_transactions()
        await producer.begin_transaction()
        await producer.send("out", b"100", partition=0)
        with anyio.fail_after(20), pytest.raises(IllegalStateError, match="begin_transaction"):
            await Processor(consumer, producer, copied).run()
        await producer.commit_transaction()
        assert await numbers(address) == [[100], [], []]
