"""The settings of security, the same for all clients; details are in `kclient.config.tls` and `kclient.config.sasl`."""

from __future__ import annotations

import dataclasses
import ssl
from dataclasses import dataclass
from functools import cached_property, partial

from kclient.config.followed_context import FollowedContext
from kclient.config.sasl import SaslSettings
from kclient.config.sasl_credentials import OAuthCredentials, PasswordCredentials, resolve_credentials
from kclient.config.setting import Choice, Text, setting
from kclient.config.tls import TlsSettings
from kclient.config.tls_context import make_context

__all__ = ["SecuritySettings"]


@dataclass(frozen=True, kw_only=True)
class SecuritySettings(SaslSettings, TlsSettings):
    """What `security.protocol` turns on: TLS (see `TlsSettings`) and SASL (see `SaslSettings`)."""

    security_protocol: str = setting(
        Choice(("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")),
        "PLAINTEXT",
        "How brokers are talked to: in the clear, by TLS, with SASL.",
    )
    security_providers: str | None = setting(
        Text(), None, "Java security providers; without meaning in Python.", served=False
    )

    @property
    def tls_context(self) -> ssl.SSLContext | None:
        """What the next connection is encrypted with; None if `security.protocol` says that it is not.

        It is another one once the files of key or trust store have changed.

        Raises:
            ConfigError: If a file cannot be read, a certificate or key makes no sense, or settings contradict.
            NotYetSupportedError: For JKS stores, and what Python's `ssl` cannot do.
        """
        return self._followed_context.current()

    @cached_property
    def _followed_context(self) -> FollowedContext:
        defaults = {field.name: field.default for field in dataclasses.fields(TlsSettings)}
        given = [name.replace("_", ".") for name, value in defaults.items() if getattr(self, name) != value]
        files = (self.ssl_truststore_location, self.ssl_keystore_location)
        return FollowedContext(partial(make_context, self, given), [path for path in files if path is not None])

    @cached_property
    def sasl_credentials(self) -> PasswordCredentials | OAuthCredentials | None:
        """What connections authenticate with; None if `security.protocol` says that they do not.

        Raises:
            ConfigError: If something is missing, makes no sense, or contradicts something else.
            NotYetSupportedError: For GSSAPI.
        """
        return resolve_credentials(self)
