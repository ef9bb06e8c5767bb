"""The partition log as a state machine: offsets, producer windows, undoing, epochs, checkpoints."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kclient.errors import (
    FencedLeaderEpochError,
    InvalidProducerEpochError,
    InvalidRecordError,
    KafkaStorageError,
    OutOfOrderSequenceError,
    UnknownLeaderEpochError,
)
from kclient.gateway.append import Append, AppendState
from kclient.gateway.log import Duplicate, PartitionLog
from kclient.gateway.producer_windows import ProducerLimit
from kclient.gateway.undecided import Undecided
from tests.example_budget import examples

MAX_SEQUENCE = 2**31 - 1


class Batch(NamedTuple):
    """The fields of a header that the log reads."""

    count: int = 1
    producer_id: int = -1
    producer_epoch: int = 0
    base_sequence: int = 0
    base_offset: int = 0
    partition_leader_epoch: int = 0
    max_timestamp: int = 1
    is_control: bool = False
    crc: int = 0
    is_transactional: bool = False

    @property
    def length(self) -> int:
        return 61 + self.count * 10

    @property
    def last_offset_delta(self) -> int:
        return self.count - 1


def append(log: PartitionLog, batch: Batch, *, now_ms: int = 0) -> Append:
    found = log.prepare(batch, now_ms)
    assert isinstance(found, Append)
    log.stored(found)
    return found


def produce(log: PartitionLog, *batches: Batch) -> None:
    for batch in batches:
        append(log, batch)
    log.durable(log.next_offset)


def idempotent(sequence: int, count: int = 1, epoch: int = 0) -> Batch:
    return Batch(count, producer_id=7, producer_epoch=epoch, base_sequence=sequence)


def test_offsets_follow_each_other_and_the_high_watermark_follows_durability() -> None:
    log = PartitionLog()
    first, second = append(log, Batch(3)), append(log, Batch(2))
    assert (first.base_offset, second.base_offset, log.next_offset, log.high_watermark) == (0, 3, 5, 0)
    done, size, _ = log.durable(4)  # a sync that ends inside the second batch makes only the first durable
    assert (done, size, log.high_watermark) == ([first], first.length, 3)
    done, _, _ = log.durable(5)
    assert (done, log.high_watermark) == ([second], 5)
    assert second.state is AppendState.DURABLE


@pytest.mark.parametrize("back", range(1, 6))
def test_a_repeated_batch_of_the_last_five_gets_its_first_offset(back: int) -> None:
    log = PartitionLog()
    produce(log, *(idempotent(sequence) for sequence in range(8)))
    assert log.prepare(idempotent(8 - back), 0) == Duplicate(8 - back, -1, None)
    assert log.next_offset == 8


def test_an_older_repeat_is_out_of_order() -> None:
    log = PartitionLog()
    produce(log, *(idempotent(sequence) for sequence in range(8)))
    with pytest.raises(OutOfOrderSequenceError):
        log.prepare(idempotent(2), 0)


def test_a_repeat_of_a_batch_under_way_waits_for_it() -> None:
    log = PartitionLog()
    first = append(log, idempotent(0, 2))
    assert log.prepare(idempotent(0, 2), 0) == Duplicate(0, -1, first)


def test_a_gap_in_the_sequences_is_refused_and_changes_nothing() -> None:
    log = PartitionLog()
    produce(log, idempotent(0, 2))
    with pytest.raises(OutOfOrderSequenceError, match="expected 2"):
        log.prepare(idempotent(3), 0)
    produce(log, idempotent(2))
    assert log.next_offset == 3


def test_an_unknown_producer_may_start_anywhere_and_needs_a_sequence() -> None:
    log = PartitionLog()
    produce(log, idempotent(41), idempotent(42))
    with pytest.raises(InvalidRecordError):
        log.prepare(idempotent(-1), 0)


def test_what_is_behind_a_failed_first_append_is_not_taken_before_it() -> None:
    """Else the producer, whose first batch comes again, is told that it is out of order, and gives it up."""
    log = PartitionLog()
    first = append(log, idempotent(0, 5))
    log.failed(first, KafkaStorageError("no space left"))
    for _ in range(2):
        with pytest.raises(OutOfOrderSequenceError, match="sequence 5, expected 0"):
            append(log, idempotent(5))
        again = append(log, idempotent(0, 5))
        behind = append(log, idempotent(5))
        log.failed(again, KafkaStorageError("again"))  # takes the other along
        assert behind.error is not None
    with pytest.raises(OutOfOrderSequenceError, match="begins epoch 1 at sequence 5"):
        append(log, idempotent(5, epoch=1))
    produce(log, idempotent(0, epoch=1), idempotent(1, epoch=1))
    with pytest.raises(InvalidProducerEpochError):
        append(log, idempotent(0))
    assert log.next_offset == 2


def test_that_a_first_append_failed_is_forgotten_in_time() -> None:
    log = PartitionLog()
    log.failed(append(log, idempotent(0), now_ms=1_000), KafkaStorageError("no space left"))
    log.expire(1_000)
    with pytest.raises(OutOfOrderSequenceError):
        append(log, idempotent(1))
    log.expire(1_001)
    produce(log, idempotent(1))


def test_sequences_wrap() -> None:
    log = PartitionLog()
    produce(log, idempotent(MAX_SEQUENCE - 1, 4), idempotent(2))
    assert log.prepare(idempotent(MAX_SEQUENCE - 1, 4), 0) == Duplicate(0, -1, None)
    assert log.next_offset == 5


def test_a_new_epoch_starts_at_zero_and_fences_the_old_one() -> None:
    log = PartitionLog()
    produce(log, idempotent(0), idempotent(1))
    with pytest.raises(OutOfOrderSequenceError):
        log.prepare(idempotent(2, epoch=1), 0)
    produce(log, idempotent(0, epoch=1))
    with pytest.raises(InvalidProducerEpochError):
        log.prepare(idempotent(2, epoch=0), 0)


def test_a_failed_append_takes_the_later_ones_along() -> None:
    log = PartitionLog()
    produce(log, idempotent(0))
    kept, lost, later = append(log, idempotent(1)), append(log, idempotent(2)), append(log, Batch(3))
    assert log.failed(lost, KafkaStorageError("disk full")) == [lost, later]
    assert (log.next_offset, lost.state, kept.state) == (2, AppendState.FAILED, AppendState.STORED)
    assert log.failed(lost, KafkaStorageError()) == []
    again = append(log, idempotent(2))  # the retry finds its place again: same offset, no false duplicate
    assert again.base_offset == 2
    log.durable(3)
    assert log.high_watermark == 3


def test_an_append_goes_its_way_only_once() -> None:
    log = PartitionLog()
    done = append(log, Batch())
    log.durable(1)
    with pytest.raises(RuntimeError):
        log.stored(done)


def test_leader_epochs() -> None:
    log = PartitionLog(leader_epoch=3)
    produce(log, Batch(10))
    later = PartitionLog(5, log.checkpoint())
    assert later.end_of_epoch(3) == (3, 10)
    empty = PartitionLog(5)
    assert empty.end_of_epoch(3) == (3, 0), "as Kafka: the leader's own epoch begins at the end, else clients reset"
    produce(later, Batch(5))
    assert later.end_of_epoch(3) == (3, 10)
    assert later.end_of_epoch(4) == (3, 10)
    assert later.end_of_epoch(5) == (5, 15)
    assert later.end_of_epoch(6) == (-1, -1)
    assert later.end_of_epoch(-1) == (-1, -1), "as Kafka"
    assert later.end_of_epoch(1) == (1, 0)
    assert [later.epoch_of(offset) for offset in (0, 9, 10, 14)] == [3, 3, 5, 5]
    with pytest.raises(FencedLeaderEpochError):
        later.check_epoch(3)
    with pytest.raises(UnknownLeaderEpochError):
        later.check_epoch(6)
    later.check_epoch(5)
    later.check_epoch(-1)
    assert later.trim(12)
    assert later.end_of_epoch(3) == (3, 12)


@pytest.mark.parametrize("restarted", [False, True])
def test_leader_epochs_outlive_the_deletion_of_everything(restarted: bool) -> None:
    """What is lost afterwards takes its own epoch with it only."""
    log = PartitionLog(leader_epoch=3)
    produce(log, Batch(10))
    before = log.checkpoint(start_offset=10)
    assert log.trim(10)
    assert before == log.checkpoint(), "it is written before the log start moves"
    if restarted:
        log = PartitionLog(3, before)
    log.failed(append(log, Batch()), KafkaStorageError())
    for epoch in (4, 5):
        log.lead(epoch)
        assert log.end_of_epoch(3) == (3, 10)
        assert log.checkpoint().epochs == ((3, 10),)
        log.failed(append(log, Batch()), KafkaStorageError())
    produce(log, Batch(2))
    assert log.end_of_epoch(3) == log.end_of_epoch(4) == (3, 10)
    assert [log.epoch_of(offset) for offset in (10, 11)] == [5, 5]


def test_an_epoch_that_begins_where_the_log_is_cut_keeps_the_one_before() -> None:
    log = PartitionLog(leader_epoch=3)
    produce(log, Batch(10))
    log.lead(4)
    first = append(log, Batch())
    assert log.trim(10)
    assert log.checkpoint().epochs == ((3, 10),)
    log.failed(first, KafkaStorageError())
    log.lead(5)
    assert log.end_of_epoch(3) == log.end_of_epoch(4) == (3, 10)
    nothing = PartitionLog(leader_epoch=1)
    nothing.failed(append(nothing, Batch()), KafkaStorageError())
    assert nothing.checkpoint().epochs == ()


def test_trimming_stops_at_the_high_watermark() -> None:
    log = PartitionLog()
    produce(log, Batch(4))
    append(log, Batch(4))
    assert log.trim(100)
    assert (log.start_offset, log.readable(3), log.readable(4), log.readable(5)) == (4, False, True, False)
    assert not log.trim(2)


def test_recovery_finds_the_same_state_with_and_without_a_checkpoint() -> None:
    log = PartitionLog(2)
    stored = []
    for sequence in range(9):
        batch = idempotent(sequence * 2, 2)
        stored.append(batch._replace(base_offset=log.next_offset, partition_leader_epoch=2))
        produce(log, batch)
        if sequence == 4:
            middle = log.checkpoint()
    whole, half = PartitionLog(9), PartitionLog(9, middle)
    whole.recovered(stored, 0)
    half.recovered(stored, 0)
    for again in (whole, half):
        assert (again.next_offset, again.high_watermark) == (18, 18)
        assert again.windows == log.windows
        assert again.end_of_epoch(2) == (2, 18)


def test_what_an_unopened_log_refused_has_to_come_first() -> None:
    unopened = PartitionLog()
    for batch in (idempotent(5), idempotent(6), Batch(), Batch(producer_id=8, base_sequence=-1)):
        unopened.refuse(batch, 0)
    unopened.refuse(Batch(producer_id=9, base_sequence=4), 0)
    unopened.refuse(Batch(producer_id=9, producer_epoch=2), 0)  # a later life of it
    log = PartitionLog()
    log.follow(unopened)
    with pytest.raises(OutOfOrderSequenceError, match="appended sequence 6, expected 5"):
        append(log, idempotent(6))
    with pytest.raises(InvalidProducerEpochError):
        append(log, Batch(producer_id=9, producer_epoch=1, base_sequence=5))
    assert append(log, Batch(producer_id=9, producer_epoch=2)).base_offset == 0
    assert append(log, idempotent(5)).base_offset == 1
    assert append(log, idempotent(6)).base_offset == 2
    assert append(log, Batch(producer_id=10, base_sequence=3)).base_offset == 3, "others begin with what they like"


def test_what_was_refused_behind_the_first_batch_does_not_keep_that_out() -> None:
    """The first one may have been refused where nobody took notice."""
    log = PartitionLog()
    last = 2**31 - 1
    for producer_id, first, second in ((7, 0, 1), (8, last, 0)):
        for sequence in (second, first):
            log.refuse(Batch(producer_id=producer_id, base_sequence=sequence), 0)
        with pytest.raises(OutOfOrderSequenceError, match=f"appended sequence {second}, expected {first}"):
            append(log, Batch(producer_id=producer_id, base_sequence=second))
    log.refuse(Batch(producer_id=9, base_sequence=1), 0)
    for producer_id, sequence in ((7, 0), (7, 1), (8, last), (8, 0), (9, 0), (9, 1)):
        append(log, Batch(producer_id=producer_id, base_sequence=sequence))


def test_what_an_unopened_log_refused_of_a_producer_that_is_known_does_not_matter() -> None:
    before = PartitionLog()
    produce(before, idempotent(0, 6))
    unopened = PartitionLog()
    unopened.refuse(idempotent(7), 0)
    log = PartitionLog(0, before.checkpoint())
    log.follow(unopened)
    assert append(log, idempotent(6)).base_offset == 6


def test_as_many_refused_producers_are_remembered_as_others() -> None:
    limit = ProducerLimit(400)  # 20 in each log
    log, other = PartitionLog(producers=limit), PartitionLog(producers=limit)
    for number in range(30):
        log.refuse(Batch(producer_id=number), 0)
    assert limit.count == 20
    for number in (0, 9):
        append(log, Batch(producer_id=number, base_sequence=1))  # forgotten
    for number in (10, 29):
        with pytest.raises(OutOfOrderSequenceError):
            append(log, Batch(producer_id=number, base_sequence=1))
    append(log, Batch(producer_id=29))
    assert limit.count == 22
    assert log.expire(10) == 0, "their appends are on their way"
    assert limit.count == 3
    other.follow(log)
    assert limit.count == 0


def test_a_log_trimmed_to_nothing_does_not_restart_at_zero() -> None:
    log = PartitionLog()
    produce(log, Batch(4))
    log.trim(4)
    again = PartitionLog(0, log.checkpoint())
    assert (again.start_offset, again.next_offset, again.high_watermark) == (4, 4, 4)
    again.skip_to(3)
    assert again.next_offset == 4
    again.skip_to(6)
    assert again.next_offset == 6


def test_a_log_skips_what_the_store_has_given_while_appends_are_on_their_way() -> None:
    log = PartitionLog()
    produce(log, Batch(4))
    first = append(log, Batch(1))
    log.skip_to(9)
    assert (log.next_offset, log.high_watermark) == (9, 4), "nobody reads what is not durable"
    assert append(log, Batch(1)).base_offset == 9
    log.durable(first.next_offset)
    assert log.high_watermark == 5
    log.durable(10)
    assert log.high_watermark == log.next_offset == 10
    last = append(log, Batch(1))
    log.skip_to(20)
    log.durable(last.next_offset)
    assert log.high_watermark == log.next_offset == 20


def test_a_checkpoint_holds_nothing_that_is_not_durable() -> None:
    log = PartitionLog()
    produce(log, idempotent(0))
    append(log, idempotent(1))
    append(log, Batch(producer_id=8))
    checkpoint = log.checkpoint()
    assert checkpoint.next_offset == 1
    assert checkpoint.windows.keys() == {7}
    assert checkpoint.windows[7].next_sequence == 1


def test_idle_producers_are_forgotten_unless_they_are_appending() -> None:
    log = PartitionLog()
    append(log, Batch(producer_id=1), now_ms=100)
    append(log, Batch(producer_id=2), now_ms=200)
    log.durable(2)
    append(log, Batch(producer_id=1, base_sequence=1), now_ms=100)
    assert log.expire(150) == 0
    log.durable(3)
    assert log.expire(150) == 1
    assert log.windows.keys() == {2}


class AnyOrder(RuleBasedStateMachine):
    """Appends, syncs, failures and repeats in any order: what was acknowledged stays, nothing is there twice."""

    def __init__(self) -> None:
        super().__init__()
        self.log = PartitionLog()
        self.sequence = 0
        self.sent: dict[int, int] = {}
        """The sequence number of what has an offset now, or had it last."""
        self.acknowledged: dict[int, tuple[int, int]] = {}

    @rule(count=st.integers(1, 3))
    def append(self, count: int) -> None:
        self.sequence = self.log.windows[7].next_sequence if 7 in self.log.windows else 0
        self.sent[append(self.log, idempotent(self.sequence, count)).base_offset] = self.sequence

    @precondition(lambda self: self.log.pending)
    @rule(data=st.data())
    def sync(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.log.pending) - 1))
        done = self.log.durable(self.log.pending[index].next_offset)[0]
        for append in done:
            self.acknowledged[append.base_offset] = (append.base_offset, append.next_offset)

    @precondition(lambda self: self.log.pending)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.log.pending) - 1))
        self.log.failed(self.log.pending[index], KafkaStorageError())

    @precondition(lambda self: self.log.pending)
    @rule(data=st.data())
    def not_know(self, data: st.DataObject) -> None:
        """What became of those under way is not known: the first of them are found to be stored."""
        pending, durable = list(self.log.pending), self.log.high_watermark
        stored = pending[: data.draw(st.integers(0, len(pending)))]
        undecided = Undecided(self.log)
        assert not self.log.pending
        assert self.log.next_offset >= self.log.high_watermark == durable
        self.log.lead(self.log.leader_epoch + 1)
        for each in stored:
            count = each.next_offset - each.base_offset
            header = idempotent(self.sent[each.base_offset], count)._replace(
                base_offset=each.base_offset, partition_leader_epoch=undecided.epoch, crc=each.crc
            )
            self.log.recovered([header], 0)
            undecided.saw(header)
            self.acknowledged[each.base_offset] = (each.base_offset, each.next_offset)
        assert undecided.decide(self.log, lambda _: KafkaStorageError()) == pending
        assert [each.state for each in pending] == [
            AppendState.DURABLE if each in stored else AppendState.FAILED for each in pending
        ]
        assert self.log.next_offset == self.log.high_watermark

    @precondition(lambda self: 7 in self.log.windows)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        batch = data.draw(st.sampled_from(self.log.windows[7].batches))
        count = batch.last_sequence - batch.first_sequence + 1
        found = self.log.prepare(idempotent(batch.first_sequence, count), 0)
        assert isinstance(found, Duplicate)
        assert found.base_offset == batch.base_offset
        assert (found.pending is None) == (found.base_offset < self.log.high_watermark)

    @invariant()
    def acknowledged_is_below_the_high_watermark_without_overlap(self) -> None:
        ends = sorted(self.acknowledged.values())
        assert all(end <= self.log.high_watermark for _, end in ends)
        assert all(left[1] == right[0] for left, right in pairwise(ends))
        assert self.log.next_offset >= self.log.high_watermark


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = examples(60, stateful_step_count=30)
