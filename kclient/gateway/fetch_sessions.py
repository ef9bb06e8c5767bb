"""Fetch sessions (KIP-227): the gateway remembers what a consumer fetches, so that only changes are sent.

A session goes through epochs: the request that makes it has epoch 0, the next ones 1, 2, ...; epoch -1 ends it.
The cache is pure: it takes requests and the time, and holds no partition, only their coordinates.

Sessions take memory for as long as they last, so they count against the share of the connection that made them, end
with it (a client that comes back makes another), and have a bound together. A fetch that gets none is served all the
same, but has to name all its partitions every time.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from kclient.errors import FetchSessionIdNotFoundError, FetchSessionTopicIdError, InvalidFetchSessionEpochError

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_NO_SESSION: Final = 0
_EPOCHS: Final = 2**31
EVICTION_S: Final = 120.0
"""A session that was used within so many seconds keeps its place when the cache is full (as in Kafka)."""


_PER_PARTITION: Final = 250
"""About how many bytes of memory a session takes for each partition, beside the name of its topic."""
_AT_A_TIME: Final = 256
"""Partitions that are taken into account between two pauses."""
_MEASURED: Final = 2048
"""Partitions that are measured between two pauses."""


class Owner(Protocol):
    """The share of the connection that a session belongs to (`kclient.net.memory_budget.Share`)."""

    def keep(self, size: int) -> object:
        """Hold so many bytes more, or less, beyond the end of a request."""
        ...


class Key(NamedTuple):
    """The coordinates of a partition as a request names it: by topic name (up to v12) or by topic id."""

    topic: str
    topic_id: bytes
    partition: int


@dataclass(slots=True)
class Wanted:
    """One partition of a fetch: where to read, how much, and what the client was told last."""

    key: Key
    offset: int
    max_bytes: int
    leader_epoch: int = -1
    told_high_watermark: int = -1
    told_start: int = -1

    def is_news(self, error_code: int, high_watermark: int, start: int, size: int) -> bool:
        """Whether the client has to be told; remembers that it is."""
        news = bool(size or error_code or self.told_high_watermark != high_watermark or self.told_start != start)
        # After an error the next success is news, whatever it says.
        self.told_high_watermark = -1 if error_code else high_watermark
        self.told_start = start
        return news


@dataclass(slots=True, eq=False)
class FetchSession:
    """What one consumer fetches."""

    session_id: int
    by_id: bool
    partitions: dict[Key, Wanted] = field(default_factory=dict)
    epoch: int = 1
    """The epoch that the next request has to have."""
    used: float = 0.0
    owner: Owner | None = None
    busy: bool = False
    """Whether a request of it is being read."""
    held: int = 0
    """Bytes that count against the owner's share."""
    size: int = 0
    """Bytes of memory that it takes, about."""

    def add(self, item: Wanted) -> None:
        """One more partition; what is known of it is replaced."""
        if item.key not in self.partitions:
            self.size += _size(item.key)
        self.partitions[item.key] = item

    def forget(self, key: Key) -> None:
        """A partition is fetched no more."""
        if self.partitions.pop(key, None) is not None:
            self.size -= _size(key)


def _size(key: Key) -> int:
    """About how many bytes of memory a session takes for a partition: each may have a name that no other has."""
    return _PER_PARTITION + sys.getsizeof(key.topic)


class FetchPlan(NamedTuple):
    """What a fetch request asks for, its session taken into account."""

    wanted: list[Wanted]
    session: FetchSession | None
    incremental: bool
    """Whether only partitions with news are answered."""

    @property
    def session_id(self) -> int:
        """What the response calls the session."""
        return self.session.session_id if self.session is not None else _NO_SESSION


class FetchSessionCache:
    """All fetch sessions of a gateway.

    Args:
        slots: How many there may be.
        memory: How many bytes they may take together, about.
        discard: Is given the partitions of a session that has ended, which may be very many.
    """

    def __init__(
        self, slots: int, memory: int = 1 << 62, discard: Callable[[dict[Key, Wanted]], object] | None = None
    ) -> None:
        self._discard = discard
        self._slots = slots
        self._memory = memory
        self._held = 0
        self._sessions: dict[int, FetchSession] = {}  # least recently used first

    def __len__(self) -> int:
        return len(self._sessions)

    def plan(
        self,
        session_id: int,
        epoch: int,
        wanted: list[Wanted],
        forgotten: Iterable[Key],
        now: float,
        *,
        by_id: bool,
        owner: Owner | None = None,
    ) -> FetchPlan:
        """Take a request's place in its session.

        Raises:
            FetchSessionIdNotFoundError: There is no such session (any more), or no memory for what the request adds to
                it: the client starts another.
            InvalidFetchSessionEpochError: The request is not the session's next one.
            FetchSessionTopicIdError: The session goes by names and the request by ids, or the other way round.
        """
        steps = self.plan_steps(session_id, epoch, wanted, forgotten, now, by_id=by_id, owner=owner)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                plan: FetchPlan = end.value
                return plan

    def plan_steps(
        self,
        session_id: int,
        epoch: int,
        wanted: list[Wanted],
        forgotten: Iterable[Key],
        now: float,
        *,
        by_id: bool,
        owner: Owner | None = None,
    ) -> Generator[None, None, FetchPlan]:
        """As `plan`, with pauses."""
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._drop(session_id)
            made = None
            if epoch == INITIAL_EPOCH:
                made = yield from self._make(wanted, now, owner, by_id=by_id)
            return FetchPlan(wanted, made, incremental=False)
        session = self._sessions.get(session_id)
        if session is None:
            raise FetchSessionIdNotFoundError(f"there is no fetch session {session_id}")
        if session.epoch != epoch or session.busy:
            raise InvalidFetchSessionEpochError(
                f"fetch session {session_id} is at epoch {session.epoch}, the request says {epoch}"
            )
        if session.by_id != by_id:
            raise FetchSessionTopicIdError(f"fetch session {session_id} names topics in another way")
        return (yield from self._go_on(session, wanted, forgotten, now))

    def drop(self, session: FetchSession) -> None:
        """End a session that its client has not been told of."""
        if self._sessions.get(session.session_id) is session:
            self._drop(session.session_id)

    def is_small(self, session_id: int, most: int) -> bool:
        """Whether a session has no more than so many partitions; one that there is not has none."""
        session = self._sessions.get(session_id)
        return session is None or len(session.partitions) <= most

    def drop_all_of(self, owner: Owner) -> None:
        """A connection has ended, and its sessions with it."""
        for session in [session for session in self._sessions.values() if session.owner is owner]:
            self._drop(session.session_id)

    def _go_on(
        self, session: FetchSession, wanted: Sequence[Wanted], forgotten: Iterable[Key], now: float
    ) -> Generator[None, None, FetchPlan]:
        session.used = now
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        session.busy = True
        try:
            for count, item in enumerate(wanted):
                known = session.partitions.get(item.key)
                if known is None:
                    session.add(item)
                else:
                    known.offset, known.max_bytes, known.leader_epoch = item.offset, item.max_bytes, item.leader_epoch
                if count % _AT_A_TIME == _AT_A_TIME - 1:
                    self._hold(session, now)
                    yield
            for count, key in enumerate(forgotten):
                session.forget(key)
                if count % _AT_A_TIME == _AT_A_TIME - 1:
                    yield
        finally:
            session.busy = False
        session.epoch = session.epoch % (_EPOCHS - 1) + 1
        self._hold(session, now)
        if not session.partitions:
            self._drop(session.session_id)
            return FetchPlan([], None, incremental=False)
        everything: list[Wanted] = []
        for item in session.partitions.values():
            everything.append(item)
            if len(everything) % _AT_A_TIME == 0:
                session.busy = True  # nobody else changes it meanwhile
                try:
                    yield
                finally:
                    session.busy = False
                if session.session_id not in self._sessions:  # its partitions are being given up
                    raise FetchSessionIdNotFoundError(f"fetch session {session.session_id} has ended")
        return FetchPlan(everything, session, incremental=True)

    def _make(
        self, wanted: Sequence[Wanted], now: float, owner: Owner | None, *, by_id: bool
    ) -> Generator[None, None, FetchSession | None]:
        size = 0
        for begin in range(0, len(wanted), _MEASURED):
            if begin:
                yield
            size += sum(_size(item.key) for item in wanted[begin : begin + _MEASURED])
        if not wanted or not self._room(now, size, slots=1):
            return None
        while (session_id := random.randrange(1, _EPOCHS)) in self._sessions:
            pass
        session = FetchSession(session_id, by_id, used=now, owner=owner, busy=True)
        self._sessions[session_id] = session
        self._count(session, size)  # before it is made: others are made meanwhile
        try:
            for count, item in enumerate(wanted):
                session.add(item)
                if count % _AT_A_TIME == _AT_A_TIME - 1:
                    yield
                    if session_id not in self._sessions:
                        return None  # its connection has ended meanwhile
            session.busy = False
        finally:
            if session.busy:
                self._drop(session_id)
        self._count(session, session.size)
        return session

    def _room(self, now: float, size: int, slots: int) -> bool:
        """Make room for more, as far as sessions have not been used for long."""
        for session_id, oldest in list(self._sessions.items()):
            if self._fits(size, slots):
                return True
            if oldest.busy or now - oldest.used < EVICTION_S:
                return False
            self._drop(session_id)
        return self._fits(size, slots)

    def _fits(self, size: int, slots: int) -> bool:
        return len(self._sessions) + slots <= self._slots and self._held + size <= self._memory

    def _drop(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._release(session)

    def _hold(self, session: FetchSession, now: float) -> None:
        """Count what a session takes now; one that has grown beyond what there is has to end."""
        if session.session_id not in self._sessions:
            raise FetchSessionIdNotFoundError(f"fetch session {session.session_id} has ended")
        more = session.size - session.held
        if more > 0 and not self._room(now, more, slots=0):
            self._drop(session.session_id)
            raise FetchSessionIdNotFoundError(
                f"fetch session {session.session_id} has ended: there is no memory for {len(session.partitions)} "
                "partitions of it"
            )
        self._count(session, session.size)

    def _release(self, session: FetchSession) -> None:
        self._count(session, 0)
        if self._discard is not None:
            self._discard(session.partitions)

    def _count(self, session: FetchSession, size: int) -> None:
        change, session.held = size - session.held, size
        self._held += change
        if session.owner is not None and change:
            session.owner.keep(change)

    @staticmethod
    def answered(session: FetchSession, keys: Iterable[Key]) -> None:
        """These partitions had records: others come first the next time, so that none starves."""
        if session.busy:
            return  # the next request is being read already
        for key in keys:
            item = session.partitions.pop(key, None)
            if item is not None:
                session.partitions[key] = item
