"""The members of a group: who is in it, which protocols they share, who leads."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from kclient.errors import ErrorCode
from kclient.gateway.groups.events import NOBODY, UNKNOWN_MEMBER, Join, Protocols, Token
from kclient.gateway.rows.groups import MemberSnapshot

_ROUNDED: Final = 64
_PROTOCOL: Final = 60
"""About how many bytes of memory a protocol of a member takes, beside its name and metadata."""
_SUPPORTED: Final = 100
"""The same of a protocol in the count of those who support it."""


class Member:
    """A member of a group.

    Args:
        member_id: Its id.
        instance_id: The `group.instance.id` of a static member (KIP-345).
        client_id: Of its requests.
        client_host: Where they come from.
        session_timeout_ms: How long it may not be heard of.
        rebalance_timeout_ms: How long it takes to rejoin.
        protocols: What it supports.
        assignment: What it was assigned last.
        is_new: Its first JoinGroup has not been answered yet.
    """

    __slots__ = (
        "_assignment", "_join_token", "_protocols", "_sync_token", "client_host", "client_id", "instance_id", "is_new",
        "member_id", "named", "rebalance_timeout_ms", "roster", "session_timeout_ms",
    )  # fmt: skip

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocols: Protocols,
        assignment: bytes = b"",
        *,
        is_new: bool = False,
    ) -> None:
        self.member_id: str = member_id
        self.instance_id: str | None = instance_id
        self.client_id: str = client_id
        self.client_host: str = client_host
        self.session_timeout_ms: int = session_timeout_ms
        self.rebalance_timeout_ms: int = rebalance_timeout_ms
        self.is_new: bool = is_new
        self.named: int = 0
        """Bytes of its ids, as its roster has counted them."""
        self.roster: Roster | None = None
        """Where it is counted."""
        self._assignment = assignment
        self._protocols = protocols
        self._join_token: Token | None = None
        self._sync_token: Token | None = None

    @property
    def protocols(self) -> Protocols:
        """What it supports, in its order of preference."""
        return self._protocols

    @protocols.setter
    def protocols(self, protocols: Protocols) -> None:
        if self.roster is not None:
            self.roster.count_protocols(self._protocols, -1)
            self.roster.count_protocols(protocols, 1)
        self._protocols = protocols

    @property
    def assignment(self) -> bytes:
        """What it was assigned last."""
        return self._assignment

    @assignment.setter
    def assignment(self, assignment: bytes) -> None:
        if self.roster is not None:
            self.roster.assigned += len(assignment) - len(self._assignment)
        self._assignment = assignment

    @property
    def join_token(self) -> Token | None:
        """Its parked JoinGroup."""
        return self._join_token

    @join_token.setter
    def join_token(self, token: Token | None) -> None:
        if self.roster is not None:
            self.roster.joined += (token is not None) - (self._join_token is not None)
            self.roster.move_token(self, self._join_token, token)
        self._join_token = token

    @property
    def sync_token(self) -> Token | None:
        """Its parked SyncGroup."""
        return self._sync_token

    @sync_token.setter
    def sync_token(self, token: Token | None) -> None:
        if self.roster is not None:
            self.roster.move_token(self, self._sync_token, token)
        self._sync_token = token

    @property
    def is_static(self) -> bool:
        """Whether it has a `group.instance.id` (KIP-345)."""
        return self.instance_id is not None

    @property
    def heartbeat_satisfied(self) -> bool:
        """Whether a missing heartbeat is forgiven: a parked request holds the client up. A new member's is not,
        since its connection may be gone without notice."""
        return not self.is_new and (_waits(self.join_token) or _waits(self.sync_token))

    def count_names(self) -> int:
        """Bytes of memory that its ids take: they are as long as clients like."""
        return memory_of_names(self.member_id, self.instance_id, self.client_id, self.client_host)

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


def memory_of_names(*names: str | None) -> int:
    """Bytes of memory that names take, in steps: one in which a number gets another digit mostly takes no more."""
    return sum(-(-sys.getsizeof(name or "") // _ROUNDED) * _ROUNDED for name in names)


def memory_of_protocols(protocols: Protocols) -> int:
    """Bytes of memory that protocols take, which may be many with short names and no metadata."""
    return sum(_PROTOCOL + sys.getsizeof(name) + sys.getsizeof(metadata) for name, metadata in protocols)


def size_of(protocols: Protocols) -> int:
    """Bytes of protocols, as `group.max.metadata.bytes` counts them."""
    return sum(len(name) + len(metadata) for name, metadata in protocols)


def _waits(token: Token | None) -> bool:
    """Whether somebody waits for the answer."""
    return token is not None and token is not NOBODY


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


class PendingIds:
    """Ids that were given out and whose owners have not come back yet."""

    __slots__ = ("_ids", "size")

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self.size: int = 0
        """Bytes of memory that they take themselves."""

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._ids

    def add(self, member_id: str) -> None:
        """An id was given out."""
        if member_id not in self._ids:
            self._ids.add(member_id)
            self.size += sys.getsizeof(member_id)

    def discard(self, member_id: str) -> None:
        """Its owner has come, or is expected no longer."""
        if member_id in self._ids:
            self._ids.remove(member_id)
            self.size -= sys.getsizeof(member_id)

    def clear(self) -> None:
        """None is expected any longer."""
        self._ids.clear()
        self.size = 0


class Roster:
    """The members by id, in the order in which they came, with the indexes that go with them."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._static: dict[str, str] = {}
        self._supporters: Counter[str] = Counter()
        self.joined: int = 0
        """How many members have a parked JoinGroup."""
        self.size: int = 0
        """Bytes of the members' metadata."""
        self._protocols = 0
        self.assigned: int = 0
        """Bytes of their assignments."""
        self.named: int = 0
        """Bytes of their ids."""
        self.changes: int = 0
        """Grows whenever a member comes or goes, or supports something else."""
        self._parked: dict[Token, Member] = {}
        self.leader: str | None = None
        self.pending_joins: PendingIds = PendingIds()
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

    def place_of(self, member_id: str, instance_id: str | None) -> Member | None:
        """The member whose place somebody takes who joins: its own, or that of its instance id if it has none yet."""
        if member_id == UNKNOWN_MEMBER:
            member_id = self.static_id(instance_id) or UNKNOWN_MEMBER
        return self.get(member_id)

    def static_id(self, instance_id: str | None) -> str | None:
        """The member id of a static member, or None."""
        return None if instance_id is None else self._static.get(instance_id)

    def add(self, member: Member) -> None:
        """Add a member; the first one leads."""
        self._members[member.member_id] = member
        member.roster = self
        self._count_names(member)
        self.assigned += len(member.assignment)
        self.joined += member.join_token is not None
        for token in (member.join_token, member.sync_token):
            self.move_token(member, None, token)
        self.count_protocols(member.protocols, 1)
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
        member.roster = None
        self.named -= member.named
        self.assigned -= len(member.assignment)
        self.joined -= member.join_token is not None
        for token in (member.join_token, member.sync_token):
            self.move_token(member, token, None)
        self.count_protocols(member.protocols, -1)
        if member.instance_id is not None and self._static.get(member.instance_id) == member_id:
            del self._static[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self._members), None)
        return member

    def replace(self, old_id: str, new_id: str, join: Join) -> Member:
        """Give a static member the ids of who came back; it keeps its assignment and the lead, and comes last."""
        member = self._members.pop(old_id)
        member.member_id = new_id
        member.client_id, member.client_host = join.client_id, join.client_host
        self._count_names(member)
        self._members[new_id] = member
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

    def _count_names(self, member: Member) -> None:
        before, member.named = member.named, member.count_names()
        self.named += member.named - before

    def move_token(self, member: Member, old: Token | None, new: Token | None) -> None:
        """A member has parked another request, or none any more."""
        if old is not None and old is not NOBODY:
            self._parked.pop(old, None)
        if new is not None and new is not NOBODY:
            self._parked[new] = member

    def parked_by(self, token: Token) -> Member | None:
        """The member whose parked request a token stands for."""
        return self._parked.get(token)

    def count_protocols(self, protocols: Protocols, members: int) -> None:
        """So many more members (or fewer) support these protocols."""
        self.changes += 1
        self.size += members * size_of(protocols)
        self._protocols += members * memory_of_protocols(protocols)
        for name in {name for name, _ in protocols}:
            self._supporters[name] += members
            if not self._supporters[name]:
                del self._supporters[name]

    @property
    def held(self) -> int:
        """Bytes of memory that all of it takes, beside the members themselves."""
        return self._protocols + _SUPPORTED * len(self._supporters) + self.assigned + self.named

    def candidates(self) -> set[str]:
        """The protocols that every member supports."""
        return {name for name, count in self._supporters.items() if count == len(self._members)}

    def shares_protocol(self, names: Iterable[str]) -> bool:
        """Whether one of the names is supported by every member."""
        return any(self._supporters[name] == len(self._members) for name in names)

    def elect_protocol(self) -> str:
        """The protocol with the most votes; of equal ones, the one that was voted for first."""
        candidates = self.candidates()
        votes = Counter(member.vote(candidates) for member in self._members.values())
        return max(votes, key=votes.__getitem__)

    def elect_joined_leader(self) -> bool:
        """Keep the leader if its JoinGroup is here, else let the first member lead whose JoinGroup is.

        Those come first who wait for the answer.
        """
        if self.leader is None:
            return False
        leader = self._members[self.leader]
        if _waits(leader.join_token):
            return True
        found = next((member for member in self._members.values() if _waits(member.join_token)), None)
        if found is None and leader.join_token is None:
            found = next((member for member in self._members.values() if member.join_token is not None), None)
            if found is None:
                return False
        if found is not None:
            self.leader = found.member_id
        return True

    @property
    def all_joined(self) -> bool:
        """Whether every member has rejoined and nobody with a pending id is still expected."""
        return not self.pending_joins and self.joined == len(self._members)

    @property
    def rebalance_timeout(self) -> float:
        """The longest rebalance timeout of the members, in seconds."""
        return max((member.rebalance_timeout_ms for member in self._members.values()), default=0) / 1000
