"""Values that the group's state machine and those who drive it exchange."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, TypeAlias

from kclient.cluster import Backoff
from kclient.types import ConsumerGroupMetadata as ConsumerGroupMetadata

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from kclient.protocol.message import ApiMessage
    from kclient.types import TopicPartition

RacksOf: TypeAlias = "Callable[[str], Sequence[Collection[str]]]"
"""Tells of a topic the racks of each partition's replicas, as far as brokers tell them."""


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """What the coordinator needs of the configuration; times in seconds."""

    group_id: str
    group_instance_id: str | None = None
    session_timeout: float = 45.0
    """`session.timeout.ms`"""
    heartbeat_interval: float = 3.0
    """`heartbeat.interval.ms`"""
    max_poll_interval: float = 300.0
    """`max.poll.interval.ms`: also how long the broker waits for members to rejoin."""
    retry_backoff: Backoff = field(default_factory=lambda: Backoff(100, 1000))
    """`retry.backoff.ms` to `retry.backoff.max.ms`"""
    request_timeout: float = 30.0
    """`request.timeout.ms`"""
    client_rack: str | None = None
    """`client.rack`"""
    remote_assignor: str | None = None
    """`group.remote.assignor`: which of the broker's assignors the group should use; None leaves it to the broker."""


class RequestKind(Enum):
    """The requests of a group member."""

    FIND_COORDINATOR = "FindCoordinator"
    JOIN = "JoinGroup"
    SYNC = "SyncGroup"
    HEARTBEAT = "Heartbeat"
    LEAVE = "LeaveGroup"
    CONSUMER_HEARTBEAT = "ConsumerGroupHeartbeat"
    SHARE_HEARTBEAT = "ShareGroupHeartbeat"


@dataclass(frozen=True, slots=True, eq=False)
class GroupRequest:
    """A request to send; its answer goes to `Membership.received`, an error to `failed`."""

    kind: RequestKind
    node_id: int | None
    """The broker to ask; None for any."""
    request_class: type[ApiMessage]
    build: Callable[[int], ApiMessage]
    """Makes the message in the version that was negotiated."""
    timeout: float
    """Seconds to wait for the answer."""
    parks: bool = False
    """Whether the broker may keep it for minutes, until the group has gathered. It answers a connection in order, so
    these have one of their own."""


@dataclass(frozen=True, slots=True)
class Todo:
    """What is to be done now, and when to ask again."""

    requests: list[GroupRequest] = field(default_factory=list)
    wake_at: float = inf
    """Monotonic time in seconds; infinite if only an event can change anything."""
    refresh: object | None = None
    """Fetch the metadata anew and say so to `Membership.refreshed`, with this object."""
    resolve: frozenset[bytes] = frozenset()
    """Ids of topics whose names are to be found, and told to `Membership.resolved`."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Before joining: commit, run the listener, give partitions up, then call `prepared`."""

    lost: bool
    """Whether the partitions belong to others already, so nothing may be committed."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Complete:
    """After joining: take the assignment over, run the listener, then call `completed`."""

    assigned: tuple[TopicPartition, ...]
    user_data: bytes | None
    generation_id: int
    protocol: str
    """Name of the assignor that was used."""


Step: TypeAlias = Prepare | Complete
"""What the caller of `poll` has to do for the group, in its own thread or task."""
