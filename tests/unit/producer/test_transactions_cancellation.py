"""The calls of transactions cancelled at each checkpoint: nothing is half committed, and the producer goes on."""

from __future__ import annotations

import pytest

from kclient import Producer
from kclient.errors import IllegalStateError
from kclient.testing.cancellation import Cancelled, Outcome, at_every_checkpoint
from kclient.types import ConsumerGroupMetadata, TopicPartition
from tests.fake_kafka import FakeKafka
from tests.fake_transactions import FakeTransactions
from tests.unit.producer.parts import producing
from tests.unit.producer.test_transactions import transacting

pytestmark = pytest.mark.anyio

GROUP = ConsumerGroupMetadata("g", 3, "member")
TP = TopicPartition("t", 0)


@pytest.fixture(params=[1, 2], ids=["version 1", "version 2"])
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


async def goes_on(coordinator: FakeTransactions, producer: Producer, before: list[bytes]) -> None:
    """What is there is there, and another transaction follows."""
    assert coordinator.visible() == before
    async with producer.transaction():
        await producer.send("t", b"next")
    assert coordinator.visible() == [*before, b"next"]


async def test_init_transactions(version: int) -> None:
    async def scenario(cancelled: Cancelled) -> None:
        async with FakeKafka() as kafka:
            coordinator = FakeTransactions(kafka, version)
            async with producing(kafka, transactional_id="id") as producer:
                if await cancelled(producer.init_transactions()) is Outcome.CANCELLED:
                    await producer.init_transactions()
                await goes_on(coordinator, producer, [])

    assert await at_every_checkpoint(scenario) >= 1


async def test_commit_transaction(version: int) -> None:
    async def scenario(cancelled: Cancelled) -> None:
        async with transacting(version) as (coordinator, producer):
            await producer.send("t", b"x")
            if await cancelled(producer.commit_transaction()) is Outcome.CANCELLED:
                await producer.commit_transaction()
            await goes_on(coordinator, producer, [b"x"])

    assert await at_every_checkpoint(scenario) >= 1


async def test_abort_transaction(version: int) -> None:
    async def scenario(cancelled: Cancelled) -> None:
        async with transacting(version) as (coordinator, producer):
            await producer.send("t", b"x")
            if await cancelled(producer.abort_transaction()) is Outcome.CANCELLED:
                await producer.abort_transaction()
            await goes_on(coordinator, producer, [])

    assert await at_every_checkpoint(scenario) >= 1


async def test_send_offsets_to_transaction(version: int) -> None:
    """They are a part of the transaction whole or not at all."""

    async def scenario(cancelled: Cancelled) -> None:
        async with transacting(version) as (coordinator, producer):
            outcome = await cancelled(producer.send_offsets_to_transaction({TP: 5}, GROUP))
            await producer.commit_transaction()
            if outcome is Outcome.FINISHED:
                assert coordinator.offsets == {("g", TP): 5}
            else:
                assert coordinator.offsets in ({}, {("g", TP): 5})
            await goes_on(coordinator, producer, [])

    assert await at_every_checkpoint(scenario) >= 1


async def test_a_block(version: int) -> None:
    """Aborted, or committed by whoever asks again; the offsets with the records."""

    async def scenario(cancelled: Cancelled) -> None:
        async with transacting(version, begun=False) as (coordinator, producer):

            async def work() -> None:
                async with producer.transaction():
                    await producer.send("t", b"x")
                    await producer.send_offsets_to_transaction({TP: 5}, GROUP)

            if await cancelled(work()) is Outcome.FINISHED:
                committed = True
            else:
                try:
                    await producer.commit_transaction()
                    committed = True
                except IllegalStateError:
                    committed = False
            assert coordinator.offsets == ({("g", TP): 5} if committed else {})
            await goes_on(coordinator, producer, [b"x"] if committed else [])

    assert await at_every_checkpoint(scenario) >= 3
