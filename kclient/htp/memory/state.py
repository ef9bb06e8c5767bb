"""What is stored under one name of the memory backend; guarded by one lock, shared by event loops and threads."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kclient.errors import IllegalStateError
from kclient.htp.appending import inspect_all
from kclient.htp.brokers import check_enough
from kclient.htp.errors import FencedError, OrderError, PositionError, StoreClosedError, UnknownTopicError
from kclient.htp.framings import check_framing
from kclient.htp.memory.changes import MemoryChanges
from kclient.htp.port import (
    Found,
    Framing,
    LeaseInfo,
    MessageInfo,
    Place,
    Pulled,
    SegmentInfo,
    Topic,
    TopicInfo,
    TopicSettings,
    TopicStatus,
)
from kclient.htp.rows import prefix_end

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kclient.htp.port import Versioned
    from kclient.types import Buffer


@dataclass(slots=True)
class LeaseRow:
    """The last holder of a lease; stays when it is released, because epochs only grow."""

    holder: str
    epoch: int
    ttl: float
    held: bool
    version: int

    def info(self, name: str) -> LeaseInfo:
        """As anybody can see it."""
        return LeaseInfo(name, self.holder, self.epoch, self.ttl, self.held, self.version)


class DomainTopics:
    """The topics of one domain, which may be very many."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicInfo] = {}
        self._names: list[str] = []
        """Sorted."""

    def get(self, name: str) -> TopicInfo | None:
        """The topic of that name, if there is one."""
        return self._topics.get(name)

    def __iter__(self) -> Iterator[TopicInfo]:
        return iter(self._topics.values())

    def add(self, info: TopicInfo) -> None:
        """A new topic."""
        self._topics[info.topic.name] = info
        insort(self._names, info.topic.name)

    def change(self, info: TopicInfo) -> None:
        """A topic that is there has become this one."""
        self._topics[info.topic.name] = info

    def remove(self, name: str) -> None:
        """A topic has been deleted."""
        del self._topics[name]
        del self._names[bisect_left(self._names, name)]

    def below(self, prefix: str) -> list[TopicInfo]:
        """Those whose names begin with a prefix, sorted."""
        after_all = prefix_end(prefix)
        end = None if after_all is None else bisect_left(self._names, after_all)
        return [self._topics[name] for name in self._names[bisect_left(self._names, prefix) : end]]


class MemoryState:
    """Domains, topics, values, leases and logs of one name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.brokers: int = 1
        """How many there are."""
        self.lock: threading.RLock = threading.RLock()
        self.revision = 0
        self.incarnations = 0
        self.domains: dict[str, DomainTopics] = {}
        self.values: dict[str, Versioned] = {}
        self.changes: MemoryChanges = MemoryChanges()
        """Of the values."""
        self.leases: dict[str, LeaseRow] = {}
        self.logs: dict[int, MemoryLog] = {}
        """By incarnation."""
        self._sorted: list[str] = []
        self._sorted_at: int = 0
        """The revision for which the keys of the values were sorted last."""
        self._newest: dict[tuple[Topic, str], int] = {}
        """The incarnation of each name that was opened last at each broker."""
        self.discarded: bool = False
        self._left_behind: str | None = None

    def check(self) -> None:
        """Raise if the name was reset since, or this process is a fork of the one that it belongs to."""
        if self._left_behind is not None:
            raise IllegalStateError(self._left_behind)
        if self.discarded:
            raise StoreClosedError(f"memory:{self.name} was reset")

    def leave_behind(self, why: str) -> None:
        """In a forked child: whoever uses this copy is told why that is no use."""
        self.lock = threading.RLock()  # a thread that is not there may hold the other one
        self._left_behind = why
        for log in self.logs.values():
            log.gone = True

    def set_brokers(self, number: int) -> None:
        """Have so many brokers from now on.

        Raises:
            TooFewBrokersError: If others hold topics.
        """
        with self.lock:
            if number < self.brokers:
                bound = {place.broker for topics in self.domains.values() for info in topics for place in info.places}
                check_enough(f"memory:{self.name}", number, bound)
            self.brokers = number

    def topic(self, topic: Topic) -> TopicInfo | None:
        """What is known of a topic, if there is one."""
        domain = self.domains.get(topic.domain)
        return None if domain is None else domain.get(topic.name)

    def keys(self) -> list[str]:
        """The keys of all values, sorted; not to be changed."""
        if self._sorted_at != self.revision:
            self._sorted, self._sorted_at = sorted(self.values), self.revision
        return self._sorted

    def open_log(self, place: Place, epoch: int, framing: Framing, settings: TopicSettings) -> MemoryLog:
        """The log of a topic, sealed against epochs older than this; what the name stood for before has gone.

        Raises:
            UnknownTopicError: If there is no such topic, or another incarnation of it.
            FencedError: If a newer epoch has opened it.
            FramingMismatchError: If it was opened with another framing before.
        """
        info = self.topic(place.topic)
        if info is None or place not in info.places:
            raise UnknownTopicError(f"There is no topic {place}")
        log = self.logs.get(place.incarnation)
        if log is not None:
            log.check(epoch)
            check_framing(place, log.framing.name, framing.name)
        else:
            log = self.logs[place.incarnation] = MemoryLog(place, framing, settings)
        before = self._newest.get(place[:2], place.incarnation)
        log.seal(epoch)
        self._newest[place[:2]] = place.incarnation
        if before != place.incarnation:
            self.drop_log(before)
        return log

    def drop_log(self, incarnation: int) -> None:
        """Forget the messages of a topic."""
        log = self.logs.pop(incarnation, None)
        if log is not None:
            log.discard()
            if self._newest.get(log.place[:2]) == incarnation:
                del self._newest[log.place[:2]]

    def discard(self) -> None:
        """Give up everything."""
        with self.lock:
            self.discarded = True
            self.changes.tell()
            for incarnation in list(self.logs):
                self.drop_log(incarnation)


@dataclass(slots=True)
class MemorySegment:
    """Messages that are kept or dropped together; the lists run in parallel."""

    base: int
    created: float
    modified_ms: int = 0
    max_timestamp: int = -1
    messages: list[bytes] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    lasts: list[int] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """Bytes up to and including each message."""
    replaces: MemorySegment | None = None
    """What it may take the place of."""

    @property
    def size(self) -> int:
        return self.ends[-1] if self.ends else 0

    def add(self, message: Buffer, info: MessageInfo) -> None:
        """One more message."""
        self.messages.append(bytes(message))
        self.firsts.append(info.first)
        self.lasts.append(info.last)
        self.stamps.append(info.max_timestamp)
        self.ends.append(self.size + info.length)
        self.max_timestamp = max(self.max_timestamp, info.max_timestamp)


class MemoryLog:
    """The messages of one topic. The caller holds the state's lock."""

    def __init__(self, place: Place, framing: Framing, settings: TopicSettings) -> None:
        self.place = place
        self.framing = framing
        self.settings = settings
        self.next: int = 0
        self.epoch: int = -1
        """Of whoever leads the topic; older ones are refused."""
        self.gone: bool = False
        """Whether the topic was deleted."""
        self._segments = [MemorySegment(0, time.monotonic())]
        self._gap_from = self._gap_to = -1
        """Between these there are no messages, and the end is before them while nothing follows."""

    def seal(self, epoch: int) -> None:
        """Refuse older epochs from now on. Raises `FencedError` if this one is older itself."""
        self.check(epoch)
        self.epoch = epoch

    def check(self, epoch: int) -> None:
        """Raise if the topic has gone, or a newer epoch leads it."""
        if self.gone:
            raise UnknownTopicError(f"{self.place} was deleted")
        if epoch < self.epoch:
            raise FencedError(f"{self.place}: epoch {epoch} is older than {self.epoch}", epoch=self.epoch)

    @property
    def start(self) -> int:
        """The first position that can be read."""
        return self._segments[0].base

    @property
    def end(self) -> int:
        """The position after the last message: who reads up to here waits for nothing that never comes."""
        return self.next if self.next != self._gap_to else max(self._gap_from, self.start)

    def status(self) -> TopicStatus:
        """Start, end, next ordinal and size."""
        return TopicStatus(self.start, self.end, self.next, sum(segment.size for segment in self._segments))

    def raise_next(self, next_position: int) -> None:
        """Give no ordinal below `next_position` from now on."""
        if next_position > self.next:
            self._gap_from, self._gap_to = self.end, next_position
            self.next = next_position
            if self._segments[-1].messages:
                self.roll()
            else:
                self._segments[-1].base = next_position

    def discard(self) -> None:
        """The topic was deleted: forget the messages."""
        self.gone = True
        self._segments.clear()

    def append(self, messages: Sequence[Buffer]) -> tuple[int, int]:
        """Append all or none; returns the first and the last ordinal."""
        # dense or not: nothing is damaged here, so a gap need not be told from damage
        infos = inspect_all(self.place.topic, self.framing, messages, self.next, dense=False)
        now_ms = time.time_ns() // 1_000_000
        for message, info in zip(messages, infos, strict=True):
            segment = self._room_for(info.length)
            segment.add(message, info)
            segment.modified_ms = now_ms
            self.next = info.last + 1
        return infos[0].first, infos[-1].last

    def _room_for(self, length: int) -> MemorySegment:
        segment = self._segments[-1]
        if not segment.messages:
            segment.created = time.monotonic()
            return segment
        full = segment.size + length > self.settings.segment_bytes
        old = (time.monotonic() - segment.created) * 1000 > self.settings.segment_ms
        if full or old:
            self.roll()
        return self._segments[-1]

    def roll(self) -> None:
        """Begin another segment, unless the active one is empty."""
        if self._segments[-1].messages:
            self._segments.append(MemorySegment(self.next, time.monotonic()))

    def pull(self, position: int, max_bytes: int, max_messages: int | None) -> Pulled:
        """What there is from a position on, at most to the end of a segment."""
        if not self.start <= position <= self.next:
            raise PositionError(
                f"position {position} is not within {self.start} to {self.next}", start=self.start, end=self.next
            )
        index = max(0, bisect_right(self._segments, position, key=lambda segment: segment.base) - 1)
        for segment in self._segments[index:]:
            begin = bisect_left(segment.lasts, position)
            if begin == len(segment.lasts):
                continue
            offset = segment.ends[begin - 1] if begin else 0
            stop = max(begin + 1, bisect_right(segment.ends, offset + max_bytes))
            if max_messages is not None:
                stop = min(stop, begin + max(1, max_messages))
            chosen = segment.messages[begin:stop]
            data = chosen[0] if len(chosen) == 1 else b"".join(chosen)
            return Pulled(data, segment.firsts[begin], segment.lasts[stop - 1])
        return Pulled(b"", position, position - 1)

    def trim(self, before: int) -> int:
        """Drop the segments that lie wholly before a position; returns the new start."""
        if before >= self.next:
            self.roll()
        while len(self._segments) > 1 and self._segments[1].base <= before:
            del self._segments[0]
        return self.start

    def find_by_timestamp(self, timestamp: int, start: int) -> Found | None:
        """The first message, from the one holding `start` on, with a timestamp not below the given one."""
        for segment in self._segments:
            if segment.max_timestamp < timestamp:
                continue
            for index in range(bisect_left(segment.lasts, start), len(segment.lasts)):
                if segment.stamps[index] >= timestamp:
                    return Found(segment.firsts[index], segment.lasts[index], segment.stamps[index])
        return None

    def _closed(self, base: int) -> int:
        for number, segment in enumerate(self._segments[:-1]):
            if segment.base == base:
                return number
        raise PositionError(f"{self.place} has no closed segment at {base}", start=self.start, end=self.end)

    def rewriting(self, base: int) -> MemorySegment:
        """An empty segment that may take the place of a closed one."""
        old = self._segments[self._closed(base)]
        return MemorySegment(base, old.created, old.modified_ms, replaces=old)

    def _replaced_by(self, segment: MemorySegment) -> tuple[int, int]:
        """The number of the segment that such a one replaces, and its last ordinal."""
        number, old = self._closed(segment.base), segment.replaces
        if self._segments[number] is not old:
            raise PositionError(f"{self.place} was changed at {segment.base} meanwhile", start=self.start, end=self.end)
        return number, old.lasts[-1]

    def fill(self, segment: MemorySegment, messages: Sequence[Buffer]) -> None:
        """Add messages to such a segment. Raises `OrderError` if they do not fit."""
        _, last = self._replaced_by(segment)
        expected = segment.lasts[-1] + 1 if segment.lasts else segment.base
        infos = inspect_all(self.place.topic, self.framing, messages, expected, dense=self.settings.dense)
        if infos[-1].last > last:
            raise OrderError(f"{self.place}: ordinal {infos[-1].last} lies behind the segment, which ends with {last}")
        for message, info in zip(messages, infos, strict=True):
            segment.add(message, info)

    def replace(self, segment: MemorySegment) -> None:
        """Have such a segment take the place of the closed one."""
        number, last = self._replaced_by(segment)
        if not segment.lasts or segment.lasts[-1] < last:
            raise OrderError(f"{self.place}: the messages end before those of the segment, which ends with {last}")
        self._segments[number], segment.replaces = segment, None

    def segments(self) -> list[SegmentInfo]:
        """What retention decides upon."""
        nexts = [*(segment.base for segment in self._segments[1:]), self.next]
        return [
            SegmentInfo(
                segment.base, following, segment.size, segment.max_timestamp, segment.modified_ms,
                segment is self._segments[-1],
            )
            for segment, following in zip(self._segments, nexts, strict=True)
        ]  # fmt: skip
