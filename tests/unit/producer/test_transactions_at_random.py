"""Random transactions on a cluster in memory that misbehaves: what was committed is there, once and in order, and
nothing else is; the offsets with their records."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import anyio
import pytest

from kclient import Producer
from kclient.errors import ErrorCode, IllegalStateError, KafkaError, TransactionAbortableError
from kclient.protocol.registry import ApiKey
from kclient.types import ConsumerGroupMetadata, TopicPartition
from tests.fake_kafka import FakeKafka, Fault
from tests.fake_transactions import FakeTransactions, Trouble
from tests.unit.producer.parts import producing

pytestmark = pytest.mark.anyio

SEEDS = range(12)
PARTITIONS = 3
GROUP = ConsumerGroupMetadata("g", 1, "m")
TP = TopicPartition("read", 0)
KEYS = (ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN)
PASSING = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)
REFUSING = (ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE)


def misbehave(random: Random, coordinator: FakeTransactions) -> None:
    """Something that may go wrong in the next transaction."""
    kafka = coordinator.kafka
    for _ in range(random.randrange(3)):
        key = random.choice(KEYS)
        trouble = Trouble(drop=True) if random.random() < 0.4 else Trouble(code=random.choice(PASSING))
        coordinator.trouble[key].append(trouble)
    for _ in range(random.randrange(3)):
        kafka.faults.append(
            random.choice(
                [
                    Fault(drop=True),
                    Fault(drop=True, append=False),
                    Fault(code=ErrorCode.NOT_ENOUGH_REPLICAS),
                    Fault(code=ErrorCode.NOT_LEADER_OR_FOLLOWER),
                    None,
                ]
            )
        )
    if random.random() < 0.15:
        kafka.faults.append(Fault(code=random.choice(REFUSING)))
    if random.random() < 0.1:
        code = random.choice([ErrorCode.ILLEGAL_GENERATION, ErrorCode.GROUP_AUTHORIZATION_FAILED])
        coordinator.trouble[ApiKey.TXN_OFFSET_COMMIT].append(Trouble(code=code))
    if random.random() < 0.2:
        kafka.controller = random.choice(list(kafka.brokers))
    if random.random() < 0.2:
        kafka.move("t", random.randrange(PARTITIONS), random.choice(list(kafka.brokers)))
    if random.random() < 0.1:
        random.choice(list(kafka.brokers.values())).hang_up()
    if coordinator.version == 1 and random.random() < 0.05:
        coordinator.version = 2
        for broker in kafka.brokers.values():
            broker.hang_up()


class History:
    """What was committed so far."""

    def __init__(self) -> None:
        self.values: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.offset = 0
        self.count = 0


async def one_transaction(random: Random, producer: Producer, history: History) -> None:
    """Send at random, then commit, abort, or be cancelled; takes down what is committed."""
    added: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    offset = history.offset

    async def work() -> None:
        nonlocal offset
        async with producer.transaction():
            for _ in range(random.randrange(12)):
                history.count += 1
                partition = random.randrange(PARTITIONS)
                await producer.send("t", b"%d" % history.count, partition=partition)
                added[partition].append(b"%d" % history.count)
                if random.random() < 0.1:
                    await producer.flush()
            if random.random() < 0.5:
                offset += 1
                await producer.send_offsets_to_transaction({TP: offset}, GROUP)
            if random.random() < 0.2:
                raise ZeroDivisionError

    with anyio.CancelScope() as scope:
        if random.random() < 0.3:
            scope.deadline = anyio.current_time() + random.random() * 0.01
        try:
            await work()
        except ZeroDivisionError:
            return
        except KafkaError as error:
            if error.fatal:
                raise
            return
    if scope.cancelled_caught:
        try:
            await producer.commit_transaction()
        except TransactionAbortableError:
            await producer.abort_transaction()
            return
        except IllegalStateError:
            return  # it was aborted
    for values, new in zip(history.values, added, strict=True):
        values += new
    history.offset = offset


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
async def test_whatever_happens(seed: int) -> None:
    random = Random(seed)
    history = History()
    settings: dict[str, Any] = {"linger_ms": random.choice([0, 0, 2]), "batch_size": random.choice([0, 120, 16384])}
    async with FakeKafka({"t": PARTITIONS}, brokers=2) as kafka:
        coordinator = FakeTransactions(kafka, random.choice([1, 2]))
        async with producing(kafka, transactional_id="id", **settings) as producer:
            await producer.init_transactions()
            for _ in range(20):
                misbehave(random, coordinator)
                with anyio.fail_after(20):
                    await one_transaction(random, producer, history)
                found = [coordinator.visible("t", partition) for partition in range(PARTITIONS)]
                assert found == history.values
                assert coordinator.offsets.get(("g", TP), 0) == history.offset
            with suppress(KafkaError):
                await producer.flush()
        assert coordinator.violations == []
        assert coordinator.undecided() == []
