"""Transactions in the partition log: the last stable offset, aborted ranges, fencing, undoing, checkpoints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kclient.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    KafkaStorageError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from kclient.gateway.aborted import CHUNK, AbortedTransactions, AbortedTxn, Entries, Hidden
from kclient.gateway.append import Append
from kclient.gateway.log import Checkpoint, Duplicate, PartitionLog
from kclient.gateway.producer_windows import ProducerLimit
from kclient.gateway.rows.aborted import decode_chunk, encode_chunk
from kclient.gateway.rows.partitions import decode_checkpoint, encode_checkpoint
from kclient.records import EndMarker
from tests.example_budget import examples

COMMIT, ABORT = EndMarker(True, 0), EndMarker(False, 0)


class Batch(NamedTuple):
    """The fields of a header that the log reads."""

    producer_id: int
    base_sequence: int = 0
    producer_epoch: int = 0
    is_transactional: bool = True
    records: int = 1
    base_offset: int = 0
    partition_leader_epoch: int = 0
    max_timestamp: int = 1
    is_control: bool = False
    length: int = 100

    @property
    def count(self) -> int:  # type: ignore[override]
        return self.records

    @property
    def last_offset_delta(self) -> int:
        return self.records - 1


def append(log: PartitionLog, batch: Batch) -> Append:
    verification = log.verify(batch) if batch.is_transactional else None
    found = log.prepare(batch, 0, verified=verification)
    if verification is not None:
        log.transactions.verified(verification)
    assert isinstance(found, Append)
    log.stored(found)
    return found


def end(log: PartitionLog, producer_id: int, marker: EndMarker = COMMIT, epoch: int = 0) -> Append:
    batch = Batch(producer_id, -1, epoch, is_control=True)
    found = log.prepare_end(batch, marker, 0)
    log.stored(found)
    return found


def aborted(log: PartitionLog, first: int, until: int) -> list[tuple[int, int]]:
    """Producer and first offset of the aborted transactions of a range."""
    hidden = Hidden(first, until)
    for chunk in log.transactions.aborted.chunks(first, until):
        hidden.add(chunk.entries or Entries())
    return list(hidden)


def test_nothing_is_stable_from_an_open_transaction_on() -> None:
    log = PartitionLog()
    append(log, Batch(1))
    append(log, Batch(2))
    append(log, Batch(-1, -1, -1, is_transactional=False))
    assert log.last_stable_offset == 0
    log.durable(3)
    assert (log.high_watermark, log.last_stable_offset) == (3, 0)
    end(log, 1)
    assert log.last_stable_offset == 0  # its end may still be lost
    log.durable(4)
    assert log.last_stable_offset == 1
    end(log, 2, ABORT)
    log.durable(5)
    assert (log.high_watermark, log.last_stable_offset) == (5, 5)
    assert aborted(log, 0, 5) == [(2, 1)]


def test_bytes_that_become_stable_are_never_counted_short() -> None:
    log = PartitionLog()
    append(log, Batch(-1, -1, -1, is_transactional=False))
    assert log.durable(1)[1:] == (100, 100)
    append(log, Batch(1))
    append(log, Batch(2))
    assert log.durable(3)[1] == 200
    end(log, 1)
    assert log.durable(4)[1:] == (100, 300)  # one batch at least has become stable, two are possible
    end(log, 2)
    assert log.durable(5)[1:] == (100, 400)
    append(log, Batch(-1, -1, -1, is_transactional=False))
    assert log.durable(6)[1:] == (100, 100)


def test_an_undone_end_leaves_the_transaction_open() -> None:
    log = PartitionLog()
    append(log, Batch(1))
    log.durable(1)
    ending = end(log, 1, ABORT)
    following = append(log, Batch(1, 1))
    assert log.failed(ending, KafkaStorageError()) == [ending, following]
    assert (log.last_stable_offset, log.next_offset) == (0, 1)
    assert log.windows[1].transaction_start == 0
    end(log, 1)
    log.durable(2)
    assert (log.last_stable_offset, aborted(log, 0, 2)) == (2, [])


def test_an_undone_beginning_is_none() -> None:
    log = PartitionLog()
    log.failed(append(log, Batch(1)), KafkaStorageError())
    append(log, Batch(-1, -1, -1, is_transactional=False))
    log.durable(1)
    assert log.last_stable_offset == 1


def test_a_transaction_has_to_be_verified_once() -> None:
    log = PartitionLog()
    with pytest.raises(InvalidTxnStateError, match="no open transaction of producer id 1"):
        log.prepare(Batch(1), 0)
    assert log.next_offset == 0
    append(log, Batch(1))
    assert log.verify(Batch(1, 1)) is None  # it is open
    assert isinstance(log.prepare(Batch(1, 1), 0), Append)
    assert log.verify(Batch(1, 0)) is None  # it is there
    assert isinstance(log.prepare(Batch(1, 0), 0), Duplicate)


def test_a_delayed_batch_begins_no_transaction_that_nobody_ends() -> None:
    log = PartitionLog()
    verification = log.verify(Batch(1))
    end(log, 1, ABORT)
    with pytest.raises(InvalidTxnStateError):
        log.prepare(Batch(1), 0, verified=verification)
    again = log.verify(Batch(1))
    assert isinstance(log.prepare(Batch(1), 0, verified=again), Append)


@pytest.mark.parametrize("bumped", [True, False])
def test_what_is_verified_under_the_epoch_of_an_end_that_bumps_is_of_the_next_transaction(bumped: bool) -> None:
    """With version 2 its producer may send before all ends of the one before are there (KIP-890)."""
    log = PartitionLog(0)
    append(log, Batch(1))
    following = Batch(1, 0, 1)
    verification = log.verify(following)
    assert verification is not None
    log.stored(log.prepare_end(Batch(1, -1, 1, is_control=True), COMMIT, 0, bumped=bumped))
    if bumped:
        assert isinstance(log.prepare(following, 0, verified=verification), Append)
    else:
        with pytest.raises(InvalidTxnStateError):
            log.prepare(following, 0, verified=verification)


def test_an_end_that_bumps_and_comes_late_does_not_end_the_next_transaction() -> None:
    """It was sent twice, since the first answer was lost; the transaction that it ended was of the epoch before."""
    log = PartitionLog()
    append(log, Batch(1))
    late = Batch(1, -1, 1, is_control=True)
    for _ in range(2):  # as long as nothing has begun it does no harm
        log.stored(log.prepare_end(late, COMMIT, 0, bumped=True))
    log.durable(log.next_offset)
    begun = append(log, Batch(1, 0, 1))
    with pytest.raises(InvalidProducerEpochError, match="a later one is open"):
        log.prepare_end(late, COMMIT, 0, bumped=True)
    log.durable(log.next_offset)
    assert log.last_stable_offset == begun.base_offset
    log.stored(log.prepare_end(Batch(1, -1, 2, is_control=True), ABORT, 0, bumped=True))
    log.durable(log.next_offset)
    assert log.last_stable_offset == log.next_offset
    assert aborted(log, 0, log.next_offset) == [(1, begun.base_offset)]


def test_a_newer_epoch_does_not_go_on_with_the_transaction_of_an_older_one() -> None:
    log = PartitionLog()
    append(log, Batch(1))
    later = Batch(1, producer_epoch=1)
    with pytest.raises(InvalidTxnStateError):
        log.prepare(later, 0)
    with pytest.raises(InvalidTxnStateError):
        log.prepare(later._replace(is_transactional=False), 0)
    verification = log.verify(later)
    assert verification is not None
    end(log, 1, epoch=1)
    with pytest.raises(InvalidTxnStateError):
        log.prepare(later, 0, verified=verification)
    append(log, later)
    assert log.windows[1].transaction_start == 2


def test_verifications_are_kept_while_somebody_waits() -> None:
    log = PartitionLog()
    first, second = log.verify(Batch(1)), log.verify(Batch(1))
    assert first is second
    assert first is not None
    log.transactions.verified(first)
    log.transactions.check(1, first)
    log.transactions.verified(first)
    with pytest.raises(InvalidTxnStateError):
        log.transactions.check(1, first)


def test_a_batch_outside_of_its_producers_transaction_is_refused() -> None:
    log = PartitionLog()
    append(log, Batch(1))
    with pytest.raises(InvalidTxnStateError, match="this is not part of it"):
        log.prepare(Batch(1, 1, is_transactional=False), 0)
    end(log, 1)
    assert isinstance(log.prepare(Batch(1, 1, is_transactional=False), 0), Append)


def test_ends_are_fenced() -> None:
    log = PartitionLog()
    append(log, Batch(1, producer_epoch=3))
    with pytest.raises(InvalidProducerEpochError, match="is to end under epoch 2"):
        log.prepare_end(Batch(1, -1, 2), COMMIT, 0)
    end(log, 1, EndMarker(True, 5), epoch=3)
    with pytest.raises(TransactionCoordinatorFencedError, match="epoch 4, the newest seen is 5"):
        log.prepare_end(Batch(1, -1, 3), EndMarker(True, 4), 0)
    assert log.next_offset == 2


def test_an_end_with_a_greater_epoch_fences_the_transaction() -> None:
    log = PartitionLog()
    append(log, Batch(1, 0))
    append(log, Batch(1, 1))
    end(log, 1, epoch=1)
    with pytest.raises(InvalidProducerEpochError):
        append(log, Batch(1, 2))
    with pytest.raises(OutOfOrderSequenceError):
        append(log, Batch(1, 2, producer_epoch=1))
    append(log, Batch(1, 0, producer_epoch=1))


def crowd_out(log: PartitionLog, producer_id: int) -> None:
    """So many others come that a producer is forgotten."""
    for other in range(200, 220):
        append(log, Batch(other, is_transactional=False))
    assert producer_id not in log.windows


@pytest.mark.parametrize("refused", [False, True])
def test_what_a_producer_was_refused_first_is_over_with_the_end_of_its_transaction(refused: bool) -> None:
    """The end makes it known; once it was forgotten again it may go on."""
    limit = ProducerLimit(most=100)
    log = PartitionLog(producers=limit)
    if refused:
        log.refuse(Batch(7), 0)
    end(log, 7, ABORT)
    append(log, Batch(7))
    end(log, 7)
    assert limit.count == 1
    crowd_out(log, 7)
    append(log, Batch(7, 20))


def test_what_a_producer_was_refused_first_outlives_an_end_that_is_undone() -> None:
    log = PartitionLog()
    log.refuse(Batch(7), 0)
    log.failed(end(log, 7, ABORT), KafkaStorageError())
    with pytest.raises(OutOfOrderSequenceError, match="appended sequence 1, expected 0"):
        append(log, Batch(7, 1))
    append(log, Batch(7))


def test_what_was_refused_of_a_forgotten_producer_is_over_when_it_is_known_again() -> None:
    """What it is remembered by comes back where an append of it is undone."""
    log = PartitionLog(producers=ProducerLimit(most=100))

    def taken(producer_id: int, sequence: int) -> Append:
        return append(log, Batch(producer_id, sequence, is_transactional=False))

    others = range(100, 115)
    for producer_id in (*others, 7):
        taken(producer_id, 0)
    log.durable(log.next_offset)
    last = taken(7, 1)
    for producer_id in others:
        taken(producer_id, 1)
    taken(99, 0)
    assert 7 not in log.windows
    log.refuse(Batch(7, 2, is_transactional=False), 0)
    log.failed(last, KafkaStorageError())
    for sequence in (1, 2):
        taken(7, sequence)
    crowd_out(log, 7)
    taken(7, 20)


def test_a_producer_with_an_open_transaction_is_not_forgotten() -> None:
    log = PartitionLog(producers=ProducerLimit(16))
    append(log, Batch(0))
    for producer_id in range(1, 40):
        append(log, Batch(producer_id, is_transactional=False))
    log.durable(100)
    assert 0 in log.windows
    assert len(log.windows) == 16
    assert log.expire(1) == 15
    assert log.windows.keys() == {0}
    end(log, 0)
    log.durable(100)
    assert log.expire(1) == 1


def test_what_was_aborted_goes_with_the_records() -> None:
    log = PartitionLog()
    for first in range(0, 9, 3):
        append(log, Batch(1, first // 3 * 2))
        append(log, Batch(1, first // 3 * 2 + 1))
        end(log, 1, ABORT)
    log.durable(9)
    assert aborted(log, 0, 9) == [(1, 0), (1, 3), (1, 6)]
    assert aborted(log, 4, 6) == [(1, 3)]
    assert aborted(log, 2, 3) == [(1, 0)]
    assert log.checkpoint(start_offset=9).aborted == ()
    log.trim(9)
    assert aborted(log, 0, 9) == []
    assert len(log.transactions.aborted) == 0


def lose(log: PartitionLog, append: Append, how: str) -> None:
    if how == "failed":
        log.failed(append, KafkaStorageError())
    else:
        for lost in log.withdraw():
            log.lost(lost, KafkaStorageError())


@pytest.mark.parametrize("how", ["failed", "not known"])
def test_what_is_told_of_an_abort_does_not_rest_on_transactions_that_may_be_undone(how: str) -> None:
    log = PartitionLog()
    append(log, Batch(1))
    end(log, 1, ABORT)
    plain = append(log, Batch(-1, -1, -1, is_transactional=False, records=10))
    append(log, Batch(2))
    log.durable(2)
    lose(log, plain, how)
    assert append(log, Batch(2)).base_offset == 2, "the offset is given again"
    end(log, 2, ABORT)
    log.durable(4)
    assert aborted(log, 0, 4) == [(1, 0), (2, 2)]
    assert aborted(log, 2, 4) == [(2, 2)]


@pytest.mark.parametrize("from_checkpoint", [True, False])
def test_who_waits_for_what_is_stable_is_told_of_what_was_there_before(from_checkpoint: bool) -> None:
    """A transaction that was open when the log was opened ends: all of it becomes stable."""
    log = PartitionLog()
    append(log, Batch(1))
    log.durable(1)
    log = PartitionLog(checkpoint=log.checkpoint() if from_checkpoint else None)
    log.recovered([Batch(1), Batch(2, base_offset=1)], 0)
    end(log, 1)
    _, size, stable = log.durable(3)
    assert size == 100
    assert stable >= 200
    end(log, 2)
    assert log.durable(4)[2] >= 200
    append(log, Batch(-1, -1, -1, is_transactional=False))
    assert log.durable(5)[1:] == (100, 100), "and then it is counted"


def numbered(count: int) -> list[AbortedTxn]:
    return [AbortedTxn(1, 2 * each, 2 * each + 1, 2 * each + 2) for each in range(count)]


def test_full_chunks_leave_memory_when_they_are_written() -> None:
    index = AbortedTransactions()
    for each in numbered(CHUNK + 1):
        index.add(each)
    rows = {number: encode_chunk(entries) for number, entries in index.unsaved().items()}
    assert rows.keys() == {0, 1}
    index.saved({number: len(decode_chunk(row)) for number, row in rows.items()})
    full, last = index.chunks(0, 2 * CHUNK + 2)
    assert full.entries is None
    assert last.entries is not None
    assert index.unsaved() == {}
    index.add(AbortedTxn(1, 2 * CHUNK + 2, 2 * CHUNK + 3, 2 * CHUNK + 4))
    assert index.unsaved().keys() == {1}

    again = AbortedTransactions(index.bounds)
    assert again.bounds == index.bounds
    assert [chunk.bounds.number for chunk in again.chunks(0, 2)] == [0]
    assert [chunk.bounds.number for chunk in again.chunks(2 * CHUNK + 1, 10 * CHUNK)] == [1]
    again.add(AbortedTxn(1, 4 * CHUNK, 4 * CHUNK + 1, 4 * CHUNK + 2))  # what was not read is not added to
    assert [bounds.number for bounds in again.bounds] == [0, 1, 2]


def test_a_search_ends_where_no_later_transaction_can_begin() -> None:
    entries = [AbortedTxn(1, 5, 6, 2), AbortedTxn(2, 2, 7, 8), AbortedTxn(3, 8, 9, 10)]
    index = AbortedTransactions()
    for each in entries:
        index.add(each)
    hidden = Hidden(0, 3)
    (chunk,) = index.chunks(0, 3)
    assert chunk.entries is not None
    hidden.add(chunk.entries)
    assert list(hidden) == [(2, 2)]
    assert len(index.chunks(0, 3)) == 1
    assert index.chunks(10, 20) == []


def test_only_what_has_records_in_the_range_is_hidden() -> None:
    """Also where transactions overlap: they are looked for in the order of their ends."""
    told = [AbortedTxn(1, 0, 3, 2), AbortedTxn(2, 2, 5, 4), AbortedTxn(3, 4, 8, 6), AbortedTxn(4, 6, 9, 7)]
    told.append(AbortedTxn(5, 7, 10, 11))
    chunk = Entries(number for each in told for number in each)
    for first in range(12):
        for until in range(first + 1, 13):
            hidden = Hidden(first, until)
            hidden.add(chunk)
            inside = [each for each in told if each.last_offset >= first and each.first_offset < until]
            assert list(hidden) == [(each.producer_id, each.first_offset) for each in inside]
            assert len(hidden) == len(inside)


@pytest.mark.parametrize("row", [b"", b"{}", b'{"format":1,"aborted":[1,2,3]}', b'{"format":1,"aborted":[1,2,3,-1]}'])
def test_a_damaged_row_is_told(row: bytes) -> None:
    with pytest.raises(ValueError):
        decode_chunk(row)


class AnyTransactions(RuleBasedStateMachine):
    """Transactions of three producers, syncs, failures, trims and restarts in any order, beside a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.log = PartitionLog()
        self.batches: list[tuple[int, Batch, EndMarker | None]] = []  # what is stored, with its offset

    def _sequence(self, producer_id: int) -> int:
        window = self.log.windows.get(producer_id)
        return 0 if window is None else window.next_sequence

    @rule(producer_id=st.integers(0, 2), records=st.integers(1, 3))
    def produce(self, producer_id: int, records: int) -> None:
        batch = Batch(producer_id, self._sequence(producer_id), records=records)
        self.batches.append((append(self.log, batch).base_offset, batch, None))

    @rule()
    def produce_without_a_transaction(self) -> None:
        batch = Batch(-1, -1, -1, is_transactional=False)
        self.batches.append((append(self.log, batch).base_offset, batch, None))

    @rule(producer_id=st.integers(0, 2), committed=st.booleans())
    def decide(self, producer_id: int, committed: bool) -> None:
        marker = EndMarker(committed, 0)
        appended = end(self.log, producer_id, marker)
        self.batches.append((appended.base_offset, Batch(producer_id, -1, is_control=True), marker))

    @precondition(lambda self: self.log.pending)
    @rule(data=st.data())
    def sync(self, data: st.DataObject) -> None:
        stable = self.log.last_stable_offset
        append = data.draw(st.sampled_from(list(self.log.pending)))
        _, _, became = self.log.durable(append.next_offset)
        if self.log.last_stable_offset > stable:
            inside = [each for each in self.batches if stable <= each[0] < self.log.last_stable_offset]
            assert became >= 100 * len(inside)

    @precondition(lambda self: self.log.pending)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        append = data.draw(st.sampled_from(list(self.log.pending)))
        self.log.failed(append, KafkaStorageError())
        self.batches = [each for each in self.batches if each[0] < append.base_offset]

    @precondition(lambda self: self.log.pending)
    @rule(data=st.data())
    def not_know(self, data: st.DataObject) -> None:
        """What became of those under way is not known: some of the first are found to be stored."""
        log, pending = self.log, list(self.log.pending)
        stored = pending[: data.draw(st.integers(0, len(pending)))]
        end = stored[-1].next_offset if stored else pending[0].base_offset
        self.batches = [each for each in self.batches if each[0] < end]
        assert log.withdraw() == pending
        log.lead(log.leader_epoch + 1)
        self._recover(self.batches)
        for append in pending:
            if append in stored:
                log.found(append)
            else:
                log.lost(append, KafkaStorageError())
        if log.transactions.unstable:  # who waits for what is stable is told of all of it when it is decided
            first = next(iter(log.transactions.unstable))
            held = [each for each in stored if each.base_offset >= first]
            assert log.transactions.held_back >= 100 * len(held)

    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        self.log.trim(data.draw(st.integers(0, self.log.high_watermark)))

    @rule(whole=st.booleans())
    def restart(self, whole: bool) -> None:
        """From the checkpoint, or from the log itself; what was not durable may be there or not: here it is not."""
        log = self.log
        durable = log.high_watermark
        self.batches = [each for each in self.batches if each[0] < durable]
        if whole:
            checkpoint = decode_checkpoint(encode_checkpoint(log.checkpoint()))
            chunks = {chunk.bounds.number: chunk.entries for chunk in log.transactions.aborted.chunks(0, durable)}
            self.log = PartitionLog(checkpoint=checkpoint)
            for chunk in self.log.transactions.aborted.chunks(0, durable):
                chunk.entries = decode_chunk(encode_chunk(chunks[chunk.bounds.number] or Entries()))
        else:
            self.log = PartitionLog()
            self._recover(self.batches)
            self.log.trim(log.start_offset)

    def _recover(self, batches: Iterable[tuple[int, Batch, EndMarker | None]]) -> None:
        for offset, batch, marker in batches:
            batch = batch._replace(base_offset=offset)
            if batch.is_control:
                self.log.recovered_end(batch, marker, 0)
            else:
                self.log.recovered([batch], 0)

    @invariant()
    def the_end_for_committed_readers_is_that_of_the_list(self) -> None:
        log = self.log
        open_at, found = self._open_and_aborted(log.high_watermark)
        expected = min([*open_at.values(), log.high_watermark])
        assert log.last_stable_offset == max(expected, log.start_offset)
        begin = log.start_offset
        visible = [(pid, first) for pid, first, last in found if last >= begin and first < log.last_stable_offset]
        assert aborted(log, begin, log.last_stable_offset) == visible

    def _open_and_aborted(self, until: int) -> tuple[dict[int, int], list[tuple[int, int, int]]]:
        begun: dict[int, int] = {}
        found: list[tuple[int, int, int]] = []
        for offset, batch, marker in self.batches:
            if offset >= until:
                break
            if marker is not None:
                first = begun.pop(batch.producer_id, None)
                if first is not None and not marker.committed:
                    found.append((batch.producer_id, first, offset))
            elif batch.is_transactional:
                begun.setdefault(batch.producer_id, offset)
        return begun, found


TestAnyTransactions = AnyTransactions.TestCase
TestAnyTransactions.settings = examples(80, stateful_step_count=40)


def test_checkpoints_of_the_format_before_are_read() -> None:
    row = b'{"format":2,"next":9,"start":3,"epochs":[[0,0]],"producers":[[7,1,5,[[0,1,2,-1]]]]}'
    checkpoint = decode_checkpoint(row)
    assert checkpoint == Checkpoint(9, 3, checkpoint.windows, ((0, 0),), ())
    assert (checkpoint.windows[7].transaction_start, checkpoint.windows[7].coordinator_epoch) == (-1, -1)
