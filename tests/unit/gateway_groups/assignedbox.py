"""A consumer group with its time and its store held in hand: what the tests of its state machine drive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from kclient.gateway.groups.consumers.group import AssignedGroup
from kclient.gateway.groups.consumers.progress import ConsumerProgress
from kclient.gateway.groups.consumers.reading import LookedUp, TopicsRead
from kclient.gateway.groups.events import Action, Beat, BeatResult, GroupSettings, Token
from kclient.gateway.rows.consumer_groups import CONSUMER, decode_consumer_group, decode_consumer_member
from tests.unit.gateway_groups.progressbox import ProgressBox

G = TypeVar("G", bound=ConsumerProgress)
Numbers = dict[str, list[int]]
"""Partitions by the names of topics."""


class PartitionsBox(ProgressBox[G, BeatResult, dict[bytes, list[int]]]):
    """Runs a group whose members are given partitions."""

    result = BeatResult

    def restore(self, row: bytes) -> Sequence[Action]:
        return self.group.restore(decode_consumer_group(row, "g")[0], self.now)

    def restore_member(self, row: bytes, member_id: str) -> None:
        self.group.restore_member(decode_consumer_member(row, member_id))

    def assigned(self, result: BeatResult) -> dict[bytes, list[int]] | None:
        if result.assigned is None:
            return None
        return {topic: sorted(numbers) for topic, numbers in result.assigned.items()}

    def has(self, member: str) -> Numbers:
        """What a member was told that it may read."""
        return {self.topics.named(topic): numbers for topic, numbers in self.owned[member].items() if numbers}


class AssignedBox(PartitionsBox[AssignedGroup]):
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
