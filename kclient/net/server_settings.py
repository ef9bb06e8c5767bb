"""Limits and times of a server."""

from __future__ import annotations

from dataclasses import dataclass, field

from kclient.net.connection_limits import ConnectionQuota
from kclient.net.memory_budget import DEFAULT_TOTAL
from kclient.protocol.framing import DEFAULT_LIMIT

__all__ = ["ServerSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Limits and times of a server; sizes in bytes, times in seconds."""

    frame_limit: int = DEFAULT_LIMIT
    """Largest request (`socket.request.max.bytes`); a connection that announces a larger one is closed. Where it
    is more than a quarter of `max_memory`, that quarter is the limit."""
    first_room: int = 16 * 1024
    """Memory that a connection gets for a request that is announced; more comes as the request's bytes do."""
    max_outstanding: int = 64
    """Requests of one connection that may be unanswered before it is not read any more."""
    max_outstanding_bytes: int = 64 * 1024 * 1024
    """The same, counted in bytes of requests; one request always fits."""
    max_unsent_bytes: int = 16 * 1024 * 1024
    """Bytes of replies that a client may leave unread before it is not read any more."""
    max_memory: int = DEFAULT_TOTAL
    """What all connections may hold together (requests, what is made of them, replies; see `MemoryBudget`), and what is
    kept beside them; servers of one process share the greatest of theirs (see `kclient.memory_ledger`)."""
    max_request_memory: int | None = None
    """Of that, requests that were received and not answered (`queued.max.request.bytes`); None for no such limit."""
    stall_timeout: float = 10.0
    """A connection that keeps memory, and takes and gives too little for so long, is closed while others wait for
    memory; see `stalls`."""
    quota: ConnectionQuota = field(default_factory=ConnectionQuota)
    """How many connections there may be, at first."""
    idle_timeout: float | None = 600.0
    """A connection over which nothing has come or gone for so long is closed (`connections.max.idle.ms`), unless an
    answer is owed to it; None for never."""
    handshake_timeout: float = 10.0
    """A connection that has completed no TLS handshake after so long is closed."""
    send_buffer_bytes: int = -1
    """Of the sockets; -1 leaves it to the system."""
    receive_buffer_bytes: int = -1
    """Of the sockets; -1 leaves it to the system."""
    backlog: int = 1024
    """Connections that wait to be accepted."""
