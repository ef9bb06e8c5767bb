"""JSON web key sets (RFC 7517): the public keys that tokens are checked against, as an identity provider shows them.

Needs the extra `jwt`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from kclient.errors import MissingExtraError

logger: logging.Logger = logging.getLogger("kclient.gateway.oauth")

MOST_BYTES: Final = 1024 * 1024
"""Of a key set."""
_MOST_KEYS: Final = 200
_LONGEST_ID: Final = 1000
_LEAST_RSA_BITS, _MOST_RSA_BITS = 2048, 16384
"""Smaller keys are too weak, as on Kafka; larger ones would keep the event loop busy."""
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_BY_CURVE: Final[Mapping[str, tuple[str, ...]]] = {
    "P-256": ("ES256",), "P-384": ("ES384",), "P-521": ("ES512",), "Ed25519": ("EdDSA",), "Ed448": ("EdDSA",),
}  # fmt: skip
ALGORITHMS: Final = frozenset({*_RSA, *(each for found in _BY_CURVE.values() for each in found)})
"""With which tokens may be signed: only with those where who checks a signature cannot make one."""
_PUBLIC: Final[Mapping[str, tuple[str, ...]]] = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}
"""What makes up a public key, by the type of key."""


class WebKey(NamedTuple):
    """A public key."""

    key_id: str | None
    algorithms: tuple[str, ...]
    """With which of them it may have signed."""
    key: Any
    """As PyJWT takes it."""


class KeySet:
    """Public keys.

    Args:
        keys: In the order of the identity provider.
    """

    def __init__(self, keys: Sequence[WebKey] = ()) -> None:
        self.keys: tuple[WebKey, ...] = tuple(keys)

    def find(self, key_id: str | None, algorithm: str) -> WebKey | None:
        """The key that a token names, or the first that may have signed where it names none; None without one."""
        for each in self.keys:
            if algorithm in each.algorithms and (key_id is None or key_id == each.key_id):
                return each
        return None


def check_can_verify() -> None:
    """Raise `MissingExtraError` where what checks signatures is not installed."""
    try:
        import cryptography  # noqa: F401
        import jwt  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "PyJWT", "jwt", "OAUTHBEARER at a gateway") from error


def parse_key_set(data: bytes) -> KeySet:
    """Read a key set; keys that cannot have signed tokens are left out, with a line in the log. It takes its time.

    Raises:
        ValueError: It is none, or has no key that could have signed a token.
    """
    try:
        rows = json.loads(data)["keys"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise ValueError("it is no JSON web key set") from None
    if not isinstance(rows, list) or len(rows) > _MOST_KEYS:
        raise ValueError(f"it is no JSON web key set of up to {_MOST_KEYS} keys")
    found = []
    for number, row in enumerate(rows, 1):
        try:
            found.append(_key(row))
        except ValueError as error:
            logger.warning("key %d of the key set is left out: %s", number, error)
    if not found:
        raise ValueError("it has no key that could have signed a token")
    return KeySet(found)


def _key(row: Any) -> WebKey:
    """One key. Raises `ValueError` where it is none, or not for signatures."""
    import jwt

    if not isinstance(row, dict):
        raise ValueError("it is no object")
    kind = row.get("kty")
    parts = _PUBLIC.get(kind) if isinstance(kind, str) else None
    if parts is None:
        raise ValueError("it is of no public kind: RSA, EC or OKP")
    uses = row.get("key_ops", ["verify"])
    if row.get("use", "sig") != "sig" or not isinstance(uses, list) or "verify" not in uses:
        raise ValueError("it is not for signatures")
    key_id = row.get("kid")
    if key_id is not None and not (isinstance(key_id, str) and len(key_id) <= _LONGEST_ID):
        raise ValueError("its kid is no text, or too long")
    algorithms = _RSA if kind == "RSA" else _BY_CURVE.get(str(row.get("crv")), ())
    only = row.get("alg")
    if only is not None:
        algorithms = tuple(each for each in algorithms if each == only)
    if not algorithms:
        raise ValueError("no algorithm that tokens may be signed with goes with it")
    # the public half alone, whatever else an identity provider has let slip
    public = {"kty": kind, **{name: row.get(name) for name in parts}}
    try:
        key = jwt.PyJWK.from_dict(public, algorithm=algorithms[0]).key
    except Exception as error:  # noqa: BLE001 - of PyJWT and cryptography, each with classes of its own
        raise ValueError(f"it cannot be read ({type(error).__name__})") from None
    if kind == "RSA" and not _LEAST_RSA_BITS <= key.key_size <= _MOST_RSA_BITS:
        raise ValueError(f"it has {key.key_size} bits, and not {_LEAST_RSA_BITS} to {_MOST_RSA_BITS}")
    return WebKey(key_id, algorithms, key)
