"""Key stores and trust stores in the format PKCS12 (RFC 7292), which Java's keytool makes: what is in them, as PEM."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kclient.config.secret import Secret
from kclient.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates

__all__ = ["StoredKey", "stored_key", "trusted_certificates"]


@dataclass(frozen=True, slots=True)
class StoredKey:
    """The private key of a key store.

    Args:
        key: As PEM text, encrypted: OpenSSL reads it from a file.
        password: Of that text; made for this once.
        chain: Its certificate and those that vouch for it, as PEM texts.
    """

    key: str
    password: Secret
    chain: str


def stored_key(content: bytes, path: str, password: Secret) -> StoredKey:
    """The private key and its certificates; of several keys the first.

    Args:
        content: Of the file.
        path: Of the file, for error messages.
        password: `ssl.keystore.password`.

    Raises:
        ConfigError: The password is wrong, or there is no key with a certificate.
        MissingExtraError: The package `cryptography` is not installed.
    """
    setting = "ssl.keystore"
    store = _opened(content, path, password, setting)
    if store.key is None or store.cert is None:
        raise ConfigError(f"{setting}.location: {path} holds no private key with its certificate")
    from cryptography.hazmat.primitives import serialization

    once = secrets.token_hex()
    key = store.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(once.encode()),
    )
    chain = _chain(store.cert.certificate, [each.certificate for each in store.additional_certs])
    return StoredKey(key.decode("ascii"), Secret(once), "".join(map(_pem, chain)))


def trusted_certificates(content: bytes, path: str, password: Secret | None) -> str:
    """All certificates of a trust store, as PEM texts.

    Args:
        content: Of the file.
        path: Of the file, for error messages.
        password: `ssl.truststore.password`; a store whose certificates are not encrypted needs none.

    Raises:
        ConfigError: The password is wrong or missing, or there is no certificate.
        MissingExtraError: The package `cryptography` is not installed.
    """
    setting = "ssl.truststore"
    store = _opened(content, path, password, setting)
    found = [each.certificate for each in (store.cert, *store.additional_certs) if each is not None]
    if not found:
        raise ConfigError(f"{setting}.location: {path} holds no certificate")
    return "".join(map(_pem, found))


def _opened(content: bytes, path: str, password: Secret | None, setting: str) -> PKCS12KeyAndCertificates:
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ModuleNotFoundError as error:
        raise MissingExtraError("cryptography", "pkcs12", f"{setting}.type=PKCS12") from error
    try:
        return pkcs12.load_pkcs12(content, None if password is None else password.reveal().encode())
    except UnsupportedAlgorithm as error:
        raise ConfigError(f"{setting}.location: {path} uses what OpenSSL does not have: {error}") from error
    except (ValueError, TypeError) as error:
        asked = f"is {setting}.password right" if password is not None else f"does it need {setting}.password"
        raise ConfigError(f"{setting}.location: {path} cannot be opened: {asked}, and is it a PKCS12 store?") from error


def _chain(first: x509.Certificate, others: list[x509.Certificate]) -> list[x509.Certificate]:
    """A certificate and those that vouch for it, one after the other; a store may hold others, too: also authorities of
    the same name, where one was renewed."""
    chain = [first]
    while chain[-1].issuer != chain[-1].subject:
        issuers = [each for each in others if each.subject == chain[-1].issuer and each not in chain]
        if not issuers:
            break
        chain.append(next((each for each in issuers if _has_signed(each, chain[-1])), issuers[0]))
    return chain


def _has_signed(issuer: x509.Certificate, certificate: x509.Certificate) -> bool:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError):  # or it cannot be told
        return False
    return True


def _pem(certificate: x509.Certificate) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM).decode("ascii")
