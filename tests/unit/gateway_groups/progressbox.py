"""A group whose members have epochs, with its time and its store held in hand: what the tests of all types drive."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from kclient.errors import ErrorCode
from kclient.gateway.groups.events import Action, BeatResult, GroupSettings, Reply, StoreRows, Token, WorkOut
from kclient.gateway.groups.progress import GroupProgress
from kclient.gateway.groups.streams_beats import StreamsBeatResult
from kclient.gateway.rows.groups import type_of_group
from kclient.gateway.rows.keys import GROUPS, parse_member_key

G = TypeVar("G", bound=GroupProgress[Any, Any, Any, Any])
R = TypeVar("R", BeatResult, StreamsBeatResult)
T = TypeVar("T")
"""What a member was told that it has."""


@dataclass
class BoxTopic:
    """Of a topic's record only what groups look at."""

    name: str
    topic_id: bytes
    partitions: int


@dataclass
class BoxTopics:
    """A catalogue that grows and shrinks."""

    by_name: dict[str, BoxTopic] = field(default_factory=dict)
    changes: int = 0
    changed: list[str] = field(default_factory=list)
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def get(self, name: str) -> BoxTopic | None:
        return self.by_name.get(name)

    def __iter__(self) -> Iterator[BoxTopic]:
        return iter(list(self.by_name.values()))

    def changed_since(self, changes: int) -> set[str]:
        return set(self.changed[changes:])

    def put(self, name: str, partitions: int) -> None:
        known = self.by_name.get(name)
        topic_id = next(self._ids).to_bytes(16, "big") if known is None else known.topic_id
        self.by_name[name] = BoxTopic(name, topic_id, partitions)
        self.changes += 1
        self.changed.append(name)

    def drop(self, name: str) -> None:
        del self.by_name[name]
        self.changes += 1
        self.changed.append(name)

    def named(self, topic_id: bytes) -> str:
        return next(name for name, topic in self.by_name.items() if topic.topic_id == topic_id)


class ProgressBox(Generic[G, R, T]):
    """Runs a group: keeps the time, collects the replies, and stores at once unless told not to."""

    kind: str
    """The type of the group."""
    result: type[R]
    """What an answer says."""

    def __init__(self, *, topics: dict[str, int] | None = None, now: float = 100.0, **settings: int) -> None:
        self.topics = BoxTopics()
        for name, count in (topics or {"a": 4}).items():
            self.topics.put(name, count)
        self.settings = GroupSettings(**settings)
        self.now = now
        self.replies: dict[Token, R] = {}
        self.rows: dict[str, bytes] = {}
        self.hold = False
        """Stores wait for `finish_stores`."""
        self.held: list[StoreRows] = []
        self.slow = False
        """Targets wait for `finish_work`."""
        self.working: list[WorkOut] = []
        self.group = self.make(self.settings)
        self.epochs: dict[str, int] = {}
        self.owned: dict[str, T] = {}
        self.commits = 0

    def make(self, settings: GroupSettings) -> G:
        """A group without members."""
        raise NotImplementedError

    def restore(self, row: bytes) -> Sequence[Action]:
        """Have the group be what its row says."""
        raise NotImplementedError

    def restore_member(self, row: bytes, member_id: str) -> None:
        """Have the group have a member again, as its row says."""
        raise NotImplementedError

    def assigned(self, result: R) -> T | None:
        """What an answer says that a member has; None if it says nothing of it."""
        raise NotImplementedError

    def run(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Reply):
                assert action.token not in self.replies, "a request was answered twice"
                assert isinstance(action.result, self.result)
                self.replies[action.token] = action.result
            elif isinstance(action, WorkOut) and self.slow:
                self.working.append(action)
            elif isinstance(action, WorkOut):
                self.run(action.done(action.work(), self.now))
            elif isinstance(action, StoreRows):
                self.held.append(action)
        if not self.hold:
            self.finish_stores()

    def finish_work(self) -> None:
        while self.working:
            work = self.working.pop(0)
            self.run(work.done(work.work(), self.now))

    def finish_stores(self, error: ErrorCode = ErrorCode.NONE) -> None:
        while self.held:
            store = self.held.pop(0)
            self.commits += 1
            for key, row in store.rows(int(self.now * 1000)):
                assert row is None or isinstance(row, bytes)
                if error:
                    continue
                if row is None:
                    self.rows.pop(key, None)
                else:
                    self.rows[key] = row
            self.run(self.group.stored(store.ticket, error, self.now))

    def advance(self, seconds: float) -> None:
        """Let time pass, a deadline after the other."""
        end = self.now + seconds
        while (deadline := self.group.next_deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.run(self.group.advance(self.now))
        self.now = end

    def restart(self) -> None:
        """Another coordinator reads what was stored."""
        self.group = self.make(self.settings)
        self.held.clear()
        for key, row in self.rows.items():
            if key.startswith(GROUPS):
                assert type_of_group(row) == self.kind
                self.run(self.restore(row))
        for key, row in self.rows.items():
            if not key.startswith(GROUPS):
                self.restore_member(row, parse_member_key(key)[1])
        self.run(self.group.restored(self.now))

    def told(self, member: str, token: Token) -> R:
        """Take over what an answer says; what is not in it was given up by the next heartbeat."""
        result = self.replies[token]
        if not result.error:
            self.epochs[member] = result.epoch
            assigned = self.assigned(result)
            if assigned is not None:
                self.owned[member] = assigned
        return result
