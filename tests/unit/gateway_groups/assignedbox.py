"""A consumer group with its time and its store held in hand: what the tests of its state machine drive."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kclient.errors import ErrorCode
from kclient.gateway.groups.consumers.group import AssignedGroup
from kclient.gateway.groups.consumers.progress import GroupProgress
from kclient.gateway.groups.consumers.reading import LookedUp, TopicsRead
from kclient.gateway.groups.events import Action, Beat, BeatResult, GroupSettings, Reply, StoreRows, Token, WorkOut
from kclient.gateway.rows.consumer_groups import CONSUMER, decode_consumer_group, decode_consumer_member
from kclient.gateway.rows.groups import type_of_group
from kclient.gateway.rows.keys import GROUPS, parse_member_key

G = TypeVar("G", bound=GroupProgress)
Numbers = dict[str, list[int]]
"""Partitions by the names of topics."""


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


class GroupBox(Generic[G]):
    """Runs a group: keeps the time, collects the replies, and stores at once unless told not to."""

    kind: str

    def __init__(self, *, topics: dict[str, int] | None = None, now: float = 100.0, **settings: int) -> None:
        self.topics = BoxTopics()
        for name, count in (topics or {"a": 4}).items():
            self.topics.put(name, count)
        self.settings = GroupSettings(**settings)
        self.now = now
        self.replies: dict[Token, BeatResult] = {}
        self.rows: dict[str, bytes] = {}
        self.hold = False
        """Stores wait for `finish_stores`."""
        self.held: list[StoreRows] = []
        self.slow = False
        """Targets wait for `finish_work`."""
        self.working: list[WorkOut] = []
        self.group = self.make(self.settings)
        self.epochs: dict[str, int] = {}
        self.owned: dict[str, dict[bytes, list[int]]] = {}
        self.commits = 0

    def make(self, settings: GroupSettings) -> G:
        """A group without members."""
        raise NotImplementedError

    def run(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Reply):
                assert action.token not in self.replies, "a request was answered twice"
                assert isinstance(action.result, BeatResult)
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
                self.run(self.group.restore(decode_consumer_group(row, "g")[0], self.now))
        for key, row in self.rows.items():
            if not key.startswith(GROUPS):
                self.group.restore_member(decode_consumer_member(row, parse_member_key(key)[1]))
        self.run(self.group.restored(self.now))

    def told(self, member: str, token: Token) -> BeatResult:
        """Take over what an answer says; what is not in it was given up by the next heartbeat."""
        result = self.replies[token]
        if not result.error:
            self.epochs[member] = result.epoch
            if result.assigned is not None:
                self.owned[member] = {topic: sorted(numbers) for topic, numbers in result.assigned.items()}
        return result

    def has(self, member: str) -> Numbers:
        """What a member was told that it may read."""
        return {self.topics.named(topic): numbers for topic, numbers in self.owned[member].items() if numbers}


class AssignedBox(GroupBox[AssignedGroup]):
    """Runs an `AssignedGroup`."""

    kind = CONSUMER

    def make(self, settings: GroupSettings) -> AssignedGroup:
        return AssignedGroup("g", settings)

    def send(
        self,
        member: str,
        epoch: int,
        *,
        topics: Sequence[str] | None = None,
        owned: dict[bytes, list[int]] | None = None,
        instance: str | None = None,
        timeout_ms: int = -1,
        pattern: str | None = None,
        assignor: str | None = None,
        resolved: dict[str, frozenset[str]] | None = None,
    ) -> Token:
        """A heartbeat; its answer may wait. `resolved` names the topics that patterns stand for, all of them."""
        token = Token()
        held = None if owned is None else {topic: frozenset(numbers) for topic, numbers in owned.items()}
        names = None if topics is None else tuple(sorted(topics))
        beat = Beat(member, epoch, instance, None, timeout_ms, "client", "/host", names, pattern, assignor, held)
        found = [self.looked_up(each, names) for each, names in (resolved or {}).items()]
        self.run(self.group.heartbeat(beat, token, self.topics, self.now, found))
        return token

    def looked_up(self, pattern: str, names: Iterable[str]) -> LookedUp:
        """What a pattern stands for."""
        whole = TopicsRead()
        whole.update(names, self.topics, self.topics.changes)
        return LookedUp(pattern, -1, self.topics.changes, whole, {})

    def join(self, member: str, topics: Sequence[str] = ("a",), **more: object) -> BeatResult:
        """Join, as a client does."""
        self.owned[member] = {}
        token = self.send(member, 0, topics=topics, owned={}, timeout_ms=60_000, **more)  # type: ignore[arg-type]
        return self.told(member, token)

    def beat(self, member: str, **more: object) -> BeatResult:
        """A heartbeat of a client that has done what it was told."""
        token = self.send(member, self.epochs[member], owned=self.owned[member], **more)  # type: ignore[arg-type]
        return self.told(member, token)

    def settle(self, *members: str, turns: int = 6) -> None:
        """Have all of them beat until nothing is left to do."""
        for _ in range(turns):
            self.advance(1.0)
            for member in members:
                self.beat(member)
        assert self.group.shown_state == "Stable"

    def check(self) -> None:
        """Nobody has what another one has, and the store knows it."""
        seen: dict[tuple[bytes, int], str] = {}
        for member in self.group.members:
            for held in (member.assigned, member.revoking):
                for topic, numbers in held.items():
                    for number in numbers:
                        assert seen.setdefault((topic, number), member.member_id) == member.member_id
