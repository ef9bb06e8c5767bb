"""The checker of histories of transactions: finds each kind of anomaly, and none in what is legal on Kafka."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kclient.types import TopicPartition
from tests.transaction_checker import Kind, check
from tests.transaction_histories import Attempt, GroupPartition, History, OffsetSeen, Outcome, Poll, Send

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
OF_A = GroupPartition("g", A)


def committed(producer: str, ending: float, *sends: tuple[TopicPartition, bytes]) -> Attempt:
    return Attempt(producer, [Send(*each) for each in sends], ending=ending, outcome=Outcome.COMMITTED)


def good() -> History:
    """Two committed transactions and an aborted one, read to the end; `a1` was read for a group by the second one."""
    first = committed("p", 1.0, (A, b"a1"), (B, b"b1"), (A, b"a2"))
    first.sends[0].offset = 0
    second = committed("q", 3.0, (B, b"b2"))
    second.consumed[OF_A] = range(1)
    gone = Attempt("p", [Send(A, b"gone")], {OF_A: range(2)})
    return History(
        [first, second, gone],
        [
            Poll("r", 2.0, A, [(0, b"a1")]),
            Poll("r", 2.5, A, [(1, b"a2")]),
            Poll("r", 3.5, B, [(0, b"b1"), (3, b"b2")]),
        ],
        [OffsetSeen(0.5, OF_A, -1), OffsetSeen(3.5, OF_A, 1)],
        {A: [(0, b"a1"), (1, b"a2"), (3, b"gone")], B: [(0, b"b1"), (3, b"b2")]},
        {OF_A: 1},
        [Poll("u", 1.5, A, [(0, b"a1"), (1, b"a2"), (3, b"gone")])],
    )


def kinds(history: History) -> set[Kind]:
    return {anomaly.kind for anomaly in check(history)}


def test_a_good_history_has_no_anomaly() -> None:
    assert check(good()) == []
    assert check(History()) == []


def lost(history: History) -> None:
    del history.log[B][0]
    history.polls[2] = Poll("r", 3.5, B, [(3, b"b2")])


def lost_though_its_outcome_is_not_known(history: History) -> None:
    history.attempts[0].outcome = Outcome.UNKNOWN
    lost(history)


def elsewhere_than_acknowledged(history: History) -> None:
    history.attempts[0].sends[0].offset = 7


def duplicate(history: History) -> None:
    history.log[A].append((5, b"a2"))


def duplicate_elsewhere(history: History) -> None:
    history.log[B].append((5, b"a2"))


def aborted_read(history: History) -> None:
    history.polls.append(Poll("r", 4.0, A, [(3, b"gone")]))


def read_though_nobody_asked_to_commit(history: History) -> None:
    history.attempts[2].outcome = Outcome.UNKNOWN
    aborted_read(history)


def intermediate_read(history: History) -> None:
    history.polls[0] = Poll("r", 0.9, A, [(0, b"a1")])


def read_at_another_offset(history: History) -> None:
    history.polls.append(Poll("s", 4.0, A, [(2, b"a2")]))


def read_again(history: History) -> None:
    history.polls.insert(1, history.polls[0])


def read_backwards(history: History) -> None:
    history.polls[0], history.polls[1] = history.polls[1], history.polls[0]


def skipped(history: History) -> None:
    history.log[A].append((4, b"a3"))
    history.attempts.append(committed("q", 3.0, (A, b"a3")))
    history.polls.append(Poll("s", 4.0, A, [(0, b"a1"), (4, b"a3")]))


def skipped_by_a_reader_of_all(history: History) -> None:
    history.log[A].append((4, b"gone too"))
    history.log[A].append((5, b"and this"))
    history.uncommitted.append(Poll("u", 2.0, A, [(5, b"and this")]))


def read_again_by_a_reader_of_all(history: History) -> None:
    history.uncommitted.append(Poll("u", 2.0, A, [(3, b"gone")]))


def read_at_another_offset_by_a_reader_of_all(history: History) -> None:
    history.uncommitted.append(Poll("u", 2.0, A, [(4, b"gone")]))


def sent_in_another_order(history: History) -> None:
    history.log[A][:2] = [(0, b"a2"), (1, b"a1")]
    history.attempts[0].sends[0].offset = None
    history.polls[:2] = [Poll("r", 2.0, A, [(0, b"a2"), (1, b"a1")])]
    history.uncommitted.clear()


def sent_in_another_order_by_two_transactions(history: History) -> None:
    history.attempts.append(committed("q", 4.0, (B, b"b0")))
    history.log[B].insert(1, (1, b"b0"))
    history.polls[2] = Poll("r", 4.5, B, [(0, b"b1"), (1, b"b0"), (3, b"b2")])


def unseen(history: History) -> None:
    history.polls[2] = Poll("r", 3.5, B, [(0, b"b1")])


def offset_of_an_aborted_transaction(history: History) -> None:
    history.offsets.append(OffsetSeen(4.0, OF_A, 2))


def offset_of_nobody(history: History) -> None:
    history.offsets.append(OffsetSeen(4.0, OF_A, 9))


def offset_before_its_commit(history: History) -> None:
    history.offsets.append(OffsetSeen(2.9, OF_A, 1))


def offset_of_an_aborted_transaction_at_the_end(history: History) -> None:
    history.committed[OF_A] = 2


def offset_is_missing_at_the_end(history: History) -> None:
    history.committed[OF_A] = -1


def processed_twice(history: History) -> None:
    third = committed("p", 4.0, (B, b"b3"))
    third.consumed[OF_A] = range(2)
    history.attempts.append(third)
    history.log[B].append((5, b"b3"))
    history.polls.append(Poll("r", 5.0, B, [(5, b"b3")]))
    history.committed[OF_A] = 2


def never_processed(history: History) -> None:
    history.attempts[1].consumed[OF_A] = range(1, 2)
    history.offsets[1] = OffsetSeen(3.5, OF_A, 2)
    history.committed[OF_A] = 2


BAD: dict[Callable[[History], None], set[Kind]] = {
    lost: {Kind.LOST_WRITE},
    lost_though_its_outcome_is_not_known: {Kind.LOST_WRITE},
    elsewhere_than_acknowledged: {Kind.LOST_WRITE},
    duplicate: {Kind.DUPLICATE_WRITE},
    duplicate_elsewhere: {Kind.DUPLICATE_WRITE},
    aborted_read: {Kind.ABORTED_READ},
    read_though_nobody_asked_to_commit: {Kind.ABORTED_READ},
    intermediate_read: {Kind.INTERMEDIATE_READ},
    read_at_another_offset: {Kind.INCONSISTENT_OFFSET},
    read_again: {Kind.NONMONOTONIC_POLL},
    read_backwards: {Kind.NONMONOTONIC_POLL},
    skipped: {Kind.SKIPPED},
    skipped_by_a_reader_of_all: {Kind.SKIPPED},
    read_again_by_a_reader_of_all: {Kind.NONMONOTONIC_POLL},
    read_at_another_offset_by_a_reader_of_all: {Kind.INCONSISTENT_OFFSET},
    sent_in_another_order: {Kind.NONMONOTONIC_SEND},
    sent_in_another_order_by_two_transactions: {Kind.NONMONOTONIC_SEND},
    unseen: {Kind.UNSEEN},
    offset_of_an_aborted_transaction: {Kind.OFFSETS_WITHOUT_RECORDS},
    offset_of_nobody: {Kind.OFFSETS_WITHOUT_RECORDS},
    offset_before_its_commit: {Kind.OFFSETS_WITHOUT_RECORDS},
    offset_of_an_aborted_transaction_at_the_end: {Kind.OFFSETS_WITHOUT_RECORDS},
    offset_is_missing_at_the_end: {Kind.RECORDS_WITHOUT_OFFSETS},
    processed_twice: {Kind.PROCESSED_TWICE},
    never_processed: {Kind.NEVER_PROCESSED},
}


@pytest.mark.parametrize("spoil", BAD, ids=lambda spoil: str(spoil.__name__))
def test_an_anomaly_is_found(spoil: Callable[[History], None]) -> None:
    history = good()
    spoil(history)
    assert kinds(history) == BAD[spoil]


def test_every_kind_has_a_bad_history() -> None:
    assert set().union(*BAD.values()) == set(Kind)


def test_an_outcome_that_is_not_known_may_be_either() -> None:
    history = good()
    history.attempts[1].outcome = Outcome.UNKNOWN
    assert check(history) == []
    history.polls[2] = Poll("r", 3.5, B, [(0, b"b1")])
    history.offsets.pop()
    history.committed[OF_A] = -1
    assert check(history) == [], "aborted: neither records nor offsets are visible"
    history.committed[OF_A] = 1
    assert kinds(history) == {Kind.OFFSETS_WITHOUT_RECORDS}, "offsets alone are half of it"


def test_visibility_partition_by_partition_is_legal() -> None:
    """G1c and G0: of two transactions a reader may have one in one partition, and the other in the other."""
    first = committed("p", 1.0, (A, b"a1"), (B, b"b1"))
    second = committed("q", 1.0, (A, b"a2"), (B, b"b2"))
    history = History(
        [first, second],
        [
            Poll("r", 2.0, A, [(0, b"a1")]), Poll("s", 2.0, B, [(0, b"b2")]),
            Poll("r", 3.0, A, [(1, b"a2")]), Poll("s", 3.0, B, [(1, b"b1")]),
        ],
        log={A: [(0, b"a1"), (1, b"a2")], B: [(0, b"b2"), (1, b"b1")]},
    )  # fmt: skip
    assert check(history) == []


def test_what_an_old_client_risks_is_exempt() -> None:
    """An EndTxn that comes late decides a later transaction of the same epoch (KAFKA-17754)."""
    history = good()
    history.attempts[2].at_risk = True
    aborted_read(history)
    offset_of_an_aborted_transaction(history)
    history.committed[OF_A] = 2
    del history.attempts[1].consumed[OF_A]
    history.offsets[1] = OffsetSeen(3.5, OF_A, 2)
    assert check(history) == []


def test_an_anomaly_says_what_it_is() -> None:
    history = good()
    unseen(history)
    (found,) = check(history)
    assert str(found).startswith("unseen record: b'b2' is at ")
