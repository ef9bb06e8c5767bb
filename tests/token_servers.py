"""Servers with delegation tokens, and tokens of an identity provider: a real broker, and a gateway with its settings.

Users are alice and roman, by PLAIN and SCRAM; who comes in without a login is a superuser.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import kclient.sync
from kclient.admin import ScramMechanism, UserScramCredentialUpsertion
from tests.kafka_listeners import SecureListeners
from tests.kafka_server import KafkaServer, ServerListener
from tests.sasl_listeners import USERS, sasl_properties, scram_users

HOUR: Final = 3_600_000
SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
KEY: Final = "the key of the tests"
_SETTINGS: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "delegation.token.secret.key": KEY,
    "delegation.token.max.lifetime.ms": str(10 * HOUR),
    "delegation.token.expiry.time.ms": str(2 * HOUR),
    "delegation.token.expiry.check.interval.ms": "1000",
}


@dataclass(frozen=True)
class TokenServer:
    """Where one listens: `PLAINTEXT`, `SASL`, `SIGNED` for OAUTHBEARER, and `SSL_CLIENT` for certificates."""

    addresses: Mapping[str, str]

    @property
    def bootstrap(self) -> str:
        """For superusers."""
        return self.addresses["PLAINTEXT"]


def _listeners(secure: SecureListeners) -> list[ServerListener]:
    by_name = {each.name: each for each in secure.listeners}
    names = ("oauthbearer.sasl.server.callback.handler.class", "oauthbearer.sasl.jaas.config")
    signed = {
        name: value
        for name, value in by_name["SASL_SSL"].properties.items()
        if name in names or name.startswith("oauthbearer.sasl.oauthbearer.")
    }
    return [
        ServerListener("SASL", "SASL_PLAINTEXT", sasl_properties("PLAIN", *SCRAM)),
        ServerListener("SIGNED", "SASL_PLAINTEXT", {"sasl.enabled.mechanisms": "OAUTHBEARER", **signed}),
        by_name["SSL_CLIENT"],
    ]


@contextmanager
def kafka_with_tokens(version: str, folder: Path, secure: SecureListeners) -> Iterator[TokenServer]:
    """A real broker."""
    listeners = _listeners(secure)
    server = KafkaServer(version, folder, {**_SETTINGS}, listeners, secure.system_properties, heap="512m")
    server.format(*scram_users())
    server.start()
    try:
        yield TokenServer(server.addresses)
    finally:
        server.stop()


@contextmanager
def gateway_with_tokens(secure: SecureListeners) -> Iterator[TokenServer]:
    """A gateway in this process."""
    listeners = [ServerListener("PLAINTEXT"), *_listeners(secure)]
    config: dict[str, Any] = {
        **_SETTINGS,
        "listeners": ",".join(f"{each.name}://{each.host}:0" for each in listeners),
        "listener.security.protocol.map": ",".join(f"{each.name}:{each.protocol}" for each in listeners),
        "group.initial.rebalance.delay.ms": 0,
    }
    for each in listeners:
        own = f"listener.name.{each.name.lower()}."
        config |= {own + name: _unescaped(value) for name, value in each.properties.items()}
    with kclient.sync.Gateway(f"memory:tokens-{uuid.uuid4().hex}", config=config) as gateway:
        with kclient.sync.Admin(bootstrap_servers=gateway.advertised["PLAINTEXT"]) as admin:
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
                for user, password in USERS.items():
                    credential = UserScramCredentialUpsertion(user=user, mechanism=mechanism, password=password)
                    admin.alter_user_scram_credentials([credential])
        yield TokenServer(gateway.advertised)


def _unescaped(value: str) -> str:
    """What a properties file stands for."""
    return value.encode().decode("unicode_escape") if "\\u" in value else value
