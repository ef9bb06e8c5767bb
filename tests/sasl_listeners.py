"""SASL on the one Kafka of the tests: its users, listeners and signed tokens."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.kafka_server import ServerListener

USERS = {"alice": "wonder land", "roman": "Ⅸ"}
"""Names and passwords; the second would be another password after SASLprep."""

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
REAUTHENTICATION_MS = 2000
"""For how long the listener SASL_SHORT takes an authentication for good; Kafka allows a new one each second only."""

_PACKAGE = "org.apache.kafka.common.security"
_PLAIN = " ".join(f'user_{name}="{password}"' for name, password in [*USERS.items(), ("jörg", "ümlaut")])
_JAAS = {
    "plain": f"{_PACKAGE}.plain.PlainLoginModule required {_PLAIN};",
    "scram-sha-256": f"{_PACKAGE}.scram.ScramLoginModule required;",
    "scram-sha-512": f"{_PACKAGE}.scram.ScramLoginModule required;",
    "oauthbearer": f'{_PACKAGE}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";',
}


def sasl_properties(*mechanisms: str) -> dict[str, str]:
    """A listener's SASL; tokens need no signature."""
    properties = {"sasl.enabled.mechanisms": ",".join(mechanisms)}
    for mechanism in mechanisms:
        jaas = _JAAS[mechanism.lower()]
        # Java reads properties in Latin-1
        escaped = "".join(letter if letter.isascii() else f"\\u{ord(letter):04x}" for letter in jaas)
        properties[f"{mechanism.lower()}.sasl.jaas.config"] = escaped
    return properties


def sasl_listeners(tls: dict[str, str], jwks: Path) -> tuple[ServerListener, ...]:
    """The listeners.

    Args:
        tls: Properties of TLS.
        jwks: The keys that signed tokens are checked against, on SASL_SSL.
    """
    oauth = f"{_PACKAGE}.oauthbearer"
    signed = {
        "oauthbearer.sasl.server.callback.handler.class": f"{oauth}.OAuthBearerValidatorCallbackHandler",
        "oauthbearer.sasl.oauthbearer.jwks.endpoint.url": jwks.as_uri(),
        "oauthbearer.sasl.oauthbearer.expected.audience": "kafka",
        "oauthbearer.sasl.jaas.config": f"{oauth}.OAuthBearerLoginModule required;",
    }
    short = {
        f"{mechanism}.connections.max.reauth.ms": str(REAUTHENTICATION_MS)
        for mechanism in ("plain", "scram-sha-512", "oauthbearer")
    }
    return (
        ServerListener("SASL", "SASL_PLAINTEXT", sasl_properties(*MECHANISMS)),
        ServerListener("SASL_SSL", "SASL_SSL", {**tls, **sasl_properties(*MECHANISMS), **signed}, host="localhost"),
        ServerListener(
            "SASL_SHORT", "SASL_PLAINTEXT", {**sasl_properties("PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"), **short}
        ),
    )


def scram_users() -> list[str]:
    """Arguments of Kafka's `StorageTool format` that make the users for SCRAM."""
    return [
        part
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
        for name, password in USERS.items()
        for part in ("--add-scram", f"{mechanism}=[name={name},password={password}]")
    ]


class TokenIssuer:
    """An identity provider's key: signs tokens, and tells the public half."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def jwks(self) -> str:
        """The public key, as brokers read it."""
        numbers = self._key.public_key().public_numbers()
        key = {
            "kty": "RSA",
            "kid": "k1",
            "use": "sig",
            "alg": "RS256",
            "n": _number(numbers.n),
            "e": _number(numbers.e),
        }
        return json.dumps({"keys": [key]})

    def token(self, subject: str = "alice", *, life: float = 600, **claims: Any) -> str:
        """A signed JWT."""
        now = int(time.time())
        issued = now if life > 0 else now - 7200
        body = {"sub": subject, "aud": "kafka", "iat": issued, "exp": int(now + life), "scope": "kafka", **claims}
        head = {"alg": "RS256", "kid": "k1", "typ": "JWT"}
        text = f"{_encode(json.dumps(head).encode())}.{_encode(json.dumps(body).encode())}"
        signature = self._key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{text}.{_encode(signature)}"


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _number(value: int) -> str:
    return _encode(value.to_bytes((value.bit_length() + 7) // 8, "big"))
