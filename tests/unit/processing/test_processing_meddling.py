"""What others do amid processing: clients that are closed by another task or thread, topics that are made anew."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import anyio
import pytest

import kclient
from kclient import ConsumerRecord, ProducerRecord
from kclient.admin import NewTopic
from kclient.errors import ClosedError
from kclient.processing import BlockingProcessor, Processor, Retry
from tests.unit.processing.parts import (
    IN,
    PARTITIONS,
    READING,
    WRITING,
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


def twice(record: ConsumerRecord) -> list[ProducerRecord]:
    """Two results, of which the second can be held up."""
    return [ProducerRecord(topic, record.value, partition=record.partition) for topic in ("out", "dead")]


@pytest.mark.slow
async def test_a_consumer_closed_amid_a_record_commits_no_part_of_it() -> None:
    sent, go = anyio.Event(), anyio.Event()
    ended: list[Exception] = []
    async with broker(1) as address:
        async with clients(address) as (consumer, producer):
            send = producer.send

            async def held_up(topic: str, *arguments: Any, **keywords: Any) -> Any:
                if topic == "dead":
                    sent.set()
                    await go.wait()
                return await send(topic, *arguments, **keywords)

            producer.send = held_up  # type: ignore[method-assign]

            async def run() -> None:
                try:
                    await Processor(consumer, producer, twice, commit_interval=20).run()
                except ClosedError as error:
                    ended.append(error)

            with anyio.fail_after(30):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(run)
                    await sent.wait()
                    await consumer.close()
                    go.set()
        assert ended
        assert await numbers(address) == await numbers(address, "dead") == [[]] * PARTITIONS
        async with clients(address) as found:
            following = Processor(*found, twice)
            async with running(following):
                await until(lambda: following.progress.records_in == 1)
        assert await numbers(address) == await numbers(address, "dead") == expected(1)


async def test_a_consumer_closed_while_the_function_runs() -> None:
    """Nothing comes of the record, so there is nothing to send that would fail."""
    reached, go = anyio.Event(), anyio.Event()

    async def function(record: ConsumerRecord) -> None:
        reached.set()
        await go.wait()

    ended: list[Exception] = []
    async with broker(1) as address, clients(address) as (consumer, producer):
        processor = Processor(consumer, producer, function)

        async def run() -> None:
            try:
                await processor.run()
            except ClosedError as error:
                ended.append(error)

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                await reached.wait()
                await consumer.close()
                go.set()
        assert ended
        assert processor.progress.records_in == 0
        assert await committed(address) == dict.fromkeys(IN, 0)


async def test_a_blocking_consumer_closed_by_another_thread_amid_a_record() -> None:
    def close_amid_it(address: str) -> list[BaseException]:
        sent, go = threading.Event(), threading.Event()
        ended: list[BaseException] = []
        with kclient.sync.Producer(bootstrap_servers=address, **WRITING) as producer:
            consumer = kclient.sync.Consumer("in", bootstrap_servers=address, **READING)
            send = producer.send

            def held_up(topic: str, *arguments: Any, **keywords: Any) -> Any:
                if topic == "dead":
                    sent.set()
                    go.wait(30)
                return send(topic, *arguments, **keywords)

            producer.send = held_up  # type: ignore[method-assign]

            def run() -> None:
                try:
                    BlockingProcessor(consumer, producer, twice, commit_interval=20).run()
                except ClosedError as error:
                    ended.append(error)

            thread = threading.Thread(target=run)
            thread.start()
            try:
                assert sent.wait(30)
                consumer.close()
            finally:
                go.set()
                thread.join(30)
        return ended

    async with broker(1) as address:
        assert await anyio.to_thread.run_sync(close_amid_it, address)
        assert await numbers(address) == [[]] * PARTITIONS
        assert await committed(address) == dict.fromkeys(IN, 0)


@pytest.mark.slow
async def test_an_abort_in_a_topic_made_anew_goes_back_to_where_reading_it_began() -> None:
    """Not to an offset of the topic that was deleted."""
    old, new = 30, 90
    poison = [False]

    def function(record: ConsumerRecord) -> list[ProducerRecord]:
        results = [copied(record)]
        if poison and record.offset == 5 and int(record.value) >= old:
            poison.clear()
            results.append(ProducerRecord("out", object()))  # the first is sent by then: only an abort helps
        return results

    quick = {"metadata_max_age_ms": 50}
    async with (
        broker(old) as address,
        kclient.Producer(bootstrap_servers=address, **WRITING) as producer,
        kclient.Consumer(bootstrap_servers=address, **READING, **quick) as consumer,
        kclient.Admin(bootstrap_servers=address) as admin,
    ):
        consumer.assign(IN)
        processor = Processor(consumer, producer, function, on_error=Retry(0))
        async with running(processor):
            await until(lambda: processor.progress.records_in == old)
            await admin.delete_topics(["in"])
            await admin.create_topics([NewTopic("in", PARTITIONS)])
            await fill(address, range(old, old + new))
            with contextlib.suppress(TimeoutError), anyio.fail_after(15):
                while processor.progress.records_in < old + new:
                    await anyio.sleep(0.01)
        assert processor.progress.aborts == 1
        assert await numbers(address) == expected(old + new)
        assert await committed(address) == dict.fromkeys(IN, new // PARTITIONS)
