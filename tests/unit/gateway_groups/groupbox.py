"""A group with its time and its store held in hand: what the tests of the state machine drive."""

from __future__ import annotations

import itertools
from dataclasses import replace

from kclient.errors import ErrorCode
from kclient.gateway.groups.classic import ClassicGroup
from kclient.gateway.groups.events import (
    Action,
    GroupSettings,
    GroupSnapshot,
    Join,
    JoinResult,
    Leave,
    Reply,
    StoreSnapshot,
    Sync,
    SyncResult,
    Token,
)
from kclient.gateway.groups.states import GroupState

RANGE = (("range", b"topics"),)


class GroupBox:
    """Runs a `ClassicGroup`: keeps the time, collects the replies, and stores at once unless told not to."""

    def __init__(self, *, now: float = 100.0, **settings: int) -> None:
        self.settings = GroupSettings(**settings)
        self.now = now
        self.replies: dict[Token, JoinResult | SyncResult] = {}
        self.stored: list[GroupSnapshot] = []
        self.hold = False
        """Stores wait for `finish_stores`."""
        self.held: list[StoreSnapshot] = []
        self.issued: list[Token] = []
        self._ids = itertools.count(1)
        self.group = self.make()

    def make(self) -> ClassicGroup:
        return ClassicGroup("g", self.settings, lambda prefix: f"{prefix}-{next(self._ids)}")

    def run(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Reply):
                assert action.token not in self.replies, "a request was answered twice"
                self.replies[action.token] = action.result
            elif self.hold:
                self.held.append(action)
            else:
                self.finish(action)

    def finish(self, store: StoreSnapshot, error: ErrorCode = ErrorCode.NONE) -> None:
        if not error:
            self.stored.append(store.snapshot)
        self.run(self.group.stored(store.ticket, error, self.now))

    def finish_stores(self, error: ErrorCode = ErrorCode.NONE) -> None:
        held, self.held = self.held, []
        for store in held:
            self.finish(store, error)

    def sleep(self, seconds: float) -> None:
        """Let time pass, deadline by deadline."""
        end = self.now + seconds
        while (deadline := self.group.next_deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.run(self.group.advance(self.now))
        self.now = end

    def settle(self) -> None:
        """Let just the time pass that the rebalance needs."""
        while self.group.state is GroupState.PREPARING_REBALANCE:
            deadline = self.group.next_deadline()
            assert deadline is not None, "a rebalance without an end"
            self.sleep(deadline - self.now)

    def join(self, member_id: str = "", **fields: object) -> Token:
        join = Join(member_id, None, "client", "/127.0.0.1", 10_000, 30_000, "consumer", RANGE)
        token = self._token()
        self.run(self.group.join(replace(join, **fields), token, self.now))  # type: ignore[arg-type]
        return token

    def sync(self, member_id: str, generation: int | None = None, **fields: object) -> Token:
        token = self._token()
        generation = self.group.generation if generation is None else generation
        sync = replace(Sync(member_id, None, generation), **fields)  # type: ignore[arg-type]
        self.run(self.group.sync(sync, token, self.now))
        return token

    def heartbeat(self, member_id: str, generation: int | None = None, instance: str | None = None) -> ErrorCode:
        generation = self.group.generation if generation is None else generation
        return self.group.heartbeat(member_id, instance, generation, self.now)

    def commit(self, member_id: str, generation: int | None = None, instance: str | None = None) -> ErrorCode:
        generation = self.group.generation if generation is None else generation
        return self.group.check_commit(member_id, instance, generation, self.now)

    def leave(self, *leaving: str | Leave) -> list[ErrorCode]:
        leaves = [Leave(leave) if isinstance(leave, str) else leave for leave in leaving]
        errors, actions = self.group.leave(leaves, self.now)
        self.run(actions)
        return errors

    def joined(self, token: Token) -> JoinResult:
        result = self.replies[token]
        assert isinstance(result, JoinResult)
        return result

    def synced(self, token: Token) -> SyncResult:
        result = self.replies[token]
        assert isinstance(result, SyncResult)
        return result

    def parked(self, token: Token) -> bool:
        return token not in self.replies

    def stable(self, count: int = 1, **fields: object) -> list[str]:
        """Bring `count` members into a stable generation; returns their ids, the leader first."""
        tokens = [self.join(**fields) for _ in range(count)]
        self.settle()
        ids = [self.joined(token).member_id for token in tokens]
        assert self.group.members.leader is not None
        ids.sort(key=lambda member_id: member_id != self.group.members.leader)
        syncs = [self.sync(ids[0], assignments={member_id: member_id.encode() for member_id in ids})]
        syncs += [self.sync(member_id) for member_id in ids[1:]]
        assert all(self.synced(token).error is ErrorCode.NONE for token in syncs)
        return ids

    def _token(self) -> Token:
        token = Token()
        self.issued.append(token)
        return token
