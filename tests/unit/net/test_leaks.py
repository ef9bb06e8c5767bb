"""What is left behind: by a thousand connections, by cancellations at every await, by a network that cuts."""

from __future__ import annotations

import asyncio
import gc
import heapq
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from kclient.concurrency import Supervisor, current_backend
from kclient.errors import BrokerConnectionError
from kclient.net.address import Address
from kclient.net.connection import Connection
from kclient.net.server import Server
from kclient.net.settings import ConnectionSettings
from kclient.net.streams import ByteStream, memory_pair
from kclient.protocol.messages import MetadataRequest, MetadataRequestTopic
from kclient.testing.cancellation import Cancelled, at_every_checkpoint
from kclient.testing.faults import FaultyStream

from .links import client_context, server_context, supervised
from .test_plain_loops import Handler

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc"),
]

WAYS = ["tcp", "tls", "memory"]


class Place:
    """A server, and ways to connect to it."""

    def __init__(self, way: str, server: Server, address: Address, supervisor: Supervisor) -> None:
        self.server = server
        self.supervisor = supervisor
        self._way = way
        self._address = address
        self._settings = ConnectionSettings(tls_context=client_context() if way == "tls" else None)

    async def connect(self) -> Connection:
        if self._way != "memory":
            return await Connection.open(self._address, self._settings, supervisor=self.supervisor)
        mine, theirs = memory_pair()
        self.server.attach(theirs)
        connection = Connection.over(mine, "broker:9092", self._settings, supervisor=self.supervisor)
        try:
            await connection.negotiate()
        except BaseException:
            connection.close()
            raise
        return connection

    async def quiet(self) -> None:
        """Until the server knows that its connections have ended, and every task is at rest."""
        with anyio.fail_after(30):
            while self.server.connections or self.server._handshakes:
                await anyio.sleep(0.001)
        await anyio.wait_all_tasks_blocked()


@asynccontextmanager
async def place(way: str, host: str = "localhost") -> AsyncIterator[Place]:
    async with supervised() as supervisor:
        server = Server(Handler(), supervisor)
        listener = await server.listen_tcp("127.0.0.1", ssl_context=server_context() if way == "tls" else None)
        yield Place(way, server, Address(host, listener.address.port), supervisor)
        await server.aclose()


async def ask(connection: Connection, name: str = "answer") -> str:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
    return str((await connection.request(request, 9)).cluster_id)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def living() -> int:
    """Objects of the network layer that somebody still refers to."""
    gc.collect()
    return sum(1 for item in gc.get_objects() if str(type(item).__module__).startswith("kclient.net."))


def blocks_in_use() -> int:
    """Blocks of memory, without garbage.

    Loops keep timeouts that were cancelled, and forget them by and by: here at once.
    """
    if current_backend() == "trio":
        from trio._core._run import GLOBAL_RUN_CONTEXT  # there is no public way

        GLOBAL_RUN_CONTEXT.runner.deadlines._prune()
    else:
        loop: Any = asyncio.get_running_loop()
        for timer in [timer for timer in loop._scheduled if timer.cancelled()]:
            loop._scheduled.remove(timer)
            loop._timer_cancelled_count -= 1
            timer._scheduled = False
        heapq.heapify(loop._scheduled)
    gc.collect()
    return sys.getallocatedblocks()


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
async def test_a_thousand_connections_leave_nothing(way: str) -> None:
    """Ten rounds of a hundred at a time; what the first two leave behind (caches, pools) is all there ever is."""
    # by number: names are resolved in threads, which trio keeps for a while
    async with place(way, "127.0.0.1") as there:

        async def one() -> None:
            connection = await there.connect()
            assert await ask(connection) == "answer"
            await connection.aclose()

        async def rounds(count: int) -> None:
            for _ in range(count):
                async with anyio.create_task_group() as group:
                    for _ in range(100):
                        group.start_soon(one)
                await there.quiet()

        await rounds(2)
        before = descriptors(), len(there.supervisor._handles)
        objects = living()
        blocks = blocks_in_use()
        await rounds(8)
        assert (descriptors(), len(there.supervisor._handles)) == before
        assert living() - objects < 8, "what an earlier test left may go or come; one of each connection would be 800"
        more = blocks_in_use() - blocks
        assert more < 100, "one block kept of each eighth connection would be found"


@pytest.mark.parametrize("way", WAYS)
async def test_cancelled_at_every_await(way: str) -> None:
    """Connecting, asking, leaving: whatever is cut off, no task and no descriptor stays, and the server goes on."""
    async with place(way) as there:

        async def life() -> None:
            connection = await there.connect()
            try:
                await ask(connection, "task")
            finally:
                connection.close()

        await life()
        await there.quiet()
        before = descriptors(), len(there.supervisor._handles)

        async def scenario(cancelled: Cancelled) -> None:
            await cancelled(life())
            # a connection that was cut off early may not even have been accepted yet
            with anyio.fail_after(10):
                while (descriptors(), len(there.supervisor._handles)) != before:
                    await anyio.sleep(0.001)

        assert await at_every_checkpoint(scenario) >= 2
        await life()


# A network that cuts, delays, splits and merges.


class Proxy:
    """Listens on TCP and passes bytes on to a port of this machine, as badly as `faults` says."""

    def __init__(self, target: int, **faults: Any) -> None:
        self._target = target
        self._faults = faults
        self.passed = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[int]:
        async with (
            await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
            anyio.create_task_group() as group,
        ):
            group.start_soon(listener.serve, self._serve)
            yield listener.extra(anyio.abc.SocketAttribute.local_port)
            group.cancel_scope.cancel()

    async def _serve(self, client: anyio.abc.SocketStream) -> None:
        async with (
            client,
            await anyio.connect_tcp("127.0.0.1", self._target) as broker,
            anyio.create_task_group() as group,
        ):
            here, there = (FaultyStream(_Adapter(stream), **self._faults) for stream in (client, broker))

            async def pass_on(source: ByteStream, sink: ByteStream) -> None:
                try:
                    while data := await source.receive():
                        self.passed += len(data)
                        await sink.send([data])
                except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                    pass
                group.cancel_scope.cancel()

            group.start_soon(pass_on, here, there)
            group.start_soon(pass_on, there, here)


class _Adapter:
    """A stream of anyio's as one of ours."""

    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self._stream = stream
        self.peer = "proxy"

    async def receive(self, max_bytes: int = 65536) -> bytes:
        try:
            return await self._stream.receive(max_bytes)
        except anyio.EndOfStream:
            return b""

    async def send(self, parts: Any) -> None:
        await self._stream.send(b"".join(parts))

    async def aclose(self) -> None:
        await anyio.aclose_forcefully(self._stream)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["tcp", "tls"])
@pytest.mark.parametrize("split", [1, 100, 3000])
async def test_a_proxy_that_splits_merges_and_delays(way: str, split: int) -> None:
    """The pieces in which bytes arrive, also inside of TLS records and of the handshake, make no difference."""
    async with place(way) as there:
        target = there._address.port
        large = "x" * (2_000 if split == 1 else 30_000)
        async with Proxy(target, split=split, delay=3 if split > 1 else 0, seed=split).running() as port:
            there._address = Address("localhost", port)
            connection = await there.connect()
            names = ["first", large, "task", "completion", "release", large]
            requests = [MetadataRequest(topics=[MetadataRequestTopic(name=name)]) for name in names]
            with anyio.fail_after(30):
                pending = [connection.send_nowait(request, 9) for request in requests]
                assert [(await item).cluster_id for item in pending] == names
            await connection.aclose()
            await there.quiet()


@pytest.mark.parametrize("way", ["tcp", "tls"])
@pytest.mark.parametrize("side", ["cut_received", "cut_sent"])
async def test_a_proxy_that_cuts_anywhere(way: str, side: str) -> None:
    """Whichever byte is the last one, in the handshake or behind it: an error in time, and nothing stays."""
    async with place(way) as there:
        target = there._address.port
        proxy = Proxy(target)
        async with proxy.running() as port:
            there._address = Address("localhost", port)
            connection = await there.connect()
            assert await ask(connection) == "answer"
            await connection.aclose()
            await there.quiet()
        whole = proxy.passed
        before = descriptors(), len(there.supervisor._handles)
        failed = 0
        for cut in range(1, whole, max(whole // 12, 1)):
            async with Proxy(target, **{side: cut}).running() as port:
                there._address = Address("localhost", port)
                try:
                    with anyio.fail_after(10):
                        connection = await there.connect()
                        try:
                            assert await ask(connection) == "answer"
                        finally:
                            await connection.aclose()
                except BrokerConnectionError:
                    failed += 1
                await there.quiet()
        assert failed > 5
        with anyio.fail_after(10):
            while (descriptors(), len(there.supervisor._handles)) != before:
                await anyio.sleep(0.001)
        there._address = Address("localhost", target)
        connection = await there.connect()
        assert await ask(connection) == "answer"
        await connection.aclose()
