"""Makes the `ssl.SSLContext` of a client, or of a listener, from its settings."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from kclient.config.pem import certificates, is_encrypted, kind_of_store, pem_text, private_key, read_store
from kclient.config.pkcs12 import stored_key, trusted_certificates
from kclient.config.secret import Secret
from kclient.errors import ConfigError, NotYetSupportedError

__all__ = [
    "CLIENT_AUTH",
    "ContextSettings",
    "ServerContextSettings",
    "StoreSettings",
    "client_context",
    "make_context",
    "server_context",
]

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_TLS_1_3_SUITES = frozenset({"TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"})
_OTHER_1_3_SUITES = frozenset({"TLS_AES_128_CCM_SHA256", "TLS_AES_128_CCM_8_SHA256"})

_REMEDY = (
    "Convert it: keytool -importkeystore -srckeystore FILE -destkeystore store.p12 -deststoretype PKCS12, then set "
    "{store}.type=PKCS12 and {store}.location=store.p12"
)


CLIENT_AUTH: Mapping[str, ssl.VerifyMode] = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
"""What the words of `ssl.client.auth` mean."""


class StoreSettings(Protocol):
    """The settings that contexts of both sides are made of; see `kclient.config.tls`."""

    @property
    def ssl_protocol(self) -> str: ...
    @property
    def ssl_enabled_protocols(self) -> tuple[str, ...]: ...
    @property
    def ssl_cipher_suites(self) -> tuple[str, ...]: ...
    @property
    def ssl_keystore_type(self) -> str: ...
    @property
    def ssl_keystore_location(self) -> str | None: ...
    @property
    def ssl_keystore_password(self) -> Secret | None: ...
    @property
    def ssl_keystore_key(self) -> Secret | None: ...
    @property
    def ssl_keystore_certificate_chain(self) -> Secret | None: ...
    @property
    def ssl_key_password(self) -> Secret | None: ...
    @property
    def ssl_truststore_type(self) -> str: ...
    @property
    def ssl_truststore_location(self) -> str | None: ...
    @property
    def ssl_truststore_password(self) -> Secret | None: ...
    @property
    def ssl_truststore_certificates(self) -> Secret | None: ...


class ContextSettings(StoreSettings, Protocol):
    """The settings that a client's context is made of."""

    @property
    def security_protocol(self) -> str: ...
    @property
    def ssl_context(self) -> ssl.SSLContext | None: ...
    @property
    def ssl_endpoint_identification_algorithm(self) -> str: ...


class ServerContextSettings(StoreSettings, Protocol):
    """The settings that a listener's context is made of."""

    @property
    def ssl_client_auth(self) -> str: ...


def make_context(settings: ContextSettings, given: Sequence[str]) -> ssl.SSLContext | None:
    """What a client encrypts with; None without TLS.

    Args:
        settings: The client's.
        given: Kafka's names of those `ssl.` settings that are not at their defaults.

    Raises:
        ConfigError: If settings contradict each other, and as `client_context`.
        NotYetSupportedError: As `client_context`.
    """
    protocol = settings.security_protocol
    if protocol not in ("SSL", "SASL_SSL"):
        if given:
            secure = "SASL_SSL" if protocol.startswith("SASL") else "SSL"
            raise ConfigError(
                f"{_said(given[0])} has no effect with security.protocol={protocol}: nothing would be encrypted; "
                f"set security.protocol={secure}, or leave it out"
            )
        return None
    if settings.ssl_context is None:
        _check_stores(settings)
        return client_context(settings)
    others = [name for name in given if name != "ssl.context"]
    if others:
        raise ConfigError(f"{others[0]} has no effect beside ssl_context: load it into the context instead")
    if settings.ssl_context.protocol == ssl.PROTOCOL_TLS_SERVER:
        raise ConfigError("ssl_context is a server's context; make one with ssl.create_default_context()")
    return settings.ssl_context


def client_context(settings: ContextSettings) -> ssl.SSLContext:
    """The context that the settings describe.

    Raises:
        ConfigError: If a file cannot be read, or a certificate, a key or a name makes no sense.
        NotYetSupportedError: For what Python's `ssl` cannot do.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _restrict(context, settings)
    context.check_hostname = settings.ssl_endpoint_identification_algorithm == "https"
    if not _load_trust(context, settings):
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    _load_key(context, settings)
    return context


def server_context(settings: ServerContextSettings) -> ssl.SSLContext:
    """The context of a listener: it shows its certificate, and asks for those of clients if `ssl.client.auth` says so.

    Raises:
        ConfigError: If there is no key store, or no trust store to check certificates of clients against; if a file
            cannot be read, or a certificate, a key or a name makes no sense; or if settings contradict each other.
        NotYetSupportedError: For what Python's `ssl` cannot do.
    """
    _check_stores(settings)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _restrict(context, settings)
    context.verify_mode = CLIENT_AUTH[settings.ssl_client_auth]
    if not _load_key(context, settings):
        raise ConfigError(
            "ssl.keystore.location is missing: a listener with TLS shows a certificate. Set it to a file with the "
            "private key and its certificate chain (PEM), or set ssl.keystore.key and ssl.keystore.certificate.chain"
        )
    if not _load_trust(context, settings) and context.verify_mode != ssl.CERT_NONE:
        raise ConfigError(
            f"ssl.truststore.location is missing: with ssl.client.auth={settings.ssl_client_auth} certificates of "
            "clients are checked against those in it (or in ssl.truststore.certificates). What the system trusts does "
            "not stand in for it: anybody may have a certificate of a public authority"
        )
    return context


def _restrict(context: ssl.SSLContext, settings: StoreSettings) -> None:
    """What holds on both sides."""
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # as in Java: every certificate in the trust store is trusted by itself, also one that another has signed
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    low, high = _versions(settings)
    low, high = _set_ciphers(context, settings.ssl_cipher_suites, low, high)
    context.minimum_version, context.maximum_version = low, high


def _said(name: str) -> str:
    return "ssl_context" if name == "ssl.context" else name


def _check_stores(settings: StoreSettings) -> None:
    """The rules of Java's clients and brokers."""
    _check_store(
        "ssl.keystore", settings.ssl_keystore_type, settings.ssl_keystore_location, settings.ssl_keystore_password
    )
    _check_store(
        "ssl.truststore",
        settings.ssl_truststore_type,
        settings.ssl_truststore_location,
        settings.ssl_truststore_password,
    )
    if settings.ssl_keystore_type.upper() == "PKCS12":
        if settings.ssl_keystore_password is None:
            raise ConfigError("ssl.keystore.password is missing: a PKCS12 key store has one")
        if settings.ssl_key_password not in (None, settings.ssl_keystore_password):
            raise ConfigError(
                "ssl.key.password is another than ssl.keystore.password, but a PKCS12 store has one password for all"
            )
    key, chain = settings.ssl_keystore_key, settings.ssl_keystore_certificate_chain
    if settings.ssl_truststore_location is not None and settings.ssl_truststore_certificates is not None:
        raise ConfigError("ssl.truststore.location and ssl.truststore.certificates are both set; set one of them")
    if settings.ssl_keystore_location is not None and (key is not None or chain is not None):
        inline = "ssl.keystore.key" if key is not None else "ssl.keystore.certificate.chain"
        raise ConfigError(f"ssl.keystore.location and {inline} are both set; set one of them")
    if (key is None) != (chain is None):
        pair = ("ssl.keystore.key", "ssl.keystore.certificate.chain")
        there, missing = pair if chain is None else pair[::-1]
        raise ConfigError(f"{there} is set, but {missing} is not: both belong together")
    if settings.ssl_key_password is not None and settings.ssl_keystore_location is None and key is None:
        raise ConfigError("ssl.key.password is set, but no key: set ssl.keystore.location or ssl.keystore.key")


def _check_store(store: str, kind: str, location: str | None, password: Secret | None) -> None:
    """Whether its format can be read, and the rest fits."""
    if kind.upper() == "PEM":
        if password is not None:
            raise ConfigError(
                f"{store}.password is set, but PEM files have no password of their own; the password of an encrypted "
                f"private key is ssl.key.password, and Java's key stores are {store}.type=PKCS12"
            )
    elif kind.upper() == "PKCS12":
        if location is None:
            raise ConfigError(f"{store}.type={kind} has no effect without {store}.location: texts are always PEM")
    elif kind.upper() in ("JKS", "JCEKS", "BCFKS"):
        raise NotYetSupportedError(
            f"{store}.type={kind} is not supported: PEM and PKCS12 are. {_REMEDY.format(store=store)}"
        )
    else:
        raise ConfigError(f"{store}.type: expected PEM or PKCS12")


def _read(store: str, path: str, kind: str) -> bytes:
    """The content of a store that is in the format that the settings say."""
    content = read_store(path, f"{store}.location")
    found = kind_of_store(content)
    if found == "JKS":
        raise NotYetSupportedError(
            f"{store}.location: {path} looks like a JKS key store, which cannot be read. {_REMEDY.format(store=store)}"
        )
    if found is not None and found != kind.upper():
        more = f" and {store}.password" if found == "PKCS12" else ""
        raise ConfigError(
            f"{store}.location: {path} looks like a {found} store, not {kind.upper()}: set {store}.type={found}{more}"
        )
    return content


def _versions(settings: StoreSettings) -> tuple[ssl.TLSVersion, ssl.TLSVersion]:
    for name in settings.ssl_enabled_protocols:
        if name not in _VERSIONS:
            raise ConfigError(f"ssl.enabled.protocols: {name!r} is not offered; choose from TLSv1.2 and TLSv1.3")
    highest = _VERSIONS.get(settings.ssl_protocol, ssl.TLSVersion.TLSv1_3)
    enabled = [_VERSIONS[name] for name in settings.ssl_enabled_protocols if _VERSIONS[name] <= highest]
    if not enabled:
        listed = ",".join(settings.ssl_enabled_protocols) or "empty"
        raise ConfigError(f"ssl.protocol={settings.ssl_protocol} leaves no version of ssl.enabled.protocols ({listed})")
    return min(enabled), max(enabled)


def _set_ciphers(
    context: ssl.SSLContext, suites: tuple[str, ...], low: ssl.TLSVersion, high: ssl.TLSVersion
) -> tuple[ssl.TLSVersion, ssl.TLSVersion]:
    """Restrict the cipher suites, and the versions to those that have any of them."""
    if not suites:
        return low, high
    modern = [name for name in suites if name in _TLS_1_3_SUITES | _OTHER_1_3_SUITES]
    older = [name for name in suites if name not in modern]
    if modern and set(modern) != _TLS_1_3_SUITES:
        raise NotYetSupportedError(
            "ssl.cipher.suites: Python's ssl cannot choose among the suites of TLS 1.3; name all of "
            f"{', '.join(sorted(_TLS_1_3_SUITES))}, or only suites of TLS 1.2"
        )
    if older:
        names = [_openssl_name(name) for name in older]
        for name, given in zip(names, older, strict=True):
            try:
                context.set_ciphers(name)
            except ssl.SSLError as error:
                raise ConfigError(f"ssl.cipher.suites: {given!r} is unknown to OpenSSL") from error
        context.set_ciphers(":".join(names))
    low = low if older else max(low, ssl.TLSVersion.TLSv1_3)
    high = high if modern else min(high, ssl.TLSVersion.TLSv1_2)
    if low > high:
        raise ConfigError("ssl.cipher.suites has no suite of a TLS version that ssl.enabled.protocols allows")
    return low, high


def _openssl_name(name: str) -> str:
    """OpenSSL's name of a TLS 1.2 suite: `TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256` is `ECDHE-RSA-AES128-GCM-SHA256`."""
    if not name.startswith("TLS_"):
        return name
    exchange, found, cipher = name.removeprefix("TLS_").partition("_WITH_")
    if not found:
        return name
    cipher = cipher.replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305").replace("_CBC", "")
    for kind in ("AES", "CAMELLIA", "ARIA"):
        cipher = cipher.replace(f"{kind}_128", f"{kind}128").replace(f"{kind}_256", f"{kind}256")
    parts = cipher if exchange == "RSA" else f"{exchange}_{cipher}"
    return parts.replace("_", "-")


def _load_trust(context: ssl.SSLContext, settings: StoreSettings) -> bool:
    """Trust what the settings say; False if they do not."""
    path, kind = settings.ssl_truststore_location, settings.ssl_truststore_type
    if settings.ssl_truststore_certificates is not None:
        setting = "ssl.truststore.certificates"
        trusted = certificates(settings.ssl_truststore_certificates.reveal(), setting)
    elif path is not None:
        setting = "ssl.truststore.location"
        content = _read("ssl.truststore", path, kind)
        if kind.upper() == "PKCS12":
            trusted = trusted_certificates(content, path, settings.ssl_truststore_password)
        else:
            trusted = certificates(pem_text(content, path, setting), setting)
    else:
        return False
    try:
        context.load_verify_locations(cadata=trusted)
    except ssl.SSLError as error:
        raise ConfigError(f"{setting} holds a certificate that cannot be read: {error.reason or error}") from error
    return True


def _load_key(context: ssl.SSLContext, settings: StoreSettings) -> bool:
    """Show the certificate that the settings say; False if they do not."""
    path, kind = settings.ssl_keystore_location, settings.ssl_keystore_type
    password = settings.ssl_key_password
    if path is not None:
        key_setting = chain_setting = "ssl.keystore.location"
        content = _read("ssl.keystore", path, kind)
        if kind.upper() == "PKCS12":
            assert settings.ssl_keystore_password is not None
            stored = stored_key(content, path, settings.ssl_keystore_password)
            key, chain, password = stored.key, stored.chain, stored.password
        else:
            text = pem_text(content, path, key_setting)
            key, chain = private_key(text, key_setting), certificates(text, chain_setting)
    elif settings.ssl_keystore_key is not None and settings.ssl_keystore_certificate_chain is not None:
        key_setting, chain_setting = "ssl.keystore.key", "ssl.keystore.certificate.chain"
        key = private_key(settings.ssl_keystore_key.reveal(), key_setting)
        chain = certificates(settings.ssl_keystore_certificate_chain.reveal(), chain_setting)
    else:
        return False
    if password is None and is_encrypted(key):
        raise ConfigError(f"the private key of {key_setting} is encrypted: set ssl.key.password")
    try:
        with _as_file(chain + key) as file:
            # without a password OpenSSL would ask for one on the terminal
            context.load_cert_chain(file, password="" if password is None else password.reveal())
    except ssl.SSLError as error:
        raise ConfigError(_key_problem(error, key, key_setting, chain_setting)) from error
    return True


def _key_problem(error: ssl.SSLError, key: str, key_setting: str, chain_setting: str) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"the private key of {key_setting} does not belong to the first certificate of {chain_setting}"
    if is_encrypted(key) and not (error.library == "SSL" and error.reason):  # else it was, and something else is wrong
        return f"the private key of {key_setting} cannot be decrypted: is ssl.key.password right?"
    return f"the private key of {key_setting} or the certificate of {chain_setting} cannot be read: " + (
        error.reason or "not valid"
    )


@contextmanager
def _as_file(text: str) -> Iterator[str]:
    """A file with that text, which `ssl` insists on: in memory where the system can, else readable by us alone."""
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
        descriptor = os.memfd_create("kclient")
        with os.fdopen(descriptor, "w", encoding="ascii", errors="replace") as file:
            file.write(text)
            file.flush()
            yield f"/proc/self/fd/{descriptor}"
        return
    descriptor, path = tempfile.mkstemp(prefix="kclient-")
    try:
        with os.fdopen(descriptor, "w", encoding="ascii", errors="replace") as file:
            file.write(text)
        yield path
    finally:
        Path(path).unlink()
