"""What goes into a group's state machine, and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from kclient.errors import ErrorCode
from kclient.gateway.rows.groups import GroupSnapshot

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]
"""A member's protocols in its order of preference: name and opaque metadata."""

_NO_GENERATION = -1
"""The generation that clients without group membership send."""

UNKNOWN_MEMBER = ""
"""The member id of a client that has none yet."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The broker settings that govern groups, under Kafka's names."""

    group_initial_rebalance_delay_ms: int = 3_000
    """How long an empty group waits for more members before its first generation; each newcomer extends it."""
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = 2_147_483_647
    """The most members a group may have."""
    group_max_metadata_bytes: int = 8_388_608
    """The most bytes of metadata that the members of a group may have, and of the assignments that it is given."""
    offset_metadata_max_bytes: int = 4_096
    """The longest text that may be committed with an offset."""
    offsets_retention_minutes: int = 10_080
    """How long the offsets of a group without members are kept."""
    offsets_retention_check_interval_ms: int = 600_000
    group_new_member_join_timeout_ms: int = 300_000
    """How long a new member's parked JoinGroup keeps it in the group (its connection may be gone)."""


@dataclass(frozen=True, slots=True)
class Join:
    """A JoinGroup request."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    require_member_id: bool = False
    """The client understands MEMBER_ID_REQUIRED (version 4 on, KIP-394)."""
    can_skip_assignment: bool = False
    """The client understands `skip_assignment` (version 9 on, KIP-814)."""
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class JoinResult:
    """The answer to a JoinGroup request."""

    error: ErrorCode
    member_id: str
    generation: int = _NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = UNKNOWN_MEMBER
    skip_assignment: bool = False
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    """For the leader: member id, group instance id and metadata of everyone."""


@dataclass(frozen=True, slots=True)
class Sync:
    """A SyncGroup request."""

    member_id: str
    instance_id: str | None
    generation: int
    assignments: Mapping[str, bytes] = field(default_factory=dict)
    """The leader's assignment for each member id; empty from followers."""
    protocol_type: str | None = None
    protocol_name: str | None = None


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The answer to a SyncGroup request."""

    error: ErrorCode
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol_name: str | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """One of the members that a LeaveGroup request names."""

    member_id: str
    instance_id: str | None = None
    reason: str | None = None


class Token:
    """Stands for one parked request: the group holds it and names it in the `Reply`. Compared by identity."""

    __slots__ = ()


NOBODY: Final = Token()
"""Stands for a request whose client has gone: the member has joined (or synced), and nobody waits for the answer."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Action: answer the request that `token` stands for."""

    token: Token
    result: JoinResult | SyncResult


@dataclass(frozen=True, slots=True)
class AssignmentStored:
    """Ticket of a store: the leader's assignment for a generation."""

    generation: int
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class ReplacementStored:
    """Ticket of a store: a static member came back under a new member id."""

    token: Token
    old_member_id: str
    new_member_id: str
    old_leader: str | None
    can_skip_assignment: bool


@dataclass(frozen=True, slots=True)
class EmptyStored:
    """Ticket of a store: the group has become empty; nothing waits for it."""

    generation: int


Ticket: TypeAlias = AssignmentStored | ReplacementStored | EmptyStored


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """Action: store the snapshot, then call the group's `stored` with the ticket."""

    snapshot: GroupSnapshot
    ticket: Ticket
    size: int = 0
    """About how many bytes of memory the snapshot takes until then."""


Action: TypeAlias = Reply | StoreSnapshot
