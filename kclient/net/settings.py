"""What a connection is told by the configuration of the client it serves."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final, Protocol

from kclient.errors import ConfigError

__all__ = ["ConnectionConfig", "ConnectionSettings"]


class ConnectionConfig(Protocol):
    """The settings that connections read; the configurations of all clients have them, under Kafka's names."""

    @property
    def client_id(self) -> str | None:
        """Name that brokers see in their logs and quotas."""
        ...

    @property
    def request_timeout_ms(self) -> int:
        """How long to wait for an answer, in milliseconds."""
        ...

    @property
    def socket_connection_setup_timeout_ms(self) -> int:
        """How long to wait for each address to accept, and to complete the TLS handshake, in milliseconds."""
        ...

    @property
    def send_buffer_bytes(self) -> int:
        """Size of the socket's send buffer; -1 leaves it to the system."""
        ...

    @property
    def receive_buffer_bytes(self) -> int:
        """Size of the socket's receive buffer; -1 leaves it to the system."""
        ...

    @property
    def connections_max_idle_ms(self) -> int:
        """Close the connection when it was not used for so long, in milliseconds; never if 0 or below."""
        ...

    @property
    def max_in_flight_requests_per_connection(self) -> int:
        """How many requests may be on their way to a broker at a time, others wait for their turn; 0 for any number."""
        ...

    @property
    def tls_context(self) -> ssl.SSLContext | None:
        """What connections are encrypted with (`security.protocol`, `ssl.`); None for connections in the clear."""
        ...


_LOWEST: Final[dict[str, int | None]] = {
    "request_timeout_ms": 0,
    "socket_connection_setup_timeout_ms": 0,
    "send_buffer_bytes": -1,
    "receive_buffer_bytes": -1,
    "connections_max_idle_ms": None,
    "max_in_flight_requests_per_connection": 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """A `ConnectionConfig` by itself, with the defaults of the clients.

    Raises:
        ConfigError: If a value is of a wrong type, or out of its range.
    """

    client_id: str | None = None
    request_timeout_ms: int = 30_000
    socket_connection_setup_timeout_ms: int = 10_000
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    connections_max_idle_ms: int = 540_000
    max_in_flight_requests_per_connection: int = 100
    tls_context: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        for name, lowest in _LOWEST.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or (lowest is not None and value < lowest):
                wanted = "an integer" if lowest is None else f"an integer, {lowest} or more"
                raise ConfigError(f"{name} must be {wanted}, not {value!r}")
        if self.client_id is not None and not isinstance(self.client_id, str):
            raise ConfigError(f"client_id must be a str or None, not {self.client_id!r}")
        if self.tls_context is not None and not isinstance(self.tls_context, ssl.SSLContext):
            raise ConfigError(f"tls_context must be an ssl.SSLContext or None, not a {type(self.tls_context).__name__}")
