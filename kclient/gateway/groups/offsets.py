"""The committed offsets of one group, and when they may be forgotten."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from kclient.gateway.rows.groups import CommittedOffset
from kclient.types import TopicPartition

if TYPE_CHECKING:
    from kclient.gateway.rows.pending import PendingOffset, PendingOffsets
    from kclient.gateway.topics.record import TopicRecord
    from kclient.memory_ledger import MemoryAccount

_OFFSET: Final = 220
"""About how many bytes of memory an offset takes, beside its metadata."""
_ROUNDED: Final = 128
"""Metadata counts in steps of so many bytes: a number in it that gets another digit mostly takes no more."""
_TOPIC: Final = 230
"""About how many bytes of memory a topic takes in a group, beside its offsets."""
_DOUBT: Final = 100
"""About how many bytes of memory the number of a partition takes of which nobody knows whether it is stored."""
_TRANSACTION: Final = 1_000
"""The same of a transaction that is to commit some of them."""
_AT_ONCE: Final = 256
"""Offsets that are measured in one go."""
_DELETION: Final = 150
"""The same of the deletion of one, until it is stored."""


class OffsetCommit:
    """What one request commits, or deletes, by topic and partition: it is taken as a whole, or not at all."""

    __slots__ = ("annotated", "grows", "held", "size", "topics")

    def __init__(self) -> None:
        self.topics: dict[TopicRecord, dict[int, CommittedOffset | None]] = {}
        """The topics as the request found them: those that have gone since are passed over."""
        self.size: int = 0
        """How many partitions."""
        self.held: int = 0
        """About how many bytes of memory they take, those that are given anew counted twice."""
        self.annotated: bool = False
        """Whether one of them has metadata."""
        self.grows: int = 0
        """By about how many bytes the offsets of the group grow, as far as it was measured."""

    def add(self, record: TopicRecord, number: int, committed: CommittedOffset | None) -> None:
        """One more partition; None deletes its offset. Of several for one, the last counts."""
        offsets = self.topics.get(record)
        if offsets is None:
            offsets = self.topics[record] = {}
            self.held += _TOPIC
        self.size += number not in offsets
        offsets[number] = committed
        if committed is None:
            self.held += _DELETION
        else:
            self.held += _size(committed)
            self.annotated = self.annotated or bool(committed.metadata)

    def put_in_order(self, offsets: GroupOffsets) -> None:
        """Have these be the last of their partitions, also where transactions are to commit some."""
        for record, partition, committed in self.items():
            if committed is not None and offsets.unstable(*partition):
                self.topics[record][partition.partition] = offsets.in_order(partition, committed)

    def drop(self, topics: Container[str]) -> None:
        """Leave out the topics of these names."""
        for record in [record for record in self.topics if record.name in topics]:
            self.size -= len(self.topics.pop(record))

    def items(self) -> Iterator[tuple[TopicRecord, TopicPartition, CommittedOffset | None]]:
        """Everything whose topic is there when its turn comes."""
        for record, offsets in self.topics.items():
            for number, committed in offsets.items():
                if record.gone:
                    break
                yield record, TopicPartition(record.name, number), committed

    def measure(self, known: Mapping[str, Mapping[int, CommittedOffset]]) -> Iterator[None]:
        """Find out in steps by how much the offsets of a group grow; what becomes of them meanwhile matters little."""
        grows = count = 0
        for record, offsets in self.topics.items():
            there = known.get(record.name)
            if there is None:
                grows += _TOPIC
                there = {}
            if self.annotated:
                for number, committed in offsets.items():
                    grows += _size(committed) - _size(there.get(number))
                    count += 1
                    if count % _AT_ONCE == 0:
                        yield
            else:
                grows += _OFFSET * len(offsets.keys() - there.keys())
                count += 1
                if count % _AT_ONCE == 0:
                    yield
        self.grows = grows

    def partitions(self, topic: str) -> Iterator[int]:
        """The partitions of a topic of that name."""
        for record, offsets in self.topics.items():
            if record.name == topic:
                yield from offsets


class Expiry(NamedTuple):
    """When a group's offsets may be forgotten."""

    retention_ms: int
    """How long an offset is kept."""
    base_ms: int | None
    """Since when the group has been without members; None counts from each commit."""
    keep: frozenset[str]
    """Topics that members read: their offsets stay."""


class GroupOffsets:
    """The committed offsets of one group. A commit is visible once it is stored.

    Args:
        memory: Where they count.
    """

    def __init__(self, memory: MemoryAccount | None = None) -> None:
        self._memory = memory
        self._held = 0
        self._committed: dict[str, dict[int, CommittedOffset]] = {}
        self._in_doubt: dict[str, set[int]] = {}
        """Partitions without an offset here of which the store may have one, since the answer to a commit was lost."""
        self._pending: dict[OffsetCommit, int] = {}
        """How many bytes each commit that is under way will add, beside what it has brought."""
        self._transactions: dict[str, PendingOffsets] = {}
        """What open transactions are to commit, by transactional id."""
        self._unstable: dict[str, Counter[int]] = {}
        """The partitions of these, by topic, and of how many they are."""
        self.commits: int = 0
        """How many commits have begun."""

    def __bool__(self) -> bool:
        """Whether the store has, may have or is about to have any."""
        return bool(self._committed or self._pending or self._in_doubt or self._transactions)

    def get(self, topic: str, partition: int) -> CommittedOffset | None:
        """The committed offset of a partition, or None."""
        return self._committed.get(topic, {}).get(partition)

    def topics(self) -> Mapping[str, Mapping[int, CommittedOffset]]:
        """Everything that is committed, by topic and partition."""
        return self._committed

    def items(self) -> Iterator[tuple[TopicPartition, CommittedOffset]]:
        """Everything that is committed; topics may be dropped meanwhile, and are left out from then on."""
        for topic, partitions in list(self._committed.items()):
            for partition, committed in partitions.items():
                if self._committed.get(topic) is not partitions:
                    break
                yield TopicPartition(topic, partition), committed

    def everything(self) -> Iterator[tuple[TopicPartition, CommittedOffset | None]]:
        """What is committed, as `items` gives it, and with None what the store may have beside that."""
        yield from self.items()
        for topic, numbers in list(self._in_doubt.items()):
            for number in numbers:
                if self._in_doubt.get(topic) is not numbers:
                    break
                yield TopicPartition(topic, number), None
        for topic, counts in list(self._unstable.items()):
            for number in list(counts):
                if self.get(topic, number) is None:
                    yield TopicPartition(topic, number), None

    # What transactions are to commit

    @property
    def transactions(self) -> Mapping[str, PendingOffsets]:
        """What open transactions are to commit, by transactional id, as far as it is known here."""
        return self._transactions

    def pend(self, transactional_id: str, pending: PendingOffsets | None) -> None:
        """What a transaction is to commit from now on; None where it is decided."""
        before = self._transactions.pop(transactional_id, None)
        if before is None and pending is None:
            return
        had = {} if before is None else before.offsets
        has = {} if pending is None else pending.offsets
        size = 0
        for each, offset in had.items():  # mostly it has a few more, and the rest as it was
            if has.get(each) is not offset:
                size -= _pending_size(offset)
                if each not in has:
                    self._steady(*each)
        for each, offset in has.items():
            if had.get(each) is not offset:
                size += _pending_size(offset)
                if each not in had:
                    self._unstable.setdefault(each.topic, Counter())[each.partition] += 1
        if pending is not None:
            self._transactions[transactional_id] = pending
        self._count(size + _TRANSACTION * ((pending is not None) - (before is not None)))

    def in_order(self, partition: TopicPartition, committed: CommittedOffset) -> CommittedOffset:
        """An offset that is committed now, under a time after that of every other one of its partition.

        Of those that transactions commit the time decides which is the last one: it must not hang on clocks, which are
        set back, and are different at gateways that a group moves between.
        """
        present, newest = self.get(*partition), -1
        if present is not None:
            newest = present.commit_ms
        if self.unstable(*partition):
            for pending in self._transactions.values():
                offset = pending.offsets.get(partition)
                if offset is not None:
                    newest = max(newest, offset.committed.commit_ms)
        return committed if committed.commit_ms > newest else replace(committed, commit_ms=newest + 1)

    def _steady(self, topic: str, number: int) -> None:
        """One transaction fewer is to commit an offset of a partition."""
        counts = self._unstable[topic]
        counts[number] -= 1
        if not counts[number]:
            del counts[number]
        if not counts:
            del self._unstable[topic]

    def unstable(self, topic: str, number: int) -> bool:
        """Whether an open transaction is to commit an offset of a partition, or did so a moment ago."""
        return bool(self._unstable) and number in self._unstable.get(topic, ())

    def begin(self, commit: OffsetCommit) -> None:
        """A commit is on its way to the store, where it counts; here counts what it will add."""
        self.commits += 1
        self._pending[commit] = grows = max(commit.grows, 0)
        self._count(grows)

    def bring(self, commit: OffsetCommit, count: int) -> None:
        """So many offsets of a commit are stored: they are about to count themselves."""
        adds = self._pending.get(commit)
        if adds:
            brought = min(adds, commit.grows * count // commit.size)
            self._pending[commit] = adds - brought
            self._count(-brought)

    def end(self, commit: OffsetCommit) -> None:
        """It is stored, or failed."""
        self._count(-self._pending.pop(commit))

    def put(self, partition: TopicPartition, committed: CommittedOffset | None) -> None:
        """Make a stored offset visible; None for one that was deleted."""
        topic, number = partition
        if self._in_doubt:
            self._settle(topic, number)
        if committed is not None:
            partitions = self._committed.get(topic)
            if partitions is None:
                partitions = self._committed[topic] = {}
                self._count(_TOPIC)
            change = _size(committed) - _size(partitions.get(number))
            partitions[number] = committed
            if change:
                self._count(change)
        elif (found := self._committed.get(topic)) is not None:
            self._count(-_size(found.pop(number, None)))
            if not found:
                del self._committed[topic]
                self._count(-_TOPIC)

    def doubt(self, partition: TopicPartition) -> None:
        """An offset could not be stored, or that it was is not known: whoever removes the others removes it too."""
        topic, number = partition
        if self.get(topic, number) is not None:
            return  # it is removed with what is there
        numbers = self._in_doubt.setdefault(topic, set())
        if number not in numbers:
            numbers.add(number)
            self._count(_DOUBT)

    def _settle(self, topic: str, number: int) -> None:
        numbers = self._in_doubt.get(topic)
        if numbers is not None and number in numbers:
            numbers.discard(number)
            self._count(-_DOUBT)
            if not numbers:
                del self._in_doubt[topic]

    def drop_topic(self, topic: str) -> None:
        """Forget a topic's offsets."""
        if topic in self._unstable:
            for transactional_id, pending in list(self._transactions.items()):
                left = {each: offset for each, offset in pending.offsets.items() if each.topic != topic}
                if len(left) < len(pending.offsets):
                    self.pend(transactional_id, replace(pending, offsets=left))
        self._count(-_DOUBT * len(self._in_doubt.pop(topic, ())))
        partitions = self._committed.pop(topic, None)
        if partitions is not None:
            self._count(-_TOPIC - sum(map(_size, partitions.values())))

    def close(self) -> None:
        """They are not used any more."""
        self._count(-self._held)

    def _count(self, size: int) -> None:
        if self._memory is not None:
            self._held += size
            self._memory.add(size)

    @property
    def pending(self) -> bool:
        """Whether commits are on their way to the store, or transactions are to make some."""
        return bool(self._pending) or bool(self._transactions)

    def of_topic(self, topic: str) -> set[int]:
        """Every partition of a topic that the store has, may have, or is about to have, an offset of."""
        return {
            *self._committed.get(topic, ()),
            *self._in_doubt.get(topic, ()),
            *self._pending_of(topic),
            *self._unstable.get(topic, ()),
        }

    def expired(self, topic: str, now_ms: int, rule: Expiry) -> list[int]:
        """The partitions of a topic whose offsets have outlived their time (KIP-211)."""
        pending = {*self._pending_of(topic), *self._unstable.get(topic, ())}
        return [
            number
            for number, committed in self._committed.get(topic, {}).items()
            if number not in pending and committed.outlived(now_ms, rule.retention_ms, rule.base_ms)
        ]

    def _pending_of(self, topic: str) -> Iterator[int]:
        for commit in self._pending:
            yield from commit.partitions(topic)


def _pending_size(offset: PendingOffset) -> int:
    """About how many bytes of memory an offset takes that a transaction is to commit."""
    return _size(offset.committed) + _DOUBT


def _size(committed: CommittedOffset | None) -> int:
    """About how many bytes of memory an offset takes."""
    if committed is None:
        return 0
    if not committed.metadata:
        return _OFFSET
    return _OFFSET + -(-sys.getsizeof(committed.metadata) // _ROUNDED) * _ROUNDED
