"""A client's authentication on one connection: SaslHandshake, then SaslAuthenticate until both sides are satisfied.

Decisions only: it says what to send, and is told what came. The same goes for the re-authentication of KIP-368.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from enum import auto
from typing import Any, TypeAlias

from kclient.errors import (
    BrokerConnectionError,
    ErrorCode,
    IllegalSaslStateError,
    IllegalStateError,
    SaslAuthenticationError,
    UnsupportedSaslMechanismError,
    error_for,
)
from kclient.net.sasl.mechanism import ClientMechanism
from kclient.protocol.message import ApiMessage
from kclient.protocol.messages import SaslAuthenticateRequest, SaslHandshakeRequest
from kclient.protocol.registry import ApiKey, negotiate
from kclient.state_tables import PlainEnum, StateTable, next_state

__all__ = ["AuthenticationState", "ClientAuthentication", "Outgoing", "session_end"]

Outgoing: TypeAlias = tuple[ApiMessage, int]
"""A request, and the version to send it in."""


class AuthenticationState(PlainEnum):
    """Where a client's authentication stands."""

    NEW = auto()
    """Nothing has been sent; the versions of the broker are known."""
    HANDSHAKE = auto()
    """SaslHandshake has been sent: the broker says whether it has the mechanism."""
    EXCHANGE = auto()
    """SaslAuthenticate has been sent: mechanism and broker talk."""
    DONE = auto()
    """Authenticated."""
    FAILED = auto()
    """Refused, or the broker is not what it should be. The connection is of no use."""


class AuthenticationEvent(PlainEnum):
    """What happens while a client authenticates; the values are the labels of the diagram in the docs."""

    HANDSHAKE_SENT = "SaslHandshake is sent"
    MESSAGE_SENT = "SaslAuthenticate is sent"
    SATISFIED = "the mechanism is satisfied"
    FAILED = "refused, or the broker is not what it should be"


AUTHENTICATION_TABLE: StateTable[AuthenticationState, AuthenticationEvent] = {
    AuthenticationState.NEW: {
        AuthenticationEvent.HANDSHAKE_SENT: AuthenticationState.HANDSHAKE,
        AuthenticationEvent.FAILED: AuthenticationState.FAILED,
    },
    AuthenticationState.HANDSHAKE: {
        AuthenticationEvent.MESSAGE_SENT: AuthenticationState.EXCHANGE,
        AuthenticationEvent.FAILED: AuthenticationState.FAILED,
    },
    AuthenticationState.EXCHANGE: {
        AuthenticationEvent.MESSAGE_SENT: AuthenticationState.EXCHANGE,
        AuthenticationEvent.SATISFIED: AuthenticationState.DONE,
        AuthenticationEvent.FAILED: AuthenticationState.FAILED,
    },
    AuthenticationState.DONE: {},
    AuthenticationState.FAILED: {},
}

# After SaslHandshake v0 the messages would travel as bare frames (KIP-43); no broker since Kafka 1.0 needs that.
_HANDSHAKE_VERSIONS = (1, SaslHandshakeRequest.VERSIONS[1])


class ClientAuthentication:
    """One authentication of a client.

    Args:
        mechanism: Its side of the mechanism.
        address: The broker's, for messages.
        versions: The broker's version ranges, as ApiVersions told them.
        again: Whether the connection has been authenticated before.
    """

    def __init__(
        self,
        mechanism: ClientMechanism,
        address: object,
        versions: Mapping[int, tuple[int, int]],
        *,
        again: bool = False,
    ) -> None:
        self.state: AuthenticationState = AuthenticationState.NEW
        self.session_lifetime_ms: int = 0
        """For how long the broker accepts it; 0 for as long as the connection lasts."""
        self._mechanism = mechanism
        self._address = address
        self._versions = versions
        self._version = 0
        self._again = again

    def start(self) -> Outgoing:
        """The first request.

        Raises:
            IllegalSaslStateError: If the broker has no SASL at all.
            UnsupportedVersionError: If its SASL is older than Kafka 1.0.
        """
        if ApiKey.SASL_HANDSHAKE not in self._versions:
            self._go(AuthenticationEvent.FAILED)
            raise self._no_sasl()
        version = negotiate(ApiKey.SASL_HANDSHAKE, self._versions, _HANDSHAKE_VERSIONS)
        self._version = negotiate(ApiKey.SASL_AUTHENTICATE, self._versions, SaslAuthenticateRequest.VERSIONS)
        self._go(AuthenticationEvent.HANDSHAKE_SENT)
        return SaslHandshakeRequest(mechanism=self._mechanism.name), version

    def is_costly(self, response: Any) -> bool:
        """Whether `answered` takes so long that it belongs into a thread; a SCRAM server chooses how long it takes."""
        costly = getattr(self._mechanism, "is_costly", None)
        if costly is None or self.state is not AuthenticationState.EXCHANGE or response.error_code:
            return False
        return bool(costly(bytes(response.auth_bytes)))

    def answered(self, response: Any) -> Outgoing | None:
        """The next request, given the response to the last; None when the client is authenticated.

        Raises:
            SaslAuthenticationError: If the broker refuses the credentials, or cannot prove itself.
            UnsupportedSaslMechanismError: If it does not have the mechanism; the text names those that it has.
            IllegalSaslStateError: If its listener does not use SASL.
            BrokerConnectionError: If it takes no new authentication now; a new connection helps.
        """
        try:
            if self.state is AuthenticationState.HANDSHAKE:
                return self._agreed(response)
            if self.state is AuthenticationState.EXCHANGE:
                return self._exchanged(response)
        except Exception:
            self._go(AuthenticationEvent.FAILED)
            raise
        raise IllegalStateError(f"no response is expected in the state {self.state.name}")

    def _agreed(self, response: Any) -> Outgoing:
        if response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            enabled = ", ".join(response.mechanisms) or "none"
            raise UnsupportedSaslMechanismError(
                f"{self._address} does not offer the SASL mechanism {self._mechanism.name}; it enables {enabled} "
                "(sasl.mechanism)"
            )
        if response.error_code == ErrorCode.ILLEGAL_SASL_STATE and self._again:
            raise BrokerConnectionError(
                f"{self._address} takes no new authentication on this connection yet: it wants one more often than "
                "once a second (connections.max.reauth.ms), and Kafka allows no more"
            )
        if response.error_code == ErrorCode.ILLEGAL_SASL_STATE:
            raise self._no_sasl()
        if response.error_code:
            raise error_for(response.error_code, f"{self._address} refused the SASL handshake")
        return self._send(self._mechanism.start())

    def _exchanged(self, response: Any) -> Outgoing | None:
        if response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED:
            raise self._refused(response.error_message)
        if response.error_code:
            said = f": {response.error_message}" if response.error_message else ""
            raise error_for(response.error_code, f"{self._address} refused SASL {self._mechanism.name}{said}")
        try:
            answer = self._mechanism.respond(bytes(response.auth_bytes))
        except SaslAuthenticationError as error:
            raise SaslAuthenticationError(f"{self._address}: {error.message}") from None
        if answer is not None:
            return self._send(answer)
        self.session_lifetime_ms = max(response.session_lifetime_ms, 0)
        self._go(AuthenticationEvent.SATISFIED)
        return None

    def _send(self, data: bytes) -> Outgoing:
        self._go(AuthenticationEvent.MESSAGE_SENT)
        return SaslAuthenticateRequest(auth_bytes=data), self._version

    def _refused(self, said: str | None) -> SaslAuthenticationError:
        text = f"{self._address} refused the credentials for SASL {self._mechanism.name}"
        refusal = getattr(self._mechanism, "refusal", "")
        reasons = [reason for reason in (refusal, said) if reason]
        return SaslAuthenticationError(f"{text}: {'; '.join(reasons)}" if reasons else text)

    def _no_sasl(self) -> IllegalSaslStateError:
        return IllegalSaslStateError(
            f"{self._address} does not use SASL on this listener: security.protocol has to be PLAINTEXT (or SSL) for "
            "it, or the address that of another listener"
        )

    def _go(self, event: AuthenticationEvent) -> None:
        self.state = next_state(AUTHENTICATION_TABLE, self.state, event, "SASL authentication")

    def __repr__(self) -> str:
        return f"<ClientAuthentication {self._mechanism.name} {self.state.name}>"


def session_end(lifetime_ms: int, now: float, *, chance: float | None = None) -> float:
    """When to authenticate again: at a random 85 to 95 % of the session's life, as the Java client does (KIP-368).

    Args:
        lifetime_ms: What the broker said; 0 for no end.
        now: Seconds on any clock.
        chance: For tests: 0 to 1 in place of a random number.

    Returns:
        Seconds on that clock; infinity for never.
    """
    if lifetime_ms <= 0:
        return float("inf")
    return now + lifetime_ms / 1000 * (0.85 + 0.10 * (random.random() if chance is None else chance))
