"""The machine of transactions, with the sender in simulated time: what may leave when, and under which numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.errors import (
    ApplicationRecoverableError,
    ErrorCode,
    IllegalStateError,
    InvalidConfigurationError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionAbortedError,
    error_for,
)
from kclient.producer.batch import ProducerBatch
from kclient.producer.producer_id import NO_PRODUCER_ID, ProducerIdAndEpoch
from kclient.producer.sender import InFlight
from kclient.producer.states import TransactionState
from kclient.producer.transaction_errors import ERROR_TABLE, FATAL, ErrorKind, TransactionRequest, error_of, kind_of
from kclient.producer.transactions import V1, V2, TransactionManager
from kclient.records import read_header
from kclient.types import TopicPartition
from tests.unit.producer.parts import Parts, only

TP = TopicPartition("t", 0)


class Transacting(Parts):
    """Parts with an id, and what the coordinator answers."""

    def __init__(self, version: int, leaders: int = 2) -> None:
        super().__init__(leaders, transactional=True)
        assert self.transactions is not None
        self.manager: TransactionManager = self.transactions
        self.version = version
        self.epoch = 0
        self.manager.init()
        self.manager.initialized(7, 0, version)

    def add(self) -> list[TopicPartition]:
        """The coordinator adds what it is asked to."""
        found = self.manager.take_new()
        if found:
            self.manager.added(found)
        return found

    def leave(self) -> list[InFlight]:
        """What leaves once its partitions are added."""
        if self.version == V1:
            self.poll()
            self.add()
        return self.requests()

    def end(self) -> None:
        """The coordinator ends the transaction, and bumps the epoch if that is wanted."""
        following = NO_PRODUCER_ID
        if self.version == V2 and self.manager.started:
            self.epoch += 1
            following = ProducerIdAndEpoch(7, self.epoch)
        if self.manager.ended(following, version=self.version, can_bump=True):
            self.epoch += 1
            self.manager.initialized(7, self.epoch, self.version)


def test_with_version_1_a_partition_is_added_before_its_first_batch() -> None:
    parts = Transacting(V1)
    parts.manager.begin()
    parts.send(b"a", partition=0)
    parts.send(b"b", partition=1)
    actions = parts.poll()
    assert actions.requests == []
    assert actions.add_partitions
    assert set(parts.manager.take_new()) == {TP, TopicPartition("t", 1)}
    actions = parts.poll()
    assert (actions.requests, actions.add_partitions) == ([], False), "they are being added"
    parts.manager.added([TP])
    (request,) = parts.requests()
    assert only(request).tp == TP
    assert parts.manager.started


def test_with_version_2_every_batch_may_leave() -> None:
    parts = Transacting(V2)
    parts.manager.begin()
    assert not parts.manager.started
    parts.send(b"a")
    (request,) = parts.requests()
    assert parts.manager.started
    data = only(request).data
    assert data is not None
    header = read_header(data)
    assert (header.is_transactional, header.producer_id, header.base_sequence) == (True, 7, 0)


@pytest.mark.parametrize(("version", "numbers"), [(V1, [(0, 0), (0, 1)]), (V2, [(0, 0), (1, 0)])])
def test_epochs_and_sequences_after_a_commit(version: int, numbers: list[tuple[int, int]]) -> None:
    parts = Transacting(version)
    found = []
    for _ in range(2):
        parts.manager.begin()
        parts.send(b"a")
        (request,) = parts.leave()
        found.append((only(request).producer_epoch, only(request).base_sequence))
        parts.manager.commit()
        parts.answer(request)
        parts.end()
    assert found == numbers


@pytest.mark.parametrize("version", [V1, V2])
def test_a_failed_batch_is_followed_by_another_epoch(version: int) -> None:
    parts = Transacting(version)
    parts.manager.begin()
    parts.send(b"a")
    (request,) = parts.leave()
    parts.answer(request, ErrorCode.INVALID_RECORD)
    assert parts.manager.state is TransactionState.ABORTABLE_ERROR
    with pytest.raises(TransactionAbortableError):
        parts.manager.commit()
    parts.manager.abort()
    parts.end()
    assert parts.manager.state is TransactionState.READY
    assert parts.manager.identity == (7, 1)
    parts.manager.begin()
    parts.send(b"b")
    (request,) = parts.leave()
    assert (only(request).producer_epoch, only(request).base_sequence) == (1, 0)


def test_a_coordinator_that_cannot_bump_goes_on_where_nothing_is_missing() -> None:
    parts = Transacting(V1)
    parts.manager.begin()
    parts.manager.fail(error_for(ErrorCode.GROUP_AUTHORIZATION_FAILED))
    parts.manager.abort()
    assert not parts.manager.ended(version=V1, can_bump=False)
    assert parts.manager.identity == (7, 0)


def test_one_that_cannot_bump_is_asked_all_the_same_where_a_batch_is_missing() -> None:
    parts = Transacting(V1)
    parts.manager.begin()
    parts.send(b"a")
    (request,) = parts.leave()
    parts.answer(request, ErrorCode.INVALID_RECORD)
    parts.manager.abort()
    assert parts.manager.ended(version=V1, can_bump=False), "the request for it says why the producer cannot go on"


def test_an_abort_needs_no_other_epoch_for_what_never_left() -> None:
    """To ask for one is dangerous while brokers die: the next coordinator does not know the former."""
    parts = Transacting(V1)
    parts.manager.begin()
    parts.send(b"a", partition=0)
    (request,) = parts.leave()
    second = parts.send(b"b", partition=0)
    parts.manager.abort()
    parts.poll()
    assert isinstance(second.batch.error, TransactionAbortedError)
    parts.answer(request)
    assert not parts.manager.ended(version=V1, can_bump=True)
    parts.manager.begin()
    parts.send(b"c", partition=0)
    (request,) = parts.leave()
    assert (only(request).producer_epoch, only(request).base_sequence) == (0, 1)


@pytest.mark.parametrize("version", [V1, V2])
def test_an_abort_gives_up_what_waits(version: int) -> None:
    parts = Transacting(version)
    parts.manager.begin()
    first = parts.send(b"a", partition=0)
    (request,) = parts.leave()
    second = parts.send(b"b", partition=0)
    parts.manager.abort()
    assert parts.poll().requests == []
    assert isinstance(second.batch.error, TransactionAbortedError)
    assert not first.batch.done, "its answer is waited for"
    parts.sender.on_failure(request, error_for(ErrorCode.NETWORK_EXCEPTION), parts.now)
    parts.poll()
    assert isinstance(first.batch.error, TransactionAbortedError)
    parts.end()
    assert parts.manager.identity == (7, 1), "nobody knows whether the leader has it"


@pytest.mark.parametrize("version", [V1, V2])
def test_a_topic_that_was_made_anew(version: int) -> None:
    parts = Transacting(version)
    parts.manager.begin()
    parts.send(b"a")
    (request,) = parts.leave()
    parts.answer(request)
    parts.lead(2)
    parts.poll()
    parts.lead(2, topic_id=b"u" * 16)
    parts.poll()
    with pytest.raises(TransactionAbortableError, match="created again"):
        parts.manager.commit()


def test_fenced() -> None:
    parts = Transacting(V2)
    parts.manager.begin()
    delivery = parts.send(b"a")
    (request,) = parts.requests()
    parts.answer(request, ErrorCode.PRODUCER_FENCED)
    assert parts.manager.state is TransactionState.FATAL_ERROR
    assert isinstance(delivery.batch.error, ProducerFencedError)
    parts.poll()
    for call in (parts.manager.begin, parts.manager.commit, parts.manager.abort, parts.manager.init):
        with pytest.raises(ProducerFencedError):
            call()
    with pytest.raises(ProducerFencedError):
        parts.send(b"b")


def test_every_code_of_the_table_becomes_an_error_of_its_kind() -> None:
    """KIP-1050: the class of the exception tells what to do."""
    for request, row in ERROR_TABLE.items():
        for code, kind in row.items():
            error = error_of(request, code, "id", "t-0")
            assert kind_of(request, error) is kind
            if kind is ErrorKind.APPLICATION_RECOVERABLE and code != ErrorCode.TRANSACTION_ABORTABLE:
                assert isinstance(error, ApplicationRecoverableError)
            if kind is ErrorKind.INVALID_CONFIGURATION and code != ErrorCode.INVALID_TXN_STATE:
                assert isinstance(error, InvalidConfigurationError)
            if kind is ErrorKind.RETRIABLE:
                assert error.retriable


@pytest.mark.parametrize(
    "request_kind", [kind for kind in TransactionRequest if kind is not TransactionRequest.PRODUCE]
)
def test_coordinators_that_move_are_looked_up_again(request_kind: TransactionRequest) -> None:
    for code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
        assert kind_of(request_kind, error_for(code)) is ErrorKind.REFRESH_RETRIABLE
    assert kind_of(request_kind, error_for(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)) in FATAL


STEPS = (
    "begin",
    "send",
    "send",
    "poll",
    "poll",
    "add",
    "answer",
    "answer",
    "refuse",
    "lose",
    "later",
    "commit",
    "abort",
)


@given(version=st.sampled_from([V1, V2]), steps=st.lists(st.sampled_from(STEPS), max_size=60), data=st.data())
def test_whatever_happens(version: int, steps: list[str], data: st.DataObject) -> None:
    """Batches leave amid transactions only, of partitions that belong to them, numbered without gaps in each epoch; a
    transaction is committed only if everything in it was acknowledged."""
    parts = Transacting(version)
    manager = parts.manager
    flying: list[InFlight] = []
    sent: dict[tuple[int, int], list[ProducerBatch]] = {}
    held: list[ProducerBatch] = []
    added: set[TopicPartition] = set()

    def ended() -> None:
        """What the driver does: when all is through, it ends the transaction."""
        if manager.state not in {TransactionState.COMMITTING, TransactionState.ABORTING}:
            return
        if parts.buffer.incomplete:
            return
        if manager.state is TransactionState.COMMITTING:
            assert all(batch.error is None for batch in held)
        manager.not_added()
        parts.end()
        held.clear()
        added.clear()

    for step in steps:
        event = {"begin": manager.begin, "commit": manager.commit, "abort": manager.abort}.get(step)
        try:
            if event is not None:
                event()
            elif step == "send" and manager.refusal() is None:
                held.append(parts.send(b"x" * 300, partition=data.draw(st.integers(0, 1))).batch)
        except (IllegalStateError, KafkaError):
            pass
        if step == "add":
            added |= set(parts.add())
        elif step == "later":
            parts.now += 1
        elif step == "poll":
            for request in parts.requests():
                assert manager.state in {TransactionState.IN_TRANSACTION, TransactionState.COMMITTING}
                flying.append(request)
                for batch in request.batches.values():
                    assert version == V2 or batch.tp in added
                    numbered = sent.setdefault((batch.producer_epoch, batch.tp.partition), [])
                    if batch not in numbered:
                        last = numbered[-1] if numbered else None
                        assert batch.base_sequence == (0 if last is None else last.last_sequence + 1)
                        numbered.append(batch)
        elif flying and step in {"answer", "refuse", "lose"}:
            request = flying.pop(0)
            if step == "lose":
                parts.sender.on_failure(request, error_for(ErrorCode.NETWORK_EXCEPTION), parts.now)
            else:
                parts.answer(request, ErrorCode.INVALID_RECORD if step == "refuse" else 0)
        ended()
    assert manager.state is not TransactionState.FATAL_ERROR


@pytest.mark.parametrize("state", [state for state in TransactionState if state is not TransactionState.IN_TRANSACTION])
def test_other_threads_may_ask_at_any_moment(state: TransactionState) -> None:
    """A thread may have read the state just before, and the error just after an abort."""
    manager = Transacting(V1).manager
    manager.state = state
    assert isinstance(manager.refusal(), IllegalStateError)
