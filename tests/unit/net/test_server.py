"""The server's side: order of replies, bounds, garbage, draining, and nothing left behind."""

from __future__ import annotations

import gc
import logging
import os
import socket
import stat
import struct
import sys
import tracemalloc
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from kclient.concurrency import Completion, Supervisor
from kclient.errors import ClosedError, ProtocolError, UnsupportedVersionError
from kclient.net.address import Address, parse_address
from kclient.net.answers import Steps
from kclient.net.channel import Channel
from kclient.net.channel_kinds import open_channel
from kclient.net.connection import Connection
from kclient.net.connectors import connect
from kclient.net.memory_budget import Share
from kclient.net.reply_order import ReplySlot
from kclient.net.server import Server, ServerConnection, ServerSettings
from kclient.net.streams import ByteStream, SocketStream, memory_pair
from kclient.protocol.framing import decode_request, encode_response
from kclient.protocol.messages import MetadataResponse
from kclient.testing.faults import FaultyStream
from tests.sweeps import slow

from .links import LINKS, Recorder, supervised

pytestmark = pytest.mark.anyio

KINDS = sorted(LINKS)


def frame(body: bytes) -> list[bytes]:
    return [len(body).to_bytes(4, "big"), body]


@pytest.mark.parametrize("given", ["x", None, 5, "socket"])
async def test_only_streams_are_served(given: Any) -> None:
    left, right = socket.socketpair()
    with left, right:
        stream: Any = left if given == "socket" else given
        text = (
            "wrap it: SocketStream" if given == "socket" else f"expected a byte stream .*, got a {type(given).__name__}"
        )
        async with supervised() as supervisor:
            server = Server(Handler(), supervisor)
            with pytest.raises(TypeError, match=text):
                server.attach(stream)
            with pytest.raises(TypeError, match=text):
                Connection.over(stream, "broker:9092", supervisor=supervisor)
            assert not server.connections
            await server.aclose()
        left.send(b"still open")


class Handler:
    """Echoes; a request `wait:NAME` waits for `release(NAME)`, one way or the other."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.events: dict[str, anyio.Event] = {}
        self.completions: dict[str, Completion[Any]] = {}
        self.log: list[str] = []
        self.finished: list[str] = []
        self.special: Callable[[bytes, ServerConnection], Any] | None = None

    def connected(self, connection: ServerConnection) -> None:
        self.log.append("connected")
        connection.context = []

    def disconnected(self, connection: ServerConnection) -> None:
        self.log.append("disconnected")

    def begin(self, request: memoryview, connection: ServerConnection) -> Any:
        body = bytes(request)
        self.begun.append(body)
        connection.context.append(body)
        if self.special is not None:
            return self.special(body, connection)
        kind, _, name = body.decode().partition(":")
        if kind == "task":
            return self._finish(name)
        if kind == "completion":
            completion: Completion[Any] = Completion()
            self.completions[name] = completion
            return completion
        if kind == "none":
            return None
        if kind == "garbage":
            raise ProtocolError("what is this")
        if kind == "bug":
            raise KeyError("oops")
        return frame(body)

    async def _finish(self, name: str) -> list[bytes]:
        event = self.events.setdefault(name, anyio.Event())
        await event.wait()
        self.finished.append(name)
        if name.startswith("bug"):
            raise KeyError(name)
        return frame(b"finished " + name.encode())


class Client:
    """The other side of a served stream."""

    def __init__(self, stream: ByteStream, supervisor: Supervisor) -> None:
        self.recorder = Recorder()
        self.channel: Channel = open_channel(stream, self.recorder, supervisor)

    def send(self, *bodies: bytes) -> None:
        for body in bodies:
            self.channel.write(frame(body))

    async def receive(self, count: int) -> list[bytes]:
        await self.recorder.until(lambda: len(self.recorder.frames) >= count)
        return self.recorder.frames

    async def ended(self) -> None:
        await self.recorder.until(lambda: self.recorder.causes)

    async def aclose(self) -> None:
        self.channel.close()
        await self.channel.wait_closed()


def serve(kind: str, supervisor: Supervisor, **settings: Any) -> tuple[Handler, Server, Client, ServerConnection]:
    handler = Handler()
    server = Server(handler, supervisor, ServerSettings(**settings))
    mine, theirs = LINKS[kind]()
    connection = server.attach(theirs, label="here")
    return handler, server, Client(mine, supervisor), connection


@pytest.mark.parametrize("kind", KINDS)
async def test_replies_leave_in_the_order_of_requests(kind: str) -> None:
    async with supervised() as supervisor:
        handler, server, client, connection = serve(kind, supervisor)
        client.send(b"a", b"task:1", b"completion:2", b"none", b"b", b"task:3", b"c")
        await client.receive(1)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(20):
            while "3" not in handler.events:
                await anyio.sleep(0.001)
        assert handler.begun == [b"a", b"task:1", b"completion:2", b"none", b"b", b"task:3", b"c"]
        handler.events["3"].set()
        handler.completions["2"].set_result(frame(b"two"))
        await anyio.wait_all_tasks_blocked()
        assert client.recorder.frames == [b"a"]
        assert connection.outstanding == 5
        handler.events["1"].set()
        assert await client.receive(6) == [b"a", b"finished 1", b"two", b"b", b"finished 3", b"c"]
        assert connection.label == "here"
        assert connection.context == handler.begun
        await client.aclose()
        with anyio.fail_after(10):
            while server.connections:
                await anyio.sleep(0.001)
        assert handler.log == ["connected", "disconnected"]
        await server.aclose()


async def test_reply_may_be_nothing_after_all() -> None:
    async with supervised() as supervisor:
        handler, server, client, _ = serve("socketpair", supervisor)
        done: Completion[Any] = Completion()
        done.set_result(None)
        handler.special = lambda body, _: done if body == b"x" else frame(body)
        client.send(b"x", b"y")
        assert await client.receive(1) == [b"y"]
        await client.aclose()
        await server.aclose()


@pytest.mark.parametrize("kind", ["tcp", "memory", "chopped"])
async def test_who_only_announces_large_requests_gets_little_memory(kind: str) -> None:
    """With the settings that servers have by default."""
    clients = 50
    async with supervised() as supervisor:
        server = Server(Handler(), supervisor, ServerSettings())
        pairs = [LINKS[kind]() for _ in range(clients)]
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for mine, theirs in pairs:
                server.attach(theirs)
                await mine.send([(100_000_000).to_bytes(4, "big"), b"x"])
            with anyio.fail_after(20):
                while not all(waits_for_a_frame(connection) for connection in server.connections):
                    await anyio.sleep(0.001)
            used = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert len(server.connections) == clients
        assert used < clients * 100_000 + 512 * 1024, "64 KiB each, and the buffer that all share"
        for mine, _ in pairs:
            await mine.aclose()
        await server.aclose()


def waits_for_a_frame(connection: ServerConnection) -> bool:
    channel = connection._channel
    return channel is not None and channel._assembler.pending == "after 1 of the 100000000 bytes of a frame"


@pytest.mark.parametrize("kind", ["memory", "socketpair", "tcp"])
@pytest.mark.parametrize("limits", [{"max_outstanding": 5}, {"max_outstanding_bytes": 5 * 15}])
async def test_outstanding_requests_are_bounded(kind: str, limits: dict[str, int]) -> None:
    async with supervised() as supervisor:
        handler, server, client, connection = serve(kind, supervisor, **limits)
        client.send(*(b"completion:%04d" % i for i in range(100)))
        with anyio.fail_after(10):
            while len(handler.begun) < 5:
                await anyio.sleep(0.001)
        await anyio.wait_all_tasks_blocked()
        assert len(handler.begun) == 5
        for i in range(100):
            with anyio.fail_after(10):
                while f"{i:04d}" not in handler.completions:
                    await anyio.sleep(0.001)
            assert connection.outstanding <= 5
            handler.completions[f"{i:04d}"].set_result(frame(b"%d" % i))
        assert await client.receive(100) == [b"%d" % i for i in range(100)]
        await client.aclose()
        await server.aclose()


@pytest.mark.parametrize("kind", ["memory", "socketpair", "tcp"])
async def test_tasks_are_bounded_and_count_as_memory(kind: str) -> None:
    """Also while the first of them, for which all replies wait, waits longest."""
    async with supervised() as supervisor:
        handler, server, client, connection = serve(kind, supervisor, max_outstanding=500)
        client.send(*(b"task:%04d" % i for i in range(200)))
        with anyio.fail_after(10):
            while len(handler.begun) < 64:
                await anyio.sleep(0.001)
        await anyio.wait_all_tasks_blocked()
        assert len(handler.begun) == 64
        assert connection.share.held > 64 * 1024
        for i in [*range(1, 200), 0]:
            with anyio.fail_after(10):
                while f"{i:04d}" not in handler.events:
                    await anyio.sleep(0.001)
            handler.events[f"{i:04d}"].set()
        assert await client.receive(200) == [b"finished %04d" % i for i in range(200)]
        with anyio.fail_after(10):
            while connection.share.held:
                await anyio.sleep(0.001)
        await client.aclose()
        await server.aclose()


@pytest.mark.parametrize("kind", ["memory", "socketpair", "tcp"])
async def test_many_requests_at_once_with_a_small_bound(kind: str) -> None:
    """Requests that are answered at once free their places at once."""
    async with supervised() as supervisor:
        _, server, client, _ = serve(kind, supervisor, max_outstanding=2)
        client.channel.write([part for i in range(2000) for part in frame(b"%d" % i)])
        assert await client.receive(2000) == [b"%d" % i for i in range(2000)]
        await client.aclose()
        await server.aclose()


@pytest.mark.parametrize("kind", ["memory", "socketpair", "tcp"])
async def test_client_that_does_not_read_is_not_read(kind: str) -> None:
    async with supervised() as supervisor:
        handler, server, client, connection = serve(kind, supervisor, max_unsent_bytes=1_000_000)
        handler.special = lambda body, _: frame(body * 100_000)
        client.channel.pause()
        client.send(*(b"%03d" % i for i in range(200)))
        assert connection._channel is not None
        with anyio.fail_after(10):
            while connection._channel.pending_bytes < 1_000_000:  # the buffers of the sockets fill up first
                await anyio.sleep(0.001)
        await anyio.wait_all_tasks_blocked()
        begun = len(handler.begun)
        # about 6 MB may lie in the buffers of the sockets; 60 MB are asked for
        assert begun < 150
        assert connection._channel.pending_bytes <= 1_400_000
        client.channel.resume()
        frames = await client.receive(200)
        assert [len(body) for body in frames] == [300_000] * 200
        assert frames[77][:3] == b"077"
        await client.aclose()
        await server.aclose()


@pytest.mark.parametrize(
    ("data", "level", "text"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", logging.WARNING, "the peer speaks HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", logging.WARNING, "the peer speaks TLS"),
        (b"\x7f\xff\xff\xff", logging.WARNING, "2147483647"),
        (b"\xff\xff\xff\xff", logging.WARNING, "-1"),
        (b"\0\0\0\7garbage", logging.WARNING, "what is this"),
        (b"\0\0\0\3bug", logging.ERROR, "a request failed"),
    ],
)
@pytest.mark.parametrize("kind", ["memory", "socketpair", "tcp"])
async def test_garbage_closes_that_connection_only(
    kind: str, data: bytes, level: int, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with supervised() as supervisor:
        _, server, client, _ = serve(kind, supervisor)
        mine, theirs = LINKS[kind]()
        server.attach(theirs)
        other = Client(mine, supervisor)
        client.send(b"good")
        await client.receive(1)
        client.channel.write([data])
        await client.ended()
        (record,) = [record for record in caplog.records if record.name == "kclient.net.server"]
        assert record.levelno == level
        assert text in record.getMessage()
        other.send(b"still served")
        assert await other.receive(1) == [b"still served"]
        assert len(server.connections) == 1
        await other.aclose()
        await client.aclose()
        await server.aclose()


@pytest.mark.parametrize(
    ("key", "version", "text"),
    [(3, 99, "kclient knows MetadataRequest in versions 0-13, not in version 99"), (31000, 0, "API with key 31000")],
)
@pytest.mark.parametrize("later", [False, True])
async def test_unknown_requests_are_the_clients_fault(
    key: int, version: int, text: str, later: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def wait(body: bytes) -> Any:
        decode_request(body)

    async with supervised() as supervisor:
        handler, server, client, _ = serve("memory", supervisor)
        handler.special = lambda body, _: wait(body) if later else decode_request(body)
        client.send(struct.pack(">hhih", key, version, 1, -1) + bytes(20))
        await client.ended()
        (record,) = [record for record in caplog.records if record.name == "kclient.net.server"]
        assert (record.levelno, record.exc_info) == (logging.WARNING, None)
        assert "sent an unknown request, the connection is closed: kclient " in record.getMessage()
        assert record.getMessage().count("\n") == 0
        assert text in record.getMessage()
        await client.aclose()
        await server.aclose()


async def test_a_response_that_has_no_such_version_is_our_fault(caplog: pytest.LogCaptureFixture) -> None:
    async with supervised() as supervisor:
        handler, server, client, _ = serve("memory", supervisor)
        handler.special = lambda *_: encode_response(MetadataResponse(), 99, 1)
        client.send(b"x")
        await client.ended()
        (record,) = [record for record in caplog.records if record.name == "kclient.net.server"]
        assert record.levelno == logging.ERROR
        assert record.exc_info is not None
        assert record.exc_info[0] is UnsupportedVersionError
        await client.aclose()
        await server.aclose()


async def test_truncated_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with supervised() as supervisor:
        handler, server, client, _ = serve("tcp", supervisor)
        client.channel.write([*frame(b"good"), b"\0\0\0\x20trunc"])
        await client.receive(1)
        await client.aclose()
        with anyio.fail_after(10):
            while server.connections:
                await anyio.sleep(0.001)
        assert handler.begun == [b"good"]
        assert "after 5 of the 32 bytes of a frame" in caplog.text
        await server.aclose()


@pytest.mark.parametrize("kind", ["task", "completion"])
async def test_request_that_fails_later_closes_the_connection(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async with supervised() as supervisor:
        handler, server, client, _ = serve("socketpair", supervisor)
        client.send(b"%s:bug" % kind.encode(), b"more")
        with anyio.fail_after(10):
            while len(handler.begun) < 2:
                await anyio.sleep(0.001)
        await anyio.wait_all_tasks_blocked()
        if kind == "task":
            handler.events["bug"].set()
        else:
            handler.completions["bug"].set_error(KeyError("bug"))
        await client.ended()
        assert client.recorder.frames == []
        assert "a request failed" in caplog.text
        await client.aclose()
        await server.aclose()


REFUSED = {
    "garbage": frame(b"garbage"),
    "bug": frame(b"bug"),
    "size": [b"\x7f\xff\xff\xff"],
    "too large": [(5000).to_bytes(4, "big"), bytes(100)],
    "task": frame(b"task:bug"),
    "completion": frame(b"completion:bug"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", REFUSED)
async def test_what_came_before_a_refused_request_is_answered(what: str, kind: str) -> None:
    """All in one piece, as by a client that has several requests on their way; nothing behind it is answered."""
    async with supervised() as supervisor:
        handler, server, client, connection = serve(kind, supervisor, frame_limit=4000)
        before = [b"1", b"task:2", b"3", b"completion:4"]
        client.channel.write([part for body in before for part in frame(body)] + REFUSED[what] + frame(b"behind"))
        with anyio.fail_after(10):
            while len(handler.begun) < 4:
                await anyio.sleep(0.001)
        await client.receive(1)
        if what == "task":
            handler.events.setdefault("bug", anyio.Event()).set()
        elif what == "completion":
            while "bug" not in handler.completions:
                await anyio.sleep(0.001)
            handler.completions["bug"].set_error(KeyError("bug"))
        await anyio.wait_all_tasks_blocked()
        assert not connection.closed
        handler.completions["4"].set_result(frame(b"finished 4"))
        handler.events.setdefault("2", anyio.Event()).set()
        await client.ended()
        assert client.recorder.frames == [b"1", b"finished 2", b"3", b"finished 4"]
        assert handler.begun[:4] == before
        await client.aclose()
        with anyio.fail_after(10):
            while server.connections:
                await anyio.sleep(0.001)
        assert server.budget.used == 0
        await server.aclose()


async def test_who_asks_for_too_much_has_its_answers_first(caplog: pytest.LogCaptureFixture) -> None:
    async with supervised() as supervisor:
        handler, server, client, _ = serve("tcp", supervisor, max_memory=1_000_000)
        client.channel.write([*frame(b"1"), *frame(b"task:2"), (500_000).to_bytes(4, "big"), bytes(100)])
        with anyio.fail_after(10):
            while "2" not in handler.events:
                await anyio.sleep(0.001)
        handler.events["2"].set()
        await client.ended()
        assert client.recorder.frames == [b"1", b"finished 2"]
        assert handler.begun == [b"1", b"task:2"]
        assert len(caplog.records) == 1
        await client.aclose()
        await server.aclose()


@pytest.mark.parametrize("kind", ["memory", "socketpair", "tcp"])
async def test_a_refused_client_that_goes_while_an_answer_is_parked_leaves_nothing(kind: str) -> None:
    """The answer may never come: who waits for the client's sake alone is only told that it has gone."""
    async with supervised() as supervisor:
        handler, server, client, connection = serve(kind, supervisor)
        client.channel.write([*frame(b"completion:never"), *frame(b"garbage")])
        with anyio.fail_after(10):
            while "never" not in handler.completions:
                await anyio.sleep(0.001)
        await client.aclose()
        with anyio.fail_after(10):
            while not connection.closed:
                await anyio.sleep(0.01)
        assert server.budget.used == 0
        await server.aclose()


async def test_a_client_that_has_gone_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system of a client that has reset its connection never takes what was on its way."""
    monkeypatch.setattr(SocketStream, "in_flight", property(lambda _: 52))
    async with supervised() as supervisor:
        _, server, client, connection = serve("tcp", supervisor)
        client.send(b"garbage")
        await client.aclose()
        began = anyio.current_time()
        with anyio.fail_after(20):
            while not connection.closed:
                await anyio.sleep(0.001)
        assert anyio.current_time() - began < server.settings.stall_timeout / 2
        await server.aclose()


async def test_a_refused_client_that_does_not_read_is_idle() -> None:
    async with supervised() as supervisor:
        handler, server, client, connection = serve("socketpair", supervisor, idle_timeout=0.2)
        client.channel.pause()
        handler.special = lambda body, _: frame(bytes(20_000_000)) if body == b"1" else frame(body)
        client.send(b"1")
        client.channel.write([b"\xff\xff\xff\xff"])
        with anyio.fail_after(10):
            while not connection.closed:
                await anyio.sleep(0.01)
        await client.aclose()
        await server.aclose()


async def test_answers_to_a_client_that_went_away_are_dropped() -> None:
    async with supervised() as supervisor:
        handler, server, client, connection = serve("socketpair", supervisor)
        client.send(b"task:1", b"completion:2")
        with anyio.fail_after(10):
            while len(handler.begun) < 2:
                await anyio.sleep(0.001)
        await anyio.wait_all_tasks_blocked()
        await client.aclose()
        with anyio.fail_after(10):
            while not connection.closed:
                await anyio.sleep(0.001)
        handler.completions["2"].set_result(frame(b"2"))
        await anyio.wait_all_tasks_blocked()
        handler.events["1"].set()
        with anyio.fail_after(10):
            await connection.wait_closed()
        assert handler.finished == ["1"]  # it was not cancelled: what it does may be half done
        await server.aclose()


async def test_handler_that_closes_the_connection() -> None:
    async with supervised() as supervisor:
        handler, server, client, _ = serve("socketpair", supervisor)

        def close(body: bytes, connection: ServerConnection) -> Any:
            connection.close()
            return frame(body)

        handler.special = close
        client.send(b"1", b"2", b"3")
        await client.ended()
        assert handler.begun == [b"1"]
        await client.aclose()
        await server.aclose()


@pytest.mark.parametrize("kind", ["memory", "socketpair", "chopped"])
async def test_failing_owner_takes_the_connections_along(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async with supervised() as other:
        supervisor = Supervisor()
        async with supervisor:
            handler = Handler()
            server = Server(handler, supervisor)
            mine, theirs = LINKS[kind]()
            connection = server.attach(theirs)
            client = Client(mine, other)
            client.send(b"completion:never")
            with anyio.fail_after(10):
                while not handler.begun:
                    await anyio.sleep(0.001)
            supervisor.fail(RuntimeError("the owner has failed"))
            await client.ended()
            assert connection.closed
            assert not server.connections
            await client.aclose()
            await server.aclose()
        assert caplog.records == []


async def test_request_that_comes_after_the_owner_failed(caplog: pytest.LogCaptureFixture) -> None:
    """Its task cannot be started: the connection is closed, and no coroutine is left unawaited."""
    async with supervised() as other:
        async with Supervisor() as supervisor:
            handler = Handler()
            server = Server(handler, supervisor)
            mine, theirs = LINKS["socketpair"]()
            server.attach(theirs)
            client = Client(mine, other)

            def fail(body: bytes, connection: ServerConnection) -> Any:
                supervisor.fail(RuntimeError("the owner has failed"))
                return handler._finish("never")

            handler.special = fail
            client.send(b"x")
            await client.ended()
            await client.aclose()
            await server.aclose()
        assert "the owner has failed" in caplog.text


async def test_draining_answers_what_has_begun() -> None:
    async with supervised() as supervisor:
        handler, server, client, connection = serve("tcp", supervisor, max_outstanding=2)
        client.send(b"task:1", b"task:2", b"not begun")
        with anyio.fail_after(10):
            while len(handler.events) < 2:
                await anyio.sleep(0.001)

        async def release() -> None:
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(ClosedError):
                server.attach(memory_pair()[0])
            assert "draining" in repr(connection)
            handler.events["1"].set()
            handler.events["2"].set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(release)
            with anyio.fail_after(10):
                await server.aclose(grace=60)
        await client.ended()
        assert client.recorder.frames == [b"finished 1", b"finished 2"]
        assert handler.begun == [b"task:1", b"task:2"]
        await client.aclose()


async def test_draining_has_a_deadline() -> None:
    async with supervised() as supervisor:
        handler, server, client, _ = serve("tcp", supervisor)
        client.send(b"task:never")
        with anyio.fail_after(10):
            while not handler.events:
                await anyio.sleep(0.001)
            await server.aclose(grace=0.02)
            await client.ended()
        assert handler.log == ["connected", "disconnected"]
        await client.aclose()
        await server.aclose()


async def test_idle_connections_are_closed() -> None:
    async with supervised() as supervisor:
        handler = Handler()
        server = Server(handler, supervisor, ServerSettings(idle_timeout=0.05))
        listener = await server.listen_tcp()
        idle = Client(await connect(listener.address), supervisor)
        waiting = Client(await connect(listener.address), supervisor)
        waiting.send(b"task:1")
        await idle.ended()
        later = Client(await connect(listener.address), supervisor)
        await later.ended()  # it was idle for the whole time, so that the first has been looked at for longer
        assert len(server.connections) == 1  # the one that waits for an answer is not idle
        handler.events["1"].set()
        assert await waiting.receive(1) == [b"finished 1"]
        await waiting.ended()
        await idle.aclose()
        await later.aclose()
        await waiting.aclose()
        await server.aclose()


@pytest.mark.parametrize("kind", ["memory", "socketpair", "tcp"])
async def test_parts_of_a_request_and_of_a_reply_are_signs_of_life(kind: str) -> None:
    async with supervised() as supervisor:
        handler, server, client, connection = serve(kind, supervisor)

        async def lives(moved: int) -> None:
            """That something moves counts, however much is missing yet."""
            while connection.moved < moved:
                await anyio.sleep(0.001)
            before = anyio.current_time()
            last = connection.idle_since()
            assert last is not None
            assert last >= before
            while anyio.current_time() == before:
                await anyio.sleep(0.001)
            assert connection.idle_since() == last  # nothing since

        with anyio.fail_after(20):
            request = frame(bytes(100_000))
            whole = b"".join(request)
            client.channel.write([whole[:10]])
            await lives(10)
            client.channel.write([whole[10:50_000]])
            await lives(50_000)
            client.channel.write([whole[50_000:]])
            await client.receive(1)
            await lives(200_000)
            client.send(b"task:1")
            while "1" not in handler.events:
                await anyio.sleep(0.001)
            assert connection.idle_since() is None  # it is not the client's turn
            handler.events["1"].set()
            await client.receive(2)
        await client.aclose()
        await server.aclose()


async def test_who_waits_for_memory_is_not_idle() -> None:
    async with supervised() as supervisor:
        _, server, client, connection = serve("memory", supervisor, max_memory=4 << 20)
        budget = server.budget
        hog = budget.share(lambda: None)
        assert budget.favours(hog)  # it may go on, the others wait
        hog.keep(budget.limit)
        client.send(bytes(500_000))
        with anyio.fail_after(20):
            while connection.share not in budget.waiting:
                await anyio.sleep(0.001)
            assert connection.idle_since() is None
            hog.close()
            assert await client.receive(1) == [bytes(500_000)]
            assert connection.idle_since() is not None
        await client.aclose()
        await server.aclose()


async def test_listening_on_tcp() -> None:
    async with supervised() as supervisor:
        server = Server(Handler(), supervisor)
        listener = await server.listen_tcp("127.0.0.1", 0, label="A")
        second = await server.listen_tcp("127.0.0.1", 0, label="B")
        assert listener.address.port != second.address.port
        assert str(listener.address) in repr(server)
        clients = [Client(await connect(item.address), supervisor) for item in (listener, second)]
        for client in clients:
            client.send(b"hello")
            assert await client.receive(1) == [b"hello"]
        assert {connection.label for connection in server.connections} == {"A", "B"}
        with pytest.raises(OSError, match=str(listener.address.port)):
            await server.listen_tcp("127.0.0.1", listener.address.port)
        # the system would take 99999 modulo 65536
        for port, error, text in (
            (99999, ValueError, "65535, not 99999"),
            (-1, ValueError, "-1"),
            ("9", TypeError, "'9'"),
        ):
            with pytest.raises(error, match=text):
                await server.listen_tcp("127.0.0.1", port)  # type: ignore[arg-type]
        for host in ("192.0.2.1", "no-such-host.invalid"):
            with pytest.raises(OSError, match=host):
                await server.listen_tcp(host)
        await listener.aclose()
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", listener.address.port))
        clients[0].send(b"still")
        assert await clients[0].receive(2) == [b"hello", b"still"]
        for client in clients:
            await client.aclose()
        await server.aclose()
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", second.address.port))


async def test_localhost_means_all_its_addresses() -> None:
    found = {item[4][0] for item in socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)}
    async with supervised() as supervisor:
        server = Server(Handler(), supervisor)
        listener = await server.listen_tcp("localhost", 0)
        reached = set()
        for host in found:
            try:
                client = Client(await connect(Address(host, listener.address.port)), supervisor)
            except OSError:
                continue
            reached.add(host)
            await client.aclose()
        assert len(reached) == len(listener.sockets) >= 1
        await server.aclose()


async def test_listening_on_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    async with supervised() as supervisor:
        server = Server(Handler(), supervisor)
        listener = await server.listen_unix(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        client = Client(await connect(parse_address(f"unix:{path}")), supervisor)
        client.send(b"hello")
        assert await client.receive(1) == [b"hello"]
        with pytest.raises(OSError):
            await server.listen_unix(path)
        await client.aclose()
        await listener.aclose()
        assert not path.exists()
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
        assert path.exists()
        listener = await server.listen_unix(path)
        await listener.aclose()
        await listener.aclose()
        path.write_text("not a socket")
        with pytest.raises(OSError):
            await server.listen_unix(path)
        assert path.read_text() == "not a socket"
        await server.aclose()
        with pytest.raises(ClosedError):
            await server.listen_unix(tmp_path / "other")


async def test_out_of_descriptors(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The listener goes on when descriptors are free again."""
    async with supervised() as supervisor:
        server = Server(Handler(), supervisor)
        listener = await server.listen_tcp()
        real, failures = listener.sockets[0], [24, 24]

        class Failing:
            def accept(self) -> Any:
                if failures:
                    raise OSError(failures.pop(), "Too many open files")
                return real.accept()

            def fileno(self) -> int:
                return real.fileno()

        accept_some = type(server)._accept_some
        monkeypatch.setattr(server, "_accept_some", lambda sock, listener: accept_some(server, Failing(), listener))
        client = Client(await connect(listener.address), supervisor)
        client.send(b"hello")
        assert await client.receive(1) == [b"hello"]
        assert "Too many open files" in caplog.text
        await client.aclose()
        await server.aclose()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="counts descriptors in /proc")
@pytest.mark.parametrize("manner", ["politely", "rudely", "with garbage"])
async def test_a_thousand_connections_leave_nothing_behind(manner: str) -> None:
    async with supervised() as supervisor:
        handler = Handler()
        server = Server(handler, supervisor)
        listener = await server.listen_tcp()
        target = ("127.0.0.1", listener.address.port)
        seen: list[weakref.ref[ServerConnection]] = []
        handler.special = lambda body, connection: seen.append(weakref.ref(connection)) or frame(body)
        before, tasks = descriptors(), len(supervisor._handles)
        for turn in range(20):
            clients = [socket.create_connection(target) for _ in range(50)]
            for client in clients:
                client.sendall(b"\0\0\0\5hello")
            with anyio.fail_after(20):
                while len(seen) < 50 * (turn + 1):
                    await anyio.sleep(0.001)
            for client in clients:
                if manner == "politely":
                    assert client.recv(100) == b"\0\0\0\5hello"
                elif manner == "with garbage":
                    client.sendall(b"\xff" * 10)
                client.close()
            with anyio.fail_after(20):
                while server.connections:
                    await anyio.sleep(0.001)
        with anyio.fail_after(20):
            while descriptors() > before or len(supervisor._handles) > tasks:
                await anyio.sleep(0.001)
        assert len(seen) == 1000
        assert descriptors() == before
        assert len(supervisor._handles) == tasks
        gc.collect()
        assert sum(ref() is not None for ref in seen) == 0
        await server.aclose()


@pytest.mark.parametrize("seed", range(10))
async def test_chopped_and_cut(seed: int) -> None:
    async with supervised() as supervisor:
        handler = Handler()
        server = Server(handler, supervisor)
        mine, theirs = memory_pair()
        server.attach(FaultyStream(theirs, split=9, delay=3, cut_received=100 + seed, seed=seed))
        client = Client(mine, supervisor)
        client.send(*(b"%03d" % i for i in range(40)))
        await client.ended()
        frames = client.recorder.frames
        assert frames == [b"%03d" % i for i in range(len(frames))]
        assert handler.begun == [b"%03d" % i for i in range((100 + seed) // 7)]
        await client.aclose()
        await server.aclose()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "chopped" not in kind])
async def test_what_was_received_whole_before_the_client_went_begins(kind: str) -> None:
    """With `acks=0` a client sends and goes. What waits for something is not gone on with before that is there."""
    async with supervised() as supervisor:
        handler, server, client, _ = serve(kind, supervisor)
        ready: Completion[bytes] = Completion()
        finished: list[bytes] = []

        def work(body: bytes) -> Any:
            yield ready
            finished.append(body + ready.result())

        handler.special = lambda body, _: Steps(work(body), lasting=True)
        bodies = [b"1", b"2" * 30_000, b"3"]
        client.channel.write([part for body in bodies for part in frame(body)])
        client.channel.close()  # what comes in one piece with the connection's end is read in one piece with it
        with anyio.fail_after(20):
            while not handler.begun:
                await anyio.sleep(0.001)
            await client.aclose()
            while "disconnected" not in handler.log and not ready.done:
                await anyio.sleep(0.01)
                ready.set_result(b"!")
            while server.connections:
                await anyio.sleep(0.001)
        assert finished == [body + b"!" for body in bodies]
        assert handler.log == ["connected", "disconnected"]
        assert server.budget.used == 0
        await server.aclose()


async def test_who_closes_a_connection_begins_no_more_of_it() -> None:
    async with supervised() as supervisor:
        handler, server, client, connection = serve("memory", supervisor)
        never: Completion[None] = Completion()

        def work() -> Any:
            yield never

        handler.special = lambda *_: Steps(work())
        client.send(b"1", b"2")
        with anyio.fail_after(20):
            while not handler.begun:
                await anyio.sleep(0.001)
            client.channel.close()
            await anyio.sleep(0.01)
            connection.close()
            while server.connections:
                await anyio.sleep(0.001)
        assert handler.begun == [b"1"]
        assert handler.log == ["connected", "disconnected"]
        await client.aclose()
        await server.aclose()


async def until(true: Callable[[], object]) -> None:
    with anyio.fail_after(20):
        while not true():
            await anyio.sleep(0.001)


def parked_for_the_client(connection: ServerConnection) -> Any:
    """An answer that waits until the client has gone."""
    gone = anyio.Event()
    connection.on_deserted(gone.set)
    return _after(gone)


async def _after(event: anyio.Event) -> None:
    await event.wait()


@pytest.mark.parametrize(
    ("kind", "count"),
    [(kind, 64) for kind in KINDS]
    + [
        pytest.param(kind, 500, marks=pytest.mark.slow)
        for kind in KINDS
        if "chopped" not in kind and kind != "small-memory"
    ],
)
async def test_a_client_that_goes_while_it_is_not_read_is_noticed(kind: str, count: int) -> None:
    """Also behind bytes that have not been read; those begin, since they may be of requests with `acks=0`."""
    async with supervised() as supervisor:
        handler, server, client, connection = serve(kind, supervisor)
        handler.special = lambda _, connection: parked_for_the_client(connection)
        client.send(*(b"%04d" % number for number in range(64)))
        await until(lambda: len(handler.begun) == 64)
        await until(lambda: connection.paused)
        assert client.channel.pending_bytes == 0
        handler.special = lambda *_: None
        client.send(*(b"%04d" % number for number in range(64, count)))
        await until(lambda: not client.channel.pending_bytes)
        await client.aclose()
        await until(lambda: not server.connections)
        assert handler.begun == [b"%04d" % number for number in range(count)]
        assert handler.log == ["connected", "disconnected"]
        assert server.budget.used == 0
        await server.aclose()


async def test_a_reset_is_noticed_while_the_connection_is_not_read() -> None:
    async with supervised() as supervisor:
        handler = Handler()
        server = Server(handler, supervisor)
        handler.special = lambda _, connection: parked_for_the_client(connection)
        listener = await server.listen_tcp()
        with socket.create_connection((listener.address.host, listener.address.port)) as client:
            client.sendall(b"".join(frame(b"x")) * 100)
            await until(lambda: len(handler.begun) == 64)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await until(lambda: not server.connections)
        await server.aclose()


async def test_replies_are_not_kept_for_a_client_that_has_gone() -> None:
    """What it had sent begins even if that needs the memory of replies that wait for one that never comes."""
    async with supervised() as supervisor:
        handler, server, client, connection = serve("tcp", supervisor, max_memory=4 << 20)
        finished: list[bytes] = []

        def work(body: bytes) -> Any:
            yield 700_000
            finished.append(body)

        def begin(body: bytes, connection: ServerConnection) -> Any:
            if body == b"first":
                return Completion()
            return frame(bytes(500_000)) if body == b"reply" else Steps(work(body), lasting=True)

        handler.special = begin
        client.send(b"first", b"reply", b"large", b"next")
        await until(lambda: connection.crowded)
        await client.aclose()
        await until(lambda: not server.connections)
        assert finished == [b"large", b"next"]
        assert server.budget.used == 0
        await server.aclose()


@pytest.mark.parametrize("kind", ["memory", "tcp"])
async def test_who_waits_without_need_is_hurried_when_the_connection_is_short_of_memory(kind: str) -> None:
    async with supervised() as supervisor:
        handler, server, client, _ = serve(kind, supervisor, max_memory=4 << 20)

        async def park(place: ReplySlot) -> list[bytes]:
            while not (place.is_next and place.hurried):
                told = anyio.Event()
                place.when_next(told.set)
                await told.wait()
            return frame(b"hurried")

        def work() -> Any:
            yield 700_000
            return frame(b"large")

        def begin(body: bytes, connection: ServerConnection) -> Any:
            if body == b"poll":
                assert connection.beginning is not None
                return park(connection.beginning)
            return frame(bytes(400_000)) if body == b"reply" else Steps(work())

        handler.special = begin
        client.send(b"poll", b"reply", b"large")
        assert await client.receive(3) == [b"hurried", bytes(400_000), b"large"]
        await until(lambda: not server.budget.used)
        await client.aclose()
        await server.aclose()


CROWDED = {
    "a request that does not begin": [b"first", b"reply 1048576", b"last"],
    "a request that is not read": [b"first", *[b"more" + bytes(240_000)] * 3, b"last" + bytes(500_000)],
    "steps that wait for memory": [b"first", b"reply 500000", b"large"],
}
"""What a client sends that fills its own quarter behind one answer."""


class Crowd:
    """A server without memory for others, one client of which has its own quarter full behind its first request."""

    def __init__(self, kind: str, supervisor: Supervisor, bodies: list[bytes], parked: bool) -> None:
        self.handler, self.server, self.client, self.connection = serve(
            kind, supervisor, max_memory=4 << 20, stall_timeout=0.2
        )
        self.handler.special = self._begin
        self.first: Completion[list[bytes]] = Completion()
        self.parked = parked
        self.client.send(*bodies)

    def _begin(self, body: bytes, connection: ServerConnection) -> Any:
        if body == b"first":
            assert connection.beginning is not None
            connection.beginning.parked = self.parked
            return self.first
        if body.startswith(b"more"):
            return Completion()
        if body.startswith(b"reply"):
            return frame(bytes(int(body[5:])))
        return Steps(self._large()) if body == b"large" else frame(b"ok")

    @staticmethod
    def _large() -> Any:
        yield 700_000
        return frame(b"large")

    async def others_wait(self) -> Share:
        """From now on; returns what holds the rest."""
        await until(lambda: self.connection.crowded)
        hog = self.server.budget.share(lambda: None)
        hog.keep(self.server.budget.limit)
        assert self.server.budget.favours(hog)
        return hog


@pytest.mark.parametrize("bodies", CROWDED.values(), ids=CROWDED)
async def test_who_holds_memory_behind_a_parked_answer_is_closed_while_others_wait(
    bodies: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    async with supervised() as supervisor:
        crowd = Crowd("tcp", supervisor, bodies, parked=True)
        hog = await crowd.others_wait()
        other, _ = await other_client(crowd.server, "tcp", supervisor)
        other.send(bytes(500_000))
        await crowd.client.ended()
        assert "memory that others wait for" in caplog.text
        hog.close()
        assert await other.receive(1) == [b"ok"]
        await other.aclose()
        await crowd.client.aclose()
        await crowd.server.aclose()


@pytest.mark.parametrize("kind", ["memory", "tcp", "tls"])
@pytest.mark.parametrize("bodies", CROWDED.values(), ids=CROWDED)
async def test_who_waits_for_the_server_is_not_closed_however_much_it_holds(kind: str, bodies: list[bytes]) -> None:
    """As while its disk stalls: the client has sent all and reads, so it cannot do anything about it."""
    async with supervised() as supervisor:
        crowd = Crowd(kind, supervisor, bodies, parked=False)
        hog = await crowd.others_wait()
        silent, _ = await other_client(crowd.server, kind, supervisor)
        silent.channel.write([(500_000).to_bytes(4, "big") + bytes(100)])
        await silent.ended()
        for _ in range(4):
            assert crowd.connection in crowd.server.connections
            await anyio.sleep(0.1)
        hog.close()
        crowd.first.set_result(frame(b"first"))
        assert (await crowd.client.receive(1))[0] == b"first"
        await crowd.client.aclose()
        await silent.aclose()
        await crowd.server.aclose()


async def test_who_hangs_amid_a_request_is_closed_although_others_of_it_wait_for_the_server() -> None:
    async with supervised() as supervisor:
        crowd = Crowd("tcp", supervisor, CROWDED["a request that is not read"][:-1], parked=False)
        crowd.client.channel.write([(500_000).to_bytes(4, "big") + bytes(100)])
        hog = await crowd.others_wait()
        other, _ = await other_client(crowd.server, "tcp", supervisor)
        other.send(bytes(500_000))
        await crowd.client.ended()
        hog.close()
        assert await other.receive(1) == [b"ok"]
        await other.aclose()
        await crowd.client.aclose()
        await crowd.server.aclose()


async def test_what_the_server_has_begun_asks_no_faster_reading_of_a_client() -> None:
    """Who reads a reply slowly has to take that, not what waits for a disk."""
    async with supervised() as supervisor:
        handler, server, _, _ = serve("memory", supervisor)
        handler.special = lambda body, _: frame(bytes(4 << 20)) if body == b"much" else Completion()
        mine, theirs = socket.socketpair()
        with mine:
            theirs.setblocking(False)
            connection = server.attach(SocketStream(theirs))
            mine.sendall(b"".join(frame(b"much")))
            await until(lambda: connection.stuck)
            unsent = connection.stuck
            thread = partial(mine.sendall, b"".join(frame(bytes(8 << 20))))
            await anyio.to_thread.run_sync(thread)
            await until(lambda: connection.outstanding)
            assert connection.share.held >= unsent + (8 << 20)
            assert connection.stuck == unsent
        await server.aclose()


async def test_replies_behind_an_answer_do_not_keep_it_back() -> None:
    """However much they are: they leave after it."""
    async with supervised() as supervisor:
        handler, server, client, _ = serve("memory", supervisor, max_unsent_bytes=100_000)
        ready = anyio.Event()

        async def park(place: ReplySlot) -> list[bytes]:
            await ready.wait()
            return frame(b"next" if place.is_next else b"not next")

        def begin(body: bytes, connection: ServerConnection) -> Any:
            assert connection.beginning is not None
            return park(connection.beginning) if body == b"first" else frame(bytes(200_000))

        handler.special = begin
        client.send(b"first", b"reply")
        await until(lambda: len(handler.begun) == 2)
        ready.set()
        assert await client.receive(2) == [b"next", bytes(200_000)]
        await client.aclose()
        await server.aclose()


async def test_large_requests_wait_for_those_before_them() -> None:
    """Also for one that has come whole and that nobody has been told of yet."""
    async with supervised() as supervisor:
        server = Server(Handler(), supervisor, ServerSettings(max_memory=4 << 20))
        mine, theirs = memory_pair()
        body = bytes(900_000)
        data = b"".join(frame(body) * 3)
        await mine.send([data[:500_000]])
        await mine.send([data[500_000:910_000]])  # the end of the first, the beginning of the second
        server.attach(theirs)
        client = Client(mine, supervisor)
        client.channel.write([data[910_000:]])
        assert [len(frame) for frame in await client.receive(3)] == [900_000] * 3
        await until(lambda: not server.budget.used)
        await client.aclose()
        await server.aclose()


@pytest.mark.parametrize("size", [20_000, 200_000])
async def test_more_than_a_connection_may_hold_comes_at_once(size: int) -> None:
    """Through memory frames are not asked for one by one."""
    async with supervised() as supervisor:
        server = Server(Handler(), supervisor, ServerSettings(max_memory=4 << 20))
        mine, theirs = memory_pair(limit=100 << 20)
        for _ in range(100):
            await mine.send(frame(bytes(size)))
        server.attach(theirs)
        client = Client(mine, supervisor)
        assert len(await client.receive(100)) == 100
        await until(lambda: not server.budget.used)
        await client.aclose()
        await server.aclose()


@pytest.mark.parametrize("large", [400_000, 900_000])
async def test_a_request_may_need_the_memory_that_those_behind_it_hold(
    large: int, caplog: pytest.LogCaptureFixture
) -> None:
    """But not more than a connection may hold, if there were none."""
    async with supervised() as supervisor:
        handler, server, client, _ = serve("memory", supervisor, max_memory=4 << 20)

        def work() -> Any:
            yield large
            return frame(b"done")

        handler.special = lambda *_: Steps(work())
        client.channel.write(frame(bytes(400_000)) * 2)
        if large == 400_000:
            assert await client.receive(2) == [b"done"] * 2
            assert not caplog.records
        else:
            await client.ended()
            assert "asks for too much" in caplog.text
        await until(lambda: not server.budget.used)
        await client.aclose()
        await server.aclose()


SHORT = 4 << 20
"""Of memory: a quarter of it is one connection's."""


async def other_client(server: Server, kind: str, supervisor: Supervisor) -> tuple[Client, ServerConnection]:
    mine, theirs = LINKS[kind]()
    connection = server.attach(theirs)
    return Client(mine, supervisor), connection


@pytest.mark.parametrize(
    ("kind", "size", "count"),
    [("tcp", 60_000, 80), ("tcp", 250_000, 30), ("tcp", 900_000, 20), ("tls", 250_000, 30), ("memory", 250_000, 30)],
)
async def test_those_that_stall_amid_requests_are_closed_at_once(
    kind: str, size: int, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Also small ones that are much together, and those that are in the line for memory. Who is read is not."""
    async with supervised() as supervisor:
        server = Server(Handler(), supervisor, ServerSettings(max_memory=SHORT, stall_timeout=1.0))
        silent = [await other_client(server, kind, supervisor) for _ in range(count)]
        for client, _ in silent:
            client.channel.write([size.to_bytes(4, "big") + bytes(1000)])
        for _, connection in silent:
            await until(lambda connection=connection: connection.moved > 1000)
        fair, _ = await other_client(server, kind, supervisor)
        fair.send(bytes(300_000))
        assert await fair.receive(1) == [bytes(300_000)]
        await until(lambda: not server.budget.waiting)
        # all of them, unless the machine is so busy that the last ones came when there was room again
        closed = count + 1 - len(server.connections)
        records = [record for record in caplog.records if "memory that others wait for" in record.message]
        assert len(records) < closed / 2, "one for many"
        fair.send(b"still here")
        assert (await fair.receive(2))[1] == b"still here"
        for client, _ in [*silent, (fair, None)]:
            await client.aclose()
        await until(lambda: not server.connections)
        assert (server.budget.used, server.budget.unfinished, server.budget.requests) == (0, 0, 0)
        await server.aclose()


AMPLE = 64 << 20
"""Of memory, so that one connection may hold what is too much to be moved little by little."""
LARGE = 15 << 20


@pytest.mark.parametrize("kind", ["memory", "tcp", "tls"])
async def test_who_trickles_a_large_request_is_closed_while_others_wait(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Else four connections could keep all the memory for as long as they like."""
    async with supervised() as supervisor:
        _, server, hog, connection = serve(kind, supervisor, max_memory=AMPLE, stall_timeout=0.5)
        hog.channel.write([LARGE.to_bytes(4, "big")])
        await until(lambda: server.budget.used == LARGE)
        rest = server.budget.share(lambda: None)
        rest.keep(server.budget.limit - LARGE)
        assert server.budget.favours(rest)
        other, _ = await other_client(server, kind, supervisor)
        other.send(bytes(500_000))
        sent = 0
        while not hog.recorder.causes:
            hog.channel.write([bytes(30_000)])
            sent += 30_000
            assert sent < LARGE
            await anyio.sleep(0.025)
        assert await other.receive(1) == [bytes(500_000)]
        assert connection not in server.connections
        [record] = [record.message for record in caplog.records if "memory that others wait for" in record.message]
        assert "too little was taken and given of 15728640 bytes" in record
        rest.close()
        await hog.aclose()
        await other.aclose()
        await server.aclose()


async def test_who_reads_a_large_reply_little_by_little_is_closed_while_others_wait() -> None:
    async with supervised() as supervisor:
        handler, server, client, _ = serve("tcp", supervisor, max_memory=AMPLE, stall_timeout=0.5)
        handler.special = lambda body, _: frame(bytes(LARGE) if body == b"much" else b"ok")
        mine, theirs = socket.socketpair()
        with mine:
            theirs.setblocking(False)
            mine.setblocking(False)
            connection = server.attach(SocketStream(theirs))
            mine.send(b"".join(frame(b"much")))
            await until(lambda: connection.share.held > LARGE // 2)
            rest = server.budget.share(lambda: None)
            rest.keep(server.budget.limit)
            assert server.budget.favours(rest)
            client.send(bytes(500_000))
            read = 0
            while not connection.closed:
                with suppress(BlockingIOError):
                    read += len(mine.recv(30_000))
                assert read < LARGE
                await anyio.sleep(0.025)
        rest.close()
        assert await client.receive(1) == [b"ok"]
        await client.aclose()
        await server.aclose()


@pytest.mark.parametrize("kind", ["memory", "tcp", "tls"])
async def test_who_has_sent_its_request_and_waits_for_memory_is_not_closed(kind: str) -> None:
    """Its bytes are in the stream: it is the server that does not read them."""
    async with supervised() as supervisor:
        _, server, client, connection = serve(kind, supervisor, max_memory=SHORT, stall_timeout=0.2)
        silent, _ = await other_client(server, kind, supervisor)
        hog = server.budget.share(lambda: None)
        hog.keep(server.budget.limit)
        assert server.budget.favours(hog)
        client.send(bytes(500_000))
        await until(lambda: connection.share in server.budget.waiting)
        silent.channel.write([(500_000).to_bytes(4, "big") + bytes(100)])
        await silent.ended()
        await anyio.sleep(0.5)
        assert connection in server.connections
        hog.close()
        assert await client.receive(1) == [bytes(500_000)]
        await client.aclose()
        await silent.aclose()
        await until(lambda: not server.connections)
        assert server.budget.used == 0
        await server.aclose()


@pytest.mark.parametrize("kind", ["memory", "tcp", "tls"])
async def test_a_small_request_that_has_come_in_part_is_counted(kind: str) -> None:
    async with supervised() as supervisor:
        _, server, client, connection = serve(kind, supervisor)
        data = b"".join(frame(bytes(40_000)))
        client.channel.write([data[:30_000]])
        await until(lambda: server.budget.used == 40_000)
        assert connection.share.requests == 40_000
        client.channel.write([data[30_000:], *frame(bytes(10_000))])
        assert [len(body) for body in await client.receive(2)] == [40_000, 10_000]
        await until(lambda: not server.budget.used)
        client.channel.write([data[:30_000]])
        await until(lambda: server.budget.used == 40_000)
        await client.aclose()
        await until(lambda: not server.connections)
        assert (server.budget.used, server.budget.requests) == (0, 0)
        await server.aclose()


@pytest.mark.parametrize("kind", ["tcp", "tls"])
@pytest.mark.parametrize("size", [60_000, *slow(100, 20_000)])
async def test_many_connections_hold_little_while_memory_is_short(kind: str, size: int) -> None:
    """Whole requests that wait count, too: each connection brings no more than its allowance, not a megabyte."""
    async with supervised() as supervisor:
        handler, server, client, _ = serve(kind, supervisor, max_memory=SHORT)
        hog = server.budget.share(lambda: None)
        hog.keep(server.budget.limit)
        assert server.budget.favours(hog)
        handler.special = lambda *_: Completion()
        others = [await other_client(server, kind, supervisor) for _ in range(20)]
        for other, connection in others:
            other.send(*[bytes(size)] * (300_000 // size))
            await until(lambda connection=connection: connection.paused)
        assert max(connection.share.held for _, connection in others) <= 2 * 64 * 1024 + 4096 + 16 * 1024
        assert server.budget.used <= server.budget.total + 20 * 4096
        for other, _ in others:
            await other.aclose()
        await client.aclose()
        hog.close()
        await server.aclose()
        assert (server.budget.used, server.budget.unfinished) == (0, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell what the other side has got")
async def test_what_a_slow_client_reads_counts_as_it_reads() -> None:
    """Not when the system has room for more: it keeps megabytes, and makes room for many at once."""
    async with supervised() as supervisor:
        handler, server, client, _ = serve("memory", supervisor)
        handler.special = lambda *_: frame(bytes(40 << 20))
        with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as mine:
            mine.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
            mine.connect(listening.getsockname())
            connection = server.attach(SocketStream(listening.accept()[0]))
            mine.send(b"".join(frame(b"much")))
            await until(lambda: connection.share.held > 0)
            await until(lambda: connection.moved > 10_000)
            moved = connection.moved
            for _ in range(10):
                read = 0
                while read < 30_000:
                    read += len(mine.recv(30_000 - read))
            await until(lambda: connection.moved >= moved + 200_000)
            assert connection.moved <= moved + 500_000
        await client.aclose()
        await server.aclose()
