"""What the calls of transactions say is what happened: where brokers refuse the producer, and at its end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kclient import Producer
from kclient.errors import (
    SaslAuthenticationError,
    TransactionAbortableError,
)
from kclient.types import TopicPartition
from tests.fake_kafka import FakeKafka
from tests.fake_transactions import FakeTransactions
from tests.unit.producer.parts import producing

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
            await producer.init_transactions()
            await producer.begin_transaction()
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
