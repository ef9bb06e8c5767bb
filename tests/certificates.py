"""Certificates of a throw-away authority, as PEM texts and files: for servers, and for clients that show one."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


@dataclass(frozen=True)
class Identity:
    """A private key (PKCS#8, which is what Java reads) with its certificate chain."""

    chain: str
    key: str
    encrypted_key: str
    password: str

    def write(self, path: Path, *, encrypted: bool = False) -> Path:
        """Key and chain in one PEM file, as `ssl.keystore.location` expects them."""
        path.write_text((self.encrypted_key if encrypted else self.key) + self.chain)
        return path


class Authority:
    """Signs certificates that only it vouches for."""

    def __init__(self) -> None:
        self._ca = trustme.CA()
        self.pem: str = self._ca.cert_pem.bytes().decode()
        """Its own certificate: what `ssl.truststore.certificates` trusts."""

    def issue(self, *names: str) -> Identity:
        """A certificate for host names, addresses or (for clients) `user@host`."""
        leaf = self._ca.issue_cert(*names)
        key = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None)
        password = "not for the logs"
        return Identity(
            "".join(blob.bytes().decode() for blob in leaf.cert_chain_pems),
            _pem(key, serialization.NoEncryption()),
            _pem(key, serialization.BestAvailableEncryption(password.encode())),
            password,
        )

    def issue_for(self, subject: x509.Name, *, expired: bool = False, by_itself: bool = False) -> Identity:
        """A certificate of a client, for any subject; it may have expired, or be signed by its own key alone."""
        key = ec.generate_private_key(ec.SECP256R1())
        authority = x509.load_pem_x509_certificate(self._ca.cert_pem.bytes())
        signer = serialization.load_pem_private_key(self._ca.private_key_pem.bytes(), None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject if by_itself else authority.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=2))
            .not_valid_after(now + timedelta(days=-1 if expired else 1))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .sign(key if by_itself else signer, hashes.SHA256())
        )
        password = "not for the logs"
        return Identity(
            certificate.public_bytes(serialization.Encoding.PEM).decode(),
            _pem(key, serialization.NoEncryption()),
            _pem(key, serialization.BestAvailableEncryption(password.encode())),
            password,
        )

    def server_context(self, folder: Path, *names: str, client_authority: Authority | None = None) -> ssl.SSLContext:
        """A server's context with a certificate for `names`; with `client_authority` clients must show one of its."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.issue(*names).write(folder / f"{'-'.join(names).replace(':', '_')}.pem"))
        if client_authority is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=client_authority.pem)
        return context

    def client_context(self) -> ssl.SSLContext:
        """A client's context that trusts this authority only."""
        return ssl.create_default_context(cadata=self.pem)


def shown_certificate(client_context: ssl.SSLContext, server_context: ssl.SSLContext) -> bytes:
    """The certificate that a client shows to a server at `localhost` which wants one."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname="localhost")
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    waiting = [client, server]
    while waiting:
        side = waiting.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            waiting.append(side)
    certificate = server.getpeercert(binary_form=True)
    assert certificate is not None
    return certificate


def _pem(key: object, encryption: serialization.KeySerializationEncryption) -> str:
    blob: bytes = key.private_bytes(  # type: ignore[attr-defined]
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )
    return blob.decode()
