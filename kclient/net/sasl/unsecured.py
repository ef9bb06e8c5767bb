"""Tokens without a signature (RFC 7515, `alg` none): Kafka's default for trying out OAUTHBEARER, never for more."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from kclient.net.sasl.mechanism import ClientIdentity
from kclient.net.sasl.oauthbearer import InvalidTokenError, TokenCheck
from kclient.net.sasl.token import OAuthToken, read_claims

__all__ = ["accept_unsecured", "unsecured_token"]

_LONGEST_NAME: Final = 1024


def unsecured_token(
    claims: Mapping[str, Any],
    *,
    lifetime: float = 3600.0,
    extensions: Mapping[str, str] | None = None,
    principal_claim: str = "sub",
    scope_claim: str = "scope",
    now: float | None = None,
) -> OAuthToken:
    """A token that says whatever it is told.

    Args:
        claims: Its claims; `iat` and `exp` are added.
        lifetime: Seconds.
        extensions: SASL extensions.
        principal_claim: The claim that names the user.
        scope_claim: The claim that holds the scope.
        now: Seconds since the epoch; the present time if None.
    """
    issued = time.time() if now is None else now
    body = {"iat": issued, "exp": issued + lifetime, **claims}
    text = f"{_encode({'alg': 'none'})}.{_encode(body)}."
    token = OAuthToken.from_jwt(text, subject_claim=principal_claim, scope_claim=scope_claim)
    return OAuthToken(
        value=token.value,
        expires_at=token.expires_at,
        issued_at=token.issued_at,
        principal=token.principal,
        scope=token.scope,
        extensions=dict(extensions or {}),
    )


def accept_unsecured(
    *,
    principal_claim: str = "sub",
    scope_claim: str = "scope",
    required_scope: str | None = None,
    clock_skew: float = 0.0,
    clock: Callable[[], float] = time.time,
) -> TokenCheck:
    """A server's check that believes unsigned tokens: for tests.

    Args:
        principal_claim: The claim that names the user.
        scope_claim: The claim that holds the scope.
        required_scope: What the scope has to have, with spaces between several.
        clock_skew: Seconds by which the clocks may differ.
        clock: Seconds since the epoch.
    """

    def check(text: str, extensions: dict[str, str]) -> ClientIdentity:
        head, _, rest = text.partition(".")
        claims = read_claims(text)
        if claims is None or not rest.endswith(".") or _algorithm(head) != "none":
            raise InvalidTokenError("it is not an unsecured JWT")
        token = OAuthToken.from_jwt(text, subject_claim=principal_claim, scope_claim=scope_claim)
        ends, now = token.expires_at, clock()
        if ends is None or ends + clock_skew <= now:
            raise InvalidTokenError("it has expired")
        begins = ends - 1 if token.issued_at is None else token.issued_at
        if begins > now + clock_skew or begins >= ends:
            raise InvalidTokenError("it was issued in the future, or after it has ended")
        name = claims.get(principal_claim)
        if not (isinstance(name, str) and name.isprintable() and name.strip() and len(name) <= _LONGEST_NAME):
            raise InvalidTokenError(f"it has no claim {principal_claim} that names a user")
        if required_scope is not None and not token.scope.issuperset(required_scope.split()):
            raise InvalidTokenError("the scope is too small", status="insufficient_scope", scope=required_scope)
        # by a clock that may be ahead of the issuer's
        return ClientIdentity(name, "OAUTHBEARER", ends + clock_skew, tuple(extensions.items()))

    return check


def _encode(value: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).decode().rstrip("=")


def _algorithm(head: str) -> object:
    claims = read_claims(f".{head}.")
    return None if claims is None else claims.get("alg")
