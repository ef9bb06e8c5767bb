"""Key stores and trust stores in the format PKCS12."""

from __future__ import annotations

import builtins
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import pkcs12

from kclient.config import ProducerConfig
from kclient.errors import ConfigError, MissingExtraError
from tests.certificates import Authority, Identity, shown_certificate

AUTHORITY, STRANGER = Authority(), Authority()
PASSWORD = "not for the logs"


def certificates(*texts: str) -> list[x509.Certificate]:
    return [each for text in texts for each in x509.load_pem_x509_certificates(text.encode())]


def key_store(
    identity: Identity | None, others: Sequence[x509.Certificate] = (), password: str | None = PASSWORD
) -> bytes:
    key: Any = None
    leaf, chain = None, list(others)
    if identity is not None:
        key = serialization.load_pem_private_key(identity.key.encode(), None)
        leaf, *more = certificates(identity.chain)
        chain += more
    encryption: serialization.KeySerializationEncryption = (
        serialization.NoEncryption() if password is None else serialization.BestAvailableEncryption(password.encode())
    )
    return pkcs12.serialize_key_and_certificates(b"client", key, leaf, chain, encryption)


def stored(folder: Path, content: bytes) -> str:
    path = folder / f"{len(list(folder.iterdir()))}.p12"
    path.write_bytes(content)
    return str(path)


def context(**settings: Any) -> ssl.SSLContext:
    made = ProducerConfig.parse(bootstrap_servers="localhost:9093", security_protocol="SSL", **settings).tls_context
    assert made is not None
    return made


def refusal(**settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        context(**settings)
    told = f"{caught.value!r}{caught.value.__cause__!r}"
    assert PASSWORD not in told
    return str(caught.value)


def key_settings(path: str, password: str | None = PASSWORD, **more: Any) -> dict[str, Any]:
    return {
        "ssl_keystore_type": "PKCS12",
        "ssl_keystore_location": path,
        "ssl_keystore_password": password,
        "ssl_truststore_certificates": AUTHORITY.pem,
        **more,
    }


def handshake(client_context: ssl.SSLContext, folder: Path, trusted: str = "") -> bytes:
    """The certificate that the client shows to a server which trusts the authority, and what is given, only."""
    server_context = AUTHORITY.server_context(folder, "localhost", client_authority=AUTHORITY)
    if trusted:
        server_context.load_verify_locations(cadata=trusted)
    return shown_certificate(client_context, server_context)


@pytest.mark.parametrize("key_password", [None, PASSWORD])
def test_a_key_store(tmp_path: Path, key_password: str | None) -> None:
    """What else it holds is not shown."""
    identity = AUTHORITY.issue("client@example.org")
    path = stored(tmp_path, key_store(identity, certificates(STRANGER.pem, AUTHORITY.pem)))
    made = context(**key_settings(path, ssl_key_password=key_password))
    leaf = certificates(identity.chain)[0]
    assert handshake(made, tmp_path) == leaf.public_bytes(serialization.Encoding.DER)


def test_a_renewed_authority_beside_the_old_one(tmp_path: Path) -> None:
    """Both have one name, and it is the key that says which of them vouches for the client."""
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(4)]
    root, old, new, client = keys

    def signed(subject: str, key: ec.EllipticCurvePrivateKey, issuer: str, by: Any) -> x509.Certificate:
        now = datetime.now(UTC) - timedelta(hours=1)
        names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]) for name in (issuer, subject)]
        made = x509.CertificateBuilder(*names, key.public_key(), x509.random_serial_number())
        made = made.not_valid_before(now).not_valid_after(now + timedelta(days=1))
        made = made.add_extension(x509.BasicConstraints(ca=subject != "client", path_length=None), critical=True)
        return made.sign(by, hashes.SHA256())

    authorities = [signed("between", key, "root", root) for key in (old, new)]
    leaf = signed("client", client, "between", new)
    encryption = serialization.BestAvailableEncryption(PASSWORD.encode())
    trusted = signed("root", root, "root", root).public_bytes(serialization.Encoding.PEM).decode()
    for others in (authorities, authorities[::-1]):
        path = stored(tmp_path, pkcs12.serialize_key_and_certificates(b"client", client, leaf, others, encryption))
        shown = handshake(context(**key_settings(path)), tmp_path, trusted)
        assert shown == leaf.public_bytes(serialization.Encoding.DER)


@pytest.mark.parametrize("kind", ["PKCS12", "pkcs12"])
@pytest.mark.parametrize("password", [PASSWORD, None])
def test_a_trust_store(tmp_path: Path, kind: str, password: str | None) -> None:
    path = stored(tmp_path, key_store(None, certificates(AUTHORITY.pem, STRANGER.pem), password))
    made = context(ssl_truststore_type=kind, ssl_truststore_location=path, ssl_truststore_password=password)
    assert len(made.get_ca_certs()) == 2


def test_a_key_store_serves_as_trust_store(tmp_path: Path) -> None:
    path = stored(tmp_path, key_store(AUTHORITY.issue("a@example.org"), certificates(AUTHORITY.pem)))
    made = context(ssl_truststore_type="PKCS12", ssl_truststore_location=path, ssl_truststore_password=PASSWORD)
    assert made.cert_store_stats()["x509"] >= 2


def test_wrong_passwords(tmp_path: Path) -> None:
    path = stored(tmp_path, key_store(AUTHORITY.issue("a@example.org"), certificates(AUTHORITY.pem)))
    assert "is ssl.keystore.password right" in refusal(**key_settings(path, "another"))
    assert "ssl.keystore.password is missing: a PKCS12 key store has one" in refusal(**key_settings(path, None))
    assert "has one password for all" in refusal(**key_settings(path, ssl_key_password="another"))
    trust = {"ssl_truststore_type": "PKCS12", "ssl_truststore_location": path}
    assert "is ssl.truststore.password right" in refusal(**trust, ssl_truststore_password="another")
    assert "does it need ssl.truststore.password" in refusal(**trust)


def test_what_is_missing_or_in_another_format(tmp_path: Path) -> None:
    identity = AUTHORITY.issue("a@example.org")
    trust_only = stored(tmp_path, key_store(None, certificates(AUTHORITY.pem)))
    assert "holds no private key with its certificate" in refusal(**key_settings(trust_only))
    pem = str(identity.write(tmp_path / "key.pem"))
    assert "looks like a PEM store, not PKCS12: set ssl.keystore.type=PEM" in refusal(**key_settings(pem))
    whole = key_store(identity)
    for damaged in (whole[: len(whole) // 2], b"0" + bytes(100), b"hello", b""):
        assert "cannot be opened" in refusal(**key_settings(stored(tmp_path, damaged)))
    assert "cannot be read: No such file" in refusal(**key_settings(str(tmp_path / "none.p12")))
    for store in ("keystore", "truststore"):
        said = f"ssl.{store}.type=PKCS12 has no effect without ssl.{store}.location: texts are always PEM"
        assert said in refusal(**{f"ssl_{store}_type": "PKCS12"})


def test_a_key_that_openssl_refuses(tmp_path: Path) -> None:
    """It could be decrypted: its password is not to blame."""
    key = rsa.generate_private_key(65537, 1024)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "client")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
    encryption = serialization.BestAvailableEncryption(PASSWORD.encode())
    content = pkcs12.serialize_key_and_certificates(b"client", key, made.sign(key, hashes.SHA256()), [], encryption)
    said = refusal(**key_settings(stored(tmp_path, content)))
    assert "the certificate of ssl.keystore.location cannot be read: EE_KEY_TOO_SMALL" in said
    assert "password" not in said


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = stored(tmp_path, key_store(AUTHORITY.issue("a@example.org")))
    imported = builtins.__import__

    def importing(name: str, *arguments: Any) -> Any:
        if name.startswith("cryptography"):
            raise ModuleNotFoundError(name=name)
        return imported(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", importing)
    with pytest.raises(MissingExtraError, match=r"pip install 'htp-kclient\[pkcs12\]'"):
        context(**key_settings(path))
