"""The members of a group: who is in it, which protocols they share, who leads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kclient.errors import ErrorCode
from kclient.gateway.groups.events import Join, MemberSnapshot, Protocols, Token


@dataclass(slots=True)
class Member:
    """A member of a group."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False
    """Its first JoinGroup has not been answered yet."""
    join_token: Token | None = field(default=None, repr=False)
    """Its parked JoinGroup."""
    sync_token: Token | None = field(default=None, repr=False)
    """Its parked SyncGroup."""

    @property
    def is_static(self) -> bool:
        """Whether it has a `group.instance.id` (KIP-345)."""
        return self.instance_id is not None

    @property
    def heartbeat_satisfied(self) -> bool:
        """Whether a missing heartbeat is forgiven: a parked request holds the client up. A new member's is not,
        since its connection may be gone without notice."""
        return not self.is_new and (self.join_token is not None or self.sync_token is not None)

    def metadata(self, protocol: str) -> bytes:
        """Its metadata for a protocol; empty when it does not support it."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def vote(self, candidates: set[str]) -> str:
        """Of the candidates, the protocol this member likes best."""
        return next(name for name, _ in self.protocols if name in candidates)

    def snapshot(self, assignment: bytes | None = None) -> MemberSnapshot:
        """The member as it is stored, with an assignment that does not hold yet."""
        return MemberSnapshot(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            self.protocols,
            self.assignment if assignment is None else assignment,
        )


def member_of(join: Join, member_id: str) -> Member:
    """A new member, as its JoinGroup describes it."""
    return Member(
        member_id,
        join.instance_id,
        join.client_id,
        join.client_host,
        join.session_timeout_ms,
        join.rebalance_timeout_ms,
        join.protocols,
        is_new=True,
    )


class Roster:
    """The members by id, in the order in which they came, with the indexes that go with them."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._static: dict[str, str] = {}
        self.leader: str | None = None
        self.pending_joins: set[str] = set()
        """Ids handed out with MEMBER_ID_REQUIRED whose owners have not come back yet."""
        self.pending_syncs: set[str] = set()
        """Members whose SyncGroup of this generation is still missing."""

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def __getitem__(self, member_id: str) -> Member:
        return self._members[member_id]

    def get(self, member_id: str) -> Member | None:
        """The member with this id, or None."""
        return self._members.get(member_id)

    def static_id(self, instance_id: str | None) -> str | None:
        """The member id of a static member, or None."""
        return None if instance_id is None else self._static.get(instance_id)

    def add(self, member: Member) -> None:
        """Add a member; the first one leads."""
        self._members[member.member_id] = member
        self.pending_joins.discard(member.member_id)
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> Member | None:
        """Remove a member; if it led, the next one in order leads."""
        member = self._members.pop(member_id, None)
        self.pending_joins.discard(member_id)
        self.pending_syncs.discard(member_id)
        if member is None:
            return None
        if member.instance_id is not None and self._static.get(member.instance_id) == member_id:
            del self._static[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self._members), None)
        return member

    def rename(self, old_id: str, new_id: str) -> Member:
        """Give a static member a new id; it keeps its place, its assignment and the lead."""
        member = self._members[old_id]
        member.member_id = new_id
        self._members = {new_id if key == old_id else key: value for key, value in self._members.items()}
        if member.instance_id is not None:
            self._static[member.instance_id] = new_id
        if old_id in self.pending_syncs:
            self.pending_syncs.discard(old_id)
            self.pending_syncs.add(new_id)
        if self.leader == old_id:
            self.leader = new_id
        return member

    def check(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Whether the ids belong together and to a member: NONE, UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
        if instance_id is not None:
            owner = self._static.get(instance_id)
            if owner is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if owner != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self._members else ErrorCode.UNKNOWN_MEMBER_ID

    def candidates(self) -> set[str]:
        """The protocols that every member supports."""
        counts = Counter(name for member in self._members.values() for name, _ in dict(member.protocols).items())
        return {name for name, count in counts.items() if count == len(self._members)}

    def shares_protocol(self, names: Iterable[str]) -> bool:
        """Whether one of the names is supported by every member."""
        return not self.candidates().isdisjoint(names)

    def elect_protocol(self) -> str:
        """The protocol with the most votes; of equal ones, the one that was voted for first."""
        candidates = self.candidates()
        votes = Counter(member.vote(candidates) for member in self._members.values())
        return max(votes, key=votes.__getitem__)

    def elect_joined_leader(self) -> bool:
        """Keep the leader if its JoinGroup is here, else let the first member lead whose JoinGroup is."""
        if self.leader is None:
            return False
        if self._members[self.leader].join_token is not None:
            return True
        for member in self._members.values():
            if member.join_token is not None:
                self.leader = member.member_id
                return True
        return False

    @property
    def joined(self) -> int:
        """How many members have a parked JoinGroup."""
        return sum(member.join_token is not None for member in self._members.values())

    @property
    def all_joined(self) -> bool:
        """Whether every member has rejoined and nobody with a pending id is still expected."""
        return not self.pending_joins and all(member.join_token is not None for member in self._members.values())

    @property
    def rebalance_timeout(self) -> float:
        """The longest rebalance timeout of the members, in seconds."""
        return max((member.rebalance_timeout_ms for member in self._members.values()), default=0) / 1000
