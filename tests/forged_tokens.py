"""Tokens of OAUTHBEARER that do not hold, each for another reason; and how they are shown to a server."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import anyio.abc
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding

from kclient.net.streams import SocketStream
from kclient.protocol import messages as m
from tests.gateway_wire import Wire
from tests.sasl_listeners import TokenIssuer


@asynccontextmanager
async def stranger(address: str) -> AsyncIterator[Wire]:
    """A connection to a listener where clients log in."""
    host, port = address.rsplit(":", 1)
    stream = await anyio.connect_tcp(host, int(port))
    sock = stream.extra_attributes[anyio.abc.SocketAttribute.raw_socket]().dup()
    await stream.aclose()
    sock.setblocking(False)
    wire = Wire(SocketStream(sock))
    try:
        with anyio.fail_after(20):
            yield wire
    finally:
        await wire.aclose()


async def show(wire: Wire, token: str, *, more: str = "") -> Any:
    """What a server answers to a token."""
    await wire(m.SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1)
    first = f"n,,\x01auth=Bearer {token}\x01{more}\x01"
    return await wire(m.SaslAuthenticateRequest(auth_bytes=first.encode()), 2)


def encode(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def claims(**more: Any) -> dict[str, Any]:
    now = int(time.time())
    return {"sub": "alice", "aud": "kafka", "iat": now, "exp": now + 600, "scope": "kafka", **more}


def by_public_key(secret: bytes) -> str:
    """Signed with the public key, as if it was a password that both sides know."""
    text = f"{encode({'alg': 'HS256', 'kid': 'k1'})}.{encode(claims())}"
    return f"{text}.{encode(hmac.digest(secret, text.encode(), hashlib.sha256))}"


def headed(it: TokenIssuer, head: dict[str, Any]) -> str:
    """With another header, and signed by RS256 with it."""
    text = f"{encode(head)}.{encode(claims())}"
    return f"{text}.{encode(it._key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def with_its_own_key() -> str:
    """Signed with a key that it brings along."""
    other = TokenIssuer()
    return headed(other, {"alg": "RS256", "jwk": json.loads(other.jwks())["keys"][0]})


def pem(it: TokenIssuer) -> bytes:
    """The public key in the form that most programs read."""
    return it._key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


FORGED: Final[Mapping[str, Callable[[TokenIssuer], str]]] = {
    "none": lambda it: f"{encode({'alg': 'none'})}.{encode(claims())}.",
    "none, in capitals": lambda it: f"{encode({'alg': 'NONE', 'kid': 'k1'})}.{encode(claims())}.",
    "none, with a signature": lambda it: headed(it, {"alg": "none", "kid": "k1"}),
    "no algorithm": lambda it: headed(it, {"kid": "k1"}),
    "algorithms": lambda it: headed(it, {"alg": ["RS256"], "kid": "k1"}),
    "signed with the public key": lambda it: by_public_key(pem(it)),
    "signed with the key set": lambda it: by_public_key(it.jwks().encode()),
    "signed with nothing": lambda it: by_public_key(b""),
    "another algorithm": lambda it: headed(it, {"alg": "RS512", "kid": "k1"}),
    "a key of its own": lambda it: with_its_own_key(),
    "an address for keys": lambda it: headed(it, {"alg": "RS256", "jku": "https://evil.example.org", "kid": "evil"}),
    "an unknown key": lambda it: headed(it, {"alg": "RS256", "kid": "k2"}),
    "a path for a key": lambda it: headed(it, {"alg": "RS256", "kid": "../../dev/null"}),
    "a number for a key": lambda it: headed(it, {"alg": "RS256", "kid": 7}),
    "a very long key id": lambda it: headed(it, {"alg": "RS256", "kid": "k" * 2000}),
    "something critical": lambda it: headed(it, {"alg": "RS256", "kid": "k1", "crit": ["exp"], "exp": 7}),
    "a body that is not encoded": lambda it: headed(it, {"alg": "RS256", "kid": "k1", "b64": False}),
    "another issuer's": lambda it: TokenIssuer().token(),
    "a changed claim": lambda it: ".".join(
        [it.token().split(".")[0], encode(claims(sub="admin")), it.token().split(".")[2]]
    ),
    "no signature": lambda it: it.token().rpartition(".")[0] + ".",
    "two parts": lambda it: it.token().rpartition(".")[0],
    "five parts": lambda it: f"{it.token()}.e30.e30",
    "expired": lambda it: it.token(life=-60),
    "for ever": lambda it: it.token(exp=None),
    "without an end": lambda it: it.token(exp="x"),
    "an end that is text": lambda it: it.token(exp=str(int(time.time()) + 600)),
    "an end that is true": lambda it: it.token(exp=True),
    "an end beyond time": lambda it: it.token(exp=10**30),
    "an end that is infinite": lambda it: it.token(exp=float("inf")),
    "an end that is no number": lambda it: it.token(exp=float("nan")),
    "never issued": lambda it: it.token(iat=None),
    "issued by text": lambda it: it.token(iat="now"),
    "ended before it was issued": lambda it: it.token(exp=int(time.time()) + 10, iat=int(time.time()) + 20),
    "not yet valid": lambda it: it.token(nbf=int(time.time()) + 120),
    "for another audience": lambda it: it.token(aud="kafka2"),
    "for no audience": lambda it: it.token(aud=None),
    "for an audience that is none": lambda it: it.token(aud={"kafka": 1}),
    "nobody's": lambda it: it.token(""),
    "a blank's": lambda it: it.token(" "),
    "nobody's at all": lambda it: it.token(sub=None),
    "a number's": lambda it: it.token(sub=7),
    "a forger's of log lines": lambda it: it.token("alice\nUser:admin is allowed"),
    "a very long name's": lambda it: it.token("a" * 1025),
    "a scope of numbers": lambda it: it.token(scope=[1]),
    "a scope twice": lambda it: it.token(scope=["a", "a"]),
    "a scope of nothing": lambda it: it.token(scope=[""]),
    "a very long token": lambda it: it.token(extra="x" * 14_000),
    "a very long header": lambda it: headed(it, {"alg": "RS256", "kid": "k1", "x": "x" * 4000}),
    "a deep header": lambda it: f"{encode(b'[' * 3000)}.e30.e30",
    "a deep body": lambda it: f"{encode({'alg': 'RS256', 'kid': 'k1'})}.{encode(b'[' * 9_000)}.e30",
    "garbage": lambda it: "a.b.c",
    "dots": lambda it: "..",
}
"""By why they do not hold, given whose key the server trusts."""
