"""What all SASL mechanisms have in common: exchanges of messages, without I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import auto
from typing import Protocol

from kclient.errors import IllegalStateError
from kclient.state_tables import PlainEnum, StateTable, next_state

__all__ = ["ClientIdentity", "ClientMechanism", "Exchange", "ExchangeEvent", "ExchangeState", "ServerMechanism"]


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


class ExchangeEvent(PlainEnum):
    """What happens in an exchange; the values are the labels of the diagram in the docs."""

    BEGUN = "the first of two rounds"
    SPOKEN = "this side has said all that it has to say"
    UNACCEPTED = "the token is not accepted, and the server says why"
    CONVINCED = "this side is convinced of the other"
    BROKEN = "refused, or the other side broke the rules"


EXCHANGE_TABLE: StateTable[ExchangeState, ExchangeEvent] = {
    ExchangeState.NEW: {
        ExchangeEvent.BEGUN: ExchangeState.FIRST,
        ExchangeEvent.SPOKEN: ExchangeState.FINAL,
        ExchangeEvent.UNACCEPTED: ExchangeState.REFUSED,
        ExchangeEvent.CONVINCED: ExchangeState.DONE,
        ExchangeEvent.BROKEN: ExchangeState.FAILED,
    },
    ExchangeState.FIRST: {
        ExchangeEvent.SPOKEN: ExchangeState.FINAL,
        ExchangeEvent.CONVINCED: ExchangeState.DONE,
        ExchangeEvent.BROKEN: ExchangeState.FAILED,
    },
    ExchangeState.FINAL: {
        ExchangeEvent.UNACCEPTED: ExchangeState.REFUSED,
        ExchangeEvent.CONVINCED: ExchangeState.DONE,
        ExchangeEvent.BROKEN: ExchangeState.FAILED,
    },
    ExchangeState.REFUSED: {
        ExchangeEvent.BROKEN: ExchangeState.FAILED,
    },
    ExchangeState.DONE: {},
    ExchangeState.FAILED: {},
}


class Exchange:
    """The state of an exchange, and what leads from one to the other."""

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

    def _move(self, event: ExchangeEvent) -> None:
        self.state = next_state(EXCHANGE_TABLE, self.state, event, self.name)

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
