"""A streams group with its time and its store held in hand: what the tests of its state machine drive."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from kclient.gateway.groups.assignors.tasks import NOTHING_TO_DO, TaskSets
from kclient.gateway.groups.events import Action, GroupSettings, Token
from kclient.gateway.groups.streaming.group import Looked, StreamsGroup, look
from kclient.gateway.groups.streaming.states import StreamsGroupState
from kclient.gateway.groups.streams_beats import StatusCode, StreamsBeat, StreamsBeatResult
from kclient.gateway.rows.streams_groups import STREAMS, decode_streams_group, decode_streams_member
from kclient.gateway.rows.streams_topology import StreamsTopic, Subtopology, Topology
from tests.unit.gateway_groups.progressbox import ProgressBox

COUNTS = Topology(0, (Subtopology("0", ("a",), (), (), (StreamsTopic("g-counts-changelog", 0, 0),), ()),))
"""Reads `a`, and keeps state."""
PLAIN = Topology(0, (Subtopology("0", ("a",), (), (), (), ()),))
"""Reads `a`, without state."""
NUMBERS = dict[str, list[int]]


class StreamsBox(ProgressBox[StreamsGroup, StreamsBeatResult, TaskSets]):
    """Runs a `StreamsGroup`: keeps the time, collects the replies, and stores at once unless told not to."""

    kind = STREAMS
    result = StreamsBeatResult

    def __init__(self, *, topics: dict[str, int] | None = None, topology: Topology = PLAIN, **settings: int) -> None:
        at_once = {"group_streams_initial_rebalance_delay_ms": 0, "group_streams_assignment_interval_ms": 0}
        super().__init__(topics=topics, **{**at_once, **settings})
        self.topology = topology
        self.looks = False
        """Whether what follows from the topology is found out before most heartbeats."""
        self.chance = random.Random(7)

    def make(self, settings: GroupSettings) -> StreamsGroup:
        return StreamsGroup("g", settings)

    def restore(self, row: bytes) -> Sequence[Action]:
        return self.group.restore(decode_streams_group(row, "g")[0], self.now)

    def restore_member(self, row: bytes, member_id: str) -> None:
        self.group.restore_member(decode_streams_member(row, member_id))

    def assigned(self, result: StreamsBeatResult) -> TaskSets | None:
        return result.tasks

    def state(self) -> StreamsGroupState:
        """The group's state: a call, which is made anew each time."""
        return self.group.state

    def ask(self, beat: StreamsBeat) -> Token:
        """A heartbeat; its answer may wait."""
        token = Token()
        looked = self.look(self.group.topology or self.topology) if self.looks and self.chance.random() < 0.8 else None
        self.run(self.group.heartbeat(beat, token, self.topics, self.now, looked))
        return token

    def look(self, topology: Topology) -> Looked:
        """What is found out of a topology before a heartbeat; topics may change meanwhile."""
        steps = look(topology, self.topics)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found: Looked = end.value
                return found
            if self.chance.random() < 0.1:
                self.topics.put("another", 1)

    def send(self, beat: StreamsBeat) -> StreamsBeatResult:
        """A heartbeat; what its answer says is taken over."""
        return self.told(beat.member_id, self.ask(beat))

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
