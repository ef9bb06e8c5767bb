"""From the `ssl.` settings to an `ssl.SSLContext`, and what is refused on the way with which remedy."""

from __future__ import annotations

import errno
import os
import pickle
import ssl
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kclient.config import AdminConfig, ConsumerConfig, ProducerConfig
from kclient.config.names import LIBRDKAFKA
from kclient.errors import ConfigError, NotYetSupportedError
from kclient.producer import Producer
from tests.certificates import Authority, Identity, shown_certificate

AUTHORITY = Authority()
STRANGER = Authority()


@pytest.fixture(scope="module")
def identity() -> Identity:
    return AUTHORITY.issue("client@example.org")


def context(**settings: Any) -> ssl.SSLContext:
    made = ProducerConfig.parse(bootstrap_servers="localhost:9093", security_protocol="SSL", **settings).tls_context
    assert made is not None
    return made


def refusal(**settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        context(**settings)
    return str(caught.value)


def file(folder: Path, content: str | bytes) -> str:
    path = folder / f"file-{len(list(folder.iterdir()))}.pem"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


@pytest.fixture(scope="module")
def shown_by(tmp_path_factory: pytest.TempPathFactory) -> Callable[[ssl.SSLContext, str], bytes]:
    """The certificate that a client with a context shows to a server that wants one of an authority."""
    chain = AUTHORITY.issue("localhost").write(tmp_path_factory.mktemp("server") / "server.pem")

    def shown(made: ssl.SSLContext, authority: str) -> bytes:
        server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server_context.load_cert_chain(chain)
        server_context.verify_mode = ssl.CERT_REQUIRED
        server_context.load_verify_locations(cadata=authority)
        return shown_certificate(made, server_context)

    return shown


def first_of(chain: str) -> bytes:
    end = "-----END CERTIFICATE-----"
    return ssl.PEM_cert_to_DER_cert(chain[: chain.index(end)] + end)


# What is made.


def test_without_security_there_is_no_context() -> None:
    for cls in (ProducerConfig, ConsumerConfig, AdminConfig):
        assert cls.parse(bootstrap_servers="localhost:9092").tls_context is None


def test_defaults_are_strict() -> None:
    made = context()
    assert made.check_hostname
    assert made.verify_mode is ssl.CERT_REQUIRED
    assert made.minimum_version is ssl.TLSVersion.TLSv1_2
    assert made.maximum_version is ssl.TLSVersion.TLSv1_3
    assert made.options & ssl.OP_NO_RENEGOTIATION


def test_without_a_trust_store_the_systems_counts() -> None:
    assert context().cert_store_stats()["x509_ca"] == ssl.create_default_context().cert_store_stats()["x509_ca"]


@pytest.mark.parametrize("names", ["dotted", "snake"])
def test_both_kinds_of_names(names: str) -> None:
    settings = {"ssl.truststore.certificates": AUTHORITY.pem, "security.protocol": "SSL", "bootstrap.servers": "a:1"}
    if names == "snake":
        settings = {name.replace(".", "_"): value for name, value in settings.items()}
    made = ProducerConfig.parse(settings).tls_context
    assert made is not None
    assert len(made.get_ca_certs()) == 1


def test_a_trust_store_has_any_number_of_certificates_and_comments(tmp_path: Path) -> None:
    text = f"# ours, née Müller\n{AUTHORITY.pem}\nsubject=CN = another\n{STRANGER.pem}"
    assert len(context(ssl_truststore_location=file(tmp_path, text)).get_ca_certs()) == 2
    assert len(context(ssl_truststore_certificates=text).get_ca_certs()) == 2


def test_line_ends_that_a_properties_file_took_are_restored(identity: Identity) -> None:
    """In a properties file a text goes on after a backslash, and the client gets it in one line."""
    lines = {
        "bootstrap.servers": "localhost:9093",
        "security.protocol": "SSL",
        "ssl.truststore.certificates": AUTHORITY.pem,
        "ssl.keystore.certificate.chain": identity.chain,
        "ssl.keystore.key": identity.key,
    }
    text = "".join(name + "=" + " \\\n  ".join(value.splitlines()) + "\n" for name, value in lines.items())
    made = ProducerConfig.parse(text).tls_context
    assert made is not None
    assert len(made.get_ca_certs()) == 1


def test_a_key_store_in_one_file(
    tmp_path: Path, identity: Identity, shown_by: Callable[[ssl.SSLContext, str], bytes]
) -> None:
    trust = {"ssl_truststore_certificates": AUTHORITY.pem}
    plain = context(ssl_keystore_location=str(identity.write(tmp_path / "key.pem")), **trust)
    encrypted = context(
        ssl_keystore_location=str(identity.write(tmp_path / "secret.pem", encrypted=True)),
        ssl_key_password=identity.password,
        **trust,
    )
    assert {shown_by(plain, AUTHORITY.pem), shown_by(encrypted, AUTHORITY.pem)} == {first_of(identity.chain)}
    with pytest.raises(ssl.SSLError, match=r"(?i)did not return a certificate"):
        shown_by(context(**trust), AUTHORITY.pem)


def test_a_key_in_the_old_format(shown_by: Callable[[ssl.SSLContext, str], bytes]) -> None:
    import trustme
    from cryptography.hazmat.primitives import serialization

    authority = trustme.CA()
    leaf = authority.issue_cert("client@example.org")
    key = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None)
    old: bytes = key.private_bytes(  # type: ignore[union-attr]
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.BestAvailableEncryption(b"secret"),
    )
    assert b"Proc-Type: 4,ENCRYPTED" in old
    chain = "".join(blob.bytes().decode() for blob in leaf.cert_chain_pems)
    made = context(
        ssl_keystore_key=old.decode(),
        ssl_keystore_certificate_chain=chain,
        ssl_key_password="secret",
        ssl_truststore_certificates=AUTHORITY.pem,
    )
    assert shown_by(made, authority.cert_pem.bytes().decode()) == first_of(chain)


def test_nothing_is_left_on_disk(tmp_path: Path, identity: Identity, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ssl` reads keys from files only; where the system has no files in memory, one is made and removed at once."""
    monkeypatch.delattr("os.memfd_create")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    context(ssl_keystore_key=identity.key, ssl_keystore_certificate_chain=identity.chain)
    assert "ssl.key.password" in refusal(
        ssl_keystore_key=identity.encrypted_key, ssl_keystore_certificate_chain=identity.chain, ssl_key_password="no"
    )
    assert list(tmp_path.iterdir()) == []


def test_host_names_unchecked(caplog: pytest.LogCaptureFixture) -> None:
    made = context(ssl_endpoint_identification_algorithm="")
    assert not made.check_hostname
    assert made.verify_mode is ssl.CERT_REQUIRED
    assert "can pose as the broker" in caplog.text


def test_files_that_change_are_read_again(
    tmp_path: Path, shown_by: Callable[[ssl.SSLContext, str], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """Also when another file is put in their place; what cannot be used changes nothing, and is told of once."""
    caplog.set_level("INFO", "kclient.config")
    old, new = AUTHORITY.issue("old@example.org"), AUTHORITY.issue("new@example.org")
    key, trust = tmp_path / "key.pem", tmp_path / "trust.pem"
    old.write(key)
    trust.write_text(AUTHORITY.pem)
    made = ProducerConfig.parse(
        bootstrap_servers="a:1", security_protocol="SSL", ssl_keystore_location=key, ssl_truststore_location=trust
    )
    first = made.tls_context
    assert first is not None
    assert made.tls_context is first
    assert shown_by(first, AUTHORITY.pem) == first_of(old.chain)

    os.replace(new.write(tmp_path / "renewed.pem"), key)
    second = made.tls_context
    assert second is not None
    assert made.tls_context is second
    assert shown_by(second, AUTHORITY.pem) == first_of(new.chain)

    key.write_text("half of a k")
    assert made.tls_context is second
    trust.unlink()
    assert made.tls_context is second
    assert made.tls_context is second
    told = [record.levelname for record in caplog.records]
    assert told == ["INFO", "WARNING", "WARNING"]
    assert "half of a k" not in caplog.text

    old.write(key)
    trust.write_text(AUTHORITY.pem + STRANGER.pem)
    third = made.tls_context
    assert third is not None
    assert shown_by(third, AUTHORITY.pem) == first_of(old.chain)
    assert len(third.get_ca_certs()) == 2


def followed(path: Path | str) -> ProducerConfig:
    return ProducerConfig.parse(bootstrap_servers="a:1", security_protocol="SSL", ssl_truststore_location=path)


def test_a_file_whose_time_is_set_back_is_read_again(tmp_path: Path) -> None:
    trust = tmp_path / "trust.pem"
    trust.write_text(AUTHORITY.pem)
    made = followed(trust)
    first, before = made.tls_context, trust.stat()
    trust.write_text(AUTHORITY.pem)
    os.utime(trust, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert made.tls_context is not first


def test_what_failed_for_want_of_something_else_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The file does not change once more."""
    trust = tmp_path / "trust.pem"
    trust.write_text(AUTHORITY.pem)
    made = followed(trust)
    first = made.tls_context
    trust.write_text(AUTHORITY.pem + STRANGER.pem)

    def refuse(path: Path) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", refuse)
        assert made.tls_context is first
        assert made.tls_context is first
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    second = made.tls_context
    assert second is not first
    assert made.tls_context is second


@pytest.mark.timeout(20)
def test_a_pipe_is_not_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Connections are made in the event loop, and nobody may ever write into it."""
    trust = tmp_path / "trust.pem"
    trust.write_text(AUTHORITY.pem)
    made = followed(trust)
    first = made.tls_context
    trust.unlink()
    os.mkfifo(trust)
    assert made.tls_context is first
    assert f"{trust} is missing, or is not a file" in caplog.text


@pytest.mark.timeout(20)
def test_what_is_read_from_a_pipe_is_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As a shell's `<(...)` is: it can be read once."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=[AUTHORITY.pem])
    writer.start()
    made = followed(pipe)
    writer.join()
    first = made.tls_context
    os.utime(pipe)
    assert made.tls_context is first
    assert caplog.text == ""


V2, V3 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
ALL_OF_1_3 = "TLS_AES_256_GCM_SHA384,TLS_AES_128_GCM_SHA256,TLS_CHACHA20_POLY1305_SHA256"
OLD = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"


@pytest.mark.parametrize(
    ("settings", "low", "high"),
    [
        ({}, V2, V3),
        ({"ssl_protocol": "TLS"}, V2, V3),
        ({"ssl_protocol": "TLSv1.2"}, V2, V2),
        ({"ssl_enabled_protocols": "TLSv1.3"}, V3, V3),
        ({"ssl_enabled_protocols": "TLSv1.3,TLSv1.2"}, V2, V3),
        ({"ssl_cipher_suites": OLD}, V2, V2),
        ({"ssl_cipher_suites": ALL_OF_1_3}, V3, V3),
        ({"ssl_cipher_suites": f"{OLD},{ALL_OF_1_3}"}, V2, V3),
    ],
    ids=str,
)
def test_versions(settings: dict[str, Any], low: ssl.TLSVersion, high: ssl.TLSVersion) -> None:
    """A list of suites also chooses the versions: without a suite of TLS 1.3 there is no TLS 1.3."""
    made = context(**settings)
    assert (made.minimum_version, made.maximum_version) == (low, high)


@pytest.mark.parametrize(
    ("java", "openssl"),
    [
        ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256", "ECDHE-RSA-AES128-SHA256"),
        ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA", "ECDHE-RSA-AES128-SHA"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
        ("TLS_DHE_RSA_WITH_AES_256_GCM_SHA384", "DHE-RSA-AES256-GCM-SHA384"),
        ("TLS_RSA_WITH_AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
    ],
)
def test_cipher_suites(java: str, openssl: str) -> None:
    chosen = [item["name"] for item in context(ssl_cipher_suites=java).get_ciphers() if item["protocol"] != "TLSv1.3"]
    assert chosen == [openssl]


def test_a_context_of_the_users_own() -> None:
    mine = ssl.create_default_context(cadata=AUTHORITY.pem)
    assert context(ssl_context=mine) is mine


def test_a_configuration_can_be_pickled(tmp_path: Path) -> None:
    """With files: texts of keys and certificates are secrets, which cannot."""
    file = tmp_path / "authority.pem"
    file.write_text(AUTHORITY.pem)
    made = ProducerConfig.parse(bootstrap_servers="a:1", security_protocol="SSL", ssl_truststore_location=file)
    assert made.ssl_truststore_location == str(file)
    copy = pickle.loads(pickle.dumps(made))
    assert copy == made
    assert len(copy.tls_context.get_ca_certs()) == 1


# What is refused.


def test_without_security_the_settings_would_do_nothing() -> None:
    for protocol, remedy in (("PLAINTEXT", "SSL"), (None, "SSL")):
        with pytest.raises(ConfigError, match=f"nothing would be encrypted; set security.protocol={remedy},"):
            ProducerConfig.parse(
                bootstrap_servers="a:1", security_protocol=protocol, ssl_truststore_certificates=AUTHORITY.pem
            )
    with pytest.raises(ConfigError, match=r"ssl_context has no effect with security\.protocol=PLAINTEXT"):
        ProducerConfig.parse(bootstrap_servers="a:1", ssl_context=ssl.create_default_context())
    # as the Java client writes them out
    ProducerConfig.parse(bootstrap_servers="a:1", ssl_protocol="TLSv1.3", ssl_endpoint_identification_algorithm="https")


@pytest.mark.parametrize("kind", ["JKS", "bcfks"])
@pytest.mark.parametrize("store", ["truststore", "keystore"])
def test_java_stores(kind: str, store: str) -> None:
    said = rf"ssl\.{store}\.type={kind} is not supported: .* keytool -importkeystore .* set ssl\.{store}\.type=PKCS12"
    with pytest.raises(NotYetSupportedError, match=said):
        context(**{f"ssl_{store}_type": kind})
    assert "expected PEM or PKCS12" in refusal(**{f"ssl_{store}_type": "JSK"})


@pytest.mark.parametrize("store", ["truststore", "keystore"])
def test_java_stores_are_recognised(tmp_path: Path, store: str) -> None:
    with pytest.raises(NotYetSupportedError, match=r"a JKS key store, which cannot be read\. Convert it"):
        context(**{f"ssl_{store}_location": file(tmp_path, b"\xfe\xed\xfe\xed\0\0\0\2")})
    assert f"looks like a PKCS12 store, not PEM: set ssl.{store}.type=PKCS12 and ssl.{store}.password" in refusal(
        **{f"ssl_{store}_location": file(tmp_path, b"0\x82\x0a\x01")}
    )


def test_contradictions(tmp_path: Path, identity: Identity) -> None:
    keystore = str(identity.write(tmp_path / "key.pem"))
    assert "both set" in refusal(ssl_truststore_location=keystore, ssl_truststore_certificates=AUTHORITY.pem)
    assert "ssl.keystore.location and ssl.keystore.key are both set" in refusal(
        ssl_keystore_location=keystore, ssl_keystore_key=identity.key, ssl_keystore_certificate_chain=identity.chain
    )
    assert "ssl.keystore.certificate.chain is not" in refusal(ssl_keystore_key=identity.key)
    assert "ssl.keystore.key is not" in refusal(ssl_keystore_certificate_chain=identity.chain)
    assert "no password of their own" in refusal(ssl_keystore_location=keystore, ssl_keystore_password="x")
    assert "no password of their own" in refusal(ssl_truststore_location=keystore, ssl_truststore_password="x")
    assert "but no key" in refusal(ssl_key_password="x")
    assert "beside ssl_context" in refusal(
        ssl_context=ssl.create_default_context(), ssl_truststore_certificates=AUTHORITY.pem
    )
    assert "a server's context" in refusal(ssl_context=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    assert "an `ssl.SSLContext`" in refusal(ssl_context=True)


def test_files_and_texts_that_make_no_sense(tmp_path: Path, identity: Identity) -> None:
    assert "cannot be read: No such file" in refusal(ssl_truststore_location=str(tmp_path / "missing.pem"))
    assert "holds no PEM text" in refusal(ssl_truststore_location=file(tmp_path, "hello"))
    assert "holds no certificate" in refusal(ssl_truststore_location=file(tmp_path, identity.key))
    assert "holds no certificate" in refusal(ssl_truststore_certificates="hello")
    garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    assert "ssl.truststore.certificates holds a certificate that cannot be read" in refusal(
        ssl_truststore_certificates=garbage
    )
    assert "holds no private key" in refusal(ssl_keystore_location=file(tmp_path, identity.chain))
    assert "several private keys" in refusal(ssl_keystore_location=file(tmp_path, identity.key * 2 + identity.chain))
    other = STRANGER.issue("client@example.org")
    assert "does not belong to the first certificate of ssl.keystore.certificate.chain" in refusal(
        ssl_keystore_key=other.key, ssl_keystore_certificate_chain=identity.chain
    )


def test_passwords(identity: Identity) -> None:
    """Nobody is asked on the terminal, and no password is told."""
    pair = {"ssl_keystore_key": identity.encrypted_key, "ssl_keystore_certificate_chain": identity.chain}
    assert "is encrypted: set ssl.key.password" in refusal(**pair)
    with pytest.raises(ConfigError, match=r"is ssl\.key\.password right\?") as caught:
        context(**pair, ssl_key_password="not right")
    assert "not right" not in f"{caught.value!r}{caught.value.__cause__!r}"


def test_names_that_are_unknown() -> None:
    assert "choose from TLSv1.2 and TLSv1.3" in refusal(ssl_enabled_protocols="TLSv1.1,TLSv1.2")
    assert "leaves no version" in refusal(ssl_protocol="TLSv1.2", ssl_enabled_protocols="TLSv1.3")
    assert "'TLS_NO_SUCH_SUITE' is unknown to OpenSSL" in refusal(ssl_cipher_suites=f"{OLD},TLS_NO_SUCH_SUITE")
    assert "no suite of a TLS version" in refusal(ssl_cipher_suites=OLD, ssl_enabled_protocols="TLSv1.3")
    assert "ssl.endpoint.identification.algorithm" in refusal(ssl_endpoint_identification_algorithm="http")
    with pytest.raises(NotYetSupportedError, match=r"cannot choose among the suites of TLS 1\.3"):
        context(ssl_cipher_suites="TLS_AES_128_GCM_SHA256")


def test_a_config_shows_no_secret(identity: Identity) -> None:
    made = ProducerConfig.parse(
        bootstrap_servers="a:1",
        security_protocol="SSL",
        ssl_keystore_key=identity.encrypted_key,
        ssl_keystore_certificate_chain=identity.chain,
        ssl_key_password=identity.password,
    )
    assert "PRIVATE KEY" not in repr(made)
    assert identity.password not in repr(made)


def test_names_of_librdkafka() -> None:
    for name in (name for name in LIBRDKAFKA if name.startswith("ssl.")):
        with pytest.raises(ConfigError, match=r"librdkafka's name; (Kafka's is ssl|make an ssl\.SSLContext)"):
            ProducerConfig.parse({"bootstrap.servers": "a:1", name: "x"})
    with pytest.raises(ConfigError, match=r"ssl\.truststore\.location"):
        ProducerConfig.parse({"bootstrap.servers": "a:1", "ssl.ca.location": "ca.pem"})


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("ssl_cafile", "ssl.truststore.location"),
        ("ssl_certfile", "ssl.keystore.location"),
        ("ssl_keyfile", "ssl.keystore.location"),
        ("ssl_check_hostname", "ssl.endpoint.identification.algorithm"),
        ("enable.ssl.certificate.verification", "ssl_context"),
        ("ssl.crl.location", "ssl_context"),
    ],
)
def test_names_of_other_clients(name: str, ours: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.parse({"bootstrap.servers": "a:1", name: "x"})
    assert ours in str(caught.value)


@pytest.mark.parametrize("setting", ["ssl_keystore_location", "ssl_truststore_location"])
def test_a_key_in_place_of_its_path_is_not_shown(setting: str) -> None:
    text = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"
    with pytest.raises(ConfigError, match="is the path of a file, but holds PEM text") as told:
        Producer(bootstrap_servers="localhost:1", security_protocol="SSL", **{setting: text})
    assert "c2VjcmV0" not in "".join(traceback.format_exception(told.value))
