"""The records of a partition in flight for a share group, beside a model that has a state for each offset."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.errors import InvalidRecordStateError, InvalidRequestError
from kclient.gateway.rows.share_partitions import ACKNOWLEDGED, ARCHIVED, AVAILABLE, SharedRow, StateBatch
from kclient.gateway.shares.share_partition import (
    ACCEPT,
    GAP,
    KINDS,
    REJECT,
    RELEASE,
    RENEW,
    Delivered,
    ReadSpan,
    RecordsInFlight,
    Verdicts,
)

LOCKS, MOST, LOCK_S = 12, 5, 10.0


@dataclass
class Offset:
    """One offset of the model."""

    state: int = AVAILABLE
    deliveries: int = 0
    member: str = ""
    until: float = math.inf


@dataclass
class NaiveShare:
    """The model: a dictionary of offsets, each looked at by itself."""

    start: int = 0
    offsets: dict[int, Offset] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return max(self.offsets, default=self.start - 1) + 1

    def next_offset(self) -> int:
        free = [at for at, each in self.offsets.items() if each.state == AVAILABLE and not each.member]
        return min(free, default=self.end)

    def in_flight(self) -> int:
        return sum(not (each.state == ARCHIVED and not each.deliveries) for each in self.offsets.values())

    def tidy(self) -> None:
        while self.start in self.offsets and self.offsets[self.start].state != AVAILABLE:
            del self.offsets[self.start]
            self.start += 1

    def acquire(
        self, member: str, begin: int, spans: list[ReadSpan], most: int, strict: bool, until: float
    ) -> dict[int, int]:
        taken: dict[int, int] = {}
        place = begin
        for span in spans:
            if len(taken) >= most:
                break
            for at in range(place, span.first):
                self.leave_out(at)
            full = False
            alone = self.alone(max(place, span.first), span.last) if span.wanted else None
            if alone is not None and taken:
                break
            free = LOCKS - self.in_flight()
            end = self.end
            for at in range(max(place, span.first), span.last + 1):
                if not span.wanted:
                    self.leave_out(at)
                    continue
                if strict and len(taken) >= most:
                    break
                if at >= end and (free <= 0 or (strict and at - end >= free)):
                    full = True
                    break
                if alone is not None and at not in alone:
                    continue
                each = self.offsets.setdefault(at, Offset())
                if each.state == AVAILABLE and not each.member:
                    each.deliveries += 1
                    each.member, each.until = member, until
                    taken[at] = each.deliveries
            if alone is not None:
                break
            if full or (self.end <= span.last and self.in_flight() >= LOCKS) or (strict and len(taken) >= most):
                break
            place = max(place, span.last + 1)
        self.tidy()
        return taken

    def alone(self, first: int, last: int) -> set[int] | None:
        """The offsets of a batch that come without others; None if none has come back often."""
        often = max(2, math.ceil(MOST / 2))
        free = [(at, self.offsets[at]) for at in range(first, last + 1) if at in self.offsets]
        free = [(at, each) for at, each in free if each.state == AVAILABLE and not each.member]
        if not any(each.deliveries >= often for _, each in free):
            return None
        found: set[int] = set()
        most = last - first + 1
        for at, each in free:
            if each.deliveries == MOST - 1 and found:
                break
            if each.deliveries >= often:
                most = min(most, max(1, (last - first + 1) >> (each.deliveries - often + 1)))
            if len(found) >= most:
                break
            found.add(at)
            if each.deliveries == MOST - 1:
                break
        return found

    def leave_out(self, at: int) -> None:
        if at < self.start:
            return
        each = self.offsets.setdefault(at, Offset())
        if each.state == AVAILABLE and not each.member:
            each.state, each.deliveries = ARCHIVED, 0

    def acknowledge(self, member: str, kinds: dict[int, int], until: float) -> bool:
        kinds = {at: kind for at, kind in kinds.items() if at >= self.start}
        if any(at not in self.offsets or self.offsets[at].member != member for at in kinds):
            return False
        for at, kind in kinds.items():
            self.end_of(self.offsets[at], kind, until)
        self.tidy()
        return True

    @staticmethod
    def end_of(each: Offset, kind: int, until: float = math.inf) -> None:
        if kind == RENEW:
            each.until = until
            return
        if kind == ACCEPT:
            each.state = ACKNOWLEDGED
        elif kind != RELEASE or each.deliveries >= MOST:
            each.state = ARCHIVED
            each.deliveries *= kind != GAP
        each.member, each.until = "", math.inf

    def let_go(self, member: str | None, now: float) -> None:
        for each in self.offsets.values():
            if each.member and (each.member == member or each.until <= now):
                self.end_of(each, RELEASE)
        self.tidy()

    def advance(self, log_start: int) -> None:
        if log_start > self.start:
            self.offsets = {at: each for at, each in self.offsets.items() if at >= log_start}
            self.start = log_start
            self.tidy()

    def stored(self) -> dict[int, tuple[int, int]]:
        found = {}
        for at, each in self.offsets.items():
            deliveries = each.deliveries - bool(each.member)
            if deliveries or each.state != AVAILABLE:
                found[at] = (each.state, deliveries)
        return found


MEMBERS = st.sampled_from(["a", "b"])
SIZES = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.booleans()), min_size=1, max_size=5)
STEPS = st.one_of(
    st.tuples(st.just("acquire"), MEMBERS, SIZES, st.integers(1, 8), st.booleans()),
    st.tuples(
        st.just("acknowledge"), MEMBERS, st.integers(-1, 12), st.lists(st.sampled_from(KINDS), min_size=1, max_size=5)
    ),
    st.tuples(st.just("acknowledge all"), MEMBERS, st.integers(0, 6), st.sampled_from(KINDS)),
    st.tuples(st.just("gone"), MEMBERS),
    st.tuples(st.just("later"), st.floats(0.1, 12.0)),
    st.tuples(st.just("advance"), st.integers(-1, 6)),
    st.tuples(st.just("reload")),
)


@given(st.lists(STEPS, max_size=25))
def test_records_go_where_the_model_has_them(steps: list[tuple[object, ...]]) -> None:
    real, model, now = RecordsInFlight(0), NaiveShare(), 0.0
    for step in steps:
        match step:
            case ("acquire", str(member), list(sizes), int(most), bool(strict)):
                begin = real.next_offset
                spans, at = [], begin
                for gap, size, wanted in sizes:
                    spans.append(ReadSpan(at + gap, at + gap + size - 1, wanted))
                    at += gap + size
                found = real.acquire(
                    member,
                    begin,
                    spans,
                    most=most,
                    batch_size=3,
                    strict=strict,
                    locks=LOCKS,
                    deliveries=MOST,
                    until=now + LOCK_S,
                )
                told = {at: each.deliveries for each in found for at in range(each.first, each.last + 1)}
                assert told == model.acquire(member, begin, spans, most, strict, now + LOCK_S)
                assert not strict or len(told) <= most
            case ("acknowledge", str(member), int(offset), list(kinds)):
                first = real.start + offset
                if first < 0:
                    continue
                expected = model.acknowledge(member, dict(enumerate(kinds, first)), now + LOCK_S)
                check_acknowledged(real, member, Verdicts(first, first + len(kinds) - 1, kinds), now, expected)
            case ("acknowledge all", str(member), int(size), int(kind)):
                verdicts = Verdicts(real.start, real.start + size, [kind])
                expected = model.acknowledge(
                    member, dict.fromkeys(range(verdicts.first, verdicts.last + 1), kind), now + LOCK_S
                )
                check_acknowledged(real, member, verdicts, now, expected)
            case ("gone", str(member)):
                real.release(member, most=MOST)
                model.let_go(member, -1.0)
            case ("later", float(seconds)):
                now += seconds
                if real.deadline <= now:
                    real.expire(now, most=MOST)
                model.let_go(None, now)
            case ("advance", int(offset)):
                model.advance(real.start + offset)
                real.advance(real.start + offset)
            case ("reload",):
                row = SharedRow(0, 0, real.start, real.complete, tuple(real.batches()))
                row = SharedRow.decode(row.encode())
                real = RecordsInFlight(row.start, row.batches)
                stored = model.stored()
                until = max(stored, default=model.start - 1) + 1
                offsets = {at: Offset(*stored.get(at, (AVAILABLE, 0))) for at in range(model.start, until)}
                model = NaiveShare(model.start, offsets)
                model.tidy()
        assert (real.start, real.end) == (model.start, model.end)
        assert real.next_offset == model.next_offset()
        assert real.in_flight == model.in_flight()
        assert real.complete == sum(each.state != AVAILABLE for each in model.offsets.values())
        assert real.is_held == any(each.member for each in model.offsets.values())
        assert real.deadline <= min((each.until for each in model.offsets.values()), default=math.inf)
        assert real.runs <= len(model.offsets)
        batches = real.batches()
        assert {at: each[2:] for each in batches for at in range(each.first, each.last + 1)} == model.stored()
        assert all(one.last + 1 < other.first or one[2:] != other[2:] for one, other in pairwise(batches))


def check_acknowledged(real: RecordsInFlight, member: str, verdicts: Verdicts, now: float, expected: bool) -> None:
    before = real.batches(), real.complete
    try:
        real.acknowledge(member, [verdicts], most=MOST, until=now + LOCK_S)
    except (InvalidRecordStateError, InvalidRequestError):
        assert not expected
        assert (real.batches(), real.complete) == before
    else:
        assert expected


def read(*sizes: int, begin: int = 0) -> list[ReadSpan]:
    """Batches of so many records each."""
    spans = []
    for size in sizes:
        spans.append(ReadSpan(begin, begin + size - 1, True))
        begin += size
    return spans


def acquire(
    records: RecordsInFlight, *sizes: int, most: int = 500, batch_size: int = 500, strict: bool = False
) -> list[Delivered]:
    """Have member `a` acquire what batches of these sizes hold."""
    begin = records.next_offset
    return records.acquire(
        "a",
        begin,
        read(*sizes, begin=begin),
        most=most,
        batch_size=batch_size,
        strict=strict,
        locks=2000,
        deliveries=5,
        until=30.0,
    )


def test_whole_batches_are_delivered_unless_the_limit_is_strict() -> None:
    assert acquire(RecordsInFlight(0), 10, 10, 10, most=15) == [(0, 19, 1)]
    assert acquire(RecordsInFlight(0), 10, 10, 10, most=15, strict=True) == [(0, 14, 1)]


def test_what_is_acknowledged_together_is_about_as_large_as_was_asked() -> None:
    assert acquire(RecordsInFlight(0), 4, 4, 4, 20, 1, batch_size=8) == [
        (0, 7, 1),
        (8, 11, 1),
        (12, 31, 1),
        (32, 32, 1),
    ]


def test_who_has_nothing_cannot_acknowledge_it() -> None:
    records = RecordsInFlight(0)
    acquire(records, 10)
    with pytest.raises(InvalidRecordStateError, match="another member has acquired offset 3"):
        records.acknowledge("b", [Verdicts(3, 4, [ACCEPT])], most=5, until=60.0)
    with pytest.raises(InvalidRequestError, match="not all delivered: the next is 10"):
        records.acknowledge("a", [Verdicts(3, 10, [ACCEPT])], most=5, until=60.0)
    records.acknowledge("a", [Verdicts(3, 3, [ACCEPT])], most=5, until=60.0)
    with pytest.raises(InvalidRecordStateError, match="offset 3 is acknowledged"):
        records.acknowledge("a", [Verdicts(2, 4, [REJECT])], most=5, until=60.0)
    assert records.batches() == [StateBatch(3, 3, ACKNOWLEDGED, 1)]


def test_a_hole_in_the_log_does_not_count_as_in_flight() -> None:
    records = RecordsInFlight(0)
    spans = [ReadSpan(0, 0, True), ReadSpan(1_000_000, 1_000_000, True)]
    found = records.acquire("a", 0, spans, most=5, batch_size=5, strict=True, locks=2, deliveries=5, until=30.0)
    assert found == [(0, 0, 1), (1_000_000, 1_000_000, 1)]
    assert records.in_flight == 2
    assert records.complete == 999_999


def test_what_comes_back_often_comes_in_smaller_parts_and_alone_at_last() -> None:
    records, found = RecordsInFlight(0), []
    while records.start < 8:
        batch = [ReadSpan(records.next_offset, 7, True)]
        [part] = records.acquire(
            "a",
            records.next_offset,
            batch,
            most=500,
            batch_size=500,
            strict=False,
            locks=2000,
            deliveries=5,
            until=30.0,
        )
        found.append(part)
        records.release("a", most=5)
    assert found[:5] == [(0, 7, 1), (0, 7, 2), (0, 7, 3), (0, 3, 4), (0, 0, 5)]
    assert [part.first for part in found if part.deliveries == 5] == list(range(8))
    assert all(part.first == part.last for part in found if part.deliveries == 5)


@pytest.mark.slow
def test_many_small_batches_take_no_longer_than_they_are_many() -> None:
    records, count = RecordsInFlight(0), 10_000
    spans = [ReadSpan(each, each, True) for each in range(count)]
    began = time.process_time()
    for member in "abc":
        found = records.acquire(
            member, 0, spans, most=count, batch_size=1, strict=False, locks=count, deliveries=5, until=30.0
        )
        records.acknowledge(
            member, [Verdicts(each.first, each.last, [RELEASE]) for each in found[::2]], most=5, until=60.0
        )
    assert time.process_time() - began < 5  # each with each it were forty


def test_what_is_said_of_records_that_are_done_with_is_not_looked_at() -> None:
    records = RecordsInFlight(0)
    acquire(records, 10)
    records.advance(4)
    said = [Verdicts(0, 2, [ACCEPT, REJECT, RELEASE]), Verdicts(3, 5, [RELEASE, ACCEPT, REJECT])]
    records.acknowledge("a", said, most=5, until=60.0)
    assert records.start == 6
    assert records.in_flight == 4
