"""All clients over TLS against real Kafka: settings in Java's names, certificates on one side and on both, refusals."""

from __future__ import annotations

import logging
import ssl
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

import kclient
import kclient.sync
from kclient.errors import KafkaTimeoutError, NotYetSupportedError, SslAuthenticationError
from tests.certificates import Authority
from tests.kafka_listeners import SecureListeners
from tests.kafka_server import KafkaServer

pytestmark = [pytest.mark.anyio, pytest.mark.kafka]

Settings = dict[str, Any]


@pytest.fixture
def one_side(kafka: KafkaServer, secure_listeners: SecureListeners) -> Settings:
    """The broker shows a certificate."""
    return {
        "bootstrap.servers": kafka.addresses["SSL"],
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": secure_listeners.authority.pem,
    }


@pytest.fixture
def both_sides(
    kafka: KafkaServer, secure_listeners: SecureListeners, one_side: Settings, tmp_path: Path
) -> dict[str, Settings]:
    """The client shows one too: as text with an encrypted key, as a file, and in a context of the user's own."""
    identity = secure_listeners.client
    start = {**one_side, "bootstrap.servers": kafka.addresses["SSL_CLIENT"]}
    trust = tmp_path / "trust.pem"
    trust.write_text(secure_listeners.authority.pem)
    keystore = identity.write(tmp_path / "client.pem")
    context = ssl.create_default_context(cafile=trust)
    context.load_cert_chain(keystore)
    return {
        "texts": {
            **start,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": identity.chain,
            "ssl.keystore.key": identity.encrypted_key,
            "ssl.key.password": identity.password,
        },
        "files": {
            "bootstrap.servers": kafka.addresses["SSL_CLIENT"],
            "security.protocol": "SSL",
            "ssl.truststore.location": str(trust),
            "ssl.keystore.location": str(keystore),
        },
        "context": {
            "bootstrap_servers": kafka.addresses["SSL_CLIENT"],
            "security_protocol": "SSL",
            "ssl_context": context,
        },
    }


async def round_trip(settings: Settings, topic: str) -> None:
    async with kclient.Admin(settings) as admin:
        await admin.create_topics([kclient.admin.NewTopic(topic, 1, 1)])
    values = [b"%d" % number * 100 for number in range(2000)] + [b"x" * 900_000]
    async with kclient.Producer(settings, linger_ms=5) as producer:
        await (await producer.send_batch(topic, values, partition=0))
    received: list[bytes] = []
    group = {"group_id": topic, "auto_offset_reset": "earliest"}
    async with kclient.Consumer(topic, config=settings, **group) as consumer:
        with anyio.fail_after(30):
            while len(received) < len(values):
                received += [record.value for record in await consumer.poll(timeout=1.0)]
        await consumer.commit()
    assert received == values


async def test_all_clients(one_side: Settings, topic: str) -> None:
    await round_trip(one_side, topic)


@pytest.mark.parametrize("way", ["texts", "files", "context"])
async def test_mutual(both_sides: dict[str, Settings], way: str, topic: str) -> None:
    await round_trip(both_sides[way], topic)


@pytest.mark.parametrize("legacy", [False, True], ids=["as now", "as before Java 17"])
async def test_stores_that_keytool_makes(
    kafka: KafkaServer, secure_listeners: SecureListeners, tmp_path: Path, topic: str, legacy: bool
) -> None:
    """By way of JKS, whose keys kclient does not read."""

    def keytool(*words: str) -> None:
        options = ["-J-Dkeystore.pkcs12.legacy"] if legacy else []
        subprocess.run(["keytool", *options, *words, "-noprompt"], cwd=tmp_path, check=True, capture_output=True)

    identity = secure_listeners.client
    key: Any = serialization.load_pem_private_key(identity.key.encode(), None)
    leaf, *chain = x509.load_pem_x509_certificates(identity.chain.encode())
    encryption = serialization.BestAvailableEncryption(b"secret")
    (tmp_path / "made.p12").write_bytes(pkcs12.serialize_key_and_certificates(b"client", key, leaf, chain, encryption))
    (tmp_path / "authority.pem").write_text(secure_listeners.authority.pem)
    passwords = ("-srcstorepass", "secret", "-deststorepass", "secret")
    stores = ("-importkeystore", *passwords, "-srckeystore")
    keytool(*stores, "made.p12", "-destkeystore", "client.jks", "-deststoretype", "JKS")
    keytool(*stores, "client.jks", "-destkeystore", "client.p12", "-deststoretype", "PKCS12")
    keytool(
        "-importcert", "-alias", "ca", "-file", "authority.pem", "-keystore", "trust.p12",
        "-storetype", "PKCS12", "-storepass", "secret",
    )  # fmt: skip
    settings = {
        "bootstrap.servers": kafka.addresses["SSL_CLIENT"],
        "security.protocol": "SSL",
        "ssl.truststore.type": "PKCS12",
        "ssl.truststore.location": str(tmp_path / "trust.p12"),
        "ssl.truststore.password": "secret",
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(tmp_path / "client.p12"),
        "ssl.keystore.password": "secret",
        "ssl.key.password": "secret",
    }
    await round_trip(settings, topic)
    with pytest.raises(NotYetSupportedError, match="keytool -importkeystore"):
        kclient.Admin({**settings, "ssl.keystore.location": str(tmp_path / "client.jks")})


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
async def test_chosen_version_and_suite(one_side: Settings, version: str) -> None:
    suites = {"TLSv1.2": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLSv1.3": None}
    async with kclient.Admin(
        {**one_side, "ssl.enabled.protocols": version, "ssl.cipher.suites": suites[version]}
    ) as admin:
        assert (await admin.describe_cluster()).nodes


def test_blocking_clients(both_sides: dict[str, Settings], topic: str) -> None:
    settings = both_sides["texts"]
    with kclient.sync.Admin(settings) as admin:
        admin.create_topics([kclient.admin.NewTopic(topic, 1, 1)])
    with kclient.sync.Producer(settings) as producer:
        producer.send(topic, b"value").result(timeout=30)
    with kclient.sync.Consumer(topic, config=settings, group_id=topic, auto_offset_reset="earliest") as consumer:
        records: list[Any] = []
        deadline = time.monotonic() + 30
        while not records and time.monotonic() < deadline:
            records += consumer.poll(timeout=1.0)
    assert [record.value for record in records] == [b"value"]


# What is refused, and told at once rather than after many attempts.


def with_stranger(settings: Settings) -> Settings:
    return {**settings, "ssl.truststore.certificates": Authority().pem}


def with_other_name(settings: Settings) -> Settings:
    return {**settings, "bootstrap.servers": settings["bootstrap.servers"].replace("localhost", "127.0.0.1")}


REFUSED: dict[str, tuple[Callable[[Settings], Settings], str]] = {
    "unknown authority": (with_stranger, r"not trusted .* ssl\.truststore\.location"),
    "wrong host name": (
        with_other_name,
        r"for another name: .*127\.0\.0\.1.* ssl\.endpoint\.identification\.algorithm",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_refused_by_the_client(one_side: Settings, case: str, topic: str) -> None:
    change, text = REFUSED[case]
    settings = change(one_side)
    with anyio.fail_after(30):
        with pytest.raises(SslAuthenticationError, match=text):
            async with kclient.Admin(settings) as admin:
                await admin.list_topics()
        with pytest.raises(SslAuthenticationError, match=text):
            async with kclient.Producer(settings) as producer:
                await (await producer.send(topic, b"value"))
        with pytest.raises(SslAuthenticationError, match=text):
            async with kclient.Consumer(topic, config=settings, group_id=topic) as consumer:
                await consumer.poll(timeout=5.0)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
async def test_client_certificate_missing(kafka: KafkaServer, one_side: Settings, version: str) -> None:
    settings = {**one_side, "bootstrap.servers": kafka.addresses["SSL_CLIENT"], "ssl.enabled.protocols": version}
    with anyio.fail_after(30), pytest.raises(SslAuthenticationError, match=r"client certificate.* ssl\.keystore\.loc"):
        async with kclient.Admin(settings) as admin:
            await admin.list_topics()


async def test_client_certificate_of_a_stranger(both_sides: dict[str, Settings]) -> None:
    stranger = Authority().issue("client@example.org")
    settings = {
        **both_sides["texts"],
        "ssl.keystore.certificate.chain": stranger.chain,
        "ssl.keystore.key": stranger.key,
        "ssl.key.password": None,
    }
    with anyio.fail_after(30), pytest.raises(SslAuthenticationError, match=r"certificate.* ssl\.keystore\.location"):
        async with kclient.Admin(settings) as admin:
            await admin.list_topics()


async def test_the_ports_confused(kafka: KafkaServer, one_side: Settings) -> None:
    """A broker hangs up in both cases, as one that is overloaded does: tried again until the time is over."""
    short = {"default.api.timeout.ms": 2500, "request.timeout.ms": 2000}
    with pytest.raises(KafkaTimeoutError, match=r"security\.protocol=PLAINTEXT"):
        async with kclient.Admin({**one_side, **short, "bootstrap.servers": kafka.bootstrap}) as admin:
            await admin.list_topics()
    with pytest.raises(KafkaTimeoutError, match=r"ask for TLS\? \(security\.protocol\)|speaks TLS; see `security"):
        async with kclient.Admin({**short, "bootstrap.servers": kafka.addresses["SSL"]}) as admin:
            await admin.list_topics()


async def test_no_secret_is_shown(
    both_sides: dict[str, Settings], secure_listeners: SecureListeners, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with kclient.Admin(both_sides["texts"]) as admin:
        await admin.list_topics()
        shown = f"{caplog.text}{admin!r}{admin.config!r}" if hasattr(admin, "config") else f"{caplog.text}{admin!r}"
    shown += repr(kclient.config.AdminConfig.parse(both_sides["texts"]))
    assert secure_listeners.client.password not in shown
    assert "PRIVATE KEY" not in shown
