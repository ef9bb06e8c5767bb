"""Gateways whose listeners encrypt, and what their clients need: for the tests of them."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.x509.oid import NameOID

from kclient.gateway import Gateway
from tests.certificates import Authority, Identity

_names = (f"tls-{number}" for number in itertools.count())
PASSWORD = "wonder, land="
PROTOCOLS = "PLAINTEXT:PLAINTEXT,SSL:SSL,OPTIONAL:SSL,MUTUAL:SSL,LOGIN:SASL_SSL"
JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="{PASSWORD}";'


@functools.cache
def broker_authority() -> Authority:
    """The one that gateways have their certificates from."""
    return Authority()


@functools.cache
def client_authority() -> Authority:
    """The one that vouches for clients."""
    return Authority()


def subject(common_name: str, organization: str | None = None) -> x509.Name:
    """A name with a line of organization, if there is one, as most certificates of clients have."""
    parts = [] if organization is None else [(NameOID.ORGANIZATION_NAME, organization)]
    return x509.Name(
        [x509.NameAttribute(kind, text, _validate=False) for kind, text in (*parts, (NameOID.COMMON_NAME, common_name))]
    )


@functools.cache
def alice() -> Identity:
    """A client that is trusted: `User:CN=alice,O=Org`."""
    return client_authority().issue_for(subject("alice", "Org"))


def gateway_settings(folder: Path, **config: Any) -> dict[str, Any]:
    """The settings of a gateway with listeners of all kinds; settings may be added, and None takes one away."""
    keystore = broker_authority().issue("localhost").write(folder / "gateway.pem")
    truststore = folder / "clients.pem"
    truststore.write_text(client_authority().pem)
    told = {
        "listeners": ",".join(f"{each.partition(':')[0]}://localhost:0" for each in PROTOCOLS.split(",")),
        "listener.security.protocol.map": PROTOCOLS,
        "ssl.keystore.location": str(keystore),
        "ssl.truststore.location": str(truststore),
        "listener.name.optional.ssl.client.auth": "requested",
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.login.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.login.plain.sasl.jaas.config": JAAS,
        "connection.failed.authentication.delay.ms": 10,
        "group.initial.rebalance.delay.ms": 0,
        **config,
    }
    return {name: value for name, value in told.items() if value is not None}


def gateway_with_tls(folder: Path, **config: Any) -> Gateway:
    """A gateway in memory with those listeners."""
    return Gateway(f"memory:{next(_names)}", config=gateway_settings(folder, **config))


def client_settings(
    advertised: dict[str, str], listener: str, identity: Identity | None = None, **others: Any
) -> dict[str, Any]:
    """What a client of ours needs for a listener, with the certificate that it shows."""
    settings = {
        "bootstrap.servers": advertised[listener],
        "security.protocol": "SASL_SSL" if listener == "LOGIN" else "SSL",
        "ssl.truststore.certificates": broker_authority().pem,
    }
    if identity is not None:
        settings |= {"ssl.keystore.certificate.chain": identity.chain, "ssl.keystore.key": identity.key}
    if listener == "LOGIN":
        settings |= {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": PASSWORD}
    return {**settings, **others}
