"""The settings of TLS, the same for all clients; `kclient.config.tls_context` carries them out."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any

from kclient.config.secret import Secret
from kclient.config.setting import Choice, FilePath, List, Password, PythonObject, Text, setting

__all__ = ["TlsSettings"]

_CLASS = PythonObject("a Python class", strict=False)


@dataclass(frozen=True)
class _Context(PythonObject):
    """An `ssl.SSLContext`."""

    def parse(self, value: Any) -> ssl.SSLContext:
        if not isinstance(value, ssl.SSLContext):
            raise ValueError(self.text)
        return value


@dataclass(frozen=True, kw_only=True)
class TlsSettings:
    """TLS: in effect with `security.protocol` `SSL` and `SASL_SSL`."""

    ssl_context: ssl.SSLContext | None = setting(
        _Context("an `ssl.SSLContext`, as an argument"),
        None,
        """Ready for use: takes the place of all other `ssl.` settings, for what they cannot say (revocation lists,
        keys in hardware, curves).""",
        own=True,
    )
    ssl_protocol: str = setting(
        Choice(("TLSv1.3", "TLSv1.2", "TLS")),
        "TLSv1.3",
        "Highest TLS version that is used, whatever `ssl.enabled.protocols` has; `TLS` is the highest there is.",
    )
    ssl_enabled_protocols: tuple[str, ...] = setting(
        List(), ("TLSv1.2", "TLSv1.3"), "TLS versions that may be used, of `TLSv1.2` and `TLSv1.3`."
    )
    ssl_cipher_suites: tuple[str, ...] = setting(
        List(),
        (),
        """Cipher suites that may be used, by their names in Java or in OpenSSL; empty for OpenSSL's choice. Of TLS
        1.3's suites all or none can be named.""",
    )
    ssl_endpoint_identification_algorithm: str = setting(
        Choice(("https", "")),
        "https",
        """With `https` the broker's certificate has to be for the host name that was connected to; empty leaves the
        name unchecked, and lets anybody with a certificate of the same authority pose as the broker.""",
    )
    ssl_engine_factory_class: object = setting(
        _CLASS, None, "What makes TLS engines; in Python, pass `ssl_context`.", served=False
    )
    ssl_provider: str | None = setting(Text(), None, "Java security provider of TLS.", served=False)
    ssl_secure_random_implementation: str | None = setting(
        Text(), None, "Source of random numbers for TLS.", served=False
    )
    ssl_keymanager_algorithm: str = setting(Text(), "SunX509", "Algorithm of the key manager.", served=False)
    ssl_trustmanager_algorithm: str = setting(Text(), "PKIX", "Algorithm of the trust manager.", served=False)
    ssl_keystore_type: str = setting(
        Text(), "PEM", "Format of the key store: `PEM`, or `PKCS12` (extra `pkcs12`).", java_default="JKS"
    )
    ssl_keystore_location: str | None = setting(
        FilePath(),
        None,
        "File with the client's private key and its certificate chain, for brokers that ask for one.",
    )
    ssl_keystore_password: Secret | None = setting(
        Password(), None, "Password of a PKCS12 key store; PEM has none, see `ssl.key.password`."
    )
    ssl_keystore_key: Secret | None = setting(
        Password(), None, "The client's private key as PEM text, instead of `ssl.keystore.location`."
    )
    ssl_keystore_certificate_chain: Secret | None = setting(
        Password(), None, "The client's certificate and those that vouch for it, as PEM text."
    )
    ssl_key_password: Secret | None = setting(
        Password(), None, "Password of the client's private key, if it is encrypted."
    )
    ssl_truststore_type: str = setting(
        Text(), "PEM", "Format of the trust store: `PEM`, or `PKCS12` (extra `pkcs12`).", java_default="JKS"
    )
    ssl_truststore_location: str | None = setting(
        FilePath(),
        None,
        """File with the certificates of the authorities that brokers' certificates are checked against; without
        it and `ssl.truststore.certificates` the system's.""",
    )
    ssl_truststore_password: Secret | None = setting(
        Password(), None, "Password of a PKCS12 trust store, if its certificates are encrypted; PEM has none."
    )
    ssl_truststore_certificates: Secret | None = setting(
        Password(), None, "The authorities' certificates as PEM text, instead of `ssl.truststore.location`."
    )
