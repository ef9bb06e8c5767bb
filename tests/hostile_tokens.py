"""As `hostile_clients`: what can be done with tokens, and by those who have not logged in."""

from __future__ import annotations

import base64
import itertools
import json
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from kclient.protocol.messages import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from tests.hostile_clients import Course, Site, attack, numbered, side_by_side
from tests.neighbour_probe import PlainClient, framed

_UNSECURED = (
    "org.apache.kafka.common.security.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
)
LOGINS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0",
    "listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
    "listener_name_clients_sasl_enabled_mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
    "listener_name_clients_plain_sasl_jaas_config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";'
    ),
    "listener_name_clients_oauthbearer_sasl_server_callback_handler_class": _UNSECURED,
    "connection_failed_authentication_delay_ms": "0",
    "delegation_token_secret_key": "the key of the tests",
}


def _begun(site: Site, mechanism: str) -> PlainClient:
    """A connection that is about to log in."""
    client = site.client(site.door)
    client.ask(framed(SaslHandshakeRequest(mechanism=mechanism), 1))
    return client


def _logged_in(site: Site) -> PlainClient:
    client = _begun(site, "PLAIN")
    answer: Any = client.call(SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret"), 2)
    assert not answer.error_code, answer
    return client


def _strangers(site: Site, mechanism: str, frames: Iterator[bytes]) -> None:
    """Show one thing after the other, each on a connection of its own where that was closed."""
    while not site.over:
        try:
            with _begun(site, mechanism) as client:
                client.ask(next(frames))
                site.answered += 1
        except OSError:
            if not site.over:
                site.answered += 1  # it was closed, which is an answer too


def _shown(token: bytes) -> bytes:
    return framed(SaslAuthenticateRequest(auth_bytes=b"n,,\x01auth=Bearer " + token + b"\x01\x01"), 2)


def _part(value: Any) -> bytes:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=")


@attack("tokens of 500 kB of every kind, before the login", **LOGINS)
def strange_tokens(site: Site) -> Course:
    size = site.many(500_000)
    now = int(time.time())
    claims = {"sub": "alice", "iat": now, "exp": now + 600}
    head = _part({"alg": "none"})
    tokens = [
        b"x" * size,
        b"." * size,
        head + b"." + _part(b"[" * (size * 3 // 4)) + b".",
        head + b"." + _part(b'{"a":' * (size // 8)) + b".",
        head + b"." + _part(b'{"sub":"alice","exp":' + b"9" * (size // 2) + b"}") + b".",
        head + b"." + _part({**claims, "scope": numbered("s", size // 20)}) + b".",
        head + b"." + _part({**claims, **dict.fromkeys(numbered("k", size // 20), 1)}) + b".",
        _part({"alg": "none", **dict.fromkeys(numbered("k", size // 20), 1)}) + b"." + _part(claims) + b".",
    ]
    frames = [_shown(token) for token in tokens]
    extensions = b"\x01".join(f"k{number}=v".encode() for number in range(size // 10))
    frames.append(
        framed(SaslAuthenticateRequest(auth_bytes=b"n,,\x01auth=Bearer x.y.\x01" + extensions + b"\x01\x01"), 2)
    )
    yield
    side_by_side(*[partial(_strangers, site, "OAUTHBEARER", itertools.cycle(frames)) for _ in range(4)])


@attack("logins by SCRAM as nobody and with the longest names, on ever new connections", **LOGINS)
def strange_logins(site: Site) -> Course:
    names = [b"nobody%d" % number for number in range(50)] + [b"x" * site.many(400_000), b"=2C" * site.many(100_000)]
    frames = [
        framed(SaslAuthenticateRequest(auth_bytes=b"n,,n=" + name + b",r=" + b"r" * (1 << number % 18)), 2)
        for number, name in enumerate(names)
    ]
    yield
    side_by_side(*[partial(_strangers, site, "SCRAM-SHA-256", itertools.cycle(frames)) for _ in range(4)])


def _creating(renewers: int) -> CreateDelegationTokenRequest:
    return CreateDelegationTokenRequest(
        renewers=[
            CreatableRenewers(principal_type="User", principal_name=name.rjust(1_000, "r"))
            for name in numbered("", renewers)
        ],
        max_lifetime_ms=-1,
    )


@attack("delegation tokens that are made, renewed and ended as fast as they can be", **LOGINS)
def made_and_ended(site: Site) -> Course:
    def work() -> None:
        while not site.over:
            try:
                with _logged_in(site) as client:
                    while not site.over:
                        made: Any = client.call(_creating(100), 3)
                        client.ask(framed(RenewDelegationTokenRequest(hmac=made.hmac, renew_period_ms=-1), 2))
                        client.ask(framed(ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=-1), 2))
                        site.answered += 3
            except OSError:
                site.refused += not site.over

    yield
    side_by_side(*[work] * 8)


@attack("DescribeDelegationToken of 1,000 tokens with 100 renewers, and of 1,000 owners", **LOGINS)
def described(site: Site) -> Course:
    with _logged_in(site) as client:
        frame = framed(_creating(100), 3)
        for start in range(0, site.many(1_000), 20):
            few = min(20, site.many(1_000) - start)
            client.send(frame * few)
            for _ in range(few):
                client.discard()
    owners = [DescribeDelegationTokenOwner(principal_type="User", principal_name=name) for name in numbered("no-", 999)]
    owners.append(DescribeDelegationTokenOwner(principal_type="User", principal_name="alice"))
    yield
    frames = [framed(DescribeDelegationTokenRequest(owners=each), 3) for each in (None, owners)]
    site.repeat(*frames, connections=4, opened=lambda: _logged_in(site))
