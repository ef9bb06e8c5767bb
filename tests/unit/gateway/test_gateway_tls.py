"""A gateway whose listeners encrypt: who comes in and as whom, renewed certificates, and what attackers get."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

import kclient
from kclient.admin import Admin, ConfigResource, ConfigResourceType, NewTopic
from kclient.errors import (
    ConfigError,
    KafkaError,
    KafkaTimeoutError,
    NotYetSupportedError,
    SaslAuthenticationError,
    SslAuthenticationError,
)
from kclient.gateway import Gateway
from kclient.gateway.config import BrokerConfig
from kclient.gateway.security.tls_listener import tls_of
from kclient.net import handshakes
from kclient.net.tls import connect_tls
from kclient.protocol import messages as m
from tests.certificates import Identity
from tests.gateway_tls import (
    alice,
    broker_authority,
    client_authority,
    client_settings,
    gateway_settings,
    gateway_with_tls,
    subject,
)
from tests.gateway_wire import Wire
from tests.wire_session import until

pytestmark = pytest.mark.anyio

SHORT = {"default.api.timeout.ms": 300, "request.timeout.ms": 250}


@pytest.fixture(autouse=True)
def seen(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG)
    return caplog


@asynccontextmanager
async def served(folder: Path, **config: Any) -> AsyncIterator[Gateway]:
    async with gateway_with_tls(folder, **config) as gateway:
        yield gateway


def settings(gateway: Gateway, listener: str, identity: Identity | None = None, **others: Any) -> dict[str, Any]:
    return client_settings(gateway.advertised, listener, identity, **others)


async def principals(gateway: Gateway, listener: str, identity: Identity | None = None, **others: Any) -> set[str]:
    """Whom the gateway takes a client for."""
    async with Admin(settings(gateway, listener, identity, **others)) as admin:
        await admin.list_topics()
        server = gateway._server
        assert server is not None
        return {str(each.context.principal) for each in server.connections}


def port_of(gateway: Gateway, listener: str) -> int:
    return int(gateway.advertised[listener].rpartition(":")[2])


def stranger(gateway: Gateway, listener: str) -> socket.socket:
    """A plain connection to a listener."""
    sock = socket.create_connection(("127.0.0.1", port_of(gateway, listener)))
    sock.setblocking(False)
    return sock


async def ended(sock: socket.socket) -> bytes:
    """What comes until the other side hangs up."""
    found = b""
    with anyio.fail_after(10):
        while True:
            await anyio.wait_readable(sock)
            try:
                some = sock.recv(4096)
            except ConnectionResetError:
                return found
            if not some:
                return found
            found += some


@asynccontextmanager
async def encrypted(gateway: Gateway, listener: str) -> AsyncIterator[Wire]:
    """Speaks by hand to a listener with TLS."""
    context = broker_authority().client_context()
    wire = Wire(await connect_tls(stranger(gateway, listener), context, "localhost", "gateway"))
    try:
        with anyio.fail_after(20):
            yield wire
    finally:
        await wire.aclose()


# --- who comes in


@pytest.mark.slow
async def test_records_by_every_kind_of_listener(tmp_path: Path) -> None:
    async with served(tmp_path) as gateway:
        async with Admin(settings(gateway, "SSL")) as admin:
            await admin.create_topics([NewTopic("t", 1)])
            told = await admin.describe_cluster()
            assert f"{told.nodes[0].host}:{told.nodes[0].port}" == gateway.advertised["SSL"]
        values = []
        for listener in ("SSL", "OPTIONAL", "MUTUAL", "LOGIN"):
            given = settings(gateway, listener, alice() if listener == "MUTUAL" else None)
            value = listener.encode() * 50_000
            async with kclient.Producer(given) as producer:
                await (await producer.send("t", value))
            values.append(value)
            group = {"group_id": listener, "auto_offset_reset": "earliest"}
            async with kclient.Consumer("t", config=given, **group) as consumer:
                found: list[bytes | None] = []
                with anyio.fail_after(20):
                    while len(found) < len(values):
                        found += [record.value for record in await consumer.poll(timeout=1.0)]
            assert found == values


@pytest.mark.parametrize(
    ("listener", "shows", "principal"),
    [
        ("SSL", False, "User:ANONYMOUS"),
        ("SSL", True, "User:ANONYMOUS"),
        ("OPTIONAL", False, "User:ANONYMOUS"),
        ("OPTIONAL", True, "User:CN=alice,O=Org"),
        ("MUTUAL", True, "User:CN=alice,O=Org"),
        ("LOGIN", False, "User:alice"),
        ("LOGIN", True, "User:alice"),
    ],
)
async def test_whom_a_client_is_taken_for(tmp_path: Path, listener: str, shows: bool, principal: str) -> None:
    async with served(tmp_path) as gateway:
        assert await principals(gateway, listener, alice() if shows else None) == {principal}


async def test_rules_make_users_of_certificates(tmp_path: Path) -> None:
    rules = "RULE:^CN=(.*?),O=Org$/$1/U,DEFAULT"
    async with served(tmp_path, **{"listener.name.mutual.ssl.principal.mapping.rules": rules}) as gateway:
        assert await principals(gateway, "MUTUAL", alice()) == {"User:ALICE"}
        assert await principals(gateway, "OPTIONAL", alice()) == {"User:CN=alice,O=Org"}


async def test_whom_no_rule_speaks_of_may_do_nothing(tmp_path: Path, seen: pytest.LogCaptureFixture) -> None:
    async with served(tmp_path, **{"ssl.principal.mapping.rules": "RULE:^CN=bob$/bob/"}) as gateway:
        with pytest.raises(KafkaError):
            await principals(gateway, "MUTUAL", alice(), **SHORT)
        assert "no rule of ssl.principal.mapping.rules speaks of its certificate, of 'CN=alice,O=Org'" in seen.text
        assert await principals(gateway, "OPTIONAL") == {"User:ANONYMOUS"}, "who shows none is nobody in particular"


async def test_a_login_with_a_certificate_on_top(tmp_path: Path) -> None:
    """With SASL_SSL only the listener's own `ssl.client.auth` counts, as on Kafka."""
    async with served(tmp_path, **{"ssl.client.auth": "required"}) as gateway:
        assert await principals(gateway, "LOGIN") == {"User:alice"}
        with pytest.raises(SslAuthenticationError):
            await principals(gateway, "SSL")
    async with served(tmp_path, **{"listener.name.login.ssl.client.auth": "required"}) as gateway:
        assert await principals(gateway, "LOGIN", alice()) == {"User:alice"}
        with pytest.raises(SslAuthenticationError):
            await principals(gateway, "LOGIN")
        with pytest.raises(SaslAuthenticationError):
            await principals(gateway, "LOGIN", alice(), **{"sasl.password": "wrong"})


@pytest.mark.parametrize(
    ("common_name", "principal"),
    [
        ("a,b=c+d", r"User:CN=a\,b\=c\+d"),
        ("nul\0nul", r"User:CN=nul\00nul"),
        (" blank ", "User:CN=\\ blank\\ "),
        ("Ümlaut Ⅸ 😀", "User:CN=Ümlaut Ⅸ 😀"),
        ("User:admin", "User:CN=User:admin"),
        ("ANONYMOUS", "User:CN=ANONYMOUS"),
        ("a" * 64, f"User:CN={'a' * 64}"),
    ],
)
async def test_names_of_all_kinds_in_certificates(tmp_path: Path, common_name: str, principal: str) -> None:
    async with served(tmp_path) as gateway:
        identity = client_authority().issue_for(subject(common_name))
        assert await principals(gateway, "MUTUAL", identity) == {principal}


@pytest.mark.parametrize("common_name", ["line\r\nERROR forged", "\u202eecila", "\x1b[31mred"])
async def test_names_that_would_forge_logs_are_refused(
    tmp_path: Path, common_name: str, seen: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path) as gateway:
        with pytest.raises(KafkaError):
            await principals(gateway, "MUTUAL", client_authority().issue_for(subject(common_name)), **SHORT)
    assert "whose characters cannot all be printed" in seen.text
    for record in seen.records:
        assert common_name not in record.getMessage()


@pytest.mark.filterwarnings("ignore:Attribute's length:UserWarning")
async def test_a_name_that_is_too_long(tmp_path: Path, seen: pytest.LogCaptureFixture) -> None:
    async with served(tmp_path) as gateway:
        with pytest.raises(KafkaError):
            await principals(gateway, "MUTUAL", client_authority().issue_for(subject("a" * 2000)), **SHORT)
    assert "the subject of its certificate has 2003 characters, of 1024 at most" in seen.text


# --- who does not


STRANGERS: dict[str, Callable[[], Identity | None]] = {
    "none": lambda: None,
    "of an authority that is not trusted": lambda: broker_authority().issue_for(subject("alice", "Org")),
    "expired": lambda: client_authority().issue_for(subject("alice", "Org"), expired=True),
    "signed by itself": lambda: client_authority().issue_for(subject("alice", "Org"), by_itself=True),
}


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize("stranger", STRANGERS)
async def test_certificates_that_let_nobody_in(
    tmp_path: Path, stranger: str, version: str, seen: pytest.LogCaptureFixture
) -> None:
    identity = STRANGERS[stranger]()
    async with served(tmp_path) as gateway:
        with (
            anyio.fail_after(20),
            pytest.raises(SslAuthenticationError, match=r"client('s)? certificate"),
        ):
            await principals(gateway, "MUTUAL", identity, **{"ssl.enabled.protocols": version})
        if identity is not None:  # where one may be left out, a wrong one is wrong all the same
            with anyio.fail_after(20), pytest.raises(SslAuthenticationError, match="client's certificate"):
                await principals(gateway, "OPTIONAL", identity, **{"ssl.enabled.protocols": version})
        said = "showed no certificate" if identity is None else "certificate is refused"
        await until(lambda: logged(seen), lambda text: said in text)


async def logged(seen: pytest.LogCaptureFixture) -> str:
    return seen.text


async def test_a_client_that_expects_another_name(tmp_path: Path) -> None:
    async with served(tmp_path) as gateway:
        wrong = {"bootstrap.servers": f"127.0.0.1:{port_of(gateway, 'SSL')}"}
        with pytest.raises(SslAuthenticationError, match="for another name"):
            await principals(gateway, "SSL", **wrong)
        with pytest.raises(SslAuthenticationError, match="not trusted"):
            await principals(gateway, "SSL", **{"ssl.truststore.certificates": client_authority().pem})


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_old_versions_of_tls(tmp_path: Path, version: ssl.TLSVersion, seen: pytest.LogCaptureFixture) -> None:
    context = broker_authority().client_context()
    context.minimum_version = context.maximum_version = version
    context.set_ciphers("ALL:@SECLEVEL=0")
    async with served(tmp_path) as gateway:
        with pytest.raises(SslAuthenticationError, match="no TLS version in common"):
            await connect_tls(stranger(gateway, "SSL"), context, "localhost", "gateway")
        await until(lambda: logged(seen), lambda text: "no TLS version in common with the client" in text)


async def test_versions_and_suites_that_a_listener_allows(tmp_path: Path) -> None:
    suite = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
    narrow = {"listener.name.ssl.ssl.enabled.protocols": "TLSv1.2", "listener.name.ssl.ssl.cipher.suites": suite}
    async with served(tmp_path, **narrow) as gateway:
        assert await principals(gateway, "SSL")
        for other in (
            {"ssl.enabled.protocols": "TLSv1.3"},
            {"ssl.cipher.suites": suite.replace("256_GCM_SHA384", "128_GCM_SHA256")},
        ):
            with pytest.raises(SslAuthenticationError, match="in common"):
                await principals(gateway, "SSL", **{"ssl.enabled.protocols": "TLSv1.2", **other})
        assert await principals(gateway, "OPTIONAL", **{"ssl.enabled.protocols": "TLSv1.3"})


async def test_plain_text_at_a_port_with_tls(tmp_path: Path, seen: pytest.LogCaptureFixture) -> None:
    async with served(tmp_path) as gateway:
        for said in (b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\0\0", b"GET / HTTP/1.1\r\n\r\n", b"rubbish, and more of it"):
            seen.clear()
            with stranger(gateway, "SSL") as sock:
                sock.send(said)
                assert (await ended(sock))[:1] in (b"", b"\x15"), "nothing, or an alert"
            await until(lambda: logged(seen), lambda text: "the client does not speak TLS" in text)
        with pytest.raises(KafkaTimeoutError, match=r"security\.protocol"):
            async with Admin({"bootstrap.servers": gateway.advertised["SSL"], **SHORT}) as admin:
                await admin.list_topics()
        assert await principals(gateway, "SSL")


async def test_tls_at_a_plain_port(tmp_path: Path, seen: pytest.LogCaptureFixture) -> None:
    async with served(tmp_path) as gateway:
        wrong = {"bootstrap.servers": f"localhost:{port_of(gateway, 'PLAINTEXT')}", **SHORT}
        with pytest.raises(KafkaTimeoutError, match=r"security\.protocol=PLAINTEXT"):
            await principals(gateway, "SSL", **wrong)
        assert "TLS" in "".join(
            record.getMessage() for record in seen.records if record.name == "kclient.net.server"
        ), "the gateway says what it was"


@pytest.mark.slow
async def test_half_a_handshake_by_the_hundred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: pytest.LogCaptureFixture
) -> None:
    """Strangers that begin TLS and never go on keep nobody out; the oldest of them make room."""
    monkeypatch.setattr(handshakes, "MOST", 50)
    async with served(tmp_path) as gateway:
        server = gateway._server
        assert server is not None
        with ExitStack() as stack:
            strangers = [stack.enter_context(stranger(gateway, "SSL")) for _ in range(40)]
            strangers += [stack.enter_context(stranger(gateway, "MUTUAL")) for _ in range(160)]
            for sock in strangers:
                sock.send(b"\x16\x03\x01")
            assert await principals(gateway, "SSL") == {"User:ANONYMOUS"}
            await until(lambda: handshakes_of(gateway), lambda count: 0 < count <= 50)
            assert "as many as may be" in seen.text
            assert await ended(strangers[0]) == b""
        await until(lambda: handshakes_of(gateway), lambda count: count == 0)
        assert server.limits.open == 0


async def handshakes_of(gateway: Gateway) -> int:
    server = gateway._server
    assert server is not None
    return len(server._handshakes)


async def test_a_handshake_takes_no_longer_than_it_may(tmp_path: Path, seen: pytest.LogCaptureFixture) -> None:
    async with served(tmp_path) as gateway:
        server = gateway._server
        assert server is not None
        server._handshakes._timeout = 0.1
        with stranger(gateway, "SSL") as silent, stranger(gateway, "SSL") as half:
            half.send(b"\x16\x03\x01\x02\x00\x01")
            assert await ended(silent) == b""
            await ended(half)
        assert "completed no TLS handshake within 0.1 s" in seen.text
        assert await principals(gateway, "SSL")


async def test_handshakes_leave_the_loop_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_the_loop: list[tuple[bool, bool]] = []
    loop = threading.get_ident()
    by_client, by_server = ssl.SSLSocket.do_handshake, ssl.SSLObject.do_handshake

    def client(sock: ssl.SSLSocket) -> None:
        on_the_loop.append((sock.server_side, threading.get_ident() == loop))
        by_client(sock)

    def server(session: ssl.SSLObject) -> None:
        on_the_loop.append((session.server_side, threading.get_ident() == loop))
        by_server(session)

    async with served(tmp_path) as gateway:
        monkeypatch.setattr(ssl.SSLSocket, "do_handshake", client)
        monkeypatch.setattr(ssl.SSLObject, "do_handshake", server)
        await principals(gateway, "MUTUAL", alice())
        monkeypatch.undo()
    assert set(on_the_loop) == {(True, False), (False, True)}


async def test_a_handshake_of_single_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every byte is worth a thread."""
    steps = 0
    shake = ssl.SSLObject.do_handshake

    def counted(session: ssl.SSLObject) -> None:
        nonlocal steps
        steps += 1
        shake(session)

    async with served(tmp_path) as gateway:
        with stranger(gateway, "SSL") as slow:
            slow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            monkeypatch.setattr(ssl.SSLObject, "do_handshake", counted)
            for byte in b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03" + bytes(290):
                slow.send(bytes([byte]))
                await anyio.sleep(0.001)
            monkeypatch.undo()
        assert 0 < steps < 100


async def test_nothing_is_answered_before_the_login(tmp_path: Path) -> None:
    request = m.ApiVersionsRequest(client_software_name="test", client_software_version="1")
    async with served(tmp_path) as gateway:
        async with encrypted(gateway, "LOGIN") as wire:
            offered = {each.api_key for each in (await wire(request, 4)).api_keys}
            assert {m.SaslHandshakeRequest.API_KEY, m.SaslAuthenticateRequest.API_KEY} <= offered
            await wire.send(m.MetadataRequest(topics=None), 12)
            with pytest.raises((OSError, AssertionError)):
                assert await wire.frame() is not None
        with stranger(gateway, "LOGIN") as sock:  # a password in the clear gets no answer, but an alert at most
            sock.send(b"\0\0\0\x20\0\x11\0\1\0\0\0\1\xff\xff\0\5PLAIN")
            assert (await ended(sock))[:1] in (b"", b"\x15")


# --- certificates that are renewed


async def shown_by(gateway: Gateway, listener: str) -> bytes | None:
    """The certificate that the gateway shows to a new connection."""
    context = broker_authority().client_context()
    stream = await connect_tls(stranger(gateway, listener), context, "localhost", "gateway")
    try:
        return stream.peer_certificate
    finally:
        stream.close()


async def test_a_renewed_certificate_is_shown_to_new_connections(
    tmp_path: Path, seen: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path) as gateway, encrypted(gateway, "SSL") as lasting:
        before = await shown_by(gateway, "SSL")
        assert before == await shown_by(gateway, "SSL")
        keystore = tmp_path / "gateway.pem"
        broker_authority().issue("localhost").write(keystore)
        after = await shown_by(gateway, "SSL")
        assert after != before
        assert after == await shown_by(gateway, "LOGIN"), "every listener looks for itself"
        assert f"{tmp_path / 'clients.pem'} and {keystore} changed: new connections use" in seen.text
        keystore.write_text("rubbish")
        assert await shown_by(gateway, "SSL") == after
        assert "cannot be used; new connections use what it was before" in seen.text
        keystore.unlink()
        assert await shown_by(gateway, "SSL") == after
        broker_authority().issue("localhost").write(keystore)
        assert await shown_by(gateway, "SSL") not in (before, after)
        assert (await lasting(m.MetadataRequest(topics=[]), 12)).brokers, "connections that stand go on"


async def test_trust_that_is_taken_away(tmp_path: Path) -> None:
    async with served(tmp_path) as gateway:
        assert await principals(gateway, "MUTUAL", alice())
        truststore = tmp_path / "clients.pem"
        truststore.write_text(broker_authority().pem)
        with pytest.raises(SslAuthenticationError):
            await principals(gateway, "MUTUAL", alice())
        truststore.write_text(client_authority().pem)
        assert await principals(gateway, "MUTUAL", alice())


@pytest.mark.slow
async def test_trust_that_cannot_be_taken_away_is_told_of(tmp_path: Path, seen: pytest.LogCaptureFixture) -> None:
    """While the key store cannot be read nothing is made anew; that this was told before does not count."""
    async with served(tmp_path) as gateway:
        (tmp_path / "gateway.pem").unlink()
        for _ in range(2):
            assert await principals(gateway, "MUTUAL", alice())
        assert seen.text.count("cannot be used; new connections use what it was before") == 1
        (tmp_path / "clients.pem").write_text(broker_authority().pem)
        for _ in range(2):
            assert await principals(gateway, "MUTUAL", alice())
        assert seen.text.count("cannot be used; new connections use what it was before") == 2


def test_nobody_renegotiates(tmp_path: Path) -> None:
    given = gateway_settings(tmp_path, **{"ssl.keystore.location": None})
    own = {"listener.name.mutual.ssl.keystore.location": tmp_path / "gateway.pem"}
    config = BrokerConfig(given | own)
    context = tls_of(config, "MUTUAL", "SSL")._followed.context
    assert context is not None
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.options & ssl.OP_NO_COMPRESSION
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert context.verify_mode == ssl.CERT_REQUIRED


async def test_a_key_store_of_java(tmp_path: Path) -> None:
    identity = broker_authority().issue("localhost")
    key: Any = serialization.load_pem_private_key(identity.key.encode(), None)
    leaf, *chain = x509.load_pem_x509_certificates(identity.chain.encode())
    encryption = serialization.BestAvailableEncryption(b"secret")
    store = tmp_path / "gateway.p12"
    store.write_bytes(pkcs12.serialize_key_and_certificates(b"gateway", key, leaf, chain, encryption))
    given = {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": str(store), "ssl.keystore.password": "secret"}
    async with served(tmp_path, **given) as gateway:
        assert await principals(gateway, "MUTUAL", alice()) == {"User:CN=alice,O=Org"}
    store.write_bytes(b"\xfe\xed\xfe\xed")
    with pytest.raises(NotYetSupportedError, match=r"listener SSL .*keytool -importkeystore"):
        gateway_with_tls(tmp_path, **given)


# --- secrets


async def test_no_secret_is_told(tmp_path: Path, seen: pytest.LogCaptureFixture) -> None:
    identity = broker_authority().issue("localhost")
    given = {
        "ssl.keystore.location": None,
        "ssl.keystore.key": identity.encrypted_key,
        "ssl.keystore.certificate.chain": identity.chain,
        "ssl.key.password": identity.password,
        "ssl.truststore.location": None,
        "ssl.truststore.certificates": client_authority().pem,
    }
    async with served(tmp_path, **given) as gateway:
        async with Admin(settings(gateway, "MUTUAL", alice())) as admin:
            resource = ConfigResource(ConfigResourceType.BROKER, str(gateway.parts.identity.node_id))
            (told,) = (await admin.describe_configs([resource], include_synonyms=True)).values()
        entry = told["ssl.key.password"]
        assert (entry.value, entry.is_sensitive, entry.is_read_only) == (None, True, True)
        assert [synonym.value for synonym in entry.synonyms] == [None]
        for text in (repr(told), repr(gateway.parts.config.secrets), seen.text, repr(vars(gateway.parts.config))):
            assert identity.password not in text
            assert "PRIVATE KEY" not in text
            assert "BEGIN CERTIFICATE" not in text


# --- settings


async def test_a_password_that_stands_in_a_file(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets.properties"
    identity = broker_authority().issue("localhost")
    variable = f"${{file:{secrets}:key}}"
    given = gateway_settings(tmp_path, **{"config.providers": "file", "ssl.key.password": variable})
    identity.write(tmp_path / "gateway.pem", encrypted=True)
    for password in ("wrong", identity.password):
        secrets.write_text(f"key={password}")
        if password == "wrong":
            with pytest.raises(ConfigError, match="cannot be decrypted"):
                Gateway("memory:tls-variables", config=given)
    async with Gateway("memory:tls-variables", config=given) as gateway:
        assert await principals(gateway, "SSL")
    for setting in ("num.partitions", "ssl.client.auth"):
        with pytest.raises(ConfigError) as raised:
            Gateway("memory:tls-variables", config={**given, setting: variable})
        assert identity.password not in str(raised.value)


def test_a_wrong_password_of_the_key_is_not_shown(tmp_path: Path) -> None:
    identity = broker_authority().issue("localhost")
    given = gateway_settings(tmp_path, **{"ssl.key.password": "no, not this one"})
    identity.write(tmp_path / "gateway.pem", encrypted=True)
    with pytest.raises(ConfigError, match=r"cannot be decrypted: is ssl\.key\.password right") as raised:
        Gateway("memory:tls-settings", config=given)
    assert "no, not this one" not in str(raised.value)


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"ssl.keystore.location": None}, r"listener SSL is to speak SSL: ssl\.keystore\.location is missing: .*PEM"),
        ({"ssl.keystore.location": "no-such-file"}, "the file no-such-file cannot be read"),
        ({"ssl.truststore.location": None}, r"listener OPTIONAL .*ssl\.truststore\.location is missing.*requested"),
        ({"listener.name.mutual.ssl.client.auth": "maybe"}, r"mutual\.ssl\.client\.auth: expected one of `none`"),
        ({"ssl.client.auth": "maybe"}, r"ssl\.client\.auth"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "choose from TLSv1.2 and TLSv1.3"),
        ({"ssl.protocol": "SSLv3"}, r"ssl\.protocol"),
        ({"ssl.cipher.suites": "TLS_NONE"}, "unknown to OpenSSL"),
        ({"ssl.keystore.type": "PKCS12"}, r"ssl\.keystore\.password is missing"),
        ({"ssl.keystore.password": "x"}, "PEM files have no password"),
        ({"ssl.keystore.type": "DER"}, "expected PEM or PKCS12"),
        ({"ssl.principal.mapping.rules": "RULE:x"}, "is no rule"),
        ({"ssl.engine.factory.class": "x.Y"}, "a class of Java's"),
        ({"ssl.provider": "SunJSSE"}, "leave it out"),
        ({"listener.name.plaintext.ssl.client.auth": "required"}, "PLAINTEXT is without TLS"),
        ({"listener.name.ssl.sasl.enabled.mechanisms": "PLAIN"}, "SSL is without SASL"),
        ({"listener.name.ssl.ssl.provider": "x"}, "OpenSSL does its work here"),
        ({"ssl.key.password": 5}, r"ssl\.key\.password is text"),
    ],
)
def test_settings_that_make_no_sense(tmp_path: Path, config: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        Gateway("memory:tls-settings", config=gateway_settings(tmp_path, **config))


@pytest.mark.parametrize("listens", [{}, {"listeners": "PLAINTEXT://127.0.0.1:0"}])
def test_encryption_that_nothing_would_use(listens: dict[str, str]) -> None:
    for name in ("ssl.keystore.location", "ssl.key.password"):
        with pytest.raises(ConfigError, match=rf"{name} has no effect: no listener encrypts"):
            Gateway("memory:tls-settings", config={name: "x", **listens})


def test_settings_of_java_that_mean_nothing_here(tmp_path: Path, seen: pytest.LogCaptureFixture) -> None:
    Gateway("memory:tls-settings", config=gateway_settings(tmp_path, **{"ssl.endpoint.identification.algorithm": ""}))
    assert "without effect on a gateway: ssl.endpoint.identification.algorithm (names" in seen.text
    assert "the trust store has no effect on the listener SSL" in seen.text


@pytest.mark.parametrize("name", ["ssl.keystore.location", "ssl.client.auth", "ssl.key.password"])
async def test_only_a_restart_changes_them(tmp_path: Path, name: str) -> None:
    async with served(tmp_path) as gateway, encrypted(gateway, "SSL") as wire:
        assert await wire.alter(4, "1", (name, 0, "none")) == 42


@pytest.mark.parametrize(
    ("listener", "warning"),
    [("SSL", "without authentication"), ("OPTIONAL", "without authentication"), ("MUTUAL", None), ("LOGIN", None)],
)
async def test_listeners_beyond_the_machine_that_are_warned_of(
    tmp_path: Path, listener: str, warning: str | None, seen: pytest.LogCaptureFixture
) -> None:
    everything = gateway_settings(tmp_path)
    own = {name: value for name, value in everything.items() if not name.startswith("listener.name.")}
    own |= {name: each for name, each in everything.items() if name.startswith(f"listener.name.{listener.lower()}.")}
    config = {**own, "listeners": f"{listener}://0.0.0.0:0", "advertised.listeners": f"{listener}://localhost:0"}
    async with Gateway(f"memory:beyond-{listener}", config=config):
        if warning is None:
            assert "beyond this machine" not in seen.text
        else:
            assert warning in seen.text
