"""A whole group in simulated time: clients that follow the protocol, a network that delays and loses, a coordinator
that restarts. Nothing waits; the events lie in a heap."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

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
    Sync,
    SyncResult,
    Token,
)

PARTITIONS = 12
RETRY = 5.0  # a client sends a request again when there is no answer for this long beyond the rebalance timeout


@dataclass(eq=False)
class SimulatedMember:
    """A consumer: joins, syncs, sends heartbeats, starts over when it is told to."""

    world: World
    name: str
    instance_id: str | None = None
    member_id: str = ""
    generation: int = -1
    assignment: set[int] = field(default_factory=set)
    alive: bool = True
    fenced: bool = False
    turn: int = 0  # answers and timers of earlier turns are ignored

    def start(self) -> None:
        self.turn += 1
        turn = self.turn
        self.assignment = set()
        join = Join(
            self.member_id, self.instance_id, self.name, "/sim", 10_000, 30_000, "consumer",
            (("range", b""),), require_member_id=self.instance_id is None,
        )  # fmt: skip
        self.world.request(self, turn, lambda group, token: group.join(join, token, self.world.now), self.on_join)
        self.world.after(30 + RETRY, lambda: self.if_current(turn, self.start))

    def if_current(self, turn: int, action: Callable[[], None]) -> None:
        if self.alive and self.turn == turn:
            action()

    def on_join(self, result: object) -> None:
        assert isinstance(result, JoinResult)
        if result.error is ErrorCode.NONE:
            self.member_id, self.generation = result.member_id, result.generation
            self.sync(result)
        elif result.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = result.member_id
            self.start()
        else:
            self.start_over(result.error)

    def start_over(self, error: ErrorCode) -> None:
        if error is ErrorCode.FENCED_INSTANCE_ID:
            self.alive, self.fenced = False, True
            return
        self.turn += 1
        turn = self.turn
        self.assignment = set()
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self.member_id, self.generation = "", -1
        self.world.after(0.1, lambda: self.if_current(turn, self.start))

    def sync(self, joined: JoinResult) -> None:
        self.turn += 1
        turn = self.turn
        assignments: dict[str, bytes] = {}
        if joined.leader == self.member_id:
            ids = sorted(member for member, _, _ in joined.members)
            shares = {member: list(range(i, PARTITIONS, len(ids))) for i, member in enumerate(ids)}
            assignments = {member: bytes(share) for member, share in shares.items()}
            self.world.assigned(self.generation, assignments)
        sync = Sync(self.member_id, self.instance_id, self.generation, assignments)
        self.world.request(self, turn, lambda group, token: group.sync(sync, token, self.world.now), self.on_sync)
        self.world.after(30 + RETRY, lambda: self.if_current(turn, self.start))

    def on_sync(self, result: object) -> None:
        assert isinstance(result, SyncResult)
        if result.error:
            self.start_over(result.error)
            return
        self.world.check_assignment(self, result.assignment)
        self.assignment = set(result.assignment)
        self.turn += 1
        self.beat(self.turn)

    def beat(self, turn: int) -> None:
        error = self.world.heartbeat(self)
        if error is None or error is ErrorCode.NONE:
            self.world.after(3.0, lambda: self.if_current(turn, lambda: self.beat(turn)))
        else:
            self.start_over(error)

    def crash(self) -> None:
        self.alive = False
        self.turn += 1

    def leave(self) -> None:
        self.crash()
        if self.member_id:
            self.world.leave(self)


class World:
    """The coordinator's group, the clients, the network and the time."""

    def __init__(self, seed: int, *, loss: float, **settings: int) -> None:
        self.random = random.Random(seed)
        self.loss = loss
        self.now = 1000.0
        self.members: list[SimulatedMember] = []
        self.stored: GroupSnapshot | None = None
        self.epoch = 0
        self.assignments: dict[tuple[int, int], list[dict[str, bytes]]] = {}
        self._settings = GroupSettings(**settings)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._ids = itertools.count(1)
        self._waiting: dict[Token, Callable[[object], None]] = {}
        self._generations: list[int] = []
        self.group = self._new_group()

    def _new_group(self) -> ClassicGroup:
        return ClassicGroup("g", self._settings, lambda prefix: f"{prefix}-{next(self._ids)}")

    # ---- time ----

    def after(self, delay: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._order), action))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while True:
            event = self._events[0][0] if self._events else float("inf")
            deadline = self.group.next_deadline()
            at = min(event, float("inf") if deadline is None else deadline)
            if at > end:
                break
            self.now = max(self.now, at)
            if deadline is not None and deadline <= event:
                self.perform(self.group.advance(self.now))
            else:
                heapq.heappop(self._events)[2]()
            self.check()
        self.now = end

    def check(self) -> None:
        roster = self.group.members
        ids = [member.member_id for member in roster]
        assert len(ids) == len(set(ids))
        assert roster.leader is None or roster.leader in ids
        assert (roster.leader is None) == (not ids)
        assert not any(each in roster.pending_joins for each in ids)
        assert roster.pending_syncs <= set(ids)

    # ---- the network ----

    def lost(self) -> bool:
        return self.random.random() < self.loss

    def latency(self) -> float:
        return self.random.uniform(0.001, 0.2)

    def request(
        self,
        member: SimulatedMember,
        turn: int,
        call: Callable[[ClassicGroup, Token], list[Action]],
        on_result: Callable[[object], None],
    ) -> None:
        def answered(result: object) -> None:
            if not self.lost():
                self.after(self.latency(), lambda: member.if_current(turn, lambda: on_result(result)))

        def arrive() -> None:
            token = Token()
            self._waiting[token] = answered
            self.perform(call(self.group, token))

        if not self.lost():
            self.after(self.latency(), arrive)

    def heartbeat(self, member: SimulatedMember) -> ErrorCode | None:
        if self.lost():
            return None
        return self.group.heartbeat(member.member_id, member.instance_id, member.generation, self.now)

    def leave(self, member: SimulatedMember) -> None:
        if not self.lost():
            _, actions = self.group.leave([Leave(member.member_id, member.instance_id)], self.now)
            self.perform(actions)

    # ---- the coordinator ----

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Reply):
                self._waiting.pop(action.token)(action.result)  # KeyError: answered twice
                continue
            store, group = action, self.group

            def stored(store: object = store, group: ClassicGroup = group) -> None:
                if group is self.group:
                    self.stored = store.snapshot  # type: ignore[attr-defined]
                    assert self.stored is not None
                    self._generations.append(self.stored.generation)
                    assert self._generations == sorted(self._generations)
                    self.perform(group.stored(store.ticket, ErrorCode.NONE, self.now))  # type: ignore[attr-defined]

            self.after(self.random.uniform(0.0005, 0.05), stored)

    def restart(self) -> None:
        """The gateway is killed and comes back: what was parked and not stored is gone."""
        self.epoch += 1
        self._waiting.clear()
        self.group = self._new_group()
        if self.stored is not None:
            self.perform(self.group.restore(self.stored, self.now))

    # ---- what must hold ----

    def assigned(self, generation: int, assignments: dict[str, bytes]) -> None:
        for epoch in (self.epoch, self.epoch + 1):  # stored, and seen again after a restart
            self.assignments.setdefault((epoch, generation), []).append(assignments)

    def check_assignment(self, member: SimulatedMember, assignment: bytes) -> None:
        """What a member is given is what a leader of that generation made for it."""
        made = [
            assignments.get(member.member_id)
            for (_, generation), all_made in self.assignments.items()
            if generation == member.generation
            for assignments in all_made
        ]
        # a static member may have taken over the place of its former id
        assert assignment in made or member.instance_id is not None or not made
