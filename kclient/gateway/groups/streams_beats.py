"""What a member of a streams group says in a heartbeat, and what it is told."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from kclient.errors import ErrorCode

if TYPE_CHECKING:
    from kclient.gateway.groups.assignors.tasks import TaskSets
    from kclient.gateway.rows.streams_topology import StreamsTopic, Topology


class StatusCode(IntEnum):
    """What a member has to know beside its tasks, numbered as in the protocol (KIP-1071)."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


class BeatStatus(NamedTuple):
    """One of these, in words."""

    code: StatusCode
    detail: str


class QueryEndpoint(NamedTuple):
    """Where a member answers queries of others."""

    host: str
    port: int


class Placed(NamedTuple):
    """Which partitions are read behind an endpoint."""

    endpoint: QueryEndpoint
    active: Mapping[str, Collection[int]]
    """By topic."""
    standby: Mapping[str, Collection[int]]


@dataclass(frozen=True, slots=True)
class StreamsBeat:
    """A StreamsGroupHeartbeat request: what is None has not changed."""

    member_id: str
    epoch: int
    """0 joins, less than 0 leaves; else the member's."""
    client_id: str = ""
    client_host: str = ""
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    """-1 if it has not changed."""
    topology: Topology | None = None
    owned: TaskSets | None = None
    """The tasks that the member has."""
    process_id: str | None = None
    endpoint: QueryEndpoint | None = None
    tags: tuple[tuple[str, str], ...] | None = None
    endpoints_epoch: int = 0
    """Of what it knows of others' endpoints."""
    shutdown: bool = False
    """Whether all members are to end."""


@dataclass(frozen=True, slots=True)
class StreamsBeatResult:
    """The answer to a StreamsGroupHeartbeat request."""

    error: ErrorCode
    member_id: str = ""
    epoch: int = 0
    tasks: TaskSets | None = None
    """What the member has now; None if that has not changed."""
    status: tuple[BeatStatus, ...] = ()
    missing: tuple[StreamsTopic, ...] = ()
    """Topics that have to be made."""
    endpoints_epoch: int = 0
    placed: tuple[Placed, ...] | None = None
    """Who has which partitions; None if the member knows."""
    message: str | None = None
    """What is wrong."""
