"""What goes into a group's state machine, and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kclient.errors import ErrorCode
from kclient.gateway.groups.streams_beats import StreamsBeatResult
from kclient.gateway.rows.groups import GroupSnapshot

if TYPE_CHECKING:
    from kclient.gateway.groups.writer import Parts

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
    group_consumer_session_timeout_ms: int = 45_000
    """How long a member of a consumer group may not be heard of."""
    group_consumer_heartbeat_interval_ms: int = 5_000
    """How often it is to be heard of."""
    group_consumer_max_size: int = 2_147_483_647
    """The most members a consumer group may have."""
    group_consumer_migration_policy: str = "bidirectional"
    """Whether live groups go from the classic protocol to that of consumer groups (`upgrade`), back, or both."""
    group_consumer_assignment_interval_ms: int = 1_000
    """The least time between two targets of a consumer group."""
    group_share_session_timeout_ms: int = 45_000
    """How long a member of a share group may not be heard of."""
    group_share_heartbeat_interval_ms: int = 5_000
    """How often it is to be heard of."""
    group_share_max_size: int = 200
    """The most members a share group may have."""
    group_share_assignment_interval_ms: int = 1_000
    """The least time between two targets of a share group."""
    group_streams_session_timeout_ms: int = 45_000
    """How long a member of a streams group may not be heard of."""
    group_streams_heartbeat_interval_ms: int = 5_000
    """How often it is to be heard of."""
    group_streams_max_size: int = 2_147_483_647
    """The most members a streams group may have."""
    group_streams_num_standby_replicas: int = 0
    """How many standby tasks each task with state has in a streams group."""
    group_streams_initial_rebalance_delay_ms: int = 3_000
    """How long a streams group without members waits for more of them before its first target."""
    group_streams_assignment_interval_ms: int = 1_000
    """The least time between two targets of a streams group."""
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


@dataclass(frozen=True, slots=True)
class Beat:
    """A ConsumerGroupHeartbeat or ShareGroupHeartbeat request: what is None has not changed."""

    member_id: str
    epoch: int
    """0 joins, -1 leaves, -2 leaves for a while; else the member's."""
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int
    """-1 if it has not changed."""
    client_id: str
    client_host: str
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: Mapping[bytes, AbstractSet[int]] | None = None
    """The partitions that the member has, by topic id."""

    @property
    def is_full(self) -> bool:
        """Whether it says everything, so that the answer has to as well."""
        if not self.epoch:
            return True
        subscribes = self.topics is not None or self.pattern is not None
        return self.rebalance_timeout_ms != -1 and subscribes and self.owned is not None


@dataclass(frozen=True, slots=True)
class BeatResult:
    """The answer to a ConsumerGroupHeartbeat or ShareGroupHeartbeat request."""

    error: ErrorCode
    member_id: str | None = None
    epoch: int = 0
    assigned: Mapping[bytes, Collection[int]] | None = None
    """What the member may read, by topic id, in no order; None if that has not changed."""
    message: str | None = None
    """What is wrong."""


class Token:
    """Stands for one parked request: the group holds it and names it in the `Reply`. Compared by identity."""

    __slots__ = ()


NOBODY: Final = Token()
"""Stands for a request whose client has gone: the member has joined (or synced), and nobody waits for the answer."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Action: answer the request that `token` stands for."""

    token: Token
    result: JoinResult | SyncResult | BeatResult | StreamsBeatResult

    def refused(self, error: ErrorCode) -> Reply:
        """The answer with an error instead."""
        result = self.result
        if isinstance(result, JoinResult):
            return Reply(self.token, JoinResult(error, result.member_id))
        if isinstance(result, StreamsBeatResult):
            return Reply(self.token, StreamsBeatResult(error))
        return Reply(self.token, SyncResult(error) if isinstance(result, SyncResult) else BeatResult(error))


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


class RowsStored:
    """Ticket of a store of several rows: what was taken along when these were made."""

    __slots__ = ("replies", "taken")

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        """Answers that wait for it."""
        self.taken: dict[str, None] = {}
        """Whose rows."""


Ticket: TypeAlias = AssignmentStored | ReplacementStored | EmptyStored | RowsStored


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """Action: store the snapshot, then call the group's `stored` with the ticket."""

    snapshot: GroupSnapshot
    ticket: Ticket
    size: int = 0
    """About how many bytes of memory the snapshot takes until then."""


@dataclass(frozen=True, slots=True)
class StoreRows:
    """Action: store rows of a group that has several, then call the group's `stored` with the ticket."""

    rows: Callable[[int], Parts]
    """Makes them, given the time (wall clock)."""
    ticket: RowsStored
    size: int = 0
    """About how many bytes of memory they take until then."""
    emptied: bool = False
    """Whether nobody is in the group since then."""


@dataclass(frozen=True, slots=True)
class WorkOut:
    """Action: work out an assignment, in a thread if that takes long, and call `done` with it."""

    work: Callable[[], Mapping[str, Any]]
    """Finds out what each member is to have. Touches nothing that changes."""
    cost: int
    """How many members and partitions it is about."""
    done: Callable[[Any, float], Sequence[Action]]
    """Takes the result, or None where it failed, and the time; says what is to be done."""


@dataclass(frozen=True, slots=True)
class Become:
    """Action: go on as a group of another type, which begins with a snapshot."""

    kind: str
    """Its type."""
    snapshot: Any
    """Of that type."""
    gone: Sequence[str]
    """The keys of rows that such a group has not."""
    reason: str


Action: TypeAlias = Reply | StoreSnapshot | StoreRows | WorkOut | Become
