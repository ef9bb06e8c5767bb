"""Fetch sessions (KIP-227): the gateway remembers what a consumer fetches, so that only changes are sent.

A session goes through epochs: the request that makes it has epoch 0, the next ones 1, 2, ...; epoch -1 ends it.
The cache is pure: it takes requests and the time, and holds no partition, only their coordinates.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kclient.errors import FetchSessionIdNotFoundError, FetchSessionTopicIdError, InvalidFetchSessionEpochError

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
NO_SESSION: Final = 0
_EPOCHS: Final = 2**31
EVICTION_S: Final = 120.0
"""A session that was used within so many seconds keeps its place when the cache is full (as in Kafka)."""


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


@dataclass(slots=True)
class FetchSession:
    """What one consumer fetches."""

    session_id: int
    by_id: bool
    partitions: dict[Key, Wanted] = field(default_factory=dict)
    epoch: int = 1
    """The epoch that the next request has to have."""
    used: float = 0.0


class Plan(NamedTuple):
    """What a fetch request asks for, its session taken into account."""

    wanted: list[Wanted]
    session: FetchSession | None
    incremental: bool
    """Whether only partitions with news are answered."""

    @property
    def session_id(self) -> int:
        """What the response calls the session."""
        return self.session.session_id if self.session is not None else NO_SESSION


class FetchSessionCache:
    """All fetch sessions of a gateway, at most `slots`."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._sessions: dict[int, FetchSession] = {}  # least recently used first

    def __len__(self) -> int:
        return len(self._sessions)

    def plan(
        self,
        session_id: int,
        epoch: int,
        wanted: Sequence[Wanted],
        forgotten: Iterable[Key],
        now: float,
        *,
        by_id: bool,
    ) -> Plan:
        """Take a request's place in its session.

        Raises:
            FetchSessionIdNotFoundError: There is no such session (any more): the client starts another.
            InvalidFetchSessionEpochError: The request is not the session's next one.
            FetchSessionTopicIdError: The session goes by names and the request by ids, or the other way round.
        """
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(session_id, None)
            made = self._make(wanted, now, by_id=by_id) if epoch == INITIAL_EPOCH else None
            return Plan(list(wanted), made, incremental=False)
        session = self._sessions.get(session_id)
        if session is None:
            raise FetchSessionIdNotFoundError(f"there is no fetch session {session_id}")
        if session.epoch != epoch:
            raise InvalidFetchSessionEpochError(
                f"fetch session {session_id} is at epoch {session.epoch}, the request says {epoch}"
            )
        if session.by_id != by_id:
            raise FetchSessionTopicIdError(f"fetch session {session_id} names topics in another way")
        return self._go_on(session, wanted, forgotten, now)

    def _go_on(self, session: FetchSession, wanted: Sequence[Wanted], forgotten: Iterable[Key], now: float) -> Plan:
        for item in wanted:
            known = session.partitions.get(item.key)
            if known is None:
                session.partitions[item.key] = item
            else:
                known.offset, known.max_bytes, known.leader_epoch = item.offset, item.max_bytes, item.leader_epoch
        for key in forgotten:
            session.partitions.pop(key, None)
        session.epoch = session.epoch % (_EPOCHS - 1) + 1
        session.used = now
        self._sessions.pop(session.session_id, None)
        if not session.partitions:
            return Plan([], None, incremental=False)
        self._sessions[session.session_id] = session
        return Plan(list(session.partitions.values()), session, incremental=True)

    def _make(self, wanted: Sequence[Wanted], now: float, *, by_id: bool) -> FetchSession | None:
        if not wanted or not self._room(now):
            return None
        while (session_id := random.randrange(1, _EPOCHS)) in self._sessions:
            pass
        session = FetchSession(session_id, by_id, {item.key: item for item in wanted}, used=now)
        self._sessions[session_id] = session
        return session

    def _room(self, now: float) -> bool:
        if len(self._sessions) < self._slots:
            return True
        for session_id, oldest in self._sessions.items():
            if now - oldest.used < EVICTION_S:
                return False
            del self._sessions[session_id]
            return True
        return False

    @staticmethod
    def answered(session: FetchSession, keys: Iterable[Key]) -> None:
        """These partitions had records: others come first the next time, so that none starves."""
        for key in keys:
            item = session.partitions.pop(key, None)
            if item is not None:
                session.partitions[key] = item
