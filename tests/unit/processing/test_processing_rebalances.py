"""Members of a group that process together while some come, go and are lost: each record counts once."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

import kclient
from kclient import ConsumerRecord, ProducerRecord, RebalanceListener, TopicPartition
from kclient.errors import (
    CommitFailedError,
    KafkaError,
    KafkaTimeoutError,
    RecordTooLargeError,
    TransactionAbortableError,
)
from kclient.processing import Processor
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

COUNT = 600
ASSIGNORS = ["range", "cooperative-sticky"]


async def until_committed(address: str, offset: int) -> None:
    """Wait until the group has committed this offset of each partition."""
    with anyio.fail_after(60):
        while await committed(address) != dict.fromkeys(IN, offset):
            await anyio.sleep(0.02)


class Members:
    """Instances that process, by number; each has a transactional id of its own."""

    def __init__(self, address: str, strategy: str) -> None:
        self.address = address
        self.processors: dict[int, Processor] = {}
        self.scopes: dict[int, anyio.CancelScope] = {}
        self._reading = {"partition_assignment_strategy": strategy, "max_poll_records": 20}

    async def live(self, number: int) -> None:
        """Process until stopped or cancelled, then leave."""

        async def function(record: ConsumerRecord) -> ProducerRecord:
            await anyio.sleep(0.001)
            return copied(record)

        with anyio.CancelScope() as self.scopes[number]:
            async with clients(self.address, reading=self._reading, transactional_id=f"p{number}") as found:
                processor = self.processors[number] = Processor(*found, function, concurrency=2, commit_interval=0.02)
                await processor.run()

    @property
    def done(self) -> int:
        return sum(processor.progress.records_in for processor in self.processors.values())


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("strategy", ASSIGNORS)
async def test_members_come_and_go(strategy: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    async with broker(0) as address, anyio.create_task_group() as tasks:
        members = Members(address, strategy)
        for number in range(3):
            tasks.start_soon(members.live, number)
        born, sent = 3, 0
        while sent < COUNT:
            await fill(address, range(sent, sent + 100))
            sent += 100
            await until(lambda sent=sent: members.done > sent - 100)  # type: ignore[misc]
            old = chance.choice([number for number in members.scopes if number >= born - 3])
            if chance.random() < 0.5 and old in members.processors:
                members.processors[old].stop()
            else:
                members.scopes[old].cancel()
            tasks.start_soon(members.live, born)
            born += 1
        await until_committed(address, COUNT // PARTITIONS)
        for processor in members.processors.values():
            processor.stop()
        assert await numbers(address) == expected(COUNT)


@pytest.mark.parametrize("strategy", ASSIGNORS)
async def test_what_is_complete_is_committed_before_partitions_go(strategy: str) -> None:
    """The interval is not over by far, and no record is processed twice."""
    reading = {"partition_assignment_strategy": strategy}
    told: list[tuple[str, int]] = []

    class Listener(RebalanceListener):
        async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
            told.append(("revoked", first.progress.records_in))

        async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
            told.append(("assigned", first.progress.records_in))

    seen: list[int] = []

    def function(record: ConsumerRecord) -> ProducerRecord:
        seen.append(int(record.value))
        return copied(record)

    async with broker(30) as address, clients(address, reading=reading) as (consumer, producer):
        listener = Listener()
        consumer.rebalance_listener = listener
        first = Processor(consumer, producer, function, commit_interval=25)
        async with running(first):
            await until(lambda: len(seen) == 30)
            assert first.progress.records_in == 0
            async with clients(address, reading=reading, transactional_id="q") as others:
                second = Processor(*others, function)
                async with running(second):
                    await until(lambda: first.progress.records_in == 30)
                    await fill(address, range(30, 60))
                    await until(lambda: len(seen) == 60)
        assert ("revoked", 30) in told, "the user's listener comes after the commit"
        assert consumer.rebalance_listener is listener
        assert sorted(number for number in seen if number < 30) == list(range(30))
        assert await numbers(address) == expected(60)


@pytest.mark.parametrize("strategy", ASSIGNORS)
async def test_a_consumer_that_subscribes_anew_still_commits_before_partitions_go(strategy: str) -> None:
    reading = {"partition_assignment_strategy": strategy}
    told: list[str] = []
    seen: list[int] = []

    class Listener(RebalanceListener):
        async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
            told.append("revoked")

    listener = Listener()

    async with broker(30) as address, clients(address, reading=reading) as (consumer, producer):

        def function(record: ConsumerRecord) -> ProducerRecord:
            if not seen:
                consumer.subscribe(["in", "dead"], listener=listener)
            return noted(record)

        def noted(record: ConsumerRecord) -> ProducerRecord:
            seen.append(int(record.value))
            return copied(record)

        first = Processor(consumer, producer, function, commit_interval=25)
        async with running(first):
            await until(lambda: len(seen) == 30)
            async with clients(address, reading=reading, transactional_id="q") as others:
                others[0].subscribe(["in", "dead"])
                second = Processor(*others, noted)
                async with running(second):
                    await until(lambda: first.progress.records_in == 30)
                    await fill(address, range(30, 60))
                    await until(lambda: len(seen) == 60)
        assert "revoked" in told
        assert consumer.rebalance_listener is listener
        assert await numbers(address) == expected(60)


@pytest.mark.slow
async def test_a_member_that_took_too_long_commits_nothing() -> None:
    """Its partitions have gone to another member, which has done the same work: the first one's is aborted."""
    async with broker(30) as address:
        blocked, go_on = anyio.Event(), anyio.Event()

        async def slow(record: ConsumerRecord) -> ProducerRecord:
            if int(record.value) == 7 and not blocked.is_set():
                blocked.set()
                await go_on.wait()
            return copied(record)

        reading = {"max_poll_interval_ms": 300, "session_timeout_ms": 6000}
        async with (
            clients(address, reading=reading) as (consumer, producer),
            clients(address, transactional_id="q") as others,
        ):
            first, second = Processor(consumer, producer, slow), Processor(*others, copied)
            async with running(first):
                await blocked.wait()
                async with running(second):
                    await until(lambda: second.progress.records_in + first.progress.records_in == 30)
                    go_on.set()
                    await until(lambda: first.progress.aborts == 1)
                    await fill(address, range(30, 60))
                    await until(lambda: second.progress.records_in + first.progress.records_in == 60)
            assert await numbers(address) == expected(60)


# ------------------------------------------------------------------ errors that pass, and that do not


class Failing:
    """A method of a client that raises a few times before, or after, it does what it should."""

    def __init__(self, call: Any, error: KafkaError, *, times: int = 1, done: bool = False) -> None:
        self.left = times
        self._call = call
        self._error = error
        self._done = done

    async def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if not self.left:
            return await self._call(*arguments, **keywords)
        self.left -= 1
        if self._done:
            await self._call(*arguments, **keywords)
        raise self._error


async def failing(address: str, method: str, error: KafkaError, **how: Any) -> tuple[Processor, Any]:
    """A processor's outcome when a method of its clients fails once."""
    async with clients(address) as (consumer, producer):
        owner: Any = consumer if method == "poll" else producer
        failure = Failing(getattr(owner, method), error, **how)
        setattr(owner, method, failure)
        processor = Processor(consumer, producer, copied)
        raised: list[KafkaError] = []

        async def run() -> None:
            try:
                await processor.run()
            except KafkaError as found:
                raised.append(found)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await until(lambda: bool(raised) or processor.progress.records_in == 30)
            processor.stop()
        assert not failure.left
        return processor, raised[0] if raised else None


def caused(error: KafkaError) -> TransactionAbortableError:
    found = TransactionAbortableError("x")
    found.__cause__ = error
    return found


@pytest.mark.parametrize(
    ("method", "error", "aborts"),
    [
        ("send_offsets_to_transaction", CommitFailedError("x"), 1),
        ("send_offsets_to_transaction", KafkaTimeoutError("x"), 1),
        ("commit_transaction", TransactionAbortableError("x"), 1),
        ("commit_transaction", caused(KafkaTimeoutError("x")), 1),
        ("commit_transaction", KafkaTimeoutError("x"), 0),
        ("init_transactions", KafkaTimeoutError("x"), 0),
        ("send", KafkaTimeoutError("x"), 1),
        ("poll", KafkaTimeoutError("x"), 0),
    ],
)
async def test_errors_that_pass(method: str, error: KafkaError, aborts: int) -> None:
    async with broker(30) as address:
        processor, raised = await failing(address, method, error)
        assert raised is None
        assert processor.progress.aborts == aborts
        assert await numbers(address) == expected(30)
        assert await committed(address) == dict.fromkeys(IN, 10)


async def test_an_abort_that_takes_long_is_waited_for() -> None:
    async with broker(30) as address, clients(address) as (consumer, producer):
        found: Any = producer
        found.commit_transaction = Failing(producer.commit_transaction, TransactionAbortableError("x"))
        found.abort_transaction = Failing(producer.abort_transaction, KafkaTimeoutError("x"), times=3)
        processor = Processor(consumer, producer, copied)
        async with running(processor):
            await until(lambda: processor.progress.records_in == 30)
        assert processor.progress.aborts == 1
        assert await numbers(address) == expected(30)


@pytest.mark.slow
@pytest.mark.parametrize(
    "error", [caused(RecordTooLargeError("x")), caused(kclient.errors.TopicAuthorizationError("x"))], ids=repr
)
async def test_errors_that_would_come_again(error: KafkaError) -> None:
    async with broker(30) as address:
        _, raised = await failing(address, "commit_transaction", error)
        assert raised is error
        assert await numbers(address) == [[]] * PARTITIONS
        assert await committed(address) == dict.fromkeys(IN, 0)


async def test_trouble_that_lasts_too_long_is_raised() -> None:
    async with broker(30) as address, clients(address) as (consumer, producer):
        found: Any = producer
        found.commit_transaction = Failing(producer.commit_transaction, TransactionAbortableError("x"), times=10**6)
        processor = Processor(consumer, producer, copied, retry_timeout=0.1)
        with anyio.fail_after(20), pytest.raises(TransactionAbortableError) as raised:
            await processor.run()
        assert any("retry_timeout=0.1" in note for note in raised.value.__notes__)
        assert processor.progress.aborts > 1


async def test_time_in_which_there_is_nothing_to_process_is_no_trouble() -> None:
    """An abort, and one much later: in between the records of the first had gone, and there were no others."""
    passed = [0.0]

    class Later(Processor):
        _clock = staticmethod(lambda: time.monotonic() + passed[0])

    async with (
        broker(3) as address,
        clients(address) as (consumer, producer),
        kclient.Admin(bootstrap_servers=address) as admin,
    ):
        commit = producer.commit_transaction
        attempts = [0]

        async def commit_or_not() -> None:
            attempts[0] += 1
            if attempts[0] == 1:
                await admin.delete_records(dict.fromkeys(IN, 1))
            if attempts[0] <= 2:
                raise TransactionAbortableError("it has to be aborted")
            await commit()

        producer.commit_transaction = commit_or_not  # type: ignore[method-assign]
        processor = Later(consumer, producer, copied, commit_interval=0, retry_timeout=60)
        async with running(processor):
            await until(lambda: processor.progress.aborts == 1)
            passed[0] = 1000.0
            await fill(address, range(3, 6))
            await until(lambda: processor.progress.records_in == 3)
        assert processor.progress.aborts == 2
        assert await numbers(address) == [[3], [4], [5]]


async def test_a_commit_whose_outcome_stays_unknown() -> None:
    """It was committed: going back would process everything again, so positions are left alone, and it is said."""
    async with broker(30) as address:
        async with clients(address) as (consumer, producer):
            found: Any = producer
            fenced = kclient.errors.ProducerFencedError("x")
            found.commit_transaction = Failing(producer.commit_transaction, fenced, done=True)
            processor = Processor(consumer, producer, copied, commit_interval=0)
            with anyio.fail_after(20), pytest.raises(kclient.errors.ProducerFencedError) as raised:
                await processor.run()
            assert any("new consumer" in note for note in raised.value.__notes__)
        async with clients(address) as others, running(Processor(*others, copied)):
            await until_committed(address, 10)
        assert await numbers(address) == expected(30)
