"""What the calls of transactions say is what happened: where brokers refuse the producer, and at its end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from kclient import Producer
from kclient.errors import (
    ErrorCode,
    KafkaTimeoutError,
    ProducerFencedError,
    SaslAuthenticationError,
    TransactionAbortableError,
)
from kclient.protocol.registry import ApiKey
from kclient.types import ConsumerGroupMetadata, TopicPartition
from tests.fake_kafka import FakeKafka, Fault
from tests.fake_transactions import FakeTransactions, Trouble
from tests.unit.producer.parts import begin, producing

pytestmark = pytest.mark.anyio

TP = TopicPartition("t", 0)


@pytest.fixture(params=[1, 2], ids=["version 1", "version 2"])
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@asynccontextmanager
async def transacting(
    version: int, *, partitions: int = 1, brokers: int = 1, **settings: Any
) -> AsyncIterator[tuple[FakeTransactions, Producer]]:
    """A cluster and a producer with a transaction that a record was delivered in."""
    async with FakeKafka({"t": partitions}, brokers=brokers) as kafka:
        coordinator = FakeTransactions(kafka, version)
        async with producing(kafka, transactional_id="id", **settings) as producer:
            await begin(producer)
            await (await producer.send("t", b"x", partition=0))
            yield coordinator, producer
        assert coordinator.violations == []


async def test_a_leader_that_refuses_the_producer_makes_it_abortable(version: int) -> None:
    """What waited for that leader is lost, so that the rest must not be committed."""

    def refuse() -> float:
        raise SaslAuthenticationError("wrong password")

    async with transacting(version, partitions=2, brokers=2) as (coordinator, producer):
        leader = coordinator.kafka.brokers[2]
        coordinator.kafka.controller = 1
        leader.connect_seconds = refuse
        leader.hang_up()
        delivery = await producer.send("t", b"y", partition=1)
        with pytest.raises(TransactionAbortableError, match="wrong password"):
            await producer.commit_transaction()
        with pytest.raises(SaslAuthenticationError):
            await delivery
        await producer.abort_transaction()
        leader.connect_seconds = lambda: 0.0
        async with producer.transaction():
            for partition in range(2):
                await producer.send("t", b"z", partition=partition)
        assert [coordinator.visible("t", partition) for partition in range(2)] == [[b"z"], [b"z"]]


async def test_what_is_committed_is_no_failure_where_the_next_epoch_is_refused() -> None:
    """The epoch is bumped between the generations of the protocol; the next call says that there is none."""
    async with transacting(1) as (coordinator, producer):
        coordinator.version = 2
        coordinator.kafka.brokers[1].hang_up()
        coordinator.trouble[ApiKey.INIT_PRODUCER_ID].append(Trouble(code=ErrorCode.PRODUCER_FENCED))
        await producer.commit_transaction()
        assert coordinator.visible() == [b"x"]
        with pytest.raises(ProducerFencedError):
            await producer.begin_transaction()


async def test_a_group_that_cannot_be_asked_is_named(version: int) -> None:
    async with transacting(version, max_block_ms=100) as (coordinator, producer):
        trouble = Trouble(code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        coordinator.trouble[ApiKey.TXN_OFFSET_COMMIT] += [trouble] * 1000
        with pytest.raises(KafkaTimeoutError, match=r"TxnOffsetCommit .*COORDINATOR_LOAD_IN_PROGRESS"):
            await producer.send_offsets_to_transaction({TP: 1}, ConsumerGroupMetadata("g"))
        coordinator.trouble[ApiKey.TXN_OFFSET_COMMIT].clear()


async def test_closing_while_a_commit_fails_aborts(version: int) -> None:
    """Nothing stays open until `transaction.timeout.ms`, which would keep readers waiting."""
    async with transacting(version, max_block_ms=50) as (coordinator, producer):
        hold = anyio.Event()
        coordinator.kafka.faults.append(Fault(code=ErrorCode.INVALID_RECORD, hold=hold))
        await producer.send("t", b"y")
        with pytest.raises(KafkaTimeoutError):
            await producer.commit_transaction()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(producer.close)
            await anyio.wait_all_tasks_blocked()
            hold.set()
        assert coordinator.undecided() == []
        assert coordinator.visible() == []


async def test_closing_aborts_however_short_max_block_ms_is(version: int) -> None:
    async with transacting(version, max_block_ms=40, retry_backoff_ms=100) as (coordinator, producer):
        coordinator.trouble[ApiKey.END_TXN].append(Trouble(code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        await producer.close()
        assert coordinator.undecided() == []


@pytest.mark.parametrize("call", ["commit_transaction", "abort_transaction"])
async def test_closing_waits_no_longer_than_the_coordinator_does(
    version: int, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    """After `transaction.timeout.ms` it has aborted what nobody has ended."""
    settings = {"max_block_ms": 40, "transaction_timeout_ms": 200, "request_timeout_ms": 300}
    async with transacting(version, **settings, delivery_timeout_ms=400) as (coordinator, producer):
        broker = coordinator.kafka.brokers[1]
        broker.down = True
        broker.hang_up()
        with pytest.raises(KafkaTimeoutError):
            await getattr(producer, call)()
        with anyio.fail_after(10):
            await producer.close()
        assert "was not ended within transaction.timeout.ms" in caplog.text
