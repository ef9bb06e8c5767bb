"""How many connections a server takes: together, from one address, and as descriptors are left."""

from __future__ import annotations

import ssl
from typing import Any

import anyio
import anyio.abc
import pytest

from kclient.descriptors import Descriptors
from kclient.net.connection_limits import ConnectionQuota, plain_address
from kclient.net.server import Listener, Server, ServerConnection, ServerSettings

from .links import supervised

pytestmark = pytest.mark.anyio


class Echo:
    def connected(self, connection: ServerConnection) -> None:
        pass

    def disconnected(self, connection: ServerConnection) -> None:
        pass

    def begin(self, request: memoryview, connection: ServerConnection) -> Any:
        return [len(request).to_bytes(4, "big"), bytes(request)]


async def connect(listener: Listener, local: str | None = None) -> anyio.abc.SocketStream:
    return await anyio.connect_tcp("127.0.0.1", listener.address.port, local_host=local)


async def answered(stream: anyio.abc.SocketStream) -> bool:
    """Whether the server answers; False if it has hung up."""
    try:
        await stream.send(b"\x00\x00\x00\x02hi")
        return await stream.receive() == b"\x00\x00\x00\x02hi"
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return False


async def not_answered(stream: anyio.abc.SocketStream) -> bool:
    """Whether the connection waits to be accepted."""
    with anyio.move_on_after(0.05):
        await stream.receive()
        return False
    return True


async def test_more_connections_wait_until_one_ends(caplog: pytest.LogCaptureFixture) -> None:
    async with supervised() as supervisor:
        server = Server(Echo(), supervisor, ServerSettings(quota=ConnectionQuota(total=2)))
        listener = await server.listen_tcp()
        first, second = await connect(listener), await connect(listener)
        assert await answered(first)
        assert await answered(second)
        third = await connect(listener)
        await third.send(b"\x00\x00\x00\x02hi")
        assert await not_answered(third)
        assert len(server.connections) == 2
        assert "max.connections" in caplog.text
        await first.aclose()
        with anyio.fail_after(5):
            assert await third.receive() == b"\x00\x00\x00\x02hi"
        await second.aclose()
        await third.aclose()
        await server.aclose()
        assert server.limits.open == 0


async def test_an_address_with_enough_connections_gets_no_more(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with supervised() as supervisor:
        quota = ConnectionQuota(per_address=1, overrides={"127.0.0.2": 2, "127.0.0.3": 0})
        server = Server(Echo(), supervisor, ServerSettings(quota=quota))
        listener = await server.listen_tcp()
        streams = [await connect(listener, local) for local in ("127.0.0.1", "127.0.0.1")]
        streams += [await connect(listener, "127.0.0.2") for _ in range(3)]
        streams.append(await connect(listener, "127.0.0.3"))
        with anyio.fail_after(5):
            assert [await answered(stream) for stream in streams] == [True, False, True, True, False, False]
        assert "127.0.0.3 is refused: there are 0 already" in caplog.text
        await streams[0].aclose()
        while len(server.connections) > 2:
            await anyio.sleep(0.001)
        again = await connect(listener, "127.0.0.1")
        assert await answered(again)
        for stream in (*streams, again):
            await stream.aclose()
        await server.aclose()
        assert server.limits.open == 0


async def test_a_changed_quota_holds_for_those_that_come() -> None:
    async with supervised() as supervisor:
        server = Server(Echo(), supervisor)
        listener = await server.listen_tcp()
        first = await connect(listener)
        assert await answered(first)
        server.limits.quota = ConnectionQuota(per_address=1)
        second = await connect(listener)
        assert not await answered(second)
        assert await answered(first)
        await first.aclose()
        await second.aclose()
        await server.aclose()


async def test_descriptors_are_left_to_others() -> None:
    """A flood of connections takes none of those that others are sure of, and waits for what they close."""
    descriptors = Descriptors(16)
    idle = [True] * 3

    def close_idle() -> bool:
        if not idle:
            return False
        idle.pop()
        files.give_back()
        return True

    files = descriptors.share(close_idle)
    for _ in range(5):
        assert files.take()
    async with supervised() as supervisor:
        server = Server(Echo(), supervisor, descriptors=descriptors)
        listener = await server.listen_tcp()
        streams = [await connect(listener) for _ in range(16)]
        with anyio.fail_after(5):
            for stream in streams[:14]:
                assert await answered(stream)
        assert not idle
        assert files.used == 2
        assert await not_answered(streams[14])
        assert len(server.connections) == 14
        files.give_back()  # of itself: it is found out
        files.give_back()
        assert files.take()
        assert files.take()
        for stream in streams:
            await stream.aclose()
        await server.aclose()
        assert files.take()


async def test_a_failed_handshake_is_counted_no_more() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    async with supervised() as supervisor:
        server = Server(Echo(), supervisor, ServerSettings(quota=ConnectionQuota(total=1)))
        listener = await server.listen_tcp(ssl_context=context)
        for _ in range(3):
            stream = await connect(listener)
            await stream.send(b"this is no handshake")
            with anyio.fail_after(5), pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                while True:
                    await stream.receive()
            await stream.aclose()
        await server.aclose()
        assert server.limits.open == 0


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::1"),
        ("0:0::1", "::1"),
        ("x", "x"),
    ],
)
def test_addresses_are_compared_in_one_form(given: str, plain: str) -> None:
    assert plain_address(given) == plain
