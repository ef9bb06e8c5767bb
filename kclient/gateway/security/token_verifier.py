"""Whose a signed token is (RFC 7519, OAUTHBEARER): checked as Kafka's broker checks it, by PyJWT.

Needs the extra `jwt`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kclient.gateway.security.json_web_keys import ALGORITHMS
from kclient.net.sasl.mechanism import ClientIdentity
from kclient.net.sasl.oauthbearer import InvalidTokenError

if TYPE_CHECKING:
    from kclient.gateway.security.json_web_keys import KeySet

_LONGEST_TOKEN: Final = 16_384
"""Characters of a token: as much as most servers take as a header of HTTP. PyJWT looks at each in Python, on the event
loop, and before it knows who has signed it."""
_LONGEST_HEADER: Final = 4096
_LONGEST_ID: Final = 1000
_LONGEST_NAME: Final = 1024
_BLANKS: Final = "".join(map(chr, range(0x21)))
"""What Java's `trim` takes away."""
_END_OF_TIME: Final = 2**40
"""In seconds since the epoch: what a claim may say fits into the fields of the protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """What a token has to say."""

    audiences: tuple[str, ...] = ()
    """One of which has to be in `aud`; without any no token may have that claim."""
    issuer: str | None = None
    """What `iss` has to be; None for anything, or nothing."""
    clock_skew_s: int = 30
    scope_claim: str = "scope"
    subject_claim: str = "sub"


class TokenVerifier:
    """Checks tokens; it takes well under a millisecond, and a few for the longest.

    Args:
        rules: What they have to say.
        keys: The keys that they may be signed with, as they are now.
        miss: Is called when a token names a key that is not there: the identity provider may have a new one.
    """

    def __init__(self, rules: TokenRules, keys: Callable[[], KeySet], miss: Callable[[], object]) -> None:
        self._rules = rules
        self._keys = keys
        self._miss = miss

    def __call__(self, token: str, _extensions: dict[str, str]) -> ClientIdentity:
        """Whose token it is; its extensions are not kept, for nobody asks for them.

        Raises:
            InvalidTokenError: It does not hold; the text is for the log, and shows nothing of the token.
        """
        if len(token) > _LONGEST_TOKEN or token.find(".") > _LONGEST_HEADER:
            raise InvalidTokenError("it is longer than tokens are")
        try:
            algorithm, key_id = self._header(token)
            found = self._keys().find(key_id, algorithm)
            if found is None:
                self._miss()
                raise InvalidTokenError("it is signed with a key that is not in the key set")
            claims = self._claims(token, found.key, algorithm)
            return self._identity(claims)
        except InvalidTokenError:
            raise
        except Exception as error:  # noqa: BLE001 - the library's, or what strange values make of its arithmetic
            raise InvalidTokenError(f"it does not hold ({type(error).__name__})") from None

    @staticmethod
    def _header(token: str) -> tuple[str, str | None]:
        """With which algorithm a token is signed, and with which key; both as it claims."""
        import jwt

        header = jwt.get_unverified_header(token.partition(".")[0] + "..")  # it would decode the rest, too
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in ALGORITHMS:
            raise InvalidTokenError("it is signed with no algorithm that is taken, or not at all")
        if "crit" in header or "b64" in header:
            raise InvalidTokenError("its header demands what is not known here")
        if key_id is not None and not (isinstance(key_id, str) and len(key_id) <= _LONGEST_ID):
            raise InvalidTokenError("its kid is no text, or too long")
        return str(algorithm), key_id

    def _claims(self, token: str, key: Any, algorithm: str) -> dict[str, Any]:
        """What a token says that is signed with this key, is for us and counts now."""
        import jwt

        rules = self._rules
        # not `iat`, as on Kafka: that it is there suffices
        found: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=[algorithm],
            audience=rules.audiences or None,
            issuer=rules.issuer,
            leeway=rules.clock_skew_s,
            options={
                "require": ["exp", "iat"],
                "verify_iat": False,
                "verify_iss": rules.issuer is not None,
                "verify_jti": False,
                "verify_sub": False,
            },
        )
        return found

    def _identity(self, claims: dict[str, Any]) -> ClientIdentity:
        rules = self._rules
        for each in ("exp", "iat", "nbf"):
            _check_time(claims.get(each, 0))
        if claims["exp"] < max(claims["iat"], claims.get("nbf", 0)):
            raise InvalidTokenError("it ends before it begins")
        name = claims.get(rules.subject_claim)
        name = name.strip(_BLANKS) if isinstance(name, str) else ""
        if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
            raise InvalidTokenError(f"its claim {rules.subject_claim} names no user")
        scope = claims.get(rules.scope_claim)
        scopes = [scope] if isinstance(scope, str) else scope if isinstance(scope, list) else []
        found = [each.strip(_BLANKS) for each in scopes if isinstance(each, str)]
        if not all(found) or len(set(found)) < len(scopes):
            raise InvalidTokenError(f"its claim {rules.scope_claim} is neither a text nor a list of different texts")
        # by a clock that may be ahead of the identity provider's
        ends = float(claims["exp"]) + rules.clock_skew_s
        return ClientIdentity(name, "OAUTHBEARER", ends)


def _check_time(value: object) -> None:
    """Refuse what is no time. Python takes more for a number than others do: true, and text."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _END_OF_TIME:
        raise InvalidTokenError("one of its times is none")
