"""Connections that are not read for a time, and those that come too fast."""

from __future__ import annotations

import socket
from typing import Any

import anyio
import anyio.abc
import pytest

from kclient.net.delayed_closing import DelayedClosing
from kclient.net.server import Listener, Server, ServerConnection
from kclient.net.streams import memory_pair

from .links import LINKS, supervised

pytestmark = pytest.mark.anyio


class Muting:
    """Echoes; a request that is a number mutes its connection for so many hundredths of a second."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.ended = 0

    def connected(self, connection: ServerConnection) -> None:
        pass

    def disconnected(self, connection: ServerConnection) -> None:
        self.ended += 1

    def begin(self, request: memoryview, connection: ServerConnection) -> Any:
        body = bytes(request)
        self.begun.append(body)
        if body.isdigit():
            assert connection.beginning is not None
            connection.beginning.mute(int(body) / 100)
        return [len(body).to_bytes(4, "big"), body]


async def receive(stream: Any, size: int) -> bytes:
    found = b""
    while len(found) < size:
        found += bytes(await stream.receive())
    return found


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize("kind", sorted(LINKS))
async def test_what_was_sent_waits(kind: str) -> None:
    """What comes in one piece with the request that mutes it, and what comes later; the answer does not."""
    handler = Muting()
    async with supervised() as supervisor:
        server = Server(handler, supervisor)
        client, other = LINKS[kind]()
        connection = server.attach(other)
        begun = anyio.current_time()
        with anyio.fail_after(10):
            await client.send([frame(b"20") + frame(b"one")])
            assert await receive(client, 6) == frame(b"20")
            assert connection.muted
            await client.send([frame(b"two")])
            assert await receive(client, 14) == frame(b"one") + frame(b"two")
        assert anyio.current_time() - begun >= 0.19
        assert handler.begun == [b"20", b"one", b"two"]
        assert not connection.muted
        await client.aclose()
        await server.aclose()


async def test_the_later_end_counts_and_nobody_else_waits() -> None:
    handler = Muting()
    async with supervised() as supervisor:
        server = Server(handler, supervisor)
        (client, other), (neighbour, beside) = memory_pair(), memory_pair()
        connection = server.attach(other)
        server.attach(beside)
        begun = anyio.current_time()
        with anyio.fail_after(10):
            connection.mute(0.2)
            connection.mute(0.01)
            await client.send([frame(b"x")])
            await neighbour.send([frame(b"y")])
            await receive(neighbour, 5)
            assert anyio.current_time() - begun < 0.15
            connection.mute(0.3)
            await receive(client, 5)
        assert anyio.current_time() - begun >= 0.29
        for stream in (client, neighbour):
            await stream.aclose()
        await server.aclose()


@pytest.mark.parametrize("kind", ["memory", "tcp", "tls"])
async def test_a_client_that_goes_is_noticed(kind: str) -> None:
    """What it had sent begins all the same, as on any connection that is not read."""
    handler = Muting()
    async with supervised() as supervisor:
        server = Server(handler, supervisor)
        client, other = LINKS[kind]()
        connection = server.attach(other)
        with anyio.fail_after(10):
            await client.send([frame(b"999999") + frame(b"x")])
            await receive(client, 10)
            await client.aclose()
            while server.connections:
                await anyio.sleep(0.01)
        assert handler.ended == 1
        assert connection._muted is None
        await server.aclose()


@pytest.mark.parametrize("how", ["close", "abort", "drain", "server"])
async def test_a_muted_connection_can_be_closed(how: str) -> None:
    handler = Muting()
    async with supervised() as supervisor:
        server = Server(handler, supervisor)
        client, other = memory_pair()
        connection = server.attach(other)
        with anyio.fail_after(5):
            await client.send([frame(b"999999") + frame(b"x")])
            await receive(client, 10)
            if how == "server":
                await server.aclose(grace=3)
            else:
                getattr(connection, how)()
            while not connection.closed:
                await anyio.sleep(0.01)
        assert connection._muted is None
        assert handler.begun == [b"999999"]
        await client.aclose()
        await server.aclose()


async def test_a_muted_connection_stalls_only_where_it_keeps_more_than_its_allowance() -> None:
    async with supervised() as supervisor:
        server = Server(Muting(), supervisor)
        client, other = memory_pair(limit=8 << 20)
        connection = server.attach(other)
        with anyio.fail_after(10):
            await client.send([frame(b"999999") + frame(bytes(100))])
            await receive(client, 10)
            assert connection.stuck == 0
            assert not connection.waits_to_be_read
        await client.aclose()
        await server.aclose()


# How fast connections come


class Rates:
    """Refuses an address that ends with the number of a listener's label, and has others wait."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def pause(self, label: object) -> float:
        self.told.append(label)
        return 0.1 if label == "slow" else 0.0

    def refused_for(self, address: str) -> float:
        return 0.2 if address == "127.0.0.7" else 0.0


async def connected(listener: Listener, local: str | None = None) -> anyio.abc.SocketStream:
    return await anyio.connect_tcp("127.0.0.1", listener.address.port, local_host=local)


async def test_a_listener_that_pauses() -> None:
    async with supervised() as supervisor:
        server, rates = Server(Muting(), supervisor), Rates()
        server.arrivals = rates
        slow, fast = await server.listen_tcp(label="slow"), await server.listen_tcp(label="fast")
        begun = anyio.current_time()
        streams = [await connected(slow) for _ in range(4)] + [await connected(fast)]
        with anyio.fail_after(10):
            await streams[-1].send(frame(b"x"))
            await receive(streams[-1], 5)
            assert len(server.connections) <= 3
            await streams[-2].send(frame(b"x"))
            await receive(streams[-2], 5)
        assert anyio.current_time() - begun >= 0.29
        assert rates.told.count("slow") == 4
        for stream in streams:
            await stream.aclose()
        await server.aclose()


async def test_an_address_that_is_refused() -> None:
    handler = Muting()
    async with supervised() as supervisor:
        server = Server(handler, supervisor)
        server.arrivals = Rates()
        listener = await server.listen_tcp()
        begun = anyio.current_time()
        refused, served = await connected(listener, "127.0.0.7"), await connected(listener, "127.0.0.8")
        with anyio.fail_after(10):
            await refused.send(frame(b"x"))
            await served.send(frame(b"y"))
            await receive(served, 5)
            assert server.limits.open == 2
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await refused.receive()
            assert anyio.current_time() - begun >= 0.19
            assert handler.begun == [b"y"]
            assert server.limits.open == 1
        late = await connected(listener, "127.0.0.7")
        await anyio.wait_all_tasks_blocked()
        await server.aclose()
        assert server.limits.open == 0
        for stream in (refused, served, late):
            await stream.aclose()


async def test_so_many_are_kept_before_they_are_closed() -> None:
    class Counted:
        ended = 0

        def end(self) -> None:
            Counted.ended += 1

    async with supervised() as supervisor:
        closing = DelayedClosing(supervisor)
        pairs = [socket.socketpair() for _ in range(20)]
        for number, (left, _) in enumerate(pairs):
            closing.add(left, Counted(), 60.0 + number)  # type: ignore[arg-type]
        assert (len(closing), Counted.ended) == (20, 0)
        closing.close()
        assert (len(closing), Counted.ended) == (0, 20)
        for left, right in pairs:
            assert left.fileno() == -1
            assert right.recv(1) == b""
            right.close()
