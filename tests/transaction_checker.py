"""Judges a history of transactions by what Kafka promises.

`check` finds what must not be on any Kafka. A transaction becomes visible partition by partition there, so write cycles
(G0), and cycles of reads in which there is a write-write edge (G1c), are legal and not looked for, as in Jepsen's
checker for Kafka. What a transaction reads is not compared with what others wrote meanwhile: nobody is isolated so.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from kclient.types import TopicPartition
from tests.transaction_histories import Attempt, GroupPartition, History, Outcome, Poll


class Kind(enum.Enum):
    """Kinds of anomalies."""

    LOST_WRITE = "lost write"
    """Committed or acknowledged, and not in the log where it should be."""
    DUPLICATE_WRITE = "duplicate write"
    """In the log more than once."""
    ABORTED_READ = "aborted read (G1a)"
    """Read as committed, of a transaction that was aborted or never asked to commit."""
    INTERMEDIATE_READ = "intermediate read (G1b)"
    """Read as committed before its producer had asked to commit."""
    INCONSISTENT_OFFSET = "inconsistent offset"
    """Read at an offset where another record, or none, is."""
    NONMONOTONIC_POLL = "non-monotonic poll"
    """A reader went back, or was given a record again."""
    SKIPPED = "skipped record"
    """A reader was given records before and behind a committed one, and not that one."""
    NONMONOTONIC_SEND = "non-monotonic send"
    """The log has the records of a producer in another order than they were sent."""
    UNSEEN = "unseen record"
    """Committed and in the log, and no reader of committed records was given it."""
    OFFSETS_WITHOUT_RECORDS = "offsets without records"
    """A group was told an offset of a transaction that is not committed, or not yet, or of none."""
    RECORDS_WITHOUT_OFFSETS = "records without offsets"
    """The offset at the end is not that of the last transaction whose records are there."""
    PROCESSED_TWICE = "processed twice"
    """Two committed transactions have read the same record for one group."""
    NEVER_PROCESSED = "never processed"
    """The offsets of a group have gone past a record that no committed transaction has read."""


class Anomaly(NamedTuple):
    """What was found."""

    kind: Kind
    text: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.text}"


def check(history: History) -> list[Anomaly]:
    """All anomalies of a history whose readers have read to the end, and whose transactions are all decided."""
    judge = _Judge(history)
    return [
        *judge.writes(), *judge.order_of_sends(), *judge.reads(), *judge.sessions(), *judge.unseen(),
        *judge.offsets(), *judge.processing(),
    ]  # fmt: skip


class _Judge:
    def __init__(self, history: History) -> None:
        self._history = history
        self._at: dict[bytes, tuple[TopicPartition, int]] = {}
        """Where each value is in the log."""
        for partition, records in history.log.items():
            for offset, value in records:
                self._at.setdefault(value, (partition, offset))
        self._of: dict[bytes, Attempt] = {send.value: each for each in history.attempts for send in each.sends}
        self._read: set[bytes] = {value for poll in history.polls for _, value in poll.records}

    def _committed(self, attempt: Attempt) -> bool:
        """Whether it is: where its client does not know, what readers were given of it tells."""
        if attempt.ending is None and not attempt.at_risk:
            return False
        if attempt.outcome is Outcome.UNKNOWN or attempt.at_risk:
            return any(send.value in self._read for send in attempt.sends)
        return attempt.outcome is Outcome.COMMITTED

    def _visible(self, value: bytes) -> bool:
        attempt = self._of.get(value)
        return attempt is None or self._committed(attempt)

    def writes(self) -> Iterator[Anomaly]:
        """Lost and duplicate writes."""
        for partition, records in self._history.log.items():
            for value, count in Counter(value for _, value in records).items():
                if count > 1 or self._at[value][0] != partition:
                    yield Anomaly(Kind.DUPLICATE_WRITE, f"{value!r} is stored more than once, in {partition}")
        for attempt in self._history.attempts:
            if not self._committed(attempt):
                continue
            for send in attempt.sends:
                found = self._at.get(send.value)
                if found is None:
                    yield Anomaly(Kind.LOST_WRITE, f"{send} was committed by {attempt.producer}, and is not there")
                elif found[0] != send.partition or send.offset not in {None, found[1]}:
                    yield Anomaly(Kind.LOST_WRITE, f"{send} was committed by {attempt.producer}, and is at {found}")

    def order_of_sends(self) -> Iterator[Anomaly]:
        """Each producer's records are in the order in which they were sent, committed or not."""
        last: dict[tuple[str, TopicPartition], tuple[int, bytes]] = {}
        for attempt in self._history.attempts:
            for send in attempt.sends:
                found = self._at.get(send.value)
                if found is None or found[0] != send.partition:
                    continue
                key = attempt.producer, send.partition
                before = last.get(key)
                if before is not None and before[0] > found[1]:
                    yield Anomaly(
                        Kind.NONMONOTONIC_SEND,
                        f"{attempt.producer} sent {send.value!r} after {before[1]!r} to {send.partition}, and it is "
                        f"before it, at {found[1]}",
                    )
                last[key] = found[1], send.value

    def reads(self) -> Iterator[Anomaly]:
        """What was read as committed was, and was at that place."""
        for poll in (*self._history.polls, *self._history.uncommitted):
            for offset, value in poll.records:
                if self._at.get(value) != (poll.partition, offset):
                    yield Anomaly(
                        Kind.INCONSISTENT_OFFSET,
                        f"{value!r} was read at {poll.partition} {offset}, and is at {self._at.get(value)}",
                    )
        for poll in self._history.polls:
            for _, value in poll.records:
                attempt = self._of.get(value)
                if attempt is None or attempt.at_risk:
                    continue
                if attempt.outcome is Outcome.ABORTED or attempt.ending is None:
                    yield Anomaly(Kind.ABORTED_READ, f"{value!r} was read at {poll.at} by {poll.session}")
                elif poll.at < attempt.ending:
                    yield Anomaly(
                        Kind.INTERMEDIATE_READ,
                        f"{value!r} was read at {poll.at} by {poll.session}, and its commit was asked for at "
                        f"{attempt.ending}",
                    )

    def sessions(self) -> Iterator[Anomaly]:
        """Readers go on, and pass over nothing that is committed; those of all records over none."""
        yield from self._sessions(self._history.polls, self._visible)
        yield from self._sessions(self._history.uncommitted, lambda value: True)

    def _sessions(self, all_polls: list[Poll], visible: Callable[[bytes], bool]) -> Iterator[Anomaly]:
        sessions: dict[tuple[str, TopicPartition], list[Poll]] = defaultdict(list)
        for poll in all_polls:
            sessions[poll.session, poll.partition].append(poll)
        for (session, partition), polls in sessions.items():
            records = [record for poll in polls for record in poll.records]
            for (before, _), (after, value) in pairwise(records):
                if after <= before:
                    yield Anomaly(
                        Kind.NONMONOTONIC_POLL, f"{session} read {value!r} at {partition} {after}, after {before}"
                    )
            given = {offset for offset, _ in records}
            first, last = min(given, default=0), max(given, default=0)
            for offset, value in self._history.log.get(partition, ()):
                if first < offset < last and offset not in given and visible(value):
                    yield Anomaly(Kind.SKIPPED, f"{session} was not given {value!r} at {partition} {offset}")

    def unseen(self) -> Iterator[Anomaly]:
        """All that is committed was read."""
        for attempt in self._history.attempts:
            if self._committed(attempt):
                for send in attempt.sends:
                    if send.value in self._at and send.value not in self._read:
                        yield Anomaly(Kind.UNSEEN, f"{send.value!r} is at {self._at[send.value]}, committed")

    def _may_be_committed(self, attempt: Attempt) -> bool:
        """Whether its offsets may be: of one without records nobody can tell."""
        return self._committed(attempt) or (
            attempt.at_risk or (attempt.outcome is Outcome.UNKNOWN and not attempt.sends)
        )

    def offsets(self) -> Iterator[Anomaly]:
        """Offsets and records become visible together, or not at all."""
        writers: dict[tuple[GroupPartition, int], list[Attempt]] = defaultdict(list)
        furthest: dict[GroupPartition, int] = {}
        for attempt in self._history.attempts:
            for of, consumed in attempt.consumed.items():
                writers[of, consumed.stop].append(attempt)
                if self._committed(attempt) and not attempt.at_risk:
                    furthest[of] = max(furthest.get(of, -1), consumed.stop)
        for seen in self._history.offsets:
            if seen.offset < 0:
                continue
            by = [each for each in writers[seen.of, seen.offset] if self._may_be_committed(each)]
            asked = [each.ending for each in by if each.ending is not None]
            if not by:
                yield Anomaly(
                    Kind.OFFSETS_WITHOUT_RECORDS,
                    f"{seen.of} was told {seen.offset} at {seen.at}, which no transaction has committed",
                )
            elif not any(each.at_risk for each in by) and seen.at < min(asked, default=seen.at):
                yield Anomaly(
                    Kind.OFFSETS_WITHOUT_RECORDS,
                    f"{seen.of} was told {seen.offset} at {seen.at}, and its commit was asked for at {min(asked)}",
                )
        for of, offset in self._history.committed.items():
            if offset < furthest.get(of, -1):
                yield Anomaly(
                    Kind.RECORDS_WITHOUT_OFFSETS, f"{of} is at {offset} at the end, and {furthest[of]} was committed"
                )
            elif offset >= 0 and not any(map(self._may_be_committed, writers[of, offset])):
                yield Anomaly(
                    Kind.OFFSETS_WITHOUT_RECORDS,
                    f"{of} is at {offset} at the end, which no transaction has committed",
                )

    def processing(self) -> Iterator[Anomaly]:
        """Each record that a group has gone past was read by one committed transaction."""
        parts: dict[GroupPartition, list[tuple[int, int, str]]] = defaultdict(list)
        unknown: set[GroupPartition] = set()
        for attempt in self._history.attempts:
            for of, consumed in attempt.consumed.items():
                if self._committed(attempt):
                    parts[of].append((consumed.start, consumed.stop, attempt.producer))
                elif self._may_be_committed(attempt):
                    unknown.add(of)
        for of, found in parts.items():
            found.sort()
            visible = [offset for offset, value in self._history.log.get(of.partition, ()) if self._visible(value)]
            end = 0
            for start, stop, producer in found:
                if start < end and any(start <= offset < min(end, stop) for offset in visible):
                    yield Anomaly(
                        Kind.PROCESSED_TWICE, f"{producer} read {of} from {start} on, where others had come to {end}"
                    )
                gap = [offset for offset in visible if end <= offset < start]
                if gap and of not in unknown:
                    yield Anomaly(Kind.NEVER_PROCESSED, f"{of}: {gap}, before {producer} read from {start} on")
                end = max(end, stop)
