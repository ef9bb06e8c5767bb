"""PEM texts as settings carry them: found among comments, with line ends restored that a properties file took."""

from __future__ import annotations

import re
from pathlib import Path

from kclient.errors import ConfigError

__all__ = ["certificates", "is_encrypted", "kind_of_store", "pem_text", "private_key", "read_store"]

_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_JKS = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")


def read_store(path: str, setting: str) -> bytes:
    """The content of a key store or trust store.

    Args:
        path: Of the file.
        setting: What named it, for error messages.

    Raises:
        ConfigError: If the file cannot be read; or if the path is PEM text itself, which no error shows, since a
            private key may be in it.
    """
    if "-----BEGIN" in path or "\n" in path:
        raise ConfigError(
            f"{setting} is the path of a file, but holds PEM text; the text itself goes into ssl.keystore.key and "
            "ssl.keystore.certificate.chain, or into ssl.truststore.certificates"
        )
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{setting}: the file {path} cannot be read: {reason}") from error


def kind_of_store(content: bytes) -> str | None:
    """The format that a store seems to have, as the settings name it; None for none that is known."""
    if content.startswith(_JKS):
        return "JKS"
    if b"-----BEGIN" in content:
        return "PEM"
    return "PKCS12" if content.startswith(b"0") else None


def pem_text(content: bytes, path: str, setting: str) -> str:
    """The text of a PEM file.

    Raises:
        ConfigError: If there is no PEM text in it.
    """
    text = content.decode("utf-8", "replace")
    if not _BLOCK.search(text):
        raise ConfigError(f"{setting}: {path} holds no PEM text (-----BEGIN ...)")
    return text


def certificates(text: str, setting: str) -> str:
    """All certificates in a text, one PEM block after the other.

    Raises:
        ConfigError: If there is none.
    """
    found = [_normal(match) for match in _BLOCK.finditer(text) if match[1].endswith("CERTIFICATE")]
    if not found:
        raise ConfigError(f"{setting} holds no certificate (-----BEGIN CERTIFICATE-----)")
    return "".join(found)


def private_key(text: str, setting: str) -> str:
    """The private key in a text, as a PEM block.

    Raises:
        ConfigError: If there is none, or more than one.
    """
    found = [_normal(match) for match in _BLOCK.finditer(text) if match[1].endswith("PRIVATE KEY")]
    if len(found) != 1:
        count = "several private keys" if found else "no private key (-----BEGIN PRIVATE KEY-----)"
        raise ConfigError(f"{setting} holds {count}")
    return found[0]


def is_encrypted(key: str) -> bool:
    """Whether a private key needs a password."""
    return "BEGIN ENCRYPTED PRIVATE KEY" in key or "Proc-Type: 4,ENCRYPTED" in key


def _normal(match: re.Match[str]) -> str:
    label, body = match[1], match[2]
    if ":" not in body:  # the old format has headers, whose line ends matter
        base64 = "".join(body.split())
        body = "\n" + "".join(f"{base64[start : start + 64]}\n" for start in range(0, len(base64), 64))
    return f"-----BEGIN {label}-----{body}-----END {label}-----\n"
