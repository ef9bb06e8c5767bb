"""A share group with its time and its store held in hand: what the tests of its state machine drive."""

from __future__ import annotations

from collections.abc import Sequence

from kclient.gateway.groups.events import Beat, BeatResult, GroupSettings, Token
from kclient.gateway.groups.sharing.group import SharedGroup
from kclient.gateway.rows.consumer_groups import SHARE
from tests.unit.gateway_groups.assignedbox import PartitionsBox


class SharedBox(PartitionsBox[SharedGroup]):
    """Runs a `SharedGroup`: keeps the time, collects the replies, and stores at once unless told not to."""

    kind = SHARE

    def make(self, settings: GroupSettings) -> SharedGroup:
        return SharedGroup("g", settings)

    def ask(self, member: str, epoch: int, *, topics: Sequence[str] | None = None, rack: str | None = None) -> Token:
        """A heartbeat; its answer may wait."""
        token = Token()
        names = None if topics is None else tuple(sorted(topics))
        beat = Beat(member, epoch, None, rack, -1, "client", "/host", names, owned={})
        self.run(self.group.heartbeat(beat, token, self.topics, self.now))
        return token

    def enter(self, member: str, topics: Sequence[str] = ("a",), *, rack: str | None = None) -> BeatResult:
        """Join, as a client does."""
        self.owned[member] = {}
        return self.told(member, self.ask(member, 0, topics=topics, rack=rack))

    def goes_on(self, member: str, topics: Sequence[str] | None = None) -> BeatResult:
        """A heartbeat of a member."""
        return self.told(member, self.ask(member, self.epochs[member], topics=topics))

    def readers(self) -> dict[tuple[str, int], int]:
        """How many members were told that they may read each partition."""
        found: dict[tuple[str, int], int] = {}
        for member in self.group.members:
            for topic, numbers in self.has(member.member_id).items():
                for number in numbers:
                    found[topic, number] = found.get((topic, number), 0) + 1
        return found
