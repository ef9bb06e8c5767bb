"""What the handlers share: the gateway's services, and what a request carries with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kclient.gateway.config import BrokerConfig
    from kclient.gateway.dynamic_config import DynamicConfig
    from kclient.gateway.groups import GroupCoordinator
    from kclient.gateway.handlers import HandlerTable
    from kclient.gateway.partitions import PartitionTable
    from kclient.gateway.producer_ids import ProducerIds
    from kclient.gateway.topics import TopicCatalogue, TopicRecord
    from kclient.htp.port import Broker, Lease, Manager


@dataclass(slots=True, frozen=True)
class Advertised:
    """The address under which clients of one listener find this gateway."""

    host: str
    port: int
    listener: str = "PLAINTEXT"


@dataclass(slots=True)
class ConnectionContext:
    """One client connection: where it came from, and the listener's advertised address."""

    peer: str
    """The peer's address as text, for logs: `127.0.0.1:40312`, or `memory:NAME`."""
    client_host: str
    """The peer's host as Kafka shows it in group descriptions: `/127.0.0.1`."""
    advertised: Advertised
    client_software: tuple[str, str] = ("unknown", "unknown")
    """Name and version of the client, as its ApiVersions request told (KIP-511)."""


@dataclass(slots=True)
class RequestContext:
    """One request's header, and the connection it came on."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    connection: ConnectionContext


@dataclass(slots=True)
class Core:
    """The services of one running gateway; every handler holds it."""

    config: BrokerConfig
    manager: Manager
    broker: Broker
    lease: Lease
    """The gateway's one lease; its epoch fences every write."""
    node_id: int
    cluster_id: str
    spawn: Callable[..., object]
    """`spawn(async_function, *args, name="...")`: a background task owned by the gateway. Its failure is the
    gateway's failure; expected errors are handled inside."""
    leader_epoch: int
    """The leader epoch of every partition: it grows with each start of a gateway on the store."""
    dynamic: DynamicConfig = field(init=False)
    """What of `config` was changed since the start."""
    topics: TopicCatalogue = field(init=False)
    partitions: PartitionTable = field(init=False)
    producer_ids: ProducerIds = field(init=False)
    groups: GroupCoordinator = field(init=False)
    """Made by `GroupCoordinator(core)`; the gateway awaits its `start()` before it listens, `aclose()` when it
    drains."""
    table: HandlerTable = field(init=False)
    on_topic_deleted: list[Callable[[TopicRecord], object]] = field(default_factory=list)
    """Called, in order, in the turn of the loop in which a topic has gone (committed offsets are dropped here)."""
    closing: bool = False
    """True from the moment on when the gateway drains: waiting requests are answered at once."""

    def now(self) -> float:
        """Seconds on the monotonic clock: what state machines are given."""
        return time.monotonic()

    def wall_ms(self) -> int:
        """Milliseconds since the epoch: what records and commits are stamped with."""
        return time.time_ns() // 1_000_000

    def extra(self) -> dict[str, Any]:
        """What the log lines of this gateway carry beside their text."""
        return {"node_id": self.node_id, "cluster_id": self.cluster_id}


class CloseConnectionError(Exception):
    """Raised by a handler whose request cannot be answered: the connection is closed, with this text in the log."""
