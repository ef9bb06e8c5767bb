"""What a share group has delivered of a partition: a state machine without I/O and clock (KIP-932).

From its *start* to its *end* each offset has a state (`states.py`). What is below the start is done with; what is
behind the end was never delivered. Neighbours in the same state are one run, so a partition takes as much memory as it
has different neighbours, and no more than there may be records in flight.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from kclient.errors import InvalidRecordStateError, InvalidRequestError
from kclient.gateway.rows import share_partitions as rows
from kclient.gateway.rows.share_partitions import StateBatch, merged
from kclient.gateway.shares.states import RECORD_TABLE, RecordEvent, RecordState
from kclient.state_tables import next_state

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
"""The kinds of acknowledgements, with the protocol's numbers."""
KINDS: Final = range(5)
_NEVER: Final = math.inf
_FEW: Final = 2
"""What was delivered less often did not come back often; so few deliveries are too few for one to be alone."""
_DONE: Final = frozenset({RecordState.ACKNOWLEDGED, RecordState.ARCHIVED})
_STORED: Final = {
    RecordState.AVAILABLE: rows.AVAILABLE,
    RecordState.ACQUIRED: rows.AVAILABLE,
    RecordState.ACKNOWLEDGED: rows.ACKNOWLEDGED,
    RecordState.ARCHIVED: rows.ARCHIVED,
}
"""A lock is not stored: whoever leads the partition next does not know of it."""
_READ: Final = {
    rows.AVAILABLE: RecordState.AVAILABLE,
    rows.ACKNOWLEDGED: RecordState.ACKNOWLEDGED,
    rows.ARCHIVED: RecordState.ARCHIVED,
}


class ReadSpan(NamedTuple):
    """Neighbouring offsets that were read from the log: those of a batch, or that have no batch."""

    first: int
    last: int
    """Inclusive."""
    wanted: bool
    """Whether they hold records that are to be delivered."""


class Delivered(NamedTuple):
    """Neighbouring records that a member gets."""

    first: int
    last: int
    """Inclusive."""
    deliveries: int
    """How often they were delivered, this time too."""


class Verdicts(NamedTuple):
    """What a member says of neighbouring records."""

    first: int
    last: int
    """Inclusive."""
    kinds: Sequence[int]
    """`GAP`, `ACCEPT`, `RELEASE`, `REJECT` or `RENEW`: one for all of them, or one for each."""


class _Run:
    """Neighbouring offsets in the same state."""

    __slots__ = ("deliveries", "first", "last", "member", "state", "until")

    def __init__(
        self, first: int, last: int, state: RecordState, deliveries: int, member: str = "", until: float = _NEVER
    ) -> None:
        self.first = first
        self.last = last
        self.state = state
        self.deliveries = deliveries
        self.member = member
        """Who has acquired them."""
        self.until = until
        """When that is over."""

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    @property
    def never_delivered(self) -> bool:
        """Whether these offsets were passed over: they do not count as in flight."""
        return self.state is RecordState.ARCHIVED and not self.deliveries

    def move(self, event: RecordEvent) -> None:
        self.state = next_state(RECORD_TABLE, self.state, event)

    def tells_the_same(self, other: _Run) -> bool:
        return (
            self.state is other.state
            and self.deliveries == other.deliveries
            and self.member == other.member
            and self.until == other.until
        )


_FIRST: Final = attrgetter("first")
_LAST: Final = attrgetter("last")


class RecordsInFlight:
    """The records of one partition that are in flight for one share group.

    Args:
        start: The first offset that is not done with.
        batches: The records from there on that are not as at first, in order.
    """

    def __init__(self, start: int, batches: Iterable[StateBatch] = ()) -> None:
        self.start: int = start
        """The first offset that is not done with."""
        self._runs: list[_Run] = []
        self.in_flight: int = 0
        """How many records from the start to the end were delivered, whatever became of them."""
        self.deadline: float = _NEVER
        """Not later than the first lock is over, on the clock that `acquire` was told."""
        self.dirty: bool = False
        """Whether something is to be stored; who stores it sets it back."""
        for first, last, state, deliveries in batches:
            self._fill(first)
            self._runs.append(_Run(first, last, _READ[state], deliveries))
        self._tidy()

    # What it knows

    @property
    def end(self) -> int:
        """The first offset that was never delivered, and none behind it was."""
        return self._runs[-1].last + 1 if self._runs else self.start

    @property
    def runs(self) -> int:
        """How many there are: what it takes of memory."""
        return len(self._runs)

    @property
    def next_offset(self) -> int:
        """The first offset that may be acquired."""
        return next((run.first for run in self._runs if run.state is RecordState.AVAILABLE), self.end)

    @property
    def complete(self) -> int:
        """How many offsets from the start on are done with (KIP-1226)."""
        return sum(run.size for run in self._runs if run.state in _DONE)

    @property
    def is_held(self) -> bool:
        """Whether members have records of it."""
        return any(run.state is RecordState.ACQUIRED for run in self._runs)

    def may_acquire(self, locks: int) -> bool:
        """Whether something can be acquired once it is read: what was delivered before, or more.

        Args:
            locks: Most records that may be in flight.
        """
        return self.next_offset < self.end or self.in_flight < locks

    def batches(self) -> list[StateBatch]:
        """What is to be stored. What members have is as it was before it was delivered to them."""
        return list(merged(self._stored()))

    def _stored(self) -> Iterator[StateBatch]:
        for run in self._runs:
            deliveries = run.deliveries - (run.state is RecordState.ACQUIRED)
            if deliveries or run.state in _DONE:
                yield StateBatch(run.first, run.last, _STORED[run.state], deliveries)

    # Delivering

    def acquire(
        self,
        member: str,
        begin: int,
        spans: Iterable[ReadSpan],
        *,
        most: int,
        batch_size: int,
        strict: bool,
        locks: int,
        deliveries: int,
        until: float,
    ) -> list[Delivered]:
        """Deliver records that were read to a member, as far as they are available; pass over what is no record.

        Args:
            member: The member.
            begin: The offset from which on was read, `next_offset` before.
            spans: What was read from there on, in order; between them nothing is in the log.
            most: How many records it wants.
            batch_size: About how many of them are to be acknowledged together.
            strict: Whether it gets no more (KIP-1206, `record_limit`); else all of a batch, as soon as it gets one.
            locks: Most records that may be in flight.
            deliveries: How often a record may be delivered: what came back often comes in ever smaller parts, and
                alone the last time, so that a record that nobody can process does not take others with it.
            until: When its locks are over.
        """
        found: list[Delivered] = []
        place, left, start = begin, most, self.start
        for first, last, wanted in spans:
            if left <= 0 or place > self.end:
                break
            self._pass_over(place, first - 1)
            first = max(first, place)
            if not wanted:
                self._pass_over(first, last)
            else:
                alone = self._to_be_alone(first, last, deliveries)
                if alone is not None and found:
                    break
                parts = self._take(member, *(alone or (first, last)), left if strict else None, locks, until)
                left -= sum(part.last - part.first + 1 for part in parts)
                _append(found, parts, batch_size)
                if alone is not None or (self.end <= last and self.in_flight >= locks):
                    break
            place = max(place, last + 1)
        if found:
            self.deadline = min(self.deadline, until)
        self._tidy()
        self.dirty = self.dirty or self.start != start
        return found

    def _to_be_alone(self, first: int, last: int, deliveries: int) -> tuple[int, int] | None:
        """What of a batch is acquired without anything else, since some of it came back often: as Kafka has it.

        Returns:
            First and last offset; None if nothing of it came back often.
        """
        often = max(_FEW, (deliveries + 1) // 2)
        runs = list(self._available(first, last))
        if all(run.deliveries < often for run in runs):
            return None
        taken, most = 0, last - first + 1
        begin = end = max(first, runs[0].first)
        for run in runs:
            at_last = run.deliveries >= deliveries - 1 and deliveries > _FEW
            if at_last and taken:
                break
            if run.deliveries >= often:
                most = min(most, max(1, (last - first + 1) >> (run.deliveries - often + 1)))
            size = 1 if at_last else min(run.last, last) - max(run.first, first) + 1
            size = min(size, most - taken)
            if size > 0:
                taken += size
                end = max(run.first, first) + size - 1
            if at_last or taken >= most:
                break
        return begin, end

    def _available(self, first: int, last: int) -> Iterator[_Run]:
        """The runs that hold offsets from one to another, and are available."""
        for place in range(max(bisect_right(self._runs, first, key=_FIRST) - 1, 0), len(self._runs)):
            run = self._runs[place]
            if run.first > last:
                break
            if run.last >= first and run.state is RecordState.AVAILABLE:
                yield run

    def _take(self, member: str, first: int, last: int, most: int | None, locks: int, until: float) -> list[Delivered]:
        """Acquire what is available of a batch."""
        found: list[Delivered] = []
        left = last - first + 1 if most is None else most
        for run in self._between(first, min(last, self.end - 1), left):
            run.move(RecordEvent.ACQUIRE)
            run.deliveries += 1
            run.member, run.until = member, until
            left -= run.size
            found.append(Delivered(run.first, run.last, run.deliveries))
        first = max(first, self.end)
        room = locks - self.in_flight
        if first <= last and left > 0 and room > 0:
            if most is not None:
                last = min(last, first + min(left, room) - 1)
            self._runs.append(_Run(first, last, RecordState.ACQUIRED, 1, member, until))
            self.in_flight += last - first + 1
            found.append(Delivered(first, last, 1))
        return found

    def _between(self, first: int, last: int, most: int) -> list[_Run]:
        """The runs of what is available from one offset to another, cut there; no more than so many records of it."""
        found: list[_Run] = []
        while first <= last and most > 0:
            place = self._at(first)
            if place is None:
                break
            run = self._runs[place]
            if run.state is RecordState.AVAILABLE:
                run = self._cut(max(first, run.first), min(last, run.last, max(first, run.first) + most - 1))
                found.append(run)
                most -= run.size
            first = run.last + 1
        return found

    def _pass_over(self, first: int, last: int) -> None:
        """There is nothing to deliver from one offset to another."""
        first = max(first, self.start)
        if first > last:
            return
        for run in self._between(first, min(last, self.end - 1), last - first + 1):
            run.move(RecordEvent.LEAVE_OUT)
            run.deliveries = 0
            self.in_flight -= run.size
        if self.end <= last:
            self._runs.append(_Run(self.end, last, RecordState.ARCHIVED, 0))

    # What becomes of it

    def acknowledge(self, member: str, verdicts: Sequence[Verdicts], *, most: int, until: float) -> None:
        """A member says what became of records: of all, or nothing is done.

        What is below the start is done with already: nothing happens to it.

        Args:
            member: The member.
            verdicts: What it says, in the order of the offsets.
            most: How often a record may be delivered.
            until: When locks are over that begin anew.

        Raises:
            InvalidRequestError: Some were never delivered.
            InvalidRecordStateError: The member does not have some of them (any more).
        """
        parts: list[tuple[int, int, int]] = []
        for each in verdicts[bisect_left(verdicts, self.start, key=_LAST) :]:
            self._check(member, max(each.first, self.start), each.last)  # it has so many: there are no more parts
            parts += _parts(each, self.start)
        for first, last, kind in parts:
            while first <= last:
                place = self._at(first)
                assert place is not None
                run = self._cut(first, min(last, self._runs[place].last))
                if kind == RENEW:
                    run.move(RecordEvent.RENEW)
                    run.until = until
                    self.deadline = min(self.deadline, until)
                else:
                    self._end(run, kind, most)
                    self.dirty = True
                first = run.last + 1
        self._tidy()

    def _check(self, member: str, first: int, last: int) -> None:
        if first <= last and last >= self.end:
            raise InvalidRequestError(
                f"the offsets from {first} to {last} were not all delivered: the next is {self.end}"
            )
        while first <= last:
            place = self._at(first)
            assert place is not None
            run = self._runs[place]
            if run.state is not RecordState.ACQUIRED:
                raise InvalidRecordStateError(f"offset {first} is {run.state.value}: nobody has acquired it (any more)")
            if run.member != member:
                raise InvalidRecordStateError(f"another member has acquired offset {first}")
            first = run.last + 1

    @staticmethod
    def _end(run: _Run, kind: int, most: int) -> None:
        """Nobody has these records any more."""
        if kind == ACCEPT:
            run.move(RecordEvent.ACCEPT)
        elif kind == RELEASE and run.deliveries < most:
            run.move(RecordEvent.RELEASE)
        else:
            run.move(RecordEvent.GIVE_UP)
            if kind == GAP:
                run.deliveries = 0
        run.member, run.until = "", _NEVER

    def release(self, member: str, *, most: int) -> bool:
        """A member has gone: what it has is given back. Returns whether that is anything.

        Args:
            member: The member.
            most: How often a record may be delivered.
        """
        return self._release(lambda run: run.member == member, most)

    def expire(self, now: float, *, most: int) -> bool:
        """Give back what was locked until now. Returns whether that is anything.

        Args:
            now: The time.
            most: How often a record may be delivered.
        """
        changed = self._release(lambda run: run.until <= now, most)
        self.deadline = min((run.until for run in self._runs), default=_NEVER)
        return changed

    def _release(self, which: Callable[[_Run], bool], most: int) -> bool:
        found = [run for run in self._runs if run.state is RecordState.ACQUIRED and which(run)]
        for run in found:
            self._end(run, RELEASE, most)
        if found:
            self.dirty = True
            self._tidy()
        return bool(found)

    def advance(self, log_start: int) -> bool:
        """The log begins here: what is below is done with, whoever has it. Returns whether that is news."""
        if log_start <= self.start:
            return False
        if log_start >= self.end:
            self._runs.clear()
        else:
            place = self._at(log_start)
            assert place is not None
            del self._runs[:place]
            self._runs[0].first = log_start
        self.start = log_start
        self.dirty = True
        self._tidy()
        return True

    # The runs

    def _at(self, offset: int) -> int | None:
        """The number of the run that an offset is in; None if it is in none."""
        place = bisect_right(self._runs, offset, key=_FIRST) - 1
        return place if place >= 0 and self._runs[place].last >= offset else None

    def _cut(self, first: int, last: int) -> _Run:
        """The run of exactly these offsets, which are in one."""
        place = self._at(first)
        assert place is not None
        run = self._runs[place]
        if run.first < first:
            self._runs.insert(place, _Run(run.first, first - 1, run.state, run.deliveries, run.member, run.until))
            run.first = first
            place += 1
        if run.last > last:
            self._runs.insert(place + 1, _Run(last + 1, run.last, run.state, run.deliveries, run.member, run.until))
            run.last = last
        return run

    def _fill(self, first: int) -> None:
        """What is not mentioned below an offset is available, and was never delivered."""
        if self.end < first:
            self._runs.append(_Run(self.end, first - 1, RecordState.AVAILABLE, 0))

    def _tidy(self) -> None:
        """Forget what is done with at the start, make one run of neighbours that are alike, and count records."""
        runs = self._runs
        done = 0
        while done < len(runs) and runs[done].state in _DONE:
            self.start = runs[done].last + 1
            done += 1
        kept: list[_Run] = []
        for run in runs[done:]:
            if kept and kept[-1].tells_the_same(run):
                kept[-1].last = run.last
            else:
                kept.append(run)
        self._runs = kept
        self.in_flight = sum(run.size for run in kept if not run.never_delivered)


def _parts(verdicts: Verdicts, start: int) -> Iterator[tuple[int, int, int]]:
    """What was said of what is not below a start offset, for neighbours of which the same was said."""
    first, last, kinds = verdicts
    below = max(start - first, 0)
    first += below
    if len(kinds) == 1:
        yield first, last, kinds[0]
        return
    kinds = kinds[below:]
    begin = 0
    for place in range(1, len(kinds) + 1):
        if place == len(kinds) or kinds[place] != kinds[begin]:
            yield first + begin, first + place - 1, kinds[begin]
            begin = place


def _append(found: list[Delivered], parts: Iterable[Delivered], batch_size: int) -> None:
    """Add what was delivered of a batch: to what it follows, as long as that is not more than is to be together."""
    for part in parts:
        before = found[-1] if found else None
        if (
            before is not None
            and before.last + 1 == part.first
            and before.deliveries == part.deliveries
            and part.last - before.first < batch_size
        ):
            found[-1] = before._replace(last=part.last)
        else:
            found.append(part)
