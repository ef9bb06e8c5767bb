"""What a listener encrypts with, from its `ssl.` settings; made anew when the files of its certificates change."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from kclient.concurrency import thread_to_the_end
from kclient.config.followed_context import FollowedContext
from kclient.config.setting import Password
from kclient.config.tls_context import server_context
from kclient.errors import ConfigError, NotYetSupportedError
from kclient.gateway.security.principal_rules import RULES, PrincipalRules
from kclient.gateway.settings import BROKER_SETTINGS
from kclient.gateway.settings_of_tls import BROKER_SETTINGS_OF_TLS

if TYPE_CHECKING:
    from kclient.config.secret import Secret
    from kclient.gateway.config import BrokerConfig

logger: logging.Logger = logging.getLogger("kclient.gateway.config")

TLS_SETTINGS: Final = frozenset(setting.name for setting in BROKER_SETTINGS_OF_TLS)
"""Those that can be given for one listener, too."""

_CLIENT_AUTH: Final = "ssl.client.auth"
_TRUST: Final = ("ssl.truststore.location", "ssl.truststore.certificates")
_NONE: Final = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerTlsSettings:
    """The `ssl.` settings of one listener; their names are those of `kclient.config.tls.TlsSettings`."""

    ssl_protocol: str
    ssl_enabled_protocols: tuple[str, ...]
    ssl_cipher_suites: tuple[str, ...]
    ssl_client_auth: str
    ssl_keystore_type: str
    ssl_keystore_location: str | None
    ssl_keystore_password: Secret | None
    ssl_keystore_key: Secret | None
    ssl_keystore_certificate_chain: Secret | None
    ssl_key_password: Secret | None
    ssl_truststore_type: str
    ssl_truststore_location: str | None
    ssl_truststore_password: Secret | None
    ssl_truststore_certificates: Secret | None


class ListenerTls:
    """The TLS of a listener.

    Args:
        followed: Makes its context.
        client_auth: `ssl.client.auth`: whether clients show a certificate.
        rules: Whose that is.
    """

    def __init__(self, followed: FollowedContext, client_auth: str, rules: PrincipalRules) -> None:
        self._followed = followed
        self.client_auth: str = client_auth
        self.rules: PrincipalRules = rules
        self._looking: anyio.Lock | None = None

    async def context(self) -> ssl.SSLContext:
        """The context for the next connection; files that have changed are read in a thread."""
        if self._looking is None:  # made where the loop is: the gateway is made anywhere
            self._looking = anyio.Lock()
        async with self._looking:
            if self._followed.changed:
                await thread_to_the_end(self._followed.current)
        found = self._followed.context
        assert found is not None
        return found

    async def renew(self) -> str | None:
        """Read the files again, changed or not, in a thread; why they cannot be used, if so."""
        if self._looking is None:
            self._looking = anyio.Lock()
        async with self._looking:
            return await thread_to_the_end(self._followed.renew)


def tls_of(config: BrokerConfig, listener: str, protocol: str) -> ListenerTls:
    """The TLS of a listener whose protocol is SSL or SASL_SSL.

    Args:
        config: The broker's settings.
        listener: The listener's name.
        protocol: Its security protocol.

    Raises:
        ConfigError: There is no key store, or something else is missing, makes no sense or cannot be read.
        NotYetSupportedError: For JKS stores, and what Python's `ssl` cannot do.
        MissingExtraError: For PKCS12 stores without the extra.
    """
    own = f"listener.name.{listener.lower()}."
    value = partial(_value, config, own)
    # as on Kafka: who came to have clients show certificates did not mean those who log in
    asks = _NONE if protocol == "SASL_SSL" and own + _CLIENT_AUTH not in config.of_listeners else value(_CLIENT_AUTH)
    settings = _settings(value, asks)
    if asks == _NONE and any(value(name) is not None for name in _TRUST):
        _tell_of_trust(config, listener, protocol)
    files = (settings.ssl_truststore_location, settings.ssl_keystore_location)
    try:
        rules = PrincipalRules(value(RULES))
        followed = FollowedContext(partial(server_context, settings), [path for path in files if path is not None])
    except (ConfigError, NotYetSupportedError) as error:
        raise type(error)(f"the listener {listener} is to speak {protocol}: {error}") from error
    return ListenerTls(followed, asks, rules)


def _settings(value: Callable[[str], Any], asks: str) -> ListenerTlsSettings:
    return ListenerTlsSettings(
        ssl_protocol=value("ssl.protocol"),
        ssl_enabled_protocols=value("ssl.enabled.protocols"),
        ssl_cipher_suites=value("ssl.cipher.suites"),
        ssl_client_auth=asks,
        ssl_keystore_type=value("ssl.keystore.type"),
        ssl_keystore_location=value("ssl.keystore.location"),
        ssl_keystore_password=value("ssl.keystore.password"),
        ssl_keystore_key=value("ssl.keystore.key"),
        ssl_keystore_certificate_chain=value("ssl.keystore.certificate.chain"),
        ssl_key_password=value("ssl.key.password"),
        ssl_truststore_type=value("ssl.truststore.type"),
        ssl_truststore_location=value("ssl.truststore.location"),
        ssl_truststore_password=value("ssl.truststore.password"),
        ssl_truststore_certificates=value("ssl.truststore.certificates"),
    )


def _value(config: BrokerConfig, own: str, name: str) -> Any:
    """What a setting is for the listener: its own, else that of all."""
    kind = BROKER_SETTINGS[name].kind
    text = config.of_listeners.get(own + name)
    if text is None:
        return config.secrets.get(name) if isinstance(kind, Password) else config.get(name)
    try:
        return kind.parse(text if isinstance(kind, Password) else text.reveal())
    except ValueError:
        raise ConfigError(f"{own}{name}: expected {kind.text}") from None


def _tell_of_trust(config: BrokerConfig, listener: str, protocol: str) -> None:
    """Whoever gives a trust store may think that it keeps somebody out."""
    remedy = f"listener.name.{listener.lower()}.{_CLIENT_AUTH}" if protocol == "SASL_SSL" else _CLIENT_AUTH
    logger.warning(
        "the trust store has no effect on the listener %s, which asks clients for no certificate; %s=required would",
        listener, remedy,
    )  # fmt: skip
