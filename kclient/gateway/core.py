"""What the handlers share: the gateway's services, and what a request carries with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kclient.concurrency import loop_soon
from kclient.gateway.discarding import in_slices
from kclient.gateway.producer_windows import ProducerLimit
from kclient.gateway.shields import Shields
from kclient.gateway.workers import Workers
from kclient.net.fair_queue import FairQueue

if TYPE_CHECKING:
    from kclient.gateway.config import BrokerConfig
    from kclient.gateway.dynamic_config import DynamicConfig
    from kclient.gateway.groups import GroupCoordinator
    from kclient.gateway.handlers import HandlerTable
    from kclient.gateway.partitions import PartitionTable
    from kclient.gateway.producer_ids import ProducerIds
    from kclient.gateway.topics import TopicCatalogue
    from kclient.htp.port import Broker, Lease, Manager
    from kclient.net.fair_queue import Flow
    from kclient.net.memory_budget import Share
    from kclient.net.server_connection import Place


@dataclass(slots=True, frozen=True)
class Advertised:
    """The address under which clients of one listener find this gateway."""

    host: str
    port: int
    listener: str = "PLAINTEXT"


@dataclass(slots=True, eq=False)
class ConnectionContext:
    """One client connection: where it came from, the listener's advertised address, its turns and its memory."""

    peer: str
    """The peer's address as text, for logs: `127.0.0.1:40312`, or `memory:NAME`."""
    client_host: str
    """The peer's host as Kafka shows it in group descriptions: `/127.0.0.1`."""
    advertised: Advertised
    flow: Flow
    """Its turns on the event loop."""
    share: Share
    """What it holds of the memory for clients."""
    end_sessions: Callable[[], object] | None = None
    """Ends the client's fetch sessions, if it has any."""
    gone: bool = False
    """Whether the client has gone: nobody waits for what is not answered yet."""
    _when_gone: dict[Callable[[], object], None] = field(default_factory=dict)

    def when_gone(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the client has gone, at once if it has; it must not raise.

        `unless_gone` takes it back.
        """
        if self.gone:
            callback()
        else:
            self._when_gone[callback] = None

    def unless_gone(self, callback: Callable[[], object]) -> None:
        """Do not call `callback` any more."""
        self._when_gone.pop(callback, None)

    def discard(self, steps: Iterator[None]) -> None:
        """Give up very many objects in steps, in the client's turns; each step gives up some."""
        self.flow.add(in_slices(steps, self.flow.clock))

    def end(self) -> None:
        """The client has gone."""
        self.gone = True
        callbacks, self._when_gone = self._when_gone, {}
        for callback in callbacks:
            callback()


@dataclass(slots=True)
class RequestContext:
    """One request's header, and the connection it came on."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    connection: ConnectionContext
    place: Place
    """Its place in the order of the connection's replies."""


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
    queue: FairQueue = field(default_factory=lambda: FairQueue(loop_soon()))
    """Who may use the event loop: each connection has a flow in it, and what is done for many of them has one too."""
    workers: Workers = field(default_factory=Workers)
    """Threads for checksums, decompression and compression."""
    shields: Shields = field(default_factory=Shields)
    """What goes on although its request is cancelled."""
    producers: ProducerLimit = field(default_factory=ProducerLimit)
    """How many producers the logs may remember."""
    dynamic: DynamicConfig = field(init=False)
    """What of `config` was changed since the start."""
    topics: TopicCatalogue = field(init=False)
    partitions: PartitionTable = field(init=False)
    producer_ids: ProducerIds = field(init=False)
    groups: GroupCoordinator = field(init=False)
    """Made by `GroupCoordinator(core)`; the gateway awaits its `start()` before it listens, `aclose()` when it
    drains."""
    table: HandlerTable = field(init=False)
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
