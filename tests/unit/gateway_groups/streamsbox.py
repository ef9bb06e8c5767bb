"""A streams group with its time and its store held in hand: what the tests of its state machine drive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kclient.errors import ErrorCode
from kclient.gateway.groups.assignors.tasks import NOTHING_TO_DO, TaskSets
from kclient.gateway.groups.events import Action, GroupSettings, Reply, StoreRows, Token, WorkOut
from kclient.gateway.groups.streaming.group import StreamsGroup
from kclient.gateway.groups.streaming.states import StreamsGroupState
from kclient.gateway.groups.streams_beats import StatusCode, StreamsBeat, StreamsBeatResult
from kclient.gateway.rows.keys import GROUPS, parse_member_key
from kclient.gateway.rows.streams_groups import decode_streams_group, decode_streams_member
from kclient.gateway.rows.streams_topology import StreamsTopic, Subtopology, Topology
from tests.unit.gateway_groups.assignedbox import BoxTopics

COUNTS = Topology(0, (Subtopology("0", ("a",), (), (), (StreamsTopic("g-counts-changelog", 0, 0),), ()),))
"""Reads `a`, and keeps state."""
PLAIN = Topology(0, (Subtopology("0", ("a",), (), (), (), ()),))
"""Reads `a`, without state."""
NUMBERS = dict[str, list[int]]


class StreamsBox:
    """Runs a `StreamsGroup`: keeps the time, collects the replies, and stores at once unless told not to."""

    def __init__(self, *, topics: dict[str, int] | None = None, topology: Topology = PLAIN, **settings: int) -> None:
        self.topics = BoxTopics()
        for name, count in (topics or {"a": 4}).items():
            self.topics.put(name, count)
        self.topology = topology
        self.settings = GroupSettings(
            **{"group_streams_initial_rebalance_delay_ms": 0, "group_streams_assignment_interval_ms": 0, **settings}
        )
        self.now = 100.0
        self.group = StreamsGroup("g", self.settings)
        self.replies: dict[Token, StreamsBeatResult] = {}
        self.rows: dict[str, bytes] = {}
        self.hold = False
        """Stores wait for `finish_stores`."""
        self.held: list[StoreRows] = []
        self.slow = False
        """Targets wait for `finish_work`."""
        self.working: list[WorkOut] = []
        self.epochs: dict[str, int] = {}
        self.owned: dict[str, TaskSets] = {}

    def state(self) -> StreamsGroupState:
        """The group's state: a call, which is made anew each time."""
        return self.group.state

    def run(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Reply):
                assert action.token not in self.replies, "a request was answered twice"
                assert isinstance(action.result, StreamsBeatResult)
                self.replies[action.token] = action.result
            elif isinstance(action, WorkOut):
                self.working.append(action)
            elif isinstance(action, StoreRows):
                self.held.append(action)
        if not self.slow:
            self.finish_work()
        if not self.hold:
            self.finish_stores()

    def finish_work(self) -> None:
        while self.working:
            work = self.working.pop(0)
            self.run(work.done(work.work(), self.now))

    def finish_stores(self, error: ErrorCode = ErrorCode.NONE) -> None:
        while self.held:
            store = self.held.pop(0)
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
        self.group = StreamsGroup("g", self.settings)
        self.held.clear()
        for key, row in self.rows.items():
            if key.startswith(GROUPS):
                self.run(self.group.restore(decode_streams_group(row, "g")[0], self.now))
        for key, row in self.rows.items():
            if not key.startswith(GROUPS):
                self.group.restore_member(decode_streams_member(row, parse_member_key(key)[1]))
        self.run(self.group.restored(self.now))

    def ask(self, beat: StreamsBeat) -> Token:
        """A heartbeat; its answer may wait."""
        token = Token()
        self.run(self.group.heartbeat(beat, token, self.topics, self.now))
        return token

    def send(self, beat: StreamsBeat) -> StreamsBeatResult:
        """A heartbeat; what its answer says is taken over."""
        return self.told(beat.member_id, self.ask(beat))

    def told(self, member: str, token: Token) -> StreamsBeatResult:
        result = self.replies[token]
        if not result.error:
            self.epochs[member] = result.epoch
            if result.tasks is not None:
                self.owned[member] = result.tasks
        return result

    def entry(self, member: str, process: str | None = None) -> StreamsBeat:
        """The first heartbeat of a member."""
        return StreamsBeat(
            member, 0, "client", "/host", None, 10_000, self.topology, NOTHING_TO_DO, process or f"p-{member}", None, ()
        )  # fmt: skip

    def enter(self, member: str, process: str | None = None) -> StreamsBeatResult:
        """Join, as a client does."""
        self.owned[member] = NOTHING_TO_DO
        return self.send(self.entry(member, process))

    def beat(self, member: str) -> StreamsBeat:
        """A heartbeat that tells nothing new."""
        return StreamsBeat(member, self.epochs[member], "client", "/host")

    def goes_on(self, member: str, *, full: bool = True) -> StreamsBeatResult:
        """A heartbeat of a member, that tells what it has unless nothing has changed."""
        return self.send(replace(self.beat(member), owned=self.owned[member] if full else None))

    def settle(self, *members: str) -> None:
        """Heartbeats of these until nothing changes."""
        for _ in range(10):
            for member in members:
                self.goes_on(member)

    def active(self, member: str) -> NUMBERS:
        return {name: sorted(numbers) for name, numbers in self.owned[member].active.items()}

    def standby(self, member: str) -> NUMBERS:
        return {name: sorted(numbers) for name, numbers in self.owned[member].standby.items()}

    def once(self) -> None:
        """Nobody has an active task that somebody else has, too; no process has a task twice."""
        actives: list[tuple[str, int]] = []
        processes: list[tuple[str, str, int]] = []
        for member in self.group.members:
            for role, tasks in zip(("active", "standby", "warmup"), member.assigned.sets, strict=True):
                for name, numbers in tasks.items():
                    for number in numbers:
                        processes.append((member.process_id, name, number))
                        if role == "active":
                            actives.append((name, number))
        assert len(actives) == len(set(actives))
        assert len(processes) == len(set(processes))


def codes(result: StreamsBeatResult) -> list[StatusCode]:
    """What a member is told beside its tasks."""
    return [status.code for status in result.status]
