"""Servers that ask access control lists: alice logs in by PLAIN, and who comes in without a login is a superuser."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import kclient.sync
from kclient.net.sasl.login import PasswordLogin
from tests.kafka_artifacts import KAFKA_4
from tests.kafka_server import KafkaServer, ServerListener
from tests.sasl_listeners import USERS, sasl_properties

ALICE: Final = "User:alice"
SETTINGS: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
GATEWAY: Final[Mapping[str, Any]] = {
    **SETTINGS,
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT",
    "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl.plain.sasl.jaas.config": f'PlainLoginModule required user_alice="{USERS["alice"]}";',
    "group.initial.rebalance.delay.ms": 0,
    "num.partitions": 4,
}
"""Settings of a gateway that has the same listeners."""


@dataclass(frozen=True)
class Guarded:
    """Where one listens."""

    version: str
    """Of Kafka; of a gateway the one whose tools are used."""
    bootstrap: str
    """For superusers."""
    sasl: str
    """For alice."""

    def as_alice(self) -> dict[str, object]:
        """Settings of a client."""
        return {
            "bootstrap_servers": self.sasl,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_username": "alice",
            "sasl_password": USERS["alice"],
        }


def alice() -> PasswordLogin:
    """What a connection of hers logs in with."""
    return PasswordLogin("PLAIN", "alice", USERS["alice"])


@contextmanager
def guarded_kafka(version: str, folder: Path) -> Iterator[Guarded]:
    """A real broker."""
    listener = ServerListener("SASL", "SASL_PLAINTEXT", sasl_properties("PLAIN"))
    server = KafkaServer(version, folder, SETTINGS, [listener], heap="512m")
    server.format()
    server.start()
    try:
        yield Guarded(version, server.bootstrap, server.addresses["SASL"])
    finally:
        server.stop()


@contextmanager
def guarded_gateway() -> Iterator[Guarded]:
    """A gateway in this process."""
    with kclient.sync.Gateway(f"memory:guarded-{uuid.uuid4().hex}", config={**GATEWAY}) as gateway:
        yield Guarded(KAFKA_4, gateway.advertised["PLAINTEXT"], gateway.advertised["SASL"])
