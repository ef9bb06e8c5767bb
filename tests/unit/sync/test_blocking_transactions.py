"""Transactions of the blocking producer, on a cluster in memory that lives in the portal's loop."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Iterator
from contextlib import suppress

import anyio
import pytest

from kclient.errors import (
    ErrorCode,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    TransactionAbortableError,
    TransactionAbortedError,
)
from kclient.protocol.messages import EndTxnRequest
from kclient.protocol.registry import ApiKey
from kclient.sync.portal import get_portal
from kclient.sync.producer import Producer
from kclient.types import ConsumerGroupMetadata, TopicPartition
from tests.fake_kafka import FakeKafka, Fault
from tests.fake_transactions import FakeTransactions, Trouble
from tests.unit.producer.parts import FAST

TP = TopicPartition("t", 0)


@pytest.fixture(params=[1, 2], ids=["version 1", "version 2"])
def coordinator(request: pytest.FixtureRequest) -> Iterator[FakeTransactions]:
    kafka = FakeKafka({"t": 1})
    made = FakeTransactions(kafka, request.param)
    portal = get_portal()
    portal.call(kafka.start)
    yield made
    portal.call(kafka.aclose)
    assert made.violations == []


def producing(coordinator: FakeTransactions, **settings: object) -> Producer:
    return Producer(bootstrap_servers=coordinator.kafka.bootstrap, **{**FAST, "transactional_id": "id", **settings})


def test_commit_and_abort(coordinator: FakeTransactions) -> None:
    with producing(coordinator) as producer:
        producer.init_transactions()
        with pytest.raises(IllegalStateError, match="begin_transaction"):
            producer.send("t", b"outside")
        with producer.transaction() as same:
            assert same is producer
            for number in range(100):
                producer.send("t", b"%d" % number)
            producer.send_offsets_to_transaction({TP: 3}, ConsumerGroupMetadata("g"))
        with pytest.raises(IllegalStateError, match="begin_transaction"):
            producer.send("t", b"outside")
        producer.begin_transaction()
        delivery = producer.send("t", b"aborted")
        producer.abort_transaction()
        with suppress(TransactionAbortedError):  # it may have left before
            delivery.result(timeout=10)
        with producer.transaction():
            producer.send("t", b"last")
    assert coordinator.visible() == [*(b"%d" % number for number in range(100)), b"last"]
    assert coordinator.offsets == {("g", TP): 3}


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_exception_in_the_block_aborts(coordinator: FakeTransactions, error: type[BaseException]) -> None:
    with producing(coordinator) as producer:
        producer.init_transactions()
        with pytest.raises(error), producer.transaction():
            producer.send("t", b"x")
            raise error
        with producer.transaction():
            producer.send("t", b"y")
    assert coordinator.visible() == [b"y"]


def test_what_cannot_be_committed_is_aborted(coordinator: FakeTransactions) -> None:
    with producing(coordinator) as producer:
        producer.init_transactions()
        coordinator.kafka.faults.append(Fault(code=ErrorCode.INVALID_RECORD))
        with pytest.raises(TransactionAbortableError), producer.transaction():
            producer.send("t", b"bad")
        with producer.transaction():
            producer.send("t", b"good")
    assert coordinator.visible() == [b"good"]


def test_a_commit_that_takes_longer_than_max_block_ms(coordinator: FakeTransactions) -> None:
    with producing(coordinator, max_block_ms=100, retry_backoff_ms=300, retry_backoff_max_ms=300) as producer:
        while True:
            try:
                producer.init_transactions()
                break
            except KafkaTimeoutError:
                pass
        coordinator.trouble[ApiKey.END_TXN].append(Trouble(code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        producer.begin_transaction()
        producer.send("t", b"x")
        with pytest.raises(KafkaTimeoutError, match="call commit_transaction again"):
            while True:
                producer.commit_transaction()
        with pytest.raises(IllegalStateError, match="commit_transaction"):
            producer.send("t", b"y")
        for _ in range(100):
            try:
                producer.commit_transaction()
                break
            except KafkaTimeoutError:
                pass
    assert coordinator.visible() == [b"x"]


def test_a_commit_that_is_interrupted_when_its_outcome_is_there(coordinator: FakeTransactions) -> None:
    """Its caller knows nothing, so the same call tells the outcome."""
    with producing(coordinator) as producer:
        producer.init_transactions()
        hold = get_portal().call(_event)
        coordinator.trouble[ApiKey.END_TXN].append(Trouble(hold=hold))
        producer.begin_transaction()
        producer.send("t", b"x")

        def interrupt() -> None:
            while not coordinator.kafka.count(EndTxnRequest):
                pass
            _thread.interrupt_main()  # noticed when the wait for the outcome ends
            get_portal().call_soon(hold.set)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            producer.commit_transaction()
        thread.join()
        with pytest.raises(IllegalStateError, match="call it again for its outcome"):
            producer.begin_transaction()
        producer.commit_transaction()
        with producer.transaction():
            producer.send("t", b"y")
    assert coordinator.visible() == [b"x", b"y"]


async def _event() -> anyio.Event:
    return anyio.Event()


def test_records_of_other_threads_are_in_it_or_refused(coordinator: FakeTransactions) -> None:
    """Whether `send` returned a delivery tells which; none slips into the next transaction."""
    with producing(coordinator) as producer:
        producer.init_transactions()
        taken: list[bytes] = []
        stop = threading.Event()

        def send() -> None:
            number = 0
            while not stop.is_set():
                value = b"%d" % number
                try:
                    producer.send("t", value)
                except KafkaError:
                    continue
                taken.append(value)
                number += 1

        thread = threading.Thread(target=send)
        thread.start()
        try:
            for _ in range(10):
                producer.begin_transaction()
                while not taken:
                    pass
                producer.commit_transaction()
        finally:
            stop.set()
            thread.join()
    assert coordinator.visible() == taken
