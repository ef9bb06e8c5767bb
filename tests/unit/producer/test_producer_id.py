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
from kclient.producer.producer_id import MAX_EPOCH, ProducerIdState
from kclient.producer.states import ProducerIdPhase
from kclient.types import TopicPartition
from tests.unit.producer.parts import batch_of, cluster_of

TP = TopicPartition("t", 0)


@pytest.fixture
def ids() -> ProducerIdState:
    made = ProducerIdState()
    made.initializing()
    made.initialized(7, 0)
    return made


@pytest.fixture
def known(ids: ProducerIdState) -> ProducerIdState:
    """The leaders have acknowledged something before."""
    for number in range(2):
        ids.partition(TopicPartition("t", number)).known = True
    return ids


def assigned(ids: ProducerIdState, *values: bytes, partition: int = 0) -> ProducerBatch:
    batch = batch_of(*values, partition=partition)
    ids.assign(batch)
    return batch


def stamp(batch: ProducerBatch) -> tuple[int, int, int]:
    return batch.producer_id, batch.producer_epoch, batch.base_sequence


def test_nothing_leaves_before_there_is_an_id() -> None:
    ids = ProducerIdState()
    assert ids.needs_producer_id
    assert not ids.may_send(batch_of(b"a"), 1)
    ids.initializing()
    assert not ids.needs_producer_id
    assert not ids.may_send(batch_of(b"a"), 1)
    ids.initialized(7, 3)
    assert ids.may_send(batch_of(b"a"), 1)


def test_an_id_is_asked_for_again_unless_the_error_is_final() -> None:
    ids = ProducerIdState()
    ids.initializing()
    ids.initialization_failed(CoordinatorLoadInProgressError())
    assert ids.needs_producer_id
    ids.initializing()
    ids.initialization_failed(ClusterAuthorizationError())
    assert ids.phase is ProducerIdPhase.FATAL_ERROR
    assert isinstance(ids.error, ClusterAuthorizationError)


def test_illegal_moves_raise(ids: ProducerIdState) -> None:
    with pytest.raises(IllegalStateError, match="GIVEN_OUT must not happen in READY"):
        ids.initialized(1, 1)


def test_sequences_begin_anew_with_a_topic_that_was_made_anew_right_after_it_was_found(ids: ProducerIdState) -> None:
    """The id by which it is known is that of the metadata which the first batch went by, not of the next ones."""
    ids.go_by(cluster_of(1, topic_id=b"a" * 16))
    ids.completed(assigned(ids, b"a", b"b"), 0)
    ids.go_by(cluster_of(1, topic_id=b"b" * 16))
    ids.bump_if_required()
    assert stamp(assigned(ids, b"c")) == (7, 1, 0)


def test_sequences_count_records_per_partition(ids: ProducerIdState) -> None:
    assert stamp(assigned(ids, b"a", b"b")) == (7, 0, 0)
    assert stamp(assigned(ids, b"c")) == (7, 0, 2)
    assert stamp(assigned(ids, b"d", partition=1)) == (7, 0, 0)
    assert stamp(assigned(ids, b"e")) == (7, 0, 3)


def test_a_retry_keeps_its_sequence(ids: ProducerIdState) -> None:
    batch = assigned(ids, b"a")
    assigned(ids, b"b")
    ids.assign(batch)
    assert stamp(batch) == (7, 0, 0)


def test_only_the_first_in_flight_may_be_sent_again(known: ProducerIdState) -> None:
    ids = known
    first, second = assigned(ids, b"a"), assigned(ids, b"b")
    assert ids.may_send(first, 1)
    assert not ids.may_send(second, 1)
    ids.completed(first, 0)
    assert ids.may_send(second, 1)


def test_retriable_errors_are_retried_others_not(ids: ProducerIdState) -> None:
    batch = assigned(ids, b"a")
    assert ids.may_retry(batch, NotLeaderOrFollowerError(), -1)
    assert not ids.may_retry(batch, InvalidRecordError(), -1)


def test_a_refused_batch_leaves_a_gap_so_the_epoch_is_bumped(ids: ProducerIdState) -> None:
    first, second, elsewhere = assigned(ids, b"a"), assigned(ids, b"b"), assigned(ids, b"c", partition=1)
    ids.failed(first, InvalidRecordError(), refused=True)
    ids.bump_if_required()
    assert ids.identity == (7, 1)
    assert stamp(second) == (7, 1, 0), "what is in flight is renumbered"
    assert second.sequence_reset
    assert stamp(elsewhere) == (7, 0, 0), "other partitions finish under the old epoch"


def test_another_partition_takes_the_new_epoch_when_nothing_of_the_old_is_in_flight(
    ids: ProducerIdState,
) -> None:
    elsewhere = assigned(ids, b"c", partition=1)
    ids.failed(assigned(ids, b"a"), InvalidRecordError(), refused=True)
    ids.bump_if_required()
    waiting = batch_of(b"d", partition=1)
    assert not ids.may_send(waiting, 1)
    ids.completed(elsewhere, 0)
    assert ids.may_send(waiting, 1)
    ids.assign(waiting)
    assert stamp(waiting) == (7, 1, 0)


def test_out_of_order_behind_an_unacknowledged_batch_is_just_retried(ids: ProducerIdState) -> None:
    assigned(ids, b"a")
    second = assigned(ids, b"b")
    assert ids.may_retry(second, OutOfOrderSequenceError(), -1)
    ids.bump_if_required()
    assert ids.identity.epoch == 0


def test_out_of_order_right_after_the_last_acknowledged_is_a_gap(ids: ProducerIdState) -> None:
    ids.completed(assigned(ids, b"a"), 0)
    second = assigned(ids, b"b")
    assert ids.may_retry(second, OutOfOrderSequenceError(), -1)
    ids.bump_if_required()
    assert stamp(second) == (7, 1, 0)
    # the answers of those that were on their way with the old numbers
    assert ids.may_retry(second, OutOfOrderSequenceError(), -1)
    ids.bump_if_required()
    assert ids.identity.epoch == 1


def test_a_forgotten_producer_id_bumps_the_epoch_once(ids: ProducerIdState) -> None:
    ids.completed(assigned(ids, b"a"), 0)
    second, third = assigned(ids, b"b"), assigned(ids, b"c")
    assert ids.may_retry(second, UnknownProducerIdError(), 10)
    ids.bump_if_required()
    assert ids.may_retry(third, UnknownProducerIdError(), 10)
    ids.bump_if_required()
    assert ids.identity.epoch == 1
    assert (stamp(second), stamp(third)) == ((7, 1, 0), (7, 1, 1))


def test_an_unknown_producer_id_without_log_start_is_just_retried(ids: ProducerIdState) -> None:
    batch = assigned(ids, b"a")
    assert ids.may_retry(batch, UnknownProducerIdError(), -1)
    ids.bump_if_required()
    assert ids.identity.epoch == 0


def test_a_lost_batch_holds_back_new_ones_until_it_is_settled(known: ProducerIdState) -> None:
    ids = known
    first, second = assigned(ids, b"a"), assigned(ids, b"b")
    ids.lost(first)
    ids.failed(first, KafkaTimeoutError(), refused=False)
    waiting = batch_of(b"c")
    assert not ids.may_send(waiting, 1)
    ids.resolve()
    assert not ids.may_send(waiting, 1), "second is still in flight and will tell"
    ids.completed(second, 1)
    ids.resolve()
    ids.bump_if_required()
    assert ids.identity.epoch == 0, "second was accepted, so first was stored"
    assert ids.may_send(waiting, 1)


def test_a_lost_batch_with_nothing_behind_it_bumps_the_epoch(ids: ProducerIdState) -> None:
    first = assigned(ids, b"a")
    ids.lost(first)
    ids.failed(first, KafkaTimeoutError(), refused=False)
    ids.resolve()
    ids.bump_if_required()
    waiting = assigned(ids, b"b")
    assert stamp(waiting) == (7, 1, 0)


def test_a_lost_batch_whose_answer_came_late_leaves_no_gap(ids: ProducerIdState) -> None:
    first = assigned(ids, b"a")
    ids.lost(first)
    ids.failed(first, KafkaTimeoutError(), refused=False)
    ids.completed(first, 0)
    ids.resolve()
    ids.bump_if_required()
    assert stamp(assigned(ids, b"b")) == (7, 0, 1)


def test_a_late_answer_of_an_earlier_epoch_says_nothing_of_the_present_one(ids: ProducerIdState) -> None:
    ids.completed(assigned(ids, b"a"), 0)
    lost = assigned(ids, b"b", b"c", b"d")
    ids.lost(lost)
    ids.failed(lost, KafkaTimeoutError(), refused=False)
    ids.resolve()
    ids.bump_if_required()
    batch = assigned(ids, b"e")
    assert stamp(batch) == (7, 1, 0)
    ids.completed(lost, 1)
    assert not ids.overtaken(batch), "nothing is acknowledged under this epoch"
    assert not ids.may_send(batch_of(b"f"), 1), "the leader has not acknowledged this epoch yet"


def test_a_batch_behind_which_one_is_acknowledged_is_overtaken(known: ProducerIdState) -> None:
    first, second = assigned(known, b"a"), assigned(known, b"b", b"c")
    assert not known.overtaken(first)
    known.completed(second, 1)
    assert known.overtaken(first)
    assert not known.overtaken(assigned(known, b"d"))


def test_out_of_order_right_behind_a_lost_batch_is_a_gap(ids: ProducerIdState) -> None:
    first, second, third = (assigned(ids, value) for value in (b"a", b"b", b"c"))
    ids.lost(first)
    ids.failed(first, KafkaTimeoutError(), refused=False)
    assert ids.may_retry(third, OutOfOrderSequenceError(), -1)
    ids.bump_if_required()
    assert ids.identity.epoch == 0, "third is not right behind it"
    assert ids.may_retry(second, OutOfOrderSequenceError(), -1)
    ids.bump_if_required()
    assert (stamp(second), stamp(third)) == ((7, 1, 0), (7, 1, 1))
    ids.completed(second, 0)
    assert ids.may_send(batch_of(b"d"), 1), "the new epoch has settled what the lost batch left open"


def test_of_two_lost_batches_the_first_behind_one_shows_the_gap(known: ProducerIdState) -> None:
    ids = known
    first, second, third = (assigned(ids, value) for value in (b"a", b"b", b"c"))
    for batch in (first, third):
        ids.lost(batch)
        ids.failed(batch, KafkaTimeoutError(), refused=False)
    assert ids.may_retry(second, OutOfOrderSequenceError(), -1)
    ids.bump_if_required()
    assert stamp(second) == (7, 1, 0), "nothing in flight can fill the gap before it any more"


def test_what_comes_before_a_gap_is_settled_under_its_old_numbers(known: ProducerIdState) -> None:
    ids = known
    unanswered, refused, behind = (assigned(ids, value) for value in (b"a", b"b", b"c"))
    before = stamp(unanswered)
    ids.failed(refused, InvalidRecordError(), refused=True)
    ids.bump_if_required()
    assert stamp(unanswered) == before, "it may be stored: under new numbers it would be stored twice"
    assert ids.may_send(unanswered, 1)
    assert not ids.may_send(behind, 1)
    assert not ids.may_send(batch_of(b"d"), 1)
    ids.completed(unanswered, 0)
    ids.bump_if_required()
    assert stamp(behind) == (7, 1, 0)


def test_a_gap_that_waits_takes_an_epoch_bumped_meanwhile(known: ProducerIdState) -> None:
    ids = known
    unanswered, refused, behind = (assigned(ids, value) for value in (b"a", b"b", b"c"))
    ids.failed(refused, InvalidRecordError(), refused=True)
    ids.failed(assigned(ids, b"x", partition=1), InvalidRecordError(), refused=True)
    ids.bump_if_required()
    assert ids.identity.epoch == 1
    ids.completed(unanswered, 0)
    ids.bump_if_required()
    assert stamp(behind) == (7, 1, 0), "one new epoch is enough"


def test_used_up_epochs_end_in_a_new_id(ids: ProducerIdState) -> None:
    ids = ProducerIdState()
    ids.initializing()
    ids.initialized(7, MAX_EPOCH)
    first, second = assigned(ids, b"a"), assigned(ids, b"b")
    ids.failed(first, InvalidRecordError(), refused=True)
    ids.bump_if_required()
    assert ids.needs_producer_id
    assert not ids.may_send(second, 1)
    ids.initializing()
    ids.initialized(8, 0)
    assert stamp(second) == (8, 0, 0)
    assert ids.may_send(second, 1)


def test_split_parts_take_the_place_of_the_whole(known: ProducerIdState) -> None:
    ids = known
    whole, behind = assigned(ids, b"a", b"b"), assigned(ids, b"c")
    ids.split(whole)
    left, right = batch_of(b"a"), batch_of(b"b")
    left.set_producer_state(7, 0, 0)
    right.set_producer_state(7, 0, 1)
    for part in (left, right):
        ids.adopt(part)
    assert ids.may_send(left, 1)
    assert not ids.may_send(right, 1)
    ids.completed(left, 0)
    assert ids.may_send(right, 1)
    ids.completed(right, 1)
    assert ids.may_send(behind, 1)


def test_one_at_a_time_until_the_leader_knows_the_producer(ids: ProducerIdState) -> None:
    first = assigned(ids, b"a")
    assert not ids.may_send(batch_of(b"b"), 1), "it would be taken even if a was not"
    assert ids.may_send(batch_of(b"b", partition=1), 1)
    ids.completed(first, 0)
    assigned(ids, b"b")
    assert ids.may_send(batch_of(b"c"), 1)


def test_a_new_leader_waits_for_the_answers_of_the_old(known: ProducerIdState) -> None:
    ids = known
    assigned(ids, b"a")
    ids.departed(TP, 1)
    waiting = batch_of(b"b")
    assert ids.may_send(waiting, 1)
    assert not ids.may_send(waiting, 2), "it has never seen this producer, and would take b before a"
    ids.landed(TP)
    assert ids.may_send(waiting, 2)


def test_sequences_wrap_around(ids: ProducerIdState) -> None:
    top = 2147483647
    assert increment_sequence(top, 1) == 0
    assert is_later(0, top)
    assert not is_later(top, 0)
    entry = ids.partition(TP)
    entry.next_sequence = top
    first = assigned(ids, b"a", b"b")
    second = assigned(ids, b"c")
    assert (first.base_sequence, first.last_sequence, second.base_sequence) == (top, 0, 1)
    ids.completed(first, 0)
    ids.completed(second, 2)
    assert entry.last_acked_sequence == 1
    assert entry.next_sequence == 2
