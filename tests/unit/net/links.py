"""Pairs of connected streams of every kind, and small peers to talk to."""

from __future__ import annotations

import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import anyio

from kclient.concurrency import Supervisor
from kclient.net.channel import Channel
from kclient.net.channel_kinds import open_channel
from kclient.net.streams import ByteStream, SocketStream, memory_pair, socketpair_streams
from kclient.net.tls import SocketTlsStream, TlsStream
from kclient.net.tls_accepting import accept_tls
from kclient.protocol import framing
from kclient.protocol.messages import ApiVersionsResponse, MetadataResponse
from kclient.protocol.registry import request_class
from kclient.testing.faults import FaultyStream
from tests.certificates import Authority


def _memory() -> tuple[ByteStream, ByteStream]:
    return memory_pair()


def _small_memory() -> tuple[ByteStream, ByteStream]:
    return memory_pair(limit=64)


def _pair() -> tuple[ByteStream, ByteStream]:
    return socketpair_streams()


def tcp_sockets() -> tuple[socket.socket, socket.socket]:
    """Two sockets, connected by TCP."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        left = socket.create_connection(listening.getsockname())
        right, _ = listening.accept()
    return left, right


def _tcp() -> tuple[ByteStream, ByteStream]:
    left, right = tcp_sockets()
    return SocketStream(left), SocketStream(right)


@cache
def authority() -> Authority:
    """The one that the tests' servers have their certificates from."""
    return Authority()


@cache
def server_context() -> ssl.SSLContext:
    """With a certificate for `localhost` and 127.0.0.1."""
    with tempfile.TemporaryDirectory() as folder:
        return authority().server_context(Path(folder), "localhost", "127.0.0.1")


def client_context() -> ssl.SSLContext:
    """Trusts the tests' authority; to be changed freely."""
    return authority().client_context()


def tls_pair(version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> tuple[TlsStream, TlsStream]:
    """A client's and a server's stream after the handshake."""
    left, right = tcp_sockets()
    context = client_context()
    context.maximum_version = version
    with ThreadPoolExecutor(1) as executor:
        server = executor.submit(anyio.run, accept_tls, right, server_context())
        client = context.wrap_socket(left, server_hostname="localhost", suppress_ragged_eofs=False)
        return SocketTlsStream(client), server.result(10)


def _tls() -> tuple[ByteStream, ByteStream]:
    return tls_pair()


def _old_tls() -> tuple[ByteStream, ByteStream]:
    return tls_pair(ssl.TLSVersion.TLSv1_2)


def _chopped() -> tuple[ByteStream, ByteStream]:
    left, right = memory_pair()
    return FaultyStream(left, split=7, delay=2, seed=1), FaultyStream(right, split=5, delay=2, seed=2)


def _chopped_sockets() -> tuple[ByteStream, ByteStream]:
    left, right = socketpair_streams()
    return FaultyStream(left, split=11, delay=1, seed=3), FaultyStream(right, split=3, delay=1, seed=4)


LINKS: dict[str, Callable[[], tuple[ByteStream, ByteStream]]] = {
    "memory": _memory,
    "small-memory": _small_memory,
    "socketpair": _pair,
    "tcp": _tcp,
    "tls": _tls,
    "tls-1.2": _old_tls,
    "chopped": _chopped,
    "chopped-sockets": _chopped_sockets,
}


@dataclass
class Recorder:
    """A channel's owner that writes down what it is told."""

    frames: list[bytes] = field(default_factory=list)
    wakes: int = 0
    causes: list[BaseException | None] = field(default_factory=list)
    drained: int = 0
    _changed: anyio.Event = field(default_factory=anyio.Event)

    def frames_received(self, frames: list[memoryview]) -> None:
        self.wakes += 1
        self.frames += [bytes(frame) for frame in frames]
        self._notify()

    def channel_closed(self, cause: BaseException | None) -> None:
        self.causes.append(cause)
        self._notify()

    def write_drained(self) -> None:
        self.drained += 1
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def until(self, condition: Callable[[], Any]) -> None:
        with anyio.fail_after(10):
            while not condition():
                await self._changed.wait()


@dataclass
class Broker:
    """A scripted broker at the other end of a stream: every request goes to `answer`, in order.

    `answer(header, message)` gives the response message, None for no answer, or an awaitable of these.
    """

    stream: ByteStream
    supervisor: Supervisor
    answer: Callable[[framing.FrameHeader, Any], Any]
    requests: list[tuple[framing.FrameHeader, Any]] = field(default_factory=list)
    channel: Channel = field(init=False)
    _before: anyio.Event | None = None

    def __post_init__(self) -> None:
        self.channel = open_channel(self.stream, self, self.supervisor)

    def frames_received(self, frames: list[memoryview]) -> None:
        for frame in frames:
            header, position = framing.decode_request_header(frame)
            message = request_class(header.api_key).decode_from(frame, position, header.api_version)[0]
            self.requests.append((header, message))
            reply = self.answer(header, message)
            if isinstance(reply, Awaitable):
                before, self._before = self._before, anyio.Event()
                self.supervisor.spawn(self._later, header, reply, before, self._before)
            elif reply is not None:
                self.reply(header, reply)

    async def _later(
        self, header: framing.FrameHeader, reply: Awaitable[Any], before: anyio.Event | None, done: anyio.Event
    ) -> None:
        message = await reply
        if before is not None:  # trio wakes those that wait for one event in any order
            await before.wait()
        self.reply(header, message)
        done.set()

    def reply(self, header: framing.FrameHeader, message: Any) -> None:
        self.channel.write(framing.encode_response(message, header.api_version, header.correlation_id))

    def channel_closed(self, cause: BaseException | None) -> None:
        pass

    def write_drained(self) -> None:
        pass


def metadata_answer(header: framing.FrameHeader, message: Any) -> Any:
    """Answers Metadata with the topic names as the cluster id, so that each response shows its request."""
    if header.api_key == 18:
        return ApiVersionsResponse()
    return MetadataResponse(cluster_id=",".join(topic.name for topic in message.topics or []))


@asynccontextmanager
async def supervised() -> AsyncIterator[Supervisor]:
    """A supervisor whose failure fails the test."""
    async with Supervisor("test") as supervisor:
        yield supervisor
        supervisor.check()
    supervisor.check()
