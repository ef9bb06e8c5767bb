"""OAuth tokens as a client holds them, and when to fetch the next one."""

from __future__ import annotations

import base64
import binascii
import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from kclient.arguments import check_text, shown
from kclient.config.secret import Secret

__all__ = ["OAuthToken", "RefreshPolicy", "TokenSource", "read_claims"]

_END_OF_TIME = 2**40  # in seconds since the epoch: 34,000 years, which fits into any field of the protocol


@dataclass(frozen=True, kw_only=True)
class OAuthToken:
    """A bearer token; what a token callback returns.

    A callback may return the bare text of a JWT instead: its claims say the rest.

    Raises:
        TypeError: If the value is not text.
    """

    value: Secret
    """What is sent. A text becomes a secret by itself."""
    expires_at: float | None = None
    """When it ends, in seconds since the epoch; None if that is not known: it is used until a broker refuses it."""
    principal: str = ""
    """Whose it is, for messages."""
    scope: frozenset[str] = frozenset()
    issued_at: float | None = None
    """When it was issued, in seconds since the epoch; None takes the time it was received."""
    extensions: dict[str, str] = field(default_factory=dict, repr=False)
    """SASL extensions (KIP-342), sent with the token; they may be secrets, and are not shown."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", Secret(self.value))

    @classmethod
    def from_jwt(cls, text: str | Secret, *, scope_claim: str = "scope", subject_claim: str = "sub") -> OAuthToken:
        """The token of a JWT, with what its claims say; the signature is the broker's business.

        A token that is not a JWT is taken as it is, without lifetime.
        """
        for claim in (scope_claim, subject_claim):
            check_text(claim, "the name of a claim")
        value = Secret(text)
        claims = read_claims(value.reveal())
        if claims is None:
            return cls(value=value)
        scope = claims.get(scope_claim)
        scopes = scope.split() if isinstance(scope, str) else scope if isinstance(scope, list) else ()
        return cls(
            value=value,
            expires_at=_time(claims.get("exp")),
            issued_at=_time(claims.get("iat")),
            principal=str(claims.get(subject_claim, "")),
            scope=frozenset(map(str, scopes)),
        )

    def ending_in(self, seconds: float) -> OAuthToken:
        """The same token, with an end so many seconds from now."""
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not abs(seconds) < _END_OF_TIME:
            raise TypeError(f"a token ends in a number of seconds, not {shown(seconds)}")
        return replace(self, expires_at=time.time() + seconds)

    def with_extensions(self, extensions: Mapping[str, str]) -> OAuthToken:
        """The same token with SASL extensions."""
        if not isinstance(extensions, Mapping):
            raise TypeError(f"extensions are a mapping of names to text, not a {type(extensions).__name__}")
        return replace(self, extensions=dict(extensions))


TokenSource: TypeAlias = Callable[[], "OAuthToken | str | Awaitable[OAuthToken | str]"]
"""What `sasl.login.callback.handler.class` takes: a function, async or plain, that returns a token."""


def read_claims(token: str) -> dict[str, Any] | None:
    """The claims of a JWT, unchecked; None if it is none."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return None
    return claims if isinstance(claims, dict) else None


def _time(claim: object) -> float | None:
    """A time that makes sense; JSON has numbers beyond any."""
    if isinstance(claim, bool) or not isinstance(claim, int | float):
        return None
    return float(claim) if 0 < claim < _END_OF_TIME else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshPolicy:
    """When a token is replaced before it ends: `sasl.login.refresh.*`."""

    window_factor: float = 0.8
    window_jitter: float = 0.05
    min_period: float = 60.0
    """Seconds between refreshes, at least."""
    buffer: float = 300.0
    """Seconds before the end by which it is replaced."""

    def refresh_at(self, token: OAuthToken, received_at: float, *, chance: float | None = None) -> float | None:
        """When to fetch the next token, in seconds since the epoch; None if this one does not end.

        As the Java client does: after a random part of the life between factor and factor plus jitter, but early
        enough for `buffer` and not earlier than `min_period`; where these two contradict each other, they give way.

        Args:
            token: The present token.
            received_at: When it came, in seconds since the epoch.
            chance: For tests: 0 to 1 in place of a random number.
        """
        if token.expires_at is None:
            return None
        begin = received_at if token.issued_at is None else token.issued_at
        life = token.expires_at - begin
        jitter = self.window_jitter * (random.random() if chance is None else chance)
        planned = begin + life * (self.window_factor + jitter)
        if received_at + self.min_period + self.buffer > token.expires_at:
            return max(planned, received_at)
        return max(min(planned, token.expires_at - self.buffer), received_at + self.min_period)
