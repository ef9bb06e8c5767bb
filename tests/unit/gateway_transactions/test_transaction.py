"""The state machine of a transactional id, and its row: without I/O or clock."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kclient.errors import (
    ConcurrentTransactionsError,
    InvalidPidMappingError,
    InvalidTxnStateError,
    KafkaError,
    ProducerFencedError,
)
from kclient.gateway.partition_id import PartitionId
from kclient.gateway.rows.transactions import decode_transaction, encode_transaction
from kclient.gateway.transaction import LAST_EPOCH, ProducerIdentity, Transaction
from kclient.gateway.transaction_states import CoordinatedState as S

NOW, TIMEOUT = 1_000_000, 60_000
P = PartitionId(bytes(16), 0)


def begun(version: int = 2, epoch: int | None = None) -> tuple[Transaction, ProducerIdentity]:
    """An open transaction, and whose it is."""
    found = Transaction.new("x", 7, TIMEOUT, NOW).initialized(None, TIMEOUT, NOW)
    if epoch is not None:
        found = replace(found, producer=ProducerIdentity(7, epoch))
    return found.joined(found.producer, [P], ["g"], version=version, now_ms=NOW), found.producer


def test_a_producer_gets_the_next_epoch_each_time() -> None:
    found = Transaction.new("x", 7, TIMEOUT, NOW)
    for epoch in range(3):
        found = found.initialized(None, TIMEOUT, NOW)
        assert found.producer == (7, epoch)
        assert found.last is None, "who was there before is a zombie"


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_of_version_1_leaves_the_identity_and_one_of_version_2_gives_the_next(commit: bool) -> None:
    for version, marker in (1, (7, 0)), (2, (7, 1)):
        found, producer = begun(version)
        ends = found.ended(producer, commit=commit, version=version, now_ms=NOW)
        assert ends.marker == ends.producer == marker
        assert ends.state is (S.PREPARE_COMMIT if commit else S.PREPARE_ABORT)
        done = ends.completed(NOW)
        assert done.state is (S.COMPLETE_COMMIT if commit else S.COMPLETE_ABORT)
        assert not done.partitions
        assert not done.groups


@pytest.mark.parametrize("version", [1, 2])
def test_an_end_that_is_asked_for_again_changes_nothing(version: int) -> None:
    found, producer = begun(version)
    ends = found.ended(producer, commit=True, version=version, now_ms=NOW)
    for each in ends, ends.completed(NOW):
        assert each.ended(producer, commit=True, version=version, now_ms=NOW) is each
        with pytest.raises(InvalidTxnStateError, match="opposite"):
            each.ended(producer, commit=False, version=version, now_ms=NOW)


def test_with_version_2_a_delayed_end_decides_no_later_transaction() -> None:
    """KAFKA-17754; with version 1 it does, as in Kafka."""
    found, producer = begun()
    done = found.ended(producer, commit=True, version=2, now_ms=NOW).completed(NOW)
    later = done.joined(done.producer, [P], [], version=2, now_ms=NOW)
    with pytest.raises(ProducerFencedError):
        later.ended(producer, commit=True, version=2, now_ms=NOW)
    found, producer = begun(1)
    done = found.ended(producer, commit=True, version=1, now_ms=NOW).completed(NOW)
    later = done.joined(done.producer, [P], [], version=1, now_ms=NOW)
    assert later.ended(producer, commit=True, version=1, now_ms=NOW).state is S.PREPARE_COMMIT


def test_what_is_being_ended_takes_nothing_and_begins_nothing() -> None:
    found, producer = begun()
    ends = found.ended(producer, commit=True, version=2, now_ms=NOW)
    with pytest.raises(ConcurrentTransactionsError):
        ends.joined(ends.producer, [P], [], version=2, now_ms=NOW)
    with pytest.raises(ConcurrentTransactionsError):
        ends.verify(ends.producer, [P])
    with pytest.raises(ConcurrentTransactionsError):
        ends.initialized(None, TIMEOUT, NOW)
    with pytest.raises(ConcurrentTransactionsError):
        ends.ended(ends.producer, commit=False, version=2, now_ms=NOW)


def test_others_are_refused() -> None:
    found, (producer_id, epoch) = begun()
    for other in ProducerIdentity(producer_id, epoch - 1), ProducerIdentity(producer_id, epoch + 1):
        with pytest.raises(ProducerFencedError):
            found.joined(other, [P], [], version=2, now_ms=NOW)
        with pytest.raises(ProducerFencedError):
            found.ended(other, commit=True, version=2, now_ms=NOW)
        with pytest.raises(ProducerFencedError):
            found.initialized(other, TIMEOUT, NOW)
    stranger = ProducerIdentity(producer_id + 1, epoch)
    with pytest.raises(InvalidPidMappingError):
        found.verify(stranger, [P])
    with pytest.raises(ProducerFencedError):
        found.initialized(stranger, TIMEOUT, NOW)


def test_a_producer_that_comes_aborts_what_is_open_and_fences_who_was_there() -> None:
    found, producer = begun()
    ends = found.initialized(None, TIMEOUT, NOW)
    assert (ends.state, ends.marker, ends.last) == (S.PREPARE_ABORT, (7, 1), None)
    with pytest.raises(ProducerFencedError):
        ends.ended(producer, commit=False, version=2, now_ms=NOW)
    assert ends.completed(NOW).initialized(None, TIMEOUT, NOW).producer == (7, 2)


def test_whose_time_is_over_learns_the_next_identity_by_its_abort() -> None:
    found, producer = begun()
    assert not found.timed_out(NOW + TIMEOUT - 1)
    assert found.timed_out(NOW + TIMEOUT)
    done = found.fenced(NOW, recoverable=True).completed(NOW)
    with pytest.raises(InvalidTxnStateError):
        done.ended(producer, commit=True, version=2, now_ms=NOW)
    assert done.ended(producer, commit=False, version=2, now_ms=NOW).producer == (7, 1)
    assert done.initialized(producer, TIMEOUT, NOW).producer == (7, 1)


def test_a_producer_that_recovers_may_ask_again() -> None:
    """KIP-360: the answer may have been lost."""
    found = Transaction.new("x", 7, TIMEOUT, NOW).initialized(None, TIMEOUT, NOW)
    producer = found.producer
    bumped = found.initialized(producer, TIMEOUT, NOW)
    assert bumped.producer == (7, 1)
    assert bumped.initialized(producer, TIMEOUT, NOW).producer == (7, 1)
    going = bumped.joined(bumped.producer, [P], [], version=1, now_ms=NOW)
    with pytest.raises(ProducerFencedError):
        going.initialized(producer, TIMEOUT, NOW)


def test_an_abort_of_nothing_bumps_with_version_2_and_is_refused_with_version_1() -> None:
    found = Transaction.new("x", 7, TIMEOUT, NOW).initialized(None, TIMEOUT, NOW)
    aborted = found.ended(found.producer, commit=False, version=2, now_ms=NOW)
    assert (aborted.state, aborted.producer) == (S.COMPLETE_ABORT, (7, 1))
    assert aborted.ended(found.producer, commit=False, version=2, now_ms=NOW) is aborted
    for commit, version in (True, 2), (True, 1), (False, 1):
        with pytest.raises(InvalidTxnStateError):
            found.ended(found.producer, commit=commit, version=version, now_ms=NOW)


def test_behind_the_last_epoch_there_is_another_producer_id() -> None:
    found, producer = begun(2, LAST_EPOCH)
    ends = found.ended(producer, commit=True, version=2, now_ms=NOW, fresh_id=9)
    assert (ends.marker, ends.producer, ends.last) == ((7, LAST_EPOCH + 1), (9, 0), producer)
    assert ends.completed(NOW).ended(producer, commit=True, version=2, now_ms=NOW).producer == (9, 0)
    fenced = found.initialized(None, TIMEOUT, NOW, fresh_id=9)
    assert (fenced.marker, fenced.producer) == ((7, LAST_EPOCH + 1), (9, 0))
    idle = Transaction("x", S.EMPTY, producer, TIMEOUT, NOW)
    bumped = idle.initialized(producer, TIMEOUT, NOW, fresh_id=9)
    assert bumped.producer == (9, 0)
    assert bumped.initialized(producer, TIMEOUT, NOW).producer == (9, 0)


def test_only_what_is_idle_is_forgotten() -> None:
    found, producer = begun(1)
    assert not found.expired(NOW + 10, 10)
    ends = found.ended(producer, commit=True, version=1, now_ms=NOW)
    assert not ends.expired(NOW + 10, 10)
    assert ends.completed(NOW).expired(NOW + 10, 10)
    assert not ends.completed(NOW + 1).expired(NOW + 10, 10)


class OfOneId(RuleBasedStateMachine):
    """Producers of both generations, some of them zombies, repeat and delay what they ask for."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = iter(range(100, 10_000))
        self.it = Transaction.new("x", next(self.ids), TIMEOUT, 0)
        self.told: list[ProducerIdentity] = []
        """Every identity that somebody was told, in order."""
        self.markers: dict[int, int] = {}
        """The greatest epoch under which ends were written, by producer id."""
        self.now = 0

    def change(self, new: Transaction) -> None:
        assert decode_transaction(encode_transaction(new), "x") == new
        self.now += 1
        self.it = new

    @rule()
    def begins(self) -> None:
        try:
            new = self.it.initialized(None, TIMEOUT, self.now, next(self.ids))
        except ConcurrentTransactionsError:
            assert self.it.prepared
            return
        self.change(new)
        if not new.prepared:
            assert new.producer not in self.told, "nobody gets an identity twice"
            self.told.append(new.producer)

    @rule(which=st.integers(1, 4))
    def recovers(self, which: int) -> None:
        if len(self.told) < which:
            return
        try:
            new = self.it.initialized(self.told[-which], TIMEOUT, self.now, next(self.ids))
        except (ConcurrentTransactionsError, ProducerFencedError):
            return
        self.change(new)
        if not new.prepared and new.producer != self.told[-1]:
            assert new.producer not in self.told
            self.told.append(new.producer)

    @rule(which=st.integers(1, 4), version=st.sampled_from([1, 2]), partition=st.integers(0, 3))
    def joins(self, which: int, version: int, partition: int) -> None:
        if len(self.told) < which:
            return
        producer = self.told[-which]
        try:
            new = self.it.joined(producer, [PartitionId(bytes(16), partition)], [], version=version, now_ms=self.now)
        except KafkaError:
            assert producer != self.it.producer or self.it.prepared
            return
        assert producer == self.it.producer
        self.change(new)

    @rule(which=st.integers(1, 4), version=st.sampled_from([1, 2]), commit=st.booleans())
    def ends(self, which: int, version: int, commit: bool) -> None:
        if len(self.told) < which:
            return
        producer, before = self.told[-which], self.it
        try:
            new = before.ended(producer, commit=commit, version=version, now_ms=self.now, fresh_id=next(self.ids))
        except KafkaError:
            return
        if new is not before:
            assert producer == before.producer, "what is delayed decides nothing"
            self.change(new)
        else:
            assert before.committed is commit
        if version >= 2 and self.told[-1] != new.producer:
            assert new.producer not in self.told
            self.told.append(new.producer)

    @rule()
    def is_too_slow(self) -> None:
        if self.it.state is S.ONGOING:
            self.change(self.it.fenced(self.now, next(self.ids), recoverable=True))

    @rule()
    def is_completed(self) -> None:
        if self.it.prepared:
            self.change(self.it.completed(self.now))

    @rule()
    def has_had_many(self) -> None:
        if self.it.idle and 0 <= self.it.producer.epoch < LAST_EPOCH - 2:
            self.change(replace(self.it, producer=ProducerIdentity(self.it.producer.producer_id, LAST_EPOCH - 2)))
            self.told.append(self.it.producer)

    @invariant()
    def epochs_only_grow(self) -> None:
        assert self.it.producer.epoch <= LAST_EPOCH
        marker = self.it.marker
        if marker is not None:
            assert marker.epoch >= self.markers.get(marker.producer_id, -1)
            self.markers[marker.producer_id] = marker.epoch
            if marker.producer_id == self.it.producer.producer_id:
                assert marker == self.it.producer


TestOfOneId = OfOneId.TestCase


@given(st.binary(max_size=60))
def test_what_is_no_row_is_refused(row: bytes) -> None:
    with pytest.raises(ValueError):
        decode_transaction(row, "x")


def test_a_row_of_another_id_or_state_is_refused() -> None:
    found, producer = begun()
    with pytest.raises(ValueError, match="row of transactional"):
        decode_transaction(encode_transaction(found), "y")
    with pytest.raises(ValueError, match="Ongoing"):
        decode_transaction(encode_transaction(replace(found, marker=producer)), "x")
