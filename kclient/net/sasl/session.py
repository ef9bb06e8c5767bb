"""A client's authentication as a server sees it: one per connection, decisions only.

Until it is authenticated a connection may ask for ApiVersions, choose a mechanism and authenticate; nothing else. With
a session lifetime it has to authenticate again in time (KIP-368).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import auto
from functools import partial
from typing import TypeAlias

from kclient.errors import (
    ErrorCode,
    IllegalSaslStateError,
    SaslAuthenticationError,
)
from kclient.net.sasl.mechanism import ClientIdentity, ServerMechanism
from kclient.net.sasl.oauthbearer import OAuthBearerServer, TokenCheck
from kclient.net.sasl.plain import PasswordCheck, PlainServer
from kclient.net.sasl.scram import ScramCredentials, ScramDecoys, ScramServer, ScramTokens
from kclient.protocol.message import ApiMessage
from kclient.protocol.messages import SaslAuthenticateResponse, SaslHandshakeResponse
from kclient.protocol.types import INT64_MAX
from kclient.state_tables import PlainEnum, StateTable, next_state

__all__ = ["Mechanisms", "SaslSession", "SessionState", "server_mechanisms"]

Mechanisms: TypeAlias = Mapping[str, Callable[[], ServerMechanism]]
"""The mechanisms that a server offers: what begins an exchange, by name."""


def server_mechanisms(
    *,
    plain: PasswordCheck | None = None,
    scram_sha_256: ScramCredentials | None = None,
    scram_sha_512: ScramCredentials | None = None,
    oauthbearer: TokenCheck | None = None,
    scram_decoys: ScramDecoys | None = None,
    scram_tokens: ScramTokens | None = None,
) -> dict[str, Callable[[], ServerMechanism]]:
    """The mechanisms for which there is something to check against.

    Args:
        plain: Tells whether name and password belong together: `check(username, password) -> bool`. The password is a
            `Secret`, whose text `password.reveal()` gives; for a table of users take
            `kclient.net.sasl.plain.fixed_passwords`.
        scram_sha_256: Finds what is kept of a user.
        scram_sha_512: The same for the other hash function.
        oauthbearer: Tells whose token it is.
        scram_decoys: What SCRAM shows for users who do not exist. To be given if the credentials have other iterations
            than 4096 or other salts than of 24 bytes: else everybody can find out which users exist.
        scram_tokens: Finds delegation tokens, with which clients can log in by each mechanism of SCRAM that is
            offered.

    Raises:
        TypeError: If one is of a wrong type.
    """
    checks = {
        "plain": plain,
        "scram_sha_256": scram_sha_256,
        "scram_sha_512": scram_sha_512,
        "oauthbearer": oauthbearer,
        "scram_tokens": scram_tokens,
    }
    for name, check in checks.items():
        if check is not None and not callable(check):  # and is not shown: it may be a password, in the wrong place
            raise TypeError(f"{name} is a function to be called, or None; not a value of type {type(check).__name__}")
    if scram_decoys is not None and not isinstance(scram_decoys, ScramDecoys):
        raise TypeError(f"scram_decoys are ScramDecoys or None, not a value of type {type(scram_decoys).__name__}")
    offered: dict[str, Callable[[], ServerMechanism]] = {}
    scram = partial(ScramServer, decoys=scram_decoys, tokens=scram_tokens)
    if plain is not None:
        offered["PLAIN"] = lambda: PlainServer(plain)
    if scram_sha_256 is not None:
        offered["SCRAM-SHA-256"] = lambda: scram("SCRAM-SHA-256", scram_sha_256)
    if scram_sha_512 is not None:
        offered["SCRAM-SHA-512"] = lambda: scram("SCRAM-SHA-512", scram_sha_512)
    if oauthbearer is not None:
        offered["OAUTHBEARER"] = lambda: OAuthBearerServer(oauthbearer)
    return offered


class SessionState(PlainEnum):
    """Where a connection stands on the server's side."""

    ANONYMOUS = auto()
    """Connected; nobody knows who it is."""
    EXCHANGE = auto()
    """A mechanism is chosen, its messages are expected."""
    AUTHENTICATED = auto()
    """Everything may be asked, until the session ends."""
    REFUSED = auto()
    """To be closed."""


class SessionEvent(PlainEnum):
    """What a client does; the values are the labels of the diagram in the docs."""

    CHOSE = "SaslHandshake, for a first or a new session"
    PROVED = "the client is believed"
    REFUSED = "another mechanism or user, wrong credentials, SaslAuthenticate without handshake"


SESSION_TABLE: StateTable[SessionState, SessionEvent] = {
    SessionState.ANONYMOUS: {
        SessionEvent.CHOSE: SessionState.EXCHANGE,
        SessionEvent.REFUSED: SessionState.REFUSED,
    },
    SessionState.EXCHANGE: {
        SessionEvent.PROVED: SessionState.AUTHENTICATED,
        SessionEvent.REFUSED: SessionState.REFUSED,
    },
    SessionState.AUTHENTICATED: {
        SessionEvent.CHOSE: SessionState.EXCHANGE,
        SessionEvent.REFUSED: SessionState.REFUSED,
    },
    SessionState.REFUSED: {},
}


@dataclass(slots=True)
class SaslSession:
    """One connection's authentication."""

    mechanisms: Mechanisms
    max_lifetime_ms: int = 0
    """`connections.max.reauth.ms`: how long an authentication counts; 0 for as long as the credential."""
    clock: Callable[[], float] = time.time
    """Seconds since the epoch."""
    state: SessionState = SessionState.ANONYMOUS
    identity: ClientIdentity | None = None
    """Who it is; stays while it authenticates again."""
    raw: bool = False
    """Whether the exchange's messages come as bare frames (SaslHandshake v0)."""
    ends_at: float | None = None
    """When the session ends, in seconds since the epoch."""
    _exchange: ServerMechanism | None = field(default=None, repr=False)

    @property
    def expired(self) -> bool:
        """Whether the session has ended: nothing may be asked before it has authenticated again."""
        return self.ends_at is not None and self.clock() >= self.ends_at

    def may_ask(self) -> bool:
        """Whether requests other than those of SASL are answered now."""
        return self.state is SessionState.AUTHENTICATED and not self.expired

    def choose(self, mechanism: str, version: int) -> tuple[ApiMessage, bool]:
        """The client chooses a mechanism.

        Returns:
            The response, and whether the connection may go on.
        """
        offered = sorted(self.mechanisms)
        if self.state not in (SessionState.ANONYMOUS, SessionState.AUTHENTICATED):
            self._go(SessionEvent.REFUSED)
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=offered), False
        if mechanism not in self.mechanisms or (self.identity is not None and mechanism != self.identity.mechanism):
            self._go(SessionEvent.REFUSED)
            return SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=offered), False
        self._go(SessionEvent.CHOSE)
        self.raw = version == 0
        self._exchange = self.mechanisms[mechanism]()
        return SaslHandshakeResponse(mechanisms=offered), True

    def authenticate(self, data: bytes) -> tuple[SaslAuthenticateResponse, bool]:
        """A message of the exchange.

        Returns:
            The response, and whether the connection may go on.
        """
        try:
            if self.state is not SessionState.EXCHANGE or self._exchange is None:
                raise IllegalSaslStateError("SaslAuthenticate comes after SaslHandshake")
            answer = self._exchange.respond(data)
            found = self._exchange.identity
            if found is None:
                return SaslAuthenticateResponse(auth_bytes=answer), True
            lifetime_ms = self._begin(found)
        except (SaslAuthenticationError, IllegalSaslStateError) as error:
            self._go(SessionEvent.REFUSED)
            self._exchange = None
            return SaslAuthenticateResponse(error_code=error.code or 0, error_message=error.message), False
        return SaslAuthenticateResponse(auth_bytes=answer, session_lifetime_ms=lifetime_ms), True

    def _begin(self, found: ClientIdentity) -> int:
        """The session begins, or goes on; gives its life in milliseconds, 0 for no end."""
        if self.identity is not None and found.principal != self.identity.principal:
            raise SaslAuthenticationError(
                "Authentication failed: the user must not change in the midst of a connection"
            )
        now = self.clock()
        ends = [now + self.max_lifetime_ms / 1000] if self.max_lifetime_ms > 0 else []
        if found.expires_at is not None:
            if found.expires_at <= now:
                raise SaslAuthenticationError("Authentication failed: the credential has expired")
            ends.append(found.expires_at)
        self._go(SessionEvent.PROVED)
        self._exchange = None
        self.identity = found
        self.ends_at = min(ends) if ends else None
        return 0 if self.ends_at is None else min(max(int((self.ends_at - now) * 1000), 1), INT64_MAX)

    def _go(self, event: SessionEvent) -> None:
        self.state = next_state(SESSION_TABLE, self.state, event, "SASL session")
