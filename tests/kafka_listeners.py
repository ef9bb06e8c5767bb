"""The listeners that the one Kafka of the tests has beside PLAINTEXT, and what clients need to talk to them."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from tests.certificates import Authority, Identity
from tests.kafka_server import ServerListener, tls_properties
from tests.sasl_listeners import TokenIssuer, sasl_listeners


class SecureListeners:
    """The table of listeners, with the certificates that belong to them.

    Brokers are called `localhost` by their certificates: who connects to 127.0.0.1 finds the wrong name.
    """

    def __init__(self, folder: Path) -> None:
        self.authority = Authority()
        """Signed the broker's certificate."""
        self.client_authority = Authority()
        """Signs the certificates that the listener SSL_CLIENT asks clients for."""
        keystore = self.authority.issue("localhost").write(folder / "broker.pem")
        truststore = folder / "clients.pem"
        truststore.write_text(self.client_authority.pem)
        self.issuer = TokenIssuer()
        """Signs the OAuth tokens that SASL_SSL believes."""
        jwks = folder / "jwks.json"
        jwks.write_text(self.issuer.jwks())
        self.system_properties: dict[str, str] = {
            "org.apache.kafka.sasl.oauthbearer.allowed.urls": jwks.as_uri(),
            "org.apache.kafka.sasl.oauthbearer.allowed.files": str(jwks),
        }
        """What the broker's JVM is told."""
        self.listeners: tuple[ServerListener, ...] = (
            ServerListener("SSL", "SSL", tls_properties(keystore), host="localhost"),
            ServerListener("SSL_CLIENT", "SSL", tls_properties(keystore, truststore), host="localhost"),
            *sasl_listeners(tls_properties(keystore), jwks),
        )

    @cached_property
    def client(self) -> Identity:
        """What a client of SSL_CLIENT shows."""
        return self.client_authority.issue("client@example.org")
