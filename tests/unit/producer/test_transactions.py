"""Transactions of the producer against a cluster in memory with a coordinator, in both generations of the protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from kclient import Producer
from kclient.errors import (
    ClosedError,
    CommitFailedError,
    ErrorCode,
    GroupAuthorizationError,
    IllegalStateError,
    InvalidTxnTimeoutError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
    TopicAuthorizationError,
    TransactionAbortableError,
    TransactionAbortedError,
)
from kclient.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from kclient.protocol.registry import ApiKey
from kclient.types import ConsumerGroupMetadata, TopicPartition
from tests.fake_kafka import FakeKafka, Fault
from tests.fake_transactions import FakeTransactions, Trouble
from tests.unit.producer.parts import begin, insist, producing

pytestmark = pytest.mark.anyio

GROUP = ConsumerGroupMetadata("g", 3, "member")
TP = TopicPartition("t", 0)


@pytest.fixture(params=[1, 2], ids=["version 1", "version 2"])
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@asynccontextmanager
async def transacting(
    version: int, *, partitions: int = 1, begun: bool = True, **settings: Any
) -> AsyncIterator[tuple[FakeTransactions, Producer]]:
    """A cluster and a transactional producer, in a transaction unless that is not wanted."""
    async with FakeKafka({"t": partitions}) as kafka:
        coordinator = FakeTransactions(kafka, version)
        async with producing(kafka, transactional_id="id", **settings) as producer:
            if begun:
                await begin(producer)
            else:
                await producer.init_transactions()
            yield coordinator, producer
        assert coordinator.violations == []
        assert coordinator.undecided() == [], "no transaction stays open"


async def test_commit_and_abort(version: int) -> None:
    async with transacting(version, partitions=3, begun=False) as (coordinator, producer):
        for number in range(5):
            await producer.begin_transaction()
            for partition in range(3):
                await producer.send("t", b"%d" % number, partition=partition)
            if number % 2:
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
        for partition in range(3):
            assert coordinator.visible("t", partition) == [b"0", b"2", b"4"]


async def test_the_requests_of_each_generation(version: int) -> None:
    async with transacting(version, partitions=3) as (coordinator, producer):
        for partition in range(3):
            await producer.send("t", b"x", partition=partition)
        await producer.send_offsets_to_transaction({TP: 5}, GROUP)
        await producer.commit_transaction()
        sent = [(kind, number) for number, kind in coordinator.kafka.requests]
        found = {type(request): number for request, number in sent}
        if version == 1:
            assert (found[AddPartitionsToTxnRequest], found[AddOffsetsToTxnRequest]) == (3, 4)
            assert (found[ProduceRequest], found[TxnOffsetCommitRequest], found[EndTxnRequest]) == (11, 4, 4)
        else:
            assert not {AddPartitionsToTxnRequest, AddOffsetsToTxnRequest} & found.keys()
            assert (found[ProduceRequest], found[TxnOffsetCommitRequest], found[EndTxnRequest]) == (13, 5, 5)
        commit = next(request for request, _ in sent if isinstance(request, TxnOffsetCommitRequest))
        assert (commit.generation_id, commit.member_id) == (3, "member")
        assert coordinator.offsets == {("g", TP): 5}
        assert coordinator.kafka.count(EndTxnRequest) == 1


async def test_an_empty_transaction_asks_nothing(version: int) -> None:
    async with transacting(version, begun=False) as (coordinator, producer):
        async with producer.transaction():
            await producer.send_offsets_to_transaction({}, GROUP)
        await producer.begin_transaction()
        await producer.abort_transaction()
        assert coordinator.kafka.count(EndTxnRequest) == 0


async def test_calls_that_do_not_fit_the_state(version: int) -> None:
    async with FakeKafka() as kafka:
        FakeTransactions(kafka, version)
        async with producing(kafka, transactional_id="id") as producer:
            for call in (producer.begin_transaction, producer.commit_transaction, producer.abort_transaction):
                with pytest.raises(IllegalStateError, match="init_transactions"):
                    await call()
            with pytest.raises(IllegalStateError, match="init_transactions"):
                await producer.send("t", b"x")
            await producer.init_transactions()
            with pytest.raises(IllegalStateError, match="init_transactions is not possible"):
                await producer.init_transactions()
            for call in (producer.commit_transaction, producer.abort_transaction):
                with pytest.raises(IllegalStateError, match="begin_transaction"):
                    await call()
            with pytest.raises(IllegalStateError, match="begin_transaction"):
                await producer.send_offsets_to_transaction({TP: 1}, GROUP)
            with pytest.raises(IllegalStateError, match="begin_transaction"):
                await producer.send_batch("t", [b"x"])
            assert len(await producer.partitions_for("t")) == 1
            await producer.begin_transaction()
            with pytest.raises(IllegalStateError, match="commit or abort"):
                await producer.begin_transaction()
            await producer.abort_transaction()
        with pytest.raises(ClosedError):
            await producer.begin_transaction()


async def test_without_a_transactional_id() -> None:
    async with FakeKafka() as kafka, producing(kafka) as producer:
        with pytest.raises(IllegalStateError, match=r"transactional\.id"):
            await producer.init_transactions()


async def test_the_time_that_calls_took(version: int) -> None:
    """KIP-761: in nanoseconds, of those that were successful."""

    def times(producer: Producer) -> list[float]:
        return [producer.metrics().value(f"txn-{name}-time-ns-total") for name in ("init", "commit", "abort")]

    async with transacting(version, begun=False) as (_, producer):
        initialized, *others = times(producer)
        assert initialized > 1000, "a request and its answer"
        assert others == [0, 0]
        with pytest.raises(IllegalStateError):
            await producer.commit_transaction()
        await producer.begin_transaction()
        await producer.send("t", b"a")
        await producer.commit_transaction()
        await producer.begin_transaction()
        _, committed, aborted = times(producer)
        assert committed > 1000
        assert aborted == 0
        await producer.send("t", b"b")
        await producer.abort_transaction()
        assert times(producer)[:2] == [initialized, committed]
        assert times(producer)[2] > 1000
        assert producer.metrics().value("txn-begin-time-ns-total") > 0
        assert producer.metrics().value("txn-send-offsets-time-ns-total") == 0


@pytest.mark.parametrize(
    ("offsets", "group", "error"),
    [
        ({TP: -1}, GROUP, ValueError),
        ({TP: "1"}, GROUP, TypeError),
        ([TP], GROUP, TypeError),
        ({TP: 1}, "g", TypeError),
        ({TP: 1}, ConsumerGroupMetadata(""), ValueError),
        ({TP: 1}, ConsumerGroupMetadata("g", 1), ValueError),
    ],
)
async def test_arguments_of_send_offsets(offsets: Any, group: Any, error: type[Exception]) -> None:
    async with transacting(2) as (_, producer):
        with pytest.raises(error):
            await producer.send_offsets_to_transaction(offsets, group)
        await producer.commit_transaction()


@pytest.mark.parametrize("key", [ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN])
@pytest.mark.parametrize(
    "trouble",
    [
        Trouble(code=ErrorCode.NOT_COORDINATOR),
        Trouble(code=ErrorCode.COORDINATOR_NOT_AVAILABLE),
        Trouble(code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        Trouble(code=ErrorCode.CONCURRENT_TRANSACTIONS),
        Trouble(drop=True),
    ],
    ids=lambda trouble: "no answer" if trouble.drop else ErrorCode(trouble.code).name,
)
async def test_what_passes_is_asked_again(version: int, key: ApiKey, trouble: Trouble) -> None:
    async with transacting(version) as (coordinator, producer):
        coordinator.trouble[key] += [trouble, trouble]
        await producer.send("t", b"x")
        await producer.send_offsets_to_transaction({TP: 5}, GROUP)
        await producer.commit_transaction()
        async with producer.transaction():
            await producer.send("t", b"y")
        assert coordinator.visible() == [b"x", b"y"]
        assert coordinator.offsets == {("g", TP): 5}


@pytest.mark.parametrize("key", [ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN])
@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
async def test_fenced(version: int, key: ApiKey, code: ErrorCode) -> None:
    async with FakeKafka() as kafka:
        coordinator = FakeTransactions(kafka, version)
        async with producing(kafka, transactional_id="id") as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            await producer.send("t", b"x")
            coordinator.trouble[key].append(Trouble(code=code))
            coordinator.trouble[ApiKey.END_TXN].append(Trouble(code=code))
            with pytest.raises(ProducerFencedError):
                await producer.send_offsets_to_transaction({TP: 5}, GROUP)
                await producer.commit_transaction()
            for call in (producer.begin_transaction, producer.commit_transaction, producer.abort_transaction):
                with pytest.raises(ProducerFencedError):
                    await call()
            with pytest.raises(ProducerFencedError):
                await producer.send("t", b"x")
    assert coordinator.visible() == []


async def test_a_second_producer(version: int) -> None:
    async with transacting(version) as (coordinator, first):
        await (await first.send("t", b"zombie"))
        async with producing(coordinator.kafka, transactional_id="id") as second:
            await second.init_transactions()
            await first.send("t", b"zombie")
            with pytest.raises(KafkaError):
                await first.commit_transaction()
            async with second.transaction():
                await second.send("t", b"second")
            assert coordinator.visible() == [b"second"]


async def test_a_time_out_that_is_more_than_brokers_allow() -> None:
    async with FakeKafka() as kafka:
        coordinator = FakeTransactions(kafka, 2)
        coordinator.trouble[ApiKey.INIT_PRODUCER_ID].append(Trouble(code=ErrorCode.INVALID_TRANSACTION_TIMEOUT))
        async with producing(kafka, transactional_id="id") as producer:
            with pytest.raises(InvalidTxnTimeoutError, match=r"transaction\.max\.timeout\.ms"):
                await producer.init_transactions()
            with pytest.raises(InvalidTxnTimeoutError):
                await producer.begin_transaction()


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.INVALID_RECORD,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTION_ABORTABLE,
    ],
)
async def test_a_batch_that_is_refused_makes_it_abortable(version: int, code: ErrorCode) -> None:
    """Nobody looks at deliveries; afterwards the sequences begin anew under another epoch."""
    async with transacting(version, begun=False) as (coordinator, producer):
        async with producer.transaction():
            await producer.send("t", b"a")
        before = coordinator.transactions["id"].epoch
        coordinator.kafka.faults.append(Fault(code=code, log_start_offset=0))
        await producer.begin_transaction()
        await producer.send("t", b"b")
        with pytest.raises(TransactionAbortableError) as caught:
            await producer.commit_transaction()
        assert caught.value.__cause__ is not None or code is ErrorCode.TRANSACTION_ABORTABLE
        with pytest.raises(TransactionAbortableError):
            await producer.send("t", b"c")
        with pytest.raises(TransactionAbortableError):
            await producer.begin_transaction()
        await producer.abort_transaction()
        await producer.flush()
        assert coordinator.transactions["id"].epoch == before + 1
        async with producer.transaction():
            await producer.send("t", b"d")
        assert coordinator.visible() == [b"a", b"d"]


async def test_the_context_aborts_what_cannot_be_committed(version: int) -> None:
    async with transacting(version, begun=False) as (coordinator, producer):
        coordinator.kafka.faults.append(Fault(code=ErrorCode.INVALID_RECORD))
        with pytest.raises(TransactionAbortableError):
            async with producer.transaction():
                await producer.send("t", b"bad")
        async with producer.transaction() as same:
            assert same is producer
            await producer.send("t", b"good")
        assert coordinator.visible() == [b"good"]


async def test_a_topic_that_must_not_be_written() -> None:
    async with transacting(1) as (coordinator, producer):
        coordinator.trouble[ApiKey.ADD_PARTITIONS_TO_TXN].append(Trouble(code=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        delivery = await producer.send("t", b"x")
        with pytest.raises(TransactionAbortableError, match="t-0") as caught:
            await producer.commit_transaction()
        assert isinstance(caught.value.__cause__, TopicAuthorizationError)
        with pytest.raises(TransactionAbortedError):
            await delivery
        await producer.abort_transaction()
        assert coordinator.kafka.count(EndTxnRequest) == 0, "the coordinator knows of nothing"
        async with producer.transaction():
            await producer.send("t", b"y")
        assert coordinator.visible() == [b"y"]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ErrorCode.ILLEGAL_GENERATION, CommitFailedError),
        (ErrorCode.UNKNOWN_MEMBER_ID, CommitFailedError),
        (ErrorCode.FENCED_INSTANCE_ID, CommitFailedError),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, GroupAuthorizationError),
    ],
)
async def test_offsets_that_the_group_refuses(version: int, code: ErrorCode, error: type[KafkaError]) -> None:
    async with transacting(version) as (coordinator, producer):
        coordinator.trouble[ApiKey.TXN_OFFSET_COMMIT].append(Trouble(code=code))
        await producer.send("t", b"x")
        with pytest.raises(error):
            await producer.send_offsets_to_transaction({TP: 5}, GROUP)
        with pytest.raises(TransactionAbortableError):
            await producer.commit_transaction()
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send_offsets_to_transaction({TP: 6}, GROUP)
        assert coordinator.offsets == {("g", TP): 6}
        assert coordinator.visible() == []


async def test_an_abort_does_not_send_what_has_not_left(version: int) -> None:
    async with transacting(version, linger_ms=60_000, delivery_timeout_ms=100_000) as (coordinator, producer):
        delivery = await producer.send("t", b"x")
        await producer.abort_transaction()
        with pytest.raises(TransactionAbortedError):
            await delivery
        assert coordinator.kafka.count(ProduceRequest) == 0
        assert producer.metrics().value("buffer-available-bytes") == 33554432


async def test_an_abort_while_a_batch_waits_for_its_retry(version: int) -> None:
    settings = {"retry_backoff_ms": 60_000, "retry_backoff_max_ms": 60_000}
    async with transacting(version, **settings) as (coordinator, producer):
        coordinator.kafka.faults.append(Fault(code=ErrorCode.NOT_ENOUGH_REPLICAS))
        delivery = await producer.send("t", b"x")
        with anyio.fail_after(10):
            while producer.metrics().value("record-retry-total") < 1:
                await anyio.sleep(0.001)
            await producer.abort_transaction()
        with pytest.raises(TransactionAbortedError):
            await delivery
        async with producer.transaction():
            await producer.send("t", b"y")
        assert coordinator.visible() == [b"y"]


async def test_closing_amid_a_transaction_aborts_it(version: int, caplog: pytest.LogCaptureFixture) -> None:
    async with transacting(version) as (coordinator, producer):
        await (await producer.send("t", b"x"))
    assert coordinator.visible() == []
    assert "amid a transaction of 'id'" in caplog.text


async def test_a_commit_that_takes_longer_than_max_block_ms(version: int) -> None:
    async with transacting(version, max_block_ms=50) as (coordinator, producer):
        hold = anyio.Event()
        await producer.send("t", b"x")
        coordinator.trouble[ApiKey.END_TXN].append(Trouble(hold=hold))
        with pytest.raises(KafkaTimeoutError, match="call commit_transaction again"):
            await producer.commit_transaction()
        for call in (producer.begin_transaction, producer.abort_transaction):
            with pytest.raises(IllegalStateError, match="commit_transaction"):
                await call()
        with pytest.raises(IllegalStateError, match="commit_transaction"):
            await producer.send("t", b"y")
        hold.set()
        await insist(producer.commit_transaction)
        assert coordinator.visible() == [b"x"]
        assert coordinator.kafka.count(EndTxnRequest) == 1
        await producer.begin_transaction()
        await producer.abort_transaction()


async def test_a_commit_whose_outcome_nobody_was_told_of(version: int) -> None:
    async with transacting(version, max_block_ms=50) as (coordinator, producer):
        hold = anyio.Event()
        delivery = await producer.send("t", b"x")
        coordinator.trouble[ApiKey.END_TXN].append(Trouble(hold=hold))
        with pytest.raises(KafkaTimeoutError):
            await producer.commit_transaction()
        hold.set()
        await delivery
        with anyio.fail_after(10):
            while True:
                try:
                    await producer.begin_transaction()
                except IllegalStateError as error:
                    if "nobody was told so" in str(error):
                        break
                await anyio.sleep(0.001)
        await producer.commit_transaction()
        async with producer.transaction():
            pass


async def test_an_abort_while_the_coordinator_is_asked_to_add_a_partition() -> None:
    """A request without an answer may have added it: the abort asks again, and then ends the transaction."""
    async with transacting(1) as (coordinator, producer):
        coordinator.trouble[ApiKey.ADD_PARTITIONS_TO_TXN].append(Trouble(drop=True))
        await producer.send("t", b"x")
        with anyio.fail_after(10):
            while not coordinator.kafka.count(AddPartitionsToTxnRequest):
                await anyio.sleep(0)
            await producer.abort_transaction()
        assert coordinator.kafka.count(EndTxnRequest) == 1
        assert coordinator.visible() == []


async def test_the_cluster_is_upgraded_under_the_producer() -> None:
    """The epoch is bumped in between, so that nothing of the former generation joins what follows."""
    async with transacting(1, begun=False) as (coordinator, producer):
        async with producer.transaction():
            await producer.send("t", b"a")
        coordinator.version = 2
        coordinator.kafka.brokers[1].hang_up()
        async with producer.transaction():
            await producer.send("t", b"b")
        assert coordinator.kafka.count(InitProducerIdRequest) == 2
        async with producer.transaction():
            await producer.send("t", b"c")
        assert coordinator.visible() == [b"a", b"b", b"c"]
        assert coordinator.kafka.count(AddPartitionsToTxnRequest) == 2


async def test_a_coordinator_that_moves(version: int) -> None:
    async with FakeKafka({"t": 2}, brokers=2) as kafka:
        coordinator = FakeTransactions(kafka, version)
        async with producing(kafka, transactional_id="id") as producer:
            await producer.init_transactions()
            for number in range(4):
                kafka.controller = 1 + number % 2
                coordinator.trouble[ApiKey.END_TXN].append(Trouble(code=ErrorCode.NOT_COORDINATOR))
                async with producer.transaction():
                    await producer.send("t", b"%d" % number, partition=number % 2)
        assert coordinator.visible("t", 0) == [b"0", b"2"]
        assert coordinator.visible("t", 1) == [b"1", b"3"]


async def test_many_batches_in_one_transaction(version: int) -> None:
    async with transacting(version, partitions=2, begun=False, batch_size=200) as (coordinator, producer):
        values = [b"%04d" % number for number in range(500)]
        for _ in range(2):
            async with producer.transaction():
                await producer.send_batch("t", values, partition=0)
                await producer.send_batch("t", values, keys=values)
        found = coordinator.visible("t", 0) + coordinator.visible("t", 1)
        assert sorted(found) == sorted(values * 4)


@pytest.mark.parametrize("way", ["send", "send_batch"])
async def test_a_record_that_waits_joins_no_later_transaction(version: int, way: str) -> None:
    """It waits for room in the buffer while another task aborts, and begins anew."""
    async with transacting(version, buffer_memory=1000, batch_size=1000, linger_ms=60_000) as (coordinator, producer):
        hold = anyio.Event()
        coordinator.kafka.faults += [Fault(hold=hold)]
        outcome: list[BaseException] = []

        async def late() -> None:
            try:
                if way == "send":
                    await producer.send("t", b"late" * 100)
                else:
                    await producer.send_batch("t", [b"late" * 100] * 3)
            except KafkaError as error:
                outcome.append(error)

        await producer.send("t", b"x" * 700)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(late)
            with anyio.fail_after(10):
                while not producer.metrics().value("waiting-threads"):
                    await anyio.sleep(0.001)
            hold.set()
            await producer.abort_transaction()
            await producer.begin_transaction()
        assert [type(error) for error in outcome] in ([TransactionAbortedError], [IllegalStateError])
        await producer.commit_transaction()
        assert coordinator.visible() == []


async def test_offsets_of_two_calls_in_a_row(version: int) -> None:
    async with transacting(version) as (coordinator, producer):
        async with anyio.create_task_group() as tasks:
            coordinator.trouble[ApiKey.TXN_OFFSET_COMMIT].append(Trouble(code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            for offset in range(1, 4):
                tasks.start_soon(producer.send_offsets_to_transaction, {TP: offset}, GROUP)
                await anyio.sleep(0)
        await producer.commit_transaction()
        assert coordinator.offsets == {("g", TP): 3}
