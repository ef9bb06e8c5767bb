"""Clients that mean harm to a server with TLS: they keep its loop or its threads, or come in with what has expired."""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import ssl
import sys
from pathlib import Path
from types import SimpleNamespace

import anyio
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kclient.net.frames import FrameAssembler
from kclient.net.server import Server
from kclient.net.tls import SocketTlsStream, connect_tls
from kclient.net.tls_accepting import FedTlsStream, accept_tls
from tests.certificates import Authority

from .links import authority, client_context, server_context, supervised, tcp_sockets, tls_pair
from .test_plain_loops import Handler

pytestmark = pytest.mark.anyio

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_records_of_a_byte_each_leave_the_loop_to_others(version: ssl.TLSVersion) -> None:
    """What a connection may read at once is counted in bytes, and each record takes time, however short it is."""
    mine, theirs = tls_pair(version)
    size = 3000
    for byte in size.to_bytes(4, "big") + bytes(size):
        mine.socket.send(bytes([byte]))
    assembler = FrameAssembler()
    theirs.fill(assembler, 1024 * 1024)
    assert 0 < assembler.received_bytes <= 1024
    while not assembler.frames:
        theirs.fill(assembler, 1024 * 1024)
    assert len(assembler.frames[0]) == size
    mine.close()
    theirs.close()


async def test_who_is_given_up_leaves_the_queue_for_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else strangers who come by the thousand have all their handshakes reckoned, one after the other."""
    steps: list[ssl.SSLObject] = []
    monkeypatch.setattr(ssl.SSLObject, "do_handshake", steps.append)
    left, right = tcp_sockets()
    left.send(b"\x16")
    threads = anyio.CapacityLimiter(1)
    await threads.acquire_on_behalf_of("another")
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:

            async def give_up() -> None:
                with anyio.fail_after(10):
                    while not threads.statistics().tasks_waiting:
                        await anyio.sleep(0.001)
                scope.cancel()
                with anyio.CancelScope(shield=True):
                    await anyio.wait_all_tasks_blocked()
                    threads.release_on_behalf_of("another")

            group.start_soon(give_up)
            await accept_tls(right, server_context(), threads=threads)
    assert not steps
    assert right.fileno() == -1
    left.close()


def _expand(secret: bytes, label: bytes, size: int) -> bytes:
    """What TLS 1.3 derives from a secret (RFC 8446, 7.1), up to the size of a digest."""
    label = b"tls13 " + label
    return hmac.digest(secret, size.to_bytes(2, "big") + bytes([len(label)]) + label + b"\0\1", "sha384")[:size]


def _changes_of_keys(secret: bytes, count: int, *, asks: bool) -> bytes:
    """Records of a client that does nothing but change its key, and asks the server to do so as well (4.6.3)."""
    records = []
    for _ in range(count):
        head, body = b"\x17\x03\x03\0\x16", bytes([24, 0, 0, 1, asks, 22])
        cipher = AESGCM(_expand(secret, b"key", 32))
        records.append(head + cipher.encrypt(_expand(secret, b"iv", 12), body, head))
        secret = _expand(secret, b"traffic upd", 48)
    return b"".join(records)


async def _connected(folder: Path) -> tuple[SocketTlsStream, FedTlsStream, bytes]:
    """Both sides, with small buffers, and the client's secret."""
    left, right = tcp_sockets()
    left.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    right.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    context = client_context()
    context.keylog_filename = str(folder / "keys")
    clients: list[SocketTlsStream] = []

    async def connect() -> None:
        clients.append(await connect_tls(left, context, "localhost", "server"))

    async with anyio.create_task_group() as group:
        group.start_soon(connect)
        server = await accept_tls(right, server_context())
    lines = (line.split() for line in (folder / "keys").read_text().splitlines())
    (secret,) = (bytes.fromhex(line[2]) for line in lines if line[0] == "CLIENT_TRAFFIC_SECRET_0")
    return clients[0], server, secret


async def test_changes_of_keys_by_the_thousand_leave_the_loop_to_others(tmp_path: Path) -> None:
    """OpenSSL does not return from reading while there are more."""
    client, server, secret = await _connected(tmp_path)
    changes = _changes_of_keys(secret, 3000, asks=False)
    assert socket.socket.send(client.socket, changes) == len(changes)
    assembler = FrameAssembler()
    times = 0
    while server.peek(len(changes)):
        before = server.peek(len(changes))
        server.fill(assembler)
        times += 1
        assert before - server.peek(len(changes)) <= 20_000
    assert times > 3
    assert assembler.received_bytes == 0
    client.close()
    server.close()


async def test_changes_of_keys_whose_answers_nobody_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kclient.net.tls_accepting._UNANSWERED", 1000)
    client, server, secret = await _connected(tmp_path)
    changes = _changes_of_keys(secret, 3000, asks=True)
    assert socket.socket.send(client.socket, changes) == len(changes)
    with pytest.raises(ConnectionAbortedError, match="more changes of keys than it takes answers to"):
        while server.peek(len(changes)):
            server.fill(FrameAssembler())
    client.close()
    server.close()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one address only that loops back")
async def test_who_comes_by_the_hundred_does_not_drive_out_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kclient.net.handshakes.MOST", 5)
    async with supervised() as supervisor:
        server = Server(Handler(), supervisor)
        listener = await server.listen_tcp("127.0.0.1", ssl_context=server_context())
        address = ("127.0.0.1", listener.address.port)
        with contextlib.ExitStack() as stack:
            slow = stack.enter_context(socket.create_connection(address, source_address=("127.0.0.2", 0)))
            strangers = [stack.enter_context(socket.create_connection(address)) for _ in range(20)]
            for sock in strangers[:15]:
                sock.setblocking(False)
                with anyio.fail_after(10):
                    await anyio.wait_readable(sock)
                assert sock.recv(1) == b""
            stream = await connect_tls(slow, client_context(), "localhost", "server")
            assert stream.version == "TLSv1.3"
            stream.close()
        await server.aclose()
        assert not server._handshakes


def _visit(sock: socket.socket, context: ssl.SSLContext, session: ssl.SSLSession | None) -> ssl.SSLSession:
    """A client that hears a word."""
    sock.settimeout(10)
    with context.wrap_socket(sock, server_hostname="localhost", session=session) as tls:
        if tls.recv(5) != b"hello":
            raise ConnectionAbortedError("it is not welcome")
        assert tls.session_reused is (session is not None)
        assert tls.session is not None
        return tls.session


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
async def test_a_chain_that_is_too_long(tmp_path: Path, version: ssl.TLSVersion) -> None:
    """OpenSSL takes 100 KiB, and more than a megabyte of memory for them."""
    clients = Authority()
    wanting = authority().server_context(tmp_path, "localhost", client_authority=clients)
    context = client_context()
    context.maximum_version = version
    shown = clients.issue("client@example.org")
    for others, welcome in ((20, True), (150, False)):
        (tmp_path / "client.pem").write_text(shown.key + shown.chain + clients.pem * others)
        context.load_cert_chain(tmp_path / "client.pem")
        left, right = tcp_sockets()

        async def visit(sock: socket.socket = left) -> None:
            with contextlib.suppress(OSError):
                await anyio.to_thread.run_sync(_visit, sock, context, None)
            sock.close()

        async with anyio.create_task_group() as group:
            group.start_soon(visit)
            if welcome:
                stream = await accept_tls(right, wanting)
                await stream.send([b"hello"])
                stream.close()
            else:
                with pytest.raises(OSError, match="more than 32768 bytes: it shows too many certificates"):
                    await accept_tls(right, wanting)


@pytest.mark.parametrize("first", ["client", "server"])
async def test_who_has_gone_is_forgotten(tmp_path: Path, first: str) -> None:
    """OpenSSL would keep sessions of TLS 1.2 without tickets, with the certificates."""
    clients = Authority()
    wanting = authority().server_context(tmp_path, "localhost", client_authority=clients)
    context = client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET
    context.load_cert_chain(clients.issue("client@example.org").write(tmp_path / "client.pem"))
    left, right = tcp_sockets()
    streams: list[SocketTlsStream] = []

    async def connect() -> None:
        streams.append(await connect_tls(left, context, "localhost", "server"))

    async with anyio.create_task_group() as group:
        group.start_soon(connect)
        server = await accept_tls(right, wanting)
    if first == "client":
        streams[0].close()
        assert await server.receive() == b""
    server.close()
    del server
    streams[0].close()
    assert wanting.session_stats()["accept_good"] == 1
    assert wanting.session_stats()["number"] == 0


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
async def test_a_session_ends_with_the_certificate(
    tmp_path: Path, version: ssl.TLSVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who resumes one shows no certificate again."""
    clients = Authority()
    wanting = authority().server_context(tmp_path, "localhost", client_authority=clients)
    context = client_context()
    context.maximum_version = version
    context.load_cert_chain(clients.issue("client@example.org").write(tmp_path / "client.pem"))
    sessions: list[ssl.SSLSession] = []

    async def come(session: ssl.SSLSession | None) -> None:
        left, right = tcp_sockets()

        async def visit() -> None:
            try:
                sessions.append(await anyio.to_thread.run_sync(_visit, left, context, session))
            except OSError:
                left.close()

        async with anyio.create_task_group() as group:
            group.start_soon(visit)
            stream = await accept_tls(right, wanting)
            await stream.send([b"hello"])
        stream.close()

    await come(None)
    await come(sessions[-1])
    assert len(sessions) == 2
    later = ssl.cert_time_to_seconds("Jan  1 00:00:00 3100 GMT")
    monkeypatch.setattr("kclient.net.tls_accepting.time", SimpleNamespace(time=lambda: later), raising=False)
    with pytest.raises(ExceptionGroup) as refused:
        await come(sessions[-1])
    assert refused.group_contains(ConnectionAbortedError, match="it has expired since it was shown")
    assert len(sessions) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not list what a process has open")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
async def test_a_forked_child_does_not_keep_who_shakes_hands() -> None:
    """Else the client would wait for its time to run out when the parent has gone."""
    async with supervised() as supervisor:
        server = Server(Handler(), supervisor)
        listener = await server.listen_tcp("127.0.0.1", ssl_context=server_context())
        with socket.create_connection(("127.0.0.1", listener.address.port)) as client:
            client.send(b"\x16")
            with anyio.fail_after(10):
                while not server._handshakes:
                    await anyio.sleep(0.001)
            await anyio.wait_all_tasks_blocked()
            child = os.fork()
            if child == 0:
                before = len(os.listdir("/proc/self/fd"))
                server.abandon()
                os._exit(before - len(os.listdir("/proc/self/fd")))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2, "the listener's, and the client's"
        await server.aclose()
