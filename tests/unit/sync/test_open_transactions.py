"""Transactions that one producer writes and another one ends, at a gateway in memory, in both generations."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from kclient import ConfigResource, ConfigResourceType
from kclient.admin import FeatureUpdate, UpgradeType
from kclient.errors import (
    IllegalStateError,
    InvalidTxnStateError,
    KafkaTimeoutError,
    ProducerFencedError,
    TransactionAbortableError,
)
from kclient.sync import Admin, Consumer, Gateway, Producer
from kclient.sync.open_transactions import OpenTransaction, TransactionOffsets, abort_open, commit_open, hand_over
from kclient.types import OffsetAndMetadata, TopicPartition

PATIENCE_S = 10.0


@dataclass(frozen=True)
class Place:
    """A gateway, and a topic of one partition that is a test's own; ids and groups are called like it."""

    address: str
    topic: str

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, 0)

    def producer(self, **settings: int) -> Producer:
        return Producer(bootstrap_servers=self.address, transactional_id=self.topic, **settings)

    def written(self, value: bytes = b"x", transactional_id: str | None = None) -> OpenTransaction:
        """A transaction whose producer is gone."""
        name = transactional_id or self.topic
        with Producer(bootstrap_servers=self.address, transactional_id=name) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(self.topic, value)
            transaction = hand_over(producer)
        assert transaction is not None
        return transaction

    def offsets(self, number: int) -> TransactionOffsets:
        return TransactionOffsets(self.topic, {self.tp: OffsetAndMetadata(number, "note")})

    def visible(self) -> list[bytes]:
        """What is committed; fails where something is open."""
        with Consumer(
            bootstrap_servers=self.address, enable_auto_commit=False, isolation_level="read_committed"
        ) as consumer:
            consumer.assign([self.tp])
            consumer.seek_to_beginning([self.tp])
            (end,) = consumer.end_offsets([self.tp]).values()
            found = []
            while consumer.position(self.tp) < end:
                found += [record.value for record in consumer.poll(timeout=1.0)]
        with Admin(bootstrap_servers=self.address) as admin:
            assert admin.list_transactions(states=["Ongoing"]) == []
        return found


@pytest.fixture(scope="module", params=[1, 2], ids=["version 1", "version 2"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """A gateway of that generation."""
    address = f"memory:{uuid.uuid4().hex}"
    with Gateway(htp=address, listen=None), Admin(bootstrap_servers=address) as admin:
        if request.param == 1:
            admin.update_features({"transaction.version": FeatureUpdate(1, UpgradeType.SAFE_DOWNGRADE)})
        yield address


@pytest.fixture
def place(address: str, topic: str) -> Place:
    with Admin(bootstrap_servers=address) as admin:
        admin.create_topic(topic, partitions=1)
    return Place(address, topic)


@pytest.fixture
def other(address: str) -> Iterator[Producer]:
    """The producer that ends what others have written."""
    with Producer(bootstrap_servers=address) as producer:
        yield producer


def test_another_producer_commits(place: Place, other: Producer) -> None:
    transaction = place.written()
    with Admin(bootstrap_servers=place.address) as admin:
        assert admin.describe_transactions([place.topic])[place.topic].state == "Ongoing", "closing does not end it"
        assert commit_open(other, [(transaction, place.offsets(5))], timeout=PATIENCE_S) == {}
        assert place.visible() == [b"x"]
        assert admin.list_group_offsets(place.topic, [place.tp], require_stable=True) == {
            place.tp: OffsetAndMetadata(5, "note")
        }


def test_another_producer_aborts(place: Place, other: Producer) -> None:
    assert abort_open(other, [place.written()], timeout=PATIENCE_S) == {}
    assert place.visible() == []


@pytest.mark.slow
def test_many_side_by_side(place: Place, other: Producer) -> None:
    """More than are ended at once; each with offsets of its own group."""
    names = [f"{place.topic}-{number}" for number in range(40)]
    transactions = [place.written(name.encode(), name) for name in names]
    ends = [
        (each, TransactionOffsets(each.transactional_id, {place.tp: OffsetAndMetadata(1)})) for each in transactions
    ]
    assert commit_open(other, ends, timeout=PATIENCE_S) == {}
    assert sorted(place.visible()) == sorted(name.encode() for name in names)


def test_whoever_fences_it_wins(place: Place, other: Producer) -> None:
    transaction = place.written()
    with Admin(bootstrap_servers=place.address) as admin:
        admin.fence_producers([place.topic])
        failed = commit_open(other, [(transaction, place.offsets(5))], timeout=PATIENCE_S)
        assert isinstance(failed[place.topic], ProducerFencedError)
        assert place.visible() == []
        assert admin.list_group_offsets(place.topic) == {}


def test_none_is_committed_where_one_cannot_be(place: Place, other: Producer) -> None:
    names = [f"{place.topic}-{number}" for number in range(3)]
    transactions = [place.written(name.encode(), name) for name in names]
    ends = [(each, place.offsets(5)) for each in transactions]
    with Admin(bootstrap_servers=place.address) as admin:
        admin.fence_producers([names[1]])
        failed = commit_open(other, ends, timeout=PATIENCE_S)
        assert list(failed) == [names[1]]
        assert isinstance(failed[names[1]], ProducerFencedError)
        assert abort_open(other, [transactions[0], transactions[2]], timeout=PATIENCE_S) == {}
        assert place.visible() == []
        assert admin.list_group_offsets(place.topic) == {}


def test_what_is_committed_cannot_be_aborted(place: Place, other: Producer) -> None:
    transaction = place.written()
    assert commit_open(other, [(transaction, place.offsets(5))], timeout=PATIENCE_S) == {}
    failed = abort_open(other, [transaction], timeout=PATIENCE_S)
    assert isinstance(failed[place.topic], InvalidTxnStateError)
    assert place.visible() == [b"x"]


def test_one_that_took_too_long(place: Place, other: Producer) -> None:
    with place.producer(transaction_timeout_ms=100) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(place.topic, b"x")
        transaction = hand_over(producer)
    assert transaction is not None
    with Admin(bootstrap_servers=place.address) as admin:
        while admin.describe_transactions([place.topic])[place.topic].state != "CompleteAbort":
            pass
        failed = commit_open(other, [(transaction, place.offsets(5))], timeout=PATIENCE_S)
        assert isinstance(failed[place.topic], ProducerFencedError)
        assert place.visible() == []
        assert admin.list_group_offsets(place.topic) == {}


def test_the_producer_is_through_with_it(place: Place, other: Producer) -> None:
    with place.producer() as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(place.topic, b"x")
        transaction = hand_over(producer)
        assert transaction is not None
        calls = (producer.commit_transaction, producer.abort_transaction, producer.begin_transaction)
        for call in (*calls, lambda: producer.send(place.topic, b"y"), lambda: hand_over(producer)):
            with pytest.raises(IllegalStateError, match="was handed over"):
                call()
    assert commit_open(other, [(transaction, place.offsets(5))], timeout=PATIENCE_S) == {}
    assert place.visible() == [b"x"]


def test_nothing_was_sent(place: Place) -> None:
    with place.producer() as producer:
        producer.init_transactions()
        producer.begin_transaction()
        assert hand_over(producer) is None


def test_records_that_are_not_there_are_not_handed_over(place: Place) -> None:
    with place.producer() as producer:
        producer.init_transactions()
        producer.begin_transaction()
        with Admin(bootstrap_servers=place.address) as admin:
            admin.alter_configs({ConfigResource(ConfigResourceType.TOPIC, place.topic): {"max.message.bytes": "10"}})
        producer.send(place.topic, b"x" * 1000)
        with pytest.raises(TransactionAbortableError, match="cannot be committed"):
            hand_over(producer)
        producer.abort_transaction()
        with pytest.raises(IllegalStateError, match="begin_transaction"):
            hand_over(producer)
    assert place.visible() == []


def test_a_coordinator_that_does_not_answer() -> None:
    transaction = OpenTransaction("id", 1, 0, 2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        with Producer(bootstrap_servers=f"{host}:{port}") as elsewhere:
            failed = abort_open(elsewhere, [transaction], timeout=0.05)
        assert isinstance(failed["id"], KafkaTimeoutError)
        assert "'id' has not answered within 0.05 s" in str(failed["id"])
