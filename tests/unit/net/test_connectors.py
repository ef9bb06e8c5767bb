"""Finding the stream for an address."""

from __future__ import annotations

import socket
import sys
import types
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from kclient.errors import BrokerConnectionError, ConfigError
from kclient.net import connectors
from kclient.net.address import Address, parse_address
from kclient.net.connection import Connection
from kclient.net.connectors import check_scheme, connect, register, schemes
from kclient.net.settings import ConnectionSettings
from kclient.net.streams import ByteStream, SocketStream, memory_pair
from kclient.testing.cancellation import Cancelled, Outcome, at_every_checkpoint

from .links import supervised

pytestmark = pytest.mark.anyio


@pytest.fixture
def listening() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


def nobody() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


async def test_tcp(listening: socket.socket) -> None:
    port = listening.getsockname()[1]
    settings = ConnectionSettings(send_buffer_bytes=50_000, receive_buffer_bytes=60_000)
    stream = await connect(Address("127.0.0.1", port), settings)
    assert isinstance(stream, SocketStream)
    assert stream.peer == f"127.0.0.1:{port}"
    sock = stream.socket
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) in (50_000, 100_000)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) in (60_000, 120_000)
    other, _ = listening.accept()
    other.sendall(b"hello")
    assert await stream.receive() == b"hello"
    other.close()
    assert await stream.receive() == b""
    await stream.aclose()


async def test_every_address_of_a_name_is_tried(listening: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    port, closed = listening.getsockname()[1], nobody()

    async def resolve(host: str, port_: int, **_: Any) -> list[Any]:
        assert (host, port_) == ("broker.example.com", 9092)
        kinds = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kinds, ("127.0.0.1", closed)), (*kinds, ("127.0.0.1", closed)), (*kinds, ("127.0.0.1", port))]

    monkeypatch.setattr(anyio, "getaddrinfo", resolve)
    stream = await connect(Address("broker.example.com", 9092))
    assert stream.peer == f"127.0.0.1:{port}"
    await stream.aclose()
    listening.close()
    with pytest.raises(BrokerConnectionError) as caught:
        await connect(Address("broker.example.com", 9092))
    tried = [name for name, _ in caught.value.attempts]
    assert tried == [f"127.0.0.1:{closed}", f"127.0.0.1:{port}"]
    assert all(isinstance(error, ConnectionRefusedError) for _, error in caught.value.attempts)
    assert "broker.example.com:9092" in str(caught.value)
    assert "refused" in str(caught.value)


async def test_name_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(anyio, "getaddrinfo", resolve)
    with pytest.raises(BrokerConnectionError, match="not known"):
        await connect(Address("nowhere.invalid", 9092))


async def test_name_that_resolves_too_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(*_: Any, **__: Any) -> Any:
        await anyio.sleep_forever()

    monkeypatch.setattr(anyio, "getaddrinfo", resolve)
    settings = ConnectionSettings(socket_connection_setup_timeout_ms=20)
    with pytest.raises(
        BrokerConnectionError, match=r"not resolved within 0\.02 s \(socket\.connection\.setup\.timeout\.ms"
    ):
        await connect(Address("slow.invalid", 9092), settings)


async def test_address_that_does_not_answer() -> None:
    """A full accept queue: the system drops further attempts, as a firewall would."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
            fillers.append(filler)
        settings = ConnectionSettings(socket_connection_setup_timeout_ms=50)
        with anyio.fail_after(10), pytest.raises(BrokerConnectionError, match=r"no answer within 0\.05 s"):
            await connect(Address("127.0.0.1", port), settings)
        for filler in fillers:
            filler.close()


async def test_unix(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen()
        stream = await connect(parse_address(f"unix:{path}"))
        assert stream.peer == f"unix:{path}"
        await stream.aclose()
    with pytest.raises(BrokerConnectionError, match="refused"):
        await connect(parse_address(f"unix:{path}"))
    with pytest.raises(BrokerConnectionError, match="No such file"):
        await connect(parse_address(f"unix:{tmp_path / 'other'}"))


async def test_schemes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connectors, "_connectors", dict(connectors._connectors))
    module = types.ModuleType("a_connector_for_a_test")
    asked = []

    async def connector(address: Address, settings: Any) -> ByteStream:
        asked.append((address, settings))
        return memory_pair()[0]

    module.connector = connector  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_connector_for_a_test", module)
    register("made-up", "a_connector_for_a_test:connector")
    assert "made-up" in schemes()
    settings = ConnectionSettings()
    for _ in range(2):
        await connect(parse_address("made-up:thing"), settings)
    assert asked == [(Address("thing", 0, "made-up"), settings)] * 2


async def test_connector_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connectors, "_connectors", dict(connectors._connectors))

    async def connector(address: Address, settings: Any) -> ByteStream:
        raise FileNotFoundError("no such directory")

    register("failing", connector)
    with pytest.raises(BrokerConnectionError, match=r"failing:x.*no such directory"):
        await connect(parse_address("failing:x"))


async def test_unknown_scheme() -> None:
    with pytest.raises(ConfigError, match="unknown scheme 'kafka'; expected host:port"):
        await connect(parse_address("kafka:thing"))
    with pytest.raises(ConfigError):
        check_scheme(Address("x", 0, "zookeeper"))
    for scheme in ("memory", "embedded", "tcp", "unix"):
        check_scheme(Address("x", 0, scheme))


async def test_open_fails_with_the_address(listening: socket.socket) -> None:
    async with supervised() as supervisor:
        with pytest.raises(BrokerConnectionError, match="refused"):
            await Connection.open(f"127.0.0.1:{nobody()}", supervisor=supervisor)
        port = listening.getsockname()[1]
        listening.settimeout(5)

        async def hang_up() -> None:
            sock, _ = await anyio.to_thread.run_sync(listening.accept)
            sock.close()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hang_up)
            with pytest.raises(BrokerConnectionError, match=f"127.0.0.1:{port}"):
                await Connection.open(f"127.0.0.1:{port}", supervisor=supervisor)


async def test_opening_cancelled_anywhere_leaves_nothing(listening: socket.socket) -> None:
    """Warnings are errors: a socket that is left open fails the test."""
    address = f"127.0.0.1:{listening.getsockname()[1]}"
    async with supervised() as supervisor:

        async def scenario(cancelled: Cancelled) -> None:
            outcome = await cancelled(Connection.open(address, supervisor=supervisor, negotiate=False))
            if outcome is Outcome.FINISHED:
                await cancelled.result.aclose()

        await at_every_checkpoint(scenario)
