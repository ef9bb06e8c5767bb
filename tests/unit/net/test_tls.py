"""TLS between our own client and server: what is agreed on, what fails and how that is said, cuts and cancellations."""

from __future__ import annotations

import logging
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme

from kclient.concurrency import Supervisor
from kclient.errors import BrokerConnectionError, ConfigError, KafkaError, SslAuthenticationError
from kclient.net.address import Address
from kclient.net.channel import TruncatedError
from kclient.net.channel_kinds import open_channel
from kclient.net.connection import Connection
from kclient.net.connectors import bootstrap_addresses, connect
from kclient.net.server import Listener, Server, ServerSettings
from kclient.net.settings import ConnectionSettings
from kclient.net.streams import CutOffError
from kclient.net.tls import TlsStream, connect_tls
from kclient.net.tls_accepting import accept_tls
from kclient.protocol.messages import MetadataRequest, MetadataRequestTopic
from kclient.testing.cancellation import Cancelled, at_every_checkpoint
from tests.certificates import Authority

from .links import Recorder, authority, client_context, server_context, supervised, tcp_sockets, tls_pair
from .test_plain_loops import Handler

pytestmark = pytest.mark.anyio

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@asynccontextmanager
async def served(context: ssl.SSLContext | None, **settings: Any) -> AsyncIterator[tuple[Listener, Supervisor, Server]]:
    async with supervised() as supervisor:
        server = Server(Handler(), supervisor, ServerSettings(**settings))
        listener = await server.listen_tcp("127.0.0.1", ssl_context=context)
        try:
            yield listener, supervisor, server
        finally:
            await server.aclose()
            assert not server._handshakes


async def ask(
    listener: Listener, supervisor: Supervisor, context: ssl.SSLContext | None, host: str = "localhost"
) -> str:
    """Connect, exchange a request, and leave."""
    address = Address(host, listener.address.port)
    connection = await Connection.open(address, ConnectionSettings(tls_context=context), supervisor=supervisor)
    try:
        request = MetadataRequest(topics=[MetadataRequestTopic(name="answer")])
        return str((await connection.request(request, 9)).cluster_id)
    finally:
        await connection.aclose()


def server(folder: Path, *names: str, **options: Any) -> ssl.SSLContext:
    return authority().server_context(folder, *names, **options)


# What is agreed on.


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
async def test_a_request_in_each_version(version: ssl.TLSVersion) -> None:
    context = client_context()
    context.minimum_version = context.maximum_version = version
    async with served(server_context()) as (listener, supervisor, _):
        assert await ask(listener, supervisor, context) == "answer"


async def test_the_name_that_was_asked_for_is_told(tmp_path: Path) -> None:
    """SNI: one listener may have several certificates. An address is no name, and is not told."""
    context = server(tmp_path, "localhost", "127.0.0.1")
    asked: list[str | None] = []
    context.sni_callback = lambda _tls, name, _context: asked.append(name)
    async with served(context) as (listener, supervisor, _):
        await ask(listener, supervisor, client_context(), "localhost")
        await ask(listener, supervisor, client_context(), "127.0.0.1")
    assert asked == ["localhost", None]


@pytest.mark.parametrize("name", ["localhost.", "localhost%scope"])
async def test_the_name_is_told_as_certificates_have_it(name: str) -> None:
    left, right = tcp_sockets()
    streams: list[TlsStream] = []

    async def accept() -> None:
        streams.append(await accept_tls(right, server_context()))

    async with anyio.create_task_group() as group:
        group.start_soon(accept)
        streams.append(await connect_tls(left, client_context(), name, "peer"))
    assert {stream.version for stream in streams} == {"TLSv1.3"}
    for stream in streams:
        stream.close()


async def test_the_name_is_not_checked_if_so_wished(tmp_path: Path) -> None:
    context = client_context()
    context.check_hostname = False
    async with served(server(tmp_path, "broker.example.org")) as (listener, supervisor, _):
        assert await ask(listener, supervisor, context, "127.0.0.1") == "answer"


async def test_client_certificates(tmp_path: Path) -> None:
    clients = Authority()
    context = client_context()
    context.load_cert_chain(clients.issue("client@example.org").write(tmp_path / "client.pem"))
    wanting = server(tmp_path, "localhost", client_authority=clients)
    async with served(wanting) as (listener, supervisor, _):
        assert await ask(listener, supervisor, context) == "answer"


# What fails, and how that is said: by the client's error, and in the server's log.


async def refused(
    server_side: ssl.SSLContext | None, context: ssl.SSLContext | None, host: str = "localhost"
) -> KafkaError:
    async with served(server_side) as (listener, supervisor, server):
        with pytest.raises(KafkaError) as caught:
            await ask(listener, supervisor, context, host)
        with anyio.fail_after(10):
            while server._handshakes:  # what it says of it comes a moment later
                await anyio.sleep(0.001)
        return caught.value


def logged(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.name == "kclient.net.server")


async def test_unknown_authority(caplog: pytest.LogCaptureFixture) -> None:
    error = await refused(server_context(), Authority().client_context())
    assert isinstance(error, SslAuthenticationError)
    assert not error.retriable
    assert "localhost" in str(error)
    assert "not trusted" in str(error)
    assert "ssl.truststore.location" in str(error)
    assert "the client refused TLS (TLSV1_ALERT_UNKNOWN_CA)" in logged(caplog)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_wrong_host_name(tmp_path: Path, host: str) -> None:
    error = await refused(server(tmp_path, "broker.example.org"), client_context(), host)
    assert isinstance(error, SslAuthenticationError)
    assert "for another name" in str(error)
    assert f"'{host}'" in str(error)
    assert "ssl.endpoint.identification.algorithm" in str(error)


async def test_expired_certificate() -> None:
    ca = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("localhost", not_after=datetime.now(UTC) - timedelta(days=1)).configure_cert(context)
    client = ssl.create_default_context(cadata=ca.cert_pem.bytes().decode())
    assert "has expired" in str(await refused(context, client))


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
async def test_missing_client_certificate(
    tmp_path: Path, version: ssl.TLSVersion, caplog: pytest.LogCaptureFixture
) -> None:
    """In TLS 1.3 the client learns of it only when it reads the first answer."""
    context = client_context()
    context.maximum_version = version
    error = await refused(server(tmp_path, "localhost", client_authority=authority()), context)
    assert isinstance(error, SslAuthenticationError)
    assert "asks for a client certificate" in str(error)
    assert "ssl.keystore.location" in str(error)
    assert "the client showed no certificate" in logged(caplog)


async def test_client_certificate_of_a_stranger(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    context = client_context()
    context.load_cert_chain(Authority().issue("client@example.org").write(tmp_path / "client.pem"))
    error = await refused(server(tmp_path, "localhost", client_authority=authority()), context)
    assert isinstance(error, SslAuthenticationError)
    assert "does not accept this client's certificate" in str(error)
    assert "the client's certificate is refused" in logged(caplog)


async def test_no_version_in_common() -> None:
    context = client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.minimum_version = ssl.TLSVersion.TLSv1_3
    trustme.CA().issue_cert("localhost").configure_cert(server_side)
    error = await refused(server_side, context)
    assert isinstance(error, SslAuthenticationError)
    assert "ssl.enabled.protocols" in str(error)


async def test_no_cipher_in_common(tmp_path: Path) -> None:
    context, server_side = client_context(), server(tmp_path, "localhost")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    server_side.set_ciphers("ECDHE-ECDSA-AES256-GCM-SHA384")
    error = await refused(server_side, context)
    assert isinstance(error, SslAuthenticationError)
    assert "ssl.cipher.suites" in str(error)


async def test_tls_spoken_to_a_plaintext_port(caplog: pytest.LogCaptureFixture) -> None:
    """A broker hangs up on what it takes for an absurd size, as if it were overloaded: worth another attempt."""
    error = await refused(None, client_context())
    assert isinstance(error, BrokerConnectionError)
    assert error.retriable
    assert "security.protocol=PLAINTEXT" in str(error)
    assert "the peer speaks TLS" in logged(caplog)


async def test_tls_spoken_to_another_service() -> None:
    left, right = tcp_sockets()
    right.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(SslAuthenticationError, match=r"does not speak TLS .* security.protocol=PLAINTEXT"):
        await connect_tls(left, client_context(), "localhost", "peer")
    right.close()


async def test_plaintext_spoken_to_a_tls_port(caplog: pytest.LogCaptureFixture) -> None:
    error = await refused(server_context(), None)
    assert isinstance(error, KafkaError)
    assert "security.protocol" in str(error)
    assert "the client does not speak TLS" in logged(caplog)


async def test_no_keys_in_logs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    identity = Authority().issue("client@example.org")
    context = client_context()
    context.load_cert_chain(identity.write(tmp_path / "client.pem"))
    error = await refused(server(tmp_path, "localhost", client_authority=authority()), context)
    everything = f"{caplog.text}{error!r}{error}{error.__cause__!r}"
    assert "PRIVATE KEY" not in everything
    assert identity.key.splitlines()[1] not in everything


# Time.


async def test_a_broker_that_accepts_and_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = ConnectionSettings(tls_context=client_context(), socket_connection_setup_timeout_ms=500)
        with pytest.raises(BrokerConnectionError, match=r"no TLS handshake within 0.5 s \(socket.connection.setup"):
            await connect(Address("127.0.0.1", silent.getsockname()[1]), settings)


async def test_a_client_that_connects_and_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    async with served(server_context(), handshake_timeout=0.05) as (listener, _, server):
        with socket.create_connection(("127.0.0.1", listener.address.port)) as silent:
            silent.setblocking(False)
            with anyio.fail_after(10):
                await anyio.wait_readable(silent)
            assert silent.recv(1) == b""
        assert not server.connections
    assert "completed no TLS handshake within 0.05 s" in logged(caplog)


async def test_closing_a_server_ends_handshakes() -> None:
    async with served(server_context()) as (listener, _, server):
        with socket.create_connection(("127.0.0.1", listener.address.port)) as silent:
            silent.setblocking(False)
            with anyio.fail_after(10):
                while not server._handshakes:
                    await anyio.lowlevel.checkpoint()
            await server.aclose(grace=10)
            assert not server._handshakes
            with anyio.fail_after(10):
                await anyio.wait_readable(silent)
            assert silent.recv(1) == b""


# The end of a stream.


@pytest.mark.parametrize("sent", [b"\0\0\0\1x", b"\0\0\0\5x"], ids=["between frames", "inside a frame"])
@pytest.mark.parametrize("said", [True, False], ids=["close_notify", "cut"])
async def test_the_end(sent: bytes, said: bool) -> None:
    """Who ends the TCP stream without ending TLS may be an attacker: never taken for the end."""
    mine, theirs = tls_pair()
    async with supervised() as supervisor:
        owner = Recorder()
        open_channel(mine, owner, supervisor)
        await theirs.send([sent])
        if not said:
            socket.socket.shutdown(theirs.socket, socket.SHUT_WR)  # the method of SSLSocket would end TLS as well
            await owner.until(lambda: owner.causes)
        theirs.close()
        await owner.until(lambda: owner.causes)
    (cause,) = owner.causes
    whole = sent == b"\0\0\0\1x"
    assert owner.frames == ([b"x"] if whole else [])
    if said and whole:
        assert cause is None
    else:
        assert isinstance(cause, CutOffError if whole else TruncatedError)
        assert ("close_notify" in str(cause)) != said


async def test_the_end_for_readers() -> None:
    for said in (True, False):
        mine, theirs = tls_pair()
        await theirs.send([b"last"])
        if said:
            theirs.close()
        else:
            socket.socket.shutdown(theirs.socket, socket.SHUT_WR)
        assert await mine.receive() == b"last"
        if said:
            assert await mine.receive() == b""
        else:
            with pytest.raises(CutOffError):
                await mine.receive()
        mine.close()
        theirs.close()


# Cancellation.


async def test_cancelling_a_handshake_closes_the_socket() -> None:
    """At each of its awaits, on either side; the other side sees the end."""

    async def client(cancelled: Cancelled) -> None:
        await one_side(cancelled, server_side=False)

    async def server(cancelled: Cancelled) -> None:
        await one_side(cancelled, server_side=True)

    async def server_in_threads(cancelled: Cancelled) -> None:
        await one_side(cancelled, server_side=True, threads=anyio.CapacityLimiter(1))

    async def one_side(
        cancelled: Cancelled, *, server_side: bool, threads: anyio.CapacityLimiter | None = None
    ) -> None:
        left, right = tcp_sockets()
        other: list[TlsStream | OSError] = []

        async def far_side() -> None:
            try:
                if server_side:
                    other.append(await connect_tls(left, client_context(), "localhost", "peer"))
                else:
                    other.append(await accept_tls(right, server_context()))
            except OSError as error:
                other.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(far_side)
            if server_side:
                await cancelled(accept_tls(right, server_context(), threads=threads))
            else:
                await cancelled(connect_tls(left, client_context(), "localhost", "peer"))
            mine = cancelled.result
            if mine is None:
                assert left.fileno() == -1 if not server_side else right.fileno() == -1
        if mine is not None:
            mine.close()
        for stream in other:
            if isinstance(stream, TlsStream):
                stream.close()

    assert await at_every_checkpoint(client) >= 1
    assert await at_every_checkpoint(server) >= 1
    assert await at_every_checkpoint(server_in_threads) >= 1


async def test_cancelling_a_wait_for_bytes() -> None:
    mine, theirs = tls_pair()
    with anyio.move_on_after(0.01) as scope:
        await mine.receive()
    assert scope.cancelled_caught
    await theirs.send([b"still there"])
    assert await mine.receive() == b"still there"
    mine.close()
    theirs.close()


# Several addresses, and the options of sockets.


async def test_every_address_is_tried_with_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One address is dead, one has a stranger's certificate, the third is right; without it the refusal is told."""
    stranger = Authority().server_context(tmp_path, "localhost")
    async with served(stranger) as (wrong, _, _), served(server_context()) as (right, supervisor, _):
        ports = [1, wrong.address.port, right.address.port]

        async def resolve(*_: object) -> list[tuple[int, tuple[str, int]]]:
            return [(socket.AF_INET, ("127.0.0.1", port)) for port in ports]

        monkeypatch.setattr("kclient.net.connectors._resolve", resolve)
        assert await ask(right, supervisor, client_context()) == "answer"
        ports.pop()
        with pytest.raises(SslAuthenticationError, match="not trusted"):
            await ask(right, supervisor, client_context())


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels count the sizes of buffers in other ways")
async def test_buffers_and_options_of_both_sides() -> None:
    sizes = {"send_buffer_bytes": 50_000, "receive_buffer_bytes": 60_000}
    async with served(server_context(), **sizes) as (listener, _, server):
        settings = ConnectionSettings(tls_context=client_context(), **sizes)
        mine = await connect(Address("localhost", listener.address.port), settings)
        with anyio.fail_after(10):
            while not server.connections:
                await anyio.lowlevel.checkpoint()
        (theirs,) = server.connections
        for stream in (mine, theirs.stream):
            assert isinstance(stream, TlsStream)
            # the kernel doubles what it is asked for
            assert stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 100_000
            assert stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 120_000
            assert stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        await mine.aclose()


async def test_idle_connections_are_closed_on_both_sides() -> None:
    async with served(server_context(), idle_timeout=0.05) as (listener, supervisor, _):
        for idle_ms in (0, 50):
            settings = ConnectionSettings(tls_context=client_context(), connections_max_idle_ms=idle_ms)
            address = Address("localhost", listener.address.port)
            connection = await Connection.open(address, settings, supervisor=supervisor)
            closed = anyio.Event()
            connection.on_close(lambda _, closed=closed: closed.set())  # type: ignore[misc]
            with anyio.fail_after(10):
                await closed.wait()
            assert connection.cause is None  # the end was said, by whoever was first
        await connection.aclose()


# Names that cannot be.


async def test_a_host_name_that_is_none() -> None:
    with pytest.raises(ConfigError, match=r"is not a host name"):
        await connect(Address("a..b", 9092))


async def test_other_schemes_have_no_tls(tmp_path: Path) -> None:
    settings = ConnectionSettings(tls_context=client_context())
    with pytest.raises(ConfigError, match=r"has no TLS: set security.protocol=PLAINTEXT"):
        await connect(Address(str(tmp_path / "socket"), 0, "unix"), settings)
    for protocol, instead in (("SSL", "PLAINTEXT"), ("SASL_SSL", "SASL_PLAINTEXT")):
        with pytest.raises(ConfigError, match=rf"^bootstrap.servers: memory:x .* set security.protocol={instead}$"):
            bootstrap_addresses("memory:x", protocol)


async def test_a_listener_needs_a_servers_context() -> None:
    async with supervised() as supervisor:
        server = Server(Handler(), supervisor)
        with pytest.raises(ValueError, match=r"client's"):
            await server.listen_tcp(ssl_context=client_context())
