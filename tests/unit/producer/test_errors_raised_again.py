"""An error that each call raises from then on keeps the frames of none but the last, and with them no records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from kclient import Producer
from kclient.errors import ClosedError, ErrorCode, KafkaError, ProducerFencedError, TransactionAbortableError
from kclient.protocol.registry import ApiKey
from tests.fake_kafka import FakeKafka, Fault
from tests.fake_transactions import FakeTransactions, Trouble
from tests.unit.producer.parts import producing

pytestmark = pytest.mark.anyio


async def frames_of(call: Callable[[], Awaitable[object]], error: type[KafkaError]) -> int:
    """How many frames the error of a call holds."""
    with pytest.raises(error) as caught:
        await call()
    count, trace = 0, caught.value.__traceback__
    while trace is not None:
        count, trace = count + 1, trace.tb_next
    return count


async def check(producer: Producer, error: type[KafkaError], *calls: Callable[[], Awaitable[object]]) -> None:
    for call in (lambda: producer.send("t", b"x"), lambda: producer.send_batch("t", [b"x"]), *calls):
        before = await frames_of(call, error)
        for _ in range(3):
            assert await frames_of(call, error) == before


async def test_closed() -> None:
    async with FakeKafka() as kafka:
        async with producing(kafka) as producer:
            await producer.send("t", b"x")
        await check(producer, ClosedError, producer.flush)


async def test_failed() -> None:
    async with FakeKafka() as kafka:
        producer = Producer(bootstrap_servers=kafka.bootstrap)
        await producer.start()
        await producer.send("t", b"x")
        producer._life.supervisor.fail(ZeroDivisionError())
        await check(producer, KafkaError, producer.flush)
        with suppress(KafkaError):
            await producer.close()


@pytest.mark.parametrize("version", [1, 2])
async def test_transactions(version: int) -> None:
    async with FakeKafka() as kafka:
        coordinator = FakeTransactions(kafka, version)
        async with producing(kafka, transactional_id="id") as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            kafka.faults.append(Fault(code=ErrorCode.INVALID_RECORD))
            await producer.send("t", b"x")
            with pytest.raises(TransactionAbortableError):
                await producer.commit_transaction()
            calls = producer.begin_transaction, producer.commit_transaction
            await check(producer, TransactionAbortableError, *calls)
            coordinator.trouble[ApiKey.END_TXN].append(Trouble(code=ErrorCode.PRODUCER_FENCED))
            with pytest.raises(ProducerFencedError):
                await producer.abort_transaction()
            await check(producer, ProducerFencedError, *calls, producer.abort_transaction)
