"""Producer id, epoch and sequence numbers: what each error means for them."""

from __future__ import annotations

import pytest

from kclient.errors import (
    ClusterAuthorizationError,
    CoordinatorLoadInProgressError,
    IllegalStateError,
    InvalidRecordError,
    KafkaTimeoutError,
    NotLeaderOrFollowerError,
    OutOfOrderSequenceError,
    UnknownProducerIdError,
)
from kclient.producer.batch import ProducerBatch, increment_sequence, is_later
from kclient.producer.transactions import MAX_EPOCH, State, TransactionManager
from kclient.types import TopicPartition
from tests.unit.producer.parts import batch_of

TP = TopicPartition("t", 0)


@pytest.fixture
def manager() -> TransactionManager:
    made = TransactionManager()
    made.initializing()
    made.initialized(7, 0)
    return made


@pytest.fixture
def known(manager: TransactionManager) -> TransactionManager:
    """The leaders have acknowledged something before."""
    for number in range(2):
        manager.partition(TopicPartition("t", number)).known = True
    return manager


def assigned(manager: TransactionManager, *values: bytes, partition: int = 0) -> ProducerBatch:
    batch = batch_of(*values, partition=partition)
    manager.assign(batch)
    return batch


def stamp(batch: ProducerBatch) -> tuple[int, int, int]:
    return batch.producer_id, batch.producer_epoch, batch.base_sequence


def test_nothing_leaves_before_there_is_an_id() -> None:
    manager = TransactionManager()
    assert manager.needs_producer_id
    assert not manager.may_send(batch_of(b"a"), 1)
    manager.initializing()
    assert not manager.needs_producer_id
    assert not manager.may_send(batch_of(b"a"), 1)
    manager.initialized(7, 3)
    assert manager.may_send(batch_of(b"a"), 1)


def test_an_id_is_asked_for_again_unless_the_error_is_final() -> None:
    manager = TransactionManager()
    manager.initializing()
    manager.initialization_failed(CoordinatorLoadInProgressError())
    assert manager.needs_producer_id
    manager.initializing()
    manager.initialization_failed(ClusterAuthorizationError())
    assert manager.state is State.FATAL_ERROR
    assert isinstance(manager.error, ClusterAuthorizationError)


def test_illegal_moves_raise(manager: TransactionManager) -> None:
    with pytest.raises(IllegalStateError, match="READY -> READY"):
        manager.initialized(1, 1)


def test_sequences_count_records_per_partition(manager: TransactionManager) -> None:
    assert stamp(assigned(manager, b"a", b"b")) == (7, 0, 0)
    assert stamp(assigned(manager, b"c")) == (7, 0, 2)
    assert stamp(assigned(manager, b"d", partition=1)) == (7, 0, 0)
    assert stamp(assigned(manager, b"e")) == (7, 0, 3)


def test_a_retry_keeps_its_sequence(manager: TransactionManager) -> None:
    batch = assigned(manager, b"a")
    assigned(manager, b"b")
    manager.assign(batch)
    assert stamp(batch) == (7, 0, 0)


def test_only_the_first_in_flight_may_be_sent_again(known: TransactionManager) -> None:
    manager = known
    first, second = assigned(manager, b"a"), assigned(manager, b"b")
    assert manager.may_send(first, 1)
    assert not manager.may_send(second, 1)
    manager.completed(first, 0)
    assert manager.may_send(second, 1)


def test_retriable_errors_are_retried_others_not(manager: TransactionManager) -> None:
    batch = assigned(manager, b"a")
    assert manager.may_retry(batch, NotLeaderOrFollowerError(), -1)
    assert not manager.may_retry(batch, InvalidRecordError(), -1)


def test_a_refused_batch_leaves_a_gap_so_the_epoch_is_bumped(manager: TransactionManager) -> None:
    first, second, elsewhere = assigned(manager, b"a"), assigned(manager, b"b"), assigned(manager, b"c", partition=1)
    manager.failed(first, InvalidRecordError(), refused=True)
    manager.bump_if_required()
    assert manager.identity == (7, 1)
    assert stamp(second) == (7, 1, 0), "what is in flight is renumbered"
    assert second.sequence_reset
    assert stamp(elsewhere) == (7, 0, 0), "other partitions finish under the old epoch"


def test_another_partition_takes_the_new_epoch_when_nothing_of_the_old_is_in_flight(
    manager: TransactionManager,
) -> None:
    elsewhere = assigned(manager, b"c", partition=1)
    manager.failed(assigned(manager, b"a"), InvalidRecordError(), refused=True)
    manager.bump_if_required()
    waiting = batch_of(b"d", partition=1)
    assert not manager.may_send(waiting, 1)
    manager.completed(elsewhere, 0)
    assert manager.may_send(waiting, 1)
    manager.assign(waiting)
    assert stamp(waiting) == (7, 1, 0)


def test_out_of_order_behind_an_unacknowledged_batch_is_just_retried(manager: TransactionManager) -> None:
    assigned(manager, b"a")
    second = assigned(manager, b"b")
    assert manager.may_retry(second, OutOfOrderSequenceError(), -1)
    manager.bump_if_required()
    assert manager.identity.epoch == 0


def test_out_of_order_right_after_the_last_acknowledged_is_a_gap(manager: TransactionManager) -> None:
    manager.completed(assigned(manager, b"a"), 0)
    second = assigned(manager, b"b")
    assert manager.may_retry(second, OutOfOrderSequenceError(), -1)
    manager.bump_if_required()
    assert stamp(second) == (7, 1, 0)
    # the answers of those that were on their way with the old numbers
    assert manager.may_retry(second, OutOfOrderSequenceError(), -1)
    manager.bump_if_required()
    assert manager.identity.epoch == 1


def test_a_forgotten_producer_id_bumps_the_epoch_once(manager: TransactionManager) -> None:
    manager.completed(assigned(manager, b"a"), 0)
    second, third = assigned(manager, b"b"), assigned(manager, b"c")
    assert manager.may_retry(second, UnknownProducerIdError(), 10)
    manager.bump_if_required()
    assert manager.may_retry(third, UnknownProducerIdError(), 10)
    manager.bump_if_required()
    assert manager.identity.epoch == 1
    assert (stamp(second), stamp(third)) == ((7, 1, 0), (7, 1, 1))


def test_an_unknown_producer_id_without_log_start_is_just_retried(manager: TransactionManager) -> None:
    batch = assigned(manager, b"a")
    assert manager.may_retry(batch, UnknownProducerIdError(), -1)
    manager.bump_if_required()
    assert manager.identity.epoch == 0


def test_a_lost_batch_holds_back_new_ones_until_it_is_settled(known: TransactionManager) -> None:
    manager = known
    first, second = assigned(manager, b"a"), assigned(manager, b"b")
    manager.lost(first)
    manager.failed(first, KafkaTimeoutError(), refused=False)
    waiting = batch_of(b"c")
    assert not manager.may_send(waiting, 1)
    manager.resolve()
    assert not manager.may_send(waiting, 1), "second is still in flight and will tell"
    manager.completed(second, 1)
    manager.resolve()
    manager.bump_if_required()
    assert manager.identity.epoch == 0, "second was accepted, so first was stored"
    assert manager.may_send(waiting, 1)


def test_a_lost_batch_with_nothing_behind_it_bumps_the_epoch(manager: TransactionManager) -> None:
    first = assigned(manager, b"a")
    manager.lost(first)
    manager.failed(first, KafkaTimeoutError(), refused=False)
    manager.resolve()
    manager.bump_if_required()
    waiting = assigned(manager, b"b")
    assert stamp(waiting) == (7, 1, 0)


def test_a_lost_batch_whose_answer_came_late_leaves_no_gap(manager: TransactionManager) -> None:
    first = assigned(manager, b"a")
    manager.lost(first)
    manager.failed(first, KafkaTimeoutError(), refused=False)
    manager.completed(first, 0)
    manager.resolve()
    manager.bump_if_required()
    assert stamp(assigned(manager, b"b")) == (7, 0, 1)


def test_a_late_answer_of_an_earlier_epoch_says_nothing_of_the_present_one(manager: TransactionManager) -> None:
    manager.completed(assigned(manager, b"a"), 0)
    lost = assigned(manager, b"b", b"c", b"d")
    manager.lost(lost)
    manager.failed(lost, KafkaTimeoutError(), refused=False)
    manager.resolve()
    manager.bump_if_required()
    batch = assigned(manager, b"e")
    assert stamp(batch) == (7, 1, 0)
    manager.completed(lost, 1)
    assert not manager.overtaken(batch), "nothing is acknowledged under this epoch"
    assert not manager.may_send(batch_of(b"f"), 1), "the leader has not acknowledged this epoch yet"


def test_a_batch_behind_which_one_is_acknowledged_is_overtaken(known: TransactionManager) -> None:
    first, second = assigned(known, b"a"), assigned(known, b"b", b"c")
    assert not known.overtaken(first)
    known.completed(second, 1)
    assert known.overtaken(first)
    assert not known.overtaken(assigned(known, b"d"))


def test_out_of_order_right_behind_a_lost_batch_is_a_gap(manager: TransactionManager) -> None:
    first, second, third = (assigned(manager, value) for value in (b"a", b"b", b"c"))
    manager.lost(first)
    manager.failed(first, KafkaTimeoutError(), refused=False)
    assert manager.may_retry(third, OutOfOrderSequenceError(), -1)
    manager.bump_if_required()
    assert manager.identity.epoch == 0, "third is not right behind it"
    assert manager.may_retry(second, OutOfOrderSequenceError(), -1)
    manager.bump_if_required()
    assert (stamp(second), stamp(third)) == ((7, 1, 0), (7, 1, 1))


def test_of_two_lost_batches_the_first_behind_one_shows_the_gap(known: TransactionManager) -> None:
    manager = known
    first, second, third = (assigned(manager, value) for value in (b"a", b"b", b"c"))
    for batch in (first, third):
        manager.lost(batch)
        manager.failed(batch, KafkaTimeoutError(), refused=False)
    assert manager.may_retry(second, OutOfOrderSequenceError(), -1)
    manager.bump_if_required()
    assert stamp(second) == (7, 1, 0), "nothing in flight can fill the gap before it any more"


def test_what_comes_before_a_gap_is_settled_under_its_old_numbers(known: TransactionManager) -> None:
    manager = known
    unanswered, refused, behind = (assigned(manager, value) for value in (b"a", b"b", b"c"))
    before = stamp(unanswered)
    manager.failed(refused, InvalidRecordError(), refused=True)
    manager.bump_if_required()
    assert stamp(unanswered) == before, "it may be stored: under new numbers it would be stored twice"
    assert manager.may_send(unanswered, 1)
    assert not manager.may_send(behind, 1)
    assert not manager.may_send(batch_of(b"d"), 1)
    manager.completed(unanswered, 0)
    manager.bump_if_required()
    assert stamp(behind) == (7, 1, 0)


def test_a_gap_that_waits_takes_an_epoch_bumped_meanwhile(known: TransactionManager) -> None:
    manager = known
    unanswered, refused, behind = (assigned(manager, value) for value in (b"a", b"b", b"c"))
    manager.failed(refused, InvalidRecordError(), refused=True)
    manager.failed(assigned(manager, b"x", partition=1), InvalidRecordError(), refused=True)
    manager.bump_if_required()
    assert manager.identity.epoch == 1
    manager.completed(unanswered, 0)
    manager.bump_if_required()
    assert stamp(behind) == (7, 1, 0), "one new epoch is enough"


def test_used_up_epochs_end_in_a_new_id(manager: TransactionManager) -> None:
    manager = TransactionManager()
    manager.initializing()
    manager.initialized(7, MAX_EPOCH)
    first, second = assigned(manager, b"a"), assigned(manager, b"b")
    manager.failed(first, InvalidRecordError(), refused=True)
    manager.bump_if_required()
    assert manager.needs_producer_id
    assert not manager.may_send(second, 1)
    manager.initializing()
    manager.initialized(8, 0)
    assert stamp(second) == (8, 0, 0)
    assert manager.may_send(second, 1)


def test_split_parts_take_the_place_of_the_whole(known: TransactionManager) -> None:
    manager = known
    whole, behind = assigned(manager, b"a", b"b"), assigned(manager, b"c")
    manager.split(whole)
    left, right = batch_of(b"a"), batch_of(b"b")
    left.set_producer_state(7, 0, 0)
    right.set_producer_state(7, 0, 1)
    for part in (left, right):
        manager.adopt(part)
    assert manager.may_send(left, 1)
    assert not manager.may_send(right, 1)
    manager.completed(left, 0)
    assert manager.may_send(right, 1)
    manager.completed(right, 1)
    assert manager.may_send(behind, 1)


def test_one_at_a_time_until_the_leader_knows_the_producer(manager: TransactionManager) -> None:
    first = assigned(manager, b"a")
    assert not manager.may_send(batch_of(b"b"), 1), "it would be taken even if a was not"
    assert manager.may_send(batch_of(b"b", partition=1), 1)
    manager.completed(first, 0)
    assigned(manager, b"b")
    assert manager.may_send(batch_of(b"c"), 1)


def test_a_new_leader_waits_for_the_answers_of_the_old(known: TransactionManager) -> None:
    manager = known
    assigned(manager, b"a")
    manager.departed(TP, 1)
    waiting = batch_of(b"b")
    assert manager.may_send(waiting, 1)
    assert not manager.may_send(waiting, 2), "it has never seen this producer, and would take b before a"
    manager.landed(TP)
    assert manager.may_send(waiting, 2)


def test_sequences_wrap_around(manager: TransactionManager) -> None:
    top = 2147483647
    assert increment_sequence(top, 1) == 0
    assert is_later(0, top)
    assert not is_later(top, 0)
    entry = manager.partition(TP)
    entry.next_sequence = top
    first = assigned(manager, b"a", b"b")
    second = assigned(manager, b"c")
    assert (first.base_sequence, first.last_sequence, second.base_sequence) == (top, 0, 1)
    manager.completed(first, 0)
    manager.completed(second, 2)
    assert entry.last_acked_sequence == 1
    assert entry.next_sequence == 2
