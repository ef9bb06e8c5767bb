"""Appends of which nobody knows whether they are stored: the evidence, and what the log is afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from kclient.errors import KafkaError, KafkaStorageError, OutOfOrderSequenceError
from kclient.gateway.append import Append, AppendState
from kclient.gateway.log import Duplicate, PartitionLog
from kclient.gateway.producer_windows import ProducerLimit
from kclient.gateway.undecided import Undecided
from tests.unit.gateway.test_gateway_log import Batch, append, idempotent, produce


def lost(found: Append) -> KafkaError:
    return KafkaStorageError(f"offset {found.base_offset}")


def stored(batch: Batch, base_offset: int, epoch: int = 0, **changes: Any) -> Batch:
    return batch._replace(base_offset=base_offset, partition_leader_epoch=epoch, **changes)


def read_back(log: PartitionLog, undecided: Undecided, *headers: Batch) -> list[Append]:
    log.lead(undecided.epoch + 1)
    for header in headers:
        log.recovered([header], 0)
        undecided.saw(header)
    return undecided.decide(log, lost)


def states(appends: list[Append]) -> list[AppendState]:
    return [each.state for each in appends]


def test_what_is_found_is_durable_and_what_is_not_may_come_again() -> None:
    log = PartitionLog()
    produce(log, idempotent(0))
    first, second, third = (append(log, idempotent(sequence)) for sequence in (1, 2, 3))
    undecided = Undecided(log)
    assert len(undecided) == 3
    assert (log.next_offset, log.high_watermark, list(log.pending)) == (1, 1, [])
    decided = read_back(log, undecided, stored(idempotent(1), 1), stored(idempotent(2), 2))
    assert decided == [first, second, third]
    assert states(decided) == [AppendState.DURABLE, AppendState.DURABLE, AppendState.FAILED]
    assert third.error is not None
    assert third.error.message == "offset 3"
    assert (log.next_offset, log.high_watermark) == (3, 3)
    repeat = log.prepare(idempotent(2), 0)
    assert isinstance(repeat, Duplicate)
    assert (repeat.base_offset, repeat.pending) == (2, None)
    again = append(log, idempotent(3))
    assert (again.base_offset, log.leader_epoch) == (3, 1)
    log.durable(4)
    assert log.end_of_epoch(0) == (0, 3)
    assert log.end_of_epoch(1) == (1, 4)


@pytest.mark.parametrize(
    "other",
    [
        {"base_offset": 2},
        {"partition_leader_epoch": 1},
        {"crc": 5},
        {"count": 2},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_another_batch_is_not_taken_for_it(other: dict[str, Any]) -> None:
    log = PartitionLog()
    mine = append(log, Batch())
    undecided = Undecided(log)
    assert states(read_back(log, undecided, stored(Batch(), 0)._replace(**other))) == [AppendState.FAILED]
    assert mine.error is not None


def test_a_store_that_keeps_a_later_one_only() -> None:
    """It must not; what is there is told to be there, and what is not cannot come behind it."""
    log = PartitionLog()
    for sequence in (0, 1):
        append(log, idempotent(sequence))
    decided = read_back(log, Undecided(log), stored(idempotent(1), 1))
    assert states(decided) == [AppendState.FAILED, AppendState.DURABLE]
    assert log.next_offset == 2
    with pytest.raises(OutOfOrderSequenceError):
        log.prepare(idempotent(0), 0)
    assert isinstance(log.prepare(idempotent(1), 0), Duplicate)


@pytest.mark.parametrize("there", [True, False])
def test_a_new_producers_first_batch(there: bool) -> None:
    """Those behind it that were refused meanwhile do not come before it; nor does one that is lost with it."""
    log = PartitionLog()
    for sequence in (5, 6):
        append(log, idempotent(sequence))
    undecided = Undecided(log)
    log.refuse(idempotent(7), 0)
    read_back(log, undecided, *([stored(idempotent(5), 0), stored(idempotent(6), 1)] if there else []))
    for sequence in (6, 7) if not there else (8,):
        with pytest.raises(OutOfOrderSequenceError):
            log.prepare(idempotent(sequence), 0)
    assert isinstance(log.prepare(idempotent(7 if there else 5), 0), Append)
    assert not len(log._refused)


def test_a_first_batch_that_was_refused_while_nothing_was_known() -> None:
    log = PartitionLog()
    append(log, Batch())
    undecided = Undecided(log)
    log.refuse(idempotent(5), 0)
    read_back(log, undecided)
    with pytest.raises(OutOfOrderSequenceError):
        log.prepare(idempotent(6), 0)
    assert isinstance(log.prepare(idempotent(5), 0), Append)


def test_one_that_was_not_sent_is_not_stored() -> None:
    log = PartitionLog()
    sent = append(log, Batch())
    unsent = log.prepare(Batch(), 0)
    assert isinstance(unsent, Append)
    decided = read_back(log, Undecided(log), stored(Batch(), 0))
    assert decided == [sent, unsent]
    assert states(decided) == [AppendState.DURABLE, AppendState.FAILED]


def test_what_counts_of_producers_is_what_there_is() -> None:
    limit = ProducerLimit()
    log = PartitionLog(producers=limit)
    append(log, idempotent(0))
    assert limit.count == 1
    undecided = Undecided(log)
    assert limit.count == 0
    read_back(log, undecided, stored(idempotent(0), 0))
    assert limit.count == 1
    log.close()
    assert limit.count == 0


def test_a_partition_that_ends_tells_whoever_waits() -> None:
    log, told = PartitionLog(), list[AppendState]()
    mine = append(log, Batch())
    mine.watch(AppendState.DURABLE, lambda: told.append(mine.state))
    Undecided(log).give_up(KafkaStorageError("closed"))
    assert told == [AppendState.FAILED]
