"""What all SASL mechanisms have in common: exchanges of messages, without I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import auto
from typing import Protocol

from kclient.errors import IllegalStateError
from kclient.state_tables import PlainEnum, successor

__all__ = ["ClientIdentity", "ClientMechanism", "Exchange", "ExchangeState", "ServerMechanism"]


class ExchangeState(PlainEnum):
    """Where an exchange stands."""

    NEW = auto()
    """No message has been sent or received."""
    FIRST = auto()
    """The first messages are being exchanged; another round follows."""
    FINAL = auto()
    """The last message of this side has been sent, or that of the other side is expected."""
    REFUSED = auto()
    """OAUTHBEARER: the server said why it refuses, and the client acknowledges it."""
    DONE = auto()
    """Authenticated."""
    FAILED = auto()
    """Refused, or the other side broke the rules."""


_SUCCESSORS = {
    ExchangeState.NEW: {ExchangeState.FIRST, ExchangeState.FINAL, ExchangeState.REFUSED, ExchangeState.DONE},
    ExchangeState.FIRST: {ExchangeState.FINAL, ExchangeState.DONE},
    ExchangeState.FINAL: {ExchangeState.DONE, ExchangeState.REFUSED},
    ExchangeState.REFUSED: set[ExchangeState](),
    ExchangeState.DONE: set[ExchangeState](),
    ExchangeState.FAILED: set[ExchangeState](),
}


class Exchange:
    """The state of an exchange, and which state may follow which."""

    name: str

    def __init__(self) -> None:
        self.state: ExchangeState = ExchangeState.NEW

    @property
    def done(self) -> bool:
        """Whether this side is convinced of the other."""
        return self.state is ExchangeState.DONE

    def _expect(self, *states: ExchangeState) -> None:
        if self.state not in states:
            raise IllegalStateError(f"{self.name}: no message is expected in the state {self.state.name}")

    def _move(self, state: ExchangeState) -> None:
        if state is not ExchangeState.FAILED:  # may follow any
            successor(_SUCCESSORS, self.state, state, self.name)
        self.state = state

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.state.name}>"


class ClientMechanism(Protocol):
    """The client's side of one authentication; a new object for each."""

    @property
    def name(self) -> str:
        """The mechanism's name, as in `sasl.mechanism`."""
        ...

    @property
    def done(self) -> bool:
        """Whether the exchange has succeeded."""
        ...

    def start(self) -> bytes:
        """The first message."""
        ...

    def respond(self, challenge: bytes) -> bytes | None:
        """The answer to a message of the server; None if there is no more to say: the client is satisfied.

        Raises:
            SaslAuthenticationError: If the server refused, or is not who it should be.
        """
        ...


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """Who a client is, as the server found out."""

    principal: str
    """The user's name."""
    mechanism: str
    expires_at: float | None = None
    """When the credential ends, in seconds since the epoch; None if it does not."""
    extensions: tuple[tuple[str, str], ...] = ()
    """OAUTHBEARER's extensions."""
    by_token: bool = False
    """Whether it has shown a delegation token (KIP-48): such a client cannot make, renew or end tokens."""


class ServerMechanism(Protocol):
    """The server's side of one authentication; a new object for each."""

    @property
    def name(self) -> str:
        """The mechanism's name."""
        ...

    @property
    def identity(self) -> ClientIdentity | None:
        """Who the client is, once the exchange has succeeded; None before."""
        ...

    def respond(self, response: bytes) -> bytes:
        """The answer to a message of the client.

        Raises:
            SaslAuthenticationError: If the client is refused; the text is meant for the client, and tells it nothing
                that it should not know.
        """
        ...
