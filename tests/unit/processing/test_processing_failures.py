"""Records that cannot be processed: skipped, tried again, written elsewhere, or the end of it; never half written."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import anyio
import pytest

from kclient import ConsumerRecord, ConsumerRecords, OffsetAndMetadata, ProducerRecord, TimestampType, TopicPartition
from kclient.errors import RecordDeserializationError, SerializationError
from kclient.processing import DeadLetter, ProcessingFailure, Processor, Raise, Retry, Skip
from kclient.processing.backlog import Backlog
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
    seen,
    until,
)

pytestmark = pytest.mark.anyio

COUNT = 30
POISON = 13


def stored(tp: TopicPartition, offset: int) -> ConsumerRecord:
    return ConsumerRecord(tp.topic, tp.partition, offset, 0, TimestampType.CREATE_TIME, None, b"", [], None)


class PoisonError(Exception):
    """What the function raises."""


def picky(record: ConsumerRecord) -> ProducerRecord:
    if int(record.value) == POISON:
        raise PoisonError("no taste for it")
    return copied(record)


def without(count: int, *poison: int) -> list[list[int]]:
    return [[number for number in part if number not in poison] for part in expected(count)]


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", [1, PARTITIONS])
async def test_by_default_it_is_raised_and_nothing_of_the_transaction_is_there(concurrency: int) -> None:
    async with broker(COUNT) as address, clients(address) as (consumer, producer):
        processor = Processor(consumer, producer, picky, concurrency=concurrency, commit_interval=30)
        with anyio.fail_after(20), pytest.raises(PoisonError) as raised:
            await processor.run()
        assert any("in-1, offset 4" in note for note in raised.value.__notes__)
        assert await numbers(address) == [[]] * PARTITIONS
        assert await committed(address) == dict.fromkeys(IN, 0)
        # the consumer is back at the beginning
        following = Processor(consumer, producer, copied)
        async with running(following):
            await until(lambda: following.progress.records_in == COUNT)
        assert await numbers(address) == expected(COUNT)


async def test_skip() -> None:
    told: list[ProcessingFailure] = []

    async def on_error(failure: ProcessingFailure) -> Skip:
        told.append(failure)
        return Skip()

    async with broker(COUNT) as address, clients(address) as (consumer, producer):
        processor = Processor(consumer, producer, picky, on_error=on_error)
        async with running(processor):
            await until(lambda: processor.progress.records_in == COUNT)
        assert processor.progress.skipped == processor.progress.failures == 1
        (failure,) = told
        assert (failure.partition, failure.offset, failure.attempts) == (IN[1], 4, 1)
        assert isinstance(failure.error, PoisonError)
        assert failure.records[0].value == b"13"
        assert await numbers(address) == without(COUNT, POISON)
        assert await committed(address) == dict.fromkeys(IN, COUNT // PARTITIONS)


async def test_dead_letters_say_where_they_are_from() -> None:
    async with broker(COUNT) as address, clients(address) as (consumer, producer):
        processor = Processor(consumer, producer, picky, on_error=DeadLetter("dead"))
        async with running(processor):
            await until(lambda: processor.progress.records_in == COUNT)
        assert processor.progress.dead_letters == 1
        assert await numbers(address) == without(COUNT, POISON)
        (letter,) = await seen(address, "dead")
        assert letter.value == b"13"
        assert dict(letter.headers) == {
            "__kclient.errors.topic": b"in",
            "__kclient.errors.partition": b"1",
            "__kclient.errors.offset": b"4",
            "__kclient.errors.exception": f"{__name__}.PoisonError".encode(),
            "__kclient.errors.message": b"no taste for it",
        }


async def test_retry_holds_up_its_own_partition_only_and_commits_the_rest_meanwhile() -> None:
    tried: list[int] = []
    before: dict[int, int] = {}

    def function(record: ConsumerRecord) -> ProducerRecord:
        number = int(record.value)
        if number == POISON:
            tried.append(number)
            before[len(tried)] = processor.progress.records_in
            if len(tried) <= 3:
                raise PoisonError
        return copied(record)

    async with broker(COUNT) as address, clients(address) as (consumer, producer):
        processor = Processor(consumer, producer, function, on_error=Retry(0.1), commit_interval=0.01)
        async with running(processor):
            await until(lambda: processor.progress.records_in == COUNT)
        assert len(tried) == 4
        # all of the others, and four of this partition
        assert before[4] == COUNT * 2 // PARTITIONS + 4
        assert processor.progress.aborts == 0
        assert await numbers(address) == expected(COUNT)


async def test_retries_are_bounded() -> None:
    async with broker(COUNT) as address, clients(address) as (consumer, producer):
        processor = Processor(consumer, producer, picky, on_error=Retry(0), max_retries=2)
        with anyio.fail_after(20), pytest.raises(PoisonError) as raised:
            await processor.run()
        assert processor.progress.failures == 3
        assert any("tried 3 times" in note for note in raised.value.__notes__)


class _Mixed:
    """Raises what cannot be serialized into the middle of what comes of a record."""

    def __init__(self) -> None:
        self.calls: Counter[int] = Counter()

    def __call__(self, record: ConsumerRecord) -> list[ProducerRecord]:
        number = int(record.value)
        self.calls[number] += 1
        output = copied(record)
        if number != POISON:
            return [output]
        return [output, ProducerRecord("out", object(), partition=0), output]


@pytest.mark.slow
@pytest.mark.parametrize("action", [Skip(), DeadLetter("dead")], ids=["skip", "dead letter"])
async def test_what_comes_of_a_record_is_written_whole_or_not_at_all(action: Any) -> None:
    """The second of three records cannot be sent: the first one is in the transaction already, which has to go."""
    function = _Mixed()
    async with broker(COUNT) as address, clients(address) as (consumer, producer):
        processor = Processor(consumer, producer, function, on_error=action)
        async with running(processor):
            await until(lambda: processor.progress.records_in == COUNT)
        assert processor.progress.aborts == 1
        assert processor.progress.failures == 1, "what was decided is not asked for again"
        assert function.calls[POISON] == 1
        assert await numbers(address) == without(COUNT, POISON)
        assert [letter.value for letter in await seen(address, "dead")] == [b"13"] * isinstance(action, DeadLetter)
        assert await committed(address) == dict.fromkeys(IN, COUNT // PARTITIONS)


async def test_what_cannot_be_sent_is_tried_again() -> None:
    function = _Mixed()
    async with broker(COUNT) as address, clients(address) as (consumer, producer):
        processor = Processor(consumer, producer, function, on_error=Retry(0), max_retries=3)
        with anyio.fail_after(20), pytest.raises((SerializationError, TypeError)):
            await processor.run()
        assert function.calls[POISON] == 4
        assert POISON not in [number for part in await numbers(address) for number in part]


async def test_a_batch_is_skipped_whole_and_after_an_abort_too() -> None:
    """What was decided of a batch is carried out for these records, however they are read the next time."""
    refused: list[tuple[int, ...]] = []

    def function(records: ConsumerRecords) -> list[ProducerRecord]:
        outputs = [copied(record) for record in records]
        values = tuple(int(record.value) for record in records)
        if POISON in values:
            refused.append(values)
            outputs.append(ProducerRecord("out", object(), partition=0))
        return outputs

    async with broker(COUNT) as address, clients(address, reading={"max_poll_records": 7}) as (consumer, producer):
        processor = Processor(consumer, producer, function, batch=True, on_error=Skip())
        async with running(processor):
            await until(lambda: processor.progress.records_in == COUNT)
        assert len(refused) == 1
        assert processor.progress.skipped == len(refused[0])
        assert await numbers(address) == without(COUNT, *refused[0])


@pytest.mark.parametrize("result", [5, "text", {"a": 1}, [b"bytes"]], ids=repr)
async def test_what_is_no_record(result: Any) -> None:
    async with broker(3) as address, clients(address) as (consumer, producer):
        with anyio.fail_after(20), pytest.raises(TypeError, match=r"returns None, a kclient\.ProducerRecord"):
            await Processor(consumer, producer, lambda record: result).run()


async def test_a_hook_that_fails_or_says_nothing() -> None:
    def on_error(failure: ProcessingFailure) -> Any:
        return None

    async with broker(COUNT) as address, clients(address) as (consumer, producer):
        with anyio.fail_after(20), pytest.raises(TypeError, match="on_error has to return"):
            await Processor(consumer, producer, picky, on_error=on_error).run()
        assert producer is not None


async def test_what_a_deserializer_refuses_can_be_skipped() -> None:
    def deserialize(data: bytes) -> bytes:
        if int(data) == POISON:
            raise PoisonError
        return data

    reading = {"value_deserializer": deserialize}
    async with broker(COUNT) as address:
        async with clients(address, reading=reading) as (consumer, producer):
            with anyio.fail_after(20), pytest.raises(RecordDeserializationError) as raised:
                await Processor(consumer, producer, copied, on_error=DeadLetter("dead")).run()
            assert any("can only be skipped" in note for note in raised.value.__notes__)
        async with clients(address, reading=reading) as (consumer, producer):
            processor = Processor(consumer, producer, copied, on_error=Skip())
            async with running(processor):
                await until(lambda: sum(map(len, [*IN])) and processor.progress.skipped == 1)
                with anyio.fail_after(20):
                    while await committed(address) != dict.fromkeys(IN, COUNT // PARTITIONS):
                        await anyio.sleep(0.01)
        assert await numbers(address) == without(COUNT, POISON)


@pytest.mark.slow
async def test_what_a_deserializer_refuses_holds_up_its_own_partition_only() -> None:
    refusing = [True]

    def deserialize(data: bytes) -> bytes:
        if int(data) == POISON and refusing:
            raise PoisonError
        return data

    def on_error(failure: ProcessingFailure) -> Retry:
        return Retry(1e6 if failure.attempts == 2 else 0)

    async with (
        broker(COUNT) as address,
        clients(address, reading={"value_deserializer": deserialize}) as (consumer, producer),
    ):
        processor = Processor(consumer, producer, copied, on_error=on_error)
        before, all_of_one = POISON // PARTITIONS, 2 * COUNT // PARTITIONS
        async with running(processor):
            await until(lambda: processor.progress.failures == 2)
            await fill(address, range(COUNT, 2 * COUNT))
            await until(lambda: processor.progress.records_in == before + (PARTITIONS - 1) * all_of_one)
        assert processor.progress.failures == 2
        refusing.clear()
        following = Processor(consumer, producer, copied)
        async with running(following):
            await until(lambda: following.progress.records_in == all_of_one - before)
        assert await numbers(address) == expected(2 * COUNT)


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", [1, PARTITIONS])
async def test_a_cancellation_of_the_functions_own_is_a_failure(concurrency: int) -> None:
    """Such as of a task that it waits for; nobody has cancelled the processor."""

    async def function(record: ConsumerRecord) -> ProducerRecord:
        await anyio.sleep(0)
        if int(record.value) == POISON:
            raise asyncio.CancelledError
        return copied(record)

    told: list[Exception] = []

    async def on_error(failure: ProcessingFailure) -> Skip:
        told.append(failure.error)
        return Skip()

    async with broker(COUNT) as address, clients(address) as (consumer, producer):
        processor = Processor(consumer, producer, function, on_error=on_error, concurrency=concurrency)
        async with running(processor):
            await until(lambda: processor.progress.records_in == COUNT)
        assert [type(error) for error in told] == [RuntimeError]
        assert await numbers(address) == without(COUNT, POISON)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_function_that_cancels_its_task_ends_processing() -> None:
    async def function(record: ConsumerRecord) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await anyio.sleep(0)

    async with broker(COUNT) as address, clients(address) as (consumer, producer):
        with anyio.fail_after(20), pytest.raises(RuntimeError, match="its own task"):
            await Processor(consumer, producer, function, concurrency=PARTITIONS).run()
        assert await committed(address) == dict.fromkeys(IN, 0)


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_generators_are_closed_before_anything_is_decided(asynchronous: bool) -> None:
    """What one holds, such as a lock, is free when the record is tried again."""
    held = [0]
    while_deciding: list[int] = []

    def plain(record: ConsumerRecord) -> Any:
        held[0] += 1
        try:
            yield "no record"
        finally:
            held[0] -= 1

    class Results:
        def __init__(self, record: ConsumerRecord) -> None:
            self.record = record

        async def __aiter__(self) -> Any:
            for each in plain(self.record):
                held[0] += 1
                try:
                    yield each
                finally:
                    held[0] -= 1

    def asynchronously(record: ConsumerRecord) -> Results:
        return Results(record)

    def on_error(failure: ProcessingFailure) -> Skip:
        while_deciding.append(held[0])
        return Skip()

    async with broker(3) as address, clients(address) as (consumer, producer):
        processor = Processor(consumer, producer, asynchronously if asynchronous else plain, on_error=on_error)
        async with running(processor):
            await until(lambda: processor.progress.records_in == 3)
        assert while_deciding == [0, 0, 0]


@pytest.mark.parametrize("raised", ["error", "cause"])
async def test_a_hook_that_raises_what_it_was_told(raised: str) -> None:
    """The chain of exceptions has an end: contextlib would follow one without it for ever."""

    def function(record: ConsumerRecord) -> None:
        raise PoisonError from KeyError("the cause")

    def on_error(failure: ProcessingFailure) -> Any:
        assert failure.error.__cause__ is not None
        raise failure.error if raised == "error" else failure.error.__cause__

    async with broker(1) as address, clients(address) as (consumer, producer):
        with anyio.fail_after(20), pytest.raises(PoisonError if raised == "error" else KeyError) as caught:
            await Processor(consumer, producer, function, on_error=on_error).run()
        chain: list[BaseException] = []
        error: BaseException | None = caught.value
        while error is not None:
            assert error not in [*chain, error.__context__]
            chain.append(error)
            error = error.__cause__ or error.__context__
        assert any("in-0, offset 0" in note for note in caught.value.__notes__)


async def test_dead_letters_are_not_written_to_where_they_are_from() -> None:
    async with broker(COUNT) as address, clients(address) as (consumer, producer):
        with anyio.fail_after(20), pytest.raises(ValueError, match="name another") as raised:
            await Processor(consumer, producer, picky, on_error=DeadLetter("in")).run()
        assert isinstance(raised.value.__context__, PoisonError)
        assert sum(map(len, await numbers(address, "in"))) == COUNT


def test_what_was_decided_of_a_batch_is_for_each_part_that_is_read_after_an_abort() -> None:
    [tp, *_] = IN
    backlog = Backlog(batch=True)

    def read(first: int, last: int) -> None:
        records = tuple(stored(tp, offset) for offset in range(first, last + 1))
        backlog.add(ConsumerRecords({tp: records}, {tp: OffsetAndMetadata(last + 1)}))

    read(0, 9)
    backlog.failed(tp, 0, 9, PoisonError()).action = Skip()
    assert backlog.rewind() == {tp: OffsetAndMetadata(0)}
    for first, last in [(0, 3), (4, 9)]:
        read(first, last)
        unit = backlog.next_unit(tp, 0.0)
        assert unit is not None
        assert (unit.offset, len(unit.records)) == (first, last - first + 1)
        trouble = backlog.trouble(tp, first)
        assert trouble is not None
        assert trouble.action == Skip()
        backlog.processed(unit)
        backlog.committed()
    assert backlog.trouble(tp, 9) is None


def test_actions_are_checked() -> None:
    with pytest.raises(ValueError, match="delay"):
        Retry(-1)
    with pytest.raises(TypeError, match="topic"):
        DeadLetter(5)  # type: ignore[arg-type]
    assert Raise() == Raise()
